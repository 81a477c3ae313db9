"""Mean around a forecast: each plate's mean speed is clipped to a narrow interval around what was forecast for it.

Not from a paper; ours (docs/mechanisms/forecast.md). The forecast comes from counts and earlier releases, so it is
public, and part of the plan. With S_l the sum of plate l's m_l samples in [0, U], f_l its forecast, and h_l a half
width, the statistic is the integer

    sum over plates of v_l * clip(S_l - m_l f_l, -m_l h_l, m_l h_l)        (each interval cut where f_l +- h_l leaves U)

with integer weights v_l per sample. Plates weigh by how precisely their samples tell the HAT's mean, 1 / s(m_l)^2, and
h_l is in proportion to s(m_l), the standard deviation of `speed_spread.py`: by how much is chosen HAT by HAT
(`clip_width.py`). A narrow clip loses a part of what a HAT differs from its forecast, and nearly all noise. The gain
undoes the loss.

Privacy unit: license plate. Neighbours: swap-values. Plate l alone moves the statistic by at most v_l times the width
of its interval, in integers; the sensitivity is the largest of these; a plate's charge is its own share. Whatever the
forecast is, also a wrong one, the guarantee is the same.

What is released is forecast + (statistic + noise) / (gain * sum of v_l m_l).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.clip_width import USUAL, ClipWidth
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.noise import Cost, Noise, charges_of, cost_within, expected_noise, noise_of
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.speed_spread import SAMPLED, plate_variance
from udp_stream.mechanisms.statistic import Choice
from udp_stream.units import QUANTA_PER_KMH

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

NAME = "forecast-clip"

WEIGHT_BITS = 12
"""Weights per sample are integers below 2**12: with 2**28 samples of at most 2**19 quanta, sums fit in 63 bits."""


@dataclass(frozen=True, slots=True)
class Around:
    """Where a HAT's plates are clipped around, in quanta above 0, and how widely. `hat` is the forecast of its mean.

    >>> Around(hat=18 * 4096, plates=np.array([17 * 4096, 19 * 4096])).subset(np.array([True, False])).plates.tolist()
    [69632]
    """

    hat: int
    plates: Integers
    width: ClipWidth = USUAL

    def subset(self, chosen: NDArray[np.bool_]) -> Around:
        """The same for some of the plates."""
        return replace(self, plates=self.plates[chosen])


@dataclass(frozen=True)
class ForecastClipPlan:
    """How a HAT's mean is taken around its forecast; from counts, forecast, range and cost only; speeds in quanta.

    Plate by plate, in the order of the counts: `weights` per sample, `low` and `high` what a sample may differ from the
    forecast by on average, `moves` by how much the plate alone can move the statistic.

    >>> counts, around = SamplesPerPlate(np.array([36, 4])), Around(18 * 4096, np.array([17 * 4096, 22 * 4096]))
    >>> plan = plan_around(counts, around, Cost("pure", 10**9), Range(0, 65 * 4096))
    >>> plan.choice.mechanism, plan.charges.tolist()
    ('forecast-clip', [1000000000, 507776536])
    """

    counts: SamplesPerPlate
    around: Around
    range: Range
    cost: Cost
    weights: Integers
    low: Integers
    high: Integers
    moves: Integers
    sensitivity: int

    @property
    def choice(self) -> Choice:
        """The mechanism; all else follows from counts and forecast."""
        return Choice(NAME, self.counts.largest)

    @property
    def mechanism(self) -> str:
        """As records name it."""
        return NAME

    @property
    def noise(self) -> Noise:
        """The family that the noise is of."""
        return noise_of(self.cost)

    @cached_property
    def weight(self) -> float:
        """Of all samples together."""
        return float(self.weights @ self.counts.by_plate)

    @property
    def divisor(self) -> float:
        """What turns the statistic into km/h-like quanta around the forecast."""
        return self.around.width.gain * self.weight

    @property
    def noise_bound(self) -> float:
        """Expected absolute noise in quanta."""
        return expected_noise(self.sensitivity, self.cost) / self.divisor

    @cached_property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise in quanta."""
        over, under = self.noise.unit_scale(self.cost)
        return sqrt(self.noise.expected_square(self.sensitivity * over / under)) / self.divisor

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the value without noise around the HAT's mean, in quanta, by the model of speeds."""
        shares = self.weights * self.counts.by_plate / self.weight
        return sqrt(SAMPLED * float(shares**2 @ plate_variance(self.counts.by_plate))) * QUANTA_PER_KMH

    @property
    def hidden(self) -> float:
        """Standard deviation of what the clip hides, in quanta: HATs of a slot share it, as they share a city."""
        return self.around.width.hidden * QUANTA_PER_KMH

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: a forecast can be wrong by all of the range."""
        return self.range.width + self.noise_bound

    @property
    def expected_error(self) -> float:
        """About how far the value is likely to be off, in quanta."""
        return self.noise.error(self.noise_bound, hypot(self.spread, self.hidden))

    @property
    def used_samples(self) -> int:
        """Every sample enters the statistic."""
        return self.counts.total

    @cached_property
    def charges(self) -> Integers:
        """What each plate loses, in nano-units rounded up: at most `cost`, and that for the largest mover."""
        return charges_of(self.moves, self.sensitivity, self.cost)

    def value(self, noisy: float) -> float:
        """The mean in quanta, of a statistic with its noise; it may lie beyond the range."""
        return self.around.hat + noisy / self.divisor


def plan_around(counts: SamplesPerPlate, around: Around, cost: Cost, range: Range) -> ForecastClipPlan:
    """Widths and weights for these plates; ValueError if there is not a forecast for each of them.

    A forecast beyond the range, of a time when it was another, counts as the range's end.
    """
    return plans_around([counts], [around], cost, range)[0]


def plans_around(
    counts: Sequence[SamplesPerPlate], arounds: Sequence[Around], cost: Cost, range: Range
) -> list[ForecastClipPlan]:
    """As `plan_around`, of many HATs at once: a column at a time, over the plates of all of them."""
    if not counts:
        return []
    for one, around in zip(counts, arounds, strict=True):
        if around.plates.size != one.plates:
            raise ValueError(f"expected a forecast for each of {one.plates} plates, got {around.plates.size}")
    sizes = np.array([one.plates for one in counts])
    ends = np.cumsum(sizes)
    first = ends - sizes
    pings = np.concatenate([one.by_plate for one in counts])
    centres = np.clip(np.concatenate([around.plates for around in arounds]), range.low, range.high)
    half_width = np.repeat([around.width.half_width for around in arounds], sizes)
    variance = plate_variance(pings)
    half = np.maximum(1, np.rint(half_width * np.sqrt(variance) * QUANTA_PER_KMH)).astype(np.int64)
    per_sample = 1 / (pings * variance)
    largest = np.repeat(np.maximum.reduceat(per_sample, first), sizes)
    # At least 1: rounding must not leave a plate out.
    weights = np.maximum(1, np.rint(per_sample / largest * (2**WEIGHT_BITS - 1))).astype(np.int64)
    low, high = np.maximum(-half, range.low - centres), np.minimum(half, range.high - centres)
    moves = weights * pings * (high - low)
    sensitivities = np.maximum(1, np.maximum.reduceat(moves, first)).tolist()
    plans = []
    for one, around, sensitivity, begin, end in zip(
        counts, arounds, sensitivities, first.tolist(), ends.tolist(), strict=True
    ):
        rows = slice(begin, end)
        where = Around(int(range.clip(around.hat)), centres[rows], around.width)
        columns = weights[rows], low[rows], high[rows], moves[rows]
        plans.append(ForecastClipPlan(one, where, range, cost, *columns, sensitivity))
    return plans


def around_for_admitted(plan: ForecastClipPlan, admitted: NDArray[np.bool_]) -> ForecastClipPlan:
    """The same without the plates that were halted; the others move what they moved and lose at most their charges."""
    moves = plan.moves[admitted]
    sensitivity = max(1, int(moves.max()))
    return replace(
        plan,
        counts=SamplesPerPlate(plan.counts.by_plate[admitted]),
        around=plan.around.subset(admitted),
        cost=cost_within(moves, sensitivity, plan.charges[admitted], plan.cost),
        weights=plan.weights[admitted],
        low=plan.low[admitted],
        high=plan.high[admitted],
        moves=moves,
        sensitivity=sensitivity,
    )


def clipped_sum(plan: ForecastClipPlan, samples: Integers) -> int:
    """The statistic: samples in quanta, plate by plate in the order of the counts."""
    if plan.around.width.ball:
        raise ValueError("expected a plan that clips HAT by HAT; this one needs each plate's factor")
    off, pings = differences(plan, samples), plan.counts.by_plate
    return int(plan.weights @ np.minimum(np.maximum(off, pings * plan.low), pings * plan.high))


def differences(plan: ForecastClipPlan, samples: Integers) -> Integers:
    """What each plate's samples differ from its forecast by, summed, before any clip. Secret."""
    starts = np.cumsum(plan.counts.by_plate) - plan.counts.by_plate
    clamped = np.minimum(np.maximum(samples, plan.range.low), plan.range.high)
    off: Integers = np.add.reduceat(clamped, starts) - plan.counts.by_plate * plan.around.plates
    return off
