"""The ledger in Redis: the promises of `port.py`, kept by Lua scripts and a synced append-only
file.

Theory of operation. Redis runs a single script at a time and nothing in between, so a script is a
transaction. `admit.lua` takes some hundred HATs as they were decided (`stored.py`): if some are
remembered, it answers with these; if the caller's epoch is stale, it refuses; if a plate was
charged more than the decision allows, it answers with the balances. Else it charges and remembers,
all at once. `record.lua` takes some thousand payloads and keeps the first of each id. A call is as
many scripts as it takes, in turn. Sending any of them twice is harmless, so a script
without an answer is sent again (`redis_connection.py`). A worker that dies between two scripts
leaves some HATs done and others not, as between two calls. A `record` of several scripts asks first
whether all ids were admitted, and else keeps nothing.

**A single hash slot.** The plates of a HAT are charged together or not at all (`min_admitted`), so
one script must reach all of them, the order of admissions, the payloads and the fencing epochs. In
a cluster a script reaches a single hash slot. So all keys of a deployment share a hash tag, `{udp}`
by default, on a single shard and its replicas; a second city takes another prefix. Measured on two
shared cores with every write synced: 3,000 HATs of 50 plates are admitted in 0.2 s and recorded in
0.07 s, one HAT alone in 0.6 ms. Redis does nothing else during a script: 30 ms for 50,000 plates
(`BATCH_MEMBERS`), 40 ms for 5,000 payloads (`BATCH_RELEASES`). A script has all plates of a HAT:
0.3 s for 100,000, 5 s for a million, which a cluster's `cluster-node-timeout` (15 s) has to exceed.

**Durability.** Opening refuses a server that would forget what it has answered: it needs
`appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no` and `maxmemory-policy
noeviction`, in a cluster on every master. With these a killed server comes back with every answer
it gave. A *failover* is another matter: replication does not wait, and a promoted replica may lack
the last charges. So opening refuses a server that has replicas, connected or in the cluster's
slots, unless it is opened with `replicas=1` or more (`ledger.replicas`): then nothing is answered
before that many replicas have it (WAIT). What no opening can see is a replica that joins later.
Also set `min-replicas-to-write 1`, so that a master that is cut off stops by itself, and give
replicas the same settings as masters: they are not checked. An owner whose epoch the promoted
replica never received is stopped.

**A wiped ledger** would give every plate its budget again. Each ledger has an id, kept in Redis
and, with `id_file`, beside the plate key. Opening refuses a Redis that has no ledger or another
where the file knows one; every script refuses if the id is gone, so that a FLUSHALL stops releases
at once; and no script charges a period whose balances are gone.

**Fencing.** A worker that takes over a shard takes its next epoch (`take_epoch`); an owner with an
earlier one can neither admit nor record anything new (`Fenced`), only read what is recorded.

**Size.** A HAT of 50 plates with a payload of 1.5 kB takes 3 kB of memory, until it is archived
(`ledger archive`); nothing expires. An archive closes times for good in `meta` (`close.lua`) before
it takes entries away (`drop.lua`): by hand, without the mark, a HAT would be drawn anew.

**Keys**, all behind a prefix with a hash tag:

    PREFIX:meta              hash    ledger_id, schema, made, key_fingerprint, admitted,
    epoch:SHARD, archived, notes
                                     by name
    PREFIX:balance:PERIOD    hash    plate -> charged, charges: two little endian integers of 8
    bytes PREFIX:periods           set     every period with a balance, but for PREFIX:spans
    zset    every span of a rolling budget with a balance, sorted by name PREFIX:admission:ID
    string  a remembered admission, a head, then the bytes of `rules.Decision` PREFIX:order
    list    the ids admitted, oldest first PREFIX:release:ID        string  the first payload
    recorded PREFIX:unpublished       zset    ids recorded and not published, by their number
    PREFIX:recorded          string  how many were recorded: the last one's number PREFIX:beat
    string  counts what was sent to be waited for, with `replicas`
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from redis import exceptions

from udp_stream.errors import ConfigError, DependencyUnavailable, Fenced, PrivacyRefused
from udp_stream.ledger.ids import closes_at
from udp_stream.ledger.port import LAST_NAME, Admission, Entry, Progress
from udp_stream.ledger.rules import (
    VOLATILE,
    Decision,
    amounts,
    amounts_of,
    archived,
    archived_s,
    between,
    misfits,
    names_around,
    never_admitted,
    require_closed,
)
from udp_stream.ledgers.keys import gone, known_ledger
from udp_stream.ledgers.patience import Patience
from udp_stream.ledgers.redis_connection import (
    OPENING_PAUSES_S,
    Command,
    Connection,
    connection_to,
    load_scripts,
)
from udp_stream.ledgers.stored import ChargedCall, Conflict, StoredLedger
from udp_stream.logs import WARNING, log_message

_HEAD = struct.Struct("<qIII")  # budget, bytes of the period, bytes of the terms, members


class StoredAdmission(NamedTuple):
    """An admission as Redis keeps it: head, period, terms, amounts charged, plates."""

    period: str
    budget: int
    decision: Decision


def encoded(text: str) -> bytes:
    """Any string's bytes, so that ids and periods that differ are different keys."""
    return text.encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """Undo `encoded`."""
    return name.decode("utf-8", "surrogatepass")


def memory_of(call: ChargedCall, decision: Decision) -> bytes:
    """An admission in bytes: head, period, terms, amounts charged, plates."""
    name = encoded(call.period)
    head = _HEAD.pack(call.budget, len(name), len(decision.terms), decision.charged.size)
    charged = amounts_of(decision.charged)
    return b"".join((head, name, decision.terms, charged, decision.plates))


def remembered(blob: bytes) -> StoredAdmission:
    """Undo `memory_of`."""
    budget, period_size, terms_size, members = _HEAD.unpack_from(blob)
    terms_start = _HEAD.size + period_size
    charged_start = terms_start + terms_size
    plates_start = charged_start + 8 * members
    charged = amounts(blob[charged_start:plates_start])
    decision = Decision(blob[plates_start:], charged, blob[terms_start:charged_start])
    return StoredAdmission(decoded(blob[_HEAD.size : terms_start]), budget, decision)


def entry_of(release_id: str, blob: bytes, payload: bytes | None, waiting: bool) -> Entry:
    """A remembered admission and what became of it."""
    period, budget, decision = remembered(blob)
    published = payload is not None and not waiting
    names = tuple(decision.names())
    terms = decision.terms
    return Entry(release_id, period, budget, names, decision.charged, payload, published, terms)


def ends_of(release_ids: Iterable[str]) -> bytes:
    """The times that close ids (`rules.closes_at`): eight bytes each."""
    return np.array([closes_at(release_id) for release_id in release_ids], "<i8").tobytes()


SCHEMA_VERSION = "1"
CHUNK = 5000  # commands in a single round trip

_PREFIX = re.compile(r"[^{}\s]*\{[^{}\s]+\}[^{}\s]*")


class Fence(NamedTuple):
    """The caller: the owner of a shard since it took this epoch (`take_epoch`)."""

    shard: str
    epoch: int


def require_prefix(prefix: str) -> str:
    """The prefix, if all keys behind it lie in a single hash slot; ConfigError if not.

    >>> require_prefix("city:{udp}")
    'city:{udp}'
    """
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigError(
            f"ledger prefix: expected one hash tag in braces, as in {{udp}}, got {prefix!r}"
        )
    return prefix


@dataclass(frozen=True)
class Session:
    """A caller of a ledger. Every call may raise DependencyUnavailable."""

    connection: Connection
    prefix: str
    ledger_id: str
    fence: Fence | None = None

    def key(self, *names: str) -> bytes:
        return encoded(":".join((self.prefix, *names)))

    def script(
        self, name: str, keys: Sequence[bytes], *arguments: bytes | str | int, fenced: bool = True
    ) -> Command:
        shard, epoch = (self.fence.shard, self.fence.epoch) if self.fence and fenced else ("", "")
        keys = (self.key("meta"), *keys)
        return (
            "EVALSHA",
            self.connection.scripts[name].sha,
            len(keys),
            *keys,
            self.ledger_id,
            shard,
            epoch,
            *arguments,
        )

    def exchange(self, *commands: Command) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(commands), CHUNK):
            replies += self.connection.exchange(commands[start : start + CHUNK])
        return replies

    def run(self, *scripts: Command) -> list[list[Any]]:
        """The replies of scripts, none of which is a refusal; those are raised."""
        replies = self.exchange(*scripts)
        for reply in replies:
            if reply[0] not in (b"ok", *CONFLICTS):
                self.refuse(reply)
        return replies

    def refuse(self, reply: Sequence[Any]) -> NoReturn:
        name = self.connection.name()
        match reply[0].decode(), self.fence:
            case "gone", _:
                raise gone(name, self.ledger_id)
            case "stale", Fence(shard, epoch) if int(reply[1]) > epoch:
                raise Fenced(
                    f"expected to hold {shard} since epoch {epoch}, got the later epoch {int(reply[1])}: "
                    "another worker has taken it over, and this one stops"
                )
            case "stale", Fence(shard, epoch):
                sentence = f"expected epoch {epoch} of {shard}, got {int(reply[1])}: the ledger has lost writes"
                raise PrivacyRefused(f"{sentence} (in a failover?). Restore it")
            case "archived", _:
                raise archived(decoded(reply[1]), int(reply[2]))
            case "lost", _:
                raise PrivacyRefused(
                    f"the balances of {decoded(reply[1])} are gone from the ledger at {name}: restore it"
                )
            case answer, _:
                raise DependencyUnavailable(f"expected an answer of our script, got {answer!r}")


PAGE = 500  # what an iterator reads at a time


def listed(session: Session) -> Iterator[tuple[str, Entry | None]]:
    """Every admission ever made, oldest first: its id, and None where it is not there any more."""
    key = session.key
    start = 0
    while names := session.exchange(("LRANGE", key("order"), start, start + PAGE - 1))[0]:
        ids = [decoded(name) for name in names]
        # A payload is looked up before its place in the queue: what is seen and waits no more was
        # published.
        admissions, payloads, waiting = session.exchange(
            ("MGET", *(key("admission", name) for name in ids)),
            ("MGET", *(key("release", name) for name in ids)),
            ("ZMSCORE", key("unpublished"), *names),
        )
        for name, blob, payload, number in zip(ids, admissions, payloads, waiting, strict=True):
            yield (
                name,
                None if blob is None else entry_of(name, blob, payload, waiting=number is not None),
            )
        start += len(names)


MEMBERS_MAX = 20_000_000  # of a HAT: 24 bytes each, and Redis takes values of 512 MB
BATCH_MEMBERS = 50_000
BATCH_HATS = 1000  # that a script admits: 30 ms, during which Redis does nothing else
ROLLING_MEMBERS = (
    6000  # that a script admits where budgets roll: it looks each plate up in up to 25 spans
)
BATCH_DROPPED = 1000  # entries that a script drops, with a look at all their members
BATCH_RELEASES = 5000
BATCH_BYTES = 8_000_000  # that a script records: 40 ms, likewise
CONFLICTS = (b"known", b"over", b"moved")  # answers of `admit.lua` that ask for another try
EPOCH = "epoch:"
ADMITTED = "admitted"  # among the marks: a shard's epoch, and how many HATs were ever admitted

T = TypeVar("T")


class RedisLedger(StoredLedger):
    """A ledger in Redis, for any number of threads; made with `open_redis_ledger`.

    Any call may raise DependencyUnavailable once it has asked again for some ten seconds (45 where
    replicas stay away), or for as long as its patience lasts; what it asked for may
    then be remembered or not, and asking again tells. A call that charges or records raises
    PrivacyRefused if the ledger was wiped, and Fenced where the caller holds a `Fence` that is
    stale.
    """

    def __init__(self, session: Session, id_file: str | os.PathLike[str] | None = None) -> None:
        super().__init__(id_file)
        self._session = session
        self.place = session.connection.name()

    def close(self) -> None:
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
        """The same ledger over the same connections, whose `admit` and `record` are refused once
        the fence is stale."""
        return RedisLedger(replace(self._session, fence=fence), self._id_file)

    def note(self, name: str, text: str) -> str:
        ((_, stands),) = self._session.run(
            self._session.script("note", (), encoded(name), encoded(text), fenced=False)
        )
        return decoded(stands)

    def meta(self) -> dict[str, str]:
        (marks,) = self._session.exchange(("HGETALL", self._session.key("meta")))
        found = sorted((decoded(name), decoded(text)) for name, text in marks.items())
        return {
            name: text for name, text in found if not name.startswith(EPOCH) and name != ADMITTED
        }

    def progress(self) -> Progress:
        keys = (self._session.key("order"), self._session.key("recorded"))
        ((_, admitted, recorded, *ends),) = self._session.run(
            self._session.script("progress", keys, fenced=False)
        )
        oldest, newest = (decoded(end) for end in ends) if ends else (None, None)
        return Progress(admitted, recorded, oldest, newest)

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        ends = (b"[" + encoded(first), b"[" + encoded(last))
        names, spans = self._session.exchange(
            ("SMEMBERS", self._session.key("periods")),
            ("ZRANGEBYLEX", self._session.key("spans"), *ends),
        )
        return between(sorted(decoded(name) for name in {*names, *spans}), first, last)

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        payloads: list[bytes | None] = []
        for some in _chunks(release_ids):
            payloads += self._session.exchange(
                ("MGET", *(self._session.key("release", name) for name in some))
            )[0]
        return payloads

    def _balances(self, periods: Sequence[str], plates: Sequence[bytes]) -> NDArray[np.int64]:
        keys = [self._session.key("balance", period) for period in periods]
        table = np.zeros((len(periods), len(plates), 2), np.int64)
        chunks = _chunks(plates) if keys else []
        scripts = [
            self._session.script("balances", keys, len(some[0]), b"".join(some), fenced=False)
            for some in chunks
        ]
        for at, (_, found) in enumerate(self._session.run(*scripts)):
            part = table[:, at * CHUNK : (at + 1) * CHUNK]
            part[:] = amounts(b"".join(found)).reshape(part.shape)
        return table

    def _batches(
        self, _period: str, admissions: Sequence[Admission]
    ) -> Sequence[Sequence[Admission]]:
        sizes = [one.members.size for one in admissions]
        for one in admissions:
            if one.members.size > MEMBERS_MAX:
                raise ValueError(
                    f"expected at most {MEMBERS_MAX} members, got {one.members.size} in {one.release_id!r}"
                )
        most = BATCH_MEMBERS if names_around(_period) is None else ROLLING_MEMBERS
        return _batches(admissions, sizes, BATCH_HATS, most)

    def _commit(self, call: ChargedCall) -> Conflict | None:
        key = self._session.key
        bounds = names_around(call.period)
        keys = [
            key("order"),
            key("spans" if bounds else "periods"),
            key("balance", call.period),
            *(key("admission", name) for name in call.decided),
            *(key("balance", other) for other in call.near.others),
        ]
        numbers = np.stack([call.asked, call.times, call.room], axis=1)
        arguments: list[bytes | str | int] = [
            encoded(call.period),
            len(call.plates[0]) if call.plates else 1,
            b"".join(call.plates),
            amounts_of(numbers),
            ends_of(call.decided),
            *map(encoded, bounds or ("", "")),
            encoded("\n".join(call.near.listed)),
            hashlib.sha1(amounts_of(call.near.balances), usedforsecurity=False).hexdigest(),
            call.near.admitted,
        ]
        for name, decision in call.decided.items():
            arguments += encoded(name), memory_of(call, decision)
        ((status, *found),) = self._session.run(self._session.script("admit", keys, *arguments))
        if status == b"known":
            pairs = zip(call.decided, found[0], strict=True)
            return Conflict({name: remembered(memory).decision for name, memory in pairs if memory})
        if status == b"over":
            return Conflict({}, amounts(found[0]).reshape(-1, 2)[:, 0])
        return Conflict({}) if status == b"moved" else None

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """As `Ledger.record`. A call that ends in the middle (Fenced) keeps some records; a repeat
        does the rest."""
        batches = _batches(
            releases, [len(payload) for _, payload in releases], BATCH_RELEASES, BATCH_BYTES
        )
        if len(batches) > 1:
            self._require_admitted([name for name, _ in releases])
        return [payload for batch in batches for payload in self._record(batch)]

    def _require_admitted(self, release_ids: Sequence[str]) -> None:
        keys = (self._session.key("admission", name) for name in release_ids)
        for name, there in zip(
            release_ids, self._session.exchange(*(("EXISTS", key) for key in keys)), strict=True
        ):
            if not there:
                self._record([])  # a ledger that is gone says so
                raise never_admitted(name)

    def _record(self, batch: Sequence[tuple[str, bytes]]) -> list[bytes]:
        key = self._session.key
        keys = [key("recorded"), key("unpublished")]
        arguments: list[bytes] = []
        for name, payload in batch:
            keys += key("admission", name), key("release", name)
            arguments += encoded(name), payload
        ends = ends_of(name for name, _ in batch)
        (reply,) = self._session.exchange(self._session.script("record", keys, *arguments, ends))
        if reply[0] == b"unadmitted":
            raise never_admitted(batch[reply[1] - 1][0])
        if reply[0] != b"ok":
            self._session.refuse(reply)
        return [
            ours if stands == 1 else stands
            for (_, ours), stands in zip(batch, reply[1], strict=True)
        ]

    def published(self, release_ids: Sequence[str]) -> None:
        key = self._session.key("unpublished")
        commands: list[Command] = [
            ("ZREM", key, *map(encoded, some)) for some in _chunks(release_ids)
        ]
        self._session.exchange(*commands)

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        last = 0
        while True:
            window = (f"({last}", "+inf", "WITHSCORES", "LIMIT", 0, PAGE)
            (found,) = self._session.exchange(
                ("ZRANGEBYSCORE", self._session.key("unpublished"), *window)
            )
            if not found:
                return
            names = [decoded(name) for name in found[::2]]
            for name, payload in zip(names, self.recorded(names), strict=True):
                if payload is not None:
                    yield name, payload
            last = int(float(found[-1]))

    def entries(self) -> Iterator[Entry]:
        """As `Ledger.entries`; PrivacyRefused at an admission that is listed and not there any
        more."""
        for name, entry in listed(self._session):
            if entry is None:
                raise PrivacyRefused(
                    f"expected the admission of {name!r}, got none: the ledger has lost it; restore it"
                )
            yield entry

    def newest(self) -> Iterator[str]:
        end = int(self._session.exchange(("LLEN", self._session.key("order")))[0])
        while end > 0:
            start = max(0, end - PAGE)
            names = self._session.exchange(("LRANGE", self._session.key("order"), start, end - 1))[
                0
            ]
            yield from (decoded(name) for name in reversed(names))
            end = start

    def close_before(self, end_s: int) -> int:
        ((_, stands),) = self._session.run(
            self._session.script("close", (self._session.key("order"),), end_s, fenced=False)
        )
        return int(stands)

    def drop(self, period: str, release_ids: Sequence[str]) -> None:
        require_closed(release_ids, archived_s(self.meta()))
        key = self._session.key
        for start in range(0, len(release_ids), BATCH_DROPPED):
            names = release_ids[start : start + BATCH_DROPPED]
            keys = [
                key("order"),
                key("unpublished"),
                key("periods"),
                key("spans"),
                key("balance", period),
            ]
            keys += [key(kind, name) for name in names for kind in ("admission", "release")]
            self._session.run(
                self._session.script(
                    "drop", keys, encoded(period), *map(encoded, names), fenced=False
                )
            )

    def verify(self) -> list[str]:
        """As `Ledger.verify`; the balances of each period are read at a single moment, and others
        may write meanwhile."""
        # Before the periods are listed: entries of a period that begins later lie behind this
        # place.
        first, balances = self._snapshot("")
        until: dict[str, int] = {}
        for period in self.periods():
            until[period], of_period = self._snapshot(period)
            balances += of_period
        gone: list[str] = []
        sums = list(misfits(self._entries_until(until, first, gone), balances))
        missing = [f"{name}: admitted, but its admission is gone" for name in gone]
        return (
            missing
            + sums
            + [f"{name}: released, but never admitted" for name in self._unadmitted()]
        )

    def _snapshot(self, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
        """How many admissions there were, and the period's (period, plate, charged, charges) at
        that moment."""
        keys = (self._session.key("order"), self._session.key("balance", period))
        ((_, length, flat),) = self._session.run(
            self._session.script("snapshot", keys, fenced=False)
        )
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return length, [(period, plate, *amounts(value).tolist()) for plate, value in pairs]

    def _entries_until(
        self, until: dict[str, int], otherwise: int, gone: list[str]
    ) -> Iterator[Entry]:
        """Entries up to the place at which the balances of their period were read; ids that are
        lost go to `gone`."""
        for place, (name, entry) in enumerate(listed(self._session)):
            if entry is None:
                gone.append(name)
            elif place < until.get(entry.period, otherwise):
                yield entry

    def _unadmitted(self) -> Iterator[str]:
        start = self._session.key("release", "")
        pattern = re.sub(rb"([\[\]*?\\])", rb"\\\1", start) + b"*"
        # Not 0, with which SCAN both begins and ends.
        cursor: int | None = None
        while cursor != 0:
            ((after, keys),) = self._session.exchange(
                ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", PAGE)
            )
            names = [decoded(key[len(start) :]) for key in keys]
            present = self._session.exchange(
                *(("EXISTS", self._session.key("admission", name)) for name in names)
            )
            yield from (name for name, there in zip(names, present, strict=True) if not there)
            cursor = int(after)


def _chunks(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]


def _batches(items: Sequence[T], sizes: Sequence[int], number: int, size: int) -> list[Sequence[T]]:
    """The same in order, cut into scripts: at most `number` items of `size` together, or one larger
    item alone."""
    starts = [0]
    together = 0
    for at, one in enumerate(sizes):
        together += one
        if together > size or at - starts[-1] == number:
            starts.append(at)
            together = one
    return [items[start:end] for start, end in pairwise([*starts, len(items)]) if start < end]


OVERRIDE = "ledger.allow_volatile = true"
WHAT_IS_LOST = (
    "plates get budget again, and HATs are drawn a second time, for every write that Redis loses: "
    "the privacy statement does not hold"
)

# Setting, the value it must have, and what happens with another.
DURABLE = (
    ("appendonly", "yes", "it keeps no log of its writes, and a restart forgets them"),
    ("appendfsync", "always", "it answers before a write is on disk"),
    (
        "no-appendfsync-on-rewrite",
        "no",
        "it answers before a write is on disk while it rewrites its log",
    ),
    ("maxmemory-policy", "noeviction", "it deletes keys when memory runs short"),
)


def volatile_settings(connection: Connection) -> list[str]:
    """A sentence for each setting under which a server would lose what it has answered; none if all
    is well."""
    where = f"the Redis at {connection.name()}"
    replies = _replies(connection, [("CONFIG", "GET", name) for name, _, _ in DURABLE])
    if isinstance(replies, str):
        return [f"{where} does not report its settings ({replies})"]
    return [
        f"{where} has {name} {value or 'unset'} where {wanted} is needed: {why}"
        for (name, wanted, why), value in zip(
            DURABLE,
            (reply[1].decode() if len(reply) == 2 else "" for reply in replies),
            strict=True,
        )
        if value != wanted
    ]


def replicas_not_waited_for(connection: Connection, in_slots: int) -> list[str]:
    """A sentence if a replica could take over from this server, for a ledger that waits for none.

    `in_slots` are those that the cluster lists for this master, also if they are away at the
    moment.
    """
    where = f"the Redis at {connection.name()}"
    replies = _replies(connection, [("INFO", "replication")])
    if isinstance(replies, str):
        return [f"{where} does not report whether it has replicas ({replies})"]
    found = max(int(replies[0].get("connected_slaves", 0)), in_slots)
    if not found:
        return []
    has, takes = ("1 replica", "It") if found == 1 else (f"{found} replicas", "One of them")
    return [
        f"{where} has {has}, and ledger.replicas is 0. {takes} may take over without the last charges, and those HATs "
        "are drawn a second time: set ledger.replicas = 1, and min-replicas-to-write 1 in Redis"
    ]


def _replies(connection: Connection, commands: list[Command]) -> list[Any] | str:
    try:
        return connection.exchange(commands, OPENING_PAUSES_S)
    except DependencyUnavailable as error:
        # Not a word about connections or memory: the server answered that it will not tell.
        if not isinstance(error.__cause__, exceptions.ResponseError):
            raise
        return str(error.__cause__)


def require_durable(connection: Connection, replicas: int, allow_volatile: bool = False) -> bool:
    """Check every server that writes (in a cluster all masters, as slots and replicas move).
    PrivacyRefused if it would lose answered writes, by a setting or, if `replicas` is 0, by a
    failover; with `allow_volatile` a warning, and False."""
    settings: list[str] = []
    not_waited_for: list[str] = []
    for primary, in_slots in connection.to_primaries():
        settings += volatile_settings(primary)
        if not replicas:
            not_waited_for += replicas_not_waited_for(primary, in_slots)
    findings = settings + not_waited_for
    if findings and not allow_volatile:
        wanted = " ".join(f"--{name} {value}" for name, value, _ in DURABLE)
        start = f"Start Redis with {wanted}. " if settings else ""
        advice = f"{start}For a trial only, {OVERRIDE} accepts it, and then {WHAT_IS_LOST}."
        raise PrivacyRefused("\n    ".join(["the ledger would not be durable:", *findings, advice]))
    for finding in findings:
        log_message(f"{finding}; {WHAT_IS_LOST}", "ledger", level=WARNING)
    return not findings


def require_replicas(connection: Connection, replicas: int) -> None:
    """DependencyUnavailable if fewer are connected; nothing is written, so there is nothing to wait
    for but them."""
    (found,) = connection.exchange(
        [("WAIT", replicas, connection.replicas_timeout_ms)], OPENING_PAUSES_S
    )
    if found < replicas:
        raise DependencyUnavailable(
            f"{connection.name()}: expected ledger.replicas = {replicas}, found {found} connected"
        )


def find_or_make(connection: Connection, prefix: str, expected: str | None) -> str:
    """The id of the ledger behind the prefix, made if none is there or expected. PrivacyRefused for
    another than expected, lost marks, or another schema."""
    keys = [f"{prefix}:{name}" for name in ("meta", "order", "periods", "recorded", "spans")]
    command: Command = (
        "EVALSHA",
        connection.scripts["open"].sha,
        len(keys),
        *keys,
        secrets.token_hex(16),
        expected or "",
        SCHEMA_VERSION,
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    ((status, *answer),) = connection.exchange([command], OPENING_PAUSES_S)
    if status == b"unmarked":
        raise PrivacyRefused(
            f"expected the marks of the ledger at {connection.name()}, got only its data: restore it"
        )
    if status != b"ok" or expected not in (None, answer[0].decode()):
        raise gone(connection.name(), expected or "")
    ledger_id, schema = (one.decode() for one in answer)
    if schema != SCHEMA_VERSION:
        raise PrivacyRefused(
            f"expected schema {SCHEMA_VERSION} of the ledger at {connection.name()}, got {schema}: upgrade udp-stream"
        )
    return str(ledger_id)


DEFAULT_PREFIX = "{udp}"


def open_redis_ledger(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    id_file: str | os.PathLike[str] | None = None,
    allow_volatile: bool = False,
    replicas: int = 0,
    client: Mapping[str, Any] | None = None,
    patience: Patience | None = None,
) -> RedisLedger:
    """Open the ledger at `url`, or make it if there is none; use it as a context manager.

    `url` is redis://, rediss:// or unix://, or redis+cluster:// of any node. `id_file` has its id
    and high-water mark (`keys.adopt` makes it). `replicas` is how many of them must have a write
    before it is answered. `client` has further options of the client, `patience` how long every
    call waits.

    Raises ConfigError for another URL or a prefix without a hash tag, DependencyUnavailable if
    Redis cannot be reached, and PrivacyRefused if it would forget, or has forgotten; with
    `allow_volatile` a server that would forget is a warning, and a note for ever.
    """
    connection = connection_to(url, require_prefix(prefix), load_scripts(), replicas, client)
    connection.patience = patience
    known = known_ledger(id_file)
    try:
        # First: no ledger is made on a server that would forget it.
        durable = require_durable(connection, replicas, allow_volatile)
        ledger_id = find_or_make(connection, prefix, known)
        ledger = RedisLedger(Session(connection, prefix, ledger_id), id_file)
        if not durable:
            ledger.note(VOLATILE, datetime.now(UTC).strftime("%Y-%m-%d"))
    except BaseException:
        connection.close()
        raise
    return ledger


def ledger_at(
    url: str, prefix: str = DEFAULT_PREFIX, client: Mapping[str, Any] | None = None
) -> str | None:
    """The id of the ledger there, empty without its marks, None if nothing is there; nothing is
    made. DependencyUnavailable if Redis cannot be reached."""
    with closing(connection_to(url, require_prefix(prefix), {}, client=client)) as connection:
        keys = [f"{prefix}:{name}" for name in ("meta", "order", "periods", "recorded", "spans")]
        found, ledger_id = connection.exchange(
            [("EXISTS", *keys), ("HGET", keys[0], "ledger_id")], OPENING_PAUSES_S
        )
    return decoded(ledger_id or b"") if found else None


def inspect_redis(url: str, replicas: int = 0, client: Mapping[str, Any] | None = None) -> None:
    """Ask every server that writes whether it would forget; nothing is made. Raises as
    `open_redis_ledger`."""
    with closing(connection_to(url, DEFAULT_PREFIX, {}, client=client)) as connection:
        require_durable(connection, replicas)
        if replicas:
            require_replicas(connection, replicas)
