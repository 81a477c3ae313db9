"""Budget schedules: what each plate may spend on a HAT of this slot, by what it has spent and where the period is.

* "spread": what is left, over the HATs that the plate is likely still to visit. Ours, and the default.
* "uniform": an even part of the budget for every HAT of the period, whatever was saved.
* "ramp": *Adaptive Privacy Budgeting* (Liang and Yi), Algorithm 3. With m HATs in the period, of which this is the
  l-th, the even part B/m, and of what was saved so far the share gamma_l, which rises from 3/4 to 1:

      r = gamma_l (left - (m - l + 1)/m B) + B/m,      gamma_l = 3/4 + 1/4 (l - 1)/(m - 1)

  The paper has a fixed number of queries. Here m is how many HATs the plate is expected to be charged for in the whole
  period, so it moves with the day; gamma is 1 where m is 1 (as printed, it divides by 0). Where the day turns out
  longer than it seemed nothing was saved: then what is left is spread, as above.
* weights, one for each slot of the period: the slot's part of the budget, over the plate's HATs in it.

A rolling budget has no end to save for: what is spent comes back a window's length later. There "spread" and "uniform"
are the same, an even part for each HAT that the plate is likely to visit in a window, and the other two do not fit.

Only counts and balances are read. The ledger holds every plate to its budget, whatever a schedule allows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.allowances import expected_visits, fair_shares

Integers = NDArray[np.int64]
Schedule = Literal["spread", "uniform", "ramp"] | tuple[float, ...]

RAMP_FROM = 0.75
"""The share of its savings that a plate may spend at first."""


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

    A plate with 80 of 100 left, at the fifth of an expected twelve HATs:

    >>> at = PeriodSoFar(np.array([20]), np.array([4]), np.array([2]), slots_gone=2, slots_left=3)
    >>> weights = (1.0, 1.0, 4.0, 2.0, 1.0, 1.0)
    >>> [int(shares_of(schedule, 100, at)[0]) for schedule in ("spread", "uniform", "ramp", weights)]
    [10, 8, 19, 20]
    >>> int(shares_of("spread", 100, at._replace(slots_gone=4, slots_left=4, rolls=True))[0])
    10
    """
    if at.rolls:
        even = np.floor(budget_nano / at.visits).astype(np.int64)
        parts: Integers = np.clip(even, 0, np.maximum(0, budget_nano - at.charged))
        return parts
    if schedule == "spread":
        return fair_shares(budget_nano, at.charged, at.visits)
    left = np.maximum(0, budget_nano - at.charged)
    in_all = at.charges + at.visits
    if schedule == "uniform":
        wanted = budget_nano / in_all
    elif schedule == "ramp":
        # `where` works out both sides: the 1e-9 only avoids a division by 0.
        gamma = RAMP_FROM + (1 - RAMP_FROM) * np.where(in_all > 1, at.charges / np.maximum(in_all - 1, 1e-9), 1.0)
        saved = left - (in_all - at.charges) / in_all * budget_nano
        wanted = np.where(saved < 0, left / at.visits, np.minimum(gamma, 1.0) * saved + budget_nano / in_all)
    else:
        part = schedule[at.slots_gone % len(schedule)] / sum(schedule)
        wanted = budget_nano * part / np.maximum(1, at.now)
    shares: Integers = np.floor(np.clip(wanted, 0, left)).astype(np.int64)
    return shares
