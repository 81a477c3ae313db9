"""Records that are deleted while a worker is behind stop it: a consumer alone would go on with what
is left."""

import random

import pytest
from faust.types import TP

from streams.wire import decode_message
from tests.protocol.broker import (
    FLAGS,
    START,
    TOPICS,
    Worker,
    outcome,
)
from tests.unit.test_ledger_identity import in_a_thread
from tests.unit.test_processors import (
    filled,
    ping,
    with_worker,
)
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.record import Release
from udp_stream.settings import load

PINGS, PARTS = TP(TOPICS.pings.name, 0), TP(TOPICS.parts.name, 0)


def read_with_a_gap(broker, log, accept_loss=False):
    """A worker has read the first record of a log, and is then given what is behind the three that
    follow: up to where it has read in the end, and where the log ends."""

    async def work(worker):
        of_log = worker.pings if log == PINGS else worker.parts
        if log == PARTS:
            for source in range(2):
                await worker.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        await of_log.process(broker.logs[log][:1])
        behind = broker.logs[log][4:]
        await of_log.process(behind)
        return of_log.next_offsets()[log], behind[-1].offset + 1

    return with_worker(broker, work, accept_loss)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_running_worker_stops_at_records_that_were_deleted_before_it_read_them(log):
    broker = filled()
    broker.first = first_of({log: 4})
    with pytest.raises(DependencyUnavailable, match="begins at offset 4"):
        read_with_a_gap(broker, log)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_loss_that_is_accepted_does_not_stop_it(log):
    broker = filled()
    broker.first = first_of({log: 4})
    read_to, end = read_with_a_gap(broker, log, accept_loss=True)
    assert read_to == end


def after_a_worker_that_was_through(broker, then, accept_loss=False):
    """A worker reads and commits all, `then` something happens, and another one reads all: release
    id -> payload."""
    ledger = MemoryLedger()

    async def run(thread):
        await Worker(broker, ledger, thread).run(random.Random(0))
        then(broker)
        await Worker(broker, ledger, thread, accept_loss=accept_loss).run(random.Random(0))
        assert ledger.verify() == [] and list(ledger.unpublished()) == []
        return outcome(broker)[0]

    return in_a_thread(run)


@pytest.mark.parametrize("log", [PINGS, PARTS])
@pytest.mark.parametrize("left", [0, 3, -1])
def test_a_log_that_ends_before_what_was_read_of_it_stops_a_worker(log, left):
    """Its broker has lost the end of it: what is written there next has offsets that were read."""
    found = []

    def loses_its_end(broker):
        found.append(len(broker.logs[log]))
        del broker.logs[log][left:]
        found.append(len(broker.logs[log]))

    with pytest.raises(DependencyUnavailable) as stopped:
        after_a_worker_that_was_through(filled(), loses_its_end)
    read_to, end = found
    ends = f"{log.topic}[0] ends at offset {end}, but was read up to {read_to} before: "
    assert str(stopped.value).startswith(ends) and "`udp-stream worker --accept-loss`" in str(
        stopped.value
    )


def after_half_an_hour(broker, then, accept_loss=False):
    """A worker reads 40 records of an open slot and commits, `then` something happens, and another
    one reads all: payloads that were refused."""

    async def run(thread):
        worker = Worker(broker, MemoryLedger(), thread)
        await worker.assign()
        await worker.pings.process(broker.logs[PINGS][:40])
        await worker.pings.commit()
        assert broker.offsets[PINGS].offset == 0
        then(broker)
        ledger = MemoryLedger()
        await Worker(broker, ledger, thread, accept_loss=accept_loss).run(random.Random(0))
        return set(outcome(broker)[1].values())

    return in_a_thread(run)


def is_cut_off_and_written_to(broker):
    """The end is lost of what was read and is still needed; a message takes its place."""
    del broker.logs[PINGS][30:]
    broker.append(*PINGS, b"new")


def test_a_log_that_ends_within_an_open_slot_that_was_read_stops_a_worker():
    """Its commit is before the slot; what was read behind it is lost all the same."""
    with pytest.raises(DependencyUnavailable, match="ends at offset 31, but was read up to 40"):
        after_half_an_hour(filled(), is_cut_off_and_written_to)


def test_what_is_refused_in_the_place_of_what_was_lost_is_rejected():
    """Its offsets were read before, and what was refused there is rejected no more."""
    found = after_half_an_hour(filled(), without_an_end, accept_loss=True)
    assert b"new" in found


def without_an_end(broker):
    """The end is lost; a message comes once another worker has begun."""
    del broker.logs[PINGS][30:]
    ends = broker.ends

    async def ends_before_it(tps):
        found = await ends(tps)
        if PINGS in tps:
            broker.append(*PINGS, b"new")
        return found

    broker.ends = ends_before_it


def goes_on(broker):
    """Pings of one more hour, and half an hour of silence behind them."""
    for minute in range(302, 358, 2):
        broker.now_ms = START + minute * 60_000
        for plate in "abcd":
            broker.append(TOPICS.pings.name, "abcd".index(plate) // 2, ping(plate, minute))
    broker.now_ms = START + 390 * 60_000


def is_made_anew(broker, log, begins_with=()):
    broker.logs[log].clear()
    for one in begins_with:
        broker.now_ms = one.timestamp
        broker.append(*log, one.value)


@pytest.mark.parametrize(("log", "again"), [(PINGS, False), (PINGS, True), (PARTS, False)])
def test_in_a_new_log_nothing_is_skipped_or_counted_twice_if_the_loss_is_accepted(log, again):
    def made_anew(broker):
        sent = [one for one in broker.logs[PINGS] if not one.headers]
        is_made_anew(broker, log, sent[-100:] if again else ())
        goes_on(broker)

    broker = filled()
    expected = after_a_worker_that_was_through(filled(), goes_on)
    assert (
        after_a_worker_that_was_through(broker, made_anew, accept_loss=True) == expected
        and broker.seeks == 1
    )
    assert broker.offsets[log].offset == len(broker.logs[log])


def first_of(later):
    """`Broker.first`, for a log that is whole when it is assigned, and begins later when it is
    asked for again."""
    asked = []

    async def first(tps):
        asked.extend(tps)
        return {tp: later.get(tp, 0) if asked.count(tp) > 1 else 0 for tp in tps}

    return first


OTHER_SHARD = b"73.7"
"""The longitude of a cell that the second of two shards releases."""


def counts_of(shard, broker):
    """Where the planner's log has the counts of a slot of this shard, and where its end markers of
    them are."""
    messages = [(one.offset, decode_message(one.value)) for one in broker.logs[PARTS]]
    of_shard = [
        (at, type(one).__name__) for at, one in messages if getattr(one, "shard", None) == shard
    ]
    chunks, ends = (
        [at for at, name in of_shard if name == kind] for kind in ("CountChunk", "CountsEnd")
    )
    return chunks, ends


@pytest.mark.parametrize(
    "flags", [(), ("release.mean=baseline",)], ids=["follows", "does not follow"]
)
@pytest.mark.parametrize("behind", [0, 1])
def test_a_shard_whose_counts_are_deleted_and_their_end_is_not_holds_up_nothing(behind, flags):
    """The planner knows then that the shard has closed the slot, and never plans it: counts sent
    again are too late."""
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

    in_a_thread(run)
    assert all(broker.offsets[shard].offset == len(broker.logs[shard]) for shard in shards)
    records = [Release.decode(payload) for payload in outcome(broker)[0].values()]
    lost = [one.hat.cell for one in records if one.status == "withheld_unplanned"]
    assert len(lost) == 1 and sum(one.hat.cell == lost[0] for one in records) == 2
