"""Connections to the ledger's Redis: which server has it, what is asked again, and what is given
up.

Every command can be sent twice (the ledger's promises are per release id), so a command without an
answer is sent again after a short pause, and the last failure leaves as DependencyUnavailable.

In a cluster all keys of a ledger lie in a single hash slot. Its server is found with CLUSTER SLOTS,
talked to alone, and looked for anew after any trouble; a client for whole clusters would not
pipeline scripts.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from udp_stream.base.errors import ConfigError, DependencyUnavailable
from udp_stream.ledgers.patience import Patience
from udp_stream.settings.rules import check_url

SCRIPTS = ("open", "mark", "state", "balances", "commit")
UNGUARDED = ("open",)


class Script(NamedTuple):
    """A script's text, and the name that the server gives it."""

    text: str
    sha: str


@cache
def load_scripts() -> Mapping[str, Script]:
    """Our scripts by name; all but the one that makes a ledger stand behind the guard."""
    folder = resources.files(__package__) / "lua"
    texts = {name: (folder / f"{name}.lua").read_text("utf-8") for name in ("guard", *SCRIPTS)}
    return scripts_of(
        {
            name: texts[name] if name in UNGUARDED else texts["guard"] + texts[name]
            for name in SCRIPTS
        }
    )


def scripts_of(texts: Mapping[str, str]) -> Mapping[str, Script]:
    """Scripts of these texts."""
    return {
        name: Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }


RIGHTS = "the rights that a ledger needs are in docs/deployments.md"


HANDSHAKE_S = 5.0


def require_tls(url: str, context: ssl.SSLContext) -> None:
    """Shake hands once with the server of a rediss:// URL; DependencyUnavailable if that fails: a
    Redis without TLS would let the client wait. That nothing answers at all is left to the client,
    which tries again."""
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    port = parts.port or 6379
    try:
        with (
            socket.create_connection((host, port), HANDSHAKE_S) as plain,
            suppress(ConnectionError),
        ):
            context.wrap_socket(plain, server_hostname=host).close()
    except TimeoutError as error:
        reason = "it does not speak TLS with us (no answer): redis:// is without TLS"
        raise DependencyUnavailable(
            f"the ledger's Redis at {host}:{port} cannot be used: {reason}"
        ) from error
    except ssl.SSLError as error:
        raise DependencyUnavailable(
            f"the ledger's Redis at {host}:{port} cannot be used: {_of_tls(error)}"
        ) from error
    except OSError:
        return


def sentence(trouble: Exception | None, tls: bool = False) -> str:
    """Without anything secret, for behind "cannot be used: "; `tls`: by rediss://.

    >>> sentence(exceptions.AuthenticationError("Authentication required."))
    'it wants a password: ledger.client.password_file'
    """
    found = next((cause for cause in _causes(trouble) if isinstance(cause, ssl.SSLError)), None)
    if found is not None:
        return _of_tls(found)
    text = str(trouble)
    if why := full(trouble):
        return why
    match trouble:
        case exceptions.AskError():
            return "it is one server of a cluster: write redis+cluster:// in ledger.url"
        case exceptions.AuthenticationError() if text.startswith(
            ("Authentication required", "NOAUTH")
        ):
            return "it wants a password: ledger.client.password_file"
        case exceptions.AuthenticationError():
            return "it does not accept the user and password of ledger.client"
        case exceptions.ResponseError() if (
            "no permissions" in text.lower()
        ):  # scripts say it in words of their own
            what = text.partition(": ")[2].partition(" command script")[0] or text
            return f"it does not let this user do what a ledger does ({what}): {RIGHTS}"
        case exceptions.ConnectionError() if "closed by server" in text.lower():
            why = (
                "Does it want ledger.client.ssl_certfile?"
                if tls
                else "Does it speak TLS on this port, and want rediss://?"
            )
            return f"it ends the connection. {why}"
    return text or type(trouble).__name__


def full(trouble: Exception | None) -> str:
    """Advice for a server without room; "" where that is not its trouble.

    >>> full(exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"))
    'its disk is full, or cannot be written: make room there'
    """
    if isinstance(trouble, exceptions.OutOfMemoryError):
        return "its memory is full: raise its maxmemory; then `udp-stream ledger archive` takes out what is over"
    return (
        "its disk is full, or cannot be written: make room there"
        if str(trouble).startswith("MISCONF")
        else ""
    )


def _of_tls(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        reason = f"{error.reason or type(error).__name__}".lower().replace("_", " ")
        if reason.endswith("certificate required"):
            return "it wants a certificate of ours: ledger.client.ssl_certfile"
        return f"it does not speak TLS with us ({reason}): is this its TLS port? Does it want ledger.client.ssl_certfile?"
    # OpenSSL's numbers for a name and for an IP address that the certificate lacks.
    if error.verify_code in (62, 64):
        return "it shows a certificate of another host: ledger.url needs a name that is in it"
    return f"it shows a certificate that is not trusted ({error.verify_message}): ledger.client.ssl_ca_certs names who is"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


PAUSES_S = (
    0.05,
    0.1,
    0.2,
    0.4,
    *[0.8] * 12,
)  # some ten seconds: a server restarts, a replica is promoted
OPENING_PAUSES_S = PAUSES_S[:4]  # nothing can be lost yet
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0  # a slot of a large city takes a second
CLUSTER = "+cluster"

Command: TypeAlias = tuple[bytes | str | int, ...]

# What a server says while it is starting, failing over or moving a slot; it will be able to answer
# later.
_PASSING = (
    exceptions.AskError,  # MOVED too
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
)
_PASSING_WORDS = ("NOREPLICAS", "BUSY ", "LOADING", "MASTERDOWN", "MISCONF")
_NO_ANSWER = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
)

# Trying again is decided in `Connection.exchange`. RESP2: the replies that scripts and clusters
# give have one form.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": ANSWER_TIMEOUT_S,
}


class TooFewReplicas(Exception):
    """Fewer replicas than demanded have what was written."""


class Connections:
    """Connections to servers by their URL, for any number of threads."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._options = {**_OPTIONS, **client}
        self._clients: dict[str, Redis] = {}
        self._lock = threading.Lock()

    def send(self, url: str, commands: Sequence[Command]) -> tuple[list[Any], Exception | None]:
        """The replies of one round trip, and the first trouble; a forgotten script only if there is
        no other."""
        pipeline: Any = self._client(url).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        except (
            *_NO_ANSWER,
            exceptions.ResponseError,
        ) as error:  # the latter of the greeting: SELECT was refused
            return [], error
        errors: Iterator[Exception] = (reply for reply in replies if isinstance(reply, Exception))
        return replies, min(
            errors, key=lambda error: isinstance(error, exceptions.NoScriptError), default=None
        )

    def _client(self, url: str) -> Redis:
        with self._lock:
            if url not in self._clients:
                self._clients[url] = Redis.from_url(
                    url, retry=Retry(NoBackoff(), 0), **self._options
                )
            return self._clients[url]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()


@dataclass
class Connection:
    """Leads to a server, or to whichever server of a cluster holds the slot at the moment, from any
    number of threads.

    `replicas` is how many of them must have got a write before it is answered. A server that has
    forgotten the `scripts` is given them anew.
    """

    url: str
    slot: int | None
    scripts: Mapping[str, Script]
    replicas: int = 0
    replicas_timeout_ms: int = 2000
    beat: str = ""
    holder: str | None = None
    known: list[str] = field(default_factory=list)
    connections: Connections = field(default_factory=partial(Connections, {}))
    patience: Patience | None = None

    def name(self) -> str:
        """For people: without user and password."""
        parts = urlsplit(self.url)
        return (
            parts.path
            if parts.scheme == "unix"
            else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        )

    def close(self) -> None:
        self.connections.close()

    def exchange(
        self, commands: Sequence[Command], pauses: Sequence[float] = PAUSES_S
    ) -> list[Any]:
        """A reply to each command, asked again until there is one; DependencyUnavailable if there
        is none after these pauses, and no patience either."""
        trouble: Exception | None = None
        for pause in self._pauses(pauses):
            if self.patience:
                self.patience.ask()
            holder = self.holder  # other threads may find or lose it meanwhile
            if holder is None:
                holder, trouble = self._find()
            if holder is not None:
                replies, trouble = self._ask(holder, commands)
                if trouble is None:
                    if self.patience:
                        self.patience.back()
                    return replies
                if _is_final(trouble, clustered=self.slot is not None):
                    break
                if self.slot is not None:
                    self.holder = None
            if self.patience:
                self.patience.away(full(trouble))
            if pause is not None:
                (self.patience.wait if self.patience else time.sleep)(pause)
        raise DependencyUnavailable(
            f"the ledger's Redis at {self.name()} cannot be used: {sentence(trouble, self.url.startswith('rediss'))}"
        ) from trouble

    def _pauses(self, pauses: Sequence[float]) -> Iterator[float | None]:
        """Behind each try; None behind the last one."""
        yield from pauses
        while self.patience and self.patience.goes_on():
            yield 0.0
        yield None

    def _ask(self, holder: str, commands: Sequence[Command]) -> tuple[list[Any], Exception | None]:
        """The replies and the first trouble among them; scripts that the server has forgotten are
        loaded at once."""
        # What is waited for is the connection's own last write, and a repeat would not write: so it
        # writes a beat.
        waited: list[Command] = []
        if self.replicas:
            waited = [("INCR", self.beat), ("WAIT", self.replicas, self.replicas_timeout_ms)]
        replies, trouble = self.connections.send(holder, [*commands, *waited])
        if isinstance(trouble, exceptions.NoScriptError):
            loads: list[Command] = [
                ("SCRIPT", "LOAD", script.text) for script in self.scripts.values()
            ]
            _, refused = self.connections.send(holder, loads)
            if refused is not None:
                return [], refused
            replies, trouble = self.connections.send(holder, [*commands, *waited])
        if trouble is None and waited and replies[-1] < self.replicas:
            trouble = TooFewReplicas(
                f"expected ledger.replicas = {self.replicas} to acknowledge a write, got {replies[-1]}"
            )
        return replies[: len(commands)], trouble

    def _find(self) -> tuple[str | None, Exception | None]:
        """Set and return the holder by asking the servers known; or the last trouble, if none could
        tell."""
        trouble: Exception | None = None
        for url in tuple(self.known):
            replies, trouble = self.connections.send(url, [("CLUSTER", "SLOTS")])
            if trouble is not None:
                continue
            ranges = [(first, last, _urls(url, nodes)) for first, last, *nodes in replies[0]]
            holders = [urls[0] for first, last, urls in ranges if first <= (self.slot or 0) <= last]
            if holders:
                self.known = list(
                    dict.fromkeys([*(url for _, _, urls in ranges for url in urls), self.url])
                )
                self.holder = holders[0]
                return holders[0], None
            trouble = exceptions.ClusterDownError("no server holds the ledger's slot")
        return None, trouble

    def to_primaries(self) -> list[tuple[Connection, int]]:
        """Every server that writes (all masters of a cluster), and its number of replicas as listed
        by the cluster."""
        replicas = {self.url: 0}
        if self.slot is not None:
            (ranges,) = self.exchange([("CLUSTER", "SLOTS")], OPENING_PAUSES_S)
            replicas = {_urls(self.url, nodes[:1])[0]: len(nodes) - 1 for _, _, *nodes in ranges}
        return [
            (Connection(url, None, {}, holder=url, connections=self.connections), number)
            for url, number in replicas.items()
        ]


def connection_to(
    url: str,
    prefix: str,
    scripts: Mapping[str, Script],
    replicas: int = 0,
    client: Mapping[str, Any] | None = None,
) -> Connection:
    """Read a URL: redis, rediss (TLS) or unix, and redis+cluster or rediss+cluster; ConfigError for
    any other.

    >>> connection_to("redis+cluster://:secret@10.0.0.1:7000", "{udp}", {}).name()
    '10.0.0.1:7000'
    """
    check_url(url)
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ConfigError(
            "ledger.url: expected redis://, rediss://, unix:// or redis+cluster://, got a file"
        )
    clustered = scheme.endswith(CLUSTER)
    plain = f"{scheme.removesuffix(CLUSTER)}://{rest}"
    beat = f"{prefix}:beat"
    connections = Connections(client or {})
    if clustered:
        slot = key_slot(prefix.encode())
        return Connection(
            plain, slot, scripts, replicas, beat=beat, known=[plain], connections=connections
        )
    return Connection(
        plain, None, scripts, replicas, beat=beat, holder=plain, connections=connections
    )


def _urls(asked: str, nodes: Sequence[Any]) -> list[str]:
    """The URLs of what CLUSTER SLOTS names: as the one asked, with their host (empty: the same) and
    port."""
    parts = urlsplit(asked)
    user, at, _ = parts.netloc.rpartition("@")
    hosts = [
        ((node[0] or b"").decode() or parts.hostname or "localhost", node[1]) for node in nodes
    ]
    named = [(f"[{host}]" if ":" in host else host, port) for host, port in hosts]
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}:{port}")) for host, port in named]


def _is_final(trouble: Exception, clustered: bool) -> bool:
    """Whether asking again would not help: a wrong password, a cluster asked as one server."""
    if isinstance(trouble, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
        return True
    if isinstance(trouble, exceptions.AskError) and not clustered:
        return True
    if isinstance(trouble, (*_NO_ANSWER, *_PASSING, exceptions.NoScriptError, TooFewReplicas)):
        return False
    return not str(trouble).startswith(_PASSING_WORDS)
