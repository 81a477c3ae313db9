"""The deployment on a real broker says exactly what the embedded runtime says, whoever is killed
meanwhile."""

import random
import signal
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from streams.feed import Feed, Pace
from streams.kafka import read_topic
from streams.processors import ERROR
from streams.topics import LedgerIdentity, admin, group_of, read_releases, topics_of
from tests.contract import add_remove
from tests.forms import soaked
from tests.integration.deployment import agree, log_of, worker
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.ledger.port import Admission
from udp_stream.release import record as release
from udp_stream.settings import load
from udp_stream.sources.fleet import IST, Fleet, Imperfections

AUTO = {
    "mean": "array-averaging",
    "shards": 3,
    "epsilon": '"auto"',
    "cdf": "0.05",
    "budget": "0.5",
    "period": "1h",
}
"""Plates run out of it within the hour."""


@pytest.mark.parametrize("workers", [*soaked([1]), 4])
def test_one_log_through_both_runtimes_gives_the_same_bytes_and_charges(city, workers):
    here = city(fleet_log(clean=True), **AUTO, partitions=8)
    here.feed()
    with agree(here) as (stack, expected):
        assert all(statuses(expected)[kind] > 20 for kind in ("released", "withheld_budget"))
        running = [stack.enter_context(worker(here, f"worker{i}")) for i in range(workers)]
        here.wait_for(expected, *running)


def statuses(payloads):
    return Counter(release.Release.decode(payload).status for payload in payloads.values())


def test_workers_on_a_redis_ledger_suppress_over_three_shards(city, redis_server):
    here = city(
        fleet_log(clean=True),
        shards=3,
        budget="3.0",
        ledger=redis_server.url,
        suppression="chop-user",
    )
    here.feed()
    with agree(here) as (stack, expected):
        assert all(statuses(expected)[kind] > 20 for kind in ("released", "withheld_budget"))
        here.wait_for(
            expected, *(stack.enter_context(worker(here, f"worker{i}")) for i in range(2))
        )


def test_a_worker_that_cannot_work_ends_with_a_sentence_and_a_status(city):
    here = city([])
    command = ["worker", "--config", here.config, "--set"]
    for flag, status, sentence in (
        ("kafka.prefix=elsewhere.", 3, "topic elsewhere.bus.pings.v1 is missing"),
        ("kafka.bootstrap=127.0.0.1:1", 4, "Kafka at 127.0.0.1:1"),
    ):
        done = run_verb([*command, flag], cwd=here.folder)
        assert done.returncode == status and sentence in done.stderr.decode(), done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("bound", "status", "sentence"),
    [(True, 3, "none that this version"), (False, 5, "does not name its ledger")],
)
def test_something_else_in_the_middle_ends_the_worker(city, bound, status, sentence):
    from kafka import KafkaProducer

    here = city([])
    with here.ledger() as (ledger, _):
        headers = [LedgerIdentity.of(ledger.meta()).header] if bound else []
    producer = KafkaProducer(bootstrap_servers=here.settings.kafka.bootstrap)
    producer.send(here.topics.parts.name, value=b"no part", headers=headers).get(20)
    producer.close()
    done = run_verb(["worker", "--config", here.config], cwd=here.folder)
    assert done.returncode == status, done.stderr
    assert sentence in done.stderr.decode() and b"no part" not in done.stderr


def test_pings_that_are_deleted_before_a_running_worker_reads_them_end_it(city):
    from kafka import TopicPartition

    here = city(fleet_log(clean=True))
    half = len(here.messages) // 2
    here.feed(here.messages[:half])
    said = here.folder / "one.err"
    with worker(here) as one:
        pings = once_read(here, said)
        one.send_signal(signal.SIGSTOP)
        time.sleep(2)  # what it had asked the broker for is answered by then: with nothing
        here.feed(here.messages[half:])
        first = {TopicPartition(here.topics.pings.name, at.partition): at.end + 20 for at in pings}
        with admin(here.settings.kafka) as client:
            client.delete_records(first)
        one.send_signal(signal.SIGCONT)
        assert one.wait(30)
    assert any(f"begins at offset {offset}" in said.read_text() for offset in first.values())


def once_read(here, said):
    """The partitions of pings, once a worker has committed where it is in each."""
    deadline = time.monotonic() + 60
    while True:
        group = group_of(here.settings.kafka)
        pings = group.partitions[: here.topics.pings.partitions]
        if all(at.committed is not None for at in pings):
            return pings
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.2)


def test_a_worker_in_another_zone_than_the_ledgers_is_refused(city):
    here = city(fleet_log(hours=0.6, clean=True))
    here.feed()
    hat = Admission("hat", np.array([0]), np.array([1]), 1, b"{}")
    with here.ledger() as (ledger, _):
        ledger.admit("1d from 2024-01-08T00:00:00+00:00", 10**10, [b"plate"], [hat])
    command = ["worker", "--config", here.config]
    done = run_verb(command, cwd=here.folder)
    assert done.returncode == 5, done.stderr
    *_, (level, said) = log_of(done.stderr)
    assert level == "error" and "overlaps 1d from 2024" in said
    assert not here.releases()
    with here.ledger() as (ledger, _):
        assert [entry.release_id for entry in ledger.entries()] == ["hat"]


def test_a_worker_is_refused_at_a_time_of_whole_plates_where_it_would_charge_nobody(city):
    here = city(fleet_log(hours=0.6, clean=True))
    here.config.write_text(here.config.read_text().replace("min_plates = 4", "min_plates = 1000"))
    here.feed()
    with here.ledger() as (ledger, _):
        add_remove.run(
            ledger, add_remove.context_of(), add_remove.empty(1_704_706_200_000)
        )  # that day, without a ping
        before = [entry.release_id for entry in ledger.entries()]
    done = run_verb(["worker", "--config", here.config], cwd=here.folder)
    assert done.returncode == 5, done.stderr
    *_, (level, said) = log_of(done.stderr)
    assert level == "error" and "privacy.neighbours" in said
    assert not here.releases()
    with here.ledger() as (ledger, _):
        assert [entry.release_id for entry in ledger.entries()] == before


def faulty_log():
    faults = replace(Imperfections(), far_future=0.0, repeated=0.0)
    fleet = Fleet(
        seed=2, buses=40, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=1, imperfections=faults
    )
    return [message for batch in fleet.messages() for message in batch]


def test_a_faulty_log_in_batches_over_two_shards_too(city):
    here = city(faulty_log(), grace="1d", shards=2)
    here.feed(batch=50)
    with agree(here) as (stack, expected):
        here.wait_for(expected, stack.enter_context(worker(here)))
    refused = here.read(here.topics.rejected)
    assert refused
    ids = [dict(record.headers)[f"{ERROR}.id"] for record in refused]
    assert len(ids) == len(set(ids))
    assert any(record.value in here.messages for record in refused)
    assert {record.key for record in here.read(here.topics.pings)} == {
        None
    }  # an unkeyed hash of a plate is the plate
    assert {
        release.Release.decode(payload).status == "released" for payload in expected.values()
    } == {
        True,
        False,
    }


def test_killed_again_and_again_nothing_is_lost_and_nothing_is_said_twice(city):
    """`agree` asserts it at its end: the embedded runtime's bytes and charges, and nothing
    unpublished."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, here = random.Random(seed), city(fleet_log(clean=True), **AUTO)
    half = len(here.messages) // 2
    with agree(here) as (_, expected):
        here.set_idle("1h")
        here.feed(here.messages[:half])
        for kill in range(5):
            with worker(here) as process:
                if kill == 2:
                    here.feed(here.messages[half:])
                time.sleep(dice.uniform(0.8, 4))
                process.kill()
                process.wait()
        here.set_idle("1s")
        with worker(here) as last:
            here.wait_for(expected, last)


def test_whoever_only_asks_for_a_topic_does_not_make_it(city):
    here = city([])
    nowhere = load(here.config, (f"kafka.prefix=no-{here.settings.kafka.prefix}",), {}).kafka
    for ask in (
        lambda: Feed(nowhere, topics_of(nowhere).pings.name, 1, Pace()),
        lambda: list(read_releases(nowhere)),
        lambda: read_topic(nowhere, topics_of(nowhere).pings),
    ):
        with pytest.raises(DependencyUnavailable, match="topics create"):
            ask()
    with admin(nowhere) as client:
        assert not [name for name in client.list_topics() if name.startswith(nowhere.prefix)]
