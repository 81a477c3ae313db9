"""A standing query: what is asked of plates' positions again and again, as a value that can be written down.

It says all that its rounds and its answer depend on besides positions and noise, so what a ledger remembers of it is
enough to go on. `StandingQuery.asked` makes the query of `range_count.py`, `density.py`, `nearest.py` or
`region_share.py`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from udp_stream.mechanisms.noise.base import Floats, Measure
from udp_stream.queries.asked import Asked, AskedTogether
from udp_stream.queries.density import Density
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import Plane
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.region_share import RegionShare
from udp_stream.queries.regions import Polygon, Rectangle, Region, cell_set
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms

Kind = Literal["range", "density", "nearest", "threshold"]
Position = tuple[float, float]
"""Longitude and latitude, degrees: the order of GeoJSON, and of `pings.box`."""


class StandingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: places as (longitude, latitude) in degrees, lengths in metres, amounts in nano-units.

    `budget_nano` is the most that a plate is charged for one moment, `period_budget_nano` for all moments of a period
    and all queries: nano-rho per square kilometre, or nano-epsilon per kilometre. `every_s` and `age_s` are what the
    stream goes by. Of `box`, `polygon` and `cells` a range count and a threshold have one; the others have a `place`.
    `share` and `edge_m` are a threshold's alone, and absent for the others.

    >>> query = StandingQuery(name="north", kind="range", center=(-97.74, 30.27), box=(-97.75, 30.27, -97.73, 30.29),
    ...     every_s=900, age_s=600, measure="zcdp", budget_nano=10**9, period="1d", period_budget_nano=10**11)
    >>> query.asked(plates=3).pie.plates, len(query.fingerprint())
    (3, 16)
    """

    name: str
    kind: Kind
    center: Position
    box: tuple[float, float, float, float] | None = None
    polygon: tuple[Position, ...] | None = None
    cells: tuple[str, ...] | None = None
    place: Position | None = None
    k: int = 1
    bandwidth_m: float = 0.0
    every_s: int
    age_s: float
    rounds: int = 64
    privatisation: How = "distance"
    measure: Measure
    budget_nano: int
    period: str
    period_budget_nano: int
    share: float | UnsetType = UNSET
    edge_m: float | UnsetType = UNSET

    def fingerprint(self) -> str:
        """The same for equal queries, 16 hexadecimal digits; results carry it as `policy`."""
        return blake2b(msgspec.json.encode(self, order="sorted"), digest_size=8).hexdigest()

    def asked(self, plates: int) -> Asked | AskedTogether:
        """The query over these plates. ValueError for a region, a place or a budget that there can be no query of."""
        split = Split.even(self.rounds)
        query = self.region_or_place()
        if isinstance(query, RegionShare):
            return AskedTogether.over(self._plane, self._terms(split, 1), query, plates)
        terms = self._terms(split, plates)
        return Asked(self._plane, terms, query, query.elimination(terms))

    def _terms(self, split: Split, holders: int) -> Terms:
        budgets = np.full(holders, self.budget_nano, np.int64)
        return Terms(self.measure, budgets, self.privatisation, split)

    def region_or_place(self) -> RangeCount | Density | Nearest | RegionShare:
        """What is asked of positions in the plane. ValueError for a region or a place that there is none of."""
        return self._of(self._plane)

    @property
    def _plane(self) -> Plane:
        return Plane(self.center[1], self.center[0])

    def _of(self, plane: Plane) -> RangeCount | Density | Nearest | RegionShare:
        if self.kind == "range":
            return RangeCount(self._region(plane))
        if self.kind == "threshold":
            return self._threshold(plane)
        if self.place is None:
            raise ValueError(f"expected a place for {self.kind}")
        ((east, north),) = _metres(plane, [self.place]).tolist()
        if self.kind == "density":
            return Density(east, north, self.bandwidth_m)
        return Nearest.to_stop(self.k, east, north)

    def _threshold(self, plane: Plane) -> RegionShare:
        if self.share is UNSET or self.edge_m is UNSET:
            raise ValueError("expected a share and an edge_m for a threshold")
        return RegionShare(self._region(plane), self.share, self.edge_m)

    def _region(self, plane: Plane) -> Region:
        if self.box is not None:
            return _rectangle(plane, self.box)
        if self.polygon is not None:
            loop = _metres(plane, self.polygon)
            polygon = Polygon([loop])
            _require_area(loop)
            return polygon
        return cell_set([_cell(cell) for cell in self.cells or ()], plane)


def _metres(plane: Plane, places: list[Position] | tuple[Position, ...]) -> Floats:
    lon, lat = np.array(places, np.float64).reshape(-1, 2).T
    return plane.metres_of_places(lat, lon)


def _rectangle(plane: Plane, box: tuple[float, float, float, float]) -> Rectangle:
    """The rectangle of the plane with the box's middle, its width along the middle parallel, and its height."""
    west, south, east, north = box
    lon, lat = (west + east) / 2, (south + north) / 2
    middle, *sides = _metres(plane, [(lon, lat), (west, lat), (east, lat), (lon, south), (lon, north)])
    width, height = (float(np.hypot(*(sides[i + 1] - sides[i]))) for i in (0, 2))
    return Rectangle(float(middle[0]), float(middle[1]), width, height)


def _cell(name: str) -> int:
    try:
        return int(name, 16)
    except ValueError as error:
        raise ValueError(f"expected H3 cells as 15 hexadecimal digits, got {name!r}") from error


def _require_area(loop: Floats) -> None:
    """ValueError for corners that enclose nothing, as those in one line do."""
    x, y = loop.T
    area = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
    # Not `area < 1`: a NaN is to be refused, too.
    if not area >= 1:
        raise ValueError(f"expected corners that enclose an area of at least 1 square metre, got {area:.3g}")
