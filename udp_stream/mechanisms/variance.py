"""The variance of a HAT's samples (their squares' mean less their mean's square), user-level
eps-DP.

Privacy unit: license plate. Neighbours: swap-values (same plates, same counts, a plate's speeds
differ). Assumed of the input: integers, plates and counts as in the plan. Guaranteed: the statistic
below changes by at most `sensitivity` when a plate's speeds change. Speeds are clipped to their
public range, of width U, and counted from its low end. Source: arXiv 2405.06261, the theorems on
sensitivity and on clipping error of the clipped variance; the proofs here are ours, and cover what
the text at hand gets wrong.

Plate l gives its first G_l = min(m_l, cap) samples; M = sum m_l, G = sum G_l. The statistic is the
integer

    T = G sum x^2 - (sum x)^2 = sum over pairs i < j of (x_i - x_j)^2,      variance of the kept
    samples = T / G^2.

**Sensitivity.** A plate with g of the G samples moves T by at most U^2 k (G - k), k = min(g,
floor(G/2)), and some data reach it. Let y be the other G - g samples, yb their mean. What depends
on the plate's x is A(x) + (G - g) sum (x_i - yb)^2, A its own pairs: at least 0, and convex in
every x_i, so largest where k' of them are U and g - k' are 0; there it is U^2 k'(g - k') + (G -
g)(k' (U - yb)^2 + (g - k') yb^2), convex in yb, so largest at yb = 0 (or, mirrored, U): U^2 k'(G -
k'). The best k' <= g is k. Reached: all others 0, the plate's all 0 against k of them U. It grows
with g, so the plate that gives most decides: U^2 G* (G - G*) if G > 2 G*, else U^2 G^2/4 (even G)
or U^2 (G^2 - 1)/4 (odd).

**Worst-case bias.** With D = M - G samples dropped: U^2 k (M - k) / M^2, k = min(D, floor(M/2)); so
0 if D = 0; U^2 r (1 - r), r = G/M, if the kept are the majority (M <= 2G); else U^2/4 (even M) or
U^2/4 (1 - 1/M^2) (odd M). The slides print these two the other way round. Write V, Vk, Vd for the
variances of all, kept and dropped samples, d for the difference of the kept and the dropped mean: V
= r Vk + (1 - r) Vd + r (1 - r) d^2.

* V - Vk = (1 - r)(Vd - Vk) + r (1 - r) d^2: with the kept mean fixed, largest for Vk = 0; then
  convex in each dropped sample and in the common value of the kept samples, so largest (up to
  mirroring) with the kept at 0, k' <= D of the dropped at U and the others at 0: U^2 k' (M - k') /
  M^2, best at k' = k.
* Vk - V <= (1 - r) Vk <= (1 - r) U^2/4, never more than the above: for M <= 2G as r >= 1/2 > 1/4,
  for even M as 1 - r <= 1, for odd M as r >= 1/M >= 1/M^2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import NO_INTEGERS, Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import (
    Choice,
    NoisyValue,
    NonNegative,
    Part,
    Positive,
    PublicSettings,
    Query,
    Range,
    SamplesPerPlate,
    Statistic,
    StatisticTerms,
    epsilon_stated,
    first_samples,
)
from udp_stream.mechanisms.means import MeanQuery
from udp_stream.mechanisms.noise import (
    Cost,
    Noise,
    charges_of,
    cost_within,
    expected_noise,
    lattice_of,
    noise_of,
)


@dataclass(frozen=True, slots=True)
class VariancePlan:
    """How a HAT's variance will be taken, from counts, cost and range only; speeds in quanta,
    errors in quanta^2.

    The estimate is (statistic + noise) / divisor, divisor = kept^2. `sensitivity` is that of the
    plate that gives most, but never below 1. `bias_bound` is the worst over all speeds of |variance
    of the kept - variance of all samples|.

    >>> plan = plan_variance(SamplesPerPlate(np.array([2, 1, 1])), Cost("pure", 10**9), Range(0, 10), cap=2)
    >>> plan.divisor, plan.bias_bound, plan.noise_bound  # no sample is dropped; U^2 G^2/4 = 400
    (16, 0.0, 25.0)
    """

    counts: SamplesPerPlate
    range: Range
    cost: Cost
    cap: int
    kept: int
    divisor: int
    sensitivity: int
    bias_bound: float

    @property
    def choice(self) -> Choice:
        return Choice("clipped-variance", self.cap)

    @property
    def charges(self) -> Integers:
        """Loss of each plate, in nano-units rounded up, at most `cost`: by its share of the most
        steps."""
        return charges_of(plate_sensitivity(self), self.sensitivity, self.cost)

    @property
    def noise(self) -> Noise:
        return noise_of(self.cost)

    @property
    def noise_bound(self) -> float:
        return expected_noise(self.sensitivity, self.cost) / self.divisor

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise (clamping adds to neither): what counts can promise."""
        return self.bias_bound + self.noise_bound

    def value(self, noisy: int) -> float:
        """The variance in quanta^2 from T plus noise, clamped to [0, U^2/4], where every variance
        lies."""
        return min(max(noisy / self.divisor, 0.0), self.range.width**2 / 4)


def plan_variance(
    counts: SamplesPerPlate, cost: Cost, range: Range, cap: int | None = None
) -> VariancePlan:
    """Plan the variance of a HAT, in time O(plates + largest count) (arXiv 2405.06261).

    Args:
        counts: Samples of each plate.
        cost: The most that a plate may lose.
        range: The range of speeds, quanta.
        cap: Most samples of a plate, 1 <= cap <= the largest count; None for the cap of least
            worst-case error.

    Returns:
        The plan, with its sensitivity and worst-case bias in quanta^2.

    Raises:
        ValueError: For another cap, or a cost below a nano-unit.
    """
    if cap is None:
        errors = _error_at_every_cap(counts, cost)
        # The last of the least: the larger cap drops fewer samples.
        cap = errors.size - int(np.argmin(errors[::-1]))
    if not 1 <= cap <= counts.largest:
        raise ValueError(f"expected 1 <= cap <= {counts.largest}, got {cap}")
    if cost.nano < 1:
        raise ValueError(f"expected cost >= 1 nano, got {cost.nano}")
    kept = counts.kept(cap)
    return VariancePlan(
        counts=counts,
        range=range,
        cost=cost,
        cap=cap,
        kept=kept,
        divisor=kept**2,
        sensitivity=max(1, range.width**2 * _most_pairs(cap, kept)),
        bias_bound=bias_among(counts.total, kept, range),
    )


def bias_among(total: int, kept: int, range: Range) -> float:
    """The worst over all speeds of |variance of `kept` samples - variance of all `total` that they
    are among|."""
    return range.width**2 * _most_pairs(total - kept, total) / total**2


def _most_pairs(movable: int, total: int) -> int:
    """The most pairs of samples that differ when at most `movable` of `total` are at the other end:
    k (total - k)."""
    k = min(movable, total // 2)
    return k * (total - k)


def _error_at_every_cap(counts: SamplesPerPlate, cost: Cost) -> Floats:
    """Worst-case bias plus expected noise in units of U^2, for the caps 1, 2, ... up to the largest
    count."""
    # How many plates have at most j samples, j = 0, 1, ...
    up_to = np.cumsum(np.bincount(counts.by_plate))
    kept = np.cumsum(counts.plates - up_to[:-1])
    caps = np.arange(1, counts.largest + 1)
    noise = share_of_pairs(caps, kept) * expected_noise(1, cost)
    return noise + share_of_pairs(counts.total - kept, np.full_like(kept, counts.total))


def share_of_pairs(movable: Integers, total: Integers) -> Floats:
    """k (total - k) / total^2 for k = min(movable, floor(total / 2)): in doubles, whose squares
    fit."""
    share = np.minimum(movable, total // 2) / total
    return share * (1 - share)


_SQUARES = 2**18
"""Number of squares per sum: so many squares of speeds up to 1400 km/h adds up to less than
2**63."""


def variance_query(plan: VariancePlan, samples: Integers) -> MeanQuery:
    """T of the kept samples, and how far a plate can move it; `samples` plate by plate, in the
    counts' order."""
    kept = plan.range.above_low(samples[first_samples(plan.counts, plan.cap)]).astype(np.int64)
    # sums are exact in 63 bits, squares 2**18 at a time; what comes of them need not be, so
    # Python's integers
    parts = [kept[i : i + _SQUARES] for i in range(0, kept.size, _SQUARES)]
    squares = sum(int(np.dot(part, part)) for part in parts)
    return MeanQuery(plan.kept * squares - int(kept.sum()) ** 2, plan.sensitivity)


def plate_sensitivity(plan: VariancePlan) -> NDArray[np.object_]:
    """How much each plate alone can move T, in the order of the counts: exact Python integers, at
    most `sensitivity`.

    U^2 g (G - g) for a plate with g < G/2 of the G samples, else U^2 floor(G^2/4), which outgrows
    63 bits at some 20,000 samples.
    """
    given = np.minimum(plan.counts.by_plate, plan.cap)
    k = np.minimum(given, plan.kept // 2)
    plate_sensitivities: NDArray[np.object_] = (k * (plan.kept - k)).astype(
        object
    ) * plan.range.width**2
    return plate_sensitivities


class Variance(Part, frozen=True):
    """The variance of the HAT's samples, divided by their number.

    `expected_abs_error_kmh2` is the noise's expected size, `bias_bound_kmh2` the most that capping,
    and leaving out plates that were not admitted, can bias the variance if speeds were chosen
    against it.

    >>> variance = Variance(81.0, "levy", epsilon=0.5, scale_kmh2=4.0, expected_abs_error_kmh2=4.0, bias_bound_kmh2=9.5)
    >>> variance.value_kmh2, variance.mechanism
    (81.0, 'levy')
    """

    value_kmh2: NonNegative
    """The private variance, (km/h)^2, at least 0."""
    mechanism: str
    """Name of the mechanism."""
    epsilon: Positive
    """Largest charge to a plate of the HAT for it."""
    scale_kmh2: NonNegative
    """Expected size of its noise, (km/h)^2."""
    expected_abs_error_kmh2: NonNegative
    """The same: the bias by capping is not counted."""
    bias_bound_kmh2: NonNegative
    """Most that it can be off without noise, if speeds were chosen against it: for readers who
    trust no model of speeds."""


class VarianceStatistic(Statistic[VariancePlan, NoisyValue]):
    """The variance by the clipped variance of arXiv 2405.06261.

    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = VarianceStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> plan.cap, query.integers.tolist()
    (2, [2457600])
    """

    name = of = "variance"
    plural = "variances"
    degree = 2

    def plan(
        self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings
    ) -> VariancePlan:
        cap = None if asked.choice is None else asked.choice.cap_among(counts)
        return plan_variance(counts, asked.cost, public.range, cap)

    def subset(self, plan: VariancePlan, admitted: Flags) -> VariancePlan:
        """The same cap; as shares g (G - g) change with G, the cost is lowered until no plate's
        exceeds its charge."""
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        final = plan_variance(counts, plan.cost, plan.range, min(plan.cap, counts.largest))
        plate_sensitivities = plate_sensitivity(final)
        charges = plan.charges[admitted]
        return replace(
            final, cost=cost_within(plate_sensitivities, final.sensitivity, charges, plan.cost)
        )

    def query(self, plan: VariancePlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        asked = variance_query(plan, samples)
        return Query.of_one(asked.statistic, lattice_of(asked.sensitivity, plan.cost))

    def record(
        self, plan: VariancePlan, value: NoisyValue, left_out: Integers = NO_INTEGERS
    ) -> Variance:
        among_all = bias_among(plan.counts.total + int(left_out.sum()), plan.kept, plan.range)
        value_kmh2, scale_kmh2, bias = (
            q / QUANTA_PER_KMH**2 for q in (value.value, value.scale, among_all)
        )
        return Variance(
            value_kmh2=round(value_kmh2, 3),
            mechanism=plan.choice.mechanism,
            epsilon=epsilon_stated(plan.cost),
            scale_kmh2=round(scale_kmh2, 4),
            expected_abs_error_kmh2=round(scale_kmh2, 4),
            bias_bound_kmh2=round(bias, 4),
        )

    def worst_case(self, plan: VariancePlan, samples: int) -> float:
        """The noise, and the most that the variance of the samples in use can be off that of all."""
        return plan.noise_bound + bias_among(samples, plan.kept, plan.range)

    def columns(self, plan: VariancePlan, bits: Bits) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("variance noise", f"{plan.noise_bound / QUANTA_PER_KMH**2:.1f}")]
