"""`demo --kafka`: the whole deployment in one command, and nothing left of it."""

import json
import subprocess
import sys

import pytest

OF_A_DEPLOYMENT = """\
[hat]
slot = "1h"
[kafka]
replication = 3
[kafka.client]
security_protocol = "SASL_PLAINTEXT"
sasl_plain_username = "worker"
sasl_plain_password_file = "{password}"
[ledger]
url = "redis://ledger.example:6379/0"
replicas = 1
[ledger.client]
username = "worker"
password_file = "{password}"
"""
"""What servers ask for that are not the demo's."""


@pytest.mark.long
def test_the_demo_on_kafka_shows_what_subscribers_get(tmp_path):
    command = [
        sys.executable,
        "-m",
        "udp_stream",
        "demo",
        "--kafka",
        "--slots",
        "2",
        "--buses",
        "60",
    ]
    out, config = tmp_path / "releases.ndjson", tmp_path / "city.toml"
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    config.write_text(OF_A_DEPLOYMENT.format(password=tmp_path / "password"))
    done = subprocess.run(
        [*command, "--config", config, "--set", "budget.accounting=pure", "--set", "release.mean_epsilon=2.0",
         "--out", out],
        capture_output=True, text=True, timeout=200, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len({record["hat"]["slot_start"] for record in records}) >= 2
    assert len({record["release_id"] for record in records}) == len(records) > 10
    assert any(record["status"] == "released" for record in records)
    assert "km/h" in done.stdout and "refused: time_in_future" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "city.toml",
        "password",
        "releases.ndjson",
    }
