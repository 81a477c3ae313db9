"""A closed slot as tables: who was in which HAT how often (public), and how fast (secret), kept apart.

The order of everything here depends only on what was pinged, never on the order of arrival: HATs by cell, plates by
their keyed hash, samples by time. Repeats of (plate, time) count once; which of them stays depends on the cell and,
between pings of one plate, time and cell, on the smaller speed, so counts never depend on a speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused

PINGS_MAX = 2**28
"""Most samples of a HAT, and most pings of a slot of one source, 5 GB: squares of their number, and sums of their
speeds, fit in 63 bits. Sources add up, so it is counted again where their pings have been put together."""


@dataclass(frozen=True, slots=True)
class SlotPings:
    """All accepted pings of one slot, as columns of equal length.

    `plates` are keyed hashes; `plate` indexes them; `time` is ms after the slot's start; `speed` is in quanta.

    >>> columns = (np.array([value], kind) for value, kind in ((0, "u4"), (500, "u4"), (7, "u8"), (4096, "i4")))
    >>> SlotPings(0, 3_600_000, (b"hash of A1",), *columns).time
    array([500], dtype=uint32)
    """

    start_ms: int
    end_ms: int
    plates: tuple[bytes, ...]
    plate: NDArray[np.uint32]
    time: NDArray[np.uint32]
    cell: NDArray[np.uint64]
    speed: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """The public side: HAT h is `cells[h]`; its plates are rows `hat_rows[h]` to `hat_rows[h+1]`.

    Row r says that `plates[plate[r]]` has `count[r]` samples. `repeats` counts the pings dropped as repeats.

    >>> table = [np.array(column) for column in ([0x8760, 0x8761], [0, 2, 3], [0, 1, 1], [2, 3, 5])]
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), *table, repeats=0)
    >>> counts.rows(0), counts.count[counts.rows(1)]
    (slice(0, 2, None), array([5]))
    """

    start_ms: int
    end_ms: int
    plates: tuple[bytes, ...]
    cells: NDArray[np.uint64]
    hat_rows: NDArray[np.int64]
    plate: NDArray[np.int64]
    count: NDArray[np.int64]
    repeats: int

    def rows(self, hat: int) -> slice:
        """The rows of a HAT."""
        return slice(int(self.hat_rows[hat]), int(self.hat_rows[hat + 1]))

    def each_rows(self) -> list[slice]:
        """The rows of every HAT, by number: quicker than to ask for each."""
        return [slice(start, end) for start, end in pairwise(self.hat_rows.tolist())]


@dataclass(frozen=True, slots=True)
class SlotValues:
    """The secret side: the speeds (quanta), row by row of `SlotCounts`, each row's in order of time.

    Row r's samples are `speed[starts[r]:starts[r + 1]]`.

    >>> values = SlotValues(np.array([10, 20, 30, 40]), np.array([0, 1, 3, 4]))
    >>> values.of_rows(slice(0, 2)), values.of_admitted(slice(0, 2), np.array([False, True]))
    (array([10, 20, 30]), array([20, 30]))
    >>> values.clamped(25).speed
    array([10, 20, 25, 25])
    """

    speed: NDArray[np.int64]
    starts: NDArray[np.int64]

    def clamped(self, largest: int) -> SlotValues:
        """The same speeds, none of them above `largest`."""
        return replace(self, speed=np.minimum(self.speed, largest))

    def of_rows(self, rows: slice) -> NDArray[np.int64]:
        """The samples of a range of rows."""
        return self.speed[self.starts[rows.start] : self.starts[rows.stop]]

    def of_admitted(self, rows: slice, admitted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The samples of those rows of a range that were admitted."""
        if admitted.all():
            return self.of_rows(rows)
        counts = np.diff(self.starts[rows.start : rows.stop + 1])
        return self.of_rows(rows)[np.repeat(admitted, counts)]


def without_repeats(pings: SlotPings) -> SlotPings:
    """The same pings, each (plate, time) once: those that `tabulate` would keep, before cells are dealt out.

    >>> columns = [np.array(column, np.uint64) for column in ([0, 0], [5, 5], [8, 7], [1, 2])]
    >>> without_repeats(SlotPings(0, 3_600_000, (b"a",), *columns)).cell
    array([7], dtype=uint64)
    """
    plate_time = pings.plate.astype(np.uint64) << np.uint64(32) | pings.time
    chosen = _first_per_plate_time(plate_time, pings.cell, pings.speed)
    if chosen.size == pings.plate.size:
        return pings
    return replace(
        pings,
        plate=pings.plate[chosen],
        time=pings.time[chosen],
        cell=pings.cell[chosen],
        speed=pings.speed[chosen],
    )


def tabulate(pings: SlotPings, samples_max: int = PINGS_MAX) -> tuple[SlotCounts, SlotValues]:
    """Sort, drop repeats of (plate, time), and count. PrivacyRefused if a HAT has more than `samples_max` samples.

    >>> pings = SlotPings(0, 3_600_000, (b"b", b"a"), np.array([0, 1, 0, 0], np.uint32),
    ...     np.array([5, 5, 9, 9], np.uint32), np.array([7, 7, 7, 7], np.uint64), np.array([40, 50, 60, 61], np.int32))
    >>> counts, values = tabulate(pings)
    >>> counts.plates, counts.count.tolist(), values.speed.tolist(), counts.repeats
    ((b'a', b'b'), [1, 2], [50, 40, 60], 1)
    """
    by_hash = sorted(range(len(pings.plates)), key=pings.plates.__getitem__)
    rank = np.empty(len(by_hash), dtype=np.uint64)
    rank[by_hash] = np.arange(len(by_hash), dtype=np.uint64)
    plate_time = rank[pings.plate] << np.uint64(32) | pings.time
    chosen = _first_per_plate_time(plate_time, pings.cell, pings.speed)
    cells, hat_of = numbered(pings.cell[chosen])
    # Stable: within a HAT the order by plate and time has to stay.
    by_hat = np.argsort(hat_of, kind="stable")
    chosen, hat = chosen[by_hat], hat_of[by_hat]
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
        repeats=int(pings.plate.size - chosen.size),
    )
    require_countable(counts, samples_max)
    return counts, SlotValues(pings.speed[chosen].astype(np.int64), starts)


def require_countable(counts: SlotCounts, samples_max: int = PINGS_MAX) -> None:
    """PrivacyRefused if a HAT has more samples than sensitivities and noise are computed for without overflow.

    No HAT may be without rows.

    >>> table = [np.array(column) for column in ([0x8760], [0, 2], [0, 1], [2, 3])]
    >>> require_countable(SlotCounts(0, 3_600_000, (b"a", b"b"), *table, repeats=0), 4)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: HAT 8760 of the slot from 1970-01-01T00:00:00+00:00: expected at most 4 ...
    """
    samples = np.add.reduceat(counts.count, counts.hat_rows[:-1]) if counts.cells.size else counts.count
    for hat in np.flatnonzero(samples > samples_max)[:1].tolist():
        start = datetime.fromtimestamp(counts.start_ms / 1000, UTC).isoformat(timespec="seconds")
        raise PrivacyRefused(
            f"HAT {int(counts.cells[hat]):x} of the slot from {start}: expected at most {samples_max} samples, got "
            f"{int(samples[hat])}"
        )


def numbered(cell: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.unsignedinteger[Any]]]:
    """The distinct cells, ascending, and each row's number among them. A plate stays in a cell for many pings, so runs
    of one cell are sorted, not pings.

    >>> [column.tolist() for column in numbered(np.array([9, 9, 7, 9], np.uint64))]
    [[7, 9], [1, 1, 0, 1]]
    """
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    cells, of_run = np.unique(cell[starts], return_inverse=True)
    narrow = np.uint16 if cells.size < 2**16 else np.uint32  # 16-bit stable sorts are radix sorts
    return cells, np.repeat(of_run.astype(narrow), np.diff(np.append(starts, cell.size)))


def _first_per_plate_time(
    plate_time: NDArray[np.uint64], cell: NDArray[np.uint64], speed: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Indices in order of (plate, time), one of each: the one of lowest cell, then lowest speed."""
    # Need not be stable: repeats are put in order below, and nothing else is equal.
    order = np.argsort(plate_time)
    ordered = plate_time[order]
    repeated = np.zeros(order.size, dtype=bool)
    repeated[1:] = ordered[1:] == ordered[:-1]
    if repeated.any():
        among = np.flatnonzero(repeated | np.append(repeated[1:], False))
        rows = order[among]
        order[among] = rows[np.lexsort((speed[rows], cell[rows], plate_time[rows]))]
    first: NDArray[np.int64] = order[~repeated]
    return first
