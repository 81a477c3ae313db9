"""A city as a plane: positions in whole sixteenths of a metre, east and north of a centre; and
regions of it.

**Projection.** Transverse Mercator around the centre's meridian (Krueger's series to the third
order, WGS 84). It keeps angles; lengths come out too long by a part in 2 (R/x)^2 at x metres east
or west of the centre, R = 6.37e6, whatever the latitude: 8 parts in a million at 25 km, 3 in
100,000 at 50 km, 1.2 in 10,000 at 100 km.

**Privacy is by the distance in this plane**, between positions rounded to the lattice. Rounding
moves a position by at most 1/32 m in each direction, so two *unrounded* positions at distance d are
told apart as two rounded positions at up to d + 0.09 m.

**On the ground.** Two positions that are d metres apart on the ground, wherever on earth, are at
most 1.01 d apart in the plane. *Up to 8 degrees of arc from the centre* a length is at most 1 /
cos(8 degrees) = 1.0099 times too long, as the distance from the centre's meridian is at most 8
degrees, and the circle is convex. *A position that is farther away* is moved to the circle, along
its great circle. Up to 90 degrees that shortens all distances: at r degrees by the factor sin(8) /
sin(r) across, and to nothing along. Farther away the result is also drawn towards the centre, by
(180 - r) / 90. No distance there is longer than a quarter of that on the ground, and the opposite
point of the earth is at the centre: there is no seam.

**Cost** is nano-epsilon per kilometre, or nano-rho per square kilometre: per square metre, rounding
would decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import sqrt

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import nano_allowance
from udp_stream.mechanisms.noise import Cost, concentrated
from udp_stream.windows.grid import outlines_of

QUANTA_PER_METRE = 16
"""Quanta in a metre: finer than any receiver, and far below any noise."""

QUANTA_PER_KM = 1000 * QUANTA_PER_METRE

EDGE = 2**24
"""Largest coordinate, quanta (1049 km): products of two are exact in floating point, and their sums
in 64 bits."""

_DEGREES = 8.0
"""Degrees of arc: positions farther from the centre are moved. Queries' regions and places may not
lie farther."""

_LATITUDE_MAX = 80.0

_EQUATOR_M = 6_378_137.0
_FLATTENING = 1 / 298.257223563


def rho_per_square_metre(rho: float | Decimal) -> Cost:
    """The cost of a rho of geo-privacy per square metre, in nano-rho per square kilometre, rounded
    down."""
    return concentrated(nano_allowance(Decimal(str(rho)) * 10**6))


@dataclass(frozen=True)
class Plane:
    """The plane around a centre, in degrees (WGS 84).

    >>> austin = Plane(30.27, -97.74)
    >>> austin.quanta(np.array([30.27, 30.28]), np.array([-97.74, -97.74])).tolist()  # 1108.6 m to the north
    [[0, 0], [0, 17737]]

    Raises ValueError for a centre that is no place, or within ten degrees of a pole.
    """

    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if not (abs(self.latitude) <= _LATITUDE_MAX and abs(self.longitude) <= 180):
            raise ValueError(
                f"expected a centre with |latitude| <= {_LATITUDE_MAX:g} and |longitude| <= 180, "
                f"got {self.latitude}, {self.longitude}"
            )

    def metres(self, latitude: Floats, longitude: Floats) -> Floats:
        """Metres east and north of the centre, shape (positions, 2); far positions are moved
        nearer. ValueError for a NaN."""
        lat = np.asarray(latitude, np.float64)
        lon = np.asarray(longitude, np.float64)
        if not (np.isfinite(lat).all() and np.isfinite(lon).all()):
            raise ValueError("expected positions that are numbers, got one that is not")
        lat, east, share = self._moved_nearer(lat, self._east(lon))
        found = _transverse_mercator(lat, east)
        found[:, 1] -= self._north
        return found * share[:, None]

    def metres_of_places(self, latitude: Floats, longitude: Floats) -> Floats:
        """The same for a query's places. ValueError for a place that would be moved to another."""
        away, _, _ = self._seen(latitude, self._east(longitude))
        for at in np.flatnonzero(away > np.radians(_DEGREES))[:1]:
            raise ValueError(
                f"expected places within {_DEGREES:g} degrees of the centre (longitude {self.longitude:g}, "
                f"latitude {self.latitude:g}), got longitude {longitude[at]:g}, latitude {latitude[at]:g}"
            )
        return self.metres(latitude, longitude)

    def quanta(self, latitude: Floats, longitude: Floats) -> Integers:
        rounded = np.rint(self.metres(latitude, longitude) * QUANTA_PER_METRE)
        return np.asarray(np.clip(rounded, -EDGE, EDGE).astype(np.int64))

    def _east(self, longitude: Floats) -> Floats:
        """Degrees east of the centre's meridian, the short way round."""
        return (longitude - self.longitude + 180) % 360 - 180

    def _seen(self, latitude: Floats, east: Floats) -> tuple[Floats, Floats, Floats]:
        """Radians of arc from the centre; the centre as a unit vector; and directions at right
        angles to it."""
        centre = _on_sphere(np.array([self.latitude]), np.zeros(1))[0]
        position = _on_sphere(latitude, east)
        along = position @ centre
        across = position - along[:, None] * centre
        length = np.linalg.norm(across, axis=1)
        return (
            np.arctan2(length, along),
            centre,
            across / np.maximum(length, np.finfo(np.float64).tiny)[:, None],
        )

    def _moved_nearer(self, latitude: Floats, east: Floats) -> tuple[Floats, Floats, Floats]:
        """Positions, moved onto the circle if beyond it; and the share of their distance that is
        left."""
        away, centre, direction = self._seen(latitude, east)
        limit = np.radians(_DEGREES)
        x, y, z = (np.cos(limit) * centre + np.sin(limit) * direction).T
        is_far = away > limit
        lat = np.where(is_far, np.degrees(np.arctan2(z, np.hypot(x, y))), latitude)
        return (
            lat,
            np.where(is_far, np.degrees(np.arctan2(y, x)), east),
            np.clip(2 - 2 * away / np.pi, 0, 1),
        )

    @cached_property
    def _north(self) -> float:
        return float(_transverse_mercator(np.array([self.latitude]), np.zeros(1))[0, 1])


def _on_sphere(latitude: Floats, east: Floats) -> Floats:
    up = np.radians(latitude)
    round_ = np.radians(east)
    return np.column_stack((np.cos(up) * np.cos(round_), np.cos(up) * np.sin(round_), np.sin(up)))


def _transverse_mercator(latitude: Floats, east: Floats) -> Floats:
    """Metres east of the meridian and north of the equator, for degrees of latitude and degrees
    east of the meridian.

    L. Krueger, Konforme Abbildung des Erdellipsoids in der Ebene (1912), as in Karney, J. Geodesy
    85 (2011), 475-485.
    """
    n = _FLATTENING / (2 - _FLATTENING)
    radius = _EQUATOR_M / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    series = (n / 2 - 2 * n**2 / 3 + 5 * n**3 / 16, 13 * n**2 / 48 - 3 * n**3 / 5, 61 * n**3 / 240)
    sine = np.sin(np.radians(latitude))
    away = np.radians(east)
    squeeze = 2 * sqrt(n) / (1 + n)
    conformal = np.sinh(np.arctanh(sine) - squeeze * np.arctanh(squeeze * sine))
    up = np.arctan2(conformal, np.cos(away))
    right = np.arcsinh(np.sin(away) / np.hypot(conformal, np.cos(away)))
    x = right.copy()
    y = up.copy()
    for j, coefficient in enumerate(series, 1):
        x += coefficient * np.cos(2 * j * up) * np.sinh(2 * j * right)
        y += coefficient * np.sin(2 * j * up) * np.cosh(2 * j * right)
    return np.column_stack((radius * x, radius * y))


# Regions of the plane, by their signed distance: how far a position is from the edge, negative
# inside.
#
# It is 1-Lipschitz (*Adaptive Privacy Budgeting*, Liang and Yi, Lemma 6.3), so it can be made
# private in place of the position. Lengths are in quanta (sixteenths of a metre). Corners are
# rounded to whole quanta, so the side of an edge is exact for a position on the lattice; distances
# are floating point, off by less than 2^-20 quanta.

_AT_ONCE = 1 << 22
"""Pairs of a position and an edge in a pass: 32 MB a column."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle with its sides to the north and east, in metres around a plane's centre.

    >>> square = Rectangle(east=1000, north=0, width=500, height=500)
    >>> square.signed_distance(np.array([[16_000, 0], [20_000, 0], [23_000, 7000]])).tolist()
    [-4000.0, 0.0, 4242.640687119285]

    Raises ValueError unless both sides are longer than nothing, and all of it lies in the plane.
    """

    east: float
    north: float
    width: float
    height: float

    def __post_init__(self) -> None:
        if not (self.width > 0 and self.height > 0 and np.isfinite([self.east, self.north]).all()):
            raise ValueError(f"expected a width and height > 0, got {self.width} x {self.height}")
        reach = max(abs(self.east) + self.width / 2, abs(self.north) + self.height / 2)
        _require_in_plane(reach * QUANTA_PER_METRE)

    def signed_distance(self, positions: Floats) -> Floats:
        # The greater of both coordinates' distances where either is inside, else their hypotenuse.
        middle, half = self._middle_and_half
        beyond = np.abs(np.asarray(positions, np.float64) - middle) - half
        outside = np.hypot(*np.maximum(beyond, 0.0).T)
        return np.asarray(outside + np.minimum(beyond.max(axis=1), 0.0))

    def threshold(self, deviation: Floats) -> Floats:
        """The shifted threshold of Appendix B, -a g: as much of the plane is wrongly taken in as
        left out, roughly.

        g is the noise's deviation. Corners are square, as in the paper. The band between the
        rectangle and itself grown by (1 - a) g on each side is as large as the band between it and
        itself shrunk by (1 + a) g (to nothing where 2 g is at least a side).
        """
        width, height = 2 * self._middle_and_half[1]
        g = np.asarray(deviation, np.float64)
        both = width + height
        narrow = 2 * g < min(width, height)
        # (both - root) / 4, without the cancellation of large sizes
        inner = 4 * g * g / (both + np.sqrt(np.maximum(both * both - 16 * g * g, 0.0)))
        outer = g - (np.sqrt(both * both + 4 * width * height) - both) / 4
        return np.asarray(-np.where(narrow, inner, outer))

    @cached_property
    def _middle_and_half(self) -> tuple[Floats, Floats]:
        """Middle and half width of the corners, whole quanta."""
        middle = np.array([self.east, self.north])
        half = np.array([self.width, self.height]) / 2
        low = np.rint((middle - half) * QUANTA_PER_METRE)
        high = np.rint((middle + half) * QUANTA_PER_METRE)
        return (low + high) / 2, (high - low) / 2


class PlanarPolygon:
    """The area in closed loops of corners, in metres around a plane's centre. A loop's last corner
    is joined to its first. A point in an even number of loops is outside, so holes are loops too.

    >>> corners = np.array([[0, 0], [100, 0], [0, 100]])  # metres east and north
    >>> PlanarPolygon([corners]).signed_distance(np.array([[160, 160], [-160, 0]])).tolist()
    [-160.0, 160.0]

    Raises ValueError for a loop of fewer than three corners, or outside of the plane.
    """

    def __init__(self, loops: Sequence[Floats]) -> None:
        starts = []
        ends = []
        for loop in loops:
            corners = np.rint(np.asarray(loop, np.float64) * QUANTA_PER_METRE)
            if corners.ndim != 2 or corners.shape[0] < 3 or corners.shape[1] != 2:
                raise ValueError(
                    f"expected loops of at least three corners (east, north), got {corners.shape}"
                )
            _require_in_plane(float(np.abs(corners).max()))
            starts.append(corners)
            ends.append(np.roll(corners, -1, axis=0))
        if not starts:
            raise ValueError("expected a loop of corners, got none")
        start = np.concatenate(starts)
        end = np.concatenate(ends)
        # Without edges of no length, of corners that rounding joined: they would divide by 0.
        real = (start != end).any(axis=1)
        self._start = start[real]
        self._end = end[real]
        if not real.any():
            raise ValueError("expected a loop that encloses something, got one place alone")

    def signed_distance(self, positions: Floats) -> Floats:
        # The distance to the nearest edge; the sign is the parity of edges crossed on the way to
        # the east.
        places = np.asarray(positions, np.float64)
        rows = max(1, _AT_ONCE // self._start.shape[0])
        # At least a part, also of no positions: numpy cannot join none.
        parts = [self._of(places[i : i + rows]) for i in range(0, max(1, places.shape[0]), rows)]
        return np.asarray(np.concatenate(parts))

    def threshold(self, deviation: Floats) -> Floats:
        # The edge itself: Appendix B is about rectangles.
        return np.zeros_like(deviation)

    def _of(self, places: Floats) -> Floats:
        (x, y) = places.T[:, :, None]
        (x1, y1) = self._start.T
        (x2, y2) = self._end.T
        along_x = x2 - x1
        along_y = y2 - y1
        off_x = x - x1
        off_y = y - y1
        share = np.clip((off_x * along_x + off_y * along_y) / (along_x**2 + along_y**2), 0.0, 1.0)
        square = (off_x - share * along_x) ** 2 + (off_y - share * along_y) ** 2
        # exact for positions on the lattice: products below 2^50
        left = along_x * off_y - along_y * off_x
        # Half open in y, so that a crossing at a corner counts for a single edge of its two.
        crosses = ((y1 <= y) & (y < y2) & (left > 0)) | ((y2 <= y) & (y < y1) & (left < 0))
        inside = crosses.sum(axis=1) % 2 == 1
        distance = np.sqrt(square.min(axis=1))
        return np.asarray(np.where(inside, -distance, distance))


Region = Rectangle | PlanarPolygon


def cell_set(cells: Sequence[str], plane: Plane) -> PlanarPolygon:
    """The area of H3 cells of equal resolution, by their ids. Its straight edges are a few
    centimetres beside H3's great circles.

    Raises ValueError for no cells, several resolutions, what is no cell, and a cell far
    from the centre.
    """
    return PlanarPolygon(
        [plane.metres_of_places(loop[:, 0], loop[:, 1]) for loop in outlines_of(cells)]
    )


def positions_inside(region: Region, positions: Integers) -> int:
    """How many positions lie inside; not private."""
    return int((region.signed_distance(positions.astype(np.float64)) < 0).sum())


def _require_in_plane(reach: float) -> None:
    # Not `reach > EDGE`: a NaN is to be refused, too.
    if not reach <= EDGE:
        raise ValueError(
            f"expected a region within {EDGE / QUANTA_PER_METRE / 1000:.0f} km of the plane's centre"
        )
