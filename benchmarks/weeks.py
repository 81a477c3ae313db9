"""`python -m benchmarks.weeks [FOLDER] [--epsilon E ...] [--held NAME ...]`: what a map errs by after
other days.

Each recorded day of FOLDER after the other four, three weeks over: dates are moved, kinds of days
(workday, weekend or holiday) kept. Errors are weighed by pings, over that of the constant, all HATs
and those of 10 plates and more; beside them those of the guess by counts.
"""

import argparse
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.add_remove import run_add_remove
from benchmarks.cdfs import PLATES, DayShapes
from benchmarks.forecast_days import Day, day_of, run
from udp_stream.settings import load

DAYS = {
    "2016-03-22": 1, "2017-03-21": 2, "2016-11-25": 4, "2016-11-24": 5, "2015-06-07": 6,
}  # fmt: skip
"""Days of Austin by the weekday that they are moved to, from Monday; 2016-11-24 was a holiday."""

MONDAY = dt.date(2024, 6, 3)
WEEKS = 3
TOP_KMH = 115


def recorded(folder: Path, flags: Sequence[str] = ()) -> dict[str, Day]:
    """Those that are in the folder."""
    files = {name: folder / f"austin-capmetro-{name}.ndjson.gz" for name in DAYS}
    return {
        name: day_of(f"{path}:{TOP_KMH}:America/Chicago", *flags)
        for name, path in files.items()
        if path.exists()
    }


def moved(day: Day, date: dt.date) -> Day:
    """The same day on another local date."""
    slots = load(None, day.feed.flags, {}).calendar.slots
    found = []
    for counts, values in day.slots:
        start = dt.datetime.fromisoformat(slots.iso(counts.start_ms))
        there = dt.datetime.combine(date, start.time(), slots.zone)
        by = int(there.timestamp() * 1000) - counts.start_ms
        shifted = replace(counts, start_ms=counts.start_ms + by, end_ms=counts.end_ms + by)
        found.append((shifted, values))
    return replace(day, slots=tuple(found))


def after_others(days: dict[str, Day], held: str, weeks: int = WEEKS) -> Iterator[Day]:
    """The other days, `weeks` times over, then the held-out day."""
    for week in range(weeks):
        for name, weekday in DAYS.items():
            if name != held and name in days:
                yield moved(days[name], MONDAY + dt.timedelta(days=7 * week + weekday))
    yield moved(days[held], MONDAY + dt.timedelta(days=7 * weeks + DAYS[held]))


def add_remove(days: dict[str, Day], held: str, epsilon: float, weeks: int = WEEKS) -> list[float]:
    sequence = list(after_others(days, held, weeks))
    found = run_add_remove(sequence, 1, epsilon)[-1]
    day = sequence[-1]
    _print_cdfs(held, day, found.cdf)
    return _figures(day, found.value, found.guess, found.low, found.high)


def _print_cdfs(held: str, day: Day, cdf: np.ndarray) -> None:
    """Sup-errors of CDFs over those of the day's true CDF of the city, HATs of 20 plates and more."""
    shapes = DayShapes.of(day, TOP_KMH)
    told = ~np.isnan(cdf[0, :, 0])
    some = told & (day.plates >= max(PLATES))
    if not some.any():  # on a first day
        return
    ours = abs(cdf[0] - shapes.truth)[some].max(axis=1)
    city = abs(shapes.city - shapes.truth)[some].max(axis=1)
    bands = (cdf[1] - 1e-9 <= shapes.truth) & (shapes.truth <= cdf[2] + 1e-9)
    over = ours.mean() / city.mean()
    print(
        f"cdf {held} {over:.3f} of {some.sum()}, told {told.mean():.2f}, bands hold {bands[told].mean():.3f}"
    )


def swap_values(days: dict[str, Day], held: str, epsilon: float, weeks: int = WEEKS) -> list[float]:
    sequence = list(after_others(days, held, weeks))
    flags = f"budget.epsilon={epsilon}", "release.mean=forecast-clip", "release.min_plates=2"
    found = run(sequence, 1, flags=flags)[-1]
    return _figures(sequence[-1], found.value, found.guess, found.low, found.high)


def _figures(day: Day, *columns: np.ndarray) -> list[float]:
    value, guess, low, high = columns
    held = (low <= day.truth) & (day.truth <= high)
    few = day.plates <= 2
    return [
        *(day.over_constant(one, least) for one in (value, np.nan_to_num(guess, nan=day.constant)) for least in (1, 10)),
        float(held[~np.isnan(low)].mean()),
        float(held[few & ~np.isnan(low)].mean()),
    ]  # fmt: skip


PROMISES = {"add-remove": add_remove, "swap-values": swap_values}
HEADINGS = (
    "error / constant's: all",
    ">= 10",
    "guess: all",
    ">= 10",
    "intervals hold",
    "<= 2 plates",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data"))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--held", nargs="+", default=list(DAYS))
    parser.add_argument("--promise", nargs="+", default=list(PROMISES))
    parser.add_argument("--weeks", type=int, default=WEEKS)
    asked = parser.parse_args()
    days = recorded(asked.folder)
    for promise in asked.promise:
        for epsilon in asked.epsilon:
            rows = []
            for held in asked.held:
                rows.append(PROMISES[promise](days, held, epsilon, asked.weeks))
                print(promise, epsilon, held, *(f"{one:.3f}" for one in rows[-1]), flush=True)
            shown = zip(HEADINGS, np.mean(rows, axis=0), strict=True)
            print(
                promise, epsilon, "mean", *(f"{what} {one:.3f};" for what, one in shown), flush=True
            )


if __name__ == "__main__":
    main()
