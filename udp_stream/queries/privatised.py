"""What of a position gets noise: the position itself, a distance, a sum, or a count. With radius and estimate, a valid
triple.

A *valid triple* (M, g, h) for a 1-Lipschitz function phi (*Adaptive Privacy Budgeting*, Liang and Yi, Definition 5):
M makes a value noisy, g estimates phi from the noisy values of several rounds, h bounds the estimate's error with
probability 1 - beta. Two kinds are theirs:

* `PointNoise`: M moves the position, g is phi of the average position, h the average's radius (Corollary 6.1).
* `DistanceNoise`: M moves phi of the position, g is the average, h its radius (Corollary 6.2).

**Exactness.** Positions are on a lattice (`plane.py`), and so is their noise: the guarantee is exact. A distance is a
real number. It is computed in floating point, rounded to a lattice 2^-k as fine as the positions', and its noise is
made for a distance that moves by 2^k + 5/4 fine steps for each step of the position. *Proof that this covers rounding.*
Two different positions are D >= 1 steps apart, phi of them at most D, what is computed at most D + 2^-(k+2), for it is
off by less than 2^-(k+3) (by less than 2^-20, `regions.py`; k <= 10). Rounded, the values differ by at most 2^k D + 1/4
+ 1 <= (2^k + 5/4) D fine steps. QED. k is as large as the sampler's scales allow, up to 10: the noise is then 0.12 %
larger than a real number's would be, 0.5 % at k = 8, and never more than 8 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from udp_stream.mechanisms.noise.base import Cost, Floats, Integers, Measure
from udp_stream.queries.radial import LAPLACE_DIMENSIONS_MAX, Average, radius_of, scale_of

Phi = Callable[[Floats], Floats]
"""A 1-Lipschitz function of positions, one row each, in lattice steps; its values are in lattice steps too."""

FINE_BITS_MAX = 10

_FINE_BITS_MIN = 4


class Privatised(Protocol):
    """What gets noise, and what follows from the average of noisy values about phi.

    >>> kind: Privatised = PointNoise("zcdp", lambda positions: positions[:, 0], dimensions=2, steps_per_unit=16_000)
    >>> kind.values(np.array([[3, 4]])).tolist(), kind.moves
    ([[3, 4]], 16000)
    """

    @property
    def measure(self) -> Measure:
        """What its charges are counted in."""
        ...

    @property
    def dimensions(self) -> int:
        """Of a value."""
        ...

    @property
    def moves(self) -> int:
        """By how many steps a value moves at most for each unit of distance that charges are counted for."""
        ...

    def values(self, positions: Integers) -> Integers:
        """What noise is added to, in steps: a row for each row of positions. Not private."""
        ...

    def estimate(self, averages: Floats) -> Floats:
        """Phi, in lattice steps of positions, from average noisy values."""
        ...

    def radius(self, of: Average, beta: float) -> Floats:
        """How far estimates are off at most, in the same unit, with probability 1 - beta each."""
        ...


@dataclass(frozen=True)
class PointNoise:
    """The position itself gets noise, in up to three dimensions under epsilon, in any number under rho.

    >>> kind = PointNoise("pure", lambda positions: np.hypot(*positions.T), dimensions=2, steps_per_unit=16_000)
    >>> kind.estimate(np.array([[3.0, 4.0]])).tolist()
    [5.0]
    """

    measure: Measure
    phi: Phi
    dimensions: int
    steps_per_unit: int

    def __post_init__(self) -> None:
        """Averages of Laplace noise are bounded in up to three dimensions."""
        if self.measure == "pure" and self.dimensions > LAPLACE_DIMENSIONS_MAX:
            raise ValueError(
                f"expected positions of up to {LAPLACE_DIMENSIONS_MAX} dimensions under epsilon, "
                f"got {self.dimensions}: take rho"
            )

    @property
    def moves(self) -> int:
        """The position's own steps."""
        return self.steps_per_unit

    def values(self, positions: Integers) -> Integers:
        """The positions."""
        return positions

    def estimate(self, averages: Floats) -> Floats:
        """Phi of the average position."""
        return self.phi(averages)

    def radius(self, of: Average, beta: float) -> Floats:
        """Phi moves at most as far as the position."""
        return radius_of(self.measure, of, self.dimensions, beta)


@dataclass(frozen=True)
class DistanceNoise:
    """Phi of the position gets noise, on a lattice 2^-fine_bits as fine.

    >>> kind = DistanceNoise("zcdp", lambda positions: np.hypot(*positions.T), steps_per_unit=16_000, fine_bits=10)
    >>> kind.values(np.array([[3, 4], [1, 1]])).tolist(), kind.moves
    ([[5120], [1448]], 16404000)
    """

    measure: Measure
    phi: Phi
    steps_per_unit: int
    fine_bits: int
    dimensions: int = 1

    @classmethod
    def finest(cls, phi: Phi, steps_per_unit: int, least: Cost) -> DistanceNoise:
        """On the finest lattice that the noise of a round with the least charge can be drawn on.

        >>> from udp_stream.mechanisms.noise.base import concentrated
        >>> [DistanceNoise.finest(abs, 16_000, concentrated(nano)).fine_bits for nano in (10**9, 10**6, 10**5)]
        [10, 7, 5]

        Raises ValueError if there is none.
        """
        for fine_bits in range(FINE_BITS_MAX, _FINE_BITS_MIN, -1):
            kind = cls(least.measure, phi, steps_per_unit, fine_bits)
            try:
                scale_of(kind.moves, least, 1)
            except ValueError:
                continue
            return kind
        # The coarsest lattice is tried outside of the loop, so that its error reaches the caller.
        kind = cls(least.measure, phi, steps_per_unit, _FINE_BITS_MIN)
        scale_of(kind.moves, least, 1)
        return kind

    @property
    def moves(self) -> int:
        """2^k + 5/4 for each of the position's steps, rounded up."""
        return (self.steps_per_unit << self.fine_bits) + -(-5 * self.steps_per_unit // 4)

    def values(self, positions: Integers) -> Integers:
        """Phi, rounded."""
        exact = self.phi(positions.astype(np.float64)) * 2.0**self.fine_bits
        return np.rint(exact).astype(np.int64)[:, None]

    def estimate(self, averages: Floats) -> Floats:
        """The average."""
        return averages[:, 0] / 2.0**self.fine_bits

    def radius(self, of: Average, beta: float) -> Floats:
        """The noise's, and half a step of rounding."""
        return (radius_of(self.measure, of, 1, beta) + 0.5) / 2.0**self.fine_bits

    def deviation(self, of: Average) -> Floats:
        """The standard deviation of averages, in lattice steps of positions."""
        variance = (2.0 if self.measure == "pure" else 1.0) / of.precision
        return np.asarray(np.sqrt(variance) / 2.0**self.fine_bits)


@dataclass(frozen=True)
class SummedNoise:
    """The sum of phi over all positions gets noise: the central model, with one holder of all that are summed.

    A plate that moves changes one term of the sum, by as much as it changes its own value under `DistanceNoise`: terms
    are rounded one by one, and their sum is exact. So the noise is that of one plate, and not of each.

    >>> each = DistanceNoise("zcdp", lambda positions: np.hypot(*positions.T), steps_per_unit=16_000, fine_bits=10)
    >>> kind = SummedNoise(each, terms=2)
    >>> kind.values(np.array([[3, 4], [1, 1]])).tolist(), kind.moves == each.moves
    ([[6568]], True)
    """

    each: DistanceNoise
    terms: int
    dimensions: int = 1

    @property
    def measure(self) -> Measure:
        """That of each."""
        return self.each.measure

    @property
    def moves(self) -> int:
        """Those of one term: the others stay where they are."""
        return self.each.moves

    def values(self, positions: Integers) -> Integers:
        """The sum, in one row; no row for no positions."""
        total: Integers = self.each.values(positions).sum(axis=0, keepdims=True)
        return total[: min(1, positions.shape[0])]

    def estimate(self, averages: Floats) -> Floats:
        """The average."""
        return self.each.estimate(averages)

    def radius(self, of: Average, beta: float) -> Floats:
        """The noise's, and half a step of rounding for each term."""
        return (radius_of(self.measure, of, 1, beta) + self.terms / 2) / 2.0**self.each.fine_bits


@dataclass(frozen=True)
class CountNoise:
    """A whole number gets noise, that one person moves by at most one: the central model. Its `positions` are one row.

    >>> CountNoise("zcdp").values(np.array([[120]])).tolist()
    [[120]]
    """

    measure: Measure
    dimensions: int = 1
    moves: int = 1

    def values(self, positions: Integers) -> Integers:
        """The number."""
        return positions

    def estimate(self, averages: Floats) -> Floats:
        """The average."""
        return averages[:, 0]

    def radius(self, of: Average, beta: float) -> Floats:
        """The noise's."""
        return radius_of(self.measure, of, 1, beta)
