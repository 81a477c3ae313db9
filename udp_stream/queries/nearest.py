"""The k plates nearest to a place (*Adaptive Privacy Budgeting*, Liang and Yi, Section 6.4, Algorithm 8).

Phi is the distance to the place. A plate leaves the rounds when k others are surely nearer. If k are left, they are the
nearest, with probability 1 - beta0 (Corollary 6.5); else the k with the smallest average distance are taken, and the
s-th of them is at most two radii farther away than the s-th nearest (Lemmas 6.6 and 6.7).

Noise on a position is sqrt(d) times as long as noise on its distance: take distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.answers import undecided
from udp_stream.queries.elimination import Elimination, Smallest, State
from udp_stream.queries.plane import QUANTA_PER_KM, QUANTA_PER_METRE
from udp_stream.queries.terms import Terms


@dataclass(frozen=True)
class NearestAnswer:
    """The plates found, by their estimates, and how much farther away the s-th nearest of them may be than the s-th
    nearest of all, for every s: lattice steps.

    With probability 1 - beta over the run's noise; `excess` is 0 where exactly k plates were left: these are the k
    nearest, though noise may have put them in another order. It is infinite where a plate gave nothing: it is not
    found, and may be nearer than any. `unknown`, `survivors` and `charged` are as in `Answer`.

    >>> NearestAnswer(np.array([7, 2]), 1600.0, 0, (9, 4), np.array([5])).excess_metres
    100.0
    """

    plates: Integers
    excess: float
    unknown: int
    survivors: tuple[int, ...]
    charged: Integers

    @property
    def excess_metres(self) -> float:
        """The same in the plane."""
        return self.excess / QUANTA_PER_METRE


@dataclass(frozen=True)
class Nearest:
    """The k nearest to a place, given in the lattice's steps, in the plane or in any number of dimensions.

    >>> import os
    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> where = np.column_stack((np.arange(50) * 16_000, np.zeros(50, np.int64)))  # a plate every kilometre
    >>> nearest = Nearest.to_stop(2, east=3000, north=0)
    >>> terms = Terms.alike(rho_per_square_metre(1e-2), plates=50)
    >>> pie = nearest.elimination(terms)
    >>> found = nearest.answer(terms, pie, pie.run(where, os.urandom))
    >>> int(found.plates[0]), found.plates.size, found.excess_metres < 200
    (3, 2, True)

    Raises ValueError for k < 1.
    """

    k: int
    place: tuple[float, ...]
    steps_per_unit: int = QUANTA_PER_KM

    @classmethod
    def to_stop(cls, k: int, east: float, north: float) -> Nearest:
        """To a place in a plane, in metres."""
        return cls(k, (east * QUANTA_PER_METRE, north * QUANTA_PER_METRE))

    def elimination(self, terms: Terms) -> Elimination:
        """Its rounds; the baseline's with `terms.baseline()`."""
        return terms.elimination(
            self.distance, Smallest(self.k), dimensions=len(self.place), steps_per_unit=self.steps_per_unit
        )

    def distance(self, positions: Floats) -> Floats:
        """Phi: how far positions are from the place, in steps."""
        off = positions - np.array(self.place)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", off, off)))

    def answer(self, terms: Terms, pie: Elimination, state: State) -> NearestAnswer:
        """The k plates of smallest estimates, or all if there are fewer."""
        left = undecided(pie, state, terms.beta1)
        found = left.plates[np.argsort(left.estimate, kind="stable")[: self.k]]
        alone = left.plates.size <= self.k and (terms.eliminates or pie.plates <= self.k)
        excess = 0.0 if alone else float(2 * left.radius.max(initial=0.0))
        if state.unknown:
            excess = inf  # a plate of which nothing is known may be at the place itself
        return NearestAnswer(found, excess, state.unknown, state.survivors, state.charged)

    def truth(self, positions: Integers) -> Integers:
        """The k nearest themselves, which is not private."""
        distance = self.distance(positions.astype(np.float64))
        return np.argsort(distance, kind="stable")[: self.k].astype(np.int64)
