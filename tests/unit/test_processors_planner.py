"""One planner over several shards, killed between any two effects: what comes out is what the
embedded road says."""

import asyncio
import random
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from faust.types import TP

from streams.kafka import CommittedOffset
from streams.processors import columns_of, decode_checkpoint
from tests.city_question import MeanSpeed
from tests.forms import PURE_ENV, long_but
from tests.unit.test_processors import (
    FLAGS,
    START,
    TOPICS,
    Broker,
    Died,
    Worker,
    lives,
    outcome,
    rules_of,
)
from udp_stream.errors import PrivacyRefused
from udp_stream.forecast import anomalies, model, shape
from udp_stream.ledger.ids import CITY as OF_CITY
from udp_stream.ledger.ids import kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load
from udp_stream.shuffle import wire as source_protocol
from udp_stream.shuffle.wire import (
    CountChunk,
    CountsEnd,
    PingChunk,
    PingsEnd,
    PlanChunk,
    cut_pings,
    decode_message,
    merge_pings,
)
from udp_stream.testing import SeededEntropy
from udp_stream.windows.slots import SourceCheckpoint, SourceReader
from udp_stream.windows.tables import tabulate

MINUTE = 60_000
CITY = (*FLAGS, "kafka.shards=3", "hat.resolution=7")
KINDS = {
    "auto": ("release.mean=array-averaging", "release.mean_epsilon=auto", "budget.epsilon=0.5"),
    "runs out": ("release.mean=array-averaging", "release.mean_epsilon=1.0", "budget.epsilon=3.4"),
    "chop-user": ("release.mean_epsilon=auto", "release.suppression=chop-user", "budget.epsilon=1"),
    "forecasts": (
        "release.mean=forecast-clip",
        "release.cdf=off",
        "release.mean_epsilon=1",
        "budget.epsilon=40",
    ),
    "prices": (
        "release.mean=forecast-clip",
        "release.cdf=off",
        "release.mean_epsilon=auto",
        "budget.epsilon=60",
    ),
    "city": (
        "release.mean=forecast-clip",
        "release.cdf=off",
        "release.mean_epsilon=3",
        "budget.epsilon=100",
    ),
    "shapes": ("release.mean=forecast-clip", "release.mean_epsilon=3", "budget.epsilon=100"),
}


def ping(plate, minute, place):
    hour, minute = divmod(minute, 60)
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T%02d:%02d:00Z", "speed": %d, "location": '
        b'{"type": "Point", "coordinates": [%.2f, 21.1]}}'
        % (plate.encode(), hour, minute, 10 + place, 72 + place / 6)
    )


def city(dice=None, first=0):
    """Four hours of ten plates in seven cells, two source partitions: in ever another order, some
    pings late, some sent twice. Some plates stay, some roam, one is in two places at once."""
    broker, content = Broker(), random.Random(6)
    for minute in range(first, 245, 4):
        broker.now_ms = START + minute * MINUTE
        for number, plate in content.sample(list(enumerate("abcdefghij")), 10):
            place = content.randrange(7) if number < 5 else number % 3
            message = ping(plate, max(0, minute - content.choice([0, 0, 5])), place)
            for _ in range(content.choice([1, 1, 1, 1, 2])):
                broker.append(TOPICS.pings.name, number % 2, message)
            if plate == "a":
                broker.append(TOPICS.pings.name, 0, ping(plate, minute, (place + 1) % 7))
    broker.now_ms = START + 400 * MINUTE
    broker.dice, broker.dies = dice, 0.03  # there are many messages
    return broker


@pytest.fixture(autouse=True)
def small_chunks(limits):
    """So that workers die between the chunks of a slot. Ten plates are enough to ask the city for
    its CDF."""
    limits(shape, PLATES_MIN=1.0, NOISE_MAX=99.0)
    limits(source_protocol, cut_pings=partial(cut_pings, rows_max=5))


def settings_of(kind):
    return load(None, (*CITY, *KINDS[kind]), PURE_ENV)


def question_of(kind):
    return MeanSpeed() if kind == "city" else None


def embedded(broker, settings, question=None):
    """Payload by release id, and the ledger, of the embedded road over the logs of pings, each read
    in one go."""
    found, ledger, _ = embedded_smoothed(broker, settings, question)
    return found, ledger


def embedded_smoothed(broker, settings, question=None):
    """The same, and its smoothed estimates, all in order."""
    given = settings.policy, settings.calendar, SeededEntropy(1), "test"
    context = ReleaseContext(*given, city=question, judges_unit=settings.judges_unit)
    if settings.policy.forecasts:
        context = with_forecaster(context)
    slots = defaultdict(list)
    for source in range(2):
        reader = SourceReader(rules_of(settings, context), SourceCheckpoint(0))
        for slot in reader.read(*columns_of(broker.logs[TP(TOPICS.pings.name, source)])).closed:
            slots[slot.start_ms] += [
                one for one in cut_pings(slot, source, 1) if isinstance(one, PingChunk)
            ]
    ledger, found, smoothed = MemoryLedger(), {}, []
    for _, parts in sorted(slots.items()):
        counts, values = tabulate(merge_pings(parts))
        payloads = release_slot(counts, values, context, ledger, lambda _: None).payloads
        found |= {id_.encode(): payload for id_, payload in payloads.items()}
        smoothed += map(Smoothed.encode, context.smoothed((counts.start_ms, counts.end_ms), ledger))
    return found, ledger, smoothed


def charges(ledger):
    assert ledger.verify() == []
    return {
        e.release_id: sorted(zip(e.plates, e.charged.tolist(), strict=True))
        for e in ledger.entries()
    }


def answers(ledger):
    """Those of each slot: what is recorded, and that no reader is waited for."""
    found = [entry for entry in ledger.entries() if kind_of(entry.release_id) == OF_CITY]
    assert all(entry.published for entry in found)
    return {entry.release_id: entry.payload for entry in found}


@pytest.mark.parametrize("kind", KINDS)
def test_shards_release_and_charge_what_the_embedded_road_does(kind):
    broker, ledger, settings = city(), MemoryLedger(), settings_of(kind)
    assert (
        asyncio.run(lives(broker, random.Random(0), ledger, settings, city=question_of(kind))) == 0
    )
    expected, expected_ledger = embedded(broker, settings, question_of(kind))
    releases, _ = outcome(broker)
    assert releases == expected and len(releases) > 20
    assert charges(ledger) == charges(expected_ledger)
    assert answers(ledger) == answers(expected_ledger) and (len(answers(ledger)) > 1) == (
        kind in ("city", "shapes")
    )
    assert sum(bool(log) for log in parts_logs(broker).values()) == 3
    records = [Release.decode(payload) for payload in releases.values()]
    statuses = Counter(record.status for record in records)
    left_out = sum(
        r.counts.plates - r.counts.admitted_plates for r in records if r.status == "released"
    )
    assert statuses["released"] > 4 and "withheld_unplanned" not in statuses
    assert kind in ("auto", "forecasts", "city", "shapes") or left_out > 0
    assert kind != "runs out" or statuses["withheld_budget"] > 0
    prices = {record.mean.epsilon for record in records if record.mean is not None}
    assert kind != "prices" or (
        max(prices) > 4.9 and max(prices) / 4 == pytest.approx(sorted(prices)[-2])
    )  # and a quarter


@pytest.mark.parametrize("dice", [None, random.Random("partial")])
def test_a_topic_that_begins_in_the_second_half_of_a_slot_has_that_slot_withheld_without_a_charge(
    dice,
):
    broker, ledger, settings = city(dice, first=36), MemoryLedger(), settings_of("auto")
    asyncio.run(lives(broker, random.Random(0), ledger, settings))
    expected, expected_ledger = embedded(broker, settings)
    releases, _ = outcome(broker)
    assert releases == expected and charges(ledger) == charges(expected_ledger)
    found = defaultdict(Counter)
    for one in map(Release.decode, releases.values()):
        found[one.hat.slot_start][one.status] += 1
        assert one.status != "withheld_partial" or one.privacy.epsilon == 0
    first, *others = [found[start] for start in sorted(found)]
    assert first.keys() == {"withheld_partial"} and all(
        one["released"] and not one["withheld_partial"] for one in others
    )


@pytest.mark.parametrize("dice", [None, random.Random("unit")])
def test_slots_after_releases_that_tell_of_another_unit_are_withheld_as_on_one_machine(
    dice, limits
):
    """A city of few buses tells after two slots if its ordinary speeds are taken for those of
    another unit."""
    limits(model, ORDINARY=(9.0,), SLOWER=(1.0,), KNOWN_VARIANCE=99.0)
    limits(anomalies, ORDINARY=(9.0,), ENOUGH=2.0, OF_A_SLOT=1.0)
    broker, ledger, settings = city(dice), MemoryLedger(), settings_of("shapes")
    asyncio.run(lives(broker, random.Random(0), ledger, settings))
    expected, expected_ledger = embedded(broker, settings)
    releases, _ = outcome(broker)
    assert releases == expected and charges(ledger) == charges(expected_ledger)
    assert answers(ledger) == answers(expected_ledger)
    found = defaultdict(set)
    for one in map(Release.decode, releases.values()):
        found[one.hat.slot_start].add(one.status)
        assert one.status != "withheld_unit" or one.privacy.epsilon == 0
    is_doubted = [found[start] == {"withheld_unit"} for start in sorted(found)]
    told = is_doubted.index(True)
    assert told >= 2 and all(is_doubted[told:])
    assert not any("withheld_unit" in found[start] for start in sorted(found)[:told])
    with ThreadPoolExecutor(1) as thread:  # the worker that plans knows what is out
        worker = Worker(city(None), MemoryLedger(), thread, settings)
        asyncio.run(worker.run(random.Random(0)))
        doubt = worker.parts.doubt()
    out = [
        one.hat.slot_start
        for one in map(Release.decode, releases.values())
        if one.status == "released"
    ]
    assert doubt.since in sorted(found)[:told] and doubt.until == sorted(found)[told]
    assert doubt.released == sum(start >= doubt.since for start in out) > 0


@pytest.mark.parametrize("seed", long_but((0,), range(4)))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_between_any_two_effects_plans_and_releases_are_the_same(kind, seed):
    settings, ledger = settings_of(kind), MemoryLedger()
    broker = city(random.Random(f"die {seed}"))
    assert (
        asyncio.run(lives(broker, random.Random(seed), ledger, settings, city=question_of(kind)))
        > 5
    )
    expected, expected_ledger = embedded(broker, settings, question_of(kind))
    assert outcome(broker)[0] == expected
    assert charges(ledger) == charges(expected_ledger) and answers(ledger) == answers(
        expected_ledger
    )
    for tp, committed in broker.offsets.items():
        assert committed.offset == len(broker.logs[tp]), tp


def parts_logs(broker):
    return {tp: log for tp, log in broker.logs.items() if tp.topic == TOPICS.parts.name}


def test_counts_go_to_partition_0_and_plans_come_back_to_each_shard():
    broker = city()
    asyncio.run(lives(broker, random.Random(0), settings=settings_of("auto")))
    for tp, log in parts_logs(broker).items():
        messages = [decode_message(one.value) for one in log]
        assert {type(one) for one in messages} <= {PingChunk, PingsEnd, PlanChunk} | (
            {CountChunk, CountsEnd} if not tp.partition else set()
        )
        assert {one.shard for one in messages if isinstance(one, PingChunk | PlanChunk)} == {
            tp.partition
        }
    counted = [decode_message(one.value) for one in broker.logs[TP(TOPICS.parts.name, 0)]]
    assert {one.shard for one in counted if isinstance(one, CountsEnd)} == {0, 1, 2}


@pytest.mark.parametrize("seed", long_but(range(2), range(6)))
def test_workers_that_each_have_some_of_the_shards_race_and_change_places(seed):
    """Two workers on one ledger, both alive: now one, now the other has a partition, each at times
    behind, and what one has not committed the other does again."""
    settings, ledger, broker = settings_of("runs out"), MemoryLedger(), city()
    dice = random.Random(seed)
    asyncio.run(changing_places(broker, ledger, settings, dice))
    expected, expected_ledger = embedded(broker, settings)
    assert outcome(broker)[0] == expected
    assert charges(ledger) == charges(expected_ledger)
    assert list(ledger.unpublished()) == []


async def changing_places(broker, ledger, settings, dice):
    with ThreadPoolExecutor(1) as thread:
        await sources_alone(Worker(broker, ledger, thread, settings))
        workers = [Worker(broker, ledger, thread, settings) for _ in range(2)]
        for turn in range(12):
            mine = [{TP(TOPICS.parts.name, shard) for shard in range(3)} for _ in workers]
            if turn < 11:
                # a worker that has lost a partition may not know it yet: both may have it, and both
                # go on
                mine = [{tp for tp in tps if dice.random() < 0.6} for tps in mine]
            for worker, tps in zip(workers, mine, strict=True):
                await worker.parts.assign(tps)
            at = [
                {tp: max(0, broker.offsets.get(tp, CommittedOffset(0, "")).offset) for tp in tps}
                for tps in mine
            ]
            for _ in range(10 if turn < 11 else 400):
                which = dice.randrange(2)
                todo = [tp for tp, offset in at[which].items() if offset < len(broker.logs[tp])]
                if todo:
                    tp = dice.choice(sorted(todo))
                    batch = broker.logs[tp][at[which][tp] :][: dice.randint(1, 12)]
                    at[which][tp] = batch[-1].offset + 1
                    await workers[which].parts.process(batch)


async def sources_alone(worker):
    """All pings are read, and all parts are written."""
    await worker.assign()
    for partition in range(2):
        await worker.pings.process(worker.broker.logs[TP(TOPICS.pings.name, partition)])
    worker.time_s += 100
    await worker.pings.tick(worker.broker.now_ms)
    for partition in range(2):
        ticks = [one for one in worker.broker.logs[TP(TOPICS.pings.name, partition)] if one.headers]
        await worker.pings.process(ticks)


def test_a_slot_is_held_until_its_plan_has_come_and_found_again_behind_the_checkpoint():
    settings, broker, ledger = settings_of("auto"), city(), MemoryLedger()

    async def work(thread):
        await sources_alone(Worker(broker, ledger, thread, settings))
        shard = TP(TOPICS.parts.name, 1)
        one = Worker(broker, ledger, thread, settings)
        await one.parts.assign({shard})
        await one.parts.process(broker.logs[shard])
        await one.parts.commit()
        first = next(
            m.offset for m in broker.logs[shard] if isinstance(decode_message(m.value), PingChunk)
        )
        assert broker.offsets[shard].offset == first  # due, counted, not planned: held
        planner = Worker(broker, ledger, thread, settings)
        rest = {TP(TOPICS.parts.name, 0), TP(TOPICS.parts.name, 2)}
        await planner.parts.assign(rest)
        for tp in sorted(rest, reverse=True):
            await planner.parts.process(list(broker.logs[tp]))
        to_planner = broker.logs[TP(TOPICS.parts.name, 0)]
        await planner.parts.process(to_planner[-1:])  # its own counts
        assert not any(
            Release.decode(m.value).hat.cell in cells_of(broker, 1)
            for m in broker.logs[TP(TOPICS.release.name, 0)]
        )
        again = Worker(broker, ledger, thread, settings)
        await again.parts.assign({shard})
        told = len(broker.logs[TP(TOPICS.parts.name, 0)])
        await again.parts.process(broker.logs[shard][first:])
        assert cells_of(broker, 1) <= {
            Release.decode(m.value).hat.cell for m in broker.logs[TP(TOPICS.release.name, 0)]
        }
        assert broker.offsets[shard].offset == len(broker.logs[shard])
        new = [decode_message(m.value) for m in broker.logs[TP(TOPICS.parts.name, 0)][told:]]
        assert not any(
            isinstance(message, CountChunk) for message in new
        )  # the plans are there: nothing is counted anew

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))


def cells_of(broker, shard):
    parts = [decode_message(m.value) for m in broker.logs[TP(TOPICS.parts.name, shard)]]
    return {
        f"{cell:x}"
        for part in parts
        if isinstance(part, PingChunk)
        for cell in merge_pings([part]).cell.tolist()
    }


@pytest.mark.parametrize("once", [False, True])
def test_a_commit_while_releases_are_on_their_way_does_not_let_go_of_their_slot(once):
    """The clock of the worker commits at any moment, here just before a slot's releases arrive:
    then it dies."""
    settings, broker, ledger = settings_of("auto"), city(), MemoryLedger()
    parts = {TP(TOPICS.parts.name, shard) for shard in range(3)}

    async def work(thread):
        worker, committing = Worker(broker, ledger, thread, settings, once), []
        await sources_alone(worker)

        class Interrupted:
            async def publish(self, _messages, _checkpoint):
                committing.append(asyncio.ensure_future(worker.parts.commit()))
                await asyncio.sleep(0)
                raise Died

        for place in worker.parts._assignments.values():
            place.publisher = Interrupted()
        with pytest.raises(Died):
            for _ in range(4):
                for tp in sorted(parts):
                    at = worker.parts._assignments[tp.partition].protocol.checkpoint().offset
                    await worker.parts.process(list(broker.logs[tp])[at:])
        await asyncio.gather(*committing)
        held = [broker.offsets.get(tp, CommittedOffset(0, "")).offset for tp in sorted(parts)]
        firsts = [
            next(
                m.offset for m in broker.logs[tp] if isinstance(decode_message(m.value), PingChunk)
            )
            for tp in sorted(parts)
        ]
        assert held == firsts

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))
    asyncio.run(lives(broker, random.Random(1), ledger, settings, once))
    assert outcome(broker)[0] == embedded(broker, settings)[0]


class Slow(Broker):
    """Its commits arrive late, and no checkpoint of a shard may go back."""

    async def commit(self, offsets):
        await asyncio.sleep(self.dice.choice([0, 0.001, 0.003]))
        return await super().commit(offsets)


class Frontiers(dict):
    def __ior__(self, offsets):
        for tp, to in offsets.items():
            if tp in self and tp.topic == TOPICS.parts.name:
                before, after = (
                    decode_checkpoint(noted.metadata, 0).checkpoint.shard.done_ms
                    for noted in (self[tp], to)
                )
                assert before <= after, (tp, before, after)
        self.update(offsets)
        return self


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", long_but(range(2), range(4)))
def test_a_commit_that_arrives_late_takes_no_checkpoint_back(seed, once):
    """The clock of the worker commits again and again while slots are published."""
    settings, broker, ledger, dice = (
        settings_of("auto"),
        city(),
        MemoryLedger(),
        random.Random(seed),
    )
    broker.__class__, broker.dice, broker.dies, broker.offsets = Slow, dice, 0, Frontiers()

    async def commits(worker):
        while True:
            await worker.parts.commit()
            await asyncio.sleep(0)

    async def work(thread):
        worker = Worker(broker, ledger, thread, settings, once)
        await sources_alone(worker)
        committing, at = asyncio.ensure_future(commits(worker)), Counter()
        while todo := [tp for tp, log in parts_logs(broker).items() if at[tp] < len(log)]:
            tp = dice.choice(todo)
            batch = broker.logs[tp][at[tp] :][: dice.randint(1, 4)]
            at[tp] += len(batch)
            await worker.parts.process(batch)
        assert not committing.done()
        committing.cancel()

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))
    assert outcome(broker)[0] == embedded(broker, settings)[0]


def test_a_planner_under_another_zone_is_refused_before_it_charges_and_hands_out_no_plan():
    """The other period was charged by a run on the same ledger."""
    settings, broker, ledger = settings_of("auto"), city(), MemoryLedger()
    other = "1d from 2024-01-01T00:00:00+05:30"
    ledger.admit(other, 10**9, [b"a"], [Admission("x", np.array([0]), np.array([1]), 1, b"{}")])
    with pytest.raises(PrivacyRefused, match="1d from 2024"):
        asyncio.run(lives(broker, random.Random(0), ledger, settings))
    messages = [decode_message(one.value) for log in parts_logs(broker).values() for one in log]
    assert not any(isinstance(one, PlanChunk) for one in messages) and not outcome(broker)[0]
    assert ledger.periods() == [other]
