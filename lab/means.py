"""`mean-itms`, `sample-scaling`, `user-scaling`, `variance`: errors of means and variances over epsilon.

A plan's estimate is drawn many times over the same speeds; deterministic parts are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Literal

import numpy as np

from lab.data import (
    BUSIEST,
    DataSet,
    Experiment,
    Figure,
    Finding,
    HatSamples,
    Job,
    Outcome,
    Panel,
    ResultRow,
    Setup,
    all_hats,
    choices,
    curve,
    data_sets,
    gaussian_hat,
    where,
)
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate, best_fit, wrap_around_count
from udp_stream.mechanisms.means import (
    GAMMA,
    MECHANISMS,
    ArrayAveraging,
    Grouping,
    MeanPlan,
    Projected,
    concentration_radius,
    levy_cap,
    means_of_arrays,
    projected_queries,
)
from udp_stream.mechanisms.noise import Floats, Integers, lattice_of, pure, tail_bound
from udp_stream.mechanisms.variance import VariancePlan, plan_variance, variance_query
from udp_stream.units import NANO, QUANTA_PER_KMH

EPSILONS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


def repeated_means_of(plans: Sequence[MeanPlan], samples: Sequence[Integers], draws: int, bits: Bits) -> list[Floats]:
    """That many independent estimates of each HAT's mean, in quanta within the range; samples are in quanta."""
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
    t, shift = np.array([(lattice.t, lattice.shift) for lattice in lattices], dtype=np.int64)[which].T
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


def weights_of(hats: Sequence[HatSamples]) -> Floats:
    """Each HAT's share of their samples."""
    totals = np.array([hat.counts.total for hat in hats], dtype=np.float64)
    return totals / float(totals.sum())


def mean_error(weights: Floats, estimates: Sequence[Floats], truths: Sequence[float]) -> tuple[float, float]:
    """Mean absolute error over HATs, each with many estimates, and its standard error (0 for a single draw)."""
    errors = np.abs(np.array(estimates) - np.array(truths)[:, None])
    spreads = errors.std(axis=1, ddof=min(1, errors.shape[1] - 1)) / errors.shape[1] ** 0.5
    return float(weights @ errors.mean(axis=1)), float(np.sqrt(weights**2 @ spreads**2))


@dataclass(frozen=True, slots=True)
class Series:
    """A mechanism under a grouping; of Array-Averaging, its own cap, Levy's, m^(eps), or that of least error bound."""

    mechanism: str
    grouping: Grouping = "best-fit"
    cap: Literal["own", "Levy's", "m^(eps)", "worst-case"] = "own"

    @property
    def name(self) -> str:
        wrapped = ", wrap-around" if self.grouping == "wrap-around" else ""
        return self.mechanism + wrapped + (f", {self.cap} cap" if self.cap != "own" else "")

    def plan(self, counts: SamplesPerPlate, epsilon: float, range: Range) -> MeanPlan:
        arguments = counts, pure(round(epsilon * NANO)), range, self.grouping
        averaging = ArrayAveraging()
        if self.cap == "worst-case":
            return averaging.plan(*arguments, averaging.worst_case_cap(*arguments))
        if self.cap != "own":
            cap = levy_cap(counts) if self.cap == "Levy's" else counts.worst_case_cap(1 / epsilon)
            return averaging.plan(*arguments, cap)
        return MECHANISMS[self.mechanism].plan(*arguments)


PUBLISHED = tuple(map(Series, ("baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile")))

BASELINE, AVERAGING, LEVY, FIXED, DEPENDENT = PUBLISHED
CLIPPING = PUBLISHED[1:]
WRAPPED = tuple(Series(one.mechanism, "wrap-around") for one in CLIPPING)
AT_M_EPS, AVERAGING_LEVYS = Series("array-averaging", cap="m^(eps)"), Series("array-averaging", cap="Levy's")
OPTIMAL = Series("optimal")


class MeanRow(ResultRow):
    """One point: the error over the given HATs, weighed by their pings, beside the baseline guess's over the same.
    `noise_kmh`: the expected absolute noise that counts alone can state (for projected means: at the whole of U)."""


def points(setup: Setup, data: DataSet, label: str, hats: Sequence[HatSamples], series: Iterable[Series]) -> list[Job]:
    """For each mechanism and epsilon."""
    return [partial(_point, setup, data, label, hats, one, epsilon) for one in series for epsilon in EPSILONS]


def _point(
    setup: Setup, data: DataSet, label: str, hats: Sequence[HatSamples], series: Series, epsilon: float
) -> list[MeanRow]:
    """Repetitions are shared out over the HATs: at least that many draws in all."""
    bits = buffered(setup.bits(f"{data.name}/{label}/{series.name}/{epsilon}"))
    draws = -(-setup.repetitions // len(hats))
    plans = [series.plan(hat.counts, epsilon, data.range) for hat in hats]
    found, weights = repeated_means_of(plans, [hat.samples for hat in hats], draws, bits), weights_of(hats)
    error, spread = mean_error(weights, found, [hat.mean for hat in hats])
    row = MeanRow(
        data=data.name, hats=label, series=series.name, epsilon=epsilon, error_kmh=error / QUANTA_PER_KMH,
        standard_error_kmh=spread / QUANTA_PER_KMH, constant_kmh=data.constant_error_kmh(hats),
        constant=data.constant_is, share_of_pings=data.share(hats),
        noise_kmh=float(weights @ np.array([plan.noise_bound for plan in plans])) / QUANTA_PER_KMH,
        hat_count=len(hats), plates=sum(hat.counts.plates for hat in hats),
        samples=sum(hat.counts.total for hat in hats), repetitions=draws * len(hats),
    )  # fmt: skip
    return [row]


class Errors:
    """The rows of one data set and choice of HATs, by series."""

    def __init__(self, rows: Sequence[MeanRow], data: str, hats: str) -> None:
        self.rows = where(rows, data=data, hats=hats)

    def of(self, series: Series) -> list[MeanRow]:
        return sorted(where(self.rows, series=series.name), key=lambda row: float(row.epsilon))

    def error(self, series: Series) -> Floats:
        return np.array([row.error_kmh for row in self.of(series)])

    def at(self, series: Series, epsilon: float = 1.0) -> float:
        return float(where(self.rows, series=series.name, epsilon=epsilon)[0].error_kmh)

    def not_below(self, pairs: Iterable[tuple[Series, Series]], words: str) -> list[str]:
        """For each pair whose first does not err less at some epsilons: words about both, and these epsilons."""
        found = []
        for one, other in pairs:
            rows = zip(self.of(one), self.of(other), strict=True)
            if at := listed(row.epsilon for row, above in rows if row.error_kmh >= above.error_kmh):
                found.append(words.format(one.name, other.name, at))
        return found

    def said(self, series: Iterable[Series], epsilon: float = 1.0) -> str:
        found = sorted((self.at(one, epsilon), one.name) for one in series)
        return ", ".join(f"{name} {error:.3g}" for error, name in found)

    def panel(self, title: str, series: Iterable[Series]) -> Panel:
        of = [(one.name, self.of(one)) for one in series]
        return over_epsilon(title, "mean", "km/h", of, "error_kmh", "constant_kmh")

    def beside_the_constant(self, series: Iterable[Series]) -> str:
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
    title: str, what: str, unit: str, of: Sequence[tuple[str, Sequence[ResultRow]]], y: str, guess: str
) -> Panel:
    """A line for each series of rows, with the baseline guess across."""
    curves, rows = [curve(name, some, "epsilon", y) for name, some in of], of[0][1]
    curves.append(curve(f"baseline guess ({rows[0].constant})", [rows[0], rows[-1]], "epsilon", guess, "guess"))
    log = all(value > 0 for one in curves for value in one.y)
    return Panel(title, f"epsilon per {what}", f"mean absolute error, {unit}", curves, log_y=log)


def listed(numbers: Iterable[float]) -> str:
    """'0.5, 1'."""
    return ", ".join(f"{number:g}" for number in numbers)


# `mean-itms` (arXiv 2401.15906, Figure 1; its early version, Figures 1 and 2).

SIMILAR, LITTLE = 1.15, 1.5
"""Our reading of the papers' words: "similar" errors differ by 15 %, "very little difference" is a factor 1.5."""

TAILS = (0.5, 0.1, 0.01)

SHOWN = (*PUBLISHED, AT_M_EPS, OPTIMAL)


def jobs(setup: Setup) -> list[Job]:
    """The busiest HAT under both groupings, and, of feeds, all HATs with enough plates."""
    return [
        job
        for data in data_sets(setup)
        for label, hats in choices(setup, data)
        for job in points(setup, data, label, hats, (*SHOWN, *(WRAPPED if label == BUSIEST else ())))
    ]


def conclude(setup: Setup, rows: Sequence[MeanRow]) -> Outcome:
    """A figure for each data set, and the papers' claims beside our numbers."""
    figures, findings = [], list[Finding]()
    for data in data_sets(setup):
        busiest, everywhere = Errors(rows, data.name, BUSIEST), Errors(rows, data.name, all_hats(setup))
        panels = [busiest.panel("busiest HAT", SHOWN), busiest.panel("both groupings", (*CLIPPING, *WRAPPED))]
        if everywhere.rows:
            share = everywhere.rows[0].share_of_pings
            panels.append(everywhere.panel(f"{all_hats(setup)} ({share:.0%} of pings)", SHOWN))
        size = f"busiest HAT: {data.busiest.counts.plates} plates, {data.busiest.counts.total:,} samples"
        figures.append(Figure(f"mean-itms-{data.name}", f"{data.name}; {size}", panels))
        if not data.recorded:
            findings += [_arrays(data.busiest.counts), _tail(setup, data)]
        findings += [*_on_groupings(data, busiest), *_on_caps(data, busiest)]
        findings += [_a_release_beats_the_guess(errors) for errors in (busiest, everywhere) if errors.rows]
    return Outcome({"mean-itms": rows}, figures, findings)


def _arrays(counts: SamplesPerPlate) -> Finding:
    cap = levy_cap(counts)
    full, packed = wrap_around_count(counts, cap), best_fit(counts, cap).count
    return Finding("arrays", (full, packed) == (160, 164), cap=cap, full=full, packed=packed, more=packed - full)


def _tail(setup: Setup, data: DataSet) -> Finding:
    """The slides' guarantee by Laplace tails, of Baseline's noise at epsilon 1."""
    plan = BASELINE.plan(data.busiest.counts, 1.0, data.range)
    lattice = lattice_of(plan.sensitivity, plan.cost)
    noise = np.abs(plan.noise.draw(setup.bits("tail"), np.full(setup.repetitions, lattice.t))) << lattice.shift
    beyond = {delta: float((noise > tail_bound(plan.sensitivity, plan.cost, delta)).mean()) for delta in TAILS}
    agrees = all(share <= p + 3 * math.sqrt(p * (1 - p) / noise.size) for p, share in beyond.items())
    shares = ", ".join(f"{share:.3g} at {delta:g}" for delta, share in beyond.items())
    return Finding("laplace-tail", agrees, data=data, shares=shares)


def _on_groupings(data: DataSet, errors: Errors) -> Iterator[Finding]:
    counts = data.busiest.counts
    above = errors.not_below(((one, BASELINE) for one in CLIPPING), "{0} not below Baseline at epsilon {2}")
    values = {"errors": errors.said(PUBLISHED), "gain": counts.largest * counts.plates / counts.total}
    yield Finding("clipping", not above, data=data, but=Finding.but("; ", above), **values)
    pairs = list(zip(CLIPPING, WRAPPED, strict=True))[1:]
    above = errors.not_below(pairs, "{0} not better at epsilon {2}")
    ratios = ", ".join(f"{one.name} {errors.at(wrapped) / errors.at(one):.2f}" for one, wrapped in pairs)
    claim = "best-fit-of-few" if counts.plates < 60 else "best-fit"
    yield Finding(claim, not above, data=data, users=counts.plates, ratios=ratios, but=Finding.but("; ", above))
    of_both = errors.error(WRAPPED[0]) / errors.error(AVERAGING)
    least, most = of_both.min(), of_both.max()
    arrays = wrap_around_count(counts, counts.median), best_fit(counts, counts.median).count
    agrees = 1 / SIMILAR < least <= most < SIMILAR
    yield Finding("averaging-alike", agrees, data=data, least=least, most=most, similar=SIMILAR, arrays=arrays)
    wrapped, packed = (errors.of(one)[0].noise_kmh for one in (WRAPPED[0], AVERAGING))
    yield Finding("half-the-noise", wrapped >= 1.9 * packed, data=data, factor=wrapped / packed)


def _on_caps(data: DataSet, errors: Errors) -> Iterator[Finding]:
    caps = AT_M_EPS, AVERAGING, Series("array-averaging", cap="worst-case")
    plans = {epsilon: [one.plan(data.busiest.counts, epsilon, data.range) for one in caps] for epsilon in EPSILONS}
    agrees = all(papers.error_bound <= least.error_bound * (1 + 1e-9) for papers, _, least in plans.values())
    papers, median, least = ((plan.error_bound / QUANTA_PER_KMH, plan.cap) for plan in plans[1.0])
    said = errors.said(caps[:2])
    yield Finding("worst-case-cap", agrees, data=data, papers=papers, median=median, least=least, errors=said)
    of_all = np.array([errors.error(one) for one in CLIPPING])
    ratios, at_half = of_all.max(axis=0) / of_all.min(axis=0), errors.said(CLIPPING, 0.5)
    least, most = ratios.min(), ratios.max()
    yield Finding("clipping-alike", most < LITTLE, data=data, least=least, most=most, little=LITTLE, errors=at_half)


def _a_release_beats_the_guess(errors: Errors) -> Finding:
    agrees = any(errors.at(one) < errors.rows[0].constant_kmh for one in PUBLISHED)
    return Finding("guess-mean", agrees, row=errors.rows[0], beside=errors.beside_the_constant((*PUBLISHED, OPTIMAL)))


# `sample-scaling` and `user-scaling`: ten times the samples per user, or the users (arXiv 2401.15906, Figure 2).

LAMBDA = 10

SCALED: dict[str, tuple[tuple[Series, ...], Callable[[Integers], Integers]]] = {
    "samples": ((*PUBLISHED, OPTIMAL), lambda counts: counts * LAMBDA),
    "users": ((BASELINE, AVERAGING_LEVYS, *CLIPPING, OPTIMAL), lambda counts: np.repeat(counts, LAMBDA)),
}
"""Series and counts. Under user scaling the papers give Array-Averaging Levy's cap; its own is shown too."""

FEW_SAMPLES = (1, 2, 3)
"""Caps at which lambda need not be larger than 10: an array's mean of few samples comes near the ends of [0, U]."""


class DrawnHat:
    """A HAT with drawn speeds, its errors, and Levy's cap, number of full arrays, and interval (3 tau) in km/h."""

    def __init__(self, data: DataSet, rows: Sequence[MeanRow]) -> None:
        self.data, self.hat, self.errors = data, data.hats[0], Errors(rows, data.name, "the HAT")
        levys = LEVY.plan(self.hat.counts, 1.0, data.range)
        self.cap, self.arrays = levys.cap, wrap_around_count(levys.counts, levys.cap)
        self.interval = 3 * concentration_radius(levys) / QUANTA_PER_KMH

    def exact_intervals(self, cap: int) -> tuple[float, float]:
        """How wide Levy's interval is at a cap, and the exact one of eps-DependentQuantile at epsilon 1, in km/h."""
        plan = MECHANISMS[DEPENDENT.mechanism].plan(self.hat.counts, pure(NANO), self.data.range, "best-fit", cap)
        means, rank = np.sort(means_of_arrays(plan, self.hat.samples)), 2  # ceil(2 / epsilon)
        levys = min(3 * concentration_radius(plan), self.data.range.width)
        return levys / QUANTA_PER_KMH, float(means[-rank] - means[rank - 1]) / QUANTA_PER_KMH


def _pairs(setup: Setup, what: str) -> list[tuple[DataSet, DataSet]]:
    labels = "", f", {what} x{LAMBDA}"
    return [(_drawn(setup, data, what, labels[0]), _drawn(setup, data, what, labels[1])) for data in data_sets(setup)]


def _drawn(setup: Setup, data: DataSet, what: str, label: str) -> DataSet:
    hat, rng = data.busiest, setup.rng(f"{what}/{data.name}/{label}")
    counts = SCALED[what][1](hat.counts.by_plate) if label else hat.counts.by_plate
    shape = hat.mean / QUANTA_PER_KMH, float(hat.samples.std()) / QUANTA_PER_KMH, data.range
    name, city_mean = (f"{data.name}, drawn", data.constant) if data.recorded else (data.name, None)
    return DataSet(f"{name}{label}", False, data.range, (gaussian_hat(counts, *shape, rng),), city_mean=city_mean)


def _jobs(setup: Setup, what: str) -> list[Job]:
    sets = [data for pair in _pairs(setup, what) for data in pair]
    return [job for data in sets for job in points(setup, data, "the HAT", data.hats, SCALED[what][0])]


def _conclude(setup: Setup, rows: Sequence[MeanRow], what: str) -> Outcome:
    figures, findings, series = [], list[Finding](), SCALED[what][0]
    for pair in _pairs(setup, what):
        before, after = (DrawnHat(data, rows) for data in pair)
        panels = before.errors.panel("as it is", series), after.errors.panel(f"{what} x{LAMBDA}", series)
        sizes = [f"{one.hat.counts.plates:,} plates, {one.hat.counts.total:,} samples" for one in (before, after)]
        title = f"{before.data.name}: {sizes[0]}; scaled: {sizes[1]}"
        figures.append(Figure(f"{what[:-1]}-scaling-{before.data.name}", title, panels))
        findings += (_on_samples if what == "samples" else _on_users)(before, after)
        agrees = all(after.errors.at(one) < after.errors.rows[0].constant_kmh for one in PUBLISHED)
        findings.append(Finding("guess-scaled", agrees, after=after, beside=after.errors.beside_the_constant(series)))
    return Outcome({f"{what[:-1]}-scaling": rows}, figures, findings)


def _on_samples(before: DrawnHat, after: DrawnHat) -> Iterator[Finding]:
    both, most = {"before": before, "after": after, "by": LAMBDA}, after.data.max_kmh
    yield _best("levy-best", after, LEVY, (BASELINE, AVERAGING, FIXED, DEPENDENT), twice=2 * after.interval / most)
    scales = [after.errors.of(one)[0].noise_kmh / before.errors.of(one)[0].noise_kmh for one in (BASELINE, AVERAGING)]
    yield Finding("noise-stays", np.allclose(scales, 1, rtol=1e-9, atol=0), scales=scales, **both)
    falls = before.interval / before.arrays / after.interval * after.arrays
    noise = min(before.interval, most) / min(after.interval, most)
    cut = f" (cut off at U = {most:g}: its noise falls by {noise:.2f})" if before.interval > most else ""
    agrees = math.isclose(falls, LAMBDA**0.5, rel_tol=1e-3)
    yield Finding("levy-falls", agrees, root=LAMBDA**0.5, falls=falls, cut=cut, **both)
    yield Finding("cap-grows", (after.cap, after.arrays) == (LAMBDA * before.cap, before.arrays), **both)


def _on_users(before: DrawnHat, after: DrawnHat) -> Iterator[Finding]:
    both, others = {"before": before, "after": after, "by": LAMBDA}, (BASELINE, AVERAGING_LEVYS, LEVY, DEPENDENT)
    of_arrays = means_of_arrays(FIXED.plan(after.hat.counts, 1.0, after.data.range), after.hat.samples)
    low, high = np.quantile(of_arrays, (0.1, 0.9)) / QUANTA_PER_KMH
    yield _best("fixed-quantile-best", after, FIXED, others, tenth=after.arrays / 10, spread=high - low)
    above = after.errors.not_below(((AVERAGING_LEVYS, one) for one in (BASELINE, LEVY, DEPENDENT)), "{1}")
    but, errors = Finding.but("; not always above it: ", above, ", "), after.errors.said((FIXED, *others))
    yield Finding("averaging-second", not above, errors=errors, but=but, **both)
    arrays = range(LAMBDA * before.arrays, LAMBDA * (before.arrays + 1))
    yield Finding("cap-stays", after.cap == before.cap and after.arrays in arrays, **both)
    log_ratio = math.sqrt(math.log(2 * after.arrays / GAMMA) / math.log(2 * before.arrays / GAMMA))
    agrees = math.isclose(after.interval / before.interval, log_ratio, rel_tol=1e-3) and log_ratio > 1
    yield Finding("levy-interval-grows", agrees, **both)
    yield _exact_quantiles(before, after)


def _best(claim: str, after: DrawnHat, best: Series, others: Sequence[Series], **values: float) -> Finding:
    above = after.errors.not_below(((best, one) for one in others), "{1} at epsilon {2}")
    but, errors = Finding.but("; no worse than it: ", above), after.errors.said((best, *others))
    return Finding(claim, not above, after=after, errors=errors, but=but, **values)


def _exact_quantiles(before: DrawnHat, after: DrawnHat) -> Finding:
    """Proposition IV.2: with exact quantiles, Array-Averaging draws the least noise but for FixedQuantile.

    It holds for a fixed cap and lambda large enough, which grows with the cap: so it is judged at small caps.
    """
    few = [[one.exact_intervals(cap) for cap in FEW_SAMPLES] for one in (before, after)]
    agrees = all(before.data.max_kmh < 2 * width for some in few for widths in some for width in widths)
    at_one, at_ten = (", ".join(f"{2 * exact:.3g}" for _, exact in some) for some in few)
    levys, exact = (2 * width for width in after.exact_intervals(levy_cap(after.hat.counts)))
    values = {"at_one": at_one, "at_ten": at_ten, "levys": levys, "exact": exact, "by": LAMBDA}
    return Finding("exact-quantiles", agrees, after=after, caps=listed(FEW_SAMPLES), **values)


# `variance`: its errors, and the slides' theorems tried against brute force (arXiv 2405.06261).

RULES = ("all samples", "best cap")  # the slides' canonical Laplace mechanism; the cap of least worst-case error

SAMPLES_TRIED = 24
"""Brute force goes over all numbers of samples up to this, kept and dropped, at 0 or U each."""


class VarianceRow(ResultRow):
    """One point: the error of the variance over the given HATs, weighed by pings, beside the baseline guess's."""


def repeated_variances(plan: VariancePlan, samples: Integers, draws: int, bits: Bits) -> Floats:
    """That many independent estimates of the variance, in quanta^2."""
    query = variance_query(plan, samples)
    lattice = lattice_of(query.sensitivity, plan.cost)
    base = lattice.project(query.statistic)
    noise = plan.noise.draw(bits, np.full(draws, lattice.t)).tolist()
    return np.array([plan.value((base + one) << lattice.shift) for one in noise])


def variance_jobs(setup: Setup) -> list[Job]:
    """Each rule and epsilon, on the busiest HAT and, of feeds, on all HATs with enough plates."""
    cases = ((data, *choice) for data in data_sets(setup) for choice in choices(setup, data))
    each = product(cases, RULES, EPSILONS)
    return [partial(_variance_point, setup, *case, rule, epsilon) for case, rule, epsilon in each]


def _variance_plan(rule: str, counts: SamplesPerPlate, epsilon: float, range: Range) -> VariancePlan:
    asked = counts, pure(round(epsilon * NANO)), range
    return plan_variance(*asked) if rule == "best cap" else plan_variance(*asked, counts.largest)


def _variance_point(
    setup: Setup, data: DataSet, label: str, hats: Sequence[HatSamples], rule: str, epsilon: float
) -> list[VarianceRow]:
    bits = buffered(setup.bits(f"variance/{data.name}/{label}/{rule}/{epsilon}"))
    draws, weights, unit = -(-setup.repetitions // len(hats)), weights_of(hats), QUANTA_PER_KMH**2
    plans, truths = (
        [_variance_plan(rule, hat.counts, epsilon, data.range) for hat in hats],
        [hat.samples.var() for hat in hats],
    )
    found = [repeated_variances(plan, hat.samples, draws, bits) for plan, hat in zip(plans, hats, strict=True)]
    error, spread = mean_error(weights, found, truths)
    constant = data.range.width**2 / 8  # the middle of [0, U^2/4]: nothing is known
    if data.recorded:
        constant = float(weights_of(data.hats) @ [float(hat.samples.var()) for hat in data.hats])
    row = VarianceRow(
        data=data.name, hats=label, rule=rule, epsilon=epsilon, error_kmh2=error / unit,
        standard_error_kmh2=spread / unit,
        constant_kmh2=float(weights @ np.abs(constant - np.array(truths))) / unit,
        constant="city-wide mean of HATs' variances" if data.recorded else "U^2/8", share_of_pings=data.share(hats),
        noise_kmh2=float(weights @ [plan.noise_bound for plan in plans]) / unit,
        bias_bound_kmh2=float(weights @ [plan.bias_bound for plan in plans]) / unit,
        hat_count=len(hats), repetitions=draws * len(hats),
    )  # fmt: skip
    return [row]


def variance_conclude(setup: Setup, rows: Sequence[VarianceRow]) -> Outcome:
    """A figure for each data set; the theorems beside brute force."""
    figures, findings = [], [*theorem_findings()]
    for data in data_sets(setup):
        panels = []
        for label, _ in choices(setup, data):
            here = where(rows, data=data.name, hats=label)
            of = [(rule, where(here, rule=rule)) for rule in RULES]
            title = f"{label} ({here[0].share_of_pings:.0%} of pings)"
            panels.append(over_epsilon(title, "variance", "(km/h)\u00b2", of, "error_kmh2", "constant_kmh2"))
            findings += _on_variances(data, label, here)
        figures.append(Figure(f"variance-{data.name}", f"{data.name}: variance of speeds", panels))
    return Outcome({"variance": rows}, figures, findings)


def _on_variances(data: DataSet, label: str, rows: Sequence[VarianceRow]) -> Iterator[Finding]:
    both = list(zip(*(where(rows, rule=rule) for rule in RULES), strict=True))
    worse = any(
        capped.error_kmh2 - whole.error_kmh2 > 3 * math.hypot(whole.standard_error_kmh2, capped.standard_error_kmh2)
        for whole, capped in both
    )
    at_one = whole, capped = where(rows, epsilon=1.0)
    bounds, best = [row.noise_kmh2 + row.bias_bound_kmh2 for row in at_one], min(row.error_kmh2 for row in at_one)
    yield Finding("variance-cap", not worse, data=data, label=label, whole=whole, capped=capped, bounds=bounds)
    yield Finding("guess-variance", best < rows[0].constant_kmh2, data=data, label=label, best=best, row=rows[0])


def spread_of(ones: int, samples: int) -> Fraction:
    """The variance, in units of U^2, of samples of which `ones` are at U and the others at 0."""
    share = Fraction(ones, samples)
    return share * (1 - share)


def largest_bias(total: int, kept: int) -> Fraction:
    """Brute force over all data at 0 or U: the most by which the kept samples' variance is off that of all."""
    dropped = total - kept
    return max(abs(spread_of(a, kept) - spread_of(a + b, total)) for a in range(kept + 1) for b in range(dropped + 1))


def largest_move(kept: int, given: int) -> Fraction:
    """Brute force over all data at 0 or U: how far a plate with `given` of the kept samples can move their variance."""
    reached = [[spread_of(y + x, kept) for x in range(given + 1)] for y in range(kept - given + 1)]
    return max(max(row) - min(row) for row in reached)


def printed_half(samples: int) -> Fraction:
    """The slides' largest variance, with half of the samples at U or as near to that as can be, in units of U^2."""
    return Fraction(1, 4) if samples % 2 == 0 else Fraction(1, 4) * (1 - Fraction(1, samples**2))


def printed_move(kept: int, given: int) -> Fraction:
    """The slides' sensitivity for the plate that gives most, in units of U^2."""
    return Fraction(given * (kept - given), kept**2) if kept > 2 * given else printed_half(kept)


def printed_bias(total: int, kept: int, exchanged: bool = False) -> Fraction:
    """The slides' worst-case clipping error, as printed or with its two cases exchanged, in units of U^2."""
    if kept == total:
        return Fraction(0)
    if (total > 2 * kept) is not exchanged:
        return Fraction(kept * (total - kept), total**2)
    return printed_half(total)


def theorem_findings() -> Iterator[Finding]:
    """The printed theorems beside brute force."""
    cases = [(total, part) for total in range(1, SAMPLES_TRIED + 1) for part in range(1, total + 1)]
    moves = sum(printed_move(*case) == largest_move(*case) for case in cases)
    yield Finding("variance-sensitivity", moves == len(cases), equal=moves, cases=len(cases))
    biases = {case: largest_bias(*case) for case in cases}
    printed, swapped = (
        sum(printed_bias(*case, exchanged=which) == bias for case, bias in biases.items()) for which in (False, True)
    )
    yield Finding("variance-bias", printed == len(cases), equal=printed, cases=len(cases), exchanged=swapped)
    users = 10
    item = largest_move(users, 1)
    yield Finding("variance-item-level", item == Fraction(users - 1, users), users=users, item=item)


EXPERIMENTS = (
    Experiment("mean-itms", "errors of the mean mechanisms on recorded pings", jobs, conclude),
    *(
        Experiment(f"{what[:-1]}-scaling", about, partial(_jobs, what=what), partial(_conclude, what=what))
        for what, about in (
            ("samples", "ten times the samples of every plate, Gaussian speeds"),
            ("users", "ten times the plates, Gaussian speeds"),
        )
    ),
    Experiment("variance", "errors of the variance, and the theorems on it", variance_jobs, variance_conclude),
)
