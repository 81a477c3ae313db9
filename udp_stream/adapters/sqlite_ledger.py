"""The ledger in one SQLite file: the promises of `ports.py`, kept by transactions and a synced write-ahead log.

Three tables carry it. `admissions` has one row per HAT, its plates and what each was charged packed into BLOBs; it is
only ever added to, and a trigger holds that. `balances` sums it by plate and period, is changed in the transaction that
adds the admission, and can be rebuilt from it (`verify`). `releases` keeps the first payload of a release id.

Every write is one `BEGIN IMMEDIATE` transaction: it reads balances only once it holds the file's single write lock, so
two writers cannot both spend the same nano-unit. `synchronous=FULL` syncs the log before a call returns.

The file is made complete under another name and linked into place, so nobody ever sees half a ledger, and an empty file
at the ledger's path is one that was truncated: refused, because starting anew would hand out every budget again. For
the same reason a write-ahead log without its ledger is refused, and so is a ledger bound to another plate key.

One connection serves one thread. Writers in other threads and processes open the same path again.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.plate_keys import sync_directory
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger_rules import AMOUNT_LIMIT, decide, misfits, require_valid
from udp_stream.ports import Admission, Balance, Entry, Verdict

SCHEMA_VERSION = 1
APPLICATION_ID = 0x75647073  # "udps", so that `file` and we know our own
BUSY_TIMEOUT_S = 60.0
CHUNK = 500  # host parameters in one statement; older builds of SQLite allow 999
PAGE = 500  # rows that an iterator reads at a time

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
BEGIN;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE balances (
    period TEXT NOT NULL,
    plate BLOB NOT NULL,
    spent INTEGER NOT NULL CHECK (spent > 0 AND spent < {AMOUNT_LIMIT}),
    charges INTEGER NOT NULL CHECK (charges > 0),
    PRIMARY KEY (period, plate)  -- the period first: a slot touches neighbouring pages
) STRICT, WITHOUT ROWID;
CREATE TABLE admissions (
    sequence INTEGER PRIMARY KEY,
    release_id TEXT NOT NULL UNIQUE,
    period TEXT NOT NULL,
    budget INTEGER NOT NULL,
    terms BLOB NOT NULL,
    plates BLOB NOT NULL,  -- one after the other, all of one length
    charged BLOB NOT NULL  -- int64, little endian, one per plate; 0: HALT
) STRICT;
CREATE TABLE releases (
    sequence INTEGER PRIMARY KEY,
    release_id TEXT NOT NULL UNIQUE,
    payload BLOB NOT NULL,
    published INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX releases_unpublished ON releases (sequence) WHERE published = 0;
CREATE TRIGGER admissions_stay BEFORE DELETE ON admissions BEGIN SELECT RAISE(ABORT, 'admissions stay'); END;
CREATE TRIGGER admissions_stand BEFORE UPDATE ON admissions BEGIN SELECT RAISE(ABORT, 'admissions stand'); END;
CREATE TRIGGER releases_stay BEFORE DELETE ON releases BEGIN SELECT RAISE(ABORT, 'releases stay'); END;
CREATE TRIGGER releases_stand BEFORE UPDATE OF release_id, payload ON releases
    BEGIN SELECT RAISE(ABORT, 'releases stand'); END;
INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}'), ('ledger_id', lower(hex(randomblob(16))));
COMMIT;
"""

_CHARGE = """
INSERT INTO balances (period, plate, spent, charges) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET spent = excluded.spent, charges = excluded.charges
"""
_REMEMBER = """
INSERT INTO admissions (release_id, period, budget, terms, plates, charged) VALUES (?, ?, ?, ?, ?, ?)
"""
_PERIODS_OF_PLATE = """
WITH RECURSIVE periods (period) AS (
    SELECT min(period) FROM balances
    UNION ALL
    SELECT (SELECT min(period) FROM balances WHERE period > periods.period) FROM periods WHERE period IS NOT NULL
)
SELECT period, spent FROM periods JOIN balances USING (period) WHERE plate = ?
"""
_ENTRIES = """
SELECT admissions.sequence, release_id, period, budget, plates, charged, payload, published
FROM admissions LEFT JOIN releases USING (release_id)
WHERE admissions.sequence > ? ORDER BY admissions.sequence LIMIT ?
"""


class _Decision(NamedTuple):
    """A remembered admission: its plates, packed, and what each was charged."""

    plates: bytes
    charged: NDArray[np.int64]
    terms: bytes


def open_sqlite_ledger(path: str | os.PathLike[str]) -> SqliteLedger:
    """Open the ledger at `path`, or make it (mode 0600) if nothing is there; use it as a context manager.

    Raises DependencyUnavailable if the directory is missing or the file cannot be used, and PrivacyRefused for a file
    that is no ledger of ours, is empty, lost its main file, or was written by a newer version.

    >>> import tempfile
    >>> hat = Admission("hat", np.array([0, 1]), np.array([4, 7]), min_admitted=1, terms=b"")
    >>> with tempfile.TemporaryDirectory() as folder, open_sqlite_ledger(f"{folder}/ledger") as ledger:
    ...     ledger.admit("2024-05-01", 5, [b"one", b"two"], [hat])[0].charged
    ...     ledger.record([("hat", b"first")]), ledger.record([("hat", b"second")])
    array([4, 0])
    ([b'first'], [b'first'])
    """
    where = Path(path).resolve()
    if sqlite3.sqlite_version_info < (3, 37):
        raise DependencyUnavailable(f"expected SQLite 3.37 or newer, got {sqlite3.sqlite_version}: upgrade it")
    if not where.parent.is_dir():
        raise DependencyUnavailable(f"expected the ledger's directory {where.parent} to exist: create it first")
    if where.is_dir():
        raise DependencyUnavailable(f"expected a ledger file at {where}, got a directory: name a file in it")
    if not where.exists():
        _refuse_orphaned_log(where)
        _create(where)
    if where.stat().st_size == 0:
        raise PrivacyRefused(f"expected a ledger at {where}, got an empty file: restore it, or remove it if it is new")
    with _usable(where):
        connection = sqlite3.connect(
            f"{where.as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
        )
        try:
            _require_ours(where, connection)
            _make_durable(where, connection)
        except BaseException:
            connection.close()
            raise
    return SqliteLedger(where, connection)


def _refuse_orphaned_log(path: Path) -> None:
    # The log is made after the ledger, so one that was there before the ledger still was not is an orphan.
    if path.with_name(f"{path.name}-wal").exists() and not path.exists():
        raise PrivacyRefused(f"expected a ledger at {path}, got only its write-ahead log: restore the ledger beside it")


def _create(path: Path) -> None:
    """Link a finished ledger to `path`, unless another process was first: then that one stands."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with _usable(path), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            _make_durable(draft, connection)
            connection.executescript(_SCHEMA)
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_directory(path.parent)
    except OSError as error:
        raise DependencyUnavailable(f"the ledger {path} cannot be made: {error.strerror}") from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _require_ours(path: Path, connection: sqlite3.Connection) -> None:
    foreign = PrivacyRefused(f"expected a ledger at {path}, got another kind of file: name another path")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise foreign from error
        raise
    if application != APPLICATION_ID:
        raise foreign
    (schema,) = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if int(schema) != SCHEMA_VERSION:
        raise PrivacyRefused(f"expected schema {SCHEMA_VERSION} of the ledger {path}, got {schema}: upgrade udp-stream")


def _make_durable(path: Path, connection: sqlite3.Connection) -> None:
    (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise DependencyUnavailable(f"expected a file system with write-ahead logs under {path}: use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # heeded on macOS, where a plain fsync does not reach the disk


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn what the file or its lock refuses into DependencyUnavailable; our own mistakes pass as they are."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise
        raise DependencyUnavailable(f"the ledger {path} cannot be used: {error}") from error


class SqliteLedger:
    """A `ports.Ledger` in a file, for one thread; make it with `open_sqlite_ledger`.

    Any call may raise DependencyUnavailable (disk full, locked for a minute, damaged); what it asked for may then be
    remembered or not, and asking again tells.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Take over a connection that is known to be a ledger's and durable."""
        self.path = path
        self._connection = connection

    def __enter__(self) -> Self:
        """Open already; closes on leaving."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, whatever happened."""
        self.close()

    def close(self) -> None:
        """Close the file; the ledger cannot be used any more."""
        self._connection.close()

    def meta(self) -> dict[str, str]:
        """What the ledger knows of itself: `schema`, `ledger_id`, and `key_fingerprint` once it is bound."""
        with _usable(self.path):
            return dict(self._connection.execute("SELECT name, value FROM meta ORDER BY name"))

    def bind(self, fingerprint: str) -> None:
        """Tie the ledger to the key of its plates' hashes, for ever.

        Raises PrivacyRefused if it is tied to another key: every plate would look new and get its budget again.
        """
        with self._transaction("IMMEDIATE"):
            query = "INSERT INTO meta VALUES ('key_fingerprint', ?) ON CONFLICT DO NOTHING"
            self._connection.execute(query, (fingerprint,))
            bound = self.meta()["key_fingerprint"]
        if bound != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger {self.path} was bound to, got {fingerprint}: "
                "restore the key file"
            )

    def standing(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        with self._transaction("DEFERRED"):
            payloads = self._payloads(release_ids)
        return [payloads.get(release_id) for release_id in release_ids]

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """What each plate has spent in the period."""
        with self._transaction("DEFERRED"):
            return self._balances(period, plates)

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        Plates are distinct and of one length; ValueError, charging nobody, if a rule of `require_valid` is broken.
        """
        require_valid(budget, plates, admissions)
        packed = np.frombuffer(b"".join(plates), dtype=f"V{len(plates[0]) if plates else 1}")
        with self._transaction("IMMEDIATE"):
            decided = self._decisions([one.release_id for one in admissions])
            fresh: dict[str, Admission] = {}
            for one in admissions:
                if one.release_id not in decided:
                    fresh.setdefault(one.release_id, one)
            if fresh:
                decided |= self._decide(period, budget, plates, packed, fresh)
        return [_recall(decided[one.release_id], packed[one.members].tobytes(), one.members.size) for one in admissions]

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Keep the first payload of each id and return the ones that stand.

        Raises PrivacyRefused, keeping none of them, if any id was never admitted.
        """
        ids = [release_id for release_id, _ in releases]
        with self._transaction("IMMEDIATE"):
            admitted = {found for (found,) in self._where_in("SELECT release_id FROM admissions WHERE release_id", ids)}
            for release_id in ids:
                if release_id not in admitted:
                    raise PrivacyRefused(f"expected an admission before the record of {release_id!r}, got none")
            query = "INSERT INTO releases (release_id, payload) VALUES (?, ?) ON CONFLICT (release_id) DO NOTHING"
            self._connection.executemany(query, releases)
            payloads = self._payloads(ids)
        return [payloads[release_id] for release_id in ids]

    def published(self, release_ids: Sequence[str]) -> None:
        """Remember that these payloads have reached their readers; ids without a payload are left alone."""
        with self._transaction("IMMEDIATE"):
            query = "UPDATE releases SET published = 1 WHERE release_id = ? AND published = 0"
            self._connection.executemany(query, ((release_id,) for release_id in release_ids))

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        """Recorded payloads that were never marked as published, oldest first; publish them while iterating, freely."""
        query = (
            "SELECT sequence, release_id, payload FROM releases WHERE published = 0 AND sequence > ? ORDER BY 1 LIMIT ?"
        )
        for _, release_id, payload in self._pages(query):
            yield release_id, payload

    def spent(self, plate: bytes) -> dict[str, int]:
        """Nano-units that the plate has spent, by period."""
        with _usable(self.path):
            return dict(self._connection.execute(_PERIODS_OF_PLATE, (plate,)))

    def entries(self) -> Iterator[Entry]:
        """Every admission ever made, oldest first; those made while iterating may be among them."""
        for _, release_id, period, budget, plates, charged, payload, published in self._pages(_ENTRIES):
            amounts = _amounts(charged)
            members = tuple(_unpacked(plates, amounts.size))
            yield Entry(release_id, period, budget, members, amounts, payload, bool(published))

    def verify(self) -> list[str]:
        """Recompute every balance from the entries, at one moment: a sentence for each discrepancy.

        Checks the file itself, that no charge ever went over the budget of its admission, that the balances are the
        sums of the charges, and that every release was admitted.
        """
        query = "SELECT release_id FROM releases WHERE release_id NOT IN (SELECT release_id FROM admissions)"
        with self._transaction("DEFERRED"):
            damage = [finding for (finding,) in self._connection.execute("PRAGMA quick_check") if finding != "ok"]
            balances = self._connection.execute("SELECT period, plate, spent, charges FROM balances")
            sums = list(misfits(self.entries(), balances))
            orphans = [
                f"{release_id}: released, but never admitted" for (release_id,) in self._connection.execute(query)
            ]
        return [f"the file is damaged: {finding}" for finding in damage] + sums + orphans

    @contextmanager
    def _transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
        """All or nothing; IMMEDIATE takes the write lock first, so that what it reads still holds when it writes."""
        with _usable(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                self._connection.rollback()  # does nothing after a commit

    def _where_in(self, query: str, keys: Sequence[object], *before: object) -> Iterator[Any]:
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            yield from self._connection.execute(f"{query} IN ({marks})", (*before, *chunk))

    def _pages(self, query: str) -> Iterator[Any]:
        """Rows of a query over (sequence after, limit); no statement is open while the caller has the row."""
        last = 0
        while True:
            with _usable(self.path):
                page = self._connection.execute(query, (last, PAGE)).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            last = page[-1][0]

    def _payloads(self, release_ids: Sequence[str]) -> dict[str, bytes]:
        return dict(self._where_in("SELECT release_id, payload FROM releases WHERE release_id", release_ids))

    def _decisions(self, release_ids: Sequence[str]) -> dict[str, _Decision]:
        query = "SELECT release_id, plates, charged, terms FROM admissions WHERE release_id"
        rows = self._where_in(query, release_ids)
        return {release_id: _Decision(plates, _amounts(charged), terms) for release_id, plates, charged, terms in rows}

    def _balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        query = "SELECT plate, spent, charges FROM balances WHERE period = ? AND plate"
        found = {plate: (spent, charges) for plate, spent, charges in self._where_in(query, sorted(plates), period)}
        table = np.array([found.get(plate, (0, 0)) for plate in plates], np.int64).reshape(-1, 2)
        return Balance(spent=table[:, 0], charges=table[:, 1])

    def _decide(
        self, period: str, budget: int, plates: Sequence[bytes], packed: NDArray[np.void], fresh: dict[str, Admission]
    ) -> dict[str, _Decision]:
        """Decide, charge and remember HATs that were never asked about, in the order given."""
        balance = self._balances(period, plates)
        decided: dict[str, _Decision] = {}
        for release_id, one in fresh.items():
            charged = decide(balance.spent[one.members], one.charges, budget, one.min_admitted)
            balance.spent[one.members] += charged
            balance.charges[one.members] += charged > 0
            decided[release_id] = _Decision(packed[one.members].tobytes(), charged, one.terms)
        touched = np.unique(np.concatenate([one.members for one in fresh.values()]))
        self._settle(period, plates, balance, touched[balance.charges[touched] > 0])
        self._remember(period, budget, decided)
        return decided

    def _settle(self, period: str, plates: Sequence[bytes], balance: Balance, touched: NDArray[np.int64]) -> None:
        spent, charges = balance.spent.tolist(), balance.charges.tolist()
        in_key_order = sorted(touched.tolist(), key=plates.__getitem__)  # neighbours on a page are written together
        self._connection.executemany(_CHARGE, ((period, plates[i], spent[i], charges[i]) for i in in_key_order))

    def _remember(self, period: str, budget: int, decided: dict[str, _Decision]) -> None:
        rows = (
            (release_id, period, budget, one.terms, one.plates, one.charged.astype("<i8").tobytes())
            for release_id, one in decided.items()
        )
        self._connection.executemany(_REMEMBER, rows)


def _recall(decision: _Decision, asked: bytes, members: int) -> Verdict:
    """What was remembered for the plates asked about; 0 for one that the first call did not name."""
    if asked == decision.plates and members == decision.charged.size:
        return Verdict(decision.charged.copy(), decision.terms)
    charged = dict(zip(_unpacked(decision.plates, decision.charged.size), decision.charged.tolist(), strict=True))
    return Verdict(np.array([charged.get(plate, 0) for plate in _unpacked(asked, members)], np.int64), decision.terms)


def _amounts(blob: bytes) -> NDArray[np.int64]:
    return np.frombuffer(blob, "<i8").astype(np.int64)


def _unpacked(plates: bytes, count: int) -> list[bytes]:
    width = len(plates) // max(count, 1)
    return [plates[i * width : (i + 1) * width] for i in range(count)]
