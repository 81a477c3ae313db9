"""Workers of a deployment work on one ledger and one key: what says otherwise is refused before
anything is charged."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka.errors import KafkaConnectionError
from faust.types import TP

from streams.kafka import register
from streams.processors import decode_checkpoint
from streams.topics import LedgerIdentity, mark_header, mark_in
from streams.wire import CountChunk, PlanChunk, decode_message
from tests.failing import Died
from tests.protocol.broker import (
    FLAGS,
    OURS,
    TOPICS,
    Worker,
    outcome,
)
from tests.unit.test_processors import (
    filled,
)
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import Mark
from udp_stream.ledgers.keys import adopt
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.settings import load
from udp_stream.settings.sections import KafkaSection

OTHER_LEDGER = LedgerIdentity("0ther", OURS.key)
OTHER_KEY = LedgerIdentity(OURS.ledger_id, "0ther")
PINGS = {TP(TOPICS.pings.name, 0), TP(TOPICS.pings.name, 1)}
PARTS = {TP(TOPICS.parts.name, 0)}
PAPERS = load(None, (*FLAGS, "release.mean=array-averaging"), {})
"""Without forecasts, so that a slot is charged while the one before is released."""


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ([OTHER_LEDGER.header], "it works on the ledger 0ther"),
        ([("more", b""), OTHER_KEY.header], "works with the plates'"),
        ([], "it does not name its ledger"),
        ([("udp-stream-ledger", b"\xff")], "it does not name its ledger"),
    ],
)
def test_what_is_different_is_said(headers, sentence):
    with pytest.raises(PrivacyRefused, match=sentence):
        OURS.require_in(headers, "it")


def in_a_thread(work):
    with ThreadPoolExecutor(1) as thread:
        return asyncio.run(work(thread))


async def sources(worker):
    await worker.assign()
    for tp in sorted(PINGS):
        await worker.pings.process(list(worker.broker.logs[tp]))
    worker.time_s += 100
    await worker.pings.tick(worker.broker.now_ms)
    for tp in sorted(PINGS):
        await worker.pings.process(list(worker.broker.logs[tp])[-1:])


def refused_as_behind(broker, ledger, of_others):
    """What a worker reads of the parts goes through `of_others`, until it finds its ledger behind."""

    async def work(thread):
        worker, log = Worker(broker, ledger, thread), broker.logs[TP(TOPICS.parts.name, 0)]
        await sources(worker)
        with pytest.raises(PrivacyRefused, match="went back in time"):
            while (at := worker.parts.next_offsets()[TP(TOPICS.parts.name, 0)]) < len(log):
                await worker.parts.process([of_others(worker, record) for record in log[at:]])

    in_a_thread(work)


@pytest.mark.parametrize("other", [OTHER_LEDGER, OTHER_KEY])
def test_pings_that_another_worker_has_handed_on_under_another_ledger_are_not_released(other):
    """One has the pings and the other the shards: each would do its half."""
    broker, ledger = filled(), MemoryLedger()

    async def work(thread):
        await sources(Worker(broker, MemoryLedger(), thread, binding=other))
        ours = Worker(broker, ledger, thread)
        await ours.parts.assign(PARTS)
        with pytest.raises(PrivacyRefused, match=r"bus\.parts\.v1\[0\] at 0 works"):
            await ours.parts.process(list(broker.logs[TP(TOPICS.parts.name, 0)]))

    in_a_thread(work)
    assert outcome(broker)[0] == {} and list(ledger.entries()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_on_another_ledger_takes_nothing_over_whenever_the_other_died(seed):
    """Killed between any two effects: before its first commit, after it, over a slot that is
    charged."""
    broker, first, second = filled(random.Random(f"die {seed}")), MemoryLedger(), MemoryLedger()
    broker.dies = 0.05

    async def work(thread):
        with pytest.raises(Died):
            while True:
                await Worker(broker, first, thread).run(random.Random(seed))
                broker.dies = 0.5
        broker.dice = None
        with pytest.raises(PrivacyRefused, match="works on the ledger"):
            await Worker(broker, second, thread, binding=OTHER_LEDGER).run(random.Random(seed))

    in_a_thread(work)
    assert {entry.release_id for entry in first.entries()}.isdisjoint(
        entry.release_id for entry in second.entries()
    )


def test_commits_say_on_which_ledger_whoever_takes_over_has_to_work():
    broker, ledger = filled(), MemoryLedger()

    async def work(thread):
        await Worker(broker, ledger, thread).run(random.Random(0))
        for tps, take in ((PINGS, "pings"), (PARTS, "parts")):
            worker = Worker(broker, MemoryLedger(), thread, binding=OTHER_LEDGER)
            with pytest.raises(
                PrivacyRefused, match=rf"the worker that last committed bus\.{take}\.v1\["
            ):
                await getattr(worker, take).assign(tps)

    in_a_thread(work)


def test_a_ledger_that_is_behind_what_a_commit_knows_is_refused_at_a_takeover():
    """The same ledger by its id, restored from before: the machine that takes over has published
    nothing yet."""
    broker, ledger = filled(), MemoryLedger()

    async def work(thread):
        await Worker(broker, ledger, thread).run(random.Random(0))
        older = MemoryLedger(ledger.meta()["ledger_id"])
        with pytest.raises(PrivacyRefused, match="0 charged and 0 recorded"):
            await Worker(broker, older, thread).parts.assign(PARTS)
        await Worker(broker, ledger, thread).parts.assign(PARTS)

    in_a_thread(work)


def test_the_commit_beside_the_first_releases_knows_that_they_are_recorded():
    """Their worker may die at once: a copy of the ledger from before is refused all the same."""
    broker, ledger = filled(), MemoryLedger()

    async def dies_once_it_has_published():
        if broker.logs[TP(TOPICS.release.name, 0)]:
            raise Died

    async def work(thread):
        broker.effect = dies_once_it_has_published
        with pytest.raises(Died):
            await Worker(broker, ledger, thread, once=True).run(random.Random(0))
        del broker.effect
        recorded = sum(one.payload is not None for one in ledger.entries())
        assert mark_of_commit(broker).recorded == recorded > 0

    in_a_thread(work)


def mark_of_commit(broker):
    (shard,) = PARTS
    return decode_checkpoint(broker.offsets[shard].metadata, 0).mark


def test_messages_between_workers_tell_the_mark_of_what_was_published():
    """A planner on another machine goes by it: it may have an older copy of the ledger."""
    broker, ledger = filled(), MemoryLedger()

    async def work(thread):
        await Worker(broker, ledger, thread).run(random.Random(0))

    in_a_thread(work)
    (shard,) = PARTS
    told = [mark_in(one.headers) for one in broker.logs[shard]]
    assert told[0] is None
    assert told[-1] == mark_of_commit(broker)


@pytest.mark.parametrize("is_told_less", [False, True])
def test_a_worker_that_has_published_nothing_hands_the_mark_of_the_last_commit_on(is_told_less):
    """Else a third one could go on with an older copy of the ledger."""
    broker, ledger = filled(), MemoryLedger()

    async def work(thread):
        await Worker(broker, ledger, thread).run(random.Random(0))
        mark = mark_of_commit(broker)
        worker = Worker(broker, ledger, thread)
        await worker.parts.assign(PARTS)
        (shard,) = PARTS
        lower = mark_header(Mark(mark.ledger_id, mark.era, 0, 0)) * is_told_less
        again = broker.logs[shard][-1]
        broker.append(*shard, again.value, [OURS.header, *lower])
        await worker.parts.process(broker.logs[shard][broker.resumes_at(shard) :])
        await worker.parts.commit()
        assert broker.offsets[shard].offset == len(broker.logs[shard])
        assert mark_of_commit(broker) == mark

    in_a_thread(work)


def test_a_ledger_that_is_set_back_while_a_worker_runs_publishes_nothing_more(tmp_path):
    """The mark is raised before each publication, and cannot be raised."""
    broker, parts = filled(), TP(TOPICS.parts.name, 0)

    def set_back(ledger):
        """The records are gone; the next slot is charged already."""
        ledger._connection.execute("DROP TRIGGER releases_stay")
        ledger._connection.execute("DELETE FROM releases")

    async def work(thread):
        def aside(call, *arguments):
            return asyncio.get_running_loop().run_in_executor(thread, call, *arguments)

        ledger = await aside(
            lambda: open_sqlite_ledger(tmp_path / "ledger", id_file=tmp_path / "id")
        )
        await aside(adopt, ledger, tmp_path / "id", "here")
        worker = Worker(broker, ledger, thread, PAPERS)
        await sources(worker)
        published = {}
        with pytest.raises(PrivacyRefused, match="went back in time"):
            while (at := worker.parts.next_offsets()[parts]) < len(broker.logs[parts]):
                await worker.parts.process(broker.logs[parts][at : at + 1])
                if not published and (published := dict(outcome(broker)[0])):
                    await aside(set_back, ledger)
        await aside(ledger.close)
        assert published and outcome(broker)[0] == published

    in_a_thread(work)


def test_a_plan_that_was_charged_on_an_older_copy_is_handed_to_nobody():
    """It would outlive that copy in the log, and name charges that the newest one knows nothing of."""
    broker, older = filled(), MemoryLedger()

    def counted_elsewhere(_worker, record):
        """As if a worker of another machine had sent the counts, one that knows more of the ledger."""
        if isinstance(decode_message(record.value), CountChunk):
            record.headers = (OURS.header, *mark_header(Mark(older.meta()["ledger_id"], 0, 99, 99)))
        return record

    refused_as_behind(broker, older, counted_elsewhere)
    messages = [decode_message(one.value) for one in broker.logs[TP(TOPICS.parts.name, 0)]]
    assert any(isinstance(one, CountChunk) for one in messages) and not any(
        isinstance(one, PlanChunk) for one in messages
    )
    assert outcome(broker)[0] == {}


@pytest.mark.parametrize("error", [KafkaConnectionError("it is away"), TimeoutError()])
def test_a_broker_that_does_not_tell_who_was_first_is_a_dependency_that_is_away(monkeypatch, error):
    async def fails(_bootstrap, _topic):
        raise error

    monkeypatch.setattr("streams.kafka.records_of", fails)
    with pytest.raises(DependencyUnavailable, match=r"bus\.deployment\.v1"):
        asyncio.run(register(KafkaSection(bootstrap="host:1"), TOPICS.deployment, OURS, None))


def test_a_ledger_that_is_behind_what_another_machine_has_seen_publishes_nothing():
    """This machine's own mark is lower: it has published nothing yet."""
    broker, ledger = filled(), MemoryLedger()

    def planned_elsewhere(worker, record):
        if isinstance(decode_message(record.value), PlanChunk):
            worker.parts._remember_mark(Mark(ledger.meta()["ledger_id"], 0, 99, 99))
        return record

    refused_as_behind(broker, ledger, planned_elsewhere)
    assert outcome(broker)[0] == {} and len(list(ledger.entries())) > 0


def test_a_mark_that_cannot_be_read_is_none():
    assert mark_in([("udp-stream-mark", b"?")]) is None
