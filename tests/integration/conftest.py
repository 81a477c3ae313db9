"""A real broker and a real Redis for every test in this folder, in the first of these ways that
there is:

1. KAFKA_BOOTSTRAP, REDIS_URL: what is running already; tests take topics and keys of names that
   nobody else has.
2. Containers, where a Docker engine answers and has the image or can pull it:
   UDP_STREAM_KAFKA_IMAGE, UDP_STREAM_REDIS_IMAGE and UDP_STREAM_RABBITMQ_IMAGE name others than the
   public ones.
3. Child processes. Where RabbitMQ would be a container, Apache Qpid Broker-J is one.

UDP_STREAM_SERVICES=containers or =processes forces one way. Where none is to be had the tests fail
and say what to install: a test that is skipped proves nothing.
"""

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.process import free_ports
from lab.services import RunningKafka, RunningRedis, command, kafka, metadata_at, redis
from tests.integration.amqp_brokers import (
    PASSWORD,
    USER,
    AmqpBroker,
    amqp,
    connected,
    declared_count,
    listed_count,
)
from tests.integration.deployment import City, found_city
from udp_stream.base.errors import DependencyUnavailable, UsageError

KAFKA_IMAGE = "apache/kafka:4.3.0"
REDIS_IMAGE = "redis:7"
RABBITMQ_IMAGE = "rabbitmq:3"
SHARED = {"kafka_bootstrap", "redis_url", "amqp_broker"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what talks to the shared services; leave out what only an engine runs, unless containers
    are demanded."""
    for item in items:
        if SHARED & set(getattr(item, "fixturenames", ())):
            item.add_marker("shared_services")
    if os.environ.get("UDP_STREAM_SERVICES") != "containers":
        left_out = [item for item in items if item.get_closest_marker("containers")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


PULL_SECONDS = 120
CONTAINER_SECONDS = 60
DURABLE = "redis-server --protected-mode no --appendonly yes --appendfsync always --maxmemory-policy noeviction"
KAFKA_ENVIRONMENT = {
    "KAFKA_HEAP_OPTS": "-Xms128m -Xmx256m -XX:TieredStopAtLevel=1",
    "KAFKA_LOG_CLEANER_DEDUPE_BUFFER_SIZE": "2097152",  # 128 MB otherwise, for which that heap has no room at times
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    # The broker asks itself about transactions, and cannot by the address that it has outside of
    # its container.
    "KAFKA_LISTENERS": "INSIDE://0.0.0.0:19092,PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
}


@pytest.fixture(autouse=True)
def _of_services(few_rehearsals: None) -> None:
    """What a plan says of a feed is tested elsewhere."""


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """`host:port` of a broker that all tests share: take topics and groups of your own."""
    with some_kafka() as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a durable Redis that all tests share: take keys of your own, never flush."""
    with some_redis() as url:
        yield url


@pytest.fixture(scope="session")
def amqp_broker() -> Iterator[AmqpBroker]:
    """A broker of AMQP 0-9-1 that all tests share: take queues of your own."""
    with some_amqp() as broker:
        yield broker


@pytest.fixture
def kafka_server() -> Iterator[RunningKafka]:
    """A broker of this test's own, always a child process: to pause, kill and restart. It costs
    some seconds."""
    with kafka() as running:
        yield running


@pytest.fixture
def redis_server() -> Iterator[RunningRedis]:
    """A Redis of this test's own, always a child process: to pause, kill and restart."""
    with redis() as running:
        yield running


@pytest.fixture
def city(tmp_path: Path, kafka_bootstrap: str) -> Callable[..., City]:
    return partial(found_city, tmp_path, kafka_bootstrap)


@contextmanager
def some_kafka() -> Iterator[str]:
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield given
    elif in_containers(image := os.environ.get("UDP_STREAM_KAFKA_IMAGE", KAFKA_IMAGE)):
        with kafka_container(image) as bootstrap:
            yield bootstrap
    else:
        with kafka() as running:
            yield running.bootstrap


@contextmanager
def some_redis() -> Iterator[str]:
    if given := os.environ.get("REDIS_URL"):
        yield given
    elif in_containers(image := os.environ.get("UDP_STREAM_REDIS_IMAGE", REDIS_IMAGE)):
        with redis_container(image) as url:
            yield url
    else:
        with redis() as running:
            yield running.url


@contextmanager
def some_amqp() -> Iterator[AmqpBroker]:
    if in_containers(image := os.environ.get("UDP_STREAM_RABBITMQ_IMAGE", RABBITMQ_IMAGE)):
        with rabbitmq_container(image) as broker:
            yield broker
    else:
        with amqp() as running:
            yield AmqpBroker(running.port, partial(declared_count, running.port))


def in_containers(image: str) -> bool:
    """Whether to take a container of this image; DependencyUnavailable if that is demanded and
    cannot be."""
    way = os.environ.get("UDP_STREAM_SERVICES", "")
    if way not in ("", "containers", "processes"):
        raise UsageError(f"UDP_STREAM_SERVICES: expected containers or processes, got {way}")
    if way == "processes":
        return False
    engine = docker_engine()
    if engine is None:
        problem = "no Docker engine answers, or testcontainers is not installed"
    else:
        with closing(engine):
            problem = (
                ""
                if has_image(engine, image)
                else f"the image {image} is neither here nor to be pulled"
            )
    if problem and way == "containers":
        raise DependencyUnavailable(f"UDP_STREAM_SERVICES=containers: {problem}")
    return not problem


def docker_engine() -> Any:
    # One image less to have: each fixture removes its own container.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # docker leaves a socket open when nobody answers
        try:
            import docker
            import testcontainers.core.container  # noqa: F401 (is it there?)
        except ImportError:
            return None
        client = None
        with suppress(docker.errors.DockerException, OSError):
            asked = docker.from_env()
            asked.ping()
            client = asked
        gc.collect()
    return client


def has_image(engine: Any, image: str) -> bool:
    """Whether the engine has the image, pulled now if need be, in bounded time."""
    from docker.errors import DockerException

    pulled = []

    def pull() -> None:
        with suppress(DockerException, OSError):
            pulled.append(engine.images.pull(image))

    with suppress(DockerException):
        return bool(engine.images.get(image))
    thread = threading.Thread(
        target=pull, daemon=True
    )  # a pull cannot be cancelled: it may outlive our patience
    thread.start()
    thread.join(PULL_SECONDS)
    return bool(pulled)


@contextmanager
def kafka_container(image: str) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    (port,) = free_ports(1)
    container = DockerContainer(image).with_bind_ports(9092, port).with_envs(**KAFKA_ENVIRONMENT)
    host = container.get_docker_client().host()
    with container.with_env(
        "KAFKA_ADVERTISED_LISTENERS", f"INSIDE://localhost:19092,PLAINTEXT://{host}:{port}"
    ):
        wait_for_container(container, partial(metadata_at, host, port))
        yield f"{host}:{port}"


@contextmanager
def redis_container(image: str) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    (port,) = free_ports(1)
    container = DockerContainer(image).with_bind_ports(6379, port).with_command(DURABLE)
    host = container.get_docker_client().host()
    with container:
        wait_for_container(container, lambda: command(port, "PING", host=host))
        yield f"redis://{host}:{port}/0"


@contextmanager
def rabbitmq_container(image: str) -> Iterator[AmqpBroker]:
    from testcontainers.core.container import DockerContainer

    (port,) = free_ports(1)
    container = DockerContainer(image).with_bind_ports(5672, port)
    container.with_envs(RABBITMQ_DEFAULT_USER=USER, RABBITMQ_DEFAULT_PASS=PASSWORD)
    with container:
        wait_for_container(container, lambda: connected(port).close())
        yield AmqpBroker(port, partial(listed_count, container.get_wrapped_container()))


def wait_for_container(container: Any, answers: Callable[[], object]) -> None:
    deadline = time.monotonic() + CONTAINER_SECONDS
    inside = container.get_wrapped_container()
    while time.monotonic() < deadline and inside.status != "exited":
        with suppress(OSError):
            answers()
            return
        time.sleep(0.05)
        inside.reload()
    log = inside.logs(tail=40).decode(errors="replace")
    raise DependencyUnavailable(
        f"{container.image} did not answer in {CONTAINER_SECONDS} s, or ended; its log:\n{log}"
    )
