"""The command line as a user meets it: real processes, their output, and their exit status."""

import base64
import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.release import record as release
from udp_stream.release.record import Release

UDP_STREAM = [sys.executable, "-m", "udp_stream"]
FLAGS = [
    "--set", "budget.accounting=pure", "--set", "hat.slot=15m", "--set", "hat.resolution=7", "--set",
    "release.min_plates=4",
]  # fmt: skip

PAPERS = (
    "--set", "release.mean=array-averaging", "--set", "hat.resolution=6", "--set", "hat.slot=6h",
    "--set", "release.min_plates=10",
)  # fmt: skip
"""Means without forecasts, under budgets that are spread over a period's HATs."""


def run(*arguments, cwd, stdin=None, **environment):
    return run_verb(
        arguments, cwd=cwd, stdin=stdin, env={**os.environ, "NO_COLOR": "1", **environment}
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "pings.ndjson"
    path.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    return path


def test_replay_writes_data_to_stdout_and_the_summary_to_stderr(log, tmp_path):
    first = run("replay", log, *FLAGS, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    records = [release.Release.decode(line) for line in first.stdout.splitlines()]
    # Whether a HAT is uninformative depends on earlier releases, and so on their noise.
    assert {"released", "withheld_few_plates"} <= {record.status for record in records}
    said = " ".join(first.stderr.decode().split())
    assert (
        "refused: wrong_type" in said and "of a guess by counts" in said and "Not protected" in said
    )
    again = run("replay", log, *FLAGS, "--json", cwd=tmp_path)
    assert again.stdout == first.stdout
    found = json.loads(again.stderr.splitlines()[-1])
    assert f"{found['pings']['accepted']:,} accepted, {found['pings']['repeats']:,} of them" in said
    assert (
        found["hats"] == Counter(record.status for record in records) and found["new"]["hats"] == 0
    )
    assert f"{found['released_share']:.0%} of pings lie in released" in said
    assert "of a guess by counts" in found["said"][0]
    assert b"Protected" not in again.stderr.rpartition(b"\n{")[0]
    refused = run("replay", log, "--dry-run", "--json", cwd=tmp_path)
    assert refused.returncode == 2 and b"leave --json out" in refused.stderr
    assert (tmp_path / "udp-stream.ledger").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "udp-stream.ledger.key").stat().st_mode & 0o777 == 0o600


def test_replay_reads_stdin_and_writes_files(log, tmp_path):
    done = run("replay", "-", *FLAGS, "--out", "out.ndjson", "--rejected", "no.ndjson", "--ledger", "l", cwd=tmp_path,
               stdin=log.read_bytes())  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"")
    assert all(
        release.Release.decode(line) for line in (tmp_path / "out.ndjson").read_bytes().splitlines()
    )
    rejected = [json.loads(line) for line in (tmp_path / "no.ndjson").read_text().splitlines()]
    originals = set(fleet_log(hours=0.6))
    assert rejected and all({"reason", "path"} <= set(line) for line in rejected)
    assert all(line["message"].encode() in originals for line in rejected if "message" in line)


@pytest.mark.parametrize("by", ["name", "standard input"])
def test_a_refused_row_of_csv_is_kept_as_its_line(tmp_path, by):
    names = "license_plate", "observationDateTime", "speed"
    rows = [b";".join([*(name.encode() for name in names), b"location.coordinates"])]
    for ping in map(json.loads, fleet_log(hours=0.2, clean=True)):
        cells = [*(str(ping[name]) for name in names), str(ping["location"]["coordinates"])]
        rows.append(";".join(cells).encode())
    odd = [b"A1;2024-01-08T07:00:00Z;;[72.8, 21.2]", b"A1;now;1,5;[72.8, 21.2];", b'"open;\xff']
    odd += [b"A1;now;1,5;[72.8, 21.2]", b"A1;2024-01-08T07:00:00Z;3;[72.8]"]
    at = len(rows) // 2
    file = b"\n".join([*rows[:at], *odd, *rows[at:]])
    (tmp_path / "feed.csv").write_bytes(file)
    given = ("feed.csv", None) if by == "name" else ("-", file)
    flags = (*FLAGS, "--out", "out", "--rejected", "no", "--ledger", "l")
    assert run("replay", given[0], *flags, cwd=tmp_path, stdin=given[1]).returncode == 0
    rejected = [json.loads(line) for line in (tmp_path / "no").read_text().splitlines()]
    found = [
        (
            one["reason"],
            one["path"],
            one["message"].encode()
            if "message" in one
            else base64.b64decode(one["message_base64"]),
        )
        for one in rejected
    ]
    speed = "$.speed"
    place = "$.location.coordinates"
    faults = [("missing_field", speed), ("not_json", "$"), ("not_json", "$")]
    faults += [("wrong_type", "$.observationDateTime"), ("wrong_type", place)]
    assert found == [(*fault, row) for fault, row in zip(faults, odd, strict=True)]


def test_ledger_verbs_look_into_what_replay_charged(log, tmp_path):
    run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    plate = json.loads(fleet_log(clean=True)[0])["license_plate"]
    show = run("ledger", "show", plate, "--ledger", "l", cwd=tmp_path)
    assert show.returncode == 0 and b"2024-01-08T00:00:00+05:30" in show.stdout
    verify = run("ledger", "verify", "--ledger", "l", cwd=tmp_path)
    assert verify.returncode == 0 and b"every balance is the sum" in verify.stdout
    export = json.loads(run("ledger", "export", "--ledger", "l", cwd=tmp_path).stdout)
    periods = export["privacy"]["privacy_loss"]["periods"]
    assert (
        0
        < periods[0]["epsilon_max_over_plates"]
        <= export["privacy"]["privacy_loss"]["privacy_parameters"]["epsilon"]
    )
    assert plate not in json.dumps(export)
    bound = periods[0]["epsilon_max_of_a_release"] * periods[0]["releases_max_over_plates"]
    assert (
        periods[0]["epsilon_max_over_plates"]
        <= periods[0]["epsilon_bound_by_composition"]
        == pytest.approx(bound)
    )


def test_a_run_in_the_period_of_another_zone_is_refused_and_charges_nobody(log, tmp_path):
    plate = json.loads(fleet_log(clean=True)[0])["license_plate"]
    replay = ("replay", log, "--ledger", "l", "--out", "out", "--set", "hat.resolution=7", "--set", "hat.slot=15m",
              "--set", "release.min_plates=4", "--set", "budget.accounting=pure")  # fmt: skip
    first = run(*replay, cwd=tmp_path)
    assert first.returncode == 0
    before = run("ledger", "show", plate, "--ledger", "l", cwd=tmp_path).stdout
    for other in ("hat.timezone=UTC", "budget.period=7d", "budget.accounting=approximate"):
        refused = run(*replay, "--set", other, "--set", "hat.resolution=6", cwd=tmp_path)
        said = " ".join(refused.stderr.decode().split())
        assert refused.returncode == 5 and "2024-01-08T00:00:00+05:30" in said, said
        assert "use another ledger" in said and (tmp_path / "out").read_bytes() == b""
    assert (
        run("ledger", "show", plate, "--ledger", "l", cwd=tmp_path).stdout == before
        and before.count(b"\n") == 1
    )
    assert run(*replay, cwd=tmp_path).returncode == 0


def test_a_ledger_that_was_tampered_with_fails_verification(log, tmp_path):
    run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "l")) as connection, connection:
        connection.execute("UPDATE balances SET spent = spent - 1")
    verify = run("ledger", "verify", "--ledger", "l", cwd=tmp_path)
    assert verify.returncode == 5 and b"contradicts itself" in verify.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["replay"], 2, b"required"),
        (["replay", "missing.ndjson"], 2, b"missing.ndjson cannot be read"),
        (["replay", "vehicles.pb"], 2, b"vehicles.pb cannot be read"),
        (
            ["replay", "pings.ndjson", "--set", "budget.epsilom=1"],
            3,
            b"did you mean budget.epsilon?",
        ),
        (["replay", "pings.ndjson", "--ledger", "no/such/dir/l"], 4, b"no/such/dir for l.key"),
        (["replay", "pings.ndjson", "--ledger", "pings.ndjson"], 5, b"another kind of file"),
        (["ledger", "show", "X", "--ledger", "none"], 2, b"no ledger there"),
        (["demo", "--kafka", "--set", "release.counts=none"], 3, b'got "none"'),
        (["plan", "--set", "epsilon=3"], 3, b"did you mean budget.epsilon?"),
        (["replay", "pings.ndjson", "--set", "pings.box=[-999,0,5,5]"], 3, b"pings.box: expected"),
        (["replay", "pings.ndjson", "--ledger", ""], 2, b"--ledger:"),
        (["replay", "pings.ndjson", "--ledger", "-"], 2, b"--ledger:"),
        (["replay", "pings.ndjson", "--ledger", "-"], 2, b"--ledger:"),
        (["frobnicate"], 2, b"invalid choice"),
    ],
)
def test_every_kind_of_trouble_has_its_exit_status_and_a_sentence(
    arguments, status, said, log, tmp_path
):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b""), done.stderr
    assert said in done.stderr and b"Traceback" not in done.stderr
    assert not (tmp_path / "-").exists() and not (tmp_path / "udp-stream.ledger").exists()


def test_another_key_for_the_same_ledger_is_refused(log, tmp_path):
    run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    (tmp_path / "l.key").write_text("ab" * 32)
    (tmp_path / "l.key").chmod(0o600)
    done = run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    assert done.returncode == 5 and b"restore the key file" in done.stderr


@pytest.mark.parametrize("with_id", [True, False])
def test_a_key_that_is_lost_beside_its_ledger_is_not_replaced(with_id, log, tmp_path):
    run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    (tmp_path / "l.key").unlink()
    if not with_id:
        (tmp_path / "l.key.ledger-id").unlink()
    there = sorted(path.name for path in tmp_path.iterdir())
    for arguments in (("replay", log, *FLAGS), ("ledger", "verify"), ("ledger", "show", "X")):
        done = run(*arguments, "--ledger", "l", cwd=tmp_path)
        assert done.returncode == 5, done.stderr
        assert b"l.key:" in done.stdout + done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == there


def test_a_ledger_that_is_lost_beside_its_key_is_not_replaced(log, tmp_path):
    replay = ("replay", log, *FLAGS, "--ledger", "l", "--out", "again")
    first = run("replay", log, *FLAGS, "--ledger", "l", "--out", "out", cwd=tmp_path)
    assert (
        first.returncode == 0
        and len((tmp_path / "l.key.ledger-id").read_text().splitlines()[0]) == 32
    )
    (tmp_path / "l").rename(tmp_path / "kept")
    for arguments in (
        replay,
        ("ledger", "verify", "--ledger", "l"),
        ("demo", "--headless", "--ledger", "l"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 5 and b"was wiped or is not mounted" in done.stderr, done.stderr
        assert b"remove the plates' key" in done.stderr and b"Traceback" not in done.stderr
        assert not (tmp_path / "l").exists() and not (tmp_path / "again").exists()
    (tmp_path / "kept").rename(tmp_path / "l")
    assert run(*replay, cwd=tmp_path).returncode == 0
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out").read_bytes()
    for name in ("l", "l.key", "l.key.ledger-id"):
        (tmp_path / name).unlink()
    assert run(*replay, cwd=tmp_path).returncode == 0
    assert (tmp_path / "again").read_bytes() != (tmp_path / "out").read_bytes()


def test_a_demo_leaves_the_configured_key_and_its_ledger_alone(log, tmp_path):
    key = ("--set", f"ledger.key_file={tmp_path}/plates.key")
    demo = ("demo", "--headless", "--slots", "1", "--buses", "20", *key)
    assert run(*demo, cwd=tmp_path).returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == [log.name]
    assert run("replay", log, *FLAGS, *key, "--out", "out", cwd=tmp_path).returncode == 0
    assert run(*demo, cwd=tmp_path).returncode == 0
    assert run("replay", log, *FLAGS, *key, "--out", "out", cwd=tmp_path).returncode == 0


def test_a_key_that_has_a_ledger_is_not_used_for_another(log, tmp_path):
    key = ("--set", f"ledger.key_file={tmp_path}/plates.key")
    assert (
        run("replay", log, *FLAGS, *key, "--ledger", "one", "--out", "out", cwd=tmp_path).returncode
        == 0
    )
    done = run("replay", log, *FLAGS, *key, "--ledger", "two", "--out", "out", cwd=tmp_path)
    assert done.returncode == 5 and b"got none or another one" in done.stderr
    assert not (tmp_path / "two").exists()


def test_the_ledger_of_the_command_line_is_the_one_that_is_checked(tmp_path):
    (tmp_path / "city.toml").write_text("[ledger]\nreplicas = 1\n")
    done = run(
        "ledger",
        "verify",
        "--config",
        "city.toml",
        "--ledger",
        "redis://127.0.0.1:1/0",
        cwd=tmp_path,
    )
    assert done.returncode == 4 and b"127.0.0.1:1 cannot be used" in done.stderr
    (tmp_path / "city.toml").write_text("[ledger]\nreplicas = 1\nurl = 'redis://127.0.0.1:1/0'\n")
    done = run("ledger", "verify", "--config", "city.toml", "--ledger", 'a "ledger"', cwd=tmp_path)
    assert done.returncode == 3 and b"ledger.replicas:" in done.stderr
    for name in ('a "ledger"', "true", "\U0001f600.ledger"):
        done = run("ledger", "verify", "--ledger", name, cwd=tmp_path)
        assert done.returncode == 2 and f"{name}: no ledger there".encode() in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_sigterm_drains_and_a_later_run_finishes_the_work_and_sighup_ends_nothing(number, tmp_path):
    path = tmp_path / "pings.ndjson"
    path.write_bytes(b"\n".join(fleet_log()) + b"\n")
    whole = run("replay", path, *FLAGS, "--ledger", "l", cwd=tmp_path)
    slow = subprocess.Popen(
        [*UDP_STREAM, "replay", "-", *FLAGS, "--ledger", "l2", "--out", "part"], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = path.read_bytes().splitlines(keepends=True)
    assert slow.stdin is not None
    slow.stdin.write(b"".join(lines[: len(lines) // 2]))
    slow.stdin.flush()
    part, deadline = tmp_path / "part", time.monotonic() + 60
    while not part.exists() or part.stat().st_size == 0:
        assert time.monotonic() < deadline and slow.poll() is None
        time.sleep(0.02)
    slow.send_signal(number)
    is_hangup = number == signal.SIGHUP
    _, err = slow.communicate(b"".join(lines[len(lines) // 2 :]) if is_hangup else None, timeout=60)
    assert slow.returncode == 0, err
    rest = run("replay", path, *FLAGS, "--ledger", "l2", cwd=tmp_path)
    ids = [release.Release.decode(line).release_id for line in whole.stdout.splitlines()]
    assert [release.Release.decode(line).release_id for line in rest.stdout.splitlines()] == ids
    written = set(part.read_bytes().splitlines())
    assert written <= set(rest.stdout.splitlines()) and (len(written) == len(ids)) == is_hangup


TERMINATED = """
import asyncio, signal, sys, udp_stream.settings
from udp_stream.cli.main import main

async def waits():
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
    await asyncio.sleep(3)
    print("went on")

udp_stream.settings.load = lambda *_, **__: asyncio.run(waits())
sys.exit(main(["plan"]))
"""


def test_sigterm_within_a_callback_of_asyncio_ends_a_verb_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_demo_runs_without_services_or_files(tmp_path):
    done = run(
        "demo", "--headless", "--slots", 1, "--buses", 60, "--set", "hat.slot=1h", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert b"private estimate" in done.stdout and b"released" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_largest_plan_takes_seconds(tmp_path):
    """The limits of `--plates` and `--pings-per-plate`: as many plates as can be, and as many pings
    of each."""
    statistics = [
        part
        for name in ("mean", "variance", "cdf")
        for part in ("--set", f"release.{name}_epsilon=1")
    ]
    for plates, pings in ((100_000, 2_684), (268, 1_000_000)):
        done = run(
            "plan",
            *PAPERS,
            "--plates",
            plates,
            "--pings-per-plate",
            pings,
            *statistics,
            cwd=tmp_path,
        )
        assert done.returncode == 0 and b"array-averaging" in done.stdout, done.stderr


MPS = ("--set", "speed.unit=mps", "--set", "speed.unit_checked=true")


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
    return [Release.decode(line) for line in out.splitlines()]


def test_the_ledger_is_named_before_anything_is_charged(log, tmp_path):
    (tmp_path / "broken.ndjson.gz").write_bytes(b"\x1f\x8b" + bytes(40))
    done = run("replay", "broken.ndjson.gz", "--ledger", "l", cwd=tmp_path)
    assert done.returncode == 2 and b"ledger" not in done.stderr and not (tmp_path / "l").exists()
    later = gzip.compress(log.read_bytes(), mtime=0)[:-4]
    (tmp_path / "later.ndjson.gz").write_bytes(later)
    done = run("replay", "later.ndjson.gz", "--ledger", "other", cwd=tmp_path)
    assert (
        done.returncode == 2 and f"ledger {tmp_path.resolve()}/other, new" in done.stderr.decode()
    )
    _, said = replay(log, "--ledger", "l", cwd=tmp_path)
    assert f"ledger {tmp_path.resolve()}/l, new" in said


def test_a_trial_has_a_ledger_of_its_own_and_marks_its_records(log, tmp_path):
    first, said = replay(log, "--trial", cwd=tmp_path)
    again, _ = replay(log, "--trial", cwd=tmp_path)
    assert all(
        json.loads(line)["trial"] is True for line in first.splitlines() + again.splitlines()
    )
    ids = [[record.release_id for record in records(out)] for out in (first, again)]
    assert ids[0] == ids[1] and first != again
    assert "run draws every HAT again" in said
    assert "do not publish these" in said
    (place,) = re.findall(r"ledger (\S+), new", said)
    assert not Path(place).parent.exists()
    assert [path.name for path in tmp_path.iterdir()] == [log.name] and "not touched" not in said
    replay(log, cwd=tmp_path)
    assert (
        f"{tmp_path.resolve()}/udp-stream.ledger is not touched"
        in replay(log, "--trial", cwd=tmp_path)[1]
    )


@pytest.mark.parametrize("where", ["environment", "file", "flag"])
def test_a_trial_leaves_the_configured_ledger_alone_and_says_so(where, log, tmp_path):
    plain, _ = replay(log, "--ledger", "city.ledger", cwd=tmp_path)
    assert b'"trial"' not in plain
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "city.toml").write_text("[ledger]\nurl = 'city.ledger'\n")
    said = {
        "environment": lambda: replay(
            log, "--trial", cwd=tmp_path, UDP_STREAM_LEDGER__URL="city.ledger"
        ),
        "file": lambda: replay(log, "--trial", "--config", "city.toml", cwd=tmp_path),
        "flag": lambda: replay(log, "--trial", "--set", "ledger.url=city.ledger", cwd=tmp_path),
    }[where]()[1]
    assert f"{tmp_path.resolve()}/city.ledger is not touched" in said
    (tmp_path / "city.toml").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    secret = "redis://user:secret@127.0.0.1:1/3"
    _, said = replay(log, "--trial", cwd=tmp_path, UDP_STREAM_LEDGER__URL=secret)
    assert "127.0.0.1:1/3" in said and "secret" not in said


def test_records_of_other_settings_are_warned_of_first_with_the_keys_and_the_numbers(
    log, part, tmp_path
):
    before = [
        record.release_id for record in records(replay(part, "--ledger", "l", cwd=tmp_path)[0])
    ]
    out, said = replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    lines, here = said.splitlines(), records(out)
    assert "warning" in lines[1] and "(speed.unit kmh -> mps)" in lines[1]
    stand = [one for one in here if one.release_id in set(before)]
    assert 0 < len(stand) < len(here)
    assert (
        lines[2].startswith(f"warning: {len(stand)} of {len(here)} records")
        and "(speed.unit kmh -> mps)" in lines[2]
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
        replay(
            pings, "--ledger", "l", *(word for one in sets for word in ("--set", one)), cwd=tmp_path
        )
    assert offsets_told("verify", cwd=tmp_path) == [list(zones.values())[-1]] * 2


def offsets_told(*verb, cwd):
    """Of the first and the latest slot, in the line that names the ledger."""
    done = run("ledger", *verb, "--ledger", "l", cwd=cwd)
    assert done.returncode == 0, done.stderr
    (said,) = [
        line for line in done.stderr.decode().splitlines() if "the first of the slot" in line
    ]
    return re.findall(r"T\d\d:\d\d:00([+-]\d\d:\d\d)", said)
