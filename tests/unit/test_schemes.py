"""Sources by scheme: a path is a file, a scheme is refused in words."""

import pytest

from udp_stream.base.errors import UsageError
from udp_stream.sources.files import FileSource
from udp_stream.sources.recordings import open_source

PING = b'{"license_plate": "A1"}'


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


@pytest.mark.parametrize(
    "name", ["mqtt://me:secret@broker", "FILE:///pings", "a+b.c-1://x", "mqtt://"]
)
def test_a_scheme_is_refused_with_what_there_is_and_without_what_may_be_secret(
    tmp_path, monkeypatch, name
):
    """Even if a file is called so: the name alone decides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mqtt:").mkdir()
    (tmp_path / "mqtt:" / "me:secret@broker").write_bytes(PING)
    scheme = name.partition("://")[0].lower()
    with pytest.raises(UsageError, match="or - for standard input") as refused:
        open_source(name, "kmh")
    assert f"{scheme}://. Give" in str(refused.value) and "secret" not in str(refused.value)
