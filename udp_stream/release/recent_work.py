"""What a runtime did lately: an observer that keeps what a worker's report says of pings, refusals and releases."""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from udp_stream.release.facts import BatchRead, Fact, SlotPublished
from udp_stream.release.next_close import NextClose
from udp_stream.release.worker_report import (
    SLOTS_MAX,
    ClosingSlotReport,
    LastRelease,
    OpenSlotReport,
    PartitionReport,
    Work,
)
from udp_stream.windows.slots import OpenSlot
from udp_stream.windows.tables import SlotGrid

WINDOW_S: Final = 600
"""Refusals are counted over so long: as long as the log is at most silent about them."""

STEP_S: Final = 60
"""They are counted by the minute, so the window is up to a minute shorter."""


@dataclass(slots=True)
class _Step:
    """What came within a minute."""

    number: int
    pings: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class RecentWork:
    """Facts in, a report's changing half out. `now_s` is Unix time in seconds, and never goes back.

    >>> from zoneinfo import ZoneInfo
    >>> from udp_stream.pings.decode import Reason
    >>> recent = RecentWork(SlotGrid(3600, ZoneInfo("Asia/Kolkata")), grace_ms=120_000)
    >>> recent.observe(BatchRead(3, 2, {Reason.NOT_JSON: 1}, 1_641_015_119_000), 1_641_015_120.0)
    >>> recent.observe(SlotPublished(1_641_011_400_000, {"released": 1}), 1_641_015_121.0)
    >>> work = recent.work(1_641_015_122.0)
    >>> work.pings, work.refused, work.last_release.slot_start, work.next_close
    (2, {'not_json': 1}, '2022-01-01T10:00:00+05:30', '2022-01-01T12:02:00+05:30')
    >>> recent.work(1_641_015_122.0 + 600).refused
    {}
    """

    def __init__(self, slots: SlotGrid, grace_ms: int, stuck_after_s: float = 30.0, disorder_ms: int = 0) -> None:
        """Nothing has happened yet. Closed slots none of which moves on for `stuck_after_s` are stuck. By the pings'
        own times a slot closes `disorder_ms` later than by the clock on the wall."""
        self._stuck_after_s = stuck_after_s
        self._grid, self._closes = slots, NextClose(slots, grace_ms, disorder_ms)
        self._steps: deque[_Step] = deque(maxlen=WINDOW_S // STEP_S)
        self._last: tuple[int, Counter[str], float] | None = None
        self._closing: Mapping[tuple[int, int], str] = {}
        self._closing_since: dict[tuple[int, int], float] = {}
        self._moved_s = 0.0

    def observe(self, fact: Fact, now_s: float) -> None:
        """Count a fact."""
        match fact:
            case BatchRead():
                step = self._step(now_s)
                step.pings += fact.pings
                step.refused.update({str(reason): count for reason, count in fact.refused.items()})
                self._closes.observe(fact)
            case SlotPublished():
                # On Kafka a slot is released shard by shard: its parts are added up.
                is_part = self._last is not None and self._last[0] == fact.start_ms
                hats = self._last[1] if self._last is not None and is_part else Counter[str]()
                self._last = fact.start_ms, hats + Counter(fact.hats), now_s
            case _:
                pass

    def work(
        self,
        now_s: float,
        open_slots: Iterable[OpenSlot] = (),
        partitions: Iterable[PartitionReport] = (),
        closing: Mapping[tuple[int, int], str] | None = None,
        stuck_s: float = 0.0,
        ended: int | None = None,
    ) -> Work:
        """The report's changing half. `closing` has the state of each slot on its way, by shard and slot start."""
        step, open_here = self._step(now_s), merged(open_slots)
        self._note_closing(closing or {}, now_s)
        waited_s = now_s - self._moved_s
        # Quiet minutes have no step, so the length of the deque alone does not bound their age.
        steps = [one for one in self._steps if one.number > step.number - WINDOW_S // STEP_S]
        pings, newest_ms = sum(one.pings for one in steps), self._closes.newest_ms
        closes_s, by_pings = self._closes.after(now_s, pings_came=pings > 0)
        return Work(
            self._iso(now_s),
            self._iso(closes_s),
            tuple(partitions),
            tuple(self._open(slot) for slot in open_here[:SLOTS_MAX]),
            sum(slot.pings for slot in open_here),
            self._closing_slots(now_s),
            self._last_release(),
            None if newest_ms is None else self._iso(newest_ms / 1000),
            pings,
            dict(sum((one.refused for one in steps), Counter())),
            WINDOW_S,
            round(max(stuck_s, waited_s if self._closing and waited_s > self._stuck_after_s else 0.0), 1),
            ended,
            "pings" if by_pings else "clock",
        )

    def _step(self, now_s: float) -> _Step:
        number = int(now_s // STEP_S)
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(_Step(number))
        return self._steps[-1]

    def _open(self, slot: OpenSlot) -> OpenSlotReport:
        start, end = self._grid.iso(slot.start_ms), self._grid.iso(slot.end_ms)
        return OpenSlotReport(start, end, slot.pings, len(slot.cells))

    def _note_closing(self, states: Mapping[tuple[int, int], str], now_s: float) -> None:
        if states != self._closing:
            self._moved_s = now_s
        self._closing = dict(states)
        self._closing_since = {place: self._closing_since.get(place, now_s) for place in states}

    def _closing_slots(self, now_s: float) -> tuple[ClosingSlotReport, ...]:
        """A slot of several shards is as old as its oldest part."""
        oldest: dict[int, tuple[float, str]] = {}
        for place, since_s in self._closing_since.items():
            here = since_s, self._closing[place]
            oldest[place[1]] = min(oldest.get(place[1], here), here)
        return tuple(
            ClosingSlotReport(self._grid.iso(start), state, round(now_s - since_s, 1))
            for start, (since_s, state) in sorted(oldest.items())[:SLOTS_MAX]
        )

    def _last_release(self) -> LastRelease | None:
        if self._last is None:
            return None
        start_ms, hats, out_s = self._last
        return LastRelease(self._grid.iso(start_ms), dict(hats), self._iso(out_s))

    def _iso(self, time_s: float) -> str:
        return dt.datetime.fromtimestamp(time_s, self._grid.zone).isoformat(timespec="seconds")


def merged(slots: Iterable[OpenSlot]) -> list[OpenSlot]:
    """The slots of several partitions as one list, oldest first: a cell that two of them have is one HAT.

    >>> merged([OpenSlot(0, 9, 2, frozenset({5})), OpenSlot(0, 9, 3, frozenset({5, 6}))])
    [OpenSlot(start_ms=0, end_ms=9, pings=5, cells=frozenset({5, 6}))]
    """
    found: dict[int, OpenSlot] = {}
    for slot in slots:
        other = found.get(slot.start_ms, OpenSlot(slot.start_ms, slot.end_ms, 0, frozenset()))
        found[slot.start_ms] = OpenSlot(*slot[:2], slot.pings + other.pings, slot.cells | other.cells)
    return [slot for _, slot in sorted(found.items())]
