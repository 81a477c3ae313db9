"""Jars come whole or not at all, Java is found wherever it is, and what is missing is named with how to install it."""

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from udp_stream.cli.installed import install_command, words_of
from udp_stream.errors import DependencyUnavailable
from udp_stream.trial import services as jars
from udp_stream.trial import services as services_redis


def test_the_jar_list_names_each_artifact_of_this_kafka_once() -> None:
    listed = jars.read_jar_list(jars.jar_list())
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in listed)
    assert max(Counter((jar.group, jar.artifact) for jar in listed).values()) == 1
    assert {jar.version for jar in listed if jar.group == "org.apache.kafka"} == {jars.KAFKA}
    assert {jar.version for jar in listed if jar.group == "org.apache.logging.log4j"} != set()
    assert len({jar.version for jar in listed if jar.group == "org.apache.logging.log4j"}) == 1


class FakeMaven:
    """jgo's MavenContext as far as we use it, over a repository of one jar's bytes."""

    content = b"right"

    def __init__(self, repo_cache: Path, **_: object) -> None:
        self.file = repo_cache / "some.jar"

    def project(self, *_: str) -> "FakeMaven":
        return self

    def at_version(self, _: str) -> "FakeMaven":
        return self

    def artifact(self) -> "FakeMaven":
        return self

    def resolve(self) -> Path:
        if not self.content:
            raise RuntimeError("not found")
        self.file.write_bytes(self.content)
        return self.file


JAR = jars.Jar("org.example", "thing", "1.0", sha256(b"right").hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Maven cache, and a list of one jar that is not in it."""
    (tmp_path / "list").write_text(f"# a word to people\n{JAR.coordinates} {JAR.sha256}\n")
    monkeypatch.setattr(jars, "jar_list", lambda: tmp_path / "list")
    monkeypatch.setattr(jars, "_maven", lambda: FakeMaven)
    monkeypatch.setenv("M2_REPO", str(tmp_path / "repository"))
    return tmp_path / "repository"


@pytest.mark.parametrize("before", [None, b"half"])
def test_a_jar_that_is_missing_or_broken_is_fetched_into_mavens_cache(repository: Path, before: bytes | None) -> None:
    place = repository / "org/example/thing/1.0/thing-1.0.jar"
    if before is not None:
        place.parent.mkdir(parents=True)
        place.write_bytes(before)
    assert jars.class_path() == str(place)
    assert place.read_bytes() == b"right"
    assert [path for path in repository.iterdir() if path.name != "org"] == []


def test_a_jar_that_is_there_is_not_asked_for(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.class_path()
    monkeypatch.setattr(jars, "_maven", lambda: pytest.fail("asked"))
    assert jars.class_path()


@pytest.mark.parametrize(("content", "said"), [(b"wrong", "expected SHA-256"), (b"", "cannot be fetched")])
def test_a_jar_that_is_not_what_the_list_says_stays_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.setattr(FakeMaven, "content", content)
    with pytest.raises(DependencyUnavailable, match=f"org.example:thing:1.0.*{said}"):
        jars.class_path()
    assert list(repository.rglob("*.jar")) == []


def fake_java(folder: Path, version: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return str(java)


def test_java_is_the_first_new_enough_of_java_home_path_and_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "21.0.2")
    packaged = tmp_path / "packaged"
    monkeypatch.setattr(jars, "package_file", lambda package, path: packaged)
    monkeypatch.setenv("JAVA_HOME", str(Path(old).parent.parent))
    monkeypatch.setenv("PATH", f"{Path(new).parent}")
    assert (jars.java_version(old), jars.java_version(new)) == (1, 21)
    assert jars.java() == new
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jars.java() == str(packaged)
    monkeypatch.setenv("JAVA_HOME", str(Path(new).parent.parent))
    assert jars.java() == new


def test_what_is_missing_is_named_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jars, "package_file", lambda package, path: None)
    monkeypatch.setattr(services_redis, "package_file", lambda package, path: None)
    monkeypatch.setattr(jars, "import_module", lambda name: __import__("no_such_module_as_this"))
    with pytest.raises(DependencyUnavailable) as java:
        jars.java()
    assert words_of(java.value) == f"no Java: {install_command('services')} or install a Java 17+ runtime"
    with pytest.raises(DependencyUnavailable, match=r"extra \[services\]"):
        services_redis.server_program()
    with pytest.raises(DependencyUnavailable, match=r"the extra \[services\]"):
        jars._maven()


def test_a_packages_file_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely" / "bin").mkdir(parents=True)
    (tmp_path / "lonely" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "lonely" / "bin" / "server").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert jars.package_file("lonely", "*/server") == tmp_path / "lonely" / "bin" / "server"
    assert jars.package_file("lonely", "none") is None
    assert jars.package_file("no_such_package_as_this", "*") is None
