"""A query over the plates of a moment, as the road asks it: whom a round charges, whose values it draws, the answer.

`Asked`: the local model. Every plate gives values of its own, and is charged for the rounds that it is in.
`AskedTogether`: the central model. One value is made of all plates that take part, and each is charged for every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from udp_stream.mechanisms.noise import Floats, Integers
from udp_stream.queries.elimination import Due, Elimination, How, Split, State, Terms, undecided
from udp_stream.queries.kinds import Density, Nearest, RangeCount, RegionShare
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane, Polygon, Rectangle, Region, cell_set


@dataclass(frozen=True)
class Found:
    """An answer: a number with its bounds, or the distances of the nearest plates, which have a radius each, in metres.

    `below` and `sure` are those of a `ShareAnswer`, None for other queries. `unknown` plates gave nothing.

    >>> Found(value=12.0, low=10.0, high=15.0, unknown=1).distances_m
    ()
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    distances_m: tuple[float, ...] = ()
    radii_m: tuple[float, ...] = ()
    excess_m: float | None = None
    below: bool | None = None
    sure: bool | None = None
    unknown: int = 0


@dataclass(frozen=True)
class Asked:
    """A query over the plates of a moment, each with noise of its own: its plane, its terms, and its rounds.

    >>> query = StandingQuery(name="stop", kind="nearest", center=(0, 0), place=(0.01, 0), every_s=900, age_s=600,
    ...     measure="zcdp", budget_nano=10**13, period="1d", period_budget_nano=10**15)
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
            # Noise may make an estimate negative, which no distance is.
            distances_m=_in_metres(np.maximum(left.estimate[at], 0.0)),
            radii_m=_in_metres(left.radius[at]),
            excess_m=excess if np.isfinite(excess) else None,
            unknown=nearest.unknown,
        )

    def due(self, state: State) -> Due | None:
        """The next round: which plates of the moment are charged, and how much; None if there is none."""
        return self.pie.due(state)

    def allowances(self, due: Due, number: int, budget_nano: int) -> Integers | None:  # noqa: ARG002
        """The most that each plate of a round may have been charged behind it; None: the budget."""
        return None

    def among(self, charged: Integers) -> Asked:  # noqa: ARG002
        """The query, once it is known what the plates of the first round were charged."""
        return self

    def members(self, due: Due, charged: Integers) -> Integers:
        """Of a round's plates, by their place in `pie`, those that give a value: they were charged for it."""
        return due.plates[charged >= due.charges]

    def positions_of(self, members: Integers, positions: Integers) -> Integers:
        """Of the moment's positions, what these members' values are made of."""
        return positions[members]

    def charged(self, state: State) -> int:
        """The most that a plate was charged, nano-units."""
        return int(state.charged.max(initial=0))


@dataclass(frozen=True)
class AskedTogether:
    """A query over the plates of a moment, all of them in one noisy value.

    Who takes part is decided in the first round, because a value of fewer plates later on would be of another sum. So a
    plate takes part if it has enough left for *all* rounds, of which it is then charged those that are asked.

    >>> query = StandingQuery(name="full", kind="threshold", center=(0, 0), box=(-0.01, -0.01, 0.01, 0.01), share=0.3,
    ...     edge_m=500, every_s=900, age_s=600, measure="zcdp", rounds=4, budget_nano=10**9, period="1d",
    ...     period_budget_nano=10**11)
    >>> asked = query.asked(plates=3)
    >>> due = asked.due(asked.pie.begin())
    >>> due.plates.tolist(), due.charges.tolist(), asked.allowances(due, 1, 10**11).tolist()[:1]
    ([0, 1, 2], [250000000, 250000000, 250000000], [99250000000])
    >>> asked.among(np.array([250_000_000, 0, 250_000_000])).taking.tolist()
    [0, 2]
    """

    plane: Plane
    terms: Terms
    query: RegionShare
    plates: int
    taking: Integers
    pie: Elimination

    @classmethod
    def over(cls, plane: Plane, terms: Terms, query: RegionShare, plates: int) -> AskedTogether:
        """Before it is known who takes part."""
        return cls(plane, terms, query, plates, np.arange(plates), query.elimination(terms, plates))

    def due(self, state: State) -> Due | None:
        """The next round: it charges every plate alike. The first asks all plates of the moment to take part."""
        due = self.pie.due(state)
        if due is None:
            return None
        plates = np.arange(self.plates) if state.rounds == 0 else self.taking
        return Due(plates, np.full(plates.size, due.charges[0]))

    def allowances(self, due: Due, number: int, budget_nano: int) -> Integers | None:
        """In the first round, what leaves enough for all rounds."""
        if number > 1:
            return None
        rest = int(self.terms.budgets_nano[0]) - due.charges
        return np.maximum(budget_nano - rest, 0)

    def among(self, charged: Integers) -> AskedTogether:
        """The query, over those that were charged for the first round."""
        taking = np.flatnonzero(charged > 0)
        pie = self.query.elimination(self.terms, self.plates, self.plates - taking.size)
        return replace(self, taking=taking, pie=pie)

    def members(self, due: Due, charged: Integers) -> Integers:
        """The one holder of all positions, if there is one, and everyone who takes part was charged for the round.

        One was not charged only if other rounds have charged it meanwhile. Then no more rounds are asked.
        """
        is_whole = self.taking.size > 0 and bool((charged >= due.charges)[np.isin(due.plates, self.taking)].all())
        return np.arange(int(is_whole))

    def positions_of(self, members: Integers, positions: Integers) -> Integers:
        """Those of all who take part."""
        return positions[self.taking if members.size else self.taking[:0]]

    def charged(self, state: State) -> int:
        """The most that a plate was charged, nano-units."""
        parts = self.terms.split.parts(int(self.terms.budgets_nano[0]))
        return sum(parts[: state.rounds]) if self.taking.size else 0

    def found(self, state: State) -> Found:
        """The answer after the last round."""
        unknown = self.plates - self.taking.size
        answer = self.query.answer(self.terms, self.pie, state, self.plates, unknown)
        return Found(answer.value, answer.low, answer.high, below=answer.below, sure=answer.sure, unknown=unknown)


def _in_metres(quanta: Floats) -> tuple[float, ...]:
    return tuple((quanta / QUANTA_PER_METRE).tolist())


# A standing query: what is asked of plates' positions again and again, as a value that can be written down.
#
# It says all that its rounds and its answer depend on besides positions and noise, so what a ledger remembers of it is
# enough to go on. `StandingQuery.asked` makes the query of `kinds.py`.

Kind = Literal["range", "density", "nearest", "threshold"]
QUARTERS = 4
"""What is handed on comes in quarters of a moment's even part: few budgets have few scales of noise to compute."""

Position = tuple[float, float]
"""Longitude and latitude, degrees: the order of GeoJSON, and of `pings.box`."""


class StandingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: places as (longitude, latitude) in degrees, lengths in metres, amounts in nano-units.

    `budget_nano` is the most that a plate is charged for one moment, `period_budget_nano` for all moments of a period
    and all queries: nano-rho per square kilometre, or nano-epsilon per kilometre. `every_s` and `age_s` are what the
    stream goes by. Of `box`, `polygon` and `cells` a range count and a threshold have one; the others have a `place`.
    `share` and `edge_m` are a threshold's alone, and absent for the others.

    `ramp` is there where what a plate has saved goes to its later moments. `budget_nano` is then the even part of a
    moment, which plates may exceed by their savings, and `ramp` how often (s), and for how much, each query of the
    budget is asked.

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
    measure: str
    budget_nano: int
    period: str
    period_budget_nano: int
    share: float | UnsetType = UNSET
    edge_m: float | UnsetType = UNSET
    ramp: tuple[tuple[int, int], ...] | UnsetType = UNSET

    def fingerprint(self) -> str:
        """The same for equal queries, 16 hexadecimal digits; results carry it as `policy`."""
        return blake2b(msgspec.json.encode(self, order="sorted"), digest_size=8).hexdigest()

    def handed_on(self, charged: Integers, gone_ms: int) -> tuple[int, ...]:
        """What plates are given of their savings at a moment, beside the even part, in quarters of that; () without a
        ramp. `charged` is what each was charged in the period so far, which began `gone_ms` before the moment.

        Algorithm 3 of *Adaptive Privacy Budgeting* (Liang and Yi). Before the moment even parts come to P in all, so a
        plate has saved P - charged. Of that it is given gamma = 3/4 + P / 4 (B - r), r the even part, B the budget: the
        paper's (l - 1) / (m - 1) where all parts are alike. Other queries at this very moment are not in P: their order
        does not matter. So if a plate was charged P at most, with this moment's parts it is charged P and those parts
        at most, and B at most in the end. *Proof:* charged + r + gamma (P - charged) <= P + r, as gamma <= 1. A second
        query at the moment finds either savings left, and the same holds, or none, and adds its even part alone. QED.
        The ledger holds every plate to B in any case.
        """
        if self.ramp is UNSET:
            return ()
        rest = max(1, self.period_budget_nano - self.budget_nano)
        planned = min(rest, sum(nano * ((gone_ms - 1) // (1000 * every_s)) for every_s, nano in self.ramp))
        # Python's integers: their products do not fit in 64 bits
        saved = np.maximum(planned - charged, 0).astype(object)
        return tuple((saved * (3 * rest + planned) // (rest * self.budget_nano)).tolist())

    def budgets(self, plates: int, handed_on: tuple[int, ...] = ()) -> Integers:
        """The most that each plate may be charged at a moment."""
        quarters = np.array(handed_on or (0,) * plates, np.int64)
        return self.budget_nano + self.budget_nano * quarters // QUARTERS

    def asked(self, plates: int, handed_on: tuple[int, ...] = ()) -> Asked | AskedTogether:
        """The query over these plates. ValueError for a region, a place or a budget that there can be no query of.

        In the central model all plates are charged alike, so that the one with the least to spend decides.
        """
        query, split = self.region_or_place(), Split.even(self.rounds)
        if isinstance(query, RegionShare):
            least = self.budgets(max(plates, 1), handed_on).min(keepdims=True)
            return AskedTogether.over(self._plane, Terms(self.measure, least, self.privatisation, split), query, plates)
        terms = Terms(self.measure, self.budgets(plates, handed_on), self.privatisation, split)
        return Asked(self._plane, terms, query, query.elimination(terms))

    def region_or_place(self) -> RangeCount | Density | Nearest | RegionShare:
        """What is asked of positions in the plane. ValueError for a region or a place that there is none of."""
        plane = self._plane
        if self.kind == "range":
            return RangeCount(self._region(plane))
        if self.kind == "threshold":
            if self.share is UNSET or self.edge_m is UNSET:
                raise ValueError("expected a share and an edge_m for a threshold")
            return RegionShare(self._region(plane), self.share, self.edge_m)
        if self.place is None:
            raise ValueError(f"expected a place for {self.kind}")
        ((east, north),) = _metres(plane, [self.place]).tolist()
        if self.kind == "density":
            return Density(east, north, self.bandwidth_m)
        return Nearest.to_stop(self.k, east, north)

    @property
    def _plane(self) -> Plane:
        return Plane(self.center[1], self.center[0])

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
