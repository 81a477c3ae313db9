"""Commits of a worker whose broker takes its time: no checkpoint moves back, and no new owner begins
before what the former one has published."""

import asyncio

import pytest
from faust.types import TP

from streams.processors import decode_checkpoint
from tests.failing import Died
from tests.protocol.broker import TOPICS, Broker, Worker
from tests.protocol.world import Inline
from tests.unit.test_ledger_identity import sources
from tests.unit.test_processors import filled
from udp_stream.ledgers.sqlite import MemoryLedger

PARTS = TP(TOPICS.parts.name, 0)
SLOTS = 4


class Commits(dict):
    """Offsets of a group. `done_ms`: through which time the shard's slots were done, commit by
    commit."""

    def __init__(self):
        super().__init__()
        self.done_ms = []

    def __ior__(self, commits):
        if PARTS in commits:
            to = decode_checkpoint(commits[PARTS].metadata, commits[PARTS].offset)
            self.done_ms.append(to.checkpoint.shard.done_ms)
        return super().__ior__(commits)


class LateBroker(Broker):
    """A commit arrives when it is let in, also if nobody waits for it any more."""

    def __init__(self, filled):
        super().__init__()
        self.logs = filled.logs
        self.now_ms = filled.now_ms
        self.offsets = Commits()
        self.let_in = asyncio.Event()
        self.let_in.set()

    async def commit(self, offsets):
        return await asyncio.shield(self.arrives(offsets))

    async def arrives(self, offsets):
        await self.let_in.wait()
        return await super().commit(offsets)


class LastOwner(Worker):
    """It is let into a shard once another worker has done all that it can."""

    former = None

    async def once(self, shard):
        await reads_on(self.former)
        return await super().once(shard)


async def reads_on(worker):
    """It reads the log of the shard to its end, record by record."""
    log = worker.broker.logs[PARTS]
    while (at := worker.parts.next_offsets()[PARTS]) < len(log):
        await worker.parts.process(log[at : at + 1])


async def at_once():
    """Nothing comes between."""


async def others_go_on():
    for _ in range(60):
        await asyncio.sleep(0)


def released(broker):
    return [dict(one.headers)["ce_id"] for one in broker.logs[TP(TOPICS.release.name, 0)]]


async def dies_before_it_publishes(broker, ledger):
    """Its slot is counted, planned and recorded."""

    async def dies_once_it_has_recorded():
        if any(one.payload for one in ledger.entries()):
            raise Died

    broker.effect = dies_once_it_has_recorded
    worker = Worker(broker, ledger, Inline(), once=True)
    await sources(worker)
    with pytest.raises(Died):
        await reads_on(worker)
    del broker.effect
    assert not released(broker)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_is_published_while_a_commit_is_under_way(is_cancelled):
    """The commit would arrive last, and the slot be open again: its next owner would publish it
    twice."""
    broker = LateBroker(filled())

    async def work():
        ledger = MemoryLedger()
        await dies_before_it_publishes(broker, ledger)
        worker = Worker(broker, ledger, Inline(), once=True)
        await worker.parts.assign({PARTS})
        broker.let_in.clear()
        committing = asyncio.ensure_future(worker.parts.commit())
        await others_go_on()
        assert not committing.done()
        if is_cancelled:
            committing.cancel()
        log = broker.logs[PARTS][broker.resumes_at(PARTS) :]
        reading = asyncio.ensure_future(worker.parts.process(log))
        await others_go_on()
        assert not released(broker)
        broker.let_in.set()
        await reading
        await asyncio.wait({committing})
        assert released(broker)
        await reads_on(worker)

    asyncio.run(work())
    assert len(released(broker)) == SLOTS
    assert broker.offsets.done_ms == sorted(broker.offsets.done_ms)


def test_nothing_is_committed_of_a_source_while_its_chunks_are_sent():
    """Whoever takes over after a crash would not send the rest."""
    broker = filled()
    pings = TP(TOPICS.pings.name, 0)

    async def work():
        worker = Worker(broker, MemoryLedger(), Inline())
        await worker.assign()
        let_on = asyncio.Event()
        broker.effect = let_on.wait
        reading = asyncio.ensure_future(worker.pings.process(broker.logs[pings]))
        await others_go_on()
        assert not reading.done()
        effect, broker.effect = broker.effect, at_once
        await worker.pings.commit()
        assert pings not in broker.offsets
        broker.effect = effect
        let_on.set()
        await reading
        assert broker.offsets[pings].offset > 0

    asyncio.run(work())


def test_what_the_former_owner_publishes_until_it_is_fenced_off_is_not_published_again():
    """Checkpoints are read behind the fence: before it they may be older than what is published."""
    broker = filled()

    async def work():
        ledger = MemoryLedger()
        former = Worker(broker, ledger, Inline(), once=True)
        await sources(former)
        await former.parts.process(broker.logs[PARTS][:1])
        await former.parts.commit()
        assert not released(broker)
        new = LastOwner(broker, ledger, Inline(), once=True)
        new.former = former
        await new.parts.assign({PARTS})
        for one in broker.logs[PARTS][broker.resumes_at(PARTS) :]:
            await new.parts.process([one])
        await reads_on(new)

    asyncio.run(work())
    assert len(released(broker)) == SLOTS
    assert len(set(released(broker))) == SLOTS
