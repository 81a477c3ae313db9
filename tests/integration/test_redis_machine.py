"""The ledger in a real Redis answers as the model does, whatever is asked in whatever order."""

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from redis import Redis

from tests.contract import earlier_ledger
from tests.contract.machine import LastingMachine, RivalledMachine, Watched, answer, calls
from tests.forms import soaked
from udp_stream.base.errors import Fenced, PrivacyRefused
from udp_stream.ledger.port import Ledger
from udp_stream.ledgers.keys import adopt, known_ledger
from udp_stream.ledgers.redis import (
    Fence,
    RedisLedger,
    Session,
    find_or_make,
    open_redis_ledger,
)
from udp_stream.ledgers.redis_connection import connection_to, load_scripts, scripts_of
from udp_stream.ledgers.stored import Batch


class WatchedRedis(Watched, RedisLedger):
    """A call of more than two HATs, or eight plates, takes several scripts."""

    hats = Batch(2, 8)
    releases = Batch(2, 8)


class OnRedis(RivalledMachine):
    url: str

    def begin(self, older: int) -> None:  # noqa: ARG002 - none is older
        self.prefix = f"{{udp-{uuid4()}}}"

    def opened(self) -> Any:
        connection, id_file = connection_to(self.url, self.prefix, load_scripts()), self.here / "id"
        try:
            ledger_id = find_or_make(connection, self.prefix, known_ledger(id_file))
        except PrivacyRefused:
            connection.close()
            raise
        return WatchedRedis(Session(connection, self.prefix, ledger_id), id_file)


class InRedis(LastingMachine, OnRedis):
    def begin(self, older: int) -> None:
        super().begin(older)
        self.epochs = Counter[str]()
        self.client = Redis.from_url(self.url, protocol=2)
        if older:
            earlier_ledger.put_in_redis(self.client, self.prefix)
            self.learn_older()
            self.epochs["3"] = 2
        if older == 2:  # without a count of its own, beside the list of its entries
            self.client.hdel(f"{self.prefix}:meta", "admitted")
            self.model.counts["admitted"] = len(self.model.held)
        with open_redis_ledger(self.url, prefix=self.prefix) as ledger:
            adopt(ledger, self.here / "id", "here", ledger.ledger_id)

    def keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"{self.prefix}:*", count=1000))

    def copy(self) -> Any:
        return {key: self.client.dump(key) for key in self.keys()}

    def put(self, copy: Any) -> None:
        self.wipe(another=False)
        for key, value in copy.items():
            self.client.restore(key, 0, value)
        self.reopen()

    def wipe(self, another: bool) -> None:
        if found := self.keys():
            self.client.delete(*found)
        if another:
            with open_redis_ledger(self.url, prefix=self.prefix) as ledger:
                ledger.admit("p", 1, [], [])

    def is_there(self) -> bool:
        return bool(self.keys())

    def refused(self) -> list[Any]:
        ledger = self.ledger
        call = self.priced("lifetime", 10, [("new", {b"A" * 16: "one"}, 0, b"", None)])
        return [
            lambda: answer(ledger, call),
            lambda: ledger.record([("first", b"")]),
            lambda: ledger.take_epoch("3"),
            lambda: ledger.note("policy:1", ""),
            ledger.verify,
        ]

    @rule(shard=st.sampled_from("34"), call=calls(4))
    def taken_over(self, shard: str, call: Any) -> None:
        """Who is replaced may read what stands, and is fenced with anything new."""
        asked = self.priced(*call)
        paused, worker = self.fenced(shard), self.fenced(shard)
        if all(one.release_id in self.model.held for one in asked[2]):
            assert answer(paused, asked) == self.expected(self.model.copy(), asked)
        else:
            with pytest.raises(Fenced):
                answer(paused, asked)
        for name in [name for name, held in self.model.held.items() if held.payload is None][:1]:
            with pytest.raises(Fenced):
                paused.record([(name, b"late")])
        self.handles[0] = worker
        self.ask(asked)

    def fenced(self, shard: str) -> Ledger:
        self.epochs[shard] += 1
        epoch = self.ledger.take_epoch(shard)
        assert epoch == self.epochs[shard]
        return self.ledger.fenced(Fence(shard, epoch))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "client"):
            self.wipe(another=False)
            self.client.close()


def run_machine(machine: type[OnRedis], url: str, examples: int, **more: Any) -> None:
    bounds = settings(
        max_examples=examples,
        stateful_step_count=25,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    run_state_machine_as_test(type("Machine", (machine,), {"url": url}), settings=bounds)


@pytest.mark.parametrize("examples", [12, *soaked([500])])
def test_whatever_is_asked_in_whatever_order_a_ledger_answers_as_the_model(
    redis_url: str, examples: int
) -> None:
    run_machine(InRedis, redis_url, examples)


BROKEN = [
    ("balances", "balances_of(KEYS[i], names)", "balances_of('', names)"),
    ("commit", "refused = refused or archived(ends", "local _ = archived(ends"),
    ("commit", "redis.call('RPUSH', KEYS[5], ...)", "local _ = 0"),
]


@pytest.mark.parametrize(("script", "part", "change"), BROKEN)
def test_a_broken_script_is_found(
    script: str, part: str, change: str, redis_url: str, planted: Any
) -> None:
    sound = load_scripts()
    assert sound[script].text.count(part) == 1
    changed = scripts_of({script: sound[script].text.replace(part, change)})
    planted(__name__, load_scripts=lambda: {**sound, **changed})
    with pytest.raises((AssertionError, pytest.fail.Exception, PrivacyRefused)):
        run_machine(InRedis, redis_url, 300, phases=[Phase.generate], database=None)
