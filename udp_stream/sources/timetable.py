"""The network of the made-up city: its routes and stops, under names that are made up, too."""

from __future__ import annotations

from collections import Counter

from udp_stream.base.gtfs import Line, Network, Stop, simplified
from udp_stream.sources.fleet import CENTRE, EDGE_KM, KM_PER_DEGREE, ROUTE_NAMES, STEP_M, Fleet

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
    400  # samples between two points of a line; trips that all routes share, by their rank
)


def network_of(fleet: Fleet) -> Network:
    """The stops and lines of the fleet's city. How often a route runs follows from its buses'
    weights."""
    city = fleet.city()
    stops = list[Stop]()
    lines = list[Line]()
    for route, name in enumerate(ROUTE_NAMES):
        first = city.first[route]
        last = int(city.length_m[route] / STEP_M)
        places = city.place_km[first : first + last + 1]
        lines.append((name, CENTRE + places[::SHAPE_STEPS] / KM_PER_DEGREE))
        trips = Counter({name: 2 * (TRIPS_A_DAY // (2 * route + 10))})
        nodes = slice(city.nodes[route])
        for at in city.node_m[route, nodes][city.node_is_stop[route, nodes]].tolist():
            place = places[min(last, int(at / STEP_M))]
            lon, lat = (CENTRE + place / KM_PER_DEGREE).tolist()
            stops.append(Stop(_name(*place.tolist()), lat, lon, False, trips))
    return Network(stops, simplified(lines))


def _name(east: float, north: float) -> str:
    """The crossing that a place is near to."""
    street = int(east + EDGE_KM[0])
    road = int(north + EDGE_KM[1])
    return f"{STREETS[min(street, len(STREETS) - 1)]} / {ROADS[min(road, len(ROADS) - 1)]}"
