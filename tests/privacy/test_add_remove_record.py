"""Mornings under "add-remove", recorded and played without a plate; and faults, which the same
audit has to find."""

import asyncio
import gzip
import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import cycle, product
from unittest.mock import patch

import h3
import msgspec
import numpy as np
import pytest
from faust.types import TP

from streams.kafka import CommittedOffset
from streams.processors import TICK
from tests.failing import Died
from tests.forms import changed, long_but, long_rows, soaked, soaked_rows
from tests.privacy import recorded
from tests.privacy.recorded import (
    DAYS,
    SLOTS,
    START,
    Fate,
    Leak,
    Piece,
    Recorded,
    Sent,
    Tape,
    city,
    hash_of,
    live,
    over_days,
    plates_of,
    replayed,
    settings_of,
    without,
)
from tests.protocol.broker import (
    TOPICS,
    Broker,
    Worker,
    outcome,
)
from tests.runtime.harness import FEEDS
from tests.verbs import run_verb
from udp_stream.ledger.ids import DAY_SUMS, NOISED_SUMS, id_of, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger, SqliteLedger
from udp_stream.ledgers.statement import statement
from udp_stream.release import add_remove as road
from udp_stream.release.forecaster import LedgerHistory
from udp_stream.windows import slots as windows
from udp_stream.windows.clocks import AppendClock, WallClock


@pytest.fixture(scope="session")
def domain(tmp_path_factory):
    file = tmp_path_factory.mktemp("domain") / "cells.txt"
    file.write_text("\n".join(recorded.CELLS))
    return str(file)


def removals(drive, folder, settings, seed, fate=None, plates=None):
    """The share of rho that each plate's removal costs, one after another; every second leaves
    empty messages."""
    sent = city(seed)
    made = Recorded.of(drive, folder / "recorded", settings, sent, fate and Fate.of(fate))
    found = {}
    for number, plate in enumerate(plates or plates_of(seed)):
        fewer = without(sent, plate, leaves_empty=bool(number % 2))
        found[plate] = made.plays(drive, folder / plate, fewer, plate, fate and Fate.of(fate))
    return made, found


PLATES, MOVEMENT = "release.plates=true", "speed.from=movement"
HEADINGS = "hat.headings=2"
CASES = [
    (0, (), None),
    (1, ("hat.headings=4",), "a"),
    (2, (PLATES,), "b"),
    (3, (MOVEMENT, HEADINGS), "a"),
]
FLAGS = (
    (),
    (PLATES,),
    (MOVEMENT,),
    (PLATES, MOVEMENT),
    (HEADINGS, "budget.epsilon=4"),
    (PLATES, "budget.epsilon=4"),
)


def fated(seed):
    return seed, FLAGS[seed % len(FLAGS)], f"{seed}"


def by_both(cases):
    return [(drive, *case) for case in cases for drive in (live, replayed)]


SOAKED = range(7, 31)
SHORT = [*((live, *case) for case in CASES), (replayed, *CASES[2])]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("drive", "seed", "flags", "fate"),
    [
        *long_rows(SHORT, by_both([*CASES, *map(fated, range(len(CASES), SOAKED.start))])),
        *soaked_rows(by_both(map(fated, SOAKED))),
    ],
)
def test_a_morning_without_a_plate_is_the_same_in_public_and_costs_at_most_its_rho(
    tmp_path, domain, drive, seed, flags, fate
):
    """In the form that soaks 800 removals: two runtimes, and 17 plates in each. Processes die by
    their fate."""
    plates = plates_of(seed)[seed % 5 :: 5] if seed < SOAKED.start else plates_of(seed)
    made, found = removals(drive, tmp_path, settings_of(domain, *flags), seed, fate, plates)
    cells = len(recorded.CELLS) * settings_of(domain, *flags).hat.headings
    assert len(made.tape.drawn) == len(SLOTS)
    assert len(made.told.releases) == len(SLOTS) * cells
    # A kill between a slot's estimates and its mark writes the same bytes again.
    assert len(set(made.told.estimates)) <= len(made.told.releases)
    assert fate or made.told.estimates
    assert fate is None or made.told.effects.count("begin") > 1
    assert MOVEMENT in flags or all(
        moved for plate, (_, moved) in found.items() if not plate.startswith("rare")
    )
    assert max(share for share, _ in found.values()) > 0.5


@pytest.mark.parametrize(("seed", "fate"), [(1, "c"), *long_rows([], [(0, None), (2, "d")])])
def test_days_without_a_plate_are_the_same_in_public_and_so_are_their_sums_over_the_city_and_the_day(
    tmp_path, domain, limits, seed, fate
):
    """From the second day on there are sums of the city, and of the day with its last slot."""
    limits(recorded, SLOTS=DAYS)
    settings, sent = settings_of(domain, "budget.period=1d"), over_days(city(seed))
    made = Recorded.of(replayed, tmp_path / "recorded", settings, sent, fate and Fate.of(fate))
    of_day = [one for name, one in made.tape.drawn.items() if kind_of(name) == DAY_SUMS]
    widths = [one.exact.shape[1] for one in made.tape.drawn.values()]
    cells = len(recorded.CELLS)
    assert len(of_day) == 1 and widths == [cells, cells + 7, cells + 7, cells + 7, cells, cells + 7]
    for plate in ("busy", "usual", "rare", "floods", "repeats", "broken"):
        name = f"{plate}-{seed}"
        fewer = without(sent, name, leaves_empty=False)
        share, moved = made.plays(replayed, tmp_path / plate, fewer, name, fate and Fate.of(fate))
        assert plate == "rare" or (moved and of_day[0].own(hash_of(name)).any())
        assert plate != "busy" or share > 0.3


SOLE = ["absurd", "rare"]
OTHERS = [kind for kind in recorded.KINDS if kind not in SOLE]


@pytest.mark.parametrize(
    ("drive", "kind"),
    [
        *product([live, replayed], SOLE),
        *long_rows([], zip(cycle([live, replayed]), OTHERS, strict=False)),
        *soaked_rows(zip(cycle([replayed, live]), OTHERS, strict=False)),
    ],
)
def test_a_morning_of_a_single_plate_is_the_same_as_an_empty_one(tmp_path, domain, drive, kind):
    plate = f"{kind}-0"
    own = (
        changed(one, pieces=tuple(piece for piece in one.pieces if piece.plate == plate))
        for one in city(0)
    )
    sent = [one for one in own if one.pieces]
    made = Recorded.of(drive, tmp_path / "recorded", settings_of(domain), sent, Fate.of(kind))
    _, moved = made.plays(drive, tmp_path / "empty", [], plate, Fate.of(kind))
    assert moved and len(made.told.releases) == len(SLOTS) * len(recorded.CELLS)


def test_days_of_a_single_plate_are_the_same_as_empty_ones(tmp_path, domain, limits):
    limits(recorded, SLOTS=DAYS)
    settings = settings_of(domain, "budget.period=1d")
    own = (
        changed(one, pieces=tuple(piece for piece in one.pieces if piece.plate == "usual-0"))
        for one in city(0)
    )
    sent = over_days([one for one in own if one.pieces])
    made = Recorded.of(replayed, tmp_path / "recorded", settings, sent)
    _, moved = made.plays(replayed, tmp_path / "empty", [], "usual-0")
    assert moved and len(made.told.releases) == len(DAYS) * len(recorded.CELLS)


def together():
    """A plate's factor follows from how many are charged."""
    honest = road.shortened

    def shortened(vectors, charged, query):
        return honest(vectors, charged * 10 // max(10, np.count_nonzero(charged)), query)

    return road, {"shortened": shortened}


def as_appended():
    """Slots close, and pings are late, by the newest ping so far."""
    observe = WallClock.observe

    def by_pings(self, frame):
        before = self.watermark_ms
        observe(self, frame)
        if before is None:
            return observe(self, frame)
        clock = AppendClock(self._rules, before)
        observed = clock.observe(frame)
        self.over, self.watermark_ms = self._between(before, clock.watermark_ms), clock.watermark_ms
        return observed

    return WallClock, {"observe": by_pings}


def unsquared():
    """Vectors are scaled as if k q were paid, and k^2 q is."""
    honest = road.shortened

    def shortened(vectors, charged, query):
        costs = np.maximum(vectors.charges(charged.size, query), charged)
        return honest(vectors, np.sqrt(charged * costs.astype(float)).astype(np.int64), query)

    return road, {"shortened": shortened}


def crowded():
    """A slot holds a number of pings of all plates together."""
    return windows._OpenSlot, {
        "within": lambda self, _pings, index: np.arange(index.size) + self.rows < 1000
    }


def told_truly():
    """Forecasts and estimates are made of the true sums."""
    sums = LedgerHistory.sums

    def true(self, slot, kind=NOISED_SUMS):
        found, name = sums(self, slot, kind), id_of(kind, *slot)
        if found is None or name not in Tape.running.drawn:
            return found
        residual, weight = Tape.running.drawn[name].exact.tolist()
        return msgspec.structs.replace(found, residual=tuple(residual), weight=tuple(weight))

    return LedgerHistory, {"sums": true}


FAULTS = [
    (together, replayed, "busy-0", "others"),
    (as_appended, live, "ahead-0", "others|releases|slots|effects"),
    (unsquared, replayed, "busy-0", "paid|of rho"),
    (crowded, replayed, "floods-0", "others"),
    (told_truly, replayed, "busy-0", "releases|estimates"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "drive", "plate", "what"), FAULTS, ids=lambda one: getattr(one, "__name__", None)
)
def test_the_audit_finds_a_fault(tmp_path, domain, planted, fault, drive, plate, what):
    owner, wrong = fault()
    planted(owner, **wrong)
    planted(SqliteLedger, verify=lambda _: [])
    with pytest.raises(Leak, match=what):
        removals(drive, tmp_path, settings_of(domain), 0, plates=[plate])


# By the command line, the processors of a worker, and on a recorded day.


def by_verbs(folder, domain, lines, tape, keys):
    """Exit statuses of a replay and an export, and what they wrote for readers."""
    folder.mkdir()
    for name, content in keys.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    (folder / "day.ndjson").write_bytes(b"".join(line + b"\n" for line in lines))
    flags = (
        "privacy.neighbours=add-remove", f"hat.domain={domain}", "pings.interval=10s", "hat.slot=15m",
        "kafka.shards=1", "hat.resolution=7", "hat.timezone=UTC", "budget.period=1h", "ledger.url=city.ledger",
    )  # fmt: skip
    sets = [word for flag in flags for word in ("--set", flag)]
    span = "--from", "2024-01-08T00:15", "--until", "2024-01-08T01:30"
    verbs = (
        (
            "replay",
            "day.ndjson",
            "--out",
            "out",
            "--smoothed",
            "estimates",
            "--rejected",
            "private",
            *span,
        ),
        ("ledger", "export"),
    )
    with tape.runs(), patch("udp_stream.cli.commands.replay.OsEntropy", lambda: tape):
        ended = [
            run_verb([*verb, *sets], cwd=folder, env={**os.environ, "NO_COLOR": "1"})
            for verb in verbs
        ]
    told = [(folder / name).read_bytes() for name in ("out", "estimates")]
    return [one.returncode for one in ended], ended[0].stdout, json.loads(ended[1].stdout), *told


def lines_of(sent):
    """A file has a message a line; an empty line is none."""
    return [one.message for one in sent if one.pieces and b"\n" not in one.message and one.message]


@pytest.mark.parametrize("sole", [False, True])
def test_verbs_end_alike_and_write_the_same_with_and_without_a_plate(tmp_path, domain, sole):
    sent, tape = city(0), Tape()
    plates = plates_of(0)
    if sole:
        others = [plate for plate in plates if plate != "busy-0"]
        for plate in others:
            sent = without(sent, plate, leaves_empty=False)
    expected = by_verbs(tmp_path / "recorded", domain, lines_of(sent), tape, {})
    assert expected[0] == [0, 0] and expected[3].count(b"\n") == len(SLOTS) * len(recorded.CELLS)
    keys = {"city.ledger.key": (tmp_path / "recorded" / "city.ledger.key").read_bytes()}
    for plate in ["busy-0"] if sole else ["busy-0", "broken-0", "rare-0", "ahead-0"]:
        played = Tape(tape.noised)
        found = by_verbs(
            tmp_path / plate, domain, lines_of(without(sent, plate, False)), played, keys
        )
        assert found == expected
        assert any(
            (played.drawn[name].exact != one.exact).any() for name, one in tape.drawn.items()
        )


def test_a_recorded_morning_without_a_plate_is_the_same(tmp_path, limits):
    """Half an hour of a city: the busiest plates, the rarest, and some."""
    if not FEEDS.is_dir():
        pytest.skip("recorded days are not part of the program")
    lines = gzip.decompress((FEEDS / "surat-itms-2022-01-01.ndjson.gz").read_bytes()).splitlines()
    read = [msgspec.json.decode(line) for line in lines]
    many = Counter(one["license_plate"] for one in read)
    file = tmp_path / "cells"
    file.write_text("\n".join(sorted(h3.grid_disk(h3.latlng_to_cell(21.19, 72.83, 7), 5))))
    settings = settings_of(str(file))
    zone_ms = [
        1000 * datetime.fromisoformat(one["observationDateTime"]).timestamp() for one in read
    ]
    slots = settings.calendar.slots.between(round(min(zone_ms)), round(max(zone_ms)), 9)
    sent = [
        Sent(0, (Piece(one["license_plate"], line),)) for one, line in zip(read, lines, strict=True)
    ]
    limits(recorded, SLOTS=slots)
    made = Recorded.of(replayed, tmp_path / "recorded", settings, sent)
    order = [plate for plate, _ in many.most_common()]
    for plate in (*order[:3], order[-1], *random.Random(1).sample(order, 4)):
        made.plays(replayed, tmp_path / plate, without(sent, plate, leaves_empty=False), plate)
    assert len(made.tape.drawn) == len(slots) > 1


class Tasks:
    """Workers on one broker and ledger. They die; or another one takes over, and the first goes on
    for a while."""

    def __init__(self, settings, broker, ledger, thread, dice, once, tape):
        self.dice, self.once, self.broker = dice, once, broker
        given = {"entropy": tape, "hash_plate": hash_of}
        self.new = lambda: Worker(broker, ledger, thread, settings, once, **given)

    async def run(self):
        worker, changes = self.new(), 0
        await worker.assign()
        at = self.resumed()
        while True:
            changes += 1
            if changes < 40 and self.dice.random() < 0.08:
                zombie, its = worker, dict(at)
                worker = self.new()
                await worker.assign()
                at = self.resumed()
                for _ in range(self.dice.randrange(4)):
                    await self.step(zombie, its)
            elif not await self.step(worker, at):
                return

    def resumed(self):
        return {
            tp: max(0, self.broker.offsets.get(tp, CommittedOffset(0, "")).offset)
            for tp in list(self.broker.logs)
        }

    async def step(self, worker, at):
        """Whether there was anything to do."""
        names = TOPICS.pings.name, TOPICS.parts.name
        todo = sorted(
            tp
            for tp, log in self.broker.logs.items()
            if tp.topic in names and at.get(tp, 0) < len(log)
        )
        if not todo:
            await worker.pings.commit()
            await worker.parts.commit()
            return False
        tp = self.dice.choice(todo)
        batch = self.broker.logs[tp][at.get(tp, 0) :][: self.dice.randint(1, 400)]
        at[tp] = batch[-1].offset + 1
        await (worker.pings if tp.topic == TOPICS.pings.name else worker.parts).process(batch)
        return True


def by_workers(settings, sent, tape, seed, once):
    """What readers of the topics get, of a log of two partitions with ticks; workers change and die
    as dice say."""
    broker, ledger, dice = Broker(), MemoryLedger(), random.Random(f"workers {seed}")
    by_minute = {}
    for number, one in sent:
        by_minute.setdefault(one.minute, []).append((number % 2, one.message))
    for minute in range(recorded.MINUTES):
        broker.now_ms = START + minute * recorded.MINUTE + 30_000
        for partition, message in by_minute.get(minute, ()):
            broker.append(TOPICS.pings.name, partition, message)
        if minute % 15 in (0, 2):
            for partition in range(2):
                broker.append(TOPICS.pings.name, partition, b"%d" % broker.now_ms, [(TICK, b"1")])

    async def until_the_end():
        with ThreadPoolExecutor(1) as thread:
            while True:
                try:
                    return await Tasks(settings, broker, ledger, thread, dice, once, tape).run()
                except Died:
                    deaths.append(1)
                    broker.dies *= 0.9

    deaths = []
    broker.dice, broker.dies = random.Random(f"deaths {seed}"), 0.03
    with tape.runs():
        asyncio.run(until_the_end())
    assert ledger.verify() == [] and len(deaths) > 1
    smoothed = [one.value for one in broker.logs[TP(TOPICS.smoothed.name, 0)]]
    return (
        list(outcome(broker)[0].items()),
        list(dict.fromkeys(smoothed)),
        statement(settings, ledger),
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("once", long_but([True], [False, True]))
@pytest.mark.parametrize("seed", [*long_but([0], range(2)), *soaked(range(2, 4))])
def test_workers_that_die_and_are_replaced_publish_the_same_with_and_without_a_plate(
    domain, seed, once
):
    settings, tape = settings_of(domain, "kafka.partitions=2"), Tape()
    sent = list(enumerate(city(seed)))
    expected = by_workers(settings, sent, tape, f"{seed} recorded", once)
    made = Recorded(settings, None, tape)
    assert len(expected[0]) == len(expected[1]) == len(SLOTS) * len(recorded.CELLS)
    plates = plates_of(seed)
    for plate in plates[seed % 3 :: 4] if seed < 2 else plates:
        fewer = [(number, one.without(plate)) for number, one in sent]
        played = Tape(tape.noised)
        found = by_workers(
            settings, [(number, one) for number, one in fewer if one.pieces], played, plate, once
        )
        assert found == expected
        made.share_of(played, plate)
