"""The kinds of queries on positions (*Adaptive Privacy Budgeting*, Liang and Yi): phi, rule, and
answer of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, inf

import numpy as np

from udp_stream.base.arrays import NO_INTEGERS, Floats, Integers
from udp_stream.queries.elimination import (
    ABOVE,
    BELOW,
    IN,
    REFUSED,
    BandRule,
    Elimination,
    NearestRule,
    QueryBudget,
    State,
    undecided,
)
from udp_stream.queries.plane import QUANTA_PER_KM, QUANTA_PER_METRE, Region
from udp_stream.queries.privatised import DistanceNoise, SummedNoise


@dataclass(frozen=True)
class BoundedAnswer:
    """An answer. With probability 1 - beta over the run's noise, all bounds hold.

    The truth of a `value` lies from `low` to `high`; all are None for the nearest plates. A
    region's share is `below` the queried share (None if no plate took part), and `sure` if that
    holds with the same probability. The ledger admitted `unknown` plates to no round.

    `plates` are the nearest, by their estimates, with distances and radii in metres (none for an
    unknown plate). For every s, the s-th nearest of them is at most `excess_m` farther away than
    the s-th nearest of all: 0 where exactly k plates were left, None if a plate is unknown.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    plates: Integers = field(default_factory=lambda: NO_INTEGERS)
    distances_m: tuple[float, ...] = ()
    radii_m: tuple[float, ...] = ()
    excess_m: float | None = None
    below: bool | None = None
    sure: bool | None = None
    unknown: int = 0


@dataclass(frozen=True)
class BoundedNumber(BoundedAnswer):
    """An answer that is always a number."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0


# How many plates are in a region (Section 6.2).
#
# Phi is the signed distance to the region's edge. A plate leaves when it is surely inside, and then
# counts, or surely outside. Plates that are left count if their average position is inside or, with
# noise on distances, if their average distance is below the region's threshold, which a rectangle
# shifts inwards (Appendix B).


@dataclass(frozen=True)
class RangeCount:
    """A count of the plates in a region.

    >>> import os
    >>> from udp_stream.queries.plane import Rectangle, rho_per_square_metre
    >>> where = np.repeat([[0, 0], [400_000, 0], [0, -400_000]], 100, axis=0)  # sixteenths of a metre
    >>> count = RangeCount(Rectangle(0, 0, 20_000, 20_000))
    >>> budgeting = QueryBudget.alike(rho_per_square_metre(1e-4), plates=300)
    >>> pie = count.elimination(budgeting)
    >>> state = pie.run(where, os.urandom)
    >>> answer = count.answer(budgeting, pie, state)
    >>> answer.value, answer.low, answer.high, int(state.charged.max()) < 10**10
    (100.0, 100.0, 100.0, True)

    `shifted` counts by the region's own threshold where distances have noise; else by 0.
    """

    region: Region
    shifted: bool = True

    def elimination(self, budgeting: QueryBudget) -> Elimination:
        return budgeting.elimination(self.region.signed_distance, BandRule(0.0, 0.0))

    def answer(self, budgeting: QueryBudget, pie: Elimination, state: State) -> BoundedNumber:
        left = undecided(pie, state, budgeting.beta1)
        threshold = np.zeros(())
        if self.shifted and isinstance(pie.privatised, DistanceNoise):
            threshold = self.region.threshold(
                pie.privatised.deviation(pie.average(state, left.plates))
            )
        inside = (state.status == BELOW).sum()
        beside = (left.estimate < threshold, left.high < 0, left.low < 0)
        value, low, high = (float(inside + some.sum()) for some in beside)
        return BoundedNumber(value, low, high + state.unknown, unknown=state.unknown)


# How dense plates are around a place: a Gaussian kernel density estimate (Section 6.3, Algorithm
# 7).
#
# f = 1/n sum_i exp(-|x_i - p|^2 / (2 b^2)). Phi is the distance to the place. A plate leaves the
# rounds when it is surely farther away than six bandwidths. (Algorithm 7 as printed passes the
# projection of range counts; Section 6.3.2 says the length.) Noise on distances biases an estimate
# upwards, noise on positions less, downwards: take those.

REACH = 6.0

FAR = exp(-REACH * REACH / 2)
"""The most that a plate beyond reach adds to n f."""


@dataclass(frozen=True)
class Density:
    """The density around a place, both it and the bandwidth in metres.

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> where = np.repeat([[0, 0], [400_000, 0]], 100, axis=0)
    >>> density = Density(east=0, north=0, bandwidth=3000)
    >>> budgeting = QueryBudget.alike(rho_per_square_metre(1e-3), plates=200, how="point")
    >>> pie = density.elimination(budgeting)
    >>> answer = density.answer(budgeting, pie, pie.run(where, os.urandom))
    >>> abs(answer.value - 0.5) < 0.05, answer.low < answer.value < answer.high
    (True, True)
    """

    east: float
    north: float
    bandwidth: float

    def elimination(self, budgeting: QueryBudget) -> Elimination:
        return budgeting.elimination(self.distance, BandRule(-inf, REACH * self._bandwidth))

    def distance(self, positions: Floats) -> Floats:
        """Phi: how far positions are from the place, in quanta."""
        place = np.array([self.east, self.north]) * QUANTA_PER_METRE
        return np.asarray(np.hypot(*(positions - place).T))

    def answer(self, budgeting: QueryBudget, pie: Elimination, state: State) -> BoundedNumber:
        """The density among the plates that gave a value; bounds allow for the others."""
        left = undecided(pie, state, budgeting.beta1)
        n = max(1, pie.plates)
        far = FAR * int((state.status == ABOVE).sum())
        near = float(self._kernel(left.estimate).sum())
        # The bias term is left out where it is larger than the rest; it is far below either bound.
        value = (near + far if far <= near else near) / max(1, n - state.unknown)
        low = float(self._kernel(np.maximum(np.abs(left.low), np.abs(left.high))).sum()) / n
        nearest = np.where(left.low > 0, left.low, np.where(left.high < 0, -left.high, 0.0))
        high = (float(self._kernel(nearest).sum()) + far + state.unknown) / n
        return BoundedNumber(value, min(low, value), max(high, value), unknown=state.unknown)

    def truth(self, positions: Integers) -> float:
        return float(self._kernel(self.distance(positions.astype(np.float64))).mean())

    @property
    def _bandwidth(self) -> float:
        return self.bandwidth * QUANTA_PER_METRE

    def _kernel(self, distance: Floats) -> Floats:
        return np.exp(-(distance**2) / (2 * self._bandwidth**2))


# The k plates nearest to a place (Section 6.4, Algorithm 8).
#
# Phi is the distance to the place. A plate leaves the rounds when k others are surely nearer. If k
# are left, they are the nearest, with probability 1 - beta0 (Corollary 6.5); else the k with the
# smallest average distance are taken, and the s-th of them is at most two radii farther away than
# the s-th nearest (Lemmas 6.6 and 6.7). Noise on a position is sqrt(d) times as long as noise on
# its distance: take distances.


@dataclass(frozen=True)
class Nearest:
    """The k nearest to a place, given in the lattice's steps, in the plane or in any number of
    dimensions.

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> where = np.column_stack((np.arange(50) * 16_000, np.zeros(50, np.int64)))  # a plate every kilometre
    >>> nearest = Nearest.to_stop(2, east=3000, north=0)
    >>> budgeting = QueryBudget.alike(rho_per_square_metre(1e-2), plates=50)
    >>> pie = nearest.elimination(budgeting)
    >>> found = nearest.answer(budgeting, pie, pie.run(where, os.urandom))
    >>> int(found.plates[0]), found.plates.size, found.excess_m < 200
    (3, 2, True)
    """

    k: int
    place: tuple[float, ...]
    steps_per_unit: int = QUANTA_PER_KM

    @classmethod
    def to_stop(cls, k: int, east: float, north: float) -> Nearest:
        return cls(k, (east * QUANTA_PER_METRE, north * QUANTA_PER_METRE))

    def elimination(self, budgeting: QueryBudget) -> Elimination:
        return budgeting.elimination(
            self.distance,
            NearestRule(self.k),
            dimensions=len(self.place),
            steps_per_unit=self.steps_per_unit,
        )

    def distance(self, positions: Floats) -> Floats:
        """Phi: how far positions are from the place, in steps."""
        off = positions - np.array(self.place)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", off, off)))

    def answer(self, budgeting: QueryBudget, pie: Elimination, state: State) -> BoundedAnswer:
        """The k plates of smallest estimates, or all if there are fewer."""
        left = undecided(pie, state, budgeting.beta1)
        nearest = np.argsort(left.estimate, kind="stable")[: self.k]
        alone = left.plates.size <= self.k and (budgeting.eliminates or pie.plates <= self.k)
        excess = 0.0 if alone else float(2 * left.radius.max(initial=0.0))
        known = nearest[np.isfinite(left.radius[nearest])]
        return BoundedAnswer(
            plates=left.plates[nearest],
            # Noise may make an estimate negative, which no distance is.
            distances_m=tuple((np.maximum(left.estimate[known], 0.0) / QUANTA_PER_METRE).tolist()),
            radii_m=tuple((left.radius[known] / QUANTA_PER_METRE).tolist()),
            # A plate of which nothing is known may be at the place itself.
            excess_m=None if state.unknown or excess == inf else excess / QUANTA_PER_METRE,
            unknown=state.unknown,
        )

    def truth(self, positions: Integers) -> Integers:
        distance = self.distance(positions.astype(np.float64))
        return np.argsort(distance, kind="stable")[: self.k].astype(np.int64)


# Is the share of plates in a region below q? The threshold query of Appendix C on positions.
#
# In the central model: the sum over all plates gets noise once, and every plate of the sum is
# charged for it. The rounds end when the share is surely above or below q; further rounds are not
# charged.
#
# **The edge.** A plate that crosses a sharp edge would move the count by 1 however little it moves:
# by distance that costs without bound. So the edge has a width w. A plate counts as 1 where it is
# w/2 or more inside of the edge, as 0 where it is w/2 or more outside, and in between by its depth,
# cut off at w/2 on both sides. A depth is a 1-Lipschitz function of the position (Lemma 6.3), and
# their sum is w (count - plates/2). So noise on the sum costs as much as noise on a plate's
# distance, and the count has the deviation of that noise divided by w.


@dataclass(frozen=True)
class RegionShare:
    """Query whether the share of plates in a region, with an edge of `edge` metres, is below
    `share`.

    Its rounds have a single "plate", the holder of all positions, with the budget of a plate.
    `unknown` plates of the moment do not take part.

    >>> import os
    >>> from udp_stream.queries.plane import Rectangle, rho_per_square_metre
    >>> where = np.repeat([[0, 0], [400_000, 0], [0, -400_000]], 100, axis=0)  # sixteenths of a metre
    >>> query = RegionShare(Rectangle(0, 0, 20_000, 20_000), share=0.5, edge=500)
    >>> budgeting = QueryBudget.alike(rho_per_square_metre(1e-5), plates=1)
    >>> pie = query.elimination(budgeting, plates=300)
    >>> state = pie.begin()
    >>> while (due := pie.due(state)) is not None:
    ...     state = pie.advance(state, pie.draw(state, due.plates, where, os.urandom))
    >>> answer = query.answer(budgeting, pie, state, plates=300)
    >>> answer.below, answer.sure, answer.low < query.truth(where) < answer.high
    (True, True, True)

    Raises ValueError for a share that is not between 0 and 1, and for an edge that is not wider
    than nothing.
    """

    region: Region
    share: float
    edge: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or not self.edge > 0:
            raise ValueError(
                f"expected 0 < share < 1 and an edge > 0 m, got {self.share} and {self.edge}"
            )

    def depth(self, positions: Floats) -> Floats:
        """Phi of each plate: its distance inside of the edge, in quanta, from -w/2 to w/2."""
        return np.clip(-self.region.signed_distance(positions), -self._width / 2, self._width / 2)

    def elimination(self, budgeting: QueryBudget, plates: int, unknown: int = 0) -> Elimination:
        # Surely below q: with all unknown plates inside. Surely not below: with all of them
        # outside.
        taking = plates - unknown
        noise = replace(
            SummedNoise.finest(self.depth, QUANTA_PER_KM, budgeting.least), terms=taking
        )
        low, high = (
            self._width * (self.share * plates - inside - taking / 2) for inside in (unknown, 0)
        )
        return Elimination(
            noise, budgeting.budgets_nano, budgeting.split, BandRule(low, high), budgeting.beta0
        )

    def answer(
        self, budgeting: QueryBudget, pie: Elimination, state: State, plates: int, unknown: int = 0
    ) -> BoundedAnswer:
        """Answer by the side that a round found, or else by the average of all. `value` is the
        share of the plates that took part; `low` and `high` bound that of all, and before the last
        round are those that rounds decide by."""
        if not state.precision[0]:
            return BoundedAnswer(low=0.0, high=1.0, sure=False, unknown=unknown)
        taking = plates - unknown
        if state.rounds < pie.split.rounds or state.status[0] != IN:
            among = np.array([0])
            estimate = pie.estimate(state, among)[0]
            radius = pie.radius(state, among, pie.beta0 / pie.split.rounds)[0]
        else:
            left = undecided(pie, state, budgeting.beta1)
            estimate = left.estimate[0]
            radius = left.radius[0]
        count, low, high = (
            min(max(0.0, self._count_of(float(total), taking)), float(taking))
            for total in (estimate, estimate - radius, estimate + radius)
        )
        low = low / plates
        high = (high + unknown) / plates
        side = state.status[0]
        below = count < self.share * taking if side in (IN, REFUSED) else bool(side == BELOW)
        sure = high < self.share or low >= self.share
        return BoundedAnswer(count / taking, low, high, below=below, sure=sure, unknown=unknown)

    def truth(self, positions: Integers) -> float:
        total = float(self.depth(positions.astype(np.float64)).sum())
        return float(self._count_of(total, positions.shape[0]) / positions.shape[0])

    @property
    def _width(self) -> float:
        return self.edge * QUANTA_PER_METRE

    def _count_of(self, depth: float, plates: int) -> float:
        return depth / self._width + plates / 2
