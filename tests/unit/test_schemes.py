"""Sources by scheme: a path is a file, an unknown scheme is refused in words, and a new source needs its entry only."""

import json

import msgspec
import pytest

from tests.runtime.harness import CONFIG, fleet_log
from tests.toys import ToySource, toy
from udp_stream.cli import main as cli
from udp_stream.cli.parsers import program
from udp_stream.errors import UsageError
from udp_stream.settings import load
from udp_stream.sources import recordings as schemes
from udp_stream.sources.files import FileSource
from udp_stream.sources.recordings import open_source

PING = b'{"license_plate": "A1"}'


@pytest.fixture
def toys(monkeypatch):
    """A place to register sources for one test."""
    monkeypatch.setattr(schemes, "SOURCES", {})
    return schemes.SOURCES


@pytest.mark.parametrize(
    "name",
    [
        "pings.ndjson",
        "feed_2022-01-01T10:10.json",
        "file:pings",
        "mqtt:pings",
        "C:pings.csv.ndjson",
        "C:\\pings.ndjson",
        "C://pings.ndjson",
        "://pings",
        "1a://pings",
        "./mqtt://pings",
    ],
)
def test_names_without_a_scheme_are_files_colons_or_not(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PING)
    source = open_source(name, "kmh")
    assert isinstance(source, FileSource) and list(source.messages()) == [[PING]]
    source.close()


@pytest.mark.parametrize("name", ["mqtt://me:secret@broker", "FILE:///pings", "a+b.c-1://x", "mqtt://"])
def test_an_unknown_scheme_is_refused_with_what_there_is_and_without_what_may_be_secret(
    toys, tmp_path, monkeypatch, name
):
    """Even if a file is called so: the name alone decides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mqtt:").mkdir()
    (tmp_path / "mqtt:" / "me:secret@broker").write_bytes(PING)
    scheme = name.partition("://")[0].lower()
    with pytest.raises(UsageError, match="or - for standard input") as refused:
        open_source(name, "kmh")
    assert f"{scheme}://. Give" in str(refused.value) and "secret" not in str(refused.value)
    toys |= {"toy": lambda name, _: ToySource([]), "bus": lambda name, _: ToySource([])}
    with pytest.raises(UsageError, match="or - for standard input"):
        open_source(name, "kmh")


def as_toy(messages):
    """The pings of a clean log, in the toy's spelling."""
    for message in messages:
        ping = msgspec.json.decode(message)
        lon, lat = ping["location"]["coordinates"][:2]
        yield toy(ping["license_plate"], ping["observationDateTime"], lon, lat, ping["speed"])


def replay(tmp_path, *names):
    settings = [part for flag in CONFIG for part in ("--set", flag)]
    ledger, out, no = (str(tmp_path / f"{names[0].partition(':')[0]}.{what}") for what in ("ledger", "out", "no"))
    words = ["replay", *names, *settings, "--ledger", ledger, "--out", out, "--rejected", no]
    arguments = program().parse_args(words)
    arguments.command(arguments, load(None, arguments.set, options=cli._options(arguments)))


def test_a_toy_source_of_a_toy_format_goes_through_replay_to_releases(toys, tmp_path, monkeypatch):
    """The same HATs, statuses and counts as the file's with the same pings; what is refused is kept as it came."""
    monkeypatch.chdir(tmp_path)
    log = fleet_log(clean=True, hours=0.6)
    (tmp_path / "file.ndjson").write_bytes(b"\n".join(log))
    spelled = [*as_toy(log[:-1]), next(as_toy(log[-1:])) + b"|junk"]
    source = ToySource([spelled[at : at + 4096] for at in range(0, len(spelled), 4096)])
    toys["toy"] = lambda name, _: source
    replay(tmp_path, "toy://city")
    replay(tmp_path, "file.ndjson")
    assert source.given == len(source.frames) and source.closed

    def public(path):
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [(one["release_id"], one["status"], one["counts"]) for one in records]

    assert public(tmp_path / "toy.out") == public(tmp_path / "file.ndjson.out") != []
    assert [json.loads(line)["message"] for line in (tmp_path / "toy.no").read_bytes().splitlines()] == ["junk"]
