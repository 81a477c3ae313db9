"""Families of noise and the costs of releases (noise is drawn in `samplers.py`).

A mechanism turns samples into integers and states how far a plate can move them. A family says how
much noise that takes at a cost and each plate's loss at that noise, and draws it. The measure of a
cost chooses the family.

Noise goes on a single integer, a *statistic*, which a plate moves by up to its sensitivity, and
which is rounded to a lattice; or on *counts*, in which a plate moves up to that many samples
between entries (a level of a tree).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import erf, exp, expm1, hypot, isqrt, log, log2, pi, sqrt
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import NANO, amount_text
from udp_stream.ledger.filters import Loss, epsilon_of, rho_nano_of_pure
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.samplers import (
    DIVISOR_MAX,
    SCALE_MAX,
    discrete_gaussian,
    discrete_laplace,
    randbelow,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a plate may lose: nano-units of a measure of `MEASURES`. Costs of the same
    measure add up.

    >>> pure(500_000_000)
    Cost(measure='pure', nano=500000000)
    """

    measure: str
    nano: int

    def with_nano(self, nano: int) -> Cost:
        return Cost(self.measure, nano)


def pure(epsilon_nano: int) -> Cost:
    """The cost of an epsilon, in nano-units."""
    return Cost("pure", epsilon_nano)


def concentrated(rho_nano: int) -> Cost:
    """The cost of a rho of zero-concentrated differential privacy, in nano-units."""
    return Cost("zcdp", rho_nano)


class Noise(Protocol):
    """A family of noise: symmetric, on the integers. Its scale is a fraction t/s, in units of what
    it is added to.

    >>> family: Noise = DiscreteLaplace()
    >>> family.charges(np.array([1, 2]), most=2, cost=pure(10**9)).tolist()
    [500000000, 1000000000]
    """

    @property
    def name(self) -> str:
        """The name in the privacy statement."""

    @property
    def least_nano(self) -> int:
        """The least cost, in nano-units, at which noise can be drawn for every sensitivity."""

    @property
    def power(self) -> int:
        """The power, 1 or 2: a plate that moves a share of what noise is for loses the share to
        this power. Scales go by cost^(-1/power)."""

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """The largest epsilon, in nano-units, at which a choice by the exponential mechanism keeps
        to the cost."""

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The scale for a statistic of sensitivity 1, rounded up if at all; ValueError below a
        nano-unit."""

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The scale for counts in which a plate moves a single sample."""

    def counts_drawable(self, cost: Cost) -> int:
        """How many samples a plate may move in counts so that their noise can be drawn; may be 0."""

    def charges(self, moves: NDArray[Any], most: int, cost: Cost) -> Integers:
        """Losses of plates to a statistic, or to counts.

        Args:
            moves: The most by which each plate moves it, shape (plates,): 64-bit integers, or
                Python's in an array of objects.
            most: The move that the noise is for.
            cost: What noise for `most` costs.

        Returns:
            Nano-units, rounded up, shape (plates,); a plate that moves nothing loses nothing.
        """
        # Python's integers where 64 bits could not hold the product
        exact = moves if cost.nano * most**self.power < 2**62 else moves.astype(object)
        charges: Integers = (-(-cost.nano * exact**self.power // most**self.power)).astype(
            np.int64, copy=False
        )
        return charges

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The largest cost, up to `cost`, at which no plate's share of it exceeds what it was
        charged: the least charge (most / move)^power of all plates that move anything.
        """
        power = self.power
        pairs = zip(moves.tolist(), charges.tolist(), strict=True)
        # Rounded down: the noise must cost no plate more than it was charged.
        affordable: list[int] = [
            charge * most**power // move**power for move, charge in pairs if move
        ]
        return cost.with_nano(min([cost.nano, *affordable]))

    def expected_abs(self, scale: float) -> float:
        """The expected size of noise of this scale, in its unit."""

    def expected_square(self, scale: float) -> float:
        """The variance of noise of this scale, in its unit squared."""

    def error(self, size: float, spread: float) -> float:
        """The expected size of noise and a normal spread together; `size` is the noise's expected
        size, above 0."""

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """The same for values put into [0, width], over truths anywhere in it alike."""

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Log of the likelihood that noise and spread add up to `off`, but for a constant;
        elementwise."""

    def low_end(
        self, noisy: Floats | float, size: float, spread: Floats | float, width: int
    ) -> Floats:
        """The lower end of `interval95`, elementwise; `spread`: the deviation of what else moved
        the noisy value."""

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        """Draw independent noise, exactly.

        Args:
            bits: The source of random bits.
            t: Numerators of the scales, 1 <= t <= SCALE_MAX, shape (n,).
            s: Denominators, 1 <= s <= DIVISOR_MAX, an integer or shape (n,).

        Returns:
            Integers, the i-th of scale t[i]/s[i], shape (n,).

        Raises:
            ValueError: For a scale out of range.
        """


# The interval of a mean that noise, and a normal spread, moved: a truth in [0, U] is missed with
# probability 0.05.
#
# It is made from the noisy mean x, before x is put into [0, U], which is as public. A truth t is
# held if x is among the likeliest 95 % of what noise makes of t, by the ratio of its likelihood to
# that under the truth that is likeliest given x (Feldman and Cousins, arXiv physics/9711021); of
# equally likely x, the nearer to t. With Laplace noise of expected size b alone, r1 = b ln 10, r2 =
# b ln 20 and t below U/2 that is
#
#     x <= t + r1                        where t <= r1: all that lies below 0, and 0.05 above, -y <=
#     x <= 2 t                     where r1 <= t <= r2, y being what leaves 0.05 in both tails
#     together, t - r2 <= x <= t + r2              where r2 <= t.
#
# Above U/2 all is mirrored; U/2 itself is held by either half's rule. No interval is empty,
# whatever x is. With a spread s, r1 and r2 are hypot(b ln 10, 1.645 s) and hypot(b ln 20, 1.96 s).


def interval95(
    family: Noise, noisy: float, size: float, spread: float, width: int
) -> tuple[float, float]:
    """The means in [0, width] that a noisy mean does not rule out at 95 %; the released mean is
    among them."""
    # noise is symmetric, so the upper end is the lower end of the value mirrored
    low = family.low_end(noisy, size, spread, width)
    beyond = family.low_end(width - noisy, size, spread, width)
    return float(low), width - float(beyond)


def _each_end(
    end: Callable[[float, float], float], noisy: Floats | float, spread: Floats | float
) -> Floats:
    """The lower end of each noisy value, or for each spread."""
    if isinstance(noisy, float) and isinstance(spread, float):  # every HAT asks for two of these
        return np.asarray(end(noisy, spread))
    values, spreads = np.broadcast_arrays(
        np.asarray(noisy, np.float64), np.asarray(spread, np.float64)
    )
    pairs = zip(values.ravel().tolist(), spreads.ravel().tolist(), strict=True)
    return np.array([end(value, by) for value, by in pairs]).reshape(values.shape)


def _laplace_end(noisy: float, size: float, spread: float, width: int) -> float:
    """The lower end of `interval95` for Laplace noise: the least truth held in the lower half, or
    in the upper half."""
    two_sided = hypot(size * log(20), 1.96 * spread)
    one_sided = hypot(size * log(10), 1.645 * spread)
    below = max(0.0, noisy - two_sided, min(noisy - one_sided, noisy / 2))
    if below <= width / 2:
        return below
    tail = log2(1 + exp(min(0.0, width - noisy) / hypot(size, spread)))
    return max(width / 2, min(noisy, width) - (one_sided + (two_sided - one_sided) * tail))


# The same for normal noise. The ratio of likelihoods of x under a truth t in [0, U] and under the
# likeliest truth, which is x put into [0, U], is exp(-q / 2). With the deviation as unit, d = |x -
# t|, and e = the distance from t to the end on the side of x,
#
#     q = d^2  where d <= e,      q = e (2 d - e)  where x lies beyond the end,
#
# which grows with d. So what is as likely as x or likelier, by that ratio, reaches from t by d on
# the side of x, and on the other side, where the end is e' away, by
#
#     d' = sqrt(q)  where q <= e'^2,      d' = (q / e' + e') / 2  else (everything, for e' = 0).
#
# A truth is held if that has probability P(Z <= d) - P(Z < -d') <= 0.95. On its way from 0 to the
# lower of x and U the truth's probability falls, from P(Z <= x) to at most 1/2. So there is a
# lowest truth that is held, and no interval is empty. *Proof:* d and q fall as t = e' grows, so
# sqrt(q) does; and where q > t^2, q/t + t has a slope below 1 - q/t^2, which is below 0. At the end
# q is 0, so d' is too, and P(Z <= d) - 1/2 is at most 1/2.

LEVEL = 0.95

_TWO_SIDED = 1.9599639845400545
"""Deviations z with P(|Z| <= z) = 0.95, rounded up."""

_ONE_SIDED = 1.6448536269514715
"""Deviations z with P(Z <= z) = 0.95, rounded down."""

_STEPS_MAX = 60
"""Halvings after which a double has no digit left to gain; some ten steps do."""

_NEAR = 1e-7
"""Deviations within which an end is found. It is rounded outwards."""


def normal_below(z: float) -> float:
    """P(Z <= z) for a standard normal variable Z."""
    return (1 + erf(z / sqrt(2))) / 2


def _normal_end(x: float, width: float) -> float:
    """The lower end of the 95 % interval of truths in [0, width], in deviations."""
    if x <= _ONE_SIDED:
        return 0.0
    high = min(x, width)
    low = high - _TWO_SIDED
    if x <= width and low >= _TWO_SIDED:  # no end of [0, U] is near
        return low
    # all truths below are ruled out: d and d' are at least 1.96 for them
    low = max(0.0, low)
    at_low = (_probability(x, width, low) if low else normal_below(x)) - LEVEL
    at_high = min(0.0, normal_below(x - width) - 0.5) - LEVEL
    was_low = True
    # false position, by the Illinois rule: `low` is ruled out, `high` is held
    for _ in range(_STEPS_MAX):
        if high - low <= _NEAR:
            break
        at = low + (high - low) * at_low / (at_low - at_high)
        # a hair past the root that it foresees, so that both ends close in on it
        at = min(max(at, low + _NEAR / 2), high - _NEAR / 2)
        excess = _probability(x, width, at) - LEVEL
        if excess > 0:
            low = at
            at_low = excess
            at_high = at_high / (2 if was_low else 1)
        else:
            high = at
            at_high = excess
            at_low = at_low / (1 if was_low else 2)
        was_low = excess > 0
    return low  # the end that is ruled out: the interval is never too short


def _probability(x: float, width: float, truth: float) -> float:
    """Probability of what is as likely as x or likelier, under a truth in (0, width) below x."""
    away = x - truth
    end = width - truth
    other = truth
    q = away * away if away <= end else end * (2 * away - end)
    reach = sqrt(q) if q <= other * other else (q / other + other) / 2
    return normal_below(away) + normal_below(reach) - 1


# Discrete Laplace noise: the family of pure differential privacy. **Loss.** Its odds change by at
# most exp(s/t) from an integer to the next. So a plate that moves the statistic by n of the `most`
# steps that noise of cost epsilon is for loses epsilon n / most, and is charged just that.

DRAWABLE_NANO_MIN = 32
"""Least nano-epsilon at which every sensitivity has a lattice: two steps on it are t = 2e9 / 32 <
2**26."""


def _positive(cost: Cost) -> int:
    if cost.nano < 1:
        raise ValueError(
            f"expected a cost >= 1 nano-{MEASURES[cost.measure].unit}, got {cost.nano}"
        )
    return cost.nano


class DiscreteLaplace(Noise):
    """Laplace noise of scale sensitivity / epsilon, the sensitivity in l1. See `Noise` for what
    each method promises.

    >>> family = DiscreteLaplace()
    >>> family.unit_scale(Cost("pure", 500_000_000)), family.expected_abs(2.0)
    ((1000000000, 500000000), 2.0)
    """

    name = "discrete-laplace"
    least_nano = DRAWABLE_NANO_MIN
    power = 1

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """1 / epsilon, exactly."""
        return NANO, _positive(cost)

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """2 / epsilon: a sample that moves leaves an entry and enters another, so it counts twice
        in l1."""
        return 2 * NANO, _positive(cost)

    def counts_drawable(self, cost: Cost) -> int:
        """The most samples of a plate at this cost: at 32 nano-epsilon per sample moved, 2 /
        epsilon is below `SCALE_MAX`."""
        return cost.nano // DRAWABLE_NANO_MIN

    def expected_abs(self, scale: float) -> float:
        """E|Lap(b)| = b; that of discrete noise is less, by a part in 2**25 at the largest
        scales."""
        return scale

    def expected_square(self, scale: float) -> float:
        """2 b^2; that of discrete noise is less, at a scale of a count or more by under 8 %."""
        return 2 * scale * scale

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """All of the cost: the exponential mechanism is epsilon-DP."""
        return cost.nano

    def error(self, size: float, spread: float) -> float:
        """hypot(b, s): exact for s = 0, of second order for small s, and 7 % too much for s = b."""
        return hypot(size, spread)

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """x (1 - x/U (1 - exp(-U/x))) for x = hypot(b, s)."""
        both = hypot(size, spread)
        return both * (1 + both / width * expm1(-width / both))

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Log-likelihood, where both together are taken for Laplace noise of their size."""
        both = np.hypot(size, spread)
        return -np.abs(off) / both - np.log(both)

    def low_end(
        self, noisy: Floats | float, size: float, spread: Floats | float, width: int
    ) -> Floats:
        return _each_end(lambda value, by: _laplace_end(value, size, by, width), noisy, spread)

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        return discrete_laplace(bits, t, s)


# Discrete Gaussian noise: the family of zero-concentrated differential privacy (zCDP), drawn
# exactly.
#
# **Loss.** Adding discrete Gaussian noise of sigma (`samplers.py`) to integers that a plate moves
# by at most d in l2 is (d / sigma)^2 / 2 - zCDP for it: Canonne, Kamath and Steinke, arXiv
# 2004.00010, Theorem 4 for an integer, Theorem 14 for several. So noise of cost rho for moves of up
# to `most` has sigma = most / sqrt(2 rho), and a plate that moves it by n loses rho (n / most)^2,
# and is charged just that. What is rounded to a lattice has moves and noise counted in the
# lattice's steps, so the squares are those of steps. Losses add up under composition, also where
# the next query depends on earlier answers (Bun and Steinke, arXiv 1605.02065, Lemma 2.3).
#
# **Counts.** A plate that moves G samples changes counts by integers whose positive and negative
# parts add up to at most G each, so by at most G sqrt(2) in l2.
#
# **Size.** sigma sqrt(2/pi) and sigma^2 are those of a normal variable, and those of discrete noise
# are no larger: its variance by the paper's Corollary 9; its mean size by Poisson's formula
# (docs/mechanisms/gaussian.md).

_OVER = 2**64
"""Numerator of scales: at the least cost they are rounded up by a part in 2**49."""

_LEVEL_NANO_MIN = 4
"""Nano-rho that a sample's move must be charged in each level of counts: below, rounding would be
most of it."""

_MEAN_SIZE = sqrt(2 / pi)
"""E|Z| of a standard normal variable Z."""


class DiscreteGaussian(Noise):
    """Gaussian noise of sigma = sensitivity / sqrt(2 rho), the sensitivity in l2. See `Noise` for
    what methods promise.

    >>> family, cost = DiscreteGaussian(), Cost("zcdp", 500_000_000)
    >>> over, under = family.unit_scale(cost)
    >>> over / under, family.charges(np.array([0, 1, 2]), most=2, cost=cost).tolist()
    (1.0, [0, 125000000, 500000000])
    """

    name = "discrete-gaussian"
    least_nano = 1
    power = 2

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """1 / sqrt(2 rho), rounded up: 22,361 at a nano-rho, where two steps of a lattice are
        drawable."""
        return _over_root(2 * _positive(cost))

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """1 / sqrt(rho), rounded up: a sample leaves an entry and enters another, which is sqrt(2)
        in l2."""
        return _over_root(_positive(cost))

    def counts_drawable(self, cost: Cost) -> int:
        """The most samples of a plate at which a sample's move is charged 4 nano-rho: far below
        `SCALE_MAX`."""
        return isqrt(cost.nano // _LEVEL_NANO_MIN)

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """sqrt(8 rho), rounded down: the exponential mechanism is epsilon-bounded-range, hence
        epsilon^2/8 - zCDP.

        Sources: Durfee and Rogers, arXiv 1905.04273; Cesar and Rogers, arXiv 2004.07223;
        docs/mechanisms/gaussian.md.
        """
        return isqrt(8 * cost.nano * NANO)

    def expected_abs(self, scale: float) -> float:
        """E|N(0, sigma^2)| = sigma sqrt(2/pi); that of discrete noise is less, by about a part in
        12 sigma^2."""
        return _MEAN_SIZE * scale

    def expected_square(self, scale: float) -> float:
        """sigma^2; that of discrete noise is no larger (arXiv 2004.00010, Corollary 9), and hardly
        less from sigma 1 on."""
        return scale * scale

    def error(self, size: float, spread: float) -> float:
        return _MEAN_SIZE * hypot(size / _MEAN_SIZE, spread)

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """2 (f(0) - f(a) - (P(0 < Z < a) - a f(a)) / 2a + P(Z > a) a / 2) deviations, a = U /
        deviation, f density."""
        deviation = hypot(size / _MEAN_SIZE, spread)
        a = width / deviation
        if a < _NARROW:  # all but surely at an end, which is off by U/2 on average
            return width / 2
        beyond = 1 - normal_below(a)
        density = exp(-a * a / 2) / sqrt(2 * pi)
        inside = 0.5 - beyond - a * density
        return 2 * deviation * (1 / sqrt(2 * pi) - density - inside / (2 * a) + beyond * a / 2)

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        deviation = np.hypot(size / _MEAN_SIZE, spread)
        return -((off / deviation) ** 2) / 2 - np.log(deviation)

    def low_end(
        self, noisy: Floats | float, size: float, spread: Floats | float, width: int
    ) -> Floats:
        deviation = np.hypot(size / _MEAN_SIZE, spread)
        return _each_end(
            lambda value, by: _normal_end(value / by, width / by) * by, noisy, deviation
        )

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        return discrete_gaussian(bits, t, s)


_NARROW = 1e-6
"""Ranges of so few deviations lose all their digits in the formula for more."""


def _over_root(nano: int) -> tuple[int, int]:
    """1 / sqrt(nano / NANO), rounded up, as a fraction."""
    # The root below the line is rounded down, so the scale is never too small.
    return _OVER, isqrt(_OVER * _OVER * nano // NANO)


@dataclass(frozen=True)
class Measure:
    """Unit in which a loss is counted: here the epsilon of pure differential privacy. Amounts are
    nano-units.

    `unit` is what an amount is called. The names of budget periods whose balances are counted so
    end in `ending`. An automatic price of a statistic is at least `least_nano`: below, it says
    nothing at any HAT size seen so far.

    >>> Measure().privacy(500_000_000, 10**10, delta=1e-6), Measure().epsilon_of_price(500_000_000)
    ({'epsilon': 0.5, 'period_epsilon': 10.0}, 0.5)
    """

    name: str = "pure"
    unit: str = "epsilon"
    ending: str = ""
    noise: Noise = field(default_factory=DiscreteLaplace)
    least_nano: int = 1_000_000

    @property
    def distance(self) -> str:
        """Distance that an amount of positions is for, as losses go by the power of distances that
        noise goes by."""
        return "km" if self.noise.power == 1 else "square km"

    def loss(self, nano: int) -> Loss:
        return Loss(nano)

    def price_nano(self, epsilon_nano: int) -> int:
        """Price of a statistic that is configured by this epsilon, nano-units, rounded up."""
        return epsilon_nano

    def epsilon_of_price(self, nano: int) -> float:
        """The epsilon by which a statistic of this price is configured."""
        return nano / NANO

    def price_text(self, nano: int) -> str:
        """The epsilon of a price, as a user writes it."""
        return amount_text(nano)

    def implied_epsilon(self, nano: int, delta: float) -> float:  # noqa: ARG002
        """An epsilon that holds with this delta."""
        return nano / NANO

    def privacy(self, nano: int, budget_nano: int, delta: float) -> dict[str, float]:
        found = {"epsilon": nano, "period_epsilon": budget_nano}
        return {name: self.implied_epsilon(amount, delta) for name, amount in found.items()}


class ConcentratedMeasure(Measure):
    """The rho of zero-concentrated differential privacy, whose charges go by squares.

    >>> MEASURES["zcdp"].price_nano(2 * 10**9), MEASURES["zcdp"].epsilon_of_price(2 * 10**9)
    (2000000000, 2.0)
    """

    def loss(self, nano: int) -> Loss:
        return Loss(rho_nano=nano)

    def price_nano(self, epsilon_nano: int) -> int:
        return rho_nano_of_pure(epsilon_nano)

    def epsilon_of_price(self, nano: int) -> float:
        return round(sqrt(2 * nano / NANO), 9)

    def price_text(self, nano: int) -> str:
        return f"{sqrt(2 * nano / NANO):.9g}"

    def implied_epsilon(self, nano: int, delta: float) -> float:
        """The epsilon that this rho implies with a delta, by arXiv 2004.00010, Corollary 13,
        rounded up to six decimals."""
        return epsilon_of(nano, delta)

    def privacy(self, nano: int, budget_nano: int, delta: float) -> dict[str, float]:
        """The epsilons that it implies, and both amounts themselves: these add up."""
        amounts = {"rho": nano / NANO, "period_rho": budget_nano / NANO, "delta": delta}
        return super().privacy(nano, budget_nano, delta) | amounts


RHO_NANO_MIN = 500
"""Least rho of a HAT: half of the square of an epsilon of 0.001. Parts of it still have noise at
any counts and U."""

MEASURES: dict[str, Measure] = {
    "pure": Measure(),
    "zcdp": ConcentratedMeasure("zcdp", "rho", " in rho", DiscreteGaussian(), RHO_NANO_MIN),
}
"""Measures of loss by name."""


def require_measure(name: str) -> None:
    """Raise ValueError for a name that is not in `MEASURES`: what was charged under it allows
    nothing that is known here."""
    if name not in MEASURES:
        raise ValueError(f"expected a measure of {', '.join(MEASURES)}, got {name!r}")


def noise_of(cost: Cost) -> Noise:
    """The family that a cost is paid to."""
    return MEASURES[cost.measure].noise


def expected_noise(sensitivity: int, cost: Cost) -> float:
    """The expected size of the noise that a statistic of this sensitivity gets, before its scale is
    rounded up."""
    noise = noise_of(cost)
    over, under = noise.unit_scale(cost)
    return noise.expected_abs(sensitivity * over / under)


def expected_noise_of_counts(cost: Cost) -> float:
    """Expected size of noise on counts in which a plate moves a sample; for m samples, m times as
    much."""
    noise = noise_of(cost)
    over, under = noise.counts_unit_scale(cost)
    return noise.expected_abs(over / under)


# Where noise lives: the finest lattice on which it can be drawn, its scale there, and what plates
# lose by it.
#
# The samplers take scales t/s with t <= `SCALE_MAX`. A statistic that needs more is rounded to
# multiples of 2**shift and gets noise there. Plates are charged by the lattice steps that they can
# move the *rounded* statistic.
#
# **Individual accounting.** Privacy unit: license plate. Neighbours: swap-values. Assumed: an
# integer statistic that plate l alone moves by at most `moves[l]`, and noise of the family and cost
# below. Then swapping plate l's values costs it at most its charge. Charges read counts only: they
# are public (sharper than arXiv 2405.06261, which charges every plate the full epsilon). They are
# for *all* plates of a HAT. What plates lose that the ledger does not halt must stay within what
# they were charged (`cost_within`).

Moves = TypeVar("Moves", int, NDArray[Any])
"""A move of a statistic, or an array of them: 64-bit integers, or Python's in an array of
objects."""

COUNTS_SHIFT_MAX = DIVISOR_MAX.bit_length() - 1
"""Largest shift of counts' scales: denominators s are 1, 2, 4, ... `DIVISOR_MAX`."""


class Lattice(NamedTuple):
    """Where the noise of an integer statistic lives: multiples of 2**shift, noise of scale t there.

    >>> Lattice(t=8, shift=2).scale
    32.0
    """

    t: int
    shift: int

    @property
    def scale(self) -> float:
        return float(self.t << self.shift)

    def project(self, statistic: int) -> int:
        """The statistic rounded to the lattice (half up), in lattice steps; the sensitivity has
        room for this."""
        return statistic if self.shift == 0 else (statistic + (1 << self.shift - 1)) >> self.shift

    def steps(self, move: Moves) -> Moves:
        """Lattice steps by which a statistic that moves by at most `move` moves once rounded; its
        cost follows from them."""
        # Even a small move can carry a statistic over the middle between two lattice points.
        return (move >> self.shift) + (move > 0) if self.shift else move


def lattice_of(sensitivity: int, cost: Cost) -> Lattice:
    """The finest lattice on which noise for this integer sensitivity can be drawn, with its scale,
    rounded up.

    Raises ValueError for a sensitivity below a unit, and for a cost below the family's `least_nano`
    that is too small for its sensitivity. Two statistics that differ by at most `sensitivity`
    differ, once rounded to multiples of 2**shift, by at most `Lattice.steps(sensitivity)` of them.
    """
    if sensitivity < 1 or cost.nano < 1:
        raise ValueError(
            f"expected sensitivity and cost >= 1 nano, got {sensitivity} and {cost.nano}"
        )
    over, under = noise_of(cost).unit_scale(cost)
    t = -(-sensitivity * over // under)
    if t <= SCALE_MAX:  # nearly always: no rounding
        return Lattice(t, 0)
    # no lower shift can do, so the search starts here: it ends at once or at the next shift
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
    """The scale t/s of noise for counts in which a plate moves at most `moved` samples, rounded
    *up*.

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
    """Loss of each plate to a statistic with noise on `lattice_of(sensitivity, cost)`, rounding
    included.

    A plate that moves it at all is charged at least what noise can be drawn for: it may be the
    largest that is left.
    """
    noise = noise_of(cost)
    lattice = lattice_of(sensitivity, cost)
    charges = noise.charges(lattice.steps(moves), lattice.steps(sensitivity), cost)
    least = min(noise.least_nano, cost.nano)
    charged: Integers = np.maximum(charges, least * (charges > 0))
    return charged


def cost_within(moves: NDArray[Any], sensitivity: int, charges: Integers, cost: Cost) -> Cost:
    """The largest cost, up to `cost`, at which noise for `sensitivity` keeps every plate's loss
    within its charge.

    With `charges_of` it never falls below what noise can be drawn for; ValueError if other charges
    make it.
    """
    noise = noise_of(cost)
    while True:  # ends, because a lower cost only ever makes the lattice coarser
        lattice = lattice_of(sensitivity, cost)
        within = noise.within(lattice.steps(moves), lattice.steps(sensitivity), charges, cost)
        if within == cost:
            return cost
        cost = within


# The exponential mechanism, exactly: integer weights, of which neighbours differ by at most the
# allowed factor.


def exponential_weights(epsilon_nano: int, largest: int) -> tuple[int, ...]:
    """Integer weights of the exponential mechanism for penalties 0, 1, 2, ... above the least, up
    to a public largest.

    The weight of a penalty is at most exp(eps/2) times that of the next (exactly: the factor is
    rounded down), never less than it, and constant from the last entry on, where it is about
    exp(-35) of the first or the penalties end. Choosing candidate c with probability proportional
    to weight[penalty(c) - least] is eps-DP for penalties of sensitivity 1 (McSherry and Talwar
    2007), with no rounding left out of the account. *Proof.* If the least stays, each index moves
    by at most 1 either way; if it rises by 1, each falls by 0, 1 or 2; if it falls, each rises so.
    With F <= exp(eps/2) the largest ratio of neighbours, every weight, hence their sum, changes by
    factors in [1/F, F], or in [1, F^2], or in [1/F^2, 1]: in each case their quotient by at most
    F^2 <= exp(eps).

    All weights change within such an interval and have their sum in common, so the
    log-probabilities of all candidates change within an interval of length eps: the choice is also
    eps-*bounded range* (Durfee and Rogers, arXiv 1905.04273), which in rho costs eps^2/8.
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
    """An integer at most 2**64 exp(p/q), and within about a part in 2**60 of it."""
    guard = 128 + 2 * (p // q)
    total = term = 1 << guard
    n = 1
    while term:  # every term is floored, so the sum is a lower bound
        term = term * p // (q * n)
        total += term
        n += 1
    return total >> (guard - 64)


def choice_weights(
    penalties: Sequence[int], sizes: Sequence[int], table: Sequence[int]
) -> list[int]:
    """The weight of each group: its size times the table's entry for how far its penalty is above
    the least."""
    pairs = list(zip(penalties, sizes, strict=True))
    last = len(table) - 1
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
    """Choose groups of equal candidates independently, by the exponential mechanism.

    A release makes a single choice; experiments make many at once.

    Args:
        bits: The source of random bits. penalties: The penalty of each group, 0 or more. A plate
        moves each by at most `sensitivity`. sizes: Candidates of each group (a length, in lattice
        points), 0 or more. largest: Public: no penalty that values could have is above it.
        sensitivity: The most by which a plate moves a penalty. cost: What each choice costs. draws:
        The number of choices.

    Returns:
        The index of each chosen group.

    Raises:
        ValueError: If all groups are empty.
    """
    # Rounded down: `sensitivity` steps together cost no more than the whole.
    table = exponential_weights(noise_of(cost).choice_epsilon_nano(cost) // sensitivity, largest)
    upto = list(accumulate(choice_weights(penalties, sizes, table)))
    return [bisect_right(upto, randbelow(bits, upto[-1])) for _ in range(draws)]
