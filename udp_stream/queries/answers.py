"""What a run answers: a value, bounds that hold with probability 1 - beta, who was charged what, and who was left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.elimination import Elimination, State


@dataclass(frozen=True)
class Answer:
    """A number, and the interval that holds the truth with probability 1 - beta over the run's noise.

    `survivors` are the plates still in after each round, `charged` the nano-units that each plate was charged, and
    `unknown` the plates that gave nothing, because the ledger admitted them to no round.

    >>> Answer(120.0, 117.0, 124.0, unknown=0, survivors=(400, 31), charged=np.array([5])).bound
    4.0
    """

    value: float
    low: float
    high: float
    unknown: int
    survivors: tuple[int, ...]
    charged: Integers

    @property
    def bound(self) -> float:
        """How far the value is off at most, with probability 1 - beta."""
        return max(self.high - self.value, self.value - self.low)


@dataclass(frozen=True)
class Undecided:
    """The plates that no round decided: their estimates of phi, and the radius that holds for all of them at once.

    >>> Undecided(np.array([3, 8]), np.array([-4.0, 70.0]), np.array([10.0, 10.0])).low.tolist()
    [-14.0, 60.0]
    """

    plates: Integers
    estimate: Floats
    radius: Floats

    @property
    def low(self) -> Floats:
        """Phi is at least this."""
        return self.estimate - self.radius

    @property
    def high(self) -> Floats:
        """Phi is at most this."""
        return self.estimate + self.radius


def undecided(pie: Elimination, state: State, beta1: float) -> Undecided:
    """Those left, each with an even part of beta1.

    >>> from udp_stream.queries.privatised import CountNoise
    >>> from udp_stream.queries.elimination import Everyone, Round
    >>> from udp_stream.queries.splits import Split
    >>> pie = Elimination(CountNoise("zcdp"), np.array([10**9]), Split.even(1), Everyone(), 0.01)
    >>> left = undecided(pie, pie.advance(pie.begin(), Round(np.array([0]), np.array([[40]]))), 0.05)
    >>> left.estimate.tolist(), left.radius.round(2).tolist()
    ([40.0], [1.92])
    """
    plates = state.undecided
    among = plates.size if pie.shared == "survivors" else pie.plates
    # before its first round a plate may be anywhere
    estimate, radius = np.zeros(plates.size), np.full(plates.size, np.inf)
    known = state.precision[plates] > 0
    estimate[known] = pie.estimate(state, plates[known])
    radius[known] = pie.radius(state, plates[known], beta1 / max(1, among))
    return Undecided(plates, estimate, radius)
