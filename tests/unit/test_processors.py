"""The processors of a worker between a log and a ledger, killed between any two of their effects."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC
from functools import partial
from itertools import product

import pytest
from faust.types import TP

from streams import wire as source_protocol
from streams.kafka import CommittedOffset
from streams.processors import TICK, ProcessorContext, SourceProcessor
from streams.wire import PingChunk, PositionChunk, cut_pings, decode_message
from tests.failing import Died
from tests.forms import long_rows
from tests.protocol.broker import (
    FLAGS,
    OURS,
    SETTINGS,
    START,
    TOPICS,
    Broker,
    Worker,
    context_of,
    outcome,
    rules_of,
)
from udp_stream.base.errors import ConfigError, DependencyUnavailable, PrivacyRefused
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.events import SlotCounted, SlotPublished, SlotRecorded
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.windows.positions import MomentRules
from udp_stream.windows.tables import SlotGrid


def ping(plate, minute):
    hour, minute = divmod(minute, 60)
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T%02d:%02d:00Z", "speed": 20, "location": '
        b'{"type": "Point", "coordinates": [72.8, 21.1]}}' % (plate.encode(), hour, minute)
    )


def filled(dice=None, source_1=b"72.8"):
    """Three hours of two partitions in one log each, some of it broken or late; the last hour on
    one of them only. `source_1`: the longitude of the second's pings."""
    broker, content = Broker(), random.Random(5)
    for minute in range(0, 190, 2):
        broker.now_ms = START + minute * 60_000
        for plate in "abcd" if minute < 120 else "ab":
            value = (
                ping(plate, max(0, minute - content.choice([0, 0, 1, 2, 70])))
                if content.random() < 0.95
                else b"?"
            )
            value = value.replace(b"72.8", source_1) if plate in "cd" else value
            broker.append(TOPICS.pings.name, "abcd".index(plate) // 2, value)
    broker.now_ms = START + 300 * 60_000
    broker.dice = dice
    return broker


async def dies_behind_its_first_part(broker, worker):
    """It has read all pings of source 0, and one part of the first slot has reached the broker."""
    await worker.assign()
    await worker.pings.commit()
    parts = broker.logs[TP(TOPICS.parts.name, 0)]

    async def dies_behind_a_part():
        if parts:
            raise Died

    broker.effect = dies_behind_a_part
    with pytest.raises(Died):
        await worker.pings.process(broker.logs[TP(TOPICS.pings.name, 0)])
    del broker.effect
    (part,) = (decode_message(one.value) for one in parts)
    assert isinstance(part, PingChunk)


def comes_through(broker, settings=SETTINGS, accept_loss=False, before=None):
    """The counts of what is released, by a worker that has taken over from one that died within a
    slot."""
    ledger = MemoryLedger()

    async def run(thread):
        if before is not None:
            await before(broker, Worker(broker, ledger, thread))
        await Worker(broker, ledger, thread, settings, accept_loss=accept_loss).run(
            random.Random(0)
        )
        assert broker.offsets[TP(TOPICS.parts.name, 0)].offset == len(
            broker.logs[TP(TOPICS.parts.name, 0)]
        )
        return {id_: Release.decode(payload).counts for id_, payload in outcome(broker)[0].items()}

    with ThreadPoolExecutor(1) as thread:
        return asyncio.run(run(thread))


def test_what_is_left_of_a_slot_whose_pings_are_refused_by_now_holds_up_nothing():
    boxed = load(None, (*FLAGS, "pings.box=[73, 20, 75, 22]"), {})
    sent_elsewhere = filled(source_1=b"74.0")
    expected = comes_through(filled(source_1=b"74.0"), boxed)
    assert len(expected) == 2
    assert comes_through(sent_elsewhere, boxed, before=dies_behind_its_first_part) == expected


def test_a_loss_of_parts_that_is_accepted_holds_up_nothing(limits):
    limits(source_protocol, cut_pings=partial(cut_pings, rows_max=20))
    parts = TP(TOPICS.parts.name, 0)

    async def reads_and_commits(broker, worker):
        await worker.assign()
        for source in range(2):
            await worker.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        await worker.pings.commit()
        await worker.parts.commit()
        broker.begins[parts] = 1  # the first of the parts is gone

    found = comes_through(filled(), accept_loss=True, before=reads_and_commits)
    expected = comes_through(filled())
    hats = sorted(expected)
    assert sorted(found) == hats and found[hats[0]].samples < expected[hats[0]].samples
    assert [found[hat] for hat in hats[1:]] == [expected[hat] for hat in hats[1:]]


def test_every_step_of_a_batch_of_many_slots_is_progress():
    """After an outage a batch has many slots: the watchdog's patience is for one of them, not for
    all."""
    broker, parts, seen = filled(), TP(TOPICS.parts.name, 0), []

    async def run(thread):
        worker = Worker(
            broker,
            MemoryLedger(),
            thread,
            observers=[lambda event: seen.append((event, worker.parts.done))],
        )
        await worker.assign()
        for _ in range(2):
            for source in range(2):
                await worker.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
            worker.time_s += 100
            await worker.pings.tick(broker.now_ms)
        while (at := worker.parts.next_offsets()[parts]) < len(broker.logs[parts]):
            await worker.parts.process(broker.logs[parts][at:])

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
    for kind in (SlotCounted, SlotPublished):
        done = [done for event, done in seen if isinstance(event, kind)]
        assert len(done) == 4 and sorted(set(done)) == done


@pytest.mark.parametrize("log", ["pings", "parts"])
def test_partitions_that_are_revoked_while_they_are_taken_over_are_not_taken(log):
    """They would be read, ticked and committed beside their new owner."""
    broker, name = filled(), getattr(TOPICS, log).name

    async def slowly(tps, answer=broker.committed):
        await asyncio.sleep(0)
        return await answer(tps)

    async def work(worker):
        of_log = getattr(worker, log)
        of_log.revoke()
        broker.committed = slowly
        taking = asyncio.ensure_future(of_log.assign({TP(name, 0)}))
        await asyncio.sleep(0)
        of_log.revoke()
        await taking
        assert not of_log._assignments and not of_log.next_offsets()

    with_worker(broker, work)


def with_worker(broker, work, accept_loss=False):
    async def run(thread):
        worker = Worker(broker, MemoryLedger(), thread, accept_loss=accept_loss)
        await worker.assign()
        return await work(worker)

    with ThreadPoolExecutor(1) as thread:
        return asyncio.run(run(thread))


def test_a_partition_that_is_not_read_to_its_end_is_never_ticked():
    broker = Broker()

    async def work(worker):
        worker.time_s = 59
        await worker.pings.tick(START)
        broker.is_read_to_end, worker.time_s = False, 61
        await worker.pings.tick(START)
        assert not broker.logs[TP(TOPICS.pings.name, 0)]
        broker.is_read_to_end = True
        await worker.pings.tick(START)
        await worker.pings.tick(START)

    with_worker(broker, work)
    (tick,) = broker.logs[TP(TOPICS.pings.name, 0)]
    assert tick.headers == ((TICK, b"1"),)


@pytest.mark.parametrize("junk", [b"keep-alive", ping("a", 1)], ids=["broken", "late"])
def test_a_partition_to_which_nothing_comes_but_what_is_refused_is_silent(junk):
    """Else it would hold up the slots of all partitions: its own clock stands still."""
    broker, pings = Broker(), TP(TOPICS.pings.name, 0)
    broker.now_ms = START + 300 * 60_000

    async def work(worker):
        broker.append(*pings, ping("a", 299))
        await worker.pings.process(broker.logs[pings])
        for second in range(0, 3600, 30):
            worker.time_s, broker.now_ms = second, START + (300 * 60 + second) * 1000
            broker.append(*pings, junk)
            await worker.pings.process(broker.logs[pings][worker.pings.next_offsets()[pings] :])
            await worker.pings.tick(broker.now_ms)
        return [one.timestamp for one in broker.logs[pings] if one.headers]

    (tick, *more) = with_worker(broker, work)
    assert START + 303 * 60_000 <= tick <= START + 305 * 60_000 and not more


def test_pings_without_the_broker_s_time_stop_the_worker():
    broker = Broker()
    broker.append(TOPICS.pings.name, 0, ping("a", 1))
    broker.logs[TP(TOPICS.pings.name, 0)][0].timestamp_type = 0
    with pytest.raises(ConfigError, match="LogAppendTime"):
        with_worker(
            broker, lambda worker: worker.pings.process(broker.logs[TP(TOPICS.pings.name, 0)])
        )


def test_a_log_that_was_cut_off_before_it_was_read_stops_the_worker():
    broker = Broker()
    broker.offsets[TP(TOPICS.pings.name, 1)] = CommittedOffset(7, '{"binding": "5eed.cafe"}')
    broker.begins[TP(TOPICS.pings.name, 1)] = 9
    with pytest.raises(DependencyUnavailable, match="begins at offset 9"):
        with_worker(broker, None)


OTHER_VERSION = "is none that this version of udp-stream reads"


def test_a_message_of_another_version_stops_the_worker_in_words():
    broker = Broker()
    broker.append(TOPICS.parts.name, 1, b"\x81\xa4type\xa7plan.99", [OURS.header])

    async def read(worker):
        await worker.parts.assign({TP(TOPICS.parts.name, 1)})
        await worker.parts.process(broker.logs[TP(TOPICS.parts.name, 1)])

    with pytest.raises(ConfigError, match=rf"{TOPICS.parts.name}\[1\], offset 0, {OTHER_VERSION}"):
        with_worker(broker, read)


@pytest.mark.parametrize("metadata", ["{}", "eJyzBgAAfwB/", "consumer-1", '{"watermark": "noon"}'])
@pytest.mark.parametrize("topic", [TOPICS.pings.name, TOPICS.parts.name])
def test_a_commit_of_another_version_stops_the_worker_in_words(topic, metadata):
    broker = Broker()
    broker.offsets[TP(topic, 0)] = CommittedOffset(0, metadata)
    if (topic, metadata) == (
        TOPICS.pings.name,
        "{}",
    ):  # it can be read, and does not name its ledger
        expected = pytest.raises(PrivacyRefused, match="does not name its ledger")
    else:
        expected = pytest.raises(
            ConfigError, match=rf"the last commit of {topic}\[0\] {OTHER_VERSION}"
        )
    with expected:
        with_worker(broker, None)


def test_after_a_rebalance_batches_of_before_are_left_alone():
    broker = filled()

    async def work(worker):
        worker.pings.revoke()
        worker.parts.revoke()
        await worker.pings.process(broker.logs[TP(TOPICS.pings.name, 0)])
        await worker.pings.commit()

    with_worker(broker, work)
    assert broker.offsets == {} and not broker.logs[TP(TOPICS.parts.name, 0)]


def test_a_shard_that_is_revoked_while_its_slot_is_recorded_publishes_nothing():
    """What it publishes with is closed by then, and the slot is its new owner's."""
    broker = filled()

    async def run(thread):
        def revoke(event):
            if isinstance(event, SlotRecorded):
                worker.parts.revoke()

        worker = Worker(broker, MemoryLedger(), thread, once=True, observers=[revoke])
        await worker.run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
    assert outcome(broker)[0] == {} and broker.rejoins == 0


class SlowBroker(Broker):
    """Takes what it is sent when it is told to, batch by batch."""

    def __init__(self):
        super().__init__()
        self.under_way = []

    async def send(self, _messages):
        self.under_way.append(asyncio.get_running_loop().create_future())
        return self.under_way[-1]


def broken_pings(broker, batches):
    for _ in range(batches):
        broker.append(TOPICS.pings.name, 0, b"?")
    return [[one] for one in broker.logs[TP(TOPICS.pings.name, 0)]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_waits_for_the_refusals_that_it_lets_go_of(fails):
    broker = SlowBroker()

    async def work(worker):
        for batch in broken_pings(broker, 3):
            await worker.pings.process(batch)
        assert len(broker.under_way) == 3  # none waited for the one before
        committing = asyncio.ensure_future(worker.pings.commit())
        for sent in broker.under_way[:2]:
            sent.set_result(None)
        await asyncio.sleep(0.01)
        assert not committing.done() and broker.offsets == {}
        if not fails:
            broker.under_way[2].set_result(None)
            await committing
            return
        broker.under_way[2].set_exception(DependencyUnavailable("not taken"))
        with pytest.raises(DependencyUnavailable):
            await committing

    with_worker(broker, work)
    assert {tp.partition: noted.offset for tp, noted in broker.offsets.items()} == (
        {} if fails else {0: 3, 1: 0}
    )


def test_a_silent_partition_is_ticked_also_by_a_worker_that_has_read_nothing_of_it():
    """Its watermark is in the commit: the open slot before it has to close without another ping."""
    broker = filled()

    async def work(thread):
        first = Worker(broker, MemoryLedger(), thread)
        await first.assign()
        for source in range(2):
            await first.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        await first.pings.commit()
        second = Worker(broker, MemoryLedger(), thread)
        await second.assign()
        ends = {
            tp: len(broker.logs[tp])
            for tp in [TP(TOPICS.pings.name, source) for source in range(2)]
        }
        for source in range(
            2
        ):  # as if all that is behind the checkpoint had been read and refused before
            assigned = second.pings._assignments[source]
            assigned.protocol.reader.next_offset = len(broker.logs[TP(TOPICS.pings.name, source)])
        second.time_s += 100
        await second.pings.tick(broker.now_ms)
        assert all(len(broker.logs[tp]) == end + 1 for tp, end in ends.items())
        await second.pings.tick(broker.now_ms)
        assert all(len(broker.logs[tp]) == end + 1 for tp, end in ends.items()), (
            "one tick is enough until it is read"
        )

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))


def test_a_moment_has_positions_from_before_the_checkpoint_also_after_a_takeover():
    """By the watermark of the commit they are late; by the one that they came under they are not."""
    broker, pings = Broker(), TP(TOPICS.pings.name, 0)
    every = MomentRules((SlotGrid(300, UTC),), 600_000)
    rules = replace(rules_of(SETTINGS, context_of(SETTINGS)), moments=every)

    async def reads(*sent):
        found = SourceProcessor(ProcessorContext(TOPICS, broker, broker, OURS), rules, 60)
        await found.assign({pings})
        for plate, minute in sent:
            broker.now_ms = START + minute * 60_000
            broker.append(*pings, ping(plate, minute))
        await found.process(broker.logs[pings][broker.resumes_at(pings) :])
        await found.commit()

    asyncio.run(reads(("a", 57), ("b", 64)))
    asyncio.run(reads(("b", 68)))
    log = broker.logs[TP(TOPICS.parts.name, 0)]
    moments = [
        one
        for one in map(decode_message, (one.value for one in log))
        if isinstance(one, PositionChunk)
    ]
    (last,) = [one for one in moments if one.slot_start == START + 65 * 60_000]
    assert last.plates == b"ab"


HOUR = 3_600_000


async def go_on(worker, broker, minutes, partitions=(0, 1)):
    """Pings of these minutes as they come, and ticks where none does; each is read at once."""

    async def read():
        for tp, log in list(broker.logs.items()):
            of = {TOPICS.pings.name: worker.pings, TOPICS.parts.name: worker.parts}.get(tp.topic)
            if of is not None and (new := log[of.next_offsets().get(tp, len(log)) :]):
                await of.process(new)
                return await read()
        return None

    for minute in minutes:
        broker.now_ms, worker.time_s = START + minute * 60_000, minute * 60
        for number, plate in enumerate("abcdef"):
            if number % 2 in partitions:
                broker.append(TOPICS.pings.name, number % 2, ping(plate, minute))
        await read()
        await worker.pings.tick(START + minute * 60_000 + worker.wrong_ms)
        await read()
    await worker.pings.commit()
    await worker.parts.commit()


WRONG = HOUR, -HOUR, 24 * HOUR, -24 * HOUR
BY = [
    (0, 0), *((0, by) for by in WRONG), *((by, 0) for by in WRONG), (HOUR, -HOUR), (-24 * HOUR, 24 * HOUR),
    (-HOUR, -HOUR),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broker_by", "worker_by"), long_rows(BY, product((0, *WRONG), (0, *WRONG)))
)
def test_a_tick_counts_as_the_earlier_of_two_clocks(broker_by, worker_by):
    """The broker's or the worker's may be wrong for a minute; here a partition is silent meanwhile.
    That both are wrong alike is of one machine, whose worker goes by monotonic time."""
    if min(broker_by, worker_by) > 0:
        return
    broker = Broker()

    async def work(worker):
        await go_on(worker, broker, range(60))
        await go_on(worker, broker, range(60, 63), partitions=())
        broker.wrong_ms, worker.wrong_ms = broker_by, worker_by
        await go_on(worker, broker, [63], partitions=())  # the first slot is due
        broker.wrong_ms = worker.wrong_ms = 0
        assert worker.pings.ahead_ms(START + 64 * 60_000) <= 0
        await go_on(worker, broker, range(64, 190))

    with_worker(broker, work)
    assert not outcome(broker)[1]
    assert {Release.decode(one).status for one in outcome(broker)[0].values()} == {"released"}


@pytest.mark.parametrize("mean", ["array-averaging", "forecast-clip"])
@pytest.mark.parametrize("partitions", [(0, 1), (0,)])
def test_a_log_that_is_ahead_is_set_back_and_what_is_charged_and_recorded_stays(partitions, mean):
    """As where one machine has both, and began with a wrong clock. `partitions`: those that went
    on, if only the other one was told the wrong time."""
    settings = load(None, (*FLAGS, f"release.mean={mean}", "release.cdf=off"), {})
    broker, ledger = Broker(), MemoryLedger()

    async def lived(thread, minutes, by=0, back=False, partitions=(0, 1)):
        back_to_ms = (lambda: START + minutes[0] * 60_000) if back else None
        worker = Worker(broker, ledger, thread, settings, back_to_ms=back_to_ms)
        broker.wrong_ms = worker.wrong_ms = by
        await worker.assign()
        await go_on(worker, broker, minutes, partitions)
        return worker.pings.ahead_ms(START + minutes[-1] * 60_000)

    async def work(thread):
        await lived(thread, range(30))
        await lived(
            thread, range(34, 36), 24 * HOUR, partitions=() if partitions == (0, 1) else partitions
        )
        before, refused = charges_of(ledger), len(outcome(broker)[1])
        assert bool(before) == (partitions == (0, 1))
        assert await lived(thread, range(36, 70)) > 22 * HOUR
        late = len(outcome(broker)[1])
        assert late - refused == 34 * 6 // (1 if partitions == (0, 1) else 2)
        assert await lived(thread, range(70, 200), back=True) <= 0
        assert len(outcome(broker)[1]) == late
        assert (
            await lived(thread, range(200, 310), back=True) <= 0
        )  # it is not ahead any more: nothing is done
        assert len(outcome(broker)[1]) == late
        after = charges_of(ledger)
        assert before.items() <= after.items() and len(after) >= 4
        assert ledger.verify() == [] and list(ledger.unpublished()) == []

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))


def charges_of(ledger):
    return {entry.release_id: (entry.payload, entry.charged.tolist()) for entry in ledger.entries()}


@pytest.mark.parametrize("by", [HOUR, -HOUR, 24 * HOUR, -24 * HOUR])
def test_a_broker_whose_clock_is_wrong_while_pings_come_costs_what_came_meanwhile_at_most(by):
    broker = Broker()

    async def work(worker):
        await go_on(worker, broker, range(30))
        broker.wrong_ms = by
        await go_on(worker, broker, [30])
        broker.wrong_ms = 0
        await go_on(worker, broker, range(31, 190))

    with_worker(broker, work)
    reasons = [
        dict(one.headers)["udp-stream.errors.reason"]
        for one in broker.logs[TP(TOPICS.rejected.name, 0)]
    ]
    assert reasons == [b"time_in_future"] * (6 if by < 0 else 0)
    assert {Release.decode(one).status for one in outcome(broker)[0].values()} == {"released"}
