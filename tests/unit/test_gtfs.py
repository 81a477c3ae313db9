"""Timetables as agencies write them, and as strangers might."""

import os
import struct
import tracemalloc
import zipfile
from collections import Counter
from itertools import pairwise

import h3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timetables import STOPS, files_of, in_folder, zipped
from udp_stream.base import gtfs
from udp_stream.base.errors import ConfigError
from udp_stream.base.gtfs import GtfsError, Network, kept, positions, read_network
from udp_stream.dashboard.places import CellPlace, Places
from udp_stream.sources.fleet import Fleet
from udp_stream.sources.timetable import network_of

SHAPE = [("s", 21.17, 72.80, 2), ("s", 21.16, 72.79, 1), ("s", 21.17, 72.86, 10)]


def cell_at(lat, lon, resolution=9):
    return h3.latlng_to_cell(lat, lon, resolution)


def names_of(network, resolution=9):
    places = Places(network)
    cells = {cell_at(stop.lat, stop.lon, resolution) for stop in network.stops}
    return {cell: places.name_of(cell) for cell in cells}


@pytest.mark.parametrize("form", ["zip", "folder", "zip of a folder"])
def test_positions_are_those_of_all_stops_and_shapes_in_their_order(form, tmp_path):
    files = files_of(shapes=SHAPE)
    path = {
        "zip": lambda: zipped(tmp_path / "gtfs.zip", files),
        "folder": lambda: in_folder(tmp_path / "gtfs", files),
        "zip of a folder": lambda: zipped(tmp_path / "gtfs.zip", files, within="feed/latest/"),
    }[form]()
    lat, lon = positions(path)
    assert lat.dtype == lon.dtype == np.float64
    expected = [(stop[2], stop[3]) for stop in STOPS] + [point[1:3] for point in SHAPE]
    assert list(zip(lat.tolist(), lon.tolist(), strict=True)) == expected
    assert [stop.name for stop in read_network(path).stops] == [stop[1] for stop in STOPS]


def test_positions_need_no_file_but_that_of_stops(tmp_path):
    lat, _ = positions(zipped(tmp_path / "gtfs.zip", {"stops.txt": files_of()["stops.txt"]}))
    assert lat.tolist() == [21.17] * 3


def test_no_position_is_made_up(tmp_path):
    """An entrance may have none; (0, 0) stands for none; what is beyond the globe is none."""
    odd = [
        ("n", "N", "", ""),
        ("z", "Z", 0, "0.0"),
        ("x", "X", 91, 0),
        ("y", "Y", "nan", 1),
        ("w", "W", "1,5", 3),
    ]
    lat, lon = positions(zipped(tmp_path / "gtfs.zip", files_of([*STOPS, *odd], calls=[])))
    assert (lat.size, lon.size) == (3, 3)


@pytest.mark.parametrize(
    ("encoding", "before"), [("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("latin-1", b"")]
)
def test_names_are_read_whatever_wrote_them(encoding, before, tmp_path):
    files = files_of([("a", "Größe", 21.17, 72.80)])
    files = {name: before + text.decode().encode(encoding) for name, text in files.items()}
    assert read_network(zipped(tmp_path / "gtfs.zip", files)).stops[0].name == "Größe"


def test_rows_that_are_none_are_left_out_and_the_rest_is_read(tmp_path):
    files = files_of()
    files["stops.txt"] += b'\r\nd\r\n"e ""x"", and\nmore",Stop,1\r\n'
    files["stop_times.txt"] = (
        files["stop_times.txt"].replace(b"\r\n", b"\n") + b"no,a,1\nout,no,1\nout\n\n"
    )
    network = read_network(zipped(tmp_path / "gtfs.zip", files))
    assert [(stop.name, stop.routes) for stop in network.stops] == [
        (stop[1], Counter({"7": 2.0})) for stop in STOPS
    ]


LINES = b"stop_id,stop_name,stop_lat,stop_lon\n" + b"s,Stop,21.17,72.8\n" * 10


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"stops.txt": None}, "stops.txt: expected this file"),
        ({"stop_times.txt": None}, "stop_times.txt: expected this file"),
        ({"trips.txt": None}, "trips.txt: expected this file"), ({"routes.txt": None}, "routes.txt"),
        ({"stops.txt": b""}, "stops.txt: expected at least one stop"),
        ({"stops.txt": b"stop_id,stop_lat\n"}, "stops.txt: expected the column stop_lon"),
        ({"stops.txt": "stop_id,stop_lat,stop_lon\na,1,2\n".encode("utf-16")}, "stops.txt: expected the column"),
        ({"stops.txt": b"stop_id,stop_lat,stop_lon\na,,\n"}, "stops.txt: expected at least one stop"),
        ({"stops.txt": LINES + b'"' + b"x" * 200_000}, "stops.txt: expected rows of CSV"),
        ({"stops.txt": LINES + b"x" * 3_000_000}, "stops.txt: expected rows of CSV"),
        ({"stops.txt": LINES.replace(b"\n", b"\r")}, "stops.txt: expected rows of CSV"),
        ({"stops.txt": LINES + b"\n" * 11_000_000}, "stops.txt: expected at most 10 MB"),
        ({"stop_times.txt": b"trip_id,stop_id\nno,a\n"}, "stop_times.txt: expected trips of trips.txt"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_zip", [True, False])
def test_what_is_no_timetable_is_refused_in_one_sentence(is_zip, changed, named, tmp_path, limits):
    limits(gtfs, FILE_MB=10)
    files = {name: text for name, text in (files_of() | changed).items() if text is not None}
    path = zipped(tmp_path / "g.zip", files) if is_zip else in_folder(tmp_path / "g", files)
    with pytest.raises(GtfsError) as refused:
        read_network(path)
    said = str(refused.value)
    assert isinstance(refused.value, ConfigError) and said.startswith(f"{path}: ")
    assert named in said and "\n" not in said and "xxx" not in said


def forged(path, files, at, text):
    """A zip whose last central entry has other bytes at this offset."""
    data = bytearray(zipped(path, files).read_bytes())
    start = data.rindex(b"PK\x01\x02") + at
    data[start : start + len(text)] = text
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04 no zip"), "is not a zip"),
        (lambda path: path.write_bytes(zipped(path, files_of()).read_bytes()[:-400]), "not a zip"),
        (lambda path: path.write_bytes(b"") or os.truncate(path, 200_000_001), "at most 200 MB"),
        (
            lambda path: zipped(path, {f"{n}.txt": "" for n in range(1001)} | files_of()),
            "at most 1,000 files",
        ),
        (
            lambda path: zipped(path, files_of() | {"stops.txt": LINES + b"\n" * 11_000_000}),
            "at most 10 MB",
        ),
        (
            lambda path: zipped(path, files_of(), compress_type=zipfile.ZIP_BZIP2),
            "stored or deflated",
        ),
        (
            lambda path: forged(path, {"stops.txt": LINES}, 8, struct.pack("<H", 1)),
            "without a password",
        ),
        (lambda path: forged(path, {"stops.txt": LINES}, 16, b"\0\0\0\0"), "expected a whole zip"),
        (
            lambda path: forged(path, {"stops.txt": LINES}, 24, struct.pack("<I", 2**31)),
            "at most 10 MB",
        ),
        (lambda path: None, "there is none"),
    ],
    ids=["bytes", "cut", "large", "members", "bomb", "bzip2", "encrypted", "crc", "lie", "missing"],
)
def test_a_zip_that_is_wrong_or_too_much_is_refused(make, named, tmp_path, limits):
    limits(gtfs, FILE_MB=10)
    make(path := tmp_path / "gtfs.zip")
    tracemalloc.start()
    try:
        with pytest.raises(GtfsError, match=named):
            positions(path)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_a_header_that_says_less_than_there_is_unpacks_no_more_than_it_says(tmp_path):
    files = {"stops.txt": LINES + b"s,Stop,21.17,72.8\n" * 10_000}
    forged(path := tmp_path / "gtfs.zip", files, 24, struct.pack("<I", len(LINES)))
    with pytest.raises(GtfsError, match="expected a whole zip"):
        positions(path)


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        ("STOPS_MAX", "stops.txt"),
        ("TRIPS_MAX", "trips.txt"),
        ("ROUTES_MAX", "routes.txt"),
        ("PAIRS_MAX", "stop_times.txt"),
    ],
)
def test_numbers_are_bounded(limit, file, tmp_path, limits):
    files = files_of(routes=[("7", "7", ""), ("8", "8", "")])
    limits(gtfs, **{limit: 1})
    with pytest.raises(GtfsError, match=f"{file}: expected at most 1 "):
        read_network(zipped(tmp_path / "gtfs.zip", files))


TEXTS = st.binary(max_size=60) | st.text('",\n\r01.ab-', max_size=80).map(str.encode)


@given(st.dictionaries(st.sampled_from(sorted(files_of(shapes=SHAPE))), TEXTS, max_size=3))
def test_no_bytes_are_a_fault(tmp_path_factory, changed):
    files = files_of(shapes=SHAPE)
    files = {name: changed.get(name, text) for name, text in files.items()} | {
        name: files[name].split(b"\r\n")[0] + b"\n" + text
        for name, text in changed.items()
        if len(text) % 2
    }
    path = in_folder(tmp_path_factory.mktemp("gtfs"), files)
    for read in (read_network, positions):
        try:
            found = read(path)
        except GtfsError as refused:
            assert str(path) in str(refused)
        else:
            assert len(found) == 2


def test_a_long_file_is_read_in_bounded_memory(tmp_path, limits):
    limits(gtfs, _BLOCK=2**16)
    files = files_of()
    files["stop_times.txt"] += b"".join(b"out,a,%d\r\n" % at for at in range(250_000))
    path = in_folder(tmp_path / "gtfs", files)
    assert len(files["stop_times.txt"]) > 3_000_000
    tracemalloc.start()
    try:
        read_network(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# --- names ---


def test_a_cell_has_the_name_of_its_most_served_stop_and_two_of_its_routes(tmp_path):
    """Trips a day count, not trips of the file: a service of one day a week is a seventh of a daily
    one."""
    stops = [
        ("a", "Once", 21.17, 72.8),
        ("b", "Daily", 21.17, 72.8),
        ("c", "Twice a week", 21.17, 72.8),
    ]
    trips = [*(("1", "sunday", f"s{n}", 0, "") for n in range(6)), ("2", "week", "d", 0, "")]
    trips += [("3", "dates", f"t{n}", 0, "") for n in range(3)]
    calls = [
        *((f"s{n}", "a", 1) for n in range(6)),
        ("d", "b", 1),
        *((f"t{n}", "c", 1) for n in range(3)),
    ]
    files = files_of(
        stops, [("1", "1", ""), ("2", "", "Long name of the second route"), ("3", "", "")], trips, calls,
        calendar=[("sunday", 0, 0, 0, 0, 0, 0, 1), ("week", 1, 1, 1, 1, 1, 1, 1), ("dates", 0, 0, 0, 0, 0, 0, 0)],
        calendar_dates=[("dates", 20240101, 1), ("dates", 20240102, 2), ("dates", 20240103, 2), ("dates", 20240104, 2)],
    )  # fmt: skip
    network = read_network(zipped(tmp_path / "gtfs.zip", files))
    trips_a_day = {stop.name: round(stop.routes.total(), 3) for stop in network.stops}
    assert trips_a_day == {"Once": round(6 / 7, 3), "Daily": 1, "Twice a week": 0.75}
    assert Places(network).place_of(cell_at(21.17, 72.8)) == CellPlace(
        "Daily", ("Long name of th…", "1")
    )


def test_a_station_counts_what_calls_at_its_platforms_and_comes_first(tmp_path):
    stops = [("s", "Central Station", 21.17, 72.8, 1, ""), ("p", "Platform 1", 21.17, 72.8, 0, "s"),
             ("q", "Platform 2", 21.17, 72.8, "", "s"), ("b", "Busy Corner", 21.17, 72.8, 0, ""),
             ("e", "Entrance", 21.17, 72.8, 2, "s")]  # fmt: skip
    calls = [
        ("out", "p", 1),
        ("out", "q", 2),
        ("out", "e", 3),
        *(("back", "b", at) for at in range(5)),
    ]
    network = read_network(zipped(tmp_path / "gtfs.zip", files_of(stops, calls=calls)))
    assert {stop.name: stop.routes.total() for stop in network.stops} == {
        "Central Station": 2,
        "Busy Corner": 5,
    }
    assert set(names_of(network).values()) == {"Central Station"}


def test_cells_of_the_same_name_are_told_apart_and_one_without_a_stop_is_beside_another(tmp_path):
    middle = cell_at(21.17, 72.83, 8)
    ring = sorted(h3.grid_ring(middle, 1))
    cells = [middle, *ring, cell_at(21.0, 72.8, 8), cell_at(21.4, 72.8, 8)]
    same = [
        (str(at), "guadalupe / 24th", *h3.cell_to_latlng(cell)) for at, cell in enumerate(cells)
    ]
    alone = ("x", "Alone", *h3.cell_to_latlng(cell_at(21.17, 73.2, 8)))
    network = read_network(zipped(tmp_path / "gtfs.zip", files_of([*same, alone])))
    places = Places(network)
    names = [places.name_of(cell) for cell in cells]
    assert len(set(names)) == len(names) and all(
        name.startswith("guadalupe / 24th, ") for name in names
    )
    assert names[-1] == "guadalupe / 24th, north" and names[-2] == "guadalupe / 24th, south"
    lone = cell_at(21.17, 73.2, 8)
    assert places.name_of(lone) == "Alone" and places.name_of(cell_at(20.0, 70.0, 8)) == ""
    beside = {places.name_of(cell) for cell in h3.grid_ring(lone, 1)}
    assert len(beside) == 6 and all(name.endswith(" of Alone") for name in beside)
    (beyond,) = [
        cell for cell in h3.grid_ring(lone, 1) if places.name_of(cell) == "North-east of Alone"
    ]
    assert all(
        there > here for there, here in zip(h3.cell_to_latlng(beyond), alone[2:], strict=True)
    )


def test_names_follow_from_the_timetable_alone():
    network = network_of(Fleet(seed=1))
    other = Network(network.stops[::-1], network.lines)
    for resolution in (6, 7, 9):
        names = names_of(network, resolution)
        assert names == names_of(other, resolution)
        assert len(set(names.values())) == len(names) and "" not in names.values()


@pytest.mark.parametrize(
    "name",
    ["<img src=x onerror=alert(1)>", "A" * 10**5, "a\x00b\x1b[2J", "\u202egnp", "a\nb", "=1+1"],
)
def test_names_are_one_line_of_bounded_length(name, tmp_path):
    files = files_of([("a", name, 21.17, 72.80)], [("7", name, name)])
    (stop,) = read_network(zipped(tmp_path / "gtfs.zip", files)).stops
    assert stop.name.isprintable() and 0 < len(stop.name) <= gtfs.NAME_MAX
    assert all(route.isprintable() and 0 < len(route) <= gtfs.SHORT_MAX for route in stop.routes)


# --- lines ---


def test_lines_are_the_shapes_in_their_order_or_the_stops_of_a_trip_each_way(tmp_path):
    trips = [
        ("7", "daily", "out", 0, "s"),
        ("7", "daily", "again", 0, "s"),
        ("7", "daily", "back", 1, ""),
    ]
    with_shapes = read_network(zipped(tmp_path / "a.zip", files_of(trips=trips, shapes=SHAPE)))
    ((name, line), _) = with_shapes.lines  # no trip back has a shape: the stops of one are its line
    assert name == "7" and line.tolist() == [[72.79, 21.16], [72.80, 21.17], [72.86, 21.17]]
    without = read_network(zipped(tmp_path / "b.zip", files_of(trips=trips))).lines
    # The three stops are on a straight line: its ends are enough.
    assert [line.tolist() for _, line in without] == [
        [[72.8, 21.17], [72.86, 21.17]],
        [[72.86, 21.17], [72.8, 21.17]],
    ]


def test_lines_are_at_most_so_many_each_routes_most_travelled_first(tmp_path, limits):
    limits(gtfs, LINES_MAX=3)
    trips = [
        ("7", "daily", f"{shape}{n}", 0, shape)
        for shape, often in (("x", 1), ("y", 3), ("z", 2))
        for n in range(often)
    ]
    trips += [("8", "daily", "w0", 0, "w"), ("9", "daily", "v0", 0, "v")]
    shapes = [(shape, 21 + at, 72 + at, at) for shape in "vwxyz" for at in range(2)]
    routes = [("7", "7", ""), ("8", "8", ""), ("9", "9", "")]
    network = read_network(
        zipped(tmp_path / "gtfs.zip", files_of(routes=routes, trips=trips, shapes=shapes))
    )
    assert sorted(name for name, _ in network.lines) == ["7", "8", "9"]
    limits(gtfs, LINES_MAX=4)
    network = read_network(tmp_path / "gtfs.zip")
    assert sorted(name for name, _ in network.lines) == ["7", "7", "8", "9"]


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=40),
    st.sampled_from([10.0, 1e4]),
)
def test_a_simplified_line_is_nowhere_far_from_its_shape(points, near_m):
    line = np.array(points)
    stays = np.flatnonzero(kept(line, near_m))
    assert stays[0] == 0 and stays[-1] == len(line) - 1
    for start, end in pairwise(stays.tolist()):
        along = (line[end] - line[start]) * 111_195
        for point in line[start + 1 : end]:
            off = (point - line[start]) * 111_195
            share = np.clip(off @ along / max(along @ along, 1e-9), 0, 1)
            assert np.hypot(*(off - share * along)) <= near_m * 1.001 + 1


def test_points_are_bounded(tmp_path, limits):
    rng = np.random.default_rng(1)
    shapes = [("s", *(21 + rng.random(2)).tolist(), at) for at in range(3000)]
    files = files_of(trips=[("7", "daily", "out", 0, "s")], shapes=shapes)
    limits(gtfs, POINTS_MAX=100)
    ((_, line),) = read_network(zipped(tmp_path / "gtfs.zip", files)).lines
    assert 2 <= len(line) <= 100
