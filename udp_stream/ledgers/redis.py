"""The ledger in Redis: the promises of `port.py`, kept by Lua scripts and a synced append-only
file.

Theory of operation. Redis runs a single script at a time and nothing in between, so a script is a
transaction. `commit.lua` takes a change as it was decided (`stored.py`), some hundred HATs or some
thousand payloads: if the caller's epoch is stale, it refuses; if an id is known, or a plate was
charged more than the decision allows, it says that things have moved. Else it makes the change, all
at once. A call is as many scripts as it takes, in turn. Sending
any of them twice is harmless, so a script without an answer is sent again (`redis_connection.py`).
A worker that dies between two scripts leaves some HATs done and others not, as between two calls. A
`record` of several scripts asks first whether all ids were admitted, and else keeps nothing.

**A single hash slot.** The plates of a HAT are charged together or not at all (`min_admitted`), so
one script must reach all of them, the order of admissions, the payloads and the fencing epochs. In a
cluster a script reaches a single hash slot. So all keys of a deployment share a hash tag, `{udp}`
by default, on a single shard and its replicas; a second city takes another prefix. Measured on two shared
cores with every write synced: 3,000 HATs of 50 plates are admitted in 0.2 s and recorded in 0.07 s,
one HAT alone in 0.6 ms. Redis does nothing else during a script: 30 ms for 50,000 plates
(`HATS`), 40 ms for 5,000 payloads (`RELEASES`). A script has all plates of a HAT:
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
(`ledger archive`); nothing expires. An archive closes times for good in `meta` before it takes
entries away: by hand, without the mark, a HAT would be drawn anew.

**Keys**, all behind a prefix with a hash tag. Balances are two little endian integers of 8 bytes;
the score of an id that is not published is its number among those recorded.

    PREFIX:meta            hash    ledger_id, schema, made, key_fingerprint, admitted, epoch:SHARD,
                                   archived, and notes by their names
    PREFIX:balance:PERIOD  hash    plate -> charged, charges
    PREFIX:periods         set     every period with a balance, but for
    PREFIX:spans           zset    every span of a rolling budget with a balance, sorted by name
    PREFIX:admission:ID    string  a remembered admission: a head, then `rules.Decision`
    PREFIX:order           list    the ids admitted, oldest first
    PREFIX:release:ID      string  the first payload recorded
    PREFIX:unpublished     zset    ids recorded and not published
    PREFIX:recorded        string  how many were recorded
    PREFIX:beat            string  counts what was sent to be waited for, with `replicas`
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from redis import exceptions

from udp_stream.base.errors import ConfigError, DependencyUnavailable, Fenced, PrivacyRefused
from udp_stream.base.logs import WARNING, log_message
from udp_stream.ledger.ids import closes_at
from udp_stream.ledger.port import Entry, Progress
from udp_stream.ledger.rules import (
    ARCHIVED,
    VOLATILE,
    Decision,
    amounts,
    amounts_of,
    archived,
    between,
    span_of,
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
from udp_stream.ledgers.stored import (
    NO_PROGRESS,
    Batch,
    Change,
    Found,
    Reads,
    StoredLedger,
)

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


def memory_of(change: Change, decision: Decision) -> bytes:
    """An admission in bytes: head, period, terms, amounts charged, plates."""
    name = encoded(change.period)
    head = _HEAD.pack(change.budget, len(name), len(decision.terms), decision.charged.size)
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

    def script(self, name: str, keys: Sequence[bytes], *arguments: bytes | str | int) -> Command:
        head = ("EVALSHA", self.connection.scripts[name].sha, len(keys) + 1, self.key("meta"))
        return (*head, *keys, self.ledger_id, *(self.fence or ("", "")), *arguments)

    def exchange(self, *commands: Command) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(commands), CHUNK):
            replies += self.connection.exchange(commands[start : start + CHUNK])
        return replies

    def run(self, scripts: Sequence[Command], commands: Sequence[Command] = ()) -> list[Any]:
        """The replies of commands, and of scripts, none of which is a refusal; those are raised."""
        replies = self.exchange(*commands, *scripts)
        for reply in replies[len(commands) :]:
            if reply[0] not in (b"ok", b"moved"):
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
HATS = Batch(1000, 50_000)  # 30 ms, during which Redis does nothing else
RELEASES = Batch(5000, 8_000_000)  # 40 ms, likewise
PERIODS = "periods", "spans"
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

    hats = HATS
    releases = RELEASES

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
        return int(self._mark("HINCRBY", f"{EPOCH}{shard}", "1"))

    def fenced(self, fence: Fence) -> RedisLedger:
        """The same ledger over the same connections, whose `admit` and `record` are refused once
        the fence is stale."""
        return RedisLedger(replace(self._session, fence=fence), self._id_file)

    def note(self, name: str, text: str) -> str:
        return self._mark("HSETNX", name, text)

    def close_before(self, end_s: int) -> int:
        return int(self._mark("HSET", ARCHIVED, str(end_s)))

    def _mark(self, how: str, name: str, text: str) -> str:
        script = self._session.script("mark", (), how, encoded(name), encoded(text))
        ((_, stands),) = self._session.run([script])
        return decoded(stands)

    def _read(self, asked: Reads) -> Found:
        key = self._session.key
        ids = [("release", asked.payloads), ("admission", asked.decisions)]
        commands: list[Command] = [
            ("MGET", *(key(kind, name) for name in some))
            for kind, names in ids
            for some in _chunks(names)
        ]
        if asked.ranges:
            commands.append(("SMEMBERS", key("periods")))
        for ends in asked.ranges:
            commands.append(("ZRANGEBYLEX", key("spans"), *(b"[" + encoded(end) for end in ends)))
        plates = asked.plates if asked.periods else ()
        keys = [*map(key, PERIODS), *(key("balance", period) for period in asked.periods)]
        scripts = [
            self._session.script("balances", keys, len(some[0]), b"".join(some))
            for some in _chunks(plates)
        ]
        if asked.state:
            scripts.append(self._session.script("state", self._counted()))
        replies = iter(self._session.run(scripts, commands))
        payloads, memories = (
            {
                name: value
                for some in _chunks(names)
                for name, value in zip(some, next(replies), strict=True)
                if value is not None
            }
            for _, names in ids
        )
        calendar = next(replies) if asked.ranges else ()
        names = [
            name
            for ends in asked.ranges
            for name in between(sorted(map(decoded, {*calendar, *next(replies)})), *ends)
        ]
        table = np.zeros((len(asked.periods), len(asked.plates), 2), np.int64)
        for start in range(0, len(plates), CHUNK):
            part = table[:, start : start + CHUNK]
            part[:] = amounts(b"".join(next(replies)[1])).reshape(part.shape)
        meta, progress = _state(next(replies)) if asked.state else ({}, NO_PROGRESS)
        decisions = {name: remembered(memory).decision for name, memory in memories.items()}
        return Found(payloads, decisions, names, table, meta, progress)

    def _counted(self) -> list[bytes]:
        return [self._session.key("order"), self._session.key("recorded")]

    def _commit(self, change: Change) -> bool:
        key = self._session.key
        kept = {name: memory_of(change, decision) for name, decision in change.decided.items()}
        kept |= change.payloads
        kind = "release" if change.payloads else "admission"
        keys = [
            *map(key, PERIODS),
            key("balance", change.period),
            *map(key, ("order", "recorded", "unpublished")),
            *(key(kind, name) for name in kept),
            *(key("admission", name) for name in change.admitted),
            *(key("release", name) for name in change.dropped),
        ]
        numbers = np.stack([change.asked, change.times, change.room], axis=1)
        arguments: list[bytes | str | int] = [
            encoded(change.period),
            len(change.plates[0]) if change.plates else 1,
            b"".join(change.plates),
            amounts_of(numbers),
            np.array([closes_at(name) for name in kept], "<i8").tobytes(),
            "" if change.version is None else change.version,
            int(span_of(change.period) is not None),
            len(kept),
            len(change.admitted),
        ]
        for name, value in kept.items():
            arguments += encoded(name), value
        arguments += map(encoded, change.dropped)
        ((status,),) = self._session.run([self._session.script("commit", keys, *arguments)])
        return bool(status == b"ok")

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

    def _scan(self) -> Iterator[tuple[str, Entry | None]]:
        key = self._session.key
        start = 0
        while names := self._session.exchange(("LRANGE", key("order"), start, start + PAGE - 1))[0]:
            ids = [decoded(name) for name in names]
            # A payload is looked up before its place in the queue: what is seen and waits no more
            # was published.
            found = self._session.exchange(
                ("MGET", *(key("admission", name) for name in ids)),
                ("MGET", *(key("release", name) for name in ids)),
                ("ZMSCORE", key("unpublished"), *names),
            )
            for name, blob, payload, number in zip(ids, *found, strict=True):
                waiting = number is not None
                yield name, None if blob is None else entry_of(name, blob, payload, waiting)
            start += len(names)

    def newest(self) -> Iterator[str]:
        end = int(self._session.exchange(("LLEN", self._session.key("order")))[0])
        while end > 0:
            start = max(0, end - PAGE)
            names = self._session.exchange(("LRANGE", self._session.key("order"), start, end - 1))[
                0
            ]
            yield from (decoded(name) for name in reversed(names))
            end = start

    def _snapshot(self, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
        keys = [*self._counted(), self._session.key("balance", period)]
        ((_, _, length, _, _, flat),) = self._session.run([self._session.script("state", keys)])
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return length, [(period, plate, *amounts(value).tolist()) for plate, value in pairs]

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


def _state(reply: Sequence[Any]) -> tuple[dict[str, str], Progress]:
    """Facts and progress out of the answer of `state.lua`."""
    _, flat, listed, recorded, ends, _ = reply
    names = [decoded(one) for one in flat]
    meta = dict(sorted(zip(names[::2], names[1::2], strict=True)))
    admitted = int(meta.pop(ADMITTED, listed))
    oldest, newest = (None if end is None else decoded(end) for end in ends)
    facts = {name: text for name, text in meta.items() if not name.startswith(EPOCH)}
    return facts, Progress(admitted, int(recorded), oldest, newest)


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
