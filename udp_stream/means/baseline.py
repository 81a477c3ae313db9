"""Baseline: the plain sample mean plus noise for its full sensitivity (arXiv 2401.15906, Section III-B)."""

from __future__ import annotations

from udp_stream.grouping import HatCounts
from udp_stream.means.base import Grouping, Integers, MeanPlan, MeanQuery
from udp_stream.ports import Bits


class Baseline:
    """Sum of all samples over M.

    Sensitivity of the sum: U m_max, since the plate with most samples can move each of them by U. No bias; the
    expected absolute error is exactly U m_max / (M eps).
    """

    name = "baseline"

    def plan(self, counts: HatCounts, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:  # noqa: ARG002
        """Baseline has no parameters; it does not group."""
        return MeanPlan(
            mechanism=self.name,
            grouping=None,
            counts=counts,
            max_speed=max_speed,
            epsilon_nano=epsilon_nano,
            noise_epsilon_nano=epsilon_nano,
            cap=counts.largest,
            divisor=counts.total,
            sensitivity=max_speed * counts.largest,
            bias_bound=0.0,
        )

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the samples."""
        return MeanQuery(int(samples.sum()), plan.sensitivity)
