"""Whether a Redis may keep budgets: its settings, its replicas, and which ledger is there."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from redis import exceptions

from udp_stream.adapters.ledgers.ledger_id import gone
from udp_stream.adapters.ledgers.redis.connection import OPENING_PAUSES_S, Command, Connection
from udp_stream.adapters.ledgers.redis.session import SCHEMA_VERSION
from udp_stream.adapters.logs import WARNING, say
from udp_stream.errors import DependencyUnavailable, PrivacyRefused

OVERRIDE = "--allow-volatile-ledger"
WHAT_IS_LOST = (
    "plates get budget again, and HATs are drawn a second time, for every write that Redis loses: "
    "the privacy statement does not hold"
)

# Setting, the value it must have, and what happens with another one.
DURABLE = (
    ("appendonly", "yes", "it keeps no log of its writes, and a restart forgets them"),
    ("appendfsync", "always", "it answers before a write is on disk"),
    ("no-appendfsync-on-rewrite", "no", "it answers before a write is on disk while it rewrites its log"),
    ("maxmemory-policy", "noeviction", "it deletes keys when memory runs short"),
)


def volatile_settings(connection: Connection) -> list[str]:
    """A sentence for each setting under which a server would lose what it has answered; none if all is well."""
    where = f"the Redis at {connection.name()}"
    replies = _told(connection, [("CONFIG", "GET", name) for name, _, _ in DURABLE])
    if isinstance(replies, str):
        return [f"{where} does not report its settings ({replies})"]
    return [
        f"{where} has {name} {value or 'unset'} where {wanted} is needed: {why}"
        for (name, wanted, why), value in zip(DURABLE, map(_value, replies), strict=True)
        if value != wanted
    ]


def replicas_not_waited_for(connection: Connection, in_slots: int) -> list[str]:
    """A sentence if a replica could take over from this server, for a ledger that waits for none.

    Counts the replicas connected or, if that is more, `in_slots`: those that the cluster lists for this master, which
    include replicas that are away at the moment.
    """
    where = f"the Redis at {connection.name()}"
    replies = _told(connection, [("INFO", "replication")])
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


def _told(connection: Connection, commands: list[Command]) -> list[Any] | str:
    """The replies, or in which words the server refuses to tell."""
    try:
        return connection.exchange(commands, OPENING_PAUSES_S)
    except DependencyUnavailable as error:
        # Not a word about connections or memory: the server answered that it will not tell.
        if not isinstance(error.__cause__, exceptions.ResponseError):
            raise
        return str(error.__cause__)


def _value(reply: list[bytes]) -> str:
    return reply[1].decode() if len(reply) == 2 else ""


def require_durable(connection: Connection, replicas: int, allow_volatile: bool = False) -> bool:
    """Check every server that writes. Raises PrivacyRefused if one would lose what it has answered, by a setting or, if
    `replicas` is 0, by a failover; with `allow_volatile`, that is a warning, and the answer False.

    In a cluster this asks every master, since hash slots and replicas move from one to another.
    """
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
        say(f"{finding}; {WHAT_IS_LOST}", "ledger", level=WARNING)
    return not findings


def require_replicas(connection: Connection, replicas: int) -> None:
    """DependencyUnavailable if fewer are connected; nothing is written, so there is nothing to wait for but them."""
    (found,) = connection.exchange([("WAIT", replicas, connection.replicas_timeout_ms)], OPENING_PAUSES_S)
    if found < replicas:
        raise DependencyUnavailable(
            f"{connection.name()}: expected ledger.replicas = {replicas}, found {found} connected"
        )


def find_or_make(connection: Connection, prefix: str, expected: str | None) -> str:
    """The id of the ledger behind the prefix, made if there is none and none is expected.

    Raises PrivacyRefused if another one is there than expected, or none, or one that has lost its marks, or one of
    another schema.
    """
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
        raise PrivacyRefused(f"expected the marks of the ledger at {connection.name()}, got only its data: restore it")
    if status != b"ok" or expected not in (None, answer[0].decode()):
        raise gone(connection.name(), expected or "")
    ledger_id, schema = (one.decode() for one in answer)
    if schema != SCHEMA_VERSION:
        raise PrivacyRefused(
            f"expected schema {SCHEMA_VERSION} of the ledger at {connection.name()}, got {schema}: upgrade udp-stream"
        )
    return str(ledger_id)
