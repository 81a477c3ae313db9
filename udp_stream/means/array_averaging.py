"""Array-Averaging: the mean of the array means (arXiv 2401.15906, Section III-C).

BestFit. A plate's samples lie in one array, whose mean stays in [0, U]: the sum of the K-bar array means moves by at
most U. (The means are floored to whole quanta, which keeps them in 0..U.)

WrapAround. All K arrays are full, so the mean of their means is the mean of all their samples: sum / (K m). A plate
has at most m samples there, in one array or two: the sum moves by at most U m, the mean by U / K. The papers charge
2U/K, twice what is needed, because they bound the two arrays one by one.

Bias. The estimate weighs each sample of array i by 1 / (K-bar w_i) and dropped ones by 0, the sample mean weighs all
by 1/M. The worst case over samples in [0, U] is U times the total variation between the two weightings: for BestFit
U sum_i max(0, 1/K-bar - w_i / M), for WrapAround U (1 - K m / M).
"""

from __future__ import annotations

import numpy as np

from udp_stream.grouping import HatCounts, best_fit, wrap_around_count, wrap_around_positions
from udp_stream.means.base import Grouping, Integers, MeanPlan, MeanQuery, array_means
from udp_stream.ports import Bits
from udp_stream.units import NANO


class ArrayAveraging:
    """Mean of array means; the cap is the median of the counts unless another is given."""

    name = "array-averaging"

    def plan(self, counts: HatCounts, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:
        """The papers' cap: the median, at most a factor two from the least possible noise (their Lemma III.2)."""
        return self.plan_with_cap(counts, epsilon_nano, max_speed, grouping, counts.median)

    def plan_with_cap(
        self, counts: HatCounts, epsilon_nano: int, max_speed: int, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """Array-Averaging with arrays of length `cap`, 1 <= cap <= the largest count."""
        if not 1 <= cap <= counts.largest:
            raise ValueError(f"expected 1 <= cap <= {counts.largest}, got {cap}")
        arrays = None
        if grouping == "best-fit":
            arrays = best_fit(counts, cap)
            divisor, sensitivity = arrays.count, max_speed
            excess = float(np.maximum(0.0, 1 / arrays.count - arrays.filled / counts.total).sum())
        else:
            divisor = wrap_around_count(counts, cap) * cap
            sensitivity = max_speed * cap
            excess = 1 - divisor / counts.total
        return MeanPlan(
            mechanism=self.name,
            grouping=grouping,
            counts=counts,
            max_speed=max_speed,
            epsilon_nano=epsilon_nano,
            noise_epsilon_nano=epsilon_nano,
            cap=cap,
            divisor=divisor,
            sensitivity=sensitivity,
            bias_bound=max_speed * excess,
            arrays=arrays,
        )

    def least_error(self, counts: HatCounts, epsilon_nano: int, max_speed: int, cap: int) -> float:
        """A lower bound on the BestFit plan's error bound at this cap, without packing: K-bar is at most L."""
        dropped = 1 - counts.kept(cap) / counts.total
        return max_speed * (dropped + NANO / (epsilon_nano * counts.users))

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the array means (BestFit) or of all samples in full arrays (WrapAround)."""
        if plan.grouping == "best-fit":
            return MeanQuery(int(array_means(plan, samples).sum()), plan.sensitivity)
        return MeanQuery(int(samples[wrap_around_positions(plan.counts, plan.cap)].sum()), plan.sensitivity)


def worst_case_cap(counts: HatCounts, epsilon_nano: int) -> int:
    """The count m of least E(m) = 1 - sum G_l / M + m / (eps sum G_l), the papers' worst case (arXiv 2405.06261)."""
    kept = counts.kept_at_every_count
    error = 1 - kept / counts.total + counts.descending * (NANO / epsilon_nano) / kept
    return int(counts.descending[int(np.argmin(error))])
