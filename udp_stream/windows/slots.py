"""Open slots, closed once each by the log's own clock, and the reader of a source partition.

The log is read in frames: runs of messages. A clock turns the frames into watermarks. Whether a
ping is late and when a slot closes depend on the watermark before and after its frame, so reading a
log twice gives the same slots.

1. A ping whose slot had closed before it (slot end + grace <= watermark) is late: refused, with its
   lag.
2. A ping that the clock finds to come from the future, or to be 1,024 weeks old, is refused, and
   moves nothing.
3. The rest go into their slots. A slot that is full refuses.
4. Slots whose end + grace the watermark has reached are closed, oldest first, for good.

The clock of files observes a frame as a whole, so there the frames are part of the log; the clock
of topics goes by messages, so there a frame may be any run of them.

Where whole plates are hidden, every slot closes by the wall's time, with or without pings, and a
slot refuses what is more than a ping a second of a plate: no plate decides over another's pings
(`WallClock`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Cells, Flags, Floats, Integers
from udp_stream.pings.decode import PingDecoder, PingRules, Pings, Reason, Refusal, originals
from udp_stream.windows.clocks import (
    AgreementClock,
    AppendClock,
    Clock,
    Frame,
    LogClock,
    LogPlaces,
    WallClock,
    WindowRules,
)
from udp_stream.windows.grid import NOWHERE, Grid
from udp_stream.windows.headings import by_movement
from udp_stream.windows.movement import places_of
from udp_stream.windows.positions import Moment, MomentRules, SourceMoments
from udp_stream.windows.tables import (
    SlotCounts,
    SlotGrid,
    SlotPings,
    SlotValues,
    tabulate,
)

_ROW = np.dtype([("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("speed", "<i4")])
"""A row of an open ping: 20 bytes."""

_MOVING = np.dtype(
    [("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("lat", "<i4"), ("lon", "<i4")]
)
"""Where speeds are derived: 24 bytes."""

_HEADED = np.dtype([*_ROW.descr, ("lat", "<i4"), ("lon", "<i4")])
"""Where headings are derived, and speeds are not: 28 bytes."""


_ROWS_MIN = 512
"""Rows from which on a chunk is left as it is: fewer are joined with as few before them."""


class WindowRefusal(NamedTuple):
    """A ping that a window refused: its row in the frame, why, and by how much it was late.

    >>> WindowRefusal(2, Reason.SLOT_FULL).lag_ms is None
    True
    """

    row: int
    reason: Reason
    lag_ms: int | None = None


@dataclass(slots=True)
class _OpenSlot:
    """An open slot: chunks of rows."""

    start_ms: int
    end_ms: int
    first: int
    rules: WindowRules
    chunks: list[NDArray[np.void]] = field(default_factory=list)
    rows: int = 0
    plates: defaultdict[str, int] = field(default_factory=lambda: defaultdict(count().__next__))
    of_plate: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def within(self, pings: Pings, index: Integers) -> Flags:
        """Mask of the rows that are at most a ping a second of their plate, in order; they are to
        be added."""
        most = (self.end_ms - self.start_ms) // 1000
        codes = self._codes(pings, index)
        before = np.append(self.of_plate, np.zeros(len(self.plates) - self.of_plate.size, np.int64))
        self.of_plate = np.minimum(before + np.bincount(codes, minlength=before.size), most)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        number = np.empty(index.size, np.int64)  # of each row among its plate's
        number[order] = np.arange(index.size) - np.searchsorted(ordered, ordered)
        return number + before[codes] < most

    def add(self, frame: Frame, index: Integers) -> None:
        pings = frame.pings
        taken = np.empty(index.size, self._row)
        taken["plate"] = self._codes(pings, index)
        taken["time"] = pings.time_ms[index] - self.start_ms
        taken["cell"] = frame.cell[index]
        if self.rules.movement is None:
            taken["speed"] = pings.speed[index]
        if "lat" in (taken.dtype.names or ()):
            taken["lat"] = places_of(pings.lat[index])
            taken["lon"] = places_of(pings.lon[index])
        self.rows += index.size
        while self.chunks and self.chunks[-1].size <= taken.size < _ROWS_MIN:
            taken = np.concatenate([self.chunks.pop(), taken])
        self.chunks.append(taken)

    def _codes(self, pings: Pings, index: Integers) -> Integers:
        """Codes of the rows' plates. New plates get the next codes in order of their rows: how a
        frame was cut changes nothing."""
        in_frame = pings.plate[index]
        first = np.full(len(pings.plates), in_frame.size)
        first[in_frame[::-1]] = np.arange(in_frame.size)[
            ::-1
        ]  # of several, the last assigned stays
        used = np.argsort(first)[: np.count_nonzero(first < in_frame.size)]
        code: Integers = np.zeros(first.size, dtype=np.int64)
        plates = map(self.plates.__getitem__, map(pings.plates.__getitem__, used.tolist()))
        code[used] = np.fromiter(plates, np.int64, used.size)
        return code[in_frame]

    @property
    def _row(self) -> np.dtype[np.void]:
        if self.rules.movement is not None:
            return _MOVING
        return _ROW if self.rules.grid.headings == 1 else _HEADED

    def columns(self, hash_plate: Callable[[str], bytes], gaps: Iterable[Span]) -> SlotPings:
        used = self.chunks or [np.empty(0, self._row)]
        plate, time, cell, *more = (
            np.concatenate([chunk[name] for chunk in used]) for name in self._row.names or ()
        )
        plates = tuple(hash_plate(plate) for plate in self.plates)
        pings = SlotPings(
            self.start_ms, self.end_ms, plates, plate, time, cell, more[0],
            partial=is_partial(time, self.start_ms, self.end_ms, gaps),
        )  # fmt: skip
        if len(more) == 1:
            return pings
        lat, lon = more[-2:]
        return by_movement(pings, lat, lon, self.rules.movement, self.rules.grid)


Span = tuple[int, int]
"""Start and end of a stretch of time, Unix ms."""

PARTS = 6
"""Equal parts of a slot: in ten minutes of an hour, every bus on its way pings."""


def is_partial(time: NDArray[np.uint32], start_ms: int, end_ms: int, gaps: Iterable[Span]) -> bool:
    """Whether less than half of a slot was read. What came of a stretch later, as from a queue,
    counts as read: as many minutes of it as there are pings in a minute of the fullest part. A few
    old positions are next to none.

    `time` is that of its pings, ms after its start.

    >>> is_partial(np.arange(40, 60, dtype=np.uint32), 0, 60, [(-99, 40)]), is_partial(np.zeros(1, "u4"), 0, 60, [])
    (True, False)
    """
    of_slot = [(max(0, since - start_ms), min(until, end_ms) - start_ms) for since, until in gaps]
    if not (of_slot := [(since, until) for since, until in of_slot if since < until]):
        return False
    parts = np.bincount(time.astype(np.int64) * PARTS // (end_ms - start_ms))
    ms_each = (end_ms - start_ms) / PARTS / parts.max()
    came = [np.count_nonzero((since <= time) & (time < until)) for since, until in of_slot]
    lost_ms = [
        max(0.0, until - since - n * ms_each)
        for (since, until), n in zip(of_slot, came, strict=True)
    ]
    return bool(sum(lost_ms) > (end_ms - start_ms) / 2)


class Windows:
    """The open slots of a log. `hash_plate` turns a plate into its keyed hash; nothing behind this
    knows plates.

    Three plates at 1 s in a slot of 10 s, and then at 131 s: with the usual grace of 120 s the
    first slot closes.

    >>> windows = Windows(WindowRules(), lambda plate: plate.encode())
    >>> def frame(ms):
    ...     times, slot, none = np.full(3, ms), np.full(3, ms // 10_000 * 10_000), np.zeros(3)
    ...     pings = Pings(("A", "B", "C"), np.arange(3, dtype=np.uint32), times, none, none, none, none, none)
    ...     return Frame(pings, np.zeros(3, np.uint64), slot, slot + 10_000)
    >>> [len(windows.push(frame(ms))[0]) for ms in (1_000, 129_999, 131_000)], windows.open_pings
    ([0, 0, 1], 6)
    >>> [refused.reason.value for refused in windows.push(frame(2_000))[1]]
    ['late', 'late', 'late']
    """

    def __init__(
        self, rules: WindowRules, hash_plate: Callable[[str], bytes], clock: Clock | None = None
    ) -> None:
        self._rules = rules
        self._hash_plate = hash_plate
        self._clock = AgreementClock(rules) if clock is None else clock
        self._open: dict[int, _OpenSlot] = {}
        self.gaps = frozenset[Span]()

    @property
    def open_slots(self) -> frozenset[int]:
        return frozenset(self._open)

    @property
    def open_pings(self) -> int:
        return sum(slot.rows for slot in self._open.values())

    def push(self, frame: Frame) -> tuple[list[SlotPings], list[WindowRefusal]]:
        """Take in a frame; give back the slots that it closes, oldest first, and the rows refused."""
        observed = self._clock.observe(frame)
        wrong = observed.rolled_over
        judged_ms, late = self._rules.late_by(frame.slot_end, observed.watermark_before_ms)
        late &= ~wrong
        lag_ms = judged_ms[late] - frame.pings.time_ms[late]
        rows = zip(np.flatnonzero(late).tolist(), lag_ms.tolist(), strict=True)
        refused = [WindowRefusal(row, Reason.LATE, lag) for row, lag in rows]
        # Not from the future if it is late too: a ping is refused once.
        masks = {Reason.TIME_ROLLED_OVER: wrong, Reason.TIME_IN_FUTURE: observed.ahead & ~late}
        if observed.outside is not None:
            masks[Reason.TIME_OUT_OF_RANGE] = observed.outside
        fine = ~np.logical_or.reduce([late, *masks.values()])
        nowhere = fine & (frame.cell == NOWHERE)
        masks[Reason.OUTSIDE_ZONES] = nowhere
        for reason, mask in masks.items():
            refused += [WindowRefusal(row, reason) for row in np.flatnonzero(mask).tolist()]
        refused += self._place(frame, np.flatnonzero(fine & ~nowhere))
        if self._clock.over is None:
            return self._close(self._due()), refused
        closed = [self._over(slot) for slot in self._clock.over]
        for start in self._due():  # behind a jump of the wall, or archived
            del self._open[start]
        return closed, refused

    @property
    def watermark_ms(self) -> int | None:
        return self._clock.watermark_ms

    @property
    def first_open(self) -> int | None:
        return min((slot.first for slot in self._open.values()), default=None)

    def flush(self) -> list[SlotPings]:
        """Close what is open, or every slot of a span, the oldest first."""
        if self._clock.at_end is None:
            return self._close(sorted(self._open))
        return [self._over(slot) for slot in self._clock.at_end]

    def _place(self, frame: Frame, rows: Integers) -> list[WindowRefusal]:
        refused: list[WindowRefusal] = []
        starts = frame.slot_start[rows]
        one = starts.size and starts.min() == starts.max()  # most frames lie in a single slot
        for start in starts[:1].tolist() if one else np.unique(starts).tolist():
            here = rows if one else rows[starts == start]
            slot = self._open.get(start)
            if slot is None:
                first = int(here[0])
                slot = _OpenSlot(
                    start, int(frame.slot_end[first]), _offset(frame, first), self._rules
                )
                self._open[start] = slot
            if self._rules.in_processing_time:
                fits = slot.within(frame.pings, here)
            else:
                fits = np.arange(here.size) < self._rules.pings_per_slot_max - slot.rows
            slot.add(frame, here[fits])
            refused += [WindowRefusal(row, Reason.SLOT_FULL) for row in here[~fits].tolist()]
        return refused

    def _due(self) -> list[int]:
        watermark_ms = self._clock.watermark_ms
        if watermark_ms is None:
            return []
        return [
            start
            for start, slot in sorted(self._open.items())
            if slot.end_ms + self._rules.grace_ms <= watermark_ms
        ]

    def _over(self, span: Span) -> SlotPings:
        """A slot that is over, with its pings or without."""
        slot = self._open.pop(span[0], None) or _OpenSlot(*span, 0, self._rules)
        return slot.columns(self._hash_plate, ())

    def _close(self, starts: list[int]) -> list[SlotPings]:
        closed = [self._open.pop(start) for start in starts]
        return [slot.columns(self._hash_plate, self.gaps) for slot in closed if slot.rows]


def _offset(frame: Frame, row: int) -> int:
    return 0 if frame.places is None else int(frame.places.offset[frame.pings.message[row]])


def slots_of(
    plates: Sequence[bytes],
    plate: NDArray[np.integer],
    time_ms: Integers,
    cell: Cells,
    speed: NDArray[np.integer],
    grid: SlotGrid,
    moving: tuple[Floats, Floats, PingRules | None, Grid] | None = None,
) -> Iterator[tuple[SlotCounts, SlotValues]]:
    """The tables of a recording's slots, in order, from pings as columns in any order; no ping is
    late.

    `plate` indexes `plates`, `time_ms` is Unix ms, `speed` is in quanta; with latitudes,
    longitudes, rules and grid as `moving` headings and speeds are derived, as far as asked.
    """
    starts, ends = grid.place(time_ms)
    order = np.argsort(starts, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(starts[order]) > 0)) if order.size else order
    for here in np.split(order, first[1:]) if order.size else ():
        start = int(starts[here[0]])
        pings = SlotPings(
            start_ms=start,
            end_ms=int(ends[here[0]]),
            plates=tuple(plates),
            plate=plate[here].astype(np.uint32),
            time=(time_ms[here] - start).astype(np.uint32),
            cell=cell[here],
            speed=speed[here].astype(np.int32),
        )
        if moving is not None:
            lat, lon, rules, cells = moving
            pings = by_movement(pings, places_of(lat[here]), places_of(lon[here]), rules, cells)
        yield tabulate(pings)


# **The checkpoint** is all that a restart needs besides the log: the offset of the oldest ping in
# an open slot (or of the oldest that a moment may need, `positions.py`), the watermark, and the
# offset up to which refusals were rejected. Reading again from there gives the same slots: pings of
# slots that had closed by then are late by the restored watermark.


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """Resume at `offset` with this watermark; refusals before `rejected_through` were rejected
    already.

    `positions_ms` is the watermark before the first ping that a moment may need, where it differs.
    `gaps`: when nothing was read, of slots that are not closed.

    >>> SourceCheckpoint(0).watermark_ms is None
    True
    """

    offset: int
    watermark_ms: int | None = None
    rejected_through: int = 0
    positions_ms: int | None = None
    gaps: tuple[Span, ...] = ()


class RefusedMessage(NamedTuple):
    """A refusal, the offset of its message, and the original bytes.

    >>> RefusedMessage(41, Refusal(1, -1, Reason.NOT_JSON, "$"), b"junk").offset
    41
    """

    offset: int
    refusal: Refusal
    original: bytes


class ReadResult(NamedTuple):
    """The outcome of a run of records: slots closed, refusals in order, due moments (oldest first).

    `messages` are those read, without ticks and those read before; `pings` are those counted, and
    `newest_ms` their latest time, Unix ms.

    >>> ReadResult(closed=[], refused=[], messages=0, pings=0).pings
    0
    """

    closed: list[SlotPings]
    refused: list[RefusedMessage]
    messages: int
    pings: int
    newest_ms: int | None = None
    moments: Sequence[Moment] = ()


FeedCheck = Callable[[Sequence[bytes], ReadResult], None]
"""Check that is given messages and their outcome, before a slot that they close is released:
`cli/preflight.py`."""


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Rules that all readers of a deployment share. `hash_plate` gives a plate's keyed hash;
    without `moments` no position is kept.

    >>> from udp_stream.pings.json import JSON
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), lambda plate: plate.encode()).grid.seconds
    3600
    """

    decoder: PingDecoder
    windows: WindowRules
    grid: SlotGrid
    hash_plate: Callable[[str], bytes]
    moments: MomentRules | None = None

    def through_at(self, watermark_ms: int) -> int:
        """Time, Unix ms, up to which slots that end are closed at this watermark."""
        return self.grid.start_of(watermark_ms - self.windows.grace_ms)

    def read(
        self,
        messages: Sequence[bytes],
        windows: Windows,
        places: LogPlaces | None = None,
        rejected_through: int = 0,
    ) -> tuple[ReadResult, Frame, list[WindowRefusal]]:
        """Decode a frame, and put its pings into slots: the outcome without moments, the frame, and
        its rows without a slot. Without `places`, the offset of a message is its number in the
        frame."""
        pings, refusals = self.decoder.decode(messages)
        start, end = self.grid.place(pings.time_ms)
        frame = Frame(pings, self.windows.grid.cells_of(pings.lat, pings.lon), start, end, places)
        closed, unplaced = windows.push(frame)
        tick = np.zeros(len(messages), bool) if places is None else places.tick
        offset = np.arange(len(messages)) if places is None else places.offset
        refusals = [refusal for refusal in refusals if not tick[refusal.message]]
        refusals += [_refusal_of(pings, one, self.decoder.format.paths.time) for one in unplaced]
        new = [refusal for refusal in refusals if offset[refusal.message] >= rejected_through]
        new.sort(key=lambda refusal: (refusal.message, refusal.position))
        originals_of = zip(new, originals(messages, new, self.decoder.format), strict=True)
        refused = [
            RefusedMessage(int(offset[one.message]), one, data) for one, data in originals_of
        ]
        # Times that windows refused may be decades ahead.
        taken = np.delete(pings.time_ms, [one.row for one in unplaced])
        newest_ms = int(taken.max()) if taken.size else None
        return (
            ReadResult(closed, refused, int((~tick).sum()), taken.size, newest_ms),
            frame,
            unplaced,
        )


LIVE_MS = 86_400_000
"""Time in ms before a log begins, when nobody reads it. Slots that ended longer before are of a
recording, which is as it is."""


class SourceReader:
    """The open slots of a source partition, and the position in its log.

    A broken message and a tick: the tick at 8:00 closes what ended an hour ago, and a restart reads
    on behind it.

    >>> from udp_stream.pings.json import JSON
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> rules = ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), lambda plate: plate.encode())
    >>> reader = SourceReader(rules, SourceCheckpoint(40))
    >>> eight_ms = 8 * 3_600_000
    >>> read = reader.read([b"junk", b""], LogPlaces(np.array([40, 41]), np.full(2, eight_ms), np.array([False, True])))
    >>> read.closed, read.pings, [(refused.offset, refused.refusal.reason.value) for refused in read.refused]
    ([], 0, [(40, 'not_json')])
    >>> reader.checkpoint().offset, reader.checkpoint().watermark_ms, reader.through_ms == eight_ms - 3_600_000
    (42, 28740000, True)
    """

    through_ms: int | None = None
    """Time, Unix ms, up to which slots that end are closed for good; None before the first ping or
    tick."""

    moments_ms: int | None = None
    """Time, Unix ms, up to which moments are complete; None before the first ping or tick, or if
    none is asked for."""

    def __init__(self, rules: ReadingRules, start: SourceCheckpoint) -> None:
        self._rules = rules
        self.is_in_processing_time = rules.windows.in_processing_time
        self._clock: LogClock = (
            WallClock(rules.windows, rules.grid, start.watermark_ms)
            if self.is_in_processing_time
            else AppendClock(rules.windows, start.watermark_ms)
        )
        self._windows = Windows(rules.windows, rules.hash_plate, self._clock)
        self._windows.gaps = frozenset(start.gaps)
        self._is_first = start.watermark_ms is None and not start.gaps
        self._moments = None
        if rules.moments is not None:
            self._moments = SourceMoments(
                rules.moments,
                rules.windows,
                rules.hash_plate,
                start.watermark_ms,
                start.positions_ms,
            )
        self._rejected_through = start.rejected_through
        self.next_offset = start.offset
        self._follow_clock()

    def _follow_clock(self) -> None:
        watermark_ms = self._clock.watermark_ms
        if watermark_ms is not None:
            self.through_ms = self._rules.through_at(watermark_ms)
            if self._moments is not None:
                self.moments_ms = self._moments.through_at(watermark_ms)

    def read(self, messages: Sequence[bytes], places: LogPlaces) -> ReadResult:
        """Read the next messages of the partition, in order, with their places. Those read before
        are skipped."""
        known = int(np.searchsorted(places.offset, self.next_offset))
        if known:
            messages = messages[known:]
            places = places.behind(known)
        if not messages:
            return ReadResult([], [], 0, 0)
        if self._is_first:
            self._is_first, began_ms = False, int(places.append_ms[0])
            self.not_read((self._rules.grid.start_of(began_ms) - LIVE_MS, began_ms))
        result, frame, _ = self._rules.read(messages, self._windows, places, self._rejected_through)
        self.next_offset = int(places.offset[-1]) + 1
        self._follow_clock()
        return (
            result if self._moments is None else result._replace(moments=self._moments.read(frame))
        )

    def not_read(self, span: Span) -> None:
        """Note a stretch that nobody read. The log has it: a slot that is read again is partial
        again. By the wall none is."""
        if not self.is_in_processing_time:
            self._windows.gaps |= {span}

    def ahead_ms(self, wall_ms: int) -> int:
        """How far slots are closed ahead of this time; 0 or less if none is, or if the log has just
        begun by ticks."""
        if (through := self.through_ms) is None:
            return 0
        return through - (
            self._rules.grid.end_of(wall_ms - 1) if self.is_in_processing_time else wall_ms
        )

    @property
    def watermark_ms(self) -> int | None:
        return self._clock.watermark_ms

    @property
    def clock_ms(self) -> int | None:
        """Time that the log's clock shows, Unix ms, for people."""
        return self._clock.shown_ms

    @property
    def moments_lost_ms(self) -> int | None:
        """Time, Unix ms, up to which moments may lack positions, after a checkpoint without them;
        None if none does."""
        if self._rules.moments is None or self._clock.watermark_ms is None:
            return None
        return self._clock.watermark_ms + self._rules.moments.age_ms

    def tick_would_close(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close any slot or moment, empty slots
        included."""
        watermark_ms = self._clock.after_tick(wall_ms)
        if self.through_ms is None or self._rules.through_at(watermark_ms) > self.through_ms:
            return True
        return (
            self._moments is not None
            and self.moments_ms is not None
            and self._moments.through_at(watermark_ms) > self.moments_ms
        )

    @property
    def open_slots(self) -> frozenset[int]:
        return self._windows.open_slots

    @property
    def open_pings(self) -> int:
        return self._windows.open_pings

    def checkpoint(self) -> SourceCheckpoint:
        """Where to resume after a crash. Commit it only once all that was closed and refused has
        been written."""
        # The larger: after a restart the reader is behind what was rejected before it.
        watermark_ms = self._clock.watermark_ms
        rejected_through = max(self._rejected_through, self.next_offset)
        through_ms = self.through_ms
        first = self._windows.first_open
        gaps = tuple(
            sorted(one for one in self._windows.gaps if through_ms is None or one[1] > through_ms)
        )
        offset = self.next_offset if first is None else first
        if self._moments is None:
            return SourceCheckpoint(offset, watermark_ms, rejected_through, gaps=gaps)
        needed, before_ms = self._moments.first_needed() or (offset, self._moments.watermark_ms)
        is_same = watermark_ms is None or before_ms == watermark_ms
        positions_ms = None if is_same else before_ms
        return SourceCheckpoint(
            min(offset, needed), watermark_ms, rejected_through, positions_ms, gaps
        )


def _refusal_of(pings: Pings, refused: WindowRefusal, path: str) -> Refusal:
    message = int(pings.message[refused.row])
    position = int(pings.position[refused.row])
    return Refusal(message, position, refused.reason, path, refused.lag_ms)
