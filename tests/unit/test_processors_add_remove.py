"""The processors of a worker under "add-remove": one shard takes the whole road, of slots with and
without pings."""

import asyncio
import random

import msgspec
from faust.types import TP

from streams.processors import TICK
from tests.contract.add_remove import FLAGS
from tests.protocol.broker import (
    START,
    TOPICS,
    Broker,
    charges,
    lives,
    outcome,
    smoothed,
)
from tests.unit.test_processors import (
    ping,
)
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.windows.grid import HEXAGONS

SETTINGS = load(None, (*FLAGS, "hat.timezone=UTC", "kafka.partitions=2", "kafka.shards=1"), {})
DOMAIN = SETTINGS.domain
MINUTE, HOUR = 60_000, 3_600_000
EMPTY = 2
HOURS = 5


def sent(plates="abcdef"):
    """(plate, minute, place, km/h): five hours of buses, in the third of them none. Bus f leaves
    the domain at times, and z is never in it."""
    dice = random.Random(3)
    for minute in range(0, 60 * HOURS, 2):
        for number, plate in enumerate("abcdefz"):
            cell, speed, leaves = (
                dice.randrange(3),
                dice.randint(5, 60),
                plate == "z" or dice.random() < 0.3,
            )
            if minute // 60 == EMPTY or plate not in plates:
                continue
            lon, lat = (
                HEXAGONS.center_of(int(DOMAIN[(cell + number) % 3]))
                if not (plate in "fz" and leaves)
                else (0.0, 50.0)
            )
            yield plate, minute, (lon, lat), speed


def filled(dice=None, plates="abcdef"):
    """A log of two partitions, with ticks on both; a tenth of it is broken."""
    broker, content = Broker(), random.Random(5)
    pings = list(sent(plates))
    for minute in range(60 * HOURS + 10):
        broker.now_ms = START + minute * MINUTE
        if minute % 60 in (0, 2):  # a slot closes two minutes behind its end
            for of in range(2):
                broker.append(TOPICS.pings.name, of, b"%d" % broker.now_ms, [(TICK, b"1")])
        for plate, _, (lon, lat), speed in (one for one in pings if one[1] == minute):
            value = ping(plate, minute).replace(b"72.8, 21.1", b"%f, %f" % (lon, lat))
            broker.append(
                TOPICS.pings.name,
                "abcdefz".index(plate) % 2,
                value.replace(b": 20", b": %d" % speed),
            )
            if content.random() < 0.1:
                broker.append(TOPICS.pings.name, content.randrange(2), b"?")
    broker.dice = dice
    return broker


def test_what_readers_get_is_as_much_and_in_the_same_places_with_and_without_plates():
    def told(plates):
        broker = filled(plates=plates)
        asyncio.run(lives(broker, random.Random(0), None, SETTINGS))
        records = [
            one
            for topic in (TOPICS.release, TOPICS.latest)
            for one in broker.logs[TP(topic.name, 0)]
        ]
        estimates = [msgspec.json.decode(one) for one in smoothed(broker)]
        named = [(one["release_id"], one["hat"], sorted(one)) for one in estimates]
        return [
            (one.topic, one.headers, len(msgspec.json.decode(one.value))) for one in records
        ], named

    assert told("abcdef") == told("bcdef") == told("")


def test_pings_outside_of_the_domain_leave_no_trace():
    with_them, without = (filled(plates=plates) for plates in ("abcdefz", "abcdef"))
    ledgers = [MemoryLedger(), MemoryLedger()]
    for broker, ledger in zip((with_them, without), ledgers, strict=True):
        asyncio.run(lives(broker, random.Random(0), ledger, SETTINGS))
    assert outcome(with_them)[0] == outcome(without)[0] and smoothed(with_them) == smoothed(without)
    assert charges(ledgers[0]) == charges(ledgers[1])
