"""Terms, on which a HAT's admission is asked; and plans, which join bounds, noise and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import msgspec
import numpy as np

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.port import Balance
from udp_stream.mechanisms.around import AROUND, FORECAST_CLIP, ForecastClipPlan
from udp_stream.mechanisms.base import (
    CompareAt,
    ForecastClipTerms,
    PublicSettings,
    SamplesPerPlate,
    StatisticPlan,
    StatisticTerms,
)
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.mechanisms.noise import MEASURES, Cost, require_measure
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.policy import (
    EPSILON_NANO_MAX,
    PeriodSoFar,
    Policy,
    SlotInPeriod,
    hat_epsilon,
    shares_of,
)
from udp_stream.windows.tables import SlotCounts


class HatForecast(msgspec.Struct, frozen=True, omit_defaults=True):
    """The forecast of a HAT's mean, in km/h, with its standard deviation.

    `rest` is the part of the deviation that no release of another HAT can tell. `prior` is the
    relative speed and the six features of `forecast/model.py`, standardised.

    >>> HatForecast(value=18.0, deviation=5.0, rest=3.0, prior=7 * (0.0,)).deviation
    5.0
    """

    value: float
    deviation: float
    rest: float
    prior: tuple[float, ...]


class Terms(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag="terms.3",
    tag_field="v",
):
    """The terms of a HAT's admission: each statistic's price and mechanism, or why nothing is
    asked.

    With counts and U they fix every plate's charge and, once all is chosen, the plan: retries and
    shards search no more, whatever policy and software are by then. `period` and `budget_nano` are
    the promise, for the record. `kept` has a bit for each of the HAT's rows, set if it contributes,
    highest bit first; empty: all do. `allowance_nano` is the most that a plate may have been
    charged in the period, this HAT included; 0: its budget. If fewer than `admitted_min` or
    `min_plates` can pay, none is charged. HATs of a slot are charged by `turn`, lowest first, then
    by size. "unplanned" are HATs that no plan knows.

    A ledger keeps terms for ever, and refuses other versions: change the tag with the fields. A
    field that is left out at its default keeps the tag.

    >>> Terms((StatisticTerms("mean", 10**9), StatisticTerms("variance", 5 * 10**8))).charge_nano
    1500000000
    >>> Terms(withheld="few_plates").charge_nano
    0
    """

    statistics: tuple[StatisticTerms, ...] = ()
    withheld: Literal[
        "", "few_plates", "budget", "uninformative", "unplanned", "partial", "unit"
    ] = ""
    kept: bytes = b""
    period: str = ""
    budget_nano: int = 0
    allowance_nano: int = 0
    turn: int = 0
    admitted_min: int = 0
    forecast: HatForecast | None = None
    measure: str = "pure"

    def __post_init__(self) -> None:
        require_measure(self.measure)

    @property
    def is_jointly_clipped(self) -> bool:
        """Whether a plate shares a clip among HATs of the slot."""
        return any(one.around is not None and one.around.ball for one in self.statistics)

    def within(self, policy: Policy) -> Terms:
        """The same under the policy's promise to a plate."""
        return msgspec.structs.replace(
            self, period=policy.period, budget_nano=policy.budget_nano, measure=policy.measure
        )

    @property
    def charge_nano(self) -> int:
        """The most that an admitted plate pays."""
        return sum(one.epsilon_nano for one in self.statistics)

    @property
    def cost(self) -> Cost:
        return Cost(self.measure, self.charge_nano)

    @property
    def mean_nano(self) -> int:
        return self.nano_of("mean")

    def nano_of(self, statistic: str) -> int:
        one = self.requested_terms(statistic)
        return 0 if one is None else one.epsilon_nano

    def requested_terms(self, statistic: str) -> StatisticTerms | None:
        return next((one for one in self.statistics if one.statistic == statistic), None)

    def select_offered(self, values: Integers) -> Integers:
        """The values of the rows that contribute; no copy is made if all do."""
        if not self.kept and all(one.around is None for one in self.statistics):
            return values
        kept = self.contributing_rows(values.size)
        return values if kept.all() else values[kept]

    def restore_rows(self, offered: Integers, rows: int) -> Integers:
        """Undo `select_offered`: the value of each row, 0 for those that do not contribute."""
        if offered.size == rows:
            return offered
        values = np.zeros(rows, dtype=np.int64)
        values[self.contributing_rows(rows)] = offered
        return values

    def contributing_rows(self, rows: int) -> Flags:
        """Mask of `rows` rows that contribute; none if the terms are of another number of rows."""
        kept = np.full(rows, not self.kept)
        if self.kept and len(self.kept) == -(-rows // 8):
            kept = np.unpackbits(np.frombuffer(self.kept, dtype=np.uint8), count=rows).astype(bool)
        forecast = (one.around.plates_count for one in self.statistics if one.around is not None)
        return (
            np.zeros(rows, dtype=bool) if any(plates != kept.sum() for plates in forecast) else kept
        )


def terms_of(policy: Policy, nanos: Mapping[str, int]) -> Terms:
    """The policy's terms with these epsilons by statistic; a statistic with epsilon 0 is not asked
    for."""
    measure = policy.measure
    follows_charge = policy.mean_nano is None and MEASURES[measure].noise.power == 1
    compare_at: CompareAt = "charge" if follows_charge else "epsilon"
    mean: dict[str, Any] = {
        "mechanism": policy.mean,
        "grouping": policy.grouping,
        "compare_at": compare_at,
    }
    asked = [
        StatisticTerms(name, nano, measure=measure, **(mean if name == "mean" else {}))
        for name, nano in nanos.items()
        if nano
    ]
    return Terms(tuple(asked), measure=measure)


def automatic_nano(allowance_nano: int, policy: Policy) -> int:
    """Each automatic epsilon of a HAT's allowance, after fixed epsilons; may be below the least,
    and 0."""
    fixed = sum(nano or 0 for nano in policy.prices.values())
    return min((allowance_nano - fixed) // policy.automatic, EPSILON_NANO_MAX)


def terms_at(automatic_nano: int, policy: Policy) -> Terms:
    """Terms with this for each automatic epsilon, fixed epsilons as configured."""
    return terms_of(
        policy,
        {name: automatic_nano if nano is None else nano for name, nano in policy.prices.items()},
    )


# Plans follow from counts, budgets and settings, and never from a speed. Unit: license plate.
# Neighbours: swap-values.
#
# **The guarantee.** For each HAT, a statistic's query changes by at most its sensitivity when a
# plate's speeds change, and its noise makes that private at the statistic's price (private
# intervals included; the levels of a CDF compose to it). A plate's loss is its share of that, and
# the sum of its shares is charged before anything is drawn. So a plate loses at most the sum of its
# charges (basic composition over HATs, arXiv 2405.06261), which the ledger keeps within its budget.
# Where plates share a clip among HATs of a slot, that sum holds for these together
# (`mechanisms/around.py`).
#
# **Charge first, plan last.** `plan_hat` plans for all plates of the HAT and prices each; the
# ledger admits some; `HatPlan.subset` takes the others out of that plan, keeps its mechanism, cap
# and arrays, and sets the noise so that each admitted plate's loss stays within its charge, which
# is checked.


@dataclass(frozen=True, slots=True)
class HatPlan:
    """A plan for each statistic of a HAT, for plates with these counts.

    Each plate pays its `charges`, in nano-epsilon or nano-rho: never less than it loses, and at
    least 1, so that a plate that gives nothing is admitted like others.

    >>> from udp_stream.settings import load
    >>> policy = load(None, ("budget.accounting=pure",), {}).policy
    >>> plan = plan_hat(np.array([4, 2]), terms_of(policy, {"mean": 10**9}), policy)
    >>> plan.mean.mechanism, plan.around, plan.charges.tolist()
    ('baseline', None, [1000000000, 500000000])
    """

    terms: Terms
    by_plate: Integers
    statistics: Mapping[str, StatisticPlan]
    charges: Integers

    @property
    def mean(self) -> MeanPlan | ForecastClipPlan | None:
        plan = self.statistics.get("mean")
        return plan if isinstance(plan, MeanPlan) else self.around

    @property
    def around(self) -> ForecastClipPlan | None:
        plan = self.statistics.get(FORECAST_CLIP)
        return plan if isinstance(plan, ForecastClipPlan) else None

    @property
    def used_samples(self) -> int:
        return 0 if self.mean is None else self.mean.used_samples

    def subset(self, paid: Flags) -> HatPlan:
        """The plan for those of its plates that paid; PrivacyRefused if any would lose more."""
        if paid.all():
            return self
        final = {
            name: STATISTICS[name].subset(priced, paid) for name, priced in self.statistics.items()
        }
        for name, priced in self.statistics.items():
            if np.any(final[name].charges > priced.charges[paid]):
                raise PrivacyRefused(
                    "a plate would lose more to a statistic than it was charged for it"
                )
        return HatPlan(self.terms, self.by_plate[paid], final, self.charges[paid])


def slot_terms(
    counts: SlotCounts, balance: Balance, in_period: SlotInPeriod, policy: Policy, plans: HatPlans
) -> list[Terms]:
    """The terms of every HAT of a slot; `balance` belongs to `counts.plates`, `plans` to the slot."""
    enough = np.diff(counts.hat_rows) >= policy.min_plates
    allowances = _shares(counts, enough, balance, in_period, policy)
    terms = _hats_terms(counts, enough, allowances, policy)
    if not policy.automatic:
        return terms
    priced = [
        None if of_hat.withheld else plans.plan_hat(counts.count[rows], of_hat)
        for rows, of_hat in zip(counts.each_rows(), terms, strict=True)
    ]
    shares = _usual_shares(counts, priced)
    # Capped, as a larger float would not fit into 64 bits.
    affordable = np.minimum(allowances / shares, 2.0**62).astype(np.int64)
    return _hats_terms(counts, enough, affordable, policy)


def _hats_terms(
    counts: SlotCounts, enough: Flags, allowances: Integers, policy: Policy
) -> list[Terms]:
    each = zip(counts.each_rows(), enough.tolist(), strict=True)
    of_plate = allowances[counts.plate]
    return [
        _terms(of_plate[rows], policy) if is_enough else Terms(withheld="few_plates")
        for rows, is_enough in each
    ]


def _usual_shares(counts: SlotCounts, priced: Sequence[HatPlan | None]) -> Floats:
    """The part of a HAT's epsilon that each plate is charged, on average over its HATs in this
    slot; 1 where unknown.

    A plate that pays a third of epsilon can afford three times the epsilon.
    """
    if not (known := [plan for plan in priced if plan is not None]):
        return np.ones(len(counts.plates))
    is_priced = np.repeat([plan is not None for plan in priced], np.diff(counts.hat_rows))
    parts = np.concatenate([plan.charges / plan.terms.charge_nano for plan in known])
    plates = counts.plate[is_priced]
    many = len(counts.plates)
    shares = np.bincount(plates, weights=parts, minlength=many)
    hats = np.bincount(plates, minlength=many)
    return np.divide(shares, hats, out=np.ones_like(shares), where=hats > 0)


def _shares(
    counts: SlotCounts,
    enough: Flags,
    balance: Balance,
    in_period: SlotInPeriod,
    policy: Policy,
) -> Integers:
    hat_of_row = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
    now = np.bincount(counts.plate[enough[hat_of_row]], minlength=len(counts.plates))
    so_far = PeriodSoFar(
        balance.charged,
        balance.charges,
        now,
        in_period.slots_gone,
        in_period.slots_left,
        in_period.rolls,
    )
    return shares_of(policy.schedule, policy.budget_nano, so_far)


def _terms(shares: Integers, policy: Policy) -> Terms:
    if not policy.automatic:
        return terms_at(0, policy)
    each = automatic_nano(hat_epsilon(shares), policy)
    return (
        Terms(withheld="budget")
        if each < policy.accounted.measure.least_nano
        else terms_at(each, policy)
    )


def plan_hat(by_plate: Integers, terms: Terms, policy: Policy) -> HatPlan:
    """Plan the statistics of a HAT, from counts and settings alone.

    Args:
        by_plate: Samples of each plate, shape (plates,), one or more plates with one or more each.
        terms: The statistics, and the most that each may cost.
        policy: The settings that fix range, bins and mechanisms.

    Returns:
        The plan, with the charge of each plate in nano-units, rounded up. Its terms name what was
        chosen: on them, the plan is made again without a search.

    Raises:
        ValueError: For terms that the counts do not allow, such as a cost too small for noise.
    """
    return HatPlans(policy.public).plan_hat(by_plate, terms)


_Key = tuple[bytes, str, ForecastClipTerms | None]


class HatPlans:
    """The plans of a slot, each made once, from counts and terms alone: for prices and for
    releases.

    >>> from udp_stream.settings import load
    >>> policy = load(None, ("budget.accounting=pure",), {}).policy
    >>> plans, by_plate = HatPlans(policy.public), np.array([4, 2, 1])
    >>> cheap, dear = (plans.plan_hat(by_plate, terms_of(policy, {"mean": nano})) for nano in (10**8, 10**9))
    >>> cheap.charges.tolist(), dear.charges.tolist(), cheap.mean.counts is dear.mean.counts
    ([100000000, 50000000, 25000000], [1000000000, 500000000, 250000000], True)
    """

    def __init__(self, public: PublicSettings) -> None:
        self.public = public
        self._counts: dict[bytes, SamplesPerPlate] = {}
        self._made: dict[_Key, tuple[StatisticTerms, StatisticPlan]] = {}

    def plan_hat(self, by_plate: Integers, terms: Terms) -> HatPlan:
        plans = {
            asked.statistic: self.plan_statistic(by_plate, asked) for asked in terms.statistics
        }
        chosen = tuple(asked.chosen(plans[asked.statistic].choice) for asked in terms.statistics)
        charges = np.maximum(1, reduce(np.add, (plan.charges for plan in plans.values())))
        return HatPlan(msgspec.structs.replace(terms, statistics=chosen), by_plate, plans, charges)

    def plan_statistic(self, by_plate: Integers, asked: StatisticTerms) -> StatisticPlan:
        written = by_plate.tobytes()
        key = written, asked.statistic, asked.around
        plan = self._plan(self._samples(written, by_plate), self._made.get(key), asked)
        self._made[key] = asked, plan
        return plan

    def plan_around(
        self, by_plate: Sequence[Integers], asked: Sequence[StatisticTerms]
    ) -> list[ForecastClipPlan]:
        written = [one.tobytes() for one in by_plate]
        samples = list(map(self._samples, written, by_plate))
        plans = AROUND.plan_each(samples, asked, self.public)
        for counts, terms, plan in zip(written, asked, plans, strict=True):
            self._made[counts, terms.statistic, terms.around] = terms, plan
        return plans

    def _samples(self, written: bytes, by_plate: Integers) -> SamplesPerPlate:
        if written not in self._counts:
            self._counts[written] = SamplesPerPlate(by_plate)
        return self._counts[written]

    def _plan(
        self,
        counts: SamplesPerPlate,
        known: tuple[StatisticTerms, StatisticPlan] | None,
        asked: StatisticTerms,
    ) -> StatisticPlan:
        if (statistic := STATISTICS.get(asked.statistic)) is None:
            raise PrivacyRefused(
                f"expected one of the statistics {', '.join(STATISTICS)}, got {asked.statistic!r}"
            )
        if known is not None:
            before, plan = known
            if asked in (before, before.chosen(plan.choice)):
                return plan
            # `at` is for terms that leave the choice open, before and now.
            if before.choice is None and asked == before.at(asked.epsilon_nano):
                moved: StatisticPlan = statistic.at(plan, asked, self.public)
                return moved
        fresh: StatisticPlan = statistic.plan(counts, asked, self.public)
        return fresh
