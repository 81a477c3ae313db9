"""Slots that one run begins and another ends, under other settings or with other speeds: what one
plate loses. Neighbours differ in one plate's speeds, in any run."""

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest

from streams import wire
from streams.wire import ScaleFactors
from tests.forms import soaked_rows
from tests.privacy.replayed import Named, audited, played
from tests.protocol.broker import START, TOPICS, Broker, Worker
from tests.runtime.harness import frames_of
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.release import pipeline as balls
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.promise import release_slot
from udp_stream.settings import load
from udp_stream.windows.grid import Hexagons
from udp_stream.windows.tables import SlotPings, tabulate

IN_RHO = ("hat.slot=1h", "hat.timezone=UTC", "hat.resolution=7", "budget.accounting=approximate", "kafka.partitions=2",
          "release.mean=forecast-clip", "release.cdf=tree", "release.cdf_epsilon=0.1",
          "release.min_plates=2")  # fmt: skip
LOWER_U = (*IN_RHO, "speed.max_kmh=60")


@dataclass(frozen=True)
class Run:
    """One run over these pings (a row for each: plate, second, latitude, longitude), up to its
    death."""

    rows: np.ndarray
    speeds: np.ndarray
    flags: tuple = IN_RHO
    dies_at: int | None = None


def name_of(plate):
    return f"bus {plate:02}"


def key_of(name):
    return name.encode().ljust(16)


def city(plates=40, pings=60, wide=0.1, seed=3):
    """An hour of plates all over a city, none of them faster than 60 km/h."""
    rng = np.random.default_rng(seed)
    rows = np.stack((
        np.repeat(np.arange(plates), pings), np.tile(np.arange(pings) * (3600 // pings), plates),
        21.1 + rng.random(plates * pings) * wide, 72.8 + rng.random(plates * pings) * wide,
    ), axis=1)  # fmt: skip
    return rows, rng.integers(0, 60, plates * pings)


def messages(run):
    for (plate, second, lat, lon), speed in zip(
        run.rows.tolist(), run.speeds.tolist(), strict=True
    ):
        minute, second = divmod(round(second), 60)
        yield json.dumps({
            "license_plate": name_of(round(plate)), "observationDateTime": f"2024-01-01T00:{minute:02}:{second:02}Z",
            "location": {"type": "Point", "coordinates": [lon, lat]}, "speed": speed,
        }).encode()  # fmt: skip


@cache
def settings_of(flags):
    return load(None, flags, {})


def embedded(run, this):
    runtime = EmbeddedRuntime(
        settings_of(run.flags), this.ledger, Named(1), key_of, "test", lambda _: None
    )
    runtime.run(frames_of(list(messages(run))))


def slot_pipeline(run, this):
    settings, plate = settings_of(run.flags), run.rows[:, 0].astype(np.uint32)
    context = with_forecaster(ReleaseContext(settings.policy, settings.calendar, Named(1), "test"))
    speed = np.minimum(run.speeds * QUANTA_PER_KMH, settings.policy.max_speed).astype(np.int32)
    names = tuple(key_of(name_of(number)) for number in range(plate.max() + 1))
    columns = (
        plate,
        run.rows[:, 1].astype(np.uint32) * 1000,
        Hexagons(7).cells_of(run.rows[:, 2], run.rows[:, 3]),
        speed,
    )
    release_slot(
        *tabulate(SlotPings(START, START + 3_600_000, names, *columns)),
        context,
        this.ledger,
        lambda _: None,
    )


def kafka(dies=0.0):
    """Workers one after another over two source partitions and two shards. `dies`: how often the
    broker kills each."""
    broker = Broker()

    def work(run, this):
        if not broker.logs:
            broker.now_ms = START + 3_600_000  # no ping is from the future
            for number, message in enumerate(messages(run)):
                broker.append(TOPICS.pings.name, number % 2, message)
            broker.now_ms = START + 300 * 60_000
        # The same deaths for neighbours: messages are as many, whatever the speeds are.
        broker.dice = (
            random.Random(f"{len(run.rows)} {this.ledger.run}")
            if dies and run.dies_at is not None
            else None
        )
        broker.dies = dies

        async def live(thread):
            settings = settings_of((*run.flags, "kafka.shards=2"))
            worker = Worker(broker, this.ledger, thread, settings, entropy=Named(1))
            await worker.run(random.Random(0))

        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
            if dies:
                for cut in "cut_pings", "cut_norms", "cut_factors":
                    patch.setattr(wire, cut, partial(getattr(wire, cut), rows_max=2))
            asyncio.run(live(thread))

    return work


def plate_hash(road):
    return (
        (lambda plate: name_of(plate).encode())
        if "kafka" in road
        else (lambda plate: key_of(name_of(plate)))
    )


ROADS = {
    "embedded": lambda: embedded,
    "kafka": kafka,
    "slot": lambda: slot_pipeline,
    "kafka, killed": partial(kafka, dies=0.01),
}


def neighbours(first, plate, speeds):
    of_plate = [one.rows[:, 0] == plate for one in first]
    other = [one.speeds.copy() for one in first]
    for mine, all_speeds, its in zip(of_plate, other, speeds, strict=True):
        all_speeds[mine] = its
    return [replace(one, speeds=its) for one, its in zip(first, other, strict=True)]


def runs_audited(first, second, plate, road="embedded"):
    """Loss and charge, of the same noisy integers; and what the first have left."""
    of_first = played(first, ROADS[road]())
    of_second = played(second, ROADS[road](), of_first)
    assert of_first.ledger.verify() == of_second.ledger.verify() == []
    found = audited(of_first, of_second, plate_hash(road)(plate))
    return found.most, found.charged, of_first


@pytest.mark.parametrize("dies_at", [0, 4])
@pytest.mark.parametrize("road", ["embedded", "kafka"])
def test_a_run_under_another_u_costs_no_plate_what_another_one_was_fast(road, dies_at):
    rows, speeds = city()
    first = [Run(rows, speeds, dies_at=dies_at), Run(rows, speeds, LOWER_U)]
    its = speeds[rows[:, 0] == 7].copy()
    its[11] = 59
    slower = neighbours(first, 7, [its, its])
    faster = neighbours(first, 7, [np.where(np.arange(its.size) == 11, 62, its)] * 2)
    lost, charged, left = runs_audited(slower, faster, 7, road)
    assert lost <= charged and charged > 0.3 * NANO
    assert len(left.ledger.by) >= 10 and set(left.ledger.by.values()) == (
        {1} if dies_at == 0 else {0, 1}
    )


def two_hats_alike(low, high, dies_at=None):
    """Eight plates, 15 pings in each of two HATs; the first drives at `low` in one of them, at
    `high` in the other."""
    rows, speeds = city(plates=8, pings=30)
    first = rows[:, 1] < 1800
    rows[:, 2:] = np.where(first[:, None], (21.1, 72.8), (21.2, 72.9))
    speeds[:] = np.tile(speeds[:15], 16)
    speeds[rows[:, 0] == 0] = np.repeat([low, high], 15)
    return Run(rows, speeds, dies_at=dies_at)


def drawn_in_turns(road="embedded"):
    """The first run draws one HAT. In the second the plate's speeds have changed places, so it is
    as far off again."""
    neighbours = [[two_hats_alike(18, far, dies_at=1), two_hats_alike(far, 18)] for far in (0, 36)]
    return runs_audited(*neighbours, 0, road)


def test_speeds_that_change_places_do_not_use_up_a_plates_ball_twice():
    lost, charged, left = drawn_in_turns()
    assert lost <= charged and sorted(left.ledger.by.values()) == [0, 1]


def test_runs_whose_lengths_are_not_compared_are_found(planted):
    planted(balls, checks_of=lambda columns: 0 * columns[0])
    lost, charged, _ = drawn_in_turns()
    assert lost > 1.2 * charged


def random_neighbours(seed, road):
    """Two to four runs over a slot: U changes, speeds are edited, pings repeat, all but the last
    may die."""
    rng = np.random.default_rng(seed)
    plates = int(rng.integers(3, 9))
    rows, speeds = city(
        plates, pings=int(rng.integers(2, 5)) * 6, wide=float(rng.choice([0.03, 0.06])), seed=seed
    )
    mine, flags, worlds = np.flatnonzero(rows[:, 0] == 0), IN_RHO, [[], []]
    its = rng.integers(0, 66, mine.size)
    kept = [its, 65 - its] if rng.random() < 0.3 else [np.full(mine.size, one) for one in (0, 65)]
    runs = 6 if road == "kafka, killed" else int(rng.integers(2, 5))
    for number in range(runs):
        dies_at = None if number == runs - 1 else int(rng.integers(0, 8))
        if number and "kafka" not in road:  # there the log is the state: only settings change
            kept = [other_speeds(rng, its) if rng.random() < 0.5 else its for its in kept]
            if rng.random() < 0.3:  # another plate's speeds, alike in both worlds
                edited = rng.integers(1, plates)
                speeds = np.where(rows[:, 0] == edited, rng.integers(0, 66, speeds.size), speeds)
        again = mine[rng.integers(mine.size)] if rng.random() < 0.2 else None
        for world, its in zip(worlds, kept, strict=True):
            all_speeds = speeds.copy()
            all_speeds[mine] = its
            world.append(repeated(rng, Run(rows, all_speeds, flags, dies_at), again))
        flags = [IN_RHO, LOWER_U, (*IN_RHO, "speed.max_kmh=40")][rng.integers(3)]
    return worlds


def other_speeds(rng, its):
    """In another order, one of them another, all of them opposite, at one end of the range, or any."""
    at = rng.integers(its.size)
    return [
        rng.permutation(its), np.where(np.arange(its.size) == at, 65 - its, its), 65 - its,
        np.full(its.size, rng.choice([0, 65])), rng.integers(0, 66, its.size),
    ][rng.integers(5)]  # fmt: skip


def repeated(rng, run, again):
    if again is None:
        return run
    rows = np.concatenate((run.rows, run.rows[again : again + 1]))
    return replace(run, rows=rows, speeds=np.append(run.speeds, rng.integers(0, 66)))


def shares_of(seeds, road):
    """Of each seed's neighbours: the loss as a share of what was charged; and how many runs have
    drawn of the slot."""
    for seed in seeds:
        lost, charged, left = runs_audited(*random_neighbours(seed, road), 0, road)
        yield lost / charged if charged else float(lost > 0), len(set(left.ledger.by.values()))


@pytest.mark.parametrize(
    ("road", "many"),
    [
        *[("slot", 25), ("kafka", 6), ("kafka, killed", 4)],
        *soaked_rows([("slot", 1000), ("kafka", 60), ("kafka, killed", 60)]),
    ],
)
@pytest.mark.timeout(900)
def test_whatever_runs_do_to_a_slot_no_plate_loses_more_than_it_was_charged(road, many):
    shares, runs = zip(*shares_of(range(many), road), strict=True)
    assert max(shares) <= 1, f"neighbours {np.argmax(shares)}"
    # There is something to lose, and slots are drawn by several runs.
    assert max(shares) > 0.7 and np.mean(np.array(runs) > 1) > 0.3


def all_or_none(*asked, honest=balls.factors_once):
    factors = honest(*asked)
    return dict.fromkeys(factors, 0) if 0 in factors.values() else factors


def not_compared(norms, expected, *_):
    return norms.factors(expected)


def all_or_none_of_a_shard(self, measured, honest=ScaleFactors.of):
    factors = honest(self, measured)
    return dict.fromkeys(factors, 0) if 0 in factors.values() else factors


def not_compared_by_a_shard(self, measured):
    return {plate: self.factors.get(plate, 0) for plate in measured}


PLANTED = [
    (balls, "factors_once", all_or_none, "slot", range(13, 17)),
    (balls, "factors_once", not_compared, "slot", range(18, 24)),
    (ScaleFactors, "of", all_or_none_of_a_shard, "kafka", range(19, 21)),
    (ScaleFactors, "of", not_compared_by_a_shard, "kafka, killed", (26, 39)),
]


@pytest.mark.parametrize(
    ("where", "name", "wrong", "road", "seeds"), PLANTED, ids=[one[2].__name__ for one in PLANTED]
)
def test_planted_faults_are_found(where, name, wrong, road, seeds, planted):
    planted(where, **{name: wrong})
    assert max(share for share, _ in shares_of(seeds, road)) > 1
