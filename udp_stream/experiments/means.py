"""One plan's estimate drawn many times over the same speeds: what `estimate` does once, for all repetitions at once.

The deterministic part (array means, costs of private choices) is computed once; every private choice and every noise
draw is made anew for each repetition. Repetitions charge nothing because nothing here is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.experiments.base import (
    EPSILONS,
    LAMBDA,
    NOT_STATED,
    DataSet,
    Experiment,
    Figure,
    Hat,
    Integers,
    Job,
    Outcome,
    Panel,
    Row,
    Setup,
    Table,
    Verdict,
    curve,
    gaussian_hat,
    itms_like,
    slug,
)
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate, best_fit, wrap_around_count
from udp_stream.mechanisms.means import (
    GAMMA,
    MECHANISMS,
    ArrayAveraging,
    Baseline,
    Grouping,
    MeanPlan,
    Projected,
    concentration_radius,
    levy_cap,
    means_of_arrays,
    projected_queries,
)
from udp_stream.mechanisms.noise import lattice_of, pure, tail_bound
from udp_stream.mechanisms.variance import VariancePlan, variance_query, variance_value
from udp_stream.units import NANO, QUANTA_PER_KMH

Floats = NDArray[np.float64]


def repeated_means_of(plans: Sequence[MeanPlan], samples: Sequence[Integers], draws: int, bits: Bits) -> list[Floats]:
    """That many independent estimates of each HAT's mean, in quanta within the range; samples are in quanta.

    The noise of all HATs is drawn in one call.
    """
    queries = [_on_lattice(plan, speeds, draws, bits) for plan, speeds in zip(plans, samples, strict=True)]
    steps, t, shift = (np.concatenate(columns) for columns in zip(*queries, strict=True))
    noisy = (steps + plans[0].noise.draw(bits, t) << shift).astype(np.float64).reshape(len(plans), draws)
    return [
        np.clip(plan.range.low + row / plan.divisor, float(plan.range.low), float(plan.range.high))
        for plan, row in zip(plans, noisy, strict=True)
    ]


def _on_lattice(plan: MeanPlan, samples: Integers, draws: int, bits: Bits) -> tuple[Integers, Integers, Integers]:
    """For each draw: its statistic in steps of its lattice, the noise's scale t there, and the steps' shift."""
    mechanism = MECHANISMS[plan.mechanism]
    if isinstance(mechanism, Projected):
        means = means_of_arrays(plan, samples)
        sums, sensitivities = projected_queries(plan, means, *mechanism.intervals(plan, means, bits, draws))
    else:
        query = mechanism.query(plan, samples, bits)
        sums, sensitivities = np.full(draws, query.statistic), np.full(draws, query.sensitivity)
    distinct, which = np.unique(sensitivities, return_inverse=True)
    lattices = [lattice_of(int(sensitivity), plan.noise_cost) for sensitivity in distinct]
    t, shift = np.array([(one.t, one.shift) for one in lattices], dtype=np.int64)[which].T
    half = np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
    return sums + half >> shift, t, shift


def buffered(bits: Bits, block: int = 1 << 16) -> Bits:
    """The same source read in large pieces: many small draws are quicker."""
    held, at = b"", 0

    def take(count: int) -> bytes:
        nonlocal held, at
        if at + count > len(held):
            held, at = held[at:] + bits(max(block, count)), 0
        at += count
        return held[at - count : at]

    return take


def repeated_variances(plan: VariancePlan, samples: Integers, draws: int, bits: Bits) -> Floats:
    """That many independent estimates of the variance, in quanta^2."""
    query = variance_query(plan, samples)
    lattice = lattice_of(query.sensitivity, plan.cost)
    base = lattice.project(query.statistic)
    noise = plan.noise.draw(bits, np.full(draws, lattice.t)).tolist()
    return np.array([variance_value(plan, (base + one) << lattice.shift) for one in noise])


def error_of(found: Floats, truth: float) -> tuple[float, float]:
    """Mean absolute error, and its standard error (0 for a single draw)."""
    errors = np.abs(found - truth)
    spread = float(errors.std(ddof=1)) / errors.size**0.5 if errors.size > 1 else 0.0
    return float(errors.mean()), spread


# Mean absolute errors of the mean mechanisms over epsilon: what the three experiments on means measure and compare.


@dataclass(frozen=True, slots=True)
class Series:
    """A mechanism under a grouping; of Array-Averaging, whose cap it takes: its own, Levy's, or m^(eps)."""

    mechanism: str
    grouping: Grouping = "best-fit"
    cap: Literal["own", "Levy's", "worst-case"] = "own"

    @property
    def name(self) -> str:
        """As in tables and legends."""
        wrapped = ", wrap-around" if self.grouping == "wrap-around" else ""
        return self.mechanism + wrapped + (f", {self.cap} cap" if self.cap != "own" else "")

    def plan(self, counts: SamplesPerPlate, epsilon: float, range: Range) -> MeanPlan:
        """The mechanism's own plan for these counts."""
        asked = counts, pure(round(epsilon * NANO)), range, self.grouping
        if self.cap != "own":
            cap = levy_cap(counts) if self.cap == "Levy's" else counts.worst_case_cap(1 / epsilon)
            return ArrayAveraging().plan(*asked, cap)
        return MECHANISMS[self.mechanism].plan(*asked)


CLIPPING = tuple(Series(name) for name in ("array-averaging", "levy", "fixed-quantile", "eps-quantile"))
"""The papers' mechanisms beside Baseline."""

PUBLISHED = (Series("baseline"), *CLIPPING)

OURS = (Series("optimal"),)

AT_M_EPS = Series("array-averaging", cap="worst-case")

SHOWN = (*PUBLISHED, AT_M_EPS, *OURS)
"""By `mean-itms`."""

WRAPPED = tuple(Series(one.mechanism, "wrap-around") for one in CLIPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRow:
    """One point: the error over the given HATs, weighed by their pings, beside the baseline guess's over the same.

    `noise_kmh` is the expected absolute noise that counts alone can state (for projected means: at the whole of U).
    """

    data: str
    hats: str
    series: str
    epsilon: float
    error_kmh: float
    standard_error_kmh: float
    constant_kmh: float
    constant: str
    share_of_pings: float
    noise_kmh: float
    hat_count: int
    plates: int
    samples: int
    repetitions: int


def points(setup: Setup, data: DataSet, label: str, hats: Sequence[Hat], series: Iterable[Series]) -> list[Job]:
    """A piece of work for each mechanism and epsilon."""
    return [partial(_point, setup, data, label, hats, one, epsilon) for one in series for epsilon in EPSILONS]


def _point(
    setup: Setup, data: DataSet, label: str, hats: Sequence[Hat], series: Series, epsilon: float
) -> list[MeanRow]:
    """Repetitions are shared out over the HATs: at least that many draws in all."""
    bits = buffered(setup.bits(f"{data.name}/{label}/{series.name}/{epsilon}"))
    draws = -(-setup.repetitions // len(hats))
    plans = [series.plan(hat.counts, epsilon, data.range) for hat in hats]
    found = repeated_means_of(plans, [hat.samples for hat in hats], draws, bits)
    errors = [error_of(values, hat.mean) for values, hat in zip(found, hats, strict=True)]
    weights = np.array([hat.counts.total for hat in hats]) / sum(hat.counts.total for hat in hats)
    error, spread = np.array(errors).T / QUANTA_PER_KMH
    return [
        MeanRow(
            data=data.name,
            hats=label,
            series=series.name,
            epsilon=epsilon,
            error_kmh=float(weights @ error),
            standard_error_kmh=float(np.sqrt(weights**2 @ spread**2)),
            constant_kmh=data.constant_error_kmh(hats),
            constant=data.constant_is,
            share_of_pings=data.share(hats),
            noise_kmh=float(weights @ np.array([plan.noise_bound for plan in plans])) / QUANTA_PER_KMH,
            hat_count=len(hats),
            plates=sum(hat.counts.plates for hat in hats),
            samples=sum(hat.counts.total for hat in hats),
            repetitions=draws * len(hats),
        )
    ]


class Errors:
    """The rows of one data set and choice of HATs, by series."""

    def __init__(self, rows: Sequence[MeanRow], data: str, hats: str) -> None:
        """Pick them out."""
        self.rows = [row for row in rows if (row.data, row.hats) == (data, hats)]

    def of(self, series: Series) -> list[MeanRow]:
        """One series, by epsilon."""
        return sorted((row for row in self.rows if row.series == series.name), key=lambda row: row.epsilon)

    def error(self, series: Series) -> np.ndarray:
        """Its errors, by epsilon, in km/h."""
        return np.array([row.error_kmh for row in self.of(series)])

    def at(self, series: Series, epsilon: float = 1.0) -> float:
        """Its error at one epsilon."""
        return next(row.error_kmh for row in self.of(series) if row.epsilon == epsilon)

    def not_below(self, lower: Series, upper: Series) -> list[float]:
        """The epsilons at which `lower` does not err less than `upper`."""
        pairs = zip(self.of(lower), self.of(upper), strict=True)
        return [one.epsilon for one, other in pairs if one.error_kmh >= other.error_kmh]

    def said(self, series: Iterable[Series], epsilon: float = 1.0) -> str:
        """'levy 0.91, baseline 1.58': least first."""
        found = sorted((self.at(one, epsilon), one.name) for one in series)
        return ", ".join(f"{name} {error:.3g}" for error, name in found)

    def panel(self, title: str, series: Iterable[Series]) -> Panel:
        """Error over epsilon, with the baseline guess across."""
        of = [(one.name, self.of(one)) for one in series]
        return over_epsilon(title, "mean", "km/h", of, "error_kmh", "constant_kmh")

    def beside_the_constant(self, series: Iterable[Series]) -> str:
        """Which mechanism beats the baseline guess, and from which epsilon on."""
        first, better, never = self.rows[0], list[str](), list[str]()
        for one in series:
            won = [row.error_kmh < first.constant_kmh for row in self.of(one)]
            since = next((row.epsilon for i, row in enumerate(self.of(one)) if all(won[i:])), None)
            (never if since is None else better).append(one.name if since is None else f"{one.name} from {since:g}")
        said = f"the baseline guess ({first.constant}) errs by {first.constant_kmh:.2f} km/h; "
        said += f"share of pings served {first.share_of_pings:.0%}; "
        said += f"better than it, by epsilon: {', '.join(better) or 'none'}"
        return said + (f"; not up to {EPSILONS[-1]:g}: {', '.join(never)}" if never else "")


def over_epsilon(
    title: str, what: str, unit: str, of: Sequence[tuple[str, Sequence[Row]]], y: str, guess: str
) -> Panel:
    """A line for each series of rows, with the baseline guess across."""
    curves, rows = [curve(name, some, "epsilon", y) for name, some in of], of[0][1]
    curves.append(curve(f"baseline guess ({rows[0].constant})", [rows[0], rows[-1]], "epsilon", guess, "guess"))
    log = all(value > 0 for one in curves for value in one.y)
    return Panel(title, f"epsilon per {what}", f"mean absolute error, {unit}", tuple(curves), log_y=log)


def listed(epsilons: Iterable[float]) -> str:
    """'0.5, 1'."""
    return ", ".join(f"{epsilon:g}" for epsilon in epsilons)


def falls(values: Sequence[float]) -> bool:
    """Whether no value is above the one before."""
    return all(later <= earlier for earlier, later in pairwise(values))


# `mean-itms`: the mechanisms on recorded pings (arXiv 2401.15906, Figure 1; its early version, Figures 1 and 2).

EARLY = "2401.15906, early version, Section IV-B"
LATE = "2401.15906, Section IV-B"

SIMILAR, LITTLE = 1.15, 1.5
"""Our reading of the papers' words: "similar" errors differ by 15 %, "very little difference" is a factor 1.5."""

TAILS = (0.5, 0.1, 0.01)
"""Probabilities with which noise may exceed its bound."""

BUSIEST = "busiest HAT"


def data_sets(setup: Setup) -> list[DataSet]:
    """The papers' HAT in its likeness, then the feeds."""
    return [itms_like(setup.rng("itms-like")), *setup.data]


def all_hats(setup: Setup) -> str:
    """The label of every HAT with enough plates."""
    return f"HATs of >= {setup.min_plates} plates"


def choices(setup: Setup, data: DataSet) -> list[tuple[str, Sequence[Hat]]]:
    """The busiest HAT and, of feeds, all HATs with enough plates: their label and the HATs."""
    enough = data.of_at_least(setup.min_plates) if data.recorded else ()
    return [(BUSIEST, [data.busiest]), *([(all_hats(setup), enough)] if enough else [])]


def jobs(setup: Setup) -> list[Job]:
    """The busiest HAT under both groupings, and, of feeds, all HATs with enough plates."""
    return [
        job
        for data in data_sets(setup)
        for label, hats in choices(setup, data)
        for job in points(setup, data, label, hats, (*SHOWN, *(WRAPPED if label == BUSIEST else ())))
    ]


def conclude(setup: Setup, rows: Sequence[MeanRow]) -> Outcome:
    """A figure for each data set, and the papers' sentences beside our numbers."""
    figures, verdicts = [], []
    for data in data_sets(setup):
        found, everywhere = Errors(rows, data.name, BUSIEST), Errors(rows, data.name, all_hats(setup))
        panels = [found.panel("busiest HAT", SHOWN), found.panel("both groupings", (*CLIPPING, *WRAPPED))]
        if everywhere.rows:
            share = everywhere.rows[0].share_of_pings
            panels.append(everywhere.panel(f"{all_hats(setup)} ({share:.0%} of pings)", SHOWN))
        size = f"busiest HAT: {data.busiest.counts.plates} plates, {data.busiest.counts.total:,} samples"
        figures.append(Figure(f"mean-itms-{slug(data.name)}", f"{data.name}; {size}", tuple(panels)))
        verdicts += [*_verdicts(setup, data, found), *_numbers_to_beat(found, everywhere)]
    return Outcome((Table("mean-itms", tuple(rows)),), tuple(figures), tuple(verdicts))


def _verdicts(setup: Setup, data: DataSet, found: Errors) -> list[Verdict]:
    return [
        *([] if data.recorded else [_arrays(data.busiest), _tail(setup, data)]),
        _clipping_beats_baseline(data, found),
        _best_fit_beats_wrap_around(data, found),
        _averaging_under_both(data, found),
        _half_the_noise(data, found),
        _at_m_eps(data, found),
        _little_difference(data, found),
    ]


def _arrays(hat: Hat) -> Verdict:
    cap = levy_cap(hat.counts)
    full, packed = wrap_around_count(hat.counts, cap), best_fit(hat.counts, cap).count
    return Verdict(
        "K = 160 arrays under WrapAround and 164 under BestFit at the cap of equation (1)",
        LATE,
        (full, packed) == (160, 164),
        f"{full} and {packed}",
        f"their counts are not published. Ours have their total, largest and median, and were fitted to K = 160; "
        f"how many more BestFit needs ({packed - full} here, 4 there) goes by how single counts fill arrays of {cap}",
    )


def _tail(setup: Setup, data: DataSet) -> Verdict:
    """The slides' guarantee by Laplace tails, of Baseline's noise at epsilon 1."""
    plan = Baseline().plan(data.busiest.counts, pure(NANO), data.range, "best-fit")
    lattice = lattice_of(plan.sensitivity, plan.cost)
    noise = np.abs(plan.noise.draw(setup.bits("tail"), np.full(setup.repetitions, lattice.t))) << lattice.shift
    beyond = {delta: float((noise > tail_bound(plan.sensitivity, plan.cost, delta)).mean()) for delta in TAILS}
    chance = {delta: 3 * math.sqrt(delta * (1 - delta) / noise.size) for delta in TAILS}
    return Verdict(
        f"{data.name}: Baseline errs by more than Delta ln(1/delta) / epsilon with probability delta at most",
        "slides, the Laplace mechanism II; 2401.15906, early version, Proposition II.1",
        all(share <= delta + chance[delta] for delta, share in beyond.items()),
        ", ".join(f"{share:.3g} at {delta:g}" for delta, share in beyond.items()),
    )


def _clipping_beats_baseline(data: DataSet, found: Errors) -> Verdict:
    baseline, counts = PUBLISHED[0], data.busiest.counts
    failed = {one.name: at for one in CLIPPING if (at := found.not_below(one, baseline))}
    gain = counts.largest * counts.plates / counts.total
    tell = "".join(f"; {name} not below Baseline at epsilon {listed(at)}" for name, at in failed.items())
    return Verdict(
        f"{data.name}: clipping results in much better performance than Baseline",
        f"{LATE}, Figure 1",
        not failed,
        f"at epsilon 1: {found.said(PUBLISHED)} km/h{tell}",
        f"capping divides the noise by at most m_max L / M = {gain:.2f} here (their Section III-C), and a private "
        "interval costs half of epsilon: at best twice the noise again unless the interval is narrow",
    )


def _best_fit_beats_wrap_around(data: DataSet, found: Errors) -> Verdict:
    pairs = [
        (one, wrapped) for one, wrapped in zip(CLIPPING, WRAPPED, strict=True) if one.mechanism != "array-averaging"
    ]
    failed = {one.name: at for one, wrapped in pairs if (at := found.not_below(one, wrapped))}
    ratios = ", ".join(f"{one.name} {found.at(wrapped) / found.at(one):.2f}" for one, wrapped in pairs)
    users = data.busiest.counts.plates
    return Verdict(
        f"{data.name}: for Levy and the quantiles BestFit performs much better than WrapAround",
        f"{EARLY}, Figure 1",
        not failed,
        f"WrapAround's error over BestFit's at epsilon 1: {ratios}"
        + "".join(f"; {name} not better at epsilon {listed(at)}" for name, at in failed.items()),
        f"{users} plates make so few arrays that estimates are clamped to [0, U] or projected to a wrong interval more "
        "often than noise decides"
        if users < 60
        else "the private interval's own error outweighs the noise here",
    )


def _averaging_under_both(data: DataSet, found: Errors) -> Verdict:
    ratios, counts = found.error(WRAPPED[0]) / found.error(CLIPPING[0]), data.busiest.counts
    arrays = f"{wrap_around_count(counts, counts.median)} and {best_fit(counts, counts.median).count}"
    return Verdict(
        f"{data.name}: for Array-Averaging the two groupings perform similarly",
        f"{EARLY}, Figure 1",
        bool((ratios < SIMILAR).all() and (ratios > 1 / SIMILAR).all()),
        f"WrapAround's error is {ratios.min():.2f} to {ratios.max():.2f} times BestFit's (similar: within {SIMILAR})",
        f"both add noise of U over the number of arrays, {arrays}, but weigh samples differently",
    )


def _half_the_noise(data: DataSet, found: Errors) -> Verdict:
    noise = [found.of(one)[0].noise_kmh for one in (WRAPPED[0], CLIPPING[0])]
    return Verdict(
        f"{data.name}: for Array-Averaging BestFit's noise is lower than WrapAround's by a factor of 2",
        "2401.15906, Section III-C",
        noise[0] >= 1.9 * noise[1],
        f"the factor is {noise[0] / noise[1]:.2f}",
        "2U/K bounds the two arrays that a plate can touch one by one; its samples in both fill at most one, so the "
        "sensitivity is U/K, which is what we charge and draw for (docs/mechanisms/array-averaging.md)",
    )


def _at_m_eps(data: DataSet, found: Errors) -> Verdict:
    caps = CLIPPING[0], AT_M_EPS
    plans = [[one.plan(data.busiest.counts, epsilon, data.range) for one in caps] for epsilon in EPSILONS]
    median, best = plans[EPSILONS.index(1.0)]
    bounds = [plan.error_bound / QUANTA_PER_KMH for plan in (best, median)]
    return Verdict(
        f"{data.name}: Array-Averaging's worst case is least at m^(eps)",
        "slides, equation (1)",
        all(at_best.error_bound <= at_median.error_bound for at_median, at_best in plans),
        f"at epsilon 1: {bounds[0]:.3g} km/h at {best.cap} samples against {bounds[1]:.3g} at the median {median.cap}; "
        f"on the HAT's speeds: {found.said(caps)} km/h",
        "arrays of unequal filling have a bias of their own, which E(m) leaves out",
    )


def _little_difference(data: DataSet, found: Errors) -> Verdict:
    errors = [found.error(one) for one in CLIPPING]
    ratios = [max(column) / min(column) for column in zip(*errors, strict=True)]
    return Verdict(
        f"{data.name}: there is very little difference between the clipping mechanisms",
        f"{EARLY}, Figure 2",
        bool(max(ratios) < LITTLE),
        f"the worst errs {min(ratios):.2f} to {max(ratios):.2f} times as much as the best (little: below {LITTLE})",
        f"Array-Averaging uses all of epsilon for its noise, the others half of it for an interval that at "
        f"{data.busiest.counts.plates} plates is wide or misplaced; at epsilon 0.5: {found.said(CLIPPING, 0.5)} km/h",
    )


def _numbers_to_beat(found: Errors, everywhere: Errors) -> list[Verdict]:
    series: tuple[Series, ...] = (*PUBLISHED, *OURS)
    return [
        Verdict(
            f"{one.rows[0].data}, {one.rows[0].hats}: at epsilon 1 a release of the papers' beats the baseline guess",
            NOT_STATED,
            any(one.at(other) < one.rows[0].constant_kmh for other in PUBLISHED),
            one.beside_the_constant(series),
            "noise of about U / (K epsilon), K at most the number of plates, must cover all of [0, U], of which HATs' "
            "means differ only by a small part",
        )
        for one in (found, everywhere)
        if one.rows
    ]


# `sample-scaling` and `user-scaling`: ten times the samples per user, or the users (arXiv 2401.15906, Figure 2).

SOURCE = "2401.15906, Section IV-C"
BASELINE, (AVERAGING, LEVY, FIXED, DEPENDENT) = PUBLISHED[0], CLIPPING
AVERAGING_LEVYS = Series("array-averaging", cap="Levy's")

SERIES = {"samples": (*PUBLISHED, *OURS), "users": (BASELINE, AVERAGING_LEVYS, *CLIPPING, *OURS)}
"""Under user scaling the papers give Array-Averaging Levy's cap; its own is shown too."""

SCALED: dict[str, Callable[[Integers], Integers]] = {
    "samples": lambda counts: counts * LAMBDA,
    "users": lambda counts: np.repeat(counts, LAMBDA),
}


def pairs(setup: Setup, what: str) -> list[tuple[DataSet, DataSet]]:
    """Each HAT (the papers' likeness, each feed's busiest) drawn anew as it is, and scaled."""
    return [_pair(setup, data, what) for data in data_sets(setup)]


def _pair(setup: Setup, data: DataSet, what: str) -> tuple[DataSet, DataSet]:
    hat = data.busiest
    shape = hat.mean / QUANTA_PER_KMH, float(hat.samples.std()) / QUANTA_PER_KMH, data.range
    name = f"{data.name}, drawn" if data.recorded else data.name

    def drawn(counts: Integers, label: str) -> DataSet:
        rng = setup.rng(f"{what}/{data.name}/{label}")
        hat = gaussian_hat(counts, *shape, rng)
        city_mean = data.constant if data.recorded else None
        return DataSet(f"{name}{label}", False, data.range, (hat,), city_mean=city_mean)

    counts = hat.counts.by_plate
    return drawn(counts, ""), drawn(SCALED[what](counts), f", {what} x{LAMBDA}")


def _jobs(setup: Setup, what: str) -> list[Job]:
    sets = [data for pair in pairs(setup, what) for data in pair]
    return [job for data in sets for job in points(setup, data, "the HAT", data.hats, SERIES[what])]


def _conclude(setup: Setup, rows: Sequence[MeanRow], what: str) -> Outcome:
    figures, verdicts = [], []
    judge = _sample_verdicts if what == "samples" else _user_verdicts
    for base, scaled in pairs(setup, what):
        before, after = Errors(rows, base.name, "the HAT"), Errors(rows, scaled.name, "the HAT")
        panels = before.panel("as it is", SERIES[what]), after.panel(f"{what} x{LAMBDA}", SERIES[what])
        figures.append(Figure(f"{what[:-1]}-scaling-{slug(base.name)}", _title(base, scaled), panels))
        verdicts += [*judge(base, scaled, before, after), _number_to_beat(after, what)]
    return Outcome((Table(f"{what[:-1]}-scaling", tuple(rows)),), tuple(figures), tuple(verdicts))


def _title(base: DataSet, scaled: DataSet) -> str:
    sizes = [f"{data.hats[0].counts.plates:,} plates, {data.hats[0].counts.total:,} samples" for data in (base, scaled)]
    return f"{base.name}: {sizes[0]}; scaled: {sizes[1]}"


def _best_of(scaled: DataSet, after: Errors, best: Series, others: Sequence[Series], source: str, why: str) -> Verdict:
    failed = [f"{one.name} at epsilon {listed(at)}" for one in others if (at := after.not_below(best, one))]
    return Verdict(
        f"{scaled.name}: {best.name} performs better than all other algorithms",
        source,
        not failed,
        f"at epsilon 1: {after.said((best, *others))} km/h"
        + (f"; no worse than it: {'; '.join(failed)}" if failed else ""),
        why,
    )


def _levy(data: DataSet) -> tuple[int, int, float, float]:
    """Levy's cap, its number of full arrays, its radius tau and U, both in km/h."""
    plan = LEVY.plan(data.hats[0].counts, 1.0, data.range)
    tau = concentration_radius(plan) / QUANTA_PER_KMH
    return plan.cap, wrap_around_count(plan.counts, plan.cap), tau, data.range.width / QUANTA_PER_KMH


def _sample_verdicts(base: DataSet, scaled: DataSet, before: Errors, after: Errors) -> list[Verdict]:
    cap, arrays, tau, most = _levy(base)
    scaled_cap, scaled_arrays, scaled_tau, _ = _levy(scaled)
    others = [one for one in PUBLISHED if one is not LEVY]
    scales = {one.name: after.of(one)[0].noise_kmh / before.of(one)[0].noise_kmh for one in (BASELINE, AVERAGING)}
    return [
        _best_of(
            scaled,
            after,
            LEVY,
            others,
            f"{SOURCE}, Figure 2a",
            f"its interval is 3 tau = {3 * scaled_tau:.1f} km/h of U = {most:g}, and half of epsilon is left for the "
            f"noise: {6 * scaled_tau / most:.2f} times Array-Averaging's where both have as many arrays; and the bin "
            f"of the median is chosen at half of epsilon among only {scaled_arrays} arrays",
        ),
        Verdict(
            f"{scaled.name}: the noise of Baseline and Array-Averaging is what it was",
            f"{SOURCE}; Proposition IV.1 of the early version",
            all(math.isclose(ratio, 1.0, rel_tol=1e-9) for ratio in scales.values()),
            ", ".join(f"{name} x{ratio:.4f}" for name, ratio in scales.items()),
        ),
        Verdict(
            f"{scaled.name}: Levy's sensitivity 3 tau / K falls by sqrt({LAMBDA}) = {LAMBDA**0.5:.3f}",
            f"{SOURCE}; Proposition IV.1 of the early version",
            math.isclose((tau / arrays) / (scaled_tau / scaled_arrays), LAMBDA**0.5, rel_tol=1e-3),
            f"by {tau / arrays / scaled_tau * scaled_arrays:.4f}, 3 tau from {3 * tau:.1f} to {3 * scaled_tau:.1f} km/h"
            + (
                f" (cut off at U = {most:g}: its noise falls by {min(3 * tau, most) / min(3 * scaled_tau, most):.2f})"
                if 3 * tau > most
                else ""
            ),
        ),
        Verdict(
            f"{scaled.name}: equation (1) is solved by {LAMBDA} times the cap, with as many arrays",
            SOURCE,
            (scaled_cap, scaled_arrays) == (LAMBDA * cap, arrays),
            f"cap {cap} and {arrays} arrays before, {scaled_cap} and {scaled_arrays} after",
        ),
    ]


def _user_verdicts(base: DataSet, scaled: DataSet, before: Errors, after: Errors) -> list[Verdict]:  # noqa: ARG001
    cap, arrays, tau, most = _levy(base)
    scaled_cap, scaled_arrays, scaled_tau, _ = _levy(scaled)
    others = (BASELINE, AVERAGING_LEVYS, LEVY, DEPENDENT)
    log_ratio = math.sqrt(math.log(2 * scaled_arrays / GAMMA) / math.log(2 * arrays / GAMMA))
    spread = _spread_of_means(scaled.hats[0], scaled.range)
    return [
        _best_of(
            scaled,
            after,
            FIXED,
            others,
            f"{SOURCE}, Figure 2b",
            f"each end, at a quarter of epsilon, is off by ranks of the order of 8 / epsilon, not small beside 0.1 K = "
            f"{scaled_arrays / 10:.0f}: the interval is misplaced (the exact one spans {spread:.1f} of {most:g} km/h)",
        ),
        _second_best(scaled, after),
        Verdict(
            f"{scaled.name}: the same cap solves equation (1), with {LAMBDA} times as many arrays",
            "2401.15906, early version, Lemma IV.2",
            scaled_cap == cap and LAMBDA * arrays <= scaled_arrays < LAMBDA * (arrays + 1),
            f"cap {cap} and {arrays} arrays before, {scaled_cap} and {scaled_arrays} after",
        ),
        Verdict(
            f"{scaled.name}: Levy's interval grows with the logarithm of the number of users",
            SOURCE,
            math.isclose(scaled_tau / tau, log_ratio, rel_tol=1e-3) and log_ratio > 1,
            f"3 tau from {3 * tau:.1f} to {3 * scaled_tau:.1f} km/h, of U = {most:g}",
        ),
        _exact_quantiles(base, scaled),
    ]


def _second_best(scaled: DataSet, after: Errors) -> Verdict:
    others = (BASELINE, LEVY, DEPENDENT)
    failed = [one.name for one in others if after.not_below(AVERAGING_LEVYS, one)]
    return Verdict(
        f"{scaled.name}: Array-Averaging (with Levy's cap) performs second-best",
        "2401.15906, early version, Figure 4",
        not failed,
        f"at epsilon 1: {after.said((FIXED, AVERAGING_LEVYS, *others))} km/h"
        + (f"; not always above it: {', '.join(failed)}" if failed else ""),
        "the interval of the others was found narrow enough to make good for the half of epsilon that it costs",
    )


def _spread_of_means(hat: Hat, range: Range) -> float:
    """Between the exact 0.1 and 0.9 quantiles of the array means, in km/h."""
    plan = FIXED.plan(hat.counts, 1.0, range)
    low, high = np.quantile(means_of_arrays(plan, hat.samples), (0.1, 0.9)) / QUANTA_PER_KMH
    return float(high - low)


FEW_SAMPLES = (1, 2, 3)
"""Caps at which lambda need not be larger than 10: an array's mean of few samples comes near the ends of [0, U]."""


def _exact_quantiles(base: DataSet, scaled: DataSet) -> Verdict:
    """Proposition IV.2: with exact quantiles, Array-Averaging draws the least noise but for FixedQuantile.

    It is for a fixed cap and lambda large enough. What is large enough grows with the cap as outliers get rarer, so it
    is judged at small caps, and Levy's is only told.
    """
    most = base.range.width / QUANTA_PER_KMH
    found = [[_exact_noise(data, cap) for cap in FEW_SAMPLES] for data in (base, scaled)]
    at_one, at_ten = (", ".join(f"{2 * dependent:.3g}" for _, dependent in one) for one in found)
    cap = levy_cap(scaled.hats[0].counts)
    levys = _exact_noise(scaled, cap)
    return Verdict(
        f"{scaled.name}: with exact quantiles, Array-Averaging's noise is below Levy's and eps-DependentQuantile's, "
        f"at caps {listed(FEW_SAMPLES)}",
        "slides; 2401.15906, early version, Proposition IV.2 (for a fixed cap and lambda large enough)",
        all(most < 2 * min(one) for some in found for one in some),
        f"at epsilon 1, times K: {most:g} km/h against eps-DependentQuantile's {at_one} at lambda 1 and {at_ten} at "
        f"{LAMBDA}; at Levy's cap, {cap}, {2 * levys[1]:.3g} and Levy's {2 * levys[0]:.3g}",
        "outliers this near to both ends of [0, U] are rarer here: lambda has to be larger",
    )


def _exact_noise(data: DataSet, cap: int) -> tuple[float, float]:
    """How wide Levy's interval is at a cap, and the exact one of eps-DependentQuantile at epsilon 1, in km/h."""
    plan = MECHANISMS[DEPENDENT.mechanism].plan(data.hats[0].counts, pure(NANO), data.range, "best-fit", cap)
    means, rank = np.sort(means_of_arrays(plan, data.hats[0].samples)), 2  # ceil(2 / epsilon)
    levys = min(3 * concentration_radius(plan), data.range.width)
    return levys / QUANTA_PER_KMH, float(means[-rank] - means[rank - 1]) / QUANTA_PER_KMH


def _number_to_beat(after: Errors, what: str) -> Verdict:
    return Verdict(
        f"{after.rows[0].data}: at epsilon 1 every mechanism of the papers beats the baseline guess",
        NOT_STATED,
        all(after.at(one) < after.rows[0].constant_kmh for one in PUBLISHED),
        after.beside_the_constant(SERIES[what]),
        "scaled up, but not far enough for every mechanism's noise to fall below that",
    )


EXPERIMENTS = (
    Experiment("mean-itms", "errors of the mean mechanisms on recorded pings", jobs, conclude),
    *(
        Experiment(f"{what[:-1]}-scaling", about, partial(_jobs, what=what), partial(_conclude, what=what))
        for what, about in (
            ("samples", "ten times the samples of every plate, Gaussian speeds"),
            ("users", "ten times the plates, Gaussian speeds"),
        )
    ),
)
