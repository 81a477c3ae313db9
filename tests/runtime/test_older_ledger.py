"""A ledger that went back in time is refused by every verb, until a person says in words what is
forgotten."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.runtime.harness import CONFIG, fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.keys import adopt
from udp_stream.ledgers.sqlite import open_sqlite_ledger
from udp_stream.release.record import Release

FLAGS = [word for flag in CONFIG for word in ("--set", flag)]


def ledger_of(verb):
    return ("--set", "ledger.url=l") if verb == "doctor" else ("--ledger", "l")


def run(folder, *arguments):
    done = run_verb(arguments, cwd=folder)
    assert b"Traceback" not in done.stderr, done.stderr
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def replay(folder, log, out):
    return run(folder, "replay", log, "--ledger", "l", "--out", out, *FLAGS)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder, messages = tmp_path_factory.mktemp("logs"), fleet_log(clean=True)
    for name, part in (
        ("first", messages[: len(messages) // 2]),
        ("second", messages[len(messages) // 2 :]),
    ):
        (folder / f"{name}.ndjson").write_bytes(b"\n".join(part))
    return folder / "first.ndjson", folder / "second.ndjson"


@pytest.fixture
def restored(logs, tmp_path):
    """A folder whose ledger is a backup from between two runs; what the second had written is in
    `lost`."""
    first, second = logs
    assert replay(tmp_path, first, "one").returncode == 0
    shutil.copy(tmp_path / "l", tmp_path / "backup")
    assert replay(tmp_path, second, "lost").returncode == 0
    (tmp_path / "backup").rename(tmp_path / "l")
    for log in ("l-wal", "l-shm"):
        (tmp_path / log).unlink(missing_ok=True)
    return tmp_path


def recorded(path):
    return {Release.decode(line).release_id: line for line in path.read_bytes().splitlines()}


def test_an_older_backup_is_refused_by_every_verb_and_nothing_is_charged(logs, restored):
    before = (restored / "l").read_bytes()
    for arguments in (
        ("replay", logs[1], "--out", "again", *FLAGS),
        ("ledger", "show", "GJ05ZZ0001"), ("ledger", "verify"), ("ledger", "export"),
        ("doctor", logs[1], *FLAGS), ("demo", "--headless", "--slots", "1", "--buses", "20"),
    ):  # fmt: skip
        done = run(restored, *arguments, *ledger_of(arguments[0]))
        assert done.returncode == 5 and "went back in time" in done.stdout + done.stderr, (
            done.stderr
        )
        assert "udp-stream ledger accept-older" in done.stdout + done.stderr
    assert not (restored / "again").exists() and (restored / "l").read_bytes() == before


def test_the_words_accept_it_once_and_for_ever(logs, restored):
    asked = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS)
    assert asked.returncode == 5 and replay(restored, logs[1], "again").returncode == 5
    (words,) = re.findall(r"--saying '(.*)'", asked.stderr)
    number = len(recorded(restored / "lost").keys() - recorded(restored / "one").keys())
    assert re.fullmatch(
        rf"charges of {number} HATs since 2024-01-08T\d\d:\d\d:00\+05:30 are forgotten", words
    )
    wrong = run(
        restored,
        "ledger",
        "accept-older",
        "--ledger",
        "l",
        *FLAGS,
        "--saying",
        words.replace("of", "off"),
    )
    assert wrong.returncode == 5 and replay(restored, logs[1], "again").returncode == 5
    accepted = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words)
    assert accepted.returncode == 0 and words in accepted.stdout
    again = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words)
    assert again.returncode == 5 and "not behind" in again.stderr
    assert replay(restored, logs[1], "again").returncode == 0
    for id_, line in recorded(restored / "again").items():
        expected = () if id_ in recorded(restored / "one") else (words,)
        assert Release.decode(line).privacy.caveats == expected
    stated = json.loads(run(restored, "ledger", "export", "--ledger", "l", *FLAGS).stdout)
    assert stated["privacy"]["privacy_loss"]["caveats"] == [words]
    assert "caveats" not in json.loads((restored / "one").read_bytes().splitlines()[0])["privacy"]


@pytest.mark.parametrize("older", [True, False])
def test_a_ledger_whose_mark_is_gone_is_refused_by_every_verb_until_it_is_accepted(
    logs, restored, older
):
    if not older:
        for name in ("l", "l.key", "l.key.ledger-id"):
            (restored / name).unlink()
        assert replay(restored, logs[0], "one").returncode == 0
    (restored / "l.key.ledger-id").unlink()
    before = (restored / "l").read_bytes()
    for arguments in (
        ("replay", logs[1], "--out", "again", *FLAGS),
        ("run", logs[1], "--out", "again", *FLAGS),
        ("ledger", "show", "GJ05ZZ0001"), ("ledger", "verify"), ("ledger", "export"),
        ("doctor", logs[1], *FLAGS), ("demo", "--headless", "--slots", "1", "--buses", "20"),
        ("ledger", "accept-older", *FLAGS),
    ):  # fmt: skip
        done = run(restored, *arguments, *ledger_of(arguments[0]))
        assert done.returncode == 5, done.stderr
        assert "accept-older" in done.stdout + done.stderr or "--saying" in done.stderr
        assert not (restored / "l.key.ledger-id").exists() and not (restored / "again").exists()
        assert (restored / "l").read_bytes() == before
    (words,) = re.findall(r"--saying '(.*)'", done.stderr)
    assert words.startswith("charges of an unknown")
    accepted = run(restored, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words)
    assert accepted.returncode == 0, accepted.stderr
    assert replay(restored, logs[1], "again").returncode == 0
    assert any(
        Release.decode(line).privacy.caveats == (words,)
        for line in recorded(restored / "again").values()
    )
    assert run(restored, "ledger", "verify", "--ledger", "l").returncode == 0


def test_a_key_without_a_mark_begins_with_a_ledger_that_holds_nothing(logs, tmp_path):
    key = tmp_path / "l.key"
    key.write_text("5e" * 32)
    key.chmod(0o600)
    assert replay(tmp_path, logs[0], "one").returncode == 0
    for name in ("l", "l.key.ledger-id"):
        (tmp_path / name).unlink()
    with open_sqlite_ledger(tmp_path / "l"):
        pass
    assert replay(tmp_path, logs[0], "again").returncode == 0
    assert recorded(tmp_path / "one").keys() == recorded(tmp_path / "again").keys()


def test_of_two_processes_that_adopt_a_new_ledger_neither_is_refused(tmp_path):
    id_file, hat = (
        tmp_path / "key.ledger-id",
        Admission("hat", np.array([0]), np.array([1]), 1, b""),
    )
    with (
        open_sqlite_ledger(tmp_path / "l", id_file=id_file) as one,
        open_sqlite_ledger(tmp_path / "l", id_file=id_file) as other,
    ):
        adopt(one, id_file, "here")
        one.admit("p", 100, [b"plate"], [hat])
        adopt(other, id_file, "here")
        id_file.unlink()
        with pytest.raises(PrivacyRefused):
            adopt(other, id_file, "here")
        adopt(other, id_file, "here", named_elsewhere=one.meta()["ledger_id"])


def test_a_ledger_that_was_restored_with_its_mark_can_be_said_to_be_older(logs, tmp_path):
    assert replay(tmp_path, logs[0], "one").returncode == 0
    asked = run(tmp_path, "ledger", "accept-older", "--ledger", "l", *FLAGS)
    (words,) = re.findall(r"--saying '(.*)'", asked.stderr)
    assert asked.returncode == 5 and words.startswith("charges of an unknown")
    assert (
        run(
            tmp_path, "ledger", "accept-older", "--ledger", "l", *FLAGS, "--saying", words
        ).returncode
        == 0
    )
    stated = json.loads(run(tmp_path, "ledger", "export", "--ledger", "l", *FLAGS).stdout)
    assert stated["privacy"]["privacy_loss"]["caveats"] == [words]


def test_a_write_ahead_log_that_is_removed_after_a_kill_is_noticed(logs, tmp_path):
    command = [
        sys.executable,
        "-m",
        "udp_stream",
        "replay",
        "-",
        "--ledger",
        "l",
        "--out",
        "one",
        *FLAGS,
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, cwd=tmp_path, stderr=subprocess.DEVNULL
    )
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
    assert (
        done.returncode == 5
        and "went back in time" in done.stderr
        and not (tmp_path / "again").exists()
    )
