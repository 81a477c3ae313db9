"""Plans: the one file that joins bounds, noise and cost. It reads counts, budgets and settings, and never a speed.

**The guarantee.** For each HAT, the mean's query changes by at most its sensitivity when one plate's speeds change,
and its noise makes that `mean_nano`-DP (private intervals included); likewise the variance's and `variance_nano`; the
CDF's levels compose to `cdf_nano`. A plate's own loss is its share of that, statistic by statistic, and the sum of its
shares is what it is charged before anything is drawn (all of it under uniform accounting). So a plate loses at most the
sum of what it was charged (basic composition over HATs, arXiv 2405.06261), which the ledger keeps within its budget.

**Charge first, plan last.** Shares follow from a plan, and who takes part follows from the charges. So `plan_hat` plans
for all plates of the HAT and prices each; the ledger admits some; `plan_admitted` takes the others out of that very
plan, keeping its mechanism, cap and arrays, and sets the noise so that each admitted plate's loss stays within what it
was charged, which is checked. All of it is a function of counts, terms and verdict: a retry finds the same.

Unit: license plate. Neighbours: swap-values. What was decided before the ledger spoke is in `Terms`; they are
remembered with the verdict, first one wins, so that a retry plans the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Balance
from udp_stream.mechanisms.cdfs.mechanism import CdfPlan, cdf_for_admitted, plan_cdf
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS, CompareAt, MeanPlan, expected_abs_error, plan_automatic, spread
from udp_stream.mechanisms.means.automatic import EXACT
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.variance import VariancePlan, plan_variance, variance_for_admitted
from udp_stream.planning.allowances import EPSILON_NANO_MAX, EPSILON_NANO_MIN, expected_visits, fair_shares, hat_epsilon
from udp_stream.planning.policy import AccountingDetail, Grouping, Mean, Policy
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.slot_tables import SlotCounts


class Terms(msgspec.Struct, frozen=True):
    """What a HAT's admission was asked on: nano-epsilons of each statistic, or why nothing is asked.

    With the counts they fix every plate's charge, so what else decides on shares is here too and not in the policy,
    which may have changed when a retry comes; and the budget that each plate was asked within, for the record.
    `compare_at` is what mean "auto" holds equal between mechanisms. `kept` has a bit for each of the HAT's rows that
    contributes, the first row's the highest of the first byte; empty: all do. "unplanned" are HATs that no plan knows.
    """

    mean_nano: int = 0
    variance_nano: int = 0
    cdf_nano: int = 0
    withheld: Literal["", "few_plates", "budget", "unplanned"] = ""
    accounting_detail: AccountingDetail = "uniform"
    mean: Mean = "auto"
    grouping: Grouping = "best-fit"
    compare_at: CompareAt = "epsilon"
    kept: bytes = b""
    period: str = ""
    budget_nano: int = 0

    def within(self, policy: Policy) -> Terms:
        """The same under the policy's promise to a plate."""
        return msgspec.structs.replace(
            self,
            accounting_detail=policy.accounting_detail,
            period=policy.period,
            budget_nano=policy.budget_nano,
        )

    @property
    def charge_nano(self) -> int:
        """The most that an admitted plate pays."""
        return self.mean_nano + self.variance_nano + self.cdf_nano

    def rows_kept(self, rows: int) -> NDArray[np.bool_]:
        """Which of so many rows contribute; none if that was said of another number of rows.

        >>> Terms(kept=bytes([0b101_00000])).rows_kept(3).tolist(), Terms().rows_kept(2).tolist()
        ([True, False, True], [True, True])
        """
        if not self.kept:
            return np.ones(rows, dtype=bool)
        packed = np.frombuffer(self.kept, dtype=np.uint8)
        if packed.size != -(-rows // 8):
            return np.zeros(rows, dtype=bool)
        return np.unpackbits(packed, count=rows).astype(bool)


def terms_of(policy: Policy, mean_nano: int, variance_nano: int, cdf_nano: int) -> Terms:
    """Terms with these epsilons, as a policy has it.

    An automatic epsilon is the larger the less of it plates pay, a fixed one is not.
    """
    follows_charge = policy.mean_nano is None and policy.accounting_detail == "individual"
    return Terms(
        mean_nano=mean_nano,
        variance_nano=variance_nano,
        cdf_nano=cdf_nano,
        accounting_detail=policy.accounting_detail,
        mean=policy.mean,
        grouping=policy.grouping,
        compare_at="charge" if follows_charge else "epsilon",
    )


@dataclass(frozen=True, slots=True)
class SlotInPeriod:
    """Where a slot lies in its budget period: the period's name, and whole slots before and after this one in it."""

    period: str
    slots_gone: int
    slots_left: int


@dataclass(frozen=True, slots=True)
class HatPlan:
    """What will be computed for one HAT from the samples of plates with these counts.

    `charges` are what each of them pays, in nano-epsilon: never less than it loses, and at least 1, so that a plate
    that gives nothing is admitted like others.
    """

    terms: Terms
    by_plate: NDArray[np.int64]
    mean: MeanPlan | None
    variance: VariancePlan | None
    cdf: CdfPlan | None
    charges: NDArray[np.int64]

    @property
    def why(self) -> str:
        """Why this mean mechanism."""
        if self.mean is None or self.terms.mean != "auto":
            return "as configured"
        if self.terms.compare_at == "charge":
            return "at equal charge every grouping has the same noise, and this has no bias"
        error = expected_abs_error(self.mean.noise_bound, spread(self.mean), self.mean.range.width)
        guessing = EXACT * self.mean.range.width / 2
        allowed = "that of guessing U/2" if self.mean.error_bound <= guessing else "that of optimal"
        return (
            f"least charge within 3 % of the least expected error, {error / QUANTA_PER_KMH:.2f} km/h, "
            f"among worst cases up to {allowed}"
        )


def slot_terms(counts: SlotCounts, balance: Balance, in_period: SlotInPeriod, policy: Policy) -> list[Terms]:
    """The terms of every HAT of a slot; `balance` belongs to `counts.plates`."""
    enough = np.diff(counts.hat_rows) >= policy.min_plates
    allowances = _fair_shares(counts, enough, balance, in_period, policy)
    terms = _hats_terms(counts, enough, allowances, policy)
    if policy.accounting_detail == "uniform" or None not in (policy.mean_nano, policy.cdf_nano):
        return terms
    parts = _usual_parts(counts, terms, policy)
    return _hats_terms(counts, enough, np.minimum(allowances / parts, 2.0**62).astype(np.int64), policy)


def _hats_terms(
    counts: SlotCounts, enough: NDArray[np.bool_], allowances: NDArray[np.int64], policy: Policy
) -> list[Terms]:
    return [
        _terms(allowances[counts.plate[counts.rows(hat)]], policy) if enough[hat] else Terms(withheld="few_plates")
        for hat in range(counts.cells.size)
    ]


def _usual_parts(counts: SlotCounts, terms: list[Terms], policy: Policy) -> NDArray[np.float64]:
    """Which part of a HAT's epsilon each plate is charged, on average over its HATs in this slot; 1 where unknown.

    A plate that usually pays a third of epsilon can afford three times the epsilon with the same allowance. (Austin,
    2015-06-07, whole day: the expected error falls from 53 to 45 km/h for Array-Averaging and from 114 to 45 for
    Baseline, plates spend what they spent under uniform accounting, and the evening is served like the morning.)
    """
    parts, hats = np.zeros((2, len(counts.plates)))
    for hat, of_hat in enumerate(terms):
        if not of_hat.withheld:
            rows = counts.rows(hat)
            charges = plan_hat(counts.count[rows], of_hat, policy).charges
            parts[counts.plate[rows]] += charges / of_hat.charge_nano
            hats[counts.plate[rows]] += 1
    return np.divide(parts, hats, out=np.ones_like(parts), where=hats > 0)


def _fair_shares(
    counts: SlotCounts, enough: NDArray[np.bool_], balance: Balance, in_period: SlotInPeriod, policy: Policy
) -> NDArray[np.int64]:
    hat_of_row = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
    now = np.bincount(counts.plate[enough[hat_of_row]], minlength=len(counts.plates))
    visits = expected_visits(now, balance.charges, in_period.slots_gone, in_period.slots_left)
    return fair_shares(policy.budget_nano, balance.spent, visits)


def _terms(shares: NDArray[np.int64], policy: Policy) -> Terms:
    """Fixed epsilons as configured; automatic ones share what the HAT's plates can spend beside the fixed ones."""
    fixed = (policy.mean_nano or 0) + policy.variance_nano + (policy.cdf_nano or 0)
    automatic = (policy.mean_nano, policy.cdf_nano).count(None)
    if not automatic:
        return terms_of(policy, policy.mean_nano or 0, policy.variance_nano, policy.cdf_nano or 0)
    each = min((hat_epsilon(shares) - fixed) // automatic, EPSILON_NANO_MAX)
    if each < EPSILON_NANO_MIN:
        return Terms(withheld="budget")
    mean_nano, cdf_nano = (each if nano is None else nano for nano in (policy.mean_nano, policy.cdf_nano))
    return terms_of(policy, mean_nano, policy.variance_nano, cdf_nano)


def plan_hat(by_plate: NDArray[np.int64], terms: Terms, policy: Policy) -> HatPlan:
    """The plan for plates with these counts (at least one plate, each with a sample) on these terms, and its price."""
    counts = SamplesPerPlate(by_plate)
    mean = plan_mean(counts, terms, policy.range) if terms.mean_nano else None
    variance = plan_variance(counts, pure(terms.variance_nano), policy.range) if terms.variance_nano else None
    cdf = None
    if terms.cdf_nano:
        cdf = plan_cdf(counts, pure(terms.cdf_nano), policy.max_speed / QUANTA_PER_KMH, policy.bins)
    charges = np.full(counts.plates, terms.charge_nano, dtype=np.int64)
    if terms.accounting_detail == "individual":
        parts = [statistic.charges for statistic in (mean, variance, cdf) if statistic is not None]
        charges = np.maximum(1, sum(parts))
    return HatPlan(terms, by_plate, mean, variance, cdf, charges)


def plan_admitted(plan: HatPlan, admitted: NDArray[np.bool_], policy: Policy) -> HatPlan:
    """The plan for those of its plates (at least one) that paid; PrivacyRefused if one would lose more than it paid.

    Under uniform accounting everybody paid for everything, so that the admitted plates are planned for anew.
    """
    if admitted.all():
        return plan
    if plan.terms.accounting_detail == "uniform":
        return plan_hat(plan.by_plate[admitted], plan.terms, policy)
    mean = None if plan.mean is None else MECHANISMS[plan.mean.mechanism].for_admitted(plan.mean, admitted)
    variance = None if plan.variance is None else variance_for_admitted(plan.variance, admitted)
    cdf = None if plan.cdf is None else cdf_for_admitted(plan.cdf, admitted)
    for priced, final in ((plan.mean, mean), (plan.variance, variance), (plan.cdf, cdf)):
        if priced is not None and final is not None and np.any(final.charges > priced.charges[admitted]):
            raise PrivacyRefused("a plate would lose more to a statistic than it was charged for it")
    by_plate, charges = plan.by_plate[admitted], plan.charges[admitted]
    return HatPlan(plan.terms, by_plate, mean, variance, cdf, charges)


def plan_mean(counts: SamplesPerPlate, terms: Terms, range: Range) -> MeanPlan:
    """The mechanism of the terms, or for "auto" the one of least expected error for what it charges."""
    asked = pure(terms.mean_nano), range, terms.grouping
    if terms.mean == "auto":
        return plan_automatic(counts, *asked, terms.compare_at)
    return MECHANISMS[terms.mean].plan(counts, *asked)
