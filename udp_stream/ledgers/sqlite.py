"""The ledger in an SQLite file: the promises of `port.py`, kept by transactions and a synced
write-ahead log.

`admissions` has a row per HAT, its plates and charges packed into BLOBs; a trigger holds that
rows are only added. `balances` sums it by plate and period in the same transaction, and can be
rebuilt from it (`verify`). `releases` keeps the first payload of a release id.

Every write is a `BEGIN IMMEDIATE` transaction: it reads balances only once it holds the file's
single write lock, so two writers cannot both charge the same nano-unit of a budget.
`synchronous=FULL` syncs the log before a call returns. A connection serves a single thread. Writers
in other threads and processes open the same path again.

**The file** is made complete under another name and linked into place, so half a ledger is never
seen, and an empty file at the ledger's path was truncated: refused, as starting anew would hand out
every budget again. So are a write-ahead log without its ledger, a ledger that is missing or another
one where it is known (`id_file`), and one that is bound to another plate key.

An open file lives on without its name. So before anything is published the files at the names are
compared with those that were opened: a ledger that was removed or replaced meanwhile is lost, with
its charges, when we end. The same holds for its log and the log's index: another process would
begin new ones.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from udp_stream.base.arrays import Integers
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.base.files import draft_of, link_first
from udp_stream.base.logs import MAKE_ROOM
from udp_stream.ledger.port import Entry, Mark, Progress
from udp_stream.ledger.rules import (
    AMOUNT_LIMIT,
    ARCHIVED,
    Decision,
    amounts,
    amounts_of,
    cut,
    require_open,
)
from udp_stream.ledgers.keys import gone, known_ledger
from udp_stream.ledgers.stored import NO_PROGRESS, Change, Found, Reads, StoredLedger, Transaction

SCHEMA_VERSION = 1
APPLICATION_ID = 0x75647073  # "udps", so that `file` and we know our own
BUSY_TIMEOUT_S = 60.0
ROOM_BYTES = 2**16
"""With less the disk is full: a page and its index do not fit."""

MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""

_ONLY_DROP = {
    "admissions_stay": "BEFORE DELETE ON admissions BEGIN SELECT RAISE(ABORT, 'admissions stay'); END",
    "admissions_stand": "BEFORE UPDATE ON admissions BEGIN SELECT RAISE(ABORT, 'admissions stand'); END",
    "releases_stay": "BEFORE DELETE ON releases BEGIN SELECT RAISE(ABORT, 'releases stay'); END",
}
"""Triggers against all but `drop`, which takes it away and puts it back in a single transaction."""

_KEPT = [f"CREATE TRIGGER {name} {what};" for name, what in _ONLY_DROP.items()]
SCHEMA = f"""
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
{" ".join(_KEPT)}
CREATE TRIGGER releases_stand BEFORE UPDATE OF release_id, payload ON releases
    BEGIN SELECT RAISE(ABORT, 'releases stand'); END;
INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}'), ('ledger_id', lower(hex(randomblob(16)))),
    ('made', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'));
COMMIT;
"""


class FilesInUse(NamedTuple):
    """The ledger, its log and the log's index, and what each was when it was opened: its device and
    inode."""

    path: Path
    opened: tuple[tuple[int, int] | None, ...]

    @classmethod
    def at(cls, path: Path) -> FilesInUse:
        return cls(
            path,
            tuple(_identity(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm")),
        )

    def require_in_place(self) -> None:
        if FilesInUse.at(self.path) != self:
            raise PrivacyRefused(
                f"the ledger {self.path}, its -wal or its -shm was removed or replaced while it was in use: what is "
                "charged now would be lost. Nothing more is published. Stop every process that uses this ledger, and "
                "put the newest copy in its place"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DependencyUnavailable(f"{path} cannot be looked at: {error.strerror}") from error
    return found.st_dev, found.st_ino


def open_ledger_file(path: Path, known: str | None = None) -> tuple[sqlite3.Connection, FilesInUse]:
    """Connect to the ledger at a resolved path, made (mode 0600) if nothing is there; every commit
    is synced. `known` is its id, None: whichever. Raises as `open_sqlite_ledger`."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise DependencyUnavailable(
            f"expected SQLite 3.37 or newer, got {sqlite3.sqlite_version}: upgrade it"
        )
    if not path.parent.is_dir():
        raise DependencyUnavailable(
            f"expected the ledger's directory {path.parent} to exist: create it first"
        )
    if path.is_dir():
        raise DependencyUnavailable(
            f"expected a ledger file at {path}, got a directory: name a file in it"
        )
    if not path.exists():
        # The log is made after the ledger, so one that was there before the ledger still was not is
        # an orphan.
        if path.with_name(f"{path.name}-wal").exists() and not path.exists():
            raise PrivacyRefused(
                f"expected a ledger at {path}, got only its write-ahead log: restore the ledger beside it"
            )
        if known is not None:
            raise gone(path, known)
        _create(path)
    if path.stat().st_size == 0:
        raise PrivacyRefused(
            f"expected a ledger at {path}, got an empty file: restore it, or remove it if it is new"
        )
    with usable(path):
        before = _identity(path)
        # Mode rw makes no file: a ledger that is removed just now does not come back empty.
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
        )
        try:
            _require_ours(path, connection, known)
            _make_durable(path, connection)
            connection.execute(
                "SELECT count(*) FROM meta"
            ).fetchone()  # opens its log and the index
            files = FilesInUse.at(path)
            files._replace(opened=(before, *files.opened[1:])).require_in_place()
        except BaseException:
            connection.close()
            raise
    return connection, files


def _create(path: Path) -> None:
    """Link a finished ledger to `path`, unless another process was first: then that one stands."""
    try:
        with draft_of(path, "-wal", "-shm") as draft:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with usable(path), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                _make_durable(draft, connection)
                connection.executescript(SCHEMA)
            link_first(draft, path)
    except OSError as error:
        raise DependencyUnavailable(
            f"the ledger {path} cannot be made: {error.strerror}"
        ) from error


def _require_ours(path: Path, connection: sqlite3.Connection, known: str | None) -> None:
    foreign = PrivacyRefused(
        f"expected a ledger at {path}, got another kind of file: name another path"
    )
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise foreign from error
        raise
    if application != APPLICATION_ID:
        raise foreign
    meta = dict(connection.execute("SELECT name, value FROM meta"))
    schema = meta["schema"]
    if int(schema) != SCHEMA_VERSION:
        raise PrivacyRefused(
            f"expected schema {SCHEMA_VERSION} of the ledger {path}, got {schema}: upgrade udp-stream"
        )
    if known not in (None, meta["ledger_id"]):
        raise gone(path, known or "")


def _make_durable(path: Path, connection: sqlite3.Connection) -> None:
    (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise DependencyUnavailable(
            f"expected a file system with write-ahead logs under {path}: use a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "PRAGMA fullfsync = ON"
    )  # heeded on macOS, where a plain fsync does not reach the disk


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn what the file or its lock refuses into DependencyUnavailable; our own mistakes pass as
    they are."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # By exact type: its other subclasses, such as IntegrityError, are mistakes of ours.
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise
        raise DependencyUnavailable(
            f"the ledger {path} cannot be used: {error}{_room(path, error)}"
        ) from error


def _room(path: Path, error: sqlite3.DatabaseError) -> str:
    """Advice on a full disk, which SQLite also calls an error of input and output, as of its
    index."""
    code = error.sqlite_errorcode & 0xFF
    disk = os.statvfs(path.parent)
    if code == sqlite3.SQLITE_IOERR and disk.f_bavail * disk.f_frsize < ROOM_BYTES:
        return f": no space is left there: {MAKE_ROOM}"
    return f": {MAKE_ROOM}" if code == sqlite3.SQLITE_FULL else ""


CHARGE = """
INSERT INTO balances (period, plate, spent, charges) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET spent = spent + excluded.spent, charges = charges + excluded.charges
"""
REMEMBER = """
INSERT INTO admissions (release_id, period, budget, terms, plates, charged) VALUES (?, ?, ?, ?, ?, ?)
"""
PERIODS = """
WITH RECURSIVE periods (period) AS (
    SELECT min(period) FROM balances WHERE period >= :first
    UNION ALL
    SELECT (SELECT min(period) FROM balances WHERE period > periods.period) FROM periods WHERE period < :last
)
SELECT period FROM periods WHERE period <= :last
"""
"""A look-up for each; the last may be superfluous."""

ONLY_ADDED = ("admissions", "releases")
ENTRIES = """
SELECT admissions.sequence, release_id, period, budget, plates, charged, payload, published, terms
FROM admissions LEFT JOIN releases USING (release_id)
WHERE admissions.sequence > ? ORDER BY admissions.sequence LIMIT ?
"""


RECORD = "INSERT INTO releases (release_id, payload) VALUES (?, ?)"
ADMITTED = "SELECT release_id FROM admissions WHERE release_id"
PAYLOADS = "SELECT release_id, payload FROM releases WHERE release_id"
DECISIONS = "SELECT release_id, plates, charged, terms FROM admissions WHERE release_id"

UNCHARGED = (0, 0)
CHUNK = 500  # host parameters in a single statement; older builds of SQLite allow 999
PAGE = 500  # rows that an iterator reads at a time


def open_sqlite_ledger(
    path: str | os.PathLike[str], *, id_file: str | os.PathLike[str] | None = None
) -> SqliteLedger:
    """Open the ledger at `path`, or make it (mode 0600) if nothing is there; use it as a context
    manager.

    `id_file` has its id and high-water mark (`keys.adopt` makes it). DependencyUnavailable if the
    directory is missing or a file cannot be used; PrivacyRefused for a file that is no ledger of
    ours, is empty, lost its main file, was written by a newer version, or is not the ledger known.
    """
    where = Path(path).resolve()
    known = known_ledger(id_file)
    return SqliteLedger(where, *open_ledger_file(where, known), id_file)


class SqliteLedger(StoredLedger):
    """A ledger in a file, for one thread; make it with `open_sqlite_ledger`.

    Any call may raise DependencyUnavailable (disk full, locked for a minute, damaged); what it
    asked for may then be remembered or not, and asking again tells.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        files: FilesInUse | None,
        id_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(id_file)
        self.path = path
        self.place = path
        self._files = files
        self._connection = connection
        self._one_at_a_time: AbstractContextManager[object] = nullcontext()

    def close(self) -> None:
        self._connection.close()

    def note(self, name: str, text: str) -> str:
        with self._using("IMMEDIATE"):
            self._connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", (name, text)
            )
            return self._meta()[name]

    def _meta(self) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, value FROM meta ORDER BY name"))

    def _progress(self) -> Progress:
        ends = "SELECT release_id FROM admissions ORDER BY sequence {} LIMIT 1"
        admitted, recorded = (
            self._first(f"SELECT max(sequence) FROM {table}") for table in ONLY_ADDED
        )
        oldest, newest = (self._first(ends.format(order)) for order in ("ASC", "DESC"))
        return Progress(admitted or 0, recorded or 0, oldest, newest)

    def mark(self, release_id: str) -> Mark:
        if self._files is not None:
            self._files.require_in_place()
        return super().mark(release_id)

    def _first(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        return None if row is None else row[0]

    def _read(self, asked: Reads) -> Found:
        with self._using("DEFERRED"):
            names = [
                name
                for first, last in asked.ranges
                for (name,) in self._connection.execute(PERIODS, {"first": first, "last": last})
            ]
            return Found(
                dict(self._where_in(PAYLOADS, asked.payloads)),
                {
                    name: Decision(plates, amounts(charged), terms)
                    for name, plates, charged, terms in self._where_in(DECISIONS, asked.decisions)
                },
                names,
                self._balances_of(asked.periods, asked.plates),
                self._meta() if asked.state else {},
                self._progress() if asked.state else NO_PROGRESS,
            )

    def _balances_of(self, periods: Sequence[str], plates: Sequence[bytes]) -> Integers:
        query = "SELECT plate, spent, charges FROM balances WHERE period = ?"
        most = 4 * len(plates)
        table = list[list[tuple[int, int]]]()
        for period in periods:
            # All of a period are read at once where they are not many more than those asked for.
            rows = self._connection.execute(f"{query} LIMIT ?", (period, most)).fetchall()
            if len(rows) == most:
                rows = self._where_in(f"{query} AND plate", sorted(plates), period)
            charged = {plate: (spent, charges) for plate, spent, charges in rows}
            table.append([charged.get(plate, UNCHARGED) for plate in plates])
        return np.array(table, np.int64).reshape(len(periods), len(plates), 2)

    def _likely_balances(self, period: str, plates: Sequence[bytes]) -> Integers:
        return self._balances_of([period], plates)[0, :, 0]

    def published(self, release_ids: Sequence[str]) -> None:
        with self._using("IMMEDIATE"):
            query = "UPDATE releases SET published = 1 WHERE release_id = ? AND published = 0"
            self._connection.executemany(query, ((release_id,) for release_id in release_ids))

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        query = "SELECT sequence, release_id, payload FROM releases WHERE published = 0 AND sequence > ? ORDER BY 1 LIMIT ?"
        for _, release_id, payload in self._pages(query):
            yield release_id, payload

    def _scan(self) -> Iterator[tuple[str, Entry | None]]:
        for _, name, period, budget, plates, charged, payload, published, terms in self._pages(
            ENTRIES
        ):
            each = amounts(charged)
            names = tuple(cut(plates, each.size))
            yield name, Entry(name, period, budget, names, each, payload, bool(published), terms)

    def newest(self) -> Iterator[str]:
        query = "SELECT sequence, release_id FROM admissions WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"
        yield from (release_id for _, release_id in self._pages(query, first=2**62))

    def close_before(self, end_s: int) -> int:
        later = "CAST(excluded.value AS INTEGER) > CAST(value AS INTEGER)"
        query = f"INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value WHERE {later}"
        with self._using("IMMEDIATE"):
            self._connection.execute(query, (ARCHIVED, str(end_s)))
            return self._closed() or end_s

    def _closed(self) -> int | None:
        closed = self._first(f"SELECT value FROM meta WHERE name = '{ARCHIVED}'")
        return None if closed is None else int(closed)

    def _drop_all(self, change: Change) -> None:
        """Inside a transaction, for which the triggers are away: all entries of a period."""
        for name in _ONLY_DROP:
            self._connection.execute(f"DROP TRIGGER {name}")
        for table in ONLY_ADDED:
            most = self._first(f"SELECT max(sequence) FROM {table}")
            ids = ((release_id,) for release_id in change.dropped)
            self._connection.executemany(f"DELETE FROM {table} WHERE release_id = ?", ids)
            self._keep_count(table, most)
        self._connection.execute("DELETE FROM balances WHERE period = ?", (change.period,))
        for trigger in _KEPT:
            self._connection.execute(trigger)

    def _keep_count(self, table: str, most: int | None) -> None:
        """The last row that is left takes the place of the last there was: `progress` never goes
        back."""
        found = self._connection.execute(
            f"UPDATE {table} SET sequence = ? WHERE sequence = (SELECT max(sequence) FROM {table})",
            (most,),
        )
        if most is not None and not found.rowcount:
            raise PrivacyRefused(
                f"expected later {table} in the ledger {self.path}, got none: its count would go back"
            )

    def shrink(self) -> None:
        """Give the space of what was dropped back to the disk."""
        with self._using():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _snapshot(self, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
        query = "SELECT period, plate, spent, charges FROM balances WHERE period = ?"
        return 2**62, self._connection.execute(query, (period,)).fetchall()

    def _unadmitted(self) -> Iterator[str]:
        query = "SELECT release_id FROM releases WHERE release_id NOT IN (SELECT release_id FROM admissions)"
        return (release_id for (release_id,) in self._connection.execute(query))

    def _damage(self) -> list[str]:
        found = self._connection.execute("PRAGMA quick_check")
        return [f"the file is damaged: {finding}" for (finding,) in found if finding != "ok"]

    @contextmanager
    def _using(self, transaction: Transaction | None = None) -> Iterator[None]:
        """A single thread at a time. A transaction is all or nothing, and may have others inside;
        IMMEDIATE takes the write lock before it reads."""
        with self._one_at_a_time, usable(self.path):
            if transaction is None or self._connection.in_transaction:
                yield
                return
            self._connection.execute(f"BEGIN {transaction}")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                self._connection.rollback()  # does nothing after a commit

    def _where_in(self, query: str, keys: Sequence[object], *before: object) -> list[Any]:
        rows = list[Any]()
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            rows += self._connection.execute(f"{query} IN ({marks})", (*before, *chunk))
        return rows

    def _pages(self, query: str, first: int = 0) -> Iterator[Any]:
        """Rows of a query over (sequence behind, limit); no statement is open while the caller has
        the row."""
        last = first
        while True:
            with self._using():
                page = self._connection.execute(query, (last, PAGE)).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            last = page[-1][0]

    def _commit(self, change: Change) -> bool:
        """IMMEDIATE: nobody has charged since the version was read."""
        ids = [*change.decided, *change.admitted]
        admitted = {name for (name,) in self._where_in(ADMITTED, ids)}
        if admitted != {*change.admitted} or any(self._where_in(PAYLOADS, [*change.payloads])):
            return False
        require_open([*change.decided, *change.payloads], self._closed())
        balances = self._balances_of([change.period], change.plates)[0, :, 0]
        if (balances > change.room).any():
            return False
        if change.dropped:
            self._drop_all(change)
            return True
        columns = change.asked.tolist(), change.times.tolist()
        charges = zip(repeat(change.period), change.plates, *columns, strict=False)
        # Neighbours on a page are written together.
        self._connection.executemany(CHARGE, sorted(charges))
        rows = (
            (name, change.period, change.budget, held.terms, held.plates, amounts_of(held.charged))
            for name, held in change.decided.items()
        )
        self._connection.executemany(REMEMBER, rows)
        self._connection.executemany(RECORD, change.payloads.items())
        return True


class MemoryLedger(SqliteLedger):
    """The same ledger in memory, for any number of threads: for tests, examples and rehearsals.

    It forgets everything with the process (promise 4), so nothing that was drawn under it may be
    published.

    >>> from udp_stream.ledger.port import Admission
    >>> ledger = MemoryLedger()
    >>> hat = Admission("hat", np.array([0]), np.array([4]), min_admitted=0, terms=b"")
    >>> ledger.admit("2024-05-01", 10, [b"plate"], [hat])[0].charged
    array([4])
    >>> ledger.record([("hat", b"first")]), ledger.charged_by_period(b"plate"), list(ledger.unpublished())
    ([b'first'], {'2024-05-01': 4}, [('hat', b'first')])
    >>> ledger.published(["hat"])
    >>> list(ledger.unpublished()), ledger.verify(), ledger.mark("hat").recorded
    ([], [], 1)
    """

    def __init__(self, ledger_id: str | None = None) -> None:
        """Nothing is charged yet. `ledger_id`: as an older copy of another ledger has it."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(SCHEMA)
        if ledger_id is not None:
            connection.execute("UPDATE meta SET value = ? WHERE name = 'ledger_id'", (ledger_id,))
        super().__init__(Path(":memory:"), connection, None)
        self._one_at_a_time = threading.RLock()

    def __del__(self) -> None:
        self.close()
