"""What the mean mechanisms share: their plan, their query, and the projections of array means.

Privacy unit: license plate. Neighbours: swap-values (same plates, same counts, one plate's speeds differ). Assumed of
the input: integer speeds in 0..U quanta, plates and counts as in the plan. Guaranteed: the query's statistic changes by
at most `sensitivity` when one plate's speeds change, by at most `moves[l]` when they are plate l's, and a private
interval it may have used costs what `noise_epsilon_nano` leaves of `epsilon_nano`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import Arrays, SamplesPerPlate, within_cap
from udp_stream.mechanisms.individual_charges import laplace_charges, laplace_epsilon_within
from udp_stream.mechanisms.statistic_terms import Choice
from udp_stream.mechanisms.statistic_terms import Grouping as Grouping  # for every mechanism
from udp_stream.units import NANO

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeanPlan:
    """How one HAT's mean will be taken, from counts, epsilon and U only; speeds in quanta.

    The estimate is (statistic + noise) / divisor. `sensitivity` is the statistic's for a plate, before any private
    interval narrows it; `noise_epsilon_nano` is what the final noise may spend, the rest of `epsilon_nano` pays for
    the interval. `bias_bound` is the worst over all speeds in [0, U] of |estimate without noise - sample mean|; what it
    is likely to be says `accuracy`. Where the samples' weights add up to less than 1, `fill` has the rest.

    Plate by plate, in the order of the counts: `given` is how many of its first samples enter the statistic, `moves`
    by how much it alone can move it; None where every plate is charged in full.
    """

    mechanism: str
    grouping: Grouping | None
    counts: SamplesPerPlate
    max_speed: int
    epsilon_nano: int
    noise_epsilon_nano: int
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
        """What fixed this plan beside counts, epsilon, U and grouping."""
        return Choice(self.mechanism, self.cap)

    @property
    def noise_bound(self) -> float:
        """Expected absolute noise in quanta, at the sensitivity above: E|Lap(b)| = b."""
        return self.sensitivity * NANO / self.noise_epsilon_nano / self.divisor

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: what counts alone can promise."""
        return self.bias_bound + self.noise_bound

    def released(self, noisy: float) -> float:
        """What is released of a noisy mean: it, put into [0, U]."""
        return min(max(noisy, 0.0), float(self.max_speed))

    @property
    def used_samples(self) -> int:
        """How many samples enter the statistic."""
        return int(self.given.sum())

    @property
    def charges(self) -> Integers:
        """What each plate loses, in nano-epsilon rounded up: at most `epsilon_nano`, and that for the largest mover."""
        if self.moves is None:
            return np.full(self.counts.plates, self.epsilon_nano, dtype=np.int64)
        return laplace_charges(self.moves, self.sensitivity, self.epsilon_nano)


@dataclass(frozen=True, slots=True)
class MeanQuery:
    """The integer to which noise is added, and how far one plate can move it; [a, b] if it was projected to one.

    The interval is private by itself, paid for with what `noise_epsilon_nano` leaves: as public as the noisy value.
    """

    statistic: int
    sensitivity: int
    projected_to: tuple[int, int] | None = None


class MeanMechanism(Protocol):
    """One way of taking a mean."""

    @property
    def name(self) -> str:
        """As in the configuration and in release records."""
        ...

    def plan(self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:
        """Fix everything that counts can fix, the cap too."""
        ...

    def plan_with_cap(
        self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """The plan with a cap that was chosen before, 1 <= cap <= the largest count."""
        ...

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The plan for those of its plates (at least one) that the ledger admitted, within each one's charge."""
        ...

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:
        """The statistic of the samples (plate by plate, in the order of the counts); bits pay for private intervals."""
        ...


def narrowed(plan: MeanPlan, admitted: NDArray[np.bool_], **changes: Any) -> MeanPlan:
    """The same statistic without the plates that were halted: the others give what they gave and move what they moved.

    So each one's loss stays within its charge as long as the noise does; epsilon becomes the largest loss that is left.
    """
    if plan.moves is None:
        raise ValueError("expected a plan whose plates are charged by what they move")
    moves = plan.moves[admitted]
    sensitivity = max(1, int(moves.max()))
    epsilon_nano = laplace_epsilon_within(moves, sensitivity, plan.charges[admitted], plan.epsilon_nano)
    return replace(
        plan,
        counts=SamplesPerPlate(plan.counts.by_plate[admitted]),
        given=plan.given[admitted],
        moves=moves,
        sensitivity=sensitivity,
        epsilon_nano=epsilon_nano,
        noise_epsilon_nano=epsilon_nano,
        **changes,
    )


def array_means(plan: MeanPlan, samples: Integers) -> Integers:
    """Means of the BestFit arrays over their filled positions, floored to whole quanta; in 0..U like the samples.

    Positions of plates that were halted count as filled and hold zeros.
    """
    if plan.arrays is None:
        raise ValueError("expected a plan with arrays")
    kept = samples[within_cap(plan.counts, plan.cap)]
    array_of_sample = np.repeat(plan.arrays.of_plate, plan.given)
    # weighted bincount adds doubles: exact, as the sums stay far below 2**53 quanta
    sums = np.bincount(array_of_sample, weights=kept, minlength=plan.arrays.count).astype(np.int64)
    return sums // plan.arrays.filled
