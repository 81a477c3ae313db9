"""The road from a closed slot to published releases, once: a generator that yields effects and is sent their results.

Order is the guarantee. What stands is looked up first: a HAT that was ever recorded is published as it stands, draws
nothing and charges nothing. The others are planned and priced from counts, *then* charged, *then* planned for the
plates that paid, *then* drawn, *then* recorded (first one wins: a draw that comes second is forgotten unseen), and only
what the ledger says stands is published. Dying between any two steps loses nothing and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.estimate import HatEstimate, estimate_hats
from udp_stream.hats import SlotGrid, cell_center, cell_name
from udp_stream.plan import HatPlan, Moment, Terms, plan_admitted, plan_hat, slot_terms
from udp_stream.policy import Policy
from udp_stream.ports import Admission, Entropy, Verdict
from udp_stream.release import SCHEMA, Counts, Hat, Release, Status, encode, privacy_record, release_id, statistics
from udp_stream.slots import SlotCounts, SlotValues


@dataclass(frozen=True, slots=True)
class Standing:
    """Ask which ids are recorded; the answer is a payload or None for each."""

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
    """Keep payloads; the answer is those that stand."""

    releases: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand payloads to their readers: (release id, cell, payload). No answer."""

    releases: Sequence[tuple[str, str, bytes]]


@dataclass(frozen=True, slots=True)
class Published:
    """Remember that these ids have reached their readers. No answer."""

    release_ids: Sequence[str]


Effect = Standing | Balances | Admit | Record | Publish | Published


class Calendar:
    """Slots and budget periods of a policy in its zone."""

    def __init__(self, policy: Policy, slots: SlotGrid, periods: SlotGrid | None) -> None:
        """`periods` is None where one budget is for a lifetime."""
        self.slots = slots
        self._policy = policy
        self._periods = periods

    def moment(self, start_ms: int) -> Moment:
        """The budget period of the slot that starts then, and the slot's place in it."""
        if self._periods is None:
            return Moment("lifetime", 0, 0)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone = (start_ms - first) // slot_ms
        return Moment(f"{self._policy.period} from {self._periods.iso(first)}", gone, (last - start_ms) // slot_ms - 1)


@dataclass(frozen=True, slots=True)
class Office:
    """What every slot of a deployment needs: its settings, calendar, bits, and the software's name for records."""

    policy: Policy
    calendar: Calendar
    entropy: Entropy
    software: str


def release_slot(
    counts: SlotCounts, values: SlotValues, office: Office
) -> Generator[Effect, Any, list[tuple[str, str, bytes]]]:
    """Release every HAT of a closed slot; returns what was published: (release id, cell, payload), by cell."""
    cells = [cell_name(int(cell)) for cell in counts.cells]
    ids = [release_id(cell, counts.start_ms, counts.end_ms) for cell in cells]
    payloads: list[bytes | None] = list((yield Standing(ids)))
    todo = [hat for hat, payload in enumerate(payloads) if payload is None]
    if todo:
        drawn = yield from _draw(counts, values, office, cells, ids, todo)
        stand = yield Record([(ids[hat], payload) for hat, payload in zip(todo, drawn, strict=True)])
        for hat, payload in zip(todo, stand, strict=True):
            payloads[hat] = payload
    published = [
        (i, cell, payload) for i, cell, payload in zip(ids, cells, payloads, strict=True) if payload is not None
    ]
    yield Publish(published)
    yield Published(ids)
    return published


def _draw(
    counts: SlotCounts, values: SlotValues, office: Office, cells: list[str], ids: list[str], todo: list[int]
) -> Generator[Effect, Any, list[bytes]]:
    """Plan, charge, then draw the HATs that do not stand yet."""
    policy, moment = office.policy, office.calendar.moment(counts.start_ms)
    balance = yield Balances(moment.period, counts.plates)
    terms = slot_terms(counts, balance, moment, policy)
    # Larger HATs first: where budgets run out, they go to the statistics that say most. Ties by cell.
    queue = sorted(todo, key=lambda hat: (-(counts.hat_rows[hat + 1] - counts.hat_rows[hat]), hat))
    asked = {hat: _priced(counts, hat, ids[hat], terms[hat], policy) for hat in queue}
    verdicts = yield from _admit(counts, moment, policy, asked)
    hats = [_admitted(counts, *verdicts[hat], policy) for hat in todo]
    estimates = _estimate([hat for hat in hats if hat.plan is not None], counts, values, office.entropy, ids)
    return [
        encode(_record(counts, hat, cells[hat.number], ids[hat.number], estimates.get(hat.number), office))
        for hat in hats
    ]


@dataclass(frozen=True, slots=True)
class _Priced:
    """A HAT before the verdict: its terms, and the plan for all of its plates that their charges come from."""

    number: int
    release_id: str
    terms: Terms
    plan: HatPlan | None

    def admission(self, counts: SlotCounts, min_plates: int) -> Admission:
        """Each plate's own charge; of a HAT that is withheld, nobody's."""
        nobody = np.array([], dtype=np.int64)
        members = nobody if self.plan is None else counts.plate[counts.rows(self.number)]
        charges = nobody if self.plan is None else self.plan.charges
        return Admission(self.release_id, members, charges, min_plates, msgspec.json.encode(self.terms))


def _priced(counts: SlotCounts, hat: int, id_: str, terms: Terms, policy: Policy) -> _Priced:
    plan = None if terms.withheld else plan_hat(counts.count[counts.rows(hat)], terms, policy)
    return _Priced(hat, id_, terms, plan)


def _admit(
    counts: SlotCounts, moment: Moment, policy: Policy, asked: dict[int, _Priced]
) -> Generator[Effect, Any, dict[int, tuple[_Priced, Verdict]]]:
    """Charge every HAT on its terms. Where the ledger remembers other terms (a retry, a race), ask on those."""
    admissions = [hat.admission(counts, policy.min_plates) for hat in asked.values()]
    verdicts = yield Admit(moment.period, policy.budget_nano, counts.plates, admissions)
    granted, again = {}, {}
    for (number, hat), verdict in zip(asked.items(), verdicts, strict=True):
        granted[number] = (hat, verdict)
        remembered = msgspec.json.decode(verdict.terms, type=Terms)
        if remembered != hat.terms:
            again[number] = _priced(counts, number, hat.release_id, remembered, policy)
    if again:
        granted |= yield from _admit(counts, moment, policy, again)
    return granted


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
        return "withheld_few_plates" if self.terms.withheld == "few_plates" else "withheld_budget"


def _admitted(counts: SlotCounts, hat: _Priced, verdict: Verdict, policy: Policy) -> _Admitted:
    if hat.plan is None:
        rows = counts.rows(hat.number)
        return _Admitted(hat.number, np.zeros(rows.stop - rows.start, dtype=bool), hat.terms, None, 0)
    # Charges are remembered, counts are read again: whoever paid less than its part costs by now stays out.
    admitted = verdict.admitted & (verdict.charged >= hat.plan.charges)
    if admitted.sum() < max(1, policy.min_plates):
        return _Admitted(hat.number, admitted, hat.terms, None, 0)
    plan = plan_admitted(hat.plan, admitted, policy)
    return _Admitted(hat.number, admitted, hat.terms, plan, int(verdict.charged[admitted].max()))


def _estimate(
    hats: Sequence[_Admitted], counts: SlotCounts, values: SlotValues, entropy: Entropy, ids: Sequence[str]
) -> dict[int, HatEstimate]:
    estimates: dict[int, HatEstimate] = {}
    for run, bits in entropy.streams([ids[hat.number] for hat in hats]):
        plans = [hat.plan for hat in hats[run] if hat.plan is not None]
        samples = [values.of_admitted(counts.rows(hat.number), hat.admitted) for hat in hats[run]]
        estimates |= zip((hat.number for hat in hats[run]), estimate_hats(plans, samples, bits), strict=True)
    return estimates


def _record(
    counts: SlotCounts, hat: _Admitted, cell: str, id_: str, estimate: HatEstimate | None, office: Office
) -> Release:
    mean, variance, cdf = statistics(hat.plan, estimate)
    rows, slots = counts.rows(hat.number), office.calendar.slots
    by_plate = counts.count[rows]
    used = 0 if hat.plan is None or hat.plan.mean is None else hat.plan.mean.used_samples
    return Release(
        schema=SCHEMA,
        release_id=id_,
        status=hat.status,
        hat=Hat(
            cell=cell,
            resolution=office.policy.resolution,
            center=cell_center(int(counts.cells[hat.number])),
            slot_start=slots.iso(counts.start_ms),
            slot_end=slots.iso(counts.end_ms),
        ),
        mean=mean,
        variance=variance,
        cdf=cdf,
        counts=Counts(int(by_plate.size), int(by_plate.sum()), int(hat.admitted.sum()), used),
        privacy=privacy_record(office.policy, hat.charge_nano),
        policy=office.policy.fingerprint(),
        software=office.software,
    )
