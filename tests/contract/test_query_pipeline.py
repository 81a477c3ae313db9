"""Standing queries lose nothing and repeat nothing over any store; and the checks can tell when one
forgets."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.contract.queries import CHECKS, Opening, dies_at_every_call, rival_at_every_call
from tests.contract.test_pipeline import LastWins, Unkept, in_memory
from tests.failing import a_ramp, a_threshold
from udp_stream.base.errors import PrivacyRefused


@pytest.mark.parametrize("check", CHECKS)
def test_the_road_of_a_query_over_a_store_that_fails(
    check: Callable[[Opening], None], tmp_path: Path
) -> None:
    check(in_memory(tmp_path))


@pytest.mark.parametrize("query", [a_ramp, a_threshold])
def test_other_queries_over_a_store_that_dies_at_every_call(query, tmp_path: Path) -> None:
    dies_at_every_call(in_memory(tmp_path), query())


@pytest.mark.parametrize(
    ("check", "broken"),
    [(rival_at_every_call, LastWins), (dies_at_every_call, Unkept), (rival_at_every_call, Unkept)],
)
def test_a_store_that_breaks_a_promise_is_found(check: Callable[[Opening], None], broken) -> None:
    with pytest.raises((AssertionError, PrivacyRefused)):
        check(lambda: lambda held=broken(): nullcontext(held))  # noqa: B008 - one ledger, opened again and again
