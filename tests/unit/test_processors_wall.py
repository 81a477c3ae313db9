"""The source processor where whole plates are hidden: ticks whatever comes, and slots with or
without pings."""

import asyncio
from dataclasses import replace

import pytest
from faust.types import TP

from streams.processors import TICK, ProcessorContext, SourceProcessor
from streams.wire import PingChunk, decode_message
from tests.protocol.broker import (
    OURS,
    SETTINGS,
    START,
    TOPICS,
    Broker,
)
from tests.unit.test_processors import (
    ping,
)
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
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
