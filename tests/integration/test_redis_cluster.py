"""The ledger in a real Redis Cluster of three nodes: all of it in one hash slot, which may die,
come back and move."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.crc import key_slot

from lab.process import HOST, temporary_folder
from lab.services import RunningRedis, command, start_redis
from tests.contract.checks import (
    ALL_LEDGER_CHECKS,
    LedgerFactory,
    ask,
    check_large_slots,
    check_rolling_crowd,
)
from udp_stream.base.errors import Fenced, PrivacyRefused
from udp_stream.ledgers.redis import Fence, RedisLedger, inspect_redis, open_redis_ledger

NODES = 3
SLOTS = 16384  # by the specification
WAIT_SECONDS = 60

CLUSTER_CONFIGURATION = """\
cluster-enabled yes
cluster-config-file nodes.conf
cluster-node-timeout 5000
"""


@dataclass(frozen=True)
class RunningCluster:
    nodes: tuple[RunningRedis, ...]

    @property
    def url(self) -> str:
        """As `ledger.url` takes it; the client finds the other nodes by itself."""
        return self.nodes[0].url.replace("redis://", "redis+cluster://")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@contextmanager
def start_redis_cluster(nodes: int = 3) -> Iterator[RunningCluster]:
    with ExitStack() as stack:
        started = []
        for _ in range(nodes):
            place = stack.enter_context(temporary_folder("redis-cluster"))
            running = start_redis(place, True, CLUSTER_CONFIGURATION)
            stack.callback(running.stop)
            started.append(running)
        _join(started)
        yield RunningCluster(tuple(started))


def _join(nodes: list[RunningRedis]) -> None:
    """Give each node its share of the slots, make them known to each other, wait until all agree."""
    share = -(-SLOTS // len(nodes))
    for number, node in enumerate(nodes):
        own = range(number * share, min((number + 1) * share, SLOTS))
        command(node.port, "CLUSTER", "ADDSLOTS", *map(str, own))
        # Set before they meet: nodes with equal epochs would have to settle first which of them
        # counts.
        command(node.port, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
    for node in nodes[1:]:
        command(nodes[0].port, "CLUSTER", "MEET", HOST, str(node.port))
    _wait(lambda: all(_agrees(node.port, len(nodes)) for node in nodes))


def _agrees(port: int, nodes: int) -> bool:
    told = command(port, "CLUSTER", "INFO").split()
    return {
        b"cluster_state:ok",
        b"cluster_known_nodes:%d" % nodes,
        b"cluster_slots_ok:%d" % SLOTS,
    } <= set(told)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with start_redis_cluster(NODES) as running:
        yield running


@pytest.fixture
def clients(cluster: RunningCluster) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Redis.from_url(node.url, protocol=2)) for node in cluster.nodes]


def prefix_at(number: int) -> str:
    """A prefix of one's own whose hash slot that node holds: each has its third of the slots."""
    share = -(-SLOTS // NODES)
    return next(
        name
        for name in (f"{{udp-{uuid4()}}}" for _ in count())
        if key_slot(name.encode()) // share == number
    )


LONG = {check_large_slots, check_rolling_crowd}
"""On one server these run in every suite."""


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.soak] if check in LONG else [])
        for check in ALL_LEDGER_CHECKS
    ],
    ids=lambda check: check.__name__,
)
def test_store_keeps_promise(
    check: Callable[[LedgerFactory], None], cluster: RunningCluster
) -> None:
    check(partial(open_redis_ledger, cluster.url, prefix=f"{{udp-{uuid4()}}}"))


def test_fencing_and_binding_hold_in_a_cluster(cluster: RunningCluster) -> None:
    with open_redis_ledger(cluster.url, prefix=prefix_at(2)) as ledger:
        ledger.bind("key")
        with pytest.raises(PrivacyRefused):
            ledger.bind("another")
        paused = ledger.fenced(Fence("shard", ledger.take_epoch("shard")))
        paused.admit("p", 10, [b"x"], [ask("hat", [3])])
        ledger.take_epoch("shard")
        with pytest.raises(Fenced):
            paused.record([("hat", b"late")])


def test_one_volatile_master_is_refused(cluster: RunningCluster, clients: list[Any]) -> None:
    clients[1].config_set("appendfsync", "everysec")
    try:
        with pytest.raises(
            PrivacyRefused, match=f":{cluster.nodes[1].port} has appendfsync everysec"
        ):
            open_redis_ledger(cluster.url, prefix=prefix_at(0))
    finally:
        clients[1].config_set("appendfsync", "always")


@contextmanager
def replica_of(number: int, cluster: RunningCluster, folder: Path) -> Iterator[RunningRedis]:
    master = cluster.nodes[number]
    replica = start_redis(folder, more=CLUSTER_CONFIGURATION)
    ports = [node.port for node in cluster.nodes]
    try:
        command(ports[0], "CLUSTER", "MEET", "127.0.0.1", str(replica.port))
        name, of = command(replica.port, "CLUSTER", "MYID"), command(master.port, "CLUSTER", "MYID")
        _wait(lambda: of in command(replica.port, "CLUSTER", "NODES"))
        command(master.port, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        command(replica.port, "CLUSTER", "REPLICATE", of.decode())
        _wait(lambda: b"state=online" in command(master.port, "INFO", "replication"))
        _wait(lambda: all(b"slave %s" % of in command(port, "CLUSTER", "NODES") for port in ports))
        yield replica
    finally:
        replica.stop()
        for port in ports:
            with suppress(OSError):
                command(port, "CLUSTER", "FORGET", name.decode())


def test_a_cluster_whose_replica_could_take_over_without_the_last_charges_is_refused(
    cluster, clients, tmp_path
):
    sentence = rf":{cluster.nodes[1].port} has 1 replica, and ledger\.replicas is 0"
    with replica_of(1, cluster, tmp_path) as replica:
        for number in range(NODES):
            with pytest.raises(PrivacyRefused, match=sentence) as raised:
                open_redis_ledger(cluster.url, prefix=prefix_at(number))
            assert str(raised.value).count(" has ") == 1
        with pytest.raises(PrivacyRefused, match=sentence):
            inspect_redis(cluster.url)
        _wait(
            lambda: (
                {len(nodes) for _, _, *nodes in clients[1].execute_command("CLUSTER", "SLOTS")}
                == {1, 2}
            )
        )
        replica.pause()
        clients[1].execute_command("CLIENT KILL", "TYPE", "replica")
        try:
            assert b"connected_slaves:0" in command(cluster.nodes[1].port, "INFO", "replication")
            with pytest.raises(PrivacyRefused, match=sentence):
                open_redis_ledger(cluster.url, prefix=prefix_at(1))
        finally:
            replica.resume()
        _wait(lambda: b"state=online" in command(cluster.nodes[1].port, "INFO", "replication"))
        with open_redis_ledger(cluster.url, prefix=prefix_at(1), replicas=1) as ledger:
            assert ledger.admit("p", 10, [b"x"], [ask("hat", [3])])[0].admitted.all()


class Writer:
    def __init__(self, ledger: RedisLedger) -> None:
        self.told: dict[str, tuple[list[int], bytes]] = {}
        self._ledger = ledger
        self._counted, self._stop = threading.Condition(), threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            for step in count():
                if self._stop.is_set():
                    return
                name = f"hat-{step}"
                (verdict,) = self._ledger.admit("p", 700, [b"x", b"y"], [ask(name, [1, 2])])
                (payload,) = self._ledger.record([(name, name.encode())])
                with self._counted:
                    self.told[name] = (verdict.charged.tolist(), payload)
                    self._counted.notify_all()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self._failures.append(error)
            with self._counted:
                self._counted.notify_all()

    def wait_for(self, more: int) -> None:
        goal = len(self.told) + more
        with self._counted:
            assert self._counted.wait_for(
                lambda: self._failures or len(self.told) >= goal, WAIT_SECONDS
            )
        assert self._failures == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)
        assert self._failures == []


def expect_told(ledger: RedisLedger, told: dict[str, tuple[list[int], bytes]]) -> None:
    verdicts = ledger.admit("p", 10**9, [b"x", b"y"], [ask(name, [9, 9]) for name in told])
    payloads = ledger.recorded(list(told))
    kept = [(v.charged.tolist(), payload) for v, payload in zip(verdicts, payloads, strict=True)]
    assert kept == list(told.values())
    assert ledger.verify() == []


def test_what_was_answered_survives_kills_of_its_node(cluster: RunningCluster) -> None:
    url = cluster.nodes[0].url.replace("redis://", "redis+cluster://")
    with open_redis_ledger(url, prefix=prefix_at(1)) as ledger:
        writer = Writer(ledger)
        try:
            for _ in range(3):
                writer.wait_for(20)
                cluster.nodes[1].kill()
                cluster.nodes[1].restart()
            writer.wait_for(20)
        finally:
            writer.stop()
        expect_told(ledger, writer.told)


def test_the_ledger_follows_its_slot_to_another_node(
    cluster: RunningCluster, clients: list[Any]
) -> None:
    prefix = prefix_at(0)
    with open_redis_ledger(cluster.url, prefix=prefix) as ledger:
        writer = Writer(ledger)
        try:
            writer.wait_for(50)
            _move(key_slot(prefix.encode()), cluster.nodes, clients)
            writer.wait_for(50)
        finally:
            writer.stop()
        expect_told(ledger, writer.told)
        assert list(clients[0].scan_iter(f"{prefix}:*")) == []


def _move(slot: int, nodes: tuple[RunningRedis, ...], clients: list[Any]) -> None:
    source, target = (clients[i].execute_command("CLUSTER MYID").decode() for i in (0, 1))
    clients[1].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source)
    clients[0].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target)
    while keys := clients[0].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
        clients[0].execute_command(
            "MIGRATE", "127.0.0.1", nodes[1].port, "", 0, 5000, "KEYS", *keys
        )
    for client in (clients[1], clients[0], clients[2]):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", target)


def _wait(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(WAIT_SECONDS * 50):
        if holds():
            return
        waiting.wait(0.02)
    pytest.fail("the cluster did not come so far")
