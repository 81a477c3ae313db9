"""Whether fewer than a share q of N people have a property, in the central model (the paper's Appendix C, Algorithm 9).

There is one holder of data, whose count of people moves by at most one with each person (the Hamming distance). Phi is
the count. The rounds end when the count is surely on one side of q N, so a clear answer costs little.

As printed, Algorithm 9 takes the set of counts that Algorithm 4 found *above* q N for Yes. Here Yes is below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udp_stream.mechanisms.noise.base import Cost, Integers
from udp_stream.queries.answers import undecided
from udp_stream.queries.elimination import BELOW, IN, Between, Elimination, Everyone, State
from udp_stream.queries.privatised import CountNoise
from udp_stream.queries.splits import Split


@dataclass(frozen=True)
class ThresholdAnswer:
    """Yes if the count was found below q N; `sure` if that holds with probability 1 - beta; what it cost, nano-units.

    >>> ThresholdAnswer(yes=True, sure=False, charged_nano=40).yes
    True
    """

    yes: bool
    sure: bool
    charged_nano: int


@dataclass(frozen=True)
class Threshold:
    """Is a count of N people below q N? A quarter of beta is for the rounds, the rest for an answer after the last one.

    >>> import os
    >>> from udp_stream.mechanisms.noise.base import concentrated
    >>> query = Threshold(share=0.3, people=10_000)
    >>> pie = query.elimination(concentrated(10**7), Split.even(64))
    >>> answer = query.answer(pie, pie.run(np.array([[1200]]), os.urandom))
    >>> answer.yes, answer.sure, answer.charged_nano  # one round of 64: 10^7 / 64
    (True, True, 156250)

    Raises ValueError for a share that is not between 0 and 1, and for no plates.
    """

    share: float
    people: int
    beta: float = 0.05

    def __post_init__(self) -> None:
        """Check the share, the number and beta."""
        if not 0 < self.share < 1 or self.people < 1 or not 0 < self.beta < 1:
            raise ValueError(
                f"expected 0 < share < 1, people >= 1 and 0 < beta < 1, got {self.share}, {self.people}, {self.beta}"
            )

    @property
    def limit(self) -> float:
        """The count q N."""
        return self.share * self.people

    def elimination(self, cost: Cost, split: Split) -> Elimination:
        """Its rounds, with one "plate", the holder of the data, whose position is the count."""
        rule = Between(self.limit, self.limit)
        return Elimination(CountNoise(cost.measure), np.array([cost.nano]), split, rule, self.beta / 4)

    def baseline(self, cost: Cost) -> Elimination:
        """One noisy count for all of the budget: BM1."""
        return Elimination(CountNoise(cost.measure), np.array([cost.nano]), Split.even(1), Everyone(), self.beta / 4)

    def answer(self, pie: Elimination, state: State) -> ThresholdAnswer:
        """By the side that a round found, or else by the average of all."""
        charged = int(state.charged[0])
        if state.status[0] != IN:
            return ThresholdAnswer(bool(state.status[0] == BELOW), True, charged)
        left = undecided(pie, state, self.beta * (1 if isinstance(pie.rule, Everyone) else 0.75))
        estimate, radius = float(left.estimate[0]), float(left.radius[0])
        return ThresholdAnswer(estimate < self.limit, abs(estimate - self.limit) > radius, charged)


def holder(count: int) -> Integers:
    """A count as the one position of `Elimination.run` and `draw`.

    >>> holder(1200).tolist()
    [[1200]]
    """
    return np.array([[count]], np.int64)
