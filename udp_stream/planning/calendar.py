"""The calendar of a deployment: its slots, its budget periods, and which periods of a ledger overlap them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from udp_stream.planning.hat_plan import SlotInPeriod
from udp_stream.planning.periods import NOTHING, Loss, name_in, overlapping, period_of
from udp_stream.planning.policy import Policy
from udp_stream.windows.grid import SlotGrid


class BudgetCalendar:
    """Slots and budget periods of a policy in its zone, and what was accepted of periods that overlap.

    `accepted_loss` is the most that the budgets of periods that overlap may sum to; nothing where none was accepted.

    >>> from udp_stream.adapters.settings import Settings
    >>> calendar = Settings().calendar
    >>> noon = calendar.slot_in_period(1_704_715_200_000)
    >>> noon.period, noon.slots_gone + noon.slots_left + 1
    ('1d from 2024-01-08T00:00:00+05:30', 24)
    """

    def __init__(
        self, policy: Policy, slots: SlotGrid, periods: SlotGrid | None, accepted_loss: Loss = NOTHING
    ) -> None:
        """`periods` is None where one budget is for a lifetime."""
        self.slots = slots
        self.accepted_loss = accepted_loss
        self.accepted: set[tuple[str, ...]] = set()
        self._policy = policy
        self._periods = periods

    def slot_in_period(self, start_ms: int) -> SlotInPeriod:
        """The budget period of the slot that starts at this time, and the slot's place in it.

        Slots and periods are cut on the wall clock, so that on the days when it changes some are an hour shorter or
        longer: their number is rounded.
        """
        measure = self._policy.measure
        if self._periods is None:
            return SlotInPeriod(name_in(measure, "lifetime"), 0, 0)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone, left = round((start_ms - first) / slot_ms), max(0, round((last - start_ms) / slot_ms) - 1)
        return SlotInPeriod(name_in(measure, f"{self._policy.period} from {self._periods.iso(first)}"), gone, left)

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        return isfinite(start) and self.slot_in_period(round(start * 1000)).period == name
