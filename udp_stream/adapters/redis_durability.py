"""Whether a Redis may keep budgets: its settings, and which ledger is there."""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime

from redis import exceptions

from udp_stream.adapters.ledger_id import gone
from udp_stream.adapters.redis_caller import SCHEMA_VERSION
from udp_stream.adapters.redis_route import OPENING_PAUSES_S, Command, Route
from udp_stream.errors import DependencyUnavailable, PrivacyRefused

OVERRIDE = "--allow-volatile-ledger"
WHAT_IS_LOST = (
    "whatever Redis forgets is budget that plates get again, and HATs that are drawn a second time: "
    "the privacy statement does not hold"
)

_log = logging.getLogger(__name__)

# Setting, the value it must have, and what happens with another one.
DURABLE = (
    ("appendonly", "yes", "it keeps no log of its writes, and a restart forgets them"),
    ("appendfsync", "always", "it answers before a write is on disk"),
    ("no-appendfsync-on-rewrite", "no", "it answers before a write is on disk while it rewrites its log"),
    ("maxmemory-policy", "noeviction", "it throws keys away when memory runs short"),
)


def volatile_settings(route: Route) -> list[str]:
    """A sentence for each setting under which a server would lose what it has answered; none if all is well."""
    where = f"the Redis at {route.name()}"
    try:
        commands = [("CONFIG", "GET", name) for name, _, _ in DURABLE]
        replies = route.exchange(commands, OPENING_PAUSES_S)
    except DependencyUnavailable as error:
        # Not a word about connections or memory: the server answered that it will not tell.
        if not isinstance(error.__cause__, exceptions.ResponseError):
            raise
        return [f"{where} does not tell its settings ({error.__cause__})"]
    return [
        f"{where} has {name} {value or 'unset'} where {wanted} is needed: {why}"
        for (name, wanted, why), value in zip(DURABLE, map(_value, replies), strict=True)
        if value != wanted
    ]


def _value(reply: list[bytes]) -> str:
    return reply[1].decode() if len(reply) == 2 else ""


def refusal(findings: list[str]) -> PrivacyRefused:
    """Of a Redis that would forget; it names the way around."""
    settings = " ".join(f"--{name} {value}" for name, value, _ in DURABLE)
    advice = f"Start it with {settings}; or, for a trial only, {OVERRIDE}, and then {WHAT_IS_LOST}."
    return PrivacyRefused("\n    ".join(["the ledger would not be durable:", *findings, advice]))


def require_durable(route: Route, allow_volatile: bool = False) -> bool:
    """Check every server that writes. Raises PrivacyRefused if a setting would lose what was answered; with
    `allow_volatile`, that is a warning, and the answer is False."""
    findings: list[str] = []
    for primary in route.to_primaries():
        findings += volatile_settings(primary)
    if findings and not allow_volatile:
        raise refusal(findings)
    for finding in findings:
        _log.warning("%s; %s", finding, WHAT_IS_LOST)
    return not findings


def require_replicas(route: Route, replicas: int) -> None:
    """DependencyUnavailable if fewer are connected; nothing is written, so there is nothing to wait for but them."""
    (found,) = route.exchange([("WAIT", replicas, route.replicas_timeout_ms)], OPENING_PAUSES_S)
    if found < replicas:
        raise DependencyUnavailable(f"{route.name()}: expected ledger.replicas = {replicas}, found {found} connected")


def find_or_make(route: Route, prefix: str, expected: str | None) -> str:
    """The id of the ledger behind the prefix, made if there is none and none is expected.

    Raises PrivacyRefused if another one is there than expected, or none, or one that has lost its marks, or one of
    another schema.
    """
    keys = [f"{prefix}:{name}" for name in ("meta", "order", "periods", "recorded")]
    command: Command = (
        "EVALSHA",
        route.scripts["open"].sha,
        len(keys),
        *keys,
        secrets.token_hex(16),
        expected or "",
        SCHEMA_VERSION,
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    ((status, *answer),) = route.exchange([command], OPENING_PAUSES_S)
    if status == b"unmarked":
        raise PrivacyRefused(f"expected the marks of the ledger at {route.name()}, got only its data: restore it")
    if status != b"ok" or expected not in (None, answer[0].decode()):
        raise gone(route.name(), expected or "")
    ledger_id, schema = (one.decode() for one in answer)
    if schema != SCHEMA_VERSION:
        raise PrivacyRefused(
            f"expected schema {SCHEMA_VERSION} of the ledger at {route.name()}, got {schema}: upgrade udp-stream"
        )
    return str(ledger_id)
