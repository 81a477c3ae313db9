"""`python -m benchmarks.typical [--seeds N] [--set SECTION.KEY=VALUE]`: what a typical week errs
by.

Made-up cities of 300 buses that ping once a minute, with usual speeds that are known
(`made_up_city.py`), go the real road. Errors are weighed by pings, over all cells and hours of
weekdays, and divided by what the estimates of a single day err by; beside them those of the bare
mean of the estimates. Truth is the mean of each HAT's own mean over many other days of the same
streets. Last: three streets change for good, and after how many days each is told.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.made_up_city import DAY_MS, FLOW, HOUR_MS, MONDAY_MS, OPENS_H, MadeUpCity
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.usual_week import HOURS
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ForecastPlanner, ReleaseContext
from udp_stream.release.forecaster import Forecaster, LedgerHistory
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release, Smoothed
from udp_stream.release.typical import Week
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

Floats = NDArray[np.float64]
Published = tuple[list[Release], list[Smoothed]]

TRUTH_DAYS = 60
SHOWN = 1, 3, 10, 20
CHANGES = 0.65, 1.4, 0.75
"""Factors on speeds in three of the busiest ten cells, from the eleventh weekday on."""


def published(city: MadeUpCity, days: Sequence[int], *flags: str) -> Iterator[Published]:
    """What is released and estimated on each of these days, on one ledger."""
    settings = load(None, ("hat.timezone=Asia/Kolkata", *flags), {})
    ledger = MemoryLedger()
    forecaster = Forecaster(settings.calendar.slots, settings.policy.max_speed, "benchmark")
    context = ReleaseContext(
        settings.policy, settings.calendar, SeededEntropy(city.seed), "benchmark", planner=ForecastPlanner(forecaster),
        forecaster=forecaster,
    )  # fmt: skip
    reader = Forecaster(settings.calendar.slots, settings.policy.max_speed, "benchmark")
    for day in days:
        releases = list[Release]()
        estimates = list[Smoothed]()
        for counts, values in city.slots(day):
            out = release_slot(counts, values, context, ledger, lambda _: None)
            reader.saw(counts)
            releases += [Release.decode(payload) for payload in out.payloads.values()]
            estimates += reader.smoothed((counts.start_ms, counts.end_ms), LedgerHistory(ledger))
        yield releases, estimates


def truth_of(city: MadeUpCity, day: int, days: int = TRUTH_DAYS) -> tuple[Floats, Floats, Floats]:
    """(cells, hours): the HAT's usual mean on days like this one, its usual pings, and plates; NaN
    where no bus is."""
    shape = city.cells.size, FLOW.size
    total, pings, plates, seen = (np.zeros(shape) for _ in range(4))
    at = {cell: number for number, cell in enumerate(city.cells.tolist())}
    for draw in range(1, days + 1):
        for counts, values in city.slots(day, draw):
            hour = (counts.start_ms - MONDAY_MS) % DAY_MS // HOUR_MS - OPENS_H
            cell = [at[one] for one in counts.cells.tolist()]
            starts = values.starts[counts.hat_rows]
            sizes = np.diff(starts)
            total[cell, hour] += np.add.reduceat(values.speed, starts[:-1]) / sizes / QUANTA_PER_KMH
            pings[cell, hour] += sizes
            plates[cell, hour] += np.diff(counts.hat_rows)
            seen[cell, hour] += 1
    with np.errstate(invalid="ignore"):
        return (
            total / np.where(seen, seen, np.nan),
            pings / days,
            plates / np.where(seen, seen, np.nan),
        )


class Score(NamedTuple):
    """Of weekdays so far: errors of the typical week and of the bare mean of estimates over a
    single day's; the shares of the truth within intervals, of all cells and of those of 10 plates
    and more; what has changed, and when."""

    typical: float
    bare: float
    held: float
    held_large: float
    changed: dict[int, str]


class Known:
    """A city and its truth, by cell and hour of the day."""

    def __init__(self, city: MadeUpCity, truth_days: int = TRUTH_DAYS) -> None:
        self._at = {f"{cell:x}": number for number, cell in enumerate(city.cells.tolist())}
        around = ((0, 0), (OPENS_H, HOURS - OPENS_H - FLOW.size))
        found = truth_of(city, 0, truth_days)
        self.truth, self.pings, self.plates = (
            np.pad(one, around, constant_values=np.nan) for one in found
        )

    def error(self, speeds: Floats) -> float:
        here = ~np.isnan(self.truth) & ~np.isnan(speeds) & (self.pings > 0)
        return float(np.average(np.abs(speeds - self.truth)[here], weights=self.pings[here]))

    def score(self, days: Sequence[Published]) -> Score:
        each = np.full((len(days), *self.truth.shape), np.nan)
        week = Week()
        for day, (releases, estimates) in enumerate(days):
            for record in (*releases, *estimates):
                week.add(record)
            for one in estimates:
                each[day, self._at[one.hat.cell], int(one.hat.slot_start[11:13])] = one.value_kmh
        mean, low, high = (np.full(self.truth.shape, np.nan) for _ in range(3))
        changed = dict[int, str]()
        for row in week.rows():
            at = self._at[row.cell], row.hour
            mean[at] = row.value_kmh
            low[at] = row.low_kmh
            high[at] = row.high_kmh
            if row.changed is not None:
                changed[at[0]] = row.changed
        single = np.mean([self.error(one) for one in each])
        held = (low <= self.truth) & (self.truth <= high)
        here = ~np.isnan(mean) & ~np.isnan(self.truth)
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            bare = self.error(np.nanmean(each, axis=0))
        return Score(
            self.error(mean) / single, bare / single, float(held[here].mean()),
            float(held[here & (self.plates >= 10)].mean()), changed,
        )  # fmt: skip


def weekdays(many: int) -> list[int]:
    return [day for day in range(2 * many) if day % 7 < 5][:many]


def change_some(city: MadeUpCity, pings: Floats, first_day: int) -> list[int]:
    busy = np.argsort(-np.nansum(pings, axis=1))[1:8:3].tolist()
    city.changed = {cell: (first_day, factor) for cell, factor in zip(busy, CHANGES, strict=True)}
    return busy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE"
    )
    asked = parser.parse_args()
    for seed in range(1, asked.seeds + 1):
        city = MadeUpCity(seed)
        known = Known(city)
        days = list(published(city, weekdays(max(SHOWN)), *asked.flags))
        for many in SHOWN:
            found = known.score(days[:many])
            errors = f"{found.typical:.3f} of a single day's error (bare mean {found.bare:.3f})"
            held = f"held {found.held:.3f}, of >= 10 plates {found.held_large:.3f}"
            print(
                f"city {seed}, {many:>2} weekdays: {errors}; {held}; changed: {len(found.changed)}",
                flush=True,
            )
        streets = change_some(city, known.pings, weekdays(11)[-1])
        days[10:] = published(city, weekdays(16)[10:], *asked.flags)
        changed = [known.score(days[: 10 + more]).changed for more in range(1, 7)]
        told = [
            next((n for n, found in enumerate(changed, 1) if street in found), None)
            for street in streets
        ]
        print(
            f"city {seed}, streets that changed (times {CHANGES}): told after days {told}",
            flush=True,
        )


if __name__ == "__main__":
    main()
