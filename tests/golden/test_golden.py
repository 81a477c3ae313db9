"""What is released and remembered is what it was: no change of rooms, names or seams may change an
output."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from tests.forms import long_but
from tests.golden.outputs import (
    BUDGETS,
    CONFIGURATIONS,
    QUERIES,
    SHOWN,
    WHOLE,
    Run,
    by_field,
    known,
    of_embedded,
    of_queries,
    told,
    told_results,
    whole,
)  # fmt: skip

SHORT = {
    *(
        "auto, best-fit",
        "levy, wrap-around",
        "optimal, best-fit",
        "all statistics",
        "automatic epsilons that run out",
    ),
    *("suppression", "around forecasts", "counts left out", "as on Kafka, in rho"),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    @cache
    def found(name: str, queries: bool = False) -> Run:
        folder = tmp_path_factory.mktemp("golden")
        return of_queries(folder, name) if queries else of_embedded(folder, folder / "ledger", name)

    return found


@pytest.mark.parametrize("name", long_but(SHORT, CONFIGURATIONS))
def test_seeded_outputs_are_what_they_were(name: str, run_of: Callable[..., Run]) -> None:
    assert told(run_of(name)) == known()[name]


@pytest.mark.parametrize("name", long_but(["rho"], BUDGETS))
def test_seeded_answers_are_what_they_were(name: str, run_of: Callable[..., Run]) -> None:
    assert told_results(run_of(name, queries=True)) == known(QUERIES)[name]


def test_whole_records_results_and_ledgers_are_what_they_were(run_of: Callable[..., Run]) -> None:
    found = whole({name: run_of(name) for name, _ in SHOWN}, {"rho": run_of("rho", queries=True)})
    assert json.dumps(found, indent=1) == json.dumps(known(WHOLE), indent=1)


def test_every_status_that_a_run_can_have_is_among_them() -> None:
    """`withheld_unplanned` takes a damaged log (`test_flow.py`), `withheld_partial` a live one
    (`test_live_run.py`), `withheld_unit` one that changes its unit (`test_unit_in_doubt.py`)."""
    statuses: Counter[str] = Counter()
    for one in known().values():
        statuses.update(one["statuses"])
    assert statuses.keys() == {
        "released",
        "withheld_budget",
        "withheld_few_plates",
        "withheld_uninformative",
    }
    assert min(statuses.values()) >= 2


def test_a_value_or_a_field_that_changes_is_named() -> None:
    records = [{"id": 1, "mean": {"kmh": 20.5}}, {"id": 2, "mean": None}]
    before = by_field(records)
    assert before.keys() == {"id", "mean.kmh"} and before["mean.kmh"] == "1 x 20.5"
    moved = by_field([{"id": 1, "mean": {"kmh": 20.6}}, {"id": 2, "mean": None}])
    assert {path for path in before if before[path] != moved[path]} == {"mean.kmh"}
    assert by_field(reversed(records))["id"] != before["id"]
    assert by_field([{"id": 1}, {"id": 2}]) == {"id": before["id"]}
