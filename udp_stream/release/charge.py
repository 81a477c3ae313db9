"""Charge a slot: the half of the road that sees the counts of the whole slot, and no speed.

It plans and prices each HAT, *then* charges its plates, and returns what the ledger decided. Nothing is drawn here.

What is recorded is looked up first: a slot of which every HAT is recorded charges nothing. A crash at any point loses
nothing and repeats nothing. The ledger remembers terms and verdict of a HAT, so planning the slot again gives the first
plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.budgets import budget_balances, periods_to_compare
from udp_stream.ledger.port import Admission, Balance, Ledger
from udp_stream.planning.calendar import BudgetCalendar
from udp_stream.planning.hat_plan import HatPlan, HatPlans, SlotInPeriod
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import CityPlan, SlotPlan, row_digests
from udp_stream.planning.terms import Terms
from udp_stream.release.context import ReleaseContext
from udp_stream.release.decide import terms_from
from udp_stream.release.history import LedgerHistory
from udp_stream.release.once import charge_once
from udp_stream.release.one_budget import require_no_overlap, require_one_budget
from udp_stream.release.outcome import HatOutcome, hats_of, ids_of
from udp_stream.release.whole_city import charge_city
from udp_stream.windows.tables import SlotCounts


def plan_slot(counts: SlotCounts, context: ReleaseContext, ledger: Ledger) -> SlotPlan:
    """Plan and charge the whole slot. If all of it is recorded already, the plan has no HAT and costs nothing.

    PrivacyRefused if its budget period overlaps others, or has one budget with positions that could come to more:
    before anything is charged, and again before anything is drawn.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), ledger = two_hats(), MemoryLedger()
    >>> plan = plan_slot(counts, a_context(), ledger)
    >>> [terms.withheld for terms in plan.terms], (plan.charged / 1e9).tolist()
    (['', 'few_plates'], [0.5, 0.75, 0.75, 0.5, 0.0])
    >>> again = plan_slot(counts, a_context(), ledger)  # finds what was charged, and charges nothing
    >>> (period,) = ledger.periods()
    >>> again.charged.tolist() == plan.charged.tolist(), ledger.balances(period, counts.plates).charges
    (True, array([1, 1, 1, 1]))
    """
    hats = hats_of(counts)
    # Also if all of it is recorded already: what it released is still to be learnt.
    if context.forecaster is not None:
        context.forecaster.saw(counts)
    if None not in ledger.recorded(ids_of(hats)):
        return SlotPlan.empty(counts)
    policy, in_period = context.policy, context.calendar.slot_in_period(counts.start_ms)
    plans = HatPlans(policy.public)
    priced = _price(hats, counts, in_period, context, ledger, plans)
    asked = context.city.ask(counts, policy) if context.city is not None and policy.forecasts else None
    is_charging = asked is not None or any(hat.plan is not None for hat in priced)
    if is_charging:
        require_one_promise(in_period.period, policy.budget_nano, context.calendar, ledger, counts.plates)
    context.before_charge()
    city = charge_city(asked, counts, in_period.period, policy, ledger)
    charged = _charge(priced, counts, in_period, policy, ledger, plans)
    if is_charging:  # of two runs that begin at once, at least one sees the other here, before anything is drawn
        require_one_promise(in_period.period, policy.budget_nano, context.calendar, ledger, counts.plates)
    return _slot_plan(charged, counts, city)


def require_one_promise(
    period: str, budget_nano: int, calendar: BudgetCalendar, ledger: Ledger, plates: Sequence[bytes]
) -> None:
    """PrivacyRefused if plates were charged in periods that overlap this one, or if these plates have one budget for
    speeds and positions, and could lose more than that."""
    known = periods_to_compare(ledger, period)
    require_one_budget(period, budget_nano, plates, known, calendar, ledger)
    others = calendar.overlapping(period, known)
    require_no_overlap(period, others, "hat.timezone, budget.period and budget.accounting")


def _price(
    hats: Sequence[HatOutcome],
    counts: SlotCounts,
    in_period: SlotInPeriod,
    context: ReleaseContext,
    ledger: Ledger,
    plans: HatPlans,
) -> list[HatOutcome]:
    """The terms of each HAT and the plan that its price follows from; PrivacyRefused if the planner leaves one out."""
    policy = context.policy

    def balances() -> Balance:  # a closure, so that a planner has no ledger in its hands
        return budget_balances(ledger, in_period.period, counts.plates)

    planned = context.planner(counts, balances, in_period, policy, LedgerHistory(ledger), plans)
    if len(planned) != len(hats):
        raise PrivacyRefused(f"expected terms for each of {len(hats)} HATs, got {len(planned)}")
    return [_priced(hat, counts, terms.within(policy), plans) for hat, terms in zip(hats, planned, strict=True)]


def _priced(hat: HatOutcome, counts: SlotCounts, terms: Terms, plans: HatPlans) -> HatOutcome:
    """The HAT with its plan, on terms that say what the plan chose."""
    plan = _plan(hat, counts, terms, plans)
    return hat.asked(terms if plan is None else plan.terms, plan)


def _plan(hat: HatOutcome, counts: SlotCounts, terms: Terms, plans: HatPlans) -> HatPlan | None:
    """The plan for the rows that the terms offer; none where nothing is offered."""
    offered = terms.of_kept(counts.count[hat.rows])
    return plans.of(offered, terms) if offered.size and not terms.withheld else None


def _charge(
    hats: Sequence[HatOutcome],
    counts: SlotCounts,
    in_period: SlotInPeriod,
    policy: Policy,
    ledger: Ledger,
    plans: HatPlans,
) -> list[HatOutcome]:
    """Charge every HAT on its terms. Where the ledger remembers other terms (a retry, a race), charge on those."""
    # Larger HATs first: where budgets run out, they go to the statistics that say most. Ties by cell.
    queue = sorted(hats, key=lambda hat: (hat.terms.turn, hat.rows.start - hat.rows.stop))

    def on_terms(i: int, remembered: bytes) -> Admission:
        terms = terms_from(remembered, queue[i].release_id)
        # On these very terms, whatever they leave to be chosen: others would never be those remembered.
        queue[i] = queue[i].asked(terms, _plan(queue[i], counts, terms, plans))
        return queue[i].admission(counts, policy.min_plates, remembered)

    asked = [hat.admission(counts, policy.min_plates) for hat in queue]
    found = charge_once(ledger, in_period.period, policy.budget_nano, counts.plates, asked, on_terms)
    charged = [hat.decided(one.charged) for hat, one in zip(queue, found, strict=True)]
    # The plan has its rows in the order of cells, not in that of charging.
    return sorted(charged, key=lambda hat: hat.number)


def _slot_plan(hats: Sequence[HatOutcome], counts: SlotCounts, city: CityPlan | None) -> SlotPlan:
    return SlotPlan(
        counts.start_ms,
        counts.end_ms,
        counts.cells,
        counts.hat_rows,
        tuple(row_digests(counts)),
        tuple(hat.terms for hat in hats),
        np.concatenate([hat.charged for hat in hats]),
        tuple(hat.plan for hat in hats),
        city,
    )
