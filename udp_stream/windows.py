"""Open slots as columnar buffers, closed once each by the log's own clock.

**Theory of operation.** The log is read in frames: runs of messages cut at positions that are fixed by the log, not by
who reads it or how fast. A clock turns the frames into times; whether a ping is late and when a slot closes depend on
the clock before and after its frame, so reading a log twice gives the same slots with the same contents.

1. A ping whose slot had closed before its frame (slot end + grace <= clock) is late: refused, with its lag.
2. A ping more than `ahead_ms` past the clock after its frame comes from the future: refused, and it moves nothing.
3. The rest go into their slots. A slot that is full refuses.
4. Slots whose end + grace the clock has reached are closed, oldest first, for good.

A file has no append times, so its clock is agreement: the newest time that several plates have reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress, count

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings import Pings, Reason
from udp_stream.slots import SlotPings

Times = NDArray[np.int64]

_ROW = np.dtype([("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("speed", "<i4")])
"""20 bytes per open ping."""

_CHUNK_ROWS_MIN = 256

_NEVER = -(2**63)
"""Before any time there is."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """What never changes while the windows live. Times in ms."""

    grace_ms: int = 120_000
    ahead_ms: int = 86_400_000
    pings_per_slot_max: int = 50_000_000
    quorum_min: int = 3
    quorum_share: float = 0.02
    ping_share: float = 0.05


@dataclass(frozen=True, slots=True)
class LateOrFull:
    """A ping that a window refused: its row in the frame, why, and for late ones by how much."""

    row: int
    reason: Reason
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One run of the log, decoded and placed: `cell`, `slot_start` and `slot_end` belong to the rows of `pings`."""

    pings: Pings
    cell: NDArray[np.uint64]
    slot_start: Times
    slot_end: Times


class AgreementClock:
    """The newest time that several plates have reached: the clock of a log without append times.

    Several is `quorum_min` plates or `quorum_share` of those seen in the last two days, whichever is more (all, if
    there are fewer): neither one plate alone nor a few broken ones of a large fleet can move it. A plate stands for
    the newest time of the last frame it was in, so one wrong time is forgotten with the plate's next frame. And
    `ping_share` of the frame's pings must agree too, so that wrong times strewn over many plates do not add up.
    """

    def __init__(self, rules: WindowRules) -> None:
        """A clock that has not begun: `now_ms` is None until the first ping."""
        self._rules = rules
        self._stands: dict[str, int] = {}
        self._crowded = 1024
        self.now_ms: int | None = None

    def advance(self, pings: Pings) -> None:
        """Take in a frame. Pings too far ahead of the new time count for nothing, now or later."""
        if pings.time_ms.size == 0:
            return
        stands = self._heard(pings, pings.time_ms)
        self._set(
            min(
                self._reached(stands),
                _kth_newest(pings.time_ms, int(np.ceil(self._rules.ping_share * pings.time_ms.size))),
            )
        )
        if self.now_ms is not None:
            within = pings.time_ms <= self.now_ms + self._rules.ahead_ms
            self._stands = stands if within.all() else self._heard(pings, np.where(within, pings.time_ms, _NEVER))
            if len(self._stands) > self._crowded:
                self._forget(self.now_ms - 2 * 86_400_000)

    def _heard(self, pings: Pings, time_ms: Times) -> dict[str, int]:
        """Where every plate stands, this frame's plates anew; a plate without a usable time stays where it was."""
        newest = np.full(len(pings.plates), _NEVER)
        np.maximum.at(newest, pings.plate, time_ms)
        usable = newest != _NEVER
        plates = pings.plates if usable.all() else compress(pings.plates, usable)
        return self._stands | dict(zip(plates, newest[usable].tolist(), strict=True))

    def _reached(self, stands: dict[str, int]) -> int:
        times = np.fromiter(stands.values(), dtype=np.int64, count=len(stands))
        quorum = max(self._rules.quorum_min, int(np.ceil(self._rules.quorum_share * times.size)))
        return _kth_newest(times, quorum)

    def _set(self, time_ms: int) -> None:
        self.now_ms = time_ms if self.now_ms is None else max(self.now_ms, time_ms)

    def _forget(self, before_ms: int) -> None:
        self._stands = {plate: time for plate, time in self._stands.items() if time >= before_ms}
        self._crowded = max(1024, 2 * len(self._stands))


def _kth_newest(times: Times, k: int) -> int:
    at = max(0, times.size - k)
    return int(np.partition(times, at)[at])


@dataclass(slots=True)
class _OpenSlot:
    """Chunks of rows; each new chunk is an eighth of what is there, so that little memory waits unused."""

    start_ms: int
    end_ms: int
    chunks: list[NDArray[np.void]] = field(default_factory=list)
    rows: int = 0
    room: int = 0
    plates: defaultdict[str, int] = field(default_factory=lambda: defaultdict(count().__next__))

    def add(self, frame: Frame, index: NDArray[np.int64]) -> None:
        codes = self._codes(frame.pings, index)
        for taken in self._reserve(index.size):
            part, index = index[: taken.size], index[taken.size :]
            taken["plate"], codes = codes[: taken.size], codes[taken.size :]
            taken["time"] = frame.pings.time_ms[part] - self.start_ms
            taken["cell"] = frame.cell[part]
            taken["speed"] = frame.pings.speed[part]

    def _codes(self, pings: Pings, index: NDArray[np.int64]) -> NDArray[np.int64]:
        in_frame = pings.plate[index]
        used = np.zeros(len(pings.plates), dtype=bool)
        used[in_frame] = True
        code: NDArray[np.int64] = np.zeros(used.size, dtype=np.int64)
        plates = map(self.plates.__getitem__, compress(pings.plates, used))
        code[used] = np.fromiter(plates, np.int64, int(used.sum()))
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
            self.chunks.append(np.empty(max(count, self.rows // 8, _CHUNK_ROWS_MIN), dtype=_ROW))
            self.room = self.chunks[-1].size
            taken += self._reserve(count)
        return taken

    def columns(self, hashed: Callable[[str], bytes]) -> SlotPings:
        used = [*self.chunks[:-1], self.chunks[-1][: self.chunks[-1].size - self.room]]
        plate, time, cell, speed = (np.concatenate([chunk[name] for chunk in used]) for name in _ROW.names or ())
        plates = tuple(hashed(plate) for plate in self.plates)
        return SlotPings(self.start_ms, self.end_ms, plates, plate, time, cell, speed)


class Windows:
    """The open slots of one log. `hashed` turns a plate into its keyed hash; nothing behind this knows plates."""

    def __init__(self, rules: WindowRules, hashed: Callable[[str], bytes]) -> None:
        """Windows with no slot open and a clock that has not begun."""
        self._rules = rules
        self._hashed = hashed
        self._clock = AgreementClock(rules)
        self._open: dict[int, _OpenSlot] = {}

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return sum(slot.rows for slot in self._open.values())

    @property
    def open_bytes(self) -> int:
        """Bytes held for them, unused room included."""
        return sum(chunk.nbytes for slot in self._open.values() for chunk in slot.chunks)

    def push(self, frame: Frame) -> tuple[list[SlotPings], list[LateOrFull]]:
        """Take in a frame; give back the slots that it closes, oldest first, and the rows refused."""
        before = self._clock.now_ms
        self._clock.advance(frame.pings)
        after = self._clock.now_ms
        if after is None or before is None:
            before = _NEVER
        time_ms = frame.pings.time_ms
        late = frame.slot_end + self._rules.grace_ms <= before
        ahead = time_ms > (after or 0) + self._rules.ahead_ms
        refused = [LateOrFull(row, Reason.LATE, before - int(time_ms[row])) for row in np.flatnonzero(late).tolist()]
        refused += [LateOrFull(row, Reason.TIME_IN_FUTURE) for row in np.flatnonzero(ahead & ~late).tolist()]
        refused += self._place(frame, np.flatnonzero(~(late | ahead)))
        return self._close_up_to(after), refused

    def flush(self) -> list[SlotPings]:
        """The log has ended: close every slot, oldest first."""
        return self._close_up_to(None)

    def _place(self, frame: Frame, rows: NDArray[np.int64]) -> list[LateOrFull]:
        refused: list[LateOrFull] = []
        starts = frame.slot_start[rows]
        one = starts.size and starts.min() == starts.max()  # most frames lie in one slot
        for start in starts[:1].tolist() if one else np.unique(starts).tolist():
            here = rows if one else rows[starts == start]
            slot = self._open.get(start)
            if slot is None:
                slot = self._open[start] = _OpenSlot(start, int(frame.slot_end[here[0]]))
            fits = max(0, self._rules.pings_per_slot_max - slot.rows)
            slot.add(frame, here[:fits])
            refused += [LateOrFull(row, Reason.SLOT_FULL) for row in here[fits:].tolist()]
        return refused

    def _close_up_to(self, now_ms: int | None) -> list[SlotPings]:
        """Close what the clock has passed (everything, if None)."""
        due = [
            start
            for start, slot in sorted(self._open.items())
            if now_ms is None or slot.end_ms + self._rules.grace_ms <= now_ms
        ]
        closed = [self._open.pop(start) for start in due]
        return [slot.columns(self._hashed) for slot in closed if slot.rows]
