"""Which files and functions of ours one HAT's pings enter, from bytes to published release: `python -m
benchmarks.road_of_a_ping`. Embedded, and through the processors of a worker over a broker in memory."""

import asyncio
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.words import words
from tests.unit.test_processors import SETTINGS, START, TOPICS, Broker, Worker, ping
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.runtime import Embedded
from udp_stream.testing import SeededEntropy

ROOT = Path(__file__).parents[1]
OURS = (str(ROOT / "udp_stream"), str(ROOT / "streams"))


def entered(work: Callable[[], object]) -> tuple[int, int]:
    """How many of our files and functions some work enters, in this thread and in those it starts."""
    found: set[tuple[str, str]] = set()

    def look(frame, event, _argument) -> None:  # type: ignore[no-untyped-def]
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_qualname))

    import threading

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len({file for file, _ in found}), len(found)


def embedded() -> None:
    """Two plates in one slot, which the end of the log closes."""
    runtime = Embedded(SETTINGS, MemoryLedger(), SeededEntropy(1), str.encode, "test", lambda _: None)
    runtime.run([[ping(plate, 1) for plate in "ab"]])


def processors() -> None:
    """The same pings through a source, a shard and the planner."""
    broker = Broker()
    for plate in "ab":
        broker.now_ms = START + 60_000
        broker.append(TOPICS.pings.name, 0, ping(plate, 1))
    broker.now_ms = START + 300 * 60_000

    async def work(thread: ThreadPoolExecutor) -> None:
        await Worker(broker, MemoryLedger(), thread).run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))


if __name__ == "__main__":
    words(__doc__)
    for name, work in (("embedded", embedded), ("Kafka", processors)):
        files, functions = entered(work)
        print(f"{name:<10}{files:>4} files{functions:>6} functions")
