"""A queue of AMQP 0-9-1 as a source, as the exchange serves its subscribers.

A message is acknowledged once its pings are kept: in Kafka, or in a journal. The broker gives what was not acknowledged
to the next connection, so nothing is lost when a connection, this program, or Kafka goes away. What it then gives
twice, the last few thousand messages are compared with, and downstream a plate and a time count once in any case.

Everything happens in the thread that reads `messages`: pika's connections belong to one thread. `kept` and `stop`
leave notes, which that thread reads five times a second. It has the queue consumed with a prefetch, so the broker
stops sending when that many messages are not acknowledged. The queue is not declared: that is its owner's to do.

pika and not aio-pika: that one expects properties of RabbitMQ which other brokers do not send.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from udp_stream.errors import ConfigError, UsageError, needs
from udp_stream.files import secret_of, tls_context
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.snapshots import Unrepeated
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.http import BYTES_MAX
from udp_stream.sources.live import Failed, Retries
from udp_stream.sources.recordings import VEHICLES_MAX
from udp_stream.units import parse_duration

if TYPE_CHECKING:
    from pika import BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.connection import Parameters

LOOK_S = 0.2
"""Between two looks at what was kept, and whether to stop."""

DRAIN_S = 10.0
"""As long as the last messages are waited for to be kept, when the source is stopped."""

PREFETCH = 1000
"""Messages that are on their way at once, and come again after a crash: ten seconds of 1,000 buses."""

HEARTBEAT_S = 30
FIRST_PAUSE_S = 1.0
REMEMBERED_PREFETCHES = 4

PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class _Given:
    """Frames up to this number hold the messages up to this tag of a connection."""

    frame: int
    connection: int
    tag: int


class QueueSource:
    """Consumes a queue until it is stopped."""

    unit: str | None = None

    def __init__(
        self,
        name: str,
        live: LiveSection,
        json: PingFormat,
        say: Callable[[str], None],
        prefetch: int = PREFETCH,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is connected yet; `json` reads the messages. UsageError for a name that is none, ConfigError without
        a password."""
        self._parameters, self.name = _parameters(name, live)
        self._queue, self._prefetch, self._say, self.format = live.queue, prefetch, say, json
        self._retries = Retries(self.name, FIRST_PAUSE_S, say, time.monotonic, fraction)
        self._stopped = threading.Event()
        self._kept_frames = 0
        self._is_waiting = True
        self._unrepeated = Unrepeated(json, BYTES_MAX, VEHICLES_MAX, REMEMBERED_PREFETCHES * prefetch)
        self._given: deque[_Given] = deque()
        self._frames = self._connections = 0

    def messages(self) -> Iterator[list[bytes]]:
        """A frame for the messages that have come, as single pings. DependencyUnavailable if the first connection is
        refused for what it is: a wrong password, or no such queue."""
        while not self._stopped.is_set():
            try:
                connection = self._connected()
                try:
                    yield from self._consumed(connection)
                finally:
                    with suppress(Exception):  # it may be gone already; the broker takes back what it had given
                        connection.close()
                return
            except Failed as failure:
                self._stopped.wait(self._retries.failed(failure))

    def kept(self, frames: int) -> None:
        """How many frames are kept: their messages are acknowledged soon."""
        self._kept_frames = frames

    def stop(self, wait: bool = True) -> None:
        """Take no more messages, and end when those taken are acknowledged; without `wait` they are given back."""
        self._is_waiting = wait
        self._stopped.set()

    def close(self) -> None:
        """The connection ends with `messages`."""

    def _connected(self) -> BlockingConnection:
        from pika import BlockingConnection
        from pika.exceptions import AMQPError

        try:
            connection = BlockingConnection(self._parameters)
        except (AMQPError, OSError, ValueError) as error:
            raise _failure(error) from None
        self._connections += 1
        return connection

    def _consumed(self, connection: BlockingConnection) -> Iterator[list[bytes]]:
        from pika.exceptions import AMQPError

        try:
            channel = connection.channel()
            # Before the consumer: a prefetch holds only for consumers that come after it.
            channel.basic_qos(prefetch_count=self._prefetch)
            arrived: list[tuple[int, bytes]] = []
            cancelled: list[object] = []
            channel.add_on_cancel_callback(cancelled.append)
            consumer = channel.basic_consume(
                self._queue,
                lambda _channel, method, _properties, body: arrived.append((method.delivery_tag or 0, body)),
            )
            # Not when it was connected: a queue that is not there is refused only by `basic_consume`.
            self._retries.worked()
            self._say(f"{self.name}: reading, with at most {self._prefetch:,} messages on their way")
            while not self._stopped.is_set():
                connection.process_data_events(LOOK_S)
                self._acknowledge(channel)
                if cancelled:
                    raise Failed("has taken the queue away")
                if arrived:
                    yield self._frame(arrived)
            # Cancelled before the wait, so that the broker sends nothing more meanwhile.
            channel.basic_cancel(consumer)
            self._drain(connection, channel)
        except (AMQPError, OSError, ValueError) as error:
            raise _failure(error) from None

    def _frame(self, arrived: list[tuple[int, bytes]]) -> list[bytes]:
        frame = [ping for _, body in arrived for ping in self._unrepeated.take(body)]
        self._frames += 1
        self._given.append(_Given(self._frames, self._connections, arrived[-1][0]))
        arrived.clear()
        return frame

    def _acknowledge(self, channel: BlockingChannel) -> None:
        """What is kept, of this connection. What an earlier one gave cannot be acknowledged: it comes again."""
        tag = 0
        while self._given and self._given[0].frame <= self._kept_frames:
            given = self._given.popleft()
            tag = given.tag if given.connection == self._connections else tag
        if tag:
            channel.basic_ack(tag, multiple=True)

    def _drain(self, connection: BlockingConnection, channel: BlockingChannel) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while self._given and self._is_waiting and time.monotonic() < deadline_s:
            connection.process_data_events(LOOK_S / 4)
            self._acknowledge(channel)


def _parameters(name: str, live: LiveSection) -> tuple[Parameters, str]:
    """How to connect, and the name for people."""
    with needs("AMQP client", "sources"):
        from pika import ConnectionParameters, PlainCredentials, SSLOptions
    logging.getLogger("pika").setLevel(logging.CRITICAL + 1)  # what goes wrong is said by us, without traces
    try:
        parts = urlsplit(name)
        host, scheme, port = parts.hostname or "", parts.scheme, parts.port
    except ValueError:
        host, scheme, port, parts = "", "", None, urlsplit("")
    if not host or parts.query or parts.fragment or not name.isprintable():
        raise UsageError("expected amqp://HOST:PORT/VHOST or amqps://..., and the queue in live.queue")
    if "@" in parts.netloc:
        raise UsageError("expected amqp:// without a password, which other users could see: use live.password_file")
    for key in ("queue", "username", "password_file"):
        if not getattr(live, key):
            raise ConfigError(f"live.{key}: expected one for {scheme}://, got none")
    timeout_s = parse_duration(live.timeout)
    password = secret_of("live.password_file", live.password_file)
    parameters = ConnectionParameters(
        host=host,
        port=port or PORTS[scheme],
        virtual_host=unquote(parts.path.removeprefix("/")) or "/",
        credentials=PlainCredentials(live.username, password),
        ssl_options=SSLOptions(tls_context("live", live.ca_file), host) if scheme == "amqps" else None,
        socket_timeout=timeout_s,
        stack_timeout=timeout_s,
        blocked_connection_timeout=timeout_s,
        heartbeat=HEARTBEAT_S,
    )
    return parameters, f"{scheme}://{host}:{port or PORTS[scheme]}{parts.path}"


def _failure(error: Exception) -> Failed:
    """What an error means, in words that hold nothing of the broker's."""
    import ssl

    from pika import exceptions as amqp

    causes = [error, error.__cause__, error.__context__, *error.args]
    causes += [getattr(cause, "exception", None) for cause in causes]
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            said = cause.verify_message or "verification failed"
            return Failed(f"has a certificate that is not trusted ({said})", is_final=True)
    if isinstance(error, amqp.ProbableAuthenticationError | amqp.AuthenticationError):
        return Failed("does not accept the username and password", is_final=True)
    if isinstance(error, amqp.ProbableAccessDeniedError):
        return Failed("does not let this user into the virtual host", is_final=True)
    if isinstance(error, amqp.ChannelClosedByBroker):
        why = {404: "there is no such queue", 403: "this user may not read it", 405: "another one has it for itself"}
        return Failed(f"does not give the queue: {why.get(error.reply_code, error.reply_code)}", is_final=True)
    if isinstance(error, amqp.ConnectionClosedByBroker):
        return Failed(f"has closed the connection ({error.reply_code})")
    if "refused" in repr(causes).lower():
        return Failed("refuses connections")
    return Failed(f"lost the connection ({type(error).__name__})")
