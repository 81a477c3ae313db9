"""Headings: each cell of a grid two or four times, by the course of the plates in it.

A ping has the course of its plate's movement: from the ping that it is paired with, as for speeds
by movement, or to it. A plate that came less than `MOVED_KM` stands, and keeps its last heading;
before it has moved at all it has the first heading of the slot. The pings of a plate that does not
move in a slot are left out, and counted as `unpaired`.

**Privacy.** A ping's heading follows from positions and times of its plate in the slot and source
partition alone. Under "swap-values" it is public, as its cell is: neighbours differ in speeds, or,
where speeds are derived, in positions with the same cells and headings. Under "add-remove" a plate
pays for its vector over all cells and headings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from udp_stream.base.arrays import Cells, Floats, Integers
from udp_stream.pings.decode import PingRules
from udp_stream.windows.grid import Grid, Ring
from udp_stream.windows.movement import (
    KM_PER_UNIT,
    Places,
    keys_of,
    offset,
    pairs,
    with_speeds,
)
from udp_stream.windows.tables import SlotPings

NAMES: Final = {2: ("NE", "SW"), 4: ("N", "E", "S", "W")}
"""Headings by their number. Sectors meet at the diagonals (2: only north-west to south-east), so
that streets along the compass are cut from no heading of theirs."""

MOVED_KM: Final = 0.02
"""Below, the error of two positions may turn a course round."""

SHIFT: Final = 60
"""Above these bits of a number is the heading, from 1; 0 is a cell whatever the heading."""

SLIM: Final = 0.2
"""The width over the reach of an outline: below, it is a street's."""


@dataclass(unsafe_hash=True)
class Headings(Grid):
    """The cells of a grid, each by heading: `ID-ne`. Positions are in cells whatever the heading,
    until a slot closes.

    >>> from udp_stream.windows.grid import Hexagons
    >>> grid = Headings(Hexagons(7), 2)
    >>> cell = grid.cell_of("8742d98b6ffffff-sw")
    >>> grid.id_of(cell), grid.fields_of(cell), grid.id_of(grid.whole_of(cell)), str(grid)
    ('8742d98b6ffffff-sw', {'resolution': 7, 'heading': 'SW'}, '8742d98b6ffffff', 'H3 7, 2 headings')
    """

    _of: Grid
    headings: int
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self._of.kind

    @property
    def keys(self) -> dict[str, Any]:
        return self._of.keys | {"headings": self.headings}

    @property
    def policy_keys(self) -> dict[str, Any]:
        return self._of.policy_keys | {"headings": self.headings}

    @property
    def size(self) -> str:
        return f"{self._of.size}, {self.headings} headings"

    @property
    def fineness(self) -> float:
        return self._of.fineness

    @property
    def reach(self) -> float:
        return self._of.reach

    @property
    def digest(self) -> str:
        return f"{self._of.digest}-{self.headings}" if self._of.digest else ""

    @property
    def outlines_by_id(self) -> Mapping[str, str]:
        return {
            f"{id_}-{name.lower()}": f"{outline}-{name}"
            for id_, outline in self._of.outlines_by_id.items()
            for name in NAMES[self.headings]
        }

    @property
    def domain(self) -> Cells:
        return self.split(self._of.domain)

    def split(self, cells: Cells) -> Cells:
        return np.concatenate([headed(cells, at) for at in range(self.headings)])

    def whole_of(self, cell: int) -> int:
        return cell & (1 << SHIFT) - 1

    def cells_of(self, lat: Floats, lon: Floats) -> Cells:
        return self._of.cells_of(lat, lon)

    def id_of(self, cell: int) -> str:
        name = self._name_of(cell)
        id_ = self._of.id_of(self.whole_of(cell))
        return f"{id_}-{name.lower()}" if name else id_

    def cell_of(self, id_: str) -> int:
        whole, _, name = id_.rpartition("-")
        names = NAMES[self.headings]
        if name.upper() not in names:
            return self._of.cell_of(id_)
        return self._beside(self._of.cell_of(whole), names.index(name.upper()) + 1)

    def center_of(self, cell: int) -> tuple[float, float]:
        return self._of.center_of(self.whole_of(cell))

    def rings_of(self, cell: int) -> list[Ring]:
        return self._of.rings_of(self.whole_of(cell))

    def drawn_of(self, cell: int) -> list[Ring]:
        """A lane beside a street, on the right of its heading; the part of another cell that
        the heading points at."""
        rings = self.rings_of(cell)
        name = self._name_of(cell)
        if not name:
            return rings
        middle = np.array(self.center_of(cell))
        scale = np.array([np.cos(np.radians(middle[1])), 1.0])
        flat = [(np.array(ring) - middle) * scale for ring in rings]
        onto = np.array([("E" in name) - ("W" in name), ("N" in name) - ("S" in name)])
        right = np.array([onto[1], -onto[0]])
        width = _width(flat)
        if width < SLIM * max(np.abs(ring).max() for ring in flat):
            moved = [ring + right * width / 2 for ring in flat]
        else:
            edges = [onto] if self.headings == 2 else [onto + right, onto - right]
            moved = [_cut(ring, edges) for ring in flat]
        return [
            [(round(lon, 6), round(lat, 6)) for lon, lat in (ring / scale + middle).tolist()]
            for ring in moved
            if len(ring)
        ]

    def fields_of(self, cell: int) -> Mapping[str, Any]:
        name = self._name_of(cell)
        fields = self._of.fields_of(self.whole_of(cell))
        return {**fields, "heading": name} if name else fields

    def beside(self, cell: int) -> Sequence[int]:
        """Those of the same heading."""
        others = self._of.beside(self.whole_of(cell))
        return [self._beside(other, cell >> SHIFT) for other in others]

    def around(self, cells: Cells) -> Integers:
        found = []
        before = 0
        for same in np.split(cells, np.flatnonzero(np.diff(cells >> SHIFT)) + 1):
            at = self._of.around(same & np.uint64((1 << SHIFT) - 1))
            found.append(np.where(at < 0, -1, at + before))
            before += same.size
        return np.concatenate(found)

    def disk_of(self, cell: int) -> tuple[float, float, float]:
        return self._of.disk_of(self.whole_of(cell))

    def is_own(self, cell: int) -> bool:
        return self._of.is_own(self.whole_of(cell))

    def like(self, cell: int) -> Grid:
        return Headings(self._of.like(self.whole_of(cell)), self.headings)

    def alternatives(self) -> Iterable[Mapping[str, Any]]:
        return [{**keys, "headings": self.headings} for keys in self._of.alternatives()]

    def touched(self, rings: Sequence[Ring], most: int) -> set[int] | None:
        return self._of.touched(rings, most)

    def warnings(self) -> Sequence[str]:
        return self._of.warnings()

    def _name_of(self, cell: int) -> str:
        return ("", *NAMES[self.headings])[cell >> SHIFT]

    def _beside(self, whole: int, heading: int) -> int:
        return whole | heading << SHIFT


def headed(cells: Cells, heading: int | Integers) -> Cells:
    """The numbers of cells with a heading, by its place among the names."""
    return cells | (np.asarray(heading, np.uint64) + np.uint64(1)) << np.uint64(SHIFT)


def by_movement(
    slot: SlotPings, lat: Places, lon: Places, rules: PingRules | None, grid: Grid
) -> SlotPings:
    """A slot of a source partition with headings, where the grid has them, and with speeds by
    movement, where there are rules for them."""
    if not slot.plate.size:
        return slot
    if grid.headings > 1:
        slot, kept = with_headings(slot, lat, lon, grid.headings)
        lat = lat[kept]
        lon = lon[kept]
    return slot if rules is None else with_speeds(slot, lat, lon, rules, grid)


def with_headings(
    slot: SlotPings, lat: Places, lon: Places, headings: int
) -> tuple[SlotPings, Integers]:
    """The slot with a heading in each cell, and the rows of pings that have one, by plate and
    time."""
    plate_time, place = keys_of(slot, lat, lon)
    # By speed last, as in tables: counts never depend on it.
    order = np.lexsort((slot.speed, place, slot.cell, plate_time))
    ordered = plate_time[order]
    rows = order[np.append(True, ordered[1:] != ordered[:-1])]
    pair, _ = pairs(plate_time[rows].astype(np.int64))
    other = rows[pair]
    north, east = offset(lat[other], lon[other], lat[rows], lon[rows])
    at = np.arange(rows.size)
    onward = np.where(pair > at, -1, 1)
    moved = (pair >= 0) & (np.sqrt(north * north + east * east) * KM_PER_UNIT >= MOVED_KM)
    heading = _sector(north * onward, east * onward, headings)
    last = np.maximum.accumulate(np.where(moved, at, -1))
    first = np.minimum.accumulate(np.where(moved, at, rows.size)[::-1])[::-1]
    plate = np.append(slot.plate[rows].astype(np.int64), -1)  # a row behind the last, of no plate
    source = np.where((last >= 0) & (plate[last] == plate[at]), last, first)
    known = plate[source] == plate[at]
    kept = rows[known]
    return replace(
        slot.subset(kept),
        cell=headed(slot.cell[kept], heading[source[known]]),
        repeats=slot.repeats + slot.plate.size - rows.size,
        unpaired=slot.unpaired + rows.size - kept.size,
    ), kept


def _sector(north: Floats, east: Floats, headings: int) -> Integers:
    """The place of each course among the names.

    >>> compass = np.array([1, 1, 0, -1, -1, -1, 0, 1]), np.array([0, 1, 1, 1, 0, -1, -1, -1])
    >>> [[NAMES[many][at] for at in _sector(*compass, many)] for many in NAMES]
    [['NE', 'NE', 'NE', 'NE', 'SW', 'SW', 'SW', 'NE'], ['N', 'N', 'E', 'S', 'S', 'S', 'W', 'N']]
    """
    if headings == 2:
        return np.where(north + east >= 0, 0, 1)
    along = np.where(north >= 0, 0, 2)
    across = np.where(east >= 0, 1, 3)
    return np.where(np.abs(north) >= np.abs(east), along, across)


def _width(rings: Sequence[Floats]) -> float:
    """About the width of what these rings enclose: twice the area over the edge."""
    area = 0.0
    edge = 0.0
    for ring in rings:
        x, y = ring.T
        area += float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2
        edge += float(np.hypot(np.diff(x), np.diff(y)).sum())
    return 2 * area / edge


def _cut(ring: Floats, edges: Sequence[Floats]) -> Floats:
    """The part of a ring on these sides of the origin, closed."""
    for onto in edges:
        side = ring @ onto
        found = []
        for at in range(len(ring) - 1):
            if side[at] >= 0:
                found.append(ring[at])
            if side[at] * side[at + 1] < 0:
                share = side[at] / (side[at] - side[at + 1])
                found.append(ring[at] + share * (ring[at + 1] - ring[at]))
        ring = np.array([*found, *found[:1]]).reshape(-1, 2)
    return ring
