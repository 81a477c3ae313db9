"""The road of a slot whose city's hour is asked dies at each call of the ledger: the next run comes
to the same, and leaves nothing behind."""

import numpy as np
import pytest

from tests.failing import Died
from tests.unit.test_flow import a_context, run, slot
from udp_stream.ledger.ids import CITY_HOUR, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release import city
from udp_stream.release.charge import plan_slot, with_forecaster
from udp_stream.release.pipeline import hour_norms, record_hour
from udp_stream.testing import SeededEntropy

FLAGS = ("release.mean=forecast-clip", "release.cdf=off", "budget.epsilon=80")


@pytest.fixture(autouse=True)
def asked_early(limits):
    """Twelve plates are enough to ask, and pay what lets the answer tell."""
    limits(city, HOUR_PLATES_MIN=2, HOUR_DEVIATION_MAX=1e6, HOUR_PART=2000)


class Bits(SeededEntropy):
    """Bits for what is not recorded yet, and for nothing else."""

    def __init__(self, ledger):
        super().__init__(1)
        self.ledger = ledger

    def streams(self, release_ids):
        assert not any(self.ledger.recorded(list(release_ids)))
        return super().streams(release_ids)


def released(ledger, *given, **more):
    return run(
        ledger, with_forecaster(a_context(*FLAGS, entropy=Bits(ledger))), slot(), *given, **more
    )


def told(ledger):
    return [
        (one.release_id, one.payload, one.charged.tolist(), one.published)
        for one in ledger.entries()
    ]


def test_whoever_dies_at_any_call_leaves_the_next_run_the_same_outcome():
    whole, calls = MemoryLedger(), []
    published = released(whole, log=calls)
    first, *hats = whole.entries()
    assert kind_of(first.release_id) == CITY_HOUR and first.payload and first.published
    assert len(hats) == len(published) == 3
    for at in range(len(calls)):
        for answered in (False, True):
            ledger = MemoryLedger()
            with pytest.raises(Died):
                released(ledger, at, answered=answered)
            assert released(ledger) == published
            assert told(ledger) == told(whole), (calls[at], answered)
            assert ledger.verify() == []


def test_of_two_planners_that_have_asked_one_draws_and_the_answer_is_charged_once():
    ledger = MemoryLedger()
    counts, values = slot()
    contexts = [with_forecaster(a_context(*FLAGS, entropy=Bits(ledger))) for _ in range(2)]
    plans = [plan_slot(counts, one, ledger, True) for one in contexts]
    for context, plan in zip(contexts, plans, strict=True):
        assert plan.is_question and plan.city.charged.tolist() == plans[0].city.charged.tolist()
        norms = hour_norms(PlannedSlot(counts, plan, context.policy), values)
        record_hour(context, norms, plan, ledger)
    again = [plan_slot(counts, one, ledger, asks) for one in contexts for asks in (False, True)]
    assert not any(one.is_question for one in again)
    assert len({one.terms for one in again}) == 1
    assert [kind_of(one.release_id) for one in ledger.entries()].count(CITY_HOUR) == 1
    assert ledger.verify() == []


@pytest.mark.parametrize(("poor", "is_asked"), [(4, True), (8, False)])
def test_plates_that_cannot_pay_take_no_part_and_where_most_cannot_nobody_does(poor, is_asked):
    ledger = MemoryLedger()
    counts, _ = slot()
    context = with_forecaster(a_context(*FLAGS, entropy=Bits(ledger)))
    period = context.calendar.slot_in_period(counts.start_ms).period
    budget = context.policy.budget_nano
    spent = Admission("before", np.arange(poor), np.full(poor, budget - 10), 0, b"")
    ledger.admit(period, budget, counts.plates, [spent])
    plan = plan_slot(counts, context, ledger, True)
    assert plan.is_question == is_asked
    if is_asked:
        assert ((plan.city.weights > 0) == (counts.plate >= poor)).all()
        assert ((plan.city.charged > 0) == (counts.plate >= poor)).all()
        assert plan.city.plates == len(counts.plates) - poor
    assert ledger.balances(period, counts.plates).charged[:poor].tolist() == [budget - 10] * poor
