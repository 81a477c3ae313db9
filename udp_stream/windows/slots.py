"""Open slots: the clocks of a log, the slots that they close, and the reader of one source partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decode import PLAIN_PATHS, FieldPaths, PingDecoder, PingRules, Pings, Reason, Refusal, originals
from udp_stream.windows.movement import places_of, with_speeds
from udp_stream.windows.tables import SlotCounts, SlotGrid, SlotPings, SlotValues, cells_of, tabulate

if TYPE_CHECKING:
    from udp_stream.windows.positions import Moment, MomentRules


# The clocks of a log: its watermark, whatever the reader's own clock says.
#
# A watermark is a time up to which the log counts as complete. A clock observes one frame (a run of messages) at a
# time. For each ping it gives the watermark before the ping (`watermark_before_ms`), by which lateness is judged, and
# whether the ping is from the future. Then it shows the new watermark, by which slots close.
#
# Ours differs from the field's: there, lateness that is allowed for is part of the watermark. Ours is the log's own
# time, guarded against wrong clocks; a slot closes `grace_ms` behind it. And it follows from the log alone, never from
# when a record was read.
#
# **Agreement**, for files: they have no append times, so the watermark is the newest time that several plates have
# reached. **Append**, for a partition of a topic with the broker's append times: the newest event time that was no more
# than a little ahead of its own append time, less the disorder that is allowed for; or the latest tick record's. It is
# computed message by message, so how a fetch cuts the log changes nothing.

Times = NDArray[np.int64]

NEVER = -(2**63)
"""Before any time there is."""

SEEN_MS = 2 * 86_400_000
"""Plates that were not seen for longer have left, for the agreement clock."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """What never changes while the windows live. Times in ms.

    `ahead_ms`, the quorums: of the agreement clock. `skew_ms`, `disorder_ms`: of the append clock: how far a ping may
    be ahead of the broker, and how long after the newest ping older ones are waited for. `movement`: speeds are derived
    where a slot closes; None takes those of the pings.

    >>> WindowRules(grace_ms=60_000).quorum_min
    3
    """

    grace_ms: int = 120_000
    ahead_ms: int = 86_400_000
    pings_per_slot_max: int = 50_000_000  # 1 GB at 20 bytes a ping: out of reach of a city
    quorum_min: int = 3
    quorum_share: float = 0.02
    ping_share: float = 0.05
    skew_ms: int = 30_000
    disorder_ms: int = 60_000
    movement: PingRules | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LogPlaces:
    """The places of a frame's messages in their partition: one value for each message, tick records included.

    `offset` rises; `append_ms` is the broker's append time; `tick` is True for records that only tell the time and have
    no pings.

    >>> places = LogPlaces(np.array([40, 41]), np.array([7_000, 8_000]), np.array([False, True]))
    >>> places.behind(1).offset
    array([41])
    """

    offset: Times
    append_ms: Times
    tick: NDArray[np.bool_]

    def behind(self, count: int) -> LogPlaces:
        """The same without the first `count` messages."""
        return LogPlaces(self.offset[count:], self.append_ms[count:], self.tick[count:])


@dataclass(frozen=True, slots=True)
class Frame:
    """One run of the log, decoded and placed: `cell`, `slot_start` and `slot_end` belong to the rows of `pings`.

    `places` is None for a log without offsets and append times.

    >>> none, no_time = np.zeros(0), np.zeros(0, np.int64)
    >>> empty = Pings((), none, no_time, none, none, none, none, none)
    >>> Frame(empty, np.zeros(0, np.uint64), no_time, no_time).places is None
    True
    """

    pings: Pings
    cell: NDArray[np.uint64]
    slot_start: Times
    slot_end: Times
    places: LogPlaces | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """For each row of a frame: the watermark before it, whether it comes from the future, and whether its clock has
    rolled over (`are_rolled_over`).

    >>> none = np.zeros(2, bool)
    >>> Observed(np.array([7_000, 7_000]), np.array([False, True]), none).ahead.sum()
    np.int64(1)
    """

    watermark_before_ms: Times
    ahead: NDArray[np.bool_]
    rolled_over: NDArray[np.bool_]


ROLLOVER_MS = 1024 * 7 * 86_400_000
"""GPS counts 1,024 weeks and begins again: a receiver that does not know of it is 7,168 days behind."""


def are_rolled_over(time_ms: Times, now_ms: Times | int) -> NDArray[np.bool_]:
    """Which times are 1,024 weeks before now, give or take a day: of a recording made then, none is refused, as its own
    clock says that it is then.

    >>> are_rolled_over(np.array([1_154_318_400_000, 1_773_633_600_000]), 1_773_633_610_000)
    array([ True, False])
    """
    found: NDArray[np.bool_] = np.abs(now_ms - ROLLOVER_MS - time_ms) <= 86_400_000
    return found


class Clock(Protocol):
    """Turns frames into watermarks. `watermark_ms` is None before the first ping, and never goes back.

    >>> clocks: list[Clock] = [AgreementClock(WindowRules()), AppendClock(WindowRules())]
    >>> [clock.watermark_ms for clock in clocks]
    [None, None]
    """

    watermark_ms: int | None

    def observe(self, frame: Frame) -> Observed:
        """Judge the rows of the next frame, and move the watermark past it."""
        ...


class AgreementClock:
    """The newest time that several plates have reached: the clock of a log without append times.

    Several is `quorum_min` plates or `quorum_share` of those seen in the last two days, whichever is more (all, if
    there are fewer): neither one plate alone nor a few broken ones of a large fleet can move it. A plate counts with
    the newest time of the last frame it was in, so one wrong time is forgotten with the plate's next frame. And
    `ping_share` of the frame's pings must agree too, so that wrong times strewn over many plates do not add up.

    A plate has left, and is not waited for, once two others have come two days further, in steps of at most `ahead_ms`:
    a fleet may shrink to less than a quorum. Clocks that are wrong by more than a step never come that far.

    Four plates, one of them far ahead: the third newest time counts.

    >>> clock, plates, none = AgreementClock(WindowRules()), ("A", "B", "C", "D"), np.zeros(4)
    >>> times = np.array([1_000, 3_000, 2_000, 10**15])
    >>> clock.advance(Pings(plates, np.arange(4, dtype=np.uint32), times, none, none, none, none, none))
    >>> clock.watermark_ms
    2000
    """

    def __init__(self, rules: WindowRules) -> None:
        """A clock that has not begun: `watermark_ms` is None until the first ping."""
        self._rules = rules
        self._newest_of: dict[str, int] = {}
        self._crowded = 1024  # plates: below it, looking for old ones to forget costs more than they do
        self._believed_ms = rules.ahead_ms  # what is later comes from the future
        self.watermark_ms: int | None = None

    def observe(self, frame: Frame) -> Observed:
        """A frame is observed as a whole: a ping that closes a slot does not make its neighbours late."""
        before = NEVER if self.watermark_ms is None else self.watermark_ms
        self.advance(frame.pings)
        time_ms = frame.pings.time_ms
        rolled_over = are_rolled_over(time_ms, 0 if self.watermark_ms is None else self.watermark_ms)
        return Observed(np.full(time_ms.size, before), time_ms > self._believed_ms, rolled_over)

    def advance(self, pings: Pings) -> None:
        """Take in a frame. Pings too far ahead of the new time count for nothing, now or later."""
        if pings.time_ms.size == 0:
            return
        newest_of = self._newest_times(pings, pings.time_ms)
        share = int(np.ceil(self._rules.ping_share * pings.time_ms.size))
        # The older of the two: plates and pings must both have reached the time.
        self._set(min(self._reached(newest_of), _kth_newest(pings.time_ms, share)))
        if self.watermark_ms is not None:
            self._believed_ms = self.watermark_ms + self._rules.ahead_ms
            if (pings.time_ms <= self._believed_ms).all():
                self._newest_of = newest_of
            else:
                self._step_by_step(pings, self.watermark_ms, share)
            if len(self._newest_of) > self._crowded:
                self._forget(self.watermark_ms - SEEN_MS)

    def _step_by_step(self, pings: Pings, watermark_ms: int, share: int) -> None:
        """Some pings are further ahead than is believed. Believe what is within a step of what two plates have come to,
        until nothing more is; plates that are left behind by then are not waited for."""
        come_to_ms, before_ms = _second_newest(self._newest_of), NEVER
        self._believed_ms = max(self._believed_ms, come_to_ms + self._rules.ahead_ms)
        while before_ms < self._believed_ms:
            within = pings.time_ms <= self._believed_ms
            newest_of = self._newest_times(pings, np.where(within, pings.time_ms, NEVER))
            if within.any():
                come_to_ms = min(_second_newest(newest_of), _kth_newest(pings.time_ms[within], share))
            if come_to_ms - SEEN_MS > watermark_ms:
                newest_of = {plate: time for plate, time in newest_of.items() if time >= come_to_ms - SEEN_MS}
                self._set(min(self._reached(newest_of), come_to_ms))
            before_ms, self._believed_ms = self._believed_ms, max(self._believed_ms, come_to_ms + self._rules.ahead_ms)
        self._newest_of = newest_of

    def _newest_times(self, pings: Pings, time_ms: Times) -> dict[str, int]:
        """The newest time of every plate, this frame's plates anew; a plate without a usable time keeps its old one."""
        newest = np.full(len(pings.plates), NEVER)
        np.maximum.at(newest, pings.plate, time_ms)
        usable = newest != NEVER
        plates = pings.plates if usable.all() else compress(pings.plates, usable)
        return self._newest_of | dict(zip(plates, newest[usable].tolist(), strict=True))

    def _reached(self, newest_of: dict[str, int]) -> int:
        times = np.fromiter(newest_of.values(), dtype=np.int64, count=len(newest_of))
        quorum = max(self._rules.quorum_min, int(np.ceil(self._rules.quorum_share * times.size)))
        return _kth_newest(times, quorum)

    def _set(self, time_ms: int) -> None:
        self.watermark_ms = time_ms if self.watermark_ms is None else max(self.watermark_ms, time_ms)

    def _forget(self, before_ms: int) -> None:
        self._newest_of = {plate: time for plate, time in self._newest_of.items() if time >= before_ms}
        self._crowded = max(1024, 2 * len(self._newest_of))  # doubled, so that forgetting stays rare as fleets grow


def _second_newest(newest_of: dict[str, int]) -> int:
    """What two plates have come to; for fewer, before any time there is."""
    # Two days later than NEVER: from the lowest integer nothing can be taken.
    return sorted(newest_of.values())[-2] if len(newest_of) > 1 else NEVER + SEEN_MS


def _kth_newest(times: Times, k: int) -> int:
    at = max(0, times.size - k)
    return int(np.partition(times, at)[at])


class AppendClock:
    """The newest accepted event time of one source partition less `disorder_ms`, or its latest tick's, if later.

    A ping is accepted if its time is at most `skew_ms` after its message's append time, so no plate can move the clock
    past what the broker has seen. A tick says that until its append time nothing else came: it counts like a ping of
    that moment. Pings of one message are observed together; a message is judged by those before it in the log.

    A ping of 100 s, one from the future, and a tick at 190 s; the disorder that is allowed for is 60 s:

    >>> clock, none, message = AppendClock(WindowRules()), np.zeros(2), np.array([0, 1], np.int32)
    >>> two = Pings(("A",), none.astype(np.uint32), np.array([100_000, 10**15]), none, none, none, message, none)
    >>> appended = LogPlaces(np.arange(3), np.array([101_000, 102_000, 190_000]), np.array([False, False, True]))
    >>> observed = clock.observe(Frame(two, np.zeros(2, np.uint64), two.time_ms, two.time_ms, appended))
    >>> observed.ahead.tolist(), observed.watermark_before_ms[1], clock.watermark_ms
    ([False, True], np.int64(40000), 130000)
    """

    def __init__(self, rules: WindowRules, watermark_ms: int | None = None) -> None:
        """A clock that resumes at the watermark of a checkpoint."""
        self._rules = rules
        self.watermark_ms = watermark_ms

    def observe(self, frame: Frame) -> Observed:
        """Judge each row by the messages before its own. ValueError for a frame without append times."""
        places, pings = frame.places, frame.pings
        if places is None:
            raise ValueError("expected append times, got a log without them: use AgreementClock")
        ahead = pings.time_ms > places.append_ms[pings.message] + self._rules.skew_ms
        reached = np.where(places.tick, places.append_ms, NEVER)
        np.maximum.at(reached, pings.message[~ahead], pings.time_ms[~ahead])
        # NEVER is the lowest integer: less anything, it would wrap round to the far future.
        reached = np.where(reached == NEVER, NEVER, reached - self._rules.disorder_ms)
        # The old watermark goes in front: place i is then the watermark before message i.
        times = np.maximum.accumulate(np.append(NEVER if self.watermark_ms is None else self.watermark_ms, reached))
        if times[-1] != NEVER:
            self.watermark_ms = int(times[-1])
        return Observed(times[pings.message], ahead, are_rolled_over(pings.time_ms, places.append_ms[pings.message]))


# Open slots as columnar buffers, closed once each by the log's own clock.
#
# **Theory of operation.** The log is read in frames: runs of messages cut at positions that are fixed by the log, not
# by who reads it or how fast. A clock turns the frames into watermarks. Whether a ping is late and when a slot closes
# depend on the watermark before and after its frame, so reading a log twice gives the same slots with the same
# contents.
#
# 1. A ping whose slot had closed before it (slot end + grace <= watermark) is late: refused, with its lag.
# 2. A ping that the clock finds to come from the future, or to be 1,024 weeks old, is refused, and moves nothing.
# 3. The rest go into their slots. A slot that is full refuses.
# 4. Slots whose end + grace the watermark has reached are closed, oldest first, for good.
#
# The clock is a strategy (the clocks above). The clock of files observes a frame as a whole, so there the frames are
# part of the log; the clock of topics goes by messages, so there a frame may be any run of them.

_ROW = np.dtype([("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("speed", "<i4")])
"""20 bytes per open ping."""

_MOVING = np.dtype([("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("lat", "<i4"), ("lon", "<i4")])
"""Where speeds are derived: 24 bytes."""

_CHUNK_ROWS_MIN = 256  # 5 KiB: a slot of few pings stays small, a large one soon grows by eighths


@dataclass(frozen=True, slots=True)
class LateOrFull:
    """A ping that a window refused: its row in the frame, why, and for late ones by how much.

    >>> LateOrFull(2, Reason.SLOT_FULL).lag_ms is None
    True
    """

    row: int
    reason: Reason
    lag_ms: int | None = None


@dataclass(slots=True)
class _OpenSlot:
    """Chunks of rows; each new chunk is an eighth of what is there, so that little memory waits unused."""

    start_ms: int
    end_ms: int
    first: int
    movement: PingRules | None = None
    chunks: list[NDArray[np.void]] = field(default_factory=list)
    rows: int = 0
    room: int = 0
    plates: defaultdict[str, int] = field(default_factory=lambda: defaultdict(count().__next__))

    def add(self, frame: Frame, index: NDArray[np.int64]) -> None:
        codes, pings = self._codes(frame.pings, index), frame.pings
        for taken in self._reserve(index.size):
            part, index = index[: taken.size], index[taken.size :]
            taken["plate"], codes = codes[: taken.size], codes[taken.size :]
            taken["time"] = pings.time_ms[part] - self.start_ms
            taken["cell"] = frame.cell[part]
            if self.movement is None:
                taken["speed"] = pings.speed[part]
            else:
                taken["lat"], taken["lon"] = places_of(pings.lat[part]), places_of(pings.lon[part])

    def _codes(self, pings: Pings, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """New plates get the next codes in order of their rows here, not in that of the frame: what else a frame holds
        depends on who has cut it."""
        in_frame = pings.plate[index]
        first = np.full(len(pings.plates), in_frame.size)
        first[in_frame[::-1]] = np.arange(in_frame.size)[::-1]  # of several, the last one assigned stays
        used = np.argsort(first)[: np.count_nonzero(first < in_frame.size)]
        code: NDArray[np.int64] = np.zeros(first.size, dtype=np.int64)
        plates = map(self.plates.__getitem__, map(pings.plates.__getitem__, used.tolist()))
        code[used] = np.fromiter(plates, np.int64, used.size)
        codes: NDArray[np.int64] = code[in_frame]
        return codes

    def _reserve(self, count: int) -> list[NDArray[np.void]]:
        """Room for `count` more rows: what is left of the last chunk, then a new one."""
        taken = []
        if self.room and count:
            first = min(self.room, count)
            last = self.chunks[-1]
            taken.append(last[last.size - self.room : last.size - self.room + first])
            self.room -= first
            self.rows += first
            count -= first
        if count:
            self.chunks.append(np.empty(max(count, self.rows // 8, _CHUNK_ROWS_MIN), self._row))
            self.room = self.chunks[-1].size
            taken += self._reserve(count)
        return taken

    @property
    def _row(self) -> np.dtype[np.void]:
        return _ROW if self.movement is None else _MOVING

    def columns(self, hash_plate: Callable[[str], bytes]) -> SlotPings:
        used = [*self.chunks[:-1], self.chunks[-1][: self.chunks[-1].size - self.room]]
        plate, time, cell, *of_speed = (
            np.concatenate([chunk[name] for chunk in used]) for name in self._row.names or ()
        )
        plates = tuple(hash_plate(plate) for plate in self.plates)
        pings = SlotPings(self.start_ms, self.end_ms, plates, plate, time, cell, of_speed[0])
        return pings if self.movement is None else with_speeds(pings, of_speed[0], of_speed[1], self.movement)


class Windows:
    """The open slots of one log. `hash_plate` turns a plate into its keyed hash; nothing behind this knows plates.

    Three plates at 1 s in a slot of 10 s, and then at 131 s: with the usual grace of 120 s the first slot closes.

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

    def __init__(self, rules: WindowRules, hash_plate: Callable[[str], bytes], clock: Clock | None = None) -> None:
        """Windows with no slot open; the clock is that of a file unless another is given."""
        self._rules = rules
        self._hash_plate = hash_plate
        self._clock = AgreementClock(rules) if clock is None else clock
        self._open: dict[int, _OpenSlot] = {}

    @property
    def open_slots(self) -> frozenset[int]:
        """The starts of the open slots, Unix ms."""
        return frozenset(self._open)

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return sum(slot.rows for slot in self._open.values())

    def push(self, frame: Frame) -> tuple[list[SlotPings], list[LateOrFull]]:
        """Take in a frame; give back the slots that it closes, oldest first, and the rows refused."""
        observed = self._clock.observe(frame)
        wrong = observed.rolled_over
        late = (frame.slot_end + self._rules.grace_ms <= observed.watermark_before_ms) & ~wrong
        lag_ms = observed.watermark_before_ms[late] - frame.pings.time_ms[late]
        rows = zip(np.flatnonzero(late).tolist(), lag_ms.tolist(), strict=True)
        refused = [LateOrFull(row, Reason.LATE, lag) for row, lag in rows]
        refused += [LateOrFull(row, Reason.TIME_ROLLED_OVER) for row in np.flatnonzero(wrong).tolist()]
        # Not if it is late too: a ping is refused once.
        refused += [LateOrFull(row, Reason.TIME_IN_FUTURE) for row in np.flatnonzero(observed.ahead & ~late).tolist()]
        refused += self._place(frame, np.flatnonzero(~(late | observed.ahead | wrong)))
        return self._close(self._due()), refused

    @property
    def watermark_ms(self) -> int | None:
        """How far the clock is, Unix ms; None before the first ping."""
        return self._clock.watermark_ms

    @property
    def first_open(self) -> int | None:
        """The offset of the oldest ping in open slots; None if no slot is open."""
        return min((slot.first for slot in self._open.values()), default=None)

    def flush(self) -> list[SlotPings]:
        """The log has ended: close every slot, oldest first."""
        return self._close(sorted(self._open))

    def _place(self, frame: Frame, rows: NDArray[np.int64]) -> list[LateOrFull]:
        refused: list[LateOrFull] = []
        starts = frame.slot_start[rows]
        one = starts.size and starts.min() == starts.max()  # most frames lie in one slot
        for start in starts[:1].tolist() if one else np.unique(starts).tolist():
            here = rows if one else rows[starts == start]
            slot = self._open.get(start)
            if slot is None:
                first = int(here[0])
                slot = _OpenSlot(start, int(frame.slot_end[first]), _offset(frame, first), self._rules.movement)
                self._open[start] = slot
            fits = max(0, self._rules.pings_per_slot_max - slot.rows)
            slot.add(frame, here[:fits])
            refused += [LateOrFull(row, Reason.SLOT_FULL) for row in here[fits:].tolist()]
        return refused

    def _due(self) -> list[int]:
        """The starts of the slots that the clock has passed."""
        watermark_ms = self._clock.watermark_ms
        if watermark_ms is None:
            return []
        return [
            start for start, slot in sorted(self._open.items()) if slot.end_ms + self._rules.grace_ms <= watermark_ms
        ]

    def _close(self, starts: list[int]) -> list[SlotPings]:
        closed = [self._open.pop(start) for start in starts]
        return [slot.columns(self._hash_plate) for slot in closed if slot.rows]


def _offset(frame: Frame, row: int) -> int:
    """The offset of the row's message in its log, 0 if unknown."""
    return 0 if frame.places is None else int(frame.places.offset[frame.pings.message[row]])


# A whole recording, slot by slot: for experiments and plans, which look at all of it at once. Lateness does not
# matter here.


def slots_of(
    plates: Sequence[bytes],
    plate: NDArray[np.integer],
    time_ms: NDArray[np.int64],
    cell: NDArray[np.uint64],
    speed: NDArray[np.integer],
    grid: SlotGrid,
    moving: tuple[NDArray[np.float64], NDArray[np.float64], PingRules] | None = None,
) -> Iterator[tuple[SlotCounts, SlotValues]]:
    """Pings as columns of one length, in any order, as the tables of their slots, in the order of the slots.

    `plate` indexes `plates`, `time_ms` is Unix ms, `speed` is in quanta; with latitudes, longitudes and rules as
    `moving` it is derived instead.
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
            lat, lon, rules = moving
            pings = with_speeds(pings, places_of(lat[here]), places_of(lon[here]), rules)
        yield tabulate(pings)


# A reader of one source partition: records in, closed slots and refusals out, and the checkpoint to resume from.
#
# **The checkpoint** is all that a restart needs besides the log: the offset of the oldest ping in an open slot, the
# watermark, and the offset up to which refusals were rejected. Reading again from there gives the same slots. Pings of
# slots that had closed by then are late by the restored watermark and are skipped silently; pings of open slots are
# counted again.
#
# Where positions are asked, `positions.py` has its part of the checkpoint, which may hold the offset further back:
# pings are needed for as long as they may be a plate's latest.
#
# The reader does no I/O. Its caller commits the checkpoint once everything that the reader closed has been written.


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
            else rules.moments.of_source(rules.windows, rules.hash_plate, start.watermark_ms, start.positions_ms)
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
        return self._rules.grid.start_of(watermark_ms - self._rules.windows.grace_ms)

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
    def open_slots(self) -> frozenset[int]:
        """The starts of the open slots, Unix ms."""
        return self._windows.open_slots

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
