"""The source processor where whole plates are hidden: ticks whatever comes, and slots with or
without pings."""

import asyncio
import random
from dataclasses import replace

import pytest
from faust.types import TP

from streams.processors import TICK, ProcessorContext, SourceProcessor
from tests.unit.test_processors import OURS, SETTINGS, START, TOPICS, Broker, Died, ping
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.shuffle.wire import PingChunk, decode_message
from udp_stream.windows.slots import ReadingRules

MINUTE = 60_000
PINGS = [TP(TOPICS.pings.name, of) for of in range(2)]
WINDOWS = replace(SETTINGS.window_rules, in_processing_time=True)
RULES = ReadingRules(
    PingDecoder(SETTINGS.ping_rules, JSON), WINDOWS, SETTINGS.calendar.slots, str.encode
)


async def processor(broker):
    found = SourceProcessor(
        ProcessorContext(TOPICS, broker, broker, OURS), RULES, 60, clock=lambda: 0.0
    )
    await found.assign(set(PINGS))
    return found


def ticks(broker, of):
    return [int(one.value) for one in broker.logs[PINGS[of]] if dict(one.headers).get(TICK)]


def slots_sent(broker):
    """Rows by (source, slot), of what shards were told; each as often as it was sent."""
    found = {}
    for (topic, _), log in broker.logs.items():
        for one in (
            map(decode_message, (record.value for record in log))
            if topic == TOPICS.parts.name
            else ()
        ):
            if isinstance(one, PingChunk):
                hour = (one.slot_start - START) // (60 * MINUTE)
                rows = found.setdefault((one.sender, hour), set())
                rows.add((one.shard, len(one.plates), one.digest))
    return found


async def read_all(found, broker, at):
    for tp in PINGS:
        if new := broker.logs[tp][at[tp] :]:
            at[tp] = len(broker.logs[tp])
            await found.process(new)


@pytest.mark.parametrize("floods", [False, True])
def test_ticks_come_whatever_one_source_sends_and_slots_close_without_pings(floods):
    """The flooded partition is never read to its end, and its refusals are on their way: it has its
    ticks all the same, one for each slot; the other partition is empty."""
    broker = Broker()
    broker.is_read_to_end = False

    async def run():
        found, at = await processor(broker), dict.fromkeys(PINGS, 0)
        for minute in range(250):
            broker.now_ms = START + minute * MINUTE
            for _ in range(3 * floods):
                broker.append(PINGS[0].topic, 0, b"?")
                broker.append(PINGS[0].topic, 0, ping("a", min(minute, 239)))
            await found.tick(broker.now_ms)
            await found.tick(broker.now_ms)  # before it is read: one is enough
            await read_all(found, broker, at)
            assert found.ahead_ms(broker.now_ms) <= 0
        await found.commit()

    asyncio.run(run())
    told = [START + minute * MINUTE for minute in (0, 62, 122, 182, 242)]
    assert ticks(broker, 0) == ticks(broker, 1) == told
    sent = slots_sent(broker)
    assert sorted(sent) == [(source, hour) for source in range(2) for hour in range(4)]
    for (source, _), rows in sent.items():
        assert sum(size > 0 for _, size, _ in rows) == (source == 0 and floods)
        assert {shard for shard, _, _ in rows} == set(range(TOPICS.parts.partitions))


def test_a_broker_behind_our_clock_gets_another_tick_once_the_first_is_read():
    broker = Broker()

    async def run():
        found, at = await processor(broker), dict.fromkeys(PINGS, 0)
        for wall in (0, 62, 62.1):
            broker.now_ms = START + round((wall - 0.05) * MINUTE)
            await found.tick(START + round(wall * MINUTE))
            await read_all(found, broker, at)

    asyncio.run(run())
    assert len(ticks(broker, 0)) == 3 and {hour for _, hour in slots_sent(broker)} == {0}


@pytest.mark.parametrize("seed", range(6))
def test_killed_between_any_two_effects_shards_get_the_same(seed):
    def filled():
        broker = Broker()
        for minute in range(0, 260, 2):
            broker.now_ms = START + minute * MINUTE
            if minute in (0, 62, 122, 124, 250):
                for tp in PINGS:
                    broker.append(tp.topic, tp.partition, b"%d" % broker.now_ms, [(TICK, b"1")])
            behind = random.Random(minute).choice([0, 1, 70])
            broker.append(PINGS[0].topic, 0, ping("ab"[minute % 4 // 2], max(0, minute - behind)))
        return broker

    async def once(broker, dice):
        found = await processor(broker)
        at = {tp: max(0, broker.offsets[tp].offset) if tp in broker.offsets else 0 for tp in PINGS}
        while any(at[tp] < len(broker.logs[tp]) for tp in PINGS):
            for tp in PINGS:
                if new := broker.logs[tp][at[tp] :][: dice.randint(1, 20)]:
                    at[tp] += len(new)
                    await found.process(new)
            if dice.random() < 0.3:
                await found.commit()
        await found.commit()

    whole = filled()
    asyncio.run(once(whole, random.Random(0)))
    expected = slots_sent(whole)
    assert sorted(expected) == [(source, hour) for source in range(2) for hour in range(4)]
    broker, dice, deaths = filled(), random.Random(seed), 0
    broker.dice, broker.dies = random.Random(f"die {seed}"), 0.08
    while True:
        try:
            asyncio.run(once(broker, dice))
            break
        except Died:
            deaths += 1
            broker.dies = 0.08 if deaths < 40 else 0.0
    assert deaths and slots_sent(broker) == expected
