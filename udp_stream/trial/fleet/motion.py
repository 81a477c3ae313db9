"""How the buses of a made-up city move through one day, and the pings that they would send on perfect radio.

Theory of operation. A bus drives *legs*: from one halt to the next it accelerates, cruises, brakes, and then waits
(doors, a red light, a layover). Each round of `_drive_round` gives one more leg to every bus whose last leg ends before
the chunk of time at hand does, so that a round is a few dozen numpy calls for the whole fleet. Within a leg, place and
speed at any instant are closed formulas, so pings are looked up, never stepped.

Seconds are local seconds since midnight, as floats; places are metres along a route.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from udp_stream.trial.fleet.routes import ZONES, City, Floats, Ints, bell, piecewise

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

DELAY_UNKNOWN, ARRIVAL_UNKNOWN = 0.007, 0.06
"""Shares of stops that leave `trip_delay` null and, beside each trip's start, `last_stop_arrival_time`; fitted."""
BASE_DELAY_S = 900.0
"""Of a trip at its start, at most; a tenth of the time since then comes on top."""
UNKNOWN = np.iinfo(np.int32).min

FIRST_TRIP = 20_000_000
PROGRESS = np.dtype([(name, "i4") for name in ("route", "direction", "trip", "trip_start", "stop", "delay", "arrival")])
"""What passengers hear. `direction` is 1 up, -1 down; `trip_start` and `arrival` (at `stop`) are local seconds since
midnight, `delay` is seconds, `UNKNOWN` stands for null. A trip's stop settles the rest."""
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
    trip_start: Ints
    base_delay: Floats
    stop: Ints  # the last one halted at on this trip, with the delay then and the time, or UNKNOWN
    delay: Ints
    arrival: Ints


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
        **{name: np.zeros(buses, np.int64) for name in ("trip_start", "stop", "delay", "arrival")},
        base_delay=np.zeros(buses),
    )
    _turn_round(rng, city, crew, np.arange(buses))
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
    at_stop = city.node_is_stop[route, halt]
    _note_stop(rng, city, crew, bus[at_stop], arrive[at_stop])
    _turn_round(rng, city, crew, bus[terminal])
    return legs


def _note_stop(rng: np.random.Generator, city: City, crew: Crew, bus: Ints, arrive: Floats) -> None:
    """What passengers are told once these buses have reached a stop: which, when, and how late."""
    delay = np.floor(crew.base_delay[bus] + 0.1 * (arrive - crew.trip_start[bus]))
    crew.stop[bus] = city.node_stop_id[crew.route[bus], crew.node[bus]]
    crew.delay[bus] = np.where(rng.random(len(bus)) < DELAY_UNKNOWN, UNKNOWN, delay)
    crew.arrival[bus] = np.where(rng.random(len(bus)) < ARRIVAL_UNKNOWN, UNKNOWN, np.floor(arrive))


def _turn_round(rng: np.random.Generator, city: City, crew: Crew, bus: Ints) -> None:
    """Begin the next trips of these buses, from the node where they stand, when their layover is over."""
    crew.direction[bus] *= -1
    crew.trip_start[bus] = crew.clock[bus].astype(np.int64)
    crew.trip[bus] = int(crew.trip.max()) + 1 + np.arange(bus.size)
    crew.base_delay[bus] = BASE_DELAY_S * rng.random(bus.size)
    crew.stop[bus] = city.node_stop_id[crew.route[bus], crew.node[bus]]
    crew.delay[bus] = np.floor(crew.base_delay[bus])
    crew.arrival[bus] = UNKNOWN


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
