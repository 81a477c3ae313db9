"""A ledger that went back in time is refused by every verb, until a person says in words what is forgotten."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.forked import run_forked
from tests.runtime.harness import CONFIG, fleet_log
from udp_stream.release.record import decode

FLAGS = [word for flag in CONFIG for word in ("--set", flag)]


def run(folder, *arguments):
    done = run_forked(arguments, cwd=folder, timeout=120)
    assert b"Traceback" not in done.stderr, done.stderr
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def replay(folder, log, out):
    return run(folder, "replay", log, "--ledger", "l", "--out", out, *FLAGS)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two files of a morning, one after the other."""
    folder, messages = tmp_path_factory.mktemp("logs"), fleet_log(clean=True)
    for name, part in (("first", messages[: len(messages) // 2]), ("second", messages[len(messages) // 2 :])):
        (folder / f"{name}.ndjson").write_bytes(b"\n".join(part))
    return folder / "first.ndjson", folder / "second.ndjson"


@pytest.fixture
def restored(logs, tmp_path):
    """A folder whose ledger is a backup from between two runs; what the second had written is in `lost`."""
    first, second = logs
    assert replay(tmp_path, first, "one").returncode == 0
    shutil.copy(tmp_path / "l", tmp_path / "backup")
    assert replay(tmp_path, second, "lost").returncode == 0
    (tmp_path / "backup").rename(tmp_path / "l")
    for log in ("l-wal", "l-shm"):
        (tmp_path / log).unlink(missing_ok=True)
    return tmp_path


def recorded(path):
    return {decode(line).release_id: line for line in path.read_bytes().splitlines()}


def test_an_older_backup_is_refused_by_every_verb_and_nothing_is_charged(logs, restored):
    before = (restored / "l").read_bytes()
    for arguments in (
        ("replay", logs[1], "--out", "again", *FLAGS),
        ("ledger", "show", "GJ05ZZ0001"), ("ledger", "verify"), ("ledger", "export"),
        ("doctor", logs[1], *FLAGS), ("demo", "--headless", "--slots", "1", "--buses", "20"),
    ):  # fmt: skip
        done = run(restored, *arguments, "--ledger", "l")
        assert done.returncode == 5 and "went back in time: it holds" in done.stdout + done.stderr, done.stderr
        assert "udp-stream ledger accept-older" in done.stdout + done.stderr
    assert not (restored / "again").exists() and (restored / "l").read_bytes() == before


def test_the_words_accept_it_once_and_for_ever(logs, restored):
    asked = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS)
    assert asked.returncode == 5 and replay(restored, logs[1], "again").returncode == 5
    (words,) = re.findall(r"--saying '(.*)'", asked.stderr)
    number = len(recorded(restored / "lost").keys() - recorded(restored / "one").keys())
    assert re.fullmatch(rf"charges of {number} HATs since 2024-01-08T\d\d:\d\d:00\+05:30 are forgotten", words)
    wrong = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words.replace("of", "off"))
    assert wrong.returncode == 5 and replay(restored, logs[1], "again").returncode == 5
    accepted = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words)
    assert accepted.returncode == 0 and words in accepted.stdout
    again = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words)
    assert again.returncode == 5 and "is not behind its high-water mark" in again.stderr
    assert replay(restored, logs[1], "again").returncode == 0
    for id_, line in recorded(restored / "again").items():
        expected = () if id_ in recorded(restored / "one") else (words,)
        assert decode(line).privacy.caveats == expected
    stated = json.loads(run(restored, "ledger", "export", "--ledger", "l", *FLAGS).stdout)
    assert stated["privacy"]["privacy_loss"]["caveats"] == [words]
    assert "caveats" not in json.loads((restored / "one").read_bytes().splitlines()[0])["privacy"]


def test_a_ledger_that_was_restored_with_its_mark_can_be_said_to_be_older(logs, tmp_path):
    """Nothing shows it then; whoever knows says it all the same."""
    assert replay(tmp_path, logs[0], "one").returncode == 0
    asked = run(tmp_path, "ledger", "accept-older", "--ledger", "l", *FLAGS)
    (words,) = re.findall(r"--saying '(.*)'", asked.stderr)
    assert asked.returncode == 5 and words.startswith("charges of an unknown number of HATs since 2024-01-08T")
    assert run(tmp_path, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words).returncode == 0
    stated = json.loads(run(tmp_path, "ledger", "export", "--ledger", "l", *FLAGS).stdout)
    assert stated["privacy"]["privacy_loss"]["caveats"] == [words]


def test_a_backup_that_came_as_far_again_on_its_own_is_refused_where_the_mark_is(logs, restored):
    """The mark was elsewhere while the older copy was used: its HATs were drawn a second time."""
    (restored / "l.key.ledger-id").rename(restored / "kept")
    assert replay(restored, logs[1], "again").returncode == 0
    once, twice = recorded(restored / "lost"), recorded(restored / "again")
    assert once.keys() == twice.keys() and once != twice
    (restored / "kept").rename(restored / "l.key.ledger-id")
    done = run(restored, "ledger", "verify", "--ledger", "l")
    assert done.returncode == 5 and "is gone or another one" in done.stderr


def test_a_write_ahead_log_that_is_removed_after_a_kill_is_noticed(logs, tmp_path):
    """What was synced to it is published already; without it the ledger is that of its last checkpoint."""
    command = [sys.executable, "-m", "udp_stream", "replay", "-", "--ledger", "l", "--out", "one", *FLAGS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        process.stdin.write(b"\n".join(fleet_log(clean=True)))
        process.stdin.flush()  # and left open: the last slot waits
        deadline = time.monotonic() + 60
        while not ((tmp_path / "one").exists() and (tmp_path / "one").stat().st_size):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
    published = recorded(tmp_path / "one")
    assert len(published) > 5 and (tmp_path / "l-wal").stat().st_size
    for name in ("l-wal", "l-shm"):
        (tmp_path / name).unlink()
    done = replay(tmp_path, logs[0], "again")
    assert done.returncode == 5 and "went back in time: it holds" in done.stderr and not (tmp_path / "again").exists()
