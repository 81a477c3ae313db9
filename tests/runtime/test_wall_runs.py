"""`run` and `replay` where whole plates are hidden: slots close by the wall, or by --from and
--until."""

import json
import os
import random
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import h3
import msgspec
import pytest

from tests.forms import long_but, soaked
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import ConfigError
from udp_stream.cli.preflight import LiveFeedCheck
from udp_stream.embedded.runtime import EmbeddedRuntime, LiveRuntime, Outputs, _Runtime
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy
from udp_stream.windows.clocks import SteadyClock

MINUTE, SLOT = 60_000, 900_000
START = 1_704_672_000_000  # 2024-01-08 00:00 UTC


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    domain = tmp_path_factory.mktemp("domain") / "cells.txt"
    domain.write_text("\n".join(h3.grid_disk(h3.latlng_to_cell(21.19, 72.83, 7), 3)))
    return (
        *(
            "privacy.neighbours=add-remove",
            f"hat.domain={domain}",
            "pings.interval=10s",
            "hat.slot=15m",
        ),
        *("hat.resolution=7", "hat.timezone=UTC", "kafka.shards=1"),
    )


@pytest.fixture
def closed(monkeypatch):
    """What is closed, in place of its release: start, number of pings."""
    found = []
    monkeypatch.setattr(
        _Runtime, "_release", lambda _, slot: found.append((slot.start_ms, slot.plate.size))
    )
    return found


def ping(plate, at_ms):
    where = {"type": "Point", "coordinates": [72.83, 21.19]}
    return msgspec.json.encode(
        {"license_plate": plate, "observationDateTime": _iso(at_ms), "location": where, "speed": 20}
    )


def _iso(at_ms):
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


class Machine:
    """Its wall may be wrong; monotonic time begins anew with each process."""

    def __init__(self):
        self.now_s, self.wrong_s, self.began_s = START / 1000 + 10, 0.0, START / 1000

    def clock(self):
        self.began_s = self.now_s
        return SteadyClock(
            lambda: self.now_s + self.wrong_s, lambda: self.now_s - self.began_s, hears=False
        )


@contextmanager
def process(folder, machine, flags):
    with Journal(folder / "journal", "the ledger 5eed") as journal:
        runtime = LiveRuntime(
            load(None, flags, {}), MemoryLedger(), SeededEntropy(1), str.encode, "test", journal,
            Outputs(lambda _: None), clock=machine.clock(),
        )  # fmt: skip
        runtime.start()
        yield runtime


def live(folder, flags, sends, minutes, dice=None, wrong=lambda _minute: 0.0):
    """A minute a turn: what `sends` gives arrives, then a tick is due; where dice are given,
    processes die."""
    machine, at = Machine(), 0
    while at < minutes:
        with process(folder, machine, flags) as runtime:
            while at < minutes and (dice is None or dice.random() < 0.9):
                machine.now_s, machine.wrong_s = START / 1000 + 60 * at + 30, wrong(at)
                if messages := sends(at):
                    runtime.take(messages)
                runtime.tick()
                at += 1
                if dice is not None and dice.random() < 0.2:
                    runtime.stop()


def morning(seed, plates):
    """Pings of these plates by the minute; some wrong ones. What others send does not follow from
    it."""
    dice = {plate: random.Random(f"{seed} {plate}") for plate in "abc"}

    def sends(minute):
        found = []
        for plate in plates:
            for _ in range(dice[plate].choice([0, 0, 1, 3, 30])):
                off = dice[plate].choice([0, 0, -1, -10, -40, 3, 10**6])
                found.append(ping(plate, max(START, START + (minute + off) * MINUTE)))
                found += [b"not json"] * (dice[plate].random() < 0.1)
        return found

    return sends


@pytest.mark.parametrize("seed", [*long_but([0], range(2)), *soaked(range(2, 4))])
def test_a_run_closes_the_same_slots_with_and_without_plates_and_whenever_it_dies(
    tmp_path, flags, closed, seed
):
    due = [START + SLOT * number for number in range(1, 7)]
    found = []
    for number, (plates, dice) in enumerate(
        (("abc", None), ("abc", random.Random(seed)), ("b", None), ("", None))
    ):
        live(tmp_path / str(number), flags, morning(seed, plates), 7 * 15 + 3, dice)
        found.append(dict(closed))
        assert list(dict.fromkeys(start for start, _ in closed)) == due
        assert len(set(closed)) == len(due)  # what is closed again after a death is the same
        closed.clear()
    assert found[0] == found[1] and sum(found[0].values()) > sum(found[2].values()) > 100
    assert set(found[3].values()) == {0}


@pytest.mark.parametrize("by_s", long_but([86_400.0], [3600.0, -3600.0, 86_400.0]))
def test_a_wall_that_is_wrong_for_some_minutes_closes_nothing(tmp_path, flags, closed, by_s):
    live(
        tmp_path,
        flags,
        morning(1, "abc"),
        7 * 15 + 3,
        wrong=lambda at: by_s if 40 <= at < 49 else 0.0,
    )
    assert [start for start, _ in closed] == [START + SLOT * number for number in range(1, 7)]


def test_the_clock_that_a_run_makes_itself_hears_no_ping(tmp_path, flags, closed, monkeypatch):
    """Else pings would make a wall believed that is wrong for some minutes."""
    machine = Machine()
    times = {
        "time": lambda: machine.now_s + machine.wrong_s,
        "monotonic": lambda: machine.now_s - START / 1000,
    }
    monkeypatch.setattr("udp_stream.settings.sections.time", SimpleNamespace(**times))
    with Journal(tmp_path / "journal", "the ledger 5eed") as journal:
        runtime = LiveRuntime(
            load(None, flags, {}), MemoryLedger(), SeededEntropy(1), str.encode, "test", journal,
            Outputs(lambda _: None),
        )  # fmt: skip
        runtime.start()
        for minute in range(20):
            machine.now_s, machine.wrong_s = (
                START / 1000 + 60 * minute + 30,
                86_400.0 if minute > 11 else 0.0,
            )
            runtime.take([ping("a", START + minute * MINUTE + 1000 * machine.wrong_s)])
            runtime.tick()
    assert closed == []


def test_a_recording_closes_every_slot_of_its_span_and_no_ping_is_late(flags, closed):
    settings = load(None, flags, {})
    slots = settings.calendar.slots.between(START + SLOT, START + 5 * SLOT, 99)
    of_ledger = MemoryLedger(), SeededEntropy(1), str.encode, "test", lambda _: None
    runtime = EmbeddedRuntime(settings, *of_ledger, slots=slots)
    minutes = [14, 44, 15, 16, 40, 74, 75, 10**6]
    for minute in minutes:
        runtime.push([ping("a", START + minute * MINUTE)])
    assert closed == []
    runtime.finish()
    assert closed == [
        (START + SLOT, 2),
        (START + 2 * SLOT, 2),
        (START + 3 * SLOT, 0),
        (START + 4 * SLOT, 1),
    ]
    assert dict(runtime.summary.refused) == {"time_out_of_range": 3}
    with pytest.raises(ConfigError, match="--from"):
        EmbeddedRuntime(settings, *of_ledger)


def udp_stream(folder, flags, *arguments, stdin=None):
    sets = [word for flag in flags for word in ("--set", flag)]
    return run_verb(
        [*arguments, *sets], cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"}
    )


SPAN = "--from", "2024-01-08T00:15", "--until", "2024-01-08T01:15:00+00:00"


@pytest.mark.parametrize(
    "content", [b"", b"junk\n" * 50, None, b"\n".join(fleet_log(buses=5, hours=0.2))]
)
@pytest.mark.parametrize("piped", [False, True])
def test_replay_ends_well_and_closes_the_same_whatever_the_feed_holds(
    tmp_path, flags, closed, content, piped
):
    content = ping("a", START + 20 * MINUTE) if content is None else content
    (tmp_path / "day.ndjson").write_bytes(content)
    name = "-" if piped else "day.ndjson"
    ended = udp_stream(
        tmp_path, flags, "replay", name, "--trial", "--out", "out", *SPAN, stdin=content
    )
    assert ended.returncode == 0, ended.stderr
    assert [start for start, _ in closed] == [START + SLOT * number for number in range(1, 5)]
    held = sum(size for _, size in closed)
    assert held == (1 if b'"a"' in content else 0)
    assert held or b"warning" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((), "expected both"),
        (SPAN[:2], "expected both"),
        (("--from", "2024-01-08", "--until", "2024-01-08"), "got none"),
        (("--from", "2000-01-08", "--until", "2024-01-08"), "got more"),
        (("--from", "monday", "--until", "2024-01-08"), "monday"),
        ((*SPAN, "--dry-run"), "leave --from"),
    ],
)
def test_a_span_that_cannot_be_is_refused_before_anything_is_charged(
    tmp_path, flags, arguments, rule
):
    (tmp_path / "day.ndjson").write_bytes(ping("a", START))
    trial = () if "--dry-run" in arguments else ("--ledger", "city.ledger")
    ended = udp_stream(tmp_path, flags, "replay", "day.ndjson", *trial, *arguments)
    assert ended.returncode == 2 and rule in ended.stderr.decode()
    assert not (tmp_path / "city.ledger").exists()


def test_the_table_by_hours_has_what_may_be_shown_and_nothing_untrue(tmp_path, flags):
    (tmp_path / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=20, hours=1.5, clean=True)))
    span = "--from", "2024-01-08T03:30", "--until", "2024-01-08T05:00"
    words = "replay", "day.ndjson", "--trial", "--out", "out", "--smoothed", "estimates", *span
    said = [
        udp_stream(tmp_path, flags, *words, *more).stderr.decode().splitlines()
        for more in ((), ("--json",))
    ]
    records = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert {one["status"] for one in records} == {"released"} and len(records) % 6 == 0
    hours = [line.split() for line in said[0] if re.match("0[0-9]:00 ", line)]
    cells = str(len(records) // 6)
    assert [row[:3] for row in hours] == [["03:00", cells, cells], ["04:00", cells, cells]]
    (names,) = [line for line in said[0] if line.split()[:1] == ["hour"]]
    assert "HATs" in names and "buses" not in names and "budget" not in names
    by_slot = json.loads(said[1][-1])["by_slot"].values()
    assert {(one["measured"], one["buses"], one["budget_left"]) for one in by_slot} == {
        (int(cells), None, None)
    }


def test_where_pings_tell_the_slots_a_span_is_refused(tmp_path):
    (tmp_path / "day.ndjson").write_bytes(ping("a", START))
    ended = udp_stream(tmp_path, (), "replay", "day.ndjson", "--trial", *SPAN)
    assert ended.returncode == 2 and b"add-remove" in ended.stderr


@pytest.mark.parametrize(
    "content", [b"", b"junk\n" * 50, b"\n".join(fleet_log(buses=5, hours=0.2))]
)
def test_run_ends_well_whatever_the_feed_holds_and_has_begun_its_clock(
    tmp_path, flags, closed, content
):
    """Nothing, junk, or pings of years ago: it is said, and decides nothing."""
    ended = udp_stream(
        tmp_path, flags, "run", "-", "--ledger", "city.ledger", "--out", "out", stdin=content
    )
    assert ended.returncode == 0, ended.stderr
    said = [json.loads(line) for line in ended.stderr.splitlines()]
    assert any(entry["level"] == "warning" for entry in said)
    with Journal(tmp_path / "city.ledger.journal", _owner(tmp_path)) as journal:
        first, *_ = journal.frames(0)
    assert first.messages == [] and closed == []


def _owner(folder):
    return (folder / "city.ledger.journal" / "owner").read_text()


def test_pings_of_a_stale_source_are_handed_on_and_said(flags):
    said = []
    for mode, kept in ((flags, 3), ((), 1)):
        look = LiveFeedCheck(
            "http://feed",
            load(None, mode, {}),
            lambda *one: said.append(one),
            lambda: START / 1000 + 9000,
        )
        assert len(look.fresh([ping("a", START), b"junk", ping("b", START)])) == kept
        assert look.stale == 3 - kept
    assert [event for _, event, *_ in said].count("stale") == 2
