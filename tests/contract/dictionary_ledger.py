"""The smallest ledger that keeps the promises of `port.py`: the model of stores and of
explorations."""

import threading
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import LAST_NAME, Entry, Mark, Progress
from udp_stream.ledger.rules import (
    ARCHIVED,
    Decision,
    archived_s,
    between,
    misfits,
    require_closed,
    require_not_behind,
    require_open,
    see,
)
from udp_stream.ledgers.stored import ChargedCall, Conflict, StoredLedger


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

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        with self._lock:
            found = [self._admissions.get(release_id) for release_id in release_ids]
            return [None if remembered is None else remembered.payload for remembered in found]

    def close(self) -> None:
        pass

    def _writing(self) -> AbstractContextManager[object]:
        return self._lock

    def _balances(self, periods: Sequence[str], plates: Sequence[bytes]) -> NDArray[np.int64]:
        with self._lock:
            found = [
                [
                    (self._sums.get((period, plate), 0), self._charges.get((period, plate), 0))
                    for plate in plates
                ]
                for period in periods
            ]
        return np.array(found, np.int64).reshape(len(periods), len(plates), 2)

    def _commit(self, call: ChargedCall) -> Conflict | None:
        if known := {
            name: self._admissions[name].decision
            for name in call.decided
            if name in self._admissions
        }:
            return Conflict(known)
        require_open(call.decided, archived_s(self._meta))
        before = self._balances([call.period], call.plates)[0]
        if (before[:, 0] > call.room).any():
            return Conflict({}, before[:, 0])
        for name, decision in call.decided.items():
            self._admissions[name] = _Remembered(call.period, call.budget, decision)
        self._settle(call.period, call.plates, before + np.stack([call.asked, call.times], axis=1))
        return None

    def _settle(self, period: str, plates: Sequence[bytes], table: NDArray[np.int64]) -> None:
        if plates and period not in self._periods:
            insort(self._periods, period)
        for plate, (charged, charges) in zip(plates, table.tolist(), strict=True):
            self._sums[period, plate] = charged
            self._charges[period, plate] = charges

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        with self._lock:
            if any(release_id not in self._admissions for release_id, _ in releases):
                raise PrivacyRefused(
                    "expected an admission before each record, got a release id without one"
                )
            require_open(
                (name for name, _ in releases if self._admissions[name].payload is None),
                archived_s(self._meta),
            )
            return [self._record(release_id, payload) for release_id, payload in releases]

    def _record(self, release_id: str, payload: bytes) -> bytes:
        remembered = self._admissions[release_id]
        if remembered.payload is None:
            remembered.payload = payload
            self._recorded.append(release_id)
        return remembered.payload

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

    def entries(self) -> Iterator[Entry]:
        with self._lock:
            remembered = list(self._admissions.items())
        for release_id, one in remembered:
            plates, charged = tuple(one.decision.names()), one.decision.charged.copy()
            terms = one.decision.terms
            yield Entry(
                release_id,
                one.period,
                one.budget,
                plates,
                charged,
                one.payload,
                one.published,
                terms,
            )

    def newest(self) -> Iterator[str]:
        with self._lock:
            remembered = list(self._admissions)
        yield from reversed(remembered)

    def verify(self) -> list[str]:
        with self._lock:
            balances = [(*one, amount, self._charges[one]) for one, amount in self._sums.items()]
        return list(misfits(self.entries(), balances))

    def close_before(self, end_s: int) -> int:
        with self._lock:
            before = archived_s(self._meta)
            self._meta[ARCHIVED] = str(end_s if before is None else max(before, end_s))
            return int(self._meta[ARCHIVED])

    def drop(self, period: str, release_ids: Sequence[str]) -> None:
        with self._lock:
            require_closed(release_ids, archived_s(self._meta))
            for release_id in release_ids:
                if (gone := self._admissions.pop(release_id, None)) is not None:
                    self._dropped += np.array([1, gone.payload is not None])
            self._recorded = [name for name in self._recorded if name in self._admissions]
            self._periods = [name for name in self._periods if name != period]
            for sums in (self._sums, self._charges):
                for key in [key for key in sums if key[0] == period]:
                    del sums[key]

    def note(self, name: str, text: str) -> str:
        with self._lock:
            return self._meta.setdefault(name, text)

    def meta(self) -> dict[str, str]:
        with self._lock:
            return dict(self._meta)

    def progress(self) -> Progress:
        with self._lock:
            ids = list(self._admissions)
            admitted, recorded = (
                self._dropped + np.array([len(ids), len(self._recorded)])
            ).tolist()
            return Progress(admitted, recorded, ids[0] if ids else None, ids[-1] if ids else None)

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        with self._lock:
            return between(self._periods, first, last)

    def mark(self, release_id: str) -> Mark:
        return see(self, release_id).mark(release_id)

    def compare(self, mark: Mark | None = None) -> None:
        if mark is not None:
            require_not_behind(see(self, mark.release_id), mark, "in memory")
