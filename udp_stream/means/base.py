"""What the mean mechanisms share: their plan, their query, and the projections of array means.

Privacy unit: license plate. Neighbours: swap-values (same plates, same counts, one plate's speeds differ). Assumed of
the input: integer speeds in 0..U quanta, users and counts as in the plan. Guaranteed: the query's statistic changes by
at most `sensitivity` when one plate's speeds change, and the interval it may have used cost `interval_epsilon_nano`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.grouping import Arrays, HatCounts, within_cap
from udp_stream.ports import Bits
from udp_stream.units import NANO

Integers = NDArray[np.int64]

Grouping = Literal["best-fit", "wrap-around"]


@dataclass(frozen=True, slots=True)
class MeanPlan:
    """How one HAT's mean will be taken, from counts, epsilon and U only; speeds in quanta.

    The estimate is (statistic + noise) / divisor. `sensitivity` is the statistic's for a plate, before any private
    interval narrows it; `noise_epsilon_nano` is what the final noise may spend, the rest of `epsilon_nano` pays for
    the interval. `bias_bound` is the worst over all speeds in [0, U] of |estimate without noise - sample mean|;
    `expected_bias` is what a public fill is expected to be off by if nothing is known of the dropped samples' mean.
    """

    mechanism: str
    grouping: Grouping | None
    counts: HatCounts
    max_speed: int
    epsilon_nano: int
    noise_epsilon_nano: int
    cap: int
    divisor: int
    sensitivity: int
    bias_bound: float
    fill: int = 0
    expected_bias: float = 0.0
    arrays: Arrays | None = None

    @property
    def noise_bound(self) -> float:
        """Expected absolute noise in quanta, at the sensitivity above: E|Lap(b)| = b."""
        return self.sensitivity * NANO / self.noise_epsilon_nano / self.divisor

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: what counts alone can promise."""
        return self.bias_bound + self.noise_bound

    @property
    def used_samples(self) -> int:
        """How many samples enter the statistic."""
        if self.grouping == "wrap-around":
            return self.divisor if self.mechanism == "array-averaging" else self.divisor * self.cap
        return self.counts.kept(self.cap)


@dataclass(frozen=True, slots=True)
class MeanQuery:
    """The integer to which noise is added, and how far one plate can move it."""

    statistic: int
    sensitivity: int


class MeanMechanism(Protocol):
    """One way of taking a mean."""

    @property
    def name(self) -> str:
        """As in the configuration and in release records."""
        ...

    def plan(self, counts: HatCounts, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:
        """Fix everything that counts can fix."""
        ...

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The statistic of the samples (user by user, in the order of the counts); bits pay for private intervals."""
        ...


def array_means(plan: MeanPlan, samples: Integers) -> Integers:
    """Means of the BestFit arrays over their filled positions, floored to whole quanta; in 0..U like the samples."""
    if plan.arrays is None:
        raise ValueError("expected a plan with arrays")
    kept = samples[within_cap(plan.counts, plan.cap)]
    array_of_sample = np.repeat(plan.arrays.of_user, np.minimum(plan.counts.by_user, plan.cap))
    # weighted bincount adds doubles: exact, as the sums stay far below 2**53 quanta
    sums = np.bincount(array_of_sample, weights=kept, minlength=plan.arrays.count).astype(np.int64)
    return sums // plan.arrays.filled
