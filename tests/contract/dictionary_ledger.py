"""The smallest ledger that keeps the promises of `port.py`: the model of stores."""

import threading
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Entry, Mark, Progress
from udp_stream.ledger.rules import (
    ARCHIVED,
    Decision,
    archived_s,
    between,
    require_not_behind,
    require_open,
    see,
)
from udp_stream.ledgers.stored import Change, Found, Reads, StoredLedger, Transaction


@dataclass(slots=True)
class _Remembered:
    period: str
    budget: int
    decision: Decision
    payload: bytes | None = None
    published: bool = False


class DictionaryLedger(StoredLedger):
    """A store of dictionaries, for any number of threads."""

    place = "in memory"

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._sums: dict[tuple[str, bytes], int] = {}
        self._charges: dict[tuple[str, bytes], int] = {}
        self._admissions: dict[str, _Remembered] = {}
        self._periods: list[str] = []
        self._recorded: list[str] = []
        self._dropped = np.zeros(2, np.int64)
        # The address tells apart the ledgers that live at the same time, and none outlives its
        # process.
        self._meta = {"ledger_id": f"memory-{id(self):x}"}

    def close(self) -> None:
        pass

    def _using(self, _transaction: Transaction) -> AbstractContextManager[object]:
        return self._lock

    def _read(self, asked: Reads) -> Found:
        with self._lock:
            found = {
                name: self._admissions[name]
                for name in {*asked.payloads, *asked.decisions}
                if name in self._admissions
            }
            names = [name for ends in asked.ranges for name in between(self._periods, *ends)]
            table = [
                [
                    (self._sums.get((period, plate), 0), self._charges.get((period, plate), 0))
                    for plate in asked.plates
                ]
                for period in asked.periods
            ]
            ids = list(self._admissions)
            counts = self._dropped + np.array([len(ids), len(self._recorded)])
            ends = (ids[0], ids[-1]) if ids else (None, None)
            payloads = {name: found[name].payload for name in asked.payloads if name in found}
            return Found(
                {name: payload for name, payload in payloads.items() if payload is not None},
                {name: found[name].decision for name in asked.decisions if name in found},
                names,
                np.array(table, np.int64).reshape(len(asked.periods), len(asked.plates), 2),
                dict(self._meta),
                Progress(*counts.tolist(), *ends),
            )

    def _commit(self, change: Change) -> bool:
        with self._lock:
            ids = [*change.decided, *change.admitted]
            read = self._read(Reads([*change.payloads], ids, (), [change.period], change.plates))
            if read.payloads or read.decisions.keys() != {*change.admitted}:
                return False
            require_open([*change.decided, *change.payloads], archived_s(self._meta))
            (before,) = read.balances
            if change.version is not None and change.version != self.progress().admitted:
                return False
            if (before[:, 0] > change.room).any():
                return False
            for name, decision in change.decided.items():
                self._admissions[name] = _Remembered(change.period, change.budget, decision)
            for name, payload in change.payloads.items():
                self._record(name, payload)
            after = before + np.stack([change.asked, change.times], axis=1)
            self._settle(change.period, change.plates, after)
            if change.dropped:
                self._forget(change)
            return True

    def _record(self, release_id: str, payload: bytes) -> None:
        self._admissions[release_id].payload = payload
        self._recorded.append(release_id)

    def _settle(self, period: str, plates: Sequence[bytes], table: NDArray[np.int64]) -> None:
        if plates and period not in self._periods:
            insort(self._periods, period)
        for plate, (charged, charges) in zip(plates, table.tolist(), strict=True):
            self._sums[period, plate] = charged
            self._charges[period, plate] = charges

    def published(self, release_ids: Sequence[str]) -> None:
        with self._lock:
            for release_id in release_ids:
                remembered = self._admissions.get(release_id)
                if remembered is not None and remembered.payload is not None:
                    remembered.published = True

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        with self._lock:
            found = [(release_id, self._admissions[release_id]) for release_id in self._recorded]
            waiting = [
                (name, one.payload)
                for name, one in found
                if one.payload is not None and not one.published
            ]
        # Outside of the lock: a caller may call `published` while it iterates.
        yield from waiting

    def _scan(self) -> Iterator[tuple[str, Entry | None]]:
        with self._lock:
            remembered = list(self._admissions.items())
        for name, one in remembered:
            plates, charged = tuple(one.decision.names()), one.decision.charged.copy()
            entry = Entry(
                name, one.period, one.budget, plates, charged, one.payload, one.published, one.decision.terms
            )  # fmt: skip
            yield name, entry

    def newest(self) -> Iterator[str]:
        with self._lock:
            remembered = list(self._admissions)
        yield from reversed(remembered)

    def _snapshot(self, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
        rows = [
            (*key, amount, self._charges[key])
            for key, amount in self._sums.items()
            if key[0] == period
        ]
        return len(self._admissions), rows

    def _unadmitted(self) -> list[str]:
        return []

    def close_before(self, end_s: int) -> int:
        with self._lock:
            before = archived_s(self._meta)
            self._meta[ARCHIVED] = str(end_s if before is None else max(before, end_s))
            return int(self._meta[ARCHIVED])

    def _forget(self, change: Change) -> None:
        for name in change.dropped:
            self._dropped += np.array([1, self._admissions.pop(name).payload is not None])
        self._recorded = [name for name in self._recorded if name in self._admissions]
        self._periods = [name for name in self._periods if name != change.period]
        for sums in (self._sums, self._charges):
            for key in [key for key in sums if key[0] == change.period]:
                del sums[key]

    def note(self, name: str, text: str) -> str:
        with self._lock:
            return self._meta.setdefault(name, text)

    def mark(self, release_id: str) -> Mark:
        return see(self, release_id).mark(release_id)

    def compare(self, mark: Mark | None = None) -> None:
        if mark is not None:
            require_not_behind(see(self, mark.release_id), mark, "in memory")
