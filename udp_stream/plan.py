"""Plans: the one file that joins bounds, noise and cost. It reads counts, budgets and settings, and never a speed.

**The guarantee.** For each HAT, the mean's query changes by at most its sensitivity when one plate's speeds change,
and its noise makes that `mean_nano`-DP (private intervals included); the CDF's levels compose to `cdf_nano`. Both are
charged to every admitted plate in full before anything is drawn, so a plate loses at most the sum of what it was
charged (basic composition over HATs, arXiv 2405.06261), which the ledger keeps within its budget.

Unit: license plate. Neighbours: swap-values. What was decided before the ledger spoke is in `Terms`; they are
remembered with the verdict, first one wins, so that a retry plans the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.budgeting import EPSILON_NANO_MIN, expected_visits, fair_shares, hat_epsilon
from udp_stream.cdfs.mechanism import CdfPlan, plan_cdf
from udp_stream.grouping import HatCounts
from udp_stream.means import MECHANISMS, ArrayAveraging, Baseline, MeanPlan, Optimal
from udp_stream.means.array_averaging import worst_case_cap
from udp_stream.policy import Policy
from udp_stream.ports import Balance
from udp_stream.slots import SlotCounts
from udp_stream.units import QUANTA_PER_KMH


class Terms(msgspec.Struct, frozen=True):
    """What a HAT's admission was asked on: nano-epsilons of each statistic, or why nothing is asked."""

    mean_nano: int = 0
    cdf_nano: int = 0
    withheld: Literal["", "few_plates", "budget"] = ""

    @property
    def charge_nano(self) -> int:
        """What each admitted plate pays."""
        return self.mean_nano + self.cdf_nano


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a slot lies in its budget period: the period's name, and whole slots before and after this one in it."""

    period: str
    slots_gone: int
    slots_left: int


@dataclass(frozen=True, slots=True)
class HatPlan:
    """What will be computed for one HAT from the samples of its admitted plates, and why this mean mechanism."""

    terms: Terms
    mean: MeanPlan | None
    cdf: CdfPlan | None
    why: str


def slot_terms(counts: SlotCounts, balance: Balance, moment: Moment, policy: Policy) -> list[Terms]:
    """The terms of every HAT of a slot; `balance` belongs to `counts.plates`."""
    plates_of = np.diff(counts.hat_rows)
    enough = plates_of >= policy.min_plates
    shares = _fair_shares(counts, enough, balance, moment, policy)
    return [
        _terms(shares[counts.plate[counts.rows(hat)]], policy) if enough[hat] else Terms(withheld="few_plates")
        for hat in range(counts.cells.size)
    ]


def _fair_shares(
    counts: SlotCounts, enough: NDArray[np.bool_], balance: Balance, moment: Moment, policy: Policy
) -> NDArray[np.int64]:
    hat_of_row = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
    now = np.bincount(counts.plate[enough[hat_of_row]], minlength=len(counts.plates))
    visits = expected_visits(now, balance.charges, moment.slots_gone, moment.slots_left)
    return fair_shares(policy.budget_nano, balance.spent, visits)


def _terms(shares: NDArray[np.int64], policy: Policy) -> Terms:
    """Fixed epsilons as configured; automatic ones share what the HAT's plates can spend beside the fixed ones."""
    fixed = (policy.mean_nano or 0) + (policy.cdf_nano or 0)
    automatic = (policy.mean_nano, policy.cdf_nano).count(None)
    if not automatic:
        return Terms(policy.mean_nano or 0, policy.cdf_nano or 0)
    each = (hat_epsilon(shares) - fixed) // automatic
    if each < EPSILON_NANO_MIN:
        return Terms(withheld="budget")
    return Terms(
        each if policy.mean_nano is None else policy.mean_nano, each if policy.cdf_nano is None else policy.cdf_nano
    )


def plan_hat(by_user: NDArray[np.int64], terms: Terms, policy: Policy) -> HatPlan:
    """The plan for the admitted plates' counts (at least one plate, each with a sample) on these terms."""
    counts = HatCounts(by_user)
    mean, why = None, "no mean asked for"
    if terms.mean_nano:
        mean, why = plan_mean(counts, terms.mean_nano, policy)
    cdf = None
    if terms.cdf_nano:
        cdf = plan_cdf(counts, terms.cdf_nano, policy.max_speed / QUANTA_PER_KMH, policy.bins)
    return HatPlan(terms, mean, cdf, why)


def plan_mean(counts: HatCounts, epsilon_nano: int, policy: Policy) -> tuple[MeanPlan, str]:
    """The configured mechanism, or for "auto" the one of least error bound, with the reason."""
    if policy.mean != "auto":
        return MECHANISMS[policy.mean].plan(counts, epsilon_nano, policy.max_speed, policy.grouping), "as configured"
    best = min(
        (
            Optimal().plan(counts, epsilon_nano, policy.max_speed, policy.grouping),
            Baseline().plan(counts, epsilon_nano, policy.max_speed, policy.grouping),
        ),
        key=lambda plan: plan.error_bound,
    )
    tried = [best]
    averaging = ArrayAveraging()
    for cap in sorted({counts.median, worst_case_cap(counts, epsilon_nano)}):
        if averaging.least_error(counts, epsilon_nano, policy.max_speed, cap) < best.error_bound:
            tried.append(averaging.plan_with_cap(counts, epsilon_nano, policy.max_speed, policy.grouping, cap))
    chosen = min(tried, key=lambda plan: plan.error_bound)
    return chosen, _reason(chosen)


def _reason(chosen: MeanPlan) -> str:
    """Levy and the quantile mechanisms never win here: counts promise nothing about an interval that speeds choose."""
    bound, bias = (quanta / QUANTA_PER_KMH for quanta in (chosen.error_bound, chosen.bias_bound))
    return f"least error bound that counts can justify: {bound:.2f} km/h, {bias:.2f} of it worst-case bias"
