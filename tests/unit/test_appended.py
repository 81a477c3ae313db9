"""Files that one run after another adds records to, and places that are no such files."""

import gzip
import io
import json
import os
import threading
from itertools import product
from pathlib import Path

import pytest

from tests.forms import long_rows
from udp_stream.adapters.records_out import records_out
from udp_stream.cli.appended import appended_records, require_appendable
from udp_stream.errors import UsageError
from udp_stream.release.record import Release
from udp_stream.testing import released_slot

PAYLOADS = list(released_slot().payloads.values())
IDS = [json.loads(payload)["release_id"] for payload in PAYLOADS]
NAMES = ["out.ndjson", "out.csv", "out.ndjson.gz", "out.CSV.gz", "out"]


def whole(name):
    """What a replay would have written."""
    out = io.BytesIO()
    with records_out(name, out, Release) as write:
        write(PAYLOADS)
    return gzip.decompress(out.getvalue()) if name.endswith(".gz") else out.getvalue()


def content(path):
    return gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()


def add(path, payloads):
    with appended_records(str(path), Release) as out:
        out.write(payloads)
        return out.ids


@pytest.mark.parametrize("name", NAMES)
def test_run_after_run_a_file_is_what_one_replay_would_write(name, tmp_path):
    file = tmp_path / name
    assert add(file, []) == frozenset()
    assert add(file, PAYLOADS[:1]) == frozenset()
    assert add(file, PAYLOADS[1:]) == {IDS[0]}
    assert add(file, []) == set(IDS)
    assert content(file) == whole(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_can_be_read_along(name, tmp_path):
    file = tmp_path / name
    with appended_records(str(file), Release) as out:
        for count in range(len(PAYLOADS)):
            out.write([PAYLOADS[count]])
            assert content(file).count(b"\n") == count + 1 + name.lower().startswith("out.csv")


CUTS = [*product(NAMES, (7,)), ("out.csv", 70), ("out.CSV.gz", 70)]


@pytest.mark.parametrize(
    ("name", "step"), long_rows([one for one in CUTS if one not in (("out.csv", 7), ("out.CSV.gz", 7))], CUTS)
)
def test_cut_off_anywhere_the_last_write_is_removed_and_comes_again(name, step, tmp_path):
    file = tmp_path / name
    add(file, PAYLOADS[:1])
    before = file.stat().st_size
    add(file, PAYLOADS[1:2])
    all_of_it = file.read_bytes()
    for cut in {*range(0, len(all_of_it), step), before - 1, before, before + 1, len(all_of_it) - 1}:
        file.write_bytes(all_of_it[:cut])
        ids = add(file, [])
        assert (IDS[0] in ids) == (cut >= before) and IDS[1] not in ids
        add(file, [payload for payload, its_id in zip(PAYLOADS, IDS, strict=True) if its_id not in ids])
        assert content(file) == whole(name), cut


@pytest.mark.parametrize(
    ("name", "there", "sentence"),
    [
        ("out.csv", b"schema,release_id\nx,y\n", "has other columns"),
        ("out.ndjson.gz", b"{}\n", "is no gzip"),
        ("out.ndjson.gz", gzip.compress(b"".join(b"%s\n" % payload for payload in PAYLOADS))[:-9], "is not whole"),
    ],
)
def test_a_file_of_another_make_is_left_alone(name, there, sentence, tmp_path):
    (tmp_path / name).write_bytes(there)
    with pytest.raises(UsageError, match=sentence), appended_records(str(tmp_path / name), Release):
        pass
    assert (tmp_path / name).read_bytes() == there


@pytest.mark.parametrize("name", ["out.geojson", "out.parquet", "out.geojson.gz"])
def test_a_form_that_has_an_end_is_refused_with_what_works(name, tmp_path):
    with pytest.raises(
        UsageError, match=r"expected \.ndjson or \.csv, or \.gz of these: .* has an end.*`replay` writes it"
    ):
        require_appendable(str(tmp_path / name))


@pytest.mark.parametrize("name", ["pipe", "pipe.csv", "pipe.ndjson.gz"])
def test_a_named_pipe_is_written_to_as_its_suffix_says(name, tmp_path):
    pipe, found = tmp_path / name, []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    assert add(pipe, PAYLOADS) == frozenset()
    reader.join(20)
    (data,) = found
    assert (gzip.decompress(data) if name.endswith(".gz") else data) == whole(name)


def test_the_null_device_takes_everything():
    assert add(Path(os.devnull), PAYLOADS) == frozenset()
