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

    >>> import os
    >>> values = np.full(100, 30)
    >>> private_quantiles(os.urandom, values, rank=50, width=60, moved=1, cost=Cost("pure", 10**11), draws=4).size
    4
    """
    # between two cuts every point has the same number of values at or below it
    # The last cut is behind `width`, which is a point too.
    cuts = np.concatenate(([0], np.sort(values), [width + 1]))
    sizes = np.diff(cuts)
    penalties = np.abs(np.arange(sizes.size) - rank).tolist()
    chosen = exponential_choices(bits, penalties, sizes.tolist(), values.size, moved, cost, draws)
    return np.array([int(cuts[interval]) + randbelow(bits, int(sizes[interval])) for interval in chosen])


def quantile_intervals(
    plan: MeanPlan, means: Integers, bits: Bits, draws: int, ranks: tuple[int, int]
) -> tuple[Integers, Integers]:
    """Half of the interval's cost for each end; crossed ends are ordered.

    >>> import os
    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.range import Range
    >>> counts = SamplesPerPlate(np.full(8, 2))
    >>> plan = FixedQuantile().plan(counts, Cost("pure", 10**9), Range(0, 60), "best-fit")
    >>> low, high = quantile_intervals(plan, np.full(8, 30), os.urandom, draws=3, ranks=(1, 7))
    >>> bool((0 <= low).all() and (low <= high).all() and (high <= 60).all())
    True
    """
    moved, whole = touched(plan.grouping), interval_cost(plan.cost)
    # Rounded down: both ends together cost no more than the interval may.
    cost = whole.with_nano(whole.nano // 2)
    one, other = (private_quantiles(bits, means, rank, plan.range.width, moved, cost, draws) for rank in ranks)
    return np.minimum(one, other), np.maximum(one, other)


class FixedQuantile(Projected):
    """Between the 0.1 and 0.9 quantiles of the array means.

    >>> import os
    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.range import Range
    >>> plan = FixedQuantile().plan(SamplesPerPlate(np.full(100, 1)), Cost("pure", 10**12), Range(0, 100), "best-fit")
    >>> low, high = FixedQuantile().intervals(plan, np.arange(100), os.urandom, draws=1)
    >>> bool(8 <= low[0] <= 11 and 88 <= high[0] <= 91)  # at so large a cost the choice is nearly exact
    True
    """

    name = "fixed-quantile"

    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """Ranks q K rounded to whole ones."""
        low = (means.size + 5) // 10
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))


class EpsQuantile(Projected):
    """Between the ceil(2/eps)-th smallest and largest array mean (after Amin et al., ICML 2019, Section 3).

    >>> import os
    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.range import Range
    >>> plan = EpsQuantile().plan(SamplesPerPlate(np.full(100, 1)), Cost("pure", 10**12), Range(0, 100), "best-fit")
    >>> low, high = EpsQuantile().intervals(plan, np.arange(100), os.urandom, draws=1)
    >>> bool(low[0] <= 2 and 97 <= high[0] <= 101)  # at so large a cost the choice is nearly exact
    True
    """

    name = "eps-quantile"

    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """With fewer than 2 ceil(2/eps) arrays both ends aim at the median."""
        over, under = noise_of(plan.cost).unit_scale(plan.cost)
        low = min(-(-2 * over // under), means.size // 2)
        return quantile_intervals(plan, means, bits, draws, (low, means.size - low))
