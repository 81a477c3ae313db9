"""What a plate may spend on a HAT, from budgets and counts.

`auto` spreads what is left of a plate's budget over the HATs that it is likely still to visit in the period, so that
the evening is served like the morning. Only counts and balances are read; the ledger holds every plate to its budget.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import Measure
from udp_stream.units import NANO

Integers = NDArray[np.int64]
Schedule = Literal["spread", "uniform"]

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


class PeriodSoFar(NamedTuple):
    """Of each plate: nano-units and HATs that it was charged so far, and HATs in this slot. Of the slot: its place.

    Where budgets roll (`rolls`), what it was charged is the most in any window that touches the slot, and `visits` are
    all of a window.

    >>> PeriodSoFar(np.array([40]), np.array([4]), np.array([2]), slots_gone=2, slots_left=3).visits.tolist()
    [8.0]
    """

    charged: Integers
    charges: Integers
    now: Integers
    slots_gone: int
    slots_left: int
    rolls: bool = False

    @property
    def visits(self) -> NDArray[np.float64]:
        """HATs that each plate is likely to visit from this slot on, at least one."""
        expected = expected_visits(self.now, self.charges, self.slots_gone, self.slots_left)
        return np.maximum(1.0, expected)


def shares_of(schedule: Schedule, budget_nano: int, at: PeriodSoFar) -> Integers:
    """What each plate may spend on each of its HATs in this slot, in nano-units; never more than it has left.

    "spread": what is left, over the HATs that the plate is likely still to visit. "uniform": an even part of the budget
    for every HAT of the period, whatever was saved. A rolling budget has no end to save for: what is spent comes back a
    window's length later. There both are an even part for each HAT that the plate is likely to visit in a window.

    A plate with 80 of 100 left, at the fifth of an expected twelve HATs:

    >>> at = PeriodSoFar(np.array([20]), np.array([4]), np.array([2]), slots_gone=2, slots_left=3)
    >>> [int(shares_of(schedule, 100, at)[0]) for schedule in ("spread", "uniform")]
    [10, 8]
    >>> int(shares_of("spread", 100, at._replace(slots_gone=4, slots_left=4, rolls=True))[0])
    10
    """
    if schedule == "spread" and not at.rolls:
        return fair_shares(budget_nano, at.charged, at.visits)
    even = budget_nano / (at.visits if at.rolls else at.charges + at.visits)
    shares: Integers = np.clip(np.floor(even).astype(np.int64), 0, np.maximum(0, budget_nano - at.charged))
    return shares
