"""Topics of an MQTT broker as a source, as HSL publishes its high-frequency positions.

MQTT 3.1.1, which every broker speaks, with QoS 1 and a session that outlives connections: the broker keeps what comes
while nobody is connected, as far as it is set to, and sends again what was not acknowledged. A message is acknowledged
once its pings are kept: in Kafka, or in a journal. What comes twice, the last few thousand messages are compared with.

A session belongs to a client's id. It is made of a seed, the broker's name and the topics: with other topics it is
another session, as a broker never forgets a topic of a session by itself.

Everything happens in the thread that reads `messages`, as for AMQP. `kept` and `stop` wake it at once: brokers send 20
messages, or another small number, before they wait for acknowledgements, so these must not wait.
"""

from __future__ import annotations

import random
import secrets
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from udp_stream.errors import ConfigError, UsageError, needs
from udp_stream.files import draft_of, link_first, secret_of, tls_context
from udp_stream.logs import counted
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.snapshots import Unrepeated
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.http import BYTES_MAX
from udp_stream.sources.live import Failed, Retries
from udp_stream.sources.recordings import VEHICLES_MAX
from udp_stream.units import parse_duration

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

LOOK_S = 0.2
"""Between two looks at whether to stop, and whether the broker is to be asked for a sign of life."""

DRAIN_S = 10.0
"""As long as the last messages are waited for to be kept, when the source is stopped."""

FRAME_MESSAGES = 1000
"""Of a frame at most: what comes without QoS may come without end."""

PARTING_S = 2.0
"""As long as a broker may take to read our last acknowledgements."""

_NO_TOPIC = "udp-stream/none"
"""Nobody subscribes to it."""

KEEPALIVE_S = 30
FIRST_PAUSE_S = 1.0
REMEMBERED = 4000
PORTS = {"mqtt": 1883, "mqtts": 8883}
QOS = 1


@dataclass(frozen=True, slots=True)
class _Given:
    """Frames up to this number hold the message of this number of a connection."""

    frame: int
    connection: int
    message: int


@dataclass(frozen=True, slots=True)
class _Broker:
    """How to connect."""

    host: str
    port: int
    name: str
    tls: ssl.SSLContext | None
    username: str
    password: str
    timeout_s: float


class TopicSource:
    """Reads topics until it is stopped."""

    unit: str | None = None

    def __init__(
        self,
        name: str,
        live: LiveSection,
        json: PingFormat,
        say: Callable[[str], None],
        seed: Callable[[], str],
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is connected yet; `json` reads the messages. `seed`: of the session, asked for when it begins.
        UsageError for a name that is none, ConfigError without topics, or for one that is none."""
        with needs("MQTT client", "sources"):
            import paho.mqtt.client  # noqa: F401 (so that its absence is said before anything else)
        self._broker = _broker(name, live)
        self._topics, self._say, self._seed, self.format = live.topics, say, seed, json
        _require_topics(live.topics)
        self.name = self._broker.name
        self._retries = Retries(self.name, FIRST_PAUSE_S, say, time.monotonic, fraction)
        self._unrepeated = Unrepeated(json, BYTES_MAX, VEHICLES_MAX, REMEMBERED)
        self._stopped = threading.Event()
        self._is_waiting = True
        self._kept_frames = self._frames = self._connections = 0
        self._given: deque[_Given] = deque()
        self._arrived: list[MQTTMessage] = []
        self._refused: Failed | None = None
        self._is_subscribed = self._is_parted = False
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)

    def messages(self) -> Iterator[list[bytes]]:
        """A frame for the messages that have come, as single pings. DependencyUnavailable if the first connection is
        refused for what it is: a wrong password, or a topic that this user may not read."""
        while not self._stopped.is_set():
            client = self._client()
            try:
                yield from self._read(client)
                return
            except Failed as failure:
                pause_s = self._retries.failed(failure)
            finally:
                with suppress(Exception):  # it may be gone already; the broker keeps what was not acknowledged
                    client.disconnect()
            self._stopped.wait(pause_s)

    def kept(self, frames: int) -> None:
        """How many frames are kept: their messages are acknowledged at once."""
        self._kept_frames = frames
        self._awake()

    def stop(self, wait: bool = True) -> None:
        """Take no more messages, and end when those taken are acknowledged; without `wait` they come again."""
        self._is_waiting = wait
        self._stopped.set()
        self._awake()

    def close(self) -> None:
        """The connection ends with `messages`."""
        self._wake.close()
        self._waker.close()

    def _awake(self) -> None:
        with suppress(OSError):  # full: it wakes in any case; closed: nobody sleeps
            self._waker.send(b"!")

    def _client(self) -> Client:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion

        broker = self._broker
        named = "\n".join([self._seed(), broker.name, *sorted(self._topics)])
        # 23 letters and digits: what every broker takes.
        name = f"udp{blake2b(named.encode(), digest_size=10).hexdigest()}"
        client = Client(CallbackAPIVersion.VERSION2, name, clean_session=False, protocol=MQTTv311, manual_ack=True)
        client.connect_timeout = broker.timeout_s
        if broker.tls is not None:
            client.tls_set_context(broker.tls)
        if broker.username:
            client.username_pw_set(broker.username, broker.password or None)
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_message = lambda _client, _data, message: self._arrived.append(message)
        return client

    def _on_connect(self, client: Client, _data: object, _flags: object, code: Any, _more: object) -> None:
        if code.is_failure:
            self._refused = _refusal(code.getName())
        else:
            client.subscribe([(topic, QOS) for topic in self._topics])

    def _on_subscribe(self, _client: Client, _data: object, _mid: int, codes: list[Any], _more: object) -> None:
        if any(code.is_failure for code in codes):
            self._refused = Failed("does not let this user read the topics (live.topics)", is_final=True)
        self._is_subscribed = True

    def _on_unsubscribe(self, *_: object) -> None:
        self._is_parted = True

    def _read(self, client: Client) -> Iterator[list[bytes]]:
        self._refused, self._is_subscribed, self._connections = None, False, self._connections + 1
        self._arrived.clear()
        is_said = False
        try:
            client.connect(self._broker.host, self._broker.port, KEEPALIVE_S)
            deadline_s = time.monotonic() + self._broker.timeout_s
            while not self._stopped.is_set():
                self._go_on(client)
                if self._is_subscribed and not is_said:
                    self._retries.worked()
                    self._say(f"{self.name}: reading {counted(len(self._topics), 'topic')}, with QoS {QOS}")
                    is_said = True
                if not is_said and time.monotonic() > deadline_s:
                    raise Failed(f"did not answer within {self._broker.timeout_s:g} s (live.timeout)")
                self._acknowledge(client)
                if self._arrived:
                    yield self._frame()
            self._drain(client)
        except (OSError, ValueError) as error:
            raise _failure(error) from None

    def _go_on(self, client: Client) -> None:
        """Read what has come, after waiting for it; write what is to be written. Failed if the connection is over."""
        wait_s = LOOK_S
        while (end := client.socket()) is not None:
            is_pending = isinstance(end, ssl.SSLSocket) and end.pending() > 0
            writing = [end] if client.want_write() else []
            ready, writable, _ = select.select([end, self._wake], writing, [], 0 if is_pending else wait_s)
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
            raise Failed("has closed the connection" if self._is_subscribed else "refuses connections")

    def _frame(self) -> list[bytes]:
        self._frames += 1
        frame: list[bytes] = []
        for message in self._arrived:
            frame += self._unrepeated.take(bytes(message.payload))
            if message.qos:
                self._given.append(_Given(self._frames, self._connections, message.mid))
        self._arrived.clear()
        return frame

    def _acknowledge(self, client: Client) -> None:
        """What is kept, of this connection. What an earlier one gave comes again under another number."""
        while self._given and self._given[0].frame <= self._kept_frames:
            given = self._given.popleft()
            if given.connection == self._connections:
                client.ack(given.message, QOS)

    def _drain(self, client: Client) -> None:
        """Wait until what was given is kept, and until the broker has read that it is. What still comes is dropped: it
        comes again."""
        deadline_s = time.monotonic() + DRAIN_S
        self._acknowledge(client)
        while self._given and self._is_waiting and time.monotonic() < deadline_s:
            self._go_on(client)
            self._acknowledge(client)
        # It answers in order: once it answers this question, which changes nothing, it has read what was before it.
        client.unsubscribe(_NO_TOPIC)
        deadline_s = time.monotonic() + PARTING_S
        while not self._is_parted and time.monotonic() < deadline_s:
            self._go_on(client)


def kept_seed(folder: Path) -> str:
    """The seed of a session, which is kept in this folder: made when it is first asked for.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     kept_seed(Path(folder)) == kept_seed(Path(folder))
    True
    """
    file = folder / "mqtt-session"
    if not file.exists():
        with draft_of(file) as draft:
            draft.write_text(secrets.token_hex(16))
            link_first(draft, file)
    return file.read_text()


def _broker(name: str, live: LiveSection) -> _Broker:
    try:
        parts = urlsplit(name)
        host, scheme, port = parts.hostname or "", parts.scheme, parts.port
    except ValueError:
        host, scheme, port, parts = "", "", None, urlsplit("")
    if not host or parts.path.strip("/") or parts.query or parts.fragment or not name.isprintable():
        raise UsageError("expected mqtt://HOST:PORT or mqtts://HOST:PORT, and the topics in live.topics")
    if "@" in parts.netloc:
        raise UsageError("expected mqtt:// without a password, which other users could see: use live.password_file")
    if live.password_file and not live.username:
        raise ConfigError("live.username: expected one beside live.password_file, got none")
    password = secret_of("live.password_file", live.password_file) if live.password_file else ""
    tls = tls_context("live", live.ca_file) if scheme == "mqtts" else None
    port = port or PORTS[scheme]
    timeout_s = parse_duration(live.timeout)
    return _Broker(host, port, f"{scheme}://{host}:{port}", tls, live.username, password, timeout_s)


def _require_topics(topics: tuple[str, ...]) -> None:
    if not topics:
        raise ConfigError(
            'live.topics: expected one for mqtt://, such as ["/hfp/v2/journey/ongoing/vp/bus/#"], got none'
        )
    for topic in topics:
        levels = topic.split("/")
        is_good = "#" not in "".join(levels[:-1]) and all(len(one) == 1 or not {"#", "+"} & {*one} for one in levels)
        if not topic or not is_good or len(topic.encode()) > 65_535:
            raise ConfigError(f"live.topics: expected + and a last # for whole levels of a topic, got {topic[:80]!r}")


def _refusal(name: str) -> Failed:
    """What the broker's refusal of a connection means."""
    if name in ("Bad user name or password", "Not authorized"):
        return Failed("does not accept the username and password", is_final=True)
    if name == "Client identifier not valid":
        return Failed("does not accept the id of this client", is_final=True)
    return Failed("refuses the connection for now")


def _failure(error: Exception) -> Failed:
    """What an error means, in words that hold nothing of the broker's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message or "verification failed"
        return Failed(f"has a certificate that is not trusted ({said})", is_final=True)
    if isinstance(error, socket.gaierror):
        return Failed("cannot be found: its name has no address")
    if isinstance(error, ConnectionRefusedError):
        return Failed("refuses connections")
    if isinstance(error, TimeoutError):
        return Failed("did not answer in time (live.timeout)")
    return Failed(f"lost the connection ({type(error).__name__})")
