"""Speeds by movement, for feeds that have none (`speed.from = "movement"`): how far a plate came,
over the time.

A ping is paired with the plate's newest ping of the slot that is at least 5 s older; where that is
over 5 minutes older, or there is none, with the first that is at least 5 s younger, and at most 5
minutes. Its speed is the distance over the time between the two, clamped to U. A ping without a
pair has no speed: it is left out, and counted.

**Where.** A source partition derives speeds when it closes a slot, before the slot is cut by cell:
from the plate's pings of this slot and partition alone, each (plate, time) once. So a restart, a
replay and another number of workers give the same bytes, as long as all pings of a plate come by
the same partition. The arithmetic is that of IEEE 754 alone (+, *, /, sqrt), which every machine
does alike; sines of libraries differ in their last bits.

**Privacy.** Unit: license plate. Neighbours: a plate's positions differ, each within its cell;
times and cells are the same. Which pings have a speed follows from times and cells, so counts are
the same for neighbours; a plate's speeds follow from its own positions, so all other plates' are
the same. What is left is `swap-values`: a plate has other speeds in [0, U]. That is why a speed
above `reject_above_kmh` is refused only where the two cells already tell it: no two positions in
them are near enough. Any other speed is clamped. If it were refused, counts would tell of
positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Cells, Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.pings.decode import PingRules
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotPings, first_per_plate_time

NEAREST_MS = 5_000
FARTHEST_MS = 300_000
"""Limits, in ms, of the time between paired pings: below, the error of a position is most of a
distance; above, a bus has gone round corners."""

DEGREE = 1e-7
"""The unit of positions in columns: a centimetre. 180 degrees fit in 32 bits."""

KM_PER_UNIT = 6371.0088 * np.pi / 180 * DEGREE  # on a sphere of the earth's mean radius
_HALF_TURN = round(180 / DEGREE)
_COSINE = (
    -1 / 87_178_291_200,
    1 / 479_001_600,
    -1 / 3_628_800,
    1 / 40_320,
    -1 / 720,
    1 / 24,
    -1 / 2,
    1.0,
)
"""Coefficients of the powers of the square: exact to 1e-9 between -90 and 90 degrees."""

Places = NDArray[np.int32]
"""Latitudes or longitudes, in units of `DEGREE`."""


def places_of(degrees: Floats) -> Places:
    """Places of degrees, to the nearest unit."""
    return np.rint(degrees / DEGREE).astype(np.int32)


def km_between(lat: Places, lon: Places, other_lat: Places, other_lon: Places) -> Floats:
    """Distance in km along the great circle, to 1e-5 of it up to 25 km, where buses go."""
    north, east = offset(lat, lon, other_lat, other_lon)
    found: Floats = np.sqrt(np.square(north) + np.square(east)) * KM_PER_UNIT
    return found


def offset(lat: Places, lon: Places, other_lat: Places, other_lon: Places) -> tuple[Floats, Floats]:
    """How far the others lie to the north and to the east, in units of `DEGREE` of the great
    circle: on the plane at the middle latitude."""
    north = other_lat.astype(np.int64) - lat
    middle = (other_lat.astype(np.int64) + lat) / 2
    east = (other_lon.astype(np.int64) - lon + _HALF_TURN) % (
        2 * _HALF_TURN
    ) - _HALF_TURN  # the shorter way round
    squared = np.square(middle * (DEGREE * np.pi / 180))
    return north.astype(np.float64), east * np.polyval(_COSINE, squared)


def with_speeds(
    slot: SlotPings, lat: Places, lon: Places, rules: PingRules, grid: Grid
) -> SlotPings:
    """A slot of a source partition with speeds by movement in place of those that it has.

    Rows are of the pings that have a speed, by plate and time. `repeats` counts pings of a plate
    and time that are left out, `unpaired` others.
    """
    plate_time, place = keys_of(slot, lat, lon)
    rows = first_per_plate_time(plate_time, slot.cell, place)
    pair, seconds = pairs(plate_time[rows].astype(np.int64))
    reach_km = rules.reject_above_kmh * seconds / 3600
    kept = pair >= 0
    kept &= _within_reach(slot.cell[rows], slot.cell[rows[pair]], reach_km, grid)
    pair = rows[pair[kept]]
    own = rows[kept]
    km = km_between(lat[own], lon[own], lat[pair], lon[pair])
    speed = np.rint(km * 3600 / seconds[kept] * QUANTA_PER_KMH)
    return replace(
        slot.subset(own),
        speed=np.minimum(speed, rules.max_quanta).astype(np.int32),
        repeats=slot.repeats + slot.plate.size - rows.size,
        unpaired=slot.unpaired + rows.size - own.size,
    )


def keys_of(slot: SlotPings, lat: Places, lon: Places) -> tuple[Cells, Integers]:
    """Plate and time of each row as a number, and its position as another: any order of positions
    that follows from them alone."""
    plate_time = slot.plate.astype(np.uint64) << np.uint64(32) | slot.time
    return plate_time, lat.astype(np.int64) << 32 | (lon.astype(np.int64) + _HALF_TURN)


def pairs(plate_time: Integers) -> tuple[Integers, Floats]:
    """The row that each of (plate, ms), ascending and each once, is paired with (-1 for none), and
    the seconds between."""
    plate = plate_time >> 32
    last = plate_time.size - 1
    before = np.searchsorted(plate_time, plate_time - NEAREST_MS, side="right") - 1
    behind = np.searchsorted(plate_time, plate_time + NEAREST_MS)

    def gap(to: Integers) -> Integers:
        """Milliseconds to these rows; more than is allowed where they are of another plate, or are
        none."""
        at = np.clip(to, 0, last)
        is_there = (to == at) & (plate[at] == plate)
        return np.where(is_there, np.abs(plate_time[at] - plate_time), FARTHEST_MS + 1)

    back = gap(before)
    on = gap(behind)
    pair = np.where(back <= FARTHEST_MS, before, np.where(on <= FARTHEST_MS, behind, -1))
    return pair, np.where(back <= FARTHEST_MS, back, on) / 1000


def _within_reach(
    cell: Cells,
    other: Cells,
    reach_km: Floats,
    grid: Grid,
) -> Flags:
    """Whether some two positions in the two cells are that near: by disks around the cells, so of a
    few too many."""
    moved = np.flatnonzero(cell != other)
    cells, at = np.unique(np.concatenate([cell[moved], other[moved]]), return_inverse=True)
    disks = np.array([grid.disk_of(number) for number in cells.tolist()]).reshape(-1, 3)
    lat, lon = places_of(disks[:, :2].T)
    radius_km = disks[:, 2]
    here, there = np.split(at, 2)
    km = km_between(lat[here], lon[here], lat[there], lon[there])
    apart_km = km - radius_km[here] - radius_km[there]
    within = np.ones(cell.size, np.bool_)
    within[moved] = apart_km <= reach_km[moved]
    return within
