"""The ledger in Redis: the promises of `port.py`, kept by Lua scripts and a synced append-only file.

Theory of operation. Redis runs one script at a time and nothing in between, so a script is a transaction.
`admit.lua` takes some hundred HATs, in the order given: one that is remembered is answered with that; if the
caller's epoch is stale, it refuses; else it decides for every plate, or for all HATs at once where each plate can pay
for all of them. At its end it charges and remembers, all at once.
`record.lua` takes some thousand payloads and keeps the first of each id. A call is as many scripts as it takes,
one after the other. Sending any of them twice is harmless, so a script without an answer is sent again
(`connection.py`). A worker that dies between two scripts leaves some HATs done and others not, as between two calls.

A `record` of several scripts keeps nothing if an id was never admitted: it asks first, and admissions stay for ever.

**One hash slot.** The plates of a HAT are charged together or not at all (`min_admitted`), so one script must reach
all of them, and with them the order of admissions, the payloads and the fencing epochs. In a cluster a script reaches
one hash slot. So all keys of a deployment share one hash tag, `{udp}` unless told otherwise: in a cluster the ledger
lives on one shard and its replicas, and a second city takes another prefix. One core is far more than one city needs.
Measured on two shared cores with every write synced: 3,000 HATs of 50 plates are admitted in 0.2 s (650,000 plates a
second) and recorded in 0.07 s, one HAT alone in 0.6 ms. Redis does nothing else during a script: 30 ms for 50,000
plates (`BATCH_MEMBERS`), 40 ms for 5,000 payloads (`BATCH_RELEASES`). One script has all plates of a HAT: 0.3 s for
100,000, 5 s for a million, which a cluster's `cluster-node-timeout` (15 s) has to exceed.

**Durability, and a wiped ledger.** `opening.py` says what is refused, and why.

**Fencing.** A worker that takes over a shard takes its next epoch (`take_epoch`); an owner with an earlier one can
neither admit nor record anything new (`Fenced`), only read what is recorded.

**Size.** A HAT of 50 plates with a payload of 1.5 kB takes 3 kB of memory, for ever; nothing expires. What may be moved
away by hand, while nothing runs and after an export of the entries: of HATs whose slots the input log cannot bring
again (older than its topic keeps), all of a period at once, `admission:ID`, `release:ID`, their places in `order`, and
at last `balance:PERIOD` and its place in `periods` or `spans`. Never earlier: without its admission a HAT would be
drawn anew. `session.py` lists the keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.ledgers.ledger_id import compare, raise_mark
from udp_stream.adapters.ledgers.redis import packing
from udp_stream.adapters.ledgers.redis.audit import discrepancies, listed, newest, periods
from udp_stream.adapters.ledgers.redis.connection import Command
from udp_stream.adapters.ledgers.redis.near import NO_SPANS, NearSpans, windows_of
from udp_stream.adapters.ledgers.redis.packing import decoded, encoded
from udp_stream.adapters.ledgers.redis.session import CHUNK, Fence, Session
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.packing import amounts, amounts_of, column
from udp_stream.ledger.port import LAST_NAME, Admission, Balance, Entry, Mark, Progress, Verdict
from udp_stream.ledger.rules import require_valid

MEMBERS_MAX = 20_000_000  # of a HAT: 24 bytes each, and Redis takes values of 512 MB
BATCH_MEMBERS, BATCH_HATS = 50_000, 1000  # that one script admits: 30 ms, during which Redis does nothing else
ROLLING_MEMBERS = 6000  # that one script admits where budgets roll: it looks each plate up in up to 25 spans
BATCH_RELEASES, BATCH_BYTES = 5000, 8_000_000  # that one script records: 40 ms, likewise
MOVED_MAX = 100  # tries of a script while others charge in new spans of time: a slot has one
PAGE = 500  # what `unpublished` reads at a time
EPOCH, ADMITTED = "epoch:", "admitted"  # among the marks: a shard's epoch, and how many HATs were ever admitted

T = TypeVar("T")
Plates = NDArray[np.void]  # of one length, as `column` makes them


class RedisLedger:
    """A `ports.Ledger` in Redis, for any number of threads; `opening.py` makes it.

    Any call may raise DependencyUnavailable once it has asked again for some ten seconds (45 where replicas stay away);
    what it asked for may then be remembered or not, and asking again tells. A call that charges or records raises
    PrivacyRefused if the ledger was wiped, and Fenced where the caller holds a `Fence` that is stale.
    """

    def __init__(self, session: Session, id_file: str | os.PathLike[str] | None = None) -> None:
        """Take over the way to what is known to be a ledger, and durable."""
        self._session = session
        self._id_file = id_file

    def __enter__(self) -> Self:
        """Open already; closes on leaving."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, whatever happened."""
        self.close()

    def close(self) -> None:
        """Close the connections, also those of ledgers made with `fenced`."""
        self._session.connection.close()

    @property
    def ledger_id(self) -> str:
        """Names this ledger among all others: 32 hex digits."""
        return self._session.ledger_id

    def take_epoch(self, shard: str) -> int:
        """The next epoch of a shard; from now on holders of earlier ones are refused."""
        ((_, epoch),) = self._session.run(self._session.script("epoch", (), shard, fenced=False))
        return int(epoch)

    def fenced(self, fence: Fence) -> RedisLedger:
        """The same ledger over the same connections, whose `admit` and `record` are refused once the fence is stale."""
        return RedisLedger(replace(self._session, fence=fence), self._id_file)

    def bind(self, fingerprint: str) -> None:
        """Tie the ledger to the key of its plates' hashes, for ever.

        Raises PrivacyRefused if it is tied to another key: every plate would look new and get its budget again.
        """
        if (bound := self.note("key_fingerprint", fingerprint)) != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger at {self._session.connection.name()} was bound to, "
                f"got {fingerprint}: restore the key file"
            )

    def note(self, name: str, text: str) -> str:
        """Remember a fact about the ledger for ever; returns the first text kept under this name."""
        ((_, stands),) = self._session.run(self._session.script("note", (), encoded(name), encoded(text), fenced=False))
        return decoded(stands)

    def meta(self) -> dict[str, str]:
        """What the ledger knows of itself: `schema`, `ledger_id`, `made` (when), `key_fingerprint` once it is bound,
        and what was noted."""
        (marks,) = self._session.exchange(("HGETALL", self._session.key("meta")))
        found = sorted((decoded(name), decoded(text)) for name, text in marks.items())
        return {name: text for name, text in found if not name.startswith(EPOCH) and name != ADMITTED}

    def progress(self) -> Progress:
        """How far it has come, at one moment."""
        keys = (self._session.key("order"), self._session.key("recorded"))
        ((_, admitted, recorded, *ends),) = self._session.run(self._session.script("progress", keys, fenced=False))
        oldest, newest = (decoded(end) for end in ends) if ends else (None, None)
        return Progress(admitted, recorded, oldest, newest)

    def mark(self, release_id: str) -> Mark:
        """Raise the high-water mark beside the plates' key; PrivacyRefused if the ledger is behind it."""
        return raise_mark(self, self._id_file, self._session.connection.name(), release_id)

    def compare(self, mark: Mark | None = None) -> None:
        """PrivacyRefused if the ledger is behind the mark beside the plates' key, or behind this one."""
        compare(self, self._id_file, self._session.connection.name(), mark)

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        """Every period in which some plate was charged, sorted; of names from the first to the last."""
        return periods(self._session, first, last)

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        payloads: list[bytes | None] = []
        for some in _chunks(release_ids):
            payloads += self._session.exchange(("MGET", *(self._session.key("release", name) for name in some)))[0]
        return payloads

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """The sum of each plate's charges in the period."""
        key = self._session.key("balance", period)
        commands: list[Command] = [("HMGET", key, *some) for some in _chunks(plates)]
        return packing.balance(value for reply in self._session.exchange(*commands) for value in reply)

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        ValueError, charging no plate, if a rule of `require_valid` is broken or a HAT has over MEMBERS_MAX members.
        Fenced and PrivacyRefused: earlier charges of the call are kept.
        """
        require_valid(budget, plates, admissions)
        for one in admissions:
            if one.members.size > MEMBERS_MAX:
                raise ValueError(
                    f"expected at most {MEMBERS_MAX} members, got {one.members.size} in {one.release_id!r}"
                )
        packed = column(plates)
        near = windows_of(self._session, period)
        most = ROLLING_MEMBERS if near.others else BATCH_MEMBERS
        batches = _batches(admissions, [one.members.size for one in admissions], BATCH_HATS, most)
        answers = [answer for batch in batches for answer in self._admitted(period, budget, packed, batch, near)]
        return [
            Verdict(amounts(answer), one.terms)
            if status == b"new"
            else packing.remembered(answer).decision.recalled(packed[one.members].tobytes(), one.members.size)
            for one, (status, answer) in zip(admissions, answers, strict=True)
        ]

    def _admitted(
        self, period: str, budget: int, plates: Plates, batch: Sequence[Admission], near: NearSpans
    ) -> list[list[bytes]]:
        """The script's answers; again with other windows while others charge in new spans close by."""
        for _ in range(MOVED_MAX):
            ((status, *found),) = self._session.run(self._admit(period, budget, plates, batch, near))
            if status == b"ok":
                answers: list[list[bytes]] = found[0]
                return answers
            near = windows_of(self._session, period)
        raise DependencyUnavailable(
            f"the ledger at {self._session.connection.name()} is charged in a new span of time again and again"
        )

    def _admit(
        self, period: str, budget: int, plates: Plates, batch: Sequence[Admission], near: NearSpans = NO_SPANS
    ) -> Command:
        """The script for some HATs. Each plate is named once; the HATs say by its place who is meant."""
        key = self._session.key
        named, place = np.unique(np.concatenate([one.members for one in batch]), return_inverse=True)
        places, width = (place + 1).astype("<u4").tobytes(), plates.dtype.itemsize  # Lua counts from 1
        keys = [key("order"), key("spans" if near.first else "periods"), key("balance", period)]
        arguments: list[bytes | int] = [encoded(period), int(budget), plates[named].tobytes(), width]
        arguments += packing.together(batch, place, named.size)
        end = 0
        for one in batch:
            start, end = end, end + 4 * one.members.size
            keys.append(key("admission", one.release_id))
            head, charges = packing.head_of(period, budget, one), amounts_of(one.charges)
            allowances = b"" if one.allowances is None else amounts_of(one.allowances)
            arguments += encoded(one.release_id), int(one.min_admitted), head, plates[one.members].tobytes()
            arguments += places[start:end], charges, allowances
        keys += [key("balance", other) for other in near.others]
        return self._session.script("admit", keys, *arguments, *map(encoded, near.arguments()))

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Record payloads; return what is recorded under each id: its first payload.

        Raises PrivacyRefused, keeping none of them, if any id was never admitted. Where a call ends in the middle, by
        Fenced or otherwise, records are kept, and a repeated call does the rest.
        """
        batches = _batches(releases, [len(payload) for _, payload in releases], BATCH_RELEASES, BATCH_BYTES)
        if len(batches) > 1:
            self._require_admitted([name for name, _ in releases])
        return [payload for batch in batches for payload in self._record(batch)]

    def _require_admitted(self, release_ids: Sequence[str]) -> None:
        keys = (self._session.key("admission", name) for name in release_ids)
        for name, there in zip(release_ids, self._session.exchange(*(("EXISTS", key) for key in keys)), strict=True):
            if not there:
                self._record([])  # a ledger that is gone says so
                raise _never_admitted(name)

    def _record(self, batch: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """One script: all or nothing."""
        key = self._session.key
        keys = [key("recorded"), key("unpublished")]
        arguments: list[bytes] = []
        for name, payload in batch:
            keys += key("admission", name), key("release", name)
            arguments += encoded(name), payload
        (reply,) = self._session.exchange(self._session.script("record", keys, *arguments))
        if reply[0] == b"unadmitted":
            raise _never_admitted(batch[reply[1] - 1][0])
        if reply[0] != b"ok":
            self._session.refuse(reply)
        return [ours if stands == 1 else stands for (_, ours), stands in zip(batch, reply[1], strict=True)]

    def published(self, release_ids: Sequence[str]) -> None:
        """Remember that these payloads have reached their readers; ids without a payload are left alone."""
        key = self._session.key("unpublished")
        commands: list[Command] = [("ZREM", key, *map(encoded, some)) for some in _chunks(release_ids)]
        self._session.exchange(*commands)

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        """Recorded payloads that were never marked as published, oldest first; publish them while iterating, freely."""
        last = 0
        while True:
            window = (f"({last}", "+inf", "WITHSCORES", "LIMIT", 0, PAGE)
            (found,) = self._session.exchange(("ZRANGEBYSCORE", self._session.key("unpublished"), *window))
            if not found:
                return
            names = [decoded(name) for name in found[::2]]
            for name, payload in zip(names, self.recorded(names), strict=True):
                if payload is not None:
                    yield name, payload
            last = int(float(found[-1]))

    def charged_by_period(self, plate: bytes) -> dict[str, int]:
        """Nano-units that the plate was charged, by period."""
        periods = self.periods()
        commands: list[Command] = [("HGET", self._session.key("balance", period), plate) for period in periods]
        found = zip(periods, self._session.exchange(*commands), strict=True)
        return {period: packing.spent_and_charges(one)[0] for period, one in found if one is not None}

    def entries(self) -> Iterator[Entry]:
        """Every admission ever made, oldest first; those made while iterating are among them.

        Raises PrivacyRefused at one that is listed and not there any more.
        """
        for name, entry in listed(self._session):
            if entry is None:
                raise PrivacyRefused(
                    f"expected the admission of {name!r}, got none: the ledger has lost it; restore it"
                )
            yield entry

    def newest(self) -> Iterator[str]:
        """The id of every admission, newest first."""
        return newest(self._session)

    def verify(self) -> list[str]:
        """Recompute every balance from the entries: a sentence for each discrepancy.

        Checks that no charge ever went over the budget of its admission, that the balances of each period are the sums
        of what was charged until the moment they were read, and that every payload was admitted. Others may write
        meanwhile.
        """
        return discrepancies(self._session)


def _never_admitted(name: str) -> PrivacyRefused:
    return PrivacyRefused(f"expected an admission before the record of {name!r}, got none")


def _chunks(values: Sequence[T]) -> list[Sequence[T]]:
    """The same in order, cut into what a round trip takes."""
    return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]


def _batches(items: Sequence[T], sizes: Sequence[int], number: int, size: int) -> list[Sequence[T]]:
    """The same in order, cut into scripts: at most `number` items of `size` together, or one larger item alone."""
    starts, together = [0], 0
    for at, one in enumerate(sizes):
        together += one
        if together > size or at - starts[-1] == number:
            starts.append(at)
            together = one
    return [items[start:end] for start, end in pairwise([*starts, len(items)]) if start < end]
