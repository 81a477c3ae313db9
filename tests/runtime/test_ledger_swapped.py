"""A ledger whose file is removed or replaced under a running process: nothing more is published,
status 5."""

import io
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forms import long_rows
from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledgers.sqlite import open_sqlite_ledger

FLAGS = [word for flag in CONFIG for word in ("--set", flag)]


def remove(ledger):
    ledger.unlink()


def replace_by_a_copy(ledger):
    with open_sqlite_ledger(ledger) as source:
        source._connection.execute("VACUUM INTO ?", (f"{ledger}.copy",))
    Path(f"{ledger}.copy").replace(ledger)


def replace_by_another(ledger):
    with open_sqlite_ledger(f"{ledger}.other"):
        pass
    Path(f"{ledger}.other").replace(ledger)


def move(ledger):
    ledger.rename(f"{ledger}.moved")


def remove_its_log(ledger):
    """Who opens the ledger now begins another log, and neither sees what the other charges."""
    ledger.with_name(f"{ledger.name}-wal").unlink()


def remove_its_index(ledger):
    """The locks of writers are on this file."""
    ledger.with_name(f"{ledger.name}-shm").unlink()


SABOTAGE = [remove, replace_by_a_copy, replace_by_another, move, remove_its_log, remove_its_index]


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_nothing_is_published_after_a_ledger_was_swapped(sabotage, tmp_path):
    messages, out, path = fleet_log(clean=True), io.BytesIO(), tmp_path / "l"
    half = len(messages) // 2
    with pytest.raises(PrivacyRefused) as raised, embedded(path, out) as runtime:
        for frame in frames_of(messages[:half]):
            runtime.push(frame)
        before = out.getvalue()
        assert before
        sabotage(path)
        for frame in frames_of(messages[half:]):
            runtime.push(frame)
        runtime.finish()
    assert "removed or replaced" in str(raised.value)
    assert out.getvalue() == before


SABOTAGES = [
    ("run", remove),
    ("replay", remove),
    ("run", replace_by_a_copy),
    ("replay", replace_by_a_copy),
]


@pytest.mark.parametrize(("verb", "sabotage"), long_rows([SABOTAGES[0], SABOTAGES[3]], SABOTAGES))
def test_a_process_whose_ledger_was_swapped_ends_with_status_5(verb, sabotage, tmp_path):
    messages = fleet_log(clean=True)
    half, path, out = len(messages) // 2, tmp_path / "l", tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "udp_stream",
        verb,
        "-",
        "--ledger",
        "l",
        "--out",
        "out",
        *FLAGS,
    ]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path, stderr=said)
    try:
        process.stdin.write(b"\n".join(messages[:half]) + b"\n")
        process.stdin.flush()
        before = still(process, out)
        sabotage(path)
        with suppress(BrokenPipeError):  # it ends before it has read them all
            process.stdin.write(b"\n".join(messages[half:]))
            process.stdin.close()
        status = process.wait(60)
    finally:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()
    text = (tmp_path / "said").read_text()
    assert status == 5 and "removed or replaced" in text and "Traceback" not in text, text
    assert out.read_bytes() == before
    verify = [*command[:3], "ledger", "verify", "--ledger", "l"]
    # The copy holds whatever was published: it is the newest one.
    assert subprocess.run(verify, cwd=tmp_path, check=False).returncode == (
        5 if sabotage is remove else 0
    )


def still(process, out):
    deadline, before = time.monotonic() + 60, None
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        now = out.read_bytes() if out.exists() else b""
        if now and now == before:
            return now
        before = now
        time.sleep(0.5)
