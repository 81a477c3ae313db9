"""A real Kafka for trials and tests: one node, its own controller (KRaft), nothing installed but Python.

It is ready when it tells the cluster id that we made up for it, so another broker that has taken its port is never
mistaken for it.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from udp_stream.errors import DependencyUnavailable
from udp_stream.trial.services.jars import class_path, java
from udp_stream.trial.services.process import (
    HOST,
    PRIVATE_UMASK,
    Program,
    Running,
    folder_or_temporary,
    launch,
    on_free_ports,
    on_kept_ports,
)

# One node: nothing is replicated. Small: a laptop or CI machine runs it beside the tests. The short broker session is
# for its restart after a crash: it may not register again before the old session is over, 9 s by default.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}{listeners}
advertised.listeners=PLAINTEXT://{host}:{broker}{listeners}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}
log.dirs=data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.segment.bytes=16777216
log.cleaner.dedupe.buffer.size=2097152
num.network.threads=2
num.io.threads=2
"""

# To standard output, which is the log file: what Java itself prints stands in the same place.
LOG4J = """\
status=warn
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
"""

OPTIONS = (
    "-Xms128m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts sooner; a trial is over before the second compiler would be worth it
    "-XX:-UsePerfData",  # no files in the system's folder for temporary ones
    "-Djava.awt.headless=true",
    "-Djava.io.tmpdir=.",
    "-Dlog4j2.configurationFile=log4j2.properties",
)
FORMAT_SECONDS = 60
ANSWER_SECONDS = 5.0
ANSWER_BYTES_MAX = 2**20


@dataclass(frozen=True)
class Listener:
    """One more address of a broker, with a security protocol of Kafka's (`SASL_SSL`) and properties of its own."""

    name: str
    protocol: str
    properties: Mapping[str, str]

    def lines(self) -> str:
        """Its properties, as the broker reads them.

        >>> Listener("TLS", "SSL", {"ssl.client.auth": "required"}).lines()
        'listener.name.tls.ssl.client.auth=required\\n'
        """
        return "".join(f"listener.name.{self.name.lower()}.{key}={value}\n" for key, value in self.properties.items())


@dataclass
class RunningKafka(Running):
    """A broker that has answered at `bootstrap` (host:port); `addresses` are those of further listeners, by name."""

    bootstrap: str
    addresses: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def kafka(folder: Path | None = None, ports: Path | None = None) -> Iterator[RunningKafka]:
    """A broker while the block runs, with its data in the folder, or in a temporary one; `ports`: a file that keeps its
    ports.

    Raises DependencyUnavailable, with what to install, if there is no Java, no jar, or no answer.
    """
    with folder_or_temporary("kafka", folder) as (place, disposable):
        running = start_kafka(place, disposable, ports=ports)
        try:
            yield running
        finally:
            running.stop()


def start_kafka(
    folder: Path,
    disposable: bool = False,
    more: str = "",
    listeners: Sequence[Listener] = (),
    ports: Path | None = None,
) -> RunningKafka:
    """Start a broker with `more` lines of configuration; the caller stops it. Existing data in the folder is reused.

    A line of `more` stands before one of the same name; {host}, {broker} and {controller} in it become the broker's.
    Further `listeners` have ports of their own, beside the one without access control, which is always there.
    """
    base = (java(), *OPTIONS, "-cp", class_path())

    def start(ports: list[int]) -> RunningKafka:
        broker, controller, *others = ports
        addresses = {one.name: f"{HOST}:{port}" for one, port in zip(listeners, others, strict=True)}
        properties = (PROPERTIES + more).format(
            host=HOST,
            broker=broker,
            controller=controller,
            listeners="".join(f",{name}://{address}" for name, address in addresses.items()),
            protocols="".join(f",{one.name}:{one.protocol}" for one in listeners),
        )
        (folder / "server.properties").write_text(properties + "".join(one.lines() for one in listeners))
        (folder / "log4j2.properties").write_text(LOG4J)
        cluster = _formatted(base, folder)
        program = Program(
            "Kafka",
            (*base, "kafka.Kafka", "server.properties"),
            folder,
            lambda _pid: cluster_id_at(HOST, broker) == cluster,
            disposable,
        )
        return RunningKafka(program, launch(program), f"{HOST}:{broker}", addresses)

    number = 2 + len(listeners)
    return on_free_ports(number, start) if ports is None else on_kept_ports(ports, number, start)


def _formatted(base: tuple[str, ...], folder: Path) -> str:
    """The cluster id of the folder's data, formatted now if there is none."""
    known = folder / "data" / "meta.properties"
    if known.exists() and (found := re.search(r"^cluster\.id=(.+)$", known.read_text(), re.MULTILINE)):
        return found[1].strip()
    cluster = random_cluster_id()
    tool = (*base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties")
    done = subprocess.run(
        tool, cwd=folder, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False, umask=PRIVATE_UMASK
    )
    if done.returncode != 0:
        raise DependencyUnavailable(f"Kafka's storage tool failed: {(done.stderr or done.stdout)[-1000:].strip()}")
    return cluster


def random_cluster_id() -> str:
    """16 random bytes as Kafka writes them; never with a leading dash, which reads like an option.

    >>> len(random_cluster_id())
    22
    """
    while (cluster := urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return cluster


def cluster_id_at(host: str, port: int) -> str:
    """Ask a broker for its cluster id, by a Metadata request of version 4 for no topic.

    Raises OSError if nothing answers there, or something that is no Kafka broker.
    """
    # key, version, correlation id, no client id, no topics, create none
    request = struct.pack(">hhihi?", 3, 4, 1, -1, 0, False)
    with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as broker:
        broker.sendall(struct.pack(">i", len(request)) + request)
        with broker.makefile("rb") as answer:
            (length,) = struct.unpack(">i", _exactly(answer.read(4), 4))
            if not 0 < length <= ANSWER_BYTES_MAX:
                raise ConnectionError("not a Kafka broker")
            return _cluster_id(_exactly(answer.read(length), length))


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ConnectionError("the connection ended inside an answer")
    return data


def _cluster_id(answer: bytes) -> str:
    """The cluster id behind the list of brokers (id, host, port, rack)."""
    try:
        _, _, brokers = struct.unpack_from(">iii", answer)
        at = 12
        for _ in range(brokers):
            at = _end_of_string(answer, at + 4) + 4
            at = _end_of_string(answer, at)
        return answer[at + 2 : _end_of_string(answer, at)].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ConnectionError("not a Kafka broker") from error


def _end_of_string(answer: bytes, at: int) -> int:
    (length,) = struct.unpack_from(">h", answer, at)
    return at + 2 + max(int(length), 0)
