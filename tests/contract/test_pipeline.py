"""The road loses nothing and repeats nothing over any store; and the checks can tell when one
forgets."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest

from tests.contract.checks import LedgerFactory
from tests.contract.dictionary_ledger import DictionaryLedger
from tests.contract.pipeline import (
    CHECKS,
    MORE_CHECKS,
    Opening,
    dies_as_it_charges_or_tells,
    dies_at_every_call,
    dies_at_every_call_in_rho,
    dies_at_every_call_of_a_city,
    rival_at_every_call,
    rival_at_every_call_in_rho,
    rival_at_every_call_of_a_city,
)
from tests.forms import changed
from udp_stream.ledger.ids import CITY, CLIPS, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger


def in_memory(_: Path) -> Opening:
    return lambda: lambda held=MemoryLedger(): nullcontext(held)  # noqa: B008 - one ledger, opened again and again


def in_sqlite(folder: Path) -> Opening:
    numbers = count()

    def new() -> LedgerFactory:
        path = folder / f"ledger{next(numbers)}"
        return lambda: open_sqlite_ledger(path)

    return new


@pytest.mark.parametrize("store", [in_memory, in_sqlite])
@pytest.mark.parametrize("check", CHECKS)
def test_the_road_over_a_store_that_fails(
    check: Callable[[Opening], None], store, tmp_path: Path
) -> None:
    check(store(tmp_path))


@pytest.mark.parametrize("check", MORE_CHECKS)
def test_the_road_around_forecasts_over_a_store_that_fails(
    check: Callable[[Opening], None], tmp_path
) -> None:
    check(in_memory(tmp_path))


class Forgetful(DictionaryLedger):
    """Breaks promise 1: a repeat is decided anew, on the terms of the repeat."""

    def admit(self, period, budget, plates, admissions):
        for one in admissions:
            if (held := self._admissions.get(one.release_id)) is not None and held.payload is None:
                del self._admissions[one.release_id]
        return super().admit(period, budget, plates, admissions)


class LastWins(DictionaryLedger):
    def record(self, releases):
        for release_id, payload in releases:
            self._admissions[release_id].payload = payload
        return [payload for _, payload in releases]


class Unkept(DictionaryLedger):
    def record(self, releases):
        return [payload for _, payload in releases]


class KeepsNoClips(DictionaryLedger):
    """Breaks promise 1 where nobody is charged: what is remembered of the clips that plates share
    is not kept."""

    def admit(self, period, budget, plates, admissions):
        verdicts = super().admit(period, budget, plates, admissions)
        for one in admissions:
            if kind_of(one.release_id) == CLIPS:
                del self._admissions[one.release_id]
        return verdicts


class ForgetsCities(DictionaryLedger):
    """Breaks promise 1 for a city's answer alone: a repeat is charged again while they are not
    recorded."""

    def admit(self, period, budget, plates, admissions):
        for one in admissions:
            held = self._admissions.get(one.release_id)
            if kind_of(one.release_id) == CITY and held is not None and held.payload is None:
                del self._admissions[one.release_id]
        return super().admit(period, budget, plates, admissions)


class DrawsCitiesAgain(DictionaryLedger):
    """Breaks promise 3 for a city's answer alone: their record is not found, and the last one is
    kept."""

    def _read(self, asked):
        found = super()._read(asked)
        kept = {name: one for name, one in found.payloads.items() if kind_of(name) != CITY}
        return changed(found, payloads=kept)


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (dies_at_every_call, Forgetful), (dies_at_every_call, Unkept), (rival_at_every_call, Forgetful),
        (rival_at_every_call, LastWins), (dies_as_it_charges_or_tells, Forgetful),
        (dies_as_it_charges_or_tells, Unkept), (dies_at_every_call_in_rho, KeepsNoClips),
        (rival_at_every_call_in_rho, LastWins), (dies_at_every_call_of_a_city, ForgetsCities),
        (dies_at_every_call_of_a_city, DrawsCitiesAgain), (rival_at_every_call_of_a_city, DrawsCitiesAgain),
    ],
)  # fmt: skip
def test_a_store_that_breaks_a_promise_is_found(check: Callable[[Opening], None], broken) -> None:
    with pytest.raises(AssertionError):
        check(lambda: lambda held=broken(): nullcontext(held))  # noqa: B008 - one ledger, opened again and again
