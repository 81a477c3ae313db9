"""Where noise lives: the finest lattice on which it can be drawn, its scale there, and what plates lose by it.

The samplers take scales t/s with t <= `SCALE_MAX`. A statistic that needs more is rounded to multiples of
2**shift and gets noise there, so that releases are exact at every sensitivity. Rounding is part of the
account: plates are charged by the lattice steps that they can move the *rounded* statistic.

**Individual accounting.** Privacy unit: license plate. Neighbours: swap-values. Assumed: an integer statistic
that plate l alone moves by at most `moves[l]`, and noise of the family and cost below. Then swapping plate
l's values costs it at most its charge. Everything here reads counts only, so charges are public and known
before anything is drawn (sharper than arXiv 2405.06261, which charges every plate the full epsilon).

Charges are asked for on a plan for *all* plates of a HAT; the ledger halts some. What the others then lose
must stay within what they were charged, so the noise is made to cover it (`cost_within`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise.base import DIVISOR_MAX, SCALE_MAX, Cost, Integers
from udp_stream.mechanisms.noise.families import noise_of

Moves = TypeVar("Moves", int, NDArray[Any])
"""One move of a statistic, or an array of them: 64-bit integers, or Python's in an array of objects."""

COUNTS_SHIFT_MAX = DIVISOR_MAX.bit_length() - 1
"""Denominators s of counts' scales are 1, 2, 4, ... `DIVISOR_MAX`."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Where the noise of one integer statistic lives: multiples of 2**shift, noise of scale t there.

    >>> Lattice(t=8, shift=2).scale
    32.0
    """

    t: int
    shift: int

    @property
    def scale(self) -> float:
        """The noise's scale in the statistic's own unit."""
        return float(self.t << self.shift)

    def project(self, statistic: int) -> int:
        """The statistic rounded to the lattice (half up), in lattice steps; the sensitivity has room for this.

        >>> Lattice(t=8, shift=2).project(6), Lattice(t=8, shift=0).project(6)
        (2, 6)
        """
        return statistic if self.shift == 0 else (statistic + (1 << self.shift - 1)) >> self.shift

    def steps(self, move: Moves) -> Moves:
        """By how many lattice steps a statistic that moves by at most `move` moves once rounded: what cost goes by.

        One move, or an array of them.

        >>> Lattice(t=8, shift=0).steps(5), Lattice(t=8, shift=2).steps(5), Lattice(t=8, shift=2).steps(0)
        (5, 2, 0)
        """
        # Even a small move can carry a statistic over the middle between two lattice points.
        return (move >> self.shift) + (move > 0) if self.shift else move


def lattice_of(sensitivity: int, cost: Cost) -> Lattice:
    """The finest lattice on which noise for this integer sensitivity can be drawn, with its scale, rounded up.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> lattice_of(266240, pure(500_000_000))
    Lattice(t=532480, shift=0)

    Raises ValueError for a sensitivity below one unit, and for a cost that is too small for its sensitivity, which none
    from the family's `least_nano` on is. Two statistics that differ by at most `sensitivity` differ, once rounded to
    multiples of 2**shift, by at most `Lattice.steps(sensitivity)` of them.
    """
    if sensitivity < 1 or cost.nano < 1:
        raise ValueError(f"expected sensitivity and cost >= 1 nano, got {sensitivity} and {cost.nano}")
    over, under = noise_of(cost).unit_scale(cost)
    t = -(-sensitivity * over // under)
    if t <= SCALE_MAX:  # nearly always: no rounding
        return Lattice(t, 0)
    # no shift below this one can do, so the search starts here: it ends at once or one later
    shift = max(0, (sensitivity * over // under).bit_length() - SCALE_MAX.bit_length())
    while True:
        steps = Lattice(1, shift).steps(sensitivity)
        t = -(-steps * over // under)
        if t <= SCALE_MAX:
            return Lattice(t, shift)
        shift += 1
        if steps == 1 or sensitivity >> shift == 0:
            raise ValueError(f"expected a cost that noise can be drawn for, got {cost.nano} nano")


def counts_scale(moved: int, cost: Cost) -> tuple[int, int]:
    """The scale t/s of noise for counts in which a plate moves at most `moved` samples, rounded *up*.

    s is the largest of 1, 2, 4, ... 2**16 at which t fits. Raises ValueError if none does.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> counts_scale(3, pure(10**9)), counts_scale(2**24, pure(10**9))
    ((393216, 65536), (67108864, 2))
    """
    over, under = noise_of(cost).counts_unit_scale(cost)
    # The largest divisor first: with it, rounding t up adds least noise.
    for shift in range(COUNTS_SHIFT_MAX, -1, -1):
        t = -((-moved * over << shift) // under)
        if t <= SCALE_MAX:
            return t, 1 << shift
    raise ValueError(
        f"expected a noise scale of at most {SCALE_MAX} counts, got {moved * over}/{under}: "
        "lower the cap or raise epsilon"
    )


def charges_of(moves: NDArray[Any], sensitivity: int, cost: Cost) -> Integers:
    """What each plate loses to a statistic with noise on `lattice_of(sensitivity, cost)`, rounding included.

    A plate that moves it at all is charged at least what noise can be drawn for: it may be the largest that is left.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> charges_of(np.array([0, 1, 10**8]), sensitivity=10**8, cost=pure(10**9)).tolist()
    [0, 32, 1000000000]
    """
    noise, lattice = noise_of(cost), lattice_of(sensitivity, cost)
    charges = noise.charges(lattice.steps(moves), lattice.steps(sensitivity), cost)
    least = min(noise.least_nano, cost.nano)
    charged: Integers = np.maximum(charges, least * (charges > 0))
    return charged


def cost_within(moves: NDArray[Any], sensitivity: int, charges: Integers, cost: Cost) -> Cost:
    """The largest cost, up to `cost`, at which noise for `sensitivity` keeps every plate's loss within its charge.

    With `charges_of` it never falls below what noise can be drawn for; ValueError if other charges make it.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> cost_within(np.array([1, 3]), sensitivity=3, charges=np.array([300_000, 10**6]), cost=pure(10**6)).nano
    900000
    """
    noise = noise_of(cost)
    while True:  # ends, because a lower cost only ever makes the lattice coarser
        lattice = lattice_of(sensitivity, cost)
        within = noise.within(lattice.steps(moves), lattice.steps(sensitivity), charges, cost)
        if within == cost:
            return cost
        cost = within
