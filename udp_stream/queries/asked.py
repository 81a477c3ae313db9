"""A query over the plates of a moment, as the road asks it: whom a round charges, whose values it draws, the answer.

`Asked`: the local model. Every plate gives values of its own, and is charged for the rounds that it is in.
`AskedTogether`: the central model. One value is made of all plates that take part, and each is charged for every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.answers import undecided
from udp_stream.queries.density import Density
from udp_stream.queries.elimination import Due, Elimination, State
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.region_share import RegionShare
from udp_stream.queries.terms import Terms


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

    >>> from udp_stream.queries.standing import StandingQuery
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

    @property
    def deviation_m(self) -> float:
        """The standard deviation of one plate's noise in one direction, in metres: of the average of all its rounds."""
        return _deviation_m(self.terms)


@dataclass(frozen=True)
class AskedTogether:
    """A query over the plates of a moment, all of them in one noisy value.

    Who takes part is decided in the first round, because a value of fewer plates later on would be of another sum. So a
    plate takes part if it has enough left for *all* rounds, of which it is then charged those that are asked.

    >>> from udp_stream.queries.standing import StandingQuery
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

    @property
    def deviation_m(self) -> float:
        """The standard deviation of the sum's noise, in metres: of the average of all rounds."""
        return _deviation_m(self.terms)

    @property
    def deviation_plates(self) -> float:
        """The same of the count."""
        return self.deviation_m / self.query.edge


def _deviation_m(terms: Terms) -> float:
    """Under rho it is what one value for the whole budget would have. Laplace noise in the plane has (d + 1) b^2 in
    every direction, and the best average of several scales b_j has 1 / sum 1/b_j^2 in place of b^2."""
    parts = np.array(terms.split.parts(int(terms.budgets_nano[0]))) / 1e9
    if terms.measure == "zcdp":
        return float(1000 / np.sqrt(2 * parts.sum()))
    dimensions = 2 if terms.how == "point" else 1
    return float(1000 * np.sqrt((dimensions + 1) / np.square(parts).sum()))


def _in_metres(quanta: Floats) -> tuple[float, ...]:
    return tuple((quanta / QUANTA_PER_METRE).tolist())
