"""The statistics that HATs can be asked for: accuracy of means, the automatic choice of a mean, all
by name."""

from __future__ import annotations

from math import erf, hypot, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from udp_stream.base.arrays import NO_INTEGERS, Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.around import AROUND
from udp_stream.mechanisms.base import (
    CompareAt,
    Grouping,
    NoisyValue,
    PublicSettings,
    Query,
    Range,
    SamplesPerPlate,
    Statistic,
    StatisticTerms,
    epsilon_stated,
    noisy_integers,
)
from udp_stream.mechanisms.cdf import CdfStatistic
from udp_stream.mechanisms.means import (
    MECHANISMS,
    ArrayAveraging,
    Baseline,
    Mean,
    MeanPlan,
    OptimalCappedSum,
    mean_columns,
)
from udp_stream.mechanisms.noise import Cost, expected_noise, interval95, lattice_of, noise_of
from udp_stream.mechanisms.variance import VarianceStatistic

# How far a mean is likely to be off: its noise, and what grouping and projection are likely to bias
# it by.
#
# All formulas count speeds from the low end of their range; U is its width.
#
# **Reference speeds.** What grouping, capping and filling do to a mean depends on the speeds, which
# no plan may look at. So they are taken to be spread evenly over [0, U], with the variance U^2/12;
# half of it between plates, half within; and a HAT's mean anywhere in [0, U] alike. Nothing here is
# estimated from a feed (docs/measurements.md).
#
# **Spread.** The standard deviation, at reference speeds, of the estimate without noise less the
# sample mean. Samples that a mean leaves out, because their plates cannot pay or are suppressed,
# have the weight 0 in it.
#
# **Projection** to a private interval [a, b], which is as public as the mean: let the K array means
# scatter around the true mean t like normal variables X. Reference speeds then have the variance t
# (U - t) / 3, and s and v below shrink with it. No plan can tell where between no variance and the
# one that this gives to an array the truth is, so half of it is taken: v. A truth t gives a
# projected mean around g(t), with a spread of its own (`_clipped`). The interval of the mean holds
# the truths t for which g(t) lies in the interval of g, [a, b] standing for [0, U].

VARIANCE = 1 / 12
"""Variance of the reference speeds, as a share of U^2."""

BETWEEN = 1 / 2
"""The share of it that lies between plates; the rest is within them."""

SCATTER = 1 / 2
"""Share of an array mean's variance at reference speeds that projected array means are taken to
have."""

TRUTHS = 256
"""Steps of [0, U] in which the ends of a projected mean's interval are found, rounded outwards."""

_LEAST_SHAPE = 1e-4
"""Least shape: at the ends of [0, U] nothing scatters, and the standard deviation counts as a
hundredth."""


class Accuracy(NamedTuple):
    """Error of a released mean, in quanta: expected absolute error, and ends of the 95 % interval.

    >>> Accuracy(3.0, low=10.0, high=20.0).high
    20.0
    """

    expected_abs_error: float
    low: float
    high: float


def accuracy_of(
    plan: MeanPlan,
    noisy: float,
    noise: float,
    left_out: Integers = NO_INTEGERS,
    projected_to: tuple[int, int] | None = None,
) -> Accuracy:
    """Accuracy of a noisy mean in quanta with noise of this expected size (above 0), and the
    private interval if any.

    The true mean is that of the plan's plates and of those left out, which have these counts.
    """
    off, filled = _scattered(plan, left_out)
    if projected_to is not None:
        return _projected(plan, noisy, noise, off, projected_to)
    at = plan.range.low
    width = plan.range.width
    error = plan.noise.clamped_error(noise, _with_fill(plan, off, filled), width)
    own = 1 - filled
    if own == 0:
        return Accuracy(error, float(at), float(plan.range.high))
    # without its public fill, d of it, the noisy mean x is (x - d c) / (1 - d); noise and spread
    # grow likewise
    unfilled = (noisy - at - filled * plan.fill) / own
    low, high = interval95(plan.noise, unfilled, noise / own, off / own, width)
    value = plan.released(noisy)
    return Accuracy(error, min(value, at + low), max(value, at + high))


def _projected(
    plan: MeanPlan, noisy: float, noise: float, off: float, interval: tuple[int, int]
) -> Accuracy:
    """Accuracy of a projected mean, from what each truth would have given; `off` is the spread
    before projection."""
    at = plan.range.low
    width = plan.range.width
    a = interval[0] - at
    b = interval[1] - at
    value = plan.released(noisy) - at
    noisy = noisy - at
    truths = np.linspace(0, width, TRUTHS + 1)
    # scatter at a truth t, over that at U/2: sqrt(4 t (U - t)) / U
    less = np.sqrt(np.maximum(_LEAST_SHAPE, 4 * truths * (width - truths) / width**2))
    # sqrt(v), v = half of an array mean's variance
    scatter = less * sqrt(SCATTER * array_variance(plan))
    centre, around = _clipped(truths, (a, b), scatter, int(plan.divisor), less * off)
    low_end = plan.noise.low_end
    # the interval of g, in [a, b], mirrored for its upper end
    low = a + low_end(noisy - a, noise, around, b - a)
    high = b - low_end(b - noisy, noise, around, b - a)
    # truths whose g(t) lies in it; if none does, those that come nearest
    ruled_out_by = np.maximum(low - centre, centre - high)
    left = np.flatnonzero(ruled_out_by <= max(0.0, ruled_out_by.min()))
    # a step further on either side, as the truths are tried in steps
    ends = truths[max(0, left[0] - 1)], truths[min(TRUTHS, left[-1] + 1)]
    log_likelihood = plan.noise.log_likelihood(noisy - centre, noise, around)
    # With next to no noise, all would else be 0.
    likely = np.exp(log_likelihood - log_likelihood.max())
    # the mean of |released - t| over t in [0, U], weighed by how likely each makes the noisy mean
    error = float(np.abs(value - truths) @ likely / likely.sum())
    return Accuracy(error, at + min(value, float(ends[0])), at + max(value, float(ends[1])))


def _clipped(
    truths: Floats, interval: tuple[int, int], scatter: Floats, arrays: int, off: Floats
) -> tuple[Floats, Floats]:
    """g(t), where a projected mean lies for a truth t, and its spread: by the moments of a clipped
    normal variable."""
    # a and b in standard deviations of X around t; P(X < a) and P(X < b)
    ends = (np.array(interval)[:, None] - truths) / scatter
    (a, b) = ends
    (below_a, below_b) = (1 + _erf(ends / sqrt(2))) / 2
    density_a, density_b = np.exp(-(ends**2) / 2) / sqrt(2 * pi)
    # p = P(a < X < b) = Cov(X, clip(X)) / v (Stein's lemma)
    inside = below_b - below_a
    # E clip(Z) and E clip(Z)^2 for a standard normal Z, clipped to the ends
    mean = a * below_a + (density_a - density_b) + b * (1 - below_b)
    square = a * a * below_a + inside + a * density_a - b * density_b + b * b * (1 - below_b)
    # (Var clip(X) - p^2 v) / K: what clipping adds once the mean of the K arrays is known
    clipping = np.maximum(0.0, square - mean * mean - inside * inside) * scatter**2
    # p^2 s^2: what the mean of the K is off by, as far as clipping lets it through
    return truths + scatter * mean, np.sqrt(clipping / arrays + (inside * off) ** 2)


_erf = np.vectorize(erf, otypes=[float])


def spread(plan: MeanPlan, left_out: Integers = NO_INTEGERS) -> float:
    """Standard deviation of (estimate without noise - sample mean) at the reference speeds, in
    quanta; unprojected."""
    return _with_fill(plan, *_scattered(plan, left_out))


def _with_fill(plan: MeanPlan, scattered: float, filled: float) -> float:
    if not filled:
        return scattered
    # for t anywhere in [0, U] alike, the fill adds d^2 ((c - U/2)^2 + U^2/12) to the variance
    return hypot(
        scattered, filled * hypot(plan.fill - plan.range.width / 2, plan.range.width / sqrt(12))
    )


def _scattered(plan: MeanPlan, left_out: Integers) -> tuple[float, float]:
    """The spread around (1 - d) t + d c, where t is the true mean; and d, the share of the public
    fill c.

    An estimate weighs sample j by w_j; the weights of plate l, of m_l samples, add up to A_l, and
    all of them to 1 - d.
    """
    counts = plan.counts
    given = plan.given
    if not (left_out.size or plan.bias_bound):
        return 0.0, 0.0
    weight: Floats | float = 1 / plan.divisor
    if plan.arrays is not None:
        weight = weight / plan.arrays.filled.take(plan.arrays.of_plate)
    elif plan.plate_sensitivities is None:
        weight = weight / plan.cap
    of_plate = weight * given
    # `add.reduce` is what `sum` calls, in less than half the time; a slot asks for some hundred
    # thousand of these.
    own = float(np.add.reduce(of_plate))  # 1 - d
    # what a sample weighs in (1 - d) times the mean of all M samples
    others = int(np.add.reduce(left_out)) if left_out.size else 0
    even = own / (counts.total + others)
    # between plates: sum_l (A_l - (1 - d) m_l / M)^2, where A_l = 0 for those left out
    between = of_plate - even * counts.by_plate
    squares = float(np.add.reduce(between * between))
    if others:
        squares += even**2 * float(np.add.reduce(left_out * left_out))
    # within plates: sum_j (w_j - (1 - d) / M)^2 = sum_j w_j^2 - (1 - d)^2 / M
    within = float(np.add.reduce(weight * of_plate)) - even * own
    # U^2/24 (between + within)
    scattered = VARIANCE * (BETWEEN * squares + (1 - BETWEEN) * within)
    return plan.range.width * sqrt(max(0.0, scattered)), max(0.0, 1 - own)


def array_variance(plan: MeanPlan) -> float:
    """Variance of an array's mean at the reference speeds, averaged over the plan's arrays, in
    quanta^2.

    Plates with the shares q_l of an array of w samples give it the variance U^2/24 (sum_l q_l^2 +
    1/w).
    """
    if plan.arrays is not None:
        filled = plan.arrays.filled
        # sum_l q_l^2 and 1/w, means over arrays
        shares = plan.given / filled.take(plan.arrays.of_plate)
        squares = float((shares * shares).sum()) / filled.size
        alone = float((1 / filled).mean())
    else:
        arrays = int(plan.divisor)
        poured = np.cumsum(plan.given[plan.counts.order])
        # plates lie end to end and arrays are cut off in turn: every piece between two cuts is a
        # share
        cuts = np.union1d(poured, plan.cap * np.arange(arrays + 1))
        shares = np.diff(cuts) / plan.cap
        squares = float((shares * shares).sum()) / arrays
        alone = 1 / plan.cap
    return plan.range.width**2 * VARIANCE * (BETWEEN * squares + (1 - BETWEEN) * alone)


# `mean = "auto"`: the mechanism and cap of least expected error for what its plates pay. Counts
# only.
#
# **At equal epsilon**, where it is configured. Candidates are Baseline, Optimal, and
# Array-Averaging with the few caps of least expected error by formulas that need no packing. A
# guess of U/2 is off by at most U/2, so no plan is taken that promises less (where Optimal promises
# less, none that promises less than Optimal). Then errors at that epsilon are compared:
# hypot(noise, spread). Of those up to 3 % above the least, that whose plates pay least is taken:
# what they do not pay here serves other HATs.
#
# **At equal charge**, where epsilon is automatic: a plate with a share w_l of the mean's weights
# moves it by U w_l and pays epsilon w_l / max w. With a mean charge of c of L plates the noise U
# max w / epsilon is U / (L c): *the same for every grouping and cap* (docs/mechanisms/auto.md has
# the proofs). So Baseline wins, which has no bias. Optimal is not weighed, as counts cannot tell
# its bias.
#
# Levy and the quantile mechanisms are not weighed: they charge every plate in full, spend half of
# epsilon on an interval, and err more than Array-Averaging on each recorded feed.

AS_GOOD = 1.03
"""Factor within which errors count as equally good."""

CAPS_TRIED = 4
"""Caps that are tried: on the recorded feeds the best of four is within 3 % of the best of all
counts in 99 of 100 HATs."""

_ROUGH = 1.03
"""A cap may exceed what is allowed by so much: packing may show that it does not."""

EXACT = 1 + 1e-9
"""Factor within which worst cases count as equal: rounding."""


def plan_automatic(
    counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, compare_at: CompareAt
) -> MeanPlan:
    """The candidate of least charge among those of least expected error whose worst case is
    allowed; deterministic."""
    baseline = Baseline().plan(counts, cost, range, grouping)
    if compare_at == "charge":
        return baseline
    optimal = OptimalCappedSum().plan(counts, cost, range, grouping)
    allowed = EXACT * max(range.width / 2, optimal.error_bound)
    plans = [baseline, optimal]
    for cap in averaging_caps(counts, cost, grouping, allowed / range.width):
        plans.append(ArrayAveraging().plan(counts, cost, range, grouping, cap))
    noise = noise_of(cost)
    sizes = [plan.noise_bound for plan in plans]
    errors = [
        (noise.error(size, spread(plan)), plan)
        for plan, size in zip(plans, sizes, strict=True)
        if plan.bias_bound + size <= allowed
    ]
    good = AS_GOOD * min(error for error, _ in errors)
    return min((plan for error, plan in errors if error <= good), key=_mean_share)


def _mean_share(plan: MeanPlan) -> float:
    """Part of the cost that a plate is charged, on average over the HAT's plates; 1 where each pays
    all."""
    if plan.plate_sensitivities is None:
        return 1.0
    if plan.noise.power == 1:
        return (
            int(np.add.reduce(plan.plate_sensitivities))
            / plan.plate_sensitivities.size
            / plan.sensitivity
        )
    return float(((plan.plate_sensitivities / plan.sensitivity) ** plan.noise.power).mean())


def averaging_caps(
    counts: SamplesPerPlate, cost: Cost, grouping: Grouping, allowed: float
) -> list[int]:
    """The few counts that are likely the best caps for Array-Averaging, best first; O(L log L).

    All but the first have a worst case of at most `allowed`, a share of U. By formulas for arrays
    that are all equally full: K = floor(G/m) under WrapAround; under BestFit at least ceil(G/m) and
    the number of plates too large to share.
    """
    caps = counts.descending[::-1]
    total = counts.total
    kept, squares, products = _sums_at_every_count(caps)
    arrays = kept // caps
    if grouping == "best-fit":
        arrays = np.maximum(
            -(-kept // caps), counts.plates - (2 * caps).searchsorted(caps, side="right")
        )
    between = squares / kept**2 - (2 / total) * (products / kept) + int(squares[-1]) / total**2
    within = 1 / kept - 1 / total
    scattered = VARIANCE * (BETWEEN * between + (1 - BETWEEN) * within)
    noise = expected_noise(1, cost) / arrays
    used = kept if grouping == "best-fit" else arrays * caps
    once = np.diff(caps, prepend=0) != 0
    worst = 1 - used / total + noise
    candidates = (once & (worst <= _ROUGH * allowed)).nonzero()[0]
    # Stable: of caps that are equally good the same comes first on every machine.
    best = candidates[(noise**2 + scattered)[candidates].argsort(kind="stable")]
    surely = best[worst[best] <= allowed][: CAPS_TRIED - 1].tolist()
    perhaps = [at for at in best[:CAPS_TRIED].tolist() if at not in surely][:1]
    return [int(caps[at]) for at in surely + perhaps]


def _sums_at_every_count(ascending: Integers) -> tuple[Integers, Integers, Integers]:
    """Sums for the cap m at each of the counts, over all plates, of G_l, G_l^2 and G_l m_l, G_l =
    min(m_l, m)."""
    plates = ascending.size
    sums = ascending.cumsum()
    squares = ascending * ascending
    above = np.arange(plates - 1, -1, -1)
    upto = squares.cumsum()
    return sums + above * ascending, upto + above * squares, upto + ascending * (sums[-1] - sums)


TRIALS = 300
"""Trials for a projected mean: its expected error is then known to about 7 %."""


def expected_error(plan: MeanPlan, bits: Bits) -> float:
    """Likely error of a mean, in quanta: noise, and the bias that is likely.

    Where a mean is projected, it is the mean error of trials, always the same, at speeds that
    scatter as `_projected` takes it, around means anywhere in [0, U] alike.
    """
    width = plan.range.width
    if plan.plate_sensitivities is not None:
        return plan.noise.clamped_error(plan.noise_bound, spread(plan), width)
    rng = np.random.default_rng(0)
    counts = plan.counts.by_plate
    samples = []
    for truth in rng.uniform(0, width, TRIALS):
        part = np.sqrt(SCATTER * truth * (width - truth) / 3 / 2)
        speeds = truth + part * (
            np.repeat(rng.standard_normal(counts.size), counts) + rng.standard_normal(counts.sum())
        )
        samples.append(np.clip(np.round(speeds), 0, width).astype(np.int64))
    mean = MeanStatistic()
    queries = [mean.query(plan, speeds, bits) for speeds in samples]
    found = mean.values([plan] * TRIALS, queries, noisy_integers(queries, plan.noise, bits))
    errors = [
        abs(plan.released(noisy.value) - speeds.mean())
        for noisy, speeds in zip(found, samples, strict=True)
    ]
    return float(np.mean(errors))


class MeanStatistic(Statistic[MeanPlan, NoisyValue]):
    """The mean by the mechanism that was chosen or is configured, or for "auto" that of least
    expected error.

    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = MeanStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> plan.mechanism, query.integers.tolist()
    ('optimal', [296960])
    """

    name = of = "mean"
    plural = "means"
    degree = 1

    def plan(
        self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings
    ) -> MeanPlan:
        cost = asked.cost
        grouping = asked.grouping
        choice = asked.choice
        if choice is None and asked.mechanism == "auto":
            return plan_automatic(counts, cost, public.range, grouping, asked.compare_at)
        mechanism = asked.mechanism
        cap = None
        if choice is not None:
            mechanism = choice.mechanism
            cap = choice.cap_among(counts)
        elif _at_worst_case_cap(asked, public):
            cap = ArrayAveraging().worst_case_cap(counts, cost, public.range, grouping)
        return MECHANISMS[mechanism].plan(counts, cost, public.range, grouping, cap)

    def at(self, plan: MeanPlan, asked: StatisticTerms, public: PublicSettings) -> MeanPlan:
        """Plan at another epsilon. The best mechanism and its cap may depend on it, but not at
        equal charge."""
        if (asked.mechanism == "auto" and asked.compare_at == "epsilon") or _at_worst_case_cap(
            asked, public
        ):
            return self.plan(plan.counts, asked, public)
        return MECHANISMS[plan.mechanism].at(plan, asked.cost)

    def subset(self, plan: MeanPlan, admitted: Flags) -> MeanPlan:
        return MECHANISMS[plan.mechanism].subset(plan, admitted)

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> Query:
        asked = MECHANISMS[plan.mechanism].query(plan, samples, bits)
        lattice = lattice_of(asked.sensitivity, plan.noise_cost)
        return Query.of_one(asked.statistic, lattice, asked.projected_to)

    def record(self, plan: MeanPlan, value: NoisyValue, left_out: Integers = NO_INTEGERS) -> Mean:
        others = int(left_out.sum()) if left_out.size else 0
        noisy = value.value
        scale = value.scale
        bias = plan.bias_bound + plan.range.width * others / (plan.counts.total + others)
        error, low, high = accuracy_of(plan, noisy, scale, left_out, value.projected_to)
        return Mean(
            value_kmh=round(plan.released(noisy) / QUANTA_PER_KMH, 3),
            mechanism=plan.mechanism,
            grouping=plan.grouping,
            epsilon=epsilon_stated(plan.cost),
            scale_kmh=round(scale / QUANTA_PER_KMH, 4),
            expected_abs_error_kmh=round(error / QUANTA_PER_KMH, 4),
            interval95_kmh=(round(low / QUANTA_PER_KMH, 3), round(high / QUANTA_PER_KMH, 3)),
            # Means lie in [0, U], so none is off by more than U.
            bias_bound_kmh=round(min(bias, plan.range.width) / QUANTA_PER_KMH, 4),
        )

    def worst_case(self, plan: MeanPlan, samples: int) -> float:
        """Worst-case error: `error_bound`, plus U (1 - G / M) for the samples of plates that are
        left out."""
        return plan.error_bound + plan.range.width * (1 - plan.counts.total / samples)

    def columns(self, plan: MeanPlan, bits: Bits) -> list[tuple[str, str]]:
        bound = min(plan.error_bound, plan.range.width)
        return mean_columns(plan.mechanism, plan.noise_bound, expected_error(plan, bits), bound)

    def why(self, plan: MeanPlan, asked: StatisticTerms) -> str:
        if asked.mechanism != "auto":
            return "as configured"
        if asked.compare_at == "charge":
            return "at equal charge every grouping has the same noise, and this has no bias"
        error = plan.noise.clamped_error(plan.noise_bound, spread(plan), plan.range.width)
        guessing = EXACT * plan.range.width / 2
        allowed = (
            "that of the baseline guess" if plan.error_bound <= guessing else "that of optimal"
        )
        return (
            f"least charge within 3 % of the least expected error, {error / QUANTA_PER_KMH:.2f} km/h, "
            f"among worst cases up to {allowed}"
        )


def _at_worst_case_cap(asked: StatisticTerms, public: PublicSettings) -> bool:
    """Whether the cap depends on epsilon."""
    return asked.mechanism == ArrayAveraging.name and public.cap == "worst-case"


STATISTICS: dict[str, Statistic[Any, Any]] = {
    statistic.name: statistic
    for statistic in (MeanStatistic(), AROUND, VarianceStatistic(), CdfStatistic())
}
"""Statistics by their names, in the order of their noise. `Any`: a statistic is handed back the
plans that it made."""


def priced() -> list[str]:
    """The names of statistics that have a price of their own: not those with `of`."""
    return [name for name, statistic in STATISTICS.items() if statistic.of == name]
