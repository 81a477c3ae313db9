"""Killed at any moment, again and again, and resumed each time on the same ledger; also a feed
without speeds.

A forked child replays a log and dies when one of two clocks gets there: its own processor time
spreads the deaths over the whole run, the clock on the wall also goes on while it waits for the
disk. Another takes over, until one comes through; then another ledger, until enough have died.

Whole programs die before each effect that they have on ledger and outputs, and in the middle of
each write.
"""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forms import long_but
from tests.runtime.harness import (
    CONFIG,
    embedded,
    fleet_log,
    frames_of,
    ledger_at,
    smoothed_writer,
    without_speeds,
)
from udp_stream.cli.main import main
from udp_stream.cli.process import NamedFile
from udp_stream.ledgers.sqlite import SqliteLedger
from udp_stream.release import record as release
from udp_stream.testing import SeededEntropy

CLOCKS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
"""Each with the signal that it sends. Where no handler is, that ends a process at once, as SIGKILL
does."""


class Feed(NamedTuple):
    """What is replayed. Where the entropy has a seed every run must say the same bytes; else those
    of its ledger."""

    frames: list[list[bytes]]
    flags: tuple[str, ...] = CONFIG
    seed: str = ""


def speeds() -> Feed:
    return Feed(frames_of(fleet_log(buses=20, hours=0.9), 512))


def movement() -> Feed:
    messages = list(without_speeds(fleet_log(buses=20, hours=0.9, clean=True)))
    return Feed(frames_of(messages, 512), (*CONFIG, "speed.from=movement"), "moving")


def child(
    ledger: Path, out: Path, feed: Feed, clock: int = signal.ITIMER_REAL, dies_after_s: float = 0.0
) -> int:
    """The id of a forked replay of the log into `out`; it dies in these seconds of that clock, 0
    for never."""
    pid = os.fork()
    if pid:
        return pid
    status, entropy = 1, SeededEntropy(feed.seed) if feed.seed else None
    try:
        signal.signal(CLOCKS[clock], signal.SIG_DFL)
        signal.setitimer(clock, dies_after_s)
        with (
            out.open("wb") as file,
            out.with_suffix(".smoothed").open("wb") as estimates,
            embedded(
                ledger, file, feed.flags, entropy, smooth=smoothed_writer(estimates)
            ) as runtime,
        ):
            runtime.run(feed.frames)
        status = 0
    finally:
        os._exit(status)


def run(ledger: Path, out: Path, feed: Feed, *death) -> tuple[bool, dict[int, float]]:
    start = time.monotonic()
    _, status, used = os.wait4(child(ledger, out, feed, *death), 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in CLOCKS.values()
    assert status == 0 or killed, f"a run failed by itself: {status}"
    took_s = {
        signal.ITIMER_PROF: used.ru_utime + used.ru_stime,
        signal.ITIMER_REAL: time.monotonic() - start,
    }
    return status == 0, took_s


def whole_lines(path: Path):
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("feed", "enough"),
    [(speeds, 12), (movement, 8), pytest.param(speeds, 200, marks=pytest.mark.soak)],
)
def test_the_union_of_killed_runs_is_one_run(feed, enough, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, fed = random.Random(seed), feed()
    (tmp_path / "measured").mkdir()
    came_through, full_s = run(tmp_path / "measured" / "ledger", tmp_path / "measured" / "out", fed)
    assert came_through
    expected = whole_lines(tmp_path / "measured" / "out")
    kills = rounds = 0
    while kills < enough:
        rounds += 1
        on_one = min(12, enough // 6, enough - kills)
        folder = tmp_path / f"round{rounds}"
        kills += (killed := _one_ledger(folder, fed, dice, full_s, on_one))
        assert not fed.seed or whole_lines(folder / f"out{killed}") == expected
    assert 6 <= rounds <= 3 * enough


def _one_ledger(
    folder: Path, feed: Feed, dice: random.Random, full_s: dict[int, float], kills_max: int
) -> int:
    """Kill runs on one ledger until one comes through. `full_s`: the least that a run on a new one
    took."""
    folder.mkdir()
    outs: list[Path] = []
    came_through = False
    while not came_through:
        outs.append(folder / f"out{len(outs)}")
        clock = dice.choice(list(CLOCKS))
        dies_after_s = dice.uniform(0, 1.1 * full_s[clock]) if len(outs) <= kills_max else 0.0
        came_through, took_s = run(folder / "ledger", outs[-1], feed, clock, dies_after_s)
        if came_through and len(outs) == 1:
            full_s |= {clock: min(full_s[clock], took_s[clock]) for clock in CLOCKS}
    _check(folder / "ledger", outs)
    return len(outs) - 1


def _check(ledger: Path, outs: list[Path]) -> None:
    payloads: dict[str, bytes] = {}
    for out in outs:
        for line in whole_lines(out):
            assert payloads.setdefault(release.Release.decode(line).release_id, line) == line
    assert list(payloads.values()) == whole_lines(
        outs[-1]
    )  # the run that came through has everything, in order
    estimates = [whole_lines(out.with_suffix(".smoothed")) for out in outs]
    assert len(estimates[-1]) > len(payloads) and all(
        estimates[-1][: len(some)] == some for some in estimates
    )
    with ledger_at(ledger) as (opened, _):
        assert (
            opened.verify() == []
        )  # every balance is the sum of its charges, none over its budget
        entries = list(opened.entries())
        assert list(opened.unpublished()) == []
    assert {entry.release_id for entry in entries} == set(payloads)
    for entry in entries:
        record = release.Release.decode(payloads[entry.release_id])
        admitted = int((entry.charged > 0).sum())
        assert entry.payload == payloads[entry.release_id]
        assert admitted == record.counts.admitted_plates
        assert max(entry.charged.tolist(), default=0) == round(record.privacy.epsilon * 1e9)


DIED = 99
EFFECTS = "admit", "record", "published"
FLAGS = ("hat.slot=15m", "hat.resolution=7", "release.min_plates=2")


class Effects:
    """Counted in this process, which dies at one of them."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at, self.number = dies_at, 0
        for name in EFFECTS:
            self._put_before(SqliteLedger, name)
        self._put_before(NamedFile, "write")

    def _put_before(self, owner, name):
        real = getattr(owner, name)

        def hooked(this, given, *more, **named):
            self.one()
            if name == "write":
                if self.number + 1 == self.dies_at:
                    real(this, memoryview(given)[: len(given) // 2])
                self.one()
            return real(this, given, *more, **named)

        setattr(owner, name, hooked)

    def one(self):
        self.number += 1
        if self.number == self.dies_at:
            os._exit(DIED)


def program(folder: Path, words: list[str], dies_at: int = 0) -> tuple[int, int]:
    """A whole program's status, and how many effects it had; it dies at this one."""
    said, pid = folder / "effects", os.fork()
    if not pid:
        status, effects = 1, Effects(dies_at)
        try:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = main(words)
            said.write_text(str(effects.number))
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, int(said.read_text()) if said.exists() else 0


def hats(path: Path) -> list[tuple[str, str]]:
    found = [json.loads(line)["hat"] for line in whole_lines(path)]
    return sorted((hat["cell"], hat["slot_start"]) for hat in found)


@pytest.mark.parametrize("verb", long_but(["run"], ["run", "replay"]))
def test_at_whichever_effect_a_program_dies_its_next_run_has_each_record_and_estimate_once(
    verb, tmp_path
):
    log = b"".join(message + b"\n" for message in fleet_log(buses=12, hours=0.5, clean=True))
    words = [verb, "pings.ndjson", "--ledger", "l", "--out", "out", "--smoothed", "smoothed"]
    words += [word for flag in FLAGS for word in ("--set", flag)]

    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "pings.ndjson").write_bytes(log)
        return tmp_path / name

    status, effects = program(folder("whole"), words)
    expected = [hats(tmp_path / "whole" / name) for name in ("out", "smoothed")]
    assert (
        status == 0
        and effects > 10
        and len(set(expected[1])) == len(expected[1]) >= len(expected[0]) > 30
    )
    wrong = []
    for dies_at in range(1, effects + 1):
        here = folder(f"dies at {dies_at}")
        assert program(here, words, dies_at) == (DIED, 0)
        status, _ = program(here, words)
        assert status in (0, 2)  # of a run of whose file all is late by now
        if [hats(here / name) for name in ("out", "smoothed")] != expected:
            wrong.append(dies_at)
    assert not wrong
