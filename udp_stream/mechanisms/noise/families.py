"""Discrete Gaussian noise: the family of zero-concentrated differential privacy (zCDP), drawn exactly.

**Loss.** Adding discrete Gaussian noise of sigma (`samplers.py`) to integers that a plate moves by at most d
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

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, hypot, isqrt, pi, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import (
    DIVISOR_MAX,
    SCALE_MAX,
    Cost,
    Floats,
    Integers,
    Measure,
    Noise,
    normal_below,
    normal_low_end,
)
from udp_stream.mechanisms.noise.samplers import DiscreteLaplace, discrete_gaussian, randbelow
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
        """rho (move / most)^2."""
        # Python's integers where 64 bits could not hold the product
        exact = moves if cost.nano * most * most < 2**62 else moves.astype(object)
        charges: Integers = (-(-cost.nano * exact * exact // (most * most))).astype(np.int64, copy=False)
        return charges

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The least charge (most / move)^2 of all plates that move anything."""
        pairs = zip(moves.tolist(), charges.tolist(), strict=True)
        # Rounded down: the noise must cost no plate more than it was charged.
        affordable: list[int] = [charge * most**2 // move**2 for move, charge in pairs if move]
        return cost.with_nano(min([cost.nano, *affordable]))

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """sqrt(8 rho), rounded down: the exponential mechanism is epsilon-bounded-range, hence epsilon^2/8 - zCDP.

        Sources: Durfee and Rogers, arXiv 1905.04273; Cesar and Rogers, arXiv 2004.07223. The end of this file has the
        bounded range of its weights, docs/mechanisms/gaussian.md the proof of the rest.
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
        """By the ratio of likelihoods (`base.py`)."""
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


# Which noise makes a cost true: the families, by the measure that they keep to.

FAMILIES: dict[Measure, Noise] = {"pure": DiscreteLaplace(), "zcdp": DiscreteGaussian()}
"""By the measure of the cost."""


def noise_of(cost: Cost) -> Noise:
    """The family that a cost is paid to."""
    return FAMILIES[cost.measure]


def expected_noise(sensitivity: int, cost: Cost) -> float:
    """The expected size of the noise that a statistic of this sensitivity gets, before its scale is rounded up."""
    noise = noise_of(cost)
    over, under = noise.unit_scale(cost)
    return noise.expected_abs(sensitivity * over / under)


def expected_noise_of_counts(cost: Cost) -> float:
    """The same for counts in which a plate moves one sample; for m samples, m times as much."""
    noise = noise_of(cost)
    over, under = noise.counts_unit_scale(cost)
    return noise.expected_abs(over / under)


# Where noise lives: the finest lattice on which it can be drawn, its scale there, and what plates lose by it.
#
# The samplers take scales t/s with t <= `SCALE_MAX`. A statistic that needs more is rounded to multiples of
# 2**shift and gets noise there, so that releases are exact at every sensitivity. Rounding is part of the
# account: plates are charged by the lattice steps that they can move the *rounded* statistic.
#
# **Individual accounting.** Privacy unit: license plate. Neighbours: swap-values. Assumed: an integer statistic
# that plate l alone moves by at most `moves[l]`, and noise of the family and cost below. Then swapping plate
# l's values costs it at most its charge. Everything here reads counts only, so charges are public and known
# before anything is drawn (sharper than arXiv 2405.06261, which charges every plate the full epsilon).
#
# Charges are asked for on a plan for *all* plates of a HAT; the ledger halts some. What the others then lose
# must stay within what they were charged, so the noise is made to cover it (`cost_within`).

Moves = TypeVar("Moves", int, NDArray[Any])
"""One move of a statistic, or an array of them: 64-bit integers, or Python's in an array of objects."""

COUNTS_SHIFT_MAX = DIVISOR_MAX.bit_length() - 1
"""Denominators s of counts' scales are 1, 2, 4, ... `DIVISOR_MAX`."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Where the noise of one integer statistic lives: multiples of 2**shift, noise of scale t there.

    >>> Lattice(t=8, shift=2).scale
    32.0
    """

    t: int
    shift: int

    @property
    def scale(self) -> float:
        """The noise's scale in the statistic's own unit."""
        return float(self.t << self.shift)

    def project(self, statistic: int) -> int:
        """The statistic rounded to the lattice (half up), in lattice steps; the sensitivity has room for this."""
        return statistic if self.shift == 0 else (statistic + (1 << self.shift - 1)) >> self.shift

    def steps(self, move: Moves) -> Moves:
        """By how many lattice steps a statistic that moves by at most `move` moves once rounded: what cost goes by.

        One move, or an array of them.
        """
        # Even a small move can carry a statistic over the middle between two lattice points.
        return (move >> self.shift) + (move > 0) if self.shift else move


def lattice_of(sensitivity: int, cost: Cost) -> Lattice:
    """The finest lattice on which noise for this integer sensitivity can be drawn, with its scale, rounded up.

    Raises ValueError for a sensitivity below one unit, and for a cost that is too small for its sensitivity, which none
    from the family's `least_nano` on is. Two statistics that differ by at most `sensitivity` differ, once rounded to
    multiples of 2**shift, by at most `Lattice.steps(sensitivity)` of them.
    """
    if sensitivity < 1 or cost.nano < 1:
        raise ValueError(f"expected sensitivity and cost >= 1 nano, got {sensitivity} and {cost.nano}")
    over, under = noise_of(cost).unit_scale(cost)
    t = -(-sensitivity * over // under)
    if t <= SCALE_MAX:  # nearly always: no rounding
        return Lattice(t, 0)
    # no shift below this one can do, so the search starts here: it ends at once or one later
    shift = max(0, (sensitivity * over // under).bit_length() - SCALE_MAX.bit_length())
    while True:
        steps = Lattice(1, shift).steps(sensitivity)
        t = -(-steps * over // under)
        if t <= SCALE_MAX:
            return Lattice(t, shift)
        shift += 1
        if steps == 1 or sensitivity >> shift == 0:
            raise ValueError(f"expected a cost that noise can be drawn for, got {cost.nano} nano")


def counts_scale(moved: int, cost: Cost) -> tuple[int, int]:
    """The scale t/s of noise for counts in which a plate moves at most `moved` samples, rounded *up*.

    s is the largest of 1, 2, 4, ... 2**16 at which t fits. Raises ValueError if none does.
    """
    over, under = noise_of(cost).counts_unit_scale(cost)
    # The largest divisor first: with it, rounding t up adds least noise.
    for shift in range(COUNTS_SHIFT_MAX, -1, -1):
        t = -((-moved * over << shift) // under)
        if t <= SCALE_MAX:
            return t, 1 << shift
    raise ValueError(
        f"expected a noise scale of at most {SCALE_MAX} counts, got {moved * over}/{under}: "
        "lower the cap or raise epsilon"
    )


def charges_of(moves: NDArray[Any], sensitivity: int, cost: Cost) -> Integers:
    """What each plate loses to a statistic with noise on `lattice_of(sensitivity, cost)`, rounding included.

    A plate that moves it at all is charged at least what noise can be drawn for: it may be the largest that is left.
    """
    noise, lattice = noise_of(cost), lattice_of(sensitivity, cost)
    charges = noise.charges(lattice.steps(moves), lattice.steps(sensitivity), cost)
    least = min(noise.least_nano, cost.nano)
    charged: Integers = np.maximum(charges, least * (charges > 0))
    return charged


def cost_within(moves: NDArray[Any], sensitivity: int, charges: Integers, cost: Cost) -> Cost:
    """The largest cost, up to `cost`, at which noise for `sensitivity` keeps every plate's loss within its charge.

    With `charges_of` it never falls below what noise can be drawn for; ValueError if other charges make it.
    """
    noise = noise_of(cost)
    while True:  # ends, because a lower cost only ever makes the lattice coarser
        lattice = lattice_of(sensitivity, cost)
        within = noise.within(lattice.steps(moves), lattice.steps(sensitivity), charges, cost)
        if within == cost:
            return cost
        cost = within


# The exponential mechanism, exactly: weights from a table of integers, and a choice that samples from them.
#
# Neighbouring entries of the table differ by at most the allowed factor, with no rounding left out of the account.


def exponential_weights(epsilon_nano: int, largest: int) -> tuple[int, ...]:
    """Integer weights of the exponential mechanism for penalties 0, 1, 2, ... above the least, up to a public largest.

    The weight of a penalty is at most exp(eps/2) times that of the next (exactly: the factor is rounded down), never
    less than it, and constant from the last entry on, where it is about exp(-35) of the first or the penalties end.
    Choosing candidate c with probability proportional to weight[penalty(c) - least] is eps-DP for penalties of
    sensitivity one (McSherry and Talwar 2007), with no rounding left out of the account. *Proof.* If the least one
    stays, each index moves by at most one either way; if it rises by one, each falls by 0, 1 or 2; if it falls, each
    rises so. With F <= exp(eps/2) the largest ratio of neighbours, every weight, hence their sum, changes by factors
    in [1/F, F], or in [1, F^2], or in [1/F^2, 1]: in each case their quotient by at most F^2 <= exp(eps).

    All weights change within one such interval and have their sum in common, so the log-probabilities of all candidates
    change within an interval of length eps: the choice is also eps-*bounded range* (Durfee and Rogers, arXiv
    1905.04273), which in rho costs eps^2/8 (`DiscreteGaussian.choice_epsilon_nano`).
    """
    if epsilon_nano < 1:
        raise ValueError(f"expected epsilon_nano >= 1, got {epsilon_nano}")
    steps = min(-(-70 * NANO // epsilon_nano), largest, 100_000)
    factor = _exp_lower(epsilon_nano, 2 * NANO)
    weights = [1 << 64]
    for _ in range(steps):
        weights.append(max(weights[-1], weights[-1] * factor >> 64))
    return tuple(reversed(weights))


def _exp_lower(p: int, q: int) -> int:
    """An integer at most 2**64 exp(p/q), and within about one part in 2**60 of it."""
    guard = 128 + 2 * (p // q)
    total = term = 1 << guard
    n = 1
    while term:  # every term is floored, so the sum is a lower bound
        term = term * p // (q * n)
        total += term
        n += 1
    return total >> (guard - 64)


def choice_weights(penalties: Sequence[int], sizes: Sequence[int], table: Sequence[int]) -> list[int]:
    """The weight of each group: its size times the table's entry for how far its penalty is above the least one."""
    pairs, last = list(zip(penalties, sizes, strict=True)), len(table) - 1
    # Groups without a candidate have no say: their penalty is nobody's.
    least = min((penalty for penalty, size in pairs if size), default=0)
    return [size and size * table[min(penalty - least, last)] for penalty, size in pairs]


def exponential_choices(
    bits: Bits,
    penalties: Sequence[int],
    sizes: Sequence[int],
    largest: int,
    sensitivity: int,
    cost: Cost,
    draws: int,
) -> list[int]:
    """Indices of groups of equal candidates, chosen independently by the exponential mechanism, each at `cost`.

    Its family says which epsilon that is (`Noise.choice_epsilon_nano`).

    Group i holds `sizes[i]` candidates (a length, in lattice points; may be 0) of penalty `penalties[i] >= 0`. One
    plate moves each penalty by at most `sensitivity`, and none that values could have is above `largest`, which is
    public. All groups empty raises ValueError. Experiments make many choices at once; a release makes one.
    """
    # Rounded down: `sensitivity` steps together cost no more than the whole.
    table = exponential_weights(noise_of(cost).choice_epsilon_nano(cost) // sensitivity, largest)
    upto = list(accumulate(choice_weights(penalties, sizes, table)))
    return [bisect_right(upto, randbelow(bits, upto[-1])) for _ in range(draws)]
