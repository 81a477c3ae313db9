"""Two private queries a slot on the whole city, which are not built: what they would bring, and what they would cost.

`python -m benchmarks.city_queries FOLDER [--seeds N] [--queries mean,spread]`, the days of `benchmarks.accuracy`, an
hour, 10 per plate and day, the prior trained on other years. Each plate answers with its own speeds: x in a HAT, where
f was forecast, weighed by its pings. Plates that cannot pay are left out; so none is charged beyond its budget.

* mean: the mean over plates of clip(x - f, -30, 30), at 0.5 % of the budget. All filters learn it before the slot's
  releases. Errors of smoothed estimates over the constant's, all HATs / HATs of >= 10 plates; *free*: with its noise,
  and nobody charged; *paid*: charged like all else.
* spread: the mean over plates of min(|x - f| / s(m), 3), at 0.2 %. What the day has told so far, over what days tell on
  average, widens the intervals. `TAIL` is fitted anew, to hold 95 % of Austin's other years. Shares of HATs that
  intervals then hold, and how many classes (by plates, by hour) are held by 93 to 97 %; *exactly*: no noise, and nobody
  charged.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import forecast_days
from benchmarks.accuracy import Feeds, errors_of, within
from benchmarks.forecast_days import OURS, Day, Run, changed, run
from udp_stream.forecast.arrow import ArrowFilter, design_of
from udp_stream.forecast.bank import FilterBank
from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import CountsRead, SlotPrior
from udp_stream.forecast.slot import SlotForecast, forecast_slot
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.mechanisms.speed_spread import plate_variance
from udp_stream.planning.policy import Policy
from udp_stream.release import forecaster, intervals
from udp_stream.release.context import ReleaseContext
from udp_stream.release.draw import RecordedSlot
from udp_stream.release.record import Release
from udp_stream.release.road import release_slot
from udp_stream.release.smoothed import Smoothed, prior_of_records, smooth_slot
from udp_stream.units import NANO, QUANTA_PER_KMH
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

Floats = NDArray[np.float64]

REACH_KMH = 30.0
"""Of a plate's difference from its forecasts."""

FARTHEST = 3.0
"""Deviations that a plate's distance counts as at most."""

SHARES = {"mean": 0.005, "spread": 0.002}
"""Of the budget, each slot."""

PLATE_SD = 8.0
"""Km/h, how far a plate's mean over its HATs of a slot is from what is forecast of it."""

TAILS = 1.1, 1.25, 1.4, 1.55
"""Of which `TAIL` is interpolated."""

DAYS_DIFFER = 0.3
"""How far days' spreads lie apart, as a share: by this a noisy one is drawn to what is usual."""

SETTINGS = {
    "pure": (),
    "in rho": ("budget.accounting=approximate",),
    "pure, counts = off": ("forecast.counts=off",),
    "in rho, counts = off": ("budget.accounting=approximate", "forecast.counts=off"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one slot: the noisy mean over plates, its noise's variance, each HAT's weight in it, and how many plates."""

    value: float
    variance: float
    hats: Floats
    plates: int


class Asking:
    """One run in which a query is asked in each slot, before its releases are learnt.

    `usual` is the spread that widths of intervals are relative to; `is_free`: nobody is charged.
    """

    def __init__(self, query: str, seed: int, *, is_free: bool, has_noise: bool = True, usual: float = 1.0) -> None:
        self._query, self._seed, self._usual = query, seed, usual
        self._is_free, self._has_noise = is_free, has_noise
        self._forecasts: dict[int, SlotForecast] = {}
        self.answers: dict[int, Answer] = {}

    def run(self, day: Day, feeds: Feeds, resolution: int, flags: Sequence[str]) -> Run:
        """The day with the query."""
        with (
            changed(forecaster, forecast_slot=self._forecast, smooth_slot=self._smooth),
            changed(forecast_days, release_slot=self._release),
        ):
            return run([day], self._seed, feeds.prior(day.year, resolution), (*OURS, *flags))[0]

    def _forecast(
        self, counts: SlotCounts, memory: Memory, day: dt.date, max_kmh: float, read: CountsRead = "plates"
    ) -> SlotForecast:
        found = self._forecasts[counts.start_ms] = forecast_slot(counts, memory, day, max_kmh, read)
        return found

    def _release(
        self,
        counts: SlotCounts,
        values: SlotValues,
        context: ReleaseContext,
        ledger: Ledger,
        publish: Callable[[RecordedSlot], None],
    ) -> RecordedSlot:
        """The query is charged first, then the slot's releases are."""
        policy, plates = context.policy, np.unique(counts.plate)
        charge = int(SHARES[self._query] * policy.budget_nano)
        admitted = np.ones(plates.size, dtype=bool)
        if not self._is_free:
            period = context.calendar.slot_in_period(counts.start_ms).period
            asked = Admission(f"city-{counts.start_ms}", plates, np.full(plates.size, charge), 1, b"")
            admitted = ledger.admit(period, policy.budget_nano, counts.plates, [asked])[0].admitted
        out = release_slot(counts, values, context, ledger, publish)
        if admitted.any():
            kept = np.isin(counts.plate, plates[admitted])
            self.answers[counts.start_ms] = self._answer(counts, values, kept, policy, charge)
        return out

    def _answer(
        self, counts: SlotCounts, values: SlotValues, kept: NDArray[np.bool_], policy: Policy, charge: int
    ) -> Answer:
        speeds = np.add.reduceat(values.speed, values.starts[:-1]) / counts.count / QUANTA_PER_KMH
        off = speeds - self._forecasts[counts.start_ms].plates
        if self._query == "spread":
            off = np.minimum(np.abs(off) / np.sqrt(plate_variance(counts.count)), FARTHEST)
        pings = np.where(kept, counts.count, 0)
        total = np.bincount(counts.plate, weights=pings)
        weight = pings / np.maximum(total[counts.plate], 1)
        by_plate, plates = np.bincount(counts.plate, weights=weight * off)[total > 0], int((total > 0).sum())
        mean = float(np.clip(by_plate, -REACH_KMH, REACH_KMH).mean())
        reach = FARTHEST if self._query == "spread" else 2 * REACH_KMH
        noise, variance = self._noise(reach / plates, charge, policy, counts.start_ms)
        hat = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
        hats = np.bincount(hat, weights=weight, minlength=counts.cells.size) / plates
        return Answer(mean + noise, variance, hats, plates)

    def _noise(self, moves: float, charge: int, policy: Policy, start_ms: int) -> tuple[float, float]:
        """Laplace's, or Gaussian in rho, for a mean that one plate moves so far; and its variance."""
        if not self._has_noise:
            return 0.0, 0.0
        rng, pays = np.random.default_rng([self._seed, start_ms // 1000]), charge / NANO
        if policy.measure == "pure":
            return float(rng.laplace(0, moves / pays)), 2 * (moves / pays) ** 2
        return float(rng.normal(0, moves / np.sqrt(2 * pays))), moves**2 / (2 * pays)

    def _smooth(self, records: Sequence[Release], memory: Memory, day: dt.date, *rest: Any) -> list[Smoothed]:
        start_ms = round(dt.datetime.fromisoformat(records[0].hat.slot_start).timestamp() * 1000)
        if self._query == "spread":
            with changed(intervals, TAIL=intervals.TAIL * self._widening(start_ms)):
                return smooth_slot(records, memory, day, *rest)
        if start_ms in self.answers:
            cells, prior = np.array([int(one.hat.cell, 16) for one in records], np.uint64), prior_of_records(records)
            forecast = self._forecasts[start_ms]
            memory.predict(day, cells, prior)  # turns to the day
            for bank in (memory._older, memory._younger):
                _learn(bank, cells, prior, forecast, self.answers[start_ms])
        return smooth_slot(records, memory, day, *rest)

    def _widening(self, start_ms: int) -> float:
        """The spread so far over what is usual, drawn to 1 by its noise."""
        so_far = [answer for start, answer in self.answers.items() if start <= start_ms]
        plates = np.array([answer.plates for answer in so_far], dtype=np.float64)
        share = plates / max(1.0, plates.sum())
        told = float(share @ [answer.value for answer in so_far]) / self._usual
        noise = float(share**2 @ [answer.variance for answer in so_far]) / self._usual**2
        return 1 + DAYS_DIFFER**2 / (DAYS_DIFFER**2 + noise) * (told - 1)


def _learn(
    bank: FilterBank, cells: NDArray[np.uint64], prior: SlotPrior, forecast: SlotForecast, answer: Answer
) -> None:
    """Condition the globals of every filter on the mean query; what cells have of their own counts as noise."""
    value = float(answer.hats @ forecast.mean) + answer.value
    variance = answer.variance + PLATE_SD**2 / answer.plates
    at, design = bank._numbers(cells), design_of(prior.by_hat, prior.features, np.zeros(cells.size, dtype=bool))
    for number, one in enumerate(bank._filters):
        bank._log_weights[number] += _learn_globals(one, at, design, answer.hats, value, variance)


def _learn_globals(
    one: ArrowFilter, at: NDArray[np.int64], design: Floats, hats: Floats, value: float, variance: float
) -> float:
    """Kalman's update by one number; gives the log of its likelihood."""
    intercept, border, own = one._given_globals(at, design)
    slopes, off = hats @ border, value - float(hats @ intercept)
    toward = one._covariance @ slopes
    spread, misfit = float(slopes @ toward + hats**2 @ own) + variance, off - float(slopes @ one.mean)
    one.mean = one.mean + toward * misfit / spread
    one._covariance = one._covariance - np.outer(toward, toward) / spread
    return -0.5 * (misfit**2 / spread + float(np.log(spread)))


def print_mean(feeds: Feeds, seeds: int, resolution: int) -> None:
    """Errors without the query, with it free, and paid."""
    print(f"H3 {resolution}, the mean: without, free, paid; in brackets what it adds to the error over all HATs")
    for (what, flags), name in product(SETTINGS.items(), feeds.names):
        day = feeds.day(name, resolution)
        without = [one.value for one in feeds.runs([name], resolution, seeds, flags)]
        said = [errors_of(day, without)]
        for is_free in (True, False):
            asking = [Asking("mean", seed, is_free=is_free) for seed in range(seeds)]
            found = [one.run(day, feeds, resolution, flags).value for one in asking]
            said.append(f"{errors_of(day, found)} ({_added(day, found, without):+.3f})")
        print(f"{what:<22}{name:<28}{'  '.join(said)}", flush=True)


def _added(day: Day, found: Sequence[Floats], without: Sequence[Floats]) -> float:
    pairs = zip(found, without, strict=True)
    return float(np.mean([day.over_constant(one) - day.over_constant(before) for one, before in pairs]))


def print_cost_of_spread(feeds: Feeds, seeds: int, resolution: int) -> None:
    """What the spread, paid for, adds to the error over all HATs: it changes no estimate but through the budget."""
    for what, name in product(("pure", "in rho"), feeds.names):
        day, flags = feeds.day(name, resolution), SETTINGS[what]
        without = [one.value for one in feeds.runs([name], resolution, seeds, flags)]
        asking = [Asking("spread", seed, is_free=False) for seed in range(seeds)]
        found = [one.run(day, feeds, resolution, flags).value for one in asking]
        print(f"the spread, paid, {what:<8}{name:<28}{_added(day, found, without):+.3f}", flush=True)


def spread_of(day: Day, feeds: Feeds, resolution: int) -> float:
    """What the day tells in all, exactly."""
    asking = Asking("spread", 0, is_free=True, has_noise=False)
    asking.run(day, feeds, resolution, ())
    answers = asking.answers.values()
    return float(np.average([one.value for one in answers], weights=[one.plates for one in answers]))


def print_spread(feeds: Feeds, seeds: int, resolution: int) -> None:
    """What intervals hold without the query, with it told exactly, and with its noise."""
    spreads = {name: spread_of(feeds.day(name, resolution), feeds, resolution) for name in feeds.names}
    usual = float(np.mean([spread for name, spread in spreads.items() if name.startswith("austin")]))
    print(f"H3 {resolution}, the spread: the day's over the usual one; held without, exactly, with noise, in rho too")
    said = {name: [f"{spread / usual:.2f}"] for name, spread in spreads.items()}
    for flags, query in product((SETTINGS["pure"], SETTINGS["in rho"]), (None, "exactly", "paid")):
        shares = {name: _by_tail(feeds, name, seeds, resolution, flags, query, usual) for name in feeds.names}
        for name in feeds.names:
            day = feeds.day(name, resolution)
            held = _at_fitted_tail(shares, name, day.year)
            inside, classes, _ = within(day, held)
            said[name].append(f"{held.mean():.3f} ({inside} of {classes})")
    for name, words in said.items():
        print(f"{name:<28}{'  '.join(words)}", flush=True)


def _by_tail(
    feeds: Feeds, name: str, seeds: int, resolution: int, flags: Sequence[str], query: str | None, usual: float
) -> Floats:
    """By each of `TAILS`, the share of runs in which the interval of each HAT holds its mean."""
    day, shares = feeds.day(name, resolution), []
    for tail in TAILS:
        asking = [
            Asking("spread", seed, is_free=query == "exactly", has_noise=query == "paid", usual=usual)
            for seed in range(seeds)
        ]
        with changed(intervals, TAIL=tail):
            runs = (
                feeds.runs([name], resolution, seeds, flags)
                if query is None
                else [one.run(day, feeds, resolution, flags) for one in asking]
            )
        shares.append(np.mean([(one.low <= day.truth) & (day.truth <= one.high) for one in runs], axis=0))
    return np.array(shares)


def _at_fitted_tail(shares: Mapping[str, Floats], name: str, year: str) -> Floats:
    """Between `TAILS`, where 95 % of the HATs of Austin's other years are held, each year weighing alike."""
    years: dict[str, list[Floats]] = {}
    for other, by_tail in shares.items():
        if other.startswith("austin") and not other.startswith(year):
            years.setdefault(other[: len(year)], []).append(by_tail.mean(axis=1))
    over_years = np.mean([np.mean(days, axis=0) for days in years.values()], axis=0)
    at = np.interp(0.95, over_years, np.arange(len(TAILS)))
    below = min(int(at), len(TAILS) - 2)
    held: Floats = shares[name][below] + (at - below) * (shares[name][below + 1] - shares[name][below])
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--resolution", type=int, default=7)
    parser.add_argument("--queries", default="mean,spread")
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    for query in asked.queries.split(","):
        for printed in {"mean": [print_mean], "spread": [print_spread, print_cost_of_spread]}[query]:
            printed(feeds, asked.seeds, asked.resolution)


if __name__ == "__main__":
    main()
