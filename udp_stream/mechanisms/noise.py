"""Exact discrete noise by integer arithmetic, vectorised, over a source of uniform bits.

Real-valued noise computed in floating point leaks its input (Mironov 2012). Everything that this project releases is
therefore an *integer* statistic plus an integer drawn here: the set of possible outputs is all of Z, whatever the
data, and the probabilities are exactly those written down, not approximations of them.

**Discrete Laplace**, scale t/s: P(X = x) proportional to exp(-|x| s/t). The construction is Canonne, Kamath and
Steinke's (arXiv 2004.00010, Algorithms 1 and 2), reorganised so that a whole array of draws, each with its own scale,
advances in step: |X| = floor((U + t V) / s) with U uniform on 0..t-1 kept with probability exp(-U/t), V geometric with
ratio exp(-1), a random sign, and "minus zero" drawn again.

**Bernoulli trials** with rational probability p/q compare p/q with a uniform number in [0, 1) of which 16 bits are
known; where they do not decide (2**-16 of all trials) more bits are taken. No trial is ever decided by rounding.

**The exponential mechanism** takes its weights from a table of integers whose neighbours differ by at most the allowed
factor, and samples from them exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.units import NANO

Integers = NDArray[np.int64]

Moves = TypeVar("Moves", int, NDArray[Any])
"""One move of a statistic, or an array of them: 64-bit integers, or Python's in an array of objects."""

SCALE_MAX = 2**26
"""Largest numerator t of a scale: leaves room in 63 bits for 32 random ones and the trials' k."""

DRAWABLE_NANO_MIN = 32
"""From this epsilon on every sensitivity has a lattice: two steps on it are t = 2e9 / 32 < 2**26."""

_GEOMETRIC_TERMS = 64
"""P(V >= 64) = exp(-64); the draws beyond the table go on exactly, by memorylessness."""


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
        negative = _words(bits, here.size, 8) < 128
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
        low = _uniform_below(bits, scale)
        accepted = _bernoulli_exp_minus(bits, low, scale)
        keep = np.flatnonzero(accepted)
        indices.append(todo.take(keep))
        values.append(low.take(keep) + scale.take(keep) * _geometric_of_e(bits, keep.size))
        todo = todo.take(np.flatnonzero(~accepted))
    here, magnitude = np.concatenate(indices), np.concatenate(values)
    divisor = s.take(here)
    return here, magnitude if divisor.max() == 1 else magnitude // divisor


def _words(bits: Bits, n: int, width: int) -> Integers:
    """Uniform integers in 0..2**width-1, width 8, 16 or 32."""
    return np.frombuffer(bits(width // 8 * n), dtype=f"<u{width // 8}").astype(np.int64)


def _uniform_below(bits: Bits, bound: Integers) -> Integers:
    """One uniform integer in 0..bound-1 each, bound <= 2**31 (Lemire's multiplication, with its exact rejection)."""
    product = _words(bits, bound.size, 32) * bound
    low = product & 0xFFFFFFFF
    suspect = np.flatnonzero(low < bound)  # only there can the word lie in the surplus of 2**32 mod bound words
    while suspect.size:
        b = bound[suspect]
        again = suspect[low[suspect] < 2**32 % b]
        product[again] = _words(bits, again.size, 32) * bound[again]
        low[again] = product[again] & 0xFFFFFFFF
        suspect = again
    return product >> 32


def _bernoulli(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability p/q exactly, for 0 <= p <= q < 2**47: is a uniform number, of 16 bits so far, below p/q?"""
    room = (p << 16) - _words(bits, p.size, 16) * q
    result: NDArray[np.bool_] = room >= q  # below p/q whatever bits follow; at or above it if room <= 0
    for i in np.flatnonzero((room > 0) & ~result):
        result[i] = _resolve_bernoulli(bits, int(room[i]), int(q[i]))
    return result


def _resolve_bernoulli(bits: Bits, p: int, q: int) -> bool:
    """True with probability p/q, in integers of any size: what 16 bits left open."""
    return randbelow(bits, q) < p


def _bernoulli_exp_minus(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability exp(-p/q) exactly, 0 <= p <= q <= SCALE_MAX.

    Trials of probability p/(q k) for k = 1, 2, ... until one fails; the answer is whether the failing k is odd
    (arXiv 2004.00010, Algorithm 1).
    """
    result = np.zeros(p.size, dtype=bool)
    alive = np.arange(p.size)
    for k in range(1, _TRIALS + 1):
        success = _bernoulli(bits, p, q * k if k > 1 else q)
        if k % 2 == 1:
            result[alive] = ~success
        go_on = np.flatnonzero(success)
        if not go_on.size:
            return result
        alive, p, q = alive.take(go_on), p.take(go_on), q.take(go_on)
    for i, numerator, denominator in zip(alive, p.tolist(), q.tolist(), strict=True):
        k = _TRIALS + 1
        while _resolve_bernoulli(bits, numerator, denominator * k):
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
    word = _words(bits, n, 32)
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


def randbelow(bits: Bits, bound: int) -> int:
    """A uniform integer in 0..bound-1, of any size.

    >>> import os
    >>> 0 <= randbelow(os.urandom, 10**30) < 10**30
    True
    """
    if bound < 1:
        raise ValueError(f"expected bound >= 1, got {bound}")
    width = (bound - 1).bit_length()
    length = (width + 7) // 8
    while True:
        value = int.from_bytes(bits(length), "little") & ((1 << width) - 1)
        if value < bound:
            return value


def exponential_weights(epsilon_nano: int, largest_cost: int) -> tuple[int, ...]:
    """Integer weights of the exponential mechanism for costs 0, 1, 2, ... above the least, up to a public largest.

    The weight of a cost is at most exp(eps/2) times that of the next (exactly: the factor is rounded down), never
    less than it, and constant from the last entry on, where it is about exp(-35) of the first or the costs end.
    Choosing candidate c with probability proportional to weight[cost(c) - least cost] is eps-DP for costs of
    sensitivity one (McSherry and Talwar 2007), with no rounding left out of the account. *Proof.* If the least cost
    stays, each index moves by at most one either way; if it rises by one, each falls by 0, 1 or 2; if it falls, each
    rises so. With F <= exp(eps/2) the largest ratio of neighbours, every weight, hence their sum, changes by factors
    in [1/F, F], or in [1, F^2], or in [1/F^2, 1]: in each case their quotient by at most F^2 <= exp(eps).
    """
    if epsilon_nano < 1:
        raise ValueError(f"expected epsilon_nano >= 1, got {epsilon_nano}")
    steps = min(-(-70 * NANO // epsilon_nano), largest_cost, 100_000)
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


def choice_weights(costs: Sequence[int], sizes: Sequence[int], table: Sequence[int]) -> list[int]:
    """The weight of each group: its size times the table's entry for how far its cost is above the least one's.

    >>> choice_weights([7, 6, 0], [1, 2, 0], table=[100, 10, 1])
    [10, 200, 0]
    """
    least, last = min((cost for cost, size in zip(costs, sizes, strict=True) if size), default=0), len(table) - 1
    return [size and size * table[min(cost - least, last)] for cost, size in zip(costs, sizes, strict=True)]


def exponential_choices(
    bits: Bits, costs: Sequence[int], sizes: Sequence[int], largest_cost: int, epsilon_nano: int, draws: int
) -> list[int]:
    """Indices of groups of equal candidates, chosen independently by the exponential mechanism, each eps-DP.

    Group i holds `sizes[i]` candidates (a length, in lattice points; may be 0) of cost `costs[i] >= 0`; costs have
    sensitivity one, and none that values could have is above `largest_cost`, which is public. All groups empty raises
    ValueError. Experiments make many choices at once; a release makes one.
    """
    upto = list(accumulate(choice_weights(costs, sizes, exponential_weights(epsilon_nano, largest_cost))))
    return [bisect_right(upto, randbelow(bits, upto[-1])) for _ in range(draws)]


@dataclass(frozen=True, slots=True)
class Lattice:
    """Where the noise of one integer statistic lives: multiples of 2**shift, discrete Laplace of scale t there."""

    t: int
    shift: int

    @property
    def scale(self) -> float:
        """The noise's scale in the statistic's own unit; also, to one part in 2**25, its expected absolute value."""
        return float(self.t << self.shift)

    def project(self, statistic: int) -> int:
        """The statistic rounded to the lattice (half up), in lattice steps; the sensitivity has room for this."""
        return statistic if self.shift == 0 else (statistic + (1 << self.shift - 1)) >> self.shift

    def steps(self, move: Moves) -> Moves:
        """By how many lattice steps a statistic that moves by at most `move` moves once rounded: what cost goes by.

        One move, or an array of them.

        >>> Lattice(t=8, shift=0).steps(5), Lattice(t=8, shift=2).steps(5), Lattice(t=8, shift=2).steps(0)
        (5, 2, 0)
        """
        return (move >> self.shift) + (move > 0) if self.shift else move


def laplace_lattice(sensitivity: int, epsilon_nano: int) -> Lattice:
    """The finest lattice on which noise for this integer sensitivity can be drawn, with its scale, rounded up.

    >>> laplace_lattice(266240, 500_000_000)
    Lattice(t=532480, shift=0)

    Raises ValueError for a sensitivity below one unit, and for an epsilon that is too small for its sensitivity, which
    none from `DRAWABLE_NANO_MIN` on is. Two statistics that differ by at most `sensitivity` differ, once rounded to
    multiples of 2**shift, by at most `Lattice.steps(sensitivity)` of them.
    """
    if sensitivity < 1 or epsilon_nano < 1:
        raise ValueError(f"expected sensitivity and epsilon_nano >= 1, got {sensitivity} and {epsilon_nano}")
    shift = max(0, (sensitivity * NANO // epsilon_nano).bit_length() - SCALE_MAX.bit_length())
    while True:
        steps = Lattice(1, shift).steps(sensitivity)
        t = -(-steps * NANO // epsilon_nano)
        if t <= SCALE_MAX:
            return Lattice(t, shift)
        shift += 1
        if steps == 1 or sensitivity >> shift == 0:
            raise ValueError(f"expected an epsilon that noise can be drawn for, got {epsilon_nano} nano")
