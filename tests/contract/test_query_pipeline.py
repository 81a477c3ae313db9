"""Standing queries lose nothing and repeat nothing over any store; and the checks can tell when one
forgets."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.contract.queries import CHECKS, Opening, dies_at_every_call, rival_at_every_call
from tests.contract.test_pipeline import LastWins, Unkept, in_memory, in_sqlite
from tests.failing import a_ramp, a_threshold
from udp_stream.errors import PrivacyRefused

SLOW = dies_at_every_call, rival_at_every_call


@pytest.mark.parametrize(
    ("check", "store"),
    [
        pytest.param(*check.values, store, id=f"{check.id}-{store.__name__}", marks=marks)
        for check in CHECKS
        for store in (in_memory, in_sqlite)
        for marks in [pytest.mark.long if store is in_sqlite and check.values[0] in SLOW else ()]
    ],
)
def test_the_road_of_a_query_over_a_store_that_fails(
    check: Callable[[Opening], None], store, tmp_path: Path
) -> None:
    check(store(tmp_path))


@pytest.mark.parametrize("store", [in_memory, pytest.param(in_sqlite, marks=pytest.mark.long)])
def test_savings_over_a_store_that_dies_at_every_call(store, tmp_path: Path) -> None:
    dies_at_every_call(store(tmp_path), a_ramp())


@pytest.mark.parametrize("store", [in_memory, pytest.param(in_sqlite, marks=pytest.mark.long)])
def test_a_threshold_over_a_store_that_dies_at_every_call(store, tmp_path: Path) -> None:
    dies_at_every_call(store(tmp_path), a_threshold())


@pytest.mark.parametrize(
    ("check", "broken"),
    [(rival_at_every_call, LastWins), (dies_at_every_call, Unkept), (rival_at_every_call, Unkept)],
)
def test_a_store_that_breaks_a_promise_is_found(check: Callable[[Opening], None], broken) -> None:
    with pytest.raises((AssertionError, PrivacyRefused)):
        check(lambda: lambda held=broken(): nullcontext(held))  # noqa: B008 - one ledger, opened again and again
