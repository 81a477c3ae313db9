"""A standing query: what is asked of plates' positions again and again, as a value that can be written down.

It says all that its rounds and its answer depend on besides positions and noise, so what a ledger remembers of it is
enough to go on. `StandingQuery.asked` makes the query of `range_count.py`, `density.py` or `nearest.py`.

The threshold query is not among them: it is about a count that one holder of data knows, not about each plate's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Measure
from udp_stream.queries.answers import undecided
from udp_stream.queries.density import Density
from udp_stream.queries.elimination import Elimination, State
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.regions import Polygon, Rectangle, Region, cell_set
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms

Kind = Literal["range", "density", "nearest"]
SplitName = Literal["even", "doubling"]
Position = tuple[float, float]
"""Longitude and latitude, degrees: the order of GeoJSON, and of `pings.box`."""


class StandingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: places as (longitude, latitude) in degrees, lengths in metres, amounts in nano-units.

    `budget_nano` is the most that a plate is charged for one moment, `period_budget_nano` for all moments of a period
    and all queries: nano-rho per square kilometre, or nano-epsilon per kilometre. `every_s` and `age_s` are what the
    stream goes by. Of `box`, `polygon` and `cells` a range count has one; the others have a `place`.

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
    split: SplitName = "even"
    privatisation: How = "distance"
    beta: float = 0.05
    measure: Measure
    budget_nano: int
    period: str
    period_budget_nano: int

    def fingerprint(self) -> str:
        """The same for equal queries, 16 hexadecimal digits; results carry it as `policy`."""
        return blake2b(msgspec.json.encode(self, order="sorted"), digest_size=8).hexdigest()

    def asked(self, plates: int) -> Asked:
        """The query over so many plates. ValueError for a region, a place or a budget that there can be no query of."""
        split = Split.even(self.rounds) if self.split == "even" else Split.doubling(self.rounds)
        budgets = np.full(plates, self.budget_nano, np.int64)
        terms = Terms(self.measure, budgets, self.privatisation, split, self.beta)
        query = self.region_or_place()
        return Asked(self._plane, terms, query, query.elimination(terms))

    def region_or_place(self) -> RangeCount | Density | Nearest:
        """What is asked of positions in the plane. ValueError for a region or a place that there is none of."""
        return self._of(self._plane)

    @property
    def _plane(self) -> Plane:
        return Plane(self.center[1], self.center[0])

    def _of(self, plane: Plane) -> RangeCount | Density | Nearest:
        if self.kind == "range":
            return RangeCount(self._region(plane))
        if self.place is None:
            raise ValueError(f"expected a place for {self.kind}")
        ((east, north),) = _metres(plane, [self.place]).tolist()
        if self.kind == "density":
            return Density(east, north, self.bandwidth_m)
        return Nearest.to_stop(self.k, east, north)

    def _region(self, plane: Plane) -> Region:
        if self.box is not None:
            return _rectangle(plane, self.box)
        if self.polygon is not None:
            loop = _metres(plane, self.polygon)
            polygon = Polygon([loop])
            _require_area(loop)
            return polygon
        return cell_set([_cell(cell) for cell in self.cells or ()], plane)


@dataclass(frozen=True)
class Found:
    """An answer: a number with its bounds, or the distances of the nearest plates, which have a radius each, in metres.

    `unknown` plates gave nothing.

    >>> Found(value=12.0, low=10.0, high=15.0, unknown=1).distances_m
    ()
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    distances_m: tuple[float, ...] = ()
    radii_m: tuple[float, ...] = ()
    excess_m: float | None = None
    unknown: int = 0


@dataclass(frozen=True)
class Asked:
    """A query over some plates: its plane, its terms, and its rounds.

    >>> query = StandingQuery(name="stop", kind="nearest", center=(0, 0), place=(0.01, 0), every_s=900, age_s=600,
    ...     measure="zcdp", budget_nano=10**12, period="1d", period_budget_nano=10**14)
    >>> import os
    >>> asked = query.asked(plates=2)
    >>> where = asked.plane.quanta(np.array([0.0, 0.0]), np.array([0.02, 0.5]))
    >>> (distance,) = asked.found(asked.pie.run(where, os.urandom)).distances_m
    >>> 800 < distance < 1500
    True
    """

    plane: Plane
    terms: Terms
    query: RangeCount | Density | Nearest
    pie: Elimination

    def found(self, state: State) -> Found:
        """The answer after the last round. Of the nearest it tells distances alone, and not which plates they are."""
        if not isinstance(self.query, Nearest):
            answer = self.query.answer(self.terms, self.pie, state)
            return Found(answer.value, answer.low, answer.high, unknown=answer.unknown)
        nearest = self.query.answer(self.terms, self.pie, state)
        left = undecided(self.pie, state, self.terms.beta1)
        at = np.flatnonzero(np.isin(left.plates, nearest.plates) & np.isfinite(left.radius))
        at = at[np.argsort(left.estimate[at], kind="stable")]
        excess = nearest.excess_metres
        return Found(
            distances_m=_in_metres(np.maximum(left.estimate[at], 0.0)),
            radii_m=_in_metres(left.radius[at]),
            excess_m=excess if np.isfinite(excess) else None,
            unknown=nearest.unknown,
        )

    @cached_property
    def deviation_m(self) -> float:
        """The standard deviation of one plate's noise in one direction, in metres: of the average of all its rounds.

        Under rho it is what one value for the whole budget would have. Laplace noise in the plane has (d + 1) b^2 in
        every direction, and the best average of several scales b_j has 1 / sum 1/b_j^2 in place of b^2.
        """
        parts = np.array(self.terms.split.parts(int(self.terms.budgets_nano[0]))) / 1e9
        if self.terms.measure == "zcdp":
            return float(1000 / np.sqrt(2 * parts.sum()))
        dimensions = 2 if self.terms.how == "point" else 1
        return float(1000 * np.sqrt((dimensions + 1) / np.square(parts).sum()))


def _metres(plane: Plane, places: list[Position] | tuple[Position, ...]) -> Floats:
    lon, lat = np.array(places, np.float64).reshape(-1, 2).T
    return plane.metres(lat, lon)


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
    if not area >= 1:
        raise ValueError(f"expected corners that enclose an area of at least 1 square metre, got {area:.3g}")


def _in_metres(quanta: Floats) -> tuple[float, ...]:
    return tuple((quanta / QUANTA_PER_METRE).tolist())
