"""Which ledger a run is on, as the command line says it: named, new or not, for a trial, or of other settings."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import FLAGS, run
from udp_stream.release.record import decode

MPS = ("--set", "speed.unit=mps")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "pings.ndjson"
    path.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    return path


@pytest.fixture
def part(tmp_path):
    lines = fleet_log(hours=0.6)
    path = tmp_path / "part.ndjson"
    path.write_bytes(b"\n".join(lines[: len(lines) // 3]) + b"\n")
    return path


def replay(log, *arguments, cwd, **environment):
    done = run("replay", log, *FLAGS, *arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.decode()


def records(out):
    return [decode(line) for line in out.splitlines()]


def test_the_ledger_is_named_before_anything_is_charged(log, tmp_path):
    (tmp_path / "broken.ndjson.gz").write_bytes(b"\x1f\x8b" + bytes(40))
    done = run("replay", "broken.ndjson.gz", "--ledger", "l", cwd=tmp_path)
    assert done.returncode == 2 and b"ledger" not in done.stderr and not (tmp_path / "l").exists()
    later = gzip.compress(log.read_bytes(), mtime=0)[:-4]
    (tmp_path / "later.ndjson.gz").write_bytes(later)
    done = run("replay", "later.ndjson.gz", "--ledger", "other", cwd=tmp_path)
    assert done.returncode == 2 and f"ledger {tmp_path.resolve()}/other, new" in done.stderr.decode()
    _, said = replay(log, "--ledger", "l", cwd=tmp_path)
    assert f"ledger {tmp_path.resolve()}/l, new" in said


def test_a_trial_has_a_ledger_of_its_own_and_marks_its_records(log, tmp_path):
    first, said = replay(log, "--trial", cwd=tmp_path)
    again, _ = replay(log, "--trial", cwd=tmp_path)
    assert all(json.loads(line)["trial"] is True for line in first.splitlines() + again.splitlines())
    ids = [[record.release_id for record in records(out)] for out in (first, again)]
    assert ids[0] == ids[1] and first != again
    assert "run draws every HAT again" in said
    assert "do not publish these" in said
    (place,) = re.findall(r"ledger (\S+), new", said)
    assert not Path(place).parent.exists()
    assert [path.name for path in tmp_path.iterdir()] == [log.name] and "not touched" not in said
    replay(log, cwd=tmp_path)
    assert f"{tmp_path.resolve()}/udp-stream.ledger is not touched" in replay(log, "--trial", cwd=tmp_path)[1]


@pytest.mark.parametrize("where", ["environment", "file", "flag"])
def test_a_trial_leaves_the_configured_ledger_alone_and_says_so(where, log, tmp_path):
    plain, _ = replay(log, "--ledger", "city.ledger", cwd=tmp_path)
    assert b'"trial"' not in plain
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "city.toml").write_text("[ledger]\nurl = 'city.ledger'\n")
    said = {
        "environment": lambda: replay(log, "--trial", cwd=tmp_path, UDP_STREAM_LEDGER__URL="city.ledger"),
        "file": lambda: replay(log, "--trial", "--config", "city.toml", cwd=tmp_path),
        "flag": lambda: replay(log, "--trial", "--set", "ledger.url=city.ledger", cwd=tmp_path),
    }[where]()[1]
    assert f"{tmp_path.resolve()}/city.ledger is not touched" in said
    (tmp_path / "city.toml").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    secret = "redis://user:secret@127.0.0.1:1/3"
    _, said = replay(log, "--trial", cwd=tmp_path, UDP_STREAM_LEDGER__URL=secret)
    assert "127.0.0.1:1/3" in said and "secret" not in said


def test_records_of_other_settings_are_warned_of_first_with_the_keys_and_the_numbers(log, part, tmp_path):
    before = [record.release_id for record in records(replay(part, "--ledger", "l", cwd=tmp_path)[0])]
    out, said = replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    lines, here = said.splitlines(), records(out)
    assert "warning" in lines[1] and "(speed.unit kmh -> mps)" in lines[1]
    stand = [one for one in here if one.release_id in set(before)]
    assert 0 < len(stand) < len(here)
    assert (
        lines[2].startswith(f"warning: {len(stand)} of {len(here)} records") and "(speed.unit kmh -> mps)" in lines[2]
    )
    assert lines[2].endswith(f"{len(here) - len(stand)} are new")
    _, again = replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    assert f"{len(stand)} of {len(here)} records" in again and "0 are new" in again


@pytest.mark.parametrize("verb", [("verify",), ("export",), ("show", "A1")])
def test_a_ledger_is_told_in_its_own_zone_without_a_configuration(verb, part, tmp_path):
    replay(part, "--ledger", "l", "--set", "hat.timezone=Europe/Warsaw", cwd=tmp_path)
    assert offsets_told(*verb, cwd=tmp_path) == ["+01:00", "+01:00"]


@pytest.mark.parametrize("zones", [{"Europe/Warsaw": "+01:00", "Asia/Tokyo": "+09:00"},
                                   {"Asia/Tokyo": "+09:00", "Europe/Warsaw": "+01:00"}])  # fmt: skip
def test_a_ledger_of_two_zones_is_told_in_the_latest(zones, part, log, tmp_path):
    for pings, zone in zip((part, log), zones, strict=True):
        sets = f"hat.timezone={zone}", "budget.period=lifetime", "release.mean_epsilon=0.4"
        replay(pings, "--ledger", "l", *(word for one in sets for word in ("--set", one)), cwd=tmp_path)
    assert offsets_told("verify", cwd=tmp_path) == [list(zones.values())[-1]] * 2


def offsets_told(*verb, cwd):
    """Of the first and the latest slot, in the line that names the ledger."""
    done = run("ledger", *verb, "--ledger", "l", cwd=cwd)
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.decode().splitlines() if "the first of the slot" in line]
    return re.findall(r"T\d\d:\d\d:00([+-]\d\d:\d\d)", said)
