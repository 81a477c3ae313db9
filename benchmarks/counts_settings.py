"""What each setting of counts costs: `python -m benchmarks.counts_settings FOLDER [--seeds N] [--usual]`.

FOLDER is that of `benchmarks.accuracy`; H3 7, an hour, 10 per plate and day, pure, seeds 0, 1, 2, ... For each
`forecast.counts` with each `release.counts` that it may go with, day by day: the error over the constant's, over all
HATs / HATs of at least 10 plates; the share of HATs that intervals hold, likewise; expected over actual error. Prior
and widths of intervals (`benchmarks.train_intervals`) are fitted on other years.

`--usual` prints what `release/kept_back.py` has in the place of counts that are kept back: the usual rest and number of
plates by status, over Austin's days. They follow from counts alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy import Feeds, errors_of, expected_over_actual, held_by
from benchmarks.forecast_days import OURS, changed, run
from benchmarks.train_intervals import Fitting
from udp_stream.forecast.prior import CountsRead
from udp_stream.planning.policy import CountsReleased
from udp_stream.release import forecaster
from udp_stream.release.record import Release
from udp_stream.release.smoothed import Smoothed, rest_of_records, smooth_slot

SETTINGS: dict[CountsRead, tuple[CountsReleased, ...]] = {
    "plates": ("all",),
    "published": ("all",),
    "off": ("all", "released", "none"),
}
"""A forecast that reads counts shows them."""

FIT_SEEDS = 2


def print_settings(feeds: Feeds, seeds: int) -> None:
    print("forecast.counts, release.counts: error over the constant's; held; expected/actual, by day")
    for read, shown in SETTINGS.items():
        fitting = Fitting(feeds, FIT_SEEDS, read)
        print(f"{read}: of all years {tuple(fitting.without(''))}")
        for released in shown:
            for name in feeds.names:
                day = feeds.day(name, 7)
                runs = fitting.runs(name, seeds, fitting.without(day.year), f"release.counts={released}")
                held, large = held_by(day, runs), day.plates >= 10
                print(
                    f"{read:<10}{released:<10}{name:<28}{errors_of(day, [one.value for one in runs])}"
                    f"  held {held.mean():.3f}/{held[large].mean():.3f}"
                    f"  expected/actual {expected_over_actual(day, runs):.2f}  {tuple(fitting.without(day.year))}",
                    flush=True,
                )


def print_usual(feeds: Feeds) -> None:
    """Each day alike; a HAT weighs by its pings."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in feeds.names:
        if name.startswith("austin"):
            records = _records(feeds, name)
            for status in {record.status for record in records}:
                here = [record for record in records if record.status == status]
                pings = [record.samples for record in here]
                rest = np.average(rest_of_records(here), weights=pings)
                one_over = np.average([1 / record.plates for record in here], weights=pings)
                found.setdefault(status, []).append((float(np.sqrt(rest)), float(1 / one_over)))
    for status, figures in sorted(found.items()):
        print("{:<24}rest {:.1f} km/h, plates {:.0f}".format(status, *np.mean(figures, axis=0)))


def _records(feeds: Feeds, name: str) -> list[Release]:
    """Of a day with `forecast.counts = "off"`, one seed."""
    day, slots = feeds.day(name, 7), dict[str, Sequence[Release]]()

    def seen(records: Sequence[Release], *others: object) -> list[Smoothed]:
        slots[records[0].hat.slot_start] = records
        return smooth_slot(records, *others)  # type: ignore[arg-type]

    with changed(forecaster, smooth_slot=seen):
        run([day], 0, feeds.prior(day.year, 7), (*OURS, "forecast.counts=off"))
    return [record for records in slots.values() for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--usual", action="store_true")
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    if asked.usual:
        print_usual(feeds)
    else:
        print_settings(feeds, asked.seeds)


if __name__ == "__main__":
    main()
