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
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from udp_stream.errors import ConfigError, needs
from udp_stream.files import secret_of, tls_context
from udp_stream.pings.json import FeedForm
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.live import DRAIN_S, BrokerSource, Failed, broker_address
from udp_stream.units import parse_duration

if TYPE_CHECKING:
    from pika import BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.connection import Parameters

LOOK_S = 0.2
"""Between two looks at what was kept, and whether to stop."""

PREFETCH = 1000
"""Messages that are on their way at once, and come again after a crash: ten seconds of 1,000 buses."""

HEARTBEAT_S = 30
REMEMBERED_PREFETCHES = 4

PORTS = {"amqp": 5672, "amqps": 5671}


class QueueSource(BrokerSource):
    """Consumes a queue until it is stopped."""

    def __init__(
        self,
        name: str,
        live: LiveSection,
        form: FeedForm,
        say: Callable[[str], None],
        prefetch: int = PREFETCH,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is connected yet; `form` is the feed's. UsageError for a name that is none, ConfigError without a
        password."""
        self._parameters, shown = _parameters(name, live)
        super().__init__(shown, live, form, say, REMEMBERED_PREFETCHES * prefetch, fraction)
        self._queue, self._prefetch = live.queue, prefetch

    def _session(self) -> Iterator[list[bytes]]:
        from pika import BlockingConnection
        from pika.exceptions import AMQPError

        try:
            connection = BlockingConnection(self._parameters)
        except (AMQPError, OSError, ValueError) as error:
            raise _failure(error) from None
        self._connections += 1
        try:
            yield from self._consumed(connection)
        finally:
            with suppress(Exception):  # it may be gone already; the broker takes back what it had given
                connection.close()

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
                    frame = self._frame(arrived)
                    arrived.clear()
                    yield frame
            # Cancelled before the wait, so that the broker sends nothing more meanwhile.
            channel.basic_cancel(consumer)
            self._drain(connection, channel)
        except (AMQPError, OSError, ValueError) as error:
            raise _failure(error) from None

    def _acknowledge(self, channel: BlockingChannel) -> None:
        if tags := self._newly_kept():
            channel.basic_ack(tags[-1], multiple=True)

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
    expected = "expected amqp://HOST:PORT/VHOST or amqps://..., and the queue in live.queue"
    parts, port = broker_address(name, expected, PORTS)
    for key in ("queue", "username", "password_file"):
        if not getattr(live, key):
            raise ConfigError(f"live.{key}: expected one for {parts.scheme}://, got none")
    host, timeout_s = parts.hostname or "", parse_duration(live.timeout)
    password = secret_of("live.password_file", live.password_file)
    parameters = ConnectionParameters(
        host=host,
        port=port,
        virtual_host=unquote(parts.path.removeprefix("/")) or "/",
        credentials=PlainCredentials(live.username, password),
        ssl_options=SSLOptions(tls_context("live", live.ca_file), host) if parts.scheme == "amqps" else None,
        socket_timeout=timeout_s,
        stack_timeout=timeout_s,
        blocked_connection_timeout=timeout_s,
        heartbeat=HEARTBEAT_S,
    )
    return parameters, f"{parts.scheme}://{host}:{port}{parts.path}"


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
