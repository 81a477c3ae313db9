"""FixedQuantile and eps-DependentQuantile: array means projected between two private quantiles.

Sources: arXiv 2401.15906, Section III-E; the quantiles by Smith's interval mechanism (STOC 2011, Algorithm 2).
"""

from __future__ import annotations

import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.means._projected import Projected, interval_cost, touched
from udp_stream.mechanisms.means.base import Integers, MeanPlan
from udp_stream.mechanisms.noise import Cost, noise_of
from udp_stream.mechanisms.noise.exponential import exponential_choices
from udp_stream.mechanisms.noise.uniform import randbelow


def private_quantiles(
    bits: Bits, values: Integers, rank: int, width: int, moved: int, cost: Cost, draws: int
) -> Integers:
    """Lattice points of 0..width with about `rank` of the values at or below them, each at `cost`.

    Every point v has the penalty |#{values <= v} - rank|, which a plate that touches `moved` values moves by at most
    that; points are chosen by the exponential mechanism. Points between neighbouring values share their penalty, so an
    interval is drawn by its length times its weight, then a point in it evenly.
    """
    cuts = np.concatenate(([0], np.sort(values), [width + 1]))
    sizes = np.diff(cuts)
    penalties = np.abs(np.arange(sizes.size) - rank).tolist()
    chosen = exponential_choices(bits, penalties, sizes.tolist(), values.size, moved, cost, draws)
    return np.array([int(cuts[interval]) + randbelow(bits, int(sizes[interval])) for interval in chosen])


def quantile_intervals(
    plan: MeanPlan, means: Integers, bits: Bits, draws: int, ranks: tuple[int, int]
) -> tuple[Integers, Integers]:
    """Half of the interval's cost for each end; crossed ends are ordered."""
    moved, whole = touched(plan.grouping), interval_cost(plan.cost)
    cost = whole.with_nano(whole.nano // 2)
    one, other = (private_quantiles(bits, means, rank, plan.range.width, moved, cost, draws) for rank in ranks)
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
        over, under = noise_of(plan.cost).unit_scale(plan.cost)
        low = min(-(-2 * over // under), means.size // 2)
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))
