"""The calendar of a deployment: its slots, its budget periods, and which periods of a ledger overlap them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import numpy as np

from udp_stream.ledger.rolling import span_name
from udp_stream.planning.hat_plan import SlotInPeriod
from udp_stream.planning.one_budget import OneBudget
from udp_stream.planning.periods import DAY_S, name_in, overlapping, period_of
from udp_stream.planning.policy import Policy
from udp_stream.units import duration_name
from udp_stream.windows.tables import SlotGrid

SPANS_PER_WINDOW = 24
"""Balances that the window of a rolling budget is cut into, where slots are no longer than that. A span counts as long
as a window touches any of it, so a window holds its pings back up to a 24th longer than it has to. Each span is another
look-up for every plate that is charged."""


def span_seconds(window_seconds: int, slot_seconds: int) -> int:
    """How long a balance of a rolling budget is: whole slots, which divide a day or are whole days.

    >>> span_seconds(86_400, 3600), span_seconds(7 * 86_400, 3600), span_seconds(30 * 86_400, 900)
    (3600, 28800, 172800)
    """
    least = max(slot_seconds, ceil(window_seconds / SPANS_PER_WINDOW))
    if least <= DAY_S:
        some = range(slot_seconds * ceil(least / slot_seconds), DAY_S + 1, slot_seconds)
        return next(seconds for seconds in some if DAY_S % seconds == 0)
    whole = max(slot_seconds, DAY_S)
    return whole * ceil(least / whole)


class BudgetCalendar:
    """Slots and budget periods of a policy in its zone.

    `one_budget` is that of speeds and positions, where they share one; `within` are sums known to be within it.

    >>> from udp_stream.adapters.settings import Settings
    >>> calendar = Settings().calendar
    >>> noon = calendar.slot_in_period(1_704_715_200_000)
    >>> noon.period, noon.slots_gone + noon.slots_left + 1
    ('1d from 2024-01-08T00:00:00+05:30', 24)
    """

    def __init__(
        self,
        policy: Policy,
        slots: SlotGrid,
        periods: SlotGrid | None,
        one_budget: OneBudget | None = None,
    ) -> None:
        """`periods` is None where one budget is for a lifetime; of a rolling budget they are its spans."""
        self.slots = slots
        self.one_budget = one_budget
        self.within: set[tuple[str, ...]] = set()
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
        if self._policy.rolls:
            return self._in_windows(start_ms, self._periods)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone, left = round((start_ms - first) / slot_ms), max(0, round((last - start_ms) / slot_ms) - 1)
        return SlotInPeriod(name_in(measure, f"{self._policy.period} from {self._periods.iso(first)}"), gone, left)

    def _in_windows(self, start_ms: int, spans: SlotGrid) -> SlotInPeriod:
        """The span that holds a slot: spans are whole slots, also where clocks are changed."""
        policy, ends = self._policy, spans.place(np.array([start_ms]))
        times = [spans.iso(int(end[0])) for end in ends]
        length = duration_name(policy.period_seconds or 0)
        # In whole spans, as a window counts every span that it touches.
        within = ceil((policy.period_seconds or 0) / spans.seconds) * spans.seconds // policy.slot_seconds
        return SlotInPeriod(name_in(policy.measure, span_name(length, *times)), within, within, rolls=True)

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        return isfinite(start) and self.slot_in_period(round(start * 1000)).period == name
