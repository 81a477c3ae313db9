"""Radial Laplace noise on a lattice, drawn exactly: P(z) proportional to exp(-|z| s/t) for z in Z^d, |z| its length.

**Privacy.** Of two lattice points x and x' any output y is told apart by at most exp(| |y - x| - |y - x'| | s/t) <=
exp(|x - x'| s/t), since lengths keep the triangle inequality and the sum over all z is the same wherever the noise is
put. So added to a position it is (s/t)-metrically private for the Euclidean distance in lattice steps: geo-
indistinguishability (Andres, Bordenabe, Chatzikokolakis and Palamidessi, CCS 2013; *Adaptive Privacy Budgeting*, Liang
and Yi, Lemma 3.4), without the floating point of a drawn radius and angle, whose outputs depend on the position.

**How it is drawn.** d independent discrete Laplace integers of scale t'/s, t' = ceil(sqrt(d) t), are proposed and kept
with probability exp(-g),

    g = s (|z| / t - |z|_1 / t'),      which is never negative: |z|_1 <= sqrt(d) |z| <= (t'/t) |z|.

In the plane 78 % are kept, in space 60 %, of 16 dimensions 1 %. A uniform number of 16 bits is compared with exp(-g) in
floating point where they are further apart than `MARGIN`; all else is decided by integers of any size, which bound the
root of |z|^2 as narrowly as it takes, with more bits of the same number if it must be.

**The filter's error** is below 2^-42, a quarter of the margin. *Proof*, with u = 2^-53, as in `discrete_gaussian.py`.
Squares, their sum, its root (which IEEE 754 rounds correctly, too) and two more operations leave |z| s/t off by at most
13 u of itself, |z|_1 s/t', which is not larger, by 3 u. So g is off by less than 2^4 u |z| s/t <= 2^-43 where |z| s/t
<= 64; beyond, integers decide. exp(-g) computed of that g adds less than 2^-44.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import DIVISOR_MAX, SCALE_MAX, Integers
from udp_stream.mechanisms.noise.discrete_gaussian import _FIRST, _G_MAX, MARGIN, _exp_minus, exp_minus_floor
from udp_stream.mechanisms.noise.laplace import discrete_laplace
from udp_stream.mechanisms.noise.uniform import words

DIMENSIONS_MAX = 16
"""From here on less than one proposal in a hundred would be kept."""

_CHUNK = 1 << 16

_LONG = 64.0
"""Lengths of at least this many scales are left to integers."""


def radial_scale_max(dimensions: int) -> int:
    """The largest numerator t of a scale: proposals have up to ceil(sqrt(d)) times as much.

    >>> radial_scale_max(1), radial_scale_max(2), radial_scale_max(3)
    (67108864, 33554432, 33554432)
    """
    return SCALE_MAX // (isqrt(dimensions - 1) + 1)


def discrete_radial_laplace(bits: Bits, t: NDArray[Any], s: NDArray[Any] | int, dimensions: int) -> Integers:
    """Independent lattice vectors, the i-th with P(z) proportional to exp(-|z| s[i]/t[i]): one row each.

    `t` holds integers in 1..`radial_scale_max(dimensions)`, `s` in 1..2**16 (one for all, or one each).

    >>> import os
    >>> noise = discrete_radial_laplace(os.urandom, np.full(1000, 80), 1, dimensions=2)
    >>> noise.shape, 120 < float(np.hypot(*noise.T).mean()) < 200  # two scales on average
    ((1000, 2), True)

    Raises ValueError if a scale or the number of dimensions is out of range.
    """
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise ValueError(f"expected 1 to {DIMENSIONS_MAX} dimensions for radial Laplace noise, got {dimensions}")
    t = np.ascontiguousarray(t, dtype=np.int64).ravel()
    s = np.broadcast_to(np.asarray(s, dtype=np.int64), t.shape)
    most = radial_scale_max(dimensions)
    if t.size and (t.min() < 1 or t.max() > most or s.min() < 1 or s.max() > DIVISOR_MAX):
        raise ValueError(
            f"expected 1 <= t <= {most} and 1 <= s <= {DIVISOR_MAX}, "
            f"got t in [{t.min()}, {t.max()}], s in [{s.min()}, {s.max()}]"
        )
    result = np.empty((t.size, dimensions), dtype=np.int64)
    for start in range(0, t.size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        _fill(bits, t[chunk], s[chunk], result[chunk])
    return result


def _fill(bits: Bits, t: Integers, s: Integers, result: Integers) -> None:
    """Propose until every row has its vector."""
    dimensions = result.shape[1]
    scales, at = np.unique(t, return_inverse=True)
    wide = np.array([_root_ceiling(dimensions * scale * scale) for scale in scales.tolist()], np.int64)[at]
    todo = np.arange(t.size)
    while todo.size:
        proposed = discrete_laplace(bits, np.repeat(wide.take(todo), dimensions), np.repeat(s.take(todo), dimensions))
        vectors = proposed.reshape(-1, dimensions)
        kept = _kept(bits, vectors, t.take(todo), wide.take(todo), s.take(todo))
        result[todo[kept]] = vectors[kept]
        todo = todo[~kept]


def _kept(bits: Bits, vectors: Integers, t: Integers, wide: Integers, s: Integers) -> NDArray[np.bool_]:
    """True with probability exp(-g) exactly, for each row."""
    word = words(bits, t.size, _FIRST)
    sizes = np.abs(vectors).astype(np.float64)
    square = sizes[:, 0] * sizes[:, 0]
    for i in range(1, sizes.shape[1]):  # in this order on every machine
        square += sizes[:, i] * sizes[:, i]
    length = np.sqrt(square) * (s / t)
    g = length - np.abs(vectors).sum(axis=1) * (s / wide)
    # g itself is never below 0: what is there comes from rounding.
    likely = _exp_minus(np.clip(g, 0.0, _G_MAX)) * 2**_FIRST
    margin = MARGIN * 2**_FIRST
    result: NDArray[np.bool_] = word < likely - (1 + margin)
    undecided = ~result & (word < likely + margin) | (length > _LONG)
    for i in np.flatnonzero(undecided).tolist():
        result[i] = _decided(bits, int(word[i]), vectors[i].tolist(), int(t[i]), int(wide[i]), int(s[i]))
    return result


def _decided(bits: Bits, word: int, vector: list[int], t: int, wide: int, s: int) -> bool:
    """Whether a uniform number whose first 16 bits are `word` is below exp(-g), by integers alone."""
    square, absolute = sum(size * size for size in vector), sum(map(abs, vector))
    width, precision = _FIRST, 64
    while True:
        # the root of |z|^2 t'^2, in units of 2^-precision, is from `root` to less than `root + 1`, or exactly `root`
        scaled = square * wide * wide << 2 * precision
        root = isqrt(scaled)
        below, under = root - (absolute * t << precision), t * wide << precision
        above = below + (root * root != scaled)
        # The lower bound may be below 0, though g never is.
        least, most = (exp_minus_floor(s * max(0, off), under, width) for off in (above, below))
        if word < least or word > most:
            return word < least
        if least == most:  # exp(-g) is irrational, so it lies on no end of an interval of words
            word = word << _FIRST | int.from_bytes(bits(_FIRST // 8), "little")
            width += _FIRST
        precision += width


def _root_ceiling(square: int) -> int:
    return isqrt(square - 1) + 1
