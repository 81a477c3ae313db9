"""Private iterative elimination (PIE): plates are asked in rounds, and leave once they no longer
matter to the answer.

*Adaptive Privacy Budgeting* (Liang and Yi), Algorithms 4 and 5, in the local model. A plate's
budget for the query is split over rounds. In each round the plates that are still in give a noisy
value, and are charged for that round.

* `BandRule(low, high)`, PIE-NI: a plate leaves once phi is surely below `low` or surely above
  `high`.
* `NearestRule(k)`, PIE-k: a plate leaves once k others are surely nearer.
* `EVERYONE`: no plate leaves. With a single round, the baselines BM0 and BM1.

"Surely" means with probability 1 - beta0 for all plates and rounds at once (Lemmas 5.2 and 5.3):
each of the c rounds has beta0 / c, and each plate of a round an even part of that.

**A run is a function of its recorded rounds.** `Elimination.due` names the next round's plates and
charges before anything is drawn. `draw` alone reads positions. `advance` takes a round, drawn or
recorded, to the next state. So another process can go on from the recorded rounds. Plates that the
ledger does not admit to a round leave, undecided, with the values that they gave. Another machine
could round otherwise, so `settled` records decisions, and these stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Floats, Integers
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost
from udp_stream.queries.plane import QUANTA_PER_KM
from udp_stream.queries.privatised import (
    Average,
    DistanceNoise,
    Draw,
    Phi,
    PointNoise,
    Privatised,
    draw_radial,
    scale_of,
)

# Parts are whole nano-units and add up to the budget exactly: the part of round j is floor(r P_j) -
# floor(r P_(j-1)), P_j the share of the first j rounds. Noise is made for the part, not for the
# share, so rounding costs a plate nothing.

ROUNDS_MAX = 1000
_PRODUCTS_FIT = 2**31
"""Bound of numbers whose products of two fit in 64 bits."""


@dataclass(frozen=True)
class Split:
    """The shape of a budget over rounds: positive whole numbers in proportion to the parts.

    >>> Split.even(4).parts(10), Split.doubling(3).parts(70)
    ([2, 3, 2, 3], [10, 20, 40])

    Raises ValueError for no rounds, for more than a thousand, and for a part that is not positive.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= ROUNDS_MAX or min(self.shape) < 1:
            raise ValueError(
                f"expected 1 to {ROUNDS_MAX} rounds, each with a positive part, got {len(self.shape)}"
            )

    @classmethod
    def even(cls, rounds: int) -> Split:
        """The paper's c4 and c64."""
        return cls((1,) * rounds)

    @classmethod
    def doubling(cls, rounds: int) -> Split:
        """Each part twice that before: the paper's log-c10."""
        return cls(tuple(2**j for j in range(rounds)))

    @property
    def rounds(self) -> int:
        return len(self.shape)

    def parts(self, budget_nano: int) -> list[int]:
        ends = [0, *(budget_nano * end // self._ends[-1] for end in self._ends)]
        return [end - start for start, end in pairwise(ends)]

    def parts_of_each(self, budgets_nano: Integers) -> Integers:
        """The same for each of some budgets, below 2**53: (budgets, rounds)."""
        whole = self._ends[-1]
        ends = np.array(self._ends, np.int64 if whole < _PRODUCTS_FIT else object)
        times, rest = np.divmod(budgets_nano, whole)
        # No product is beyond 64 bits.
        shares = times[:, None] * ends + rest[:, None] * ends // whole
        return np.asarray(np.diff(shares.astype(np.int64), prepend=0))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.shape))


class RoundParts(NamedTuple):
    """Parts of some plates in a round: charges in nano-units, and the noise's scale t/s in
    steps."""

    charge: Integers
    t: Integers
    s: Integers

    @property
    def scale(self) -> Floats:
        return np.asarray(self.t / self.s)


class Tariff:
    """The parts of every plate's budget, round by round; a unit of distance moves values by at most
    `sensitivity` steps.

    >>> tariff = Tariff("pure", Split.even(2), np.array([20, 10, 20]) * 10**9, sensitivity=16_000, dimensions=2)
    >>> tariff.parts(0, np.array([1, 2])).charge.tolist()
    [5000000000, 10000000000]

    Raises ValueError for a budget with a part that is too small for its noise to be drawn.
    """

    def __init__(
        self, measure: str, split: Split, budgets_nano: Integers, sensitivity: int, dimensions: int
    ) -> None:
        distinct, self._of = np.unique(budgets_nano, return_inverse=True)
        self._charge = split.parts_of_each(distinct)
        charges, place = np.unique(self._charge, return_inverse=True)
        if (charges < 1).any():  # a round that is charged nothing must draw nothing
            raise ValueError(f"expected at least one nano-unit for each of {split.rounds} rounds")
        scales = [
            scale_of(sensitivity, Cost(measure, charge), dimensions) for charge in charges.tolist()
        ]
        self._scale = np.array(scales, np.int64).reshape(-1, 2)[place.reshape(self._charge.shape)]

    def parts(self, round_: int, plates: Integers) -> RoundParts:
        rows = self._of[plates]
        return RoundParts(self._charge[rows, round_], *self._scale[rows, round_].T)


IN = 0
BELOW = 1
ABOVE = 2
REFUSED = 3
"""The status of a plate: still in, surely below, surely above (or not near), or not admitted to a
round."""


@dataclass(frozen=True)
class BandRule:
    """A plate leaves below `low` or above `high`, in lattice steps; either may be infinite.

    >>> low, high = np.array([-9.0, -1.0, 4.0]), np.array([-5.0, 3.0, 6.0])  # what phi may be of three plates
    >>> BandRule(0, 0).decide(low, high).tolist()
    [1, 0, 2]
    """

    low: float
    high: float

    enough: ClassVar = 0
    """Number of plates left at which the rounds end."""

    def decide(self, low: Floats, high: Floats) -> NDArray[np.int8]:
        """Decision IN, BELOW or ABOVE for each plate whose phi is surely from `low` to `high`."""
        return np.select([high < self.low, low > self.high], [BELOW, ABOVE], IN).astype(np.int8)


@dataclass(frozen=True)
class NearestRule:
    """A plate leaves once k plates are surely nearer.

    >>> low, high = np.array([1.0, 0.0, 6.0, 9.0]), np.array([3.0, 6.0, 8.0, 12.0])
    >>> NearestRule(2).decide(low, high).tolist()  # the third reaches as near as the second may be far
    [0, 0, 0, 2]
    """

    k: int

    @property
    def enough(self) -> int:
        return self.k

    def decide(self, low: Floats, high: Floats) -> NDArray[np.int8]:
        """Decision ABOVE for plates whose interval lies beyond the k-th smallest upper end."""
        if low.size <= self.k:
            return np.full(low.size, IN, np.int8)
        kth = np.partition(high, self.k - 1)[self.k - 1]
        return np.where(low > kth, ABOVE, IN).astype(np.int8)


Rule = BandRule | NearestRule

EVERYONE = BandRule(-inf, inf)


class NextRound(NamedTuple):
    """The plates of the next round, by index, and their charges in nano-units."""

    plates: Integers
    charges: Integers


@dataclass(frozen=True)
class Round:
    """A round: the admitted plates, their noisy values in steps, a row each, and the status of each
    after it: `decided` is IN, BELOW or ABOVE, None if not computed yet."""

    plates: Integers
    values: Integers
    decided: NDArray[np.int8] | None = None


@dataclass(frozen=True)
class State:
    """The public state after some rounds. Arrays have an element for every plate of the query.

    `status` is IN, BELOW, ABOVE or REFUSED; `weighed` the weighted sum of noisy values, `precision`
    the sum of weights, `sharpest` the largest 1/scale; `asked` rounds; `charged` nano-units;
    `survivors` counts plates after each round.

    >>> begun = QueryBudget("zcdp", np.array([10**9]), "point").elimination(np.ravel, EVERYONE, dimensions=1).begin()
    >>> begun.still_in.tolist(), begun.unknown, begun.survivors
    ([0], 0, ())
    """

    rounds: int
    status: NDArray[np.int8]
    weighed: Floats
    precision: Floats
    sharpest: Floats
    asked: Integers
    charged: Integers
    survivors: tuple[int, ...]

    @property
    def still_in(self) -> Integers:
        """The plates that were admitted to every round, undecided."""
        return np.flatnonzero(self.status == IN)

    @property
    def undecided(self) -> Integers:
        """The remaining plates, and those that were refused after their first round."""
        return np.flatnonzero((self.status == IN) | (self.status == REFUSED) & (self.precision > 0))

    @property
    def unknown(self) -> int:
        """The number of plates that were never admitted."""
        return int(((self.status == REFUSED) & (self.precision == 0)).sum())


@dataclass(frozen=True)
class Elimination:
    """A query's public terms: what gets noise, each plate's budget in nano-units, its split, the
    rule, and beta0.

    Three plates near a square kilometre and far from it, each with a rho of 4e-4 per square metre
    in two parts:

    >>> from udp_stream.queries.plane import Rectangle
    >>> from udp_stream.testing import seeded_bits
    >>> inside = PointNoise("zcdp", Rectangle(0, 0, 1000, 1000).signed_distance, 2, QUANTA_PER_KM)
    >>> pie = Elimination(inside, np.full(3, 4 * 10**11), Split.even(2), BandRule(0, 0), beta0=0.05)
    >>> where = np.array([[0, 0], [7900, 0], [160_000, 160_000]])
    >>> state = pie.begin()
    >>> while (due := pie.due(state)) is not None:  # charge, draw, record, go on
    ...     state = pie.advance(state, pie.draw(state, due.plates, where[due.plates], seeded_bits(1)))
    >>> state.rounds, state.charged.tolist()[2]  # the far plate leaves after the first round
    (2, 200000000000)

    Raises ValueError for a beta0 that is no probability, and for a budget whose parts are too
    small.
    """

    privatised: Privatised
    budgets_nano: Integers
    split: Split
    rule: Rule
    beta0: float
    """A round's plates share its part, as in the paper."""

    def __post_init__(self) -> None:
        if not 0 < self.beta0 < 1:
            raise ValueError(f"expected 0 < beta0 < 1, got {self.beta0}")
        if self.budgets_nano.ndim != 1 or (self.budgets_nano.size and self.budgets_nano.min() < 1):
            raise ValueError("expected a budget of at least one nano-unit for every plate")
        _ = self._tariff  # ValueError now, not in a round

    @property
    def plates(self) -> int:
        return self.budgets_nano.size

    @cached_property
    def _tariff(self) -> Tariff:
        kind = self.privatised
        return Tariff(
            kind.measure, self.split, self.budgets_nano, kind.sensitivity, kind.dimensions
        )

    def begin(self) -> State:
        # Columns may share an array: `advance` copies.
        n = self.plates
        nothing = np.zeros(self.plates)
        count = np.zeros(self.plates, np.int64)
        weighed = np.zeros((n, self.privatised.dimensions))
        return State(0, np.zeros(n, np.int8), weighed, nothing, nothing, count, count, ())

    def due(self, state: State) -> NextRound | None:
        plates = state.still_in
        if state.rounds == self.split.rounds or plates.size <= self.rule.enough:
            return None
        return NextRound(plates, self._tariff.parts(state.rounds, plates).charge)

    def draw(
        self,
        state: State,
        plates: Integers,
        positions: Integers,
        bits: Bits,
        noise: Draw | None = None,
    ) -> Round:
        """The next round's noisy values, of plates that were charged for it; positions have a row
        for each plate.

        `noise` replaces `draw_radial`. Raises ValueError for a plate that is not asked.
        """
        self._require_query(state, plates)
        values = self.privatised.values(positions)
        kind = self.privatised
        if values.shape != (plates.size, kind.dimensions):
            raise ValueError(
                f"expected {plates.size} positions of {kind.dimensions} dimensions, got {values.shape}"
            )
        parts = self._tariff.parts(state.rounds, plates)
        return Round(
            plates,
            values + (noise or draw_radial)(kind.measure, bits, parts.t, parts.s, kind.dimensions),
        )

    def advance(self, state: State, found: Round) -> State:
        """The state after a round. Asked plates that are missing in it were not admitted. Its
        decisions stand."""
        self._require_query(state, found.plates)
        at = found.plates
        parts = self._tariff.parts(state.rounds, found.plates)
        sharp = 1 / parts.scale
        weight = sharp * sharp
        # Copies: `settled` advances a state that its caller goes on from.
        weighed = state.weighed.copy()
        precision = state.precision.copy()
        sharpest = state.sharpest.copy()
        weighed[at] += weight[:, None] * found.values
        precision[at] += weight
        sharpest[at] = np.maximum(sharpest[at], sharp)
        asked = state.asked.copy()
        charged = state.charged.copy()
        asked[at] += 1
        charged[at] += parts.charge
        status = np.where(state.status == IN, REFUSED, state.status).astype(np.int8)
        after = replace(
            state, rounds=state.rounds + 1, status=status, weighed=weighed, precision=precision, sharpest=sharpest,
            asked=asked, charged=charged,
        )  # fmt: skip
        if found.decided is None:
            beta = self.beta0 / (self.split.rounds * max(1, at.size))
            estimate = self.estimate(after, at)
            radius = self.radius(after, at, beta)
            status[at] = self.rule.decide(estimate - radius, estimate + radius)
        else:
            status[at] = found.decided
        return replace(after, survivors=(*state.survivors, int((status == IN).sum())))

    def settled(self, state: State, found: Round) -> Round:
        return replace(found, decided=self.advance(state, found).status[found.plates])

    def estimate(self, state: State, plates: Integers) -> Floats:
        return self.privatised.estimate(state.weighed[plates] / state.precision[plates, None])

    def radius(self, state: State, plates: Integers, beta: float) -> Floats:
        return self.privatised.radius(self.average(state, plates), beta)

    def average(self, state: State, plates: Integers) -> Average:
        return Average(state.precision[plates], state.sharpest[plates], state.asked[plates])

    def run(self, positions: Integers, bits: Bits, noise: Draw | None = None) -> State:
        state = self.begin()
        while (due := self.due(state)) is not None:
            state = self.advance(
                state, self.draw(state, due.plates, positions[due.plates], bits, noise)
            )
        return state

    def _require_query(self, state: State, plates: Integers) -> None:
        due = self.due(state)
        ours = plates.size == 0 or bool(plates.min() >= 0 and plates.max() < self.plates)
        if due is not None and ours:
            times = np.bincount(plates, minlength=self.plates)
            if times.max(initial=0) <= 1 and (state.status[plates] == IN).all():
                return
        raise ValueError(f"expected plates that round {state.rounds + 1} asks, each once")


class UndecidedPlates(NamedTuple):
    """Plates that no round decided: their estimates of phi, and radii that hold for all at once."""

    plates: Integers
    estimate: Floats
    radius: Floats

    @property
    def low(self) -> Floats:
        return self.estimate - self.radius

    @property
    def high(self) -> Floats:
        return self.estimate + self.radius


def undecided(pie: Elimination, state: State, beta1: float) -> UndecidedPlates:
    """The plates that are left after a run, each with an even part of beta1; any radius before a
    first round."""
    plates = state.undecided
    estimate = np.zeros(plates.size)
    radius = np.full(plates.size, np.inf)
    known = state.precision[plates] > 0
    estimate[known] = pie.estimate(state, plates[known])
    radius[known] = pie.radius(state, plates[known], beta1 / max(1, plates.size))
    return UndecidedPlates(plates, estimate, radius)


How = Literal["point", "distance"]
"""The value that gets noise: the position (the paper's methods 0) or its distance (its methods
1)."""

_ROUNDS_SHARE = 0.25
"""Share of beta for all decisions of rounds; the rest is for undecided plates (Remark 6). Bounds
are then no wider than the baseline's once a quarter of the plates has left."""

BETA = 0.05

DEFAULT_SPLIT = Split.even(64)
"""The paper's c64, which saves most of its three splits."""


@dataclass(frozen=True)
class QueryBudget:
    """Each plate's budget in nano-units, and how budgets are used.

    >>> from udp_stream.queries.plane import rho_per_square_metre
    >>> budgeting = QueryBudget.alike(rho_per_square_metre(1e-4), plates=3)
    >>> budgeting.budgets_nano.tolist(), budgeting.beta0, round(budgeting.beta1, 4), budgeting.baseline().beta1
    ([100000000000, 100000000000, 100000000000], 0.0125, 0.0375, 0.05)
    """

    measure: str
    budgets_nano: Integers
    how: How = "distance"
    split: Split = DEFAULT_SPLIT
    beta: float = BETA
    eliminates: bool = True

    @classmethod
    def alike(
        cls, cost: Cost, plates: int, how: How = "distance", split: Split = DEFAULT_SPLIT
    ) -> QueryBudget:
        return cls(cost.measure, np.full(plates, cost.nano, np.int64), how, split)

    def baseline(self) -> QueryBudget:
        """The baselines BM0 and BM1: every plate is asked once, for all of its budget."""
        return replace(self, split=Split.even(1), eliminates=False)

    @property
    def beta0(self) -> float:
        """The chance that a decision of any round is wrong."""
        return self.beta * _ROUNDS_SHARE

    @property
    def beta1(self) -> float:
        """The chance that any undecided plate's estimate is farther off than its radius."""
        return self.beta * (1 - _ROUNDS_SHARE) if self.eliminates else self.beta

    @property
    def least(self) -> Cost:
        least = int(self.budgets_nano.min()) if self.budgets_nano.size else 10**9
        return Cost(self.measure, max(1, min(self.split.parts(least))))

    def elimination(
        self, phi: Phi, rule: Rule, *, dimensions: int = 2, steps_per_unit: int = QUANTA_PER_KM
    ) -> Elimination:
        """The rounds for a 1-Lipschitz phi of positions, both in lattice steps.

        Raises ValueError for a budget with a part too small for its noise to be drawn.
        """
        kind: Privatised = (
            PointNoise(self.measure, phi, dimensions, steps_per_unit)
            if self.how == "point"
            else (DistanceNoise.finest(phi, steps_per_unit, self.least))
        )
        return Elimination(
            kind, self.budgets_nano, self.split, rule if self.eliminates else EVERYONE, self.beta0
        )

    def saved(self, state: State) -> float:
        """The share of all budgets that is left: the paper's PrivSav."""
        return float(np.mean(1 - state.charged / self.budgets_nano)) if state.charged.size else 1.0
