"""Fit the intervals of smoothed estimates: `python -m benchmarks.train_intervals FOLDER [--seeds N]`.

FOLDER is that of `benchmarks.accuracy`; days of Austin train, Surat's half hour is only measured. On a grid of
`OPEN_ROADS` and `TAIL` the days run down the real road. For each `OPEN_ROADS`, `TAIL` is the least that holds `HELD` of
HATs, each year weighing alike; of these pairs the one with the lowest interval score is taken. It is printed for all
years, and for each year left out, with what it then holds on that year's days: nothing is tuned on the day reported.
`PLATES_DIFFER` is given: from 0 to 100 the score of years left out does not tell it (docs/measurements.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.accuracy import HOURS, SIZES, Feeds, bins_named, by_bins
from benchmarks.forecast_days import Day, Run, changed
from udp_stream.release import intervals

OPEN_ROADS = 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6
TAILS = 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0
HELD = 0.96
"""Asked of the years in sight: of a year left out it is then 0.95."""

Constants = tuple[float, float]
Figures = Mapping[tuple[str, Constants], tuple[float, float]]


def is_held(day: Day, one: Run) -> np.ndarray:
    """Which HATs' means their intervals hold."""
    return (one.low <= day.truth) & (day.truth <= one.high)


def score(day: Day, one: Run) -> float:
    """The mean interval score (Gneiting and Raftery, 2007), in km/h: width, and 40 times what is missed."""
    below, above = np.maximum(one.low - day.truth, 0), np.maximum(day.truth - one.high, 0)
    return float((one.high - one.low + 40 * (below + above)).mean())


def figures(feeds: Feeds, names: Sequence[str], seeds: int) -> Figures:
    """Share held and score of each day under each pair of constants."""
    found = {}
    for name, constants in product(names, product(OPEN_ROADS, TAILS)):
        day, runs = feeds.day(name, 7), runs_with(feeds, name, seeds, constants)
        said = [(is_held(day, one).mean(), score(day, one)) for one in runs]
        found[name, constants] = tuple(np.mean(said, axis=0).tolist())
    return found


def runs_with(feeds: Feeds, name: str, seeds: int, constants: Constants) -> list[Run]:
    """Runs of a day under these constants, its prior trained on other years."""
    with changed(intervals, OPEN_ROADS=constants[0], TAIL=constants[1]):
        return feeds.runs([name], 7, seeds)


def fitted(found: Figures, years: Mapping[str, Sequence[str]]) -> Constants:
    """`OPEN_ROADS` and `TAIL` that fit the days of these years."""

    def over_years(constants: Constants, which: int) -> float:
        return float(np.mean([np.mean([found[name, constants][which] for name in names]) for names in years.values()]))

    wide_enough = []
    for roads in OPEN_ROADS:
        tails = [tail for tail in TAILS if over_years((roads, tail), 0) >= HELD]
        if tails:
            wide_enough.append((roads, tails[0]))
    return min(wide_enough, key=lambda constants: over_years(constants, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    years: dict[str, list[str]] = {}
    for name in feeds.names:
        if name.startswith("austin"):
            years.setdefault(feeds.day(name, 7).year, []).append(name)
    if len(years) < 2:
        parser.error(f"expected Austin's days of two years or more in {asked.folder}, got {len(years)}")
    found = figures(feeds, [name for names in years.values() for name in names], asked.seeds)
    print("of all years: OPEN_ROADS = {}, TAIL = {}".format(*fitted(found, years)))
    print(f"held by constants of other years, by plates {bins_named(SIZES)}, by hour {bins_named(HOURS)}")
    for name in feeds.names:
        day = feeds.day(name, 7)
        constants = fitted(found, {year: names for year, names in years.items() if year != day.year})
        runs = runs_with(feeds, name, asked.seeds, constants)
        held = np.mean([is_held(day, one) for one in runs], axis=0)
        print(
            f"{name:<28}{by_bins(day.plates, SIZES, held)} | {by_bins(day.hour, HOURS, held)} | all {held.mean():.3f}"
            f"  score {np.mean([score(day, one) for one in runs]):.1f}  OPEN_ROADS, TAIL {constants}",
            flush=True,
        )


if __name__ == "__main__":
    main()
