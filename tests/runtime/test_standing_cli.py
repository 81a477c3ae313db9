"""Standing queries at the command line: what it asks, says and shows, and what a stranger does
wrong."""

import json

import msgspec

from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from tests.runtime.test_standing import configured


def run_cli(*arguments, cwd=".", status=0):
    done = run(*arguments, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done.stdout.decode(), done.stderr.decode()


def test_the_command_line_asks_says_and_shows(tmp_path):
    log, toml = tmp_path / "log.ndjson", configured(tmp_path, 100)
    log.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    ours = ("--config", str(toml), "--ledger", str(tmp_path / "ledger"))
    _, said = run_cli("replay", str(log), *ours, "--out", str(tmp_path / "out"))
    assert "--queries FILE" in said
    answers = tmp_path / "answers.ndjson"
    _, said = run_cli(
        "replay", str(log), *ours, "--out", str(tmp_path / "out"), "--queries", str(answers)
    )
    assert "centre: 3 answered" in said and "rho 100 per square km" in " ".join(said.split())
    assert (
        len(answers.read_bytes().splitlines()) == 3 + 1 + 1
    )  # at 10:00 every position is older than ten minutes
    in_ledger = [
        run_cli("ledger", "releases", "--queries", *more, *ours)[0]
        .encode()
        .splitlines(keepends=True)
        for more in ((), ("--to", "2024-01-08T09:30"), ("--from", "2024-01-08T09:30"))
    ]
    assert sorted(in_ledger[0]) == sorted(answers.read_bytes().splitlines(keepends=True))
    assert in_ledger[1] + in_ledger[2] == in_ledger[0] != in_ledger[1]
    plate = msgspec.json.decode(fleet_log(clean=True)[0])["license_plate"]
    shown, _ = run_cli("ledger", "show", plate, *ours)
    (line,) = [line for line in shown.splitlines() if line.startswith("positions 1d from ")]
    assert (
        "charged rho " in line and "left rho " in line and line.endswith("of rho 100 per square km")
    )
    verified, _ = run_cli("ledger", "verify", *ours)
    assert "every balance is the sum" in verified
    stated = json.loads(run_cli("ledger", "export", *ours)[0])
    (period,) = stated["positions"]["periods"]
    assert period["rho_per_square_km_guaranteed"] == 100.0
    assert 0 < period["rho_per_square_km_max_over_plates"] <= 100
    assert "positions" not in json.dumps(stated["privacy"]["privacy_loss"])


def test_run_answers_into_a_file_that_it_adds_to_and_says_so_when_it_does_not_ask(tmp_path):
    log, toml = tmp_path / "log.ndjson", configured(tmp_path, 100)
    log.write_bytes(b"\n".join(fleet_log(hours=0.3, clean=True)) + b"\n")
    ledger, out = str(tmp_path / "ledger"), str(tmp_path / "out")
    ours = ("run", str(log), "--config", str(toml), "--ledger", ledger, "--out", out)
    answers = tmp_path / "answers.ndjson"
    for status in (0, 2):  # the journal has the pings twice then, and the second time they are late
        run_cli(*ours, "--queries", str(answers), status=status)
    (result,) = map(json.loads, answers.read_bytes().splitlines())
    assert result["schema"] == "udp-stream/query/1" and result["query"]["name"] == "centre"
    verified, _ = run_cli("ledger", "verify", "--config", str(toml), "--ledger", ledger)
    assert "every balance is the sum" in verified
    _, said = run_cli(*ours, status=2)
    assert "--queries FILE" in said
