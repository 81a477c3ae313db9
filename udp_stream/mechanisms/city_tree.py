"""The city's tree: the share of a slot's plates in each of some unequal bins of speed, one level.

Not from a paper; the tree of height 1 of arXiv 2409.18573 (`cdf.py`), which errs least at the 100
to 200 plates of a city, with a plate's samples weighed. With m_l samples of plate l in the whole
slot, and q_l = floor(2^16 min(m_l, 10) / (10 m_l)), the statistic has for each bin

    sum over plates of q_l * (samples of plate l in the bin)

so a plate counts by what ten samples tell at most. Whole numbers: sums of parts of a slot add up to
those of the whole.

Privacy unit: license plate. Neighbours: swap-values. Assumed: counts are public, and a plate keeps
its m_l samples. Swapping its values moves them from bins to bins: at most all of its weight w_l =
q_l m_l leaves bins, and as much enters others. So the vector moves by at most 2 w_l in l1 and
sqrt(2) w_l in l2, which is what noise for counts of w_l samples is made for (`noise.counts_scale`).
With noise for the largest weight, plate l loses the cost times w_l / max w in epsilon, times its
square in rho (arXiv 2004.00010, Theorem 14), and is charged that, rounded up. Plates that cannot
pay are left out, and the noise stays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from udp_stream.arrays import Integers
from udp_stream.mechanisms.base import Query
from udp_stream.mechanisms.cdf import Bins
from udp_stream.mechanisms.noise import Cost, counts_scale, noise_of
from udp_stream.units import QUANTA_PER_KMH

CITY_KMH: Final = (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 27.0, 35.0, 45.0, 60.0)
"""Right edges of the bins below U, the first of which has exact zeros; U is the last."""

WHOLE: Final = 2**16
"""Weight of a plate of `FULL_PINGS` samples, before rounding."""

FULL_PINGS: Final = 10
"""Samples of a plate from which it has full weight; fewer weigh in proportion."""


@lru_cache(maxsize=16)
def city_bins(max_speed: int) -> Bins:
    """The bins up to U, in quanta."""
    max_kmh = max_speed / QUANTA_PER_KMH
    return Bins((0.0, *(edge for edge in CITY_KMH if edge < max_kmh), max_kmh))


class CityTree(msgspec.Struct, frozen=True):
    """Public parameters of the sums and their noise, beside weights and speeds.

    `most` is the largest weight of a plate, `max_speed` U in quanta.

    >>> tree = CityTree(Cost("pure", 5 * 10**8), most=WHOLE, max_speed=65 * 4096)
    >>> tree.charges(np.array([0, WHOLE // 2, WHOLE])).tolist(), tree.bins.count
    ([0, 250000000, 500000000], 12)
    """

    cost: Cost
    most: int
    max_speed: int

    @property
    def bins(self) -> Bins:
        return city_bins(self.max_speed)

    @property
    def is_drawable(self) -> bool:
        try:
            counts_scale(self.most, self.cost)
        except ValueError:
            return False
        return True

    @property
    def noise_variance(self) -> float:
        t, s = counts_scale(self.most, self.cost)
        return noise_of(self.cost).expected_square(t / s)

    def charges(self, weights: Integers) -> Integers:
        """Loss of plates of these weights, nano-units rounded up, shape (plates,)."""
        return noise_of(self.cost).charges(weights, self.most, self.cost)

    def query(self, sums: Integers) -> Query:
        """The sums of the whole slot, with the scale of each sum's noise; ValueError for others."""
        if sums.shape != (self.bins.count,):
            raise ValueError(f"expected {self.bins.count} sums, got {sums.shape}")
        t, s = counts_scale(self.most, self.cost)
        return Query(sums, np.full(sums.size, t), np.full(sums.size, s))


def sample_weights(count: Integers, plate: Integers) -> Integers:
    """Weight of each sample of a row; a row is a plate with `count` samples in a HAT of the
    slot."""
    of_plate = np.bincount(plate, weights=count, minlength=1).astype(np.int64)[plate]
    weights: Integers = WHOLE * np.minimum(of_plate, FULL_PINGS) // (FULL_PINGS * of_plate)
    return weights


def city_sums(tree: CityTree, speed: Integers, starts: Integers, weights: Integers) -> Integers:
    """Sums over rows, of which the r-th has the speeds `starts[r]` to `starts[r + 1]` in quanta,
    shape (bins,). Secret."""
    of_sample = np.repeat(weights, np.diff(starts))
    sums = np.zeros(tree.bins.count, np.int64)
    np.add.at(sums, tree.bins.bin_of(speed[starts[0] : starts[-1]]), of_sample)
    return sums
