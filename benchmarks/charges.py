"""`python -m benchmarks.charges`: what a charge costs after a thousand others, and after a million.

One HAT of 100 plates is charged every hour, for more than a year: 10^6 charges of the same plates. Under one budget for
a lifetime, under one for each day, and under a rolling one of a day. Each row is the time of a HAT's admission (of this
process; with Redis, on the clock), the least of 70, and beside it the ratio to that of a ledger with 10^4 charges. The
two take turns, so what else the machine does falls on both. The ratio should stay at one: a balance is a number, and a
window has 25 of them, whatever came before. `filters` has the arithmetic alone, of one plate that is charged 10^6
times: each kind of promise, and equation 10 for metrics.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import numpy as np

from benchmarks.__main__ import say
from benchmarks.words import words
from udp_stream.adapters.ledgers.redis.opening import open_redis_ledger
from udp_stream.adapters.ledgers.sqlite.ledger import open_sqlite_ledger
from udp_stream.ledger.filters import Filter
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.ledger.rolling import span_name
from udp_stream.trial.services.both import redis
from udp_stream.units import NANO

PLATES = [b"%016d" % plate for plate in range(100)]
MARKS = (100, 1_000, 3_000, 10_000)
MARKS_OF_A_PLATE = (1_000, 10_000, 100_000, 1_000_000)
STEP = 100
BEFORE = 70
BUDGET, CHARGE = 10**12, 10**6
START = datetime(2024, 1, 1, tzinfo=UTC)


def periods(kind: str) -> Iterator[str]:
    """The budget period of each hour."""
    for hour in count():
        begin = START + timedelta(hours=hour)
        match kind:
            case "lifetime":
                yield "lifetime"
            case "1d":
                yield f"1d from {begin.replace(hour=0).isoformat()}"
            case _:
                yield span_name("1d", begin.isoformat(), (begin + timedelta(hours=1)).isoformat())


def bench(store: str, opened: Callable[[], Ledger], kind: str) -> None:
    """A year of hours in one ledger; beside it at each mark, turn by turn, one that is in its fifth day."""
    old, clock = opened(), time.perf_counter if store == "Redis" else time.process_time  # Redis: another process
    names = enumerate(periods(kind), start=1)
    for mark in MARKS:
        while _charge(old, kind, *next(names)) < mark:
            pass
        young, young_names = opened(), enumerate(periods(kind), start=1)
        while _charge(young, kind, *next(young_names)) < MARKS[0]:
            pass
        took: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(BEFORE):
            for which, (ledger, hours) in enumerate(((old, names), (young, young_names))):
                hour, period = next(hours)
                begin = clock()
                _charge(ledger, kind, hour, period)
                took[which].append(clock() - begin)
        now, first = min(took[0]), min(took[1])
        name = f"{store}, {kind}, after {mark * len(PLATES):,}"
        say(f"{name} ", f"{1e3 * now:.2f} ms a HAT of {len(PLATES)} plates", f"{now / first:.2f} x the young one's")


def _charge(ledger: Ledger, kind: str, hour: int, period: str) -> int:
    members, charges = np.arange(len(PLATES)), np.full(len(PLATES), CHARGE)
    (verdict,) = ledger.admit(period, BUDGET, PLATES, [Admission(f"{kind}-{hour}", members, charges, 0, b"")])
    if not verdict.admitted.all():
        raise RuntimeError(f"expected every plate to be charged, got {verdict}")
    return hour


def bench_filters() -> None:
    """The arithmetic alone: a charge is one addition and one comparison, of whatever promise the limit was made."""
    kinds = {
        "epsilon": Filter.pure(10 * NANO),
        "rho": Filter.concentrated(NANO),
        "(epsilon, delta)": Filter.approximate(10 * NANO, 1e-6),
        "equation 10": Filter.metric(10 * NANO, 1e-6, 1),
    }
    for kind, one in kinds.items():
        charged, first, done = 0, 0.0, 0
        for mark in MARKS_OF_A_PLATE:
            took: list[float] = []
            while done < mark:
                begin = time.process_time()
                for _ in range(STEP):
                    if not one.admits(charged, 1):
                        raise RuntimeError(f"expected {kind} to admit {charged + 1}")
                    charged += 1
                took.append(time.process_time() - begin)
                done += STEP
            now = min(took[-BEFORE:]) / STEP
            first = first or now
            say(f"filter, {kind}, after {mark:,}", f"{1e9 * now:.0f} ns a charge", f"{now / first:.2f} x the first")


@contextmanager
def stores(names: list[str]) -> Iterator[dict[str, Callable[[], Ledger]]]:
    """Those asked for, each to be opened anew: in memory, in a file, in a Redis of its own."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        files = count()

        def in_file() -> Ledger:
            return stack.enter_context(open_sqlite_ledger(f"{folder}/ledger{next(files)}"))

        def in_redis() -> Ledger:
            return stack.enter_context(open_redis_ledger(stack.enter_context(redis()).url))

        every = {"memory": MemoryLedger, "SQLite": in_file, "Redis": in_redis}
        yield {name: opened for name, opened in every.items() if name.lower() in names}


def main(names: list[str]) -> None:
    names = names or ["filters", "memory", "sqlite", "redis"]
    if "filters" in names:
        bench_filters()
    with stores(names) as found:
        for name, opened in found.items():
            for kind in ("lifetime", "1d", "rolling 1d"):
                bench(name, opened, kind)


if __name__ == "__main__":
    main(words(__doc__, "LEDGER", "*"))
