"""Grids by the key of `[hat]` that asks for them, and zones as a file has them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.errors import ConfigError, needs
from udp_stream.windows.grid import Grid, Hexagons
from udp_stream.windows.zones import ID_MAX, METRES_PER_DEGREE, Zones

if TYPE_CHECKING:
    from shapely import Geometry

GRIDS: dict[str, Callable[[Any], Grid]] = {
    "zones": lambda hat: read_zones(hat.zones, hat.zone_width, hat.zone_name),
    "resolution": lambda hat: Hexagons(hat.resolution),
}
"""By the key of `[hat]` that asks for it: a grid made of that section. The first key that is set
counts, and the last one is the default."""

ZONES_MAX = 20_000
FILE_MAX = 1 << 26
WIDTH_MAX_M = 2000


class _Feature(msgspec.Struct, frozen=True):
    geometry: msgspec.Raw
    type: Literal["Feature"] = "Feature"
    properties: dict[str, Any] | None = None
    id: str | int | None = None


class _Collection(msgspec.Struct, frozen=True):
    features: list[_Feature]
    type: Literal["FeatureCollection"] = "FeatureCollection"


class _Shape(msgspec.Struct, frozen=True):
    type: str = ""


def read_zones(name: str, width: str = "", name_key: str = "") -> Zones:
    """The zones of a GeoJSON FeatureCollection of polygons, and of lines that are `width` wide,
    such as "40m". ConfigError, with the file, the zone and the rule, for what is none."""
    with needs("geometry of hat.zones", "zones"):
        import shapely  # noqa: F401 (so that its absence is said before anything else)
    width_m = _metres(width)
    path = Path(name)
    features = _features(path)
    named = [_named(feature, name_key, path, at) for at, feature in enumerate(features)]
    ids = tuple(_id_of(called) for called, _ in named)
    _require_unique(ids, named, path)
    shapes = _shapes(features, [called for called, _ in named], width_m, path)
    asked = {"zones": name, "zone_width": width, "zone_name": name_key}
    keys = {key: value for key, value in asked.items() if value}
    names = {id_: called for id_, (called, is_name) in zip(ids, named, strict=True) if is_name}
    return Zones(keys, ids, names, shapes)


def _metres(width: str) -> float:
    """
    >>> _metres("40m"), _metres("")
    (40.0, 0.0)
    """
    if not width:
        return 0.0
    found = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?) ?m", width)
    metres = float(found[1]) if found else 0.0
    if not 1 <= metres <= WIDTH_MAX_M:
        rule = f'the whole width in metres, such as "40m", of 1 to {WIDTH_MAX_M:,}'
        raise ConfigError(f"hat.zone_width: expected {rule}, got {width!r}")
    return metres


def _fail(path: Path, rule: str, got: str) -> ConfigError:
    return ConfigError(f"hat.zones: {path}: expected {rule}, got {got}")


def _features(path: Path) -> list[_Feature]:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"hat.zones: {path}: cannot be read ({error.strerror})") from error
    if len(text) > FILE_MAX:
        raise _fail(path, f"at most {FILE_MAX >> 20} MiB", "more")
    rule = "a GeoJSON FeatureCollection of Polygon, MultiPolygon or LineString"
    try:
        found = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=_Collection).features
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"hat.zones: {path}: expected {rule}: {error}") from error
    if not found:
        raise _fail(path, "at least one zone", "none")
    if len(found) > ZONES_MAX:
        raise _fail(path, f"at most {ZONES_MAX:,} zones", f"{len(found):,}")
    return found


def _named(feature: _Feature, name_key: str, path: Path, at: int) -> tuple[str, bool]:
    """A feature's name, or its id, and whether it is a name."""
    properties = feature.properties or {}
    tried = (name_key,) if name_key else ("name", "Name")
    for key in tried:
        value = properties.get(key)
        if isinstance(value, str | int) and str(value).strip():
            return str(value).strip(), True
    value = None if name_key else properties.get("id", feature.id)
    if isinstance(value, str | int) and str(value).strip():
        return str(value).strip(), False
    known = ", ".join(sorted(properties)[:8]) or "no property"
    wanted = name_key or "name, Name or id"
    raise _fail(
        path, f"a name in {wanted} of each feature (hat.zone_name)", f"{known} in feature {at + 1}"
    )


def _id_of(name: str) -> str:
    """An id of a zone's name: [a-z0-9-], at most 40 characters. Where letters are lost it ends with
    a hash of the name.

    >>> _id_of("Ring Road (North)"), _id_of("Straße 9"), _id_of("રિંગ રોડ")
    ('ring-road-north', 'strasse-9', 'zone-b24702ff')
    """
    plain = unicodedata.normalize("NFKD", name.casefold())
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    slug = re.sub("[^a-z0-9]+", "-", letters).strip("-")
    is_whole = not any(letter.isalnum() and not letter.isascii() for letter in letters)
    if is_whole and 0 < len(slug) <= ID_MAX:
        return slug
    ending = blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{slug[: ID_MAX - 9].strip('-') or 'zone'}-{ending}"


def _require_unique(ids: Sequence[str], named: Sequence[tuple[str, bool]], path: Path) -> None:
    id_, count = Counter(ids).most_common(1)[0]
    if count > 1:
        names = [
            called for called, own in zip((one for one, _ in named), ids, strict=True) if own == id_
        ]
        got = f"{' and '.join(map(repr, names[:3]))}, which are both {id_!r}"
        raise _fail(path, "another name for each zone", got)


def _shapes(
    features: Sequence[_Feature], names: Sequence[str], width_m: float, path: Path
) -> NDArray[np.object_]:
    """A polygon or multipolygon of each feature, within [-180, 180]."""
    import shapely

    texts = np.array([bytes(feature.geometry) for feature in features], dtype=object)
    shapes = shapely.from_geojson(texts, on_invalid="ignore")
    types = shapely.get_type_id(shapes)
    is_line = np.isin(types, (1, 5))
    is_area = np.isin(types, (3, 6))
    for at in np.flatnonzero(~is_line & ~is_area | shapely.is_empty(shapes)).tolist():
        kind = _kind_of(texts[at])
        rule = "a Polygon, MultiPolygon or LineString"
        if kind in rule:
            rule = "closed rings of at least four positions, and lines of two"
        raise _fail(path, rule, f"{kind} as {names[at]!r}")
    west, south, east, north = shapely.bounds(shapes).T
    off = (np.abs([west, east]).max(axis=0) > 180) | (np.abs([south, north]).max(axis=0) > 90)
    for at in np.flatnonzero(off).tolist():
        got = f"{west[at]:g}, {south[at]:g} in {names[at]!r}"
        rule = "longitude and latitude in degrees (EPSG:4326; another projection is exported anew)"
        raise _fail(path, rule, got)
    if is_line.any() and not width_m:
        at = int(np.flatnonzero(is_line)[0])
        raise _fail(
            path, 'hat.zone_width, such as "40m", for lines', f"none, and {names[at]!r} is a line"
        )
    shapes = shapely.force_2d(shapes)
    for at in np.flatnonzero(east - west > 180).tolist():  # drawn across the 180th meridian
        shapes[at] = shapely.transform(
            shapes[at], lambda places: places + (places < 0) * (360.0, 0.0)
        )
    for at in np.flatnonzero(~shapely.is_valid(shapes) & is_area).tolist():
        why = shapely.is_valid_reason(shapes[at])
        raise _fail(path, "rings that do not cross themselves", f"{why} in {names[at]!r}")
    for at in np.flatnonzero(is_line).tolist():
        shapes[at] = _buffered(shapes[at], width_m / 2)
    west, _, east, _ = shapely.bounds(shapes).T
    for at in np.flatnonzero((west < -180) | (east > 180)).tolist():
        shapes[at] = _on_earth(shapes[at])
    found: NDArray[np.object_] = shapes
    return found


def _kind_of(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Shape).type or "no geometry"
    except msgspec.DecodeError:
        return "no geometry"


def _buffered(line: Geometry, metres: float) -> Geometry:
    """All within so many metres of a line, on the plane that touches the earth at its middle."""
    import shapely

    _, south, _, north = shapely.bounds(line)
    scale = METRES_PER_DEGREE * np.array([np.cos(np.radians((south + north) / 2)), 1.0])
    flat = shapely.transform(line, lambda places: places * scale)
    return shapely.transform(shapely.buffer(flat, metres), lambda places: places / scale)


def _on_earth(shape: Geometry) -> Geometry:
    """The shape in two parts at the 180th meridian, which none may cross (RFC 7946, 3.1.9)."""
    import shapely

    parts = []
    for turn in (-360, 0, 360):
        part = shapely.intersection(shape, shapely.box(turn - 180, -90, turn + 180, 90))
        if shapely.area(part):
            parts.append(shapely.transform(part, lambda places, turn=turn: places - (turn, 0)))
    return shapely.union_all(parts)
