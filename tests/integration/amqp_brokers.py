"""Brokers of AMQP 0-9-1 that tests run on: Apache Qpid Broker-J as a child process, RabbitMQ as a container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pika import BlockingConnection, ConnectionParameters, PlainCredentials
from pika.exceptions import AMQPError

from udp_stream.trial.services import PASSWORD, USER


@dataclass(frozen=True)
class AmqpBroker:
    """A broker on 127.0.0.1 that lets USER in; `unacknowledged`: the messages of a queue, those on their way too."""

    port: int
    unacknowledged: Callable[[str], int]


def connected(port: int) -> BlockingConnection:
    """OSError if the broker is not there, or does not let its user in yet."""
    try:
        return BlockingConnection(ConnectionParameters("127.0.0.1", port, credentials=PlainCredentials(USER, PASSWORD)))
    except AMQPError as error:
        raise OSError(str(error)) from error


def declared_count(port: int, queue: str) -> int:
    """Broker-J counts all messages that are not acknowledged."""
    connection = connected(port)
    count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
    connection.close()
    return count


def listed_count(container: Any, queue: str) -> int:
    """RabbitMQ tells a client of the messages that are on no way; of the others only its own tool knows."""
    status, told = container.exec_run(["rabbitmqctl", "--quiet", "list_queues", "messages", "name"])
    assert status == 0, told
    rows = [line.split("\t", 1) for line in told.decode().splitlines()]
    (count,) = [int(messages) for messages, name in rows[1:] if name == queue]
    return count
