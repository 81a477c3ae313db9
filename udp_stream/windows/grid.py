"""Grids: the cells that positions are in. H3's hexagons; the only file that imports h3."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, ClassVar, TypeAlias

import h3.api.basic_int as h3
import numpy as np

from udp_stream.base.arrays import Cells, Floats, Integers
from udp_stream.ledger.ids import CELL_ID

Ring: TypeAlias = list[tuple[float, float]]
"""Corners as (lon, lat) in degrees, to 6 decimals (0.1 m), the first again at the end."""

EARTH_KM = 6371.0

NOWHERE = 1 << 63
"""The number of no cell."""


class Grid(ABC):
    """The cells of a deployment.

    In columns a cell is a number below 2^60 (2^63 with `headings`); elsewhere it is its id, a match of `id_form`. HATs are
    charged, drawn and recorded by ascending numbers, so numbers follow from ids alone. A grid is a
    value: frozen and hashable.
    """

    kind: str
    id_form: ClassVar[str] = CELL_ID
    headings: int = 1

    @property
    @abstractmethod
    def keys(self) -> dict[str, Any]:
        """The keys of `[hat]` that make this grid, with values for a policy."""

    @property
    def policy_keys(self) -> dict[str, Any]:
        """The same as a policy has them, which no path is part of."""
        return self.keys

    @property
    def domain(self) -> Cells:
        """All cells, ascending, where they are listed; else empty."""
        return np.empty(0, np.uint64)

    @property
    @abstractmethod
    def size(self) -> str:
        """The difference between grids of this kind, in a table."""

    @property
    @abstractmethod
    def fineness(self) -> float:
        """The resolution of H3 at which hexagons have about this size."""

    @property
    def reach(self) -> float:
        """How many hexagons of H3 7 a cell of the grid runs through, where it is larger than its
        fineness tells; else 1. Its mean speed is one of so many places, so cells are more alike."""
        return 1.0

    @abstractmethod
    def cells_of(self, lat: Floats, lon: Floats) -> Cells:
        """The cell of each position (degrees, WGS 84); `NOWHERE` for none."""

    @abstractmethod
    def id_of(self, cell: int) -> str:
        """The cell in records, ids and files."""

    @abstractmethod
    def cell_of(self, id_: str) -> int:
        """Undo `id_of`; ValueError for what is no id of a cell."""

    @abstractmethod
    def center_of(self, cell: int) -> tuple[float, float]:
        """(lon, lat) of a cell's centre, in GeoJSON's order, to 6 decimals (0.1 m)."""

    @abstractmethod
    def rings_of(self, cell: int) -> list[Ring]:
        """The outline of a cell: the outer ring of each part, counter-clockwise, and behind it the
        holes in it, clockwise."""

    def drawn_of(self, cell: int) -> list[Ring]:
        """The outline on a map, where several cells may have the same."""
        return self.rings_of(cell)

    def split(self, cells: Cells) -> Cells:
        """The cells of these places, ascending: with headings several of each."""
        return cells

    def whole_of(self, cell: int) -> int:
        """The cell whatever the heading."""
        return cell

    @abstractmethod
    def touched(self, rings: Sequence[Ring], most: int) -> set[int] | None:
        """The cells that a polygon touches: an outer ring, then holes. None for more than `most`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.size}"

    @property
    def digest(self) -> str:
        """A hash of all outlines, where they may change; else empty."""
        return ""

    @property
    def outlines_by_id(self) -> Mapping[str, str]:
        """A hash of each cell's outline, where it may change; else empty."""
        return {}

    def warnings(self) -> Sequence[str]:
        """Sentences about cells that may not be as they are meant."""
        return ()

    def fields_of(self, cell: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Fields of a HAT's record that this grid alone has."""
        return {}

    def beside(self, cell: int) -> Sequence[int]:  # noqa: ARG002
        """The cell's neighbours, without itself."""
        return ()

    def around(self, cells: Cells) -> Integers:
        """Positions, among these cells (ascending), of each cell's neighbours: shape (cells, 6), in
        the order around the cell; -1 where there is none. Without any, what a forecast reads of
        neighbours is neutral."""
        return np.full((cells.size, 6), -1)

    def disk_of(self, cell: int) -> tuple[float, float, float]:
        """(lat, lon) of a cell's centre, and the radius in km of a disk around it that holds the
        cell."""
        lon, lat = self.center_of(cell)
        corners = [corner for ring in self.rings_of(cell) for corner in ring]
        # A hundredth more: edges may be drawn on another plane than disks.
        reach = max(h3.great_circle_distance((lat, lon), corner[::-1]) for corner in corners)
        return lat, lon, 1.01 * reach

    def is_own(self, cell: int) -> bool:  # noqa: ARG002
        """Whether `cells_of` may give this cell."""
        return True

    def like(self, cell: int) -> Grid:  # noqa: ARG002
        """The grid that a cell of a record is of, which other settings may have made."""
        return self

    def alternatives(self) -> Iterable[Mapping[str, Any]]:
        """Keys of `[hat]` of grids to be compared with this one, itself among them."""
        return [self.keys]


@dataclass(frozen=True)
class Hexagons(Grid):
    """H3 at a resolution. All but `cells_of` and `touched` take cells of any resolution.

    >>> grid = Hexagons(7)
    >>> cell = grid.cell_of("8742d98b6ffffff")
    >>> grid.center_of(cell), len(grid.beside(cell)), str(grid.like(cell))
    ((72.84719, 21.178259), 6, 'H3 7')
    """

    kind = "H3"
    id_form = "[0-9a-f]{15}"
    resolution: int = 7

    @property
    def size(self) -> str:
        return str(self.resolution)

    @property
    def keys(self) -> dict[str, Any]:
        return {"resolution": self.resolution}

    @property
    def fineness(self) -> int:
        return self.resolution

    def cells_of(self, lat: Floats, lon: Floats) -> Cells:
        found = map(h3.latlng_to_cell, lat.tolist(), lon.tolist(), repeat(self.resolution))
        return np.fromiter(found, dtype=np.uint64, count=lat.size)

    def id_of(self, cell: int) -> str:
        return _id_of(cell)

    def cell_of(self, id_: str) -> int:
        """
        >>> Hexagons().cell_of("97608c4d2ffffff")
        Traceback (most recent call last):
        ValueError: expected an H3 cell of 15 hexadecimal digits, got '97608c4d2ffffff'
        """
        if (cell := _cell_of(id_)) is None:
            raise ValueError(f"expected an H3 cell of 15 hexadecimal digits, got {id_[:40]!r}")
        return cell

    def center_of(self, cell: int) -> tuple[float, float]:
        return _center_of(cell)

    def rings_of(self, cell: int) -> list[Ring]:
        """One ring, or two where the cell lies on both sides of the 180th meridian, which no ring
        may cross (RFC 7946, section 3.1.9). A cell on a pole is not cut."""
        parts = _parts([(lon, lat) for lat, lon in h3.cell_to_boundary(cell)])
        rounded = [[(round(lon, 6), round(lat, 6)) for lon, lat in part] for part in parts]
        return [[*ring, ring[0]] for ring in rounded]

    def fields_of(self, cell: int) -> Mapping[str, Any]:
        return {"resolution": h3.get_resolution(cell)}

    def beside(self, cell: int) -> Sequence[int]:
        """Six in the order around it. Of H3's pentagons five; there, and next to them, in any
        order."""
        return _beside(cell)

    def around(self, cells: Cells) -> Integers:
        # A pentagon has five: the cell itself fills up, and is left out below.
        around = [(*_beside(cell), *[cell] * 6)[:6] for cell in cells.tolist()]
        wanted = np.array(around, dtype=np.uint64).reshape(cells.size, 6)
        at = np.minimum(np.searchsorted(cells, wanted), max(0, cells.size - 1))
        return np.where((cells[at] == wanted) & (wanted != cells[:, None]), at, -1)

    def disk_of(self, cell: int) -> tuple[float, float, float]:
        return _disk_of(cell)

    def is_own(self, cell: int) -> bool:
        return bool(h3.get_resolution(cell) == self.resolution)

    def like(self, cell: int) -> Hexagons:
        return Hexagons(h3.get_resolution(cell))

    def alternatives(self) -> Iterable[Mapping[str, Any]]:
        at = self.resolution
        return [{"resolution": one} for one in range(max(0, at - 1), min(15, at + 1) + 1)]

    def touched(self, rings: Sequence[Ring], most: int) -> set[int] | None:
        """None as well if a box around the polygon has over fifty times `most`. A ring whose
        longitudes are over 180 degrees apart crosses the antimeridian."""
        outer, *holes = [[(lat, lon) for lon, lat in ring] for ring in rings]
        lat, lon = np.array(outer).T
        width = np.ptp(lon) if np.ptp(lon) <= 180 else np.ptp(lon % 360)
        around_km2 = np.ptp(np.sin(np.radians(lat))) * np.radians(width) * EARTH_KM**2
        if around_km2 > 50 * most * h3.average_hexagon_area(self.resolution, "km^2"):
            return None
        polygon = h3.LatLngPoly(outer, *holes)
        found = list[int]()
        # Coarse cells first: a number of cells bounds the work for the next.
        for finer in range(self.resolution + 1):
            found = h3.h3shape_to_cells_experimental(polygon, finer, "overlap")
            if len(found) > most:
                return None
        return set(found)


HEXAGONS = Hexagons()


def is_hole(ring: Ring) -> bool:
    """Whether a ring of `rings_of` is clockwise.

    >>> is_hole([(0, 0), (1, 0), (1, 1), (0, 0)]), is_hole([(0, 0), (1, 1), (1, 0), (0, 0)])
    (False, True)
    """
    lon, lat = np.array(ring).T
    return bool(np.sum(lon[:-1] * lat[1:] - lon[1:] * lat[:-1]) < 0)


def outlines_of(ids: Sequence[str]) -> list[Floats]:
    """The closed loops around H3 cells of a single resolution, holes among them: rows of (latitude,
    longitude) in degrees. They are a query's region, whatever the grid.

    Raises ValueError for no cells, for what is no cell, and for cells of several resolutions.
    """
    cells = {HEXAGONS.cell_of(id_) for id_ in ids}
    if len({h3.get_resolution(cell) for cell in cells}) != 1:
        raise ValueError(f"expected H3 cells of one resolution, got {len(ids)} cells")
    shape = h3.cells_to_h3shape(list(cells))
    polygons = [shape] if isinstance(shape, h3.LatLngPoly) else list(shape)
    return [np.array(loop) for polygon in polygons for loop in (polygon.outer, *polygon.holes)]


@lru_cache(maxsize=2**16)
def _id_of(cell: int) -> str:
    return str(h3.int_to_str(cell))


@lru_cache(maxsize=2**16)
def _cell_of(id_: str) -> int | None:
    try:
        cell = int(id_, 16)
    except ValueError:
        return None
    return cell if 0 < cell < 1 << 63 and h3.is_valid_cell(cell) else None


@lru_cache(maxsize=2**16)
def _center_of(cell: int) -> tuple[float, float]:
    lat, lon = h3.cell_to_latlng(cell)
    return round(lon, 6), round(lat, 6)


@lru_cache(maxsize=2**16)
def _disk_of(cell: int) -> tuple[float, float, float]:
    centre = h3.cell_to_latlng(cell)
    # A hundredth more: the edges between the corners are drawn on another plane.
    return *centre, 1.01 * max(
        h3.great_circle_distance(centre, corner) for corner in h3.cell_to_boundary(cell)
    )


@lru_cache(maxsize=100_000)
def _beside(cell: int) -> tuple[int, ...]:
    return tuple(other for other in h3.grid_disk(cell, 1) if other != cell)


def _parts(corners: Ring) -> list[Ring]:
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


def _cut(corners: Ring) -> Ring:
    found = []
    for (lon, lat), (next_lon, next_lat) in zip(corners, [*corners[1:], corners[0]], strict=True):
        found.append((lon, lat))
        if (lon - 180) * (next_lon - 180) < 0:
            found.append((180.0, lat + (next_lat - lat) * (180 - lon) / (next_lon - lon)))
    return found
