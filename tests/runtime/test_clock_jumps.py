"""A machine whose clock is wrong for half a minute, and one whose log has gone ahead: what a live
run makes of it."""

import json
import os
import re
import time
from datetime import UTC, datetime
from itertools import pairwise, product

import numpy as np
import pytest

from tests.board import wait_for
from tests.forked import Forked
from tests.forms import long_but, soaked_rows
from tests.runtime.harness import fleet_log
from tests.runtime.test_live_run import CONFIG, ids, lines, live
from udp_stream.cli.preflight import LiveFeedCheck, max_age_s
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.settings import LedgerSection, load
from udp_stream.windows.clocks import SETTLED_S, SteadyClock

HOUR, DAY, SLOT = 3600, 86_400, 900
JUMPS = [HOUR, -HOUR, DAY, -DAY]
AT, LASTS = 1500, 30
"""The jump begins in the middle of the second slot."""


class Machine:
    """What is true, and what its clock says; monotonic time begins anew with each process."""

    def __init__(self, begins_s, jumps):
        self.begins_s, self.now_s, self.jumps = begins_s, begins_s, jumps

    def wall(self):
        wrong = [
            by for since, until, by in self.jumps if since <= self.now_s - self.begins_s < until
        ]
        return self.now_s + sum(wrong)

    def clock(self, lag_max_s):
        started_s = self.now_s
        return SteadyClock(self.wall, lambda: self.now_s - started_s + 77, lag_max_s)


@pytest.fixture(scope="module")
def fleet():
    """Messages by the second in which they are sent."""
    found = {}
    messages = fleet_log(buses=25, hours=1.25, clean=True)
    pings, _ = PingDecoder(load(None, CONFIG, {}).ping_rules, JSON).decode(messages)
    for message, time_ms in zip(messages, pings.time_ms.tolist(), strict=True):
        found.setdefault(time_ms // 1000, []).append(message)
    return found


class Feed:
    """Frames of ten seconds through `run`'s road, as long as processes live; counts what is
    accepted, by second."""

    def __init__(self, folder, fleet, machine, silent=(0, 0), source="http://feed"):
        self.source, self.folder, self.fleet, self.machine, self.silent = (
            source,
            folder,
            fleet,
            machine,
            silent,
        )
        self.sent, self.accepted = {}, {}

    def at(self):
        return int(self.machine.now_s - self.machine.begins_s)

    def heard(self, _messages, read):
        self.accepted[self.at()] = self.accepted.get(self.at(), 0) + read.pings

    def go_on(self, until, resets=False):
        """One process until then; it dies without a word."""
        settings = load(None, CONFIG, {})
        clock = self.machine.clock(max_age_s(self.source, settings))
        self.said = []
        look = LiveFeedCheck(
            self.source, settings, lambda *said: self.said.append(said), clock.now_s, clock.hear
        )
        with live(self.folder, clock, check=self.heard) as (runtime, _):
            runtime.start(resets)
            waiting = []
            while self.at() < until:
                at = self.at()
                if not self.silent[0] <= at < self.silent[1]:
                    waiting += self.fleet.get(int(self.machine.now_s), [])
                if at % 10 == 9 and waiting:
                    self.sent[at] = len(waiting)
                    if messages := look.fresh(waiting):
                        runtime.take(messages)
                    waiting = []
                else:
                    runtime.tick()
                self.machine.now_s += 1
        return self

    def share(self, since, until, least=1000):
        sent = sum(count for at, count in self.sent.items() if since <= at < until)
        assert sent > least
        return sum(count for at, count in self.accepted.items() if since <= at < until) / sent


def sound(folder):
    """The ledger is whole, and no id was written twice."""
    with ledger_and_keys(LedgerSection(url=f"{folder}/ledger")) as (ledger, _):
        assert ledger.verify() == [] and list(ledger.unpublished()) == []
        charged = {entry.release_id: sorted(entry.charged.tolist()) for entry in ledger.entries()}
    found = ids(lines(folder))
    assert len(found) == len(set(found))
    return charged


WHEN = {
    "as it goes on": ([4500], (0, 0)),
    "a process begins in it": ([AT + 5, 4500], (0, 0)),
    "processes die at its ends": ([AT, AT + LASTS, 4500], (0, 0)),
    "in silence": ([4500], (AT - 200, AT + 200)),
    "a process begins in it, in silence": ([AT + 5, 4500], (AT - 200, AT + 200)),
}


SOME = [*zip([HOUR, -DAY, -HOUR, DAY, -DAY], WHEN, strict=True)]


@pytest.mark.parametrize(
    ("by", "when"),
    [*SOME, *soaked_rows(one for one in product(JUMPS, WHEN) if one not in SOME)],
)
def test_pings_behind_a_jump_are_accepted(by, when, fleet, tmp_path):
    ends, silent = WHEN[when]
    feed = Feed(tmp_path, fleet, Machine(min(fleet), [(AT, AT + LASTS, by)]), silent)
    for until in ends:
        feed.go_on(until)
    assert feed.share(AT + LASTS, AT + LASTS + 2 * SLOT) >= 0.95
    assert feed.share(0, AT) > 0.99
    slots = {json.loads(line)["hat"]["slot_start"] for line in lines(tmp_path)}
    assert len(slots) == 4 and sound(tmp_path)


@pytest.mark.parametrize("source", ["http://feed", "-"])
@pytest.mark.parametrize("by", long_but([HOUR], JUMPS))
def test_a_clock_that_is_wrong_for_long_is_not_believed_once_pings_said_otherwise(
    by, source, fleet, tmp_path
):
    feed = Feed(
        tmp_path, fleet, Machine(min(fleet), [(AT, DAY, by)]), (AT - 20, AT + 1000), source
    ).go_on(4400)
    assert feed.share(AT, 4400) > 0.99 and not feed.said


def test_killed_at_any_time_the_same_log_has_the_same_releases(fleet, tmp_path):
    """Decisions on the clock are in the journal: what a crash has to read again comes out as it
    was."""
    found = []
    for name, ends in (
        ("whole", [4500]),
        ("killed", [700, AT - 1, AT + LASTS + 7, 2100, 2750, 4500]),
    ):
        (tmp_path / name).mkdir()
        feed = Feed(
            tmp_path / name,
            fleet,
            Machine(min(fleet), [(AT, AT + LASTS, HOUR)]),
            (AT - 100, AT + 100),
        )
        for until in ends:
            feed.go_on(until)
        found.append((sorted(lines(tmp_path / name)), sound(tmp_path / name)))
    assert found[0] == found[1] and len(found[0][1]) > 60


def test_a_log_that_is_ahead_is_said_and_set_back_and_nothing_is_lost(fleet, tmp_path, capsys):
    """As by a clock that was wrong for longer than is healed: before the first ping came."""
    feed = Feed(tmp_path, fleet, Machine(min(fleet), [(700, 800, HOUR)]), (600, 800))
    feed.go_on(700).go_on(800)
    before = sound(tmp_path)
    assert before and "--reset-clock" not in capsys.readouterr().err
    assert feed.go_on(1000).share(800, 1000, least=100) == 0
    assert "47 min" in (said := capsys.readouterr().err) and "--reset-clock" in said
    feed.go_on(2800, resets=True)
    assert "is set back" in capsys.readouterr().err
    assert feed.share(1000, 2800) > 0.99
    feed.go_on(4500, resets=True)  # it is not ahead any more: nothing is set
    assert not capsys.readouterr().err
    after = sound(tmp_path)
    assert before.items() <= after.items() and len(after) > 2 * len(before)


def test_a_process_that_dies_behind_the_setting_back_goes_on_as_one_that_does_not(fleet, tmp_path):
    found = []
    for name, ends in (("whole", [4500]), ("killed", [1010, 1400, 2300, 4500])):
        (tmp_path / name).mkdir()
        feed = Feed(tmp_path / name, fleet, Machine(min(fleet), [(700, 800, HOUR)]), (600, 800))
        feed.go_on(700).go_on(800).go_on(1000)
        for first, until in pairwise([0, *ends]):
            feed.go_on(until, resets=first == 0)
        found.append((sorted(lines(tmp_path / name)), sound(tmp_path / name)))
    assert found[0] == found[1]


def test_where_the_source_is_silent_a_jump_is_believed_once_it_has_lasted():
    now = [0.0, 5000.0]
    clock = SteadyClock(lambda: now[1], lambda: now[0])
    said = []
    for second in range(2400):
        now = [second, 5000 + second + HOUR * (second >= 1000)]
        said.append(clock.now_s() > 5000 + HOUR)
    assert said.index(True) == 1000 + SETTLED_S


def test_under_a_wall_that_is_ahead_from_the_start_no_tick_passes_what_pings_can_be():
    now = [0.0, 5000.0]
    clock = SteadyClock(lambda: now[1] + HOUR, lambda: now[0], lag_max_s=60)
    assert clock.tick_s() == 5000 + HOUR  # nothing was heard
    clock.hear(np.array([4_990_000, 4_995_000]))
    assert 4995 <= clock.tick_s() <= 4995 + 60
    now[:] = 30.0, 5030.0
    assert 5025 <= clock.tick_s() <= 5025 + 60 < clock.now_s()


def now_pings():
    """Twenty buses, now."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    point = {"type": "Point", "coordinates": [72.83, 21.17]}
    return b"".join(
        json.dumps(
            {
                "license_plate": f"GJ05ZZ{n:04}",
                "observationDateTime": at,
                "speed": 20,
                "location": point,
            }
        ).encode()
        + b"\n"
        for n in range(20)
    )


@pytest.mark.parametrize("by", long_but([-HOUR, DAY], JUMPS))
def test_the_verb_accepts_what_comes_behind_a_jump(by, tmp_path):
    for name in ("wrong_s", "heard"):
        (tmp_path / name).touch()
    reads, feeds = os.pipe()
    words = [
        "run",
        "-",
        "--ledger",
        "l",
        "--out",
        "out",
        "--set",
        "kafka.idle_timeout=0.2s",
        "--set",
        "hat.slot=15m",
    ]
    with (tmp_path / "log").open("wb") as log, os.fdopen(feeds, "wb", buffering=0) as pipe:
        process = Forked("tests.jumping", words, [reads, log.fileno(), log.fileno()], tmp_path)
        os.close(reads)
        try:
            for wrong_s in ("", by, ""):
                (tmp_path / "wrong_s").write_text(str(wrong_s))
                before = (tmp_path / "heard").stat().st_size
                pipe.write(now_pings())
                wait_for(lambda: (tmp_path / "heard").stat().st_size > before)  # noqa: B023
                # Silent for longer than `kafka.idle_timeout`, as a feed that is polled is.
                time.sleep(1.4 if wrong_s else 0.7)
            pipe.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
    said = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert (said[-1]["pings"], said[-1]["refused"]) == (60, {}), said[-1]
    took = [
        re.search(" pings in (.+? [a-z]+)", line["message"])
        for line in said
        if line["event"] == "incoming"
    ]
    assert len(took) > 1 and all(one is None or re.fullmatch("[0-9]+ s", one[1]) for one in took), (
        took
    )
