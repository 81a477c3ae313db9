"""A queue of AMQP 0-9-1 as a source, as the exchange serves its subscribers.

The broker sends a message that was not acknowledged again, over the next connection. So nothing is lost when a
connection, this program, or Kafka goes away. The queue is consumed with a prefetch: the broker stops sending when that
many messages are not acknowledged. The queue is not declared: its owner does that.

A connection of pika belongs to one thread. aio-pika expects properties of RabbitMQ that other brokers do not send.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from udp_stream.errors import ConfigError, needs
from udp_stream.files import secret_of, tls_context
from udp_stream.settings import Settings
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.live import ConnectedSource, Failed, broker_address, failure_of
from udp_stream.sources.recordings import Say
from udp_stream.units import parse_duration

if TYPE_CHECKING:
    from pika.connection import Parameters

LOOK_S = 0.2
"""As long as one call of `read` waits."""

PREFETCH = 1000
"""Messages that are on their way at once, and come again after a crash: ten seconds of 1,000 buses."""

HEARTBEAT_S = 30
REMEMBERED_PREFETCHES = 4

PORTS = {"amqp": 5672, "amqps": 5671}


class QueueSource(ConnectedSource):
    """A queue. UsageError for a name that is no broker's, ConfigError without a password."""

    def __init__(
        self, name: str, settings: Settings, say: Say, _folder: Path | None = None, prefetch: int = PREFETCH
    ) -> None:
        self._parameters, shown = _parameters(name, settings.live)
        super().__init__(shown, settings, say, remembered=REMEMBERED_PREFETCHES * prefetch)
        from pika.exceptions import AMQPError

        self.errors = (*self.errors, AMQPError)
        self._queue, self._prefetch = settings.live.queue, prefetch
        self._arrived: list[tuple[int, bytes]] = []

    def open(self) -> None:
        from pika import BlockingConnection

        self._arrived, self._cancelled = [], list[object]()
        self._connection = BlockingConnection(self._parameters)
        self._channel = self._connection.channel()
        # Before the consumer: a prefetch holds only for consumers that come after it.
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._channel.add_on_cancel_callback(self._cancelled.append)
        self._consumer = self._channel.basic_consume(
            self._queue,
            lambda _channel, method, _properties, body: self._arrived.append((method.delivery_tag or 0, body)),
        )
        self.say(f"{self.name}: reading, with at most {self._prefetch:,} messages on their way")

    def read(self) -> Sequence[tuple[int, bytes]]:
        if self.stopped.is_set() and self._consumer:  # the broker is to send nothing more
            self._channel.basic_cancel(self._consumer)
            self._consumer = ""
        self._connection.process_data_events(LOOK_S)
        if self._cancelled:
            raise Failed("has taken the queue away")
        arrived, self._arrived = self._arrived, []
        return arrived

    def acknowledge(self, ids: Sequence[int]) -> None:
        self._channel.basic_ack(ids[-1], multiple=True)

    def disconnect(self) -> None:
        self._connection.close()

    def failure(self, error: BaseException) -> Failed:
        from pika import exceptions as amqp

        if isinstance(error, amqp.ProbableAuthenticationError | amqp.AuthenticationError):
            return Failed("does not accept the username and password", is_final=True)
        if isinstance(error, amqp.ProbableAccessDeniedError):
            return Failed("does not let this user into the virtual host", is_final=True)
        if isinstance(error, amqp.ChannelClosedByBroker):
            why = {
                404: "there is no such queue",
                403: "this user may not read it",
                405: "another one has it for itself",
            }
            return Failed(f"does not give the queue: {why.get(error.reply_code, error.reply_code)}", is_final=True)
        if isinstance(error, amqp.ConnectionClosedByBroker):
            return Failed(f"has closed the connection ({error.reply_code})")
        return failure_of(error)


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
