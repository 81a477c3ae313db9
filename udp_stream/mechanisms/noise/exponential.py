"""The exponential mechanism, exactly: weights from a table of integers, and a choice that samples from them.

Neighbouring entries of the table differ by at most the allowed factor, with no rounding left out of the account.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Cost
from udp_stream.mechanisms.noise.families import noise_of
from udp_stream.mechanisms.noise.uniform import randbelow
from udp_stream.units import NANO


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

    >>> table = exponential_weights(2 * 10**9, largest=3)
    >>> [round(weight / table[-1], 3) for weight in table]  # 1, e, e^2, e^3 backwards
    [20.086, 7.389, 2.718, 1.0]
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
    """The weight of each group: its size times the table's entry for how far its penalty is above the least one.

    >>> choice_weights([7, 6, 0], [1, 2, 0], table=[100, 10, 1])
    [10, 200, 0]
    """
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

    >>> import os
    >>> exponential_choices(os.urandom, [500, 0], [1, 1], 500, sensitivity=1, cost=Cost("pure", 10**11), draws=3)
    [1, 1, 1]
    """
    # Rounded down: `sensitivity` steps together cost no more than the whole.
    table = exponential_weights(noise_of(cost).choice_epsilon_nano(cost) // sensitivity, largest)
    upto = list(accumulate(choice_weights(penalties, sizes, table)))
    return [bisect_right(upto, randbelow(bits, upto[-1])) for _ in range(draws)]
