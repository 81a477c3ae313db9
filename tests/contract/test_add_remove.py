"""The road of "add-remove" loses nothing, repeats nothing and overcharges nobody over any store."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.contract.add_remove import CHECKS, dies_at_every_call, rival_at_every_call
from tests.contract.pipeline import Opening
from tests.contract.test_pipeline import Forgetful, LastWins, Unkept, in_memory


@pytest.mark.parametrize("check", CHECKS)
def test_the_road_of_presence_over_a_store_that_fails(
    check: Callable[[Opening], None], tmp_path: Path
) -> None:
    check(in_memory(tmp_path))


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (dies_at_every_call, Forgetful), (dies_at_every_call, Unkept), (rival_at_every_call, Forgetful),
        (rival_at_every_call, LastWins),
    ],
)  # fmt: skip
def test_a_store_that_breaks_a_promise_to_presence_is_found(
    check: Callable[[Opening], None], broken
) -> None:
    with pytest.raises(AssertionError):
        check(lambda: lambda held=broken(): nullcontext(held))  # noqa: B008 - one ledger, opened again and again
