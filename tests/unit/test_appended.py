"""Files that one run after another adds records to, and files that a replay writes from their
start."""

import io
import json
import os
import threading
from contextlib import closing, nullcontext

import pytest

from udp_stream.base.errors import UsageError
from udp_stream.cli.outputs import Appender, records_out, require_lines
from udp_stream.export_formats import write_export
from udp_stream.release.record import Release
from udp_stream.testing import released_slot
from udp_stream.windows.grid import HEXAGONS

PAYLOADS = list(released_slot().payloads.values())
IDS = [json.loads(payload)["release_id"] for payload in PAYLOADS]
WHOLE = b"".join(payload + b"\n" for payload in PAYLOADS)


def add(path, payloads):
    with closing(Appender(str(path))) as out:
        ids = out.ids()
        out.write_records(payloads)
        return ids


def test_run_after_run_a_file_is_what_one_replay_would_write(tmp_path):
    file = tmp_path / "out.ndjson"
    assert add(file, []) == frozenset()
    assert add(file, PAYLOADS[:1]) == frozenset()
    assert add(file, PAYLOADS[1:]) == {IDS[0]}
    assert add(file, []) == set(IDS)
    assert file.read_bytes() == WHOLE


def test_what_is_written_can_be_read_along(tmp_path):
    with closing(Appender(str(tmp_path / "out"))) as out:
        for count in range(len(PAYLOADS)):
            out.write_records([PAYLOADS[count]])
            assert (tmp_path / "out").read_bytes().count(b"\n") == count + 1


def test_cut_off_anywhere_the_last_write_is_removed_and_comes_again(tmp_path):
    file = tmp_path / "out.ndjson"
    add(file, PAYLOADS[:1])
    before = file.stat().st_size
    add(file, PAYLOADS[1:2])
    all_of_it = file.read_bytes()
    for cut in {*range(0, len(all_of_it), 70), before - 1, before, before + 1, len(all_of_it) - 1}:
        file.write_bytes(all_of_it[:cut])
        ids = add(file, [])
        assert (IDS[0] in ids) == (cut >= before) and IDS[1] not in ids
        add(
            file,
            [payload for payload, its_id in zip(PAYLOADS, IDS, strict=True) if its_id not in ids],
        )
        assert file.read_bytes() == WHOLE, cut


@pytest.mark.parametrize("name", ["out.csv", "out.geojson", "out.parquet", "out.ndjson.gz"])
def test_a_form_that_is_no_plain_lines_is_refused_where_lines_are_added(name):
    with pytest.raises(UsageError, match="expected a name of plain lines of JSON"):
        require_lines("--out", name)


def test_a_named_pipe_is_written_to_as_it_is(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    assert add(pipe, PAYLOADS) == frozenset()
    reader.join(20)
    assert found == [WHOLE]


@pytest.mark.parametrize("name", ["out.ndjson", "out.csv", "out.geojson.gz", "out.ndjson.gz"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_s_file_has_the_form_of_its_name_however_the_run_ends(name, fails, tmp_path):
    (tmp_path / name).write_text("of before")
    with (
        pytest.raises(ZeroDivisionError) if fails else nullcontext(),
        records_out(str(tmp_path / name), Release, HEXAGONS) as write,
    ):
        write(PAYLOADS[:1])
        write(PAYLOADS[1:])
        assert not fails or 1 / 0
    write_export(
        name, [payload + b"\n" for payload in PAYLOADS], out := io.BytesIO(), Release, HEXAGONS
    )
    assert (tmp_path / name).read_bytes() == out.getvalue()
    assert [path.name for path in tmp_path.iterdir()] == [name]
