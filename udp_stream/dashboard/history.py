"""The history: all slots that the dashboard has read, in a SQLite file of its own, packed as they
are in memory.

A single process writes, from a single thread. Readers open the file for themselves. A file that
cannot be used, or a disk that is full, is said once; the page goes on without a history. A damaged
file is set aside, and a start begins another.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from udp_stream.base.logs import WARNING, log_message
from udp_stream.dashboard.snapshot import CompressedText, Kind, Slot
from udp_stream.windows.grid import HEXAGONS, Grid

APPLICATION_ID = 0x75647068
APPLICATION_AT = 68  # "udph"; the byte of SQLite's header at which it is
VERSION = 1
BUSY_S = 10.0

_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE slots (start_ms INTEGER PRIMARY KEY, day TEXT NOT NULL, listed BLOB NOT NULL);
CREATE INDEX days ON slots (day);
CREATE TABLE parts (start_ms INTEGER NOT NULL, kind TEXT NOT NULL, lines INTEGER NOT NULL, body BLOB NOT NULL,
    digest TEXT NOT NULL, size INTEGER NOT NULL, blocks BLOB NOT NULL, PRIMARY KEY (start_ms, kind)) WITHOUT ROWID;
CREATE TABLE cells (cell TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class TimeRange(NamedTuple):
    """A range from a time or a day on, and before another. Days (ISO, local) are compared as texts,
    times in Unix ms.

    >>> TimeRange("2024-01-08", "2024-01-09").where
    ('day >= ? AND day < ?', ['2024-01-08', '2024-01-09'])
    """

    first: str | int | None = None
    last: str | int | None = None

    @property
    def where(self) -> tuple[str, list[str | int]]:
        ends = [
            (end, sign) for end, sign in ((self.first, ">="), (self.last, "<")) if end is not None
        ]
        names = [f"{'day' if isinstance(end, str) else 'start_ms'} {sign} ?" for end, sign in ends]
        return " AND ".join(names) or "1", [end for end, _ in ends]

    def has(self, start_ms: int, day: str) -> bool:
        def is_before(end: str | int) -> bool:
            return day < end if isinstance(end, str) else start_ms < end

        return not (self.first is not None and is_before(self.first)) and (
            self.last is None or is_before(self.last)
        )


class HistoryError(Exception):
    """Reason why there is no history."""


class DamagedHistory(HistoryError):
    """A history that cannot be read as it was written."""


@contextmanager
def reading() -> Iterator[None]:
    """Raise DamagedHistory in place of what a damaged file raises."""
    try:
        yield
    except (
        sqlite3.Error,
        zlib.error,
        msgspec.DecodeError,
        ValueError,
        EOFError,
        gzip.BadGzipFile,
    ) as error:
        raise DamagedHistory(str(error)) from error


class History:
    """The file of a name; Unusable if it is another's, of a later version, or written by another
    process. DamagedHistory may leave each method.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     history = History(f"{folder}/history.sqlite")
    ...     history.newest(48), history.slot(0), history.cells()
    ([], None, [])
    """

    def __init__(self, name: str, grid: Grid = HEXAGONS) -> None:
        self.name = name
        self._grid = grid
        self._path = Path(name)
        try:
            # Kept open to the end: closing any file of the database would drop SQLite's own locks
            # on it.
            self._lock = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise HistoryError(error.strerror or type(error).__name__) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise HistoryError("another dashboard writes it") from None
        is_ours = os.pread(self._lock, 4, APPLICATION_AT) == APPLICATION_ID.to_bytes(4, "big")
        try:
            self._writing = sqlite3.connect(
                name, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._begin()
        except HistoryError:
            self.close()
            raise
        except sqlite3.Error as error:
            self.close()
            is_damaged = is_ours and not isinstance(error, sqlite3.OperationalError)
            raise (DamagedHistory if is_damaged else HistoryError)(str(error)) from error

    def close(self) -> None:
        self._writing.close()
        os.close(self._lock)

    def _begin(self) -> None:
        application, version, tables = (
            self._writing.execute(what).fetchone()[0]
            for what in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )
        if not tables:
            self._writing.executescript(f"BEGIN; {_SCHEMA.split(';', 1)[1]} COMMIT;")
        elif application != APPLICATION_ID:
            raise HistoryError("it is no history of a dashboard")
        elif version > VERSION:
            raise HistoryError(
                f"it is of version {version}, from a later udp-stream; this one knows version {VERSION}"
            )
        (found,) = self._writing.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedHistory(found.splitlines()[-1])
        self._writing.execute("PRAGMA journal_mode = WAL")
        self._writing.execute("PRAGMA synchronous = NORMAL")

    def write(self, slots: Iterable[Slot], cells: Iterable[str]) -> None:
        """Write in a single transaction; sqlite3.Error if the disk is full, DamagedHistory if the
        file is."""
        self._writing.execute("BEGIN IMMEDIATE")
        try:
            for slot in slots:
                row = slot.start_ms, slot.start[:10], msgspec.json.encode(slot.listed())
                self._writing.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", row)
                parts = [
                    (slot.start_ms, kind, part.lines, part.body, part.digest, part.size,
                     msgspec.json.encode(part.blocks))
                    for kind, part in slot.parts.items()
                ]  # fmt: skip
                self._writing.executemany(
                    "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", parts
                )
            self._writing.executemany(
                "INSERT OR IGNORE INTO cells VALUES (?)", [(cell,) for cell in cells]
            )
            self._writing.execute("COMMIT")
        except sqlite3.Error as error:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise DamagedHistory(str(error)) from error

    def _read(self, what: str, values: Sequence[str | int] = ()) -> list[tuple[Any, ...]]:
        with reading(), closing(self._opened()) as file:
            return file.execute(what, values).fetchall()

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=BUSY_S,
            check_same_thread=False,
        )

    def slot(self, start_ms: int) -> Slot | None:
        with reading(), closing(self._opened()) as file:
            return _slot_in(file, start_ms)

    def written(self, start_ms: int) -> Slot | None:
        """The same slot, for the thread that writes, which has the file open."""
        with reading():
            return _slot_in(self._writing, start_ms)

    def parts(self, kind: Kind, starts: Sequence[int]) -> Iterator[tuple[int, CompressedText]]:
        """The records of a kind of these slots, which are in the order of their starts."""
        what = """SELECT start_ms, body, digest, size, lines, blocks FROM parts
            WHERE kind = ? AND start_ms BETWEEN ? AND ? ORDER BY start_ms"""
        wanted = set(starts)
        with reading(), closing(self._opened()) as file:
            rows = file.execute(what, (kind, starts[0], starts[-1])) if starts else ()
            for start_ms, body, digest, size, lines, blocks in rows:
                if start_ms in wanted:
                    yield start_ms, CompressedText(body, digest, size, lines, _blocks_of(blocks))

    def newest(self, most: int) -> list[int]:
        """Starts of the newest slots, the oldest first."""
        rows = self._read("SELECT start_ms FROM slots ORDER BY start_ms DESC LIMIT ?", (most,))
        return [int(start) for (start,) in reversed(rows)]

    def cells(self) -> list[str]:
        cells = [str(cell) for (cell,) in self._read("SELECT cell FROM cells")]
        with reading():
            for cell in cells:
                self._grid.cell_of(cell)
        return cells

    def listed(self, span: TimeRange, most: int) -> list[tuple[int, bytes]]:
        """Starts and lines of `/v1/slots`."""
        where, values = span.where
        what = f"SELECT start_ms, listed FROM slots WHERE {where} ORDER BY start_ms LIMIT ?"
        return self._read(what, (*values, most))

    def lines(self, kind: Kind, span: TimeRange) -> list[tuple[int, int]]:
        """Start and number of records of each slot."""
        where, values = span.where
        what = f"SELECT start_ms, lines FROM slots JOIN parts USING (start_ms) WHERE kind = ? AND {where} ORDER BY 1"
        return self._read(what, (kind, *values))

    def days(self) -> tuple[str, str] | None:
        """The first and the last local day."""
        ((first, last),) = self._read("SELECT min(day), max(day) FROM slots")
        return None if first is None else (str(first), str(last))


def _slot_in(file: sqlite3.Connection, start_ms: int) -> Slot | None:
    row = file.execute("SELECT listed FROM slots WHERE start_ms = ?", (start_ms,)).fetchone()
    if row is None:
        return None
    listed = msgspec.json.decode(row[0], type=_SlotListing)
    what = "SELECT kind, body, digest, size, lines, blocks FROM parts WHERE start_ms = ?"
    parts: dict[Kind, CompressedText] = {
        kind: CompressedText(body, digest, size, lines, _blocks_of(blocks))
        for kind, body, digest, size, lines, blocks in file.execute(what, (start_ms,))
    }
    for moment in (listed.slot_start, listed.slot_end):
        datetime.fromisoformat(moment)
    if not all(part.is_whole for part in parts.values()):
        raise ValueError("the records of a slot are not those that were written")
    return Slot(start_ms, listed.slot_start, listed.slot_end, listed.version, 0, listed.hats, parts)


_blocks_of = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode


class _SlotListing(msgspec.Struct):
    slot_start: str
    slot_end: str
    version: str
    hats: dict[str, int]


def opened(name: str, grid: Grid = HEXAGONS) -> History | None:
    """The history of `dashboard.history`, or a new history in place of a damaged file; None if it
    cannot be used, which is said."""
    try:
        return History(name, grid) if name else None
    except DamagedHistory as error:
        return opened(name, grid) if set_aside(name, str(error)) else None
    except HistoryError as error:
        log_no_history(name, str(error))
        return None


def set_aside(name: str, why: str) -> bool:
    """Rename a damaged file, with what SQLite keeps beside it; False if that cannot be done."""
    aside = f"{name}.damaged"
    try:
        Path(name).replace(aside)
    except OSError as error:
        log_no_history(name, f"it is damaged ({why}), and cannot be renamed: {error.strerror}")
        return False
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{name}{end}").replace(f"{aside}{end}")
    said = f"dashboard.history: {name} is damaged ({why}): it is now {aside}; the dashboard's start begins another"
    log_message(said, "damaged_history", level=WARNING)
    return True


def log_no_history(name: str, why: str) -> None:
    """Log that there is no history, or none any more."""
    log_message(
        f"dashboard.history: {name}: no history is kept: {why}", "no_history", level=WARNING
    )
