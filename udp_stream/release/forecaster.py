"""The forecaster: it learns from what the ledger holds, slot by slot, and plans the next slot around its forecast.

It keeps nothing of its own. What it knows follows from the releases of two days, in the order of their slots
(`forecast/model.py`), so that after a crash, or on another worker, it comes to the same forecasts. The ledger keeps
the first plan of a HAT all the same.
"""

from __future__ import annotations

import datetime as dt

from udp_stream.forecast.model import DAYS, Memory, SlotForecast, forecast_slot
from udp_stream.release.history import History
from udp_stream.release.smoothed import Smoothed, smooth_slot
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.tables import SlotCounts, SlotGrid

Slot = tuple[int, int]
"""Start and end, Unix ms."""


class Forecaster:
    """Forecasts and smoothed estimates of a deployment.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.history import LedgerHistory
    >>> from udp_stream.release.road import release_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> forecaster = Forecaster(context.calendar.slots, context.policy.max_speed, "udp-stream 1.0")
    >>> forecaster.saw(counts)
    >>> _ = release_slot(counts, values, context, ledger, publish=lambda _: None)
    >>> estimates = forecaster.smoothed((counts.start_ms, counts.end_ms), LedgerHistory(ledger))
    >>> [estimate.hat.cell for estimate in estimates]  # that of the HAT which was withheld, too
    ['8742d98b6ffffff', '8742d9d4cffffff']
    """

    def __init__(self, slots: SlotGrid, max_speed: int, software: str) -> None:
        """`max_speed` is U in quanta."""
        self._memory, self._slots = Memory(), slots
        self._max_kmh, self._software = max_speed / QUANTA_PER_KMH, software
        self._due: dict[Slot, set[int]] = {}
        self._learnt_ms: int | None = None

    def saw(self, counts: SlotCounts) -> None:
        """A slot that is planned now, or is recorded already: its releases are to be learnt."""
        # A slot that comes again after it was learnt must not be learnt twice.
        if self._learnt_ms is None or counts.start_ms > self._learnt_ms:
            self._due.setdefault((counts.start_ms, counts.end_ms), set()).update(counts.cells.tolist())

    def forecast(self, counts: SlotCounts, history: History) -> SlotForecast:
        """The forecast of a slot, after all earlier ones. They must be recorded by now: what is not is never learnt."""
        self._learn(history, counts.start_ms)
        return forecast_slot(counts, self._memory, self._day(counts.start_ms), self._max_kmh)

    def smoothed(self, slot: Slot, history: History) -> list[Smoothed]:
        """The smoothed estimates of a slot, all of which is recorded, after all earlier ones; once for each slot."""
        return self._learn(history, slot[1]).get(slot, [])

    def _learn(self, history: History, before_ms: int) -> dict[Slot, list[Smoothed]]:
        """Learn every slot that starts before this time and was not learnt yet; gives their smoothed estimates."""
        if self._learnt_ms is None:
            self._remember(history, before_ms)
        learnt = {}
        for slot in sorted(slot for slot in self._due if slot[0] < before_ms):
            # Sorted, as a set has no order, and every worker has to come to the same forecasts.
            found = history.releases(*slot, sorted(self._due.pop(slot)))
            self._learnt_ms = slot[0]
            if records := [record for record in found if record is not None]:
                day, known = self._day(slot[0]), (self._max_kmh, self._software)
                learnt[slot] = smooth_slot(records, self._memory, day, *known)
        return learnt

    def _remember(self, history: History, before_ms: int) -> None:
        """What the ledger holds of the days that are remembered, beside what was seen.

        Also of later slots: a worker that reads a log again may know less of them than the one that released them.
        """
        # One ms before: the end of a day's last slot is midnight of the next day.
        midnight = dt.datetime.combine(self._day(before_ms - 1), dt.time(), self._slots.zone)
        since_ms = int((midnight - dt.timedelta(days=DAYS - 1)).timestamp() * 1000)
        for slot, cells in history.slots_since(since_ms).items():
            self._due.setdefault(slot, set()).update(cells)

    def _day(self, time_ms: int) -> dt.date:
        return dt.datetime.fromtimestamp(time_ms / 1000, self._slots.zone).date()
