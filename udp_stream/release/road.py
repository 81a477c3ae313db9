"""The road from a closed slot to published releases, once: generators that yield effects and are sent their results.

It has two halves. `plan_slot` sees the counts of the whole slot and no speed: it plans and prices HATs, *then* charges,
and returns what the ledger decided. `release_planned` continues with some or all of the HATs and their speeds: it plans
for the plates that were charged, *then* draws, *then* records (first one wins: a second draw is dropped unseen). Only
what the ledger has recorded is published, once the ledger's high-water mark is raised. The embedded runtime runs one
half after the other; on Kafka one planner serves many shards, each of which releases its own cells.

A slot whose budget period overlaps one of another zone or length is refused, as the two balances would add up, until
the sum is accepted in words: before it charges, and again before anything is drawn.

Order is the guarantee. Recorded payloads are looked up first: a HAT that was ever recorded is published as recorded,
draws nothing and charges nothing. A crash between any two steps loses nothing and repeats nothing: the ledger remembers
terms and verdict, so planning the slot again gives the first plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Balance, Entropy, Mark
from udp_stream.planning.hat_plan import HatPlan, SlotInPeriod, Terms, plan_admitted, plan_hat
from udp_stream.planning.periods import epsilon_text, overlap_words, overlapping, period_of
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import SlotPlan, row_digests
from udp_stream.planning.slot_terms import terms_from_counts
from udp_stream.release.estimate import HatEstimate, estimate_hats
from udp_stream.release.record import (
    SCHEMA,
    Counts,
    Hat,
    Release,
    Status,
    encode,
    privacy_record,
    release_id,
    statistics,
)
from udp_stream.windows.grid import SlotGrid, cell_center, cell_name
from udp_stream.windows.slot_tables import SlotCounts, SlotValues


@dataclass(frozen=True, slots=True)
class Recorded:
    """Ask what is recorded under these ids; the answer is a payload or None for each."""

    release_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Balances:
    """Ask what plates have spent in a period; the answer is a `ports.Balance`."""

    period: str
    plates: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Admit:
    """Charge; the answer is a verdict for each admission."""

    period: str
    budget: int
    plates: Sequence[bytes]
    admissions: Sequence[Admission]


@dataclass(frozen=True, slots=True)
class Record:
    """Record payloads; the answer is what is recorded under their ids: the first payload of each."""

    releases: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class RaiseMark:
    """Note apart from the ledger how far it has come, before this record is published; the answer is the mark."""

    release_id: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand payloads to their readers: (release id, cell, payload). No answer.

    The ledger's mark knows them; there is none where there are no payloads."""

    releases: Sequence[tuple[str, str, bytes]]
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Published:
    """Remember that these ids have reached their readers. No answer."""

    release_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Periods:
    """Ask in which periods some plate was charged; the answer is their names."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Ask for the largest budget that anything was admitted under in each of these periods; the answer is a dict of
    those in which something was."""

    periods: Sequence[str]


Effect = Recorded | Balances | Admit | Record | RaiseMark | Publish | Published | Periods | Budgets


class BudgetCalendar:
    """Slots and budget periods of a policy in its zone, and what was accepted of periods that overlap.

    `accepted_nano` is the most that the budgets of periods that overlap may sum to; 0 where no overlap was accepted.
    """

    def __init__(self, policy: Policy, slots: SlotGrid, periods: SlotGrid | None, accepted_nano: int = 0) -> None:
        """`periods` is None where one budget is for a lifetime."""
        self.slots = slots
        self.accepted_nano = accepted_nano
        self.accepted: set[tuple[str, ...]] = set()
        self._policy = policy
        self._periods = periods

    def slot_in_period(self, start_ms: int) -> SlotInPeriod:
        """The budget period of the slot that starts at this time, and the slot's place in it.

        Slots and periods are cut on the wall clock, so that on the days when it changes some are an hour shorter or
        longer: their number is rounded.
        """
        if self._periods is None:
            return SlotInPeriod("lifetime", 0, 0)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone, left = round((start_ms - first) / slot_ms), max(0, round((last - start_ms) / slot_ms) - 1)
        return SlotInPeriod(f"{self._policy.period} from {self._periods.iso(first)}", gone, left)

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        return isfinite(start) and self.slot_in_period(round(start * 1000)).period == name


NAMED_MAX = 3
"""Periods named in a refusal; one that overlaps a lifetime may overlap thousands."""


Planner = Callable[
    [SlotCounts, Balance, SlotInPeriod, Policy], Generator[Recorded, Sequence[bytes | None], Sequence[Terms]]
]
"""Decides the terms of every HAT of a slot. It may ask what is recorded for other HATs, so that a plan can follow from
earlier releases, and nothing else. Two planners, or one that is asked twice, may answer differently; the ledger keeps
the terms that came first."""


def from_counts(
    counts: SlotCounts, balance: Balance, in_period: SlotInPeriod, policy: Policy
) -> Generator[Recorded, Sequence[bytes | None], Sequence[Terms]]:
    """The planner that reads no history."""
    yield from ()
    return terms_from_counts(counts, balance, in_period, policy)


@dataclass(frozen=True, slots=True)
class ReleaseContext:
    """What every slot of a deployment needs: settings, calendar, bits, the software's name for records, a planner.

    `caveats` and `trial` go into every record: facts about the ledger that it was made on.
    """

    policy: Policy
    calendar: BudgetCalendar
    entropy: Entropy
    software: str
    planner: Planner = from_counts
    caveats: tuple[str, ...] = ()
    trial: bool = False


Payloads = Sequence[tuple[str, str, bytes]]
"""Records: (release id, cell, payload)."""


def release_slot(counts: SlotCounts, values: SlotValues, context: ReleaseContext) -> Generator[Effect, Any, Payloads]:
    """Release every HAT of a closed slot; returns what was published: (release id, cell, payload), by cell."""
    plan = yield from plan_slot(counts, context)
    return (yield from release_planned(counts, values, plan, context))


def release_ids(counts: SlotCounts) -> list[str]:
    """The id of each HAT's only release."""
    return [release_id(cell_name(int(cell)), counts.start_ms, counts.end_ms) for cell in counts.cells]


def plan_slot(counts: SlotCounts, context: ReleaseContext) -> Generator[Effect, Any, SlotPlan]:
    """Plan and charge the whole slot. If all of it is recorded already, the plan has no HAT and costs nothing."""
    ids = release_ids(counts)
    if None not in (yield Recorded(ids)):
        return SlotPlan.empty(counts)
    policy, in_period = context.policy, context.calendar.slot_in_period(counts.start_ms)
    balance = yield Balances(in_period.period, counts.plates)
    planned = yield from _asked(context.planner(counts, balance, in_period, policy), len(ids))
    terms = [of_hat.within(policy) for of_hat in planned]
    # Larger HATs first: where budgets run out, they go to the statistics that say most. Ties by cell.
    queue = np.argsort(-np.diff(counts.hat_rows), kind="stable").tolist()
    priced = [_priced(counts, hat, ids[hat], terms[hat], policy) for hat in queue]
    charging = any(hat.plan is not None for hat in priced)
    if charging:
        yield from _require_no_overlap(in_period.period, context)
    granted = yield from _admit(counts, in_period, policy, priced)
    if charging:  # of two runs that begin at once, at least one sees the other here, before anything is drawn
        yield from _require_no_overlap(in_period.period, context)
    hats = sorted(granted, key=lambda hat: hat[0].number)
    return SlotPlan(
        counts.start_ms,
        counts.end_ms,
        counts.cells,
        counts.hat_rows,
        tuple(row_digests(counts)),
        tuple(hat.terms for hat, _ in hats),
        np.concatenate([charged for _, charged in hats]),
        tuple(hat.plan for hat, _ in hats),
    )


def _require_no_overlap(period: str, context: ReleaseContext) -> Generator[Effect, Any, None]:
    """PrivacyRefused if plates were charged in periods that overlap this one, unless the sum was accepted.

    Periods of another zone or length are other balances: each plate could lose its budget in all of them. What was
    accepted once is not summed again for the same periods.
    """
    calendar = context.calendar
    others = calendar.overlapping(period, (yield Periods()))
    if not others or (period, *others) in calendar.accepted:
        return
    budgets = yield Budgets((period, *others))
    ours = context.policy.budget_nano
    sum_nano = max(ours, budgets.get(period, 0)) + sum(budgets.get(other, 0) for other in others)
    if sum_nano > calendar.accepted_nano:
        raise PrivacyRefused(_overlap(period, others, sum_nano, ours, calendar.accepted_nano))
    calendar.accepted.add((period, *others))


def _overlap(period: str, others: Sequence[str], sum_nano: int, ours_nano: int, accepted_nano: int) -> str:
    """What would hold, and the words that accept it."""
    named = ", ".join(others[:NAMED_MAX]) + (f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else "")
    accepted = f" (accepted so far: {overlap_words(accepted_nano)})" if accepted_nano else ""
    return (
        f"the budget period {period} overlaps {named}, in which plates were charged on this ledger. Each period has a "
        f"budget of its own: where they overlap, a plate could lose epsilon {epsilon_text(sum_nano)}, not "
        f"{epsilon_text(ours_nano)}{accepted}. Set hat.timezone and budget.period as they were, or release only from "
        f'the end of the other period on; or accept the sum: --accept-overlap "{overlap_words(sum_nano)}" '
        "(budget.accept_overlap)"
    )


def _asked(
    planner: Generator[Recorded, Sequence[bytes | None], Sequence[Terms]], hats: int
) -> Generator[Effect, Any, Sequence[Terms]]:
    """The planner's terms; PrivacyRefused if it asks for anything but recorded payloads, or leaves HATs out."""
    answer: Any = None
    while True:
        try:
            question = planner.send(answer)
        except StopIteration as stop:
            terms: Sequence[Terms] = stop.value
            break
        if not isinstance(question, Recorded):
            raise PrivacyRefused(f"expected a planner to ask what is recorded, got {type(question).__name__}")
        answer = yield question
    if len(terms) != hats:
        raise PrivacyRefused(f"expected terms for each of {hats} HATs, got {len(terms)}")
    return terms


@dataclass(frozen=True, slots=True)
class _Priced:
    """A HAT before the verdict: its terms, and the plan for the rows that are offered, which charges come from."""

    number: int
    release_id: str
    terms: Terms
    kept: NDArray[np.bool_]
    plan: HatPlan | None

    def admission(self, counts: SlotCounts, min_plates: int) -> Admission:
        """Each plate's own charge; of a HAT that is withheld, nobody's."""
        members = np.array([], dtype=np.int64) if self.plan is None else counts.plate[counts.rows(self.number)]
        charges = members if self.plan is None else self.plan.charges
        offered = members if self.plan is None else members[self.kept]
        return Admission(self.release_id, offered, charges, min_plates, msgspec.json.encode(self.terms))

    def charged(self, verdict: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each row of the HAT was charged; 0 for those that were not offered."""
        rows = np.zeros(self.kept.size, dtype=np.int64)
        if self.plan is not None:
            rows[self.kept] = verdict
        return rows


def _priced(counts: SlotCounts, hat: int, id_: str, terms: Terms, policy: Policy) -> _Priced:
    rows = counts.rows(hat)
    kept = terms.rows_kept(rows.stop - rows.start)
    offered = not terms.withheld and bool(kept.any())
    return _Priced(hat, id_, terms, kept, plan_hat(counts.count[rows][kept], terms, policy) if offered else None)


def _admit(
    counts: SlotCounts, in_period: SlotInPeriod, policy: Policy, asked: Sequence[_Priced]
) -> Generator[Effect, Any, list[tuple[_Priced, NDArray[np.int64]]]]:
    """Charge every HAT on its terms, in this order. Where the ledger remembers other terms (a retry, a race), ask on
    those."""
    admissions = [hat.admission(counts, policy.min_plates) for hat in asked]
    verdicts = yield Admit(in_period.period, policy.budget_nano, counts.plates, admissions)
    granted, again = [], []
    for hat, verdict in zip(asked, verdicts, strict=True):
        remembered = msgspec.json.decode(verdict.terms, type=Terms)
        if remembered == hat.terms:
            granted.append((hat, hat.charged(verdict.charged)))
        else:
            again.append(_priced(counts, hat.number, hat.release_id, remembered, policy))
    if again:
        granted += yield from _admit(counts, in_period, policy, again)
    return granted


def release_planned(
    counts: SlotCounts, values: SlotValues, plan: SlotPlan, context: ReleaseContext
) -> Generator[Effect, Any, Payloads]:
    """Release these HATs on their plan. A HAT that the plan lacks, or has with other rows, is withheld."""
    ids, cells = release_ids(counts), [cell_name(int(cell)) for cell in counts.cells]
    payloads: list[bytes | None] = list((yield Recorded(ids)))
    todo = [hat for hat, payload in enumerate(payloads) if payload is None]
    if todo:
        digests = row_digests(counts)
        hats = [_planned(counts, hat, digests[hat], plan, context.policy) for hat in todo]
        yield from _admit_nobody(
            counts, [ids[hat.number] for hat in hats if hat.terms.withheld == "unplanned"], context
        )
        # They were clamped when they were read; if U has been lowered since, sensitivities hold for the lower one only.
        clamped = values.clamped(context.policy.max_speed)
        estimates = _estimate([hat for hat in hats if hat.plan is not None], counts, clamped, context.entropy, ids)
        common = _common(counts, context)
        drawn = [
            encode(_record(counts, hat, cells[hat.number], ids[hat.number], estimates.get(hat.number), common))
            for hat in hats
        ]
        recorded = yield Record([(ids[hat], payload) for hat, payload in zip(todo, drawn, strict=True)])
        for hat, payload in zip(todo, recorded, strict=True):
            payloads[hat] = payload
    published = [
        (i, cell, payload) for i, cell, payload in zip(ids, cells, payloads, strict=True) if payload is not None
    ]
    mark = (yield RaiseMark(_witness(published))) if published else None
    yield Publish(published, mark)
    yield Published(ids)
    return published


def _witness(published: Payloads) -> str:
    """The record that tells this ledger from any other: the longest one has noise in it, if any of them has."""
    return max(published, key=lambda one: len(one[2]))[0]


def _unplanned(policy: Policy) -> Terms:
    return Terms(withheld="unplanned").within(policy)


def _admit_nobody(counts: SlotCounts, ids: Sequence[str], context: ReleaseContext) -> Generator[Effect, Any, None]:
    """What is recorded must have been admitted, also where nobody is."""
    if ids:
        in_period, nobody = context.calendar.slot_in_period(counts.start_ms), np.array([], dtype=np.int64)
        terms = msgspec.json.encode(_unplanned(context.policy))
        admissions = [Admission(id_, nobody, nobody, context.policy.min_plates, terms) for id_ in ids]
        yield Admit(in_period.period, context.policy.budget_nano, counts.plates, admissions)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A HAT after the verdict: which of its rows may contribute, and the plan for them if it is to be released.

    `charge_nano` is the most that one of them paid for it.
    """

    number: int
    admitted: NDArray[np.bool_]
    terms: Terms
    plan: HatPlan | None
    charge_nano: int

    @property
    def status(self) -> Status:
        if self.plan is not None:
            return "released"
        if self.terms.withheld == "few_plates":
            return "withheld_few_plates"
        return "withheld_unplanned" if self.terms.withheld == "unplanned" else "withheld_budget"


def _planned(counts: SlotCounts, hat: int, digest: bytes, plan: SlotPlan, policy: Policy) -> _Admitted:
    """A HAT of ours on what the plan says of it."""
    rows = counts.rows(hat)
    nobody = np.zeros(rows.stop - rows.start, dtype=bool)
    at = plan.find(int(counts.cells[hat]), digest)
    if at is None:
        return _Admitted(hat, nobody, _unplanned(policy), None, 0)
    terms, charged = plan.terms[at], plan.charged_rows(at)
    kept = terms.rows_kept(nobody.size)
    if terms.withheld or not kept.any():
        return _Admitted(hat, nobody, terms, None, 0)
    priced = plan.priced[at] if plan.priced is not None else None
    priced = priced or plan_hat(counts.count[rows][kept], terms, policy)
    # Charges are remembered, counts are read again: whoever paid less than its part costs by now stays out.
    paid = (charged[kept] > 0) & (charged[kept] >= priced.charges)
    admitted = nobody
    admitted[kept] = paid
    if paid.sum() < max(1, policy.min_plates):
        return _Admitted(hat, admitted, terms, None, 0)
    return _Admitted(hat, admitted, terms, plan_admitted(priced, paid, policy), int(charged[admitted].max()))


def _estimate(
    hats: Sequence[_Admitted], counts: SlotCounts, values: SlotValues, entropy: Entropy, ids: Sequence[str]
) -> dict[int, HatEstimate]:
    estimates: dict[int, HatEstimate] = {}
    for run, bits in entropy.streams([ids[hat.number] for hat in hats]):
        plans = [hat.plan for hat in hats[run] if hat.plan is not None]
        samples = [values.of_admitted(counts.rows(hat.number), hat.admitted) for hat in hats[run]]
        estimates |= zip((hat.number for hat in hats[run]), estimate_hats(plans, samples, bits), strict=True)
    return estimates


@dataclass(frozen=True, slots=True)
class _Common:
    """What all records of a slot say alike."""

    context: ReleaseContext
    fingerprint: str
    slot_start: str
    slot_end: str


def _common(counts: SlotCounts, context: ReleaseContext) -> _Common:
    iso = context.calendar.slots.iso
    times = iso(counts.start_ms), iso(counts.end_ms)
    return _Common(context, context.policy.fingerprint(), *times)


def _record(
    counts: SlotCounts, hat: _Admitted, cell: str, id_: str, estimate: HatEstimate | None, common: _Common
) -> Release:
    context, by_plate = common.context, counts.count[counts.rows(hat.number)]
    mean, variance, cdf = statistics(hat.plan, estimate, by_plate[~hat.admitted])
    used = 0 if hat.plan is None or hat.plan.mean is None else hat.plan.mean.used_samples
    return Release(
        schema=SCHEMA,
        release_id=id_,
        status=hat.status,
        hat=Hat(
            cell=cell,
            resolution=context.policy.resolution,
            center=cell_center(int(counts.cells[hat.number])),
            slot_start=common.slot_start,
            slot_end=common.slot_end,
        ),
        mean=mean,
        variance=variance,
        cdf=cdf,
        counts=Counts(int(by_plate.size), int(by_plate.sum()), int(hat.admitted.sum()), used),
        privacy=privacy_record(context.policy, hat.terms, hat.charge_nano, context.caveats),
        policy=common.fingerprint,
        software=context.software,
        trial=context.trial,
    )
