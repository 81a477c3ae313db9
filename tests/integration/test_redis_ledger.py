"""The ledger in Redis keeps every promise on a real server, through kills, wipes, zombies and
forgotten scripts."""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from lab.services import RunningRedis, start_redis
from tests.contract import checks
from tests.contract.checks import ALL_LEDGER_CHECKS, LedgerFactory, ask
from tests.contract.pipeline import CHECKS, Opening
from udp_stream.base.errors import (
    ConfigError,
    DependencyUnavailable,
    Fenced,
    PrivacyRefused,
    UsageError,
)
from udp_stream.ledger.rules import caveats
from udp_stream.ledgers import redis as redis_ledger
from udp_stream.ledgers import redis_connection
from udp_stream.ledgers.opening import inspect_ledger, ledger_and_keys
from udp_stream.ledgers.redis import Fence, RedisLedger, open_redis_ledger
from udp_stream.ledgers.redis_connection import Connection
from udp_stream.ledgers.stored import Batch
from udp_stream.settings import load

Check = Callable[[LedgerFactory], None]
WAIT_SECONDS = 60
DURABLE_SETTINGS = [(name, value) for name, value, _ in redis_ledger.DURABLE]


def opener(url: str) -> Callable[[], RedisLedger]:
    """Opens a ledger that nobody else has, again and again."""
    return partial(open_redis_ledger, url, prefix=f"{{udp-{uuid4()}}}")


@contextmanager
def client_of(url: str) -> Iterator[Any]:
    with Redis.from_url(url, protocol=2) as client:
        yield client


@pytest.mark.parametrize("check", ALL_LEDGER_CHECKS, ids=lambda check: check.__name__)
def test_store_keeps_promise(check: Check, redis_url: str) -> None:
    check(opener(redis_url))


@pytest.mark.parametrize("check", CHECKS)
def test_the_road_over_a_store_that_fails(check: Callable[[Opening], None], redis_url: str) -> None:
    check(lambda: opener(redis_url))


def test_threads_that_ask_at_once_share_one_ledger(redis_url: str) -> None:
    with opener(redis_url)() as ledger, ThreadPoolExecutor(50) as threads:
        ledger.bind("key")
        fenced = ledger.fenced(Fence("shard", ledger.take_epoch("shard")))
        together = threading.Barrier(50)

        def admit(number: int) -> list[int]:
            together.wait(WAIT_SECONDS)
            (verdict,) = fenced.admit("p", 10, [b"x"], [ask(f"hat-{number % 5}", [3])])
            return verdict.charged.tolist()

        charged = list(threads.map(admit, range(50)))
        assert charged[:5] * 10 == charged
        assert sorted(map(sum, charged[:5])) == [0, 0, 3, 3, 3]
        assert ledger.verify() == []


def _plain(verdicts: list[Any]) -> list[Any]:
    return [(verdict.charged.tolist(), verdict.terms) for verdict in verdicts]


def test_what_was_answered_survives_kills_of_the_server(redis_server, limits):
    """Six kills while four writers go on. Each call takes two scripts, so that some kills lie
    between them."""
    limits(RedisLedger, hats=Batch(2, 50_000), releases=Batch(2, 8_000_000))
    told: dict[tuple[str, str], Any] = {}
    counted, stop = threading.Condition(), threading.Event()
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        with open_redis_ledger(redis_server.url) as ledger:
            step = 0
            while not stop.is_set():
                answers = _write_step(ledger, writer, step := step + 1)
                with counted:
                    told.update(answers)
                    counted.notify_all()

    def guarded(writer: int) -> None:
        try:
            write(writer)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)
            with counted:
                counted.notify_all()

    writers = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
    for thread in writers:
        thread.start()
    choose = random.Random(6)
    try:
        for _ in range(6):
            goal = len(told) + choose.randint(1, 120)
            with counted:
                assert counted.wait_for(
                    lambda goal=goal: failures or len(told) >= goal, WAIT_SECONDS
                )
            redis_server.kill()
            redis_server.restart()
    finally:
        stop.set()
        for thread in writers:
            thread.join(WAIT_SECONDS)
    assert failures == []
    _expect_remembered(redis_server.url, told)


KILL_PLATES = [f"plate-{i}".encode() for i in range(8)]


def _write_step(ledger: RedisLedger, writer: int, step: int) -> dict[tuple[str, str], Any]:
    choose = random.Random(f"{writer}/{step}")
    shared = f"shared/{step // 3}"  # everybody asks for these too
    asked = []
    for name in (f"{writer}/{step}/0", f"{writer}/{step}/1", shared):
        members = choose.sample(range(8), choose.randint(1, 8))
        asked.append(
            ask(name, [choose.randint(1, 9) for _ in members], members, 2, f"{writer}".encode())
        )
    ledger.admit("kills", 4000, KILL_PLATES, asked)
    names = [one.release_id for one in asked]
    everybody = [ask(name, [1] * 8) for name in names]
    verdicts = ledger.admit("kills", 4000, KILL_PLATES, everybody)
    payloads = ledger.record([(name, f"{name} by {writer}".encode()) for name in names])
    answers: dict[tuple[str, str], Any] = {}
    for name, verdict, payload in zip(names, verdicts, payloads, strict=True):
        answers["verdict", name] = (verdict.charged.tolist(), verdict.terms)
        answers["payload", name] = payload
    return answers


def _expect_remembered(url: str, told: dict[tuple[str, str], Any]) -> None:
    names = sorted({name for _, name in told})
    with open_redis_ledger(url) as ledger:
        assert ledger.verify() == []
        verdicts = ledger.admit("kills", 10**9, KILL_PLATES, [ask(name, [1] * 8) for name in names])
        assert _plain(verdicts) == [told["verdict", name] for name in names]
        assert ledger.recorded(names) == [told["payload", name] for name in names]
        assert ledger.verify() == []


def test_what_went_unanswered_is_asked_again_and_charged_once(redis_server, registered):
    registered(redis_connection._OPTIONS, "socket_timeout", 0.2)
    with open_redis_ledger(redis_server.url) as ledger:
        redis_server.pause()
        threading.Timer(1.0, redis_server.resume).start()
        verdicts = ledger.admit("p", 10, [b"x"], [ask(f"hat-{i}", [3]) for i in range(5)])
        assert [verdict.charged.tolist() for verdict in verdicts] == [[3], [3], [3], [0], [0]]
        assert ledger.balances("p", [b"x"]).charges.tolist() == [3]
        assert ledger.verify() == []


def test_a_full_memory_charges_nobody(redis_server: RunningRedis) -> None:
    with open_redis_ledger(redis_server.url) as ledger, client_of(redis_server.url) as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(DependencyUnavailable, match="memory"):
            ledger.admit("p", 10, [b"x"], [ask("hat", [3])])
        client.config_set("maxmemory", 0)
        assert ledger.balances("p", [b"x"]).charged.tolist() == [0]
        assert list(ledger.entries()) == []


def test_forgotten_scripts_are_loaded_again(redis_server: RunningRedis) -> None:
    with open_redis_ledger(redis_server.url) as ledger, client_of(redis_server.url) as client:
        for step in range(3):
            client.script_flush()
            hats = [ask(f"hat-{step}-{i}", [1]) for i in range(3)]
            assert all(v.admitted.all() for v in ledger.admit("p", 10, [b"x"], hats))
            client.script_flush()
            assert ledger.record([(f"hat-{step}-0", b"payload")]) == [b"payload"]
        assert ledger.verify() == []


def test_a_rolling_budget_of_which_a_span_is_gone_charges_nobody(redis_url: str) -> None:
    prefix, spans = f"{{udp-{uuid4()}}}", [checks.hour("3h", number) for number in range(2)]
    with open_redis_ledger(redis_url, prefix=prefix) as ledger, client_of(redis_url) as client:
        ledger.admit(spans[0], 10, [b"x"], [ask("first", [8])])
        client.delete(f"{prefix}:balance:{spans[0]}")
        for span in spans:
            with pytest.raises(
                PrivacyRefused, match=f"the balances of {re.escape(spans[0])} are gone"
            ):
                ledger.admit(span, 10, [b"x"], [ask(f"again {span}", [8])])
        assert [entry.release_id for entry in ledger.entries()] == ["first"] and len(
            ledger.verify()
        ) == 1


def test_epochs_taken_at_once_differ(redis_url: str) -> None:
    opened = opener(redis_url)
    epochs: list[int] = []

    def take() -> None:
        with opened() as ledger:
            epochs.append(ledger.take_epoch("shard"))

    threads = [threading.Thread(target=take) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert sorted(epochs) == list(range(1, 21))


def test_a_ledger_that_forgot_our_epoch_has_lost_writes(redis_url: str) -> None:
    opened = opener(redis_url)
    with opened() as ledger, client_of(redis_url) as client:
        ledger.take_epoch("shard")
        held = ledger.fenced(Fence("shard", ledger.take_epoch("shard")))
        client.hset(f"{opened.keywords['prefix']}:meta", "epoch:shard", 1)  # type: ignore[attr-defined]
        with pytest.raises(PrivacyRefused, match="the ledger has lost writes") as raised:
            held.admit("p", 10, [b"x"], [ask("hat", [3])])
        assert not isinstance(raised.value, Fenced)


def test_a_flush_between_the_scripts_of_a_slot_stops_the_rest(
    redis_server: RunningRedis, monkeypatch: pytest.MonkeyPatch, limits
) -> None:
    limits(RedisLedger, hats=Batch(1, 1))
    commit = RedisLedger._commit
    with open_redis_ledger(redis_server.url) as ledger, client_of(redis_server.url) as client:

        def flushed(self: Any, call: Any) -> Any:
            found = commit(self, call)
            client.flushall()
            return found

        monkeypatch.setattr(RedisLedger, "_commit", flushed)
        with pytest.raises(PrivacyRefused, match="It was wiped"):
            ledger.admit("p", 10, [b"x"], [ask(f"hat-{i}", [3]) for i in range(4)])
        with pytest.raises(PrivacyRefused, match="It was wiped"):
            ledger.record([("hat-0", b"")] * (redis_ledger.RELEASES.items + 1))
        assert client.keys() == []


def test_lost_marks_and_lost_balances_are_refused(redis_url: str) -> None:
    opened = opener(redis_url)
    prefix = opened.keywords["prefix"]  # type: ignore[attr-defined]
    with client_of(redis_url) as client:
        with opened() as ledger:
            ledger.admit("p", 10, [b"x"], [ask("hat", [3])])
            client.delete(f"{prefix}:balance:p")
            with pytest.raises(PrivacyRefused, match="balances of p are gone"):
                ledger.admit("p", 10, [b"x"], [ask("hat-2", [3])])
            assert ledger.admit("q", 10, [b"x"], [ask("hat-3", [3])])[0].admitted.all()
        client.delete(f"{prefix}:meta")
        with pytest.raises(PrivacyRefused, match="got only its data"):
            opened()
        client.hset(f"{prefix}:meta", mapping={"ledger_id": "5eed", "schema": "2"})
        with pytest.raises(PrivacyRefused, match="expected schema 1"):
            opened()


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (
            lambda client, p: client.hset(f"{p}:balance:p", "x", bytes(16)),
            "expected 3 charged in 1 entries, got 0 in 0",
        ),
        (
            lambda client, p: client.delete(f"{p}:balance:p"),
            "expected 3 charged in 1 entries, got 0 in 0",
        ),
        (
            lambda client, p: client.srem(f"{p}:periods", "p"),
            "expected 3 charged in 1 entries, got 0 in 0",
        ),
        (
            lambda client, p: client.delete(f"{p}:admission:hat"),
            "hat: admitted, but its admission is gone",
        ),
        (
            lambda client, p: client.delete(f"{p}:order"),
            "expected 0 charged in 0 entries, got 3 in 1",
        ),
        (
            lambda client, p: client.set(f"{p}:release:drawn", ""),
            "drawn: released, but never admitted",
        ),
    ],
)
def test_verify_names_what_does_not_add_up(
    tamper: Callable[[Any, str], object], sentence: str, redis_url: str
) -> None:
    opened = opener(redis_url)
    with opened() as ledger, client_of(redis_url) as client:
        ledger.admit("p", 10, [b"x"], [ask("hat", [3])])
        ledger.record([("hat", b"")])
        assert ledger.verify() == []
        tamper(client, opened.keywords["prefix"])  # type: ignore[attr-defined]
        assert any(sentence in found for found in ledger.verify())


def test_verify_heeds_what_came_later_also_behind_a_lost_admission(redis_url, monkeypatch):
    opened, scan = opener(redis_url), RedisLedger._scan
    with opened() as ledger, client_of(redis_url) as client:

        def admit_and_scan(self: RedisLedger) -> Any:
            ledger.admit("p", 10, [b"z"], [ask("later", [3])])  # when the balances have been read
            return scan(self)

        ledger.admit("p", 10, [b"x", b"y"], [ask("lost", [3], [0]), ask("kept", [3], [1])])
        client.delete(f"{opened.keywords['prefix']}:admission:lost")  # type: ignore[attr-defined]
        monkeypatch.setattr(RedisLedger, "_scan", admit_and_scan)
        assert ledger.verify() == [
            "lost: admitted, but its admission is gone",
            "plate 78 in p: expected 0 charged in 0 entries, got 3 in 1",
        ]


def test_verify_holds_while_others_write(redis_url: str) -> None:
    opened = opener(redis_url)
    stop = threading.Event()

    def write() -> None:
        with opened() as ledger:
            for step in range(10_000):
                if stop.is_set():
                    return
                hats = [ask(f"hat-{step}-{i}", [1, 1]) for i in range(20)]
                ledger.admit(f"p-{step % 7}", 10**9, [b"x", b"y"], hats)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with opened() as ledger:
            assert [ledger.verify() for _ in range(5)] == [[]] * 5
    finally:
        stop.set()
        writer.join(WAIT_SECONDS)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("appendonly", "no"), ("appendfsync", "everysec"), ("appendfsync", "no"),
        ("no-appendfsync-on-rewrite", "yes"), ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory-policy", "volatile-ttl"),
    ],
)  # fmt: skip
def test_a_server_that_forgets_is_refused(setting, value, redis_server, capsys):
    with client_of(redis_server.url) as client:
        client.config_set(setting, value)
        with pytest.raises(
            PrivacyRefused, match=rf"{setting} {value} where [\s\S]*ledger.allow_volatile"
        ) as raised:
            open_redis_ledger(redis_server.url)
        assert str(raised.value).count(" where ") == 1
        assert client.keys() == []
        with open_redis_ledger(redis_server.url, allow_volatile=True):
            said = capsys.readouterr().err
        assert f"warning: the Redis at 127.0.0.1:{redis_server.port} has" in said
        assert f"{setting} {value}" in said and "plates get budget again" in said
        client.config_set(setting, dict(DURABLE_SETTINGS)[setting])
        with open_redis_ledger(redis_server.url) as ledger:  # durable by now, and marked for ever
            (caveat,) = caveats(ledger.meta())
    assert re.fullmatch(
        r"charges may have been lost since \d{4}-\d\d-\d\d \(ledger\.allow_volatile\)", caveat
    )


def test_a_server_that_hides_its_settings_is_refused(redis_server: RunningRedis) -> None:
    with client_of(redis_server.url) as client:
        client.execute_command(
            "ACL", "SETUSER", "worker", "on", ">hush", "~*", "&*", "+@all", "-config"
        )
    url = redis_server.url.replace("redis://", "redis://worker:hush@")
    with pytest.raises(
        PrivacyRefused, match=r"does not report its settings[\s\S]*ledger.allow_volatile"
    ):
        open_redis_ledger(url)
    with open_redis_ledger(url, allow_volatile=True) as ledger:
        assert ledger.admit("p", 10, [b"x"], [ask("hat", [3])])[0].admitted.all()
    with pytest.raises(DependencyUnavailable) as raised:
        open_redis_ledger(url.replace("hush", "guess"))
    assert "guess" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["udp", "{}", "{udp}{other}", "{u dp}", ""])
def test_a_prefix_without_one_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="hash tag"):
        open_redis_ledger("redis://127.0.0.1", prefix=prefix)


@contextmanager
def replicas_of(
    master: RunningRedis, folder: Path, number: int = 1
) -> Iterator[list[RunningRedis]]:
    with client_of(master.url) as client:
        client.config_set("repl-diskless-sync-delay", 0)
    with ExitStack() as stack:
        started = []
        for place in (folder / f"replica-{at}" for at in range(number)):
            place.mkdir()
            started.append(start_redis(place, more=f"replicaof 127.0.0.1 {master.port}\n"))
            stack.callback(started[-1].stop)
        _wait_for_replicas(master.url, number)
        yield started


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (
            1,
            r"has 1 replica, and ledger\.replicas is 0\. It may take over without the last charges",
        ),
        (
            2,
            r"has 2 replicas, and ledger\.replicas is 0\. One of them may take over without the last charges",
        ),
    ],
)
def test_a_server_whose_replica_could_take_over_without_the_last_charges_is_refused(
    number: int,
    sentence: str,
    redis_server: RunningRedis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [f"ledger.key_file={tmp_path}/key", f"ledger.url={redis_server.url}"]
    with replicas_of(redis_server, tmp_path, number):
        with pytest.raises(PrivacyRefused, match=sentence) as raised:
            open_redis_ledger(redis_server.url)
        said = str(raised.value)
        assert "set ledger.replicas = 1, and min-replicas-to-write 1 in Redis" in said
        assert (
            "ledger.allow_volatile" in said
            and f":{redis_server.port} has" in said
            and " where " not in said
        )
        with client_of(redis_server.url) as client:
            assert client.keys() == []
        with pytest.raises(PrivacyRefused, match=sentence):
            inspect_ledger(load(None, flags, {}).ledger)
        assert inspect_ledger(load(None, [*flags, "ledger.replicas=1"], {}).ledger).startswith(
            "a durable Redis at "
        )
        with open_redis_ledger(redis_server.url, replicas=1) as ledger:
            ledger.admit("p", 10, [b"x"], [ask("hat", [3])])
        with open_redis_ledger(redis_server.url, allow_volatile=True) as ledger:
            assert ledger.charged_by_period(b"x") == {"p": 3}
        warned = capsys.readouterr().err
        assert "ledger.replicas is 0" in warned and "plates get budget again" in warned


@pytest.mark.parametrize("waits", [True, False])
def test_a_failover_loses_nothing_that_was_answered_if_replicas_are_waited_for(
    waits: bool, redis_server: RunningRedis, tmp_path: Path, limits
) -> None:
    """The replica is cut off, its master dies, it is promoted. Without waiting, this test sees
    answers lost."""
    limits(Connection, __init__=_impatient(Connection.__init__))
    told: dict[str, tuple[list[int], bytes]] = {}
    with replicas_of(redis_server, tmp_path) as (replica,):
        with open_redis_ledger(
            redis_server.url, replicas=int(waits), allow_volatile=not waits
        ) as ledger:
            ledger_id = ledger.ledger_id
            for step in range(40):
                if step == 20:  # until then a busy machine may let it wait
                    limits(Connection.exchange, __defaults__=((0.01,),))
                    replica.pause()
                    with client_of(
                        redis_server.url
                    ) as client:  # what is sent to it would still reach it
                        client.execute_command("CLIENT KILL", "TYPE", "replica")
                name, admission = f"hat-{step}", ask(f"hat-{step}", [1 + step])
                try:
                    (verdict,) = ledger.admit("p", 10**6, [b"x"], [admission])
                    (payload,) = ledger.record([(name, name.encode())])
                except DependencyUnavailable:
                    break
                told[name] = (verdict.charged.tolist(), payload)
            assert len(told) == (20 if waits else 40)
        redis_server.kill()
        replica.resume()
        with client_of(replica.url) as client:
            client.replicaof("NO", "ONE")
        with open_redis_ledger(replica.url) as ledger:
            assert ledger.ledger_id == ledger_id or not waits
            verdicts = ledger.admit("p", 10**6, [b"x"], [ask(name, [999_000]) for name in told])
            payloads = ledger.recorded(list(told))
            kept = [
                (one.charged.tolist(), payload)
                for one, payload in zip(verdicts, payloads, strict=True)
            ]
            assert ledger.verify() == []
    lost = sum(one != answered for one, answered in zip(kept, told.values(), strict=True))
    assert lost == 0 if waits else lost > 0


def test_nothing_is_answered_before_a_replica_has_it(redis_server, tmp_path, limits):
    limits(Connection, __init__=_impatient(Connection.__init__))
    with replicas_of(redis_server, tmp_path) as (replica,):
        with open_redis_ledger(redis_server.url, replicas=1) as ledger:
            assert ledger.admit("p", 10, [b"x"], [ask("before", [3])])[0].admitted.all()
            with client_of(replica.url) as client:
                assert client.lrange("{udp}:order", 0, -1) == [b"before"]
            limits(Connection.exchange, __defaults__=((0.01,),))
            replica.pause()
            for _ in range(2):  # a repeat too waits until its answer is safe
                with pytest.raises(
                    DependencyUnavailable, match=r"expected ledger\.replicas = 1 to"
                ):
                    ledger.admit("p", 10, [b"x"], [ask("after", [3])])
            replica.resume()
            limits(Connection.exchange, __defaults__=(redis_connection.PAUSES_S,))
            assert ledger.admit("p", 10, [b"x"], [ask("after", [9])])[0].charged.tolist() == [3]
        with pytest.raises(DependencyUnavailable, match="read only replica"):
            open_redis_ledger(replica.url, prefix="{other}")


def test_looking_at_a_redis_without_a_ledger_makes_none(
    redis_server: RunningRedis, tmp_path: Path
) -> None:
    (key := tmp_path / "key").write_text("5e" * 32 + "\n")
    key.chmod(0o600)
    right, empty = (
        load(
            None,
            (f"ledger.key_file={key}", f"ledger.url={redis_server.url.removesuffix('/0')}/{at}"),
            {},
        ).ledger
        for at in (0, 3)
    )
    with (
        pytest.raises(UsageError, match="/3: no ledger there"),
        ledger_and_keys(empty, must_exist=True),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    with ledger_and_keys(right) as (ledger, _):
        ledger.admit("p", 10, [b"x"], [ask("hat", [3])])
    with ledger_and_keys(right, must_exist=True) as (ledger, _):
        assert ledger.progress().admitted == 1


def _impatient(init: Callable[..., None]) -> Callable[..., None]:
    return lambda *arguments, **named: init(*arguments, **{"replicas_timeout_ms": 100, **named})


def _wait_for_replicas(url: str, number: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    with client_of(url) as client:
        while True:
            client.set("here", "")
            client.delete("here")  # WAIT is for what this connection wrote
            if client.wait(number, 100) >= number:
                return
            assert time.monotonic() < deadline
