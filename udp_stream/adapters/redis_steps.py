"""Talking to Redis, once for synchronous and asynchronous callers: generators that yield steps and are sent replies.

A call is a generator of steps: `Send` some commands to a server in one round trip, or `Pause`. A driver does nothing
but carry them out (`redis_wire.py`): where the ledger lives, what is tried again and what is given up is decided here,
for both.

Every command of ours can be sent twice (the ledger's promises are per release id), so whatever went unanswered is asked
again, all of it, after a short pause, and the last failure leaves as DependencyUnavailable. A connection that died may
still carry out what it was sent: that too is only a repeat.

In a cluster all keys of a ledger lie in one hash slot. The server that holds the slot is found with CLUSTER SLOTS,
talked to alone, and looked for anew after any trouble; a client for whole clusters would not pipeline scripts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis import exceptions
from redis.crc import key_slot

from udp_stream.errors import ConfigError, DependencyUnavailable

PAUSES_S = (0.05, 0.1, 0.2, 0.4, *[0.8] * 12)  # some ten seconds: a server restarts, a replica is promoted
OPENING_PAUSES_S = PAUSES_S[:4]  # nobody is there yet who would lose anything
SCHEMES = ("redis", "rediss", "unix")
CLUSTER = "+cluster"
SCRIPTS = ("open", "bind", "epoch", "admit", "record", "snapshot")
UNGUARDED = ("open",)

Command: TypeAlias = tuple[bytes | str | int, ...]
T = TypeVar("T")

# What a server says while it is starting, failing over or moving a slot; it will be able to answer later.
_PASSING = (
    exceptions.AskError,  # MOVED too
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
)
_PASSING_WORDS = ("NOREPLICAS", "BUSY ", "LOADING", "MASTERDOWN")
NO_ANSWER = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError)


class Send(NamedTuple):
    """One round trip: `commands` to the server at `url`; answered with a reply each, or with the error that came."""

    url: str
    commands: Sequence[Command]


class Pause(NamedTuple):
    """Wait so long; answered with nothing."""

    seconds: float


class TooFewReplicas(Exception):
    """Fewer replicas than demanded have what was written."""


Steps: TypeAlias = Generator[Send | Pause, Any, T]
"""A call: what it needs from Redis, and what it returns."""


class Script(NamedTuple):
    """A script's text, and the name that the server gives it."""

    text: str
    sha: str


@cache
def load_scripts() -> Mapping[str, Script]:
    """Our scripts by name, as they lie beside this file."""
    folder = resources.files(__package__)
    texts = {name: (folder / f"redis_{name}.lua").read_text("utf-8") for name in ("guard", *SCRIPTS)}
    return scripts_of({name: texts[name] if name in UNGUARDED else texts["guard"] + texts[name] for name in SCRIPTS})


def scripts_of(texts: Mapping[str, str]) -> Mapping[str, Script]:
    """Scripts of these texts."""
    return {
        name: Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }


@dataclass
class Route:
    """Where the ledger is: a server, or whichever server of a cluster holds the slot at the moment.

    `replicas` is how many of them must have got a write before it is answered.
    """

    url: str
    slot: int | None
    replicas: int = 0
    replicas_timeout_ms: int = 2000
    beat: str = ""
    holder: str | None = None
    known: list[str] = field(default_factory=list)

    def name(self) -> str:
        """For people: without user and password."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def route_to(url: str, prefix: str, replicas: int = 0) -> Route:
    """Read a URL: redis, rediss (TLS) or unix, and redis+cluster or rediss+cluster; ConfigError for any other.

    >>> route_to("redis+cluster://:secret@10.0.0.1:7000", "{udp}").name()
    '10.0.0.1:7000'
    """
    scheme, mark, rest = url.partition("://")
    clustered = scheme.endswith(CLUSTER)
    scheme = scheme.removesuffix(CLUSTER)
    if not mark or scheme not in SCHEMES or (clustered and scheme == "unix"):
        raise ConfigError(f"ledger.url: expected redis://, rediss://, unix:// or redis+cluster://, got {scheme}://...")
    plain = f"{scheme}://{rest}"
    try:
        _ = urlsplit(plain).port
    except ValueError as error:
        raise ConfigError("ledger.url: expected a number after the host's colon, got something else") from error
    if clustered:
        return Route(plain, key_slot(prefix.encode()), replicas, beat=f"{prefix}:beat", known=[plain])
    return Route(plain, None, replicas, beat=f"{prefix}:beat", holder=plain)


def exchange(
    route: Route, scripts: Mapping[str, Script], commands: Sequence[Command], pauses: Sequence[float] = PAUSES_S
) -> Steps[list[Any]]:
    """A reply to each command, asked again until there is one; DependencyUnavailable if there is none."""
    trouble: Exception | None = None
    for pause in (*pauses, None):
        holder = route.holder  # other threads may find or lose it meanwhile
        if holder is None:
            holder, trouble = yield from _find(route)
        if holder is not None:
            replies, trouble = yield from _ask(route, holder, scripts, commands)
            if trouble is None:
                return replies
            if _is_final(route, trouble):
                break
            if route.slot is not None:
                route.holder = None
        if pause is not None:
            yield Pause(pause)
    raise DependencyUnavailable(
        f"the ledger's Redis at {route.name()} cannot be used: {_sentence(trouble)}"
    ) from trouble


def _ask(
    route: Route, holder: str, scripts: Mapping[str, Script], commands: Sequence[Command]
) -> Steps[tuple[list[Any], Exception | None]]:
    """The replies and the first trouble among them; scripts that the server has forgotten are loaded at once."""
    # What is waited for is the connection's own last write, and a repeat would not write: hence the beat.
    waited: list[Command] = []
    if route.replicas:
        waited = [("INCR", route.beat), ("WAIT", route.replicas, route.replicas_timeout_ms)]
    for attempt in range(2):
        replies = yield Send(holder, [*commands, *waited])
        trouble = _trouble(replies)
        if attempt or not isinstance(trouble, exceptions.NoScriptError):
            break
        yield Send(holder, [("SCRIPT", "LOAD", script.text) for script in scripts.values()])
    if trouble is None and waited and replies[-1] < route.replicas:
        trouble = TooFewReplicas(f"expected {route.replicas} replicas to have got a write, got {replies[-1]}")
    return ([], trouble) if trouble is not None else (replies[: len(commands)], None)


def _find(route: Route) -> Steps[tuple[str | None, Exception | None]]:
    """Set and return the route's holder by asking the servers known; or the last trouble, if none could tell."""
    trouble: Exception | None = None
    for url in tuple(route.known):
        replies = yield Send(url, [("CLUSTER", "SLOTS")])
        trouble = _trouble(replies)
        if trouble is not None:
            continue
        ranges = [(first, last, _urls(url, nodes)) for first, last, *nodes in replies[0]]
        holders = [urls[0] for first, last, urls in ranges if first <= (route.slot or 0) <= last]
        if holders:
            route.known = list(dict.fromkeys([*(url for _, _, urls in ranges for url in urls), route.url]))
            route.holder = holders[0]
            return holders[0], None
        trouble = exceptions.ClusterDownError("no server holds the ledger's slot")
    return None, trouble


def primaries(route: Route) -> Steps[list[str]]:
    """The URL of every server that writes: the one, or all masters of the cluster."""
    if route.slot is None:
        return [route.url]
    (ranges,) = yield from exchange(route, {}, [("CLUSTER", "SLOTS")], OPENING_PAUSES_S)
    return list(dict.fromkeys(_urls(route.url, nodes[:1])[0] for _, _, *nodes in ranges))


def _urls(asked: str, nodes: Sequence[Any]) -> list[str]:
    """The URLs of what CLUSTER SLOTS names: as the one asked, with their host (empty: the same) and port."""
    parts = urlsplit(asked)
    user, at, _ = parts.netloc.rpartition("@")
    hosts = [((node[0] or b"").decode() or parts.hostname or "localhost", node[1]) for node in nodes]
    named = [(f"[{host}]" if ":" in host else host, port) for host, port in hosts]
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}:{port}")) for host, port in named]


def _trouble(replies: Sequence[Any] | Exception) -> Exception | None:
    """The error that came instead of replies, or the first among them; scripts forgotten only if nothing else."""
    if isinstance(replies, Exception):
        return replies
    errors: Iterator[Exception] = (reply for reply in replies if isinstance(reply, Exception))
    return min(errors, key=lambda error: isinstance(error, exceptions.NoScriptError), default=None)


def _is_final(route: Route, trouble: Exception) -> bool:
    """Whether asking again would not help: a wrong password, a full memory or disk, a cluster asked as one server."""
    if isinstance(trouble, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
        return True
    if isinstance(trouble, exceptions.AskError) and route.slot is None:
        return True
    if isinstance(trouble, (*NO_ANSWER, *_PASSING, exceptions.NoScriptError, TooFewReplicas)):
        return False
    return not str(trouble).startswith(_PASSING_WORDS)


def _sentence(trouble: Exception | None) -> str:
    if isinstance(trouble, exceptions.AskError):
        return "it is one server of a cluster: write redis+cluster:// in ledger.url"
    return f"{trouble}" or type(trouble).__name__
