"""The processors of a worker under "add-remove" on a day after another: its sums at the day's end
are those of the road by hand, wherever a worker dies."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from streams.processors import decode_checkpoint, encode_checkpoint
from tests.contract.add_remove import CELLS, FLAGS
from tests.forms import long_but
from tests.unit.test_processors import START, TOPICS, Broker, lives, outcome, ping
from tests.unit.test_processors_add_remove import smoothed
from udp_stream.ledger.ids import DAY_SUMS, NOISED_SUMS, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.promise import PROMISES, release_slot
from udp_stream.release.sums import NoisedSums
from udp_stream.settings import load
from udp_stream.shuffle import wire
from udp_stream.shuffle.protocol import (
    PLANNER,
    BarrierCheckpoint,
    KeepSlot,
    ShardCheckpoint,
    ShardProtocol,
)
from udp_stream.testing import SeededEntropy, seven_pings
from udp_stream.windows.grid import HEXAGONS
from udp_stream.windows.tables import SlotPings, tabulate

SETTINGS = load(
    None,
    (*FLAGS, "hat.timezone=UTC", "hat.slot=6h", "kafka.partitions=2", "kafka.shards=1"),
    {},
)
DOMAIN = SETTINGS.domain
MINUTE, SLOT = 60_000, 6 * 3_600_000
BEGIN = START // (4 * SLOT) * (4 * SLOT) + 3 * SLOT
"""The last slot of a day."""
SLOTS = 6


def sent():
    """(plate, minute since `BEGIN`, place, km/h): a slot of the first day, a day, and a slot."""
    dice = random.Random(4)
    for minute in range(0, 360 * SLOTS, 6):
        for number, plate in enumerate("abcd"):
            if dice.random() < 0.8:
                cell = int(DOMAIN[(number + dice.randrange(3)) % CELLS])
                lon, lat = HEXAGONS.center_of(cell)
                yield plate, minute, (lon, lat), dice.randint(5, 60)


def filled(dice=None):
    broker, pings = Broker(), list(sent())
    for minute in range(0, 360 * SLOTS + 10, 2):
        broker.now_ms = BEGIN + minute * MINUTE
        if minute % 360 in (0, 2):
            for of in range(2):
                broker.append(
                    TOPICS.pings.name, of, b"%d" % broker.now_ms, [("udp-stream-tick", b"1")]
                )
        for plate, _, (lon, lat), speed in (one for one in pings if one[1] == minute):
            at = datetime.fromtimestamp(BEGIN / 1000 + 60 * minute, UTC).isoformat().encode()
            value = ping(plate, 0).replace(b"2024-01-01T00:00:00Z", at)
            value = value.replace(b"72.8, 21.1", b"%f, %f" % (lon, lat))
            broker.append(
                TOPICS.pings.name, "abcd".index(plate) % 2, value.replace(b": 20", b": %d" % speed)
            )
    broker.dice = dice
    return broker


def by_hand():
    ledger, releases = MemoryLedger(), {}
    given = SETTINGS.policy, SETTINGS.calendar, SeededEntropy(1), "test"
    context = PROMISES["add-remove"].with_forecaster(ReleaseContext(*given, domain=DOMAIN))
    for number in range(SLOTS):
        rows = [one for one in sent() if one[1] // 360 == number]
        names = sorted({plate for plate, *_ in rows})
        columns = (
            np.array([names.index(plate) for plate, *_ in rows], "u4"),
            np.array([(minute - 360 * number) * MINUTE for _, minute, *_ in rows], "u4"),
            HEXAGONS.cells_of(
                np.array([lat for _, _, (_, lat), _ in rows]),
                np.array([lon for _, _, (lon, _), _ in rows]),
            ),
            np.array([speed * 4096 for *_, speed in rows], "i4"),
        )
        start = BEGIN + number * SLOT
        slot = SlotPings(start, start + SLOT, tuple(name.encode() for name in names), *columns)
        release_slot(*tabulate(slot), context, ledger, lambda one: releases.update(one.payloads))
        context.smoothed((start, start + SLOT), ledger)
    return releases, ledger


def sums(ledger):
    return {
        one.release_id: (
            one.payload,
            sorted(zip(one.plates, one.charged.tolist(), strict=True)),
        )
        for one in ledger.entries()
        if kind_of(one.release_id) in (NOISED_SUMS, DAY_SUMS)
    }


def require_same(broker, ledger):
    releases, expected = by_hand()
    found = sums(ledger)
    assert found == sums(expected) and len(found) == SLOTS + 1
    (day,) = (one for id_, one in found.items() if kind_of(id_) == DAY_SUMS)
    assert len(day[1]) == 4 and NoisedSums.decode(day[0]).day.noise.all()
    assert {id_.decode(): one for id_, one in outcome(broker)[0].items()} == releases
    assert len(set(smoothed(broker))) == len(releases) == SLOTS * CELLS


def test_a_worker_sums_a_day_as_the_road_does_by_hand():
    broker, ledger = filled(), MemoryLedger()
    assert asyncio.run(lives(broker, random.Random(0), ledger, SETTINGS)) == 0
    require_same(broker, ledger)


@pytest.mark.parametrize("seed", long_but([0, 1], range(6)))
def test_workers_that_die_during_a_day_sum_the_whole_day(seed):
    broker, ledger = filled(random.Random(f"die {seed}")), MemoryLedger()
    broker.dies = 0.03
    assert asyncio.run(lives(broker, random.Random(seed), ledger, SETTINGS)) > 3
    require_same(broker, ledger)


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


def later(pings, hours):
    ms = hours * 3_600_000
    return replace(pings, start_ms=pings.start_ms + ms, end_ms=pings.end_ms + ms)


def log_offset(log, start):
    return next(at for at, one in enumerate(log) if getattr(one, "slot_start", None) == start)
