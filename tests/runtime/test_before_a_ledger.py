"""What is wrong with the command or its input is said before a ledger, a key or an output is made."""

import os

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledgers.opening import look_at
from udp_stream.settings import LedgerSection


def replay(folder, *arguments, verb="replay", stdin=None):
    words = (verb, *arguments, "--set", "ledger.url=city.ledger")
    return run_verb(words, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})


def left(folder):
    return sorted(path.name for path in folder.iterdir())


CSV = b"license_plate,observationDateTime,speed,location.coordinates\n"
FAULTS = {
    "no-speed.csv": (CSV.replace(b",speed", b""), "speed"),
    "empty.csv": (b"", "expected pings, and "),
    "empty.ndjson": (b"", "expected pings, and "),
    "blank.json": (b"\n \n", "expected pings, and "),
    "header.csv": (CSV, "expected pings, and "),
    "cut.json.gz": (b"\x1f\x8b\x08\x00\x00\x00", "cut.json.gz"),
}


@pytest.mark.parametrize("verb", ["replay", "run"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_file_of_which_nothing_can_be_read_is_refused_and_nothing_is_made(name, verb, tmp_path):
    content, word = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    done = replay(tmp_path, name, verb=verb)
    assert done.returncode == 2 and word in done.stderr.decode(), done.stderr
    assert left(tmp_path) == [name]


def test_an_empty_file_among_others_is_no_fault(tmp_path):
    (tmp_path / "night.ndjson").write_bytes(b"")
    (tmp_path / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    done = replay(tmp_path, "night.ndjson", "day.ndjson", "--out", "out")
    assert done.returncode == 0 and (tmp_path / "out").stat().st_size > 0, done.stderr


@pytest.mark.parametrize("content", [b"", b"notes, and no ledger\n"])
@pytest.mark.parametrize("verb", ["doctor", "replay"])
def test_no_key_is_made_beside_a_file_that_is_no_ledger(verb, content, tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    (tmp_path / "city.ledger").write_bytes(content)
    done = replay(tmp_path, "pings.ndjson", verb=verb)
    assert done.returncode == 5 and b"expected a ledger at" in done.stdout + done.stderr
    assert left(tmp_path) == ["city.ledger", "pings.ndjson"]


def test_doctor_and_status_refuse_a_ledger_without_its_id_and_make_none(tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    assert replay(tmp_path, "pings.ndjson", "--out", "out").returncode == 0
    (tmp_path / "city.ledger.key.ledger-id").unlink()
    before = left(tmp_path)
    for _ in range(2):
        doctor = replay(tmp_path, "pings.ndjson", verb="doctor")
        assert doctor.returncode == 5 and b"FAIL  ledger: " in doctor.stdout and left(tmp_path) == before
    view = look_at(LedgerSection(url=f"{tmp_path}/city.ledger"))
    assert view.status == 5 and view.holdings is None and left(tmp_path) == before
