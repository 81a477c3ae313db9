"""Private iterative elimination (PIE): ask plates in rounds, and let go of those that no longer matter to the answer.

*Adaptive Privacy Budgeting* (Liang and Yi), Algorithms 4 and 5, in the local model: a plate's budget for the query is
split over rounds; in each, the plates that are still in give one more noisy value and are charged for that round alone.

* `Between(low, high)`, PIE-NI: a plate leaves once phi is surely below `low` or surely above `high`.
* `Smallest(k)`, PIE-k: a plate leaves once k others are surely nearer.
* `Everyone`: no plate leaves. With one round, the baselines BM0 and BM1.

"Surely" is: with probability 1 - beta0 for all plates and rounds at once (Lemmas 5.2 and 5.3), each of the c rounds
having beta0 / c, and each plate in it an even part of that.

**A run is a function of its recorded rounds.** `Elimination.due` says who is asked in the next round and what each is
charged, before anything is drawn; `draw` makes the round's noisy values, the only thing that reads positions; `advance`
takes them, or a record of them, to the next state. So a run can stop between any two calls and go on, in another
process, from its recorded rounds: `replayed`. Plates that the ledger does not admit to a round leave it, and stay
undecided with what they gave before. Who leaves is computed in floating point, so another machine could decide a value
within rounding of a limit otherwise: `settled` puts the decisions into the record, and recorded decisions stand.

**As printed, Algorithm 4 calls the plates below `low` S1, and Algorithm 9 and Appendix C the others.** Here they are
`below` and `above`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Floats, Integers
from udp_stream.queries.privatised import Privatised
from udp_stream.queries.radial import Average, Draw, draw_radial
from udp_stream.queries.splits import Split, Tariff

IN, BELOW, ABOVE, REFUSED = 0, 1, 2, 3
"""What a plate is after some rounds: still in, surely below, surely above (or surely not near), or not admitted."""

Shared = Literal["survivors", "all"]
"""Among whom a round's share of beta0 is divided: those in it, as the paper does, or all that the query began with."""


@dataclass(frozen=True)
class Between:
    """A plate leaves below `low` or above `high`, which may be infinite; lattice steps.

    >>> low, high = np.array([-9.0, -1.0, 4.0]), np.array([-5.0, 3.0, 6.0])  # what phi may be of three plates
    >>> Between(0, 0).decide(low, high).tolist()
    [1, 0, 2]

    Raises ValueError unless low <= high.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the order."""
        if not self.low <= self.high:
            raise ValueError(f"expected low <= high, got {self.low} and {self.high}")

    @property
    def enough(self) -> int:
        """With at most this many plates left there is nothing more to ask."""
        return 0

    def decide(self, low: Floats, high: Floats) -> NDArray[np.int8]:
        """IN, BELOW or ABOVE for each plate whose phi is surely from `low` to `high`."""
        return np.select([high < self.low, low > self.high], [BELOW, ABOVE], IN).astype(np.int8)


@dataclass(frozen=True)
class Smallest:
    """A plate leaves once k plates are surely nearer.

    >>> low, high = np.array([1.0, 0.0, 6.0, 9.0]), np.array([3.0, 6.0, 8.0, 12.0])
    >>> Smallest(2).decide(low, high).tolist()  # the third reaches as near as the second may be far
    [0, 0, 0, 2]

    Raises ValueError for k < 1.
    """

    k: int

    def __post_init__(self) -> None:
        """Check k."""
        if self.k < 1:
            raise ValueError(f"expected k >= 1 nearest plates, got {self.k}")

    @property
    def enough(self) -> int:
        """With k plates left there is nothing more to ask."""
        return self.k

    def decide(self, low: Floats, high: Floats) -> NDArray[np.int8]:
        """Those beyond the k-th smallest upper end are ABOVE: their interval does not meet that plate's."""
        if low.size <= self.k:
            return np.full(low.size, IN, np.int8)
        kth = np.partition(high, self.k - 1)[self.k - 1]
        return np.where(low > kth, ABOVE, IN).astype(np.int8)


@dataclass(frozen=True)
class Everyone:
    """No plate leaves.

    >>> Everyone().decide(np.array([1.0]), np.array([2.0])).tolist()
    [0]
    """

    enough: int = 0

    def decide(self, low: Floats, high: Floats) -> NDArray[np.int8]:  # noqa: ARG002
        """IN."""
        return np.full(low.size, IN, np.int8)


Rule = Between | Smallest | Everyone


@dataclass(frozen=True)
class Due:
    """Who is asked in the next round, by their place among the query's plates, and what each is charged: nano-units.

    >>> Due(np.array([0, 2]), np.array([50, 50])).plates.tolist()
    [0, 2]
    """

    plates: Integers
    charges: Integers


@dataclass(frozen=True)
class Round:
    """What a round found: the plates that were admitted, and their noisy values in steps, a row each. To be recorded.

    `decided` is what each of them is after the round (IN, BELOW or ABOVE); None where that is still to be computed.

    >>> Round(np.array([0, 2]), np.array([[17, -3], [40, 8]])).values.shape
    (2, 2)
    """

    plates: Integers
    values: Integers
    decided: NDArray[np.int8] | None = None


@dataclass(frozen=True)
class State:
    """What is known after some rounds, all of it public. Arrays have a place for every plate of the query.

    `status` is IN, BELOW, ABOVE or REFUSED; `weighed` the sum of noisy values by their weights, `precision` the sum of
    the weights, `sharpest` the largest 1/scale; `asked` rounds; `charged` nano-units; `survivors` how many were in
    after each round.

    >>> from udp_stream.queries.privatised import CountNoise
    >>> begun = Elimination(CountNoise("zcdp"), np.array([10**9]), Split.even(2), Everyone(), 0.01).begin()
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
        """The plates that no round has decided, and that were admitted to all."""
        return np.flatnonzero(self.status == IN)

    @property
    def undecided(self) -> Integers:
        """The same, with those that were not admitted to a later round than their first."""
        return np.flatnonzero((self.status == IN) | (self.status == REFUSED) & (self.precision > 0))

    @property
    def unknown(self) -> int:
        """Plates that were never admitted: nothing is known of them."""
        return int(((self.status == REFUSED) & (self.precision == 0)).sum())


@dataclass(frozen=True)
class Elimination:
    """A query's public terms: what gets noise, each plate's budget in nano-units, its split, the rule, and beta0.

    Three plates near a square kilometre and far from it, each with a rho of 4e-4 per square metre in two parts:

    >>> from udp_stream.queries.plane import QUANTA_PER_KM
    >>> from udp_stream.queries.privatised import PointNoise
    >>> from udp_stream.queries.regions import Rectangle
    >>> from udp_stream.testing import seeded_bits
    >>> inside = PointNoise("zcdp", Rectangle(0, 0, 1000, 1000).signed_distance, 2, QUANTA_PER_KM)
    >>> pie = Elimination(inside, np.full(3, 4 * 10**11), Split.even(2), Between(0, 0), beta0=0.05)
    >>> where = np.array([[0, 0], [7900, 0], [160_000, 160_000]])
    >>> state = pie.begin()
    >>> while (due := pie.due(state)) is not None:  # charge, draw, record, go on
    ...     state = pie.advance(state, pie.draw(state, due.plates, where[due.plates], seeded_bits(1)))
    >>> state.rounds, state.charged.tolist()[2]  # the far one leaves after the first round
    (2, 200000000000)

    Raises ValueError for a beta0 that is no probability, and for a budget whose parts are too small.
    """

    privatised: Privatised
    budgets_nano: Integers
    split: Split
    rule: Rule
    beta0: float
    shared: Shared = "survivors"

    def __post_init__(self) -> None:
        """Check the terms, and work out every charge and scale."""
        if not 0 < self.beta0 < 1:
            raise ValueError(f"expected 0 < beta0 < 1, got {self.beta0}")
        if self.budgets_nano.ndim != 1 or (self.budgets_nano.size and self.budgets_nano.min() < 1):
            raise ValueError("expected a budget of at least one nano-unit for every plate")
        _ = self._tariff

    @property
    def plates(self) -> int:
        """Of the query."""
        return self.budgets_nano.size

    @cached_property
    def _tariff(self) -> Tariff:
        kind = self.privatised
        return Tariff(kind.measure, self.split, self.budgets_nano, kind.moves, kind.dimensions)

    def begin(self) -> State:
        """Everyone is in, nothing is charged."""
        # Columns may share an array: `advance` copies before it changes one.
        n, nothing = self.plates, np.zeros(self.plates)
        count = np.zeros(n, np.int64)
        weighed = np.zeros((n, self.privatised.dimensions))
        return State(0, np.zeros(n, np.int8), weighed, nothing, nothing, count, count, ())

    def due(self, state: State) -> Due | None:
        """The next round, or None if there is none."""
        plates = state.still_in
        if state.rounds == self.split.rounds or plates.size <= self.rule.enough:
            return None
        return Due(plates, self._tariff.parts(state.rounds, plates).charge)

    def draw(self, state: State, plates: Integers, positions: Integers, bits: Bits, noise: Draw | None = None) -> Round:
        """The next round's noisy values, of plates that were charged for it; positions have a row for each of them.

        `noise` draws them in place of `draw_radial`. Raises ValueError for a plate that is not asked.
        """
        self._require_asked(state, plates)
        values, kind = self.privatised.values(positions), self.privatised
        if values.shape != (plates.size, kind.dimensions):
            raise ValueError(f"expected {plates.size} positions of {kind.dimensions} dimensions, got {values.shape}")
        parts = self._tariff.parts(state.rounds, plates)
        return Round(plates, values + (noise or draw_radial)(kind.measure, bits, parts.t, parts.s, kind.dimensions))

    def advance(self, state: State, found: Round) -> State:
        """The state after a round. Plates that were asked and are not in it were not admitted.

        What the round says that was decided stands; where it says nothing, it is decided here.
        """
        self._require_asked(state, found.plates)
        at = found.plates
        parts = self._tariff.parts(state.rounds, at)
        sharp = 1 / parts.scale
        weight = sharp * sharp
        # Copies: `settled` advances a state that its caller goes on from.
        weighed, precision, sharpest = state.weighed.copy(), state.precision.copy(), state.sharpest.copy()
        weighed[at] += weight[:, None] * found.values
        precision[at] += weight
        sharpest[at] = np.maximum(sharpest[at], sharp)
        asked, charged = state.asked.copy(), state.charged.copy()
        asked[at] += 1
        charged[at] += parts.charge
        status = np.where(state.status == IN, REFUSED, state.status).astype(np.int8)
        after = replace(
            state, rounds=state.rounds + 1, status=status, weighed=weighed, precision=precision, sharpest=sharpest,
            asked=asked, charged=charged,
        )  # fmt: skip
        status[at] = self._decide(after, at) if found.decided is None else found.decided
        return replace(after, survivors=(*state.survivors, int((status == IN).sum())))

    def settled(self, state: State, found: Round) -> Round:
        """The round with what it decides, as it is to be recorded."""
        return replace(found, decided=self.advance(state, found).status[found.plates])

    def _decide(self, after: State, plates: Integers) -> NDArray[np.int8]:
        among = plates.size if self.shared == "survivors" else self.plates
        beta = self.beta0 / (self.split.rounds * max(1, among))
        estimate, radius = self.estimate(after, plates), self.radius(after, plates, beta)
        return self.rule.decide(estimate - radius, estimate + radius)

    def estimate(self, state: State, plates: Integers) -> Floats:
        """Phi of these plates, from all that they gave, in lattice steps."""
        return self.privatised.estimate(state.weighed[plates] / state.precision[plates, None])

    def radius(self, state: State, plates: Integers, beta: float) -> Floats:
        """How far each estimate is off at most, with probability 1 - beta each."""
        rounds = state.asked[plates]
        average = Average(state.precision[plates], state.sharpest[plates], rounds)
        return self.privatised.radius(average, beta)

    def run(self, positions: Integers, bits: Bits, noise: Draw | None = None) -> State:
        """All rounds at once, everyone admitted."""
        state = self.begin()
        while (due := self.due(state)) is not None:
            state = self.advance(state, self.draw(state, due.plates, positions[due.plates], bits, noise))
        return state

    def _require_asked(self, state: State, plates: Integers) -> None:
        due = self.due(state)
        ours = plates.size == 0 or bool(plates.min() >= 0 and plates.max() < self.plates)
        if due is not None and ours:
            times = np.bincount(plates, minlength=self.plates)
            if times.max(initial=0) <= 1 and (state.status[plates] == IN).all():
                return
        raise ValueError(f"expected plates that round {state.rounds + 1} asks, each once")
