"""Standing queries: recurrent questions about plates' positions, and their rounds over a moment's
plates.

Rounds and answer depend on a `StandingQuery`, positions and noise alone, so a run can go on from
the query that a ledger remembers. In the local model each plate gives values of its own, and is
charged for its rounds. In the central model a single value is made of all plates that take part,
and each is charged for every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from udp_stream.base.arrays import Floats, Integers
from udp_stream.mechanisms.noise import require_measure
from udp_stream.queries.elimination import Elimination, How, NextRound, QueryBudget, Split, State
from udp_stream.queries.kinds import BoundedAnswer, Density, Nearest, RangeCount, RegionShare
from udp_stream.queries.plane import PlanarPolygon, Plane, Rectangle, Region, cell_set


@dataclass(frozen=True)
class LocalQuery:
    """A query over the plates of a moment, each of which gets noise of its own.

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
    budgeting: QueryBudget
    query: RangeCount | Density | Nearest
    pie: Elimination

    def due(self, state: State) -> NextRound | None:
        """The next round: its plates and their charges; None after the last."""
        return self.pie.due(state)

    def allowances(self, due: NextRound, number: int, budget_nano: int) -> Integers | None:  # noqa: ARG002
        """The most that each plate of a round may have been charged before it, if less than the
        budget."""
        return None

    def among(self, charged: Integers) -> LocalQuery | CentralQuery:  # noqa: ARG002
        return self

    def members(
        self, due: NextRound, charged: Integers, positions: Integers
    ) -> tuple[Integers, Integers]:
        """The plates that give a value in a round, by index in `pie`, and positions behind it."""
        plates = due.plates[charged >= due.charges]
        return plates, positions[plates]

    def charged(self, state: State) -> int:
        return int(state.charged.max(initial=0))

    def found(self, state: State) -> BoundedAnswer:
        return self.query.answer(self.budgeting, self.pie, state)


@dataclass(frozen=True)
class CentralQuery:
    """A query over the plates of a moment, all of them in a single noisy value.

    The first round decides who takes part, as fewer plates later would be another sum. So a plate
    takes part if it has enough left for *all* rounds; it is charged for those that are asked.

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
    budgeting: QueryBudget
    query: RegionShare
    plates: int
    taking: Integers
    pie: Elimination

    def due(self, state: State) -> NextRound | None:
        # The first round asks all plates of the moment.
        due = self.pie.due(state)
        if due is None:
            return None
        plates = np.arange(self.plates) if state.rounds == 0 else self.taking
        return NextRound(plates, np.full(plates.size, due.charges[0]))

    def allowances(self, due: NextRound, number: int, budget_nano: int) -> Integers | None:
        # In the first round, what leaves enough for all rounds.
        rest = int(self.budgeting.budgets_nano[0]) - due.charges
        return np.maximum(budget_nano - rest, 0) if number == 1 else None

    def among(self, charged: Integers) -> CentralQuery:
        taking = np.flatnonzero(charged > 0)
        pie = self.query.elimination(self.budgeting, self.plates, self.plates - taking.size)
        return replace(self, taking=taking, pie=pie)

    def members(
        self, due: NextRound, charged: Integers, positions: Integers
    ) -> tuple[Integers, Integers]:
        # The holder of all positions, if every plate that takes part was charged. A plate was not
        # charged only if other rounds have charged it meanwhile; then no more rounds are asked.
        is_whole = self.taking.size > 0 and bool(
            (charged >= due.charges)[np.isin(due.plates, self.taking)].all()
        )
        return np.arange(int(is_whole)), positions[self.taking if is_whole else self.taking[:0]]

    def charged(self, state: State) -> int:
        parts = self.budgeting.split.parts(int(self.budgeting.budgets_nano[0]))
        return sum(parts[: state.rounds]) if self.taking.size else 0

    def found(self, state: State) -> BoundedAnswer:
        return self.query.answer(
            self.budgeting, self.pie, state, self.plates, self.plates - self.taking.size
        )


Kind = Literal["range", "density", "nearest", "threshold"]

QUARTERS = 4
"""Parts of a moment's even share in which savings are handed on, so that few scales of noise are
computed."""

Position = tuple[float, float]
"""Longitude and latitude, degrees: the order of GeoJSON, and of `pings.box`."""


class StandingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question: places as (longitude, latitude) in degrees, lengths in metres, amounts in
    nano-units.

    `budget_nano` is the most that a plate is charged for a moment, `period_budget_nano` for all
    moments of a period and all queries: nano-rho per square kilometre, or nano-epsilon per
    kilometre. It is asked every `every_s` seconds of positions that are at most `age_s` old. A
    range count and a threshold have a `box`, a `polygon` or `cells`; the other kinds have a
    `place`. Thresholds alone have `share` and `edge_m`.

    With a `ramp`, a plate's savings go to its later moments, which may then exceed `budget_nano`,
    the even part. `ramp` has the interval (s) and even part of each query of the budget.

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

    def __post_init__(self) -> None:
        require_measure(self.measure)

    def fingerprint(self) -> str:
        """The same for equal queries, 16 hexadecimal digits; results carry it as `policy`."""
        return blake2b(msgspec.json.encode(self, order="sorted"), digest_size=8).hexdigest()

    def handed_on(self, charged: Integers, gone_ms: int) -> tuple[int, ...]:
        """The savings that plates may spend at a moment, in quarters of the even part; () without a
        ramp. `charged` is each plate's charge in the period so far, which began `gone_ms` before
        the moment.

        Algorithm 3 of *Adaptive Privacy Budgeting* (Liang and Yi). Before the moment even parts
        come to P in all, so a plate has saved P - charged. Of that it gets gamma = 3/4 + P / 4 (B -
        r), r the even part, B the budget: the paper's (l - 1) / (m - 1) where all parts are alike.
        Other queries at this very moment are not in P: their order does not matter. So if a plate
        was charged P at most, with this moment's parts it is charged P and those parts at most, and
        B at most in the end. *Proof:* charged + r + gamma (P - charged) <= P + r, as gamma <= 1. A
        second query at the moment finds either savings left, and the same holds, or none, and adds
        its even part alone. QED. The ledger holds every plate to B in any case.
        """
        if self.ramp is UNSET:
            return ()
        rest = max(1, self.period_budget_nano - self.budget_nano)
        planned = min(
            rest, sum(nano * ((gone_ms - 1) // (1000 * every_s)) for every_s, nano in self.ramp)
        )
        # Python's integers: products do not fit in 64 bits
        saved = np.maximum(planned - charged, 0).astype(object)
        return tuple((saved * (3 * rest + planned) // (rest * self.budget_nano)).tolist())

    def budgets(self, plates: int, handed_on: tuple[int, ...] = ()) -> Integers:
        quarters = np.array(handed_on or (0,) * plates, np.int64)
        return self.budget_nano + self.budget_nano * quarters // QUARTERS

    def asked(self, plates: int, handed_on: tuple[int, ...] = ()) -> LocalQuery | CentralQuery:
        """The query over so many plates. ValueError for a region, a place or a budget that does not
        make a query."""
        query = self.region_or_place()
        split = Split.even(self.rounds)
        if isinstance(query, RegionShare):
            # All plates are charged alike: what the poorest can pay.
            least = self.budgets(max(plates, 1), handed_on).min(keepdims=True)
            budgeting = QueryBudget(self.measure, least, self.privatisation, split)
            pie = query.elimination(budgeting, plates)
            return CentralQuery(self._plane, budgeting, query, plates, np.arange(plates), pie)
        budgeting = QueryBudget(
            self.measure, self.budgets(plates, handed_on), self.privatisation, split
        )
        return LocalQuery(self._plane, budgeting, query, query.elimination(budgeting))

    def region_or_place(self) -> RangeCount | Density | Nearest | RegionShare:
        """The query in the plane. ValueError for a region or a place that there is none of."""
        if self.kind == "range":
            return RangeCount(self._region())
        if self.kind == "threshold":
            if self.share is UNSET or self.edge_m is UNSET:
                raise ValueError("expected a share and an edge_m for a threshold")
            return RegionShare(self._region(), self.share, self.edge_m)
        if self.place is None:
            raise ValueError(f"expected a place for {self.kind}")
        ((east, north),) = _metres(self._plane, [self.place]).tolist()
        if self.kind == "density":
            return Density(east, north, self.bandwidth_m)
        return Nearest.to_stop(self.k, east, north)

    @property
    def _plane(self) -> Plane:
        return Plane(self.center[1], self.center[0])

    def _region(self) -> Region:
        if self.box is not None:
            west, south, east, north = self.box
            lon = (west + east) / 2
            lat = (south + north) / 2
            middle, *sides = _metres(
                self._plane, [(lon, lat), (west, lat), (east, lat), (lon, south), (lon, north)]
            )
            width, height = (float(np.hypot(*(sides[i + 1] - sides[i]))) for i in (0, 2))
            return Rectangle(float(middle[0]), float(middle[1]), width, height)
        if self.polygon is None:
            return cell_set(self.cells or (), self._plane)
        loop = _metres(self._plane, self.polygon)
        polygon = PlanarPolygon([loop])
        (x, y) = loop.T
        area = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
        # Corners in a line enclose nothing. Not `area < 1`: a NaN is to be refused, too.
        if not area >= 1:
            raise ValueError(
                f"expected corners that enclose an area of at least 1 square metre, got {area:.3g}"
            )
        return polygon


def _metres(plane: Plane, places: Sequence[Position]) -> Floats:
    lon, lat = np.array(places, np.float64).reshape(-1, 2).T
    return plane.metres_of_places(lat, lon)
