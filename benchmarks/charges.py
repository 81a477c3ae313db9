"""`python -m benchmarks.charges`: what a charge costs after a thousand others, and after a million.

One HAT of 100 plates is charged every hour, for more than a year: 10^6 charges of the same plates. Under one budget for
a lifetime, under one for each day, and under a rolling one of a day. Each row is the time of a HAT's admission (of this
process; with Redis, on the clock), the least of the 70 before that moment, and beside it the ratio to the first row. It
should stay at one: a balance is a number, and a window has 25 of them, whatever came before.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import numpy as np

from benchmarks.__main__ import say
from udp_stream.adapters.ledgers.redis.opening import open_redis_ledger
from udp_stream.adapters.ledgers.sqlite.ledger import open_sqlite_ledger
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.ledger.rolling import span_name
from udp_stream.trial.services.both import redis

PLATES = [b"%016d" % plate for plate in range(100)]
HOURS = 10_000
MARKS = (100, 1_000, 3_000, HOURS)
BEFORE = 70
BUDGET, CHARGE = 10**12, 10**6
START = datetime(2024, 1, 1, tzinfo=UTC)


def periods(kind: str) -> Iterator[str]:
    """The budget period of each hour."""
    for hour in range(HOURS):
        begin = START + timedelta(hours=hour)
        match kind:
            case "lifetime":
                yield "lifetime"
            case "1d":
                yield f"1d from {begin.replace(hour=0).isoformat()}"
            case _:
                yield span_name("1d", begin.isoformat(), (begin + timedelta(hours=1)).isoformat())


def bench(store: str, ledger: Ledger, kind: str) -> None:
    """A year of hours, and what the last ones before each mark took."""
    members, charges = np.arange(len(PLATES)), np.full(len(PLATES), CHARGE)
    clock = time.perf_counter if store == "Redis" else time.process_time  # Redis works in another process
    took: list[float] = []
    first = 0.0
    for hour, period in enumerate(periods(kind), start=1):
        asked = Admission(f"{kind}-{hour}", members, charges, 0, b"")
        begin = clock()
        (verdict,) = ledger.admit(period, BUDGET, PLATES, [asked])
        took.append(clock() - begin)
        if not verdict.admitted.all():
            raise RuntimeError(f"expected every plate to be charged, got {verdict}")
        if hour in MARKS:
            now = min(took[-BEFORE:])
            first = first or now
            name = f"{store}, {kind}, after {hour * len(PLATES):,}"
            say(name, f"{1e3 * now:.2f} ms a HAT of {len(PLATES)} plates", f"{now / first:.2f} x the first")


@contextmanager
def stores(names: list[str]) -> Iterator[list[tuple[str, Ledger]]]:
    """Those asked for: in memory, in a file, in a Redis of its own."""
    with ExitStack() as stack:
        found: list[tuple[str, Ledger]] = []
        if "memory" in names:
            found.append(("memory", MemoryLedger()))
        if "sqlite" in names:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            found.append(("SQLite", stack.enter_context(open_sqlite_ledger(f"{folder}/ledger"))))
        if "redis" in names:
            running = stack.enter_context(redis())
            found.append(("Redis", stack.enter_context(open_redis_ledger(running.url))))
        yield found


def main(names: list[str]) -> None:
    with stores(names or ["memory", "sqlite", "redis"]) as found:
        for name, ledger in found:
            for kind in ("lifetime", "1d", "rolling 1d"):
                bench(name, ledger, kind)


if __name__ == "__main__":
    main(sys.argv[1:])
