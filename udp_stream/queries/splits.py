"""How a plate's budget for a query goes over the rounds of elimination, and what each part buys.

Parts are whole nano-units and add up to the budget exactly: the part of round j is floor(r P_j) - floor(r P_(j-1)), P_j
the share of the first j rounds. Noise is made for the part, not for the share, so rounding takes nothing from a plate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from udp_stream.mechanisms.noise.base import Cost, Floats, Integers, Measure
from udp_stream.queries.radial import scale_of

ROUNDS_MAX = 1000

_DOUBLINGS_MAX = 40

_PRODUCTS_FIT = 2**31
"""Products of two numbers below it are whole numbers of 64 bits."""


@dataclass(frozen=True)
class Split:
    """The shape of a budget over rounds: positive whole numbers in proportion to the parts.

    >>> Split.even(4).parts(10), Split.doubling(3).parts(70)
    ([2, 3, 2, 3], [10, 20, 40])

    Raises ValueError for no rounds, for more than a thousand, and for a part that is not positive.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the shape."""
        if not 1 <= len(self.shape) <= ROUNDS_MAX or min(self.shape) < 1:
            raise ValueError(f"expected 1 to {ROUNDS_MAX} rounds, each with a positive part, got {len(self.shape)}")

    @classmethod
    def even(cls, rounds: int) -> Split:
        """The same part for every round: the paper's c4 and c64."""
        return cls((1,) * rounds)

    @classmethod
    def doubling(cls, rounds: int) -> Split:
        """Each part twice the one before: the paper's log-c10."""
        if rounds > _DOUBLINGS_MAX:
            raise ValueError(f"expected at most {_DOUBLINGS_MAX} rounds that double, got {rounds}")
        return cls(tuple(2**j for j in range(rounds)))

    @property
    def rounds(self) -> int:
        """How many, at most."""
        return len(self.shape)

    def parts(self, budget_nano: int) -> list[int]:
        """The budget's parts, in nano-units."""
        ends = [0, *(budget_nano * end // self._whole for end in self._ends)]
        return [end - start for start, end in pairwise(ends)]

    def parts_of_each(self, budgets_nano: Integers) -> Integers:
        """The same for each of some budgets, below 2**53: (budgets, rounds).

        >>> Split.even(4).parts_of_each(np.array([10, 8])).tolist()
        [[2, 3, 2, 3], [2, 2, 2, 2]]
        """
        ends = np.array(self._ends, np.int64 if self._whole < _PRODUCTS_FIT else object)
        times, rest = np.divmod(budgets_nano, self._whole)
        shares = times[:, None] * ends + rest[:, None] * ends // self._whole  # no product is beyond 64 bits
        parts: Integers = np.diff(shares.astype(np.int64), prepend=0)
        return parts

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.shape))

    @property
    def _whole(self) -> int:
        return self._ends[-1]


class Parts(NamedTuple):
    """Of some plates in one round: charges in nano-units, and the noise's scale t/s in steps.

    >>> Parts(np.array([5]), np.array([16]), np.array([2])).scale.tolist()
    [8.0]
    """

    charge: Integers
    t: Integers
    s: Integers

    @property
    def scale(self) -> Floats:
        """In steps."""
        return np.asarray(self.t / self.s)


class Tariff:
    """The parts of every plate's budget, round by round. Plates of one budget are worked out together.

    >>> tariff = Tariff("pure", Split.even(2), np.array([20, 10, 20]) * 10**9, moves=16_000, dimensions=2)
    >>> tariff.parts(0, np.array([1, 2])).charge.tolist()
    [5000000000, 10000000000]

    Raises ValueError for a budget with a part that is too small for its noise to be drawn.
    """

    def __init__(self, measure: Measure, split: Split, budgets_nano: Integers, moves: int, dimensions: int) -> None:
        """Budgets are one per plate; a unit of distance moves values by at most `moves` steps."""
        distinct, self._of = np.unique(budgets_nano, return_inverse=True)
        self._charge = split.parts_of_each(distinct)
        charges, place = np.unique(self._charge, return_inverse=True)
        if (charges < 1).any():  # a round that is charged nothing must draw nothing
            raise ValueError(f"expected at least one nano-unit for each of {split.rounds} rounds")
        scales = [scale_of(moves, Cost(measure, charge), dimensions) for charge in charges.tolist()]
        self._scale = np.array(scales, np.int64).reshape(-1, 2)[place.reshape(self._charge.shape)]

    def parts(self, round_: int, plates: Integers) -> Parts:
        """Of some plates, in a round counted from 0."""
        rows = self._of[plates]
        return Parts(self._charge[rows, round_], *self._scale[rows, round_].T)
