"""The embedded runtime on a Redis ledger: the same releases as on SQLite, and refusals as promised."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any

import pytest
from redis import Redis

from tests.integration.test_redis_ledger import replicas_of
from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.ledgers.redis import RedisLedger, Session
from udp_stream.ledgers.redis_connection import Connection, load_scripts
from udp_stream.ledgers.stored import Batch
from udp_stream.release.record import Release
from udp_stream.testing import SeededEntropy


def records(out):
    return [Release.decode(line) for line in out.splitlines()]


def replay(ledger, flags):
    out = io.BytesIO()
    with embedded(ledger, out, flags, SeededEntropy(4)) as runtime:
        runtime.run(frames_of(fleet_log(hours=0.8)))
        assert runtime._ledger.verify() == []
    return out.getvalue()


def test_the_same_log_gives_the_same_releases_on_sqlite_and_on_redis(redis_server, tmp_path):
    on_sqlite = replay(tmp_path / "ledger", CONFIG)
    key = shutil.copy(tmp_path / "ledger.key", tmp_path / "plates.key")
    flags = (*CONFIG, f"ledger.key_file={key}")
    on_redis = replay(redis_server.url, flags)
    assert on_redis == on_sqlite and on_redis.count(b'"released"') > 5
    assert replay(redis_server.url, flags) == on_redis


WRITES = ("commit", "mark")


class Killed(BaseException):
    """What nothing catches, as a SIGKILL is."""


def dying_at(
    script: int, answered: bool, names: Iterable[str] = tuple(load_scripts())
) -> Callable[..., Any]:
    """An `exchange` that dies at so many scripts of these names: before Redis has the last, or
    before its answer is heard."""
    exchange, left = Session.exchange, [script]
    counted = {load_scripts()[name].sha for name in names}

    def dying(self: Session, *commands: Any) -> Any:
        last = any(command[1] in counted for command in commands)
        left[0] -= last
        if last and left[0] == 0 and not answered:
            raise Killed
        replies = exchange(self, *commands)
        if last and left[0] == 0:
            raise Killed
        return replies

    return dying


@pytest.mark.parametrize("answered", [False, True])
def test_killed_between_the_scripts_of_its_slots_a_replay_draws_each_hat_once(
    redis_server, tmp_path, monkeypatch, limits, answered
):
    """The bits are the system's: a second draw that got out would show."""
    limits(RedisLedger, hats=Batch(5, 50_000), releases=Batch(3, 8_000_000))
    flags, payloads, kills = (*CONFIG, f"ledger.key_file={tmp_path / 'plates.key'}"), {}, 0
    frames, dice = frames_of(fleet_log(hours=0.8)), random.Random(5)
    while True:
        out = io.BytesIO()
        with monkeypatch.context() as patch, embedded(redis_server.url, out, flags) as runtime:
            patch.setattr(Session, "exchange", dying_at(dice.randint(1, 40), answered, WRITES))
            try:
                runtime.run(frames)
            except Killed:
                kills += 1
            else:
                break
            finally:
                for line in out.getvalue().splitlines():
                    assert payloads.setdefault(Release.decode(line).release_id, line) == line
    with embedded(redis_server.url, io.BytesIO(), flags) as runtime:
        assert runtime._ledger.verify() == []
        entries = list(runtime._ledger.entries())
    assert kills > 10
    assert {entry.release_id: entry.payload for entry in entries} == payloads
    assert all(entry.published for entry in entries)


def test_a_redis_that_forgets_is_refused_with_exit_status_5_unless_told_otherwise(
    redis_server, tmp_path
):
    with Redis.from_url(redis_server.url) as client:
        client.config_set("appendfsync", "everysec")
    log = tmp_path / "pings.ndjson"
    log.write_bytes(b"\n".join(fleet_log(hours=0.8)))
    command = [sys.executable, "-m", "udp_stream", "replay", str(log), "--ledger", redis_server.url]
    refused = subprocess.run(
        command, cwd=tmp_path, capture_output=True, timeout=60, env=dict(os.environ)
    )
    assert (refused.returncode, refused.stdout) == (5, b"") and b"appendfsync" in refused.stderr
    allowed = subprocess.run(
        [*command, "--set", "ledger.allow_volatile=true"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert (
        allowed.returncode == 0 and records(allowed.stdout) and b"does not hold" in allowed.stderr
    )
    for line in allowed.stdout.splitlines():
        (caveat,) = Release.decode(line).privacy.caveats
        assert caveat.startswith("charges may have been lost")
    with Redis.from_url(redis_server.url) as client:
        client.config_set("appendfsync", "always")
    export = [*command[:3], "ledger", "export", "--ledger", redis_server.url]
    stated = json.loads(
        subprocess.run(export, cwd=tmp_path, capture_output=True, timeout=60, check=True).stdout
    )
    assert stated["privacy"]["privacy_loss"]["caveats"] == [caveat]


def test_a_failover_in_the_middle_of_a_replay_draws_no_hat_twice(redis_server, tmp_path, limits):
    limits(Connection, __init__=partialmethod(Connection.__init__, replicas_timeout_ms=100))
    limits(Connection.exchange, __defaults__=((0.01,),))
    flags, messages = (*CONFIG, f"ledger.key_file={tmp_path / 'plates.key'}"), fleet_log(hours=0.8)
    before, after = io.BytesIO(), io.BytesIO()
    with replicas_of(redis_server, tmp_path) as (replica,):
        waiting = (*flags, f"ledger.url={redis_server.url}", "ledger.replicas=1")
        with embedded(redis_server.url, before, waiting) as runtime:
            for frame in frames_of(messages, 500):
                if runtime.summary.slots == 2:
                    replica.pause()
                    with Redis.from_url(
                        redis_server.url
                    ) as client:  # what is sent to it would still reach it
                        client.execute_command("CLIENT KILL", "TYPE", "replica")
                    break
                runtime.push(frame)
            with pytest.raises(DependencyUnavailable, match=r"expected ledger\.replicas = 1"):
                runtime.finish()
        redis_server.kill()
        replica.resume()
        with Redis.from_url(replica.url) as client:
            client.replicaof("NO", "ONE")
        with embedded(replica.url, after, flags) as runtime:
            runtime.run(frames_of(messages))
            assert runtime._ledger.verify() == []
    again = {Release.decode(line).release_id: line for line in after.getvalue().splitlines()}
    published = before.getvalue().splitlines()
    assert 5 < len(published) < len(again)
    assert all(again[Release.decode(line).release_id] == line for line in published)
