"""Zones: places that a city has names for. With `settings/grids.py` the only file that imports
shapely."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import log
from typing import Any, Final

import h3.api.basic_int as h3
import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Cells, Floats
from udp_stream.windows.grid import EARTH_KM, NOWHERE, Grid, Ring

ID_MAX: Final = 40
METRES_PER_DEGREE: Final = EARTH_KM * 1000 * np.pi / 180

OVERLAP: Final = 0.01
"""The share of a zone that may lie in zones before it without a warning."""

GAP_M: Final = 5.0
"""Zones that are nearer than this touch: borders are drawn by hand."""


class Zones(Grid):
    """Zones in the order of their file. A position is in the first zone that holds it. A zone's
    number follows from its id. Grids of the same ids and outlines are equal."""

    kind = "zones"

    def __init__(
        self,
        keys: Mapping[str, Any],
        ids: tuple[str, ...],
        names: Mapping[str, str],
        shapes: NDArray[np.object_],
    ) -> None:
        """`keys` of `[hat]` make this grid; `names` are by id, of the zones that have one; `shapes`
        are polygons and multipolygons of shapely."""
        import shapely

        self.ids = ids
        self.names = names
        self.shapes = shapes
        self._keys = keys
        outlines = shapely.to_wkb(shapely.normalize(shapes), byte_order=1)
        self._outlines = {id_: _digest(outline) for id_, outline in zip(ids, outlines, strict=True)}
        self._digest = _digest(msgspec.json.encode(self._outlines))
        self._numbers = np.array([number_of(id_) for id_ in ids], dtype=np.uint64)
        self._at = {number: at for at, number in enumerate(self._numbers.tolist())}
        self._tree = shapely.STRtree(shapes)
        shapely.prepare(shapes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Zones) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def outlines_by_id(self) -> Mapping[str, str]:
        return self._outlines

    @property
    def keys(self) -> dict[str, Any]:
        return dict(self._keys)

    @property
    def policy_keys(self) -> dict[str, Any]:
        return {"zones": self.digest}

    @property
    def size(self) -> str:
        return f"{len(self.ids):,}"

    @property
    def fineness(self) -> float:
        hexagon_km2 = h3.average_hexagon_area(7, "km^2")
        return float(7 - log(float(np.median(self._areas_km2())) / hexagon_km2, 7))

    @property
    def reach(self) -> float:
        """By its area, or by its length from end to end."""
        import shapely

        hexagon_km2 = h3.average_hexagon_area(7, "km^2")
        west, south, east, north = shapely.bounds(self.shapes).T
        wide = (east - west) * np.cos(np.radians((south + north) / 2))
        lengths_km = np.hypot(wide, north - south) * METRES_PER_DEGREE / 1000
        run = np.maximum(self._areas_km2() / hexagon_km2, lengths_km / np.sqrt(hexagon_km2))
        return max(1.0, float(np.median(run)))

    @property
    def domain(self) -> Cells:
        return np.sort(self._numbers)

    def cells_of(self, lat: Floats, lon: Floats) -> Cells:
        import shapely

        position, zone = self._tree.query(shapely.points(lon, lat))
        held = shapely.intersects_xy(self.shapes[zone], lon[position], lat[position])
        first = np.full(lat.size, len(self.ids))
        np.minimum.at(first, position[held], zone[held])
        found: Cells = np.append(self._numbers, np.uint64(NOWHERE))[first]
        return found

    def id_of(self, cell: int) -> str:
        return self.ids[self._at[cell]]

    def cell_of(self, id_: str) -> int:
        cell = number_of(id_)
        if cell not in self._at:
            raise ValueError(f"expected a zone of {self._keys['zones']}, got {id_[:ID_MAX]!r}")
        return cell

    def center_of(self, cell: int) -> tuple[float, float]:
        """The centroid, or where that lies outside another point of the zone."""
        shape = self._shape_of(cell)
        point = shape.centroid
        if not shape.covers(point):
            point = shape.point_on_surface()
        return round(point.x, 6), round(point.y, 6)

    def rings_of(self, cell: int) -> list[Ring]:
        """Outer rings, each before the holes in it, which are clockwise."""
        parts = getattr(self._shape_of(cell), "geoms", [self._shape_of(cell)])
        found = list[Ring]()
        for part in parts:
            turned = part.normalize().reverse()  # RFC 7946, section 3.1.6
            for ring in (turned.exterior, *turned.interiors):
                found.append([(round(lon, 6), round(lat, 6)) for lon, lat, *_ in ring.coords])
        return found

    def fields_of(self, cell: int) -> Mapping[str, Any]:
        id_ = self.id_of(cell)
        return {"name": self.names[id_]} if id_ in self.names else {}

    def beside(self, cell: int) -> Sequence[int]:
        """The zones that touch it, by number."""
        near = self._tree.query(
            self._shape_of(cell), predicate="dwithin", distance=GAP_M / METRES_PER_DEGREE
        )
        found = set(self._numbers[near].tolist()) - {cell}
        return sorted(found)

    def is_own(self, cell: int) -> bool:
        return cell in self._at

    def alternatives(self) -> Iterable[Mapping[str, Any]]:
        hexagons = [{"zones": "", "zone_width": "", "resolution": at} for at in range(6, 10)]
        return [self.keys, *hexagons]

    def touched(self, rings: Sequence[Ring], most: int) -> set[int] | None:
        from shapely import Polygon

        outer, *holes = rings
        near = self._tree.query(Polygon(outer, holes), predicate="intersects")
        return None if near.size > most else set(self._numbers[near].tolist())

    def warnings(self) -> Sequence[str]:
        found = self.overlaps()
        if not found:
            return ()
        named = ", ".join(f"{id_} ({share:.0%})" for id_, share in found[:5])
        more = f" and {len(found) - 5:,} more" if len(found) > 5 else ""
        rule = "a position is in the first zone of the file that holds it"
        return (f"hat.zones: parts of these lie in zones before them: {named}{more}; {rule}",)

    def overlaps(self) -> list[tuple[str, float]]:
        """The zones of which more than a hundredth lies in zones before them, and that share."""
        import shapely

        one, other = self._tree.query(self.shapes, predicate="overlaps")
        inside, holder = self._tree.query(self.shapes, predicate="covered_by")
        later, earlier = np.append(one, inside), np.append(other, holder)
        before = earlier < later
        later, earlier = later[before], earlier[before]
        shared = shapely.area(shapely.intersection(self.shapes[later], self.shapes[earlier]))
        lost = np.bincount(later, shared, len(self.ids)) / shapely.area(self.shapes)
        return [
            (self.ids[at], min(1.0, float(lost[at])))
            for at in np.flatnonzero(lost > OVERLAP).tolist()
        ]

    def _shape_of(self, cell: int) -> Any:
        return self.shapes[self._at[cell]]

    def _areas_km2(self) -> Floats:
        import shapely

        lat = shapely.get_y(shapely.centroid(self.shapes))
        degrees_km = METRES_PER_DEGREE / 1000
        found: Floats = shapely.area(self.shapes) * degrees_km**2 * np.cos(np.radians(lat))
        return found


def number_of(id_: str) -> int:
    """The number of a zone: 60 bits of a hash of its id."""
    return int.from_bytes(blake2b(id_.encode(), digest_size=8).digest()) >> 4


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=8).hexdigest()
