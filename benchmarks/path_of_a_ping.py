"""What one HAT's pings enter of our code, from bytes to published release: `python -m
benchmarks.path_of_a_ping`.

Embedded, and through a worker's processors over a broker in memory, with caches warm: files,
functions, calls.
"""

import asyncio
import itertools
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.words import words
from tests.unit.test_processors import SETTINGS, START, TOPICS, Broker, Worker, ping
from udp_stream import testing
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledgers.sqlite import MemoryLedger

ROOT = Path(__file__).parents[1]
OURS = (str(ROOT / "udp_stream"), str(ROOT / "streams"))
NOT_OURS = testing.__file__

Work = Callable[[], object]


def called(work: Work) -> list[tuple[str, str]]:
    """File and name of each call of a function of ours, in this thread and in those it starts."""
    found: list[tuple[str, str]] = []

    def look(frame, event, _argument) -> None:  # type: ignore[no-untyped-def]
        code = frame.f_code
        file = code.co_filename
        if (
            event == "call"
            and file.startswith(OURS)
            and file != NOT_OURS
            and not code.co_name.startswith("<")
        ):
            found.append((file, code.co_qualname))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def embedded() -> Work:
    """Two plates in one slot, which the end of the log closes."""
    runtime = EmbeddedRuntime(
        SETTINGS, MemoryLedger(), testing.SeededEntropy(1), str.encode, "test", lambda _: None
    )
    return lambda: runtime.run([[ping(plate, 1) for plate in "ab"]])


def processors() -> Work:
    """The same pings through a source, a shard and the planner."""
    broker = Broker()
    thread = ThreadPoolExecutor(1)
    for plate in "ab":
        broker.now_ms = START + 60_000
        broker.append(TOPICS.pings.name, 0, ping(plate, 1))
    broker.now_ms = START + 300 * 60_000
    worker = Worker(broker, MemoryLedger(), thread)

    def work() -> None:
        with thread:
            asyncio.run(worker.run(random.Random(0)))

    return work


if __name__ == "__main__":
    words(__doc__)
    for name, build in (("embedded", embedded), ("Kafka", processors)):
        build()()  # fills the caches
        calls = called(build())
        files = [file for file, _ in calls]
        changes = sum(one != other for one, other in itertools.pairwise(files))
        print(
            f"{name:<10}{len(set(files)):>3} files{len(set(calls)):>5} functions{len(calls):>6} calls"
            f"{changes:>5} changes of file"
        )
