"""FixedQuantile and eps-DependentQuantile: array means projected between two private quantiles.

Sources: arXiv 2401.15906, Section III-E; the quantiles by Smith's interval mechanism (STOC 2011, Algorithm 2).
"""

from __future__ import annotations

import numpy as np

from udp_stream.means._projected import Projected, means_of_arrays, projected_query, touched
from udp_stream.means.base import Integers, MeanPlan, MeanQuery
from udp_stream.noise import exponential_choice, randbelow
from udp_stream.ports import Bits
from udp_stream.units import NANO


def private_quantile(bits: Bits, values: Integers, rank: int, max_speed: int, epsilon_nano: int) -> int:
    """A lattice point of 0..U with about `rank` of the values at or below it, eps-DP if one value may change.

    Every point v has the cost |#{values <= v} - rank|, which one value moves by at most one; points are chosen by the
    exponential mechanism. Points between neighbouring values share their cost, so an interval is drawn by its length
    times its weight, then a point in it evenly.
    """
    cuts = np.concatenate(([0], np.sort(values), [max_speed + 1]))
    sizes = np.diff(cuts)
    costs = np.abs(np.arange(sizes.size) - rank)
    interval = exponential_choice(bits, costs.tolist(), sizes.tolist(), epsilon_nano)
    return int(cuts[interval]) + randbelow(bits, int(sizes[interval]))


def quantile_query(plan: MeanPlan, samples: Integers, bits: Bits, low_rank: int, high_rank: int) -> MeanQuery:
    """A quarter of epsilon for each end (halved again if a plate touches two arrays); crossed ends are ordered."""
    means = means_of_arrays(plan, samples)
    epsilon_nano = plan.epsilon_nano // 4 // touched(plan.grouping)
    ends = [private_quantile(bits, means, rank, plan.max_speed, epsilon_nano) for rank in (low_rank, high_rank)]
    return projected_query(plan, means, min(ends), max(ends))


class FixedQuantile(Projected):
    """Between the 0.1 and 0.9 quantiles of the array means."""

    name = "fixed-quantile"

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """Ranks q K rounded to whole ones."""
        arrays = int(plan.divisor)
        low = (arrays + 5) // 10
        return quantile_query(plan, samples, bits, low, arrays - low)


class EpsQuantile(Projected):
    """Between the ceil(2/eps)-th smallest and largest array mean (after Amin et al., ICML 2019, Section 3)."""

    name = "eps-quantile"

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """With fewer than 2 ceil(2/eps) arrays both ends aim at the median."""
        arrays = int(plan.divisor)
        low = min(-(-2 * NANO // plan.epsilon_nano), arrays // 2)
        return quantile_query(plan, samples, bits, low, arrays - low)
