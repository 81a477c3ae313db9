"""A reader of one source partition: records in, closed slots and refusals out, and the checkpoint to resume from.

**The checkpoint** is all that a restart needs besides the log: the offset of the oldest ping in an open slot, the
watermark, and the offset up to which refusals were rejected. Reading again from there gives the same slots. Pings of
slots that had closed by then are late by the restored watermark and are skipped silently; pings of open slots are
counted again.

The reader does no I/O. Its caller commits the checkpoint once everything that the reader closed has been written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from udp_stream.pings.decoder import PingDecoder, Pings, Refusal, originals
from udp_stream.windows.clocks import AppendClock, Frame, LogPlaces, WindowRules
from udp_stream.windows.grid import SlotGrid, cells_of
from udp_stream.windows.open_slots import LateOrFull, Windows
from udp_stream.windows.slot_tables import SlotPings


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """Resume at `offset` with this watermark; refusals before `rejected_through` were rejected already."""

    offset: int
    watermark_ms: int | None = None
    rejected_through: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, the offset of its message, and the original bytes."""

    offset: int
    refusal: Refusal
    original: bytes


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The outcome of a run of records: slots closed, oldest first; refusals in order; the number of pings counted."""

    closed: list[SlotPings]
    refused: list[Refused]
    pings: int


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """What all readers of a deployment share. `hashed` gives a plate's keyed hash."""

    decoder: PingDecoder
    windows: WindowRules
    grid: SlotGrid
    resolution: int
    hashed: Callable[[str], bytes]


class SourceReader:
    """The open slots of one source partition, and the position in its log."""

    def __init__(self, rules: ReadingRules, start: SourceCheckpoint) -> None:
        """Resume from a checkpoint."""
        self._rules = rules
        self._clock = AppendClock(rules.windows, start.watermark_ms)
        self._windows = Windows(rules.windows, rules.hashed, self._clock)
        self._rejected_through = start.rejected_through
        self.next_offset = start.offset

    def read(self, messages: Sequence[bytes], places: LogPlaces) -> ReadResult:
        """Read the next messages of the partition, in order, with their places. Those read before are skipped."""
        known = int(np.searchsorted(places.offset, self.next_offset))
        if known:
            messages, places = messages[known:], places.behind(known)
        if not messages:
            return ReadResult([], [], 0)
        pings, refusals = self._rules.decoder.decode(messages)
        start, end = self._rules.grid.place(pings.time_ms)
        cell = cells_of(pings.lat, pings.lon, self._rules.resolution)
        closed, unplaced = self._windows.push(Frame(pings, cell, start, end, places))
        refusals = [refusal for refusal in refusals if not places.tick[refusal.message]]
        refusals += [refusal_of(pings, one) for one in unplaced]
        self.next_offset = int(places.offset[-1]) + 1
        return ReadResult(closed, self._new_refusals(messages, places, refusals), len(pings) - len(unplaced))

    def _new_refusals(self, messages: Sequence[bytes], places: LogPlaces, refusals: list[Refusal]) -> list[Refused]:
        """The refusals that were not rejected before a restart, in order."""
        new = [refusal for refusal in refusals if places.offset[refusal.message] >= self._rejected_through]
        new.sort(key=lambda refusal: (refusal.message, refusal.position))
        return [
            Refused(int(places.offset[refusal.message]), refusal, data)
            for refusal, data in zip(new, originals(messages, new), strict=True)
        ]

    @property
    def through_ms(self) -> int | None:
        """Every slot that ends by then is closed for good; None before the first ping or tick."""
        return None if self._clock.watermark_ms is None else self.through_at(self._clock.watermark_ms)

    def through_at(self, watermark_ms: int) -> int:
        """What would be closed at this watermark."""
        starts, _ = self._rules.grid.place(np.array([watermark_ms - self._rules.windows.grace_ms]))
        return int(starts[0])

    def tick_would_close(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close any slot, an empty one included."""
        through = self.through_ms
        return through is None or self.through_at(wall_ms - self._rules.windows.disorder_ms) > through

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return self._windows.open_pings

    def checkpoint(self) -> SourceCheckpoint:
        """Where to resume after a crash. Commit it only once all that was closed and refused has been written."""
        first = self._windows.first_open
        offset = self.next_offset if first is None else first
        return SourceCheckpoint(offset, self._clock.watermark_ms, max(self._rejected_through, self.next_offset))


def refusal_of(pings: Pings, refused: LateOrFull) -> Refusal:
    """What a window refused, as a refusal of its message."""
    message, position = int(pings.message[refused.row]), int(pings.position[refused.row])
    return Refusal(message, position, refused.reason, "$.observationDateTime", refused.lag_ms)
