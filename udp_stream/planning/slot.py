"""The plan of a slot: for each HAT its terms, and the ledger's charge of each of its plates.

A single plan serves all shards. It names no plate and holds no speed: rows are in the order of
`SlotCounts`. A digest of their plates and samples tells a shard whether its rows are the same; a
HAT with another digest is not admitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from math import ceil, floor, hypot, sqrt
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as struct_replace

from udp_stream.base.arrays import NO_INTEGERS, Cells, Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.model import CITY_MEAN, CITY_SD, SlotForecast
from udp_stream.forecast.shape import tilted_error
from udp_stream.ledger.ids import CITY, CITY_HOUR
from udp_stream.ledger.port import Balance, LedgerView
from udp_stream.mechanisms.around import FORECAST_CLIP, ForecastClipPlan
from udp_stream.mechanisms.base import ForecastClipTerms, StatisticPlan, StatisticTerms
from udp_stream.mechanisms.cdf import CdfPlan
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.mechanisms.noise import Cost, expected_noise
from udp_stream.mechanisms.statistics import STATISTICS, priced, spread
from udp_stream.mechanisms.widths import (
    ClipWidth,
    clip_width,
    clip_widths,
    mean_variance,
    plate_variance,
)
from udp_stream.planning.plan import (
    HatForecast,
    HatPlan,
    HatPlans,
    Terms,
    plan_hat,
    slot_terms,
    terms_of,
)
from udp_stream.planning.policy import DAY_S, EPSILON_NANO_MAX, Policy, SlotInPeriod
from udp_stream.planning.suppression import Nanos, Occupancy, chop_user, suppress_to
from udp_stream.windows.tables import SlotCounts

DIGEST_BYTES = 8
"""Bytes of a digest of a HAT's plates, and of a plan. It is against mistakes, not attackers: who
can write plans can write charges."""


@dataclass(frozen=True, slots=True)
class CityPlan:
    """A question to the whole city in a slot: row by row the weight in its sums (0: no part), and
    the plate's charge, in nano-units. `plates` take part. Sums and noise follow from `about` and
    the weights; those of a mean from `around`, too: the forecast of each row, in quanta. `kind` is
    that of the answer's id.

    >>> plan = CityPlan(np.array([26214, 0]), np.array([500, 0]), plates=1, about=b"")
    >>> plan.subset(np.array([True, False])).charged.tolist()
    [500]
    """

    weights: Integers
    charged: Integers
    plates: int
    about: bytes
    kind: str = CITY
    around: Integers = field(default_factory=lambda: NO_INTEGERS)

    def subset(self, rows: Flags) -> CityPlan:
        around = self.around[rows] if self.around.size else self.around
        return replace(self, weights=self.weights[rows], charged=self.charged[rows], around=around)


@dataclass(frozen=True)
class SlotPlan:
    """The plan of a slot: HAT h is `cells[h]` (ascending); `charged` has its rows at `hat_rows[h]`
    to `hat_rows[h + 1]`, in nano-epsilon.

    Rows that were suppressed or could not pay were charged 0. `rows` are the counts; on a shard, a
    digest for each HAT. `priced`, where at hand, are the plans behind the charges; they do not
    travel, nor does `seen`: the ledger behind the charges, with what is recorded of each HAT.
    `city` is the question to the city. A plan that `is_question` has nothing else: the slot is
    planned anew once it is answered.

    >>> rows = dict(hat_rows=np.array([0, 1]), plate=np.array([0]), count=np.array([4]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a",), np.array([7], np.uint64), **rows)
    >>> plan = SlotPlan(0, 3_600_000, counts.cells, counts.hat_rows, counts, (Terms(),), np.array([5]))
    >>> plan.find_hats(counts), plan.find_all(plan.cells, [b"other row"]), plan.charged_rows(0).tolist()
    ([0], [None], [5])
    """

    start_ms: int
    end_ms: int
    cells: Cells
    hat_rows: Integers
    rows: SlotCounts | tuple[bytes, ...]
    terms: tuple[Terms, ...]
    charged: Integers
    priced: tuple[HatPlan | None, ...] | None = None
    city: CityPlan | None = None
    seen: LedgerView | None = None

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """Digest of each HAT's rows; made only where a plan leaves the process or meets other
        rows."""
        return tuple(row_digests(self.rows)) if isinstance(self.rows, SlotCounts) else self.rows

    @property
    def is_question(self) -> bool:
        return self.city is not None and self.city.kind == CITY_HOUR

    @property
    def is_measured(self) -> bool:
        """Whether all plates' speeds are measured before any HAT is drawn."""
        return self.has_joint_clips or self.city is not None

    @property
    def has_joint_clips(self) -> bool:
        """Whether any of its HATs is released with factors of the plates' clips
        (`mechanisms/around.py`)."""
        return any(one.is_jointly_clipped for one in self.terms)

    @classmethod
    def empty(cls, counts: SlotCounts, seen: LedgerView | None = None) -> SlotPlan:
        return cls(
            counts.start_ms,
            counts.end_ms,
            np.zeros(0, np.uint64),
            np.zeros(1, np.int64),
            (),
            (),
            NO_INTEGERS,
            (),
            seen=seen,
        )

    @classmethod
    def question(cls, counts: SlotCounts, city: CityPlan) -> SlotPlan:
        """The question to the city alone: no HAT is planned yet, and nothing charged for any."""
        return cls(
            counts.start_ms,
            counts.end_ms,
            counts.cells,
            counts.hat_rows,
            counts,
            (Terms(withheld="unplanned"),) * counts.cells.size,
            np.zeros_like(counts.count),
            city=city,
        )

    def find_all(self, cells: Cells, digests: Sequence[bytes]) -> list[int | None]:
        places = np.searchsorted(self.cells, cells)
        # A cell beyond the last has a place behind the end, which must not be read.
        there = places < self.cells.size
        there[there] = self.cells[places[there]] == cells[there]
        return [
            at if is_there and self.digests[at] == digest else None
            for at, is_there, digest in zip(places.tolist(), there.tolist(), digests, strict=True)
        ]

    def find_hats(self, counts: SlotCounts) -> list[int | None]:
        """Number in the plan of each HAT of these counts; None if unknown, or known with other
        rows."""
        if counts is self.rows:
            return list(range(self.cells.size))
        return self.find_all(counts.cells, row_digests(counts))

    def charged_rows(self, hat: int) -> Integers:
        return self.charged[self.hat_rows[hat] : self.hat_rows[hat + 1]]

    def jointly_clipped_hats(
        self, counts: SlotCounts, found: Sequence[int | None] | None = None
    ) -> dict[bytes, int]:
        """Number of HATs that share its clip in which each plate was charged; HATs unknown to the
        plan do not count. `found` is `find_hats(counts)`, if at hand."""
        places = self.find_hats(counts) if found is None else found
        plates = [
            counts.plate[counts.rows(hat)][self.charged_rows(at) > 0]
            for hat, at in enumerate(places)
            if at is not None and self.terms[at].is_jointly_clipped
        ]
        hats = np.bincount(
            np.concatenate([counts.plate[:0], *plates]), minlength=len(counts.plates)
        )
        each = zip(counts.plates, hats.tolist(), strict=True)
        return {plate: times for plate, times in each if times}

    def with_priced(self, made: SlotPlan) -> SlotPlan:
        """The same plan, with the priced HATs of `made` wherever both plans agree on a HAT."""
        if made.priced is None:
            return self
        found = made.find_all(self.cells, self.digests)
        priced = tuple(
            made.priced[at] if at is not None and made.terms[at] == terms else None
            for at, terms in zip(found, self.terms, strict=True)
        )
        return replace(self, priced=priced)

    def subset(self, hats: Flags) -> SlotPlan:
        sizes = np.diff(self.hat_rows)
        chosen = np.flatnonzero(hats).tolist()
        return replace(
            self,
            cells=self.cells[hats],
            hat_rows=np.append(0, np.cumsum(sizes[hats])),
            rows=tuple(self.digests[hat] for hat in chosen),
            terms=tuple(self.terms[hat] for hat in chosen),
            charged=self.charged[np.repeat(hats, sizes)],
            priced=None if self.priced is None else tuple(self.priced[hat] for hat in chosen),
            city=None if self.city is None else self.city.subset(np.repeat(hats, sizes)),
            seen=None,
        )


class PlannedHat(NamedTuple):
    """A HAT as its plan has it: its terms, what each of its rows pays, in nano-units, and the plan
    of the rows that pay. Without a plan nothing is drawn, whatever was paid.

    >>> PlannedHat(Terms(withheld="budget"), np.array([0, 5])).admitted.tolist()
    [False, True]
    """

    terms: Terms
    paid: Integers
    plan: HatPlan | None = None

    @property
    def admitted(self) -> Flags:
        return self.paid > 0

    @property
    def charge_nano(self) -> int:
        """The most that one of its plates pays for what is released."""
        return 0 if self.plan is None else int(self.paid.max())


@dataclass(frozen=True)
class PlannedSlot:
    """The counts of a slot, or of a shard's part of it, with its plan: each HAT is looked up once
    and decided once.

    >>> from udp_stream.testing import a_context, two_hats
    >>> counts, _ = two_hats()
    >>> slot = PlannedSlot(counts, SlotPlan.empty(counts), a_context().policy)
    >>> slot.found, [hat.terms.withheld for hat in slot.hats]
    ([None, None], ['unplanned', 'unplanned'])
    """

    counts: SlotCounts
    plan: SlotPlan
    policy: Policy

    @cached_property
    def found(self) -> list[int | None]:
        """As `SlotPlan.find_hats`."""
        return self.plan.find_hats(self.counts)

    @cached_property
    def hats(self) -> list[PlannedHat]:
        """Each HAT by cell: charged, with the plan for its plates that pay; or withheld."""
        return [
            self._decided(rows, at)
            for rows, at in zip(self.counts.each_rows(), self.found, strict=True)
        ]

    @cached_property
    def jointly_clipped_hats(self) -> dict[bytes, int]:
        """As `SlotPlan.jointly_clipped_hats`."""
        return self.plan.jointly_clipped_hats(self.counts, self.found)

    def admitted_plates(self, hat: int) -> Integers:
        """The numbers of the plates of a HAT that pay, in the order of its rows."""
        return self.counts.plate[self.counts.rows(hat)][self.hats[hat].admitted]

    def _decided(self, rows: slice, at: int | None) -> PlannedHat:
        by_plate = self.counts.count[rows]
        if at is None:
            return PlannedHat(unplanned(self.policy), np.zeros_like(by_plate))
        terms = self.plan.terms[at]
        offered = terms.select_offered(self.plan.charged_rows(at))
        if terms.withheld or not offered.size:
            return PlannedHat(terms, np.zeros_like(by_plate))
        known = None if self.plan.priced is None else self.plan.priced[at]
        priced = known or plan_hat(terms.select_offered(by_plate), terms, self.policy)
        # Charges are remembered, counts are read again: a plate whose charge is below its part by
        # now stays out.
        paid = (offered > 0) & (offered >= priced.charges)
        paid_rows = terms.restore_rows(offered * paid, by_plate.size)
        # The ledger charged enough plates, or none; some that it charged may stay out by now.
        if np.count_nonzero(paid) < max(1, self.policy.min_plates):
            return PlannedHat(terms, paid_rows)
        return PlannedHat(terms, paid_rows, priced.subset(paid))


def unplanned(policy: Policy) -> Terms:
    """The terms of a HAT that no plan knows."""
    return Terms(withheld="unplanned").within(policy)


def row_digests(counts: SlotCounts) -> list[bytes]:
    """Digest of each HAT's rows: plates (keyed hashes of equal length) and their numbers of
    samples."""
    width = len(counts.plates[0]) if counts.plates else 1
    plates = np.frombuffer(b"".join(counts.plates), dtype=f"V{width}")[counts.plate].tobytes()
    samples = counts.count.astype("<i8").tobytes()
    return [
        blake2b(
            plates[a * width : b * width] + samples[a * 8 : b * 8], digest_size=DIGEST_BYTES
        ).digest()
        for a, b in pairwise(counts.hat_rows.tolist())
    ]


# Terms around a forecast follow from counts, balances, settings, and earlier releases.
#
# **Price.** What the pace leaves of the usual plate's budget is shared by the HATs of the slot that it
# is in: a HAT's largest mover pays from a hundred-and-eighth to a twelfth of the budget for a mean, in a
# period of several days of a day's, with what earlier days left; others their share of that; up to three
# times as much, and no more than a twelfth, where little is known of the cell. Where too few plates can
# pay, the HAT is offered at a quarter of its price: `terms_around` foretells the ledger's charges from
# balances.
#
# **Pace.** The days of a longer period are let out one by one, and later days may spend what earlier
# days left. Of a day's budget a fifth may be spent at once; the rest is let out over the day, half by
# the clock and half by yesterday's pings (`Terms.allowance_nano`); what was not spent before a first
# day's first slot, over three hours. A HAT that may cost more than all of the rest is not held to it.
# A rolling budget has no start to pace it from.
#
# **Order.** HATs are charged by utility: the variance that the release takes from the HAT's
# estimate, times its pings, over the sum of its charges. HATs whose mean would tell little are
# withheld as uninformative, without a charge, unless other statistics are asked for. Where an
# automatic epsilon would be less than the least, all HATs are withheld.

PRICES_PER_BUDGET = 36
"""A plate's budget of a day, or of a shorter period, buys so many means that the plate moves the
most, where nothing is known of a day's HATs, and of a rolling budget, which has no pace."""

PRICES_STEP = 12
PRICES_STEPS = 9
"""What the pace leaves of the usual plate is shared by the HATs that it is in: the budget buys from
12 to 108 means, in steps of 12."""

CARRIED_DAYS = 7
"""Leftovers of earlier days raise prices up to that of so many days: a plate that is new in the
middle of a period does not spend all of it at once."""

KNOWN_VARIANCE = 2.0
PRICE_OF_UNKNOWN = 3.0
"""Variance of the forecast as usual, km2/h2, above which the price is higher, up to three times; up
to that of 12 means a budget."""

PRICE_STEPS = 4
"""Steps of a price: quarters, as few prices have few scales of noise to compute."""

PART_OF_PRICE = 4
"""Where too few plates can pay, the price is divided by it: noise is twice as large in rho, four
times in epsilon."""

HEAD_START = 20
"""Percent of a day's budget that may be spent at its start; the rest is let out evenly."""

PLATES_MIN = 3
"""A mean around a forecast of fewer plates tells less than its counts do."""

EXPLAINED_MIN = 0.2
"""The least share of the variance as usual that a release has to take away (docs/measurements.md)."""

ADMITTED_MIN = 0.5
"""The least share of a HAT's plates that have to be able to pay: a mean of fewer is worth less than
it costs."""

TREE_PART = 0.65
"""A HAT has a CDF of its own where its likely error is at most this part of that of the tilted CDF.
The largest error of a tree is farther above its typical error, and its cost is lost to the plates'
later means."""

SD_PER_MEAN_ABS = 1.2533
"""The standard deviation of a normal variable over its expected size: sqrt(pi / 2)."""


def terms_around(
    counts: SlotCounts, forecast: SlotForecast, balance: Balance, in_period: SlotInPeriod, policy: Policy,
    plans: HatPlans,
) -> list[Terms]:  # fmt: skip
    """The terms of each HAT of a slot around its forecast; `balance` is for `counts.plates`,
    `plans` for the slot."""
    forecasts = _hat_forecasts(forecast)
    left_over = _left_over_nano(balance, in_period, policy)
    paced = _paced_nano(in_period, forecast.ahead, policy)
    per_budget = PRICES_PER_BUDGET
    if not in_period.rolls and counts.plate.size:
        per_budget = prices_per_budget(counts, balance, paced, policy.day_nano + left_over)
    prices = _prices_nano(forecast, left_over, per_budget, policy)
    is_enough = np.diff(counts.hat_rows) >= policy.min_plates
    if is_too_little(policy, left_over):
        pairs = zip(is_enough.tolist(), forecasts, strict=True)
        return [
            Terms(withheld="budget" if large else "few_plates", forecast=of_hat)
            for large, of_hat in pairs
        ]
    widths = _widths(counts, forecasts, [Cost(policy.measure, price) for price in prices], policy)
    enough = np.flatnonzero(is_enough).tolist()
    rows = counts.each_rows()
    by_plate = [counts.count[rows[hat]] for hat in enough]
    arounds = [
        ForecastClipTerms.of(float(forecast.mean[hat]), forecast.plates[rows[hat]], widths[hat])
        for hat in enough
    ]
    usual = (forecast.variance + forecast.unexplained).tolist()
    costs = [prices[hat] for hat in enough]
    variances = [usual[hat] for hat in enough]
    means = dict(
        zip(enough, _means(by_plate, arounds, costs, variances, policy, plans), strict=True)
    )
    terms = []
    utility = np.zeros(counts.cells.size)
    for hat, hat_forecast in enumerate(forecasts):
        if hat not in means:
            terms.append(Terms(withheld="few_plates", forecast=hat_forecast))
            continue
        mean = means[hat]
        here = counts.count[rows[hat]]
        explained = _explained(usual[hat], mean.variance)
        others = _other_nanos(mean, hat_forecast.deviation, here, policy, plans)
        if not any(others.values()) and (here.size < PLATES_MIN or explained < EXPLAINED_MIN):
            terms.append(Terms(withheld="uninformative", forecast=hat_forecast))
            continue
        utility[hat] = explained * usual[hat] * int(here.sum()) / int(mean.plan.charges.sum())
        least = ceil(ADMITTED_MIN * here.size)
        asked = _asked(mean.asked, others, hat_forecast, policy)
        allowance = paced if asked.charge_nano <= policy.budget_nano - _at_once_nano(policy) else 0
        terms.append(struct_replace(asked, admitted_min=least, allowance_nano=allowance))
    # Stable, so that ties have the same order everywhere.
    order = np.argsort(-utility, kind="stable")
    _lower_prices(terms, order.tolist(), counts, balance, policy, plans)
    turns = np.argsort(order, kind="stable").tolist()
    return [struct_replace(one, turn=turn) for one, turn in zip(terms, turns, strict=True)]


def _explained(variance: float, error: float) -> float:
    """The share of a variance that a release with this error takes away, both in km2/h2."""
    return variance / (variance + error)


def _lower_prices(
    terms: list[Terms],
    order: Sequence[int],
    counts: SlotCounts,
    balance: Balance,
    policy: Policy,
    plans: HatPlans,
) -> None:
    """Offer HATs that too few plates can pay for at a part of the price; foretells the ledger's
    charges in order."""
    spent = np.array(balance.charged, dtype=np.int64)
    for hat in order:
        rows = counts.rows(hat)
        plates = counts.plate[rows]
        pings = counts.count[rows]
        for asked in _prices_to_try(terms[hat], policy):
            charges = plans.plan_hat(pings, asked).charges
            can = spent[plates] + charges <= (asked.allowance_nano or policy.budget_nano)
            if np.count_nonzero(can) >= max(asked.admitted_min, policy.min_plates):
                spent[plates[can]] += charges[can]
                terms[hat] = asked
                break


def _prices_to_try(terms: Terms, policy: Policy) -> Iterator[Terms]:
    """The terms, and the same at a part of the mean's price, where that is automatic and not below
    the least."""
    if terms.withheld:
        return
    yield terms
    mean = terms.statistics[0]
    part = mean.epsilon_nano // PART_OF_PRICE
    if policy.mean_nano is None and part >= policy.accounted.measure.least_nano:
        # Other automatic statistics cost as much as the mean. A CDF keeps its price.
        fixed = {name for name, nano in policy.prices.items() if nano is not None or name == "cdf"}
        lower = (
            one if one.statistic in fixed else struct_replace(one, epsilon_nano=part)
            for one in terms.statistics
        )
        yield struct_replace(terms, statistics=tuple(lower))


def terms_of_typical(by_plate: Integers, policy: Policy, plans: HatPlans) -> Terms:
    """The terms of a HAT of plates with these counts, each forecast to drive like a bus in any
    city."""
    typical = min(CITY_MEAN, policy.range.high / QUANTA_PER_KMH / 2)
    rest = float(mean_variance(by_plate, np.zeros_like(by_plate), 1)[0])
    cost = price_nano(policy)
    width = clip_width(by_plate, sqrt(CITY_SD**2 + rest), Cost(policy.measure, cost))
    around = ForecastClipTerms.of(typical, np.full(by_plate.size, typical), width)
    (mean,) = _means([by_plate], [around], [cost], [CITY_SD**2 + rest], policy, plans)
    return _asked(mean.asked, _other_nanos(mean, CITY_SD, by_plate, policy, plans), None, policy)


def _widths(
    counts: SlotCounts, forecasts: Sequence[HatForecast], costs: Sequence[Cost], policy: Policy
) -> list[ClipWidth]:
    off_kmh = np.array([one.deviation for one in forecasts])
    shared = _hats_shared(counts, policy) if policy.has_joint_clips else None
    return clip_widths(counts.count, counts.hat_rows[:-1], off_kmh, costs, shared)


def _hats_shared(counts: SlotCounts, policy: Policy) -> Floats:
    """Likely number of HATs that share the clips of each HAT's plates, averaged by weights, shape
    (HATs,)."""
    sizes = np.diff(counts.hat_rows)
    sharp = 1 / plate_variance(counts.count)
    first = counts.hat_rows[:-1]
    is_asked = np.repeat(sizes >= max(PLATES_MIN, policy.min_plates), sizes)
    hats = np.bincount(counts.plate, weights=is_asked, minlength=len(counts.plates))[counts.plate]
    return np.asarray(np.add.reduceat(sharp * hats, first) / np.add.reduceat(sharp, first))


class _Mean(NamedTuple):
    """A HAT's mean: its terms and plan, and the variance of its likely error, in km2/h2."""

    asked: StatisticTerms
    plan: StatisticPlan
    variance: float


def _means(
    by_plate: Sequence[Integers], arounds: Sequence[ForecastClipTerms], costs_nano: Sequence[int],
    variances: Sequence[float], policy: Policy, plans: HatPlans,
) -> list[_Mean]:  # fmt: skip
    """Each HAT's mean around its forecast (`variances` as usual), or, if "auto", by a mechanism
    that errs less."""
    asked = [
        StatisticTerms(
            FORECAST_CLIP, cost_nano, FORECAST_CLIP, measure=policy.measure, around=around
        )
        for around, cost_nano in zip(arounds, costs_nano, strict=True)
    ]
    each = zip(by_plate, asked, plans.plan_around(by_plate, asked), variances, strict=True)
    return [_mean(counts, terms, plan, usual, policy, plans) for counts, terms, plan, usual in each]


def _mean(
    by_plate: Integers,
    asked: StatisticTerms,
    plan: ForecastClipPlan,
    usual: float,
    policy: Policy,
    plans: HatPlans,
) -> _Mean:
    error = hypot(plan.noise_deviation, plan.spread)
    # Saves the second plan in most HATs. Where a plate has far more samples than others, a
    # mechanism with a cap is not tried: at U = 30 km/h it may err half as much, from U = 65 on next
    # to never less.
    least = expected_noise(policy.range.width * plan.counts.largest, asked.cost) / (
        2 * plan.counts.total
    )
    # Else nothing is released, whatever mechanism errs least.
    is_enough = (
        not policy.is_only_mean or _explained(usual, (least / QUANTA_PER_KMH) ** 2) >= EXPLAINED_MIN
    )
    if policy.mean == "auto" and least < error and is_enough:
        other = StatisticTerms(
            "mean", asked.epsilon_nano, "auto", policy.grouping, "epsilon", policy.measure
        )
        mean = plans.plan_statistic(by_plate, other)
        if (
            isinstance(mean, MeanPlan)
            and (off := SD_PER_MEAN_ABS * hypot(mean.noise_bound, spread(mean))) < error
        ):
            return _Mean(other, mean, (off / QUANTA_PER_KMH) ** 2)
    return _Mean(asked, plan, (error / QUANTA_PER_KMH) ** 2)


def prices_per_budget(counts: SlotCounts, balance: Balance, paced_nano: int, day_nano: int) -> int:
    """How many means of the slot's price a day's budget buys: as many as the usual plate is in, if
    all of its slots left it as much of the pace."""
    visits = np.bincount(counts.plate, minlength=len(counts.plates))
    here = visits > 0
    left = np.maximum(paced_nano - balance.charged[here], 1)
    asked = float(np.median(visits[here] * (day_nano / left)))
    return PRICES_STEP * min(max(1, round(asked / PRICES_STEP)), PRICES_STEPS)


def price_nano(policy: Policy, left_over_nano: int = 0, per_budget: int = PRICES_PER_BUDGET) -> int:
    """The largest mover's price of a mean where the cell is known; more where earlier days left
    something over."""
    if policy.mean_nano is not None:
        return policy.mean_nano
    day = policy.day_nano + left_over_nano
    return min(day // (per_budget * policy.automatic), EPSILON_NANO_MAX)


def _left_over_nano(balance: Balance, in_period: SlotInPeriod, policy: Policy) -> int:
    """The part of the median plate's budget that earlier days left, as far as a day asks for it."""
    if not in_period.day or not balance.charged.size:
        return 0
    let_out = policy.budget_nano * in_period.day // policy.days
    left = let_out - int(np.median(balance.charged))
    return min(max(0, left), CARRIED_DAYS * policy.day_nano)


def _prices_nano(
    forecast: SlotForecast, left_over_nano: int, per_budget: int, policy: Policy
) -> list[int]:
    least = price_nano(policy, left_over_nano, per_budget)
    if policy.mean_nano is not None:
        return [least] * forecast.variance.size
    most = min(int(PRICE_OF_UNKNOWN * price_nano(policy, left_over_nano)), EPSILON_NANO_MAX)
    least = max(least, policy.accounted.measure.least_nano)
    # Rounded first: the last bits of a forecast must not decide on a price.
    times = np.clip(np.round(forecast.variance, 6) / KNOWN_VARIANCE, 1.0, PRICE_OF_UNKNOWN)
    times = np.floor(times * PRICE_STEPS) / PRICE_STEPS
    return [min(int(least * one), most) for one in times.tolist()]


def is_too_little(policy: Policy, left_over_nano: int = 0) -> bool:
    """Whether an automatic epsilon of this budget is too small for any HAT."""
    price = price_nano(policy, left_over_nano)
    return policy.mean_nano is None and price < policy.accounted.measure.least_nano


def _at_once_nano(policy: Policy) -> int:
    return policy.day_nano * HEAD_START // 100


def _paced_nano(in_period: SlotInPeriod, ahead: float, policy: Policy) -> int:
    """The most that a plate may have been charged by the end of this slot; traffic is `ahead` of
    the day's clock."""
    if in_period.rolls:
        return policy.budget_nano
    gone, left = in_period.of_day
    at_once = _at_once_nano(policy)
    rest = policy.day_nano - at_once
    # A period of less than a day has no yesterday.
    by_traffic = floor(rest * round(ahead, 6)) if (policy.period_seconds or 0) >= DAY_S else 0
    today = at_once + min(max(0, rest * (gone + 1) // (gone + 1 + left) + by_traffic), rest)
    return policy.budget_nano * in_period.day // policy.days + today


def _hat_forecasts(forecast: SlotForecast) -> list[HatForecast]:
    deviation = forecast.deviation.tolist()
    rest = np.sqrt(forecast.unexplained).tolist()
    priors = zip(forecast.prior.by_hat.tolist(), forecast.prior.features.tolist(), strict=True)
    return [
        HatForecast(round(mean, 3), round(off, 3), round(own, 3), (by_hat, *features))
        for mean, off, own, (by_hat, features) in zip(
            forecast.mean.tolist(), deviation, rest, priors, strict=True
        )
    ]


def _other_nanos(
    mean: _Mean, deviation_kmh: float, by_plate: Integers, policy: Policy, plans: HatPlans
) -> dict[str, int]:
    """Prices of the other statistics, automatic statistics at the mean's; 0 for a CDF that errs
    more than the tilted city."""
    each = mean.asked.epsilon_nano
    nanos = {
        name: each if nano is None else nano
        for name, nano in policy.prices.items()
        if name != "mean"
    }
    if policy.shapes and (nano := nanos.get("cdf")):
        plan = plans.plan_statistic(by_plate, StatisticTerms("cdf", nano, measure=policy.measure))
        left = deviation_kmh * sqrt(mean.variance / (deviation_kmh**2 + mean.variance))
        enough = TREE_PART * tilted_error(by_plate.size, left)
        nanos["cdf"] = nano if isinstance(plan, CdfPlan) and plan.rms_error < enough else 0
    return nanos


def _asked(
    mean: StatisticTerms, others: Mapping[str, int], forecast: HatForecast | None, policy: Policy
) -> Terms:
    beside = terms_of(policy, others)
    return struct_replace(beside, statistics=(mean, *beside.statistics), forecast=forecast)


# Suppression (`release.suppression = "chop-user"`; `suppression.py`, arXiv 2405.06261) takes plates
# out of some HATs, and leaves each HAT `min_plates`. It reads counts and the fixed epsilons of mean
# and variance (the HAT's charge if there is neither), else the median of the automatic epsilons
# over the HATs. Then terms are made anew: each plate is in fewer HATs, so "auto" can spend more on
# each.
#
# **Promise.** A HAT's worst case is, of each statistic, the sum of bias, noise and the error of
# leaving plates out, and the sum of these, each in its own unit (`worst_cases`). In no released HAT
# is any of them above the largest of the slot without suppression, and no HAT is withheld that
# would be released without. CHOP-USER promises this of the sum alone, where all samples count and
# epsilons are equal. So HATs that break it get all their plates back and terms are made anew, until
# none does; after too many rounds nothing is suppressed. Rows only come back, so K is at most what
# it was without. Proof: docs/mechanisms/suppression.md.
#
# With `release.hats_max` plates stay in at most that many HATs of the slot, whatever the cost
# (`suppress_to`). A HAT that cannot keep `min_plates` is withheld, and no plate pays there.
#
# Privacy unit: license plate; neighbours: swap-values. Counts are public, so all of this is free. A
# suppressed plate gives nothing in the HAT and pays nothing. `Terms.kept` has the rows, so a retry
# cannot suppress anew.

_ROUNDS_MAX = 10
"""Most rounds of suppression: at a fixed epsilon two are enough, as HATs do not depend on each
other; under "auto" up to 5 were seen."""


def terms_from_counts(
    counts: SlotCounts,
    balance: Balance,
    in_period: SlotInPeriod,
    policy: Policy,
    plans: HatPlans | None = None,
) -> list[Terms]:
    """The terms of every HAT of a slot; `balance` belongs to `counts.plates`, `plans` to the slot."""
    plans = HatPlans(policy.public) if plans is None else plans
    terms = slot_terms(counts, balance, in_period, policy, plans)
    if policy.suppression == "off":
        return terms
    kept = contribution_mask(counts, terms, policy)

    def contributing_terms() -> list[Terms]:
        left = slot_terms(counts.subset(kept), balance, in_period, policy, plans)
        return [
            one
            if one.withheld or kept[rows].all()
            else struct_replace(one, kept=np.packbits(kept[rows]).tobytes())
            for rows, one in zip(counts.each_rows(), left, strict=True)
        ]

    if policy.hats_max:
        return contributing_terms()
    limit = worst_cases(counts, terms, plans).max(axis=0, initial=0.0)
    for _ in range(_ROUNDS_MAX):
        if kept.all():
            break
        suppressed = contributing_terms()
        errors = worst_cases(counts, suppressed, plans)
        lost = [
            bool(now.withheld and not before.withheld)
            for now, before in zip(suppressed, terms, strict=True)
        ]
        breaks = np.array(lost, dtype=bool) | (errors > limit).any(axis=1)
        if not breaks.any():
            return suppressed
        kept |= np.repeat(breaks, np.diff(counts.hat_rows))
    return terms


def worst_cases(counts: SlotCounts, terms: Sequence[Terms], plans: HatPlans) -> Floats:
    """The worst case of each HAT, a row each, from counts: of every statistic in its own unit, bias
    plus expected noise for all its samples; last their sum, in km/h to the power that each has. 0
    where none is released."""
    compared = [
        (name, float(QUANTA_PER_KMH**degree))
        for name in priced()
        if (degree := STATISTICS[name].degree)
    ]
    found = np.zeros((len(terms), len(compared)))
    for hat, (rows, of_hat) in enumerate(zip(counts.each_rows(), terms, strict=True)):
        by_plate = counts.count[rows]
        kept = of_hat.select_offered(by_plate)
        total = int(by_plate.sum())
        for at, (name, _) in enumerate(compared):
            if not of_hat.withheld and (asked := of_hat.requested_terms(name)) is not None:
                found[hat, at] = STATISTICS[name].worst_case(
                    plans.plan_statistic(kept, asked), total
                )
    return np.column_stack((found, (found / [unit for _, unit in compared]).sum(axis=1)))


def contribution_mask(counts: SlotCounts, terms: Sequence[Terms], policy: Policy) -> Flags:
    """Mask of the rows that CHOP-USER leaves; all where nothing is to be released. HATs below
    `min_plates` are left alone."""
    kept = np.ones(counts.plate.size, dtype=bool)
    # Without mean and variance, E is that of a mean for all of the HAT's charge.
    asked = (
        (Nanos(one.mean_nano, one.nano_of("variance")), one.charge_nano)
        for one in terms
        if not one.withheld
    )
    epsilons = sorted(nanos if any(nanos) else Nanos(charge) for nanos, charge in asked)
    if epsilons:
        sizes = np.diff(counts.hat_rows)
        nanos = epsilons[len(epsilons) // 2]
        large = sizes >= policy.min_plates
        offered = np.repeat(large, sizes)
        hat_rows = np.append(0, np.cumsum(sizes[large]))
        max_kmh = policy.range.width / QUANTA_PER_KMH
        occupancy = Occupancy(
            hat_rows, counts.plate[offered], counts.count[offered], len(counts.plates), max_kmh
        )
        if policy.hats_max:
            kept[offered] = suppress_to(occupancy, nanos, policy.hats_max, policy.min_plates).keep
        else:
            kept[offered] = chop_user(occupancy, nanos, policy.min_plates).keep
    return kept
