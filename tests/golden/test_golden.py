"""What is released is byte for byte what it was: no change of rooms, names or seams may change an output."""

from collections import Counter
from pathlib import Path

import pytest

from tests.forms import long_but
from tests.golden.outputs import BUDGETS, CONFIGURATIONS, known, known_queries, of_embedded, of_queries

SHORT = {
    *("auto, best-fit", "levy, wrap-around", "optimal, best-fit", "all statistics", "automatic epsilons that run out"),
    *("uniform accounting", "suppression", "around forecasts", "counts kept back", "as on Kafka, in rho"),
    "the whole city asked",
}


@pytest.mark.parametrize("name", long_but(SHORT, CONFIGURATIONS))
def test_seeded_outputs_are_what_they_were(name: str, tmp_path: Path) -> None:
    assert of_embedded(tmp_path, tmp_path / "ledger", name) == known()[name]


@pytest.mark.parametrize("name", long_but(["rho"], BUDGETS))
def test_seeded_answers_are_what_they_were(name: str, tmp_path: Path) -> None:
    assert of_queries(tmp_path, name) == known_queries()[name]


def test_every_status_that_a_run_can_have_is_among_them() -> None:
    """`withheld_unplanned` takes a log that was damaged: `test_flow.py`."""
    statuses = Counter(status for one in known().values() for status in one)
    assert statuses.keys() == {"digest", "released", "withheld_budget", "withheld_few_plates", "withheld_uninformative"}
    assert min(statuses.values()) >= 2
