"""Releases reach readers of what is committed strictly once, whole slots at a time, wherever a
worker dies or stops."""

import asyncio
import signal
import subprocess
import time
from collections import Counter

import pytest
from faust.types import TP

from streams.kafka import CommittedOffset, OutgoingRecord, TransactionalPublisher
from tests.integration.deployment import SECONDS_MAX, agree, found_city, worker
from tests.runtime.harness import fleet_log
from udp_stream.base.errors import Fenced
from udp_stream.release import record as release
from udp_stream.settings.sections import KafkaSection


def seen(city):
    topics = (city.topics.release, city.topics.latest)
    return [
        Counter(release.Release.decode(one.value).release_id for one in city.read(topic))
        for topic in topics
    ]


def slots_of(payloads):
    slots = {}
    for id_, payload in payloads.items():
        slots.setdefault(release.Release.decode(payload).hat.slot_end, set()).add(id_)
    return slots


@pytest.mark.parametrize("transactions", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_killed_at_each_point_of_a_publication(city, transactions):
    """Without transactions some bytes are there twice, which shows that the points are where they
    should be."""
    here = city(fleet_log(clean=True), transactions=transactions)
    here.feed()
    points = {"true": ["written", "with offsets", "committed"], "false": ["written plainly"]}
    with agree(here) as (_, expected):
        slots = slots_of(expected)
        for point in points[transactions]:
            with worker(here, stop=f"SIGKILL@{point}@1") as process:
                assert process.wait(SECONDS_MAX) == -signal.SIGKILL, point
            some = slots_of(here.releases())
            assert all(ids == slots[end] for end, ids in some.items()), point
        assert len(some) < len(slots)
        with worker(here) as last:
            here.wait_for(expected, last)
    repeated = [sum(count > 1 for count in counts.values()) for counts in seen(here)]
    assert repeated == [0, 0] if transactions == "true" else min(repeated) > 0


def is_stopped(process):
    return (
        subprocess.run(
            ["ps", "-o", "stat=", str(process.pid)], capture_output=True, text=True
        ).stdout[:1]
        == "T"
    )


def until(holds):
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "point", ["recorded", pytest.param("with offsets", marks=pytest.mark.long)]
)
def test_a_worker_that_was_replaced_while_it_published_publishes_nothing(city, point):
    here = city(fleet_log(clean=True))
    here.feed()
    with agree(here) as (stack, expected):
        paused = stack.enter_context(worker(here, "paused", stop=f"SIGSTOP@{point}@2"))
        until(lambda: is_stopped(paused))
        with worker(here, "other") as other:
            here.wait_for(expected, other)
            paused.send_signal(signal.SIGCONT)
            time.sleep(1)
            assert paused.poll() is None and other.poll() is None, (
                here.folder / "paused.err"
            ).read_text()
        time.sleep(1)  # alone again
        assert paused.poll() is None, (here.folder / "paused.err").read_text()
    assert [max(counts.values()) for counts in seen(here)] == [1, 1]


@pytest.mark.parametrize(
    "call", ["send_batch", "send_offsets_to_transaction", "commit_transaction"]
)
def test_a_publication_ends_when_its_shard_is_let_go_of(city, call):
    here = city([])
    shard = TP(here.topics.parts.name, 0)
    kafka = KafkaSection(bootstrap=here.settings.kafka.bootstrap, group="letting go")
    message = OutgoingRecord(here.topics.release.name, b"{}", key=b"8742d98a2ffffff")

    async def let_go_at(call):
        once = await TransactionalPublisher.begin(kafka, shard)
        reached, original = asyncio.Event(), getattr(once._producer, call)

        async def hooked(*given, **named):
            reached.set()
            return await original(*given, **named)

        setattr(once._producer, call, hooked)
        publishing = asyncio.ensure_future(
            once.publish([message] * 100, {shard: CommittedOffset(7, "")})
        )
        await reached.wait()
        await once.close()
        with pytest.raises(Fenced, match="dropped"):
            await asyncio.wait_for(publishing, 5)
        again = await TransactionalPublisher.begin(kafka, shard)
        await again.publish([message], {shard: CommittedOffset(8, "")})
        await again.close()

    asyncio.run(let_go_at(call))
    assert len(here.read(here.topics.release)) in ((1,) if call == "send_batch" else (1, 101))


@pytest.mark.long
def test_a_broker_that_dies_within_a_transaction(tmp_path, kafka_server):
    here = found_city(tmp_path, kafka_server.bootstrap, fleet_log(clean=True))
    here.feed()
    with agree(here) as (stack, expected):
        paused = stack.enter_context(worker(here, stop="SIGSTOP@with offsets@2"))
        until(lambda: is_stopped(paused))
        kafka_server.kill()
        paused.send_signal(signal.SIGCONT)
        kafka_server.restart()
        here.wait_for(expected, paused)
    assert [max(counts.values()) for counts in seen(here)] == [1, 1]
