"""Every ledger keeps every promise, the checks can tell when one does not, and SQLite keeps them
through a kill."""

import json
import os
import random
import signal
import sqlite3
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contract import checks, earlier_ledger
from tests.contract import ledger_writer as writer
from tests.contract.checks import ALL_LEDGER_CHECKS, CheckFailed, LedgerFactory, ask
from tests.contract.dictionary_ledger import DictionaryLedger
from tests.forked import Forked
from tests.forms import long_rows
from udp_stream import files as atomic
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import Ledger, Verdict
from udp_stream.ledger.rules import Decision, windows_around
from udp_stream.ledgers import sqlite
from udp_stream.ledgers.keys import adopt
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger

Check = Callable[[LedgerFactory], None]


def in_memory(_: Path) -> LedgerFactory:
    return lambda held=MemoryLedger(): nullcontext(held)  # noqa: B008 - one ledger, opened again and again


def in_dictionaries(_: Path) -> LedgerFactory:
    return lambda held=DictionaryLedger(): nullcontext(held)  # noqa: B008 - likewise


def in_sqlite(folder: Path) -> LedgerFactory:
    return lambda: open_sqlite_ledger(folder / "ledger")


IN_ALL = [*product(ALL_LEDGER_CHECKS, (in_dictionaries, in_memory, in_sqlite))]
LONG = [
    (check, in_sqlite)
    for check in (
        checks.check_large_slots,
        checks.check_rolling_crowd,
        checks.check_concurrent_writers,
    )
]


@pytest.mark.parametrize(
    ("check", "store"),
    long_rows([one for one in IN_ALL if one not in LONG], IN_ALL),
    ids=lambda one: one.__name__,
)
def test_store_keeps_promise(
    check: Check, store: Callable[[Path], LedgerFactory], tmp_path: Path
) -> None:
    check(store(tmp_path))


@pytest.mark.parametrize("left_out", [checks.IN_CROWDS, pytest.param((), marks=pytest.mark.long)])
def test_all_checks_run_on_one_ledger(left_out: Sequence[Check], tmp_path: Path) -> None:
    """Crowds make every later check slow; `test_store_keeps_promise` has them on a ledger of their
    own."""
    for check in reversed(ALL_LEDGER_CHECKS):
        if check not in left_out:
            check(in_sqlite(tmp_path))
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        assert ledger.verify() == []


def test_every_check_is_in_the_list() -> None:
    assert {name for name in vars(checks) if name.startswith("check_")} == {
        c.__name__ for c in ALL_LEDGER_CHECKS
    }


class LastRecordWins(DictionaryLedger):
    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        for release_id, _ in releases:
            if held := self._admissions.get(release_id):
                held.payload = None
        return super().record(releases)


class RecordsWithoutAdmission(DictionaryLedger):
    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        self.admit("", 0, [], [ask(name, []) for name, _ in releases])
        return super().record(releases)


class RecordsHalfACall(DictionaryLedger):
    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        return [super(RecordsHalfACall, self).record([one])[0] for one in releases]


class RefundsOnRepeat(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        for one in admissions:
            if known := self._admissions.pop(one.release_id, None):
                for plate, amount in zip(
                    known.decision.names(), known.decision.charged.tolist(), strict=True
                ):
                    self._sums[known.period, plate] = (
                        self._sums.get((known.period, plate), 0) - amount
                    )
        return super().admit(period, budget, plates, admissions)


class ChargesTwiceOnRepeat(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        for one in admissions:
            if known := self._admissions.get(one.release_id):
                for plate, amount in zip(
                    known.decision.names(), known.decision.charged.tolist(), strict=True
                ):
                    if amount and plate in {plates[i] for i in one.members}:
                        self._sums[period, plate] = self._sums.get((period, plate), 0) + amount
                        self._charges[period, plate] = self._charges.get((period, plate), 0) + 1
        return super().admit(period, budget, plates, admissions)


class AdmitsNewMembersOnRepeat(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        for one in admissions:
            if known := self._admissions.get(one.release_id):
                asked = dict(
                    zip([plates[i] for i in one.members], one.charges.tolist(), strict=True)
                )
                charged = asked | dict(
                    zip(known.decision.names(), known.decision.charged.tolist(), strict=True)
                )
                known.decision = Decision(
                    b"".join(charged), np.array(list(charged.values())), known.decision.terms
                )
        return super().admit(period, budget, plates, admissions)


class LastTermsWin(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        verdicts = super().admit(period, budget, plates, admissions)
        return [
            Verdict(one.charged, asked.terms)
            for one, asked in zip(verdicts, admissions, strict=True)
        ]


class ChecksThenCharges(DictionaryLedger):
    def __init__(self) -> None:
        super().__init__()
        self._lock = nullcontext()  # type: ignore[assignment]

    def _settle(self, *asked):  # type: ignore[no-untyped-def]
        time.sleep(0)  # gives way
        super()._settle(*asked)


class RoundsToMicro(DictionaryLedger):
    """Compares micro-units, rounded to the nearest."""

    def admit(self, period, budget, *asked):  # type: ignore[no-untyped-def]
        return super().admit(period, (budget + 500) // 1000 * 1000 + 499, *asked)


class KeepsSingleFloats(DictionaryLedger):
    def _settle(self, period, plates, table):  # type: ignore[no-untyped-def]
        super()._settle(period, plates, table)
        for plate in plates:
            self._sums[period, plate] = int(np.float32(self._sums.get((period, plate), 0)))


class ForgetsMinAdmitted(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        return super().admit(
            period, budget, plates, [replace(one, min_admitted=0) for one in admissions]
        )


class IgnoresAllowances(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):
        return super().admit(
            period, budget, plates, [replace(one, allowances=None) for one in admissions]
        )


class ForgetsWithheld(DictionaryLedger):
    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        verdicts = super().admit(period, budget, plates, admissions)
        for one, verdict in zip(admissions, verdicts, strict=True):
            if one.members.size and not verdict.admitted.any():
                self._admissions.pop(one.release_id, None)
        return verdicts


class NewestByLastCall(DictionaryLedger):
    """What is asked for again is new again."""

    def admit(self, period, budget, plates, admissions):  # type: ignore[no-untyped-def]
        self._asked = [*getattr(self, "_asked", []), *(one.release_id for one in admissions)]
        return super().admit(period, budget, plates, admissions)

    def newest(self):  # type: ignore[no-untyped-def]
        yield from dict.fromkeys(reversed(getattr(self, "_asked", [])))


class NewestByPages(DictionaryLedger):
    """Counts pages from the newest, which moves while one reads."""

    def newest(self):  # type: ignore[no-untyped-def]
        start = 0
        while page := list(super().newest())[start : start + 100]:
            yield from page
            start += 100


class NewestOfCharged(DictionaryLedger):
    def newest(self):  # type: ignore[no-untyped-def]
        yield from (
            name for name in super().newest() if self._admissions[name].decision.charged.any()
        )


class ForgetsWindows(DictionaryLedger):
    """Breaks promise 2: a span is a budget of its own."""

    def _elsewhere(self, _, plates):  # type: ignore[no-untyped-def]
        return super()._elsewhere("", plates)


class LooksBackOnly(DictionaryLedger):
    """Breaks promise 2 for slots that are charged late: later spans are forgotten."""

    def _elsewhere(self, period, plates):  # type: ignore[no-untyped-def]
        later, self._periods = self._periods, [name for name in self._periods if name <= period]
        try:
            return super()._elsewhere(period, plates)
        finally:
            self._periods = later


class SumsAllNear(DictionaryLedger):
    """Refuses what would fit: sums spans that no window has together."""

    def _elsewhere(self, period, plates):  # type: ignore[no-untyped-def]
        _, version = super()._elsewhere(period, plates)
        others = windows_around(period, self._periods).others
        return self._balances(others, plates)[:, :, 0].sum(axis=0), version


class ForgetsClosedTimes(DictionaryLedger):
    """Breaks promise 9: a time that was closed is open again."""

    def close_before(self, end_s):  # type: ignore[no-untyped-def]
        self._meta["archived"] = str(end_s)
        return end_s


class RecordsClosedTimes(DictionaryLedger):
    """Breaks promise 9: what was charged before can still be drawn."""

    def record(self, releases):  # type: ignore[no-untyped-def]
        closed = self._meta.pop("archived", None)
        try:
            return super().record(releases)
        finally:
            self._meta |= {} if closed is None else {"archived": closed}


class DropsAnything(DictionaryLedger):
    def drop(self, period, release_ids):  # type: ignore[no-untyped-def]
        closed, self._meta["archived"] = self._meta.get("archived", ""), str(2**60)
        super().drop(period, release_ids)
        self._meta["archived"] = closed or "-9999999999"


class CountsWhatIsLeft(DictionaryLedger):
    """Breaks promise 10: a ledger that was archived looks like an older copy."""

    def drop(self, period, release_ids):  # type: ignore[no-untyped-def]
        super().drop(period, release_ids)
        self._dropped[:] = 0


class NeverPublishes(DictionaryLedger):
    def published(self, release_ids: Sequence[str]) -> None:
        pass


BROKEN: list[tuple[type[DictionaryLedger], Check]] = [
    (LastRecordWins, checks.check_first_record_stands),
    (LastRecordWins, checks.check_concurrent_writers),
    (RecordsWithoutAdmission, checks.check_record_needs_admission),
    (RecordsHalfACall, checks.check_record_needs_admission),
    (RefundsOnRepeat, checks.check_repeat_is_remembered),
    (RefundsOnRepeat, checks.check_balances_equal_entries),
    (ChargesTwiceOnRepeat, checks.check_repeat_is_remembered),
    (ChargesTwiceOnRepeat, checks.check_balances_equal_entries),
    (AdmitsNewMembersOnRepeat, checks.check_repeat_is_remembered),
    (LastTermsWin, checks.check_repeat_is_remembered),
    (ChecksThenCharges, checks.check_concurrent_writers),
    (RoundsToMicro, checks.check_never_over_budget),
    (KeepsSingleFloats, checks.check_never_over_budget),
    (IgnoresAllowances, checks.check_allowances),
    (ForgetsMinAdmitted, checks.check_min_admitted_charges_nobody),
    (ForgetsWithheld, checks.check_min_admitted_charges_nobody),
    (NewestByLastCall, checks.check_newest),
    (NewestByPages, checks.check_newest),
    (NewestOfCharged, checks.check_newest),
    (NeverPublishes, checks.check_unpublished_then_published),
    (ForgetsWindows, checks.check_rolling_table),
    (ForgetsWindows, checks.check_rolling_windows),
    (LooksBackOnly, checks.check_rolling_table),
    (LooksBackOnly, checks.check_rolling_windows),
    (ChecksThenCharges, checks.check_rolling_crowd),
    (SumsAllNear, checks.check_rolling_windows),
    (ForgetsClosedTimes, checks.check_archive),
    (RecordsClosedTimes, checks.check_archive),
    (DropsAnything, checks.check_archive),
    (CountsWhatIsLeft, checks.check_archive),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda one: one.__name__)
def test_checks_catch_a_broken_ledger(broken: type[DictionaryLedger], check: Check) -> None:
    ledger = broken()
    with pytest.raises(CheckFailed):
        check(lambda: nullcontext(ledger))


def test_a_ledger_that_forgets_on_reopening_is_caught() -> None:
    with pytest.raises(CheckFailed):
        checks.check_survives_reopen(lambda: nullcontext(DictionaryLedger()))


def test_answers_survive_kills(tmp_path: Path) -> None:
    choose = random.Random(20)
    told: dict[tuple[str, str, str], object] = {}
    for run in range(20):
        path = (
            tmp_path / f"ledger-{run // 5}"
        )  # a new file now and then, so that some kills hit its making
        for what, name, answer in _run_and_kill(
            path, f"{run}", lines=choose.choice((0, 0, 1, 2, 5, 20, 60, 150))
        ):
            assert told.setdefault((f"{path}", what, name), answer) == answer, (
                f"{what} of {name} changed"
            )
        _expect_remembered(
            path, {key[1:]: answer for key, answer in told.items() if key[0] == f"{path}"}
        )
    assert len(told) > 100


def _run_and_kill(path: Path, run: str, lines: int) -> list[list[object]]:
    reads, writes = os.pipe()
    with Path(os.devnull).open("rb") as nothing, os.fdopen(reads) as said:
        streams = [nothing.fileno(), writes, sys.__stderr__.fileno()]
        child = Forked("tests.contract.ledger_writer", [path, run], streams, path.parent)
        os.close(writes)
        seen = [said.readline() for _ in range(lines + 1)]
        child.kill()
        seen += said.readlines()
    assert child.wait() == -signal.SIGKILL, "the child ended on its own"
    return [json.loads(line) for line in seen[1:] if line.endswith("\n")]


def _expect_remembered(path: Path, told: dict[tuple[str, str], object]) -> None:
    with open_sqlite_ledger(path) as ledger:
        assert ledger.verify() == []
        unpublished = dict(ledger.unpublished())
        for (what, name), answer in told.items():
            if what == "verdict":
                (verdict,) = ledger.admit(
                    writer.PERIOD, writer.BUDGET, writer.PLATES, [writer.everybody(name)]
                )
                assert [verdict.charged.tolist(), verdict.terms.decode()] == answer
            elif what == "payload":
                assert ledger.record([(name, b"another")]) == [str(answer).encode()]
            else:
                assert name not in unpublished
        assert ledger.verify() == []


IDS, LETTERS, PERIODS = st.sampled_from("uvwxyz"), b"abcd", st.sampled_from(["mon", "tue"])
ASKED = st.tuples(
    IDS, st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 12)), st.integers(0, 3)
)


class SqliteMatchesModel(RuleBasedStateMachine):
    """Release ids, plates and budgets are few, so that repeats and exhausted budgets are many."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = open_sqlite_ledger(Path(self.folder.name) / "ledger")
        self.admitted: dict[str, tuple[str, dict[int, int], bytes]] = {}
        self.payloads: dict[str, bytes] = {}
        self.waiting: list[str] = []

    def charged(self, period: str, plate: int) -> int:
        return sum(
            charged.get(plate, 0) for when, charged, _ in self.admitted.values() if when == period
        )

    def model(
        self, period: str, budget: int, name: str, asked: dict[int, int], least: int
    ) -> tuple[list[int], bytes]:
        if name not in self.admitted:
            fitting = {p: n for p, n in asked.items() if self.charged(period, p) + n <= budget}
            terms = f"{name} {least} {len(asked)}".encode()
            self.admitted[name] = (period, fitting if len(fitting) >= least else {}, terms)
        _, charged, terms = self.admitted[name]
        return [charged.get(plate, 0) for plate in asked], terms

    @rule(period=PERIODS, budget=st.sampled_from([0, 10, 25]), asked=st.lists(ASKED, max_size=4))
    def admit(self, period: str, budget: int, asked: list[tuple[str, dict[int, int], int]]) -> None:
        plates = [bytes([letter]) for letter in LETTERS]
        admissions = [
            ask(
                name,
                list(who.values()),
                [LETTERS.index(p) for p in who],
                least,
                f"{name} {least} {len(who)}".encode(),
            )
            for name, who, least in asked
        ]
        verdicts = self.ledger.admit(period, budget, plates, admissions)
        expected = [self.model(period, budget, name, who, least) for name, who, least in asked]
        assert [(verdict.charged.tolist(), verdict.terms) for verdict in verdicts] == expected

    @rule(releases=st.lists(st.tuples(IDS, st.binary(max_size=3)), max_size=3))
    def record(self, releases: list[tuple[str, bytes]]) -> None:
        if any(name not in self.admitted for name, _ in releases):
            with pytest.raises(PrivacyRefused):
                self.ledger.record(releases)
            return
        for name, payload in releases:
            if name not in self.payloads:
                self.payloads[name] = payload
                self.waiting.append(name)
        assert self.ledger.record(releases) == [self.payloads[name] for name, _ in releases]

    @precondition(lambda self: self.waiting)
    @rule(ids=st.lists(IDS, max_size=3))
    def publish(self, ids: list[str]) -> None:
        self.ledger.published(ids)
        self.waiting = [name for name in self.waiting if name not in ids]

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = open_sqlite_ledger(self.ledger.path)

    @invariant()
    def agrees(self) -> None:
        plates = [bytes([letter]) for letter in LETTERS]
        for period in ("mon", "tue"):
            expected = [self.charged(period, letter) for letter in LETTERS]
            assert self.ledger.balances(period, plates).charged.tolist() == expected
        assert list(self.ledger.unpublished()) == [
            (name, self.payloads[name]) for name in self.waiting
        ]
        assert [entry.release_id for entry in self.ledger.entries()] == list(self.admitted)
        assert list(self.ledger.newest()) == list(reversed(self.admitted))
        assert self.ledger.verify() == []

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


TestSqliteMatchesModel = SqliteMatchesModel.TestCase
TestSqliteMatchesModel.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


@pytest.mark.long
class TestSqliteMatchesModelInMany(TestSqliteMatchesModel):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_ledger_file_is_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    with open_sqlite_ledger(tmp_path / "a ledger?") as ledger:
        assert stat.S_IMODE((tmp_path / "a ledger?").stat().st_mode) == 0o600
        ledger.admit("p", 1, [b"x"], [ask("hat", [1])])
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert [file.name for file in tmp_path.iterdir()] == ["a ledger?"]


def test_a_ledger_of_an_earlier_version_opens_and_goes_on(tmp_path: Path) -> None:
    earlier_ledger.put_in_sqlite(tmp_path / "ledger")
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        earlier_ledger.check_earlier_ledger(ledger)


def test_ledgers_opened_at_once_are_one(tmp_path: Path) -> None:
    start = threading.Barrier(16)

    def ledger_id(_: int) -> str:
        start.wait(30)
        with open_sqlite_ledger(tmp_path / "ledger", id_file=tmp_path / "id") as ledger:
            adopt(ledger, tmp_path / "id", "here")
            return ledger.meta()["ledger_id"]

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ledger_id, range(16)))) == 1
    with (
        open_sqlite_ledger(tmp_path / "other") as other,
        open_sqlite_ledger(tmp_path / "ledger") as ledger,
    ):
        assert other.meta()["ledger_id"] != ledger.meta()["ledger_id"]


def test_the_ledger_known_beside_the_key_is_the_only_one_that_opens(tmp_path: Path) -> None:
    path, other, id_file = tmp_path / "ledger", tmp_path / "other", tmp_path / "key.ledger-id"
    with open_sqlite_ledger(path) as ledger:
        first = ledger.meta()["ledger_id"]
    for _ in range(2):
        with open_sqlite_ledger(path, id_file=id_file) as ledger:
            adopt(ledger, id_file, path)
        assert id_file.read_text() == f"{first}\n"
    open_sqlite_ledger(other).close()
    with pytest.raises(
        PrivacyRefused, match=f"expected the ledger {first} at {other}, got none or another one"
    ):
        open_sqlite_ledger(other, id_file=id_file)
    path.unlink()
    with pytest.raises(PrivacyRefused, match=f"expected the ledger {first} at {path}, got none"):
        open_sqlite_ledger(path, id_file=id_file)
    assert not path.exists()
    id_file.write_text("")
    with pytest.raises(PrivacyRefused, match="empty file"):
        open_sqlite_ledger(path, id_file=id_file)
    with (
        open_sqlite_ledger(other) as ledger,
        pytest.raises(DependencyUnavailable, match="cannot be written"),
    ):
        adopt(ledger, tmp_path / "nowhere" / "id", other)


def test_ledger_is_bound_to_one_plate_key(tmp_path: Path) -> None:
    for _ in range(2):
        with open_sqlite_ledger(tmp_path / "ledger") as ledger:
            ledger.bind("key one")
    with (
        open_sqlite_ledger(tmp_path / "ledger") as ledger,
        pytest.raises(PrivacyRefused, match="restore the key"),
    ):
        ledger.bind("key two")


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE meta (name, value)")


def _newer(path: Path) -> None:
    open_sqlite_ledger(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = '2' WHERE name = 'schema'")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (
            lambda path: path.write_bytes(
                b"not a database, but long enough to be taken for one" * 20
            ),
            "another kind",
        ),
        (_foreign, "another kind"),
        (_newer, "schema 1"),
        (lambda path: path.touch(), "empty file"),
        (lambda path: path.with_name("ledger-wal").touch(), "write-ahead log"),
    ],
    ids=["text", "foreign", "newer", "truncated", "orphaned log"],
)
def test_what_is_no_ledger_of_ours_is_refused(
    spoil: Callable[[Path], None], rule: str, tmp_path: Path
) -> None:
    spoil(tmp_path / "ledger")
    with pytest.raises(PrivacyRefused, match=rule):
        open_sqlite_ledger(tmp_path / "ledger")


def test_missing_directory_and_unusable_file_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailable, match="nowhere to exist"):
        open_sqlite_ledger(tmp_path / "nowhere" / "ledger")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DependencyUnavailable):
        open_sqlite_ledger(tmp_path / "folder")


def test_locked_ledger_is_unavailable(tmp_path: Path, limits) -> None:
    limits(sqlite, BUSY_TIMEOUT_S=0.01)
    with (
        open_sqlite_ledger(tmp_path / "ledger") as ledger,
        closing(sqlite3.connect(tmp_path / "ledger")) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DependencyUnavailable, match="locked"):
            ledger.admit("p", 1, [b"x"], [ask("hat", [1])])
        other.rollback()
        assert ledger.admit("p", 1, [b"x"], [ask("hat", [1])])[0].admitted.all()


@pytest.mark.parametrize(
    ("tampering", "sentence"),
    [
        (
            "UPDATE balances SET spent = 1",
            "plate 78 in p: expected 3 charged in 1 entries, got 1 in 1",
        ),
        ("DELETE FROM balances", "plate 78 in p: expected 3 charged in 1 entries, got 0 in 0"),
        (
            "DROP TRIGGER admissions_stand; UPDATE admissions SET budget = 2",
            "hat: charging 3 puts plate 78 over",
        ),
        (
            "INSERT INTO releases (release_id, payload) VALUES ('drawn', x'00')",
            "drawn: released, but never admitted",
        ),
        ("DROP TRIGGER admissions_stay; DELETE FROM admissions", "got 3 in 1"),
    ],
)
def test_verify_names_what_does_not_add_up(tampering: str, sentence: str, tmp_path: Path) -> None:
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        ledger.admit("p", 4, [b"x"], [ask("hat", [3])])
        assert ledger.verify() == []
        with closing(sqlite3.connect(tmp_path / "ledger")) as connection:
            connection.executescript(tampering)
        assert any(sentence in found for found in ledger.verify())


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM admissions", "UPDATE admissions SET charged = x''", "DELETE FROM releases",
        "UPDATE releases SET payload = x''",
    ],
)  # fmt: skip
def test_file_itself_refuses_to_forget(change: str, tmp_path: Path) -> None:
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        ledger.admit("p", 4, [b"x"], [ask("hat", [3])])
        ledger.record([("hat", b"payload")])
    with (
        closing(sqlite3.connect(tmp_path / "ledger")) as connection,
        pytest.raises(sqlite3.IntegrityError),
    ):
        connection.execute(change)


def test_verdicts_belong_to_the_caller(tmp_path: Path) -> None:
    ledger: Ledger
    for ledger_factory in (in_memory(tmp_path), in_sqlite(tmp_path)):
        with ledger_factory() as ledger:
            first, twin = ledger.admit("p", 9, [b"x"], [ask("hat", [3]), ask("hat", [3])])
            first.charged[:] = 0
            assert twin.charged.tolist() == [3]
            assert ledger.admit("p", 9, [b"x"], [ask("hat", [3])])[0].charged.tolist() == [3]


def test_every_commit_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill cannot show it, so the settings are held: each connection begins as those of builds
    that sync less."""
    connect = sqlite3.connect

    def lax(*where: object, **how: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*where, **how)  # type: ignore[call-overload]
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA fullfsync = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", lax)
    names = ("journal_mode", "synchronous", "fullfsync")
    for _ in range(2):
        with open_sqlite_ledger(tmp_path / "ledger") as ledger:
            settled = [ledger._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
            assert settled == ["wal", 2, 1]


def test_a_new_ledger_has_its_name_on_disk_only_once_it_is_whole(tmp_path, monkeypatch):
    synced: list[list[str]] = []
    monkeypatch.setattr(
        atomic,
        "sync_directory",
        lambda folder: synced.append([one.name for one in folder.iterdir()]),
    )
    open_sqlite_ledger(tmp_path / "ledger").close()
    (names,) = synced
    assert "ledger" in names
