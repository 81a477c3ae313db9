"""When the next slot closes: by the clock on the wall, or by the pings' own times where those are far behind it.

The log is the clock: pings move it by their times, and ticks, while none come, by the clock on the wall.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from udp_stream.release.facts import BatchRead
from udp_stream.windows.tables import SlotGrid

BEHIND_S: Final = 600.0
"""From this lag on, while pings come, it is told by their times when the next slot closes: so it is with a recording,
and with what waited while a broker was away. Below it that time and the clock on the wall are the same to a reader."""


class Close(NamedTuple):
    """Unix seconds, and whether the pings' times have to reach them, and not the clock on the wall.

    >>> Close(7_320.0, by_pings=False).at_s
    7320.0
    """

    at_s: float
    by_pings: bool


class NextClose:
    """What the facts of a run tell of it. `now_s` is Unix time in seconds.

    >>> from datetime import UTC
    >>> closes = NextClose(SlotGrid(3600, UTC), grace_ms=120_000, disorder_ms=60_000)
    >>> closes.observe(BatchRead(messages=1, pings=5, refused={}, newest_ms=7_300_000))
    >>> closes.after(7_310.0, pings_came=True), closes.after(7_300.0 + 600, pings_came=True)
    (Close(at_s=7320.0, by_pings=False), Close(at_s=7380.0, by_pings=True))
    >>> closes.observe(BatchRead(messages=0, pings=0, refused={}))  # a tick
    >>> closes.after(7_300.0 + 600, pings_came=True)
    Close(at_s=10920.0, by_pings=False)
    """

    def __init__(self, slots: SlotGrid, grace_ms: int, disorder_ms: int = 0) -> None:
        """Nothing has happened yet. By the pings' own times a slot closes `disorder_ms` later."""
        self._grid, self._grace_s, self._disorder_s = slots, grace_ms / 1000, disorder_ms / 1000
        self._moved_by_pings = False  # and by no tick since
        self.newest_ms: int | None = None

    def observe(self, fact: BatchRead) -> None:
        """Pings, or a tick: a batch without messages."""
        # Messages of which every ping was refused are neither: they move no clock.
        if fact.pings or not fact.messages:
            self._moved_by_pings = fact.pings > 0
        if fact.newest_ms is not None:
            self.newest_ms = max(fact.newest_ms, self.newest_ms or fact.newest_ms)

    def lag_s(self, now_s: float) -> float | None:
        """How old the newest ping is; None before the first."""
        return None if self.newest_ms is None else max(0.0, now_s - self.newest_ms / 1000)

    def after(self, now_s: float, *, pings_came: bool) -> Close:
        """The next one; `pings_came`: lately."""
        lag_s = self.lag_s(now_s)
        if pings_came and self._moved_by_pings and lag_s is not None and lag_s >= BEHIND_S:
            return Close(next_close_s(self._grid, self._grace_s + self._disorder_s, now_s - lag_s), by_pings=True)
        return Close(next_close_s(self._grid, self._grace_s, now_s), by_pings=False)


def next_close_s(slots: SlotGrid, grace_s: float, now_s: float) -> float:
    """When the next slot closes by this clock, which shows `now_s`: its end and the grace. Unix seconds.

    >>> from datetime import UTC
    >>> next_close_s(SlotGrid(3600, UTC), grace_s=120.0, now_s=7_300.0)
    7320.0
    """
    return slots.end_of(round((now_s - grace_s) * 1000)) / 1000 + grace_s
