"""A synthetic bus fleet: pings of a made-up city as its exchange would deliver them, faults and
all, then or now.

The feed of Surat has no licence. Only published statistics of half an hour of it (2022-01-01 10:10,
208 plates) went into this fleet: 29 % zero speeds, median 15, 99th percentile 49 and maximum 62
km/h, whole km/h in 98.8 % of pings, 10 s the commonest interval, 45 % of neighbours out of order,
60 cells of H3 resolution 7. The rest is invented; likeness to a registered vehicle is chance.

A bus drives *legs*: it accelerates, cruises, brakes, then waits at a *node*, a stop or a signal.
Within a leg place and speed are closed formulas. Times are local seconds. The same arguments give
the same bytes on every platform: numbers come from `Generator.random` and `integers` by operations
that IEEE 754 rounds correctly (no sine, no ziggurat).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from itertools import chain, count
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from udp_stream.base.arrays import Floats, Integers

Records = npt.NDArray[np.void]
Rng = np.random.Generator

IST = timezone(timedelta(hours=5, minutes=30))
IST_OFFSET_S = 19_800
DAY_S = 86_400
LIVE_HOURS = 12
LIVE_PAUSE_S = 0.25  # messages that arrive within the pause are handed on together
_CITY, _FLEET, _FAULTS, _DAYS = range(4)  # which generator a seed is spread into

# The city: pairs are east and north.
CENTRE = (72.83, 21.19)
KM_PER_DEGREE = (103.677, 111.195)  # at this latitude; its cosine is not computed
HALF_EXTENT_KM = (10.0, 8.0)
EDGE_KM = (14.0, 13.0)  # no route leaves the edge
ROUTES = 60
TRUNK_ROUTES = 33
STEP_M = 25.0
STOP_GAP_M = (400.0, 600.0)
ROUTE_NAMES = tuple(f"{n // 2 + 11}{'A' * (n % 4 == 1)}{'E' * (n % 4 == 3)}" for n in range(ROUTES))
ZONES = (12, 10)
ZONE_KM = 2.0
PATCH_KM = 2.0  # the outermost zones of traffic also hold whatever lies beyond
_QUARTER = (1.0, 0.0), (0.9239, 0.3827), (0.7071, 0.7071), (0.3827, 0.9239)
COMPASS = np.array(
    [
        (a * x - b * y, b * x + a * y)
        for a, b in ((1, 0), (0, 1), (-1, 0), (0, -1))
        for x, y in _QUARTER
    ]
)
# Km/h, undisturbed; fitted.
SPEED_BY_RADIUS = (
    (0.0, 20.0),
    (0.25, 26.0),
    (0.55, 43.0),
    (1.0, 54.0),
    (2.0, 54.0),
)

# Driving
OPENS_S = 5.5 * 3600
CLOSES_S = 22.5 * 3600
RAMP_S = 2.0 * 3600  # buses leave from 05:30 on, and go home from 20:30 on
FLOW_BY_HOUR = ((5.5, 1.2), (7.5, 1.05), (9.0, 0.75), (10.0, 0.8), (11.5, 1.0), (15.0, 1.05), (16.5, 0.95),
                (18.5, 0.62), (20.0, 0.85), (22.5, 1.2))  # fmt: skip  # factors on speed where crowding is 1
ACCELERATION = 0.8
BRAKING = 0.9  # m/s2, what standing passengers bear
CRUISE_KMH = (7.0, 57.0)
MAX_KMH = 62.0
EASED_ABOVE_KMH = 37.0
EASED = 0.3  # real speeds thin out between 40 and 50
STOPS_HELD = 0.6
SIGNALS_HELD = 0.35
NODES_SKIPPED_MAX = 4  # about 1.7 halts a kilometre
LAYOVER_S = (60.0, 300.0)
BREAK_S = (1200.0, 3000.0)
BREAK_SHARE = 0.06  # so that 29 % of pings stand still
FIRST_TRIP = 20_000_000
TRIPS_A_DAY_MAX = 100  # the shortest route and layover take a quarter of an hour

# Pings: (seconds between two of a bus, weight) as counted in the real feed; the rarest are lumped
# together.
INTERVALS = ((10, 305), (12, 118), (5, 85), (15, 72), (20, 58), (8, 56), (4, 49), (9, 47), (11, 47), (16, 27), (21, 13),
             (19, 13), (6, 9), (60, 9), (14, 8), (30, 12), (25, 8), (40, 6), (120, 2))  # fmt: skip
CHUNK_S = (30, 600)
CHUNK_PINGS = 50_000
BATCH = 4096  # made at a time, 5 MB: memory does not grow with the run
GPS_NOISE_M = 3.0
SPEED_NOISE = 0.05
FLOAT_SHARE = 0.012  # of speed, relative; and of real speeds with a decimal
TRIP = [("route", "i4"), ("direction", "i4"), ("trip", "i4")]  # 1 up, -1 down
LEG = np.dtype(
    [
        *TRIP,
        ("bus", "i4"),
        *((of, "f8") for of in ("depart", "leave", "from_m", "speed_ms", "cruise_s")),
    ]
)
PING = np.dtype([*TRIP, ("bus", "i4"), ("second", "i8"), ("lon_e6", "i4"), ("lat_e6", "i4"), ("tenths", "i4"),
                 ("has_decimal", "?"), ("arrives", "f8"), ("flaw", "i1")])  # fmt: skip  # -1, or an index into FLAWS
MESSAGE = (
    '{"license_plate":"%s","observationDateTime":"%s","location":{"type":"Point","coordinates":[%.6f,%.6f]},'
    '"route_id":"%s%s","trip_id":"%d","speed":%s}'
)

# What goes wrong
SHUFFLED_S = 60.0
LATE_S = (180.0, 7200.0)
REPEAT_TRIP = 1_000_000_000  # added to the trip of a repeat
SENTINEL_KMH = 410.383
FUTURE_YEAR = "2068"  # 255 mph is "unknown" in Austin; clocks in Delhi were decades ahead
REQUIRED = "license_plate", "observationDateTime", "location", "speed"


def between(a: Floats | float, b: Floats | float, share: Floats) -> Floats:
    """Point at this share of the way from a to b."""
    return a + share * (b - a)


def within(bounds: tuple[float, float], share: Floats) -> Floats:
    """Point at this share of the way between two bounds."""
    return between(bounds[0], bounds[1], share)


def piecewise(x: Floats, knots: Sequence[tuple[float, float]]) -> Floats:
    """Interpolation of x, linear between knots, flat beyond; `np.interp` may fuse its multiply-add
    on some platforms, this may not."""
    at, value = np.array(knots).T.copy()
    x = np.clip(x, at[0], at[-1])
    left = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
    return between(value[left], value[left + 1], (x - at[left]) / (at[left + 1] - at[left]))


def bell(rng: Rng, *shape: int) -> Floats:
    """Bell-shaped noise of mean 0, deviation 1, within -3 and 3: three uniforms added."""
    return (rng.random(shape) + rng.random(shape) + rng.random(shape) - 1.5) * 2.0


class City:
    """Smooth routes through made-up hubs, by route; and by sample, `first[route] + metres /
    STEP_M`, the road."""

    def __init__(self, rng: Rng) -> None:
        half = np.array(HALF_EXTENT_KM)
        hubs = COMPASS * half * (0.35 + 0.35 * rng.random((16, 1))) + 0.3 * bell(rng, 16, 2)
        terminals = COMPASS * half * (0.85 + 0.3 * rng.random((16, 1)))
        lines = [_sampled(_corners(rng, hubs, terminals, rank)) for rank in range(ROUTES)]
        sizes = np.array([len(line) for line in lines])
        self.first = np.cumsum(sizes) - sizes
        self.length_m = (sizes - 2) * STEP_M
        self.place_km = np.clip(np.concatenate(lines), np.negative(EDGE_KM), EDGE_KM)
        zone = np.clip(
            np.floor(self.place_km / ZONE_KM) + np.floor_divide(ZONES, 2), 0, np.subtract(ZONES, 1)
        )
        self.zone = (zone[:, 0] * ZONES[1] + zone[:, 1]).astype(np.int64)
        radius = np.sqrt(
            (self.place_km[:, 0] / half[0]) ** 2 + (self.place_km[:, 1] / half[1]) ** 2
        )
        # How much of a rush hour is felt here.
        self.crowding = np.clip(1.15 - 0.8 * radius, 0.2, 1.0)
        # Each kilometre of a route has a factor on speed, and so has each patch of the city,
        # bilinear between corners.
        kilometre = [(np.arange(size) * STEP_M / 1000).astype(np.int64) for size in sizes.tolist()]
        local = np.concatenate(
            [(1.0 + 0.17 * bell(rng, int(len(at) * STEP_M / 1000) + 1))[at] for at in kilometre]
        )
        nodes: list[
            list[tuple[float, bool]]
        ] = []  # metres along each route, and whether it is a stop, else a signal
        for length in self.length_m.tolist():
            stops = np.cumsum(within(STOP_GAP_M, rng.random(int(length / STOP_GAP_M[0]) + 2)))
            stops = np.concatenate([[0.0], stops[stops < length - STOP_GAP_M[0] / 2], [length]])
            signals = between(stops[:-1], stops[1:], 0.3 + 0.4 * rng.random(len(stops) - 1))
            signals = signals[rng.random(len(signals)) < 0.5]
            nodes.append(
                sorted(
                    [
                        *((at, True) for at in stops.tolist()),
                        *((at, False) for at in signals.tolist()),
                    ]
                )
            )
        self.nodes = np.array([len(of_route) for of_route in nodes])
        padded = np.array(
            [of_route + of_route[-1:] * (self.nodes.max() - len(of_route)) for of_route in nodes]
        )
        self.node_m = padded[:, :, 0]
        self.node_is_stop = padded[:, :, 1] > 0
        grid = np.clip(1.0 + 0.25 * bell(rng, 16, 16), 0.6, 1.45)
        at = np.clip(self.place_km / PATCH_KM + 7.5, 0, 14.99)
        (i, j) = at.astype(np.int64).T
        (s, t) = (at - np.floor(at)).T
        patch = between(
            between(grid[i, j], grid[i + 1, j], s),
            between(grid[i, j + 1], grid[i + 1, j + 1], s),
            t,
        )
        self.cruise_kmh = piecewise(radius, SPEED_BY_RADIUS) * patch * np.clip(local, 0.65, 1.35)


def _corners(rng: Rng, hubs: Floats, terminals: Floats, rank: int) -> Floats:
    """Corners of the route of this rank, shape (corners, 2): trunk routes come first, thin suburban
    routes last; with bends between."""
    start, turn = rng.integers(16, size=2).tolist()
    beside = (start + (1 if turn % 2 else 15)) % 16
    outside = terminals[start] + 0.4 * bell(rng, 2)
    centre = 2.8 * bell(rng, 2)
    if rank >= TRUNK_ROUTES:
        far = terminals[beside] * (0.8 + 0.2 * rng.random())
        corners = np.array([outside, far, 0.4 * terminals[beside] + 0.6 * hubs[beside]])
    else:
        inward = 0.5 * (outside + hubs[start]), hubs[start], centre
        through = hubs[start], centre, 0.5 * hubs[(start + 5 + turn % 7) % 16]
        corners = np.array((inward, through, (outside, hubs[start], hubs[beside]))[rank % 3])
    along = corners[1:] - corners[:-1]
    path = np.repeat(corners, 3, axis=0)[:-2]
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    for third in (1, 2):
        path[third::3] = (
            corners[:-1] + along * third / 3 + across * (0.16 * bell(rng, len(along), 1))
        )
    return path


def _sampled(corners: Floats) -> Floats:
    """Points every `STEP_M` metres along a Catmull-Rom curve through the corners, the last
    twice."""
    padded = np.concatenate(
        [2 * corners[:1] - corners[1:2], corners, 2 * corners[-1:] - corners[-2:-1]]
    )
    a, b, c, d = (padded[k : len(padded) - 3 + k, None, :] for k in range(4))
    u = (np.arange(60) / 60)[None, :, None]
    inner = 0.5 * (
        2 * b + u * ((c - a) + u * ((2 * a - 5 * b + 4 * c - d) + u * (3 * b - a - 3 * c + d)))
    )
    curve = np.concatenate([inner.reshape(-1, 2), corners[-1:]])
    gap = np.sqrt((curve[1:, 0] - curve[:-1, 0]) ** 2 + (curve[1:, 1] - curve[:-1, 1]) ** 2)
    along = np.concatenate([[0.0], np.cumsum(gap)])
    at = np.arange(int(along[-1] * 1000 / STEP_M)) * (STEP_M / 1000)
    left = np.clip(np.searchsorted(along, at, side="right") - 1, 0, len(gap) - 1)
    line = between(
        curve[left], curve[left + 1], ((at - along[left]) / np.maximum(gap[left], 1e-12))[:, None]
    )
    return np.concatenate([line, line[-1:]])


class Day:
    """A day's service: where each bus is between two legs, an entry per bus."""

    def __init__(self, rng: Rng, city: City, route: Integers, driver: Floats, trips: int) -> None:
        self.city = city
        self.route = route
        self.driver = driver
        buses = len(route)
        self.clock = np.floor(OPENS_S + RAMP_S * rng.random(buses))
        self.closes = np.floor(CLOSES_S - RAMP_S * rng.random(buses))
        # By zone and half hour.
        self.traffic = np.clip(1.0 + 0.16 * bell(rng, ZONES[0] * ZONES[1], 50), 0.6, 1.4)
        self.motion, self.radio = rng.spawn(2)
        upward = self.motion.random(buses) < 0.5
        self.direction = np.where(upward, 1, -1)
        self.node = np.where(upward, 0, city.nodes[route] - 1)
        self.trip = trips + np.arange(buses)
        self.motion.random(buses)  # unused

    def pings(self, start: int, end: int, ping_s: float) -> Iterator[tuple[int, Records]]:
        """Pairs of (end of chunk, its pings by time) from second `start` to `end`; buses drive from
        the day's first minute."""
        buses = len(self.route)
        legs = np.empty(0, LEG)
        due = np.maximum(self.clock, float(start)) + np.floor(ping_s * self.radio.random(buses))
        chunk_s = int(min(max(CHUNK_PINGS * ping_s / buses, CHUNK_S[0]), CHUNK_S[1]))
        for begin in range(start, end, chunk_s):
            until = min(begin + chunk_s, end)
            driven = [legs]
            while (going := np.flatnonzero(self.clock < np.minimum(until, self.closes))).size:
                driven.append(self._leg(going))
            legs = np.concatenate([leg[leg["leave"] > begin] for leg in driven])
            bus, second = self._ping_times(
                due, np.minimum(self.closes, until), ping_s, int(chunk_s / ping_s) + 2
            )
            yield until, self._look_up(legs, bus, second, begin)

    def _leg(self, bus: Integers) -> Records:
        """Another leg for each of these buses; then they stand at its end, where they may begin
        another trip."""
        city = self.city
        rng = self.motion
        route = self.route[bus]
        node = self.node[bus]
        depart = self.clock[bus]
        trip = route, self.direction[bus], self.trip[bus]
        halt = node + trip[1]
        last = city.nodes[route] - 1
        through = np.ones(len(bus), dtype=np.bool_)
        for _ in range(
            NODES_SKIPPED_MAX
        ):  # it drives through some stops and signals, never through an end
            held = np.where(city.node_is_stop[route, halt], STOPS_HELD, SIGNALS_HELD)
            through &= (rng.random(len(bus)) >= held) & (halt > 0) & (halt < last)
            halt = halt + trip[1] * through
        from_m = city.node_m[route, node]
        to_m = city.node_m[route, halt]
        length = np.abs(to_m - from_m)
        point = city.first[route] + ((from_m + to_m) / 2 / STEP_M).astype(np.int64)

        # Place, hour, the day's traffic, driver and chance multiply.
        hours = depart / 3600
        zone = city.zone[point]
        half = (2 * hours).astype(np.int64)
        flow = 1.0 - city.crowding[point] * (1.0 - piecewise(hours, FLOW_BY_HOUR))
        traffic = between(self.traffic[zone, half], self.traffic[zone, half + 1], 2 * hours - half)
        kmh = (
            city.cruise_kmh[point]
            * flow
            * traffic
            * self.driver[bus]
            * (1.0 + 0.36 * bell(rng, len(bus)))
        )
        eased = np.minimum(kmh, EASED_ABOVE_KMH + EASED * (kmh - EASED_ABOVE_KMH))
        cruise = np.clip(eased, CRUISE_KMH[0], CRUISE_KMH[1]) / 3.6
        speed = np.minimum(
            cruise, np.sqrt(2 * length * ACCELERATION * BRAKING / (ACCELERATION + BRAKING))
        )
        cruise_s = (
            np.maximum(length - speed * speed * (0.5 / ACCELERATION + 0.5 / BRAKING), 0.0) / speed
        )
        is_end = (halt == 0) | (halt == last)
        is_stop = city.node_is_stop[route, halt]
        u = rng.random(len(bus))
        on_break = rng.random(len(bus)) < BREAK_SHARE
        layover = np.where(on_break, within(BREAK_S, u), within(LAYOVER_S, u))
        wait_s = np.where(is_end, layover, np.where(is_stop, 6.0 + 24.0 * u * u, 5.0 + 45.0 * u))
        leave = depart + cruise_s + speed / ACCELERATION + speed / BRAKING + wait_s
        self.node[bus] = halt
        self.clock[bus] = leave
        turning = bus[is_end]
        self.direction[turning] *= -1
        self.trip[turning] = int(self.trip.max()) + 1 + np.arange(turning.size)
        rng.random(2 * np.count_nonzero(is_stop) + turning.size)  # unused
        return np.rec.fromarrays((*trip, bus, depart, leave, from_m, speed, cruise_s), LEG)

    def _ping_times(
        self, due: Floats, until: Floats, ping_s: float, width: int
    ) -> tuple[Integers, Integers]:
        """Pair of (bus, whole second) of every ping from `due` to before `until`; draws `width` at
        a time, moves `due` on."""
        seconds, weights = np.array(INTERVALS).T.copy()
        steps = np.maximum(1.0, np.floor(seconds * (ping_s / 10.0) + 0.5))
        bounds = np.cumsum(weights) / weights.sum()
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        while (going := np.flatnonzero(due < until)).size:
            drawn = steps[
                np.searchsorted(bounds, self.radio.random((going.size, width)), side="right")
            ]
            moments = np.cumsum(np.concatenate([due[going, None], drawn], axis=1), axis=1)
            row, column = np.nonzero(moments[:, :-1] < until[going, None])
            found.append((going[row], moments[row, column].astype(np.int64)))
            due[going] = moments[np.arange(going.size), np.bincount(row, minlength=going.size)]
        return np.concatenate([bus for bus, _ in found]), np.concatenate(
            [second for _, second in found]
        )

    def _look_up(self, legs: Records, bus: Integers, second: Integers, origin: int) -> Records:
        """The pings of the given buses and seconds from `origin` on, sorted by time."""
        legs = legs[np.lexsort((legs["depart"], legs["bus"]))]
        key = legs["bus"] * float(DAY_S) + (legs["depart"] - origin)
        leg = legs[np.searchsorted(key, bus * float(DAY_S) + (second - origin), side="right") - 1]
        speed = leg["speed_ms"]
        elapsed_s = second - leg["depart"]
        trip = [leg[name] for name, _ in TRIP]
        speeding_s = speed / ACCELERATION
        braking_s = speed / BRAKING
        gained = np.minimum(elapsed_s, speeding_s)
        cruised = np.clip(elapsed_s - speeding_s, 0.0, leg["cruise_s"])
        braked = np.clip(elapsed_s - speeding_s - leg["cruise_s"], 0.0, braking_s)
        driven = (
            0.5 * ACCELERATION * gained * gained
            + speed * (cruised + braked)
            - 0.5 * BRAKING * braked * braked
        )
        kmh = np.where(
            braked >= braking_s,
            0.0,
            np.maximum(ACCELERATION * gained - BRAKING * braked, 0.0) * 3.6,
        )
        city = self.city
        rng = self.radio
        nothing = np.zeros(len(bus))
        steps = np.minimum(leg["from_m"] + trip[1] * driven, city.length_m[trip[0]] - 1e-6) / STEP_M
        point = city.first[trip[0]] + steps.astype(np.int64)
        share = (steps - np.floor(steps))[:, None]
        place_km = between(city.place_km[point], city.place_km[point + 1], share)
        (lon, lat) = (CENTRE + place_km / KM_PER_DEGREE).T
        east = GPS_NOISE_M * 9.6
        north = GPS_NOISE_M * 9.0
        lon_e6 = np.floor(lon * 1e6 + east * bell(rng, len(bus)) / 1.7 + 0.5)
        lat_e6 = np.floor(lat * 1e6 + north * bell(rng, len(bus)) / 1.7 + 0.5)
        kmh = np.clip(kmh * (1.0 + SPEED_NOISE * bell(rng, len(bus))), 0.0, MAX_KMH)
        has_decimal = rng.random(len(bus)) < FLOAT_SHARE
        tenths = np.where(has_decimal, np.floor(kmh * 10 + 0.5), 10 * np.floor(kmh + 0.5))
        found = np.rec.fromarrays(
            (*trip, bus, second, lon_e6, lat_e6, tenths, has_decimal, nothing, nothing), PING
        )
        # Of 16 bits, which a chunk's seconds fit into: numpy's stable sort is a radix sort there,
        # and fast.
        return found[np.argsort((second - origin).astype(np.uint16), kind="stable")]


@dataclass(frozen=True)
class Imperfections:
    """Faults between the buses and us, each a share of pings, 0 for never; as in real feeds, or
    nearly so.

    `out_of_order` is of neighbours that step back in time (among some dozens of buses), `late` by 3
    minutes to 2 hours; `repeated` pings come again under another trip_id. The rest spoil a ping, a
    single fault at most each.
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

    @classmethod
    def none(cls) -> Imperfections:
        """Every ping arrives once, whole, and in order."""
        return cls(*[0.0] * len(fields(cls)))

    def send(self, rng: Rng, pings: Records) -> Records:
        """These pings and then their repeats, with flaws, and with arrivals whose order is not
        theirs. If a share q is delayed, q (1 - q) + q^2 / 2 of the neighbours stand in the wrong
        order."""
        again = pings[rng.random(len(pings)) < self.repeated]
        again["trip"] += REPEAT_TRIP
        sent = np.concatenate([pings, again])
        delayed = 1.0 - np.sqrt(1.0 - 2.0 * self.out_of_order)
        shuffled = rng.random(len(sent)) * np.where(
            rng.random(len(sent)) < delayed, SHUFFLED_S, float(delayed > 0)
        )
        late = within(LATE_S, rng.random(len(sent)))
        sent["arrives"] = sent["second"] + np.where(
            rng.random(len(sent)) < self.late, late, shuffled
        )
        flaw = np.searchsorted(np.cumsum(astuple(self)[3:]), rng.random(len(sent)), side="right")
        sent["flaw"] = np.where(flaw < len(FLAWS), flaw, -1)
        return sent


FLAWS = tuple(each.name for each in fields(Imperfections))[3:]


def encode(pings: Records, plates: Sequence[str]) -> list[bytes]:
    """A message for each ping: no spaces, six decimals, times to the second at +05:30; its flaw
    spoils it."""
    times = {
        at: datetime.fromtimestamp(at - IST_OFFSET_S, IST).isoformat()
        for at in set(pings["second"].tolist())
    }
    of_speed = zip(pings["tenths"].tolist(), pings["has_decimal"].tolist(), strict=True)
    columns = (
        map(plates.__getitem__, pings["bus"].tolist()), map(times.__getitem__, pings["second"].tolist()),
        (pings["lon_e6"] / 1e6).tolist(), (pings["lat_e6"] / 1e6).tolist(),
        map(ROUTE_NAMES.__getitem__, pings["route"].tolist()), np.where(pings["direction"] > 0, "U", "D").tolist(),
        pings["trip"].tolist(), [tenths / 10 if has_decimal else tenths // 10 for tenths, has_decimal in of_speed],
    )  # fmt: skip
    messages = [(MESSAGE % row).encode() for row in zip(*columns, strict=True)]
    for at in np.flatnonzero(pings["flaw"] >= 0).tolist():
        messages[at] = _spoiled(
            messages[at], FLAWS[pings["flaw"][at]], REQUIRED[pings["second"][at] % 4]
        )
    return messages


def _spoiled(message: bytes, flaw: str, missing: str) -> bytes:
    """A message with a flaw."""
    if flaw == "not_json":
        return message[: len(message) // 2]
    ping = msgspec.json.decode(message)
    time = ping["observationDateTime"]
    changes: dict[str, dict[str, object]] = {
        "null_speed": {"speed": None}, "sentinel_speed": {"speed": SENTINEL_KMH}, "empty_plate": {"license_plate": ""},
        "no_offset": {"observationDateTime": time[:19]}, "far_future": {"observationDateTime": FUTURE_YEAR + time[4:]},
        "null_island": {"location": ping["location"] | {"coordinates": [0, 0]}},
    }  # fmt: skip
    kept = {
        name: value for name, value in ping.items() if (flaw, name) != ("missing_field", missing)
    }
    return msgspec.json.encode(kept | changes.get(flaw, {}))


class FleetColumns(NamedTuple):
    """Trips of the buses, by time; an entry per ping, as written in its message."""

    plate: Integers  # index into `Fleet.plates`
    time_ms: Integers  # UTC, whole seconds
    lat: Floats
    lon: Floats
    speed_kmh: Floats


@dataclass(frozen=True)
class Fleet:
    """Buses from `start` for `hours`, each pinging about every `ping_seconds`; silence from 22:30
    to 05:30.

    >>> fleet = Fleet(buses=3, start=datetime(2024, 1, 8, 10, 0, tzinfo=IST), hours=0.1)
    >>> fleet.plates, next(fleet.messages())[0][:28]
    (('GJ05ZZ0001', 'GJ05ZZ0002', 'GJ05ZZ0003'), b'{"license_plate":"GJ05ZZ0003')
    """

    seed: int = 1
    buses: int = 400
    start: datetime = datetime(2024, 1, 8, 5, 0, tzinfo=IST)
    hours: float = 18
    ping_seconds: float = 10
    imperfections: Imperfections = field(default_factory=Imperfections)

    @property
    def plates(self) -> tuple[str, ...]:
        """The plate of every bus: series ZZ first, then ZY down to ZA."""
        return tuple(
            f"GJ05Z{chr(ord('Z') - bus // 9999)}{bus % 9999 + 1:04d}" for bus in range(self.buses)
        )

    def messages(self) -> Iterator[list[bytes]]:
        return (messages for _, messages in self.deliveries())

    def deliveries(self, shift_s: int = 0) -> Iterator[tuple[Floats, list[bytes]]]:
        """JSON messages in lists of `BATCH`, each with the times at which they arrive: Unix
        seconds, ascending. All is `shift_s` seconds later than it was. Holds at most ten minutes of
        pings and those on their way."""
        rng = self._rng(_FAULTS)
        plates = self.plates
        waiting = np.empty(0, PING)
        for end, pings in chain(
            self._pings(), [(math.inf, waiting)]
        ):  # at the end come those still on their way
            waiting = np.concatenate([waiting, self.imperfections.send(rng, pings)])
            # Stable: the same on every platform.
            waiting = waiting[np.argsort(waiting["arrives"], kind="stable")]
            here = int(np.searchsorted(waiting["arrives"], end))
            whole = here if end == math.inf else here - here % BATCH
            for at in range(0, whole, BATCH):
                some = waiting[at : min(at + BATCH, whole)]
                some["second"] += shift_s
                yield some["arrives"] + shift_s - IST_OFFSET_S, encode(some, plates)
            waiting = waiting[whole:]

    def chunks(self) -> Iterator[FleetColumns]:
        """Trips of the buses, at most ten minutes at a time, before any fault on the way."""
        for _, pings in self._pings():
            yield FleetColumns(
                pings["bus"].astype(np.int64),
                (pings["second"] - IST_OFFSET_S) * 1000,
                pings["lat_e6"] / 1e6,
                pings["lon_e6"] / 1e6,
                pings["tenths"] / 10,
            )

    def columns(self) -> FleetColumns:
        """The same for the whole run at once: 40 bytes a ping, so mind the memory of long runs."""
        return FleetColumns(*map(np.concatenate, zip(*self.chunks(), strict=True)))

    def city(self) -> City:
        return City(self._rng(_CITY))

    def _rng(self, *key: int) -> Rng:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )

    def _pings(self) -> Iterator[tuple[float, Records]]:
        """Pairs of (end of chunk, its pings by time), with `second` counted from the epoch in local
        time."""
        city = self.city()
        rng = self._rng(_FLEET)
        trips = FIRST_TRIP
        # Most run in the middle, the suburbs see a few.
        weights = np.cumsum(1.0 / (np.arange(ROUTES) + 5.0))
        route = np.searchsorted(weights / weights[-1], rng.random(self.buses), side="right")
        driver = 1.0 + 0.05 * bell(rng, self.buses)
        start = math.floor(self.start.timestamp()) + IST_OFFSET_S
        end = start + math.ceil(self.hours * 3600)
        for day in range(start // DAY_S, -(-end // DAY_S)):
            midnight = day * DAY_S
            service = Day(self._rng(_DAYS, day), city, route, driver, trips)
            first = max(start - midnight, 0)
            last = min(end - midnight, DAY_S)
            for chunk_end, pings in service.pings(first, last, self.ping_seconds):
                pings["second"] += midnight
                yield midnight + chunk_end, pings
            trips += TRIPS_A_DAY_MAX * self.buses


def live_messages(buses: int, ago_s: float = 0.0) -> Iterator[list[bytes]]:
    """Messages as if a fleet drove now, without end, each list once the last of it has arrived, or
    an empty list; first those of the last `ago_s`. Busy hours are moved to the present, made-up
    days in turn."""
    for day, begins in enumerate(count(math.floor(time.time() - ago_s), LIVE_HOURS * 3600)):
        fleet = Fleet(
            1, buses, datetime(2024, 1, 8, 8, tzinfo=IST) + timedelta(days=day), LIVE_HOURS
        )
        for arrives, messages in fleet.deliveries(begins - round(fleet.start.timestamp())):
            today = int(np.searchsorted(arrives, begins + LIVE_HOURS * 3600))
            sent = 0
            while sent < today:
                here = min(today, int(np.searchsorted(arrives, time.time(), side="right")))
                yield messages[sent:here]
                sent = max(sent, here)  # the clock on the wall may step back
                if sent < today:
                    time.sleep(LIVE_PAUSE_S)
            if today < len(messages):
                break
