"""The domain of "add-remove": a public list of cells, from a file of cells, a GeoJSON of polygons,
or a GTFS feed.

A polygon has every cell that it touches, so that streets on its border count. A GTFS feed has the
cells of its stops and of the points of its shapes. The digest is of the cells: it does not depend
on the form of the file.
"""

from __future__ import annotations

import zipfile
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from udp_stream.base.arrays import Cells
from udp_stream.base.errors import ConfigError
from udp_stream.base.gtfs import GtfsError, positions
from udp_stream.windows.grid import Grid

CELLS_MAX = 20_000
FILE_MAX = 1 << 24

Box: TypeAlias = tuple[float, float, float, float]

_Position = Annotated[list[float], msgspec.Meta(min_length=2)]
_Rings = Annotated[
    list[Annotated[list[_Position], msgspec.Meta(min_length=4)]], msgspec.Meta(min_length=1)
]


class Polygon(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """A GeoJSON polygon (RFC 7946): an outer ring, then holes, of [longitude, latitude]."""

    coordinates: _Rings

    @property
    def parts(self) -> list[_Rings]:
        return [self.coordinates]


class MultiPolygon(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Several polygons."""

    coordinates: list[_Rings]

    @property
    def parts(self) -> list[_Rings]:
        return self.coordinates


class Feature(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Polygons with properties, which are not read."""

    geometry: Polygon | MultiPolygon

    @property
    def parts(self) -> list[_Rings]:
        return self.geometry.parts


class FeatureCollection(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Several features."""

    features: list[Feature]

    @property
    def parts(self) -> list[_Rings]:
        return [part for feature in self.features for part in feature.parts]


_GEOJSON = msgspec.json.Decoder(Polygon | MultiPolygon | Feature | FeatureCollection)


def read_domain(name: str, grid: Grid, box: Box | None) -> Cells:
    """The cells of a domain, ascending. ConfigError, with the file, the line and the rule, for what
    is none."""
    path = Path(name)
    try:
        if path.is_dir() or zipfile.is_zipfile(path):
            cells = _of_gtfs(path, grid)
        else:
            with path.open("rb") as file:
                text = file.read(FILE_MAX + 1)
            _require(len(text) <= FILE_MAX, path, f"at most {FILE_MAX >> 20} MiB", "more")
            is_json = text.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
            cells = _of_polygons(text, path, grid) if is_json else _of_lines(text, path, grid)
    except OSError as error:
        raise ConfigError(f"hat.domain: {path}: cannot be read ({error.strerror})") from error
    found = np.unique(cells)
    _require(found.size > 0, path, "at least one cell", "none")
    _require(found.size <= CELLS_MAX, path, f"at most {CELLS_MAX:,} cells", f"{found.size:,}")
    if box is not None and not _meets(found, box, grid):
        _require(
            False,
            path,
            f"cells in pings.box {list(box)}",
            f"all cells elsewhere, as {grid.center_of(int(found[0]))}",
        )
    return found


def digest_of(cells: Cells) -> str:
    """A hash of a domain's cells, 16 hexadecimal digits."""
    return blake2b(cells.astype(">u8").tobytes(), digest_size=8).hexdigest()


def _of_lines(text: bytes, path: Path, grid: Grid) -> Cells:
    found = []
    for number, line in enumerate(text.decode("utf-8-sig", errors="replace").splitlines(), 1):
        written = line.partition("#")[0].strip()
        if not written:
            continue
        place = f"{path}, line {number}"
        try:
            cell = grid.cell_of(written)
        except ValueError as error:
            raise ConfigError(f"hat.domain: {place}: {error}") from error
        key, own = next(iter(grid.keys.items()))
        _require(
            grid.is_own(cell),
            place,
            f"a cell of hat.{key} {own}",
            f"{written} of {grid.like(cell)}",
        )
        found.append(cell)
    return np.array(found, dtype=np.uint64)


def _of_polygons(text: bytes, path: Path, grid: Grid) -> Cells:
    rule = "GeoJSON, a Polygon, MultiPolygon, Feature or FeatureCollection of these"
    try:
        shape = _GEOJSON.decode(text.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"hat.domain: {path}: expected {rule}: {error}") from error
    found: set[int] = set()
    for rings in shape.parts:
        for lon, lat, *_ in (position for ring in rings for position in ring):
            on_earth = -180 <= lon <= 180 and -90 <= lat <= 90
            _require(on_earth, path, "[longitude, latitude] in degrees", f"[{lon:g}, {lat:g}]")
        touched = grid.touched([[(lon, lat) for lon, lat, *_ in ring] for ring in rings], CELLS_MAX)
        _require(touched is not None, path, f"at most {CELLS_MAX:,} cells", "more")
        found |= touched or set()
        _require(len(found) <= CELLS_MAX, path, f"at most {CELLS_MAX:,} cells", "more")
    return np.array(sorted(found), dtype=np.uint64)


def _of_gtfs(path: Path, grid: Grid) -> Cells:
    try:
        return grid.cells_of(*positions(path))
    except GtfsError as error:
        raise ConfigError(f"hat.domain: {error}") from error


def _meets(cells: Cells, box: Box, grid: Grid) -> bool:
    """Whether a cell's centre lies in the box, or the cell of the box's centre, in a small one, is
    of the domain."""
    west, south, east, north = box
    middle = grid.cells_of(np.array([(south + north) / 2]), np.array([(west + east) / 2]))
    centers = (grid.center_of(int(cell)) for cell in cells)
    return bool(np.isin(middle, cells)[0]) or any(
        west <= lon <= east and south <= lat <= north for lon, lat in centers
    )


def _require(holds: bool, place: object, rule: str, got: str) -> None:
    if not holds:
        raise ConfigError(f"hat.domain: {place}: expected {rule}, got {got}")
