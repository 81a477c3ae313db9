"""`status` of a live run: from its heartbeat, its journal and its ledger."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import timetables
from tests.forked import forked_to_log
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.files import ALIVE, SILENT_S

FLAGS = ("--ledger", "city.ledger", "--set", "hat.slot=15m")


def status(folder, *flags):
    done = run_verb(["status", *flags], cwd=folder, env={**os.environ, "NO_COLOR": "1"})
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def until(holds, folder, seconds=20):
    deadline = time.monotonic() + seconds
    while True:
        found = status(folder, *FLAGS, "--json")
        if found[1] and holds(json.loads(found[1])):
            return found[0], json.loads(found[1])
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_a_run_is_alive_then_silent_once_it_is_killed_and_stopped_after_its_end(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with fifo.open("r+b", buffering=0) as pipe:
        pipe.write(b"\n".join(fleet_log(clean=True)[:100]) + b"\nno ping\n")
        with fifo.open("rb") as stdin, (tmp_path / "out").open("wb") as out:
            command = [sys.executable, "-m", "udp_stream", "run", "-", *FLAGS]
            running = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=out, cwd=tmp_path)
        try:
            code, found = until(lambda found: found["run"]["state"] == "alive", tmp_path)
            assert code == 0 and found["troubles"] == [] and found["last_slot"] is None
            assert found["ledger"]["holdings"]["charged"] == 0 and "journal" in found["name"]
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
    ago = time.time() - 2 * SILENT_S
    os.utime(tmp_path / "city.ledger.journal" / ALIVE, (ago, ago))
    code, found = until(lambda found: found["run"]["state"] == "silent", tmp_path)
    assert code == 4 and found["run"]["seconds_ago"] >= 2 * SILENT_S
    log = tmp_path / "log"
    (tmp_path / "more.ndjson").write_bytes(b"\n".join(fleet_log(clean=True)[:100]))
    ended = forked_to_log(
        "tests.forked", ["run", "more.ndjson", *FLAGS, "--out", "out2"], log, tmp_path
    )
    assert ended.wait(30) == 0, log.read_text()
    code, found = until(lambda found: found["run"]["state"] == "stopped", tmp_path)
    assert code == 4 and found["last_slot"]["slot_start"].startswith("2024-01-08T09:")
    code, page, said = status(tmp_path, *FLAGS)
    assert code == 4 and "no run goes on" in said and "GJ" not in page


@pytest.fixture
def city(tmp_path):
    """A folder with a ledger that was charged by Chicago's clock, its records, and a timetable."""
    (tmp_path / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=20, hours=1.2, clean=True)))
    (tmp_path / "empty").mkdir()
    stops = [(f"s{at}", f"Stop {at}", 21.19 + at / 200, 72.83) for at in range(-8, 8)]
    timetables.zipped(tmp_path / "gtfs.zip", timetables.files_of(stops))
    words = (
        "replay",
        "day.ndjson",
        *FLAGS,
        "--set",
        "hat.timezone=America/Chicago",
        "--out",
        "out.ndjson",
    )
    assert run_verb(words, cwd=tmp_path).returncode == 0
    return tmp_path


def test_without_a_configuration_times_are_the_ledger_s_and_a_withdrawal_charges_nobody(city):
    def facts():
        return json.loads(status(city, "--ledger", "city.ledger", "--json")[1])

    before, records = facts(), (city / "out.ndjson").read_bytes().splitlines()
    assert before["last_slot"]["slot_start"] == json.loads(records[-1])["hat"]["slot_start"]
    assert before["last_slot"]["slot_start"].endswith("-06:00")
    assert before["ledger"]["holdings"]["withdrawn"] == 0
    span = "--from", "2024-01-07T22:00", "--to", "2024-01-07T23:00"
    for reason in ("wrong", "the same again"):
        done = run_verb(
            ["ledger", "withdraw", "--ledger", "city.ledger", *span, "--reason", reason], cwd=city
        )
        assert done.returncode == 0, done.stderr
        after = facts()
        held, holds = (found["ledger"]["holdings"] for found in (before, after))
        assert [holds[name] for name in ("charged", "recorded")] == [
            held[name] for name in ("charged", "recorded")
        ]
        assert 20 < holds["withdrawn"] < len(records) and after["last_slot"] == before["last_slot"]


@pytest.mark.parametrize(
    ("gtfs", "said", "code"), [("gtfs.zip", "ok    timetable", 0), ("empty", "FAIL  timetable", 3)]
)
def test_doctor_takes_a_ledger_and_a_timetable(gtfs, said, code, city):
    words = (
        "doctor",
        "day.ndjson",
        "--ledger",
        "city.ledger",
        "--gtfs",
        gtfs,
        "--set",
        "hat.timezone=Asia/Kolkata",
    )
    done = run_verb(words, cwd=city)
    out = done.stdout.decode()
    assert done.returncode == code and said in out, out
    assert f"{city}/city.ledger" in out and (code or "16 stops" in out)


def test_typical_names_places_by_a_timetable(city):
    def places(*more):
        done = run_verb(["typical", "out.ndjson", *more], cwd=city)
        assert done.returncode == 0, done.stderr
        return {row["cell"]: row["place"] for row in map(json.loads, done.stdout.splitlines())}

    assert set(places().values()) == {None}
    for more in (("--gtfs", "gtfs.zip"), ("--set", "dashboard.gtfs=gtfs.zip")):
        named = places(*more)
        assert sum("Stop" in name for name in named.values()) > 3
    assert run_verb(["typical", "out.ndjson", "--gtfs", "empty"], cwd=city).returncode == 3
