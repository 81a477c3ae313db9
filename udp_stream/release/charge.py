"""Price and charge of a slot, by counts and no speeds; one promise a ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import ceil, inf
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from udp_stream.base.arrays import Cells, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import duration_name
from udp_stream.forecast.model import CityTold
from udp_stream.ledger.ids import CITY_HOUR, id_of
from udp_stream.ledger.port import Admission, Balance, Entropy, Ledger, LedgerView, Verdict
from udp_stream.ledger.rules import (
    archived_s,
    budget_balances,
    iso_utc,
    largest_budgets,
)
from udp_stream.planning.plan import HatPlan, HatPlans, Terms
from udp_stream.planning.policy import (
    NOTE,
    BudgetCalendar,
    OneBudget,
    Policy,
    PositionPeriods,
    SlotInPeriod,
    ending_of,
    is_of_positions,
    length_of,
    measure_of,
    note_of,
    noted,
    of_same_time,
    period_of,
    time_of,
)
from udp_stream.planning.promise import NEIGHBOURS
from udp_stream.planning.slot import CityPlan, SlotPlan, terms_around, terms_from_counts
from udp_stream.release.city import (
    Charges,
    CityHour,
    CityQuestion,
    ShapeQuestion,
    hour_charges,
    hour_plan,
    require_paid,
)
from udp_stream.release.forecaster import Forecaster, LedgerHistory, Slot, SlotForecaster
from udp_stream.release.plate_day import PlateDay
from udp_stream.release.record import Smoothed, UnitDoubt, hat_ids
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotCounts

# `Terms` of a HAT are stored with the verdict. A `HatPlan` follows from terms and counts. A `SlotPlan`
# has the terms and charges of a slot's HATs, to travel. A `PlannedSlot` has them beside counts.

T = TypeVar("T")

WithheldReason = Literal["", "partial", "unit"]


# `plan_slot` prices each HAT, *then* charges its plates. It draws nothing, and charges nothing if
# every HAT is recorded. The ledger remembers terms and verdict of a HAT, so planning a slot again
# after a crash gives the first plan.


class SlotToPlan(NamedTuple):
    """A slot as a planner sees it: counts, budget period, settings, and earlier releases. `plans`
    are made once. `told` is the city's answer before the HATs, if there is one.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context = two_hats(), a_context()
    >>> slot = SlotToPlan.of_counts(counts, context, MemoryLedger())
    >>> slot.in_period.period, slot.plans.public == context.policy.public
    ('1d from 2022-01-01T00:00:00+00:00', True)
    """

    counts: SlotCounts
    in_period: SlotInPeriod
    policy: Policy
    history: LedgerHistory
    plans: HatPlans
    told: CityTold | None = None

    @classmethod
    def of_counts(
        cls,
        counts: SlotCounts,
        context: ReleaseContext,
        ledger: Ledger,
        meta: Mapping[str, str] | None = None,
    ) -> SlotToPlan:
        """`meta`, where it is at hand, is what the ledger knows of itself."""
        in_period = context.calendar.slot_in_period(counts.start_ms)
        return cls(
            counts,
            in_period,
            context.policy,
            LedgerHistory(ledger, context.policy.grid, meta),
            HatPlans(context.policy.public),
        )


def budget_left(counts: SlotCounts, balance: Balance, policy: Policy) -> float:
    """The share of the period's budget that is left of the slot's plates, on average; the least in
    any window. `balance` is for `counts.plates`."""
    here = np.unique(counts.plate)
    spent = float(balance.charged[here].mean()) if here.size else 0.0
    return max(0.0, 1 - spent / policy.budget_nano)


class Planner(Protocol):
    """Decides the terms of every HAT of a slot, from counts, balances and earlier releases. The
    ledger keeps the first terms.

    >>> planner: Planner = CountsPlanner()
    """

    def plan(self, slot: SlotToPlan, balances: Balance) -> Sequence[Terms]:
        """The terms of each HAT; `balances` are the charges of `slot.counts.plates` in the period
        (the most in any window)."""


class CountsPlanner:
    """The planner that reads no history.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> slot = SlotToPlan.of_counts(counts, context, ledger)
    >>> terms = CountsPlanner().plan(slot, ledger.balances(slot.in_period.period, counts.plates))
    >>> [(one.withheld, one.mean_nano) for one in terms]
    [('', 500000000), ('few_plates', 0)]
    """

    def plan(self, slot: SlotToPlan, balances: Balance) -> Sequence[Terms]:
        return terms_from_counts(slot.counts, balances, slot.in_period, slot.policy, slot.plans)


_FROM_COUNTS = CountsPlanner()


class ForecastPlanner:
    """The planner that takes means around what its forecaster says.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> planner = ForecastPlanner(Forecaster(context.calendar.slots, context.policy.max_speed, "udp-stream 1.0"))
    >>> slot = SlotToPlan.of_counts(counts, context, ledger)
    >>> terms = planner.plan(slot, ledger.balances(slot.in_period.period, counts.plates))
    >>> [one.forecast.value for one in terms]
    [13.291, 17.352]
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def plan(self, slot: SlotToPlan, balances: Balance) -> Sequence[Terms]:
        forecast = self._forecaster.forecast(slot.counts, slot.history, slot.told)
        return terms_around(
            slot.counts, forecast, balances, slot.in_period, slot.policy, slot.plans
        )


def key_without_secret(text: str) -> bytes:
    """A key that anyone can derive: for ledgers that end with the process."""
    return blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ReleaseContext:
    """The needs of every slot of a deployment: settings, calendar, bits, the software's name for
    records, a planner.

    `judges_unit`: whether releases may tell that speeds are in another unit, and slots are withheld
    then. `caveats` and `trial` go into every record. `before_charge` is called each time before
    plates are charged. `derive_key` turns an id into a key of its own, by the plates' key: with it
    a ledger's hashes cannot be guessed by readers. `forecaster` sees every slot. `city` replaces
    the policy's question to the city. `domain` is the public list of cells, ascending, of a promise
    that hides where plates were; `plate_day` has what each did on the day so far.

    >>> from udp_stream.testing import SeededEntropy, a_context
    >>> given = a_context()
    >>> context = ReleaseContext(given.policy, given.calendar, SeededEntropy(7), "udp-stream 1.0", trial=True)
    >>> context.trial, context.caveats
    (True, ())
    """

    policy: Policy
    calendar: BudgetCalendar
    entropy: Entropy
    software: str
    planner: Planner = _FROM_COUNTS
    caveats: tuple[str, ...] = ()
    trial: bool = False
    before_charge: Callable[[], None] = lambda: None
    forecaster: SlotForecaster | None = None
    derive_key: Callable[[str], bytes] = key_without_secret
    city: CityQuestion | None = None
    judges_unit: bool = False
    domain: Cells = field(default_factory=lambda: np.empty(0, np.uint64))
    plate_day: PlateDay | None = None

    @property
    def question(self) -> CityQuestion | None:
        return ShapeQuestion() if self.city is None and self.policy.shapes else self.city

    @property
    def doubt(self) -> UnitDoubt | None:
        """The releases that give evidence of another unit of speed, if some do."""
        return None if self.forecaster is None else self.forecaster.doubt

    def smoothed(
        self, slot: Slot, ledger: Ledger, meta: Mapping[str, str] | None = None
    ) -> list[Smoothed]:
        """The estimates of a slot; `meta` as `SlotToPlan.of_counts`."""
        if self.forecaster is None:
            return []
        return self.forecaster.smoothed(slot, LedgerHistory(ledger, self.policy.grid, meta))


def with_forecaster(context: ReleaseContext) -> ReleaseContext:
    """The same with a new forecaster, and with plans around its forecasts where the policy asks
    for them. A forecaster must see every slot in its order: a worker that takes over needs a new
    one."""
    policy = context.policy
    judges = context.judges_unit and policy.forecasts
    forecaster = Forecaster(
        context.calendar.slots,
        policy.max_speed,
        context.software,
        policy.shapes,
        judges,
        policy.unit,
    )
    planner = ForecastPlanner(forecaster) if policy.forecasts else context.planner
    return replace(context, forecaster=forecaster, planner=planner)


def plan_slot(
    counts: SlotCounts, context: ReleaseContext, ledger: Ledger, asks: bool = False
) -> SlotPlan:
    """Plan and charge the whole slot; nothing if all of it is recorded. If it `asks`, this may be
    the question of the city's hour alone: once that is answered, the slot is to be planned again.

    PrivacyRefused where counts are secret; and, before a charge and again before a draw, if its
    period overlaps others, or could exceed a joint budget with positions.
    """
    require_public_counts(context.policy)
    # Also if all of it is recorded already: what it released is still to be learnt.
    if context.forecaster is not None:
        context.forecaster.saw(counts)
    policy = context.policy
    period = context.calendar.slot_in_period(counts.start_ms).period
    ids = hat_ids(counts.cells.tolist(), counts.slot, policy.grid)
    name = id_of(CITY_HOUR, *counts.slot)
    view = ledger.view(period, counts.plates, [*ids, name])
    *payloads, answer = view.payloads
    seen = replace(view, payloads=tuple(payloads))
    require_relation(policy.neighbours, ids, seen.payloads)
    if None not in seen.payloads:
        return SlotPlan.empty(counts, seen)
    if asks and answer is not None:
        ledger.published([name])  # whoever recorded it may have died before it could
    slot = SlotToPlan.of_counts(counts, context, ledger, seen.meta)._replace(
        told=None if answer is None else CityHour.of_ledger(name, answer).told
    )
    check = partial(
        require_one_promise, period, policy.budget_nano, context.calendar, ledger, counts.plates
    )
    check(seen)
    require_unmoved(period, policy.grid, ledger, seen.meta)
    # THE CITY. Charged before prices follow from balances: a run that dies here leaves the next one
    # the same balances. Its hour first: HATs are planned once that is answered.
    why = _withheld_reason(slot, context)
    if asks and slot.told is None and (hour := _charged_hour(slot, context, why, ledger)):
        check(None)
        return SlotPlan.question(counts, hour)
    city = None
    question = context.question
    asked = None if question is None else _city_plan(question, slot, context, why)
    balance = seen.balance
    if question is not None and asked is not None:
        context.before_charge()
        city = charge_city(asked, question.charges, counts, period, policy, ledger)
        balance = budget_balances(ledger, period, counts.plates)
    # PRICE. Each HAT has terms, and a plan for the rows that they offer: what each row would be
    # charged.
    terms, plans = _price(slot, context.planner, balance, why)
    context.before_charge()
    if context.forecaster is not None and policy.forecasts:
        history = LedgerHistory(ledger, policy.grid, seen.meta)
        context.forecaster.keep_week(counts.slot, period, history, ledger)
    # CHARGE. The ledger has terms and verdict of each HAT: each has what each of its rows was
    # charged, 0 if it was not.
    charged = _charge(ids, terms, plans, slot, ledger)
    if not charged.any():
        note_requested(period, ledger, seen.meta)
    # Of two runs that begin at once, at least one sees the other here, before anything is drawn.
    seen = ledger.view(period, counts.plates, ids)
    check(seen)
    # PLAN. The same as columns, by cell: it names no plate, and travels to shards.
    return SlotPlan(
        counts.start_ms,
        counts.end_ms,
        counts.cells,
        counts.hat_rows,
        counts,
        tuple(terms),
        charged,
        tuple(plans),
        city,
        seen,
    )


def _city_plan(
    question: CityQuestion, slot: SlotToPlan, context: ReleaseContext, why: WithheldReason
) -> CityPlan | None:
    if not slot.policy.forecasts or why:
        return None
    forecaster = context.forecaster
    known = None if forecaster is None else forecaster.city(slot.counts.start_ms, slot.history)
    return question.ask(slot.counts, slot.policy, known)


def _charged_hour(
    slot: SlotToPlan, context: ReleaseContext, why: WithheldReason, ledger: Ledger
) -> CityPlan | None:
    """The question of the city's hour, charged; None where it is not asked, or too few can pay."""
    forecaster = context.forecaster
    counts = slot.counts
    policy = slot.policy
    if not policy.forecasts or why or forecaster is None or context.city is not None:
        return None
    asked = hour_plan(counts, policy, forecaster.hour(counts, slot.history))
    if asked is None:
        return None
    context.before_charge()
    return charge_city(asked, hour_charges, counts, slot.in_period.period, policy, ledger)


def _withheld_reason(slot: SlotToPlan, context: ReleaseContext) -> WithheldReason:
    """Why nothing of a whole slot is asked or charged, if anything is: from counts and earlier
    releases."""
    if slot.counts.partial:
        return "partial"
    known = context.forecaster
    policy = slot.policy
    is_doubted = known is not None and policy.forecasts and context.judges_unit
    if (
        known is not None
        and is_doubted
        and known.in_doubt(slot.counts.start_ms, slot.history, policy.fingerprint())
    ):
        return "unit"
    return ""


def _price(
    slot: SlotToPlan, planner: Planner, balance: Balance, why: WithheldReason
) -> tuple[list[Terms], list[HatPlan | None]]:
    """The terms of each HAT and the plan that its price follows from; PrivacyRefused if the planner
    leaves one out."""
    hats = slot.counts.cells.size
    planned = [Terms(withheld=why)] * hats if why else planner.plan(slot, balance)
    if len(planned) != hats:
        raise PrivacyRefused(f"expected terms for each of {hats} HATs, got {len(planned)}")
    terms = [one.within(slot.policy) for one in planned]
    plans = [
        _plan(rows, slot, one) for rows, one in zip(slot.counts.each_rows(), terms, strict=True)
    ]
    chosen = [one if plan is None else plan.terms for one, plan in zip(terms, plans, strict=True)]
    return chosen, plans


def _plan(rows: slice, slot: SlotToPlan, terms: Terms) -> HatPlan | None:
    offered = terms.select_offered(slot.counts.count[rows])
    return slot.plans.plan_hat(offered, terms) if offered.size and not terms.withheld else None


def _charge(
    ids: Sequence[str],
    terms: list[Terms],
    plans: list[HatPlan | None],
    slot: SlotToPlan,
    ledger: Ledger,
) -> Integers:
    """Charge every HAT on its terms: nano-units of each row, 0 where nothing was charged. Where the
    ledger remembers other terms (a retry, a race), charge on those: `terms` and `plans` have them
    afterwards."""
    counts = slot.counts
    policy = slot.policy
    each_rows = counts.each_rows()
    # Larger HATs first: where budgets run out, they go to the statistics that say most. Ties by
    # cell.
    queue = sorted(
        range(len(ids)),
        key=lambda hat: (terms[hat].turn, each_rows[hat].start - each_rows[hat].stop),
    )

    def admission(hat: int, written: bytes) -> Admission:
        plan = plans[hat]
        if plan is None:
            return Admission.of_nobody(ids[hat], written, policy.min_plates)
        asked = terms[hat]
        least = max(policy.min_plates, asked.admitted_min)
        offered = asked.select_offered(counts.plate[each_rows[hat]])
        allowed = np.full(offered.size, asked.allowance_nano) if asked.allowance_nano else None
        return Admission(ids[hat], offered, plan.charges, least, written, allowed)

    def on_terms(i: int, remembered: bytes) -> Admission:
        hat = queue[i]
        # On these very terms, whatever they leave to be chosen: others would never be those
        # remembered.
        terms[hat] = terms_from(remembered, ids[hat], Terms)
        plans[hat] = _plan(each_rows[hat], slot, terms[hat])
        return admission(hat, remembered)

    asked = [admission(hat, msgspec.json.encode(terms[hat])) for hat in queue]
    found = charge_once(
        ledger, slot.in_period.period, policy.budget_nano, counts.plates, asked, on_terms
    )
    charged = np.zeros_like(counts.count)
    for hat, verdict in zip(queue, found, strict=True):
        rows = each_rows[hat]
        if plans[hat] is not None:
            charged[rows] = terms[hat].restore_rows(verdict.charged, rows.stop - rows.start)
    return charged


def charge_once(
    ledger: Ledger,
    period: str,
    budget_nano: int,
    plates: Sequence[bytes],
    admissions: Sequence[Admission],
    on_terms: Callable[[int, bytes], Admission],
) -> list[Verdict]:
    """Charge each admission, in this order, or learn its first verdict. Where the ledger remembers
    other terms (a retry, a race), admission i is asked again as `on_terms(i, terms)`: what is drawn
    is what was charged."""
    verdicts = ledger.admit(period, budget_nano, plates, admissions) if admissions else []
    others = [i for i, verdict in enumerate(verdicts) if verdict.terms != admissions[i].terms]
    again = [on_terms(i, verdicts[i].terms) for i in others]
    found = dict(
        zip(others, ledger.admit(period, budget_nano, plates, again) if again else [], strict=True)
    )
    for i, one in zip(others, again, strict=True):
        if found[i].terms != one.terms:
            raise PrivacyRefused(
                f"the ledger remembers other terms of {one.release_id} each time it is asked"
            )
    return [found.get(i, verdict) for i, verdict in enumerate(verdicts)]


def terms_from(remembered: bytes, id_: str, kind: type[T]) -> T:
    """The terms that a ledger remembers; PrivacyRefused if another version of the software wrote
    them, or the HAT was asked under another neighbour relation, which has none."""
    if not remembered:
        raise another_relation(id_)
    try:
        return msgspec.json.decode(remembered, type=kind)
    except msgspec.DecodeError as error:
        raise PrivacyRefused(
            f"{id_} was charged by another version of udp-stream, on terms that this one cannot read, and is not "
            "recorded yet: finish it with the version that charged it"
        ) from error


def require_one_promise(
    period: str,
    budget_nano: int,
    calendar: BudgetCalendar | PositionPeriods,
    ledger: Ledger,
    plates: Sequence[bytes],
    seen: LedgerView | None = None,
) -> None:
    """PrivacyRefused if a charged period, or one that was asked under another neighbour relation or
    for whole plates (`note_requested`), overlaps this one, or if these plates could exceed one
    budget of speeds and positions. `seen` is a view of the ledger, if it was read anew just now."""
    seen = ledger.view(period, (), ()) if seen is None else seen
    meta = seen.meta
    if period not in seen.periods:
        require_not_archived(period, seen.periods, meta)
    asked = [name.removeprefix(REQUESTED_NOTE) for name in meta if name.startswith(REQUESTED_NOTE)]
    known = [*seen.periods, *(name for name in asked if ending_of(name) or ending_of(period))]
    require_one_budget(period, budget_nano, plates, known, calendar.one_budget, ledger, meta)
    require_no_overlap(period, calendar.overlapping(period, known))


REQUESTED_NOTE = "asked:"
"""The prefix, before a period, of a ledger's note that plates were asked in it, and perhaps none
was charged."""


def note_requested(period: str, ledger: Ledger, meta: Mapping[str, str] | None = None) -> None:
    """Note the period, whose name tells the neighbour relation, before anything is recorded where
    no charge tells it: where nobody was charged, and for whole plates always, as there it is secret
    whether anybody was. `meta`, where it is at hand, is what the ledger knows of itself."""
    if f"{REQUESTED_NOTE}{period}" not in (ledger.meta() if meta is None else meta):
        ledger.note(f"{REQUESTED_NOTE}{period}", "")


# Budgets on a ledger that would add up are refused before anything is charged (status 5).
#
# **Budget periods that overlap** are other balances: by pings in the overlap a plate could lose
# each one's budget.
#
# **A joint budget for speeds and positions** (`queries.share`). Each kind has a fixed part and does
# not look at the other's charges. That holds while all charges of a period were made under these
# parts. A ledger notes the joint budget of a period, once it is known to hold. Where the note is
# missing or another, or the plates at hand are not within both parts, a run reads the budgets of
# all admissions; so does a run without a share for a period that has a note.

NAMED_MAX = 3
"""Periods named in a refusal; one that overlaps a lifetime may overlap thousands."""


def require_relation(
    neighbours: str, release_ids: Sequence[str], payloads: Sequence[bytes | None]
) -> None:
    """PrivacyRefused if any of these records was made under another neighbour relation."""
    others = [f'"neighbours":"{name}"'.encode() for name in NEIGHBOURS if name != neighbours]
    for id_, payload in zip(release_ids, payloads, strict=True):
        if payload is not None and any(other in payload for other in others):
            raise another_relation(id_)


def require_public_counts(policy: Policy) -> None:
    """PrivacyRefused where counts are secret: terms and records of HATs tell them."""
    if not policy.relation.public_counts:
        raise PrivacyRefused(
            f'this road tells counts: expected "swap-values", got "{policy.neighbours}"'
        )


def another_relation(release_id: str) -> PrivacyRefused:
    """The refusal of a HAT that a ledger holds under another neighbour relation."""
    return PrivacyRefused(
        f"{release_id} was asked or recorded under another privacy.neighbours on this ledger, and is made once. Set "
        "privacy.neighbours as it was, or release only from the end of its budget period on. Else use another ledger; "
        "its budgets add to this one's"
    )


def require_no_overlap(period: str, others: Sequence[str]) -> None:
    """PrivacyRefused if there are others: charged or asked periods that overlap this one.

    Ask before charging, and again before drawing: of two runs that begin at once, at least one sees
    the other.
    """
    if not others:
        return
    of_speeds = "budget.period and budget.accounting"
    of_positions = "queries.period and the measure of [queries]"
    settings = f"hat.timezone, {of_positions if is_of_positions(period) else of_speeds}"
    if len({ending_of(name) for name in (period, *others)}) > 1:
        settings = f"privacy.neighbours, {settings}"
    periods = [*map(period_of, (period, *others))]
    window = max(one.window for one in periods)
    length = duration_name(round(window)) if window else ""
    overlaps = f"shares windows of {length} with" if window else "overlaps"
    end = f"{length} after the end" if window else "the end"
    # A longer period goes on where the others have ended.
    last = max(one.end for one in periods)
    free = f", {iso_utc(round(last))}," if not window and last < inf else ""
    raise PrivacyRefused(
        f"the budget period {period} {overlaps} {_named(others)}, in which plates were asked on this ledger. Each "
        f"period has a budget of its own: where they overlap, a plate could lose the sum. Set {settings} as they were, "
        f"or release only from {end} of the last of these periods{free} on. Else use another ledger; its budgets add "
        "to this one's"
    )


def require_not_archived(period: str, known: Collection[str], meta: Mapping[str, str]) -> None:
    """PrivacyRefused if a period that begins, or whose windows reach, before the archived time was
    not charged there: it might overlap others whose balances are in the archive. `known` are the
    ledger's periods, this one not."""
    ours = period_of(period)
    length = length_of(period)
    closed = archived_s(meta)
    if closed is None or ours.start - ours.window >= closed:
        return
    # Of a rolling budget the ledger keeps the spans that share a window with later ones.
    if not (
        ours.window
        and any(length_of(name) == length and period_of(name).start < closed for name in known)
    ):
        way_out = (
            "Start again: then pings of that time are late"
            if ours.end <= closed
            else "Set hat.timezone, budget.period and budget.accounting (queries.period and the measure of [queries]) "
            "as they were, or release only from a later period on"
        )
        raise PrivacyRefused(
            f"the budget period {period} reaches back before {iso_utc(closed)}, up to which the ledger is archived: "
            f"what plates were charged there is not known any more. {way_out}"
        )


def require_one_budget(
    period: str,
    budget_nano: int,
    plates: Sequence[bytes],
    known: Collection[str],
    one: OneBudget | None,
    ledger: Ledger,
    meta: Mapping[str, str],
) -> None:
    """PrivacyRefused if plates could lose more than the joint budget, by speeds and positions
    together.

    `known` are the ledger's periods of both kinds, `budget_nano` this period's budget, `one` the
    budget of both kinds (None where each has its own), `meta` what the ledger knows of itself. Ask
    as `require_no_overlap`.
    """
    names = of_same_time(period, known)
    if one is not None:
        remembered = noted(meta).get(time_of(period))
        if names and (remembered != one or _is_over(one, names, plates, ledger)):
            _require_sum(one, period, budget_nano, names, ledger)
        # After the check: later runs trust the note, and then read no budgets.
        if remembered is None:
            ledger.note(f"{NOTE}{time_of(period)}", note_of(one))
    elif any(is_of_positions(name) != is_of_positions(period) for name in names):
        for time, promised in noted(meta).items():
            if of_same_time(period, [time]):
                _require_sum(promised, period, budget_nano, names, ledger)


def _is_over(
    one: OneBudget, names: Collection[str], plates: Sequence[bytes], ledger: Ledger
) -> bool:
    for is_positions in (False, True):
        some = [name for name in names if is_of_positions(name) == is_positions]
        # The largest charges may be of different plates: at worst budgets are read for nothing.
        most = sum(int(ledger.balances(name, plates).charged.max(initial=0)) for name in some)
        others = any(measure_of(name).name != one.measure for name in some)
        # Any of the names will do: amounts of a single kind and measure convert alike.
        if most and (others or one.nano_of(some[0], most) > one.part_nano(some[0])):
            return True
    return False


def _require_sum(
    one: OneBudget, period: str, budget_nano: int, names: Sequence[str], ledger: Ledger
) -> None:
    budgets = largest_budgets(ledger, (period, *names))
    budgets[period] = max(budget_nano, budgets.get(period, 0))
    in_all = one.most_in(budgets, period)
    if not in_all.within(one.whole):
        raise PrivacyRefused(
            f"the budget period {period} has one budget for speeds and positions, where {one.said}, and plates were "
            f"charged under other budgets in {_named(names)} on this ledger: by both together a plate could lose "
            f"{in_all}, not {one.whole}. Set [budget], queries.share and queries.unit_m as they were, or release only "
            "from the end of the period on. Else use another ledger; its budgets add to this one's"
        )


def _named(periods: Sequence[str]) -> str:
    more = f" and {len(periods) - NAMED_MAX} more" if len(periods) > NAMED_MAX else ""
    return ", ".join(periods[:NAMED_MAX]) + more


# A question to the whole city (`city.py`, `ReleaseContext.question`): charge, draw, record, once a
# slot, if plans follow from releases (`Policy.forecasts`), as the planner then waits for a slot's
# release. No reader waits for it.
#
# 1. `charge_city` charges plates that can pay, before the slot's HATs are priced. Other plates take
#    no part.
# 2. Integer sums over all rows are measured with the plates' norms (`pipeline.py`): on Kafka each
#    shard sends the planner its part. Nothing is measured where a plate could lose more by its
#    weights than its charge (`require_paid`).
# 3. Noise is drawn once, and recorded (`record_city`), before any HAT of the slot: on Kafka shards
#    wait for it.
#
# The ledger remembers a digest of the question. If another plan was charged, as by another version,
# nothing is drawn: what that charge allows is not known any more.

CITY_ADMITTED_MIN = 0.5
"""The least share of the plates that have to be able to pay."""


def charge_city(
    asked: CityPlan,
    charges_of: Charges,
    counts: SlotCounts,
    period: str,
    policy: Policy,
    ledger: Ledger,
) -> CityPlan | None:
    """Charge the plates that can pay: the plan with what each was charged, and the others' weights
    0. None if too few can. PrivacyRefused if the charge pays for less than the weights ask.
    """
    members, first, member = np.unique(counts.plate, return_index=True, return_inverse=True)
    least = ceil(CITY_ADMITTED_MIN * members.size)
    terms = _terms(asked, counts)
    charges = asked.charged[first]
    admission = Admission(id_of(asked.kind, *counts.slot), members, charges, least, terms)
    (verdict,) = ledger.admit(period, policy.budget_nano, counts.plates, [admission])
    if verdict.terms != terms or not verdict.admitted.any():
        return None
    charged = verdict.charged[member]
    weights = np.where(charged > 0, asked.weights, 0)
    plan = replace(
        asked, weights=weights, charged=charged, plates=int(np.count_nonzero(verdict.admitted))
    )
    require_paid(charges_of, counts, plan)
    return plan


def _terms(asked: CityPlan, counts: SlotCounts) -> bytes:
    """A digest of all that the sums and their noise follow from, beside speeds."""
    hashed = blake2b(asked.about, digest_size=16)
    charges = np.zeros(len(counts.plates), dtype=np.int64)
    charges[counts.plate] = asked.charged
    columns = asked.weights, asked.around, counts.plate, counts.hat_rows, counts.count, charges
    for column in columns:
        # Little-endian, so that the digest is the same on every machine.
        hashed.update(np.ascontiguousarray(column, "<i8").tobytes())
    hashed.update(counts.cells.astype("<u8").tobytes() + b"".join(counts.plates))
    return hashed.hexdigest().encode()


# Zones keep their outlines within a budget period: a HAT's id names a zone, and the ledger has a
# HAT once.

OUTLINES_NOTE = "zones:"
"""The prefix, before a grid's digest, of a ledger's note of its outlines by id."""

PERIOD_NOTE = "zoned:"
"""The prefix, before a digest, a colon and a period, of a ledger's note that the grid was used."""


def require_unmoved(period: str, grid: Grid, ledger: Ledger, meta: Mapping[str, str]) -> None:
    """PrivacyRefused if a zone was released in this period with another outline; otherwise note the
    outlines. `meta` is what the ledger knows of itself, read before this."""
    outlines = grid.outlines_by_id
    if not outlines or f"{PERIOD_NOTE}{grid.digest}:{period}" in meta:
        return
    for name in meta:
        digest, _, noted = name.removeprefix(PERIOD_NOTE).partition(":")
        if not name.startswith(PERIOD_NOTE) or noted != period:
            continue
        known = msgspec.json.decode(meta[f"{OUTLINES_NOTE}{digest}"], type=dict[str, str])
        moved = sorted(
            id_ for id_, outline in outlines.items() if known.get(id_, outline) != outline
        )
        if moved:
            raise PrivacyRefused(
                f"hat.zones: {', '.join(moved[:5])} had another outline earlier in {period}: name a moved zone anew, "
                "or go on with the old file until the period is over"
            )
    ledger.note(f"{OUTLINES_NOTE}{grid.digest}", msgspec.json.encode(dict(outlines)).decode())
    ledger.note(f"{PERIOD_NOTE}{grid.digest}:{period}", "")
