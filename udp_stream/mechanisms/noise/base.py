"""What a family of noise is, and what a release costs: the seam between mechanisms and noise.

A mechanism turns samples into integers and states how far one plate can move them. A family says how much
noise that takes at a cost, what each plate then loses, and draws it. The measure of a cost chooses the family
(`families.py`), so a mechanism names neither.

What a mechanism releases comes in two shapes:

* one integer, a *statistic*, which a plate moves by up to its sensitivity. It is rounded to a lattice
  (`families.py`).
* *counts* in which a plate moves up to that many samples from one entry to another: the nodes of one level of a
  CDF's tree. Each family knows how large such a move is in the norm that it goes by.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, hypot, log, log2, sqrt
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

Measure = Literal["pure", "zcdp"]
"""In what a privacy loss is counted: "pure" is epsilon, "zcdp" the rho of zero-concentrated differential privacy."""

SCALE_MAX = 2**26
"""Largest numerator t of a scale: leaves room in 63 bits for 32 random ones and the sampler's trials."""

DIVISOR_MAX = 2**16
"""Largest denominator s of a scale: one of a count or more is then off by less than 2**-16 when t is rounded up."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a plate may lose: nano-units of a measure. Costs of one measure add up under composition.

    >>> pure(500_000_000)
    Cost(measure='pure', nano=500000000)
    """

    measure: Measure
    nano: int

    def with_nano(self, nano: int) -> Cost:
        """Another amount of the same measure."""
        return Cost(self.measure, nano)


def pure(epsilon_nano: int) -> Cost:
    """The cost of an epsilon, in nano-units."""
    return Cost("pure", epsilon_nano)


def concentrated(rho_nano: int) -> Cost:
    """The cost of a rho of zero-concentrated differential privacy, in nano-units."""
    return Cost("zcdp", rho_nano)


class Noise(Protocol):
    """One family of noise: symmetric, on the integers. Its scale is a fraction t/s, in units of what it is added to.

    >>> from udp_stream.mechanisms.noise.samplers import DiscreteLaplace
    >>> family: Noise = DiscreteLaplace()
    >>> family.charges(np.array([1, 2]), most=2, cost=pure(10**9)).tolist()
    [500000000, 1000000000]
    """

    @property
    def name(self) -> str:
        """As in the privacy statement."""
        ...

    @property
    def least_nano(self) -> int:
        """The least cost, in nano-units, at which noise can be drawn for every sensitivity."""
        ...

    @property
    def power(self) -> int:
        """1 or 2: a plate that moves a share of what noise is for loses its power. Scales go by cost^(-1/power)."""
        ...

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """The largest epsilon, in nano-units, at which a choice by the exponential mechanism keeps to the cost."""
        ...

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The scale for a statistic of sensitivity one, as a fraction, rounded up if at all.

        ValueError for a cost below one nano-unit.
        """
        ...

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The same for counts in which a plate moves one sample."""
        ...

    def counts_drawable(self, cost: Cost) -> int:
        """How many samples a plate may move in counts so that their noise can be drawn; may be 0."""
        ...

    def charges(self, moves: NDArray[Any], most: int, cost: Cost) -> Integers:
        """What plates lose that move a statistic, or counts, by `moves`, where noise for `most` costs `cost`.

        In nano-units, rounded up; a plate that moves nothing loses nothing. `moves` are 64-bit integers or Python's.
        """
        ...

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The largest cost, up to `cost`, at which no plate's share of it exceeds what it was charged."""
        ...

    def expected_abs(self, scale: float) -> float:
        """The expected size of noise of this scale, in its unit."""
        ...

    def expected_square(self, scale: float) -> float:
        """The variance of noise of this scale, in its unit squared."""
        ...

    def error(self, size: float, spread: float) -> float:
        """The expected size of noise and a normal spread together; `size` is the noise's expected size, above 0."""
        ...

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """The same for values put into [0, width], over truths anywhere in it alike."""
        ...

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Of noise and spread together being `off`, but for a constant; elementwise."""
        ...

    def low_end(self, noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
        """The lower end of the 95 % interval of truths in [0, width]; elementwise (`interval.interval95`).

        `size` is the noise's expected size, `spread` the standard deviation of what else moved the noisy value.
        """
        ...

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        """Independent noise, the i-th of scale t[i]/s[i], 1 <= t <= SCALE_MAX, 1 <= s <= DIVISOR_MAX."""
        ...


# The interval of a mean that noise, and a normal spread, moved: a truth in [0, U] is missed with probability 0.05.
#
# It is made from the noisy mean x, before x is put into [0, U]: how far beyond it x lies is as public. A truth t is
# held if x is among the likeliest 95 % of what noise makes of t, by the ratio of its likelihood to that under the truth
# that is likeliest given x (Feldman and Cousins, arXiv physics/9711021): the nearer to t the better, all that lies
# beyond an end being as near as the end; among these, again the nearer to t. With Laplace noise of expected size b
# alone, r1 = b ln 10, r2 = b ln 20 and t below U/2 that is
#
#     x <= t + r1                        where t <= r1: all that lies below 0, and 0.05 above,
#     -y <= x <= 2 t                     where r1 <= t <= r2, y being what leaves 0.05 in both tails together,
#     t - r2 <= x <= t + r2              where r2 <= t.
#
# Above U/2 all is mirrored. (U/2 itself is held by either half's rule, so missed less often if r2 exceeds it.) No
# interval is empty, whatever x is. With a spread s, r1 and r2 are hypot(b ln 10, 1.645 s) and hypot(b ln 20, 1.96 s).


def interval95(family: Noise, noisy: float, size: float, spread: float, width: int) -> tuple[float, float]:
    """The means in [0, width] that a noisy one does not rule out at 95 %; what is released of it is among them.

    Whatever the truth is, it is missed with probability 0.05 (the middle itself with less, where noise is large).
    """
    # noise is symmetric, so the upper end is the lower one of the value mirrored
    low, beyond = family.low_end(noisy, size, spread, width), family.low_end(width - noisy, size, spread, width)
    return float(low), width - float(beyond)


def laplace_low_end(noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
    """The lower end of `interval95` for Laplace noise, of each value or for each spread."""
    if isinstance(noisy, float) and isinstance(spread, float):
        return np.asarray(_low_end(noisy, size, spread, width))
    two_sided = np.hypot(size * log(20), 1.96 * spread)
    one_sided = np.hypot(size * log(10), 1.645 * spread)
    # the least truth in the lower half that is held, if one is; and in the upper half
    below = np.maximum(0.0, np.maximum(noisy - two_sided, np.minimum(noisy - one_sided, noisy / 2)))
    tail = np.log2(1 + np.exp(np.minimum(0.0, width - noisy) / np.hypot(size, spread)))
    above = np.minimum(noisy, width) - (one_sided + (two_sided - one_sided) * tail)
    low: Floats = np.where(below <= width / 2, below, np.maximum(width / 2, above))
    return low


def _low_end(noisy: float, size: float, spread: float, width: int) -> float:
    """The same of one value, line by line: arrays of one take ten times as long, and every HAT asks for two ends."""
    two_sided, one_sided = hypot(size * log(20), 1.96 * spread), hypot(size * log(10), 1.645 * spread)
    below = max(0.0, noisy - two_sided, min(noisy - one_sided, noisy / 2))
    if below <= width / 2:
        return below
    tail = log2(1 + exp(min(0.0, width - noisy) / hypot(size, spread)))
    return max(width / 2, min(noisy, width) - (one_sided + (two_sided - one_sided) * tail))


# The interval of a mean that normal noise moved: the same for a normal distribution of known deviation.
#
# The ratio of likelihoods of x under a truth t in [0, U] and under the truth that is likeliest given x, which is x put
# into [0, U], is exp(-q / 2). With the deviation as unit, d = |x - t|, and e = the distance from t to the end of [0, U]
# on the side of x,
#
#     q = d^2  where d <= e,      q = e (2 d - e)  where x lies beyond the end,
#
# which grows with d. So what is as likely as x or likelier, by that ratio, reaches from t by d on the side of x, and on
# the other side, where the end is e' away, by
#
#     d' = sqrt(q)  where q <= e'^2,      d' = (q / e' + e') / 2  else (everything, for e' = 0).
#
# A truth is held if that has probability P(Z <= d) - P(Z < -d') <= 0.95. On its way from 0 to the lower of x and U the
# truth's probability falls, from P(Z <= x) to at most 1/2 (docs/mechanisms/gaussian.md has the proof), so there is one
# lowest truth that is held, and no interval is empty.

LEVEL = 0.95

_TWO_SIDED = 1.9599639845400545
"""P(|Z| <= this) = 0.95, rounded up."""

_ONE_SIDED = 1.6448536269514715
"""P(Z <= this) = 0.95, rounded down."""

_STEPS_MAX = 60
"""Halvings after which a double has no digit left to gain; some ten steps do."""

_NEAR = 1e-7
"""Deviations: how narrowly an end is found. It is rounded outwards."""


def normal_below(z: float) -> float:
    """P(Z <= z) of a standard normal variable."""
    return (1 + erf(z / sqrt(2))) / 2


def normal_low_end(noisy: Floats | float, deviation: Floats | float, width: int) -> Floats:
    """The lower end of the 95 % interval of truths in [0, width], of each value or for each deviation, above 0."""
    x, unit = np.broadcast_arrays(np.asarray(noisy, dtype=np.float64), np.asarray(deviation, dtype=np.float64))
    pairs = zip(x.ravel().tolist(), unit.ravel().tolist(), strict=True)
    ends = [_low_end_of_one(one / by, width / by) * by for one, by in pairs]
    return np.array(ends).reshape(x.shape)


def _low_end_of_one(x: float, width: float) -> float:
    """The same for one value, in deviations."""
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
            low, at_low, at_high = at, excess, at_high / (2 if was_low else 1)
        else:
            high, at_high, at_low = at, excess, at_low / (1 if was_low else 2)
        was_low = excess > 0
    return low  # the end that is ruled out: the interval is never too short


def _probability(x: float, width: float, truth: float) -> float:
    """Of what is as likely as x or likelier, under a truth in (0, width) below x."""
    away, end, other = x - truth, width - truth, truth
    q = away * away if away <= end else end * (2 * away - end)
    reach = sqrt(q) if q <= other * other else (q / other + other) / 2
    return normal_below(away) + normal_below(reach) - 1
