"""Killed at any moment, again and again, and resumed each time on the same ledger.

A child process (a fork, so that the test's time goes into the run and not into imports) replays a log; it is killed at
a random moment and another takes over, until one comes through. Then another ledger, until enough have died.
"""

import io
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.adapters.embedded import smoothed_writer
from udp_stream.release import record as release
from udp_stream.release.delivery import releases_of


def child(ledger: Path, out: Path, frames) -> int:
    """Fork a process that replays the log into `out`; it never returns here. Gives its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with (
            out.open("wb") as file,
            out.with_suffix(".smoothed").open("wb") as estimates,
            embedded(ledger, file, smooth=smoothed_writer(estimates)) as runtime,
        ):
            runtime.run(frames)
        status = 0
    finally:
        os._exit(status)


def complete_lines(path: Path):
    """The records a dead process left: its last line may be cut short."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        return [release.payload for release in releases_of(file)]


def whole_lines(path: Path):
    """What is there; the last line may be cut short."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("enough", [50, pytest.param(200, marks=pytest.mark.long)])
def test_the_union_of_killed_runs_is_one_run(enough, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, frames = random.Random(seed), frames_of(fleet_log(), 1024)
    full = _seconds_of_a_run(tmp_path / "measured", frames)
    kills = rounds = 0
    while kills < enough:
        rounds += 1
        kills += _one_ledger(tmp_path / f"round{rounds}", frames, dice, full, enough - kills)
    assert rounds > 3


def _seconds_of_a_run(folder: Path, frames) -> float:
    folder.mkdir()
    start = time.monotonic()
    _, status = os.waitpid(child(folder / "ledger", folder / "out", frames), 0)
    assert status == 0
    return time.monotonic() - start


def _one_ledger(folder: Path, frames, dice: random.Random, full: float, kills_max: int) -> int:
    """Kill runs on one ledger until one comes through; check all that they left. Returns how many were killed."""
    folder.mkdir()
    outs: list[Path] = []
    finished = False
    while not finished:
        outs.append(folder / f"out{len(outs)}")
        pid = child(folder / "ledger", outs[-1], frames)
        if len(outs) <= min(12, kills_max):
            time.sleep(dice.uniform(0, 1.1 * full))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert status == 0 or os.WIFSIGNALED(status), f"a run failed by itself: {status}"
        finished = status == 0
    _check(folder / "ledger", outs)
    return len(outs) - 1


def _check(ledger: Path, outs: list[Path]) -> None:
    payloads: dict[str, bytes] = {}
    for out in outs:
        for line in complete_lines(out):
            assert payloads.setdefault(release.decode(line).release_id, line) == line
    assert list(payloads.values()) == complete_lines(outs[-1])  # the run that came through has everything, in order
    estimates = [whole_lines(out.with_suffix(".smoothed")) for out in outs]
    assert len(estimates[-1]) > len(payloads) and all(estimates[-1][: len(some)] == some for some in estimates)
    with embedded(ledger, io.BytesIO()) as runtime:
        assert runtime._ledger.verify() == []  # every balance is the sum of its charges, none over its budget
        entries = list(runtime._ledger.entries())
        assert list(runtime._ledger.unpublished()) == []
    assert {entry.release_id for entry in entries} == set(payloads)
    for entry in entries:
        record = release.decode(payloads[entry.release_id])
        admitted = int((entry.charged > 0).sum())
        assert entry.payload == payloads[entry.release_id]
        assert admitted == record.counts.admitted_plates
        assert max(entry.charged.tolist(), default=0) == round(record.privacy.epsilon * 1e9)
