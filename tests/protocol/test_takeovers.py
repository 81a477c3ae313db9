"""Two shards, of which the first has the planner, by their protocols alone: messages come in some
order, an owner dies at every effect, and the next one resumes from any checkpoint that may be the
last one committed.

Each slot is planned from all of its counts and, shard by shard, released once and in turn; where
plans follow from releases, it is learnt behind all of them. In the end all is read, and nothing is
held.
"""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from streams import wire
from streams.protocol import NOT_YET, PlannerState, ShardCheckpoint, ShardProtocol
from streams.wire import cut_pings, cut_plan, decode_message, encode_message, merge_counts, shard_of
from tests.failing import Died
from tests.forms import long_rows, soaked_rows
from tests.protocol.world import Violation, require
from udp_stream.ledger.ids import CITY_HOUR
from udp_stream.mechanisms.around import PlateNorms
from udp_stream.mechanisms.base import ForecastClipTerms, StatisticTerms
from udp_stream.planning.plan import Terms
from udp_stream.planning.slot import CityPlan, SlotPlan
from udp_stream.windows.tables import SlotPings, tabulate

HOUR = 3_600_000
SHARDS = 2
CELLS = shard_of(np.arange(9, dtype=np.uint64), SHARDS).argsort()[[0, -1]]
VISITS = [[0, 1], [1], [0, 1], [0]], [[0, 1], [], [1], [0]]
"""By source and slot, the shards whose cells its plates are in."""

BALL = ForecastClipTerms(0, b"\0\0" * 4, ball=True)
KINDS = {
    "plans": Terms((StatisticTerms("mean", 1),)),
    "forecasts": Terms((StatisticTerms("mean", 1),)),
    "clips": Terms((StatisticTerms("mean", 1, around=BALL),)),
    "city": Terms((StatisticTerms("mean", 1),)),
    "hour": Terms((StatisticTerms("mean", 1, around=BALL),)),
}
FACTOR = 7


def pings_of(source, slot, size):
    """Some pings of two plates that no other source has; another number is at other times."""
    at = np.array(VISITS[source][slot] * size, np.int64)
    plate = np.arange(at.size, dtype=np.uint32) % 2
    names = tuple(b"%d%d" % (source, number) for number in range(2))
    time = np.arange(at.size, dtype=np.uint32) * 10 + size
    columns = plate, time, CELLS[at].astype(np.uint64), at.astype(np.int32)
    return SlotPings(slot * HOUR, (slot + 1) * HOUR, names if at.size else (), *columns)


def sent_by(source):
    """What a source sends. Behind each slot a successor sends what it has read of it."""
    for slot in range(len(VISITS[source])):
        for size in (4, 2):
            yield from cut_pings(pings_of(source, slot, size), source, SHARDS, rows_max=3)


def asked_of(counts):
    """The question of the city's hour, to all plates."""
    ones = np.ones_like(counts.count)
    return SlotPlan.question(counts, CityPlan(ones, ones, 4, b"", CITY_HOUR, ones))


def told(counts):
    return counts.plates, counts.cells.tolist(), counts.plate.tolist(), counts.count.tolist()


class Deployment:
    """The logs, what is committed, remembered and released, and both owners. `deaths`: numbers of
    effects at which who causes them dies."""

    def __init__(self, kind, seed, deaths=(), newest=True):
        self.kind = kind
        self.dice = random.Random(seed)
        self.deaths = deaths
        self.newest = newest
        self.is_once = self.dice.random() < 0.5
        self.batch = self.dice.choice([1, 3, 9])
        self.hurries = self.dice.choice([0.05, 0.5])
        self.follows = kind != "plans"
        self.effects = 0
        self.logs = [[] for _ in range(SHARDS)]
        self.late = []
        self.commits = [[ShardCheckpoint.at(0)] for _ in range(SHARDS)]
        self.sources = [list(sent_by(source)) for source in range(2)]
        self.pings = {}
        self.plans = {}
        self.told = set()
        self.factors = {}
        self.released = [[] for _ in range(SHARDS)]
        self.learnt = []
        self.owners = [None] * SHARDS
        self.at = [0] * SHARDS
        self.is_idle = [False] * SHARDS
        for shard in range(SHARDS):
            self.take(shard)

    def take(self, shard):
        start = self.commits[shard][-1 if self.newest else 0]
        self.commits[shard] = [start]
        self.owners[shard] = ShardProtocol(shard, SHARDS, 2, start, follows=self.follows)
        self.at[shard] = start.offset
        self.is_idle[shard] = False

    def effect(self, shard):
        self.may_be_committed(shard)
        self.effects += 1
        if self.effects in self.deaths:
            raise Died

    def run(self):
        while todo := self.busy():
            actor = self.dice.choice(todo)
            if actor == "late":
                shard, message = self.late.pop(0)
                self.logs[shard].append(message)
            elif isinstance(actor, tuple):
                message = self.sources[actor[0]].pop(0)
                self.logs[message.shard].append(encode_message(message))
            else:
                try:
                    self.goes_on(actor)
                except Died:
                    self.take(actor)
        self.require_done()
        return self.effects

    def busy(self):
        """Shards that have something to do; at times, and where there are none, who sends."""
        found = [
            shard
            for shard in range(SHARDS)
            if self.at[shard] < len(self.logs[shard]) or not self.is_idle[shard]
        ]
        if not found or self.dice.random() < self.hurries:
            found += [(source,) for source, left in enumerate(self.sources) if left]
            found += ["late"] * bool(self.late)
        return found

    def goes_on(self, shard):
        """Read a batch where all steps of the last one are carried out; else do the next step."""
        owner = self.owners[shard]
        if self.is_idle[shard]:
            for message in self.logs[shard][self.at[shard] :][: self.dice.randint(1, self.batch)]:
                owner.add(self.at[shard], decode_message(message))
                self.at[shard] += 1
            self.is_idle[shard] = False
        elif (step := owner.next()) is None:
            self.is_idle[shard] = True
        else:
            getattr(self, type(step).__name__)(shard, owner, step)
        self.may_be_committed(shard)

    def may_be_committed(self, shard):
        owner = self.owners[shard]
        if owner.may_commit:
            self.commits[shard].append(owner.checkpoint())

    # The steps, by their names.

    def CountSlot(self, _shard, owner, step):  # noqa: N802
        owner.counted(step.start, *tabulate(step.pings))

    def SendMessages(self, shard, owner, step):  # noqa: N802
        """An owner that is taken for dead may send the rest later."""
        left = [(to, encode_message(message)) for to, message in step.messages]
        try:
            while left:
                self.effect(shard)
                to, message = left.pop(0)
                self.logs[to].append(message)
            self.effect(shard)
        except Died:
            self.late += left * self.dice.randrange(2)
            raise
        owner.sent(step)

    def PlanSlot(self, shard, owner, step):  # noqa: N802
        counts = merge_counts(step.chunks)
        slot = step.start // HOUR
        whole, _ = tabulate(
            wire.merge_pings(
                [
                    chunk
                    for source in range(2)
                    for chunk in cut_pings(pings_of(source, slot, 4), source, 1)
                    if isinstance(chunk, wire.PingChunk)
                ]
            )
        )
        require(told(counts) == told(whole), f"slot {slot} is planned from other counts")
        before = [start for start in self.plans if start < step.start]
        require(not self.follows or self.learnt[: len(before)] == before, "planned too early")
        self.pings[step.start] = int(counts.count.sum())
        self.effect(shard)
        if self.kind == "hour" and step.start not in self.told:
            require(step.asks, f"slot {step.start} is planned before its city is told")
            require(step.start not in self.plans, f"slot {step.start} is asked behind its plan")
            self.effect(shard)
            owner.planned(step.start, counts, asked_of(counts))
            return
        terms = (KINDS[self.kind],) * counts.cells.size
        asked = np.ones_like(counts.count), np.ones_like(counts.count), 4, b""
        plan = SlotPlan(
            *counts.slot, counts.cells, counts.hat_rows, counts, terms, np.ones_like(counts.count),
            city=CityPlan(*asked) if self.kind == "city" else None,
        )  # fmt: skip
        if slot == 0:  # nobody can pay for the HAT on the other shard
            plan = plan.subset(counts.cells == CELLS[0])
        plan = self.plans.setdefault(step.start, plan)
        self.effect(shard)
        owner.planned(step.start, counts, plan)

    def MeasureNorms(self, _shard, owner, step):  # noqa: N802
        counts = step.counts
        ones = np.ones(len(counts.plates), np.int64)
        norms = PlateNorms(counts.plates, ones, ones, ones, ones, ones * step.start)
        if step.plan.is_question:
            pings = np.bincount(counts.plate, counts.count, len(counts.plates)).astype(np.int64)
            norms = replace(norms, norm=pings)
        owner.measured(step, norms, (int(counts.count.sum()),))

    def QueryCity(self, shard, owner, step):  # noqa: N802
        self.effect(shard)
        start = step.plan.start_ms
        is_asked = step.plan.is_question
        found = (int(step.norms.norm.sum()),) if is_asked else step.sums
        require(found == (self.pings[start],), f"sums of {found} pings")
        if is_asked:
            self.told.add(start)
        self.effect(shard)
        owner.city_queried()

    def RecordNorms(self, shard, owner, step):  # noqa: N802
        self.effect(shard)
        found = dict(zip(step.norms.plates, step.norms.hats.tolist(), strict=True))
        require(found == dict(step.expected), f"norms of {found}, and not of {step.expected}")
        self.factors.setdefault(step.start, dict.fromkeys(found, FACTOR))
        self.effect(shard)
        owner.remembered(self.factors[step.start])

    def ReleaseSlot(self, shard, owner, step):  # noqa: N802
        self.effect(shard)
        done = self.released[shard]
        require(not done or done[-1] <= step.start, f"slot {step.start} comes behind {done}")
        require(not self.is_once or step.start not in done, f"slot {step.start} comes again")
        require(not step.plan.is_question, "a question is released")
        require(set(step.plan.cells.tolist()) <= {CELLS[shard]}, "a plan of another shard")
        require(step.plan.cells.size or step.start == 0, "a HAT is missing in its plan")
        if self.kind in ("clips", "hour") and step.plan.cells.size:
            require(set(step.factors.values()) == {FACTOR}, f"factors of {step.factors}")
        to = owner.recorded(step.start)
        late = self.commits[shard][-1:] * owner.may_commit
        done.append(step.start)
        if not self.is_once:
            self.effect(shard)
        self.commits[shard] = [to, *late]
        owner.published(step.start)
        self.effect(shard)

    def LearnSlot(self, shard, owner, step):  # noqa: N802
        self.effect(shard)
        self.require_released(step.start)
        to = owner.publishing(step)
        self.learnt.append(step.start)
        self.commits[shard] = [to]
        owner.learnt(step)
        self.effect(shard)

    def require_released(self, start):
        for shard, done in enumerate(self.released):
            is_there = any(shard in visits[start // HOUR] for visits in VISITS)
            require(not is_there or start in done, f"slot {start} is not released by {shard}")

    def require_done(self):
        slots = [slot * HOUR for slot in range(len(VISITS[0]))]
        for start in slots:
            self.require_released(start)
        require(self.learnt == slots * self.follows, f"learnt are {self.learnt}")
        for owner, log in zip(self.owners, self.logs, strict=True):
            require(owner.may_commit, "something is left")
            require(owner.checkpoint().offset == len(log), "something is held")


@pytest.fixture(autouse=True)
def small(limits):
    """Owners die between the chunks of a plan."""
    limits(wire, cut_plan=partial(cut_plan, chunk_bytes=90))


def lives(kind, seeds, pairs):
    """A death at each effect, in some orders; and two deaths at random."""
    for seed in seeds:
        for at in range(1, Deployment(kind, seed).run() + 1):
            Deployment(kind, seed, {at}, newest=seed % 3 > 0).run()
    for seed in range(pairs):
        dice = random.Random(seed)
        Deployment(kind, seed, {*dice.sample(range(80), 2)}, newest=dice.random() < 0.5).run()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seeds", "pairs"), [*long_rows([(2, 3)], [(2, 3), (4, 20)]), *soaked_rows([(30, 2000)])]
)
def test_an_owner_that_dies_at_any_effect_is_replaced_from_any_commit(kind, seeds, pairs):
    lives(kind, range(seeds), pairs)


def test_of_two_plans_that_meet_in_a_log_the_last_that_began_counts_and_no_chunks_mix():
    owner = ShardProtocol(1, SHARDS, 1, ShardCheckpoint.at(0))
    log = [one for one in cut_pings(pings_of(0, 0, 4), 0, SHARDS) if one.shard == 1]
    for message in log:
        owner.add(owner.next_offset, message)
    counts, values = tabulate(owner.next().pings)
    owner.counted(0, counts, values)
    owner.sent(owner.next())
    terms = (KINDS["plans"],) * counts.cells.size
    first, second = (
        [*wire.cut_plan(SlotPlan(*counts.slot, counts.cells, counts.hat_rows, counts, terms, counts.count * nano), 1)]
        for nano in (1, 2)
    )  # fmt: skip
    for message in (*first, *second[:-1]):
        owner.add(owner.next_offset, message)
    assert owner.next() is None
    owner.add(owner.next_offset, second[-1])
    assert owner.next().plan.charged.tolist() == (counts.count * 2).tolist()


def before_it_sends(self):
    return self._step is None and not self._pings.due()


def of_what_it_planned(self, offset, message, add=PlannerState.add):
    """It keeps norms of slots that it has planned itself: of others they came before it."""
    is_known = self._planned and self._planned.start == getattr(message, "slot_start", None)
    if is_known or not isinstance(message, wire.NormChunk):
        add(self, offset, message)


def as_said_before(self, *given, begins=ShardProtocol.__init__, **more):
    begins(self, *given, **more)
    self._released_sent_ms = max(NOT_YET, self._pings.clear_ms)


def as_it_came_last(self, offset, message, add=ShardProtocol.add):
    """A question takes the place of the plan, also where it comes late."""
    add(self, offset, message)
    if isinstance(message, wire.PlanChunk) and message.is_question:
        self._plans.pop(message.slot_start, None)


@pytest.mark.parametrize(
    ("kind", "seed", "owner", "wrong"),
    [
        ("plans", 4, ShardProtocol, {"may_commit": property(before_it_sends)}),
        ("clips", 3, PlannerState, {"add": of_what_it_planned}),
        ("forecasts", 0, ShardProtocol, {"__init__": as_said_before}),
        ("hour", 3, ShardProtocol, {"add": as_it_came_last}),
    ],
)
def test_planted_faults_are_found(kind, seed, owner, wrong, planted):
    """In an order that shows them: few do."""
    planted(owner, **wrong)
    with pytest.raises(Violation):
        lives(kind, [seed], 0)
