"""AboveThreshold in integers: of counts, one a slot, the first that is above a public threshold. No verb asks it yet.

Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014), Algorithm 1, with the split of the price
that errs least (Lyu, Su and Li, *Understanding the Sparse Vector Technique*, 2017). It is for the number of plates
whose speeds fit another unit than the one set (`windows/unit_votes.py`), against half of the plates that are asked.

Privacy unit: license plate. Neighbours: swap-values. Assumed: a plate moves each count by at most one, thresholds are
public. Guarantee: all answers until the first `above`, together, are epsilon-private, in epsilon = first + each. They
cost no more however many slots there are; after `above` nothing more may be answered.

*Proof.* R is the noise of the threshold, discrete Laplace of scale 1/first, and N(i) that of the i-th count, of scale
2/each. Write e(i) = count(i) - threshold(i). The output "above first at k" says that e(i) + N(i) < R for all i < k, and
e(k) + N(k) >= R. Fix N(i) for i < k, and let M be the largest e(i) + N(i) of them: the output is M < R <= e(k) + N(k).
For a neighbour, M' <= M + 1 and e'(k) >= e(k) - 1. So where (R, N(k)) gives the output, (R + 1, N(k) + 2) gives it for
the neighbour: M' <= M + 1 < R + 1 <= e(k) + N(k) + 1 <= e'(k) + N(k) + 2. That map is one to one on the integers, and
R + 1 is less likely than R by a factor of at most exp(first), N(k) + 2 than N(k) of exp(each). Summed over all
(R, N(k)), then over the other N(i), the output is less likely by at most exp(first + each). "Never above" needs R + 1
alone.

An epsilon-private mechanism costs at most a rho of epsilon squared / 2 (Bun and Steinke 2016, Proposition 1.4).

**What no mechanism can do at a price.** If n plates change unit together, any epsilon-private rule that stops an
ordinary period with probability p stops this one with at most p exp(n epsilon) (group privacy). At a hundredth of the
default budget, epsilon 0.17, n = 20 and p = 1e-4 that is below 1 in 300: `most_told`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, floor, isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.samplers import SCALE_MAX, discrete_laplace
from udp_stream.units import NANO

PARTS = 100
"""Scales are whole numbers of hundredths."""

FIRST_SHARE = 0.387
"""Of epsilon, for the threshold: 1 / (1 + 2^(2/3)), at which the variance of R - N is least."""


def epsilon_nano_of(cost: Cost) -> int:
    """The largest pure epsilon that a cost pays for, in nano-units, rounded down."""
    return cost.nano if cost.measure == "pure" else isqrt(2 * cost.nano * NANO)


class AboveThreshold(NamedTuple):
    """Scales of the noise of the threshold and of each count, in `PARTS`, rounded up, for counts that a plate moves by
    one.

    >>> AboveThreshold.at(Cost("pure", NANO)), AboveThreshold.at(Cost("zcdp", NANO // 2)).epsilon <= 1
    (AboveThreshold(threshold=259, answer=327), True)
    """

    threshold: int
    answer: int

    @classmethod
    def at(cls, cost: Cost) -> AboveThreshold:
        """ValueError where noise would be too large to draw."""
        nano = epsilon_nano_of(cost)
        first = max(1, floor(nano * FIRST_SHARE))
        found = cls(-(-PARTS * NANO // first), -(-2 * PARTS * NANO // max(1, nano - first)))
        if max(found) > SCALE_MAX:
            raise ValueError(f"expected a cost at which noise can be drawn, got {cost.nano} nano-units")
        return found

    @property
    def epsilon(self) -> float:
        """What all answers together let a plate lose."""
        return PARTS / self.threshold + 2 * PARTS / self.answer

    def draw_threshold(self, bits: Bits) -> int:
        """R: drawn once, before the first count."""
        return int(discrete_laplace(bits, np.array([self.threshold]), PARTS)[0])

    def is_above(self, excess: int, threshold_noise: int, bits: Bits) -> bool:
        """The answer for a count that exceeds its threshold by so much: drawn once."""
        return excess + int(discrete_laplace(bits, np.array([self.answer]), PARTS)[0]) >= threshold_noise

    def first_above(self, excesses: Sequence[int]) -> NDArray[np.float64]:
        """The probability that each of these is the first above; behind them, that none is. To 1e-12."""
        reach = 30 * self.threshold // PARTS + 30
        noise = np.arange(-reach, reach + 1)
        going = _laplace(noise, self.threshold / PARTS)
        found = []
        for excess in excesses:
            below = _below(noise - excess, self.answer / PARTS)
            found.append(float((going * (1 - below)).sum()))
            going = going * below
        return np.array([*found, float(going.sum())])


def most_told(epsilon: float, plates: int, stopped: float) -> float:
    """The most that any epsilon-private rule, which stops ordinary periods this often, stops those in which so many
    plates change.

    >>> most_told(0.17, 20, 1e-4) < 1 / 300
    True
    """
    return min(1.0, stopped * exp(plates * epsilon))


def _laplace(x: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    r = exp(-1 / scale)
    found: NDArray[np.float64] = (1 - r) / (1 + r) * np.exp(-np.abs(x) / scale)
    return found


def _below(x: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """P(N < x)."""
    r = exp(-1 / scale)
    low = np.exp((np.minimum(x, 0) - 1) / scale) / (1 + r)
    high = 1 - np.exp(-np.maximum(x, 1) / scale) / (1 + r)
    return np.where(x <= 0, low, high)
