"""Uniform integers and trials of rational probability, exact, from a source of uniform bits.

Trials with probability p/q compare p/q with a uniform number in [0, 1) of which 16 bits are known.
Where these do not decide more bits are taken: no trial is ever decided by rounding.
"""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

SCALE_MAX = 2**26
"""Largest numerator t of a scale: leaves room in 63 bits for 32 random bits and the sampler's
trials."""

DIVISOR_MAX = 2**16
"""Largest denominator s of a scale: a scale of a count or more is then off by less than 2**-16 when
t is rounded up."""


def words(bits: Bits, n: int, width: int) -> Integers:
    """Uniform integers in 0..2**width-1, width 8, 16 or 32."""
    return np.frombuffer(bits(width // 8 * n), dtype=f"<u{width // 8}").astype(np.int64)


def uniform_below(bits: Bits, bound: Integers) -> Integers:
    """A uniform integer in 0..bound-1 each, bound <= 2**31 (Lemire's multiplication, with its exact
    rejection)."""
    # 32 bits times at most 2**31: no product outgrows 63 bits.
    product = words(bits, bound.size, 32) * bound
    low = product & 0xFFFFFFFF
    suspect = np.flatnonzero(
        low < bound
    )  # only there can the word lie in the surplus of 2**32 mod bound words
    while suspect.size:
        b = bound[suspect]
        again = suspect[low[suspect] < 2**32 % b]
        product[again] = words(bits, again.size, 32) * bound[again]
        low[again] = product[again] & 0xFFFFFFFF
        suspect = again
    return product >> 32


def bernoulli(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability p/q exactly, for 0 <= p <= q < 2**47: is a uniform number, of 16 bits
    so far, below p/q?"""
    # Both terms are below 2**63, as q is below 2**47.
    room = (p << 16) - words(bits, p.size, 16) * q
    result: NDArray[np.bool_] = (
        room >= q
    )  # below p/q whatever bits follow; at or above it if room <= 0
    for i in np.flatnonzero((room > 0) & ~result):
        result[i] = resolve_bernoulli(bits, int(room[i]), int(q[i]))
    return result


def resolve_bernoulli(bits: Bits, p: int, q: int) -> bool:
    """True with probability p/q, in integers of any size: what 16 bits left open."""
    return randbelow(bits, q) < p


def randbelow(bits: Bits, bound: int) -> int:
    """A uniform integer in 0..bound-1, of any size."""
    if bound < 1:
        raise ValueError(f"expected bound >= 1, got {bound}")
    width = (bound - 1).bit_length()
    length = (width + 7) // 8
    while True:
        value = int.from_bytes(bits(length), "little") & ((1 << width) - 1)
        # Others are drawn again: a remainder would make small values likelier.
        if value < bound:
            return value


# Discrete Laplace noise, drawn exactly by integer arithmetic. Real-valued noise computed in
# floating point leaks its input (Mironov 2012). All that is released is an *integer* statistic plus
# an integer drawn here: the set of possible outputs is all of Z, whatever the data, and the
# probabilities are exactly those written down.
#
# **Discrete Laplace**, scale t/s: P(X = x) proportional to exp(-|x| s/t). The construction is
# Canonne, Kamath and Steinke's (arXiv 2004.00010, Algorithms 1 and 2), reorganised so that a whole
# array of draws, each with its own scale, advances in step: |X| = floor((U + t V) / s) with U
# uniform on 0..t-1 kept with probability exp(-U/t), V geometric with ratio exp(-1), a random sign,
# and "minus zero" drawn again.

_GEOMETRIC_TERMS = 64
"""P(V >= 64) = exp(-64); the draws beyond the table go on exactly, by memorylessness."""


def discrete_laplace(bits: Bits, t: NDArray[Any], s: NDArray[Any] | int = 1) -> Integers:
    """Independent discrete Laplace integers, the i-th with P(x) proportional to exp(-|x|
    s[i]/t[i]).

    A mechanism that adds this to an integer statistic that a plate changes by at most `d` is eps-DP
    for that plate if t/s >= d/eps. Source: arXiv 2004.00010, Algorithm 2.

    Args:
        bits: The source of random bits.
        t: Numerators of the scales, in 1..2**26, shape (n,).
        s: Denominators, 1 or more, an integer or shape (n,).

    Returns:
        Integers, shape (n,).

    Raises:
        ValueError: For a scale out of range.
    """
    t = np.ascontiguousarray(t, dtype=np.int64).ravel()
    s = np.broadcast_to(np.asarray(s, dtype=np.int64), t.shape)
    if t.size and (t.min() < 1 or t.max() > SCALE_MAX or s.min() < 1):
        raise ValueError(
            f"expected 1 <= t <= {SCALE_MAX} and s >= 1, got t in [{t.min()}, {t.max()}], s >= {s.min()}"
        )
    if t.size > _CHUNK:
        parts = [
            discrete_laplace(bits, t[i : i + _CHUNK], s[i : i + _CHUNK])
            for i in range(0, t.size, _CHUNK)
        ]
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
"""Draws that advance together; bounds the working memory to some megabytes."""


def _geometric(bits: Bits, t: Integers, s: Integers, index: Integers) -> tuple[Integers, Integers]:
    """For every index a floor((U + t V)/s); the indices come back in another order, with their
    values."""
    indices = []
    values = []
    todo = index
    while todo.size:
        scale = t.take(todo)
        low = uniform_below(bits, scale)
        accepted = _bernoulli_exp_minus(bits, low, scale)
        keep = np.flatnonzero(accepted)
        indices.append(todo.take(keep))
        values.append(low.take(keep) + scale.take(keep) * _geometric_of_e(bits, keep.size))
        todo = todo.take(np.flatnonzero(~accepted))
    here = np.concatenate(indices)
    magnitude = np.concatenate(values)
    divisor = s.take(here)
    return here, magnitude if divisor.max() == 1 else magnitude // divisor


def _bernoulli_exp_minus(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability exp(-p/q) exactly, 0 <= p <= q <= SCALE_MAX (arXiv 2004.00010,
    Algorithm 1).

    Whether the failing k is odd, of trials of probability p/(q k) for k = 1, 2, ... until the first
    failure.
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
        alive = alive.take(go_on)
        p = p.take(go_on)
        q = q.take(go_on)
    for i, numerator, denominator in zip(alive, p.tolist(), q.tolist(), strict=True):
        k = _TRIALS + 1
        while resolve_bernoulli(bits, numerator, denominator * k):
            k += 1
        result[i] = k % 2 == 1
    return result


_TRIALS = 16
"""Trials done on arrays; a draw in 10**13 goes beyond."""


@cache
def _exp_thresholds(digits: int) -> tuple[int, ...]:
    """floor(2**(32 digits) exp(-k)) for k = 1 .. _GEOMETRIC_TERMS, by integer arithmetic with guard
    bits."""
    guard = 32 * digits + 128
    one = 1 << guard
    term = one
    inverse_e = 0
    n = 0
    while term:  # exp(-1) = sum (-1)^n / n!; each term is off by less than a unit of 2**-guard
        inverse_e += term if n % 2 == 0 else -term
        n += 1
        term //= n
    power = one
    thresholds = []
    for _ in range(_GEOMETRIC_TERMS):
        power = power * inverse_e >> guard
        thresholds.append(power >> (guard - 32 * digits))
    return tuple(thresholds)


def _geometric_of_e(bits: Bits, n: int) -> Integers:
    """V with P(V >= k) = exp(-k) exactly: how many of exp(-1), exp(-2), ... a uniform number is
    below."""
    thresholds = np.array(_exp_thresholds(1)[::-1], dtype=np.int64)
    word = words(bits, n, 32)
    # thresholds ascend; those above the word count. A word equal to a threshold is undecided at 32
    # bits.
    above = np.searchsorted(thresholds, word, side="right")
    value = _GEOMETRIC_TERMS - above
    tie = np.flatnonzero(thresholds[np.minimum(above, _GEOMETRIC_TERMS) - 1] == word)
    tie = tie[above[tie] > 0]
    for i in tie:
        value[i] = _resolve_geometric(bits, int(word[i]))
    return value.astype(np.int64)


def _resolve_geometric(bits: Bits, word: int) -> int:
    """The geometric value of a uniform number whose first 32 bits are `word`: more bits until no
    threshold ties."""
    digits = 1
    while True:
        thresholds = _exp_thresholds(digits)
        if word not in thresholds:
            value = sum(threshold > word for threshold in thresholds)
            return value if value < _GEOMETRIC_TERMS else value + int(_geometric_of_e(bits, 1)[0])
        digits += 1
        word = (word << 32) | int.from_bytes(bits(4), "little")


# Discrete Gaussian integers, drawn exactly: P(X = x) proportional to exp(-x^2 / (2 sigma^2)), sigma
# = t/s.
#
# **Theory of operation.** Canonne, Kamath and Steinke (arXiv 2004.00010, Algorithm 3): draw Y from
# the discrete Laplace distribution of an integer scale T near sigma, and keep it with probability
# exp(-g), where
#
#     g = (|Y| - sigma^2 / T)^2 / (2 sigma^2),      for then P(Y) exp(-g) is proportional to
#     exp(-Y^2 / (2 sigma^2)).
#
# Whether it is kept is a comparison of exp(-g) with a uniform number of which 16 bits are drawn
# first. A *filter* in floating point decides it where exp(-g) is surely not between two
# neighbouring 16-bit numbers' ends; all else is decided by integers of any size, with more bits of
# the same number if it must be. So the distribution is exact, and the same bits give the same draws
# on every machine.
#
# **The filter's error** is below `MARGIN` = 2^-40. *Proof.* It uses nothing but +, -, *, / and
# floor, each of which IEEE 754 rounds correctly: by a relative error of at most u = 2^-53. Write c
# = sigma^2 / T and z = |Y| - c. All integers in it are below 2^53 and exact: t^2 <= 2^52, s^2 T <=
# s t + s^2 < 2^43, |Y| < 2^53 by `_WITHIN`.
#
# * c is off by c u, z by u (c + |z|) to first order, and g = z^2 / (2 sigma^2) by u (c |z| + |z|^2)
#   / sigma^2 + 4 u g. As T >= sigma - 1/2 where sigma >= 1, and T = 1 below, c <= 2 sigma; and |z|
#   / sigma = sqrt(2 g). So g is off by at most u (2 sqrt(2 g) + 6 g), and exp(-g) by at most
#   exp(-g) times that, which is below 4 u.
# * exp(-g) = E[k] exp(-r) with k = floor(64 g) and 0 <= r < 1/64. Both are exact for the g at hand
#   (64 g is, and so is the subtraction). E[k] is a table of the rounded exp(-k/64), made from
#   integers. exp(-r) is its Taylor sum up to r^5, off by at most r^6 / 720 < 2^-45; rounding adds
#   less than 12 u. Above g = 40 the filter takes 40: exp(-40) is below 2^-57.
#
# Together that is below 2^-45 + 2^-48, a sixteenth of the margin.

MARGIN = 2.0**-40
"""By how much the filter may be off; its proof leaves room for sixteen times its error."""

_FIRST = 16
"""Bits of the uniform number that are drawn at once; these alone decide all but 1 in 65,536."""

_WITHIN = float(2**53)  # doubles hold every integer up to here

_G_MAX = 40
"""From here on exp(-g) is below the margin, so that the filter need not know it."""

_STEPS = 64
"""Entries of the table of exp(-k/64) for each unit of g."""


def discrete_gaussian(bits: Bits, t: NDArray[Any], s: NDArray[Any] | int = 1) -> Integers:
    """Independent discrete Gaussian integers, the i-th with P(x) proportional to exp(-x^2 s[i]^2 /
    (2 t[i]^2)).

    A mechanism that adds this to integers that a plate changes by at most `d` in l2 is
    (d s/t)^2 / 2 - zCDP for that plate (arXiv 2004.00010, Theorems 4 and 14). Source: Algorithm 3
    there.

    Args:
        bits: The source of random bits.
        t: Numerators of the scales, in 1..2**26, shape (n,).
        s: Denominators, in 1..2**16, an integer or shape (n,).

    Returns:
        Integers, shape (n,).

    Raises:
        ValueError: For a scale out of range.
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
        self.t = t
        self.s = s
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
            t = int(self.t[place])
            s = int(self.s[place])
            scale = int(self.laplace[place])
            off_exactly = int(sizes[i]) * scale * s * s - t * t
            result[i] = below_exp_minus(
                bits, int(word[i]), off_exactly**2, 2 * (scale * s * t) ** 2
            )
        return result


def _exp_minus(g: Floats) -> Floats:
    """exp(-g) for 0 <= g <= 40, off by less than 2^-44, in operations that IEEE 754 rounds
    correctly."""
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
    """Is a uniform number whose first 16 bits are `word` below exp(-p/q): exactly, with more bits
    if need be."""
    width = _FIRST
    # exp(-p/q) is irrational unless p = 0, so it lies on no end of an interval of words
    while p and word == (likely := exp_minus_floor(p, q, width)):
        word = word << _FIRST | int.from_bytes(bits(_FIRST // 8), "little")
        width += _FIRST
    return p == 0 or word < likely


def exp_minus_floor(p: int, q: int, width: int) -> int:
    """floor(2**width exp(-p/q)) by integers, for p >= 0 and q >= 1."""
    if p == 0:
        return 1 << width
    if p > q * width:  # exp(-width) < 2^-width
        return 0
    guard = width + 64
    while True:
        low, high = _exp_bounds(p, q, guard)
        # exp(p/q) is between low and high, in units of 2**-guard
        least = (1 << guard + width) // high
        most = (1 << guard + width) // low
        if least == most:
            return least
        guard *= 2


def _exp_bounds(p: int, q: int, guard: int) -> tuple[int, int]:
    """Integers between which 2**guard exp(p/q) lies.

    Every term of the series is floored, which loses less than 1; in all terms after it, those left
    out too, that loss comes to less than exp(p/q) < 3^(p//q + 1).
    """
    low = term = 1 << guard
    n = 1
    while term:
        term = term * p // (q * n)
        low += term
        n += 1
    return low, low + n * 3 ** (p // q + 1)


# Radial Laplace noise on a lattice, drawn exactly: P(z) proportional to exp(-|z| s/t) for z in Z^d,
# |z| its length.
#
# **Privacy.** Of two lattice points x and x' any output y is told apart by at most exp(| |y - x| -
# |y - x'| | s/t) <= exp(|x - x'| s/t), since lengths keep the triangle inequality and the sum over
# all z is the same wherever the noise is put. So added to a position it is (s/t)-metrically private
# for the Euclidean distance in lattice steps: geo- indistinguishability (Andres, Bordenabe,
# Chatzikokolakis and Palamidessi, CCS 2013; *Adaptive Privacy Budgeting*, Liang and Yi, Lemma 3.4).
#
# **How it is drawn.** d independent discrete Laplace integers of scale t'/s, t' = ceil(sqrt(d) t),
# are proposed and kept with probability exp(-g),
#
#     g = s (|z| / t - |z|_1 / t'),      which is never negative: |z|_1 <= sqrt(d) |z| <= (t'/t)
#     |z|.
#
# In the plane 78 % are kept, in space 60 %, of 16 dimensions 1 %. As above a filter in floating
# point decides where it can; all else is decided by integers of any size, which bound the root of
# |z|^2 as narrowly as it takes.
#
# **The filter's error** is below 2^-42, a quarter of the margin. *Proof*, with u = 2^-53, as for
# the discrete Gaussian. Squares, their sum, its root (which IEEE 754 rounds correctly, too) and two
# more operations leave |z| s/t off by at most 13 u of itself, |z|_1 s/t', which is not larger, by 3
# u. So g is off by less than 2^4 u |z| s/t <= 2^-43 where
# |z| s/t <= 64; beyond, integers decide. exp(-g) computed of that g adds less than 2^-44.

DIMENSIONS_MAX = 16
"""Most dimensions: with more, under 1 % of proposals would be kept."""

_RADIAL_CHUNK = 1 << 16

_LONG = 64.0
"""Lengths of at least this many scales are left to integers."""


def radial_scale_max(dimensions: int) -> int:
    """The largest numerator t of a scale: proposals have up to ceil(sqrt(d)) times as much."""
    return SCALE_MAX // (isqrt(dimensions - 1) + 1)


def discrete_radial_laplace(
    bits: Bits, t: NDArray[Any], s: NDArray[Any] | int, dimensions: int
) -> Integers:
    """Independent lattice vectors, the i-th with P(z) proportional to exp(-|z| s[i]/t[i]): shape
    (vectors, dimensions).

    Args:
        bits: The source of random bits.
        t: Numerators of the scales, in 1..`radial_scale_max(dimensions)`, shape (vectors,).
        s: Denominators, in 1..2**16, an integer or shape (vectors,).
        dimensions: Coordinates of a vector.

    Returns:
        Integers, shape (vectors, dimensions).

    Raises:
        ValueError: For a scale or a number of dimensions out of range.
    """
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise ValueError(
            f"expected 1 to {DIMENSIONS_MAX} dimensions for radial Laplace noise, got {dimensions}"
        )
    t = np.ascontiguousarray(t, dtype=np.int64).ravel()
    s = np.broadcast_to(np.asarray(s, dtype=np.int64), t.shape)
    most = radial_scale_max(dimensions)
    if t.size and (t.min() < 1 or t.max() > most or s.min() < 1 or s.max() > DIVISOR_MAX):
        raise ValueError(
            f"expected 1 <= t <= {most} and 1 <= s <= {DIVISOR_MAX}, "
            f"got t in [{t.min()}, {t.max()}], s in [{s.min()}, {s.max()}]"
        )
    result = np.empty((t.size, dimensions), dtype=np.int64)
    for start in range(0, t.size, _RADIAL_CHUNK):
        chunk = slice(start, start + _RADIAL_CHUNK)
        _fill_radial(bits, t[chunk], s[chunk], result[chunk])
    return result


def _fill_radial(bits: Bits, t: Integers, s: Integers, result: Integers) -> None:
    """Propose until every row has its vector."""
    dimensions = result.shape[1]
    scales, at = np.unique(t, return_inverse=True)
    wide = np.array(
        [_root_ceiling(dimensions * scale * scale) for scale in scales.tolist()], np.int64
    )[at]
    todo = np.arange(t.size)
    while todo.size:
        proposed = discrete_laplace(
            bits, np.repeat(wide.take(todo), dimensions), np.repeat(s.take(todo), dimensions)
        )
        vectors = proposed.reshape(-1, dimensions)
        kept = _kept(bits, vectors, t.take(todo), wide.take(todo), s.take(todo))
        result[todo[kept]] = vectors[kept]
        todo = todo[~kept]


def _kept(
    bits: Bits, vectors: Integers, t: Integers, wide: Integers, s: Integers
) -> NDArray[np.bool_]:
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
        result[i] = _decided(
            bits, int(word[i]), vectors[i].tolist(), int(t[i]), int(wide[i]), int(s[i])
        )
    return result


def _decided(bits: Bits, word: int, vector: list[int], t: int, wide: int, s: int) -> bool:
    """Whether a uniform number whose first 16 bits are `word` is below exp(-g), by integers alone."""
    square = sum(size * size for size in vector)
    absolute = sum(map(abs, vector))
    width = _FIRST
    precision = 64
    while True:
        # the root of |z|^2 t'^2, in units of 2^-precision, is from `root` to less than `root + 1`,
        # or exactly `root`
        scaled = square * wide * wide << 2 * precision
        root = isqrt(scaled)
        below = root - (absolute * t << precision)
        under = t * wide << precision
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
