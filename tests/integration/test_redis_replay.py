"""The embedded runtime on a Redis ledger: the same releases as on SQLite, and refusals as promised."""

import io
import os
import subprocess
import sys

from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from udp_stream.release import decode
from udp_stream.testing import SeededEntropy


def records(out):
    return [decode(line) for line in out.splitlines()]


def replay(ledger, flags):
    out = io.BytesIO()
    with embedded(ledger, out, flags, SeededEntropy(4)) as runtime:
        runtime.run(frames_of(fleet_log(hours=0.8)))
        assert runtime._ledger.verify() == []
    return out.getvalue()


def test_the_same_log_gives_the_same_releases_on_sqlite_and_on_redis(redis_server, tmp_path):
    key = f"ledger.key_file={tmp_path / 'plates.key'}"
    on_sqlite = replay(tmp_path / "ledger", (*CONFIG, key))
    on_redis = replay(redis_server.url, (*CONFIG, key))
    assert on_redis == on_sqlite and on_redis.count(b'"released"') > 5
    assert replay(redis_server.url, (*CONFIG, key)) == on_redis


def test_a_redis_that_forgets_is_refused_with_exit_status_5_unless_told_otherwise(redis_server, tmp_path):
    from redis import Redis

    with Redis.from_url(redis_server.url) as client:
        client.config_set("appendfsync", "everysec")
    log = tmp_path / "pings.ndjson"
    log.write_bytes(b"\n".join(fleet_log(hours=0.8)))
    command = [sys.executable, "-m", "udp_stream.adapters.cli", "replay", str(log), "--ledger", redis_server.url]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, env=dict(os.environ))
    assert (refused.returncode, refused.stdout) == (5, b"") and b"appendfsync" in refused.stderr
    allowed = subprocess.run([*command, "--allow-volatile-ledger"], cwd=tmp_path, capture_output=True, timeout=60)
    assert allowed.returncode == 0 and records(allowed.stdout) and b"does not hold" in allowed.stderr
