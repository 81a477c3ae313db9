"""No sequence of charges ends above a budget: adaptive or adversarial, from many writers, in memory
and in SQLite."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.budgets import Adversary, greedy_crowd
from tests.contract.dictionary_ledger import DictionaryLedger
from tests.contract.test_ledger import ForgetsWindows, LooksBackOnly, in_memory, in_sqlite
from udp_stream.ledgers.sqlite import open_sqlite_ledger


class InMemory(Adversary):
    writers = 4
    kind = DictionaryLedger

    def __init__(self):
        super().__init__()
        self.ledger = self.kind()

    def opened(self):
        return nullcontext(self.ledger)


class InSqlite(Adversary):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def opened(self):
        return open_sqlite_ledger(Path(self.folder.name) / "ledger")

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.folder.cleanup()


class Crowded(InSqlite):
    writers = 100


@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [
        (InMemory, 15, 15),
        (InSqlite, 3, 10),
        pytest.param(InMemory, 600, 40, marks=pytest.mark.soak),
        pytest.param(InSqlite, 20, 20, marks=pytest.mark.soak),
        pytest.param(Crowded, 4, 8, marks=pytest.mark.soak),
    ],
)
def test_no_sequence_of_charges_exceeds_a_budget_and_all_that_fits_is_charged(
    machine, examples, steps
):
    bounds = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(machine, settings=bounds)


@pytest.mark.parametrize("store", [in_memory, in_sqlite])
def test_a_hundred_greedy_writers_at_once_spend_each_budget_and_no_more(store, tmp_path):
    greedy_crowd(store(tmp_path))


class ClosesAfterRefusal(DictionaryLedger):
    """As the paper's Algorithm 1 is printed: the first HALT stays."""

    def admit(self, period, budget, plates, admissions):
        closed = getattr(self, "closed", set())
        fresh = [one for one in admissions if one.release_id not in self._admissions]
        if plates and closed.issuperset(plates):
            budget = 0
        verdicts = super().admit(period, budget, plates, admissions)
        for one in fresh:
            charged = self._admissions[one.release_id].decision.charged
            closed |= {plates[i] for i in one.members[charged == 0]}
        self.closed = closed
        return verdicts


class OneTooMany(DictionaryLedger):
    def admit(self, period, budget, *asked):
        return super().admit(period, budget + 1, *asked)


class HalvesOthers(DictionaryLedger):
    """Charges a window for half of what was charged in other spans."""

    def _elsewhere(self, period, plates):
        most, version = super()._elsewhere(period, plates)
        return most // 2, version


@pytest.mark.parametrize(
    "broken", [ClosesAfterRefusal, OneTooMany, ForgetsWindows, LooksBackOnly, HalvesOthers]
)
def test_the_adversary_finds_a_broken_ledger(broken):
    # Without crowds, whose outcome depends on the threads, and without a search for the shortest
    # example.
    machine = type("Broken", (InMemory,), {"kind": broken, "crowd": None})
    asked = settings(
        max_examples=200,
        stateful_step_count=20,
        deadline=None,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=asked)
