"""The part of the promises of `port.py` that is the same over every store: who is charged, what is
recorded and dropped, to which key a ledger is bound, its high-water mark, whether it adds up.

**A store** answers reads (`_read`), makes a change at once or not at all (`_commit`), and lists what
it holds. **The charging rule** is here (`rules.decide_in_order`), and a store has none of it. A
store makes a change *if what it was decided from still holds*; else what it holds is read, and the
call is decided again. So a call over Redis is mostly one round trip, as nothing has to be asked
before: the first decision is made as if no plate had been charged and no id were known.

That is sound because balances only grow. A decision stands as long as everybody who pays can still
pay: `Charges.room` is what a plate may have been charged before. Whoever was halted stays halted.
So writers who charge the same plates at the same time do not disturb each other while there is
budget left for both. A decision is made again only if

* an id of the call is known by now; each try has fewer unknown ids;
* charges of others have used up the room of a plate. A plate's budget is used up once;
* a rolling budget: others have charged meanwhile, as `admitted` tells, the ledger's version.

Each of these is the progress of another writer, and ids and budgets are finite: however many
writers there are, a call ends.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np

from udp_stream.base.arrays import NO_INTEGERS, Integers
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import (
    LAST_NAME,
    Admission,
    Balance,
    Entry,
    Ledger,
    LedgerView,
    Mark,
    Progress,
    Verdict,
)
from udp_stream.ledger.rules import (
    AMOUNT_LIMIT,
    Decision,
    archived_s,
    column,
    compared_ranges,
    decide_in_order,
    misfits,
    names_around,
    never_admitted,
    require_closed,
    require_valid,
    windows_around,
)
from udp_stream.ledgers.keys import compare, raise_mark

TRIES_MAX = 1000
"""Decisions of a call while others charge its plates; each of them has used up a plate's budget, or
rolls."""

NO_PROGRESS = Progress(0, 0, None, None)

T = TypeVar("T")
Transaction = Literal["DEFERRED", "IMMEDIATE"]


class Reads(NamedTuple):
    """The parts of a store that are asked for in one request: records and decisions of ids, names
    of charged periods in ranges (both ends included), balances of plates in periods, its state."""

    payloads: Sequence[str] = ()
    decisions: Sequence[str] = ()
    ranges: Sequence[tuple[str, str]] = ()
    periods: Sequence[str] = ()
    plates: Sequence[bytes] = ()
    state: bool = False


class Found(NamedTuple):
    """The answers of a store to `Reads`. `names` are sorted within each range; `balances` are
    amounts and numbers of charges, periods x plates x 2."""

    payloads: dict[str, bytes]
    decisions: dict[str, Decision]
    names: list[str]
    balances: Integers
    meta: dict[str, str]
    progress: Progress


class Change(NamedTuple):
    """A change that a store makes at once, durably, if it still holds: no id of `decided` and
    `payloads` is known, every id of `admitted` is, no plate was charged more than its room, and, in
    a rolling budget, nothing was admitted since there were `version` HATs.

    `decided` are HATs to be remembered, `payloads` records to be kept, and `dropped` entries to be
    taken away. Of each plate that pays: what it pays, in how many charges (both negative of entries
    that are dropped), and the largest balance of the period under which this was decided.
    """

    period: str = ""
    budget: int = 0
    decided: Mapping[str, Decision] = {}
    payloads: Mapping[str, bytes] = {}
    admitted: Sequence[str] = ()
    dropped: Sequence[str] = ()
    plates: Sequence[bytes] = ()
    asked: Integers = NO_INTEGERS
    times: Integers = NO_INTEGERS
    room: Integers = NO_INTEGERS
    version: int | None = None


class Batch(NamedTuple):
    """The most that a store takes in one change: so many items, of so much together, or a larger
    item alone."""

    items: int
    size: int

    def cut(self, items: Sequence[T], sizes: Iterable[int]) -> list[Sequence[T]]:
        """The same in order, in batches."""
        starts = [0]
        together = 0
        for at, size in enumerate(sizes):
            together += size
            if together > self.size or at - starts[-1] == self.items:
                starts.append(at)
                together = size
        return [items[start:end] for start, end in pairwise([*starts, len(items)]) if start < end]


ANY = Batch(2**62, 2**62)


class StoredLedger(Ledger):
    """A `port.Ledger` over a store, which a subclass is: the calls that are abstract here. `place`
    is where it is, for people."""

    place: object
    hats = ANY  # by members
    releases = ANY  # by bytes

    def __init__(self, id_file: str | os.PathLike[str] | None = None) -> None:
        self._id_file = id_file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _read(self, asked: Reads) -> Found:
        """All of it in one request."""

    @abstractmethod
    def _commit(self, change: Change) -> bool:
        """Make the change; False if it does not hold. PrivacyRefused if something new is of a time
        that is closed."""

    @abstractmethod
    def _scan(self) -> Iterator[tuple[str, Entry | None]]:
        """Every admission ever made, oldest first: its id, and None where it is lost."""

    @abstractmethod
    def _snapshot(self, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
        """How many admissions there were, and the period's (period, plate, charged, charges) at
        that moment."""

    @abstractmethod
    def _unadmitted(self) -> Iterable[str]:
        """Ids that have a record and no admission."""

    def _damage(self) -> list[str]:
        """A sentence for each fault of the store itself."""
        return []

    def _using(self, _transaction: Transaction) -> AbstractContextManager[object]:
        """Around reads of a single moment and, IMMEDIATE, around what is read and committed: where
        a store has transactions."""
        return nullcontext()

    def _likely_balances(self, period: str, plates: Sequence[bytes]) -> Integers:
        """Under which a call is decided first; 0 where to read them takes a round trip."""
        del period
        return np.zeros(len(plates), np.int64)

    def bind(self, fingerprint: str) -> None:
        if (bound := self.note("key_fingerprint", fingerprint)) != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger at {self.place} was bound to, got {fingerprint}: "
                "restore the key file"
            )

    def mark(self, release_id: str) -> Mark:
        return raise_mark(self, self._id_file, self.place, release_id)

    def compare(self, mark: Mark | None = None) -> None:
        compare(self, self._id_file, self.place, mark)

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        payloads = self._read(Reads(payloads=release_ids)).payloads
        return [payloads.get(name) for name in release_ids]

    def view(self, period: str, plates: Sequence[bytes], release_ids: Sequence[str]) -> LedgerView:
        ranges = compared_ranges(period) if period else ()
        found = self._read(Reads(release_ids, (), ranges, [period], plates, state=True))
        windows = windows_around(period, found.names)
        others = self._balances(windows.others, plates)
        table = found.balances[0] + np.stack([windows.most(others[..., i]) for i in (0, 1)], axis=1)
        payloads = tuple(found.payloads.get(name) for name in release_ids)
        return LedgerView(payloads, found.meta, found.names, _balance(table), found.progress)

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        (table,) = self._balances([period], plates)
        return _balance(table)

    def charged_by_period(self, plate: bytes) -> dict[str, int]:
        periods = self.periods()
        sums = self._balances(periods, [plate])[:, 0, 0].tolist()
        return {period: amount for period, amount in zip(periods, sums, strict=True) if amount}

    def meta(self) -> dict[str, str]:
        return self._read(Reads(state=True)).meta

    def progress(self) -> Progress:
        return self._read(Reads(state=True)).progress

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        return self._read(Reads(ranges=[(first, last)])).names

    def _balances(self, periods: Sequence[str], plates: Sequence[bytes]) -> Integers:
        return self._read(Reads(periods=periods, plates=plates)).balances

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        ValueError, charging no plate, if a rule of `require_valid` is broken. PrivacyRefused if a
        HAT is of a time that is closed; where a store takes a call in several batches, those before
        are kept.
        """
        require_valid(budget, plates, admissions)
        packed = column(plates)
        known: dict[str, Decision] = {}
        for batch in self.hats.cut(admissions, (asked.members.size for asked in admissions)):
            if sum(asked.members.size for asked in batch) < len(plates):
                self._admit(period, budget, *_narrowed(plates, batch), known)
            else:
                self._admit(period, budget, plates, batch, known)
        return [
            known[asked.release_id].recalled(packed[asked.members].tobytes(), asked.members.size)
            for asked in admissions
        ]

    def _admit(
        self,
        period: str,
        budget: int,
        plates: Sequence[bytes],
        batch: Sequence[Admission],
        known: dict[str, Decision],
    ) -> None:
        """Add the decision of each HAT to those known."""
        packed = column(plates)
        with self._using("IMMEDIATE"):
            balances = self._likely_balances(period, plates)
            for _ in range(TRIES_MAX):
                fresh = _fresh(((asked.release_id, asked) for asked in batch), known)
                if not fresh:
                    return
                elsewhere, version = self._elsewhere(period, plates)
                charges = decide_in_order(balances + elsewhere, budget, list(fresh.values()))
                decided = {
                    name: Decision(packed[asked.members].tobytes(), charged, asked.terms)
                    for (name, asked), charged in zip(fresh.items(), charges.charged, strict=True)
                }
                paying = np.flatnonzero(charges.times)
                change = Change(
                    period,
                    budget,
                    decided,
                    plates=[plates[i] for i in paying.tolist()],
                    asked=charges.asked[paying],
                    times=charges.times[paying],
                    room=(charges.room - elsewhere)[paying],
                    version=version,
                )
                if self._commit(change):
                    known |= decided
                    return
                found = self._read(Reads((), list(fresh), (), [period], plates))
                known |= found.decisions
                balances = found.balances[0, :, 0]
        raise DependencyUnavailable(
            f"the ledger at {self.place}: others have charged the plates of {period} again and again, {TRIES_MAX} "
            "times: start again"
        )

    def _elsewhere(self, period: str, plates: Sequence[bytes]) -> tuple[Integers, int | None]:
        """The most that each plate was charged in other spans of any one window of a rolling
        budget, and how many HATs had been admitted before this was read."""
        bounds = names_around(period)
        if bounds is None or not plates:  # nobody is charged
            return np.zeros(len(plates), np.int64), None
        found = self._read(Reads(ranges=[bounds], state=True))
        windows = windows_around(period, found.names)
        most = windows.most(self._balances(windows.others, plates)[..., 0])
        return most, found.progress.admitted

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """As `Ledger.record`. Where a store takes a call in several batches, one that ends in the
        middle keeps some records; a repeat does the rest."""
        kept: dict[str, bytes] = {}
        batches = self.releases.cut(releases, (len(payload) for _, payload in releases))
        with self._using("IMMEDIATE"):
            if len(batches) > 1:
                for batch in batches:
                    self._keep(Change(admitted=[name for name, _ in batch]))
            for batch in batches:
                while fresh := _fresh(batch, kept):
                    kept |= self._keep(Change(payloads=fresh, admitted=list(fresh)))
        return [kept[name] for name, _ in releases]

    def _keep(self, change: Change) -> Mapping[str, bytes]:
        """The records of it that stand: all if it was made, else those that were known."""
        if self._commit(change):
            return change.payloads
        found = self._read(Reads(list(change.payloads), change.admitted))
        for name in change.admitted:
            if name not in found.decisions:
                raise never_admitted(name)
        return found.payloads

    def drop(self, period: str, release_ids: Sequence[str]) -> None:
        require_closed(release_ids, archived_s(self.meta()))
        for batch in self.releases.cut(release_ids, (1 for _ in release_ids)):
            with self._using("IMMEDIATE"):
                while not self._commit(self._drop(period, batch)):
                    pass  # others have dropped some meanwhile

    def _drop(self, period: str, release_ids: Sequence[str]) -> Change:
        """Takes away those that are there, and their charges from the period's balances."""
        found = self._read(Reads(decisions=release_ids)).decisions
        sums: dict[bytes, tuple[int, int]] = {}
        for decision in found.values():
            for plate, amount in zip(decision.names(), decision.charged.tolist(), strict=True):
                if amount > 0:
                    asked, times = sums.get(plate, (0, 0))
                    sums[plate] = asked - amount, times - 1
        table = np.array(list(sums.values()), np.int64).reshape(-1, 2)
        return Change(
            period,
            admitted=list(found),
            dropped=list(found),
            plates=list(sums),
            asked=table[:, 0],
            times=table[:, 1],
            room=np.full(len(sums), AMOUNT_LIMIT),
        )

    def entries(self) -> Iterator[Entry]:
        """As `Ledger.entries`; PrivacyRefused at an admission that is listed and not there any
        more."""
        for name, entry in self._scan():
            if entry is None:
                raise PrivacyRefused(
                    f"expected the admission of {name!r}, got none: the ledger has lost it; restore it"
                )
            yield entry

    def verify(self) -> list[str]:
        """As `Ledger.verify`, and whether the store is damaged; the balances of each period are of
        one moment, and others may write meanwhile."""
        lost: list[str] = []
        with self._using("DEFERRED"):
            # Before the periods are listed: entries of a period that begins later lie behind this
            # place.
            first, balances = self._snapshot("")
            until: dict[str, int] = {}
            for period in self.periods():
                until[period], of_period = self._snapshot(period)
                balances += of_period

            def until_read() -> Iterator[Entry]:
                for place, (name, entry) in enumerate(self._scan()):
                    if entry is None:
                        lost.append(f"{name}: admitted, but its admission is gone")
                    elif place < until.get(entry.period, first):
                        yield entry

            damage = self._damage()
            sums = list(misfits(until_read(), balances))
            orphans = [f"{name}: released, but never admitted" for name in self._unadmitted()]
        return damage + lost + sums + orphans


def _fresh(pairs: Iterable[tuple[str, T]], known: Container[str]) -> dict[str, T]:
    """The first of each name that is not known."""
    fresh: dict[str, T] = {}
    for name, value in pairs:
        if name not in known:
            fresh.setdefault(name, value)
    return fresh


def _balance(table: Integers) -> Balance:
    return Balance(charged=table[:, 0].copy(), charges=table[:, 1].copy())


def _narrowed(
    plates: Sequence[bytes], batch: Sequence[Admission]
) -> tuple[list[bytes], list[Admission]]:
    """The plates of some HATs alone, and these HATs by them."""
    members = np.concatenate([asked.members for asked in batch])
    named, places = np.unique(members, return_inverse=True)
    starts = np.cumsum([asked.members.size for asked in batch])[:-1]
    return [plates[i] for i in named.tolist()], [
        replace(asked, members=place)
        for asked, place in zip(batch, np.split(places, starts), strict=True)
    ]
