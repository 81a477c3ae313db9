"""The question to the whole city, its answer, and CDFs of HATs by tilting the city's; `charge.py`
has the road.

The sums and their noise are below; `forecast/shape.py` has the post-processing of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import NormalDist
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.model import CityTold
from udp_stream.forecast.shape import SLOTS_APART_DAYS, Answer, CityShape, hat_shapes, projected
from udp_stream.forecast.usual_week import MeanOver
from udp_stream.ledger.ids import CITY_HOUR, id_of
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import NonNegative, Query, Share, noisy_integers
from udp_stream.mechanisms.cdf import Bins, city_bins
from udp_stream.mechanisms.noise import Cost, charges_of, counts_scale, lattice_of, noise_of
from udp_stream.planning.policy import DAY_S, Policy
from udp_stream.planning.slot import CityPlan, is_too_little
from udp_stream.release.record import Record, SmoothedCdf
from udp_stream.windows.tables import DAY_MS, SlotCounts, SlotValues

ASKS_PER_DAY = 2
"""Answers of a day. A question that was charged and has no answer, as with another U after a crash,
is none of them."""

ASK_PART = 50
"""Thousandths of a plate's budget of a day that an answer costs those of full weight; of a longer
one a day's part."""

MORE_PLATES = 1.5
"""Where so many times as many plates are out as answered that day, service had only begun, and more
is to be told."""


class CityKnowledge(NamedTuple):
    """Knowledge of the city before a slot, how often it was asked that day, and the most plates
    that answered.

    >>> from udp_stream.forecast.shape import family
    >>> CityKnowledge(family((0.0, 65.0)), asked=0).asked
    0
    """

    shape: CityShape
    asked: int
    plates: float = 0.0


class HourKnowledge(NamedTuple):
    """Knowledge of a slot before its HATs: the forecast of each row, km/h, and the mean over HATs
    by the share of each.

    >>> from udp_stream.forecast.usual_week import MeanOver
    >>> known = HourKnowledge(np.array([17.0]), lambda share: MeanOver(17.0 * share[0], share, 0.2))
    >>> known.over(np.ones(1)).own
    0.2
    """

    kmh: Floats
    over: Callable[[Floats], MeanOver]


class CityQuestion(Protocol):
    """A question to all plates of a slot together: sums of whole numbers over rows, to which
    noise is added.

    A row is a plate in a HAT. A plate's charge pays for whatever its rows can move the sums by,
    given its weights.

    >>> question: CityQuestion = ShapeQuestion()
    """

    def ask(
        self, counts: SlotCounts, policy: Policy, known: CityKnowledge | None
    ) -> CityPlan | None:
        """The plan if all plates of the slot can pay, by counts and whatever else is public; None
        where nothing is asked."""

    def charges(self, weights: Integers, plan: CityPlan) -> Integers:
        """Loss of plates by the answer whose samples weigh so much in all: nano-units, rounded
        up."""

    def sums(self, counts: SlotCounts, values: SlotValues, plan: CityPlan) -> tuple[int, ...]:
        """The sums over these rows, by the plan's weights of them; rows of weight 0 count nothing.
        Secret."""

    def answer(self, sums: tuple[int, ...], plan: CityPlan, bits: Bits) -> bytes:
        """The record: what the sums of the whole slot say with noise."""


Charges = Callable[[Integers, CityPlan], Integers]
"""As `CityQuestion.charges`."""


class CityRecord(Record, frozen=True, tag_field="schema", tag="udp-stream/city/1"):
    """The answer of the city in a slot. `shares` are as drawn; `cdf` is of the nearest shares
    that there can be: none of them below 0, and 1 in all.

    `deviation` is the noise's, of each share; `plates` so many took part, as `full_plates` of ten
    pings or more.

    >>> record = CityRecord((0.0, 65.0), (-0.02, 1.01), (0.0, 1.0), 0.03, 120, 96.4)
    >>> record.answer.variance, CityRecord.decode(record.encode()) == record
    (0.0009, True)
    """

    edges_kmh: tuple[NonNegative, ...]
    shares: tuple[float, ...]
    cdf: tuple[Share, ...]
    deviation: NonNegative
    plates: Annotated[int, msgspec.Meta(ge=1)]
    full_plates: Annotated[float, msgspec.Meta(gt=0)]

    @property
    def answer(self) -> Answer:
        return Answer(np.array(self.shares), self.deviation**2, self.full_plates)


class ShapeQuestion:
    """The question of the city's CDF: until it is told, in slots with so many plates that noise is
    worth its price."""

    def ask(
        self, counts: SlotCounts, policy: Policy, known: CityKnowledge | None
    ) -> CityPlan | None:
        nano = ask_nano(policy)
        if known is None or known.asked >= ASKS_PER_DAY or not counts.count.size or not nano:
            return None
        weights = sample_weights(counts.count, counts.plate)
        moves = weights_of_plates(counts, weights)
        whole = int(moves.sum())
        tree = CityTree(Cost(policy.measure, nano), max(1, int(moves.max())), policy.max_speed)
        if not tree.is_drawable:
            return None
        under_way = int(moves[np.bincount(counts.plate, minlength=moves.size) > 1].sum())
        has_more = known.asked and whole / WHOLE >= MORE_PLATES * known.plates
        shape = known.shape.drifted(SLOTS_APART_DAYS) if has_more else known.shape
        if not shape.is_informative(tree.noise_variance / max(1, whole) ** 2, under_way / WHOLE):
            return None
        charges = tree.charges(moves)[counts.plate]
        plates = int(np.count_nonzero(moves))
        return CityPlan(weights, charges, plates, msgspec.json.encode(tree))

    def charges(self, weights: Integers, plan: CityPlan) -> Integers:
        return msgspec.json.decode(plan.about, type=CityTree).charges(weights)

    def sums(self, counts: SlotCounts, values: SlotValues, plan: CityPlan) -> tuple[int, ...]:  # noqa: ARG002
        tree = msgspec.json.decode(plan.about, type=CityTree)
        clamped = values.clamped(tree.max_speed)
        return tuple(city_sums(tree, clamped.speed, clamped.starts, plan.weights).tolist())

    def answer(self, sums: tuple[int, ...], plan: CityPlan, bits: Bits) -> bytes:
        """Noisy shares; their sum without noise is public, as counts are."""
        tree = msgspec.json.decode(plan.about, type=CityTree)
        whole = max(1, sum(sums))
        (noisy,) = noisy_integers(
            [tree.query(np.array(sums, dtype=np.int64))], noise_of(tree.cost), bits
        )
        shares = noisy / whole
        consistent = np.minimum(np.cumsum(projected(shares)), 1.0)
        return msgspec.json.encode(
            CityRecord(
                tree.bins.edges_kmh[1:], tuple(shares.round(6).tolist()),
                (*consistent[:-1].round(6).tolist(), 1.0), round(tree.noise_variance**0.5 / whole, 6), plan.plates,
                max(0.01, round(whole / WHOLE, 2)),
            )
        )  # fmt: skip


def weights_of_plates(counts: SlotCounts, weights: Integers) -> Integers:
    """Weight of all samples of each plate; `weights` are those of a sample of each row."""
    in_all = np.bincount(counts.plate, weights=weights * counts.count, minlength=len(counts.plates))
    return in_all.astype(np.int64)


def require_paid(charges: Charges, counts: SlotCounts, plan: CityPlan) -> None:
    """PrivacyRefused if any plate would lose more by the weights of these rows than it was charged.
    A shard finds what its part of a plate's rows loses; the planner asks this of the whole."""
    weighed = plan.weights > 0
    paid = np.full(len(counts.plates), np.iinfo(np.int64).max)
    np.minimum.at(paid, counts.plate[weighed], plan.charged[weighed])
    unpaid = np.count_nonzero(charges(weights_of_plates(counts, plan.weights), plan) > paid)
    if unpaid:
        raise PrivacyRefused(
            f"{id_of(plan.kind, *counts.slot)}: expected plates to be charged what this answer lets them "
            f"lose, got {unpaid} that were charged less; nothing is drawn"
        )


def ask_nano(policy: Policy) -> int:
    """Cost of an answer to a plate of full weight; 0 where the budget is for a lifetime."""
    if policy.period_seconds is None:
        return 0
    return policy.budget_nano * ASK_PART * DAY_S // (1000 * max(DAY_S, policy.period_seconds))


QUANTILES = 0.1, 0.5, 0.9
SLOW_KMH = 5.0, 10.0


class HatCdf(NamedTuple):
    """The fields of a smoothed record on a HAT's distribution. Intervals hold 95 %; names are
    shares, and speeds in km/h.

    >>> cdf = SmoothedCdf((65.0,), (1.0,), ((1.0,), (1.0,)), (1.0,))
    >>> HatCdf(cdf, {"0.5": 17.2}, {"0.5": (12.9, 21.0)}, {"5": 0.31}, {"5": (0.2, 0.4)}, 0.1).expected_sup_error
    0.1
    """

    cdf: SmoothedCdf
    quantiles_kmh: Mapping[str, float]
    quantiles_interval95_kmh: Mapping[str, tuple[float, float]]
    share_below_kmh: Mapping[str, float]
    share_below_interval95: Mapping[str, tuple[float, float]]
    expected_sup_error: float


def hat_cdfs(
    city: CityShape,
    mean: Floats,
    deviation: Floats,
    plates: Integers,
) -> list[HatCdf]:
    """The distribution of each HAT of a slot by its smoothed mean, the standard deviation of that
    (km/h), and its plates (0 without pings): public, all of it.
    """
    shapes = hat_shapes(city, mean, deviation, plates)
    edges = city.edges_kmh
    guess = (*np.minimum(np.cumsum(city.mean), 1.0).round(4).tolist()[:-1], 1.0)
    # HAT by HAT: the CDF and both ends of its band, at each speed; each quantile and both ends of
    # its interval.
    values = shapes.at(edges).round(4).transpose(0, 2, 1).tolist()
    below = shapes.at([min(kmh, edges[-1]) for kmh in SLOW_KMH]).round(4).tolist()
    quantiles = np.stack([shapes.quantiles(share) for share in QUANTILES], axis=1).round(3).tolist()
    return [
        HatCdf(
            SmoothedCdf(edges, tuple(value), (tuple(low), tuple(high)), guess),
            *_with_intervals(QUANTILES, at_shares), *_with_intervals(SLOW_KMH, of_slow), round(sup, 4),
        )
        for (value, low, high), at_shares, of_slow, sup in zip(
            values, quantiles, below, shapes.sup.tolist(), strict=True
        )
    ]  # fmt: skip


def _with_intervals(
    at: Sequence[float], found: Sequence[tuple[float, float, float]]
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    names = [f"{one:g}" for one in at]
    return (
        {name: value for name, (value, _, _) in zip(names, found, strict=True)},
        {name: (low, high) for name, (_, low, high) in zip(names, found, strict=True)},
    )


# The city's tree: the share of a slot's plates in each of some unequal bins of speed, one level.
#
# Not from a paper; the tree of height 1 of arXiv 2409.18573 (`cdf.py`), which errs least at the 100
# to 200 plates of a city, with a plate's samples weighed. With m_l samples of plate l in the whole
# slot, and q_l = floor(2^16 min(m_l, 10) / (10 m_l)), the statistic has for each bin
#
#     sum over plates of q_l * (samples of plate l in the bin)
#
# so a plate counts by what ten samples tell at most. Whole numbers: sums of parts of a slot add up to
# those of the whole.
#
# Privacy unit: license plate. Neighbours: swap-values. Assumed: counts are public, and a plate keeps
# its m_l samples. Swapping its values moves them from bins to bins: at most all of its weight w_l =
# q_l m_l leaves bins, and as much enters others. So the vector moves by at most 2 w_l in l1 and
# sqrt(2) w_l in l2, which is what noise for counts of w_l samples is made for (`noise.counts_scale`).
# With noise for the largest weight, plate l loses the cost times w_l / max w in epsilon, times its
# square in rho (arXiv 2004.00010, Theorem 14), and is charged that, rounded up. Plates that cannot
# pay are left out, and the noise stays.

WHOLE: Final = 2**16
"""Weight of a plate of `FULL_PINGS` samples, before rounding."""

FULL_PINGS: Final = 10
"""Samples of a plate from which it has full weight; fewer weigh in proportion."""


class CityTree(msgspec.Struct, frozen=True):
    """Public parameters of the sums and their noise, beside weights and speeds.

    `most` is the largest weight of a plate, `max_speed` U in quanta.

    >>> tree = CityTree(Cost("pure", 5 * 10**8), most=WHOLE, max_speed=65 * 4096)
    >>> tree.charges(np.array([0, WHOLE // 2, WHOLE])).tolist(), tree.bins.count
    ([0, 250000000, 500000000], 12)
    """

    cost: Cost
    most: int
    max_speed: int

    @property
    def bins(self) -> Bins:
        return city_bins(self.max_speed)

    @property
    def is_drawable(self) -> bool:
        try:
            counts_scale(self.most, self.cost)
        except ValueError:
            return False
        return True

    @property
    def noise_variance(self) -> float:
        t, s = counts_scale(self.most, self.cost)
        return noise_of(self.cost).expected_square(t / s)

    def charges(self, weights: Integers) -> Integers:
        """Loss of plates of these weights, nano-units rounded up, shape (plates,)."""
        return noise_of(self.cost).charges(weights, self.most, self.cost)

    def query(self, sums: Integers) -> Query:
        """The sums of the whole slot, with the scale of each sum's noise; ValueError for others."""
        if sums.shape != (self.bins.count,):
            raise ValueError(f"expected {self.bins.count} sums, got {sums.shape}")
        t, s = counts_scale(self.most, self.cost)
        return Query(sums, np.full(sums.size, t), np.full(sums.size, s))


def sample_weights(count: Integers, plate: Integers) -> Integers:
    """Weight of each sample of a row; a row is a plate with `count` samples in a HAT of the
    slot."""
    of_plate = np.bincount(plate, weights=count, minlength=1).astype(np.int64)[plate]
    return WHOLE * np.minimum(of_plate, FULL_PINGS) // (FULL_PINGS * of_plate)


def city_sums(tree: CityTree, speed: Integers, starts: Integers, weights: Integers) -> Integers:
    """Sums over rows, of which the r-th has the speeds `starts[r]` to `starts[r + 1]` in quanta,
    shape (bins,). Secret."""
    of_sample = np.repeat(weights, np.diff(starts))
    sums = np.zeros(tree.bins.count, np.int64)
    np.add.at(sums, tree.bins.bin_of(speed[starts[0] : starts[-1]]), of_sample)
    return sums


# The city's hour: the mean of a slot's plates around its forecast, before any HAT is drawn around the
# same. Ours (docs/mechanisms/shapes.md).
#
# With q_l and w_l as above, m_r samples of row r in its HAT, S_r their sum and f_r the row's forecast,
# the statistic is
#
#     sum over plates of q_l * clip(sum over its rows of (S_r - m_r f_r), -m_l R, m_l R)
#
# in whole numbers. Forecasts follow from earlier outputs and counts, so both are public.
#
# Privacy unit: license plate. Neighbours: swap-values. Swapping a plate's values moves its term, so the
# statistic, by at most 2 R q_l m_l = 2 R w_l, whichever of its rows are there. With noise for the
# largest weight each plate is charged its part (`noise.charges_of`).

HOUR_PART: Final = 48
"""Thousandths of a plate's budget of a day that all answers of a day cost those of full weight."""

HOUR_RADIUS: Final = 5 * QUANTA_PER_KMH
"""Half width of the clip of a plate's mean around its forecast, in quanta."""

HOUR_PLATES_MIN: Final = 20

HOUR_DEVIATION_MAX = 2.0
"""The largest standard deviation of an answer, km/h, at which a city is asked."""

PLATES_APART = 4.0
"""The standard deviation of a plate's mean around the city's offset, km/h: what the clip is undone
by."""

HOUR_APART = 0.5
"""The standard deviation of what no clip can be undone by, km/h."""

OFFSETS = np.linspace(-12.0, 12.0, 97)
"""Offsets of a city that an answer can tell, km/h: beyond them hardly a plate is within its clip."""

RADIUS_KMH: Final = HOUR_RADIUS / QUANTA_PER_KMH
APART_KMH = PLATES_APART * np.array([NormalDist().inv_cdf((at + 0.5) / 200) for at in range(200)])


class CityHour(Record, frozen=True, tag_field="schema", tag="udp-stream/city-hour/1"):
    """How far the city is off its forecast in a slot, in km/h, with the standard deviation of all
    that this is off by, and that of an offset of none; and its loadings on what cities share
    (`forecast/model.py`). `plates` took part.

    >>> record = CityHour(-6.2, 2.1, 1.1, (1.0, 0.1), 120)
    >>> record.told.variance.__round__(2), CityHour.decode(record.encode()) == record
    (4.41, True)
    """

    offset_kmh: float
    deviation_kmh: NonNegative
    usual_deviation_kmh: NonNegative
    loadings: tuple[float, ...]
    plates: Annotated[int, msgspec.Meta(ge=1)]

    @property
    def told(self) -> CityTold:
        return CityTold(
            self.offset_kmh,
            self.deviation_kmh**2,
            self.usual_deviation_kmh**2,
            np.array(self.loadings),
        )


class HourMean(msgspec.Struct, frozen=True):
    """Public parameters of the mean and its noise, beside weights and forecasts: the largest weight
    of a plate, and what the forecasts say of the city.

    >>> mean = HourMean(Cost("pure", 5 * 10**8), most=WHOLE, loadings=(1.0,), own=0.1)
    >>> mean.deviation_kmh(100 * WHOLE, 0.0).__round__(2), mean.deviation_kmh(100 * WHOLE, -8.0).__round__(2)
    (0.86, 2.26)
    """

    cost: Cost
    most: int
    loadings: tuple[float, ...]
    own: float

    @property
    def sensitivity(self) -> int:
        return 2 * HOUR_RADIUS * self.most

    def charges(self, weights: Integers) -> Integers:
        """Loss of plates of these weights, nano-units rounded up, shape (plates,)."""
        return charges_of(2 * HOUR_RADIUS * weights, self.sensitivity, self.cost)

    def deviation_kmh(self, weight: int, offset_kmh: float) -> float:
        """The standard deviation of such an offset over samples of so much weight."""
        scale = lattice_of(self.sensitivity, self.cost).scale / weight / QUANTA_PER_KMH
        seen = noise_of(self.cost).expected_square(scale) + PLATES_APART**2 * WHOLE / weight
        slope = float(np.mean(np.abs(offset_kmh + APART_KMH) < RADIUS_KMH))
        return sqrt(seen / slope**2 + self.own + HOUR_APART**2)


def hour_plan(counts: SlotCounts, policy: Policy, known: HourKnowledge | None) -> CityPlan | None:
    """The question of a slot's mean, if all of its plates can pay; None where noise would not let
    it tell of a city that slows down."""
    nano = hour_nano(policy, counts)
    if known is None or not nano or is_too_little(policy):
        return None
    weights = sample_weights(counts.count, counts.plate)
    moves = weights_of_plates(counts, weights)
    plates = int(np.count_nonzero(moves))
    if plates < HOUR_PLATES_MIN:
        return None
    by_hat = np.add.reduceat(weights * counts.count, counts.hat_rows[:-1])
    over = known.over(by_hat / by_hat.sum())
    loadings = tuple(over.loadings.round(4).tolist())
    mean = HourMean(Cost(policy.measure, nano), int(moves.max()), loadings, round(over.own, 4))
    try:
        off = mean.deviation_kmh(int(moves.sum()), 0.0)
    except ValueError:
        return None
    if off > HOUR_DEVIATION_MAX:
        return None
    charges = mean.charges(moves)[counts.plate]
    around = np.rint(known.kmh * QUANTA_PER_KMH).astype(np.int64)
    return CityPlan(weights, charges, plates, msgspec.json.encode(mean), CITY_HOUR, around)


def hour_nano(policy: Policy, counts: SlotCounts) -> int:
    """Cost of an answer to a plate of full weight; 0 where the budget is for a lifetime."""
    if policy.period_seconds is None:
        return 0
    of_day = policy.budget_nano * DAY_S // max(DAY_S, policy.period_seconds)
    return of_day * HOUR_PART * (counts.end_ms - counts.start_ms) // (1000 * DAY_MS)


def hour_charges(weights: Integers, plan: CityPlan) -> Integers:
    """Loss of plates by the answer whose samples weigh so much in all: nano-units, rounded up."""
    return msgspec.json.decode(plan.about, type=HourMean).charges(weights)


def hour_residuals(counts: SlotCounts, values: SlotValues, around: Integers) -> Integers:
    """How far the samples of each plate are off their forecasts in all, quanta, shape (plates,);
    rows with no forecast (0) count nothing. Secret."""
    off = np.zeros(len(counts.plates), np.int64)
    if counts.count.size:
        of_row = np.add.reduceat(values.speed.astype(np.int64), values.starts[:-1])
        np.add.at(off, counts.plate, np.where(around > 0, of_row - counts.count * around, 0))
    return off


def hour_answer(residuals: Integers, counts: SlotCounts, plan: CityPlan, bits: Bits) -> bytes:
    """The record, of residuals of each plate of the whole slot."""
    mean = msgspec.json.decode(plan.about, type=HourMean)
    samples = np.bincount(counts.plate, weights=counts.count, minlength=len(counts.plates))
    room = samples.astype(np.int64) * HOUR_RADIUS
    weights = np.zeros(len(counts.plates), np.int64)
    weights[counts.plate] = plan.weights
    statistic = int(weights @ np.clip(residuals, -room, room))
    weight = max(1, int(weights @ samples.astype(np.int64)))
    query = Query.of_one(statistic, lattice_of(mean.sensitivity, mean.cost))
    (noisy,) = noisy_integers([query], noise_of(mean.cost), bits)
    clipped = query.noisy_value(noisy) / weight / QUANTA_PER_KMH
    offset = float(np.interp(clipped, clipped_mean(OFFSETS), OFFSETS))
    deviation = mean.deviation_kmh(weight, offset)
    usual = mean.deviation_kmh(weight, 0.0)
    plates = max(1, int(np.count_nonzero(weights)))
    return CityHour(
        round(offset, 3), round(deviation, 3), round(usual, 3), mean.loadings, plates
    ).encode()


def clipped_mean(offset: Floats) -> Floats:
    """The expected clipped offset of plates of a city with such offsets, km/h."""
    return np.asarray(np.clip(offset[:, None] + APART_KMH, -RADIUS_KMH, RADIUS_KMH).mean(axis=1))
