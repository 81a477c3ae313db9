"""Records that are deleted while a worker is behind stop it: a consumer alone would go on with what is left."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from faust.types import TP

from tests.unit.test_processors import FLAGS, TOPICS, Worker, filled, outcome, with_worker
from udp_stream.adapters.settings import load
from udp_stream.errors import DependencyUnavailable
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.release.record import decode
from udp_stream.shuffle.wire import decode_message

PINGS, PARTS = TP(TOPICS.pings.name, 0), TP(TOPICS.parts.name, 0)


def read_with_a_gap(broker, log, accept_loss=False):
    """A worker that has read some of a log, and is then given what is behind the next ten records."""

    async def work(worker):
        of_log = worker.pings if log == PINGS else worker.parts
        if log == PARTS:
            for source in range(2):
                await worker.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        await of_log.process(broker.logs[log][:1])
        behind = broker.logs[log][4:]
        await of_log.process(behind)
        assert of_log.next_offsets()[log] == behind[-1].offset + 1

    with_worker(broker, work, accept_loss)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_running_worker_stops_at_records_that_were_deleted_before_it_read_them(log):
    broker = filled()
    broker.first = first_of({log: 4})
    with pytest.raises(DependencyUnavailable, match=r"begins at offset 4, but is still needed from 1 on: .* deleted"):
        read_with_a_gap(broker, log)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_loss_that_is_accepted_does_not_stop_it(log):
    broker = filled()
    broker.first = first_of({log: 4})
    read_with_a_gap(broker, log, accept_loss=True)


def test_a_gap_in_the_offsets_of_a_log_that_is_whole_does_not_stop_it():
    read_with_a_gap(filled(), PINGS)


def first_of(later):
    """`Broker.first`, for a log that is whole when it is assigned, and begins later when it is asked for again."""
    asked = []

    async def first(tps):
        asked.extend(tps)
        return {tp: later.get(tp, 0) if asked.count(tp) > 1 else 0 for tp in tps}

    return first


OTHER_SHARD = b"73.7"
"""The longitude of a cell that the second of two shards releases."""


def counts_of(shard, broker):
    """Where the planner's log has the counts of a slot of this shard, and where its end markers of them are."""
    messages = [(one.offset, decode_message(one.value)) for one in broker.logs[PARTS]]
    of_shard = [(at, type(one).__name__) for at, one in messages if getattr(one, "shard", None) == shard]
    chunks, ends = ([at for at, name in of_shard if name == kind] for kind in ("CountChunk", "CountsEnd"))
    return chunks, ends


@pytest.mark.parametrize("flags", [(), ("release.mean=baseline",)], ids=["follows", "does not follow"])
@pytest.mark.parametrize("behind", [0, 1])
def test_a_shard_whose_counts_are_deleted_and_their_end_is_not_holds_up_nothing(behind, flags):
    """The planner knows then that the shard has closed the slot, and never plans it: counts sent again are too late."""
    settings = load(None, (*FLAGS, "kafka.shards=2", *flags), {})
    broker, ledger = filled(source_1=OTHER_SHARD), MemoryLedger()
    shards = [TP(TOPICS.parts.name, shard) for shard in range(2)]

    async def run(thread):
        first = Worker(broker, ledger, thread, settings)
        await first.assign()
        for source in range(2):
            await first.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        for shard in shards:
            await first.parts.process(list(broker.logs[shard]))
        await first.pings.commit()
        await first.parts.commit()
        chunks, ends = counts_of(1, broker)
        broker.begins[PARTS] = chunks[-1] + 1 + behind
        assert broker.begins[PARTS] <= ends[-1]
        await Worker(broker, ledger, thread, settings, accept_loss=True).run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
    assert all(broker.offsets[shard].offset == len(broker.logs[shard]) for shard in shards)
    records = [decode(payload) for payload in outcome(broker)[0].values()]
    lost = [one.hat.cell for one in records if one.status == "withheld_unplanned"]
    assert len(lost) == 1 and sum(one.hat.cell == lost[0] for one in records) == 2
