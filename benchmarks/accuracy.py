"""`make accuracy`: what a day's releases err by, beside every guess. Nothing is tuned on the day
reported.

`python -m benchmarks.accuracy FOLDER [--seeds N] [--paper-seeds N] [--resolutions 6,7,8] [--tables
NAME,...] [--set SECTION.KEY=VALUE ...]`, an hour, 10 per plate and day, pure unless settings say
otherwise. FOLDER has Austin's days (`austin-capmetro-*.ndjson.gz`), and Surat's half hour if it is
at hand; the counts prior is trained on the days of other years. Errors are over *all* HATs of a
day, withheld ones included through their smoothed estimates, weighed by pings, and divided by the
constant's; after the slash over HATs of at least 10 plates. Seeds are 0, 1, 2,
...; ± is a 95 % interval of the mean over them (Student's t).

* constant: an oracle, the mean of all of the day's pings, in km/h;
* + counts: an oracle's line in log(samples / plates); no epsilon is spent;
* papers: the papers' mechanism that does best, at its best epsilon per mean; withheld HATs count
  with the constant;
* no budget: our forecast where nothing is ever released; ours: `mean = "forecast-clip"`;
* counts learnt: the guess by counts beside our estimates, by the city's numbers as releases taught
  them: no effect of a cell, and no HAT's own release but through these numbers;
* noise-free: each HAT forecast by our model from the *true* means of all others of its slot and of
  earlier ones.

Under add-remove neighbours (`benchmarks/add_remove.py`) HATs outside of the domain keep the
constant.

Incidents (`benchmarks/incidents.py`) stand beside the error of the same days: one can be had for
the other.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from benchmarks.add_remove import AddRemoveRun, add_remove_incidents, run_add_remove
from benchmarks.cdfs import PLATES, DayShapes, figures
from benchmarks.forecast_days import (
    OURS,
    Day,
    Run,
    day_of,
    day_of_fleet,
    run,
    run_without_forecasts,
)
from benchmarks.guesses import constant_and_counts, without_noise
from benchmarks.incidents import FACTORS, WINDOWS, Incident, incidents, shown_of
from benchmarks.train_prior import trained
from udp_stream.forecast.model import Coefficients
from udp_stream.sources.fleet import Fleet, FleetColumns

Floats = NDArray[np.float64]

DAYS = {
    "austin-capmetro-2015-06-07": ":115:America/Chicago",
    "austin-capmetro-2016-03-22": ":115:America/Chicago",
    "austin-capmetro-2016-11-24": ":115:America/Chicago",
    "austin-capmetro-2016-11-25": ":115:America/Chicago",
    "austin-capmetro-2017-03-21": ":115:America/Chicago",
    "surat-itms-2022-01-01": ":65:Asia/Kolkata",
}
"""The feeds, with U and zone. The last has no licence: it is measured if it is there, and trains
nothing."""

TWO_DAYS = "austin-capmetro-2016-11-24", "austin-capmetro-2016-11-25"
"""In a row: the second one also after the first, on one ledger."""

MECHANISMS = "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal"
EPSILONS = 0.5, 1.0, 2.0, 5.0, 10.0
SIZES = (1, 1), (2, 2), (3, 5), (6, 9), (10, 29), (30, 10**9)
HOURS = (0, 5), (6, 9), (10, 13), (14, 17), (18, 23)
DISTANCE_M = 200.0
DISTANCE_BUSES = 150

JITTER_BUSES = 1000
JITTERING = 5 / 6
STANDING_KMH = 1.0
NOISE_KMH = 1.5
"""A synthetic feed as large as Warsaw's, and like it: few exact zeros, many speeds below 3 km/h."""


class Feeds:
    """Days by name, resolution and folder, read once; and the prior of each, trained on other
    years."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        self._folder = folder
        self.flags = tuple(flags)
        self.names = [name for name in DAYS if (folder / f"{name}.ndjson.gz").exists()]
        self.day = cache(self._day)
        self.prior = cache(self._prior)

    def _day(self, name: str, resolution: int) -> Day:
        return day_of(
            f"{self._folder / name}.ndjson.gz{DAYS[name]}", f"hat.resolution={resolution}"
        )

    def _prior(self, year: str, resolution: int) -> Coefficients:
        """Of Austin's days but those of that year; `year` is a name up to it."""
        others = [
            name for name in self.names if name.startswith("austin") and not name.startswith(year)
        ]
        return trained([self.day(name, resolution).feed for name in others])

    def runs(
        self, names: Sequence[str], resolution: int, seeds: int, flags: Sequence[str] = OURS
    ) -> list[Run]:
        days = [self.day(name, resolution) for name in names]
        prior = self.prior(days[-1].year, resolution)
        return [run(days, seed, prior, (*OURS, *self.flags, *flags))[-1] for seed in range(seeds)]


def errors_of(day: Day, estimates: Sequence[Floats]) -> str:
    """All HATs / those of at least 10 plates, over the constant's; with intervals from two seeds
    on."""
    found = np.array(
        [[day.over_constant(estimate, least) for least in (1, 10)] for estimate in estimates]
    )
    if len(found) < 2:
        return "/".join(f"{value:.3f}" for value in found.mean(axis=0))
    half = student(len(found) - 1) * found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return "/".join(
        f"{value:.3f}±{off:.3f}" for value, off in zip(found.mean(axis=0), half, strict=True)
    )


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by Cornish and Fisher's expansion; 12.706 and 4.303 where
    that fails."""
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def print_accuracy(feeds: Feeds, resolutions: Sequence[int], seeds: int, paper_seeds: int) -> None:
    print("H3, feed: constant in km/h; all else over it, all HATs / HATs of >= 10 plates")
    for resolution, name in product(resolutions, feeds.names):
        day = feeds.day(name, resolution)
        prior = feeds.prior(day.year, resolution)
        nothing = feeds.runs([name], resolution, 1, ["release.min_plates=100000"])
        ours = feeds.runs([name], resolution, seeds)
        large = day.plates >= 10
        off = [
            np.average(abs(day.truth - day.constant)[q], weights=day.pings[q])
            for q in (large | ~large, large)
        ]
        print(
            f"{resolution} {name:<28}constant {off[0]:.2f}/{off[1]:.2f}"
            f"  + counts {errors_of(day, [constant_and_counts(day)])}"
            f"  no budget {errors_of(day, [nothing[0].value])}"
            f"  counts learnt {errors_of(day, [one.guess for one in ours])}"
            f"  ours {errors_of(day, [one.value for one in ours])}"
            f"  noise-free {errors_of(day, [without_noise(day, prior)])}",
            flush=True,
        )
        if paper_seeds:
            print(f"    papers: {_papers(day, paper_seeds)}", flush=True)
    if set(TWO_DAYS) <= set(feeds.names):
        for resolution in resolutions:
            day = feeds.day(TWO_DAYS[1], resolution)
            after = feeds.runs(TWO_DAYS, resolution, seeds)
            print(
                f"{resolution} {TWO_DAYS[1]} after {TWO_DAYS[0]}: counts learnt"
                f" {errors_of(day, [one.guess for one in after])}  ours {errors_of(day, [one.value for one in after])}"
            )


def _papers(day: Day, seeds: int) -> str:
    said = []
    for mechanism in MECHANISMS:
        found = []
        for epsilon in EPSILONS:
            flags = (
                "budget.accounting=pure", f"release.mean={mechanism}", f"release.mean_epsilon={epsilon}",
                "release.min_plates=10",
            )  # fmt: skip
            estimates = [run_without_forecasts(day, seed, flags) for seed in range(seeds)]
            mean = float(np.mean([day.over_constant(estimate) for estimate in estimates]))
            found.append((mean, epsilon, errors_of(day, estimates)))
        _, epsilon, errors = min(found)
        said.append(f"{mechanism} {errors} at {epsilon:g}")
    return "; ".join(said)


def print_intervals(feeds: Feeds, seeds: int, resolution: int = 7) -> None:
    print(
        f"H3 {resolution}: held by 95 % intervals, by plates {bins_named(SIZES)}, by hour {bins_named(HOURS)}"
    )
    in_rho = {}
    for name in feeds.names:
        day = feeds.day(name, resolution)
        runs = feeds.runs([name], resolution, seeds)
        held = in_rho[name] = held_by(day, runs)
        expected = expected_over_actual(day, runs)
        guessed = _over_actual(day, [(one.guess_expected, one.guess) for one in runs])
        own = np.mean(
            [
                ((one.mean_low <= day.truth) & (day.truth <= one.mean_high))[one.measured].mean()
                for one in runs
            ]
        )
        print(
            f"{name:<28}{by_bins(day.plates, SIZES, held)} | {by_bins(day.hour, HOURS, held)} | all {held.mean():.3f}"
            f"  expected/actual {expected:.2f}, of counts learnt {guessed:.2f}  means' own {own:.3f}"
            "  0.93-0.97 in {} of {}, beyond chance outside {}".format(*within(day, held)),
            flush=True,
        )
    days = {name: feeds.day(name, resolution) for name in feeds.names if name.startswith("austin")}
    pure = {
        name: held_by(day, feeds.runs([name], resolution, seeds, ["budget.accounting=pure"]))
        for name, day in days.items()
    }
    for what, of_day in (("pure", pure), ("in rho", in_rho)):
        print_of_all(what, days, of_day)


def print_of_all(what: str, days: Mapping[str, Day], held: Mapping[str, Floats]) -> None:
    plates, hour = (
        np.concatenate([getattr(day, part) for day in days.values()]) for part in ("plates", "hour")
    )
    shares = np.concatenate([held[name] for name in days])
    by_class = f"{by_bins(plates, SIZES, shares)} | {by_bins(hour, HOURS, shares)}"
    print(f"all HATs of Austin, {what:<8}{by_class} | all {shares.mean():.3f}", flush=True)


def held_by(day: Day, runs: Sequence[Run]) -> Floats:
    """In which share of the runs each HAT's mean lies in its interval."""
    shares: Floats = np.mean(
        [(one.low <= day.truth) & (day.truth <= one.high) for one in runs], axis=0
    )
    return shares


def expected_over_actual(day: Day, runs: Sequence[Run]) -> float:
    """What estimates are expected to be off by over what they are, both weighed by pings."""
    return _over_actual(day, [(one.expected, one.value) for one in runs])


def _over_actual(day: Day, runs: Sequence[tuple[Floats, Floats]]) -> float:
    expected = np.mean([np.average(said, weights=day.pings) for said, _ in runs])
    return float(
        expected
        / np.mean([np.average(abs(value - day.truth), weights=day.pings) for _, value in runs])
    )


def within(day: Day, held: Floats) -> tuple[int, int, int]:
    """Of classes (by plates, by hour): how many are held by 93 to 97 %, of how many, how many are
    two errors off."""
    classes = *in_bins(day.plates, SIZES), *in_bins(day.hour, HOURS)
    shares = [(held[here].mean(), here.sum()) for here in classes if here.any()]
    inside = sum(0.93 <= share <= 0.97 for share, _ in shares)
    far = sum(
        max(0.93 - share, share - 0.97) > 2 * np.sqrt(0.95 * 0.05 / hats) for share, hats in shares
    )
    return inside, len(shares), far


def print_hours(feeds: Feeds, seeds: int, resolution: int = 7) -> None:
    print(
        f"H3 {resolution}: error over the constant's (share of pings served), by hour {bins_named(HOURS)}"
    )
    for name in feeds.names:
        day = feeds.day(name, resolution)
        runs = feeds.runs([name], resolution, seeds)
        said = []
        for first, last in HOURS:
            here = (first <= day.hour) & (day.hour <= last)
            if not here.any():
                said.append("-")
                continue
            off = np.mean([(day.pings * abs(one.value - day.truth))[here].sum() for one in runs])
            served = (
                np.mean([day.pings[here & one.measured].sum() for one in runs])
                / day.pings[here].sum()
            )
            said.append(
                f"{off / (day.pings * abs(day.constant - day.truth))[here].sum():.3f} ({served:.2f})"
            )
        print(f"{name:<28}{'  '.join(said)}", flush=True)


def print_cdfs(feeds: Feeds, seeds: int, resolution: int = 7) -> None:
    print(
        f"H3 {resolution}: CDFs of HATs of >= {PLATES[0]}, >= {PLATES[1]} plates: error over city/dwell; the mean's"
    )
    fleet = jittering(Fleet(buses=JITTER_BUSES).columns())
    days = [(feeds.day(name, resolution), int(DAYS[name].split(":")[1])) for name in feeds.names]
    days += [
        (day_of_fleet(f"{JITTER_BUSES} buses, H3 {size}", fleet, f"hat.resolution={size}"), 65)
        for size in (7, 8)
    ]
    for accounting in ("pure", "approximate"):
        flags = (*OURS, *feeds.flags, f"budget.accounting={accounting}")
        for at, (day, max_kmh) in enumerate(days):
            prior = feeds.prior(day.year, resolution) if at < len(feeds.names) else None
            runs, without = (
                [run([day], seed, prior, (*flags, *more))[0] for seed in range(seeds)]
                for more in ([], ["release.cdf=off"])
            )
            mean, mean_without = (
                np.mean([day.over_constant(one.value) for one in some]) for some in (runs, without)
            )
            print(
                f"{accounting:<12}{day.feed.name:<28}{figures(day, DayShapes.of(day, max_kmh), runs)}"
                f"  mean {mean_without:.3f} -> {mean:.3f} ({mean / mean_without - 1:+.1%})",
                flush=True,
            )


def jittering(fleet: FleetColumns) -> FleetColumns:
    """The same buses where speeds follow from positions: five in six zeros are small instead, and
    others are noisy."""
    rng = np.random.default_rng(1)
    speed = fleet.speed_kmh
    standing = rng.exponential(STANDING_KMH, speed.size) * (rng.random(speed.size) < JITTERING)
    driving = np.clip(speed + rng.normal(0.0, NOISE_KMH, speed.size), 0.1, None)
    return fleet._replace(speed_kmh=np.where(speed == 0, standing, driving))


def by_distance(dense: FleetColumns, metres: float) -> FleetColumns:
    """Of a fleet that pings each second: the pings that it would send after each `metres`, none
    while it stands."""
    order = np.lexsort((dense.time_ms, dense.plate))
    plate = dense.plate[order]
    seconds = dense.time_ms[order] / 1000
    is_first = np.diff(plate, prepend=-1) != 0
    step_m = dense.speed_kmh[order] / 3.6 * np.where(is_first, 0.0, np.diff(seconds, prepend=0.0))
    driven = np.cumsum(step_m)
    driven -= driven[is_first][np.cumsum(is_first) - 1]
    marks = np.floor(driven / metres + 1e-9)
    kept = np.sort(order[is_first | (np.diff(marks, prepend=0.0) > 0)])
    return FleetColumns(*(column[kept] for column in dense))


def print_incidents(feeds: Feeds, seeds: int, resolution: int = 7) -> None:
    print(
        f"H3 {resolution}: incidents in the ten busiest cells; shown held released marked drawn, of >= 30 plates | all"
    )
    found: dict[float, dict[tuple[int, int], list[Incident]]] = {
        one: {at: [] for at in WINDOWS} for one in FACTORS
    }
    for name in feeds.names:
        day = feeds.day(name, resolution)
        runs = feeds.runs([name], resolution, seeds)
        large = day.plates >= 10
        low = (one.low for one in runs)
        high = (one.high for one in runs)
        wide = np.mean(
            [np.clip(b, 0, None) - np.clip(a, 0, None) for a, b in zip(low, high, strict=True)],
            axis=0,
        )
        held = held_by(day, runs)
        news = np.mean([one.news > 0.5 for one in runs], axis=0)
        print(
            f"{name:<28}without: {errors_of(day, [one.value for one in runs])}  held {held.mean():.3f}"
            f"  >= 10 plates {held[large].mean():.3f}, {wide[large].mean():.1f} km/h wide  news in {news.mean():.4f}",
            flush=True,
        )
        for window, seed in product(WINDOWS, range(seeds)):
            each = incidents(day, seed, feeds.prior(day.year, resolution), feeds.flags, window)
            for factor, one in zip(FACTORS, each, strict=False):
                found[factor][window].append(one)
    for factor, by_window in found.items():
        print(f"x {factor:g}: {_by_window(by_window)}", flush=True)


def _by_window(found: Mapping[tuple[int, int], Sequence[Incident]]) -> str:
    said = [_shown([one for some in found.values() for one in some], plates) for plates in (30, 1)]
    hours = [f"{first}-{last}: {_shown(some, 30)}" for (first, last), some in found.items()]
    return f"{' | '.join(said)} | by hour {'; '.join(hours)}"


PRESENCE = (10.0, False), (4.0, False), (10.0, True)
"""Epsilons at delta 1e-6 of a plate's day, and whether numbers of plates are asked."""


def print_add_remove(feeds: Feeds, seeds: int) -> None:
    print(
        f"add-remove neighbours, H3 7: error over the constant's; held by 95 % intervals, by plates {bins_named(SIZES)}"
    )
    for epsilon, plates in PRESENCE:
        for names in [[name] for name in feeds.names] + [list(TWO_DAYS)] * (
            set(TWO_DAYS) <= set(feeds.names)
        ):
            days = [feeds.day(name, 7) for name in names]
            runs = [run_add_remove(days, seed, epsilon, plates)[-1] for seed in range(seeds)]
            print(
                f"{epsilon:g} {' after '.join(names[::-1]):<28} {_presence(days[-1], runs, plates)}",
                flush=True,
            )
    for epsilon in (10.0, 4.0):
        found: dict[tuple[int, int], list[list[Incident]]] = {
            window: [
                each
                for name, seed in product(feeds.names, range(seeds))
                if (
                    each := add_remove_incidents(feeds.day(name, 7), seed, window, FACTORS, epsilon)
                )
            ]
            for window in WINDOWS
        }
        for at, factor in enumerate(FACTORS):
            by_window = {window: [each[at] for each in some] for window, some in found.items()}
            print(f"{epsilon:g} x {factor:g}: {_by_window(by_window)}", flush=True)


def _presence(day: Day, runs: Sequence[AddRemoveRun], plates: bool) -> str:
    here = runs[0].inside
    held = np.mean([(one.low <= day.truth) & (day.truth <= one.high) for one in runs], axis=0)
    large = here & (day.plates >= 10)
    pings = np.where(here, day.pings, 0)
    expected, actual, off, within = (
        np.mean(each, axis=0)
        for each in zip(
            *(
                (
                    np.nansum(pings * one.expected),
                    np.nansum(pings * abs(one.value - day.truth)),
                    abs(one.told - one.traffic)[large].sum() / one.traffic[large].sum(),
                    ((one.told_low <= one.traffic) & (one.traffic <= one.told_high))[here].mean(),
                )
                for one in runs
            ),
            strict=True,
        )
    )
    return (
        f"{errors_of(day, [one.value for one in runs])}"
        f"  by traffic {errors_of(day, [np.where(here, one.guess, day.constant) for one in runs])}"
        f"  held {by_bins(day.plates[here], SIZES, held[here])} all {held[here].mean():.3f}"
        f"  expected/actual {expected / actual:.2f}"
        f"  {'plates' if plates else 'bus-hours'} of >= 10 plates off by {off:.2f}, held {within:.3f}"
    )


def _shown(found: Sequence[Incident], plates_min: int) -> str:
    if not any((one.plates >= plates_min).any() for one in found):
        return "-"
    of = shown_of(found, plates_min)
    return (
        f"{of.shown:.2f} {of.held:.2f} {of.released:.2f} {of.marked:.2f} {of.drawn:.2f} ({of.hats})"
    )


def print_by_distance(feeds: Feeds, seeds: int) -> None:
    fleet = Fleet(buses=DISTANCE_BUSES, ping_seconds=1)
    dense = fleet.columns()
    named = {
        "every 10 s": Fleet(buses=DISTANCE_BUSES).columns(),
        f"every {DISTANCE_M:g} m": by_distance(dense, DISTANCE_M),
    }
    print(
        f"synthetic fleet of {DISTANCE_BUSES} buses: over the constant, by hour {bins_named(HOURS)}; held, by plates"
    )
    for name, columns in named.items():
        day = day_of_fleet(name, columns)
        runs = [run([day], seed, feeds.prior("none", 7))[0] for seed in range(seeds)]
        held = held_by(day, runs)
        errors = np.mean([abs(one.value - day.truth) for one in runs], axis=0)
        ratio = [_ratio(day, errors, first, last) for first, last in HOURS]
        print(
            f"{name:<14}+ counts {errors_of(day, [constant_and_counts(day)])}  ours"
            f" {errors_of(day, [one.value for one in runs])}  by hour {'  '.join(ratio)}  held"
            f" {by_bins(day.plates, SIZES, held)} all {held.mean():.3f}",
            flush=True,
        )


def _ratio(day: Day, errors: Floats, first: int, last: int) -> str:
    here = (first <= day.hour) & (day.hour <= last)
    beside = (day.pings * abs(day.constant - day.truth))[here].sum()
    return f"{(day.pings * errors)[here].sum() / beside:.3f}" if here.any() else "-"


def bins_named(bins: Sequence[tuple[int, int]]) -> str:
    return ", ".join(
        f"{low}" if low == high else f"{low}-{high}" if high < 10**9 else f"{low}+"
        for low, high in bins
    )


def by_bins(values: NDArray[np.int64], bins: Sequence[tuple[int, int]], held: Floats) -> str:
    return " ".join(
        f"{held[here].mean():.3f}" if here.any() else "  -  " for here in in_bins(values, bins)
    )


def in_bins(values: NDArray[np.int64], bins: Sequence[tuple[int, int]]) -> list[NDArray[np.bool_]]:
    return [(low <= values) & (values <= high) for low, high in bins]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--paper-seeds", type=int, default=1)
    parser.add_argument("--resolutions", default="6,7,8")
    parser.add_argument(
        "--tables", default="accuracy,incidents,intervals,hours,cdf,distance,presence"
    )
    asked = parser.parse_args()
    feeds = Feeds(asked.folder, asked.flags)
    resolutions = [int(one) for one in asked.resolutions.split(",")]
    if not feeds.names:
        parser.error(f"expected one of {', '.join(DAYS)}.ndjson.gz in {asked.folder}, got none")
    tables: dict[str, Callable[[], None]] = {
        "accuracy": lambda: print_accuracy(feeds, resolutions, asked.seeds, asked.paper_seeds),
        "incidents": lambda: print_incidents(feeds, asked.seeds),
        "intervals": lambda: print_intervals(feeds, asked.seeds),
        "hours": lambda: print_hours(feeds, asked.seeds),
        "cdf": lambda: print_cdfs(feeds, asked.seeds),
        "distance": lambda: print_by_distance(feeds, asked.seeds),
        "presence": lambda: print_add_remove(feeds, asked.seeds),
    }
    wanted = asked.tables.split(",")
    if not tables.keys() >= set(wanted):
        parser.error(f"--tables: expected some of {','.join(tables)}, got {asked.tables}")
    for name in wanted:
        tables[name]()


if __name__ == "__main__":
    main()
