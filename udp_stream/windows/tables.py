"""HATs: columns of positions and times to (H3 cell, timeslot). The only file that imports h3.

Slots follow the wall clock of the configured zone: they begin at local midnight and every `slot` of
wall time after it. Where daylight saving time repeats an hour, slots that fit into what is repeated
happen twice, longer slots grow; where it skips an hour, the slots that would lie in the gap do not
exist. Consecutive slots always share a boundary, so every instant lies in exactly one slot.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any

import h3.api.basic_int as h3
import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused

DAY_MS = 86_400_000
_EARTH_KM = 6371.0
_EPOCH = dt.date(1970, 1, 1).toordinal()
_CACHED_DAYS = (
    64  # 1 KB each with slots of an hour; a log moves on day by day, but broken clocks jump about
)


def cells_of(
    lat: NDArray[np.float64], lon: NDArray[np.float64], resolution: int
) -> NDArray[np.uint64]:
    """The H3 cell of each position (degrees, WGS 84), as H3's 64-bit integer."""
    found = map(h3.latlng_to_cell, lat.tolist(), lon.tolist(), repeat(resolution))
    return np.fromiter(found, dtype=np.uint64, count=lat.size)


def resolution_of(cell: int) -> int:
    """The H3 resolution of a cell."""
    return int(h3.get_resolution(cell))


def is_cell(cell: int) -> bool:
    """Whether a number is an H3 cell.

    >>> is_cell(0x87608C4D2FFFFFF), is_cell(0x97608C4D2FFFFFF)
    (True, False)
    """
    return bool(h3.is_valid_cell(cell))


@lru_cache(maxsize=2**16)
def cell_name(cell: int) -> str:
    """Name of a cell: H3's usual text form, 15 hexadecimal digits."""
    return str(h3.int_to_str(cell))


@lru_cache(maxsize=2**16)
def cell_center(cell: int) -> tuple[float, float]:
    """Centre of a cell as (lon, lat), GeoJSON's order, to 6 decimals (0.1 m)."""
    lat, lon = h3.cell_to_latlng(cell)
    return round(lon, 6), round(lat, 6)


@lru_cache(maxsize=2**16)
def cell_disk(cell: int) -> tuple[float, float, float]:
    """Centre of a cell as (lat, lon), and the radius in km of a disk around it that holds the
    cell."""
    centre = h3.cell_to_latlng(cell)
    # A hundredth more: the edges between the corners are drawn on another plane.
    return *centre, 1.01 * max(
        h3.great_circle_distance(centre, corner) for corner in h3.cell_to_boundary(cell)
    )


def cell_boundary(cell: int) -> list[list[tuple[float, float]]]:
    """The corners of a cell as (lon, lat), counter-clockwise, to 6 decimals (0.1 m); the first
    again at the end.

    A ring, or two where the cell lies on both sides of the 180th meridian, which no ring may cross
    (RFC 7946, section 3.1.9). A cell on a pole is not cut.
    """
    parts = _parts([(lon, lat) for lat, lon in h3.cell_to_boundary(cell)])
    rounded = [[(round(lon, 6), round(lat, 6)) for lon, lat in part] for part in parts]
    return [[*ring, ring[0]] for ring in rounded]


def _parts(corners: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    crossings = sum(
        abs(one[0] - other[0]) > 180
        for one, other in zip(corners, [*corners[1:], corners[0]], strict=True)
    )
    if crossings != 2:  # around a pole it is crossed once
        return [corners]
    corners = [(lon % 360, lat) for lon, lat in corners]
    west = [(lon, lat) for lon, lat in _cut(corners) if lon <= 180]
    east = [(lon - 360, lat) for lon, lat in _cut(corners) if lon >= 180]
    return [part for part in (west, east) if len({lon for lon, _ in part}) > 1]


def _cut(corners: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found = []
    for (lon, lat), (next_lon, next_lat) in zip(corners, [*corners[1:], corners[0]], strict=True):
        found.append((lon, lat))
        if (lon - 180) * (next_lon - 180) < 0:
            found.append((180.0, lat + (next_lat - lat) * (180 - lon) / (next_lon - lon)))
    return found


@lru_cache(maxsize=100_000)
def cells_beside(cell: int) -> tuple[int, ...]:
    """The cell's neighbours, without itself: six in the order around it. Of H3's pentagons five;
    there, and next to them, in any order."""
    return tuple(other for other in h3.grid_disk(cell, 1) if other != cell)


def neighbours_among(cells: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Neighbours of each of these cells (ascending) among them: positions in six columns, in the
    order around the cell but near H3's pentagons; -1 where there is none.
    """
    # A pentagon has five: the cell itself fills up, and is left out below.
    around = [(*cells_beside(cell), *[cell] * 6)[:6] for cell in cells.tolist()]
    wanted = np.array(around, dtype=np.uint64).reshape(cells.size, 6)
    at = np.minimum(np.searchsorted(cells, wanted), max(0, cells.size - 1))
    found: NDArray[np.int64] = np.where((cells[at] == wanted) & (wanted != cells[:, None]), at, -1)
    return found


def cells_touched(
    rings: Sequence[Sequence[tuple[float, float]]], resolution: int, most: int
) -> set[int] | None:
    """The cells that a polygon touches: an outer ring, then holes, of (latitude, longitude). None
    if more than `most`, or if a box around it has over fifty times as many.

    A ring whose longitudes are over 180 degrees apart crosses the antimeridian.
    """
    outer, *holes = rings
    lat, lon = np.array(outer).T
    width = np.ptp(lon) if np.ptp(lon) <= 180 else np.ptp(lon % 360)
    around_km2 = np.ptp(np.sin(np.radians(lat))) * np.radians(width) * _EARTH_KM**2
    if around_km2 > 50 * most * h3.average_hexagon_area(resolution, "km^2"):
        return None
    polygon = h3.LatLngPoly(outer, *holes)
    found = list[int]()
    for finer in range(
        resolution + 1
    ):  # coarse cells first: a number of cells bounds the work for the next
        found = h3.h3shape_to_cells_experimental(polygon, finer, "overlap")
        if len(found) > most:
            return None
    return set(found)


def outlines_of(cells: Sequence[int]) -> list[NDArray[np.float64]]:
    """The closed loops around cells of equal resolution, holes among them: rows of (latitude,
    longitude) in degrees.

    Raises ValueError for no cells, for what is no cell, and for cells of several resolutions.
    """
    if broken := [cell for cell in cells if not h3.is_valid_cell(cell)]:
        raise ValueError(f"expected H3 cells, got {broken[0]}")
    if len({h3.get_resolution(cell) for cell in cells}) != 1:
        raise ValueError(f"expected H3 cells of one resolution, got {len(cells)} cells")
    shape = h3.cells_to_h3shape(list(set(cells)))
    polygons = [shape] if isinstance(shape, h3.LatLngPoly) else list(shape)
    return [np.array(loop) for polygon in polygons for loop in (polygon.outer, *polygon.holes)]


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

    def place(self, time_ms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end (Unix ms) of the slot of each time (Unix ms, years 1900 to 2200)."""
        starts = np.empty_like(time_ms)
        ends = np.empty_like(time_ms)
        days = time_ms // DAY_MS
        one = days.size and days.min() == days.max()  # most frames lie in a single day
        for day in days[:1].tolist() if one else np.unique(days).tolist():
            here = slice(None) if one else days == day
            boundaries = _boundaries(self.seconds, self.zone, day)
            # On the right: a time on a boundary begins the next slot.
            at = np.searchsorted(boundaries, time_ms[here], side="right")
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
def _boundaries(seconds: int, zone: dt.tzinfo, day: int) -> NDArray[np.int64]:
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
    cell: NDArray[np.uint64]
    speed: NDArray[np.int32]
    repeats: int = 0
    unpaired: int = 0
    partial: bool = False


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
    cells: NDArray[np.uint64]
    hat_rows: NDArray[np.int64]
    plate: NDArray[np.int64]
    count: NDArray[np.int64]
    repeats: int
    partial: bool = False

    def rows(self, hat: int) -> slice:
        return slice(int(self.hat_rows[hat]), int(self.hat_rows[hat + 1]))

    def each_rows(self) -> list[slice]:
        """Rows of each HAT, as slices: quicker than to ask for each HAT."""
        return [slice(start, end) for start, end in pairwise(self.hat_rows.tolist())]

    def subset(self, rows: NDArray[np.bool_]) -> SlotCounts:
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

    speed: NDArray[np.int64]
    starts: NDArray[np.int64]

    def clamped(self, largest: int) -> SlotValues:
        return replace(self, speed=np.minimum(self.speed, largest))

    def samples_of(
        self, rows: slice, admitted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        samples = self.speed[self.starts[rows.start] : self.starts[rows.stop]]
        if admitted is None or admitted.all():
            return samples
        return samples[np.repeat(admitted, np.diff(self.starts[rows.start : rows.stop + 1]))]


def without_repeats(pings: SlotPings) -> SlotPings:
    """The same pings, each (plate, time) once: those that `tabulate` would keep, before cells are
    dealt out."""
    plate_time = pings.plate.astype(np.uint64) << np.uint64(32) | pings.time
    chosen = first_per_plate_time(plate_time, pings.cell, pings.speed)
    if chosen.size == pings.plate.size:
        return pings
    return replace(
        pings,
        plate=pings.plate[chosen],
        time=pings.time[chosen],
        cell=pings.cell[chosen],
        speed=pings.speed[chosen],
    )


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
    cell: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.unsignedinteger[Any]]]:
    """The distinct cells, ascending, and each row's number among them. A plate stays in a cell for
    many pings, so runs of equal cells are sorted, not pings.
    """
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1])[: cell.size])
    cells, of_run = np.unique(cell[starts], return_inverse=True)
    narrow = np.uint16 if cells.size < 2**16 else np.uint32  # 16-bit stable sorts are radix sorts
    return cells, np.repeat(of_run.astype(narrow), np.diff(np.append(starts, cell.size)))


def first_per_plate_time(
    plate_time: NDArray[np.uint64], cell: NDArray[np.uint64], speed: NDArray[np.signedinteger[Any]]
) -> NDArray[np.int64]:
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
    first: NDArray[np.int64] = order[~repeated]
    return first
