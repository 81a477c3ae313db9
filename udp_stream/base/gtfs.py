"""A GTFS timetable, a zip or a folder: positions, stops by how often they are served, and lines.

The file comes from strangers: its sizes are bounded, and so are the lengths of its names. Rows that
cannot be read are left out; a file without a timetable is refused by a single sentence.
"""

from __future__ import annotations

import csv
import struct
import zipfile
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from udp_stream.base.arrays import Flags, Floats
from udp_stream.base.errors import ConfigError

ZIP_MB = 200
FILE_MB = 500  # of a zip; of each file in it once it is unpacked, or in a folder
MEMBERS_MAX = 1_000  # files in a zip
STOPS_MAX = 200_000
ROUTES_MAX = 20_000
TRIPS_MAX = 1_000_000
PAIRS_MAX = 2_000_000  # a pair: a route at a stop
NAME_MAX = 60
SHORT_MAX = 16  # characters of a stop's name, and of a route's
LINES_MAX = 500
CALLS_MAX = 1_000
SHAPE_MAX = 10_000
POINTS_MAX = 30_000  # lines; stops, points of a line; points of all
NEAR_M = 10.0  # how far a simplified line may leave its shape; twice that, and so on, where points are too many

_BLOCK = 2**20  # bytes read at a time
_MB = 10**6
_METRES = 111_195.0  # of a degree of latitude
_OF_STOPS = ("stop_lat", "stop_lon")
_OF_SHAPES = ("shape_pt_lat", "shape_pt_lon")
NO_STOP = "expected at least one stop with a stop_lat and stop_lon"


class GtfsError(ConfigError):
    """Raised for a timetable that cannot be read; the message names the file and the rule."""


class Stop(NamedTuple):
    """A stop, or a station with the stops of which it is the parent; trips a day of each route."""

    name: str
    lat: float
    lon: float
    is_station: bool
    routes: Counter[str]


Line = tuple[str, Floats]
"""A route's name, and its way in a direction: (lon, lat) of its points, degrees."""


class Network(NamedTuple):
    """Cells that are served, and the lines that serve them, simplified."""

    stops: list[Stop]
    lines: list[Line]


def positions(path: str | Path) -> tuple[Floats, Floats]:
    """Latitudes and longitudes (degrees) of all stops and all points of shapes. GtfsError if there
    is no stop."""
    lat = array("d")
    lon = array("d")
    with _opened(Path(path)) as files:
        for file, columns in (("stops.txt", _OF_STOPS), ("shapes.txt", _OF_SHAPES)):
            if file != "stops.txt" and not files.has(file):
                continue
            for row_lat, row_lon in files.rows(file, columns):
                place = _place(row_lat, row_lon)
                if place is not None:
                    lat.append(place[0])
                    lon.append(place[1])
            if not lat:
                raise files.refused("stops.txt", NO_STOP)
    return np.frombuffer(lat, np.float64), np.frombuffer(lon, np.float64)


def read_network(path: str | Path) -> Network:
    """The stops that are served, and at most `LINES_MAX` lines. GtfsError if nothing serves a stop."""
    with _opened(Path(path)) as files:
        routes = _routes(files)
        trips, shapes, others = _trips(files, list(routes))
        stops = _Stops(files)
        # A stop's number and a route's, as a single number: trips a day.
        served: dict[int, float] = defaultdict(float)
        for trip_id, stop_id, sequence in files.rows(
            "stop_times.txt", ("trip_id", "stop_id"), ("stop_sequence",)
        ):
            trip = trips.get(trip_id)
            stop = stops.numbers.get(stop_id)
            if trip is None or stop is None:
                continue
            route, trips_a_day = trip
            served[stop * ROUTES_MAX + route] += trips_a_day
            calls = others.get(trip_id)
            if calls is not None and len(calls) < CALLS_MAX:
                calls.append((_number(sequence), stop))
            if len(served) > PAIRS_MAX:
                raise files.refused(
                    "stop_times.txt", f"expected at most {PAIRS_MAX:,} pairs of a stop and a route"
                )
        if not served:
            raise files.refused(
                "stop_times.txt", "expected trips of trips.txt that call at stops of stops.txt"
            )
        names = list(routes.values())
        points = _shapes(files, shapes) if shapes else {}
        lines = [
            (names[route], points[shape]) for shape, route in shapes.items() if shape in points
        ]
        lines += [
            (names[trips[trip][0]], stops.places([stop for _, stop in sorted(calls)]))
            for trip, calls in others.items()
        ]
        drawn = [line for line in lines if len(line[1]) > 1][:LINES_MAX]
        return Network(stops.served(served, names), simplified(drawn))


class _Files:
    """The files of a timetable. A zip may hold them in a folder."""

    def __init__(self, path: Path, packed: zipfile.ZipFile | None) -> None:
        self._path = path
        self._zip = packed
        names = packed.namelist() if packed else []
        within = min(
            (name for name in names if Path(name).name == "stops.txt"), key=len, default="stops.txt"
        )
        self._folder = within.removesuffix("stops.txt")

    def has(self, file: str) -> bool:
        if self._zip is None:
            return (self._path / file).is_file()
        return f"{self._folder}{file}" in self._zip.NameToInfo

    def refused(self, file: str, rule: str) -> GtfsError:
        return GtfsError(f"{self._path}: {file}: {rule}")

    def rows(
        self, file: str, needed: tuple[str, ...], more: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, ...]]:
        """These columns of each row; those of `more` are empty where the file has none. GtfsError
        may leave."""
        try:
            with closing(self._lines(file)) as lines:
                reader = csv.reader(lines)
                first = next(reader, None)
                if first is None:
                    return
                header = [name.strip().lower() for name in first]
                for name in needed:
                    if name not in header:
                        raise self.refused(file, f"expected the column {name}")
                # Behind a row, in which missing cells are empty, comes an empty cell.
                blank = [""] * (len(header) + 1)
                columns = (*needed, *more)
                pick = itemgetter(
                    *(header.index(name) if name in header else -1 for name in columns)
                )
                for row in reader:
                    if row:
                        row += blank[len(row) :] or [""]
                        yield pick(row)
        except csv.Error as error:
            raise self.refused(file, f"expected rows of CSV ({error})") from error

    def _lines(self, file: str) -> Generator[str, None, None]:
        """Lines, read a megabyte at a time: UTF-8, with or without a mark at its beginning, else
        Latin-1."""
        if not self.has(file):
            raise self.refused(file, "expected this file in the timetable")
        rest = b""
        size = 0
        with self._open(file) as source:
            while piece := source.read(_BLOCK):
                text = rest + (piece if size else piece.removeprefix(b"\xef\xbb\xbf"))
                size += len(piece)
                if size > FILE_MB * _MB:
                    raise self.refused(file, f"expected at most {FILE_MB} MB, unpacked")
                text, end, rest = text.rpartition(b"\n")
                if end:
                    yield from _decoded(text)
                elif len(rest) > _BLOCK:
                    raise self.refused(
                        file, f"expected rows of CSV, got a line of over {_BLOCK:,} bytes"
                    )
        if rest:
            yield from _decoded(rest)

    @contextmanager
    def _open(self, file: str) -> Iterator[BinaryIO]:
        if self._zip is None:
            with (self._path / file).open("rb") as plain:
                yield plain
            return
        member = self._zip.getinfo(f"{self._folder}{file}")
        if member.file_size > FILE_MB * _MB:
            raise self.refused(file, f"expected at most {FILE_MB} MB, unpacked")
        if member.flag_bits & 1 or member.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise self.refused(file, "expected it stored or deflated, without a password")
        try:
            with self._zip.open(member) as packed:
                yield packed  # type: ignore[misc]
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise self.refused(file, f"expected a whole zip ({error})") from error


@contextmanager
def _opened(path: Path) -> Iterator[_Files]:
    try:
        if path.is_dir():
            yield _Files(path, None)
            return
        if not path.is_file():
            raise GtfsError(
                f"{path}: expected a GTFS timetable, a zip or a folder with stops.txt; there is none"
            )
        if path.stat().st_size > ZIP_MB * _MB:
            raise GtfsError(f"{path}: expected a zip of at most {ZIP_MB} MB")
        if _members(path) > MEMBERS_MAX:
            raise GtfsError(f"{path}: expected a zip of at most {MEMBERS_MAX:,} files")
        with zipfile.ZipFile(path) as packed:
            yield _Files(path, packed)
    except zipfile.BadZipFile as error:
        raise GtfsError(
            f"{path}: expected a GTFS timetable, a zip or a folder with stops.txt ({error})"
        ) from error
    except OSError as error:
        raise GtfsError(
            f"{path}: cannot be read: {error.strerror or type(error).__name__}"
        ) from error


def _members(path: Path) -> int:
    """How many files a zip says that it holds, before they are listed; 65,535 where they are more."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16 - 22))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    return int(struct.unpack_from("<H", tail, at + 10)[0]) if 0 <= at <= len(tail) - 22 else 0


def _decoded(text: bytes) -> list[str]:
    with suppress(UnicodeDecodeError):
        return text.decode().split("\n")
    return text.decode("latin-1").split("\n")


def _routes(files: _Files) -> dict[str, str]:
    """Each route's short name, by its id; else its long name."""
    found = dict[str, str]()
    for route, short, long in files.rows(
        "routes.txt", ("route_id",), ("route_short_name", "route_long_name")
    ):
        found[route] = (
            _clean(short, SHORT_MAX) or _clean(long, SHORT_MAX) or _clean(route, SHORT_MAX) or "?"
        )
        if len(found) > ROUTES_MAX:
            raise files.refused("routes.txt", f"expected at most {ROUTES_MAX:,} routes")
    return found


def _days(files: _Files) -> Mapping[str, float]:
    """The share of days on which a service runs: of a week by calendar.txt, else of the dates of
    calendar_dates.txt."""
    week = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    shares = dict[str, float]()
    if files.has("calendar.txt"):
        for service, *days in files.rows("calendar.txt", ("service_id", *week)):
            shares[service] = max(shares.get(service, 0.0), days.count("1") / 7)
    if files.has("calendar_dates.txt"):
        dates = Counter[str]()
        every = set[str]()
        for service, date, kind in files.rows(
            "calendar_dates.txt", ("service_id", "date", "exception_type")
        ):
            every.add(date[:8])
            dates[service] += kind.strip() == "1"
        shares |= {
            service: number / len(every)
            for service, number in dates.items()
            if not shares.get(service)
        }
    return shares


def _trips(
    files: _Files, routes: list[str]
) -> tuple[dict[str, tuple[int, float]], dict[str, int], dict[str, list[tuple[float, int]]]]:
    """Trips: the number of the route of each, and how often a day it runs. What is drawn: shapes
    with their routes, the most travelled of each route and direction first; a trip of each route
    and direction that has no shape."""
    numbers = {route: number for number, route in enumerate(routes)}
    days = _days(files)
    found = dict[str, tuple[int, float]]()
    travelled: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    first = dict[tuple[int, str], str]()
    has_shapes = files.has("shapes.txt")
    columns = ("route_id", "service_id", "trip_id")
    more = ("direction_id", "shape_id")
    for route, service, trip, direction, shape in files.rows("trips.txt", columns, more):
        number = numbers.get(route)
        if number is None:
            continue
        found[trip] = number, days.get(service, 1.0)
        first.setdefault((number, direction[:1]), trip)
        if shape and has_shapes:
            travelled[number, direction[:1]][shape] += days.get(service, 1.0)  # type: ignore[assignment]
        if len(found) > TRIPS_MAX:
            raise files.refused("trips.txt", f"expected at most {TRIPS_MAX:,} trips")
    ranked = [
        (rank, -often, shape, route)
        for (route, _), by_shape in travelled.items()
        for rank, (shape, often) in enumerate(by_shape.most_common(LINES_MAX))
    ]
    shapes = {shape: route for _, _, shape, route in sorted(ranked)[:LINES_MAX]}
    others = [trip for way, trip in first.items() if way not in travelled][:LINES_MAX]
    return found, shapes, {trip: [] for trip in others}


class _Stops:
    """The stops of stops.txt that have a position; a stop with a parent counts for that."""

    def __init__(self, files: _Files) -> None:
        self.numbers = dict[str, int]()
        self._found = list[tuple[str, float, float]]()
        parents = dict[str, str]()
        columns = ("stop_id", *_OF_STOPS)
        more = ("stop_name", "parent_station", "location_type")
        for stop, lat, lon, name, parent, kind in files.rows("stops.txt", columns, more):
            place = _place(lat, lon)
            if kind.strip() in ("2", "3", "4") or place is None:
                continue  # an entrance, or a node within a station
            if parent.strip():
                parents[stop] = parent
            self.numbers[stop] = len(self._found)
            self._found.append((_clean(name, NAME_MAX), *place))
            if len(self._found) > STOPS_MAX:
                raise files.refused("stops.txt", f"expected at most {STOPS_MAX:,} stops")
        if not self._found:
            raise files.refused("stops.txt", NO_STOP)
        self._parents = {
            self.numbers[stop]: self.numbers[parent]
            for stop, parent in parents.items()
            if parent in self.numbers
        }

    def places(self, stops: list[int]) -> Floats:
        return np.array([self._found[stop][:0:-1] for stop in stops])

    def served(self, served: Mapping[int, float], routes: list[str]) -> list[Stop]:
        by_stop: dict[int, Counter[str]] = defaultdict(Counter)
        for both, trips in served.items():
            stop, route = divmod(both, ROUTES_MAX)
            by_stop[self._parents.get(stop, stop)][routes[route]] += trips  # type: ignore[assignment]
        stations = set(self._parents.values())
        return [Stop(*self._found[stop], stop in stations, of) for stop, of in by_stop.items()]


def _shapes(files: _Files, wanted: Mapping[str, int]) -> dict[str, Floats]:
    """The points of these shapes in their order."""
    found: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for shape, lat, lon, sequence in files.rows(
        "shapes.txt", ("shape_id", *_OF_SHAPES, "shape_pt_sequence")
    ):
        if (
            shape in wanted
            and len(found[shape]) < 3 * SHAPE_MAX
            and (place := _place(lat, lon)) is not None
        ):
            found[shape].extend((_number(sequence), place[1], place[0]))
    points = {
        shape: np.frombuffer(rows, np.float64).reshape(-1, 3) for shape, rows in found.items()
    }
    return {
        shape: rows[np.argsort(rows[:, 0], kind="stable"), 1:] for shape, rows in points.items()
    }


def simplified(lines: list[Line]) -> list[Line]:
    """The lines with the points that are enough, at most `POINTS_MAX` in all."""
    near_m = NEAR_M
    while True:
        lines = [(name, points[kept(points, near_m)]) for name, points in lines]
        if sum(len(points) for _, points in lines) <= POINTS_MAX:
            return lines
        near_m *= 2


def kept(points: Floats, near_m: float) -> Flags:
    """Mask of the points (lon, lat) of a line that are enough, so that no other is further from it
    (Ramer-Douglas-Peucker)."""
    flat = points * _METRES
    flat[:, 0] *= np.cos(np.radians(points[:, 1].mean()))
    stays = np.zeros(len(flat), dtype=np.bool_)
    stays[[0, -1]] = True
    todo = [(0, len(flat) - 1)]
    while todo:
        start, end = todo.pop()
        if end - start < 2:
            continue
        between = flat[start + 1 : end] - flat[start]
        along = flat[end] - flat[start]
        share = np.clip(between @ along / max(float(along @ along), 1e-9), 0.0, 1.0)
        off = np.hypot(*(between - share[:, None] * along).T)
        far = int(off.argmax())
        if off[far] > near_m:
            stays[start + 1 + far] = True
            todo += [(start, start + 1 + far), (start + 1 + far, end)]
    return stays


def _place(lat: str, lon: str) -> tuple[float, float] | None:
    """A position; None for none, and for (0, 0), which stands for an unknown one."""
    try:
        found = float(lat), float(lon)
    except ValueError:
        return None
    return found if abs(found[0]) <= 90 and abs(found[1]) <= 180 and found != (0.0, 0.0) else None


def _number(text: str) -> float:
    with suppress(ValueError):
        number = float(text)
        if isfinite(number):
            return number
    return 0.0


def _clean(text: str, most: int) -> str:
    """A name in a single line, without marks that turn a text's direction, at most so long."""
    plain = (
        sign if sign.isprintable() or sign in "\u200c\u200d" else " " for sign in text[: 20 * most]
    )
    found = " ".join("".join(plain).split())
    return found if len(found) <= most else f"{found[: most - 1]}…"
