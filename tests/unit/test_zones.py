"""Zones of a file: which are read, which are refused and why, and which zone a position is in."""

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from shapely.geometry import Polygon, shape

from tests.runtime.harness import fleet_log
from udp_stream.base.errors import ConfigError, PrivacyRefused
from udp_stream.export_formats import cell_geometry
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import require_unmoved
from udp_stream.release.rehearsal import AveragePrior, RehearsedCity
from udp_stream.settings.grids import read_zones
from udp_stream.testing import a_context
from udp_stream.windows.grid import NOWHERE, Hexagons
from udp_stream.windows.tables import SlotCounts
from udp_stream.windows.zones import ID_MAX

DAY = "1d from 2024-01-08T00:00:00+05:30 in rho"


def square(west, south, side=1.0):
    east, north = west + side, south + side
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def feature(name, *rings, kind="Polygon", key="name", **more):
    shape_of = {"type": kind, "coordinates": rings if kind != "LineString" else rings[0]}
    return {"type": "Feature", "properties": {key: name}, "geometry": shape_of} | more


@pytest.fixture
def zones(tmp_path):
    def made(*features, **how):
        file = tmp_path / "zones.geojson"
        file.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
        return read_zones(str(file), **how)

    return made


def ids_at(grid, *places):
    lon, lat = np.array(places, dtype=float).T
    return [
        None if cell == NOWHERE else grid.id_of(cell) for cell in grid.cells_of(lat, lon).tolist()
    ]


def test_a_position_is_in_the_first_zone_that_holds_it(zones):
    grid = zones(feature("Old town", square(72, 21)), feature("City", square(71, 20, 3)))
    assert ids_at(grid, (72.5, 21.5), (71.5, 20.5), (70, 20)) == ["old-town", "city", None]
    other = zones(feature("City", square(71, 20, 3)), feature("Old town", square(72, 21)))
    assert ids_at(other, (72.5, 21.5)) == ["city"] and grid != other
    assert other.warnings() and not zones(feature("City", square(71, 20, 3))).warnings()
    (text,) = other.warnings()
    assert "old-town (100%)" in text


def test_holes_and_parts(zones):
    ring, hole = square(70, 20, 4), square(71, 21, 1)[::-1]
    grid = zones(
        feature("Around", ring, hole),
        feature("Two", [square(80, 20)], [square(82, 20)], kind="MultiPolygon"),
    )
    assert ids_at(grid, (70.5, 20.5), (71.5, 21.5), (80.5, 20.5), (82.5, 20.5), (81.5, 20.5)) == [
        "around", None, "two", "two", None,
    ]  # fmt: skip
    around, two = (cell_geometry(id_, grid) for id_ in ("around", "two"))
    assert around["type"] == "Polygon" and len(around["coordinates"]) == 2
    assert shape(around).equals(Polygon(ring, [hole])) and shape(around).exterior.is_ccw
    assert two["type"] == "MultiPolygon" and shape(two).area == pytest.approx(2)
    lon, lat = grid.center_of(grid.cell_of("around"))
    assert ids_at(grid, (lon, lat)) == ["around"]


def test_lines_are_as_wide_as_asked(zones):
    line = [[72.8, 21.2], [72.9, 21.2]]
    grid = zones(feature("Ring Road", line, kind="LineString"), width="40m")
    north = 19 / 111_195
    assert ids_at(grid, (72.85, 21.2 + north), (72.85, 21.2 - north), (72.85, 21.2 + 1.2 * north)) == [
        "ring-road", "ring-road", None,
    ]  # fmt: skip
    east = 19 / (111_195 * np.cos(np.radians(60)))
    upright = zones(feature("N", [[10, 60], [10, 60.1]], kind="LineString"), width="40m")
    assert ids_at(upright, (10 + east, 60.05), (10 + 1.2 * east, 60.05)) == ["n", None]


def test_neighbours_are_the_zones_that_touch(zones):
    grid = zones(*(feature(f"Z{at}", square(at, 0)) for at in (0, 1, 3)))
    one, two, far = (grid.cell_of(id_) for id_ in ("z0", "z1", "z3"))
    assert list(grid.beside(one)) == [two] and list(grid.beside(far)) == []
    assert (grid.around(np.array(sorted([one, two]), np.uint64)) == -1).all()
    assert grid.touched([square(0.5, 0.5, 1)], 9) == {one, two}
    assert grid.touched([square(0.5, 0.5, 1)], 1) is None


def test_the_180th_meridian(zones):
    split = feature("Taveuni", square(179, -17, 2.0))
    split["geometry"]["coordinates"] = [
        [[179, -17], [-179, -17], [-179, -15], [179, -15], [179, -17]]
    ]
    road = [[179.9, -16], [180, -16]]
    grid = zones(split, feature("Road", road, kind="LineString"), width="2000m")
    assert ids_at(grid, (179.5, -16.5), (-179.5, -16.5), (0, -16.5)) == ["taveuni", "taveuni", None]
    corners = [
        corner for cell in grid.domain.tolist() for ring in grid.rings_of(cell) for corner in ring
    ]
    assert all(-180 <= lon <= 180 for lon, _ in corners)
    assert len(grid.rings_of(grid.cell_of("taveuni"))) == 2
    alone = zones(feature("Road", road, kind="LineString"), width="2000m")
    assert ids_at(alone, (-179.995, -16)) == ["road"]


NAMES = {
    "MG Road": "mg-road",
    "  St. Stephen's Green  ": "st-stephen-s-green",
    "Straße des 17. Juni": "strasse-des-17-juni",
    "Avenida Brasília": "avenida-brasilia",
}


def test_ids_are_made_of_names_in_any_script(zones):
    grid = zones(*(feature(name, square(at, 0)) for at, name in enumerate(NAMES)))
    assert list(grid.ids) == [*NAMES.values()]
    others = ["રિંગ રોડ", "રિંગ રોડ 2", "環状線", "Кольцевая улица", "x" * 60, "x" * 61]
    found = zones(*(feature(name, square(at, 0)) for at, name in enumerate(others))).ids
    assert len({*found}) == len(others)
    assert all(len(id_) <= ID_MAX and id_.isascii() and id_.strip("-") == id_ for id_ in found)


def test_names_come_from_the_property_that_is_asked_for(zones):
    for given in (
        feature("A", square(0, 0), key="Name"),
        feature("A", square(0, 0), key="label") | {"properties": {"label": "A", "name": "B"}},
    ):
        how = {"name_key": "label"} if "label" in given["properties"] else {}
        grid = zones(given, **how)
        assert grid.ids == ("a",) and grid.fields_of(grid.cell_of("a")) == {"name": "A"}
    numbered = zones(feature(7, square(0, 0), key="id"))
    assert numbered.ids == ("7",) and numbered.fields_of(numbered.cell_of("7")) == {}
    assert zones(feature("", square(0, 0), id="x9")).ids == ("x9",)


BOWTIE = [[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]
BAD = {
    "crossing": ([feature("Bow", BOWTIE)], r"cross themselves, got .* in 'Bow'"),
    "projected": ([feature("P", square(250_000, 2_350_000, 100))], r"degrees .*got 250000, .*'P'"),
    "empty": ([], "at least one zone, got none"),
    "a point": ([{"type": "Feature", "properties": {"name": "X"}, "geometry": {"type": "Point", "coordinates": [1, 2]}}],
                r"LineString, got Point as 'X'"),
    "no geometry": ([{"type": "Feature", "properties": {"name": "X"}, "geometry": None}], "got no geometry as 'X'"),
    "an open ring": ([feature("X", [[0, 0], [1, 0]])], "at least four positions"),
    "the same id": ([feature("Ring Road", square(0, 0)), feature("ring road", square(2, 0))],
                    "'Ring Road' and 'ring road', which are both 'ring-road'"),
    "no name": ([feature("X", square(0, 0), key="label")], "name, Name or id of each feature .*got label in feature 1"),
    "a line": ([feature("X", [[0, 0], [1, 0]], kind="LineString")], r"hat\.zone_width, such as \"40m\""),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_none_is_refused_in_a_sentence(zones, case):
    features, words = BAD[case]
    with pytest.raises(ConfigError, match=rf"^hat\.zones: .*zones\.geojson: expected .*{words}"):
        zones(*features)


@pytest.mark.parametrize("width", ["40", "0m", "40km", "5000m", "-3m"])
def test_widths_that_are_none(zones, width):
    with pytest.raises(ConfigError, match=r"^hat\.zone_width: expected .*metres.*got '"):
        zones(feature("X", square(0, 0)), width=width)


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("ring road")
    with pytest.raises(ConfigError, match=r"hat\.zones: .*FeatureCollection"):
        read_zones(str(tmp_path / "text"))
    with pytest.raises(ConfigError, match=r"hat\.zones: .*cannot be read"):
        read_zones(str(tmp_path / "none"))


def test_ten_thousand_zones(zones):
    grid = zones(
        *(feature(f"S {at}", square(at % 100 / 100, at // 100 / 100, 0.01)) for at in range(10_000))
    )
    assert grid.domain.size == 10_000 and (np.diff(grid.domain.astype(np.int64)) > 0).all()
    assert grid.size == "10,000" and 5 < grid.fineness < 9
    dice = np.random.default_rng(1)
    lon, lat = dice.uniform(0, 1, (2, 5_000))
    expected = [f"s-{int(y * 100) * 100 + int(x * 100)}" for x, y in zip(lon, lat, strict=True)]
    assert ids_at(grid, *zip(lon, lat, strict=True)) == expected


def test_positions_are_in_the_zones_that_geometry_says(zones):
    """Cut pieces and boxes around them change nothing, beside the plain test of each zone."""
    from shapely import Point

    dice = np.random.default_rng(2)
    walks = 72.8 + np.cumsum(dice.normal(0, 0.002, (6, 150, 2)), axis=1) - (0, 51.6)
    grid = zones(
        *(feature(f"R{at}", walk.tolist(), kind="LineString") for at, walk in enumerate(walks)),
        width="300m",
    )
    places = walks.reshape(-1, 2)[::3] + dice.normal(0, 0.005, (300, 2))
    plain = [next((id_ for id_, one in zip(grid.ids, grid.shapes, strict=True) if one.intersects(Point(place))), None)
             for place in places]  # fmt: skip
    found = ids_at(grid, *places)
    assert found == plain and 30 < sum(id_ is None for id_ in found) < 270


def test_zones_stand_beside_hexagons_of_their_size(zones):
    lon, lat = np.array(
        [json.loads(line)["location"]["coordinates"] for line in fleet_log(clean=True)[:50]]
    ).T
    ring = Hexagons(8).rings_of(int(Hexagons(8).cells_of(lat, lon)[0]))[0]
    assert zones(feature("Hexagon", [list(corner) for corner in ring])).fineness == pytest.approx(
        8, abs=0.15
    )


def test_long_zones_are_alike_in_rehearsals(zones):
    """A street across a city has the mean of many places: a plan must not promise it more."""

    long = zones(feature("R", [[72, 21], [72.2, 21]], kind="LineString"), width="60m")
    short = zones(feature("As large", square(72, 21, 0.0103)))
    assert short.fineness == pytest.approx(long.fineness, abs=0.1)
    assert short.reach == Hexagons(7).reach == Hexagons(9).reach == 1 and 8 < long.reach < 10
    assert 20 < zones(feature("Square", square(72, 21, 0.1))).reach < 24
    hats, plates = 300, 40
    plate = np.arange(hats * plates)
    names = tuple(b"%d" % number for number in plate.tolist())
    rows = np.arange(hats + 1) * plates
    cells = np.arange(1, hats + 1, dtype=np.uint64)
    counts = SlotCounts(0, 3_600_000, names, cells, rows, plate, np.full(plate.size, 20), 0)

    def spread(grid):
        context = a_context()
        context = replace(context, policy=structs.replace(context.policy, grid=grid))
        usual = AveragePrior.from_counts([counts], context)
        means = RehearsedCity(0, usual, grid).means(counts)
        return means.reshape(hats, plates).mean(axis=1).std()

    assert spread(long) < 0.75 * spread(short)


def test_a_zone_keeps_its_outline_within_a_period(zones):
    ledger = MemoryLedger()
    first = zones(feature("A", square(0, 0)), feature("B", square(2, 0)))
    more = zones(feature("A", square(0, 0)), feature("B", square(2, 0)), feature("C", square(4, 0)))
    moved = zones(feature("A", square(0, 0)), feature("B", square(2, 0, 1.5)))
    for grid in (first, first, more):
        require_unmoved(DAY, grid, ledger, ledger.meta())
    with pytest.raises(PrivacyRefused, match=r"hat\.zones: b had another outline"):
        require_unmoved(DAY, moved, ledger, ledger.meta())
    require_unmoved(DAY.replace("-08T", "-09T"), moved, ledger, ledger.meta())
    require_unmoved(DAY, Hexagons(7), ledger, ledger.meta())
