"""What the mean mechanisms share: their plan, their query, and the projections of array means.

Speeds have a public range [low, high]; U = high - low is its width. Inside, speeds are clipped and counted from the low
end (`Range.above_low`), so that everything below is about values in 0..U; `MeanPlan.value` adds the low end again.

Privacy unit: license plate. Neighbours: swap-values (same plates, same counts, one plate's speeds differ). Assumed of
the input: integers, plates and counts as in the plan. Guaranteed: the query's statistic changes by at most
`sensitivity` when one plate's speeds change, by at most `moves[l]` when they are plate l's, and a private interval it
may have used costs what `noise_cost` leaves of `cost`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import Arrays, SamplesPerPlate, within_cap
from udp_stream.mechanisms.noise import Cost, Noise, charges_of, cost_within, expected_noise, noise_of
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.statistic_terms import Choice
from udp_stream.mechanisms.statistic_terms import Grouping as Grouping  # for every mechanism

Integers = NDArray[np.int64]


class MeanPlan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How one HAT's mean will be taken, from counts, cost and range only; speeds in quanta.

    The estimate is low + (statistic + noise) / divisor. `sensitivity` is the statistic's for a plate, before any
    private interval narrows it. `noise_cost` is what the final noise may cost; the rest of `cost` pays for the
    interval. `bias_bound` is the worst over all speeds in the range of |estimate without noise - sample mean|; what it
    is likely to be says `accuracy`. Where the samples' weights add up to less than 1, `fill` has the rest, in quanta
    above the low end.

    Plate by plate, in the order of the counts: `given` is how many of its first samples enter the statistic, `moves`
    by how much it alone can move it; None where every plate is charged in full.

    >>> from udp_stream.mechanisms.means.baseline import Baseline
    >>> counts = SamplesPerPlate(np.array([4, 1]))
    >>> plan = Baseline().plan(counts, Cost("pure", 10**9), Range(0, 1000), "best-fit")
    >>> plan.charges.tolist(), plan.noise_bound, plan.value(2500), plan.released(-3.0)
    ([1000000000, 250000000], 800.0, 500.0, 0.0)
    """

    mechanism: str
    grouping: Grouping | None
    counts: SamplesPerPlate
    range: Range
    cost: Cost
    noise_cost: Cost
    cap: int
    given: Integers
    moves: Integers | None
    divisor: float
    sensitivity: int
    bias_bound: float
    fill: int = 0
    arrays: Arrays | None = None

    @property
    def choice(self) -> Choice:
        """What fixed this plan beside counts, cost, range and grouping."""
        return Choice(self.mechanism, self.cap)

    @property
    def noise(self) -> Noise:
        """The family that the noise is of."""
        return noise_of(self.noise_cost)

    @property
    def noise_bound(self) -> float:
        """Expected absolute noise in quanta, at the sensitivity above."""
        return expected_noise(self.sensitivity, self.noise_cost) / self.divisor

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: what counts alone can promise."""
        return self.bias_bound + self.noise_bound

    def value(self, noisy: float) -> float:
        """The noisy mean, in quanta, of a statistic with its noise; it may lie beyond the range."""
        return self.range.low + noisy / self.divisor

    def released(self, noisy: float) -> float:
        """What is released of a noisy mean: it, put into the range."""
        return self.range.clip(noisy)

    @property
    def used_samples(self) -> int:
        """How many samples enter the statistic."""
        return int(self.given.sum())

    @cached_property
    def charges(self) -> Integers:
        """What each plate loses, in nano-units rounded up: at most `cost`, and that for the largest mover."""
        if self.moves is None:
            return np.full(self.counts.plates, self.cost.nano, dtype=np.int64)
        return charges_of(self.moves, self.sensitivity, self.cost)


class MeanQuery(msgspec.Struct, frozen=True):
    """The integer to which noise is added, and how far one plate can move it; [a, b] if it was projected to one.

    The interval is private by itself, paid for with what `noise_cost` leaves: as public as the noisy value.

    >>> MeanQuery(statistic=2500, sensitivity=4000).projected_to is None
    True
    """

    statistic: int
    sensitivity: int
    projected_to: tuple[int, int] | None = None


class MeanMechanism(Protocol):
    """One way of taking a mean.

    >>> from udp_stream.mechanisms.means.baseline import Baseline
    >>> mechanism: MeanMechanism = Baseline()
    >>> mechanism.name
    'baseline'
    """

    @property
    def name(self) -> str:
        """As in the configuration and in release records."""
        ...

    def plan(self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping) -> MeanPlan:
        """Fix everything that counts can fix, the cap too."""
        ...

    def plan_with_cap(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """The plan with a cap that was chosen before, 1 <= cap <= the largest count."""
        ...

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """What `plan` gives for the same plates at another cost; `plan` was made by that, or by `at`."""
        ...

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The plan for those of its plates (at least one) that the ledger admitted, within each one's charge."""
        ...

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The statistic of the samples (plate by plate, in the order of the counts); bits pay for private intervals."""
        ...


def narrowed(plan: MeanPlan, admitted: NDArray[np.bool_], **changes: Any) -> MeanPlan:
    """The same statistic without the plates that were halted: the others give what they gave and move what they moved.

    So each one's loss stays within its charge as long as the noise does; the cost becomes the largest loss left.

    >>> from udp_stream.mechanisms.means.baseline import Baseline
    >>> counts = SamplesPerPlate(np.array([4, 1, 1]))
    >>> plan = Baseline().plan(counts, Cost("pure", 10**9), Range(0, 1000), "best-fit")
    >>> left = narrowed(plan, np.array([False, True, True]), divisor=2)
    >>> left.sensitivity, left.cost.nano, left.charges.tolist()  # the same noise, as small plates paid for no less
    (1000, 250000000, [250000000, 250000000])
    """
    if plan.moves is None:
        raise ValueError("expected a plan whose plates are charged by what they move")
    moves = plan.moves[admitted]
    sensitivity = max(1, int(moves.max()))  # noise is drawn even where no plate moves anything
    cost = cost_within(moves, sensitivity, plan.charges[admitted], plan.cost)
    return replace(
        plan,
        counts=SamplesPerPlate(plan.counts.by_plate[admitted]),
        given=plan.given[admitted],
        moves=moves,
        sensitivity=sensitivity,
        cost=cost,
        noise_cost=cost,
        **changes,
    )


def array_means(plan: MeanPlan, samples: Integers) -> Integers:
    """Means of the BestFit arrays over their filled positions, floored to whole quanta, above the low end: in 0..U.

    Positions of plates that were halted count as filled and hold zeros.

    >>> from udp_stream.mechanisms.means.array_averaging import ArrayAveraging
    >>> counts = SamplesPerPlate(np.array([2, 1, 1]))
    >>> plan = ArrayAveraging().plan_with_cap(counts, Cost("pure", 10**9), Range(0, 100), "best-fit", cap=2)
    >>> array_means(plan, np.array([10, 21, 40, 60])).tolist()
    [15, 50]
    """
    if plan.arrays is None:
        raise ValueError("expected a plan with arrays")
    kept = plan.range.above_low(samples[within_cap(plan.counts, plan.cap)])
    array_of_sample = np.repeat(plan.arrays.of_plate, plan.given)
    # weighted bincount adds doubles: exact, as the sums stay far below 2**53 quanta
    sums = np.bincount(array_of_sample, weights=kept, minlength=plan.arrays.count).astype(np.int64)
    return sums // plan.arrays.filled
