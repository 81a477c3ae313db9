"""Jars come whole or not at all, Java is found wherever it is, and what is missing is named with
how to install it."""

from hashlib import sha256
from pathlib import Path

import pytest

from lab import services as jars
from udp_stream.base.errors import DependencyUnavailable


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
def test_a_jar_that_is_missing_or_broken_is_fetched_into_mavens_cache(
    repository: Path, before: bytes | None
) -> None:
    place = repository / "org/example/thing/1.0/thing-1.0.jar"
    if before is not None:
        place.parent.mkdir(parents=True)
        place.write_bytes(before)
    assert jars.class_path() == str(place)
    assert place.read_bytes() == b"right"
    assert [path for path in repository.iterdir() if path.name != "org"] == []


def test_a_jar_that_is_there_is_not_asked_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars.class_path()
    monkeypatch.setattr(jars, "_maven", lambda: pytest.fail("asked"))
    assert jars.class_path()


@pytest.mark.parametrize(
    ("content", "said"), [(b"wrong", "expected SHA-256"), (b"", "cannot be fetched")]
)
def test_a_jar_that_is_not_what_the_list_says_stays_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.setattr(FakeMaven, "content", content)
    with pytest.raises(DependencyUnavailable, match=f"org.example:thing:1.0.*{said}"):
        jars.class_path()
    assert list(repository.rglob("*.jar")) == []
