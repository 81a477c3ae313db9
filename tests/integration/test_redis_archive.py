"""`ledger archive` of a ledger in Redis: killed at each script, it loses nothing and goes on."""

import io
from datetime import timedelta

import pytest
from redis import Redis

from tests.contract.checks import ask
from tests.integration.test_redis_replay import Killed, dying_at
from tests.runtime.harness import ledger_at, runtime_on
from tests.runtime.test_ledger_archive import DAYS, MONDAY, SETS, pings
from tests.verbs import run_verb
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledgers.archive import archive
from udp_stream.ledgers.redis import RedisLedger, Session
from udp_stream.ledgers.stored import Batch
from udp_stream.release.record import Release

BEFORE_S = int((MONDAY + timedelta(days=2)).timestamp())


def published(url, flags, days=DAYS):
    out = io.BytesIO()
    with ledger_at(url, flags) as (ledger, keys):
        runtime = runtime_on(ledger, keys, out, list(flags))
        messages = list(pings(days=days))
        runtime.run(messages[i : i + 512] for i in range(0, len(messages), 512))
    return out.getvalue()


def verb(name, ledger, *more, folder, flags):
    words = [word for one in flags for word in ("--set", one)]
    done = run_verb(["ledger", name, "--ledger", ledger, *more, *words], cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_killed_at_each_script_an_archive_loses_nothing_and_goes_on(
    redis_server, tmp_path, monkeypatch, limits
):
    limits(RedisLedger, releases=Batch(20, 8_000_000))
    flags, url, file = (
        (*SETS, f"ledger.key_file={tmp_path / 'plates.key'}"),
        redis_server.url,
        tmp_path / "archive",
    )
    before = published(url, flags)
    latest = "--smoothed", "--from", "2024-01-11T18:00"
    estimates = verb("releases", url, *latest, folder=tmp_path, flags=flags)
    with Redis.from_url(url) as client:
        keys, size = client.dbsize(), client.memory_usage("{udp}:meta", samples=0)
    script = 0
    while True:
        script += 1
        with monkeypatch.context() as patch, ledger_at(url, flags) as (ledger, _):
            patch.setattr(Session, "exchange", dying_at(script, True))
            try:
                done = archive(ledger, BEFORE_S, file)
                break
            except Killed:
                pass
    assert script >= 8 and done.entries > 40
    # The verbs: what is in both is what was published.
    ours = verb(
        "archive", url, "--before", "2024-01-10", "--out", file, folder=tmp_path, flags=flags
    )
    assert b"archive: " in ours
    found = [verb("releases", one, folder=tmp_path, flags=flags) for one in (file, url)]
    assert found[0] and found[1] and b"".join(found) == before
    for one in (file, url):
        assert b"every balance" in verb("verify", one, folder=tmp_path, flags=flags)
    with Redis.from_url(url) as client:
        assert client.dbsize() < 0.7 * keys
        assert client.memory_usage("{udp}:meta", samples=0) < size + 100 + 2 * len(str(file))
    assert verb("releases", url, *latest, folder=tmp_path, flags=flags) == estimates != b""
    # What is in the archive is withdrawn in the ledger, and once.
    wrong = Release.decode(found[0].splitlines()[0]).release_id
    for said in (b"1 HAT withdrawn", b"0 HATs withdrawn, 1 before"):
        assert said in verb(
            "withdraw", url, wrong, "--reason", "wrong", folder=tmp_path, flags=flags
        )
    assert (
        verb("releases", url, folder=tmp_path, flags=flags).count(f"withdrawn:{wrong}".encode())
        == 1
    )
    again = published(url, flags)
    assert again == found[1]
    with ledger_at(url, flags) as (ledger, _), pytest.raises(PrivacyRefused, match="archived"):
        ledger.admit("any", 10, [b"plate"], [ask(f"8742d98b6ffffff-{BEFORE_S - 3600}-3600", [1])])
