"""Message brokers as live sources: a queue of AMQP 0-9-1, topics of MQTT."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from udp_stream.base.errors import ConfigError, UsageError, needs
from udp_stream.base.files import draft_of, link_first, secret_of, tls_context
from udp_stream.base.logs import counted
from udp_stream.base.units import parse_duration
from udp_stream.settings import Settings
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.live import ConnectedSource, SourceFailure, failure_of
from udp_stream.sources.recordings import MessageSink

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from pika.connection import Parameters

LOOK_S = 0.2
"""As long as a call of `read` waits."""

PORTS = {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883}


def broker_address(name: str, expected: str) -> tuple[SplitResult, int]:
    """The parts of a broker's address, and its port. UsageError if it is no address, or has a
    password in it."""
    try:
        parts = urlsplit(name)
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        parts = urlsplit("")
        port = 0
    if not parts.hostname or parts.query or parts.fragment or not name.isprintable():
        raise UsageError(expected)
    if "@" in parts.netloc:
        rule = f"expected {parts.scheme}:// without a password, which other users could see"
        raise UsageError(f"{rule}: use live.password_file")
    return parts, port


# A queue, as the exchange serves its subscribers. The broker sends a message that was not
# acknowledged again, over the next connection. So nothing is lost when a connection, this program,
# or Kafka goes away. The queue is consumed with a prefetch: the broker stops sending when that many
# messages are not acknowledged. Its owner declares it.
#
# A connection of pika belongs to a single thread. aio-pika expects properties of RabbitMQ that
# other brokers do not send.

PREFETCH = 1000
"""Messages that are on their way at once, and come again after a crash: ten seconds of 1,000 buses."""

HEARTBEAT_S = 30


class QueueSource(ConnectedSource):
    """A queue. UsageError for a name that is no broker's, ConfigError without a password."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        log_message: MessageSink,
        _folder: Path | None = None,
        prefetch: int = PREFETCH,
    ) -> None:
        self._parameters, shown = _parameters(name, settings.live)
        super().__init__(shown, settings, log_message)
        from pika.exceptions import AMQPError

        self.errors = (*self.errors, AMQPError)
        self._queue = settings.live.queue
        self._prefetch = prefetch
        self._arrived = list[tuple[int, bytes]]()

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
            lambda _channel, method, _properties, body: self._arrived.append(
                (method.delivery_tag or 0, body)
            ),
        )
        self.log_message(
            f"{self.name}: reading, with at most {self._prefetch:,} messages on their way"
        )

    def read(self) -> Sequence[tuple[int, bytes]]:
        if self.stopped.is_set() and self._consumer:  # the broker is to send nothing more
            self._channel.basic_cancel(self._consumer)
            self._consumer = ""
        self._connection.process_data_events(LOOK_S)
        if self._cancelled:
            raise SourceFailure("has taken the queue away")
        arrived = self._arrived
        self._arrived = []
        return arrived

    def acknowledge(self, ids: Sequence[int]) -> None:
        self._channel.basic_ack(ids[-1], multiple=True)

    def disconnect(self) -> None:
        self._connection.close()

    def failure(self, error: BaseException) -> SourceFailure:
        from pika import exceptions as amqp

        if isinstance(error, amqp.ProbableAuthenticationError | amqp.AuthenticationError):
            return SourceFailure("does not accept the username and password", is_final=True)
        if isinstance(error, amqp.ProbableAccessDeniedError):
            return SourceFailure("does not let this user into the virtual host", is_final=True)
        if isinstance(error, amqp.ChannelClosedByBroker):
            why = {
                404: "there is no such queue",
                403: "this user may not read it",
                405: "another one has it for itself",
            }
            return SourceFailure(
                f"does not give the queue: {why.get(error.reply_code, error.reply_code)}",
                is_final=True,
            )
        if isinstance(error, amqp.ConnectionClosedByBroker):
            return SourceFailure(f"has closed the connection ({error.reply_code})")
        return failure_of(error)


def _parameters(name: str, live: LiveSection) -> tuple[Parameters, str]:
    with needs("AMQP client", "sources"):
        from pika import ConnectionParameters, PlainCredentials, SSLOptions
    logging.getLogger("pika").setLevel(
        logging.CRITICAL + 1
    )  # what goes wrong is said by us, without traces
    expected = "expected amqp://HOST:PORT/VHOST or amqps://..., and the queue in live.queue"
    parts, port = broker_address(name, expected)
    for key in ("queue", "username", "password_file"):
        if not getattr(live, key):
            raise ConfigError(f"live.{key}: expected one for {parts.scheme}://, got none")
    host = parts.hostname or ""
    timeout_s = parse_duration(live.timeout)
    password = secret_of("live.password_file", live.password_file)
    parameters = ConnectionParameters(
        host=host,
        port=port,
        virtual_host=unquote(parts.path.removeprefix("/")) or "/",
        credentials=PlainCredentials(live.username, password),
        ssl_options=SSLOptions(tls_context("live", live.ca_file), host)
        if parts.scheme == "amqps"
        else None,
        socket_timeout=timeout_s,
        stack_timeout=timeout_s,
        blocked_connection_timeout=timeout_s,
        heartbeat=HEARTBEAT_S,
    )
    return parameters, f"{parts.scheme}://{host}:{port}{parts.path}"


# Topics, as HSL publishes its high-frequency positions. MQTT 3.1.1, which every broker speaks, with
# QoS 1 and a session that outlives connections: the broker keeps messages that come while nobody is
# connected, as far as it is set to, and sends again those that were not acknowledged.
#
# A session belongs to a client's id, made of a seed, the broker's name and the topics: a broker
# never forgets a topic of a session by itself, so other topics need another session.
#
# `kept` and `stop` wake the thread that reads: brokers send 20 messages, or another small number,
# before they wait for acknowledgements, so these must not wait.

FRAME_MESSAGES = 1000
"""Limits of a frame: what comes without QoS may come without end."""

PARTING_S = 2.0
"""As long as a broker may take to read our last acknowledgements."""

_NO_TOPIC = "udp-stream/none"
"""Nobody subscribes to it."""

KEEPALIVE_S = 30
QOS = 1


class TopicSource(ConnectedSource):
    """Topics. UsageError for a name that is no broker's, ConfigError for topics that are none.

    The session's seed is kept in `folder`; without a folder it is this host with this Kafka.
    """

    def __init__(
        self, name: str, settings: Settings, log_message: MessageSink, folder: Path | None = None
    ) -> None:
        with needs("MQTT client", "sources"):
            import paho.mqtt.client  # noqa: F401 (so that its absence is said before anything else)
        live = settings.live
        expected = "expected mqtt://HOST:PORT or mqtts://HOST:PORT, and the topics in live.topics"
        parts, self._port = broker_address(name, expected)
        if parts.path.strip("/"):
            raise UsageError(expected)
        if live.password_file and not live.username:
            raise ConfigError("live.username: expected one beside live.password_file, got none")
        self._host = parts.hostname or ""
        self._username = live.username
        self._timeout_s = parse_duration(live.timeout)
        self._password = (
            secret_of("live.password_file", live.password_file) if live.password_file else None
        )
        self._tls = tls_context("live", live.ca_file) if parts.scheme == "mqtts" else None
        super().__init__(f"{parts.scheme}://{self._host}:{self._port}", settings, log_message)
        self._folder = folder
        self._ours = f"{socket.gethostname()} {settings.kafka.bootstrap} {settings.kafka.prefix}"
        _require_topics(live.topics)
        self._topics = live.topics
        self._arrived: list[MQTTMessage] = []
        self._refused: SourceFailure | None = None
        self._is_subscribed = self._is_parted = False
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)

    def open(self) -> None:
        self._refused = None
        self._is_subscribed = False
        self._arrived.clear()
        self._client = self._new_client()
        self._client.connect(self._host, self._port, KEEPALIVE_S)
        deadline_s = time.monotonic() + self._timeout_s
        while not self._is_subscribed and not self.stopped.is_set():
            self._go_on()
            if time.monotonic() > deadline_s:
                raise SourceFailure(f"did not answer within {self._timeout_s:g} s (live.timeout)")
        if self._is_subscribed:
            self.log_message(
                f"{self.name}: reading {counted(len(self._topics), 'topic')}, with QoS {QOS}"
            )

    def read(self) -> Sequence[tuple[int | None, bytes]]:
        self._go_on()
        arrived = self._arrived
        self._arrived = []
        return [
            (message.mid if message.qos else None, bytes(message.payload)) for message in arrived
        ]

    def acknowledge(self, ids: Sequence[int]) -> None:
        for number in ids:
            self._client.ack(number, QOS)

    def disconnect(self) -> None:
        if self.stopped.is_set() and self._is_subscribed:
            # The broker answers in order. The answer to this, which changes nothing, says that it
            # has read our acknowledgements.
            self._client.unsubscribe(_NO_TOPIC)
            deadline_s = time.monotonic() + PARTING_S
            while not self._is_parted and time.monotonic() < deadline_s:
                self._go_on()
        self._client.disconnect()

    def kept(self, frames: int) -> None:
        super().kept(frames)
        self._awake()

    def stop(self, wait: bool = True) -> None:
        super().stop(wait)
        self._awake()

    def close(self) -> None:
        self._wake.close()
        self._waker.close()

    def _awake(self) -> None:
        with suppress(OSError):  # full: it wakes in any case; closed: nobody sleeps
            self._waker.send(b"!")

    def _new_client(self) -> Client:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion

        seed = self._ours if self._folder is None else kept_seed(self._folder)
        named = "\n".join([seed, self.name, *sorted(self._topics)])
        # 23 letters and digits: what every broker takes.
        name = f"udp{blake2b(named.encode(), digest_size=10).hexdigest()}"
        client = Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=False,
            protocol=MQTTv311,
            manual_ack=True,
        )
        client.connect_timeout = self._timeout_s
        if self._tls is not None:
            client.tls_set_context(self._tls)
        if self._username:
            client.username_pw_set(self._username, self._password)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_message = lambda _client, _data, message: self._arrived.append(message)
        return client

    def _on_connect(
        self, client: Client, _data: object, _flags: object, code: Any, _more: object
    ) -> None:
        if code.is_failure:
            self._refused = _refusal(code.getName())
        else:
            client.subscribe([(topic, QOS) for topic in self._topics])

    def _on_subscribe(
        self, _client: Client, _data: object, _mid: int, codes: list[Any], _more: object
    ) -> None:
        if any(code.is_failure for code in codes):
            self._refused = SourceFailure(
                "does not let this user read the topics (live.topics)", is_final=True
            )
        self._is_subscribed = True

    def _on_unsubscribe(self, *_: object) -> None:
        self._is_parted = True

    def _go_on(self) -> None:
        """Read what has come, after waiting for it; write what is to be written. Failed if the
        connection is over."""
        wait_s = LOOK_S
        client = self._client
        while (end := client.socket()) is not None:
            is_pending = isinstance(end, ssl.SSLSocket) and end.pending() > 0
            writing = [end] if client.want_write() else []
            ready, writable, _ = select.select(
                [end, self._wake], writing, [], 0 if is_pending else wait_s
            )
            if self._wake in ready:
                self._wake.recv(4096)
            has_more = is_pending or end in ready
            if has_more:
                client.loop_read()
            if writable:
                client.loop_write()
            if not has_more or len(self._arrived) >= FRAME_MESSAGES:
                break
            wait_s = 0
        client.loop_misc()
        if self._refused is not None:
            raise self._refused
        if client.socket() is None:
            raise SourceFailure(
                "has closed the connection" if self._is_subscribed else "refuses connections"
            )


def kept_seed(folder: Path) -> str:
    """The seed of a session, which is kept in this folder: made when it is first asked for."""
    file = folder / "mqtt-session"
    if not file.exists():
        with draft_of(file) as draft:
            draft.write_text(secrets.token_hex(16))
            link_first(draft, file)
    return file.read_text()


def _require_topics(topics: tuple[str, ...]) -> None:
    if not topics:
        raise ConfigError(
            'live.topics: expected one for mqtt://, such as ["/hfp/v2/journey/ongoing/vp/bus/#"], got none'
        )
    for topic in topics:
        levels = topic.split("/")
        is_good = "#" not in "".join(levels[:-1]) and all(
            len(one) == 1 or not {"#", "+"} & {*one} for one in levels
        )
        if not topic or not is_good or len(topic.encode()) > 65_535:
            raise ConfigError(
                f"live.topics: expected + and a last # for whole levels of a topic, got {topic[:80]!r}"
            )


def _refusal(name: str) -> SourceFailure:
    if name in ("Bad user name or password", "Not authorized"):
        return SourceFailure("does not accept the username and password", is_final=True)
    if name == "Client identifier not valid":
        return SourceFailure("does not accept the id of this client", is_final=True)
    return SourceFailure("refuses the connection for now")
