"""The Redis of the ledger: an older copy may take its place, its replica may take over; all links
lead to it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.process import temporary_folder
from lab.services import RunningRedis, command, start_redis
from tests.chaos.proxy import HOST, Link, Proxy

DATA = "appendonlydir"
REPLICA = "replicaof {host} {port}\nrepl-diskless-sync-delay 0\n"
MASTER = "repl-diskless-sync-delay 0\n"
IN_STEP_S = 30.0


@dataclass(eq=False)
class Store:
    """A server that writes, a replica that is waited for or none, and every way to them."""

    proxy: Proxy
    master: RunningRedis
    replica: RunningRedis | None = None
    links: list[Link] = field(default_factory=list)

    def link(self) -> Link:
        link = self.proxy.link(self.master.port)
        self.links.append(link)
        return link

    def copy_to(self, folder: Path) -> None:
        self.master.kill()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.master.folder / DATA, folder)
        self.master.restart()

    def put_in_place(self, folder: Path, aside: Path) -> None:
        self.master.kill()
        shutil.move(self.master.folder / DATA, aside)
        shutil.copytree(folder, self.master.folder / DATA)
        self.master.restart()

    def fail_over(self) -> None:
        """The master dies, its replica takes over, and the dead one comes back as the replica of
        that."""
        dead, heir = self.master, self.replica
        assert heir is not None
        self._wait_until_in_step()
        dead.kill()
        command(heir.port, "REPLICAOF", "NO", "ONE")
        _configure(heir, REPLICA, MASTER, dead.port)
        for link in self.links:
            link.upstream = heir.port
            link.cut()
        _configure(dead, MASTER, REPLICA, heir.port)
        self.master, self.replica = heir, dead
        dead.restart()

    def _wait_until_in_step(self) -> None:
        """An operator promotes no replica that is still being filled."""
        deadline = time.monotonic() + IN_STEP_S
        while b"state=online" not in command(self.master.port, "INFO", "replication"):
            assert time.monotonic() < deadline, "the replica is not in step"
            time.sleep(0.05)


def _configure(server: RunningRedis, was: str, now: str, other: int) -> None:
    path = server.folder / "redis.conf"
    kept = path.read_text().removesuffix(was.format(host=HOST, port=other))
    path.write_text(kept + now.format(host=HOST, port=other))


@contextmanager
def store(proxy: Proxy, replicas: int = 0) -> Iterator[Store]:
    """A durable Redis of our own, with a replica or without, while the block runs."""
    with temporary_folder("redis") as folder, temporary_folder("replica") as other:
        made = Store(proxy, start_redis(folder, True, MASTER))
        try:
            if replicas:
                made.replica = start_redis(
                    other, True, REPLICA.format(host=HOST, port=made.master.port)
                )
                made._wait_until_in_step()
            yield made
        finally:
            made.master.stop()
            if made.replica is not None:
                made.replica.stop()
