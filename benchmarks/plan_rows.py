"""What `plan FILE` expects of each row, beside what a day's releases err by.

`python -m benchmarks.plan_rows FOLDER [--seeds N] [--set SECTION.KEY=VALUE ...]`, with the defaults but for resolution
and slot. FOLDER has the feeds of `benchmarks.accuracy`. Errors are in km/h over all HATs of a day, withheld ones
included, weighed by pings; *guess* is the better one of one constant and a line on counts, both the best there are.
Expected figures read counts alone. Measured ones use the shipped prior, which was trained on Austin's days.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.accuracy import DAYS
from benchmarks.forecast_days import Day, day_of, run
from benchmarks.guesses import constant_and_counts
from udp_stream.adapters.settings import load
from udp_stream.release.context import ReleaseContext
from udp_stream.release.rehearsal import Rehearsed, cities_of, rehearse
from udp_stream.testing import SeededEntropy

ROWS = tuple(product((6, 7, 8), ("30m", "1h", "3h", "6h")))
WITHIN = 0.3


def expected_of(day: Day, *flags: str) -> Rehearsed:
    settings = load(None, (*day.feed.flags, *flags), {})
    context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy("plan"), "benchmark")
    return rehearse([counts for counts, _ in day.slots], context)


def measured_of(day: Day, seeds: int, *flags: str) -> tuple[float, float]:
    """The error, mean over seeds; and that of the better guess."""
    values = [run([day], seed, None, flags)[0].value for seed in range(seeds)]
    off = np.mean([np.average(np.abs(value - day.truth), weights=day.pings) for value in values])
    guesses = np.full(day.truth.size, day.constant), constant_and_counts(day)
    return float(off), min(float(np.average(np.abs(guess - day.truth), weights=day.pings)) for guess in guesses)


@dataclass(frozen=True, slots=True)
class Compared:
    """One row: what is expected of it, and what was measured."""

    name: str
    resolution: int
    slot: str
    expected: Rehearsed
    error: float
    guess: float

    @property
    def is_close(self) -> bool:
        return abs(self.expected.error / self.error - 1) <= WITHIN

    @property
    def misleads(self) -> bool:
        """Called better than the better guess, and worse than it by more than a tenth."""
        return self.expected.over_guess < 0.95 and self.error > 1.1 * self.guess

    def __str__(self) -> str:
        expected, error = self.expected, self.error
        return (
            f"{self.name:<28}{self.resolution:>2} {self.slot:>4}  error: expected {expected.error:5.2f}, measured "
            f"{error:5.2f}, ratio {expected.error / error:4.2f};  over guess: expected {expected.over_guess:4.2f}, "
            f"measured {error / self.guess:4.2f}"
        )


def compare(folder: Path, seeds: int, *flags: str) -> Iterator[Compared]:
    """All rows of all feeds that are there; as many seeds as cities are invented, or more."""
    for name, zone in DAYS.items():
        path = folder / f"{name}.ndjson.gz"
        for resolution, slot in ROWS if path.exists() else ():
            day = day_of(f"{path}{zone}", f"hat.resolution={resolution}", f"hat.slot={slot}")
            runs = max(seeds, cities_of([counts for counts, _ in day.slots]))
            yield Compared(name, resolution, slot, expected_of(day, *flags), *measured_of(day, runs, *flags))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4, help="at least so many; where HATs are few, up to 16")
    parser.add_argument("--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    found = []
    for compared in compare(arguments.folder, arguments.seeds, *arguments.flags):
        print(compared, flush=True)
        found.append(compared)
    close, wrong = sum(one.is_close for one in found), sum(one.misleads for one in found)
    print(f"{close} of {len(found)} rows within {WITHIN:.0%}; {wrong} called better than a guess lose by over 10 %")


if __name__ == "__main__":
    main()
