"""Uniform integers and trials of rational probability, exact, from a source of uniform bits.

Trials with probability p/q compare p/q with a uniform number in [0, 1) of which 16 bits are known. Where these do not
decide (2**-16 of all trials) more bits are taken: no trial is ever decided by rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits

Integers = NDArray[np.int64]


def words(bits: Bits, n: int, width: int) -> Integers:
    """Uniform integers in 0..2**width-1, width 8, 16 or 32.

    >>> words(lambda n: bytes(range(n)), 2, width=16).tolist()
    [256, 770]
    """
    return np.frombuffer(bits(width // 8 * n), dtype=f"<u{width // 8}").astype(np.int64)


def uniform_below(bits: Bits, bound: Integers) -> Integers:
    """One uniform integer in 0..bound-1 each, bound <= 2**31 (Lemire's multiplication, with its exact rejection).

    >>> import os
    >>> dice = uniform_below(os.urandom, np.full(1000, 6))
    >>> sorted(set(dice.tolist()))
    [0, 1, 2, 3, 4, 5]
    """
    # 32 bits times at most 2**31: no product outgrows 63 bits.
    product = words(bits, bound.size, 32) * bound
    low = product & 0xFFFFFFFF
    suspect = np.flatnonzero(low < bound)  # only there can the word lie in the surplus of 2**32 mod bound words
    while suspect.size:
        b = bound[suspect]
        again = suspect[low[suspect] < 2**32 % b]
        product[again] = words(bits, again.size, 32) * bound[again]
        low[again] = product[again] & 0xFFFFFFFF
        suspect = again
    return product >> 32


def bernoulli(bits: Bits, p: Integers, q: Integers) -> NDArray[np.bool_]:
    """True with probability p/q exactly, for 0 <= p <= q < 2**47: is a uniform number, of 16 bits so far, below p/q?

    >>> import os
    >>> bernoulli(os.urandom, np.array([0, 3]), np.array([3, 3])).tolist()
    [False, True]
    """
    # Both terms are below 2**63, as q is below 2**47.
    room = (p << 16) - words(bits, p.size, 16) * q
    result: NDArray[np.bool_] = room >= q  # below p/q whatever bits follow; at or above it if room <= 0
    for i in np.flatnonzero((room > 0) & ~result):
        result[i] = resolve_bernoulli(bits, int(room[i]), int(q[i]))
    return result


def resolve_bernoulli(bits: Bits, p: int, q: int) -> bool:
    """True with probability p/q, in integers of any size: what 16 bits left open.

    >>> import os
    >>> resolve_bernoulli(os.urandom, 0, 3), resolve_bernoulli(os.urandom, 3, 3)
    (False, True)
    """
    return randbelow(bits, q) < p


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
        # Others are drawn again: a remainder would make small values likelier.
        if value < bound:
            return value
