"""Regions of the plane, by their signed distance: how far a position is from the edge, negative inside.

It is 1-Lipschitz (*Adaptive Privacy Budgeting*, Liang and Yi, Lemma 6.3), so it can be made private in place of the
position. Lengths are in quanta (sixteenths of a metre). Corners are rounded to whole quanta, so that for a position on
the lattice it is exact on which side of each edge it lies; distances are floating point, off by less than 2^-20 quanta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.plane import EDGE, QUANTA_PER_METRE, Plane
from udp_stream.windows.tables import outlines_of

_AT_ONCE = 1 << 22
"""Pairs of a position and an edge that are worked on together: 32 MB a column."""


class Region(Protocol):
    """Something with an inside.

    >>> region: Region = Rectangle(0, 0, 800, 400)
    >>> region.signed_distance(np.array([[0.0, 0.0]])).tolist()
    [-3200.0]
    """

    def signed_distance(self, positions: Floats) -> Floats:
        """Of each row (east, north), in quanta: below 0 inside."""
        ...

    def threshold(self, deviation: Floats) -> Floats:
        """Below which a noisy distance is counted as inside, where its noise has this standard deviation."""
        ...


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
        """Check its size and place."""
        if not (self.width > 0 and self.height > 0 and np.isfinite([self.east, self.north]).all()):
            raise ValueError(f"expected a width and height > 0, got {self.width} x {self.height}")
        reach = max(abs(self.east) + self.width / 2, abs(self.north) + self.height / 2)
        _require_in_plane(reach * QUANTA_PER_METRE)

    def signed_distance(self, positions: Floats) -> Floats:
        """The greater of what both sides say where one of them is inside, else their hypotenuse."""
        middle, half = self._middle_and_half
        beyond = np.abs(np.asarray(positions, np.float64) - middle) - half
        outside = np.hypot(*np.maximum(beyond, 0.0).T)
        distance: Floats = outside + np.minimum(beyond.max(axis=1), 0.0)
        return distance

    def threshold(self, deviation: Floats) -> Floats:
        """The shifted threshold of Appendix B: as much of the plane is wrongly taken in as left out, roughly.

        With width and height w and l, and g the noise's deviation: -g a, where the band from -a g to (1 - a) g around
        the edge has the area of the one from -(1 + a) g to -a g.

        >>> Rectangle(0, 0, 1000, 1000).threshold(np.array([160.0, 16_000.0])).round(1).tolist()
        [-1.6, -12686.3]
        """
        width, height = 2 * self._middle_and_half[1]
        g, both = np.asarray(deviation, np.float64), width + height
        narrow = 2 * g < min(width, height)
        # (both - root) / 4, without the cancellation of large sizes
        inner = 4 * g * g / (both + np.sqrt(np.maximum(both * both - 16 * g * g, 0.0)))
        outer = g - (np.sqrt(both * both + 4 * width * height) - both) / 4
        return np.asarray(-np.where(narrow, inner, outer))

    @cached_property
    def _middle_and_half(self) -> tuple[Floats, Floats]:
        """In whole quanta for the corners."""
        middle = np.array([self.east, self.north])
        half = np.array([self.width, self.height]) / 2
        low, high = np.rint((middle - half) * QUANTA_PER_METRE), np.rint((middle + half) * QUANTA_PER_METRE)
        return (low + high) / 2, (high - low) / 2


class Polygon:
    """What closed loops of corners enclose; a point in an even number of them is outside, so holes are loops too.

    >>> corners = np.array([[0, 0], [100, 0], [0, 100]])  # metres east and north
    >>> Polygon([corners]).signed_distance(np.array([[160, 160], [-160, 0]])).tolist()
    [-160.0, 160.0]

    Raises ValueError for a loop of fewer than three corners, or outside of the plane.
    """

    def __init__(self, loops: Sequence[Floats]) -> None:
        """Loops in metres around a plane's centre; the last corner is joined to the first."""
        starts, ends = [], []
        for loop in loops:
            corners = np.rint(np.asarray(loop, np.float64) * QUANTA_PER_METRE)
            if corners.ndim != 2 or corners.shape[0] < 3 or corners.shape[1] != 2:
                raise ValueError(f"expected loops of at least three corners (east, north), got {corners.shape}")
            _require_in_plane(float(np.abs(corners).max()))
            starts.append(corners)
            ends.append(np.roll(corners, -1, axis=0))
        if not starts:
            raise ValueError("expected a loop of corners, got none")
        start, end = np.concatenate(starts), np.concatenate(ends)
        # Corners that fell together in rounding: an edge without a length would divide by 0.
        real = (start != end).any(axis=1)
        self._start, self._end = start[real], end[real]
        if not real.any():
            raise ValueError("expected a loop that encloses something, got one place alone")

    def signed_distance(self, positions: Floats) -> Floats:
        """The distance to the nearest edge, and the parity of edges crossed on the way to the east."""
        places = np.asarray(positions, np.float64)
        rows = max(1, _AT_ONCE // self._start.shape[0])
        # At least one part, also of no positions: numpy cannot join none.
        parts = [self._of(places[i : i + rows]) for i in range(0, max(1, places.shape[0]), rows)]
        distances: Floats = np.concatenate(parts)
        return distances

    def threshold(self, deviation: Floats) -> Floats:
        """The edge itself: Appendix B is about rectangles."""
        return np.zeros_like(deviation)

    def _of(self, places: Floats) -> Floats:
        (x, y), (x1, y1), (x2, y2) = places.T[:, :, None], self._start.T, self._end.T
        along_x, along_y = x2 - x1, y2 - y1
        off_x, off_y = x - x1, y - y1
        share = np.clip((off_x * along_x + off_y * along_y) / (along_x**2 + along_y**2), 0.0, 1.0)
        square = (off_x - share * along_x) ** 2 + (off_y - share * along_y) ** 2
        # exact for positions on the lattice: products below 2^50
        left = along_x * off_y - along_y * off_x
        # Half open in y, so that a crossing at a corner counts for one of its two edges only.
        crosses = ((y1 <= y) & (y < y2) & (left > 0)) | ((y2 <= y) & (y < y1) & (left < 0))
        inside = crosses.sum(axis=1) % 2 == 1
        distance = np.sqrt(square.min(axis=1))
        signed: Floats = np.where(inside, -distance, distance)
        return signed


def cell_set(cells: Sequence[int], plane: Plane) -> Polygon:
    """The area of H3 cells, all of one resolution, in a plane.

    Its edges are straight in the plane; H3's are parts of great circles on its sphere, a few centimetres beside them.

    >>> region = cell_set([609162003746914303], Plane(21.17, 72.83))
    >>> region.signed_distance(np.zeros((1, 2))).round(-3).tolist()  # some 800 m within
    [-13000.0]

    Raises ValueError for no cells, for cells of several resolutions, for what is no cell, and for one that is far from
    the plane's centre.
    """
    loops = outlines_of(cells)
    return Polygon([plane.metres_of_places(loop[:, 0], loop[:, 1]) for loop in loops])


def positions_inside(region: Region, positions: Integers) -> int:
    """How many positions lie inside: the truth, which is not private.

    >>> positions_inside(Rectangle(0, 0, 10, 10), np.array([[0, 0], [79, 79], [80, 0], [99, 0]]))
    2
    """
    return int((region.signed_distance(positions.astype(np.float64)) < 0).sum())


def _require_in_plane(reach: float) -> None:
    # Not `reach > EDGE`: a NaN is to be refused, too.
    if not reach <= EDGE:
        raise ValueError(f"expected a region within {EDGE / QUANTA_PER_METRE / 1000:.0f} km of the plane's centre")
