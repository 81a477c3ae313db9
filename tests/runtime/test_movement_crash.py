"""A feed without speeds: killed at any moment and begun again, it says the same bytes as one that was not."""

import os
import random
import signal
import time

import msgspec
import pytest

from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from udp_stream.testing import SeededEntropy

FLAGS = (*CONFIG, "speed.from=movement")


def without_speeds(messages):
    """The same pings as a feed has them that tells no speed."""
    for message in messages:
        ping = msgspec.json.decode(message)
        yield msgspec.json.encode({name: value for name, value in ping.items() if name != "speed"})


def replayed(ledger, out, frames, dies_after_s=0.0):
    """A run in a process of its own, and how many seconds it took; its bytes, None if it was killed."""
    start = time.monotonic()
    if not (pid := os.fork()):
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, dies_after_s)
            with out.open("wb") as file, embedded(ledger, file, FLAGS, SeededEntropy("moving")) as runtime:
                runtime.run(frames)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGALRM, f"a run failed by itself: {status}"
    return (out.read_bytes() if status == 0 else None), time.monotonic() - start


@pytest.mark.timeout(300)
def test_killed_runs_say_the_same_bytes(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, frames = random.Random(seed), frames_of(list(without_speeds(fleet_log(buses=20, clean=True))), 512)
    expected, full_s = replayed(tmp_path / "whole", tmp_path / "whole.ndjson", frames)
    assert expected.count(b'"status":"released"') > 10
    kills = 0
    for number in range(40):
        ledger = tmp_path / f"killed{number}"
        ends = [replayed(ledger, tmp_path / "out", frames, dice.uniform(0.05, full_s))[0] for _ in range(2)]
        again, _ = replayed(ledger, tmp_path / "out", frames)
        kills += ends.count(None)
        assert again == expected and all(end in (None, expected) for end in ends)
        if kills >= 8:
            return
    raise AssertionError("too few runs were killed")
