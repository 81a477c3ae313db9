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

from streams import wire as source_protocol
from streams.wire import (
    CountChunk,
    CountsEnd,
    PingChunk,
    PingsEnd,
    PlanChunk,
    cut_pings,
    decode_message,
    merge_pings,
)
from tests.forms import PURE_ENV
from tests.protocol.broker import (
    FLAGS,
    START,
    TOPICS,
    Broker,
    Worker,
    charges,
    lives,
    outcome,
)
from tests.protocol.embedded import embedded
from udp_stream.base.errors import PrivacyRefused
from udp_stream.forecast import anomalies, model, shape
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.record import Release
from udp_stream.settings import load

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


@pytest.mark.parametrize("dice", [None, random.Random("partial")])
def test_a_topic_that_begins_in_the_second_half_of_a_slot_has_that_slot_withheld_without_a_charge(
    dice,
):
    broker, ledger, settings = city(dice, first=36), MemoryLedger(), settings_of("auto")
    asyncio.run(lives(broker, random.Random(0), ledger, settings))
    expected = embedded(broker, settings)
    releases, _ = outcome(broker)
    assert releases == expected.releases and charges(ledger) == charges(expected.ledger)
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
    expected = embedded(broker, settings)
    releases, _ = outcome(broker)
    assert releases == expected.releases and charges(ledger) == charges(expected.ledger)
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
