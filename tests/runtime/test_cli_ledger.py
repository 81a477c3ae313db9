"""Which ledger a run is on, as the command line says it: named, new or not, for a trial, or of other settings."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import FLAGS, run
from udp_stream.cli import main as cli
from udp_stream.release.record import decode
from udp_stream.settings import load

MADE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
MPS = ("--set", "speed.unit=mps")


@pytest.fixture
def log(tmp_path):
    """A log of three slots."""
    path = tmp_path / "pings.ndjson"
    path.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    return path


@pytest.fixture
def part(tmp_path):
    """The first third of its lines."""
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


def test_every_verb_names_its_ledger_says_whether_it_is_new_and_since_when_it_holds_what(log, tmp_path):
    place = tmp_path.resolve() / "l"
    out, said = replay(log, "--ledger", "l", cwd=tmp_path)
    assert said.startswith(f"udp-stream: ledger {place}, new\n")
    slots = [record.hat.slot_start for record in records(out)]
    held = f"{len(slots)} HATs, the first of the slot {slots[0]}, the latest of {slots[-1]}\n"
    line = re.compile(rf"udp-stream: ledger {re.escape(str(place))}, made {MADE}: {re.escape(held)}")
    (tmp_path / "link").symlink_to("l")
    again, said = replay(log, "--ledger", "link", "--set", f"ledger.key_file={tmp_path}/l.key", cwd=tmp_path)
    assert again == out and line.match(said)
    _, said = replay(log, cwd=tmp_path, UDP_STREAM_LEDGER__URL="sqlite:./l")
    assert line.match(said)
    for verb in (("show", "GJ05ZZ0001"), ("verify",), ("export",)):
        done = run("ledger", *verb, "--ledger", "l", cwd=tmp_path)
        assert done.returncode == 0 and line.match(done.stderr.decode()) and b"udp-stream: ledger" not in done.stdout
    demo = ("demo", "--headless", "--slots", "1", "--buses", "20", "--ledger")
    assert line.match(run(*demo, "l", cwd=tmp_path).stderr.decode())
    assert f"udp-stream: ledger {place}2, new\n" in run(*demo, "l2", cwd=tmp_path).stderr.decode()


def test_the_ledger_is_named_before_anything_is_charged(log, tmp_path):
    """Of an input that cannot be read at all no ledger is made; of one that is damaged later it is, and is named."""
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


def test_estimates_that_follow_from_a_trial_say_so(log, tmp_path):
    """They are what people publish: beside those of another run they tell of two draws of one HAT."""
    of_trial, of_ledger = tmp_path / "of-trial", tmp_path / "of-ledger"
    replay(log, "--trial", "--smoothed", of_trial, cwd=tmp_path)
    replay(log, "--smoothed", of_ledger, cwd=tmp_path)
    lines = [json.loads(line) for line in of_trial.read_bytes().splitlines()]
    assert any(line["release_id"] is None for line in lines) and all(line["trial"] is True for line in lines)
    assert b'"trial"' not in of_ledger.read_bytes() and len(of_ledger.read_bytes().splitlines()) == len(lines)


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


def test_a_trial_takes_no_ledger_by_name(log, tmp_path):
    done = run("replay", log, *FLAGS, "--trial", "--ledger", "l", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--trial keeps a ledger" in done.stderr
    assert not (tmp_path / "l").exists()


def test_a_worker_has_no_trials(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["worker", "--trial"])
    assert ended.value.code == 2 and "--trial" in capsys.readouterr().err


def test_a_demo_is_a_trial_unless_it_keeps_its_ledger(tmp_path):
    demo = ("demo", "--headless", "--slots", "1", "--buses", "40", "--set", "release.min_plates=2", "--out", "-")
    done = run(*demo, cwd=tmp_path)
    assert done.returncode == 0 and all(record.trial for record in records(done.stdout))
    assert b"this ledger is for this" in done.stderr and b", new\n" in done.stderr
    kept = run(*demo, "--ledger", "l", cwd=tmp_path)
    assert kept.returncode == 0 and records(kept.stdout)
    assert b'"trial"' not in kept.stdout and b"trial: " not in kept.stderr


def test_records_of_other_settings_are_warned_of_first_with_the_keys_and_the_numbers(log, part, tmp_path):
    """A log is released in part, its unit is corrected, and the whole log is run on the same ledger."""
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


def test_a_verdict_is_on_what_was_made_under_these_settings_alone(log, part, tmp_path):
    replay(log, "--ledger", "l", cwd=tmp_path)
    out, said = replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    assert f"warning: {len(records(out))} of {len(records(out))} records" in said and "0 are new" in said
    assert any(record.mean for record in records(out)) and "guess" not in said and "expected error" not in said
    replay(part, "--ledger", "l2", cwd=tmp_path)
    out, said = replay(log, "--ledger", "l2", *MPS, cwd=tmp_path)
    newest = records(out)[-1].policy
    ours = [record for record in records(out) if record.mean and record.policy == newest]
    pings = sum(record.counts.samples for record in ours)
    error = sum(record.mean.expected_abs_error_kmh * record.counts.samples for record in ours) / pings
    assert f"under these settings: {error:.1f} km/h" in " ".join(said.split())


def test_the_same_settings_are_no_warning(log, tmp_path):
    """Neither are settings of a run that made nothing under them."""
    for _ in range(2):
        _, said = replay(log, "--ledger", "l", cwd=tmp_path)
        assert "warning" not in said and "city-wide mean" in said
    replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    _, said = replay(log, "--ledger", "l", cwd=tmp_path)
    assert "warning" not in said


def test_on_a_ledger_that_never_noted_its_settings_their_fingerprint_is_named(log, tmp_path):
    """As older versions left it."""
    before = records(replay(log, "--ledger", "l", cwd=tmp_path)[0])
    with closing(sqlite3.connect(tmp_path / "l")) as connection, connection:
        assert connection.execute("DELETE FROM meta WHERE name LIKE 'policy:%' OR name = 'made'").rowcount == 2
    _, said = replay(log, "--ledger", "l", *MPS, cwd=tmp_path)
    ours = load(None, [*FLAGS[1::2], "speed.unit=mps"], {}).policy.fingerprint()
    assert said.startswith(f"udp-stream: ledger {tmp_path.resolve()}/l: {len(before)} HATs")
    assert said.count(f"(policy {before[0].policy} -> {ours})") == 2


def test_a_demo_on_a_ledger_of_other_settings_warns_too(tmp_path):
    demo = ("demo", "--headless", "--slots", "1", "--buses", "40", "--ledger", "l")
    assert b"warning" not in run(*demo, cwd=tmp_path).stderr
    said = run(*demo, "--set", "release.min_plates=2", cwd=tmp_path).stderr.decode()
    assert "release.min_plates 3 -> 2" in said


def test_what_is_left_is_said_of_a_budget_that_the_configuration_has(log, tmp_path):
    """`--config` is easily forgotten: then the defaults' epsilon 10 a day is no budget of this ledger."""
    plate = json.loads(log.read_bytes().splitlines()[0])["license_plate"]
    week = ("--set", "budget.epsilon=30", "--set", "budget.period=7d")
    replay(log, *week, "--ledger", "l", cwd=tmp_path)
    ours = run("ledger", "show", plate, "--ledger", "l", *week, cwd=tmp_path)
    assert b"warning" not in ours.stderr and b"\tof 30\n" in ours.stdout
    forgotten = run("ledger", "show", plate, "--ledger", "l", cwd=tmp_path)
    assert forgotten.returncode == 0 and b"left" not in forgotten.stdout
    assert b'budget.period is now "1d"' in forgotten.stdout
    assert b"(budget.epsilon 30 -> 10, budget.period 7d -> 1d)" in forgotten.stderr
    (line,) = json.loads(run("ledger", "show", plate, "--json", "--ledger", "l", cwd=tmp_path).stdout)["charges"]
    assert line.keys() == {"period", "measure", "charged"}


def test_what_is_left_of_a_rolling_budget_is_said_of_windows_of_its_length(log, tmp_path):
    plate = json.loads(log.read_bytes().splitlines()[0])["license_plate"]
    day, week = (("--set", f"budget.period=rolling {length}") for length in ("1d", "7d"))
    replay(log, *day, "--ledger", "l", cwd=tmp_path)
    lines = {
        name: run("ledger", "show", plate, "--ledger", "l", *flags, cwd=tmp_path).stdout.decode().splitlines()[-1]
        for name, flags in (("day", day), ("week", week))
    }
    assert "\tleft " in lines["day"] and lines["day"].split("\t")[:2] == lines["week"].split("\t")[:2]
    assert "budget.period is now" in lines["week"]
