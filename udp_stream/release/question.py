"""Ask before a release whether a HAT has moved: a cheap private question, and its statistics only if they have.

The question: do at least a share q of the HAT's plates have a mean speed farther than t from what is forecast of them?
It is the paper's threshold query in the central model (*Adaptive Privacy Budgeting*, Appendix C, Algorithm 9), by
private iterative elimination: one noisy count a round, until it is surely on one side (`queries/threshold.py`). A
plate's speeds move the count by one at most, whatever is forecast.

1. The planner charges each plate for the first round, if it has enough left for *all* rounds and for the statistics
   (`first_admissions`). What that would take is kept for it: other HATs of the slot cannot have it. So it does not
   matter in which order, or on which shards, questions are answered.
2. The worker that draws the HAT asks round by round: charge, draw, record (`ask_first`). The count is of the plates
   that paid.
3. Moved: its plates are charged for the statistics, and these are drawn. Else the HAT is withheld as uninformative, and
   its plates keep the price for later slots. The answer is part of the terms that the ledger remembers.
4. All of it is charged to one account, that of the first round. If the settings name another one by now (other
   accounting, another period, zone or budget), the question ends without an answer, and the HAT is withheld: what its
   noise costs in one account says nothing in the other.

Off unless it is asked for: on the recorded days it does not lower the error (`docs/mechanisms/elimination.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from msgspec.structs import replace as replaced
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Bits, Ledger
from udp_stream.lifecycle import HatState
from udp_stream.mechanisms.noise import Cost
from udp_stream.planning.hat_plan import plan_hat
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import Question, Terms
from udp_stream.queries.elimination import Round
from udp_stream.queries.splits import Split
from udp_stream.queries.threshold import Threshold, holder
from udp_stream.release.context import ReleaseContext
from udp_stream.release.decide import terms_from, with_charges
from udp_stream.release.once import charge_once, draw_once
from udp_stream.release.outcome import HatOutcome
from udp_stream.release.record import question_id
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

Integers = NDArray[np.int64]

BETA = 0.25
"""How often an answer may be wrong: that costs some error, and no privacy, so it need not be sure."""

_HOLDER = np.zeros(1, np.int64)
"""The one holder of all plates, as elimination has it."""


def first_admissions(hats: Sequence[HatOutcome], counts: SlotCounts, policy: Policy) -> list[Admission]:
    """What is asked of the ledger for each HAT, in this order: the charge of its statistics, or of its first question.

    >>> from udp_stream.release.outcome import hats_of
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), policy = two_hats(), a_context().policy
    >>> [one.release_id for one in first_admissions(hats_of(counts), counts, policy)]  # nothing is planned yet
    ['8742d98b6ffffff-1641009600-3600', '8742d9d4cffffff-1641009600-3600']
    """
    admissions = [hat.admission(counts, policy.min_plates) for hat in hats]
    if not any(hat.terms.asks_first for hat in hats):
        return admissions
    kept = np.zeros(len(counts.plates), np.int64)
    return [_first_admission(hat, one, policy, kept) for hat, one in zip(hats, admissions, strict=True)]


def _first_admission(hat: HatOutcome, one: Admission, policy: Policy, kept: Integers) -> Admission:
    """The HAT's admission, within what is not kept; what its question may lead to is then kept, too."""
    limits, question = _limit(hat.terms, policy) - kept[one.members], hat.terms.question
    if question is None or not hat.terms.asks_first or hat.plan is None:
        return replace(one, allowances=np.maximum(limits, 0))
    later = hat.plan.charges + question.cost_nano - _parts(question)[0]
    kept[one.members] += later
    return replace(as_question(one, hat.terms), allowances=np.maximum(limits - later, 0))


def as_question(one: Admission, terms: Terms) -> Admission:
    """The admission of a HAT's plates to its statistics as the one to its question's first round, if it asks first.

    >>> terms = Terms(question=Question(far=4096, share=0.3, cost_nano=10**8, rounds=4))
    >>> hat = Admission("87608c4d2ffffff-3600-3600", np.array([0, 1]), np.array([7, 9]), 2, b"")
    >>> asked = as_question(hat, terms)
    >>> asked.release_id, asked.charges.tolist()
    ('question:1:87608c4d2ffffff-3600-3600', [25000000, 25000000])
    """
    question = terms.question
    if question is None or not terms.asks_first or not one.members.size:
        return one
    charges = np.full(one.members.size, _parts(question)[0])
    return replace(one, release_id=question_id(1, one.release_id), charges=charges)


def _parts(question: Question) -> list[int]:
    """What each round costs a plate, nano-units."""
    return Split.even(question.rounds).parts(question.cost_nano)


def _limit(terms: Terms, policy: Policy) -> int:
    """The most that a plate may have been charged once it is charged for these statistics."""
    return terms.allowance_nano or policy.budget_nano


def far_from_forecast(samples: Integers, by_plate: Integers, forecasts: Integers, far: int) -> int:
    """How many plates have a mean farther than `far` from their forecasts; speeds in quanta, plate by plate.

    >>> far_from_forecast(np.array([10, 30, 50]), by_plate=np.array([2, 1]), forecasts=np.array([15, 40]), far=5)
    1
    """
    sums = np.add.reduceat(samples, np.append(0, np.cumsum(by_plate)[:-1]))
    # Multiplied, where means would divide: whole numbers are exact.
    return int((np.abs(sums - forecasts * by_plate) > far * by_plate).sum())


class _Asking:
    """One HAT's question, and how far its rounds have come, which follows from what the ledger holds."""

    def __init__(self, hat: HatOutcome, question: Question, counts: SlotCounts, values: SlotValues) -> None:
        self.hat, self.question = hat, question
        taking, by_plate = hat.charged > 0, counts.count[hat.rows]
        self._members = counts.plate[hat.rows][taking]
        (around,) = (one.around for one in hat.terms.statistics if one.around is not None)
        forecasts = around.among(hat.terms.of_kept(hat.charged) > 0).plates_quanta
        samples = values.of_admitted(hat.rows, taking)
        self._far = holder(far_from_forecast(samples, by_plate[taking], forecasts, question.far))
        self._query = Threshold(question.share, self._members.size, BETA)
        cost = Cost(hat.terms.measure, question.cost_nano)
        self._pie = self._query.elimination(cost, Split.even(question.rounds))
        self._state = self._pie.begin()
        self._found: list[tuple[int, int]] = []
        self._charged_nano = _parts(question)[0]
        self._is_over = False

    @property
    def goes_on(self) -> bool:
        """Whether there is another round."""
        return not self._is_over and self._pie.due(self._state) is not None

    @property
    def round_id(self) -> str:
        """Of the next round."""
        return question_id(len(self._found) + 1, self.hat.release_id)

    @property
    def round_ids(self) -> list[str]:
        """Of those that were drawn."""
        return [question_id(number + 1, self.hat.release_id) for number in range(len(self._found))]

    def admission(self, written: bytes | None = None) -> Admission:
        """To the next round, of all who take part or of none: a count of fewer plates would be another one."""
        charges = np.full(self._members.size, _parts(self.question)[len(self._found)])
        terms = msgspec.json.encode(self.hat.terms) if written is None else written
        return Admission(self.round_id, self._members, charges, self._members.size, terms)

    def charged(self, charged: Integers) -> None:
        """What they were charged for it: nothing, if one of them has not enough left; then the rounds end."""
        self._is_over = not charged.all()
        self._charged_nano += int(charged.max())

    def drawn(self, bits: Bits) -> bytes:
        """The next round's record, with fresh noise."""
        found = self._pie.settled(self._state, self._pie.draw(self._state, _HOLDER, self._far, bits))
        return msgspec.json.encode((int(found.values[0, 0]), int(_decided(found))))

    def advance(self, payload: bytes) -> None:
        """Go on from the round's record as the ledger holds it."""
        try:
            value, decided = msgspec.json.decode(payload, type=tuple[int, int])
        except msgspec.DecodeError as error:
            raise PrivacyRefused(
                f"{self.round_id}: expected a round's record in the ledger, got other bytes"
            ) from error
        found = Round(_HOLDER, np.array([[value]]), np.array([decided], np.int8))
        self._state = self._pie.advance(self._state, found)
        self._found.append((value, decided))

    def answered(self) -> Terms:
        """The HAT's terms with the answer; withheld if too few plates are far from their forecasts."""
        is_alike = self._query.answer(self._pie, self._state).yes
        question = replaced(self.question, found=tuple(self._found), charged_nano=self._charged_nano)
        withheld = "uninformative" if is_alike else self.hat.terms.withheld
        return replaced(self.hat.terms, question=question, withheld=withheld)


def _decided(found: Round) -> int:
    if found.decided is None:
        raise ValueError("expected a round with its decision")
    return int(found.decided[0])


def ask_first(
    hats: Sequence[HatOutcome], counts: SlotCounts, values: SlotValues, context: ReleaseContext, ledger: Ledger
) -> list[HatOutcome]:
    """The HATs with their questions answered: those that moved charged for their statistics, the others withheld.

    HATs without a question are as they were. PrivacyRefused for a round's record that this version did not write.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.outcome import hats_of
    >>> from udp_stream.testing import a_context, two_hats
    >>> counts, values = two_hats()
    >>> hats = ask_first(hats_of(counts), counts, values, a_context(), MemoryLedger())  # no HAT has a question
    >>> [hat.state.value for hat in hats]
    ['new', 'new']
    """
    if not any(hat.state is HatState.ASKED for hat in hats):
        return list(hats)
    context.before_charge()
    asked = [hat for hat in hats if hat.state is HatState.ASKED and hat.plan is not None]
    account = context.calendar.slot_in_period(counts.start_ms).period, context.policy.budget_nano
    left = [hat for hat in asked if _account(hat.terms) != account]
    clamped = values.clamped(context.policy.max_speed)
    asking = [
        _Asking(hat, hat.terms.question, counts, clamped)
        for hat in asked
        if hat.terms.question is not None and _account(hat.terms) == account
    ]
    _all_rounds(asking, counts, context, ledger)
    answered = {one.hat.number: one.answered() for one in asking} | {hat.number: _left(hat.terms) for hat in left}
    rounds = [id_ for one in asking for id_ in one.round_ids] + [id_ for hat in left for id_ in _every_round(hat)]
    ledger.published(rounds)  # no reader waits for them
    return _charged(hats, answered, counts, context, ledger)


def _account(terms: Terms) -> tuple[str, int]:
    """Whose balances, and up to what, have paid for the question's first round."""
    return "" if terms.question is None else terms.question.account, terms.budget_nano


def _left(terms: Terms) -> Terms:
    """The terms of a HAT whose question began in another account: without an answer, at most all of it was charged."""
    question = terms.question and replaced(terms.question, charged_nano=terms.question.cost_nano)
    return replaced(terms, question=question, withheld="budget")


def _every_round(hat: HatOutcome) -> list[str]:
    rounds = 0 if hat.terms.question is None else hat.terms.question.rounds
    return [question_id(number + 1, hat.release_id) for number in range(rounds)]


def _all_rounds(asking: Sequence[_Asking], counts: SlotCounts, context: ReleaseContext, ledger: Ledger) -> None:
    """Round by round, all HATs beside each other: charge, draw, record. The first was charged with the slot's plan."""
    going = _going(asking)
    while going:
        for one, payload in zip(going, _drawn(going, context, ledger), strict=True):
            one.advance(payload)
        going = _charged_for_next(_going(going), counts, context, ledger)


def _going(asking: Sequence[_Asking]) -> list[_Asking]:
    return [one for one in asking if one.goes_on]


def _charged_for_next(
    going: Sequence[_Asking], counts: SlotCounts, context: ReleaseContext, ledger: Ledger
) -> list[_Asking]:
    """Those of which everybody was charged for the next round."""
    period, budget = context.calendar.slot_in_period(counts.start_ms).period, context.policy.budget_nano

    def on_terms(i: int, remembered: bytes) -> Admission:
        return going[i].admission(remembered)

    found = charge_once(ledger, period, budget, counts.plates, [one.admission() for one in going], on_terms)
    for one, of_round in zip(going, found, strict=True):
        one.charged(of_round.charged)
    return _going(going)


def _drawn(asking: Sequence[_Asking], context: ReleaseContext, ledger: Ledger) -> tuple[bytes, ...]:
    """The record of each one's next round, as the ledger holds it."""
    ids = [one.round_id for one in asking]

    def draw(todo: Sequence[int]) -> list[bytes]:
        runs = context.entropy.streams([ids[i] for i in todo])
        return [asking[i].drawn(bits) for run, bits in runs for i in todo[run]]

    return draw_once(ledger, ids, draw).payloads


def _charged(
    hats: Sequence[HatOutcome],
    answered: Mapping[int, Terms],
    counts: SlotCounts,
    context: ReleaseContext,
    ledger: Ledger,
) -> list[HatOutcome]:
    """Charge those that moved. The ledger remembers the answer of each: the first one stands."""
    policy, asked = context.policy, [hat for hat in hats if hat.state is HatState.ASKED]
    took = {hat.number: hat.charged for hat in asked}
    asked = [hat.answered(answered.get(hat.number, hat.terms), hat.plan) for hat in asked]

    def admission(hat: HatOutcome, written: bytes | None = None) -> Admission:
        one = hat.admission(counts, policy.min_plates, written)
        # A limit of 0 keeps out those who did not pay for the question: nothing was kept for them.
        limits = np.where(hat.terms.of_kept(took[hat.number]) > 0, _limit(hat.terms, policy), 0)
        return replace(one, allowances=limits) if one.members.size else one

    def on_terms(i: int, remembered: bytes) -> Admission:
        terms, hat = terms_from(remembered, asked[i].release_id), asked[i]
        offered = terms.of_kept(counts.count[hat.rows])
        is_open = offered.size and not terms.withheld and not terms.asks_first
        asked[i] = hat.answered(terms, plan_hat(offered, terms, policy) if is_open else None)
        return admission(asked[i], remembered)

    period = context.calendar.slot_in_period(counts.start_ms).period
    admissions = [admission(hat) for hat in asked]
    found = charge_once(ledger, period, policy.budget_nano, counts.plates, admissions, on_terms)
    done = {hat.number: _with_charges(hat, counts, one.charged, policy) for hat, one in zip(asked, found, strict=True)}
    return [done.get(hat.number, hat) for hat in hats]


def _with_charges(hat: HatOutcome, counts: SlotCounts, charged: Integers, policy: Policy) -> HatOutcome:
    rows = hat.charged if hat.plan is None else hat.terms.to_rows(charged, hat.charged.size)
    return with_charges(hat, counts, hat.terms, rows, hat.plan, policy)
