"""The map of a made-up city: where its bus routes run, where buses halt, how fast the road is.

Nothing here is taken from a real network. Routes are smooth curves through made-up hubs; only the city's place, size
and speeds are set so that a fleet on it resembles what is known of the Surat feed (see `Fleet`).

Theory of operation. A route is sampled every `STEP_M` metres into flat arrays, so that the place, the undisturbed speed
and the congestion of any point of any route are one index away. *Nodes* are where a bus may halt: stops and signals.

Every number comes from `Generator.random` or `Generator.integers` and from operations that IEEE 754 rounds correctly
(+, -, *, /, square root, floor): no sine, exponential or ziggurat, so that a seed means the same bytes on any platform.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from itertools import count

import msgspec
import numpy as np
import numpy.typing as npt

from udp_stream.errors import UsageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CENTRE_LON, CENTRE_LAT = 72.83, 21.19
KM_PER_DEGREE_LAT = 111.195
"""Of a sphere of radius 6,371 km."""
KM_PER_DEGREE_LON = 103.677
"""The same times cos(21.19 degrees), written out so that no cosine is computed."""
HALF_EXTENT_KM = (10.0, 8.0)
"""East and north: a city of 20 x 16 km, about 60 H3 cells of resolution 7, as many as the real feed touches (64)."""
EDGE_KM = (14.0, 13.0)
"""No route strays further from the centre: all longitudes begin with 72 degrees and all latitudes with 21."""

ROUTES = 60
TRUNK_ROUTES = 33
POPULARITY_SHIFT = 5.0
"""The route of rank r gets buses by 1 / (r + 5): most run in the middle, the suburbs see a few."""
BEND = 0.16
"""How far a route strays sideways, relative to the distance between two of its corners."""
STEP_M = 25.0
STOP_GAP_M = (400.0, 600.0)
SEGMENT_M = 1000.0
PATCH_KM = 2.0
ZONE_KM = 2.0
ZONES = (12, 10)
"""Zones of traffic, east by north, each `ZONE_KM` wide; the outermost also hold whatever lies beyond."""

SPEED_BY_RADIUS = ((0.0, 20.0), (0.25, 26.0), (0.55, 43.0), (1.0, 54.0), (2.0, 54.0))
"""(share of the way from the centre to the edge, undisturbed cruising speed in km/h); fitted to the real quantiles."""

_DIAGONAL, _NEAR, _FAR = 0.7071, 0.3827, 0.9239
_QUARTER = ((1.0, 0.0), (_FAR, _NEAR), (_DIAGONAL, _DIAGONAL), (_NEAR, _FAR))
COMPASS = np.array([*_QUARTER, *[(-y, x) for x, y in _QUARTER], *[(-x, -y) for x, y in _QUARTER],
                    *[(y, -x) for x, y in _QUARTER]])  # fmt: skip
"""Sixteen directions, anticlockwise from east; shape (16, 2)."""


@dataclass(frozen=True)
class City:
    """Routes as flat arrays. `first[r]` is where route `r` starts in the arrays with one entry per `STEP_M` metres."""

    names: tuple[str, ...]
    popularity: Floats  # (routes,) rising to 1: draw u, the route is the first entry above it
    first: Ints  # (routes,)
    length_m: Floats  # (routes,)
    x_km: Floats  # (points,) east of the centre
    y_km: Floats  # (points,) north of the centre
    cruise_kmh: Floats  # (points,) undisturbed
    crowding: Floats  # (points,) 0 to 1: how much of a rush hour is felt here
    zone: Ints  # (points,) index of the traffic zone
    nodes: Ints  # (routes,) how many nodes
    node_m: Floats  # (routes, most nodes) metres from the route's start, padded with its end
    node_is_stop: npt.NDArray[np.bool_]  # (routes, most nodes) else a signal

    def point(self, route: Ints, metres: Floats) -> Ints:
        """Index into the flat arrays of the sample at or just before `metres` along each route."""
        return self.first[route] + (metres / STEP_M).astype(np.int64)

    def lon_lat(self, route: Ints, metres: Floats) -> tuple[Floats, Floats]:
        """Degrees of the places `metres` along each route."""
        metres = np.minimum(metres, self.length_m[route] - 1e-6)
        point = self.point(route, metres)
        share = metres / STEP_M - np.floor(metres / STEP_M)
        x = self.x_km[point] + share * (self.x_km[point + 1] - self.x_km[point])
        y = self.y_km[point] + share * (self.y_km[point + 1] - self.y_km[point])
        return CENTRE_LON + x / KM_PER_DEGREE_LON, CENTRE_LAT + y / KM_PER_DEGREE_LAT


def piecewise(x: Floats, knots: tuple[tuple[float, float], ...]) -> Floats:
    """Linear between `knots`, flat beyond; `np.interp` may fuse its multiply-add on some platforms, this may not."""
    at, value = np.array(knots).T.copy()
    x = np.clip(x, at[0], at[-1])
    left = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
    share = (x - at[left]) / (at[left + 1] - at[left])
    result: Floats = value[left] + share * (value[left + 1] - value[left])
    return result


def bell(rng: np.random.Generator, *shape: int) -> Floats:
    """Bell-shaped noise of mean 0, deviation 1, within -3 and 3: three uniforms added."""
    return (rng.random(shape) + rng.random(shape) + rng.random(shape) - 1.5) * 2.0


def draw_city(rng: np.random.Generator) -> City:
    """A city; the same for the same generator."""
    hubs, terminals = _draw_hubs(rng)
    lines = [_resample(_curve(_draw_corners(rng, hubs, terminals, rank))) for rank in range(ROUTES)]
    sizes = np.array([len(line) for line in lines])
    x, y = np.clip(np.concatenate(lines), np.negative(EDGE_KM), EDGE_KM).T.copy()
    radius = np.sqrt((x / HALF_EXTENT_KM[0]) ** 2 + (y / HALF_EXTENT_KM[1]) ** 2)
    segments = np.concatenate([_draw_segments(rng, size) for size in sizes.tolist()])
    weights = np.cumsum(1.0 / (np.arange(ROUTES) + POPULARITY_SHIFT))
    stops = [_draw_nodes(rng, (size - 2) * STEP_M) for size in sizes.tolist()]
    node_m, node_is_stop = _padded([m for m, _ in stops]), _padded([s for _, s in stops])
    return City(
        names=_names(ROUTES),
        popularity=weights / weights[-1],
        first=np.cumsum(sizes) - sizes,
        length_m=(sizes - 2) * STEP_M,
        x_km=x,
        y_km=y,
        cruise_kmh=piecewise(radius, SPEED_BY_RADIUS) * _patches(rng, x, y) * segments,
        crowding=np.clip(1.15 - 0.8 * radius, 0.2, 1.0),
        zone=_zone(x, y),
        nodes=np.array([len(m) for m, _ in stops]),
        node_m=node_m,
        node_is_stop=node_is_stop > 0,
    )


def _names(routes: int) -> tuple[str, ...]:
    """Connection names as the exchange writes them, without the direction's letter."""
    return tuple(f"{n // 2 + 11}{'A' * (n % 4 == 1)}{'E' * (n % 4 == 3)}" for n in range(routes))


def _draw_hubs(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(16, 2) hubs around the centre, and (16, 2) terminals near the edge, in km."""
    half = np.array(HALF_EXTENT_KM)
    hubs = COMPASS * half * (0.35 + 0.35 * rng.random((16, 1))) + 0.3 * bell(rng, 16, 2)
    terminals = COMPASS * half * (0.85 + 0.3 * rng.random((16, 1)))
    return hubs, terminals


def _draw_corners(rng: np.random.Generator, hubs: Floats, terminals: Floats, rank: int) -> Floats:
    """(corners, 2) of the route of this rank: trunk routes come first, thin suburban ones last; with bends between."""
    start, turn = rng.integers(16, size=2).tolist()
    beside = (start + (1 if turn % 2 else 15)) % 16
    outside = terminals[start] + 0.4 * bell(rng, 2)
    centre = 2.8 * bell(rng, 2)
    if rank >= TRUNK_ROUTES:
        corners = np.array(
            [outside, terminals[beside] * (0.8 + 0.2 * rng.random()), 0.4 * terminals[beside] + 0.6 * hubs[beside]]
        )
    elif rank % 3 == 0:
        corners = np.array([0.5 * (outside + hubs[start]), hubs[start], centre])
    elif rank % 3 == 1:
        corners = np.array([hubs[start], centre, 0.5 * hubs[(start + 5 + turn % 7) % 16]])
    else:
        corners = np.array([outside, hubs[start], hubs[beside]])
    along = corners[1:] - corners[:-1]
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    path = np.empty((3 * len(along) + 1, 2))
    path[0::3] = corners
    path[1::3] = corners[:-1] + along / 3 + across * (BEND * bell(rng, len(along), 1))
    path[2::3] = corners[:-1] + along * 2 / 3 + across * (BEND * bell(rng, len(along), 1))
    return path


def _curve(corners: Floats, samples: int = 60) -> Floats:
    """A Catmull-Rom curve through the corners, `samples` points between each two; shape (points, 2)."""
    padded = np.concatenate([2 * corners[:1] - corners[1:2], corners, 2 * corners[-1:] - corners[-2:-1]])
    a, b, c, d = (padded[k : len(padded) - 3 + k, None, :] for k in range(4))
    u = (np.arange(samples) / samples)[None, :, None]
    inner = 0.5 * (2 * b + u * ((c - a) + u * ((2 * a - 5 * b + 4 * c - d) + u * (3 * b - a - 3 * c + d))))
    return np.concatenate([inner.reshape(-1, 2), corners[-1:]])


def _resample(curve: Floats) -> Floats:
    """Points every `STEP_M` metres along a curve, and one more at its end for the interpolation to lean on."""
    gap = np.sqrt((curve[1:, 0] - curve[:-1, 0]) ** 2 + (curve[1:, 1] - curve[:-1, 1]) ** 2)
    along = np.concatenate([[0.0], np.cumsum(gap)])
    at = np.arange(int(along[-1] * 1000 / STEP_M)) * (STEP_M / 1000)
    left = np.clip(np.searchsorted(along, at, side="right") - 1, 0, len(gap) - 1)
    share = ((at - along[left]) / np.maximum(gap[left], 1e-12))[:, None]
    line: Floats = curve[left] + share * (curve[left + 1] - curve[left])
    return np.concatenate([line, line[-1:]])


def _draw_segments(rng: np.random.Generator, points: int) -> Floats:
    """A factor on speed for each kilometre of one route: bus lanes, works, narrow streets."""
    factors = 1.0 + 0.17 * bell(rng, int(points * STEP_M / SEGMENT_M) + 1)
    return np.clip(factors[(np.arange(points) * STEP_M / SEGMENT_M).astype(np.int64)], 0.65, 1.35)


def _patches(rng: np.random.Generator, x: Floats, y: Floats) -> Floats:
    """A factor on speed that all routes through a patch of the city share, bilinear between patch corners."""
    grid = np.clip(1.0 + 0.25 * bell(rng, 16, 16), 0.6, 1.45)
    column, row = np.clip(x / PATCH_KM + 7.5, 0, 14.99), np.clip(y / PATCH_KM + 7.5, 0, 14.99)
    i, j = column.astype(np.int64), row.astype(np.int64)
    s, t = column - i, row - j
    low = grid[i, j] + s * (grid[i + 1, j] - grid[i, j])
    high = grid[i, j + 1] + s * (grid[i + 1, j + 1] - grid[i, j + 1])
    blended: Floats = low + t * (high - low)
    return blended


def _zone(x: Floats, y: Floats) -> Ints:
    """Index of the traffic zone of each place, below `ZONES[0] * ZONES[1]`."""
    column = np.clip(np.floor(x / ZONE_KM) + ZONES[0] // 2, 0, ZONES[0] - 1)
    row = np.clip(np.floor(y / ZONE_KM) + ZONES[1] // 2, 0, ZONES[1] - 1)
    zone: Ints = (column * ZONES[1] + row).astype(np.int64)
    return zone


def _draw_nodes(rng: np.random.Generator, length_m: float) -> tuple[Floats, Floats]:
    """Metres of one route's stops and signals, both ends included as stops; and 1.0 where it is a stop."""
    low, high = STOP_GAP_M
    gaps = low + (high - low) * rng.random(int(length_m / low) + 2)
    stops = np.cumsum(gaps)
    stops = np.concatenate([[0.0], stops[stops < length_m - low / 2], [length_m]])
    signals = stops[:-1] + (stops[1:] - stops[:-1]) * (0.3 + 0.4 * rng.random(len(stops) - 1))
    signals = signals[rng.random(len(signals)) < 0.5]
    metres = np.concatenate([stops, signals])
    order = np.argsort(metres, kind="stable")
    return metres[order], np.concatenate([np.ones(len(stops)), np.zeros(len(signals))])[order]


def _padded(rows: list[Floats]) -> Floats:
    """Rows of unequal length as one matrix, each row repeated at its last value."""
    width = max(len(row) for row in rows)
    return np.stack([np.concatenate([row, np.full(width - len(row), row[-1])]) for row in rows])


# How the buses of a made-up city move through one day, and the pings that they would send on perfect radio.
#
# Theory of operation. A bus drives *legs*: from one halt to the next it accelerates, cruises, brakes, and then waits
# (doors, a red light, a layover). Each round of `_drive_round` gives one more leg to every bus whose last leg ends
# before the chunk of time at hand does, so that a round is a few dozen numpy calls for the whole fleet. Within a leg,
# place and speed at any instant are closed formulas, so pings are looked up, never stepped.
#
# Seconds are local seconds since midnight, as floats; places are metres along a route.

Records = npt.NDArray[np.void]

CHUNK_S, CHUNK_PINGS = (30, 600), 50_000
"""Pings are made in chunks of at most ten minutes or about 50,000 pings, 5 MB: memory does not grow with the run."""

DAY_S = 86_400
OPENS_S, CLOSES_S = 5.5 * 3600, 22.5 * 3600
RAMP_S = 2.0 * 3600
"""The first bus leaves at 05:30 and all are out by 07:30; from 20:30 they go home, the last at 22:30."""

FLOW_BY_HOUR = ((5.5, 1.2), (7.5, 1.05), (9.0, 0.75), (10.0, 0.8), (11.5, 1.0), (15.0, 1.05), (16.5, 0.95),
                (18.5, 0.62), (20.0, 0.85), (22.5, 1.2))  # fmt: skip
"""(hour, factor on speed where crowding is 1): two rush hours."""

ACCELERATION, BRAKING = 0.8, 0.9
"""m/s2, what standing passengers bear."""
CRUISE_KMH = (7.0, 57.0)
EASED_ABOVE_KMH, EASED = 37.0, 0.3
"""Above 37 km/h only three tenths of the excess are driven: real speeds thin out between 40 and 50."""
MAX_KMH = 62.0
"""The highest speed in the real feed; nothing here reports more."""

STOPS_HELD, SIGNALS_HELD = 0.6, 0.35
"""Shares of stops and of signals at which a bus halts; about 1.7 halts a kilometre in all."""
NODES_SKIPPED_MAX = 4
LAYOVER_S, BREAK_SHARE, BREAK_S = (60.0, 300.0), 0.06, (1200.0, 3000.0)
"""A layover's shortest and longest, and likewise a crew's break; set so that 29 % of pings stand still, as really."""

GPS_NOISE_M = 3.0
SPEED_NOISE = 0.05
"""Of the reported speed, relative; the real ratio of reported to driven speed has quartiles 3.28 and 3.72."""
FLOAT_SHARE = 0.012
"""1.2 % of real speeds are written with a decimal."""

INTERVALS = ((10, 305), (12, 118), (5, 85), (15, 72), (20, 58), (8, 56), (4, 49), (9, 47), (11, 47), (16, 27), (21, 13),
             (19, 13), (6, 9), (60, 9), (14, 8), (30, 12), (25, 8), (40, 6), (120, 2))  # fmt: skip
"""(seconds between two pings of a bus, weight), as counted in the real feed; the rarest are lumped together."""

FIRST_TRIP = 20_000_000
PROGRESS = np.dtype([(name, "i4") for name in ("route", "direction", "trip")])
"""`direction` is 1 up, -1 down."""
LEG = np.dtype([("bus", "i4"), ("depart", "f8"), ("leave", "f8"), ("from_m", "f8"), ("speed_ms", "f8"),
                ("cruise_s", "f8"), ("progress", PROGRESS)])  # fmt: skip
PING = np.dtype([("bus", "i4"), ("second", "i8"), ("lon_e6", "i4"), ("lat_e6", "i4"), ("tenths", "i4"),
                 ("as_float", "?"), ("progress", PROGRESS)])  # fmt: skip
"""`second` is local; `tenths` is speed in 0.1 km/h, `as_float` whether it is written with its decimal."""


@dataclass
class Crew:
    """Where each bus is between two legs; one entry per bus."""

    route: Ints
    driver: Floats
    direction: Ints
    node: Ints
    clock: Floats
    trip: Ints


@dataclass(frozen=True)
class Duty:
    """One day's service: when each bus starts and ends, and how traffic deviates by zone and half hour."""

    opens: Floats
    closes: Floats
    traffic: Floats  # (zones, 50)


def draw_duty(rng: np.random.Generator, buses: int) -> Duty:
    """Service windows and traffic of one day."""
    opens, closes = OPENS_S + RAMP_S * rng.random(buses), CLOSES_S - RAMP_S * rng.random(buses)
    traffic = np.clip(1.0 + 0.16 * bell(rng, ZONES[0] * ZONES[1], 50), 0.6, 1.4)
    return Duty(np.floor(opens), np.floor(closes), traffic)


def draw_day(
    rng: np.random.Generator, city: City, route: Ints, driver: Floats, start: int, end: int, ping_s: float, trips: int
) -> Iterator[tuple[int, Records]]:
    """(end of chunk, its `PING` records by time) for one day from second `start` to `end`; trips count from `trips`.

    Buses drive from the day's first minute, so that a fleet looked at from noon is as spread out as it would be.
    """
    buses = len(route)
    duty = draw_duty(rng, buses)
    motion_rng, ping_rng = rng.spawn(2)
    crew = _first_crew(motion_rng, city, duty, route, driver, trips)
    due = np.maximum(duty.opens, float(start)) + np.floor(ping_s * ping_rng.random(buses))
    legs = np.empty(0, LEG)
    chunk_s = int(min(max(CHUNK_PINGS * ping_s / buses, CHUNK_S[0]), CHUNK_S[1]))
    for chunk_start in range(start, end, chunk_s):
        chunk_end = min(chunk_start + chunk_s, end)
        driven = _drive(motion_rng, city, duty, crew, chunk_end)
        legs = np.concatenate([leg[leg["leave"] > chunk_start] for leg in itertools.chain([legs], driven)])
        bus, second = _ping_times(ping_rng, due, np.minimum(duty.closes, chunk_end), ping_s, int(chunk_s / ping_s) + 2)
        yield chunk_end, _look_up(ping_rng, city, legs, bus, second, chunk_start)


def _first_crew(rng: np.random.Generator, city: City, duty: Duty, route: Ints, driver: Floats, trips: int) -> Crew:
    """Every bus at one end of its route, about to begin the day's first trip."""
    buses = len(route)
    upward = rng.random(buses) < 0.5
    crew = Crew(
        route=route,
        driver=driver,
        direction=np.where(upward, -1, 1),
        node=np.where(upward, 0, city.nodes[route] - 1),
        clock=duty.opens.copy(),
        trip=np.full(buses, trips - 1),
    )
    _turn_round(rng, crew, np.arange(buses))
    return crew


def _drive(rng: np.random.Generator, city: City, duty: Duty, crew: Crew, until: float) -> Iterator[Records]:
    """Legs until every bus's clock has passed `until` or its service is over."""
    while (going := np.flatnonzero(crew.clock < np.minimum(until, duty.closes))).size:
        yield _drive_round(rng, city, duty, crew, going)


def _drive_round(rng: np.random.Generator, city: City, duty: Duty, crew: Crew, bus: Ints) -> Records:
    """One more leg for each of `bus`; moves the crew to its end."""
    route, direction, node = crew.route[bus], crew.direction[bus], crew.node[bus]
    halt = _next_halt(rng, city, route, direction, node)
    from_m, to_m = city.node_m[route, node], city.node_m[route, halt]
    length = np.abs(to_m - from_m)
    cruise = _cruise_ms(rng, city, duty, crew, bus, (from_m + to_m) / 2)
    reachable = np.sqrt(2 * length * ACCELERATION * BRAKING / (ACCELERATION + BRAKING))
    speed = np.minimum(cruise, reachable)
    ramp_m = speed * speed * (0.5 / ACCELERATION + 0.5 / BRAKING)
    cruise_s = np.maximum(length - ramp_m, 0.0) / speed
    arrive = crew.clock[bus] + cruise_s + speed / ACCELERATION + speed / BRAKING
    terminal = (halt == 0) | (halt == city.nodes[route] - 1)
    leave = arrive + _wait_s(rng, terminal, city.node_is_stop[route, halt])

    legs = np.empty(len(bus), LEG)
    legs["bus"], legs["depart"], legs["leave"] = bus, crew.clock[bus], leave
    legs["from_m"], legs["speed_ms"], legs["cruise_s"] = from_m, speed, cruise_s
    for name in PROGRESS.names or ():
        legs["progress"][name] = getattr(crew, name)[bus]

    crew.node[bus], crew.clock[bus] = halt, leave
    rng.random(2 * np.count_nonzero(city.node_is_stop[route, halt]))  # unused: a seed keeps meaning the same day
    _turn_round(rng, crew, bus[terminal])
    return legs


def _turn_round(rng: np.random.Generator, crew: Crew, bus: Ints) -> None:
    """Begin the next trips of these buses, from the node where they stand, when their layover is over."""
    crew.direction[bus] *= -1
    crew.trip[bus] = int(crew.trip.max()) + 1 + np.arange(bus.size)
    rng.random(bus.size)  # unused, as above


def _next_halt(rng: np.random.Generator, city: City, route: Ints, direction: Ints, node: Ints) -> Ints:
    """The next node at which each bus halts: it drives through some stops and signals, and always halts at an end."""
    halt, through = node + direction, np.ones(len(node), dtype=np.bool_)
    last = city.nodes[route] - 1
    for _ in range(NODES_SKIPPED_MAX):
        held = np.where(city.node_is_stop[route, halt], STOPS_HELD, SIGNALS_HELD)
        through &= (rng.random(len(node)) >= held) & (halt > 0) & (halt < last)
        halt = halt + direction * through
    return halt


def _cruise_ms(rng: np.random.Generator, city: City, duty: Duty, crew: Crew, bus: Ints, middle_m: Floats) -> Floats:
    """m/s that traffic allows each bus: place, hour, the day's traffic, driver and chance multiply."""
    point = city.point(crew.route[bus], middle_m)
    hours = crew.clock[bus] / 3600
    flow = 1.0 - city.crowding[point] * (1.0 - piecewise(hours, FLOW_BY_HOUR))
    half = (2 * hours).astype(np.int64)
    before, after = duty.traffic[city.zone[point], half], duty.traffic[city.zone[point], half + 1]
    traffic = before + (2 * hours - half) * (after - before)
    luck = 1.0 + 0.36 * bell(rng, len(bus))
    kmh = city.cruise_kmh[point] * flow * traffic * crew.driver[bus] * luck
    kmh = np.minimum(kmh, EASED_ABOVE_KMH + EASED * (kmh - EASED_ABOVE_KMH))
    return np.clip(kmh, *CRUISE_KMH) / 3.6


def _wait_s(rng: np.random.Generator, terminal: npt.NDArray[np.bool_], is_stop: npt.NDArray[np.bool_]) -> Floats:
    """Seconds at a halt: layover or a crew's break at a terminal, doors at a stop, red at a signal."""
    u, on_break = rng.random(len(terminal)), rng.random(len(terminal)) < BREAK_SHARE
    layover = np.where(
        on_break, BREAK_S[0] + (BREAK_S[1] - BREAK_S[0]) * u, LAYOVER_S[0] + (LAYOVER_S[1] - LAYOVER_S[0]) * u
    )
    return np.where(terminal, layover, np.where(is_stop, 6.0 + 24.0 * u * u, 5.0 + 45.0 * u))


def _ping_times(rng: np.random.Generator, due: Floats, until: Floats, ping_s: float, width: int) -> tuple[Ints, Ints]:
    """(bus, whole second) of every ping from `due` to before `until`; draws `width` at a time, moves `due` on."""
    seconds, weights = np.array(INTERVALS).T.copy()
    steps = np.maximum(1.0, np.floor(seconds * (ping_s / 10.0) + 0.5))
    bounds = np.cumsum(weights) / weights.sum()
    buses, times = [], []
    while (going := np.flatnonzero(due < until)).size:
        drawn = steps[np.searchsorted(bounds, rng.random((going.size, width)), side="right")]
        ends = due[going, None] + np.cumsum(drawn, axis=1)
        moments = np.concatenate([due[going, None], ends[:, :-1]], axis=1)
        row, column = np.nonzero(moments < until[going, None])
        buses.append(going[row])
        times.append(moments[row, column])
        count = np.bincount(row, minlength=going.size)
        due[going] = ends[np.arange(going.size), count - 1]
    if not buses:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(buses), np.concatenate(times).astype(np.int64)


def _look_up(rng: np.random.Generator, city: City, legs: Records, bus: Ints, second: Ints, origin: int) -> Records:
    """`PING` records of the given buses and seconds from `origin` on, sorted by time."""
    legs = legs[np.lexsort((legs["depart"], legs["bus"]))]
    key = legs["bus"] * float(DAY_S) + (legs["depart"] - origin)
    leg = legs[np.searchsorted(key, bus * float(DAY_S) + (second - origin), side="right") - 1]
    metres, kmh = _along(leg, second - leg["depart"])
    lon, lat = city.lon_lat(
        leg["progress"]["route"].astype(np.int64), leg["from_m"] + leg["progress"]["direction"] * metres
    )

    pings = np.empty(len(bus), PING)
    pings["bus"], pings["second"] = bus, second
    pings["lon_e6"] = np.floor(lon * 1e6 + GPS_NOISE_M * 9.6 * bell(rng, len(bus)) / 1.7 + 0.5)
    pings["lat_e6"] = np.floor(lat * 1e6 + GPS_NOISE_M * 9.0 * bell(rng, len(bus)) / 1.7 + 0.5)
    kmh = np.clip(kmh * (1.0 + SPEED_NOISE * bell(rng, len(bus))), 0.0, MAX_KMH)
    as_float = rng.random(len(bus)) < FLOAT_SHARE
    pings["tenths"] = np.where(as_float, np.floor(kmh * 10 + 0.5), 10 * np.floor(kmh + 0.5))
    pings["as_float"] = as_float
    pings["progress"] = leg["progress"]
    # Of 16 bits, which a chunk's seconds fit into: numpy's stable sort is a radix sort there, and fast.
    return pings[np.argsort((second - origin).astype(np.uint16), kind="stable")]


def _along(leg: Records, elapsed_s: Floats) -> tuple[Floats, Floats]:
    """Metres from each leg's start and km/h after `elapsed_s`: accelerate, cruise, brake, wait."""
    speed = leg["speed_ms"]
    speeding_s, braking_s = speed / ACCELERATION, speed / BRAKING
    gained = np.minimum(elapsed_s, speeding_s)
    cruised = np.clip(elapsed_s - speeding_s, 0.0, leg["cruise_s"])
    braked = np.clip(elapsed_s - speeding_s - leg["cruise_s"], 0.0, braking_s)
    metres = 0.5 * ACCELERATION * gained * gained + speed * (cruised + braked) - 0.5 * BRAKING * braked * braked
    kmh = np.maximum(ACCELERATION * gained - BRAKING * braked, 0.0) * 3.6
    return metres, np.where(braked >= braking_s, 0.0, kmh)


# From columns of a made-up fleet to the JSON of its messages: no spaces, coordinates with six decimals, times to the
# second at +05:30.

IST = timezone(timedelta(hours=5, minutes=30))
IST_OFFSET_S = 19_800
PLATES_PER_SERIES = 9999
MOST_BUSES = 26 * PLATES_PER_SERIES

MESSAGE = (
    '{"license_plate":"%s","observationDateTime":"%s","location":{"type":"Point","coordinates":[%.6f,%.6f]},'
    '"route_id":"%s%s","trip_id":"%d","speed":%s}'
)


def plate(bus: int) -> str:
    """The made-up plate of bus 0, 1, ...: series ZZ first, then ZY down to ZA."""
    series, number = divmod(bus, PLATES_PER_SERIES)
    return f"GJ05Z{chr(ord('Z') - series)}{number + 1:04d}"


def encode(pings: Records, routes: Sequence[str], plates: Sequence[str]) -> list[bytes]:
    """A message for each `PING`; `routes` are without their direction's letter, `plates` by bus."""
    progress = pings["progress"]
    seconds, at = np.unique(pings["second"], return_inverse=True)
    times = [datetime.fromtimestamp(second - IST_OFFSET_S, IST).isoformat() for second in seconds.tolist()]
    columns = (
        map(plates.__getitem__, pings["bus"].tolist()),
        map(times.__getitem__, at.tolist()),
        (pings["lon_e6"] / 1e6).tolist(),
        (pings["lat_e6"] / 1e6).tolist(),
        map(routes.__getitem__, progress["route"].tolist()),
        np.where(progress["direction"] > 0, "U", "D").tolist(),
        progress["trip"].tolist(),
        [tenths / 10 if as_float else tenths // 10 for tenths, as_float in pings[["tenths", "as_float"]].tolist()],
    )
    return [(MESSAGE % row).encode() for row in zip(*columns, strict=True)]


# What goes wrong between a made-up fleet and us: pings late, out of order, repeated or spoiled, each at its own rate.
#
# Rates are those seen in real feeds, or near to them; the sources stand beside the constants.

SHUFFLED_S = 60.0
"""A ping out of order is delivered up to a minute late; in the real file the median one is 17 s behind."""
LATE_S = (180.0, 7200.0)
REPEAT_TRIP = 1_000_000_000
"""Added to the trip of a repeat: no trip of ours is numbered that high."""
SENTINEL_KMH = 410.383
"""255 mph, as a real feed in Austin sends for "unknown"."""
FUTURE_YEAR = "2068"
"""Clocks of some Delhi buses were decades ahead."""
REQUIRED = ("license_plate", "observationDateTime", "location", "speed")

DELIVERY = np.dtype([("ping", PING), ("arrives", "f8"), ("flaw", "i1")])
"""A ping on its way: `arrives` in the seconds of `second`, `flaw` an index into `FLAWS`, -1 for none."""


@dataclass(frozen=True)
class Imperfections:
    """What goes wrong between the buses and us; each a share of pings, 0 for never.

    `out_of_order` is the share of neighbours that step back in time (below 0.5; it needs a fleet of some dozens to
    be met); `late` pings come 3 minutes to 2 hours late; `repeated` come twice, the second time under another trip_id.
    The rest spoil a ping, at most one of them each.

    >>> Imperfections.none().late, Imperfections().late
    (0.0, 0.001)
    """

    out_of_order: float = 0.45
    late: float = 0.001
    repeated: float = 0.005
    missing_field: float = 0.0005
    null_speed: float = 0.0005
    no_offset: float = 0.0005
    null_island: float = 0.0005
    sentinel_speed: float = 0.0005
    not_json: float = 0.0005
    empty_plate: float = 0.0005
    far_future: float = 0.0005

    def __post_init__(self) -> None:
        for each in fields(self):
            rate, most = getattr(self, each.name), 0.499 if each.name == "out_of_order" else 1.0
            if not 0 <= rate <= most:
                raise UsageError(f"expected 0 <= {each.name} <= {most}, got {rate}")
        if sum(self.flaw_rates) > 1:
            raise UsageError(f"expected rates of spoiled pings that add up to 1 at most, got {sum(self.flaw_rates)}")

    @classmethod
    def none(cls) -> Imperfections:
        """Every ping arrives once, whole, and in order."""
        return cls(**{each.name: 0.0 for each in fields(cls)})

    @property
    def flaw_rates(self) -> tuple[float, ...]:
        """Rates of spoiling, in the order of `FLAWS`."""
        return tuple(getattr(self, name) for name in FLAWS)


FLAWS = tuple(each.name for each in fields(Imperfections))[3:]


def send(rng: np.random.Generator, rates: Imperfections, pings: Records) -> Records:
    """`DELIVERY` records of these pings and then their repeats, not yet in the order of arrival."""
    again = pings[rng.random(len(pings)) < rates.repeated]
    again["progress"]["trip"] += REPEAT_TRIP
    sent = np.empty(len(pings) + len(again), DELIVERY)
    sent["ping"][: len(pings)], sent["ping"][len(pings) :] = pings, again
    sent["arrives"] = sent["ping"]["second"] + _delay_s(rng, rates, len(sent))
    bounds = np.cumsum(rates.flaw_rates)
    flaw = np.searchsorted(bounds, rng.random(len(sent)), side="right")
    sent["flaw"] = np.where(flaw < len(FLAWS), flaw, -1)
    return sent


def _delay_s(rng: np.random.Generator, rates: Imperfections, count: int) -> Floats:
    """Seconds that each of `count` pings spends on its way.

    When a share q is delayed evenly and the rest less than a second, two neighbours stand in the wrong order with
    chance q (1 - q) + q^2 / 2; q is what makes that the wanted rate.
    """
    delayed = 1.0 - np.sqrt(1.0 - 2.0 * rates.out_of_order)
    shuffled = rng.random(count) * np.where(rng.random(count) < delayed, SHUFFLED_S, float(delayed > 0))
    late = LATE_S[0] + (LATE_S[1] - LATE_S[0]) * rng.random(count)
    return np.where(rng.random(count) < rates.late, late, shuffled)


def spoil(messages: list[bytes], sent: Records) -> list[bytes]:
    """The messages of these records, those with a flaw spoiled."""
    flaws = sent["flaw"]
    for at in np.flatnonzero(flaws >= 0).tolist():
        messages[at] = _spoiled(
            messages[at], FLAWS[flaws[at]], REQUIRED[int(sent["ping"]["second"][at]) % len(REQUIRED)]
        )
    return messages


def _spoiled(message: bytes, flaw: str, required: str) -> bytes:
    """One message with one flaw; `required` names the field that goes missing."""
    if flaw == "not_json":
        return message[: len(message) // 2]
    ping = msgspec.json.decode(message)
    time: str = ping["observationDateTime"]
    if flaw == "missing_field":
        del ping[required]
    elif flaw == "null_speed":
        ping["speed"] = None
    elif flaw == "no_offset":
        ping["observationDateTime"] = time[:19]
    elif flaw == "null_island":
        ping["location"]["coordinates"] = [0, 0]
    elif flaw == "sentinel_speed":
        ping["speed"] = SENTINEL_KMH
    elif flaw == "empty_plate":
        ping["license_plate"] = ""
    else:
        ping["observationDateTime"] = FUTURE_YEAR + time[4:]
    return msgspec.json.encode(ping)


# A synthetic bus fleet: pings of a made-up city, as the exchange would deliver them, faults and all.
#
# The real feed of Surat has no licence, so demonstrations and benchmarks run on this one. Only published statistics of
# the real feed went into it (one half hour, 2022-01-01 10:10-10:41, 208 plates): 29 % zero speeds, median 15, 99th
# percentile 49 and maximum 62 km/h, whole km/h in 98.8 % of pings, 10 s the commonest interval, 45 % of neighbours out
# of order, about 60 cells of H3 resolution 7. Places, routes, stops, trips and plates are invented.
#
# Plates are `GJ05ZZ0001` and on, then `GJ05ZY0001`: the district is real, the series from `ZA` to `ZZ` is meant to look
# made up. Any likeness to a registered vehicle is chance.
#
# A fleet is a function of its arguments: the same arguments give the same bytes, on every platform.
# What goes wrong on the way (`Imperfections`) is drawn apart from what the buses do: `columns()` is
# the same with and without it.

TRIPS_A_DAY_MAX = 100
"""A bus makes fewer: the shortest route and layover take a quarter of an hour together."""

_CITY, _FLEET, _FAULTS, _DAYS = range(4)  # which generator a seed is spread into


@dataclass(frozen=True)
class FleetColumns:
    """What the buses did, by time; one entry per ping, as written in its message."""

    plate: Ints  # index into `Fleet.plates`
    time_ms: Ints  # UTC, whole seconds
    lat: Floats
    lon: Floats
    speed_kmh: Floats


@dataclass(frozen=True)
class Fleet:
    """A fleet of `buses` on about 60 routes, from `start` for `hours`, each bus pinging about every `ping_seconds`.

    Service runs from 05:30 to 22:30 local (+05:30) with two hours of ramp at either end; outside of it there is
    silence. A message has what the platform reads, and route and trip.

    >>> fleet = Fleet(buses=3, start=datetime(2024, 1, 8, 10, 0, tzinfo=IST), hours=0.1)
    >>> fleet.plates
    ('GJ05ZZ0001', 'GJ05ZZ0002', 'GJ05ZZ0003')
    >>> next(fleet.messages())[0][:28]
    b'{"license_plate":"GJ05ZZ0003'
    """

    seed: int = 1
    buses: int = 400
    start: datetime = datetime(2024, 1, 8, 5, 0, tzinfo=IST)
    hours: float = 18
    ping_seconds: float = 10
    imperfections: Imperfections = field(default_factory=Imperfections)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"expected seed >= 0, got {self.seed}")
        if not 1 <= self.buses <= MOST_BUSES:
            raise UsageError(f"expected 1 <= buses <= {MOST_BUSES}, got {self.buses}")
        if self.start.tzinfo is None:
            raise UsageError(f"expected a start with an offset, such as +05:30, got {self.start.isoformat()}")
        if not (math.isfinite(self.hours) and self.hours > 0):
            raise UsageError(f"expected hours > 0, got {self.hours}")
        if not 1 <= self.ping_seconds <= 3600:
            raise UsageError(f"expected 1 <= ping_seconds <= 3600, got {self.ping_seconds}")

    @property
    def plates(self) -> tuple[str, ...]:
        """The plate of every bus."""
        return tuple(plate(bus) for bus in range(self.buses))

    def messages(self, batch: int = 4096) -> Iterator[list[bytes]]:
        """JSON messages in the order of delivery, `batch` at a time (the last list may be shorter).

        Holds at most ten minutes of pings and those that are still on their way, never the run.
        """
        for _, messages in self.deliveries(batch):
            yield messages

    def deliveries(self, batch: int = 4096, shift_s: int = 0) -> Iterator[tuple[Floats, list[bytes]]]:
        """The same, each list with the times at which its messages arrive: Unix time in seconds, ascending.

        Everything is `shift_s` seconds later than it was: the same day of the fleet at another time of the world's.
        """
        if batch < 1:
            raise UsageError(f"expected batch >= 1, got {batch}")
        routes, plates = self._city().names, self.plates

        def sent(some: Records) -> tuple[Floats, list[bytes]]:
            return some["arrives"] - IST_OFFSET_S, spoil(encode(some["ping"], routes, plates), some)

        kept = np.empty(0, DELIVERY)
        for arrived in self._deliveries():
            arrived["ping"]["second"] += shift_s
            arrived["arrives"] += shift_s
            kept = np.concatenate([kept, arrived])
            whole = len(kept) - len(kept) % batch
            for at in range(0, whole, batch):
                yield sent(kept[at : at + batch])
            kept = kept[whole:]
        if len(kept):
            yield sent(kept)

    def chunks(self) -> Iterator[FleetColumns]:
        """What the buses did, at most ten minutes at a time, before anything went wrong on the way."""
        for _, pings in self._pings():
            yield _columns(pings)

    def columns(self) -> FleetColumns:
        """The same for the whole run at once: 40 bytes a ping, so mind the memory of long runs."""
        return _columns(np.concatenate([pings for _, pings in self._pings()]))

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key)))

    def _city(self) -> City:
        return draw_city(self._rng(_CITY))

    def _pings(self) -> Iterator[tuple[int, Records]]:
        """(end of chunk, its pings by time), with `second` counted from the epoch in local time."""
        city, rng = self._city(), self._rng(_FLEET)
        route = np.searchsorted(city.popularity, rng.random(self.buses), side="right")
        driver = 1.0 + 0.05 * bell(rng, self.buses)
        start = math.floor(self.start.timestamp()) + IST_OFFSET_S
        end = start + math.ceil(self.hours * 3600)
        trips = FIRST_TRIP
        for day in range(start // DAY_S, -(-end // DAY_S)):
            midnight, day_rng = day * DAY_S, self._rng(_DAYS, day)
            first, last = max(start - midnight, 0), min(end - midnight, DAY_S)
            for chunk_end, pings in draw_day(day_rng, city, route, driver, first, last, self.ping_seconds, trips):
                pings["second"] += midnight
                yield midnight + chunk_end, pings
            trips += TRIPS_A_DAY_MAX * self.buses

    def _deliveries(self) -> Iterator[Records]:
        """Pings with their flaws in the order in which they arrive, those that came in one chunk at a time."""
        rng, waiting = self._rng(_FAULTS), np.empty(0, DELIVERY)
        for chunk_end, pings in self._pings():
            waiting = np.concatenate([waiting, send(rng, self.imperfections, pings)])
            waiting = waiting[np.argsort(waiting["arrives"], kind="stable")]  # stable: the same on every platform
            here = int(np.searchsorted(waiting["arrives"], chunk_end))
            yield waiting[:here]
            waiting = waiting[here:]
        yield waiting


def _columns(pings: Records) -> FleetColumns:
    return FleetColumns(
        plate=pings["bus"].astype(np.int64),
        time_ms=(pings["second"] - IST_OFFSET_S) * 1000,
        lat=pings["lat_e6"] / 1e6,
        lon=pings["lon_e6"] / 1e6,
        speed_kmh=pings["tenths"] / 10,
    )


# The synthetic fleet as if it drove now, day and night.
#
# Its buses sleep at night, which would leave a trial with nothing to see. So its busy hours are moved to the present,
# one made-up day after the other; plates, places and speeds are those of `Fleet`.

FIRST_MORNING = datetime(2024, 1, 8, 8, tzinfo=IST)
BUSY_HOURS = 12
PAUSE_S = 0.25
"""Messages that arrive within it are handed on together."""


def live_messages(buses: int, ago_s: float = 0.0) -> Iterator[list[bytes]]:
    """Messages without end, each list when the last of it has arrived; first, at once, those of the last `ago_s`.

    A list may be empty: nothing has arrived for a while. What is still on its way when a made-up day ends is lost.
    """
    began = math.floor(time.time() - ago_s)
    for day in count():
        begins = began + day * BUSY_HOURS * 3600
        fleet = Fleet(1, buses, FIRST_MORNING + timedelta(days=day), BUSY_HOURS)
        for arrives, messages in fleet.deliveries(shift_s=begins - round(fleet.start.timestamp())):
            today = int(np.searchsorted(arrives, begins + BUSY_HOURS * 3600))
            sent = 0
            while sent < today:
                here = min(today, int(np.searchsorted(arrives, time.time(), side="right")))
                yield messages[sent:here]
                sent = max(sent, here)  # the clock on the wall may step back
                if sent < today:
                    time.sleep(PAUSE_S)
            if today < len(messages):
                break
