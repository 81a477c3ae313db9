"""Every ledger answers as the model does."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract import earlier_ledger
from tests.contract.dictionary_ledger import DictionaryLedger
from tests.contract.machine import LastingMachine, RivalledMachine, Watched
from tests.forms import soaked_rows
from udp_stream.ledger.port import Verdict
from udp_stream.ledgers.keys import adopt, known_ledger
from udp_stream.ledgers.sqlite import SqliteLedger, open_ledger_file, open_sqlite_ledger


class WatchedDictionaries(Watched, DictionaryLedger):
    pass


class WatchedFile(Watched, SqliteLedger):
    pass


class InDictionaries(RivalledMachine):
    kind: Any = WatchedDictionaries

    def __init__(self) -> None:
        super().__init__()
        self.held = self.kind()

    def opened(self) -> Any:
        return self.held


class InSqlite(LastingMachine):
    def begin(self, older: int) -> None:
        self.place = self.here / "ledger"
        if older:
            earlier_ledger.put_in_sqlite(self.place)
            self.learn_older()
        with open_sqlite_ledger(self.place) as ledger:
            adopt(ledger, self.here / "id", self.place, ledger.meta()["ledger_id"])

    def opened(self) -> Any:
        id_file = self.here / "id"
        return WatchedFile(
            self.place, *open_ledger_file(self.place, known_ledger(id_file)), id_file
        )

    def copy(self) -> bytes:
        self.close()
        copy = self.place.read_bytes()
        self.reopen()
        return copy

    def put(self, copy: bytes) -> None:
        self.close()
        self.wipe(another=False)
        self.place.write_bytes(copy)
        self.reopen()

    def wipe(self, another: bool) -> None:
        for file in self.here.glob("ledger*"):
            file.unlink()
        if another:
            open_sqlite_ledger(self.place).close()

    def is_there(self) -> bool:
        return self.place.exists()

    def refused(self) -> list[Any]:
        return [lambda: self.ledger.mark("first")]


def run(machine: Any, examples: int, **more: Any) -> None:
    bounds = settings(max_examples=examples, stateful_step_count=25, deadline=None, **more)
    run_state_machine_as_test(machine, settings=bounds)


@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (InDictionaries, 40), (InSqlite, 15), *soaked_rows([(InDictionaries, 3000), (InSqlite, 500)])
    ],
)  # fmt: skip
def test_whatever_is_asked_in_whatever_order_a_ledger_answers_as_the_model(
    machine: Any, examples: int
) -> None:
    run(machine, examples)


class LastTermsWin(WatchedDictionaries):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        verdicts = super().admit(period, budget, plates, admissions)
        return [
            Verdict(one.charged, asked.terms)
            for one, asked in zip(verdicts, admissions, strict=True)
        ]


class OneTooMany(WatchedDictionaries):
    def admit(self, period, budget, *asked):  # type: ignore[no-untyped-def]
        return super().admit(period, budget + 1, *asked)


class HalvesOthers(WatchedDictionaries):
    """Charges a window for half of what was charged in other spans."""

    def _elsewhere(self, period, plates):  # type: ignore[no-untyped-def]
        most, version = super()._elsewhere(period, plates)
        return most // 2, version


class ChargesWithoutAVersion(WatchedDictionaries):
    """Does not notice what others charge to spans of the same window meanwhile."""

    def _commit(self, change):  # type: ignore[no-untyped-def]
        return super()._commit(change._replace(version=None))


class RecordsHalfACall(WatchedDictionaries):
    def record(self, releases):  # type: ignore[no-untyped-def]
        return [super(RecordsHalfACall, self).record([one])[0] for one in releases]


class ForgetsClosedTimes(WatchedDictionaries):
    def close_before(self, end_s):  # type: ignore[no-untyped-def]
        self._meta["archived"] = str(end_s)
        return end_s


@pytest.mark.parametrize(
    "broken",
    [LastTermsWin, OneTooMany, HalvesOthers, ChargesWithoutAVersion, RecordsHalfACall, ForgetsClosedTimes],
)  # fmt: skip
def test_a_ledger_that_breaks_a_promise_is_found(broken: Any) -> None:
    machine = type("Broken", (InDictionaries,), {"kind": broken})
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(machine, 300, phases=[Phase.generate], database=None, report_multiple_bugs=False)
