"""How many plates are in a region: private range counts (*Adaptive Privacy Budgeting*, Liang and Yi, Section 6.2).

Phi is the signed distance to the region's edge. A plate leaves the rounds when it is surely inside, and then it counts,
or surely outside. Of those left, each counts by the average of what it gave: with noise on positions, if the average
position is inside; with noise on distances, if the average distance is below the region's threshold, which a rectangle
shifts inwards (Appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udp_stream.mechanisms.noise.base import Floats
from udp_stream.queries.answers import Answer, Undecided, undecided
from udp_stream.queries.elimination import BELOW, Between, Elimination, State
from udp_stream.queries.privatised import DistanceNoise
from udp_stream.queries.radial import Average
from udp_stream.queries.regions import Region
from udp_stream.queries.terms import Terms


@dataclass(frozen=True)
class RangeCount:
    """A count of the plates in a region.

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> from udp_stream.queries.regions import Rectangle
    >>> where = np.repeat([[0, 0], [400_000, 0], [0, -400_000]], 100, axis=0)  # sixteenths of a metre
    >>> count = RangeCount(Rectangle(0, 0, 20_000, 20_000))
    >>> terms = Terms.alike(rho_per_square_metre(1e-4), plates=300)
    >>> pie = count.elimination(terms)
    >>> answer = count.answer(terms, pie, pie.run(where, os.urandom))
    >>> answer.value, answer.bound, int(answer.charged.max()) < 10**10
    (100.0, 0.0, True)

    `shifted` counts by the region's own threshold where distances have noise; else by 0.
    """

    region: Region
    shifted: bool = True

    def elimination(self, terms: Terms) -> Elimination:
        """Its rounds; the baseline's with `terms.baseline()`."""
        return terms.elimination(self.region.signed_distance, Between(0.0, 0.0))

    def answer(self, terms: Terms, pie: Elimination, state: State) -> Answer:
        """The count. The bounds have those that may be on either side of the edge on both."""
        left = undecided(pie, state, terms.beta1)
        inside = int((state.status == BELOW).sum())
        value = inside + int((left.estimate < self._threshold(pie, state, left)).sum())
        low, high = inside + int((left.high < 0).sum()), inside + int((left.low < 0).sum()) + state.unknown
        return Answer(float(value), float(low), float(high), state.unknown, state.survivors, state.charged)

    def _threshold(self, pie: Elimination, state: State, left: Undecided) -> Floats:
        if not (self.shifted and isinstance(pie.privatised, DistanceNoise)):
            return np.zeros(left.plates.size)
        at = left.plates
        average = Average(state.precision[at], state.sharpest[at], state.asked[at])
        return self.region.threshold(pie.privatised.deviation(average))
