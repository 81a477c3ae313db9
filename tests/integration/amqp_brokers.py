"""Brokers of AMQP 0-9-1 that tests run on: Apache Qpid Broker-J as a child process, RabbitMQ as a
container."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pika import BlockingConnection, ConnectionParameters, PlainCredentials
from pika.exceptions import AMQPError

from lab.process import HOST, Program, RunningService, launch, on_free_ports, temporary_folder
from lab.services import ANSWER_SECONDS, class_path, java

QPID = "9.2.0"
USER, PASSWORD = "reader", "a secret"
GREETING = b"AMQP\x00\x00\x09\x01"

AMQP_OPTIONS = (
    "-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=.",
    "-DQPID_WORK=work",
)  # fmt: skip


@dataclass(frozen=True)
class AmqpBroker:
    """A broker on 127.0.0.1 that lets USER in; `unacknowledged`: the messages of a queue, those on
    their way too."""

    port: int
    unacknowledged: Callable[[str], int]


def connected(port: int) -> BlockingConnection:
    try:
        return BlockingConnection(
            ConnectionParameters("127.0.0.1", port, credentials=PlainCredentials(USER, PASSWORD))
        )
    except AMQPError as error:
        raise OSError(str(error)) from error


def declared_count(port: int, queue: str) -> int:
    """Broker-J counts all messages that are not acknowledged."""
    connection = connected(port)
    count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
    connection.close()
    return count


def listed_count(container: Any, queue: str) -> int:
    """RabbitMQ tells a client of the messages that are on no way; of the others only its own tool
    knows."""
    status, told = container.exec_run(["rabbitmqctl", "--quiet", "list_queues", "messages", "name"])
    assert status == 0, told
    rows = [line.split("\t", 1) for line in told.decode().splitlines()]
    (count,) = [int(messages) for messages, name in rows[1:] if name == queue]
    return count


# A real broker of AMQP 0-9-1 for tests: Apache Qpid Broker-J, from jars alone, with its messages in
# memory.
#
# It is ready when it greets with the name that we made up for it, so another broker on its port is
# never mistaken for it, and then lets its user in: it greets before its virtual host is open. The
# jar `qpid-broker` is taken without all that it asks for: one of those jars is on no public
# registry, and not used.


@dataclass
class RunningAmqp(RunningService):
    url: str
    port: int


@contextmanager
def amqp() -> Iterator[RunningAmqp]:
    with temporary_folder("amqp") as place:
        running = start_amqp(place, disposable=True)
        try:
            yield running
        finally:
            running.stop()


def start_amqp(folder: Path, disposable: bool = False) -> RunningAmqp:
    base = (java(), *AMQP_OPTIONS, "-cp", class_path(Path(__file__).with_name(f"qpid-{QPID}.jars")))

    def start(ports: list[int]) -> RunningAmqp:
        (port,) = ports
        name = f"udp-stream-{uuid4().hex}"
        (folder / "broker.json").write_text(json.dumps(configuration(name, port)))
        command = (*base, "org.apache.qpid.server.Main", "-st", "Memory", "-icp", "broker.json")
        program = Program("AMQP", command, folder, lambda _pid: is_ready(name, port), disposable)
        return RunningAmqp(program, launch(program), f"amqp://{HOST}:{port}/", port)

    return on_free_ports(1, start)


def configuration(name: str, port: int) -> dict[str, object]:
    aliases = [
        {"name": kind, "type": kind} for kind in ("nameAlias", "defaultAlias", "hostnameAlias")
    ]
    users = [{"name": USER, "type": "managed", "password": PASSWORD}]
    return {
        "name": name,
        "modelVersion": "9.1",
        "authenticationproviders": [{"name": "plain", "type": "Plain", "secureOnlyMechanisms": [], "users": users}],
        "ports": [
            {
                "name": "AMQP", "port": port, "bindingAddress": HOST, "protocols": ["AMQP_0_9_1"],
                "authenticationProvider": "plain", "virtualhostaliases": aliases,
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "Memory",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": '{"type": "Memory"}',
            }
        ],
    }  # fmt: skip


def is_ready(name: str, port: int) -> bool:
    if name.encode() not in greeting_at(port):
        return False
    connected(port).close()
    return True


def greeting_at(port: int) -> bytes:
    with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as broker:
        broker.sendall(GREETING)
        return broker.recv(4096)
