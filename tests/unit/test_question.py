"""A question before a release: who is charged when, what is kept for it, and what becomes of an answer."""

import itertools
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.unit.test_flow import a_context, run, slot
from udp_stream.adapters.ledgers.policy_keys import note_policy
from udp_stream.adapters.ledgers.statement import statement
from udp_stream.adapters.ledgers.which_ledger import ledger_sentence
from udp_stream.adapters.settings import load
from udp_stream.errors import ConfigError, PrivacyRefused
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Admission
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import with_forecaster
from udp_stream.release.draw import record_slot
from udp_stream.release.record import QUESTION, decode, kind_of
from udp_stream.testing import Died, DyingLedger, RivalledLedger

AROUND = "release.mean=forecast-clip", "release.mean_epsilon=0.5", "release.cdf_epsilon=0"
ASKED = (*AROUND, "release.ask_first=0.4", "release.ask_share=0.5", "release.ask_far_kmh=14", "release.ask_rounds=3")
MOVED, ALIKE = ("release.ask_share=0.001",), ("release.ask_share=0.999", "release.ask_far_kmh=900")
"""So that the answer is nearly always yes, or no."""


def asking(*flags, seed=1):
    return with_forecaster(a_context(*ASKED, *flags, seed=seed))


def paid(ledger, of=lambda _: True):
    """What each plate paid in all."""
    found = Counter()
    for entry in ledger.entries():
        if of(entry.release_id):
            found.update(dict(zip(entry.plates, entry.charged.tolist(), strict=True)))
    return {plate: nano for plate, nano in found.items() if nano}


def for_questions(id_):
    return kind_of(id_) == QUESTION


def test_what_has_not_moved_is_withheld_and_its_plates_keep_the_price():
    ledger = MemoryLedger()
    records = [decode(payload) for _, payload in run(ledger, asking(*ALIKE), slot())]
    asked = [one for one in records if one.question is not None]
    assert [one.status for one in asked] == 2 * ["withheld_uninformative"]
    assert not any(one.question.moved for one in asked)
    for one in asked:
        assert one.mean is None and one.counts.admitted_plates == 0 and one.forecast.measured_kmh is None
        assert one.question.epsilon == one.privacy.epsilon and 0 < one.privacy.epsilon <= 0.2
    assert paid(ledger) == paid(ledger, for_questions) != {}


def test_what_has_moved_is_released_and_says_what_both_cost():
    ledger, without = MemoryLedger(), MemoryLedger()
    records = [decode(payload) for _, payload in run(ledger, asking(*MOVED), slot())]
    run(without, with_forecaster(a_context(*AROUND)), slot())
    asked = [one for one in records if one.question is not None]
    assert [(one.status, one.question.moved) for one in asked] == 2 * [("released", True)]
    for one in asked:
        assert one.privacy.epsilon == pytest.approx(0.5 + one.question.epsilon)
    assert paid(ledger, lambda id_: kind_of(id_) == "hat") == paid(without)
    assert list(ledger.unpublished()) == []  # rounds wait for no reader


def test_a_retry_at_another_price_asks_the_ledger_for_the_same_first_round_and_charges_nothing_more():
    ledger, (counts, _) = MemoryLedger(), slot()
    first = plan_slot(counts, asking(), ledger)
    before, charged = [entry.release_id for entry in ledger.entries()], paid(ledger)
    again = plan_slot(counts, asking("release.ask_first=0.38", seed=2), ledger)
    assert charged and paid(ledger) == charged == paid(ledger, for_questions)
    assert [entry.release_id for entry in ledger.entries()] == before
    assert (again.terms, again.charged.tolist()) == (first.terms, first.charged.tolist())


def test_a_clear_answer_costs_one_round_and_a_close_one_all():
    clear, close = MemoryLedger(), MemoryLedger()
    run(clear, asking(*ALIKE, "release.ask_first=1", "budget.epsilon=1000", "release.mean_epsilon=50"), slot())
    run(close, asking("release.ask_first=0.01"), slot())
    rounds = [Counter(entry.release_id.split(":")[2] for entry in ledger.entries() if for_questions(entry.release_id))
              for ledger in (clear, close)]  # fmt: skip
    assert set(rounds[0].values()) == {1} and set(rounds[1].values()) == {3}


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_asked_can_pay_for_all_rounds_and_for_the_release_in_whatever_order(seed):
    """Budgets for a HAT and a half: what a question may lead to is kept, and other HATs of the slot cannot have it."""
    counts, values = slot(seed, plates=14, pings=500)
    flags = *MOVED, "budget.epsilon=1.05", "release.ask_first=0.3"
    parts = list(itertools.permutations(range(counts.cells.size)))
    charged = []
    for order in (parts[0], parts[-1], parts[2]):
        ledger, context = MemoryLedger(), asking(*flags)
        plan = plan_slot(counts, context, ledger)
        takes_part = {entry.release_id.split(":")[2]: (entry.charged > 0).sum() for entry in ledger.entries()
                      if for_questions(entry.release_id)}  # fmt: skip
        for hat in order:
            cells = np.arange(counts.cells.size) == hat
            recorded = record_slot(*counts_of(counts, values, hat), plan.for_hats(cells), context, ledger)
            for id_, payload in recorded.payloads.items():
                record = decode(payload)
                assert record.question is None or record.counts.admitted_plates == takes_part[id_]
        charged.append(paid(ledger))
        assert max(paid(ledger).values()) <= 1.05e9
    assert charged[0] == charged[1] == charged[2]
    assert len(takes_part) == 2 and len(set(takes_part.values()) | {14, 13}) > 2  # somebody could not pay for both


def counts_of(counts, values, hat):
    """One HAT of a slot."""
    rows = counts.rows(hat)
    starts = values.starts[rows.start : rows.stop + 1]
    one = replace(
        counts, cells=counts.cells[hat : hat + 1], hat_rows=np.array([0, rows.stop - rows.start]),
        plate=counts.plate[rows], count=counts.count[rows],
    )  # fmt: skip
    return one, replace(values, speed=values.speed[starts[0] : starts[-1]], starts=starts - starts[0])


def test_a_round_that_somebody_cannot_pay_for_any_more_is_charged_to_nobody_and_ends_the_question():
    """Another program has charged a plate meanwhile: no budget is exceeded, and the answer is of earlier rounds."""
    context, (counts, values), ledger = asking("release.ask_first=0.9", "budget.epsilon=1.5"), slot(), MemoryLedger()
    period, ids = context.calendar.slot_in_period(counts.start_ms).period, []

    def rival():
        left = 1_500_000_000 - int(ledger.balances(period, counts.plates).charged[0])
        ledger.admit(period, 1_500_000_000, counts.plates, [Admission("other", *np.array([[0], [left]]), 0, b"")])

    plan = plan_slot(counts, context, ledger)
    watched = RivalledLedger(ledger, 3, rival)  # recorded, recorded, record of the first round, admit to the second
    recorded = record_slot(counts, values, plan, context, watched)
    records = [decode(payload) for payload in recorded.payloads.values()]
    (first,) = (one.question for one in records if one.question is not None and one.question.rounds == 1)
    assert first.epsilon == pytest.approx(0.15)
    for entry in ledger.entries():
        if entry.release_id.startswith("question:2:"):
            assert (entry.charged > 0).all() or not entry.charged.any()
            assert entry.charged.any() == (entry.payload is not None)
        ids.append(entry.release_id)
    assert "other" in ids and max(paid(ledger).values()) == 1_500_000_000


def test_where_nobody_can_pay_nothing_is_asked():
    records = [decode(payload) for _, payload in run(MemoryLedger(), asking("budget.epsilon=0.6"), slot())]
    assert {one.status for one in records} <= {"withheld_budget", "withheld_few_plates"}
    assert all(one.question is None and one.privacy.epsilon == 0 for one in records)


def test_a_round_in_the_ledger_that_is_none_is_refused_by_its_id():
    context, (counts, values), ledger = asking(), slot(), MemoryLedger()
    plan = plan_slot(counts, context, ledger)
    (first, *_) = (entry.release_id for entry in ledger.entries() if for_questions(entry.release_id))
    ledger.record([(first, b"speeds")])
    with pytest.raises(PrivacyRefused, match=f"^{first}: expected a round's record in the ledger, got other bytes"):
        record_slot(counts, values, plan, context, ledger)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("release.mean=optimal",),
            r"release.ask_first: expected 0 where no mean is taken around a forecast, got 0\.1",
        ),
        (("budget.accounting=approximate", "release.clip=ball"), 'release.clip: expected "auto" or "box" where'),
        (
            ("release.ask_first=1e-8",),
            r"release.ask_first: expected more: each of release.ask_rounds \(4\) has to cost",
        ),
        (("release.ask_first=1.5",), r"release.ask_first: expected a .*1"),
        (("release.ask_share=1",), r"release.ask_share: expected a .*1"),
        (("release.ask_rounds=0",), r"release.ask_rounds: expected a .*1"),
        (("release.ask_far_kmh=0",), r"release.ask_far_kmh: expected a .*0"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name_and_rule(flags, said):
    with pytest.raises(ConfigError, match=said):
        load(None, ("release.ask_first=0.1", *flags), {})


def test_in_rho_a_plate_is_clipped_hat_by_hat_where_questions_come_first():
    """Who shares a clip with whom would be known only behind the answers."""
    shared, asked = (load(None, ("budget.accounting=approximate", *more), {}).policy
                     for more in ((), ("release.ask_first=0.1",)))  # fmt: skip
    assert shared.in_balls and not asked.in_balls
    ledger = MemoryLedger()
    records = [decode(one) for _, one in run(ledger, asking(*MOVED, "budget.accounting=approximate"), slot())]
    asked = [one for one in records if one.question]
    assert asked and all(one.privacy.holds_for == "record" and one.privacy.rho > 0 for one in asked)


def test_the_statement_and_the_ledgers_sentence_count_hats_and_not_questions():
    settings, ledger = load(None, ("hat.slot=1h", *ASKED), {}), MemoryLedger()
    run(ledger, asking(*MOVED), slot())
    text = msgspec.json.encode(statement(settings, ledger)).decode()
    stated = statement(settings, ledger)["privacy"]["privacy_loss"]
    assert QUESTION not in text and stated
    note_policy(ledger, settings.policy)
    said = ledger_sentence("city.ledger", ledger.meta(), ledger.progress(), settings.calendar.slots)
    assert said.startswith(
        f"ledger city.ledger: {ledger.progress().admitted:,} HATs and rounds of questions, the first"
    )


PURE, IN_RHO, OTHER_BUDGET = "budget.accounting=pure", "budget.accounting=approximate", "budget.epsilon=12"


@pytest.mark.parametrize(
    ("before", "after"),
    [(PURE, IN_RHO), (IN_RHO, PURE), (PURE, OTHER_BUDGET), (PURE, "budget.period=7d")],
    ids=["rho after pure", "pure after rho", "another budget", "another period"],
)
@pytest.mark.parametrize("rounds_done", [0, 1])
def test_a_question_that_began_in_another_account_ends_without_an_answer(before, after, rounds_done):
    """As on a shard, which only has the plan. One count may have been drawn by then: it was paid for where it began."""
    (counts, values), ledger = slot(), MemoryLedger()
    context = asking(*MOVED, before)
    plan = plan_slot(counts, context, ledger)
    if rounds_done:
        with pytest.raises(Died):
            record_slot(counts, values, plan, context, DyingLedger(ledger, call_of("record", context), answered=True))
    before_it = paid(ledger)
    assert before_it and len({*ledger.periods()}) == 1
    records = [
        decode(one) for one in record_slot(counts, values, plan, asking(*MOVED, after), ledger).payloads.values()
    ]
    of_asked = [one for one in records if one.status != "withheld_few_plates"]
    assert [one.status for one in of_asked] == 2 * ["withheld_budget"]
    assert all(one.mean is None and one.question is None and one.privacy.epsilon > 0 for one in of_asked)
    assert paid(ledger) == before_it and len({*ledger.periods()}) == 1
    assert {kind_of(id_) for id_, _ in ledger.unpublished()} == {"hat"}  # rounds wait for no reader
    again = record_slot(counts, values, plan, context, ledger).payloads  # the first settings find these records
    assert [decode(one) for one in again.values()] == records


def call_of(name, context, which=0):
    """The number of the first (or last) call of this name in which a slot is recorded."""
    (counts, values), ledger = slot(), MemoryLedger()
    plan, watched = plan_slot(counts, context, ledger), DyingLedger(ledger)
    record_slot(counts, values, plan, context, watched)
    return [at for at, call in enumerate(watched.calls) if call == name][which]


def test_what_was_charged_for_its_statistics_is_released_though_settings_name_another_account_by_now():
    (counts, values), ledger, whole = slot(), MemoryLedger(), MemoryLedger()
    context = asking(*MOVED)
    run(whole, asking(*MOVED), slot())
    plan = plan_slot(counts, context, ledger)
    with pytest.raises(Died):
        record_slot(counts, values, plan, context, DyingLedger(ledger, call_of("admit", context, -1), answered=True))
    records = [
        decode(one) for one in record_slot(counts, values, plan, asking(*MOVED, IN_RHO), ledger).payloads.values()
    ]
    released = [one for one in records if one.status == "released"]
    assert len(released) == 2 and all(one.privacy.accounting == "pure" for one in released)
    assert paid(ledger) == paid(whole) and len({*ledger.periods()}) == 1
