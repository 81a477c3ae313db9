"""Open slots as columnar buffers, closed once each by the log's own clock.

**Theory of operation.** The log is read in frames: runs of messages cut at positions that are fixed by the log, not by
who reads it or how fast. A clock turns the frames into watermarks. Whether a ping is late and when a slot closes depend
on the watermark before and after its frame, so reading a log twice gives the same slots with the same contents.

1. A ping whose slot had closed before it (slot end + grace <= watermark) is late: refused, with its lag.
2. A ping that the clock finds to come from the future is refused, and moves nothing.
3. The rest go into their slots. A slot that is full refuses.
4. Slots whose end + grace the watermark has reached are closed, oldest first, for good.

The clock is a strategy (`clocks.py`). The clock of files observes a frame as a whole, so there the frames are
part of the log; the clock of topics goes by messages, so there a frame may be any run of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decoder import Pings, Reason
from udp_stream.windows.clocks import AgreementClock, AppendClock, Clock, Frame, LogPlaces, WindowRules
from udp_stream.windows.slot_tables import SlotPings

__all__ = ["AgreementClock", "AppendClock", "Clock", "Frame", "LateOrFull", "LogPlaces", "WindowRules", "Windows"]

_ROW = np.dtype([("plate", "<u4"), ("time", "<u4"), ("cell", "<u8"), ("speed", "<i4")])
"""20 bytes per open ping."""

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


class OpenSlot(NamedTuple):
    """What waits in an open slot (Unix ms): the number of its pings, and the cells that have some.

    >>> OpenSlot(0, 3_600_000, pings=7, cells=frozenset({609162003746914303})).pings
    7
    """

    start_ms: int
    end_ms: int
    pings: int
    cells: frozenset[int]


@dataclass(slots=True)
class _OpenSlot:
    """Chunks of rows; each new chunk is an eighth of what is there, so that little memory waits unused."""

    start_ms: int
    end_ms: int
    first: int
    chunks: list[NDArray[np.void]] = field(default_factory=list)
    rows: int = 0
    room: int = 0
    plates: defaultdict[str, int] = field(default_factory=lambda: defaultdict(count().__next__))
    cells: set[int] = field(default_factory=set)
    looked_at: int = 0

    def add(self, frame: Frame, index: NDArray[np.int64]) -> None:
        codes = self._codes(frame.pings, index)
        for taken in self._reserve(index.size):
            part, index = index[: taken.size], index[taken.size :]
            taken["plate"], codes = codes[: taken.size], codes[taken.size :]
            taken["time"] = frame.pings.time_ms[part] - self.start_ms
            taken["cell"] = frame.cell[part]
            taken["speed"] = frame.pings.speed[part]

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
            self.chunks.append(np.empty(max(count, self.rows // 8, _CHUNK_ROWS_MIN), dtype=_ROW))
            self.room = self.chunks[-1].size
            taken += self._reserve(count)
        return taken

    def counts(self) -> OpenSlot:
        """Cells are looked for when they are asked for, in the rows that came since: reading is no slower for it."""
        for chunk, end in zip(self.chunks, accumulate(chunk.size for chunk in self.chunks), strict=True):
            first, last = max(0, self.looked_at - end + chunk.size), min(chunk.size, self.rows - end + chunk.size)
            if first < last:
                self.cells.update(np.unique(chunk["cell"][first:last]).tolist())
        self.looked_at = self.rows
        return OpenSlot(self.start_ms, self.end_ms, self.rows, frozenset(self.cells))

    def columns(self, hashed: Callable[[str], bytes]) -> SlotPings:
        used = [*self.chunks[:-1], self.chunks[-1][: self.chunks[-1].size - self.room]]
        plate, time, cell, speed = (np.concatenate([chunk[name] for chunk in used]) for name in _ROW.names or ())
        plates = tuple(hashed(plate) for plate in self.plates)
        return SlotPings(self.start_ms, self.end_ms, plates, plate, time, cell, speed)


class Windows:
    """The open slots of one log. `hashed` turns a plate into its keyed hash; nothing behind this knows plates.

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

    def __init__(self, rules: WindowRules, hashed: Callable[[str], bytes], clock: Clock | None = None) -> None:
        """Windows with no slot open; the clock is that of a file unless another is given."""
        self._rules = rules
        self._hashed = hashed
        self._clock = AgreementClock(rules) if clock is None else clock
        self._open: dict[int, _OpenSlot] = {}

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return sum(slot.rows for slot in self._open.values())

    def open_slots(self) -> list[OpenSlot]:
        """What waits in each open slot, oldest first."""
        return [slot.counts() for _, slot in sorted(self._open.items()) if slot.rows]

    def push(self, frame: Frame) -> tuple[list[SlotPings], list[LateOrFull]]:
        """Take in a frame; give back the slots that it closes, oldest first, and the rows refused."""
        observed = self._clock.observe(frame)
        late = frame.slot_end + self._rules.grace_ms <= observed.watermark_before_ms
        lag_ms = observed.watermark_before_ms[late] - frame.pings.time_ms[late]
        rows = zip(np.flatnonzero(late).tolist(), lag_ms.tolist(), strict=True)
        refused = [LateOrFull(row, Reason.LATE, lag) for row, lag in rows]
        # Not if it is late too: a ping is refused once.
        refused += [LateOrFull(row, Reason.TIME_IN_FUTURE) for row in np.flatnonzero(observed.ahead & ~late).tolist()]
        refused += self._place(frame, np.flatnonzero(~(late | observed.ahead)))
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
                slot = _OpenSlot(start, int(frame.slot_end[here[0]]), _offset(frame, int(here[0])))
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
        return [slot.columns(self._hashed) for slot in closed if slot.rows]


def _offset(frame: Frame, row: int) -> int:
    """The offset of the row's message in its log, 0 if unknown."""
    return 0 if frame.places is None else int(frame.places.offset[frame.pings.message[row]])
