"""Discrete Laplace noise: the family of pure differential privacy, drawn exactly by integer arithmetic.

Real-valued noise computed in floating point leaks its input (Mironov 2012). Everything that this project releases is
therefore an *integer* statistic plus an integer drawn here: the set of possible outputs is all of Z, whatever the
data, and the probabilities are exactly those written down, not approximations of them.

**Discrete Laplace**, scale t/s: P(X = x) proportional to exp(-|x| s/t). The construction is Canonne, Kamath and
Steinke's (arXiv 2004.00010, Algorithms 1 and 2), reorganised so that a whole array of draws, each with its own scale,
advances in step: |X| = floor((U + t V) / s) with U uniform on 0..t-1 kept with probability exp(-U/t), V geometric with
ratio exp(-1), a random sign, and "minus zero" drawn again.

**Loss.** Its odds change by at most exp(s/t) from one integer to the next. So a plate that moves the statistic by n of
the `most` steps that noise of cost epsilon is for loses epsilon n / most, and is charged just that.
"""

from __future__ import annotations

from functools import cache
from math import expm1, hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import SCALE_MAX, Cost, Floats, Integers
from udp_stream.mechanisms.noise.interval import laplace_low_end
from udp_stream.mechanisms.noise.uniform import bernoulli, resolve_bernoulli, uniform_below, words
from udp_stream.units import NANO

DRAWABLE_NANO_MIN = 32
"""From this epsilon on every sensitivity has a lattice: two steps on it are t = 2e9 / 32 < 2**26."""

_GEOMETRIC_TERMS = 64
"""P(V >= 64) = exp(-64); the draws beyond the table go on exactly, by memorylessness."""


class DiscreteLaplace:
    """Laplace noise of scale sensitivity / epsilon, the sensitivity in l1. See `Noise` for what each method promises.

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
        """2 / epsilon: a sample that moves leaves one entry and enters another, so it counts twice in l1."""
        return 2 * NANO, _positive(cost)

    def counts_drawable(self, cost: Cost) -> int:
        """With epsilon >= 32 nano per sample moved, 2 / epsilon is below `SCALE_MAX`, also a nano or two lower."""
        return cost.nano // DRAWABLE_NANO_MIN

    def charges(self, moves: NDArray[Any], most: int, cost: Cost) -> Integers:
        """epsilon * move / most.

        >>> DiscreteLaplace().charges(np.array([0, 1, 2, 3]), most=3, cost=Cost("pure", 10**9)).tolist()
        [0, 333333334, 666666667, 1000000000]
        """
        # Python's integers where 64 bits could not hold the product
        exact = moves if cost.nano * most < 2**62 else moves.astype(object)
        charges: Integers = (-(-cost.nano * exact // most)).astype(np.int64, copy=False)
        return charges

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The least charge * most / move of all plates that move anything.

        >>> DiscreteLaplace().within(np.array([1, 3]), 3, np.array([300, 1000]), Cost("pure", 1000)).nano
        900
        """
        pairs = zip(moves.tolist(), charges.tolist(), strict=True)
        # Rounded down: the noise must cost no plate more than it was charged.
        affordable: list[int] = [charge * most // move for move, charge in pairs if move]
        return cost.with_nano(min([cost.nano, *affordable]))

    def expected_abs(self, scale: float) -> float:
        """E|Lap(b)| = b; the discrete one's is less, by one part in 2**25 at the largest scales."""
        return scale

    def expected_square(self, scale: float) -> float:
        """2 b^2; the discrete one's is less, at a scale of one count or more by under 8 %."""
        return 2 * scale * scale

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """All of it: the exponential mechanism is epsilon-DP."""
        return cost.nano

    def error(self, size: float, spread: float) -> float:
        """hypot(b, s): exact for s = 0, of second order for small s, and 7 % too much for s = b."""
        return hypot(size, spread)

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """x (1 - x/U (1 - exp(-U/x))) for x = hypot(b, s).

        >>> laplace = DiscreteLaplace()
        >>> round(laplace.clamped_error(3.0, 4.0, 1000), 2), round(laplace.clamped_error(1e9, 0.0, 1000))
        (4.97, 500)
        """
        both = hypot(size, spread)
        return both * (1 + both / width * expm1(-width / both))

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Both together are taken for Laplace noise of their size b: the density is exp(-|off| / b) / 2b."""
        both = np.hypot(size, spread)
        likelihood: Floats = -np.abs(off) / both - np.log(both)
        return likelihood

    def low_end(self, noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
        """By the ratio of likelihoods (`interval.py`)."""
        return laplace_low_end(noisy, size, spread, width)

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        """`discrete_laplace`."""
        return discrete_laplace(bits, t, s)


def _positive(cost: Cost) -> int:
    if cost.nano < 1:
        raise ValueError(f"expected a cost >= 1 nano-epsilon, got {cost.nano}")
    return cost.nano


def discrete_laplace(bits: Bits, t: NDArray[Any], s: NDArray[Any] | int = 1) -> Integers:
    """Independent discrete Laplace integers, the i-th with P(x) proportional to exp(-|x| s[i]/t[i]).

    `t` holds integers in 1..2**26, `s` positive integers (one for all, or one each). A mechanism that adds this to an
    integer statistic that one plate changes by at most `d` is eps-DP for that plate if t/s >= d/eps.

    >>> import os
    >>> noise = discrete_laplace(os.urandom, np.full(1000, 8))
    >>> noise.shape, noise.dtype, bool(abs(noise.mean()) < 5)
    ((1000,), dtype('int64'), True)

    Raises ValueError if a scale is out of range. Source: arXiv 2004.00010, Algorithm 2.
    """
    t = np.ascontiguousarray(t, dtype=np.int64).ravel()
    s = np.broadcast_to(np.asarray(s, dtype=np.int64), t.shape)
    if t.size and (t.min() < 1 or t.max() > SCALE_MAX or s.min() < 1):
        raise ValueError(f"expected 1 <= t <= {SCALE_MAX} and s >= 1, got t in [{t.min()}, {t.max()}], s >= {s.min()}")
    if t.size > _CHUNK:
        parts = [discrete_laplace(bits, t[i : i + _CHUNK], s[i : i + _CHUNK]) for i in range(0, t.size, _CHUNK)]
        return np.concatenate(parts)
    result = np.empty(t.size, dtype=np.int64)
    todo = np.arange(t.size)
    while todo.size:
        here, magnitude = _geometric(bits, t, s, todo)
        negative = words(bits, here.size, 8) < 128
        # Zero with a minus sign is drawn again: else zero would come twice as often as it should.
        done = (magnitude > 0) | ~negative
        result[here] = np.where(negative, -magnitude, magnitude)
        todo = here[~done]
    return result


_CHUNK = 1 << 17
"""Draws that advance together; bounds the working memory to some megabytes (measured: 4.4 M/s at 2**15 and 2**17)."""


def _geometric(bits: Bits, t: Integers, s: Integers, index: Integers) -> tuple[Integers, Integers]:
    """For every index one floor((U + t V)/s); the indices come back in another order, with their values."""
    indices, values = [], []
    todo = index
    while todo.size:
        scale = t.take(todo)
        low = uniform_below(bits, scale)
        accepted = _bernoulli_exp_minus(bits, low, scale)
        keep = np.flatnonzero(accepted)
        indices.append(todo.take(keep))
        values.append(low.take(keep) + scale.take(keep) * _geometric_of_e(bits, keep.size))
        todo = todo.take(np.flatnonzero(~accepted))
    here, magnitude = np.concatenate(indices), np.concatenate(values)
    divisor = s.take(here)
    return here, magnitude if divisor.max() == 1 else magnitude // divisor


def _bernoulli_exp_minus(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability exp(-p/q) exactly, 0 <= p <= q <= SCALE_MAX.

    Trials of probability p/(q k) for k = 1, 2, ... until one fails; the answer is whether the failing k is odd
    (arXiv 2004.00010, Algorithm 1).
    """
    result = np.zeros(p.size, dtype=bool)
    alive = np.arange(p.size)
    for k in range(1, _TRIALS + 1):
        success = bernoulli(bits, p, q * k if k > 1 else q)
        if k % 2 == 1:
            result[alive] = ~success
        go_on = np.flatnonzero(success)
        if not go_on.size:
            return result
        alive, p, q = alive.take(go_on), p.take(go_on), q.take(go_on)
    for i, numerator, denominator in zip(alive, p.tolist(), q.tolist(), strict=True):
        k = _TRIALS + 1
        while resolve_bernoulli(bits, numerator, denominator * k):
            k += 1
        result[i] = k % 2 == 1
    return result


_TRIALS = 16
"""Trials done on arrays; one draw in 10**13 goes beyond."""


@cache
def _exp_thresholds(digits: int) -> tuple[int, ...]:
    """floor(2**(32 digits) exp(-k)) for k = 1 .. _GEOMETRIC_TERMS, by integer arithmetic with guard bits."""
    guard = 32 * digits + 128
    one = 1 << guard
    term, inverse_e, n = one, 0, 0
    while term:  # exp(-1) = sum (-1)^n / n!; each term is off by less than one unit of 2**-guard
        inverse_e += term if n % 2 == 0 else -term
        n += 1
        term //= n
    power, thresholds = one, []
    for _ in range(_GEOMETRIC_TERMS):
        power = power * inverse_e >> guard
        thresholds.append(power >> (guard - 32 * digits))
    return tuple(thresholds)


def _geometric_of_e(bits: Bits, n: int) -> Integers:
    """V with P(V >= k) = exp(-k) exactly: how many of exp(-1), exp(-2), ... a uniform number is below."""
    thresholds = np.array(_exp_thresholds(1)[::-1], dtype=np.int64)
    word = words(bits, n, 32)
    # thresholds ascend; those above the word count. A word equal to a threshold is undecided at 32 bits.
    above = np.searchsorted(thresholds, word, side="right")
    value = _GEOMETRIC_TERMS - above
    tie = np.flatnonzero(thresholds[np.minimum(above, _GEOMETRIC_TERMS) - 1] == word)
    tie = tie[above[tie] > 0]
    for i in tie:
        value[i] = _resolve_geometric(bits, int(word[i]))
    return value.astype(np.int64)


def _resolve_geometric(bits: Bits, word: int) -> int:
    """The geometric value of a uniform number whose first 32 bits are `word`: more bits until no threshold ties."""
    digits = 1
    while True:
        thresholds = _exp_thresholds(digits)
        if word not in thresholds:
            value = sum(threshold > word for threshold in thresholds)
            return value if value < _GEOMETRIC_TERMS else value + int(_geometric_of_e(bits, 1)[0])
        digits += 1
        word = (word << 32) | int.from_bytes(bits(4), "little")
