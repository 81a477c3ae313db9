"""Where `run` writes: forms that can be added to, and places that are no files."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb

FLAGS = ("--set", "hat.slot=15m", "--set", "release.min_plates=2")


@pytest.fixture(scope="module")
def log():
    return b"\n".join(fleet_log(buses=15, hours=0.6, clean=True)) + b"\n"


def run(folder, out, stdin, ledger="l", *more):
    words = ("run", "-", "--ledger", ledger, "--out", out, *FLAGS, *more)
    return run_verb(words, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})


def hats(done):
    (ended,) = [
        entry for entry in map(json.loads, done.stderr.splitlines()) if entry["event"] == "ended"
    ]
    return sum(ended["hats"].values())


def test_a_second_run_adds_what_is_new(log, tmp_path):
    done = run(tmp_path, "out.ndjson", log, "l", "--smoothed", "smoothed")
    assert done.returncode == 0 and hats(done) > 10, done.stderr
    first = (tmp_path / "out.ndjson").read_bytes()
    assert first.count(b"\n") == hats(done)
    assert run(tmp_path, "out.ndjson", b"").returncode == 0
    assert (tmp_path / "out.ndjson").read_bytes() == first and (
        tmp_path / "smoothed"
    ).stat().st_size > 100


@pytest.mark.parametrize("name", ["out.geojson", "out.csv", "out.ndjson.gz"])
def test_a_form_that_is_no_plain_lines_is_refused_before_a_ledger_is_made(name, log, tmp_path):
    done = run(tmp_path, name, log)
    assert done.returncode == 2 and b"expected a name of plain lines of JSON" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--out", "--smoothed", "--rejected"])
def test_no_output_is_added_to_the_recording_that_is_read(flag, log, tmp_path):
    (tmp_path / "monday.ndjson").write_bytes(log)
    (tmp_path / "link.ndjson").symlink_to("monday.ndjson")
    words = ("run", "monday.ndjson", "--ledger", "l", *FLAGS, flag, "link.ndjson")
    done = run_verb(words, cwd=tmp_path, stdin=b"", env={**os.environ, "NO_COLOR": "1"})
    assert (
        done.returncode == 2
        and b"expected a file of its own, got the input monday.ndjson" in done.stderr
    )
    assert (tmp_path / "monday.ndjson").read_bytes() == log and not (tmp_path / "l").exists()


def test_sighup_ends_nothing_and_makes_the_files_anew(tmp_path):
    log = tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "udp_stream",
        "run",
        "-",
        "--ledger",
        "l",
        "--out",
        "o",
        "--rejected",
        "r",
        *FLAGS,
    ]
    with (
        log.open("wb") as err,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err, cwd=tmp_path) as process,
    ):
        try:
            until(lambda: b"begun" in log.read_bytes())
            (tmp_path / "o").rename(tmp_path / "o.1")
            (tmp_path / "r").unlink()
            process.send_signal(signal.SIGHUP)
            until(lambda: (tmp_path / "o").exists() and (tmp_path / "r").exists())
            assert (tmp_path / "r").stat().st_mode & 0o077 == 0
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    events = [json.loads(line)["event"] for line in log.read_bytes().splitlines()]
    assert events.count("output_removed") == 1


def until(happens, seconds=30.0):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)
