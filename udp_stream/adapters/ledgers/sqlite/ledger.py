"""The ledger in one SQLite file: the promises of `port.py`, kept by transactions and a synced write-ahead log.

Three tables carry it. `admissions` has one row per HAT, its plates and what each was charged packed into BLOBs; it is
only ever added to, and a trigger holds that. `balances` sums it by plate and period, is changed in the transaction that
adds the admission, and can be rebuilt from it (`verify`). `releases` keeps the first payload of a release id.

Every write is one `BEGIN IMMEDIATE` transaction: it reads balances only once it holds the file's single write lock, so
two writers cannot both charge the same nano-unit of a budget. `synchronous=FULL` syncs the log before a call returns.

`file.py` makes the file and opens it, and refuses one that lost what it knew. A ledger that is bound to another
plate key is refused too, and, with `id_file`, one that is not where it was: starting anew would hand out every budget
again.

One connection serves one thread. Writers in other threads and processes open the same path again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.ledgers.ledger_id import compare, known_ledger, raise_mark
from udp_stream.adapters.ledgers.sqlite.file import FilesInUse, open_ledger_file, usable
from udp_stream.adapters.ledgers.sqlite.queries import (
    CHARGE,
    ENTRIES,
    ONLY_ADDED,
    PERIODS,
    PERIODS_OF_PLATE,
    REMEMBER,
)
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.packing import Decision, amounts, amounts_of, column, cut
from udp_stream.ledger.port import LAST_NAME, Admission, Balance, Entry, Mark, Progress, Verdict
from udp_stream.ledger.rolling import most_elsewhere, names_around, windows_around
from udp_stream.ledger.rules import decide_in_turn, misfits, require_valid

CHUNK = 500  # host parameters in one statement; older builds of SQLite allow 999
PAGE = 500  # rows that an iterator reads at a time


def open_sqlite_ledger(path: str | os.PathLike[str], *, id_file: str | os.PathLike[str] | None = None) -> SqliteLedger:
    """Open the ledger at `path`, or make it (mode 0600) if nothing is there; use it as a context manager.

    `id_file` says which ledger it was, and its high-water mark, so that one that is lost or older is noticed
    (`ledger_id.adopt` makes it).

    Raises DependencyUnavailable if the directory is missing or a file cannot be used, and PrivacyRefused for a file
    that is no ledger of ours, is empty, lost its main file, was written by a newer version, or is not the ledger known.

    >>> import tempfile
    >>> hat = Admission("hat", np.array([0, 1]), np.array([4, 7]), min_admitted=1, terms=b"")
    >>> with tempfile.TemporaryDirectory() as folder, open_sqlite_ledger(f"{folder}/ledger") as ledger:
    ...     ledger.admit("2024-05-01", 5, [b"one", b"two"], [hat])[0].charged
    ...     ledger.record([("hat", b"first")]), ledger.record([("hat", b"second")])
    array([4, 0])
    ([b'first'], [b'first'])
    """
    where = Path(path).resolve()
    known = known_ledger(id_file)
    return SqliteLedger(where, *open_ledger_file(where, known), id_file)


class SqliteLedger:
    """A `ports.Ledger` in a file, for one thread; make it with `open_sqlite_ledger`.

    Any call may raise DependencyUnavailable (disk full, locked for a minute, damaged); what it asked for may then be
    remembered or not, and asking again tells.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        files: FilesInUse,
        id_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take over a connection that is known to be a ledger's and durable, to these files."""
        self.path = path
        self._files = files
        self._id_file = id_file
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

    def bind(self, fingerprint: str) -> None:
        """Tie the ledger to the key of its plates' hashes, for ever.

        Raises PrivacyRefused if it is tied to another key: every plate would look new and get its budget again.
        """
        if (bound := self.note("key_fingerprint", fingerprint)) != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger {self.path} was bound to, got {fingerprint}: "
                "restore the key file"
            )

    def note(self, name: str, text: str) -> str:
        """Remember a fact about the ledger for ever; returns the first text kept under this name."""
        with self._transaction("IMMEDIATE"):
            self._connection.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", (name, text))
            return self._meta()[name]

    def meta(self) -> dict[str, str]:
        """What the ledger knows of itself: `schema`, `ledger_id`, `made` (when), `key_fingerprint` once it is bound,
        and what was noted."""
        with usable(self.path):
            return self._meta()

    def _meta(self) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, value FROM meta ORDER BY name"))

    def progress(self) -> Progress:
        """How far it has come: rows are only ever added, so their numbers count them."""
        ends = "SELECT release_id FROM admissions ORDER BY sequence {} LIMIT 1"
        with self._transaction("DEFERRED"):
            admitted, recorded = (self._first(f"SELECT max(sequence) FROM {table}") for table in ONLY_ADDED)
            oldest, newest = (self._first(ends.format(order)) for order in ("ASC", "DESC"))
        return Progress(admitted or 0, recorded or 0, oldest, newest)

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        """Every period in which some plate was charged, sorted; of names from the first to the last."""
        with usable(self.path):
            return self._periods(first, last)

    def _periods(self, first: str, last: str) -> list[str]:
        found = self._connection.execute(PERIODS, {"first": first, "last": last})
        return [period for (period,) in found]

    def mark(self, release_id: str) -> Mark:
        """Raise the high-water mark beside the plates' key; PrivacyRefused if the ledger is behind it, or its file was
        removed or replaced since it was opened."""
        self._files.require_in_place()
        return raise_mark(self, self._id_file, self.path, release_id)

    def compare(self, mark: Mark | None = None) -> None:
        """PrivacyRefused if the ledger is behind the mark beside the plates' key, or behind this one."""
        compare(self, self._id_file, self.path, mark)

    def _first(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        return None if row is None else row[0]

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        with self._transaction("DEFERRED"):
            payloads = self._payloads(release_ids)
        return [payloads.get(release_id) for release_id in release_ids]

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """The sum of each plate's charges in the period."""
        with self._transaction("DEFERRED"):
            return self._balances(period, plates)

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        Plates are distinct and of one length; ValueError, charging no plate, if a rule of `require_valid` is broken.
        """
        require_valid(budget, plates, admissions)
        packed = column(plates)
        with self._transaction("IMMEDIATE"):
            decided = self._decisions([one.release_id for one in admissions])
            fresh: dict[str, Admission] = {}
            for one in admissions:
                if one.release_id not in decided:
                    fresh.setdefault(one.release_id, one)
            if fresh:
                decided |= self._decide(period, budget, plates, packed, fresh)
        return [decided[one.release_id].recalled(packed[one.members].tobytes(), one.members.size) for one in admissions]

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Record payloads; return what is recorded under each id: its first payload.

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

    def charged_by_period(self, plate: bytes) -> dict[str, int]:
        """Nano-units that the plate was charged, by period."""
        with usable(self.path):
            found = {"first": "", "last": LAST_NAME, "plate": plate}
            return dict(self._connection.execute(PERIODS_OF_PLATE, found))

    def entries(self) -> Iterator[Entry]:
        """Every admission ever made, oldest first; those made while iterating may be among them."""
        for _, release_id, period, budget, plates, charged, payload, published in self._pages(ENTRIES):
            each = amounts(charged)
            yield Entry(release_id, period, budget, tuple(cut(plates, each.size)), each, payload, bool(published))

    def newest(self) -> Iterator[str]:
        """The id of every admission, newest first."""
        query = "SELECT sequence, release_id FROM admissions WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"
        yield from (release_id for _, release_id in self._pages(query, first=2**62))

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
        with usable(self.path):
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

    def _pages(self, query: str, first: int = 0) -> Iterator[Any]:
        """Rows of a query over (sequence behind, limit); no statement is open while the caller has the row."""
        last = first
        while True:
            with usable(self.path):
                page = self._connection.execute(query, (last, PAGE)).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            last = page[-1][0]

    def _payloads(self, release_ids: Sequence[str]) -> dict[str, bytes]:
        return dict(self._where_in("SELECT release_id, payload FROM releases WHERE release_id", release_ids))

    def _decisions(self, release_ids: Sequence[str]) -> dict[str, Decision]:
        query = "SELECT release_id, plates, charged, terms FROM admissions WHERE release_id"
        rows = self._where_in(query, release_ids)
        return {release_id: Decision(plates, amounts(charged), terms) for release_id, plates, charged, terms in rows}

    def _balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        query = "SELECT plate, spent, charges FROM balances WHERE period = ? AND plate"
        found = {plate: (charged, charges) for plate, charged, charges in self._where_in(query, sorted(plates), period)}
        table = np.array([found.get(plate, (0, 0)) for plate in plates], np.int64).reshape(-1, 2)
        return Balance(charged=table[:, 0], charges=table[:, 1])

    def _decide(
        self, period: str, budget: int, plates: Sequence[bytes], packed: NDArray[np.void], fresh: dict[str, Admission]
    ) -> dict[str, Decision]:
        """Decide, charge and remember HATs that were never asked about, in the order given."""
        balance, hats = self._balances(period, plates), list(fresh.values())
        elsewhere = self._elsewhere(period, plates)
        balance.charged[:] += elsewhere
        decided = {
            one.release_id: Decision(packed[one.members].tobytes(), charged, one.terms)
            for one, charged in zip(hats, decide_in_turn(balance, budget, hats), strict=True)
        }
        balance.charged[:] -= elsewhere
        touched = np.unique(np.concatenate([one.members for one in hats]))
        self._settle(period, plates, balance, touched[balance.charges[touched] > 0])
        self._remember(period, budget, decided)
        return decided

    def _elsewhere(self, period: str, plates: Sequence[bytes]) -> NDArray[np.int64]:
        """What each was charged in the other spans of a window; 0 in a calendar's period."""
        bounds = names_around(period)
        windows = windows_around(period, self._periods(*bounds) if bounds else ())
        return most_elsewhere(windows, lambda other: self._balances(other, plates).charged, len(plates))

    def _settle(self, period: str, plates: Sequence[bytes], balance: Balance, touched: NDArray[np.int64]) -> None:
        sums, charges = balance.charged.tolist(), balance.charges.tolist()
        in_key_order = sorted(touched.tolist(), key=plates.__getitem__)  # neighbours on a page are written together
        self._connection.executemany(CHARGE, ((period, plates[i], sums[i], charges[i]) for i in in_key_order))

    def _remember(self, period: str, budget: int, decided: dict[str, Decision]) -> None:
        rows = (
            (release_id, period, budget, one.terms, one.plates, amounts_of(one.charged))
            for release_id, one in decided.items()
        )
        self._connection.executemany(REMEMBER, rows)
