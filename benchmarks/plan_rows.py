"""What `plan FILE` expects of each row, beside what a day's releases err by.

`python -m benchmarks.plan_rows FOLDER [--seeds N] [--set SECTION.KEY=VALUE ...]`, with the defaults but for resolution
and slot. FOLDER has the feeds of `benchmarks.accuracy`. Errors are in km/h over all HATs of a day, withheld ones
included, weighed by pings; *guess* is the better one of one constant and a line on counts, both the best there are.
Expected figures read counts alone. Measured ones use the shipped prior, which was trained on Austin's days.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.accuracy import DAYS
from benchmarks.forecast_days import Day, day_of, run
from benchmarks.guesses import constant_and_counts
from udp_stream.adapters.settings import load
from udp_stream.release.context import ReleaseContext
from udp_stream.release.rehearsal import Rehearsed, rehearse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    rows = close = wrong = 0
    for name, zone in DAYS.items():
        path = arguments.folder / f"{name}.ndjson.gz"
        if not path.exists():
            continue
        for resolution, slot in ROWS:
            day = day_of(f"{path}{zone}", f"hat.resolution={resolution}", f"hat.slot={slot}")
            expected = expected_of(day, *arguments.flags)
            error, guess = measured_of(day, arguments.seeds, *arguments.flags)
            rows, close = rows + 1, close + (abs(expected.error / error - 1) <= WITHIN)
            wrong += expected.over_guess < 0.95 and error > 1.1 * guess
            print(
                f"{name:<28}{resolution:>2} {slot:>4}  error: expected {expected.error:5.2f}, measured {error:5.2f}, "
                f"ratio {expected.error / error:4.2f};  over guess: expected {expected.over_guess:4.2f}, measured "
                f"{error / guess:4.2f}",
                flush=True,
            )
    print(f"{close} of {rows} rows within {WITHIN:.0%}; {wrong} called better than a guess that lose by more than 10 %")


if __name__ == "__main__":
    main()
