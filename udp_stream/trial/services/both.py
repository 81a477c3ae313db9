"""A real Kafka and a real Redis as child processes on free ports of 127.0.0.1: no Docker, no root, nothing but Python.

For trials and tests, not for deployments: one node, no replication, no access control. `process.py` tells how
no process is left behind, `jars.py` where Java and the jars come from.

    with services() as running:
        running.kafka.bootstrap, running.redis.url
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from udp_stream.errors import UsageError
from udp_stream.trial.services.kafka import RunningKafka, kafka, start_kafka
from udp_stream.trial.services.redis import RunningCluster, RunningRedis, redis, start_redis, start_redis_cluster

__all__ = [
    "RunningCluster",
    "RunningKafka",
    "RunningRedis",
    "Services",
    "kafka",
    "redis",
    "services",
    "start_kafka",
    "start_redis",
    "start_redis_cluster",
]


@dataclass(frozen=True)
class Services:
    """Both, answering."""

    kafka: RunningKafka
    redis: RunningRedis

    def fail_if_ended(self) -> None:
        """Raise DependencyUnavailable if one of them has ended by itself."""
        self.kafka.fail_if_ended()
        self.redis.fail_if_ended()

    def stop(self) -> None:
        """Stop both; their data stays until the block that started them ends."""
        self.kafka.stop()
        self.redis.stop()


@contextmanager
def services(folder: Path | None = None) -> Iterator[Services]:
    """Both while the block runs, with their data in `folder`/kafka and `folder`/redis, or in temporary folders.

    A folder can be used again, and keeps the ports as well, but not by two at once (UsageError). It is made for its
    owner alone, as it will hold raw pings and a ledger; one that is there keeps its mode, and new data is private.
    Raises DependencyUnavailable, with what to install, if one of them cannot be started.
    """
    with (
        nullcontext() if folder is None else _alone_in(folder),
        redis(folder and folder / "redis", folder and folder / "redis.port") as running_redis,
        kafka(folder and folder / "kafka", folder and folder / "kafka.ports") as running_kafka,
    ):
        yield Services(running_kafka, running_redis)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two Redis servers on one append-only file would ruin it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{folder}: in use by other services") from error
        yield
