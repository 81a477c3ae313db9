"""Timeslots, and the tables of a closed slot.

Slots follow the wall clock of the configured zone: they begin at local midnight and every `slot` of
wall time after it. Where daylight saving time repeats an hour, slots that fit into what is repeated
happen twice, longer slots grow; where it skips an hour, the slots that would lie in the gap do not
exist. Consecutive slots always share a boundary, so every instant lies in exactly one slot.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Cells, Flags, Integers
from udp_stream.base.errors import PrivacyRefused

DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1).toordinal()
_CACHED_DAYS = (
    64  # 1 KB each with slots of an hour; a log moves on day by day, but broken clocks jump about
)


class SlotGrid:
    """Cuts time into slots of a wall-clock length in a zone.

    `seconds` is a whole number that divides a day, or a whole number of days; slots of n days begin
    on days whose number since 0001-01-01 is a multiple of n. Raises ValueError otherwise.

    >>> from zoneinfo import ZoneInfo
    >>> grid = SlotGrid(3600, ZoneInfo("Asia/Kolkata"))
    >>> starts, ends = grid.place(np.array([1_641_012_035_000]))
    >>> grid.iso(int(starts[0])), grid.iso(int(ends[0]))
    ('2022-01-01T10:00:00+05:30', '2022-01-01T11:00:00+05:30')
    """

    def __init__(self, seconds: int, zone: dt.tzinfo) -> None:
        if seconds < 1 or (86_400 % seconds and seconds % 86_400):
            raise ValueError(
                f"expected a length that divides a day, or whole days, got {seconds} s"
            )
        self.seconds = seconds
        self.zone = zone

    def place(self, time_ms: Integers) -> tuple[Integers, Integers]:
        """Start and end (Unix ms) of the slot of each time (Unix ms, years 1900 to 2200)."""
        starts = np.empty_like(time_ms)
        ends = np.empty_like(time_ms)
        days = time_ms // DAY_MS
        one = days.size and days.min() == days.max()  # most frames lie in a single day
        for day in days[:1].tolist() if one else np.unique(days).tolist():
            here = slice(None) if one else days == day
            boundaries = _boundaries(self.seconds, self.zone, day)
            times = time_ms[here]
            # On the right: a time on a boundary begins the next slot.
            at, last = np.searchsorted(boundaries, [times.min(), times.max()], side="right")
            if at != last:  # most frames lie in a single slot
                at = np.searchsorted(boundaries, times, side="right")
            starts[here] = boundaries[at - 1]
            ends[here] = boundaries[at]
        return starts, ends

    def start_of(self, time_ms: int) -> int:
        return int(self.place(np.array([time_ms]))[0][0])

    def end_of(self, time_ms: int) -> int:
        return int(self.place(np.array([time_ms]))[1][0])

    def between(self, since_ms: int, until_ms: int, most: int) -> list[tuple[int, int]]:
        """Start and end of the first `most` slots that start at `since_ms` or later, and before
        `until_ms`."""
        found = list[tuple[int, int]]()
        start = self.end_of(since_ms - 1)
        while start < until_ms and len(found) < most:
            found.append((start, self.end_of(start)))
            start = found[-1][1]
        return found

    def iso(self, time_ms: int) -> str:
        return dt.datetime.fromtimestamp(time_ms / 1000, self.zone).isoformat(timespec="seconds")


@lru_cache(maxsize=4 * _CACHED_DAYS)
def _boundaries(seconds: int, zone: dt.tzinfo, day: int) -> Integers:
    """All boundaries of slots of these seconds that the UTC day needs which is `day` days after
    1970-01-01."""
    ordinal = day + _EPOCH
    step = max(1, seconds // 86_400)
    found = set[int]()
    # A local day begins up to 14 hours before the UTC day of its date, or 12 behind it: two days
    # more on each side.
    first = (ordinal - 2) // step * step
    for local_day in range(first, ordinal + step + 3, step):
        midnight = dt.datetime.combine(dt.date.fromordinal(local_day), dt.time())
        for second in range(0, 86_400, min(seconds, 86_400)):
            wall = midnight + dt.timedelta(seconds=second)
            # The instants at which the wall clock shows it: two where an hour is repeated.
            early, late = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
            found.add(round(early.timestamp() * 1000))
            repeated = early.utcoffset(), late.utcoffset()
            if repeated[0] is not None and repeated[1] is not None:
                shift = (repeated[0] - repeated[1]).total_seconds()
                if shift > 0 and seconds <= shift:
                    found.add(round(late.timestamp() * 1000))
    boundaries = np.array(sorted(found), dtype=np.int64)
    boundaries.flags.writeable = False  # it is handed to every grid alike
    return boundaries


# A closed slot as tables: who was in which HAT how often (public), and how fast (secret), kept
# apart.
#
# The order of everything here depends only on what was pinged, never on the order of arrival: HATs
# by cell, plates by their keyed hash, samples by time. Repeats of (plate, time) count once; which
# of them stays depends on the cell and, between pings of the same plate, time and cell, on the
# smaller speed, so counts never depend on a speed.

PINGS_MAX = 2**28
"""Most samples of a HAT, and most pings of a slot of a source, 5 GB: squares of their number, and
sums of their speeds, fit in 63 bits. Sources add up, so it is counted again where their pings have
been put together."""


@dataclass(frozen=True, slots=True)
class SlotPings:
    """All accepted pings of a slot, as columns of equal length.

    `plates` are keyed hashes; `plate` indexes them; `time` is ms after the slot's start; `speed` is
    in quanta. `repeats` and `unpaired` count pings that were left out where speeds are derived
    (`movement.py`). `partial`: less than half of the slot was read.

    >>> columns = (np.array([value], kind) for value, kind in ((0, "u4"), (500, "u4"), (7, "u8"), (4096, "i4")))
    >>> SlotPings(0, 3_600_000, (b"hash of A1",), *columns).time
    array([500], dtype=uint32)
    """

    start_ms: int
    end_ms: int
    plates: tuple[bytes, ...]
    plate: NDArray[np.uint32]
    time: NDArray[np.uint32]
    cell: Cells
    speed: NDArray[np.int32]
    repeats: int = 0
    unpaired: int = 0
    partial: bool = False

    def subset(self, rows: Integers) -> SlotPings:
        return replace(
            self,
            plate=self.plate[rows],
            time=self.time[rows],
            cell=self.cell[rows],
            speed=self.speed[rows],
        )


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """The public side: HAT h is `cells[h]`; its plates are rows `hat_rows[h]` to `hat_rows[h+1]`.

    Row r says that `plates[plate[r]]` has `count[r]` samples. `repeats` counts the pings dropped as
    repeats.

    >>> table = [np.array(column) for column in ([0x8760, 0x8761], [0, 2, 3], [0, 1, 1], [2, 3, 5])]
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), *table, repeats=0)
    >>> counts.rows(0), counts.count[counts.rows(1)]
    (slice(0, 2, None), array([5]))
    """

    start_ms: int
    end_ms: int
    plates: tuple[bytes, ...]
    cells: Cells
    hat_rows: Integers
    plate: Integers
    count: Integers
    repeats: int
    partial: bool = False

    @property
    def slot(self) -> tuple[int, int]:
        """Its start and end, Unix ms."""
        return self.start_ms, self.end_ms

    def rows(self, hat: int) -> slice:
        return slice(int(self.hat_rows[hat]), int(self.hat_rows[hat + 1]))

    def each_rows(self) -> list[slice]:
        """Rows of each HAT, as slices: quicker than to ask for each HAT."""
        return [slice(start, end) for start, end in pairwise(self.hat_rows.tolist())]

    def subset(self, rows: Flags) -> SlotCounts:
        """The counts of some rows; every HAT stays, even without rows."""
        before = np.append(0, np.cumsum(rows))
        return replace(
            self, hat_rows=before[self.hat_rows], plate=self.plate[rows], count=self.count[rows]
        )


@dataclass(frozen=True, slots=True)
class SlotValues:
    """The secret side: the speeds (quanta), row by row of `SlotCounts`, each row's in order of
    time.

    Row r's samples are `speed[starts[r]:starts[r + 1]]`.

    >>> values = SlotValues(np.array([10, 20, 30, 40]), np.array([0, 1, 3, 4]))
    >>> values.samples_of(slice(0, 2)), values.samples_of(slice(0, 2), np.array([False, True]))
    (array([10, 20, 30]), array([20, 30]))
    >>> values.clamped(25).speed
    array([10, 20, 25, 25])
    """

    speed: Integers
    starts: Integers

    def clamped(self, largest: int) -> SlotValues:
        return replace(self, speed=np.minimum(self.speed, largest))

    def samples_of(self, rows: slice, admitted: Flags | None = None) -> Integers:
        samples = self.speed[self.starts[rows.start] : self.starts[rows.stop]]
        if admitted is None or admitted.all():
            return samples
        return samples[np.repeat(admitted, np.diff(self.starts[rows.start : rows.stop + 1]))]


def without_repeats(pings: SlotPings) -> SlotPings:
    """The same pings, each (plate, time) once: those that `tabulate` would keep, before cells are
    dealt out."""
    plate_time = pings.plate.astype(np.uint64) << np.uint64(32) | pings.time
    chosen = first_per_plate_time(plate_time, pings.cell, pings.speed)
    return pings if chosen.size == pings.plate.size else pings.subset(chosen)


def tabulate(pings: SlotPings) -> tuple[SlotCounts, SlotValues]:
    """Make the tables of a closed slot: sort, drop repeats of (plate, time), and count.

    Args:
        pings: All accepted pings of the slot, in any order.

    Returns:
        The counts of plates in HATs, which plans see, and the speeds, which they do not. Both
        follow from the set of pings alone, not from the order of their arrival.

    Raises:
        PrivacyRefused: If a HAT has more than `PINGS_MAX` samples.
    """
    by_hash = sorted(range(len(pings.plates)), key=pings.plates.__getitem__)
    rank = np.empty(len(by_hash), dtype=np.uint64)
    rank[by_hash] = np.arange(len(by_hash), dtype=np.uint64)
    plate_time = rank[pings.plate] << np.uint64(32) | pings.time
    chosen = first_per_plate_time(plate_time, pings.cell, pings.speed)
    cells, hat_of = numbered(pings.cell[chosen])
    # Stable: within a HAT the order by plate and time has to stay.
    by_hat = np.argsort(hat_of, kind="stable")
    chosen = chosen[by_hat]
    hat = hat_of[by_hat]
    plate = (plate_time[chosen] >> np.uint64(32)).astype(np.int64)
    new_row = np.ones(chosen.size, dtype=bool)
    new_row[1:] = (hat[1:] != hat[:-1]) | (plate[1:] != plate[:-1])
    starts = np.append(np.flatnonzero(new_row), chosen.size)
    first = starts[:-1]
    counts = SlotCounts(
        start_ms=pings.start_ms,
        end_ms=pings.end_ms,
        plates=tuple(pings.plates[i] for i in by_hash),
        cells=cells,
        hat_rows=np.searchsorted(hat[first], np.arange(cells.size + 1)),
        plate=plate[first],
        count=np.diff(starts),
        repeats=pings.repeats + int(pings.plate.size - chosen.size),
        partial=pings.partial,
    )
    require_countable(counts)
    return counts, SlotValues(pings.speed[chosen].astype(np.int64), starts)


def require_countable(counts: SlotCounts) -> None:
    """Raise PrivacyRefused if a HAT has more samples than sensitivities and noise are computed for
    without overflow.

    No HAT may be without rows.
    """
    samples = (
        np.add.reduceat(counts.count, counts.hat_rows[:-1]) if counts.cells.size else counts.count
    )
    for hat in np.flatnonzero(samples > PINGS_MAX)[:1].tolist():
        start = datetime.fromtimestamp(counts.start_ms / 1000, UTC).isoformat(timespec="seconds")
        raise PrivacyRefused(
            f"HAT {int(counts.cells[hat]):x} of the slot from {start}: expected at most {PINGS_MAX} samples, got "
            f"{int(samples[hat])}"
        )


def numbered(
    cell: Cells,
) -> tuple[Cells, NDArray[np.unsignedinteger[Any]]]:
    """The distinct cells, ascending, and each row's number among them. A plate stays in a cell for
    many pings, so runs of equal cells are sorted, not pings.
    """
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1])[: cell.size])
    cells, of_run = np.unique(cell[starts], return_inverse=True)
    narrow = np.uint16 if cells.size < 2**16 else np.uint32  # 16-bit stable sorts are radix sorts
    return cells, np.repeat(of_run.astype(narrow), np.diff(np.append(starts, cell.size)))


def first_per_plate_time(
    plate_time: Cells, cell: Cells, speed: NDArray[np.signedinteger[Any]]
) -> Integers:
    """Indices in order of (plate, time), each pair once: the row of lowest cell, then of lowest
    speed (or what stands for it)."""
    # Need not be stable: repeats are put in order below, and nothing else is equal.
    order = np.argsort(plate_time)
    ordered = plate_time[order]
    repeated = np.zeros(order.size, dtype=bool)
    repeated[1:] = ordered[1:] == ordered[:-1]
    if repeated.any():
        among = np.flatnonzero(repeated | np.append(repeated[1:], False))
        rows = order[among]
        order[among] = rows[np.lexsort((speed[rows], cell[rows], plate_time[rows]))]
    return order[~repeated]
