"""What a family of noise is, and what a release costs: the seam between mechanisms and noise.

A mechanism turns samples into integers and states how far one plate can move them. A family says how much
noise that takes at a cost, what each plate then loses, and draws it. The measure of a cost chooses the family
(`families.py`), so a mechanism names neither.

What a mechanism releases comes in two shapes:

* one integer, a *statistic*, which a plate moves by up to its sensitivity. It is rounded to a lattice
  (`lattice.py`).
* *counts* in which a plate moves up to that many samples from one entry to another: the nodes of one level of a
  CDF's tree. Each family knows how large such a move is in the norm that it goes by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

Measure = Literal["pure", "zcdp"]
"""In what a privacy loss is counted: "pure" is epsilon, "zcdp" the rho of zero-concentrated differential privacy."""

SCALE_MAX = 2**26
"""Largest numerator t of a scale: leaves room in 63 bits for 32 random ones and the sampler's trials."""

DIVISOR_MAX = 2**16
"""Largest denominator s of a scale: one of a count or more is then off by less than 2**-16 when t is rounded up."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a plate may lose: nano-units of a measure. Costs of one measure add up under composition.

    >>> pure(500_000_000)
    Cost(measure='pure', nano=500000000)
    """

    measure: Measure
    nano: int

    def with_nano(self, nano: int) -> Cost:
        """Another amount of the same measure.

        >>> pure(100).with_nano(33)
        Cost(measure='pure', nano=33)
        """
        return Cost(self.measure, nano)


def pure(epsilon_nano: int) -> Cost:
    """The cost of an epsilon, in nano-units.

    >>> pure(10**9).nano
    1000000000
    """
    return Cost("pure", epsilon_nano)


def concentrated(rho_nano: int) -> Cost:
    """The cost of a rho of zero-concentrated differential privacy, in nano-units.

    >>> concentrated(500_000_000)
    Cost(measure='zcdp', nano=500000000)
    """
    return Cost("zcdp", rho_nano)


class Noise(Protocol):
    """One family of noise: symmetric, on the integers. Its scale is a fraction t/s, in units of what it is added to.

    >>> from udp_stream.mechanisms.noise.laplace import DiscreteLaplace
    >>> family: Noise = DiscreteLaplace()
    >>> family.charges(np.array([1, 2]), most=2, cost=pure(10**9)).tolist()
    [500000000, 1000000000]
    """

    @property
    def name(self) -> str:
        """As in the privacy statement."""
        ...

    @property
    def least_nano(self) -> int:
        """The least cost, in nano-units, at which noise can be drawn for every sensitivity."""
        ...

    @property
    def power(self) -> int:
        """1 or 2: a plate that moves a share of what noise is for loses its power. Scales go by cost^(-1/power)."""
        ...

    def choice_epsilon_nano(self, cost: Cost) -> int:
        """The largest epsilon, in nano-units, at which a choice by the exponential mechanism keeps to the cost."""
        ...

    def unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The scale for a statistic of sensitivity one, as a fraction, rounded up if at all.

        ValueError for a cost below one nano-unit.
        """
        ...

    def counts_unit_scale(self, cost: Cost) -> tuple[int, int]:
        """The same for counts in which a plate moves one sample."""
        ...

    def counts_drawable(self, cost: Cost) -> int:
        """How many samples a plate may move in counts so that their noise can be drawn; may be 0."""
        ...

    def charges(self, moves: NDArray[Any], most: int, cost: Cost) -> Integers:
        """What plates lose that move a statistic, or counts, by `moves`, where noise for `most` costs `cost`.

        In nano-units, rounded up; a plate that moves nothing loses nothing. `moves` are 64-bit integers or Python's.
        """
        ...

    def within(self, moves: NDArray[Any], most: int, charges: Integers, cost: Cost) -> Cost:
        """The largest cost, up to `cost`, at which no plate's share of it exceeds what it was charged."""
        ...

    def expected_abs(self, scale: float) -> float:
        """The expected size of noise of this scale, in its unit."""
        ...

    def expected_square(self, scale: float) -> float:
        """The variance of noise of this scale, in its unit squared."""
        ...

    def error(self, size: float, spread: float) -> float:
        """The expected size of noise and a normal spread together; `size` is the noise's expected size, above 0."""
        ...

    def clamped_error(self, size: float, spread: float, width: int) -> float:
        """The same for values put into [0, width], over truths anywhere in it alike."""
        ...

    def log_likelihood(self, off: Floats, size: float, spread: Floats) -> Floats:
        """Of noise and spread together being `off`, but for a constant; elementwise."""
        ...

    def low_end(self, noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
        """The lower end of the 95 % interval of truths in [0, width]; elementwise (`interval.interval95`).

        `size` is the noise's expected size, `spread` the standard deviation of what else moved the noisy value.
        """
        ...

    def draw(self, bits: Bits, t: Integers, s: Integers | int = 1) -> Integers:
        """Independent noise, the i-th of scale t[i]/s[i], 1 <= t <= SCALE_MAX, 1 <= s <= DIVISOR_MAX."""
        ...
