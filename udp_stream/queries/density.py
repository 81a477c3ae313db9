"""How dense plates are around a place: a Gaussian kernel density estimate (the paper's Section 6.3, Algorithm 7).

f = 1/n sum_i exp(-|x_i - p|^2 / (2 b^2)). Phi is the distance to the place. A plate leaves the rounds when it is surely
farther away than six bandwidths, where it adds at most e^-18 / n to f. (Algorithm 7 as printed passes the projection of
range counts; Section 6.3.2 says the length.)

Noise on distances biases an estimate upwards, noise on positions downwards, and less: take positions for densities.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.answers import Answer, undecided
from udp_stream.queries.elimination import ABOVE, Between, Elimination, State
from udp_stream.queries.plane import QUANTA_PER_METRE
from udp_stream.queries.terms import Terms

REACH = 6.0
"""Bandwidths beyond which a plate leaves."""

FAR = exp(-REACH * REACH / 2)
"""e^-18, the most that such a plate adds to n f."""


@dataclass(frozen=True)
class Density:
    """The density around a place, both it and the bandwidth in metres.

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> where = np.repeat([[0, 0], [400_000, 0]], 100, axis=0)
    >>> density = Density(east=0, north=0, bandwidth=3000)
    >>> terms = Terms.alike(rho_per_square_metre(1e-3), plates=200, how="point")
    >>> pie = density.elimination(terms)
    >>> answer = density.answer(terms, pie, pie.run(where, os.urandom))
    >>> abs(answer.value - 0.5) < 0.05, answer.low < answer.value < answer.high
    (True, True)

    Raises ValueError unless the bandwidth is above 0.
    """

    east: float
    north: float
    bandwidth: float

    def __post_init__(self) -> None:
        """Check the bandwidth."""
        if not 0 < self.bandwidth < inf:
            raise ValueError(f"expected a bandwidth > 0 m, got {self.bandwidth}")

    def elimination(self, terms: Terms) -> Elimination:
        """Its rounds; the baseline's with `terms.baseline()`."""
        return terms.elimination(self.distance, Between(-inf, REACH * self._bandwidth))

    def distance(self, positions: Floats) -> Floats:
        """Phi: how far positions are from the place, in quanta."""
        place = np.array([self.east, self.north]) * QUANTA_PER_METRE
        return np.asarray(np.hypot(*(positions - place).T))

    def answer(self, terms: Terms, pie: Elimination, state: State) -> Answer:
        """The density among the plates that gave anything; the bounds allow for the others."""
        left, n = undecided(pie, state, terms.beta1), max(1, pie.plates)
        far = FAR * int((state.status == ABOVE).sum())
        near = float(self._kernel(left.estimate).sum())
        # the paper's bias term may be left out where it is larger than the rest; it is far below either bound
        value = (near + far if far <= near else near) / max(1, n - state.unknown)
        low = float(self._kernel(np.maximum(np.abs(left.low), np.abs(left.high))).sum()) / n
        nearest = np.where(left.low > 0, left.low, np.where(left.high < 0, -left.high, 0.0))
        high = (float(self._kernel(nearest).sum()) + far + state.unknown) / n
        return Answer(value, min(low, value), max(high, value), state.unknown, state.survivors, state.charged)

    def truth(self, positions: Integers) -> float:
        """The density itself, which is not private."""
        return float(self._kernel(self.distance(positions.astype(np.float64))).mean())

    @property
    def _bandwidth(self) -> float:
        return self.bandwidth * QUANTA_PER_METRE

    def _kernel(self, distance: Floats) -> Floats:
        return np.exp(-(distance**2) / (2 * self._bandwidth**2))
