"""Discrete Gaussian integers, drawn exactly: P(X = x) proportional to exp(-x^2 / (2 sigma^2)), sigma = t/s.

**Theory of operation.** Canonne, Kamath and Steinke (arXiv 2004.00010, Algorithm 3): draw Y from the discrete Laplace
distribution of an integer scale T near sigma, and keep it with probability exp(-g), where

    g = (|Y| - sigma^2 / T)^2 / (2 sigma^2),      for then P(Y) exp(-g) is proportional to exp(-Y^2 / (2 sigma^2)).

Whether it is kept is a comparison of exp(-g) with a uniform number of which 16 bits are drawn first. A *filter* in
floating point decides it where exp(-g) is surely not between two neighbouring 16-bit numbers' ends, as the predicates
of computational geometry do; all else is decided by integers of any size, with more bits of the same number if it
must be. So the distribution is exact, and the same bits give the same draws on every machine: what the filter decides
is decided rightly, and whether more bits are drawn depends on exact numbers alone.

**The filter's error** is below `MARGIN` = 2^-40. *Proof.* It uses nothing but +, -, *, / and floor, each of which IEEE
754 rounds correctly: by a relative error of at most u = 2^-53. Write c = sigma^2 / T and z = |Y| - c. All integers in
it are below 2^53 and exact: t^2 <= 2^52, s^2 T <= s t + s^2 < 2^43, |Y| < 2^53 by `_WITHIN`.

* c is off by c u, z by u (c + |z|) to first order, and g = z^2 / (2 sigma^2) by u (c |z| + |z|^2) / sigma^2 + 4 u g.
  As T >= sigma - 1/2 where sigma >= 1, and T = 1 below, c <= 2 sigma; and |z| / sigma = sqrt(2 g). So g is off by at
  most u (2 sqrt(2 g) + 6 g), and exp(-g) by at most exp(-g) times that, which is below 4 u.
* exp(-g) = E[k] exp(-r) with k = floor(64 g) and 0 <= r < 1/64. Both are exact for the g at hand (64 g is, and so is
  the subtraction). E[k] is a table of the rounded exp(-k/64), made from integers. exp(-r) is its Taylor sum up to
  r^5, off by at most r^6 / 720 < 2^-45; rounding adds less than 12 u. Above g = 40 the filter takes 40:
  exp(-40) is below 2^-57.

Together that is below 2^-45 + 2^-48, a sixteenth of the margin.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import DIVISOR_MAX, SCALE_MAX, Floats, Integers
from udp_stream.mechanisms.noise.laplace import discrete_laplace
from udp_stream.mechanisms.noise.uniform import words

MARGIN = 2.0**-40
"""By how much the filter may be off; its proof leaves room for sixteen times its error."""

_FIRST = 16
"""Bits of the uniform number that are drawn at once; these alone decide all but one in 65,536."""

_CHUNK = 1 << 17
"""Draws that advance together (measured: 2.9 M/s at 2**17, 1.8 M/s at 2**15)."""

_WITHIN = float(2**53)  # doubles hold every integer up to here

_G_MAX = 40
"""From here on exp(-g) is below the margin, so that the filter need not know it."""

_STEPS = 64
"""Entries of the table of exp(-k/64) for each unit of g."""


def discrete_gaussian(bits: Bits, t: NDArray[Any], s: NDArray[Any] | int = 1) -> Integers:
    """Independent discrete Gaussian integers, the i-th with P(x) proportional to exp(-x^2 s[i]^2 / (2 t[i]^2)).

    `t` holds integers in 1..2**26, `s` in 1..2**16 (one for all, or one each). A mechanism that adds this to integers
    that one plate changes by at most `d` in l2 is (d s/t)^2 / 2 - zCDP for that plate (arXiv 2004.00010, Theorems 4
    and 14).

    >>> import os
    >>> noise = discrete_gaussian(os.urandom, np.full(1000, 8))
    >>> noise.shape, noise.dtype, bool(abs(noise.mean()) < 3)
    ((1000,), dtype('int64'), True)

    Raises ValueError if a scale is out of range. Source: arXiv 2004.00010, Algorithm 3.
    """
    t = np.ascontiguousarray(t, dtype=np.int64).ravel()
    s = np.broadcast_to(np.asarray(s, dtype=np.int64), t.shape)
    if t.size and (t.min() < 1 or t.max() > SCALE_MAX or s.min() < 1 or s.max() > DIVISOR_MAX):
        raise ValueError(
            f"expected 1 <= t <= {SCALE_MAX} and 1 <= s <= {DIVISOR_MAX}, "
            f"got t in [{t.min()}, {t.max()}], s in [{s.min()}, {s.max()}]"
        )
    result = np.empty(t.size, dtype=np.int64)
    for start in range(0, t.size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        _fill(bits, t[chunk], s[chunk], result[chunk])
    return result


def _fill(bits: Bits, t: Integers, s: Integers, result: Integers) -> None:
    """Draw until every place has its integer."""
    candidates = _Candidates(t, s)
    todo = np.arange(t.size)
    while todo.size:
        drawn = discrete_laplace(bits, candidates.laplace.take(todo))
        kept = candidates.kept(bits, todo, np.abs(drawn))
        here = np.flatnonzero(kept)
        result[todo.take(here)] = drawn.take(here)
        todo = todo.take(np.flatnonzero(~kept))


class _Candidates:
    """The scales of some draws, and which of their discrete Laplace candidates are kept."""

    def __init__(self, t: Integers, s: Integers) -> None:
        """The scale T of the candidates is sigma rounded to a whole number, at least 1."""
        self.t, self.s = t, s
        self.laplace = np.maximum(1, (2 * t + s) // (2 * s))
        square = t * t
        # c = sigma^2 / T, and what turns (|Y| - c)^2 into g: both are divisions of exact integers
        self.centre: Floats = square / (s * s * self.laplace)
        self.doubled: Floats = 2 * square / (s * s)

    def kept(self, bits: Bits, at: Integers, sizes: Integers) -> NDArray[np.bool_]:
        """True with probability exp(-g) exactly, for |Y| = `sizes` at the places `at`."""
        word = words(bits, at.size, _FIRST)
        off = sizes - self.centre.take(at)
        likely = _exp_minus(np.minimum(off * off / self.doubled.take(at), _G_MAX)) * 2**_FIRST
        margin = MARGIN * 2**_FIRST
        # The 1 is for the bits that follow: the number lies anywhere up to the next word.
        result: NDArray[np.bool_] = word < likely - (1 + margin)
        undecided = ~result & (word < likely + margin) | (sizes >= _WITHIN)
        for i in np.flatnonzero(undecided).tolist():
            place = int(at[i])
            t, s, scale = int(self.t[place]), int(self.s[place]), int(self.laplace[place])
            off_exactly = int(sizes[i]) * scale * s * s - t * t
            result[i] = below_exp_minus(bits, int(word[i]), off_exactly**2, 2 * (scale * s * t) ** 2)
        return result


def _exp_minus(g: Floats) -> Floats:
    """exp(-g) for 0 <= g <= 40, off by less than 2^-44, in operations that IEEE 754 rounds correctly."""
    whole = np.floor(g * _STEPS)
    rest = g - whole / _STEPS
    # the Taylor sum of exp(-r) up to r^5, by Horner's rule
    series = rest * (-1 / 120) + 1 / 24
    for coefficient in (-1 / 6, 1 / 2, -1.0, 1.0):
        series = series * rest + coefficient
    result: Floats = _table().take(whole.astype(np.int64)) * series
    return result


@cache
def _table() -> Floats:
    """exp(-k / 64) for k = 0 .. 64 * 40, correct to a unit in the last place."""
    return np.array([exp_minus_floor(k, _STEPS, 128) / 2**128 for k in range(_STEPS * _G_MAX + 1)])


def below_exp_minus(bits: Bits, word: int, p: int, q: int) -> bool:
    """Whether a uniform number whose first 16 bits are `word` is below exp(-p/q): exactly, with more bits if it must.

    >>> import os
    >>> below_exp_minus(os.urandom, 65535, 0, 1), below_exp_minus(os.urandom, 1, 20, 1)
    (True, False)
    """
    width = _FIRST
    # exp(-p/q) is irrational unless p = 0, so it lies on no end of an interval of words
    while p and word == (likely := exp_minus_floor(p, q, width)):
        word = word << _FIRST | int.from_bytes(bits(_FIRST // 8), "little")
        width += _FIRST
    return p == 0 or word < likely


def exp_minus_floor(p: int, q: int, width: int) -> int:
    """floor(2**width exp(-p/q)) by integers, for p >= 0 and q >= 1.

    >>> exp_minus_floor(1, 1, 16), exp_minus_floor(0, 1, 16), exp_minus_floor(100, 1, 16)
    (24109, 65536, 0)
    """
    if p == 0:
        return 1 << width
    if p > q * width:  # exp(-width) < 2^-width
        return 0
    guard = width + 64
    while True:
        low, high = _exp_bounds(p, q, guard)
        # exp(p/q) is between low and high, in units of 2**-guard
        least, most = (1 << guard + width) // high, (1 << guard + width) // low
        if least == most:
            return least
        guard *= 2


def _exp_bounds(p: int, q: int, guard: int) -> tuple[int, int]:
    """Integers between which 2**guard exp(p/q) lies.

    Every term of the series is floored, which loses less than 1; in all terms after it, those left out too, that loss
    comes to less than exp(p/q) < 3^(p//q + 1).
    """
    low = term = 1 << guard
    n = 1
    while term:
        term = term * p // (q * n)
        low += term
        n += 1
    return low, low + n * 3 ** (p // q + 1)
