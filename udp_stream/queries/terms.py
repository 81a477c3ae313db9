"""What a query on positions is asked under: budgets, kind of noise, split, and the chance that its bounds fail.

The chance `beta` is divided as in Remark 6 of *Adaptive Privacy Budgeting* (Liang and Yi): a quarter for all that
rounds decide, the rest for what is left undecided. Bounds are then no wider than the baseline's once a quarter of the
plates has left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from udp_stream.mechanisms.noise.base import Cost, Integers, Measure
from udp_stream.queries.elimination import Elimination, Everyone, Rule, Shared, State
from udp_stream.queries.plane import QUANTA_PER_KM
from udp_stream.queries.privatised import DistanceNoise, Phi, PointNoise
from udp_stream.queries.splits import Split

How = Literal["point", "distance"]
"""What gets noise: the position (the paper's methods 0) or its distance (its methods 1)."""

_ROUNDS_SHARE = 0.25

BETA = 0.05
"""The chance that what is said of an answer is wrong."""

DEFAULT_SPLIT = Split.even(64)
"""The paper's c64: of its three splits, the one that saves most."""


@dataclass(frozen=True)
class Terms:
    """Budgets in nano-units, one for each plate, and how they are used.

    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> terms = Terms.alike(rho_per_square_metre(1e-4), plates=3)
    >>> terms.budgets_nano.tolist(), terms.beta0, round(terms.beta1, 4), terms.baseline().beta1
    ([100000000000, 100000000000, 100000000000], 0.0125, 0.0375, 0.05)

    Raises ValueError for a beta that is no probability.
    """

    measure: Measure
    budgets_nano: Integers
    how: How = "distance"
    split: Split = DEFAULT_SPLIT
    beta: float = BETA
    shared: Shared = "survivors"
    eliminates: bool = True

    def __post_init__(self) -> None:
        """Check beta."""
        if not 0 < self.beta < 1:
            raise ValueError(f"expected 0 < beta < 1, got {self.beta}")

    @classmethod
    def alike(cls, cost: Cost, plates: int, how: How = "distance", split: Split | None = None) -> Terms:
        """The same budget for every plate."""
        budgets = np.full(plates, cost.nano, np.int64)
        return cls(cost.measure, budgets, how, DEFAULT_SPLIT if split is None else split)

    def baseline(self) -> Terms:
        """Everyone is asked once, for all of its budget: the paper's BM0 and BM1."""
        return replace(self, split=Split.even(1), eliminates=False)

    @property
    def beta0(self) -> float:
        """The chance that some round decides wrongly. The baseline's one round decides nothing."""
        return self.beta * _ROUNDS_SHARE

    @property
    def beta1(self) -> float:
        """The chance that an estimate of what is left undecided is farther off than its radius."""
        return self.beta * (1 - _ROUNDS_SHARE) if self.eliminates else self.beta

    def elimination(
        self, phi: Phi, rule: Rule, *, dimensions: int = 2, steps_per_unit: int = QUANTA_PER_KM
    ) -> Elimination:
        """The rounds for a 1-Lipschitz phi of positions, both in lattice steps.

        Raises ValueError for a budget of which a round's part is too small for its noise to be drawn.
        """
        kind: PointNoise | DistanceNoise
        if self.how == "point":
            kind = PointNoise(self.measure, phi, dimensions, steps_per_unit)
        else:
            least = int(self.budgets_nano.min()) if self.budgets_nano.size else 10**9
            parts = self.split.parts(least)
            kind = DistanceNoise.finest(phi, steps_per_unit, Cost(self.measure, max(1, min(parts))))
        decides = rule if self.eliminates else Everyone()
        return Elimination(kind, self.budgets_nano, self.split, decides, self.beta0, self.shared)

    def saved(self, state: State) -> float:
        """The share of all budgets that is left: the paper's PrivSav.

        >>> terms = Terms("zcdp", np.array([100, 300]) * 10**9)
        >>> terms.saved(terms.elimination(abs, Everyone()).begin())
        1.0
        """
        return float(np.mean(1 - state.charged / self.budgets_nano)) if state.charged.size else 1.0
