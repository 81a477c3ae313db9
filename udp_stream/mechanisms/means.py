"""Means of a HAT, user-level eps-DP: the shared part, then each mechanism with its sensitivity,
cost and estimate.

Every mechanism is an integer statistic (in speed quanta), plus noise, divided by a public number.
Speeds have a public range [low, high]; U = high - low is its width. They are clipped to it and
counted from its low end (`Range.above_low`): everything below is about values in 0..U, and
`MeanPlan.value` adds the low end again.

Privacy unit: license plate. Neighbours: swap-values (same plates, same counts, a plate's speeds
differ). Assumed of the input: integers, plates and counts as in the plan. Guaranteed: the query's
statistic changes by at most `sensitivity` when a plate's speeds change, by at most
`plate_sensitivities[l]` when they are plate l's, and a private interval it may have used costs what
`noise_cost` leaves of `cost`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from udp_stream.base.arrays import Flags, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import (
    Arrays,
    Choice,
    NonNegative,
    Part,
    Positive,
    Range,
    SamplesPerPlate,
    best_fit,
    first_samples,
    wrap_around_count,
    wrap_around_given,
    wrap_around_positions,
)
from udp_stream.mechanisms.base import Grouping as Grouping
from udp_stream.mechanisms.noise import (
    Cost,
    Noise,
    charges_of,
    cost_within,
    expected_noise,
    exponential_choices,
    noise_of,
)
from udp_stream.mechanisms.samplers import randbelow


class MeanPlan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How a HAT's mean will be taken, from counts, cost and range only; speeds in quanta.

    The estimate is low + (statistic + noise) / divisor. `sensitivity` is the statistic's for a
    plate, before any private interval narrows it. `bias_bound` is the worst over all speeds in the
    range of |estimate without noise - sample mean|. Where the samples' weights add up to less than
    1, `fill` has the rest, in quanta above the low end. Plate by plate: `given` is how many of its
    first samples enter the statistic, `plate_sensitivities` by how much it alone can move it; None
    where every plate is charged in full.

    >>> counts = SamplesPerPlate(np.array([4, 1]))
    >>> plan = Baseline().plan(counts, Cost("pure", 10**9), Range(0, 1000), "best-fit")
    >>> plan.charges.tolist(), plan.noise_bound, plan.value(2500), plan.released(-3.0)
    ([1000000000, 250000000], 800.0, 500.0, 0.0)
    """

    mechanism: str
    grouping: Grouping | None
    counts: SamplesPerPlate
    range: Range
    cost: Cost
    cap: int
    given: Integers
    plate_sensitivities: Integers | None
    divisor: float
    sensitivity: int
    bias_bound: float
    fill: int = 0
    arrays: Arrays | None = None

    @property
    def choice(self) -> Choice:
        return Choice(self.mechanism, self.cap)

    @property
    def noise_cost(self) -> Cost:
        """Cost of the final noise: all of `cost`, or half of it where a private interval has the
        rest."""
        if self.plate_sensitivities is not None:
            return self.cost
        return self.cost.with_nano(self.cost.nano - interval_cost(self.cost).nano)

    @property
    def noise(self) -> Noise:
        return noise_of(self.cost)

    @property
    def noise_bound(self) -> float:
        """Expected absolute noise in quanta, at the sensitivity above."""
        return expected_noise(self.sensitivity, self.noise_cost) / self.divisor

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: what counts alone can promise."""
        return self.bias_bound + self.noise_bound

    def value(self, noisy: float) -> float:
        """The noisy mean, in quanta, of a statistic with its noise; it may lie beyond the range."""
        return self.range.low + noisy / self.divisor

    def released(self, noisy: float) -> float:
        return self.range.clip(noisy)

    @property
    def used_samples(self) -> int:
        return int(self.given.sum())

    @cached_property
    def charges(self) -> Integers:
        if self.plate_sensitivities is None:
            return np.full(self.counts.plates, self.cost.nano, dtype=np.int64)
        return charges_of(self.plate_sensitivities, self.sensitivity, self.cost)

    def subset(self, admitted: Flags, **changes: Any) -> MeanPlan:
        """The same statistic without the plates that were halted: the others give and move what
        they did.

        Each plate's loss stays within its charge; the cost becomes the largest loss left.
        """
        if self.plate_sensitivities is None:
            raise ValueError("expected a plan whose plates are charged by what they move")
        plate_sensitivities = self.plate_sensitivities[admitted]
        # Noise is drawn even where no plate moves anything.
        sensitivity = max(1, int(plate_sensitivities.max()))
        return replace(
            self,
            counts=SamplesPerPlate(self.counts.by_plate[admitted]),
            given=self.given[admitted],
            plate_sensitivities=plate_sensitivities,
            sensitivity=sensitivity,
            cost=cost_within(plate_sensitivities, sensitivity, self.charges[admitted], self.cost),
            **changes,
        )


class MeanQuery(msgspec.Struct, frozen=True):
    """The integer to which noise is added, and how far a plate can move it; [a, b] if it was
    projected to an interval.

    The interval is private by itself, paid for with what `noise_cost` leaves.

    >>> MeanQuery(statistic=2500, sensitivity=4000).projected_to is None
    True
    """

    statistic: int
    sensitivity: int
    projected_to: tuple[int, int] | None = None


class MeanMechanism(ABC):
    """A way of taking a mean.

    >>> mechanism: MeanMechanism = Baseline()
    >>> mechanism.name
    'baseline'
    """

    name: str
    """The name in the configuration and in release records."""

    @abstractmethod
    def plan(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int | None = None,
    ) -> MeanPlan:
        """Plan the mean of a HAT: fix all that counts can fix.

        Args:
            counts: Samples of each plate.
            cost: The most that a plate may lose.
            range: The range of speeds, quanta.
            grouping: How plates fill arrays, where the mechanism has arrays.
            cap: Most samples of a plate, 1 <= cap <= the largest count; None for the mechanism's
                own.

        Returns:
            The plan, with sensitivity and worst-case bias in quanta.

        Raises:
            ValueError: For another cap.
        """

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """The plan that `plan` gives for the same plates at another cost; cap and arrays do not
        depend on it."""
        return replace(plan, cost=cost)

    @abstractmethod
    def subset(self, plan: MeanPlan, admitted: Flags) -> MeanPlan:
        """The plan for those of its plates that the ledger admitted, each within its
        charge; `admitted` is a mask of shape (plates,)."""

    @abstractmethod
    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The statistic of the samples (plate by plate, in the order of the counts); bits pay for
        private intervals."""


# Levy and the two quantile mechanisms share a private interval, then the mean of array means
# projected to it.
#
# Half of the cost buys the interval [a, b]; the array means are projected to it, so that each of
# the arrays a plate touches (BestFit: 1; WrapAround: 2) moves the sum by at most b - a; half of it
# is for that sum's noise. Counts alone can promise nothing about an interval that speeds choose:
# the bias bound is U.
#
# Every plate is charged in full. The interval's choice goes by ranks, which count arrays: however
# few of an array's samples are a plate's, it may carry the array's mean past any rank. And for the
# sum, a plate with n of w samples moves its array's projected mean by min(b - a, U n / w): the
# interval, not known yet, may be as narrow as U n / w.


def interval_cost(cost: Cost) -> Cost:
    """The part of a projected mean's cost that its private interval may spend: half, rounded down;
    noise has the rest."""
    return cost.with_nano(cost.nano // 2)


class ProjectedMean(MeanMechanism):
    """The mechanisms that project, each to its own private interval; every plate is charged in
    full.

    >>> plan = Levy().plan(SamplesPerPlate(np.array([2, 2])), Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> Levy().subset(plan, np.array([True, False])).charges.tolist()
    [1000000000]
    """

    @abstractmethod
    def intervals(
        self, plan: MeanPlan, means: Integers, bits: Bits, draws: int
    ) -> tuple[Integers, Integers]:
        """The ends, in 0..U above the range's low end, of that many independent intervals, at
        `interval_cost` each."""

    def plan(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int | None = None,
    ) -> MeanPlan:
        """Plan whose own cap maximises sum min(m_l, m) / sqrt(m) (arXiv 2401.15906, equation 1)."""
        cap = levy_cap(counts) if cap is None else cap
        arrays = best_fit(counts, cap) if grouping == "best-fit" else None
        given = (
            wrap_around_given(counts, cap) if arrays is None else np.minimum(counts.by_plate, cap)
        )
        divisor = wrap_around_count(counts, cap) if arrays is None else arrays.count
        return MeanPlan(
            mechanism=self.name,
            grouping=grouping,
            counts=counts,
            range=range,
            cost=cost,
            cap=cap,
            given=given,
            plate_sensitivities=None,
            divisor=divisor,
            sensitivity=range.width * touched(grouping),
            bias_bound=float(range.width),
            arrays=arrays,
        )

    def subset(self, plan: MeanPlan, admitted: Flags) -> MeanPlan:
        """A new plan for the admitted plates alone: each has been charged in full, so any will do."""
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        return self.plan(counts, plan.cost, plan.range, plan.grouping or "best-fit")

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        means = means_of_arrays(plan, samples)
        low, high = self.intervals(plan, means, bits, draws=1)
        sums, sensitivities = projected_queries(plan, means, low, high)
        at = plan.range.low
        return MeanQuery(int(sums[0]), int(sensitivities[0]), (at + int(low[0]), at + int(high[0])))


def levy_cap(counts: SamplesPerPlate) -> int:
    """The count m that maximises sum_l min(m_l, m) / sqrt(m).

    Between two counts that is (A + B m) / sqrt(m), whose only stationary point is a minimum: no
    other m is better.
    """
    score = counts.kept_at_every_count / np.sqrt(counts.descending)
    return int(counts.descending[int(np.argmax(score))])


def touched(grouping: Grouping | None) -> int:
    """How many arrays a plate can touch."""
    return 2 if grouping == "wrap-around" else 1


def means_of_arrays(plan: MeanPlan, samples: Integers) -> Integers:
    """The array means under either grouping, floored to whole quanta above the low end: in 0..U.

    Under BestFit they are over filled positions; those of plates that were halted count as filled
    and hold zeros.
    """
    if plan.arrays is not None:
        kept = plan.range.above_low(samples[first_samples(plan.counts, plan.cap)])
        array_of_sample = np.repeat(plan.arrays.of_plate, plan.given)
        # weighted bincount adds doubles: exact, as the sums stay far below 2**53 quanta
        sums = np.bincount(array_of_sample, weights=kept, minlength=plan.arrays.count).astype(
            np.int64
        )
        return sums // plan.arrays.filled
    poured = plan.range.above_low(samples[wrap_around_positions(plan.counts, plan.cap)])
    means: Integers = poured.reshape(-1, plan.cap).sum(axis=1) // plan.cap
    return means


def projected_queries(
    plan: MeanPlan, means: Integers, low: Integers, high: Integers
) -> tuple[Integers, Integers]:
    """The sum of the means projected to each [low, high], and its sensitivity: at least a quantum,
    to draw noise."""
    ascending = np.sort(means)
    upto = np.append(0, np.cumsum(ascending))
    below = np.searchsorted(ascending, low)
    through = np.searchsorted(ascending, high, side="right")
    sums = low * below + (upto[through] - upto[below]) + high * (means.size - through)
    return sums, np.maximum(1, (high - low) * touched(plan.grouping))


class CappedSum(MeanMechanism):
    """The first min(m_l, m) samples of every plate, and a public constant for each that is dropped,
    over M.

    >>> plan = Baseline().plan(SamplesPerPlate(np.array([2, 1])), Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> Baseline().subset(plan, np.array([False, True])).charges.tolist()
    [500000000]
    """

    def _capped(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, cap: int, fill: int
    ) -> MeanPlan:
        """`fill` is counted from the range's low end, like the samples."""
        given = np.minimum(counts.by_plate, cap)
        return MeanPlan(
            mechanism=self.name,
            grouping=None,
            counts=counts,
            range=range,
            cost=cost,
            cap=cap,
            given=given,
            plate_sensitivities=range.width * given,
            divisor=counts.total,
            sensitivity=range.width * cap,
            bias_bound=_bias_of_fill(fill, range, int(given.sum()), counts.total),
            fill=fill,
        )

    def subset(self, plan: MeanPlan, admitted: Flags) -> MeanPlan:
        """The same cap and fill: a smaller cap would drop samples for which the noise has been
        scaled already."""
        total = int(plan.counts.by_plate[admitted].sum())
        given = int(plan.given[admitted].sum())
        return plan.subset(
            admitted, divisor=total, bias_bound=_bias_of_fill(plan.fill, plan.range, given, total)
        )

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        is_whole = plan.cap == plan.counts.largest
        kept = plan.range.above_low(
            samples if is_whole else samples[first_samples(plan.counts, plan.cap)]
        )
        return MeanQuery(int(kept.sum()) + plan.fill * (samples.size - kept.size), plan.sensitivity)


def _bias_of_fill(fill: int, range: Range, given: int, total: int) -> float:
    return max(fill, range.width - fill) * (1 - given / total)


class Baseline(CappedSum):
    """Sum of all samples over M (arXiv 2401.15906, Section III-B).

    Sensitivity of the sum: U m_max, since the plate with most samples can move each of them by U;
    plate l moves it by U m_l. No bias; the expected absolute error is exactly U m_max / (M eps).

    >>> plan = Baseline().plan(SamplesPerPlate(np.array([2, 1])), Cost("pure", 10**9), Range(10, 110), "best-fit")
    >>> plan.sensitivity, plan.divisor, Baseline().query(plan, np.array([10, 40, 70]), bytes).statistic
    (200, 3, 90)
    """

    name = "baseline"

    def plan(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int | None = None,
    ) -> MeanPlan:
        """Plan without groups or caps: every plate gives all of its samples."""
        del grouping, cap
        return self._capped(counts, cost, range, counts.largest, fill=0)


# Array-Averaging: the mean of the array means (arXiv 2401.15906, Section III-C).
#
# BestFit. A plate's samples lie in a single array, whose mean, floored to whole quanta, stays in
# 0..U: the sum of the K-bar array means moves by at most U.
#
# WrapAround. All K arrays are full, so the mean of their means is sum / (K m). A plate has at most
# m samples there: the sum moves by at most U m, the mean by U / K. The papers charge 2U/K, as they
# bound the two arrays separately.
#
# Plate by plate. Under BestFit, n of the w samples of an array move its sum by at most U n, hence
# the floor of its mean by at most ceil(U n / w); under WrapAround, n samples among those used move
# the sum by at most U n.
#
# Plates that the ledger halts. Each mean is still over the positions that were filled when charges
# were fixed (w): packing anew could put a plate that paid for n of 40 samples alone into an array
# of n. An array then counts by the part of it that is left, and the divisor is the sum of these
# parts.
#
# Bias. The estimate weighs each sample of array i by 1 / (K-bar w_i) and dropped ones by 0, the
# sample mean weighs all by 1/M. The worst case over samples in [0, U] is U times the total
# variation between the two weightings: for BestFit U sum_i max(0, 1/K-bar - w_i / M), for
# WrapAround U (1 - K m / M); with u_i of the w_i left and divisor D the former becomes U sum_i u_i
# max(0, 1 / (w_i D) - 1/M).


#
# The cap of the worst case. The papers' m^(eps) is for the mean of kept samples (arXiv 2405.06261,
# slides' equation 1); a mean of array means has the bias above, so its worst case is least at
# another cap: of counts (5, 1) with cap 5 it is U/3, where U (1 - G/M) is 0.

CAPS_MAX = 2**14


class ArrayAveraging(MeanMechanism):
    """Mean of array means; the cap is the median of the counts unless another is given.

    >>> counts = SamplesPerPlate(np.array([4, 2, 2]))
    >>> plan = ArrayAveraging().plan(counts, Cost("pure", 10**9), Range(0, 100), "best-fit", cap=4)
    >>> plan.divisor, plan.sensitivity, plan.charges.tolist()  # two plates share the second array, and its charge
    (2, 100, [1000000000, 500000000, 500000000])
    """

    name = "array-averaging"

    def plan(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int | None = None,
    ) -> MeanPlan:
        """Plan whose own cap is the median: at most a factor two from the least noise (arXiv
        2401.15906, Lemma III.2)."""
        cap = counts.median if cap is None else cap
        if not 1 <= cap <= counts.largest:
            raise ValueError(f"expected 1 <= cap <= {counts.largest}, got {cap}")
        arrays = None
        width = range.width
        if grouping == "best-fit":
            arrays = best_fit(counts, cap)
            given = np.minimum(counts.by_plate, cap)
            # the floor of a mean moves by at most the ceiling of what the mean moves by
            plate_sensitivities = -(-width * given // arrays.filled.take(arrays.of_plate))
            divisor = arrays.count
            sensitivity = width
            excess = float(
                np.add.reduce(np.maximum(0.0, 1 / arrays.count - arrays.filled / counts.total))
            )
        else:
            given = wrap_around_given(counts, cap)
            plate_sensitivities = width * given
            divisor = int(given.sum())
            sensitivity = width * cap
            excess = 1 - divisor / counts.total
        return MeanPlan(
            mechanism=self.name,
            grouping=grouping,
            counts=counts,
            range=range,
            cost=cost,
            cap=cap,
            given=given,
            plate_sensitivities=plate_sensitivities,
            divisor=divisor,
            sensitivity=sensitivity,
            bias_bound=width * excess,
            arrays=arrays,
        )

    def worst_case_cap(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping
    ) -> int:
        """The cap of least `error_bound`, the smallest of equal caps; of all, or above `CAPS_MAX`
        of as many.

        Exact: caps are tried in order of a bound from below, until the next bound is no less than
        the least found.
        """
        caps = np.arange(1, counts.largest + 1)
        if counts.largest > CAPS_MAX:
            even = np.linspace(1, counts.largest, CAPS_MAX).astype(np.int64)
            caps = np.unique(np.concatenate((even, counts.by_plate)))
        upto = np.append(0, np.cumsum(counts.descending[::-1]))
        ascending = counts.descending[::-1]
        # Plates with fewer samples share arrays, others fill an array each.
        below = np.searchsorted(ascending, caps)
        few = upto[below]
        full = counts.plates - below
        # Any two of the shared arrays hold more than the cap.
        arrays = full + np.minimum(below, 2 * few // caps + 1)
        dropped = 1 - (few + full * caps) / counts.total
        noise = expected_noise(range.width, cost)
        at_least = (range.width * dropped + noise / np.maximum(1, arrays)) * (1 - 1e-9)
        best = math.inf
        found = 0
        for at in np.argsort(at_least, kind="stable").tolist():
            if at_least[at] > best:
                break
            cap = int(caps[at])
            if grouping != "best-fit" and not wrap_around_count(counts, cap):
                continue
            error = self.plan(counts, cost, range, grouping, cap).error_bound
            if error < best or (error == best and cap < found):
                best = error
                found = cap
        return found

    def subset(self, plan: MeanPlan, admitted: Flags) -> MeanPlan:
        total = int(plan.counts.by_plate[admitted].sum())
        given = plan.given[admitted]
        width = plan.range.width
        used = int(given.sum())
        if plan.arrays is None and used:
            return plan.subset(admitted, divisor=used, bias_bound=width * (1 - used / total))
        if (
            plan.arrays is None
        ):  # all that they have lies beyond the full arrays: the middle is released
            return plan.subset(admitted, divisor=1, bias_bound=float(width), fill=width // 2)
        arrays = Arrays(plan.cap, plan.arrays.of_plate[admitted], plan.arrays.filled)
        left = np.bincount(arrays.of_plate, weights=given, minlength=arrays.count)
        divisor = float((left / arrays.filled).sum())
        excess = float((left * np.maximum(0.0, 1 / (arrays.filled * divisor) - 1 / total)).sum())
        return plan.subset(admitted, arrays=arrays, divisor=divisor, bias_bound=width * excess)

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        if plan.grouping == "best-fit":
            return MeanQuery(int(means_of_arrays(plan, samples).sum()), plan.sensitivity)
        used = plan.range.above_low(samples[first_samples(plan.counts, plan.given)])
        return MeanQuery(int(used.sum()) + plan.fill, plan.sensitivity)


GAMMA = 0.2
"""The probability with which the array means may miss the concentration radius; the paper's value."""


def concentration_radius(plan: MeanPlan) -> int:
    """Radius tau = U sqrt(log(2K/gamma) / (2 m)) in quanta, rounded up, K as under WrapAround;
    public."""
    count = wrap_around_count(plan.counts, plan.cap)
    return math.ceil(plan.range.width * math.sqrt(math.log(2 * count / GAMMA) / (2 * plan.cap)))


class Levy(ProjectedMean):
    """Projection around a private median (arXiv 2401.15906, Section III-D), whose bin costs eps/2;
    the mean eps/2.

    Bins of width tau over [0, U]; penalty of a bin: max(#means in bins to its left, #to its right),
    which an array moves by at most 1; under WrapAround a plate moves two arrays.

    >>> import os
    >>> plan = Levy().plan(SamplesPerPlate(np.full(20, 50)), Cost("pure", 10**11), Range(0, 1000), "best-fit")
    >>> Levy().query(plan, np.full(1000, 500), os.urandom).projected_to
    (231, 923)
    """

    name = "levy"

    def intervals(
        self, plan: MeanPlan, means: Integers, bits: Bits, draws: int
    ) -> tuple[Integers, Integers]:
        """Private median bins, intervals of width 3 tau around their centres, clipped to [0, U]."""
        tau = concentration_radius(plan)
        # + 1, as both 0 and U are values.
        bins = -(-(plan.range.width + 1) // tau)
        occupancy = np.bincount(np.minimum(means // tau, bins - 1), minlength=bins)
        left = np.cumsum(occupancy) - occupancy
        penalties = np.maximum(left, means.size - left - occupancy).tolist()
        moved = touched(plan.grouping)
        cost = interval_cost(plan.cost)
        chosen = np.array(
            exponential_choices(bits, penalties, [1] * bins, means.size, moved, cost, draws)
        )
        centre = chosen * tau + tau // 2
        low = np.maximum(0, centre - 3 * tau // 2)
        high = np.minimum(plan.range.width, centre + 3 * tau // 2)
        # the last bin may reach beyond U, so its centre less a radius may, too
        return np.minimum(low, plan.range.width), high


# Projection between two private quantiles: arXiv 2401.15906, Section III-E; Smith (STOC 2011,
# Algorithm 2).


def private_quantiles(
    bits: Bits, values: Integers, rank: int, width: int, moved: int, cost: Cost, draws: int
) -> Integers:
    """Draw points of 0..width with about `rank` of the values at or below them.

    Every point v has the penalty |#{values <= v} - rank|, which a plate that touches `moved` values
    moves by at most that. Points are chosen by the exponential mechanism: an interval between two
    cuts, whose points share their penalty, by its length times its weight, then a point in it
    evenly.

    Args:
        bits: The source of random bits.
        values: Values in quanta, in 0..width, in any order.
        rank: How many values are to be at or below a point.
        width: The largest point.
        moved: Most values that a plate touches.
        cost: What each draw costs.
        draws: The number of points.

    Returns:
        Independent points, shape (draws,).
    """
    # The last cut is behind `width`, which is a point too.
    cuts = np.concatenate(([0], np.sort(values), [width + 1]))
    sizes = np.diff(cuts)
    penalties = np.abs(np.arange(sizes.size) - rank).tolist()
    chosen = exponential_choices(bits, penalties, sizes.tolist(), values.size, moved, cost, draws)
    return np.array(
        [int(cuts[interval]) + randbelow(bits, int(sizes[interval])) for interval in chosen]
    )


def quantile_intervals(
    plan: MeanPlan, means: Integers, bits: Bits, draws: int, ranks: tuple[int, int]
) -> tuple[Integers, Integers]:
    """Ends of the intervals at these ranks, each at half of the interval's cost; crossed ends are
    ordered."""
    moved = touched(plan.grouping)
    whole = interval_cost(plan.cost)
    # Rounded down: both ends together cost no more than the interval may.
    cost = whole.with_nano(whole.nano // 2)
    one, other = (
        private_quantiles(bits, means, rank, plan.range.width, moved, cost, draws) for rank in ranks
    )
    return np.minimum(one, other), np.maximum(one, other)


class FixedQuantile(ProjectedMean):
    """Projection between the 0.1 and 0.9 quantiles of the array means.

    >>> import os
    >>> plan = FixedQuantile().plan(SamplesPerPlate(np.full(100, 1)), Cost("pure", 10**12), Range(0, 100), "best-fit")
    >>> low, high = FixedQuantile().intervals(plan, np.arange(100), os.urandom, draws=1)
    >>> bool(8 <= low[0] <= 11 and 88 <= high[0] <= 91)  # at so large a cost the choice is nearly exact
    True
    """

    name = "fixed-quantile"

    def intervals(
        self, plan: MeanPlan, means: Integers, bits: Bits, draws: int
    ) -> tuple[Integers, Integers]:
        """Intervals between the ranks q K, rounded to whole ranks."""
        low = (means.size + 5) // 10
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))


class EpsQuantile(ProjectedMean):
    """Projection between the ceil(2/eps)-th smallest and largest array mean (after Amin et al.,
    ICML 2019, Section 3).

    >>> import os
    >>> plan = EpsQuantile().plan(SamplesPerPlate(np.full(100, 1)), Cost("pure", 10**12), Range(0, 100), "best-fit")
    >>> low, high = EpsQuantile().intervals(plan, np.arange(100), os.urandom, draws=1)
    >>> bool(low[0] <= 2 and 97 <= high[0] <= 101)  # at so large a cost the choice is nearly exact
    True
    """

    name = "eps-quantile"

    def intervals(
        self, plan: MeanPlan, means: Integers, bits: Bits, draws: int
    ) -> tuple[Integers, Integers]:
        """Intervals between these ranks; with fewer than 2 ceil(2/eps) arrays both ends aim at the
        median."""
        over, under = noise_of(plan.cost).unit_scale(plan.cost)
        low = min(-(-2 * over // under), means.size // 2)
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))


# The worst-case optimum with a public fill (ours; the papers' rule is arXiv 2405.06261's E(m)).
#
# Every plate gives its first min(m_l, m) samples; the M - sum G_l that are dropped are replaced by
# a public constant c, counted from the range's low end like the samples: (sum of kept + c *
# dropped) / M.
#
# * Sensitivity of the sum: U max G_l = U m; plate l moves it by U G_l.
# * Worst-case bias: max(c, U - c) (1 - sum G_l / M), reached when all dropped samples are at the
#   low or the high end.
# * So the worst-case error is E(m) = w (1 - sum G_l / M) + U m / (M eps), with w = max(c, U - c).
#   Its slope at m is (-w #{l: m_l > m} + U / eps) / M: it falls while more than U / (w eps) plates
#   exceed m, and rises after. The minimiser is therefore the k-th largest count, k = ceil(U / (w
#   eps)); for c = U/2 that is the ceil(2/eps)-th largest. Under rho the expected size of noise for
#   a sensitivity of 1, 1 / sqrt(pi rho), stands for 1 / eps.


class OptimalCappedSum(CappedSum):
    """Capped sum with a public fill. With fewer than k plates the constant alone would be better in
    the worst case.

    In that case the cap is the smallest count; the error bound then exceeds `max(c, U - c)`.

    >>> counts = SamplesPerPlate(np.array([9, 3, 3, 1]))
    >>> plan = OptimalCappedSum().plan(counts, Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> plan.cap, plan.used_samples, plan.fill, plan.bias_bound  # the second largest count; 6 of 16 are filled by 50
    (3, 10, 50, 18.75)
    """

    name = "optimal"

    def plan(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int | None = None,
    ) -> MeanPlan:
        """Plan that fills with the middle of the range, the constant whose worst error is least
        when nothing is known."""
        del grouping
        return self.plan_with_fill(counts, cost, range, range.low + range.width // 2, cap)

    def plan_with_fill(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, fill: int, cap: int | None = None
    ) -> MeanPlan:
        """Plan with this fill (in the range, public: a constant or an old release), by default at
        its cap of least worst-case error."""
        above = fill - range.low
        width = range.width
        if cap is None:
            noise = noise_of(cost)
            over, under = noise.unit_scale(cost)
            # the noise's expected size for each of its scale: 1 for Laplace's
            size, by = noise.expected_abs(1.0).as_integer_ratio()
            # in integers: rounding must not decide which plate's count is the cap
            k = -(-width * over * size // (max(above, width - above) * under * by))
            cap = int(counts.descending[min(k, counts.plates) - 1])
        return self._capped(counts, cost, range, cap, above)

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        return self.plan(plan.counts, cost, plan.range, "best-fit")


MECHANISMS: dict[str, MeanMechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        Baseline(),
        ArrayAveraging(),
        Levy(),
        FixedQuantile(),
        EpsQuantile(),
        OptimalCappedSum(),
    )
}
"""Mechanisms of means by their names in the configuration."""


class Mean(Part, frozen=True):
    """The mean speed of the HAT's samples.

    `scale_kmh` is the noise's expected size. `expected_abs_error_kmh` and `interval95_kmh` count
    the noise, what grouping, capping, filling, projecting and leaving out plates that were not
    admitted are likely to bias the mean by (at speeds spread evenly over [0, max_kmh]), and that
    means lie in [0, max_kmh]. `bias_bound_kmh` is the most that all this can bias the mean if
    speeds were chosen against it. Where losses are counted in rho, `epsilon` is that of pure noise
    that would cost as much (rho is half of its square), here and in the other statistics.

    >>> from udp_stream.release.record import Release
    >>> from udp_stream.testing import released_slot
    >>> mean = Release.decode(next(iter(released_slot().payloads.values()))).mean
    >>> mean.interval95_kmh[0] <= mean.value_kmh <= mean.interval95_kmh[1], mean.epsilon
    (True, 0.5)
    """

    value_kmh: NonNegative
    """The private mean, km/h, in [0, max_kmh]."""
    mechanism: str
    """Name of the mechanism."""
    grouping: Grouping | None
    """Way in which samples were put into arrays, where the mechanism does."""
    epsilon: Positive
    """Largest charge to a plate of the HAT for it."""
    scale_kmh: NonNegative
    """Expected size of its noise, km/h."""
    expected_abs_error_kmh: NonNegative
    """Expected distance from the HAT's true mean, km/h."""
    interval95_kmh: tuple[NonNegative, NonNegative]
    """From and to: 95 % of true means lie in such an interval, where the model holds."""
    bias_bound_kmh: NonNegative
    """Most that it can be off without noise, if speeds were chosen against it: for readers who
    trust no model of speeds, as the other errors need one; U for a mean around forecasts."""


def mean_columns(mechanism: str, noise: float, error: float, bound: float) -> list[tuple[str, str]]:
    """A mean in the table of `udp-stream plan`, from quanta."""
    names = ("noise km/h", noise), ("expected error", error), ("error bound", bound)
    return [
        ("mechanism", mechanism),
        *((name, f"{quanta / QUANTA_PER_KMH:.2f}") for name, quanta in names),
    ]
