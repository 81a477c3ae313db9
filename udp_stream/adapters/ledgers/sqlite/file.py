"""The SQLite file of a ledger: made whole or not at all, durable, and refused where it is not the ledger it should be.

The file is made complete under another name and linked into place, so half a ledger is never seen, and an empty file
at the ledger's path is one that was truncated: refused, because starting anew would hand out every budget again. For
the same reason a write-ahead log without its ledger is refused, and so is a ledger that is missing, or another one,
where one is known.

An open file goes on living without its name. So what is at the names is compared with what was opened before anything
is published: a ledger that was removed or replaced meanwhile, and with it what was charged since, is lost when we end.
The same holds for its log and for the log's index: another process would begin new ones, and its charges and locks
would not be ours.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from udp_stream.adapters.files.atomic import draft_of, link_first
from udp_stream.adapters.ledgers.ledger_id import gone
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.rules import AMOUNT_LIMIT

SCHEMA_VERSION = 1
APPLICATION_ID = 0x75647073  # "udps", so that `file` and we know our own
BUSY_TIMEOUT_S = 60.0

MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""

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
INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}'), ('ledger_id', lower(hex(randomblob(16)))),
    ('made', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'));
COMMIT;
"""


class FilesInUse(NamedTuple):
    """The ledger, its log and the log's index, and what each was when it was opened: its device and inode."""

    path: Path
    opened: tuple[tuple[int, int] | None, ...]

    @classmethod
    def at(cls, path: Path) -> FilesInUse:
        """As they are now; None for a file that is not there.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     files = FilesInUse.at(Path(folder, "ledger"))
        >>> files.opened
        (None, None, None)
        """
        return cls(path, tuple(_identity(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm")))

    def require_in_place(self) -> None:
        """Raise PrivacyRefused if any of them was removed or replaced since."""
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
    """Connect to the ledger at a resolved path, made (mode 0600) if nothing is there; every commit is synced.

    `known` is the id of the ledger that has to be there; None: whichever.

    Raises as `open_sqlite_ledger`.
    """
    if sqlite3.sqlite_version_info < (3, 37):
        raise DependencyUnavailable(f"expected SQLite 3.37 or newer, got {sqlite3.sqlite_version}: upgrade it")
    if not path.parent.is_dir():
        raise DependencyUnavailable(f"expected the ledger's directory {path.parent} to exist: create it first")
    if path.is_dir():
        raise DependencyUnavailable(f"expected a ledger file at {path}, got a directory: name a file in it")
    if not path.exists():
        _refuse_orphaned_log(path)
        if known is not None:
            raise gone(path, known)
        _create(path)
    if path.stat().st_size == 0:
        raise PrivacyRefused(f"expected a ledger at {path}, got an empty file: restore it, or remove it if it is new")
    with usable(path):
        before = _identity(path)
        # Mode rw makes no file: a ledger that is removed just now does not come back empty.
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            _require_ours(path, connection, known)
            _make_durable(path, connection)
            connection.execute("SELECT count(*) FROM meta").fetchone()  # opens its log and the index
            files = FilesInUse.at(path)
            files._replace(opened=(before, *files.opened[1:])).require_in_place()
        except BaseException:
            connection.close()
            raise
    return connection, files


def _refuse_orphaned_log(path: Path) -> None:
    # The log is made after the ledger, so one that was there before the ledger still was not is an orphan.
    if path.with_name(f"{path.name}-wal").exists() and not path.exists():
        raise PrivacyRefused(f"expected a ledger at {path}, got only its write-ahead log: restore the ledger beside it")


def _create(path: Path) -> None:
    """Link a finished ledger to `path`, unless another process was first: then that one stands."""
    try:
        with draft_of(path, "-wal", "-shm") as draft:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with usable(path), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                _make_durable(draft, connection)
                connection.executescript(_SCHEMA)
            link_first(draft, path)
    except OSError as error:
        raise DependencyUnavailable(f"the ledger {path} cannot be made: {error.strerror}") from error


def _require_ours(path: Path, connection: sqlite3.Connection, known: str | None) -> None:
    foreign = PrivacyRefused(f"expected a ledger at {path}, got another kind of file: name another path")
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
        raise PrivacyRefused(f"expected schema {SCHEMA_VERSION} of the ledger {path}, got {schema}: upgrade udp-stream")
    if known not in (None, meta["ledger_id"]):
        raise gone(path, known or "")


def _make_durable(path: Path, connection: sqlite3.Connection) -> None:
    (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise DependencyUnavailable(f"expected a file system with write-ahead logs under {path}: use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # heeded on macOS, where a plain fsync does not reach the disk


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn what the file or its lock refuses into DependencyUnavailable; our own mistakes pass as they are."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # By exact type: its other subclasses, such as IntegrityError, are mistakes of ours.
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise
        raise DependencyUnavailable(f"the ledger {path} cannot be used: {error}") from error
