"""Standing queries over several shards, killed between any two effects: answered as the embedded
road answers them."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import pytest
from faust.types import TP

from streams import wire as source_protocol
from streams.topics import topics_of
from streams.wire import cut_moment, decode_message
from tests.forms import PURE_ENV, long_but
from tests.protocol.broker import (
    Worker,
    charges,
    lives,
    outcome,
)
from tests.protocol.embedded import embedded
from tests.unit.test_processors_planner import CITY, KINDS, city
from udp_stream.base.errors import ConfigError, DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.ids import kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.record import QueryResult
from udp_stream.settings import load
from udp_stream.settings import queries as query_sections

QUERIES = """
[queries]
rho = 3
period = "1h"
age = "{age}"
center = [72.5, 21.1]
[[query]]
name = "west"
kind = "range"
every = "20m"
box = [72.0, 21.0, 72.4, 21.2]
budget = 1.5
[[query]]
name = "stop"
kind = "nearest"
every = "1h"
place = [72.33, 21.1]
k = 2
budget = 1.0
[[query]]
name = "full"
kind = "threshold"
every = "20m"
box = [72.0, 21.0, 72.4, 21.2]
share = 0.5
budget = 0.4
"""


@pytest.fixture(autouse=True)
def small_chunks(limits):
    """So that workers die between the chunks of a moment."""
    limits(source_protocol, cut_moment=partial(cut_moment, rows_max=3))


@pytest.fixture(autouse=True)
def few_rounds(limits):
    """So that a test has not too many calls to die at."""
    limits(query_sections, ROUNDS={"zcdp": 3, "pure": 3}, EDGE_M=2000.0)


@pytest.fixture
def settings(tmp_path):
    return asking(tmp_path)


RAMP = QUERIES.replace("rho = 3", 'rho = 3\nschedule = "ramp"')
for _amount in ("1.5", "1.0", "0.4"):
    RAMP = RAMP.replace(f"budget = {_amount}\n", "")


def asking(folder, age="10m", flags=CITY, text=QUERIES):
    path = folder / "queries.toml"
    path.write_text(text.format(age=age))
    return load(path, flags, PURE_ENV)


def answers(broker, settings):
    """Payload by id, of the topic of answers; the headers say which."""
    found = {}
    for record in broker.logs[TP(topics_of(settings.kafka).queries.name, 0)]:
        headers = dict(record.headers)
        result = QueryResult.decode(record.value)
        assert (
            headers["ce_id"] == result.release_id.encode()
            and headers["ce_subject"] == result.query.name.encode()
        )
        assert found.setdefault(result.release_id, record.value) == record.value
    return found


def expected_of(broker, settings):
    """Answers of the embedded road over the same logs, and its ledger."""
    expected = embedded(broker, settings)
    return {id_.decode(): payload for id_, payload in expected.answers.items()}, expected.ledger


def test_savings_are_handed_on_as_the_embedded_road_does_it_wherever_a_worker_dies(tmp_path):
    settings = asking(tmp_path, text=RAMP)
    broker, ledger = city(random.Random("ramp")), MemoryLedger()
    assert asyncio.run(lives(broker, random.Random(3), ledger, settings, True)) > 10
    expected, expected_ledger = expected_of(broker, settings)
    given = {
        QueryResult.decode(one).privacy.moment
        for one in expected.values()
        if b'"name":"west"' in one
    }
    assert (
        min(given) == 0.333333333 and max(given) > 0.5
    )  # of rho 3, a third of an hour, a third of the queries
    assert answers(broker, settings) == expected and charges(ledger) == charges(expected_ledger)
    for period in ledger.periods():
        if period.startswith("positions"):
            plates = {
                plate
                for entry in ledger.entries()
                if entry.period == period
                for plate in entry.plates
            }
            assert ledger.balances(period, sorted(plates)).charged.max() <= 3 * 10**9


@pytest.mark.parametrize("topic", ["release", "smoothed", "queries"])
def test_what_is_published_though_the_call_failed_is_published_once(topic, tmp_path):
    """A commit of the clock may come between the failure and the end of the worker."""
    settings = asking(tmp_path, flags=(*CITY, *KINDS["forecasts"]))
    broker, ledger = city(), MemoryLedger()
    log = broker.logs[TP(getattr(topics_of(settings.kafka), topic).name, 0)]

    async def fails_once_it_is_there():
        if log:
            raise DependencyUnavailable("no answer")

    async def work(thread):
        worker = Worker(broker, ledger, thread, settings, once=True)
        broker.effect = fails_once_it_is_there
        with pytest.raises(DependencyUnavailable):
            await worker.run(random.Random(4))
        del broker.effect
        await worker.commit()
        await Worker(broker, ledger, thread, settings, once=True).run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(work(thread))
    ids = [dict(one.headers)["ce_id"] for one in log]
    assert len(ids) > 1 and sorted(set(ids)) == sorted(ids)


def test_speeds_are_released_as_without_queries_and_charged_the_same(settings):
    plain, ours = load(None, CITY, PURE_ENV), settings
    found = []
    for given in (plain, ours):
        broker, ledger = city(), MemoryLedger()
        asyncio.run(lives(broker, random.Random(0), ledger, given))
        hats = [entry for entry in ledger.entries() if kind_of(entry.release_id) == "hat"]
        periods = {period for period in ledger.periods() if not period.startswith("positions ")}
        found.append(
            (outcome(broker)[0], [(e.release_id, e.charged.tolist()) for e in hats], periods)
        )
    assert found[0] == found[1] and found[0][0]


def test_periods_are_spread_over_the_shards(settings):
    """And each is on one of them, so that its moments are answered in order."""
    broker = city()
    asyncio.run(lives(broker, random.Random(0), None, settings))
    shards = {}
    for shard in range(3):
        for record in broker.logs[TP(topics_of(settings.kafka).parts.name, shard)]:
            message = decode_message(record.value)
            if type(message).__name__ == "PositionChunk":
                shards.setdefault(
                    settings.position_periods.start_of(message.slot_start), set()
                ).add(shard)
    assert all(len(of) == 1 for of in shards.values()) and len(set.union(*shards.values())) > 1


def test_a_worker_without_queries_holds_up_nothing_and_one_that_asks_again_goes_on(settings):
    """Positions that were sent before the queries were taken out stay unanswered; nothing is asked
    meanwhile."""
    broker, ledger, plain = city(), MemoryLedger(), load(None, CITY, PURE_ENV)
    parts = topics_of(settings.kafka).parts

    async def run(thread):
        first = Worker(broker, ledger, thread, settings)
        await first.assign()
        for partition in range(2):
            await first.pings.process(broker.logs[TP(first.topics.pings.name, partition)])
        await first.pings.commit()
        await Worker(broker, ledger, thread, plain).run(random.Random(0))
        assert answers(broker, settings) == {}
        assert all(
            broker.offsets[TP(parts.name, i)].offset == len(broker.logs[TP(parts.name, i)])
            for i in range(3)
        )
        broker.now_ms += 3_600_000
        at = b"2024-01-01T07:30:00Z"
        for number, plate in enumerate(b"abcd"):
            message = msgspec.json.decode(broker.logs[TP(first.topics.pings.name, 0)][0].value)
            message |= {"license_plate": chr(plate), "observationDateTime": at.decode()}
            broker.append(first.topics.pings.name, number % 2, msgspec.json.encode(message))
        broker.now_ms += 3_600_000
        await Worker(broker, ledger, thread, settings).run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
    assert {QueryResult.decode(one).query.moment for one in answers(broker, settings).values()} == {
        "2024-01-01T07:40:00+00:00"
    }


def test_positions_charged_in_another_period_that_overlaps_are_refused(settings):
    """The refusal of the road holds on Kafka: the worker stops, and nothing is charged."""
    broker, ledger = city(), MemoryLedger()
    day = Admission("round:west:1704060000:1", np.array([0]), np.array([1]), 0, b"")
    ledger.admit("positions 1d from 2024-01-01T00:00:00+00:00 in rho", 10**9, [b"a"], [day])
    with pytest.raises(PrivacyRefused, match="overlaps positions 1d from"):
        asyncio.run(lives(broker, random.Random(0), ledger, settings))
    assert [
        entry.release_id for entry in ledger.entries() if kind_of(entry.release_id) != "hat"
    ] == [day.release_id]
    assert answers(broker, settings) == {}


def other_than(settings, folder, kind):
    """What a worker is configured with that was forgotten when queries were given out, or changed."""
    folder.mkdir()
    return (
        load(None, CITY, PURE_ENV)
        if kind == "none"
        else asking(folder, "5m" if kind == "age" else "10m", OTHERS[kind])
    )


OTHERS = {"age": CITY, "zone": (*CITY, "hat.timezone=Asia/Kolkata")}


async def halves(broker, *workers):
    """The first half of the log, a source partition each."""
    for partition, worker in enumerate(workers):
        tp = TP(worker.topics.pings.name, partition)
        await worker.pings.assign({tp})
        await worker.pings.process(broker.logs[tp][: len(broker.logs[tp]) // 2])
        await worker.pings.commit()


@pytest.mark.parametrize("kind", ["age", "zone", "none"])
def test_a_worker_that_reads_positions_for_other_queries_stops_before_it_answers(
    kind, settings, tmp_path
):
    """Whichever of the two it is; one that asks nothing stops beside one that asks."""
    other = other_than(settings, tmp_path / "other", kind)
    broker, ledger = city(), MemoryLedger()

    async def run(thread):
        reader, writer = (
            Worker(broker, ledger, thread, other),
            Worker(broker, ledger, thread, settings),
        )
        await reader.assign()
        await halves(broker, writer, writer)
        for shard in range(3):
            await reader.parts.process(broker.logs[TP(reader.topics.parts.name, shard)])

    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(ConfigError, match=r"need the same \[queries\]"),
    ):
        asyncio.run(run(thread))
    assert answers(broker, settings) == {} and not [
        e for e in ledger.entries() if kind_of(e.release_id) != "hat"
    ]


@pytest.mark.parametrize("kind", long_but(["none"], ["age", "zone", "none"]))
def test_what_a_worker_with_other_queries_has_read_is_in_no_answer_of_the_next_ones(
    kind, settings, tmp_path
):
    """Its partition's plates would be missing, or be others. Moments that all have sent alike are
    answered whole."""
    other = other_than(settings, tmp_path / "other", kind)
    broker, ledger = city(), MemoryLedger()

    async def run(thread):
        await halves(
            broker, Worker(broker, ledger, thread, settings), Worker(broker, ledger, thread, other)
        )
        hasty = Worker(
            broker, ledger, thread, settings
        )  # commits before it has told the shards anything
        await hasty.assign()
        await hasty.pings.commit()
        await Worker(broker, ledger, thread, settings).run(random.Random(0))

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(run(thread))
    whole = city()
    asyncio.run(lives(whole, random.Random(0), None, settings))
    expected, found = expected_of(whole, settings)[0], answers(broker, settings)
    assert 5 < len(found) < len(expected)
    for id_, payload in found.items():
        assert (
            QueryResult.decode(payload).plates.asked
            == QueryResult.decode(expected[id_]).plates.asked
        ), id_
