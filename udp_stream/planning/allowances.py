"""What a plate may spend on a HAT, from budgets and counts.

`auto` spreads what is left of a plate's budget over the HATs that it is likely still to visit in the period, so that
the evening is served like the morning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import Measure
from udp_stream.units import NANO

Integers = NDArray[np.int64]

EPSILON_NANO_MIN = 1_000_000
"""Below 0.001 a statistic says nothing at any HAT size seen so far; then the HAT is withheld and no plate pays."""

RHO_NANO_MIN = 500
"""The same in rho: half of the square of 0.001. Parts of it still have noise at any counts and U."""

FIXED_NANO_MIN = 1000
"""A configured epsilon's smallest parts (0.29 of it for a level of a CDF's tree, half for what projects) still exceed
`noise.laplace.DRAWABLE_NANO_MIN`, and an eighth, a private quantile's, is above 0: noise can be drawn at any counts
and U."""

EPSILON_NANO_MAX = 1000 * NANO
"""Of one statistic of a HAT: with 2**28 samples, the most that a slot may hold, a variance on its noise's lattice is at
most 2**26 * 2**27 * 1000, which fits in 63 bits with room for the noise (`noise.lattice_of`, `variance`)."""


def least_nano(measure: Measure) -> int:
    """The least that an automatic epsilon may cost.

    >>> least_nano("pure"), least_nano("zcdp")
    (1000000, 500)
    """
    return EPSILON_NANO_MIN if measure == "pure" else RHO_NANO_MIN


def expected_visits(now: Integers, before: Integers, slots_gone: int, slots_left: int) -> NDArray[np.float64]:
    """HATs that each plate is likely to visit from this slot on, in the period.

    `now` counts the plate's HATs in this slot, `before` those it was charged for earlier in the period; `slots_gone`
    and `slots_left` count whole slots before and after this one. A plate goes on at its pace: that of this slot, or
    its mean pace over the period so far if that was faster.

    >>> expected_visits(np.array([4, 1]), np.array([0, 30]), slots_gone=10, slots_left=5).tolist()
    [24.0, 16.0]
    """
    pace = np.maximum(now, before / max(1, slots_gone))
    visits: NDArray[np.float64] = now + pace * slots_left
    return visits


def fair_shares(budget_nano: int, spent: Integers, visits: NDArray[np.float64]) -> Integers:
    """Nano-units that each plate can spend per HAT if it is to last for `visits` HATs (at least one each).

    >>> fair_shares(100, spent=np.array([0, 40, 100]), visits=np.array([4.0, 0.5, 2.0])).tolist()
    [25, 60, 0]
    """
    left = np.maximum(0, budget_nano - spent)
    shares: Integers = np.floor(left / np.maximum(1.0, visits)).astype(np.int64)
    return shares


def hat_epsilon(shares: Integers) -> int:
    """One epsilon for all plates of a HAT, from what each can spend: the lower quartile.

    Taking the least share would let the busiest plate starve everybody's statistic; taking the median would run half
    of the plates down. A plate below the quartile spends ahead of its pace and is given less later: its shares
    follow what it has left. Only the ledger says who is out.

    >>> hat_epsilon(np.array([4, 8, 8, 100]))
    8
    """
    ordered = np.sort(shares)
    return int(ordered[ordered.size // 4])
