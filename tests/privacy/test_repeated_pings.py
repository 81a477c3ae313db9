"""Several pings of one plate and time: which of them counts lets no answer and no release tell more
than was charged.

By the whole road: through the embedded runtime, and through sources, chunks and shards. The loss is
exact: how far a statistic moves between two neighbouring logs, over the scale of its noise.
"""

import asyncio
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from faust.types import TP

from streams.wire import (
    PositionChunk,
    cut_moment,
    merge_moment,
)
from tests.failing import a_threshold
from tests.forms import soaked
from tests.protocol.broker import (
    TOPICS,
    Broker,
    lives,
)
from tests.unit.test_reading import RULES as READING
from tests.unit.test_reading import START, record, take
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.queries.plane import QUANTA_PER_KM
from udp_stream.settings import load
from udp_stream.settings import queries as query_sections
from udp_stream.testing import (
    SeededEntropy,
    a_query,
    a_query_context,
    answer_moment,
)
from udp_stream.windows.positions import MomentRules
from udp_stream.windows.slots import SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotGrid

MINUTE = 60_000

QUERY = """
[queries]
rho = 10
period = "1h"
age = "20m"
center = [-97.74, 30.27]

[[query]]
name = "square"
kind = "density"
every = "20m"
place = [-97.74, 30.27]
budget = 1
"""

FLAGS = (
    "hat.slot=1h",
    "hat.timezone=UTC",
    "release.mean_epsilon=0.1",
    "kafka.partitions=2",
    "kafka.shards=3",
)


def message(plate, minute, lon, lat):
    time = f"2024-01-01T00:{minute:02}:00Z"
    location = {"type": "Point", "coordinates": [lon, lat]}
    return msgspec.json.encode(
        {"license_plate": plate, "observationDateTime": time, "speed": 20, "location": location}
    )


def log_of(lat):
    """X pings twice at one time, 9.6 km apart; the second time at this latitude, which is 0.1 m off
    at most."""
    others = [(0, message("A", 3, -97.74, 30.27)), (1, message("B", 4, -97.75, 30.28))]
    twice = [(0, message("X", 5, -97.70, 30.27)), (1, message("X", 5, -97.80, lat))]
    return [
        *others,
        *twice,
        (0, message("A", 50, -97.74, 30.27)),
        (1, message("B", 50, -97.75, 30.28)),
    ]


def by_the_embedded_runtime(settings, log):
    ledger = MemoryLedger()
    runtime = EmbeddedRuntime(
        settings,
        ledger,
        SeededEntropy(1),
        str.encode,
        "udp-stream test",
        lambda _: None,
        answer=lambda _: None,
    )
    runtime.run([[one] for _, one in log])
    return ledger


def by_sources_and_shards(settings, log, of=lambda source: source):
    broker, ledger = Broker(), MemoryLedger()
    for at, (source, one) in enumerate(log):
        broker.now_ms = START + (3 + at) * MINUTE if at < 4 else START + 50 * MINUTE
        broker.append(TOPICS.pings.name, of(source), one)
    broker.now_ms = START + 300 * MINUTE
    asyncio.run(lives(broker, random.Random(0), ledger, settings))
    assert any(broker.logs[TP(TOPICS.parts.name, shard)] for shard in range(3))
    return ledger


def by_one_source(settings, log):
    return by_sources_and_shards(settings, log, lambda _: 0)


def first_values(ledger):
    entry = next(entry for entry in ledger.entries() if kind_of(entry.release_id) == "round")
    places, values, _ = msgspec.json.decode(entry.payload)
    assert len(places) == len(entry.plates) == 3
    return dict(zip(entry.plates, np.array(values), strict=True))


@pytest.fixture(autouse=True)
def one_round(limits):
    limits(query_sections, ROUNDS={"zcdp": 1, "pure": 1})


@pytest.mark.parametrize("road", [by_the_embedded_runtime, by_sources_and_shards, by_one_source])
def test_a_plate_that_pings_twice_at_one_time_moves_no_farther_than_its_pings(road, tmp_path):
    """The noise is the same in both runs, so values differ by what positions do. It was 9.6 km for
    0.19 m."""
    (path := tmp_path / "queries.toml").write_text(QUERY)
    settings = load(path, FLAGS, {})
    here, there = (first_values(road(settings, log_of(lat))) for lat in (30.269999, 30.270001))
    assert sorted(here) == [b"A", b"B", b"X"] == sorted(there)
    assert np.hypot(*(here[b"X"] - there[b"X"])) <= 0.3 * 16
    assert all((here[plate] == there[plate]).all() for plate in (b"A", b"B"))


QUERIES = [
    msgspec.structs.replace(a_query(), privatisation="point"),
    a_query(),
    msgspec.structs.replace(a_query(), measure="pure", privatisation="point", rounds=2),
    a_threshold(),
]

EVERY, AGE = 900, 600


class Ping:
    def __init__(self, dice, plate):
        self.plate, self.minute = plate, dice.choice([5, 14, 14, 14, 20, 29, 29, 29])
        # Far apart to the east, and about as far north: a small move changes which one is further
        # north.
        self.place = dice.uniform(-0.02, 0.02), dice.uniform(-1e-3, 1e-3)

    def moved(self, by):
        other = object.__new__(Ping)
        other.plate, other.minute = self.plate, self.minute
        other.place = self.place[0] + by[0], self.place[1] + by[1]
        return other

    def message(self):
        lon, lat = self.place
        return (
            b'{"license_plate": "%s", "observationDateTime": "2024-01-01T00:%02d:00Z", "speed": 20, "location": '
            b'{"coordinates": [%.7f, %.7f]}}' % (self.plate.encode(), self.minute, lon, lat)
        )


def neighbours(dice):
    """Pings, and the same of which one plate's are elsewhere; and who reads which of them, when,
    and how far."""
    pings = [Ping(dice, dice.choice("abc")) for _ in range(dice.randint(6, 16))]
    who, far = dice.choice("abc"), dice.choice([1e-6, 3e-4, 1e-3])
    others = [
        it.moved((dice.uniform(-far, far), dice.uniform(-far, far))) if it.plate == who else it
        for it in pings
    ]
    logs = [
        [dice.randrange(len(pings)) for _ in range(dice.randint(1, 24))]
        for _ in range(dice.choice([1, 2, 3]))
    ]
    return who, pings, others, logs


def moments_of(pings, logs, seed):
    """Each source read in pieces, killed and read again from its checkpoint; its moments cut into
    chunks and merged."""
    rules = replace(READING, moments=MomentRules((SlotGrid(EVERY, READING.grid.zone),), AGE * 1000))
    chunks, dice = {}, random.Random(seed)
    for source, numbers in enumerate(logs):
        log = [record(at, 32, pings[number].message()) for at, number in enumerate(numbers)]
        log.append(record(len(log), 50, b"", tick=True))
        reader, at, told = SourceReader(rules, SourceCheckpoint(0)), 0, {}
        while at < len(log):
            size = dice.randint(1, 9)
            for moment in take(reader, log[at : at + size]).moments:
                told[moment.time_ms] = [
                    one
                    for one in cut_moment(moment, source, 0, rows_max=2)
                    if isinstance(one, PositionChunk)
                ]
            at += size
            if dice.random() < 0.3:
                checkpoint = reader.checkpoint()
                reader, at = SourceReader(rules, checkpoint), checkpoint.offset
        for time_ms, parts in told.items():
            chunks.setdefault(time_ms, []).extend(parts)
    found = []
    for _, parts in sorted(chunks.items()):
        delivered = [*parts, *dice.choices(parts, k=2)]
        dice.shuffle(delivered)
        found.append(merge_moment(delivered))
    return found


def loss_and_charge(query, moment, other):
    """What all rounds tell of two moments, and each plate's charge in nano. The transcript is the
    first moment's."""
    assert moment.plates == other.plates and moment.time_ms == other.time_ms
    ledger, asked = MemoryLedger(), query.asked(len(moment.plates))
    context = a_query_context(1)
    if query.measure == "pure":
        context = replace(context, periods=replace(context.periods, measure="pure"))
    answer_moment([query], moment, context, ledger, lambda _: None)
    here, there = (asked.plane.quanta(one.lat, one.lon) for one in (moment, other))
    together, loss, charged = query.kind == "threshold", 0.0, dict.fromkeys(moment.plates, 0)
    rounds = [entry for entry in ledger.entries() if kind_of(entry.release_id) == "round"]
    for number, entry in enumerate(rounds):
        places, values, _ = msgspec.json.decode(entry.payload)
        places = np.array(places, np.int64)
        rows = slice(None) if together else places
        first, second = (asked.pie.privatised.values(one[rows]) for one in (here, there))
        assert len(values) == len(first)
        moved = (
            np.hypot.reduce((first - second).astype(float), axis=1)
            / asked.pie._tariff.parts(number, places).scale
        )
        loss = loss + np.sum(moved if query.measure == "pure" else moved**2 / 2)
        for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
            charged[plate] += nano
    assert max(charged.values()) > 0
    return loss, charged


@pytest.mark.parametrize("pairs", [15, *soaked([250])])
@pytest.mark.parametrize("query", QUERIES, ids=["point", "distance", "pure", "threshold"])
def test_the_exact_loss_of_random_neighbours_is_at_most_what_was_charged(query, pairs):
    """A thousand, over the four queries, where it soaks: several places at one time, sent again, by several
    sources, after a crash."""
    compared = moved = 0
    for seed in range(pairs):
        who, pings, others, logs = neighbours(random.Random(f"{query.kind} {seed}"))
        plane = query.asked(1).plane
        for moment, other in zip(
            moments_of(pings, logs, seed), moments_of(others, logs, seed), strict=True
        ):
            lon, lat = (
                np.array([[one.place for one in log] for log in (pings, others)])
                .transpose(2, 0, 1)
                .round(7)
            )
            here, there = (plane.quanta(lat[i], lon[i]) for i in (0, 1))
            apart_km = np.hypot(*(here - there).T).max() / QUANTA_PER_KM
            loss, charged = loss_and_charge(query, moment, other)
            allowed = (
                charged.get(who.encode(), 0)
                / 1e9
                * (apart_km if query.measure == "pure" else apart_km**2)
            )
            assert loss <= allowed * (1 + 1e-9), (seed, moment.time_ms)
            compared, moved = compared + 1, moved + (loss > 0.2 * allowed > 0)
    assert compared > pairs and moved > pairs / 25
