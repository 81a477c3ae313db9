"""The processors of a worker under "add-remove" on a day after another: its sums at the day's end
are those of the road by hand, wherever a worker dies."""

import asyncio
import random
from dataclasses import replace

from faust.types import TP

from streams import wire
from streams.processors import TICK, decode_checkpoint, encode_checkpoint
from streams.protocol import (
    PLANNER,
    BarrierCheckpoint,
    KeepSlot,
    ShardCheckpoint,
    ShardProtocol,
)
from streams.wire import decode_message
from tests.contract.add_remove import FLAGS
from tests.protocol.broker import (
    START,
    TOPICS,
    Broker,
    lives,
)
from udp_stream.settings import load
from udp_stream.testing import seven_pings

SETTINGS = load(
    None,
    (*FLAGS, "hat.timezone=UTC", "hat.slot=6h", "kafka.partitions=2", "kafka.shards=1"),
    {},
)
MINUTE, SLOT = 60_000, 6 * 3_600_000
BEGIN = START // (4 * SLOT) * (4 * SLOT) + 3 * SLOT
"""The last slot of a day."""
SLOTS = 6


def test_a_checkpoint_stays_before_the_slots_of_the_day_until_these_are_not_needed():
    pings = seven_pings()
    log = [
        message
        for hour in range(3)
        for message in wire.cut_pings(
            later(pings, hour), source=0, shards=1
        )
    ]  # fmt: skip
    protocol = ShardProtocol(PLANNER, 1, 1, ShardCheckpoint.at(0), keeps=True)
    assert ShardProtocol(PLANNER, 1, 1, ShardCheckpoint.at(0)).checkpoint().day is None
    released = []
    for offset, message in enumerate(log):
        protocol.add(offset, message)
    resumed = ShardProtocol(
        PLANNER, 1, 1,
        ShardCheckpoint(
            BarrierCheckpoint(len(log), (pings.end_ms + 2 * 3_600_000,), pings.end_ms + 2 * 3_600_000),
            day=BarrierCheckpoint(0),
        ),
        keeps=True,
    )  # fmt: skip
    for offset, message in enumerate(log):
        resumed.add(offset, message)
    while isinstance(step := resumed.next(), KeepSlot):
        released.append(step.start)
        assert step.pings.plate.size == 7
        resumed.kept()
    assert released == [pings.start_ms + hour * 3_600_000 for hour in range(3)]
    assert resumed.checkpoint().offset == 0
    text = encode_checkpoint(resumed.checkpoint(), "", None)
    assert decode_checkpoint(text, 0).checkpoint == resumed.checkpoint()
    resumed.keep_from(released[1])
    assert resumed.checkpoint().offset == log_offset(log, released[1])
    resumed.keep_from(released[2] + 1)
    assert resumed.checkpoint().offset == len(log)


def test_slots_of_a_day_that_is_over_are_not_needed_any_more():
    """Else the whole log would be read again at every takeover, and could never be deleted."""
    broker = Broker()
    for slot in range(SLOTS + 1):
        broker.now_ms = BEGIN + slot * SLOT + 2 * MINUTE
        for of in range(2):
            broker.append(TOPICS.pings.name, of, b"%d" % broker.now_ms, [(TICK, b"1")])
    asyncio.run(lives(broker, random.Random(0), None, SETTINGS))
    parts = TP(TOPICS.parts.name, 0)
    log = [decode_message(one.value) for one in broker.logs[parts]]
    under_way = BEGIN + (SLOTS - 1) * SLOT
    checkpoint = decode_checkpoint(broker.offsets[parts].metadata, 0).checkpoint
    assert checkpoint.day.offset == log_offset(log, under_way)


def later(pings, hours):
    ms = hours * 3_600_000
    return replace(pings, start_ms=pings.start_ms + ms, end_ms=pings.end_ms + ms)


def log_offset(log, start):
    return next(at for at, one in enumerate(log) if getattr(one, "slot_start", None) == start)
