"""Discrete Gaussian noise: the family of zero-concentrated differential privacy (zCDP), drawn exactly.

**Loss.** Adding discrete Gaussian noise of sigma (`discrete_gaussian.py`) to integers that a plate moves by at most d
in l2 is (d / sigma)^2 / 2 - zCDP for it: Canonne, Kamath and Steinke, arXiv 2004.00010, Theorem 4 for one integer,
Theorem 14 for several. So noise of cost rho for moves of up to `most` has sigma = most / sqrt(2 rho), and a plate that
moves it by n loses rho (n / most)^2, and is charged just that. What is rounded to a lattice has moves and noise counted
in the lattice's steps, so the squares are those of steps. Losses add up under composition, also where the next query
depends on earlier answers (Bun and Steinke, arXiv 1605.02065, Lemma 2.3).

**Counts.** A plate that moves G samples changes counts by integers whose positive and negative parts add up to at most
G each, so by at most G sqrt(2) in l2, which it does where all come from one entry and go to another.

**Size.** sigma sqrt(2/pi) and sigma^2 are those of a normal variable, and the discrete one's are no larger: its
variance by the paper's Corollary 9; its mean size by Poisson's formula (docs/mechanisms/gaussian.md).
"""

from __future__ import annotations

from math import exp, hypot, isqrt, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Cost, Floats, Integers
from udp_stream.mechanisms.noise.discrete_gaussian import discrete_gaussian
from udp_stream.mechanisms.noise.normal import normal_below, normal_low_end
from udp_stream.units import NANO

_OVER = 2**64
"""Numerator of scales: at the least cost they are rounded up by one part in 2**49."""

_LEVEL_NANO_MIN = 4
"""Nano-rho that one sample's move must be charged in each level of counts: below, rounding would be most of it."""

_MEAN_SIZE = sqrt(2 / pi)
"""E|Z| of a standard normal variable Z."""


class DiscreteGaussian:
    """Gaussian noise of sigma = sensitivity / sqrt(2 rho), the sensitivity in l2. See `Noise` for what methods promise.

    >>> family, cost = DiscreteGaussian(), Cost("zcdp", 500_000_000)
    >>> over, under = family.unit_scale(cost)
    >>> over / under, family.charges(np.array([0, 1, 2]), most=2, cost=cost).tolist()
    (1.0, [0, 125000000, 500000000])
    """

    name = "discrete-gaussian"
    least_nano = 1
    power = 2

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """1 / sqrt(2 rho), rounded up.

        At one nano-rho that is 22,361: two steps of a lattice are always drawable.
        """
        return _over_root(2 * _positive(cost))

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """1 / sqrt(rho), rounded up: a sample leaves one entry and enters another, which is sqrt(2) in l2."""
        return _over_root(_positive(cost))

    def counts_drawable(self, cost: Cost) -> int:
        """The most samples of a plate at which one sample's move is charged 4 nano-rho; scales are then far below
        `SCALE_MAX`.

        Where only plates of one sample are left of all, the noise is for one sample at what that was charged.
        """
        return isqrt(cost.nano // _LEVEL_NANO_MIN)

    def charges(self, moves: NDArray[Any], most: int, cost: Cost) -> Integers:
        """rho (move / most)^2.

        >>> DiscreteGaussian().charges(np.array([0, 1, 2, 3]), most=3, cost=Cost("zcdp", 10**9)).tolist()
        [0, 111111112, 444444445, 1000000000]
        """
        # Python's integers where 64 bits could not hold the product
        exact = moves if cost.nano * most * most < 2**62 else moves.astype(object)
        charges: Integers = (-(-cost.nano * exact * exact // (most * most))).astype(np.int64, copy=False)
        return charges

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The least charge (most / move)^2 of all plates that move anything.

        >>> DiscreteGaussian().within(np.array([1, 3]), 3, np.array([100, 1000]), Cost("zcdp", 1000)).nano
        900
        """
        pairs = zip(moves.tolist(), charges.tolist(), strict=True)
        # Rounded down: the noise must cost no plate more than it was charged.
        affordable: list[int] = [charge * most**2 // move**2 for move, charge in pairs if move]
        return cost.with_nano(min([cost.nano, *affordable]))

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """sqrt(8 rho), rounded down: the exponential mechanism is epsilon-bounded-range, hence epsilon^2/8 - zCDP.

        Sources: Durfee and Rogers, arXiv 1905.04273; Cesar and Rogers, arXiv 2004.07223. `exponential.py` has the
        bounded range of its weights, docs/mechanisms/gaussian.md the proof of the rest.

        >>> DiscreteGaussian().choice_epsilon_nano(Cost("zcdp", 125_000_000))
        1000000000
        """
        return isqrt(8 * cost.nano * NANO)

    def expected_abs(self, scale: float) -> float:
        """E|N(0, sigma^2)| = sigma sqrt(2/pi); the discrete one's is less, by about one part in 12 sigma^2."""
        return _MEAN_SIZE * scale

    def expected_square(self, scale: float) -> float:
        """sigma^2; the discrete one's is no larger (arXiv 2004.00010, Corollary 9), and hardly less from sigma 1 on."""
        return scale * scale

    def error(self, size: float, spread: float) -> float:
        """Exactly: both together are normal."""
        return _MEAN_SIZE * _deviation(size, spread)

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """Twice the mean over [0, U] of E min(Z, u) for the positive part of Z, normal with this deviation.

        For a = U / deviation: 2 (f(0) - f(a) - (P(0 < Z < a) - a f(a)) / 2a + P(Z > a) a / 2), f the normal density.
        """
        deviation = _deviation(size, spread)
        a = width / deviation
        if a < _NARROW:  # all but surely at an end, which is off by U/2 on average
            return width / 2
        beyond, density = 1 - normal_below(a), exp(-a * a / 2) / sqrt(2 * pi)
        inside = 0.5 - beyond - a * density
        return 2 * deviation * (1 / sqrt(2 * pi) - density - inside / (2 * a) + beyond * a / 2)

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Both together are normal: -(off / deviation)^2 / 2 - log(deviation)."""
        deviation = np.hypot(size / _MEAN_SIZE, spread)
        likelihood: Floats = -((off / deviation) ** 2) / 2 - np.log(deviation)
        return likelihood

    def low_end(self, noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
        """By the ratio of likelihoods (`normal.py`)."""
        return normal_low_end(noisy, np.hypot(size / _MEAN_SIZE, spread), width)

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        """`discrete_gaussian`."""
        return discrete_gaussian(bits, t, s)


_NARROW = 1e-6
"""Ranges of so few deviations lose all their digits in the formula for more."""


def _deviation(size: float, spread: float) -> float:
    return hypot(size / _MEAN_SIZE, spread)


def _over_root(nano: int) -> tuple[int, int]:
    """1 / sqrt(nano / NANO), rounded up, as a fraction."""
    # The root below the line is rounded down, so the scale is never too small.
    return _OVER, isqrt(_OVER * _OVER * nano // NANO)


def _positive(cost: Cost) -> int:
    if cost.nano < 1:
        raise ValueError(f"expected a cost >= 1 nano-rho, got {cost.nano}")
    return cost.nano
