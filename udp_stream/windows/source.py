"""A reader of one source partition: records in, closed slots and refusals out, and the checkpoint to resume from.

**The checkpoint** is all that a restart needs besides the log: the offset of the oldest ping in an open slot, the
watermark, and the offset up to which refusals were rejected. Reading again from there gives the same slots. Pings of
slots that had closed by then are late by the restored watermark and are skipped silently; pings of open slots are
counted again.

Where positions are asked, `positions.py` has its part of the checkpoint, which may hold the offset further back: pings
are needed for as long as they may be a plate's latest.

The reader does no I/O. Its caller commits the checkpoint once everything that the reader closed has been written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from udp_stream.pings.decode import PLAIN_PATHS, FieldPaths, PingDecoder, Pings, Refusal, originals
from udp_stream.windows.positions import Moment, MomentRules, SourceMoments
from udp_stream.windows.slots import AppendClock, Frame, LateOrFull, LogPlaces, WindowRules, Windows
from udp_stream.windows.tables import SlotGrid, SlotPings, cells_of


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """Resume at `offset` with this watermark; refusals before `rejected_through` were rejected already.

    `positions_ms` is the watermark before the first ping that a moment may need, where it is another one.

    >>> SourceCheckpoint(0).watermark_ms is None
    True
    """

    offset: int
    watermark_ms: int | None = None
    rejected_through: int = 0
    positions_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, the offset of its message, and the original bytes.

    >>> from udp_stream.pings.decode import Reason
    >>> Refused(41, Refusal(1, -1, Reason.NOT_JSON, "$"), b"junk").offset
    41
    """

    offset: int
    refusal: Refusal
    original: bytes


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The outcome of a run of records: slots closed, oldest first; refusals in order; the number of messages read,
    without ticks and those that this reader had read before; and of pings counted. `newest_ms` is the latest time of
    these, Unix ms; None if there is none. `moments` are those that are due, oldest first.

    >>> ReadResult(closed=[], refused=[], messages=0, pings=0).pings
    0
    """

    closed: list[SlotPings]
    refused: list[Refused]
    messages: int
    pings: int
    newest_ms: int | None = None
    moments: Sequence[Moment] = ()


Look = Callable[[Sequence[bytes], ReadResult], None]
"""Is given messages and what became of them, before a slot that they close is released: `cli/first_look.py`."""


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """What all readers of a deployment share. `hash_plate` gives a plate's keyed hash; without `moments` no position is
    kept.

    >>> from udp_stream.pings.json import JSON
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), 7, lambda plate: plate.encode()).resolution
    7
    """

    decoder: PingDecoder
    windows: WindowRules
    grid: SlotGrid
    resolution: int
    hash_plate: Callable[[str], bytes]
    moments: MomentRules | None = None


class SourceReader:
    """The open slots of one source partition, and the position in its log.

    A broken message and a tick: the tick at 8:00 closes what ended an hour ago, and a restart reads on behind it.

    >>> from udp_stream.pings.json import JSON
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> rules = ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), 7, lambda plate: plate.encode())
    >>> reader = SourceReader(rules, SourceCheckpoint(40))
    >>> eight_ms = 8 * 3_600_000
    >>> read = reader.read([b"junk", b""], LogPlaces(np.array([40, 41]), np.full(2, eight_ms), np.array([False, True])))
    >>> read.closed, read.pings, [(refused.offset, refused.refusal.reason.value) for refused in read.refused]
    ([], 0, [(40, 'not_json')])
    >>> reader.checkpoint(), reader.through_ms == eight_ms - 3_600_000
    (SourceCheckpoint(offset=42, watermark_ms=28740000, rejected_through=42, positions_ms=None), True)
    """

    def __init__(self, rules: ReadingRules, start: SourceCheckpoint) -> None:
        """Resume from a checkpoint."""
        self._rules = rules
        self._clock = AppendClock(rules.windows, start.watermark_ms)
        self._windows = Windows(rules.windows, rules.hash_plate, self._clock)
        self._moments = (
            None
            if rules.moments is None
            else SourceMoments(rules.moments, rules.windows, rules.hash_plate, start.watermark_ms, start.positions_ms)
        )
        self._rejected_through = start.rejected_through
        self.next_offset = start.offset

    def read(self, messages: Sequence[bytes], places: LogPlaces) -> ReadResult:
        """Read the next messages of the partition, in order, with their places. Those read before are skipped."""
        known = int(np.searchsorted(places.offset, self.next_offset))
        if known:
            messages, places = messages[known:], places.behind(known)
        if not messages:
            return ReadResult([], [], 0, 0)
        pings, refusals = self._rules.decoder.decode(messages)
        start, end = self._rules.grid.place(pings.time_ms)
        cell = cells_of(pings.lat, pings.lon, self._rules.resolution)
        frame = Frame(pings, cell, start, end, places)
        closed, unplaced = self._windows.push(frame)
        moments = [] if self._moments is None else self._moments.read(frame)
        refusals = [refusal for refusal in refusals if not places.tick[refusal.message]]
        refusals += [refusal_of(pings, one, self._rules.decoder.format.paths) for one in unplaced]
        self.next_offset = int(places.offset[-1]) + 1
        refused = self._new_refusals(messages, places, refusals)
        messages_read, counted = int((~places.tick).sum()), len(pings) - len(unplaced)
        return ReadResult(closed, refused, messages_read, counted, newest_ms_of(pings, unplaced), moments)

    def _new_refusals(self, messages: Sequence[bytes], places: LogPlaces, refusals: list[Refusal]) -> list[Refused]:
        """The refusals that were not rejected before a restart, in order."""
        new = [refusal for refusal in refusals if places.offset[refusal.message] >= self._rejected_through]
        new.sort(key=lambda refusal: (refusal.message, refusal.position))
        return [
            Refused(int(places.offset[refusal.message]), refusal, data)
            for refusal, data in zip(new, originals(messages, new, self._rules.decoder.format), strict=True)
        ]

    @property
    def through_ms(self) -> int | None:
        """Every slot that ends by then is closed for good; None before the first ping or tick."""
        return None if self._clock.watermark_ms is None else self.through_at(self._clock.watermark_ms)

    def through_at(self, watermark_ms: int) -> int:
        """What would be closed at this watermark."""
        starts, _ = self._rules.grid.place(np.array([watermark_ms - self._rules.windows.grace_ms]))
        return int(starts[0])

    @property
    def moments_ms(self) -> int | None:
        """Every moment up to then is complete; None before the first ping or tick, or if none is asked for."""
        if self._moments is None or self._clock.watermark_ms is None:
            return None
        return self._moments.through_at(self._clock.watermark_ms)

    @property
    def moments_lost_ms(self) -> int | None:
        """From a checkpoint that no positions were read for: up to then moments may lack some. None if none does."""
        if self._rules.moments is None or self._clock.watermark_ms is None:
            return None
        return self._clock.watermark_ms + self._rules.moments.age_ms

    def tick_would_close(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close any slot or moment, an empty one included."""
        through, watermark_ms = self.through_ms, wall_ms - self._rules.windows.disorder_ms
        if through is None or self.through_at(watermark_ms) > through:
            return True
        told_ms = self.moments_ms
        return self._moments is not None and told_ms is not None and self._moments.through_at(watermark_ms) > told_ms

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return self._windows.open_pings

    def checkpoint(self) -> SourceCheckpoint:
        """Where to resume after a crash. Commit it only once all that was closed and refused has been written."""
        # The larger one: after a restart the reader is behind what was rejected before it.
        watermark_ms, rejected_through = self._clock.watermark_ms, max(self._rejected_through, self.next_offset)
        first = self._windows.first_open
        offset = self.next_offset if first is None else first
        if self._moments is None:
            return SourceCheckpoint(offset, watermark_ms, rejected_through)
        needed, before_ms = self._moments.first_needed() or (offset, self._moments.watermark_ms)
        is_same = watermark_ms is None or before_ms == watermark_ms
        return SourceCheckpoint(min(offset, needed), watermark_ms, rejected_through, None if is_same else before_ms)


def newest_ms_of(pings: Pings, unplaced: Sequence[LateOrFull]) -> int | None:
    """The latest time of the pings that windows took, Unix ms. One that they refused may be decades ahead."""
    taken = np.ones(len(pings), dtype=bool)
    taken[[refused.row for refused in unplaced]] = False
    return int(pings.time_ms[taken].max()) if taken.any() else None


def refusal_of(pings: Pings, refused: LateOrFull, paths: FieldPaths = PLAIN_PATHS) -> Refusal:
    """What a window refused, as a refusal of its message."""
    message, position = int(pings.message[refused.row]), int(pings.position[refused.row])
    return Refusal(message, position, refused.reason, paths.time, refused.lag_ms)
