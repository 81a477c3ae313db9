"""Every ledger keeps every promise, the checks can tell when one does not, and SQLite keeps them
through a kill."""

import json
import os
import random
import signal
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import product
from pathlib import Path

import pytest

from tests.contract import checks
from tests.contract import ledger_writer as writer
from tests.contract.checks import ALL_LEDGER_CHECKS, LedgerFactory, ask
from tests.contract.dictionary_ledger import DictionaryLedger
from tests.forked import Forked
from tests.forms import long_rows
from udp_stream.base import files as atomic
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import Ledger
from udp_stream.ledgers import sqlite
from udp_stream.ledgers.keys import adopt
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.ledgers.stored import Batch

Check = Callable[[LedgerFactory], None]


def in_memory(_: Path) -> LedgerFactory:
    return lambda held=MemoryLedger(): nullcontext(held)  # noqa: B008 - one ledger, opened again and again


def in_dictionaries(_: Path) -> LedgerFactory:
    return lambda held=DictionaryLedger(): nullcontext(held)  # noqa: B008 - likewise


def in_sqlite(folder: Path) -> LedgerFactory:
    return lambda: open_sqlite_ledger(folder / "ledger")


@pytest.mark.parametrize(
    ("check", "store"),
    long_rows([(one, in_sqlite) for one in ALL_LEDGER_CHECKS if one not in checks.IN_CROWDS]
              + [(one, in_dictionaries) for one in checks.IN_CROWDS],
              product(ALL_LEDGER_CHECKS, (in_dictionaries, in_memory, in_sqlite))),
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_store_keeps_promise(
    check: Check, store: Callable[[Path], LedgerFactory], tmp_path: Path
) -> None:
    check(store(tmp_path))


def test_a_batch_has_so_many_items_of_so_much_together_and_no_more() -> None:
    sizes = [2, 4, 1, 8, 1, 0, 1, 0, 0, 0, 0]
    cut = [[2, 4], [1], [8], [1, 0, 1], [0, 0, 0], [0]]
    assert Batch(3, 6).cut(sizes, sizes) == cut and Batch(3, 6).cut([], []) == []


class LastRecordWins(DictionaryLedger):
    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        for release_id, _ in releases:
            if held := self._admissions.get(release_id):
                held.payload = None
        return super().record(releases)


class ChecksThenCharges(DictionaryLedger):
    def __init__(self) -> None:
        super().__init__()
        self._lock = nullcontext()  # type: ignore[assignment]

    def _settle(self, *asked):  # type: ignore[no-untyped-def]
        time.sleep(0)  # gives way
        super()._settle(*asked)


class NewestByPages(DictionaryLedger):
    """Counts pages from the newest, which moves while one reads."""

    def newest(self):  # type: ignore[no-untyped-def]
        start = 0
        while page := list(super().newest())[start : start + 100]:
            yield from page
            start += 100


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (LastRecordWins, checks.check_concurrent_writers),
        (ChecksThenCharges, checks.check_concurrent_writers),
        (ChecksThenCharges, checks.check_rolling_crowd),
        (NewestByPages, checks.check_many_at_once),
    ],
    ids=lambda one: one.__name__,
)
def test_checks_catch_a_broken_ledger(broken: type[DictionaryLedger], check: Check) -> None:
    ledger = broken()
    with pytest.raises(AssertionError):
        check(lambda: nullcontext(ledger))


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


def test_ledger_file_is_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    with open_sqlite_ledger(tmp_path / "a ledger?") as ledger:
        assert stat.S_IMODE((tmp_path / "a ledger?").stat().st_mode) == 0o600
        ledger.admit("p", 1, [b"x"], [ask("hat", [1])])
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert [file.name for file in tmp_path.iterdir()] == ["a ledger?"]


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
