"""What Levy and the two quantile mechanisms share: a private interval, then the mean of array means projected to it.

Half of epsilon buys the interval [a, b]; the array means are projected to it, so that each of the arrays a plate
touches (BestFit: one; WrapAround: two) moves the sum by at most b - a; half of epsilon is for that sum's noise.
Counts alone can promise nothing about an interval that speeds choose: the bias bound is U.

Every plate is charged in full. The interval's choice goes by ranks, which count arrays: however few of an array's
samples are a plate's, it may carry the array's mean past any rank. And for the sum, a plate with n of w samples moves
its array's projected mean by min(b - a, U n / w), where the interval is not known when the plates are charged and may
be as narrow as U n / w, or narrower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
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


def plan_projected(
    name: str, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping, cap: int | None = None
) -> MeanPlan:
    """A plan with this cap, else the one that maximises sum min(m_l, m) / sqrt(m) (arXiv 2401.15906, equation 1)."""
    cap = levy_cap(counts) if cap is None else cap
    arrays = best_fit(counts, cap) if grouping == "best-fit" else None
    count = wrap_around_count(counts, cap) if arrays is None else arrays.count
    return MeanPlan(
        mechanism=name,
        grouping=grouping,
        counts=counts,
        max_speed=max_speed,
        epsilon_nano=epsilon_nano,
        noise_epsilon_nano=epsilon_nano - epsilon_nano // 2,
        cap=cap,
        given=wrap_around_given(counts, cap) if arrays is None else np.minimum(counts.by_plate, cap),
        moves=None,
        divisor=count,
        sensitivity=max_speed * touched(grouping),
        bias_bound=float(max_speed),
        arrays=arrays,
    )


class Projected(ABC):
    """The mechanisms that project: the same cap and grouping for all, every plate charged in full.

    Each has its own private interval, for half of epsilon.
    """

    name: str

    @abstractmethod
    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """The lower and upper ends, in 0..U, of that many independent intervals; each costs half of epsilon."""

    def plan(self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:
        """Cap by the paper's equation 1."""
        return plan_projected(self.name, counts, epsilon_nano, max_speed, grouping)

    def plan_with_cap(
        self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """Another cap."""
        return plan_projected(self.name, counts, epsilon_nano, max_speed, grouping, cap)

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """A new plan for the admitted plates alone: each has been charged in full, so any will do."""
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        return self.plan(counts, plan.epsilon_nano, plan.max_speed, plan.grouping or "best-fit")

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The sum of the array means projected to one private interval."""
        means = means_of_arrays(plan, samples)
        low, high = self.intervals(plan, means, bits, draws=1)
        sums, sensitivities = projected_queries(plan, means, low, high)
        return MeanQuery(int(sums[0]), int(sensitivities[0]), (int(low[0]), int(high[0])))


def levy_cap(counts: SamplesPerPlate) -> int:
    """argmax over the counts of sum_l min(m_l, m) / sqrt(m); between counts the sum is linear, so no other m is better.

    Between two neighbouring counts the objective is (A + B m) / sqrt(m), whose only stationary point is a minimum.
    """
    score = counts.kept_at_every_count / np.sqrt(counts.descending)
    return int(counts.descending[int(np.argmax(score))])


def touched(grouping: Grouping | None) -> int:
    """How many arrays a plate can touch."""
    return 2 if grouping == "wrap-around" else 1


def means_of_arrays(plan: MeanPlan, samples: Integers) -> Integers:
    """The array means under either grouping, in whole quanta 0..U."""
    if plan.arrays is not None:
        return array_means(plan, samples)
    poured = samples[wrap_around_positions(plan.counts, plan.cap)].reshape(-1, plan.cap)
    means: Integers = poured.sum(axis=1) // plan.cap
    return means


def projected_queries(plan: MeanPlan, means: Integers, low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """The sum of the means projected to each [low, high], and its sensitivity: at least one quantum, to draw noise."""
    ascending = np.sort(means)
    upto = np.append(0, np.cumsum(ascending))
    below, through = np.searchsorted(ascending, low), np.searchsorted(ascending, high, side="right")
    sums = low * below + (upto[through] - upto[below]) + high * (means.size - through)
    return sums, np.maximum(1, (high - low) * touched(plan.grouping))
