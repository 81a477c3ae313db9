"""The experiment with a question before each mean: it takes the real road, and with one budgets hold."""

import pytest

from benchmarks import forecast_days
from benchmarks.asked_first import Question, run
from benchmarks.forecast_days import day_of_fleet
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.trial.fleet.fleet import Fleet


@pytest.fixture(scope="module")
def day():
    return day_of_fleet("fleet", Fleet(seed=5, buses=40, hours=3.0).columns(), "hat.resolution=6", "hat.slot=1h")


def test_without_a_question_the_day_errs_as_by_the_real_road(day):
    (real,) = forecast_days.run([day], 3)
    found = run(day, 3, None, None, ())
    assert found.error == day.over_constant(real.value) and found.measured == real.measured.sum() > 5
    assert found.yes == found.to_questions == 0


@pytest.mark.parametrize("accounting", ["pure", "approximate"])
def test_a_question_is_charged_within_the_same_budget_and_a_yes_leaves_the_mean_out(day, accounting, monkeypatch):
    ledgers = []

    class Kept(MemoryLedger):
        def __init__(self):
            super().__init__()
            ledgers.append(self)

    monkeypatch.setattr("benchmarks.asked_first.MemoryLedger", Kept)
    flag = f"budget.accounting={accounting}"
    without, asked = (run(day, 3, None, one, (flag,)) for one in (None, Question.of("asked:8,0.9,0.2,4")))
    assert asked.yes > 0 and asked.measured < without.measured and 0.05 < asked.to_questions < 1
    before, after = (list(ledger.entries()) for ledger in ledgers)
    questions = [entry for entry in after if entry.release_id.startswith("question:")]
    assert questions and not any(entry.release_id.startswith("question:") for entry in before)
    spent = {}
    for entry in after:
        for plate, charged in zip(entry.plates, entry.charged.tolist(), strict=True):
            spent[plate] = spent.get(plate, 0) + charged
    assert max(spent.values()) <= after[0].budget == before[0].budget


def test_a_question_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"expected KIND:NUMBER,\.\.\. with a kind of asked"):
        Question.of("asked:8,0.3")
    assert Question.of("oracle:2") == ("oracle", (2.0,)) and Question.of("free-learnt:8,0.3,4").learnt_kmh == 4
