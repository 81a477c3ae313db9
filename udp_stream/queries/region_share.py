"""Is the share of plates in a region below q? The threshold query of Appendix C (`threshold.py`) on positions.

In the central model: the sum over all plates gets noise once, and every plate of the sum is charged for it. The rounds
end when the share is surely on one side of q, and no plate is charged for the rounds that were not needed.

**The edge.** The paper's count moves by one with each person, whatever the distance (the Hamming metric). Of positions
that would be no metric privacy: a plate that crosses a sharp edge moves the count by one however little it moves, and
that costs without bound by distance. So the region's edge has a width w: a plate counts as

    1 where it is w/2 or more inside of the edge, 0 where it is w/2 or more outside, in between by how far inside it is.

What is summed is how far inside each plate is, cut off at w/2 on both sides: a 1-Lipschitz function of its position, as
the signed distance is (Lemma 6.3). The sum is w (count - plates/2). So noise on it costs what noise on one plate's
distance costs, and the count has a deviation of that noise divided by w.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udp_stream.mechanisms.noise.base import Cost, Floats, Integers
from udp_stream.queries.answers import undecided
from udp_stream.queries.elimination import BELOW, IN, REFUSED, Between, Elimination, State
from udp_stream.queries.plane import QUANTA_PER_KM, QUANTA_PER_METRE
from udp_stream.queries.privatised import DistanceNoise, SummedNoise
from udp_stream.queries.regions import Region
from udp_stream.queries.terms import Terms


@dataclass(frozen=True)
class ShareAnswer:
    """Whether the share is below q, None where no plate took part; `sure` if that holds with probability 1 - beta.

    `value` is the share of those who took part, `low` and `high` bound that of all.

    >>> ShareAnswer(below=True, sure=True, value=0.07, low=0.05, high=0.09).below
    True
    """

    below: bool | None
    sure: bool
    value: float | None
    low: float
    high: float


@dataclass(frozen=True)
class RegionShare:
    """Is the share of plates in a region, with an edge of `edge` metres, below `share`?

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> from udp_stream.queries.regions import Rectangle
    >>> where = np.repeat([[0, 0], [400_000, 0], [0, -400_000]], 100, axis=0)  # sixteenths of a metre
    >>> query = RegionShare(Rectangle(0, 0, 20_000, 20_000), share=0.5, edge=500)
    >>> terms = Terms.alike(rho_per_square_metre(1e-5), plates=1)
    >>> pie = query.elimination(terms, plates=300)
    >>> state = pie.begin()
    >>> while (due := pie.due(state)) is not None:
    ...     state = pie.advance(state, pie.draw(state, due.plates, where, os.urandom))
    >>> answer = query.answer(terms, pie, state, plates=300)
    >>> answer.below, answer.sure, answer.low < query.truth(where) < answer.high
    (True, True, True)

    Raises ValueError for a share that is not between 0 and 1, and for an edge that is not wider than nothing.
    """

    region: Region
    share: float
    edge: float

    def __post_init__(self) -> None:
        """Check the share and the edge."""
        if not 0 < self.share < 1 or not self.edge > 0:
            raise ValueError(f"expected 0 < share < 1 and an edge > 0 m, got {self.share} and {self.edge}")

    def depth(self, positions: Floats) -> Floats:
        """Phi of one plate: how far inside of the edge it is, in quanta, from -w/2 to w/2."""
        half = self._width / 2
        depth: Floats = np.clip(-self.region.signed_distance(positions), -half, half)
        return depth

    def elimination(self, terms: Terms, plates: int, unknown: int = 0) -> Elimination:
        """Its rounds, with one "plate", the holder of all positions, and the budget of one plate.

        Of all plates of the moment, `unknown` ones do not take part. A share is surely below q if it is with all of
        them inside, and surely not if it is not with all of them outside.
        """
        budget = terms.budgets_nano[:1]
        each = DistanceNoise.finest(
            self.depth, QUANTA_PER_KM, Cost(terms.measure, max(1, min(terms.split.parts(int(budget[0])))))
        )
        taking = plates - unknown
        low, high = (self._sum_of(self.share * plates - inside, taking) for inside in (unknown, 0))
        return Elimination(SummedNoise(each, taking), budget, terms.split, Between(low, high), terms.beta0)

    def answer(self, terms: Terms, pie: Elimination, state: State, plates: int, unknown: int = 0) -> ShareAnswer:
        """By the side that a round found, or else by the average of all.

        Bounds hold whichever round was the last: before the end of all rounds they are those that rounds decide by.
        """
        if not state.precision[0]:
            return ShareAnswer(None, False, None, 0.0, 1.0)
        taking = plates - unknown
        if state.rounds < pie.split.rounds or state.status[0] != IN:
            among = np.array([0])
            estimate, radius = pie.estimate(state, among)[0], pie.radius(state, among, pie.beta0 / pie.split.rounds)[0]
        else:
            left = undecided(pie, state, terms.beta1)
            estimate, radius = left.estimate[0], left.radius[0]
        count, low, high = (
            min(max(0.0, self._count_of(float(found), taking)), float(taking))
            for found in (estimate, estimate - radius, estimate + radius)
        )
        low, high = low / plates, (high + unknown) / plates
        found = state.status[0]
        below = count < self.share * taking if found in (IN, REFUSED) else bool(found == BELOW)
        return ShareAnswer(below, high < self.share or low >= self.share, count / taking, low, high)

    def truth(self, positions: Integers) -> float:
        """The share itself, which is not private."""
        total = float(self.depth(positions.astype(np.float64)).sum())
        return float(self._count_of(total, positions.shape[0]) / positions.shape[0])

    @property
    def _width(self) -> float:
        return self.edge * QUANTA_PER_METRE

    def _sum_of(self, count: float, plates: int) -> float:
        return self._width * (count - plates / 2)

    def _count_of(self, depth: float, plates: int) -> float:
        return depth / self._width + plates / 2
