"""The processors of a worker under "add-remove": one shard takes the whole road, of slots with and
without pings."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from faust.types import TP

from streams.processors import TICK, settle
from tests.contract.add_remove import CELLS, FLAGS
from tests.forms import long_but
from tests.unit.test_processors import START, TOPICS, Broker, Worker, lives, outcome, ping
from udp_stream.ledger.ids import NOISED_SUMS, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.add_remove import record_add_remove_slot
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.promise import PROMISES
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.grid import HEXAGONS
from udp_stream.windows.tables import SlotPings, tabulate

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


def by_hand(plates="abcdef"):
    """The same by the road alone, slot by slot: releases, estimates, ledger."""
    ledger = MemoryLedger()
    given = SETTINGS.policy, SETTINGS.calendar, SeededEntropy(1), "test"
    context = PROMISES["add-remove"].with_forecaster(ReleaseContext(*given, domain=SETTINGS.domain))
    releases, estimates = {}, []
    for hour in range(HOURS):
        rows = [one for one in sent(plates) if one[1] // 60 == hour]
        names = sorted({plate for plate, *_ in rows})
        columns = (
            np.array([names.index(plate) for plate, *_ in rows], "u4"),
            np.array([(minute - 60 * hour) * MINUTE for _, minute, *_ in rows], "u4"),
            HEXAGONS.cells_of(
                np.array([lat for _, _, (_, lat), _ in rows]),
                np.array([lon for _, _, (lon, _), _ in rows]),
            ),
            np.array([speed * 4096 for *_, speed in rows], "i4"),
        )
        start = START + hour * HOUR
        slot = SlotPings(start, start + HOUR, tuple(name.encode() for name in names), *columns)
        recorded = record_add_remove_slot(*tabulate(slot), context, ledger)
        recorded.published(ledger)
        releases |= recorded.payloads
        estimates += [
            Smoothed.encode(one) for one in context.smoothed((start, start + HOUR), ledger)
        ]
    return releases, estimates, ledger


def smoothed(broker):
    return [one.value for one in broker.logs[TP(TOPICS.smoothed.name, 0)]]


def charges(ledger):
    return {
        one.release_id: (
            one.terms,
            one.payload,
            sorted(zip(one.plates, one.charged.tolist(), strict=True)),
        )
        for one in ledger.entries()
        if kind_of(one.release_id) == NOISED_SUMS
    }


def require_same(broker, ledger):
    releases, estimates, expected = by_hand()
    assert len(releases) == len(estimates) == HOURS * CELLS
    assert {id_.decode(): one for id_, one in outcome(broker)[0].items()} == releases and list(
        dict.fromkeys(smoothed(broker))
    ) == estimates
    assert charges(ledger) == charges(expected) and len(charges(ledger)) == HOURS


def test_a_worker_releases_what_the_road_does_by_hand():
    broker, ledger = filled(), MemoryLedger()
    assert asyncio.run(lives(broker, random.Random(0), ledger, SETTINGS)) == 0
    require_same(broker, ledger)
    assert len(smoothed(broker)) == HOURS * CELLS
    for tp, committed in broker.offsets.items():
        assert committed.offset == len(broker.logs[tp]), tp
    (first, *_) = map(Release.decode, outcome(broker)[0].values())
    assert (
        first.privacy.neighbours == "add-remove"
        and first.noised is not None
        and first.counts is None
    )
    assert any(nano for *_, charged in charges(ledger).values() for _, nano in charged)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", long_but((0, 1), range(6)))
def test_killed_between_any_two_effects_it_releases_and_charges_the_same(seed, once):
    broker, ledger = filled(random.Random(f"die {seed}")), MemoryLedger()
    broker.dies = 0.03
    assert asyncio.run(lives(broker, random.Random(seed), ledger, SETTINGS, once)) > 3
    require_same(broker, ledger)
    assert not once or len(smoothed(broker)) == HOURS * CELLS


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


def test_what_a_dead_worker_published_is_told_to_the_ledger():
    class Forgetful(MemoryLedger):
        def published(self, ids):
            if any(kind_of(one) == "hat" for one in ids):
                raise asyncio.CancelledError
            super().published(ids)

    broker, ledger = filled(), Forgetful()

    async def run(thread):
        with pytest.raises(asyncio.CancelledError):
            await Worker(broker, ledger, thread, SETTINGS, once=True).run(random.Random(0))
        ledger.__class__ = MemoryLedger
        waiting = [id_ for id_, _ in ledger.unpublished()]
        assert len(waiting) == CELLS
        settle(ledger, 0, 1, START)
        assert len(list(ledger.unpublished())) == CELLS
        await Worker(broker, ledger, thread, SETTINGS, once=True).assign()
        assert list(ledger.unpublished()) == []

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
