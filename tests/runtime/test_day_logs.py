"""The log of a whole day, from real runs: the live runtime over a synthetic day, with a clock moved by hand."""

import io
import logging
import re
from collections import defaultdict
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from udp_stream import logs
from udp_stream.cli.first_look import FeedWatch
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.logs import begin_log, end_log, say
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.release.facts import RunLog
from udp_stream.runtime.live import LiveRuntime, Outputs
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy
from udp_stream.trial.fleet import IST, Fleet, Imperfections

MIDNIGHT = datetime(2024, 1, 8, tzinfo=IST)
LOOK_S = 10
AWAY = range(9 * 3600, 11 * 3600)
BACK = AWAY.stop // 60 - 1


@cache
def a_day(buses=12):
    """The messages of a fleet's day, by the minute in which they arrive: that of their pings."""
    fleet = Fleet(seed=1, buses=buses, start=MIDNIGHT, hours=24, imperfections=Imperfections.none())
    messages = [message for batch in fleet.messages() for message in batch]
    pings, _ = PingDecoder(load(None, (), {}).ping_rules, JSON).decode(messages)
    by_minute = defaultdict(list)
    for row, time_ms in zip(pings.message.tolist(), pings.time_ms.tolist(), strict=True):
        by_minute[int(time_ms / 1000 - MIDNIGHT.timestamp()) // 60].append(messages[row])
    return dict(by_minute)


def refused(by_minute):
    """As a feed that writes its speeds as text."""
    return {minute: [re.sub(rb'"speed":([\d.]+)', rb'"speed":"\1"', one) for one in messages]
            for minute, messages in by_minute.items()}  # fmt: skip


def night(by_minute):
    return by_minute


def away(by_minute):
    """What would come while the broker is away comes as soon as it is back, as from a feed that waits for it."""
    found = defaultdict(list)
    for minute, messages in by_minute.items():
        found[BACK if minute * 60 in AWAY else minute] += messages
    return dict(found)


DAYS = {"night": night, "refused": refused, "away": away}


def lines_of(day, folder, monotonic):
    """What the run says of this day, and the releases that it wrote. `monotonic` holds the time of the log's clock."""
    settings, now, out = load(None, ("release.min_plates=2",), {}), [MIDNIGHT.timestamp()], []
    said = io.StringIO()
    begin_log(said, as_json=False)
    opened = ledger_and_keys(LedgerSection(url=f"{folder}/ledger"))
    with opened as (ledger, _), Journal(Path(folder, "journal"), "the ledger") as journal:
        log = RunLog(settings.calendar.slots, settings.policy.grace_ms)
        runtime = LiveRuntime(
            settings, ledger, SeededEntropy(1), str.encode, "test", journal, Outputs(out.extend),
            [lambda fact: log.observe(fact, now[0])], lambda: now[0], FeedWatch(settings).look,
        )  # fmt: skip
        runtime.start()
        messages = DAYS[day](a_day())
        for second in range(0, 86_400, LOOK_S):
            now[0] = MIDNIGHT.timestamp() + second
            monotonic[0] = second
            is_away = day == "away" and second in AWAY
            if is_away:
                logging.getLogger("aiokafka").error("Unable connect to node with id %s: %s", 1, OSError())
            elif day == "away" and second == AWAY.stop:
                runtime.take(messages[BACK])
            elif second % 60 == 50 and second // 60 in messages:
                runtime.take(messages[second // 60])
            else:
                runtime.tick()
            for line in log.lines(now[0]):
                say(line.text, line.event, line.figures)
    end_log()
    return said.getvalue().splitlines(), out


@pytest.mark.parametrize("day", ["refused", *(pytest.param(day, marks=pytest.mark.long) for day in ("night", "away"))])
def test_a_whole_day_has_fewer_than_200_lines_and_each_slot_has_one(day, tmp_path, monkeypatch):
    monotonic = [0.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: monotonic[0]))
    lines, out = lines_of(day, tmp_path, monotonic)
    assert 50 < len(lines) < 200
    slots = [line for line in lines if " HATs, " in line]
    by_slot = {msgspec.json.decode(release)["hat"]["slot_start"] for release in out}
    assert len(slots) == len(by_slot) == (0 if day == "refused" else 18)
    assert ("wrong_type" in "".join(lines)) == (day == "refused")
    assert sum(" pings refused: wrong_type at " in line for line in lines) == (day == "refused")
    assert sum("a Kafka broker does not answer" in line for line in lines) == (12 if day == "away" else 0)
