"""`status` of a live run: from its heartbeat, its journal and its ledger."""

import json
import os
import signal
import subprocess
import sys
import time

from tests.forked import forked_to_log
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.files import ALIVE, SILENT_S

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
    ended = forked_to_log("tests.forked", ["run", "more.ndjson", *FLAGS, "--out", "out2"], log, tmp_path)
    assert ended.wait(30) == 0, log.read_text()
    code, found = until(lambda found: found["run"]["state"] == "stopped", tmp_path)
    assert code == 4 and found["last_slot"]["slot_start"].startswith("2024-01-08T09:")
    code, page, said = status(tmp_path, *FLAGS)
    assert code == 4 and "no run goes on" in said and "GJ" not in page
