"""What Levy and the two quantile mechanisms share: a private interval, then the mean of array means projected to it.

Half of the cost buys the interval [a, b]; the array means are projected to it, so that each of the arrays a plate
touches (BestFit: one; WrapAround: two) moves the sum by at most b - a; half of it is for that sum's noise.
Counts alone can promise nothing about an interval that speeds choose: the bias bound is U.

Every plate is charged in full. The interval's choice goes by ranks, which count arrays: however few of an array's
samples are a plate's, it may carry the array's mean past any rank. And for the sum, a plate with n of w samples moves
its array's projected mean by min(b - a, U n / w), where the interval is not known when the plates are charged and may
be as narrow as U n / w, or narrower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import (
    SamplesPerPlate,
    best_fit,
    wrap_around_count,
    wrap_around_given,
    wrap_around_positions,
)
from udp_stream.mechanisms.means.base import Grouping, Integers, MeanPlan, MeanQuery, array_means
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.range import Range


def plan_projected(
    name: str, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, cap: int | None = None
) -> MeanPlan:
    """A plan with this cap, else the one that maximises sum min(m_l, m) / sqrt(m) (arXiv 2401.15906, equation 1).

    >>> counts = SamplesPerPlate(np.array([4, 4, 2]))
    >>> plan = plan_projected("levy", counts, Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> plan.cap, plan.divisor, plan.sensitivity, plan.noise_cost.nano, plan.moves is None
    (4, 3, 100, 500000000, True)
    """
    cap = levy_cap(counts) if cap is None else cap
    arrays = best_fit(counts, cap) if grouping == "best-fit" else None
    count = wrap_around_count(counts, cap) if arrays is None else arrays.count
    return MeanPlan(
        mechanism=name,
        grouping=grouping,
        counts=counts,
        range=range,
        cost=cost,
        noise_cost=noise_cost(cost),
        cap=cap,
        given=wrap_around_given(counts, cap) if arrays is None else np.minimum(counts.by_plate, cap),
        moves=None,
        divisor=count,
        sensitivity=range.width * touched(grouping),
        bias_bound=float(range.width),
        arrays=arrays,
    )


def interval_cost(cost: Cost) -> Cost:
    """What of a projected mean's cost its private interval may spend: half, rounded down; the rest is the noise's.

    >>> interval_cost(Cost("pure", 5))
    Cost(measure='pure', nano=2)
    """
    return cost.with_nano(cost.nano // 2)


def noise_cost(cost: Cost) -> Cost:
    """The rest of it, which the final noise may cost.

    >>> noise_cost(Cost("pure", 5))
    Cost(measure='pure', nano=3)
    """
    return cost.with_nano(cost.nano - interval_cost(cost).nano)


class Projected(ABC):
    """The mechanisms that project: the same cap and grouping for all, every plate charged in full.

    Each has its own private interval, for half of the cost.

    >>> from udp_stream.mechanisms.means.levy import Levy
    >>> plan = Levy().plan(SamplesPerPlate(np.array([2, 2])), Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> Levy().for_admitted(plan, np.array([True, False])).charges.tolist()
    [1000000000]
    """

    name: str

    @abstractmethod
    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """The lower and upper ends, in 0..U above the range's low end, of that many independent intervals.

        Each interval costs `interval_cost`.
        """

    def plan(self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping) -> MeanPlan:
        """Cap by the paper's equation 1."""
        return plan_projected(self.name, counts, cost, range, grouping)

    def plan_with_cap(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """Another cap."""
        return plan_projected(self.name, counts, cost, range, grouping, cap)

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """Neither cap nor arrays depend on the cost."""
        return replace(plan, cost=cost, noise_cost=noise_cost(cost))

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """A new plan for the admitted plates alone: each has been charged in full, so any will do."""
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        return self.plan(counts, plan.cost, plan.range, plan.grouping or "best-fit")

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The sum of the array means projected to one private interval."""
        means = means_of_arrays(plan, samples)
        low, high = self.intervals(plan, means, bits, draws=1)
        sums, sensitivities = projected_queries(plan, means, low, high)
        at = plan.range.low
        return MeanQuery(int(sums[0]), int(sensitivities[0]), (at + int(low[0]), at + int(high[0])))


def levy_cap(counts: SamplesPerPlate) -> int:
    """argmax over the counts of sum_l min(m_l, m) / sqrt(m); between counts the sum is linear, so no other m is better.

    Between two neighbouring counts the objective is (A + B m) / sqrt(m), whose only stationary point is a minimum.

    >>> levy_cap(SamplesPerPlate(np.array([9, 4, 4, 4, 1])))  # 17 / 2 is more than 22 / 3
    4
    """
    score = counts.kept_at_every_count / np.sqrt(counts.descending)
    return int(counts.descending[int(np.argmax(score))])


def touched(grouping: Grouping | None) -> int:
    """How many arrays a plate can touch.

    >>> touched("best-fit"), touched("wrap-around")
    (1, 2)
    """
    return 2 if grouping == "wrap-around" else 1


def means_of_arrays(plan: MeanPlan, samples: Integers) -> Integers:
    """The array means under either grouping, in whole quanta above the low end, 0..U.

    >>> counts = SamplesPerPlate(np.array([2, 2]))
    >>> plan = plan_projected("levy", counts, Cost("pure", 10**9), Range(10, 100), "best-fit")
    >>> means_of_arrays(plan, np.array([10, 20, 50, 200])).tolist()  # above 10; 200 is clipped to 100
    [5, 65]
    """
    if plan.arrays is not None:
        return array_means(plan, samples)
    poured = plan.range.above_low(samples[wrap_around_positions(plan.counts, plan.cap)])
    means: Integers = poured.reshape(-1, plan.cap).sum(axis=1) // plan.cap
    return means


def projected_queries(plan: MeanPlan, means: Integers, low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """The sum of the means projected to each [low, high], and its sensitivity: at least one quantum, to draw noise.

    >>> counts = SamplesPerPlate(np.array([1, 1, 1]))
    >>> plan = plan_projected("levy", counts, Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> sums, sensitivities = projected_queries(plan, np.array([0, 50, 90]), np.array([40]), np.array([60]))
    >>> sums.tolist(), sensitivities.tolist()  # 40 + 50 + 60
    ([150], [20])
    """
    ascending = np.sort(means)
    upto = np.append(0, np.cumsum(ascending))
    below, through = np.searchsorted(ascending, low), np.searchsorted(ascending, high, side="right")
    sums = low * below + (upto[through] - upto[below]) + high * (means.size - through)
    return sums, np.maximum(1, (high - low) * touched(plan.grouping))
