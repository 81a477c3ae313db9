"""Under "add-remove": 5,000 messages of one plate change nothing of what the others hand on, by any
way in.

Queues and topics are in `tests/integration`, partitions in `tests/unit`.
"""

import hashlib
import time
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks.feed_forms import FORMS
from tests.http_server import GTFS, serving
from tests.one_plate import (
    CROWD,
    MESSAGES,
    POLLS,
    feed,
    gtfs_messages,
    gtfs_polls,
    has_ended,
    json_polls,
    others,
    plate_of,
)
from tests.runtime.test_wall_runs import START, Machine, ping
from udp_stream.embedded.runtime import LiveRuntime, Outputs
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.pings.snapshots import FORGOTTEN_S
from udp_stream.settings import Settings, load
from udp_stream.settings.sections import LiveSection, SpeedSection
from udp_stream.sources.http import PolledSource
from udp_stream.sources.journal import Journal
from udp_stream.sources.recordings import open_sources
from udp_stream.testing import SeededEntropy


def both(hand_on):
    """What the others hand on without the crowd and with it."""
    without, crowded = (hand_on(is_crowded) for is_crowded in (False, True))
    assert sum(plate_of(one) == CROWD for one in crowded) > MESSAGES / 2
    assert len(without) == len(others(without)) > 200
    return without, others(crowded)


def unchanged(body, kind):
    """Answers as servers do that say when nothing has changed."""
    tag = f'"{hashlib.sha256(body).hexdigest()}"'

    def answer(request):
        if request.headers.get("If-None-Match") == tag:
            request.respond(304, b"", {"ETag": tag})
        else:
            request.respond(200, body, {"Content-Type": kind, "ETag": tag})

    return answer


@pytest.mark.parametrize("began_s", [0, FORGOTTEN_S - POLLS // 2 - 2])
@pytest.mark.parametrize(("polls", "kind"), [(json_polls, "application/json"), (gtfs_polls, GTFS)])
def test_polls_hand_on_the_same_of_others_whether_or_not_one_plate_changes_each_answer(
    polls, kind, began_s, monkeypatch
):
    """Also where all is forgotten while the answers of others stay as they are. A poll takes a
    second."""
    live = LiveSection(every="0.01s", timeout="5s")

    def hand_on(is_crowded):
        found = []
        with serving(*(unchanged(body, kind) for body in polls(is_crowded))) as running:
            clock = SimpleNamespace(
                monotonic=lambda: float(began_s + len(running.requests)), time=time.time
            )
            monkeypatch.setattr("udp_stream.sources.http.time", clock)
            source = PolledSource(
                running.url, Settings(live=live, speed=SpeedSection(unit="mps")), [].append
            )
            for frame in source.messages():
                found += frame
                if has_ended(frame):
                    source.stop()
        return found

    without, crowded = both(hand_on)
    assert crowded == without


def in_file(name, is_crowded):
    if name.endswith(".pb"):
        return b"".join(len(one).to_bytes(4, "big") + one for one in gtfs_messages(is_crowded))
    if name.endswith(".ndjson"):
        return b"\n".join(feed(is_crowded))
    pings = [msgspec.json.decode(one) for one in feed(is_crowded)]
    return FORMS[name]([one for one in pings if "speed" in one])


@pytest.mark.parametrize("name", ["day.pb", "day.ndjson", "array.json"])
def test_files_hand_on_the_same_of_others(tmp_path, name):
    def hand_on(is_crowded):
        (tmp_path / name).write_bytes(in_file(name, is_crowded))
        found = []
        for _, source in open_sources([str(tmp_path / name)], "mps"):
            with closing(source):
                for frame in source.messages():
                    found += frame
        return found

    without, crowded = both(hand_on)
    assert crowded == without


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    domain = tmp_path_factory.mktemp("domain") / "cells"
    domain.write_text("87608c4d2ffffff")
    return load(None, ("privacy.neighbours=add-remove", f"hat.domain={domain}", "pings.interval=10s", "hat.slot=15m",
                       "hat.timezone=UTC"), {})  # fmt: skip


def test_a_journal_and_its_slots_hold_the_same_of_others(tmp_path, hidden):
    """Pings of now, late, of the future, and twice, from elsewhere: in slots, or refused, whatever
    one plate sends."""
    minutes = 50

    def sent(minute, is_crowded):
        for bus in range(30):
            at = START + 60_000 * minute + 1000 * bus
            yield from (ping(f"BUS{bus}", at), ping(f"BUS{bus}", at).replace(b"72.83", b"72.93"))
            yield from [ping(f"BUS{bus}", at - 1_800_000)] * (bus % 5 == minute % 5)
            yield from [ping(f"BUS{bus}", at + 600_000)] * (bus % 7 == minute % 7)
            for number in range(MESSAGES // minutes // 30 + 1 if is_crowded else 0):
                off = (0, 1, 29_000, -3_600_000, 86_400_000, 10**12)[(bus + number) % 6]
                yield ping(CROWD, at + off)

    def outcome(name, is_crowded):
        machine, slots, refused, began = Machine(), [], [], {}

        def look(_messages, read):
            for slot in read.closed:
                rows = zip(slot.plate.tolist(), slot.time.tolist(), slot.cell.tolist(), strict=True)
                began[slot.start_ms] = sorted((slot.plates[plate], *more) for plate, *more in rows)
            refused.extend(
                (one.refusal.reason, one.refusal.lag_ms, one.original) for one in read.refused
            )

        with Journal(tmp_path / name, "the ledger 5eed") as journal:
            runtime = LiveRuntime(
                hidden, MemoryLedger(), SeededEntropy(1), _hashed, "test", journal, Outputs(slots.extend),
                clock=machine.clock(), check=look,
            )  # fmt: skip
            runtime.start()
            for minute in range(minutes):
                machine.now_s = START / 1000 + 60 * minute + 30
                runtime.take(list(sent(minute, is_crowded)))
                runtime.tick()
        crowded = [len(one) - len(_without(one)) for one in began.values()]
        return (
            {start: _without(one) for start, one in began.items()},
            [one for one in refused if CROWD.encode() not in one[2]],
            sum(crowded),
        )

    without, crowded = outcome("without", False), outcome("crowded", True)
    assert crowded[:2] == without[:2] and len(without[0]) == 2 and len(without[1]) > 300
    assert without[2] == 0 and crowded[2] > 500


def _without(rows):
    return [row for row in rows if row[0] != _hashed(CROWD)]


def _hashed(plate):
    return plate.ljust(8).encode()
