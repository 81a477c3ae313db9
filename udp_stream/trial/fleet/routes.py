"""The map of a made-up city: where its bus routes run, where buses halt, how fast the road is.

Nothing here is taken from a real network. Routes are smooth curves through made-up hubs; only the city's place, size
and speeds are set so that a fleet on it resembles what is known of the Surat feed (see `fleet`).

Theory of operation. A route is sampled every `STEP_M` metres into flat arrays, so that the place, the undisturbed speed
and the congestion of any point of any route are one index away. *Nodes* are where a bus may halt: stops and signals.

Every number comes from `Generator.random` or `Generator.integers` and from operations that IEEE 754 rounds correctly
(+, -, *, /, square root, floor): no sine, exponential or ziggurat, so that a seed means the same bytes on any platform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    node_stop_id: Ints  # (routes, most nodes) the stop here, or the last before it

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
    """Linear between `knots`, flat beyond; `np.interp` may fuse its multiply-add on some platforms, this may not.

    >>> piecewise(np.array([-1.0, 0.5, 9.0]), ((0.0, 10.0), (1.0, 20.0))).tolist()
    [10.0, 15.0, 20.0]
    """
    at, value = np.array(knots).T.copy()
    x = np.clip(x, at[0], at[-1])
    left = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
    share = (x - at[left]) / (at[left + 1] - at[left])
    result: Floats = value[left] + share * (value[left + 1] - value[left])
    return result


def bell(rng: np.random.Generator, *shape: int) -> Floats:
    """Bell-shaped noise of mean 0, deviation 1, within -3 and 3: three uniforms added."""
    return (rng.random(shape) + rng.random(shape) + rng.random(shape) - 1.5) * 2.0


def draw_city(rng: np.random.Generator, routes: int = ROUTES) -> City:
    """A city; the same for the same generator."""
    hubs, terminals = _draw_hubs(rng)
    lines = [_resample(_curve(_draw_corners(rng, hubs, terminals, rank))) for rank in range(routes)]
    sizes = np.array([len(line) for line in lines])
    x, y = np.clip(np.concatenate(lines), np.negative(EDGE_KM), EDGE_KM).T.copy()
    radius = np.sqrt((x / HALF_EXTENT_KM[0]) ** 2 + (y / HALF_EXTENT_KM[1]) ** 2)
    segments = np.concatenate([_draw_segments(rng, size) for size in sizes.tolist()])
    weights = np.cumsum(1.0 / (np.arange(routes) + POPULARITY_SHIFT))
    stops = [_draw_nodes(rng, (size - 2) * STEP_M) for size in sizes.tolist()]
    node_m, node_is_stop = _padded([m for m, _ in stops]), _padded([s for _, s in stops])
    return City(
        names=_names(routes),
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
        node_stop_id=1000 + np.cumsum(node_is_stop > 0).reshape(node_m.shape),
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
