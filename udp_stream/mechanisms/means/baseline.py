"""Baseline: the plain sample mean plus noise for its full sensitivity (arXiv 2401.15906, Section III-B)."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means.base import Grouping, Integers, MeanPlan, MeanQuery, narrowed
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.range import Range


class Baseline:
    """Sum of all samples over M.

    Sensitivity of the sum: U m_max, since the plate with most samples can move each of them by U; plate l moves it by
    U m_l. No bias; the expected absolute error is exactly U m_max / (M eps).

    >>> plan = Baseline().plan(SamplesPerPlate(np.array([2, 1])), Cost("pure", 10**9), Range(10, 110), "best-fit")
    >>> plan.sensitivity, plan.divisor, Baseline().query(plan, np.array([10, 40, 70]), bytes).statistic
    (200, 3, 90)
    """

    name = "baseline"

    def plan(self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping) -> MeanPlan:  # noqa: ARG002
        """Baseline has no parameters; it does not group."""
        return MeanPlan(
            mechanism=self.name,
            grouping=None,
            counts=counts,
            range=range,
            cost=cost,
            noise_cost=cost,
            cap=counts.largest,
            given=counts.by_plate,
            moves=range.width * counts.by_plate,
            divisor=counts.total,
            sensitivity=range.width * counts.largest,
            bias_bound=0.0,
        )

    def plan_with_cap(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,
        cap: int,  # noqa: ARG002
    ) -> MeanPlan:
        """It does not cap either: every plate gives all of its samples."""
        return self.plan(counts, cost, range, grouping)

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """Nothing but the noise depends on the cost."""
        return replace(plan, cost=cost, noise_cost=cost)

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The sum of fewer plates, over fewer samples."""
        return narrowed(plan, admitted, divisor=int(plan.given[admitted].sum()))

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the samples, each above the low end."""
        return MeanQuery(int(plan.range.above_low(samples).sum()), plan.sensitivity)
