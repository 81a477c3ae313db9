"""Names of cells, and the lines of the network, from a timetable."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from math import atan2, cos, degrees, radians
from typing import NamedTuple

import msgspec
import numpy as np

from udp_stream.base.gtfs import Network, Stop
from udp_stream.dashboard.snapshot import CompressedText, compressed
from udp_stream.export_formats import cell_geometry
from udp_stream.windows.grid import HEXAGONS, Grid

COMPASS = (
    "east",
    "north-east",
    "north",
    "north-west",
    "west",
    "south-west",
    "south",
    "south-east",
)
MIDDLE = 0.2  # of the farthest of a name's cells: a nearer cell is in the middle of them
ROUTES = 2  # that are named with a cell
DIGITS = 5  # of a degree: a metre


class CellPlace(NamedTuple):
    """Where a cell is, and its busiest routes."""

    name: str
    routes: tuple[str, ...]


@dataclass
class Places:
    """The places of cells: each has the name of its most served stop, stations first. Of several
    cells with the same name each has a second part; a cell without a stop is named after a cell
    beside it.

    >>> Places(Network([Stop("Main St", 21.178, 72.847, False, Counter({"7": 90.0}))], [])).name_of("8742d98b6ffffff")
    'Main St'
    """

    network: Network
    grid: Grid = HEXAGONS

    def __post_init__(self) -> None:
        self._served = cache(self._served_at)

    def place_of(self, cell: str) -> CellPlace | None:
        """Place of a cell, with its heading; None where no stop is in the cell or beside it."""
        number = self.grid.cell_of(cell)
        place = self._place_of(self.grid.whole_of(number))
        heading = self.grid.fields_of(number).get("heading")
        return place._replace(name=f"{place.name}, {heading}-bound") if place and heading else place

    def _place_of(self, number: int) -> CellPlace | None:
        grid = self.grid
        served = self._served(grid.like(number))
        if own := grid.fields_of(number).get("name"):
            return CellPlace(own, served[number][0].routes if number in served else ())
        if number in served:
            return served[number][0]
        beside = [(served[other][1], other) for other in grid.beside(number) if other in served]
        if not beside:
            return None
        other = max(beside)[1]
        name, routes = served[other][0]
        way = _direction(grid.center_of(other), grid.center_of(number))
        return CellPlace(f"{way.capitalize()} of {name}", routes)

    def name_of(self, cell: str) -> str:
        """Name of a cell; empty where there is none."""
        place = self.place_of(cell)
        return place.name if place else ""

    def geojson(self, cells: Iterable[str]) -> tuple[CompressedText, int]:
        """Cells with their names, and the lines, as a FeatureCollection; and how many cells have a
        name. Where none has, the collection is empty: the timetable is of another place."""
        features = []
        for cell in sorted(cells):
            place = self.place_of(cell)
            if place:
                said = {"cell": cell, "name": place.name, "routes": place.routes}
                features.append(_feature(cell_geometry(cell, self.grid), said))
        return collection([*features, *self._lines] if features else []), len(features)

    @cached_property
    def _lines(self) -> list[bytes]:
        lines: dict[str, list[list[list[float]]]] = defaultdict(list)
        for route, points in self.network.lines:
            lines[route].append(np.round(points, DIGITS).tolist())
        return [
            _feature({"type": "MultiLineString", "coordinates": parts}, {"route": route})
            for route, parts in lines.items()
        ]

    def _served_at(self, grid: Grid) -> dict[int, tuple[CellPlace, float]]:
        """Each cell that has a named stop, and its trips a day."""
        stops = [stop for stop in self.network.stops if stop.name]
        lat, lon = (
            np.array([getattr(stop, of) for stop in stops], dtype=np.float64)
            for of in ("lat", "lon")
        )
        by_cell: dict[int, list[Stop]] = defaultdict(list)
        for cell, stop in zip(grid.cells_of(lat, lon).tolist(), stops, strict=True):
            by_cell[cell].append(stop)
        by_name: dict[str, list[int]] = defaultdict(list)
        found = dict[int, tuple[CellPlace, float]]()
        for cell, here in sorted(by_cell.items()):
            first = max(here, key=lambda stop: (stop.is_station, stop.routes.total(), stop.name))
            routes = Counter[str]()
            for stop in here:
                routes.update(stop.routes)
            named = tuple(
                route
                for route, _ in sorted(
                    routes.items(), key=lambda counted: (-counted[1], counted[0])
                )[:ROUTES]
            )
            found[cell] = CellPlace(first.name, named), routes.total()
            by_name[first.name.casefold()].append(cell)
        for cells in by_name.values():
            if len(cells) > 1:
                for cell, part in zip(cells, _parts(cells, grid), strict=True):
                    (name, routes_), trips = found[cell]
                    found[cell] = CellPlace(f"{name}, {part}", routes_), trips
        return found


def collection(features: Iterable[bytes] = ()) -> CompressedText:
    """A GeoJSON FeatureCollection, a feature a line."""
    return compressed(
        [b'{"type":"FeatureCollection","features":[\n', b",\n".join(features), b"\n]}\n"]
    )


def _feature(geometry: object, properties: object) -> bytes:
    return msgspec.json.encode({"type": "Feature", "geometry": geometry, "properties": properties})


def _parts(cells: list[int], grid: Grid) -> list[str]:
    """Suffixes that tell cells of the same name apart: where they lie among themselves."""
    centres = np.array([grid.center_of(cell) for cell in cells])
    middle = centres.mean(axis=0)
    apart = np.hypot(*((centres - middle) * (cos(radians(middle[1])), 1.0)).T)
    parts = [
        "middle" if off < MIDDLE * apart.max() else _direction(middle, centre)
        for centre, off in zip(centres, apart.tolist(), strict=True)
    ]
    often = Counter(parts)
    seen = Counter[str]()
    for at, part in enumerate(parts):
        seen[part] += 1
        if often[part] > 1:
            parts[at] = f"{part} {seen[part]}"
    return parts


def _direction(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Compass direction from a (lon, lat) to another."""
    east = ((end[0] - start[0] + 180) % 360 - 180) * cos(radians(start[1]))
    return COMPASS[round(degrees(atan2(end[1] - start[1], east)) / 45) % 8]
