"""A timetable (GTFS) of the made-up city: its routes and stops, under names that are made up, too."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from udp_stream.trial.fleet import CENTRE, EDGE_KM, KM_PER_DEGREE, ROUTE_NAMES, STEP_M, Fleet

STREETS = (
    "Amber", "Banyan", "Cedar", "Date Palm", "Ebony", "Fig", "Guava", "Henna", "Indigo", "Jasmine", "Kadam", "Lotus",
    "Mango", "Neem", "Orchid", "Peepal", "Quince", "Rosewood", "Saffron", "Teak", "Umbrella", "Vetiver", "Walnut",
    "Yarrow", "Zinnia", "Almond", "Bamboo", "Clove",
)  # fmt: skip
"""Streets from west to east, a kilometre apart."""

ROADS = (
    "Avocet", "Bulbul", "Crane", "Dove", "Egret", "Falcon", "Goose", "Heron", "Ibis", "Jay", "Kite", "Lark", "Mynah",
    "Nightjar", "Oriole", "Parrot", "Quail", "Robin", "Stork", "Tern", "Umbrellabird", "Vulture", "Wagtail", "Drongo",
    "Osprey", "Plover",
)  # fmt: skip
"""Roads from south to north."""

SHAPE_STEPS = 8
TRIPS_A_DAY = (
    400  # samples between two points of a shape; trips that all routes share, by their rank
)


def write_timetable(fleet: Fleet, folder: Path) -> None:
    """The files of a timetable of the fleet's city. How often a route runs follows from its buses'
    weights."""
    city = fleet.city()
    stops = list[Row]()
    shapes = list[Row]()
    trips = list[Row]()
    calls = list[Row]()
    for route, name in enumerate(ROUTE_NAMES):
        first = int(city.first[route])
        last = int(city.length_m[route] / STEP_M)
        places = city.place_km[first : first + last + 1]
        shapes += [
            (name, at, *_degrees(east, north))
            for at, (east, north) in enumerate(places[::SHAPE_STEPS].tolist())
        ]
        metres = city.node_m[route, : city.nodes[route]][
            city.node_is_stop[route, : city.nodes[route]]
        ]
        ours = [f"{name}-{number}" for number in range(metres.size)]
        for stop, at in zip(ours, metres.tolist(), strict=True):
            east, north = places[min(last, int(at / STEP_M))].tolist()
            stops.append((stop, _name(east, north), *_degrees(east, north)))
        for direction, way in enumerate((ours, ours[::-1])):
            for trip in range(TRIPS_A_DAY // (2 * route + 10)):
                named = f"{name}-{direction}-{trip}"
                trips.append((name, "daily", named, direction, name))
                calls += [(named, stop, number) for number, stop in enumerate(way)]
    week = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    _write(folder / "calendar.txt", ("service_id", *week), [("daily", *"1111111")])
    _write(
        folder / "routes.txt",
        ("route_id", "route_short_name", "route_type"),
        [(route, route, 3) for route in ROUTE_NAMES],
    )
    _write(folder / "stops.txt", ("stop_id", "stop_name", "stop_lat", "stop_lon"), stops)
    _write(
        folder / "shapes.txt",
        ("shape_id", "shape_pt_sequence", "shape_pt_lat", "shape_pt_lon"),
        shapes,
    )
    _write(
        folder / "trips.txt",
        ("route_id", "service_id", "trip_id", "direction_id", "shape_id"),
        trips,
    )
    _write(folder / "stop_times.txt", ("trip_id", "stop_id", "stop_sequence"), calls)


Row = tuple[object, ...]


def _name(east: float, north: float) -> str:
    """The crossing that a place is near to."""
    street = int(east + EDGE_KM[0])
    road = int(north + EDGE_KM[1])
    return f"{STREETS[min(street, len(STREETS) - 1)]} / {ROADS[min(road, len(ROADS) - 1)]}"


def _degrees(east: float, north: float) -> tuple[str, str]:
    """Latitude and longitude."""
    return (
        f"{CENTRE[1] + north / KM_PER_DEGREE[1]:.6f}",
        f"{CENTRE[0] + east / KM_PER_DEGREE[0]:.6f}",
    )


def _write(file: Path, header: Row, rows: Iterable[Row]) -> None:
    with file.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
