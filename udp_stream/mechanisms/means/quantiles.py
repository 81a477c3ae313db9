"""FixedQuantile and eps-DependentQuantile: array means projected between two private quantiles.

Sources: arXiv 2401.15906, Section III-E; the quantiles by Smith's interval mechanism (STOC 2011, Algorithm 2).
"""

from __future__ import annotations

import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.means._projected import Projected, touched
from udp_stream.mechanisms.means.base import Integers, MeanPlan
from udp_stream.mechanisms.noise import exponential_choices, randbelow
from udp_stream.units import NANO


def private_quantiles(
    bits: Bits, values: Integers, rank: int, max_speed: int, epsilon_nano: int, draws: int
) -> Integers:
    """Lattice points of 0..U with about `rank` of the values at or below them, each eps-DP if one value may change.

    Every point v has the cost |#{values <= v} - rank|, which one value moves by at most one; points are chosen by the
    exponential mechanism. Points between neighbouring values share their cost, so an interval is drawn by its length
    times its weight, then a point in it evenly.
    """
    cuts = np.concatenate(([0], np.sort(values), [max_speed + 1]))
    sizes = np.diff(cuts)
    costs = np.abs(np.arange(sizes.size) - rank)
    chosen = exponential_choices(bits, costs.tolist(), sizes.tolist(), values.size, epsilon_nano, draws)
    return np.array([int(cuts[interval]) + randbelow(bits, int(sizes[interval])) for interval in chosen])


def quantile_intervals(
    plan: MeanPlan, means: Integers, bits: Bits, draws: int, ranks: tuple[int, int]
) -> tuple[Integers, Integers]:
    """A quarter of epsilon for each end (halved again if a plate touches two arrays); crossed ends are ordered."""
    epsilon_nano = plan.epsilon_nano // 4 // touched(plan.grouping)
    one, other = (private_quantiles(bits, means, rank, plan.max_speed, epsilon_nano, draws) for rank in ranks)
    return np.minimum(one, other), np.maximum(one, other)


class FixedQuantile(Projected):
    """Between the 0.1 and 0.9 quantiles of the array means."""

    name = "fixed-quantile"

    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """Ranks q K rounded to whole ones."""
        low = (means.size + 5) // 10
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))


class EpsQuantile(Projected):
    """Between the ceil(2/eps)-th smallest and largest array mean (after Amin et al., ICML 2019, Section 3)."""

    name = "eps-quantile"

    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """With fewer than 2 ceil(2/eps) arrays both ends aim at the median."""
        low = min(-(-2 * NANO // plan.epsilon_nano), means.size // 2)
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))
