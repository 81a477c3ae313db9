"""`mean-itms`, `sample-scaling`, `user-scaling`, `variance`: errors of means and variances over
epsilon.

A plan's estimate is drawn many times over the same speeds; deterministic parts are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from lab.data import (
    BUSIEST,
    DataSet,
    Hats,
    Setup,
    cases,
    data_sets,
    gaussian_hat,
    weights_of,
)
from lab.results import (
    Figure,
    Finding,
    Findings,
    Found,
    Panel,
    Points,
    Results,
    Row,
    Rows,
    Tables,
    about,
    but,
)
from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate, best_fit, wrap_around_count
from udp_stream.mechanisms.means import (
    GAMMA,
    MECHANISMS,
    ArrayAveraging,
    Grouping,
    MeanPlan,
    ProjectedMean,
    concentration_radius,
    levy_cap,
    means_of_arrays,
    projected_queries,
)
from udp_stream.mechanisms.noise import Cost, DiscreteLaplace, lattice_of, noise_of, pure
from udp_stream.mechanisms.variance import VariancePlan, plan_variance, variance_query

EPSILONS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


def tail_bound(sensitivity: int, cost: Cost, delta: float) -> float:
    """How far the noisy value of a statistic is off it at most, but with probability `delta`: in
    the statistic's unit.

    Delta ln(1/delta) / epsilon as for Laplace noise (arXiv 2401.15906, early version, Proposition
    II.1), and a step of the lattice: half for rounding to it, half because discrete noise of scale
    t, with q = exp(-1/t), has the tails P(|X| >= k) = 2 q^k / (1 + q) <= exp((1/2 - k) / t).

    Raises ValueError for a delta that is no probability, and for a cost in rho, whose noise is not
    Laplace's.
    """
    if not 0 < delta < 1 or not isinstance(noise_of(cost), DiscreteLaplace):
        raise ValueError(f"expected 0 < delta < 1 and an epsilon, got {delta} and {cost}")
    lattice = lattice_of(sensitivity, cost)
    return lattice.scale * math.log(1 / delta) + (1 << lattice.shift)


def repeated_means_of(
    plans: Sequence[MeanPlan], samples: Sequence[Integers], draws: int, bits: Bits
) -> list[Floats]:
    """Estimates of each HAT's mean, `draws` and independent, in quanta within the range; samples
    are in quanta."""
    queries = [
        _on_lattice(plan, speeds, draws, bits) for plan, speeds in zip(plans, samples, strict=True)
    ]
    steps, t, shift = (np.concatenate(columns) for columns in zip(*queries, strict=True))
    noisy = (
        (steps + plans[0].noise.draw(bits, t) << shift)
        .astype(np.float64)
        .reshape(len(plans), draws)
    )
    return [
        np.clip(plan.range.low + row / plan.divisor, float(plan.range.low), float(plan.range.high))
        for plan, row in zip(plans, noisy, strict=True)
    ]


def _on_lattice(
    plan: MeanPlan, samples: Integers, draws: int, bits: Bits
) -> tuple[Integers, Integers, Integers]:
    """Columns of the draws: each draw's statistic in steps of its lattice, the noise's scale t
    there, and the steps' shift."""
    mechanism = MECHANISMS[plan.mechanism]
    if isinstance(mechanism, ProjectedMean):
        means = means_of_arrays(plan, samples)
        sums, sensitivities = projected_queries(
            plan, means, *mechanism.intervals(plan, means, bits, draws)
        )
    else:
        query = mechanism.query(plan, samples, bits)
        sums = np.full(draws, query.statistic)
        sensitivities = np.full(draws, query.sensitivity)
    distinct, which = np.unique(sensitivities, return_inverse=True)
    lattices = [lattice_of(int(sensitivity), plan.noise_cost) for sensitivity in distinct]
    t, shift = np.array([(lattice.t, lattice.shift) for lattice in lattices], dtype=np.int64)[
        which
    ].T
    half = np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
    return sums + half >> shift, t, shift


def repeated_variances(plan: VariancePlan, samples: Integers, draws: int, bits: Bits) -> Floats:
    """Estimates of the variance, `draws` and independent, in quanta^2."""
    query = variance_query(plan, samples)
    lattice = lattice_of(query.sensitivity, plan.cost)
    base = lattice.project(query.statistic)
    noise = plan.noise.draw(bits, np.full(draws, lattice.t)).tolist()
    return np.array([plan.value((base + step) << lattice.shift) for step in noise])


def buffered(bits: Bits, block: int = 1 << 16) -> Bits:
    """The same source read in large pieces: many small draws are quicker."""
    held = b""
    at = 0

    def take(count: int) -> bytes:
        nonlocal held, at
        if at + count > len(held):
            held = held[at:] + bits(max(block, count))
            at = 0
        at += count
        return held[at - count : at]

    return take


def mean_error(
    weights: Floats, estimates: Sequence[Floats], truths: Floats | Sequence[float]
) -> tuple[float, float]:
    """Mean absolute error over HATs, each with many estimates, and its standard error (0 for a
    single draw)."""
    errors = np.abs(np.array(estimates) - np.array(truths)[:, None])
    spreads = errors.std(axis=1, ddof=min(1, errors.shape[1] - 1)) / errors.shape[1] ** 0.5
    return float(weights @ errors.mean(axis=1)), float(np.sqrt(weights**2 @ spreads**2))


class Series(NamedTuple):
    """A mechanism under a grouping; of Array-Averaging, its own cap, Levy's, m^(eps), or that of
    least error bound."""

    mechanism: str
    grouping: Grouping = "best-fit"
    cap: Literal["own", "Levy's", "m^(eps)", "worst-case"] = "own"

    @property
    def name(self) -> str:
        wrapped = ", wrap-around" if self.grouping == "wrap-around" else ""
        return self.mechanism + wrapped + (f", {self.cap} cap" if self.cap != "own" else "")

    def plan(self, counts: SamplesPerPlate, epsilon: float, range: Range) -> MeanPlan:
        cost = pure(round(epsilon * NANO))
        cap = None
        if self.cap == "Levy's":
            cap = levy_cap(counts)
        elif self.cap == "m^(eps)":
            cap = counts.worst_case_cap(1 / epsilon)
        elif self.cap == "worst-case":
            cap = ArrayAveraging().worst_case_cap(counts, cost, range, self.grouping)
        return MECHANISMS[self.mechanism].plan(counts, cost, range, self.grouping, cap)


PUBLISHED = tuple(
    map(Series, ("baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile"))
)
BASELINE, AVERAGING, LEVY, FIXED, DEPENDENT = PUBLISHED
CLIPPING = PUBLISHED[1:]
WRAPPED = tuple(Series(series.mechanism, "wrap-around") for series in CLIPPING)
AT_M_EPS = Series("array-averaging", cap="m^(eps)")
AVERAGING_LEVYS = Series("array-averaging", cap="Levy's")
OPTIMAL = Series("optimal")


class Rule(NamedTuple):
    """The slides' canonical Laplace mechanism ("all samples"), or the cap of least worst-case error
    ("best cap")."""

    name: Literal["all samples", "best cap"]

    def plan(self, counts: SamplesPerPlate, epsilon: float, range: Range) -> VariancePlan:
        cap = counts.largest if self.name == "all samples" else None
        return plan_variance(counts, pure(round(epsilon * NANO)), range, cap)


def errors_of(
    setup: Setup, data: DataSet, label: str, hats: Hats, series: Series | Rule, epsilon: float
) -> Found:
    """The error of a mean, or of a variance, over these HATs, weighed by their pings, beside the
    baseline guess's over the same. `noise`: the expected absolute noise that counts alone can state
    (for projected means: at the whole of U). Repetitions are shared out over the HATs: at least
    that many draws in all."""
    plans: list[Any] = [series.plan(hat.counts, epsilon, data.range) for hat in hats]
    samples = [hat.samples for hat in hats]
    draws = -(-setup.repetitions // len(hats))
    bits = buffered(
        setup.bits(
            "variance/" * isinstance(series, Rule) + f"{data.name}/{label}/{series.name}/{epsilon}"
        )
    )
    weights = weights_of(hats)
    named = data.constant_is
    bounds = {}
    sizes = {}
    if isinstance(series, Series):
        what = "series"
        unit = "kmh"
        scale = QUANTA_PER_KMH
        found = repeated_means_of(plans, samples, draws, bits)
        truths = np.array([hat.mean for hat in hats])
        guess = data.constant
        sizes = {
            "plates": sum(hat.counts.plates for hat in hats),
            "samples": sum(hat.counts.total for hat in hats),
        }
    else:
        what = "rule"
        unit = "kmh2"
        scale = QUANTA_PER_KMH**2
        found = [
            repeated_variances(plan, some, draws, bits)
            for plan, some in zip(plans, samples, strict=True)
        ]
        truths = np.array([some.var() for some in samples])
        bounds = {"bias_bound_kmh2": float(weights @ [plan.bias_bound for plan in plans]) / scale}
        guess = data.range.width**2 / 8
        named = "U^2/8"  # the middle of [0, U^2/4]: nothing is known
        if data.recorded:
            guess = float(weights_of(data.hats) @ [float(hat.samples.var()) for hat in data.hats])
            named = "city-wide mean of HATs' variances"
    error, spread = mean_error(weights, found, truths)
    errors = {
        f"error_{unit}": error / scale,
        f"standard_error_{unit}": spread / scale,
        f"constant_{unit}": float(weights @ np.abs(guess - truths)) / scale,
        "constant": named,
        "share_of_pings": data.share(hats),
        f"noise_{unit}": float(weights @ [plan.noise_bound for plan in plans]) / scale,
    }
    of = {"data": data.name, "hats": label, what: series.name, "epsilon": epsilon}
    counts = {"hat_count": len(hats), **sizes, "repetitions": draws * len(hats)}
    yield Row(**of, **errors, **bounds, **counts)


class Errors:
    """The rows of a data set and choice of HATs, by series."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.by_series = rows.by("series")

    def of(self, series: Series, column: str = "error_kmh") -> Floats:
        """A column over epsilon."""
        return self.by_series[series.name].column(column)

    def at(self, series: Series, epsilon: float = 1.0) -> float:
        return float(self.of(series)[EPSILONS.index(epsilon)])

    def below(
        self,
        claim: str,
        pairs: Iterable[tuple[Series, Series]],
        words: str,
        lead: str = "; ",
        /,
        **values: Any,
    ) -> Finding:
        """Whether the first of each pair errs less at every epsilon; else words about both, and
        epsilons."""
        above = []
        for series, other in pairs:
            at = np.array(EPSILONS)[self.of(series) >= self.of(other)].tolist()
            if at:
                above.append(words.format(series.name, other.name, listed(at)))
        return Finding(
            claim, not above, but=but(lead, above, "; " if "{2}" in words else ", "), **values
        )

    def said(self, series: Iterable[Series], epsilon: float = 1.0) -> str:
        found = sorted((self.at(each, epsilon), each.name) for each in series)
        return ", ".join(f"{name} {error:.3g}" for error, name in found)

    def panel(self, title: str, series: Iterable[Series]) -> Panel:
        of = {each.name: self.by_series[each.name] for each in series}
        return over_epsilon(title, "mean", "km/h", of, "kmh")

    def beside_the_constant(self, series: Iterable[Series]) -> str:
        first = self.rows[0]
        better = list[str]()
        never = list[str]()
        for each in series:
            won = self.of(each) < first.constant_kmh
            since = next((epsilon for i, epsilon in enumerate(EPSILONS) if won[i:].all()), None)
            if since is None:
                never.append(each.name)
            else:
                better.append(f"{each.name} from {since:g}")
        beyond = but(f"; not up to {EPSILONS[-1]:g}: ", never, ", ")
        return (
            f"the baseline guess ({first.constant}) errs by {first.constant_kmh:.2f} km/h; "
            f"share of pings served {first.share_of_pings:.0%}; "
            f"better than it, by epsilon: {', '.join(better) or 'none'}{beyond}"
        )


def over_epsilon(title: str, what: str, unit: str, of: Mapping[str, Rows], suffix: str) -> Panel:
    """A line for each series of rows, with the baseline guess across."""
    curves = [rows.curve(name, "epsilon", f"error_{suffix}") for name, rows in of.items()]
    first, *_, last = next(iter(of.values()))
    curves.append(
        Rows([first, last]).curve(
            f"baseline guess ({first.constant})", "epsilon", f"constant_{suffix}"
        )
    )
    log: Literal["", "y"] = "y" if all(min(curve.y) > 0 for curve in curves) else ""
    return Panel(title, f"epsilon per {what}", f"mean absolute error, {unit}", curves, log)


def share_of(rows: Rows) -> str:
    """A panel's title: HATs of the rows, and how much of the pings they have."""
    return f"{rows[0].hats} ({rows[0].share_of_pings:.0%} of pings)"


def listed(numbers: Iterable[float]) -> str:
    """Numbers as a list in words: '0.5, 1'."""
    return ", ".join(f"{number:g}" for number in numbers)


# `mean-itms` (arXiv 2401.15906, Figure 1; its early version, Figures 1 and 2).

SIMILAR = 1.15
LITTLE = 1.5
"""Factors by which we read the papers' words: "similar" errors differ by 15 %, "very little
difference" is a factor 1.5."""

TAILS = (0.5, 0.1, 0.01)

SHOWN = (*PUBLISHED, AT_M_EPS, OPTIMAL)


def itms_points(setup: Setup) -> Points:
    """The busiest HAT under both groupings, and, of feeds, all HATs with enough plates."""
    for case in cases(setup):
        series = (*SHOWN, *WRAPPED) if case[1] == BUSIEST else SHOWN
        yield from ((*case, *point) for point in product(series, EPSILONS))


def itms_conclude(setup: Setup, tables: Tables) -> Results:
    """A figure for each data set, and the papers' claims beside our numbers."""
    for data in data_sets(setup):
        busiest, *others = map(Errors, tables[""].where(data=data.name).by("hats").values())
        panels = [
            busiest.panel(BUSIEST, SHOWN),
            busiest.panel("both groupings", (*CLIPPING, *WRAPPED)),
        ]
        panels += [errors.panel(share_of(errors.rows), SHOWN) for errors in others]
        counts = data.busiest.counts
        size = f"busiest HAT: {counts.plates} plates, {counts.total:,} samples"
        yield Figure(f"mean-itms-{data.name}", f"{data.name}; {size}", panels)
        if not data.recorded:
            cap = levy_cap(counts)
            full = wrap_around_count(counts, cap)
            packed = best_fit(counts, cap).count
            agrees = (full, packed) == (160, 164)
            yield Finding("arrays", agrees, cap=cap, full=full, packed=packed, more=packed - full)
            yield from about([_tail(setup, data)], data=data)
        yield from about(_on_busiest(data, busiest), data=data)
        for errors in (busiest, *others):
            row = errors.rows[0]
            agrees = any(errors.at(series) < row.constant_kmh for series in PUBLISHED)
            yield Finding(
                "guess-mean",
                agrees,
                row=row,
                beside=errors.beside_the_constant((*PUBLISHED, OPTIMAL)),
            )


def _tail(setup: Setup, data: DataSet) -> Finding:
    """The slides' guarantee by Laplace tails, of Baseline's noise at epsilon 1."""
    plan = BASELINE.plan(data.busiest.counts, 1.0, data.range)
    lattice = lattice_of(plan.sensitivity, plan.cost)
    noise = (
        np.abs(plan.noise.draw(setup.bits("tail"), np.full(setup.repetitions, lattice.t)))
        << lattice.shift
    )
    beyond = {
        delta: (noise > tail_bound(plan.sensitivity, plan.cost, delta)).mean() for delta in TAILS
    }
    agrees = all(
        share <= p + 3 * math.sqrt(p * (1 - p) / noise.size) for p, share in beyond.items()
    )
    return Finding(
        "laplace-tail",
        agrees,
        shares=", ".join(f"{share:.3g} at {p:g}" for p, share in beyond.items()),
    )


def _on_busiest(data: DataSet, errors: Errors) -> Findings:
    counts = data.busiest.counts
    said = {"errors": errors.said(PUBLISHED), "gain": counts.largest * counts.plates / counts.total}
    yield errors.below(
        "clipping", product(CLIPPING, [BASELINE]), "{0} not below Baseline at epsilon {2}", **said
    )
    pairs = list(zip(CLIPPING, WRAPPED, strict=True))[1:]
    ratios = ", ".join(
        f"{one.name} {errors.at(wrapped) / errors.at(one):.2f}" for one, wrapped in pairs
    )
    claim = "best-fit-of-few" if counts.plates < 60 else "best-fit"
    yield errors.below(
        claim, pairs, "{0} not better at epsilon {2}", users=counts.plates, ratios=ratios
    )
    ratio = errors.of(WRAPPED[0]) / errors.of(AVERAGING)
    least = ratio.min()
    most = ratio.max()
    arrays = wrap_around_count(counts, counts.median), best_fit(counts, counts.median).count
    agrees = 1 / SIMILAR < least <= most < SIMILAR
    yield Finding("averaging-alike", agrees, least=least, most=most, similar=SIMILAR, arrays=arrays)
    factor = errors.of(WRAPPED[0], "noise_kmh")[0] / errors.of(AVERAGING, "noise_kmh")[0]
    yield Finding("half-the-noise", factor >= 1.9, factor=factor)
    caps = {
        "papers": AT_M_EPS,
        "median": AVERAGING,
        "least": Series("array-averaging", cap="worst-case"),
    }
    plans = [
        {of: series.plan(counts, epsilon, data.range) for of, series in caps.items()}
        for epsilon in EPSILONS
    ]
    agrees = all(
        each["papers"].error_bound <= each["least"].error_bound * (1 + 1e-9) for each in plans
    )
    bounds = {
        of: (plan.error_bound / QUANTA_PER_KMH, plan.cap)
        for of, plan in plans[EPSILONS.index(1.0)].items()
    }
    yield Finding("worst-case-cap", agrees, **bounds, errors=errors.said((AT_M_EPS, AVERAGING)))
    of_all = np.array([errors.of(series) for series in CLIPPING])
    ratio = of_all.max(axis=0) / of_all.min(axis=0)
    at_half = errors.said(CLIPPING, 0.5)
    agrees = ratio.max() < LITTLE
    yield Finding(
        "clipping-alike", agrees, least=ratio.min(), most=ratio.max(), little=LITTLE, errors=at_half
    )


# `sample-scaling` and `user-scaling`: ten times the samples per user, or the users (arXiv
# 2401.15906, Figure 2).

LAMBDA = 10

SCALED: dict[str, tuple[Sequence[Series], Callable[[Integers], Integers]]] = {
    "samples": ((*PUBLISHED, OPTIMAL), lambda counts: counts * LAMBDA),
    "users": (
        (BASELINE, AVERAGING_LEVYS, *CLIPPING, OPTIMAL),
        lambda counts: np.repeat(counts, LAMBDA),
    ),
}
"""Series and counts of each scaling. Under user scaling the papers give Array-Averaging Levy's cap;
its own is shown too."""

FEW_SAMPLES = (1, 2, 3)
"""Caps at which lambda need not be larger than 10: an array's mean of few samples comes near the
ends of [0, U]."""


class DrawnHat:
    """A HAT with drawn speeds, its errors, and Levy's cap, number of full arrays, and interval (3
    tau) in km/h."""

    def __init__(self, data: DataSet, rows: Rows) -> None:
        self.data = data
        self.hat = data.hats[0]
        self.errors = Errors(rows.where(data=data.name))
        levys = LEVY.plan(self.hat.counts, 1.0, data.range)
        self.cap = levys.cap
        self.arrays = wrap_around_count(levys.counts, levys.cap)
        self.interval = 3 * concentration_radius(levys) / QUANTA_PER_KMH

    def exact_intervals(self, cap: int) -> tuple[float, float]:
        """How wide Levy's interval is at a cap, and the exact interval of eps-DependentQuantile at
        epsilon 1, in km/h."""
        plan = MECHANISMS[DEPENDENT.mechanism].plan(
            self.hat.counts, pure(NANO), self.data.range, "best-fit", cap
        )
        means = np.sort(means_of_arrays(plan, self.hat.samples))
        levys = min(3 * concentration_radius(plan), self.data.range.width)
        return levys / QUANTA_PER_KMH, float(
            means[-2] - means[1]
        ) / QUANTA_PER_KMH  # rank 2: ceil(2 / epsilon)


def _pairs(setup: Setup, what: str) -> Iterator[list[DataSet]]:
    """Each data set as it is drawn, and scaled."""
    for data in data_sets(setup):
        counts = data.busiest.counts.by_plate
        mean_kmh = data.busiest.mean / QUANTA_PER_KMH
        sd_kmh = data.busiest.samples.std() / QUANTA_PER_KMH
        name, city_mean = (
            (f"{data.name}, drawn", data.constant) if data.recorded else (data.name, None)
        )
        pair = []
        for label, some in (("", counts), (f", {what} x{LAMBDA}", SCALED[what][1](counts))):
            rng = setup.rng(f"{what}/{data.name}/{label}")
            hat = gaussian_hat(some, mean_kmh, sd_kmh, data.range, rng)
            pair.append(DataSet(f"{name}{label}", False, data.range, (hat,), city_mean=city_mean))
        yield pair


def scaling_points(what: str, setup: Setup) -> Points:
    """Each data set as it is drawn, and scaled."""
    for pair in _pairs(setup, what):
        for data, series, epsilon in product(pair, SCALED[what][0], EPSILONS):
            yield data, "the HAT", data.hats, series, epsilon


def scaling_conclude(what: str, setup: Setup, tables: Tables) -> Results:
    """A figure for each data set, and the claims on it before and after."""
    series = SCALED[what][0]
    for pair in _pairs(setup, what):
        before, after = (DrawnHat(data, tables[""]) for data in pair)
        panels = (
            before.errors.panel("as it is", series),
            after.errors.panel(f"{what} x{LAMBDA}", series),
        )
        sizes = [
            f"{one.hat.counts.plates:,} plates, {one.hat.counts.total:,} samples"
            for one in (before, after)
        ]
        title = f"{before.data.name}: {sizes[0]}; scaled: {sizes[1]}"
        yield Figure(f"{what[:-1]}-scaling-{before.data.name}", title, panels)
        findings = (_on_samples if what == "samples" else _on_users)(before, after)
        yield from about(findings, before=before, after=after, by=LAMBDA)
        agrees = all(
            after.errors.at(series) < after.errors.rows[0].constant_kmh for series in PUBLISHED
        )
        yield Finding(
            "guess-scaled", agrees, after=after, beside=after.errors.beside_the_constant(series)
        )


def _on_samples(before: DrawnHat, after: DrawnHat) -> Findings:
    most = after.data.max_kmh
    yield best_of(
        "levy-best",
        after,
        LEVY,
        (BASELINE, AVERAGING, FIXED, DEPENDENT),
        twice=2 * after.interval / most,
    )
    both = (BASELINE, AVERAGING)
    scales = [
        (after.errors.of(one, "noise_kmh") / before.errors.of(one, "noise_kmh"))[0] for one in both
    ]
    yield Finding("noise-stays", np.allclose(scales, 1, rtol=1e-9, atol=0), scales=scales)
    falls = before.interval / before.arrays / after.interval * after.arrays
    noise = min(before.interval, most) / min(after.interval, most)
    cut = (
        f" (cut off at U = {most:g}: its noise falls by {noise:.2f})"
        if before.interval > most
        else ""
    )
    agrees = math.isclose(falls, LAMBDA**0.5, rel_tol=1e-3)
    yield Finding("levy-falls", agrees, root=LAMBDA**0.5, falls=falls, cut=cut)
    yield Finding("cap-grows", (after.cap, after.arrays) == (LAMBDA * before.cap, before.arrays))


def _on_users(before: DrawnHat, after: DrawnHat) -> Findings:
    others = BASELINE, AVERAGING_LEVYS, LEVY, DEPENDENT
    of_arrays = means_of_arrays(
        FIXED.plan(after.hat.counts, 1.0, after.data.range), after.hat.samples
    )
    low, high = np.quantile(of_arrays, (0.1, 0.9)) / QUANTA_PER_KMH
    yield best_of(
        "fixed-quantile-best", after, FIXED, others, tenth=after.arrays / 10, spread=high - low
    )
    second = product([AVERAGING_LEVYS], (BASELINE, LEVY, DEPENDENT))
    errors = after.errors.said((FIXED, *others))
    yield after.errors.below(
        "averaging-second", second, "{1}", "; not always above it: ", errors=errors
    )
    arrays = range(LAMBDA * before.arrays, LAMBDA * (before.arrays + 1))
    yield Finding("cap-stays", after.cap == before.cap and after.arrays in arrays)
    log_ratio = math.sqrt(math.log(2 * after.arrays / GAMMA) / math.log(2 * before.arrays / GAMMA))
    agrees = (
        math.isclose(after.interval / before.interval, log_ratio, rel_tol=1e-3) and log_ratio > 1
    )
    yield Finding("levy-interval-grows", agrees)
    # Proposition IV.2: with exact quantiles, Array-Averaging draws the least noise but for
    # FixedQuantile. It holds for a fixed cap and lambda large enough, which grows with the cap: so
    # it is judged at small caps.
    few = np.array(
        [[drawn.exact_intervals(cap) for cap in FEW_SAMPLES] for drawn in (before, after)]
    )
    at_one, at_ten = (", ".join(f"{2 * exact:.3g}" for exact in some) for some in few[:, :, 1])
    levys, exact = (2 * width for width in after.exact_intervals(levy_cap(after.hat.counts)))
    values = {"at_one": at_one, "at_ten": at_ten, "caps": listed(FEW_SAMPLES)}
    yield Finding(
        "exact-quantiles", (before.data.max_kmh < 2 * few).all(), levys=levys, exact=exact, **values
    )


def best_of(
    claim: str, after: DrawnHat, best: Series, others: Sequence[Series], **values: float
) -> Finding:
    """Whether a series errs less than all others at every epsilon."""
    errors = after.errors.said((best, *others))
    return after.errors.below(
        claim,
        product([best], others),
        "{1} at epsilon {2}",
        "; no worse than it: ",
        after=after,
        errors=errors,
        **values,
    )


# `variance`: its errors, and the slides' theorems tried against brute force (arXiv 2405.06261).

RULES = (Rule("all samples"), Rule("best cap"))

SAMPLES_TRIED = 24
"""Most samples of brute force, kept and dropped, at 0 or U each."""


def variance_points(setup: Setup) -> Points:
    """Each rule and epsilon, on the busiest HAT and, of feeds, on all HATs with enough plates."""
    return ((*case, *point) for case in cases(setup) for point in product(RULES, EPSILONS))


def variance_conclude(setup: Setup, tables: Tables) -> Results:
    """A figure for each data set; the theorems beside brute force."""
    yield from theorem_findings()
    for data in data_sets(setup):
        panels = []
        for label, rows in tables[""].where(data=data.name).by("hats").items():
            of = rows.by("rule")
            panels.append(over_epsilon(share_of(rows), "variance", "(km/h)\u00b2", of, "kmh2"))
            worse = any(
                capped.error_kmh2 - whole.error_kmh2
                > 3 * math.hypot(whole.standard_error_kmh2, capped.standard_error_kmh2)
                for whole, capped in zip(*of.values(), strict=True)
            )
            at_one = whole, capped = rows.where(epsilon=1.0)
            bounds = [row.noise_kmh2 + row.bias_bound_kmh2 for row in at_one]
            best = min(row.error_kmh2 for row in at_one)
            named = {"data": data, "label": label, "whole": whole, "capped": capped, "row": whole}
            yield Finding("variance-cap", not worse, bounds=bounds, **named)
            yield Finding("guess-variance", best < whole.constant_kmh2, best=best, **named)
        yield Figure(f"variance-{data.name}", f"{data.name}: variance of speeds", panels)


def spread_of(ones: int, samples: int) -> Fraction:
    """The variance, in units of U^2, of samples of which `ones` are at U and the others at 0."""
    share = Fraction(ones, samples)
    return share * (1 - share)


def largest_bias(total: int, kept: int) -> Fraction:
    """Brute force over all data at 0 or U: the most by which the kept samples' variance is off that
    of all."""
    dropped = total - kept
    return max(
        abs(spread_of(a, kept) - spread_of(a + b, total))
        for a in range(kept + 1)
        for b in range(dropped + 1)
    )


def largest_move(kept: int, given: int) -> Fraction:
    """Brute force over all data at 0 or U: how far a plate with `given` of the kept samples can
    move their variance."""
    reached = [[spread_of(y + x, kept) for x in range(given + 1)] for y in range(kept - given + 1)]
    return max(max(row) - min(row) for row in reached)


def printed_half(samples: int) -> Fraction:
    """The slides' largest variance, with half of the samples at U or as near to that as can be, in
    units of U^2."""
    return Fraction(1, 4) if samples % 2 == 0 else Fraction(1, 4) * (1 - Fraction(1, samples**2))


def printed_move(kept: int, given: int) -> Fraction:
    """The slides' sensitivity for the plate that gives most, in units of U^2."""
    return Fraction(given * (kept - given), kept**2) if kept > 2 * given else printed_half(kept)


def printed_bias(total: int, kept: int, exchanged: bool = False) -> Fraction:
    """The slides' worst-case clipping error, as printed or with its two cases exchanged, in units
    of U^2."""
    if kept == total:
        return Fraction(0)
    if (total > 2 * kept) is not exchanged:
        return Fraction(kept * (total - kept), total**2)
    return printed_half(total)


def theorem_findings() -> Findings:
    """The printed theorems beside brute force."""
    cases = [(total, part) for total in range(1, SAMPLES_TRIED + 1) for part in range(1, total + 1)]
    moves = sum(printed_move(kept, given) == largest_move(kept, given) for kept, given in cases)
    yield Finding("variance-sensitivity", moves == len(cases), equal=moves, cases=len(cases))
    biases = {(total, kept): largest_bias(total, kept) for total, kept in cases}
    printed, swapped = (
        sum(
            printed_bias(total, kept, exchanged=which) == bias
            for (total, kept), bias in biases.items()
        )
        for which in (False, True)
    )
    yield Finding(
        "variance-bias", printed == len(cases), equal=printed, cases=len(cases), exchanged=swapped
    )
    users = 10
    item = largest_move(users, 1)
    yield Finding("variance-item-level", item == Fraction(users - 1, users), users=users, item=item)
