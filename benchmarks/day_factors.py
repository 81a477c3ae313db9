"""Why intervals hold more on some days than on others: `python -m benchmarks.day_factors FOLDER [--seeds N]`.

FOLDER is that of `benchmarks.accuracy`. For each of Austin's days at H3 7: how far the speeds of single pings lie from
their estimates (root mean square, km/h), and which share of them is 110 km/h and more; how far releases were from their
forecasts, over what was expected (root mean squares); and the one factor that makes the day's intervals hold 95 %. Then
the factor if the day's scatter of single pings were told exactly, and how many classes of HATs (by plates, by hour) are
held by 93 to 97 % under the first factor.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import Feeds, within
from benchmarks.forecast_days import Day, changed
from benchmarks.train_intervals import Estimates, ends_in_range, estimates_in
from udp_stream.forecast.bank import Observed
from udp_stream.forecast.memory import Memory
from udp_stream.mechanisms.speed_spread import PER_PING, SAMPLED
from udp_stream.release import intervals

HOLD = 0.95
FAST_KMH = 110.0
HALVINGS = 30

Floats = NDArray[np.float64]


@contextmanager
def surprises() -> Iterator[list[Floats]]:
    """How far releases are from their forecasts, over what was expected, wherever some are learnt meanwhile."""
    ratios: list[Floats] = []
    real = Memory.learn

    def learn(self: Memory, day: dt.date, seen: Observed) -> None:
        before = self.predict(day, seen.cells, seen.prior)
        off = seen.value - before.mean - before.skew * seen.is_clipped
        ratios.append(off / np.sqrt(before.variance + seen.variance))
        real(self, day, seen)

    with changed(Memory, learn=learn):
        yield ratios


def held(day: Day, seen: Estimates, factor: float, scatter: float = PER_PING) -> NDArray[np.bool_]:
    """Which HATs intervals hold that are wider by a factor, where single pings scatter by so many km/h."""
    more = (1 - seen.gain) * SAMPLED * (scatter**2 - PER_PING**2) / np.maximum(seen.pings, 1)
    taken = intervals.of_few_pings(seen.open_variance + more, seen.pings.astype(np.int64), "plates")
    low, high = ends_in_range(day, seen, factor**2 * taken, "plates")
    inside: NDArray[np.bool_] = (low <= day.truth) & (day.truth <= high)
    return inside


def factor_of(day: Day, runs: list[Estimates], scatter: float = PER_PING) -> float:
    """The least factor with which `HOLD` of the day's HATs are held."""
    low, high = 0.1, 4.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_enough = np.mean([held(day, one, middle, scatter).mean() for one in runs]) >= HOLD
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    feeds, factors, classes = Feeds(asked.folder), [], []
    for name in (one for one in feeds.names if one.startswith("austin")):
        day = feeds.day(name, 7)
        with surprises() as ratios:
            runs = estimates_in(day, partial(feeds.runs, [name], 7, asked.seeds), asked.seeds)
        single = day.pings == 1
        scatter = float(np.sqrt(np.mean([((one.mean - day.truth)[single] ** 2).mean() for one in runs])))
        factors.append((factor_of(day, runs), factor_of(day, runs, scatter)))
        shares = np.mean([held(day, one, factors[-1][0]) for one in runs], axis=0)
        classes.append(within(day, shares))
        surprise = np.sqrt(np.mean(np.concatenate(ratios) ** 2))
        fast = (day.truth[single] >= FAST_KMH).mean()
        print(
            f"{name:<28}single pings scatter by {scatter:.1f}, {fast:.3f} of them fast"
            f"  releases off by {surprise:.2f} of what was expected"
            f"  factor {factors[-1][0]:.3f}, with that scatter told {factors[-1][1]:.3f}"
            "  0.93-0.97 in {} of {}, beyond chance outside {}".format(*classes[-1]),
            flush=True,
        )
    largest, least = np.max(factors, axis=0), np.min(factors, axis=0)
    print("factors differ by {:.2f}, with the scatter told by {:.2f}".format(*(largest / least)))
    print("0.93-0.97 in {} of {}, beyond chance outside {}".format(*np.sum(classes, axis=0)))


if __name__ == "__main__":
    main()
