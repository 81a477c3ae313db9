"""Bars of verbs that take long: on a terminal, and none where standard error is a pipe."""

import re
import subprocess
import sys
from datetime import datetime

import pytest

from benchmarks.feed_forms import FORMS, recorded
from tests.board import cells, dashboard, get, release, wait_for, write
from tests.runtime.harness import fleet_log
from tests.terminal import on_terminal
from udp_stream.sources.fleet import IST, Fleet

FLEET = Fleet(buses=20, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=0.2)
BEGUN = b"\x1b[?25l"
"""A bar hides the cursor first."""


@pytest.fixture
def pings(tmp_path):
    messages = [message for batch in FLEET.messages() for message in batch]
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(messages) + b"\n")
    return "pings.ndjson"


def said_on_terminal(process, read, until=rb"(?!)"):
    said = b""
    while not re.search(until, said) and (more := read()):
        said += more
    return said


def test_a_dry_run_shows_its_reading_and_its_rehearsal(tmp_path, pings):
    command = ("-m", "udp_stream", "replay", pings, "--dry-run")
    with on_terminal(*command, cwd=tmp_path, TERM="xterm") as (process, read):
        said = said_on_terminal(process, read)
        assert process.wait(60) == 0 and said.count(BEGUN) == 2
    piped = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, check=True
    )
    assert b"\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("verb", ["init", "doctor"])
def test_a_look_at_a_file_shows_how_far_it_has_read(tmp_path, pings, verb):
    command = ("-m", "udp_stream", verb, pings)
    with on_terminal(*command, cwd=tmp_path, TERM="xterm") as (process, read):
        said = said_on_terminal(process, read)
        process.wait(60)
        assert re.search(rb"reading.*100%", said)
    piped = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True)
    assert b"\x1b" not in piped.stdout + piped.stderr and piped.returncode == process.returncode


def test_init_reads_a_document_of_an_unknown_form_twice(tmp_path):
    """Not once for each feed that is known by name: a document is read whole each time."""
    rows = recorded(fleet_log(buses=20, hours=0.2, clean=True))
    (tmp_path / "feed.xml").write_bytes(FORMS["siri.xml"](rows))
    command = ("-m", "udp_stream", "init", "feed.xml")
    with on_terminal(*command, cwd=tmp_path, TERM="xterm") as (process, read):
        said = said_on_terminal(process, read)
        assert process.wait(60) == 0 and said.count(BEGUN) == 2


@pytest.mark.parametrize("size", [1, 9 * 2**20])
def test_a_dashboard_shows_how_far_it_has_read_its_files(tmp_path, size):
    """Also where the newest lines of a large file come first."""
    line = release(min(cells(1)))
    write(tmp_path / "r", [line] * -(-size // len(line)))
    command = ("-m", "udp_stream", "dashboard", "r", "--set", "dashboard.listen=127.0.0.1:0")
    with on_terminal(*command, cwd=tmp_path, TERM="xterm") as (process, read):
        said = said_on_terminal(process, read, rb"http://\S+(?=/)")
        address = re.search(rb"http://\S+(?=/)", said)[0].decode()
        wait_for(lambda: get(f"{address}/readyz")[0] == 200)
        process.terminate()
        said += said_on_terminal(process, read)
        assert said.count(BEGUN) == 1
    if size == 1:
        with dashboard("r", cwd=tmp_path) as (_, running):
            pass
        assert "\x1b" not in "".join(running.said)
