"""Mean around a forecast: each plate's mean speed is clipped to a narrow interval around what was
forecast for it.

Not from a paper; ours (docs/mechanisms/forecast.md). The forecast comes from counts and earlier
releases, so it is public, and part of the plan. With S_l the sum of plate l's m_l samples in [0,
U], f_l its forecast, and h_l a half width, the statistic is the integer

    sum over plates of v_l * clip(S_l - m_l f_l, -m_l h_l, m_l h_l)        (each interval cut where
    f_l +- h_l leaves U)

with integer weights v_l per sample: plates weigh by how precisely their samples tell the HAT's
mean, 1 / s(m_l)^2, and h_l is in proportion to s(m_l), the standard deviation of
`widths.plate_variance`. A narrow clip loses a part of what a HAT differs from its forecast, and
nearly all noise; the gain undoes the loss.

Privacy unit: license plate. Neighbours: swap-values. Plate l alone moves the statistic by at most
v_l times the width of its interval, in integers; the sensitivity is the largest of these; a plate's
charge is its own share. The guarantee holds whatever the forecast is, right or wrong.

What is released is forecast + (statistic + noise) / (gain * sum of v_l m_l).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import hypot, isqrt, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import NO_INTEGERS, Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import (
    Choice,
    NoisyValue,
    PublicSettings,
    Query,
    Range,
    SamplesPerPlate,
    Statistic,
    StatisticTerms,
    epsilon_stated,
)
from udp_stream.mechanisms.means import Mean, mean_columns
from udp_stream.mechanisms.noise import (
    Cost,
    Lattice,
    Noise,
    charges_of,
    cost_within,
    expected_noise,
    interval95,
    lattice_of,
    noise_of,
)
from udp_stream.mechanisms.widths import SAMPLED, USUAL, ClipWidth, plate_variance

FORECAST_CLIP = "forecast-clip"

WEIGHT_BITS = 12
"""Weights per sample are integers below 2**12: with 2**28 samples of at most 2**19 quanta, sums fit
in 63 bits."""


@dataclass(frozen=True, slots=True)
class ForecastClip:
    """Where a HAT's plates are clipped around, in quanta above 0, and how widely. `hat` is the
    forecast of its mean.

    >>> clip = ForecastClip(hat=18 * 4096, plates=np.array([17 * 4096, 19 * 4096]))
    >>> clip.subset(np.array([True, False])).plates.tolist()
    [69632]
    """

    hat: int
    plates: Integers
    width: ClipWidth = USUAL

    def subset(self, chosen: Flags) -> ForecastClip:
        return replace(self, plates=self.plates[chosen])


@dataclass(frozen=True)
class ForecastClipPlan:
    """How a HAT's mean is taken around its forecast; from counts, forecast, range and cost only;
    speeds in quanta.

    Plate by plate: `weights` per sample, `low` and `high` what a sample may differ from the
    forecast by on average, `plate_sensitivities` by how much the plate alone can move the
    statistic.

    >>> counts, around = SamplesPerPlate(np.array([36, 4])), ForecastClip(18 * 4096, np.array([17 * 4096, 22 * 4096]))
    >>> plan = plan_around(counts, around, Cost("pure", 10**9), Range(0, 65 * 4096))
    >>> plan.choice.mechanism, plan.charges.tolist()
    ('forecast-clip', [1000000000, 507776536])
    """

    counts: SamplesPerPlate
    around: ForecastClip
    range: Range
    cost: Cost
    weights: Integers
    low: Integers
    high: Integers
    plate_sensitivities: Integers
    sensitivity: int

    @property
    def choice(self) -> Choice:
        return Choice(FORECAST_CLIP, self.counts.largest)

    @property
    def noise(self) -> Noise:
        return noise_of(self.cost)

    @cached_property
    def weight(self) -> float:
        return float(self.weights @ self.counts.by_plate)

    @property
    def _shares(self) -> Floats:
        return self.weights * self.counts.by_plate / self.weight

    @property
    def divisor(self) -> float:
        """Divisor that turns the statistic into quanta of speed around the forecast."""
        return self.around.width.gain * self.weight

    @property
    def noise_bound(self) -> float:
        return expected_noise(self.sensitivity, self.cost) / self.divisor

    @cached_property
    def noise_deviation(self) -> float:
        over, under = self.noise.unit_scale(self.cost)
        return sqrt(self.noise.expected_square(self.sensitivity * over / under)) / self.divisor

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the value without noise around the HAT's mean, in quanta, by the
        model of speeds."""
        return (
            sqrt(SAMPLED * float(self._shares**2 @ plate_variance(self.counts.by_plate)))
            * QUANTA_PER_KMH
        )

    @cached_property
    def scatter(self) -> float:
        """Standard deviation of its plates around the HAT, in quanta, by the model of speeds: a
        clip's unit."""
        return float(self._shares @ np.sqrt(plate_variance(self.counts.by_plate))) * QUANTA_PER_KMH

    @property
    def hidden(self) -> float:
        """Standard deviation of what the clip hides, in quanta: HATs of a slot share it, as they
        share a city."""
        return self.around.width.hidden * QUANTA_PER_KMH

    @property
    def error_bound(self) -> float:
        """Worst-case bias plus expected noise, in quanta: a forecast can be wrong by all of the
        range."""
        return self.range.width + self.noise_bound

    @property
    def expected_error(self) -> float:
        return self.noise.error(self.noise_bound, hypot(self.spread, self.hidden))

    @property
    def used_samples(self) -> int:
        return self.counts.total

    @cached_property
    def charges(self) -> Integers:
        return charges_of(self.plate_sensitivities, self.sensitivity, self.cost)

    def value(self, noisy: float) -> float:
        """The mean in quanta, of a statistic with its noise; it may lie beyond the range."""
        return self.around.hat + noisy / self.divisor


def plan_around(
    counts: SamplesPerPlate, around: ForecastClip, cost: Cost, range: Range
) -> ForecastClipPlan:
    """Widths and weights for these plates; ValueError if there is not a forecast for each of them."""
    return plans_around([counts], [around], [cost], range)[0]


def plans_around(
    counts: Sequence[SamplesPerPlate],
    arounds: Sequence[ForecastClip],
    costs: Sequence[Cost],
    range: Range,
) -> list[ForecastClipPlan]:
    """Plans like `plan_around`, of many HATs at once. A forecast beyond the range counts as the
    range's end."""
    if not counts:
        return []
    for of_hat, around in zip(counts, arounds, strict=True):
        if around.plates.size != of_hat.plates:
            raise ValueError(
                f"expected a forecast for each of {of_hat.plates} plates, got {around.plates.size}"
            )
    sizes = np.array([of_hat.plates for of_hat in counts])
    ends = np.cumsum(sizes)
    first = ends - sizes
    pings = np.concatenate([of_hat.by_plate for of_hat in counts])
    centres = np.clip(np.concatenate([around.plates for around in arounds]), range.low, range.high)
    half_width = np.repeat([around.width.half_width for around in arounds], sizes)
    variance = plate_variance(pings)
    half = np.maximum(1, np.rint(half_width * np.sqrt(variance) * QUANTA_PER_KMH)).astype(np.int64)
    per_sample = 1 / (pings * variance)
    largest = np.repeat(np.maximum.reduceat(per_sample, first), sizes)
    # At least 1: rounding must not leave a plate out.
    weights = np.maximum(1, np.rint(per_sample / largest * (2**WEIGHT_BITS - 1))).astype(np.int64)
    low = np.maximum(-half, range.low - centres)
    high = np.minimum(half, range.high - centres)
    plate_sensitivities = weights * pings * (high - low)
    sensitivities = np.maximum(1, np.maximum.reduceat(plate_sensitivities, first)).tolist()
    plans = []
    slices = map(slice, first.tolist(), ends.tolist())
    for of_hat, around, cost, sensitivity, rows in zip(
        counts, arounds, costs, sensitivities, slices, strict=True
    ):
        where = ForecastClip(int(range.clip(around.hat)), centres[rows], around.width)
        plans.append(
            ForecastClipPlan(
                counts=of_hat,
                around=where,
                range=range,
                cost=cost,
                weights=weights[rows],
                low=low[rows],
                high=high[rows],
                plate_sensitivities=plate_sensitivities[rows],
                sensitivity=sensitivity,
            )
        )
    return plans


def clipped_sum(plan: ForecastClipPlan, samples: Integers) -> int:
    """The statistic: samples in quanta, plate by plate in the order of the counts."""
    if plan.around.width.ball:
        raise ValueError(
            "expected a plan that clips HAT by HAT; this one needs each plate's factor"
        )
    off = differences(plan, samples)
    pings = plan.counts.by_plate
    return int(plan.weights @ np.minimum(np.maximum(off, pings * plan.low), pings * plan.high))


def differences(plan: ForecastClipPlan, samples: Integers) -> Integers:
    """Sum of each plate's differences from its forecast, before any clip, shape (plates,).
    Secret."""
    starts = np.cumsum(plan.counts.by_plate) - plan.counts.by_plate
    clamped = np.minimum(np.maximum(samples, plan.range.low), plan.range.high)
    off: Integers = np.add.reduceat(clamped, starts) - plan.counts.by_plate * plan.around.plates
    return off


# A joint clip for all HATs of a plate in a slot: its differences from its forecasts, as a vector,
# are scaled into a ball.
#
# Ours (docs/mechanisms/forecast.md), for Gaussian noise only. In HAT h let plate l's part of the
# statistic (above) be e_lh = v_l (S_l - m_l f_l), less the middle of its interval; let a step of
# the noise's lattice be 2^k_h, and the noise's sigma t_h steps. Let D_lh be the steps by which the
# clip HAT by HAT would let the plate move the release: (D_lh / t_h)^2 / 2 is what it is charged. In
# units of each HAT's noise, 2^-20 of sigma,
#
#     room_l = sum over HATs of floor(D_lh / t_h)^2,      norm_l = sum over HATs of ceil(|e_lh| /
#     sigma_h)^2, radius R_l = (floor(sqrt(room_l)) - rounding_l) / 2,        factor F_l = min(1,
#     R_l / sqrt(norm_l)), rounded down.
#
# What is summed is e_lh F_l, rounded towards 0.
#
# **Guarantee.** Privacy unit: license plate. Neighbours: swap-values. Both of a plate's vectors lie
# in the ball of radius R_l, so they differ by at most 2 R_l. Rounding each HAT's sum to the lattice
# adds at most a step there, together at most `rounding_l`. So the rounded vector moves by at most
# sqrt(room_l) <= sqrt(sum (D_lh / t_h)^2), and the loss in rho, half the square (arXiv 2004.00010,
# Theorem 14, after scaling each entry by its sigma), is at most the sum of what the plate was
# charged for these HATs. It holds for the slot: a HAT alone may tell more of a plate than its
# charge there.
#
# Everything is in integers, so a factor is the same wherever it is computed. It needs room and norm
# of all HATs of the plate in the slot: a plate that lacks a HAT gets the factor 0, and then moves
# nothing. HATs of a slot may be drawn at different times, by runs with other settings or speeds;
# each plate's `checks` tell whether its lengths are those that the ledger remembers
# (`release/pipeline.py`). A plate with others gets the factor 0. No factor depends on another
# plate's speeds.

BITS: Final = 20
"""Lengths are counted in 2**-20 of the noise's sigma, and factors in 2**-20."""

WHOLE: Final = 1 << BITS
"""The factor of a plate that is within its ball."""

REACH: Final = 1024
"""Most sigmas of noise that a difference counts as: it is cut there, far outside of every ball."""

SQUARE_MAX: Final = 2**62
"""A sum of squares counts as at most this; a plate whose differences come to it gets the factor 0."""

_PRODUCT_MAX = 2**42
"""Differences up to here can be multiplied with a factor in 64 bits."""


@dataclass(frozen=True, slots=True)
class PlateNorms:
    """Number of HATs that charged each plate, and its `room`, `rounding`, `norm` and `checks`.

    Norms and checks follow from speeds: they are secret. `checks` are sums modulo 2**64 of
    `checks_of` each HAT: other lengths have the same once in 2**64 times.

    >>> PlateNorms((b"a",), *np.array([[2], [8], [0], [18], [7]])).norm.tolist()
    [18]
    """

    plates: tuple[bytes, ...]
    hats: Integers
    room: Integers
    rounding: Integers
    norm: Integers
    checks: Integers

    @classmethod
    def nobody(cls) -> PlateNorms:
        return cls((), *np.zeros((5, 0), np.int64))

    @property
    def columns(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        return self.hats, self.room, self.rounding, self.norm, self.checks

    def factors(self, expected: Mapping[bytes, int]) -> dict[bytes, int]:
        """Each plate's factor, of `WHOLE`; 0 where its number of HATs is not that of each of
        `expected`."""
        rows = zip(self.plates, *(column.tolist() for column in self.columns[:-1]), strict=True)
        # A norm that lacks a HAT is too small, and its factor too large: such a plate gives only
        # what is public of it.
        known = {
            plate: factor_of(room, rounding, norm)
            for plate, hats, room, rounding, norm in rows
            if expected.get(plate) == hats
        }
        return {plate: known.get(plate, 0) for plate in expected}


def merged_norms(parts: Sequence[PlateNorms]) -> PlateNorms:
    """Norms over the HATs of all parts; no HAT is in two of them."""
    if not parts:
        return PlateNorms.nobody()
    plates = tuple(sorted({plate for part in parts for plate in part.plates}))
    number = {plate: i for i, plate in enumerate(plates)}
    rows = np.array([number[plate] for part in parts for plate in part.plates], np.int64)
    return summed_norms(
        plates, rows, np.concatenate([np.stack(part.columns) for part in parts], axis=1)
    )


def summed_norms(plates: tuple[bytes, ...], rows: Integers, columns: Integers) -> PlateNorms:
    """Norms of these plates; `columns` are those of `PlateNorms`, with any number of rows for plate
    `rows[i]`."""
    hats, room, rounding, norm = (sums(rows, column, len(plates)) for column in columns[:-1])
    checks = np.zeros(len(plates), np.uint64)  # which wraps
    np.add.at(checks, rows, columns[-1].astype(np.uint64))
    return PlateNorms(plates, hats, room, rounding, norm, checks.astype(np.int64))


def checks_of(columns: Integers) -> Integers:
    """A digest for each plate of a HAT of all that its part of the clip follows from, to add to its
    checks: of the cell, `room`, `rounding` and `norm` in each column, shape (plates,)."""
    packed = columns.T.astype("<i8").tobytes()
    size = 8 * len(columns)
    digests = [
        blake2b(packed[at : at + size], digest_size=8).digest()
        for at in range(0, len(packed), size)
    ]
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


def factor_of(room: int, rounding: int, norm: int) -> int:
    """Factor by which a plate's differences are scaled, of `WHOLE`."""
    # Half of the room: other speeds of the plate may put it a diameter away. The lattice's rounding
    # comes on top.
    radius = max(0, isqrt(min(room, SQUARE_MAX)) - rounding) // 2
    # `sums` counts no further, so the norm may be any larger one: no factor but 0 is known to be
    # small enough.
    if norm >= SQUARE_MAX:
        return 0
    # Rounded down: what is scaled stays within the radius.
    return WHOLE if norm <= radius * radius else isqrt((radius * radius << 2 * BITS) // norm)


def sums(rows: Integers, values: Integers, size: int) -> Integers:
    """Sums of the values by their row's number, shape (size,), cut at `SQUARE_MAX`."""
    # Integers of Python: in 64 bits a sum could overflow into a small norm, and that into a large
    # factor.
    totals = np.zeros(size, dtype=object)
    np.add.at(totals, rows, values.astype(object))
    return np.minimum(totals, SQUARE_MAX).astype(np.int64)


def room_and_rounding(plan: ForecastClipPlan) -> tuple[Integers, Integers]:
    """Square of how far each plate of a HAT may move the release, and what the lattice takes of
    it."""
    lattice = _lattice(plan)
    # The room is rounded down, and norms are rounded up (`norms_of`): each on the safe side.
    lengths = np.minimum(
        (lattice.steps(plan.plate_sensitivities) << BITS) // lattice.t, REACH << BITS
    )
    rounding = -(-WHOLE // lattice.t) if lattice.shift else 0
    return lengths * lengths, np.full(lengths.size, rounding)


def norms_of(plan: ForecastClipPlan, samples: Integers) -> Integers:
    """Squared difference of each plate of a HAT, in units of noise, rounded up. Secret."""
    lattice = _lattice(plan)
    steps = (np.abs(_cut(plan, samples, lattice)) + (1 << lattice.shift) - 1) >> lattice.shift
    lengths = -(-(steps << BITS) // lattice.t)
    return lengths * lengths


def shrunk_sum(plan: ForecastClipPlan, samples: Integers, factors: Integers) -> int:
    """The statistic with each plate's difference scaled by its factor, of `WHOLE`."""
    cut = _cut(plan, samples, _lattice(plan))
    sizes: NDArray[Any] = np.abs(cut)
    # Products of the usual sizes fit into 64 bits. Others take the slow way, never an overflow.
    exact = sizes if not sizes.size or sizes.max() < _PRODUCT_MAX else sizes.astype(object)
    # By size: a shift of a negative number rounds away from zero, which is farther than allowed.
    scaled = ((exact * factors) >> BITS).astype(np.int64)
    return int((np.sign(cut) * scaled + _middle(plan)).sum())


def factors_for(factors: Mapping[bytes, int], plates: Sequence[bytes]) -> Integers:
    """The factors of these plates, in their order; 0 for a plate without a factor."""
    return np.array([factors.get(plate, 0) for plate in plates], np.int64)


def _cut(plan: ForecastClipPlan, samples: Integers, lattice: Lattice) -> Integers:
    """Each plate's difference from the middle of its interval, weighted, and at most `REACH`
    sigmas."""
    reach = min((lattice.t << lattice.shift) * REACH, SQUARE_MAX)
    cut: Integers = np.clip(
        plan.weights * differences(plan, samples) - _middle(plan), -reach, reach
    )
    return cut


def _middle(plan: ForecastClipPlan) -> Integers:
    """Middle of each plate's interval, the centre of the ball. Any public point would do."""
    return plan.weights * plan.counts.by_plate * ((plan.low + plan.high) // 2)


def _lattice(plan: ForecastClipPlan) -> Lattice:
    if plan.noise.power != 2:
        raise ValueError(
            f"expected a cost in rho where a plate's HATs share one clip, got {plan.cost.measure}"
        )
    return lattice_of(plan.sensitivity, plan.cost)


class ForecastClipStatistic(Statistic[ForecastClipPlan, NoisyValue]):
    """The mean around a forecast, which its terms carry.

    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> from udp_stream.mechanisms.base import ForecastClipTerms
    >>> asked = StatisticTerms("forecast-clip", 10**9, around=ForecastClipTerms.of(18.0, np.array([17.0, 19.0])))
    >>> statistic = ForecastClipStatistic()
    >>> plan = statistic.plan(counts, asked, public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> query.t.tolist(), bool(query.integers[0] > 0)
    ([53432083], True)
    """

    name = FORECAST_CLIP
    of = "mean"
    plural = "means"
    degree = 1

    def plan(
        self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings
    ) -> ForecastClipPlan:
        """Plan without a search; ValueError where the terms lack a forecast of a plate."""
        return self.plan_each([counts], [asked], public)[0]

    def plan_each(
        self,
        counts: Sequence[SamplesPerPlate],
        asked: Sequence[StatisticTerms],
        public: PublicSettings,
    ) -> list[ForecastClipPlan]:
        offered = [terms.around for terms in asked if terms.around is not None]
        if len(offered) < len(asked):
            raise ValueError("expected terms with a forecast")
        arounds = [
            ForecastClip(around.hat_quanta, around.plates_quanta, around.width)
            for around in offered
        ]
        return plans_around(counts, arounds, [terms.cost for terms in asked], public.range)

    def at(
        self,
        plan: ForecastClipPlan,
        asked: StatisticTerms,
        public: PublicSettings,  # noqa: ARG002
    ) -> ForecastClipPlan:
        return replace(plan, cost=asked.cost)

    def subset(self, plan: ForecastClipPlan, admitted: Flags) -> ForecastClipPlan:
        """The plan for the admitted plates, around the same forecast: they move what they moved,
        and lose at most their charges."""
        plate_sensitivities = plan.plate_sensitivities[admitted]
        sensitivity = max(1, int(plate_sensitivities.max()))
        cost = cost_within(plate_sensitivities, sensitivity, plan.charges[admitted], plan.cost)
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        around = plan.around.subset(admitted)
        weights = plan.weights[admitted]
        low = plan.low[admitted]
        high = plan.high[admitted]
        return ForecastClipPlan(
            counts, around, plan.range, cost, weights, low, high, plate_sensitivities, sensitivity
        )

    def query(self, plan: ForecastClipPlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        return Query.of_one(clipped_sum(plan, samples), lattice_of(plan.sensitivity, plan.cost))

    def joint_query(self, plan: ForecastClipPlan, samples: Integers, factors: Integers) -> Query:
        """Query of a HAT whose plates each share a clip among HATs: with the plates' factors."""
        return Query.of_one(
            shrunk_sum(plan, samples, factors), lattice_of(plan.sensitivity, plan.cost)
        )

    def record(
        self, plan: ForecastClipPlan, value: NoisyValue, left_out: Integers = NO_INTEGERS
    ) -> Mean:
        others = int(left_out.sum())
        width = plan.range.width
        noisy = value.value
        scale = value.scale
        spread = hypot(plan.spread * sqrt(1 + others / plan.counts.total), plan.hidden)
        low, high = interval95(plan.noise, noisy - plan.range.low, scale, spread, width)
        return Mean(
            value_kmh=round(plan.range.clip(noisy) / QUANTA_PER_KMH, 3),
            mechanism=FORECAST_CLIP,
            grouping=None,
            epsilon=epsilon_stated(plan.cost),
            scale_kmh=round(scale / QUANTA_PER_KMH, 4),
            expected_abs_error_kmh=round(plan.noise.error(scale, spread) / QUANTA_PER_KMH, 4),
            interval95_kmh=(round(low / QUANTA_PER_KMH, 3), round(high / QUANTA_PER_KMH, 3)),
            bias_bound_kmh=round(width / QUANTA_PER_KMH, 4),
        )

    def worst_case(self, plan: ForecastClipPlan, samples: int) -> float:  # noqa: ARG002
        return plan.error_bound

    def columns(self, plan: ForecastClipPlan, bits: Bits) -> list[tuple[str, str]]:  # noqa: ARG002
        bound = min(plan.error_bound, plan.range.width)
        return mean_columns(FORECAST_CLIP, plan.noise_bound, plan.expected_error, bound)

    def why(self, plan: ForecastClipPlan, asked: StatisticTerms) -> str:  # noqa: ARG002
        return "each plate's mean speed clipped to what is forecast for it"


AROUND = ForecastClipStatistic()
