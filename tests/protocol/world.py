"""Two workers over the logs of a broker and a ledger, and all that may befall them: pings, time and
wrong clocks, partitions that change hands, deaths around any effect, records that are deleted,
withdrawals, archives, other settings. Processors, protocols, plans, draws and ledger are the
product's.

Held at every effect: an id is drawn for once it is charged and while it is not recorded; whatever
is published is recorded; an id has one payload for ever; under transactions readers have it once.
Held in the end: nobody is charged twice, or beyond the budget; all is read and nothing is held; and
what is charged and published is what the embedded road says of the same logs.
"""

import asyncio
import random
from collections import Counter
from concurrent.futures import Executor, Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from faust.types import TP
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streams.processors import TICK, decode_checkpoint
from tests.city_question import MeanSpeed
from tests.contract.add_remove import FLAGS as ADD_REMOVE
from tests.failing import Died
from tests.protocol.broker import (
    FLAGS,
    MINUTE,
    START,
    TOPICS,
    Broker,
    Worker,
    outcome,
    smoothed,
)
from tests.protocol.embedded import embedded
from udp_stream.base.errors import DataLoss, Fenced, UsageError
from udp_stream.base.units import NANO
from udp_stream.ledger.ids import CITY_HOUR, HAT, QUERY, ROUND, WITHDRAWN, Id, kind_of
from udp_stream.ledgers.archive import archive
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.promise import promise_of
from udp_stream.release.record import Release
from udp_stream.release.withdrawal import withdraw, withdrawal_id
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.grid import HEXAGONS

HOUR = 60 * MINUTE
CITY = (*FLAGS, "kafka.shards=3", "hat.resolution=7")
AROUND = (*CITY, "release.mean=forecast-clip")
KINDS = {
    "array-averaging": (*CITY, "release.mean_epsilon=auto", "budget.epsilon=0.5"),
    "runs out": (*CITY, "release.mean=array-averaging", "budget.epsilon=3.4"),
    "by the hour": (*CITY, "release.mean=baseline", "budget.period=1h", "budget.epsilon=2.5"),
    "forecasts": (*AROUND, "release.cdf=off", "budget.epsilon=40"),
    "shared clips": (*AROUND, "budget.accounting=approximate", "release.cdf=tree", "budget.epsilon=40"),
    "prices": (*AROUND, "release.cdf=off", "release.mean_epsilon=auto", "budget.epsilon=60"),
    "city": (*AROUND, "release.cdf=off", "release.mean_epsilon=3", "budget.epsilon=100"),
    "city's hour": (*AROUND, "budget.accounting=approximate", "release.cdf=tree", "budget.epsilon=40"),
    "queries": CITY,
    "add-remove": (*ADD_REMOVE, "hat.timezone=UTC", "kafka.partitions=2", "kafka.shards=1"),
    "days": (*ADD_REMOVE, "hat.timezone=UTC", "hat.slot=6h", "kafka.partitions=2", "kafka.shards=1"),
}  # fmt: skip
"""Both promises, with and without forecasts, clips that HATs share, prices, a question to the city
beside its HATs and before them, standing queries, sums of days."""

QUERIES = Path(__file__).parent / "queries.toml"


CHARGED_ALIKE = ("array-averaging", "runs out", "by the hour")
"""All plates of a HAT are charged what its record says."""

NEED_FENCES = ("add-remove", "days")
"""An old owner must not charge what a new one has passed: it would go by later records."""

PUBLISHED = (HAT, QUERY, ROUND)
TROUBLES = (None, None, None, "loss", "settings", "set back")
WRONG = (0, 0, HOUR, -HOUR, 24 * HOUR, -24 * HOUR)
SEEDS = st.integers(0, 10**6)


@cache
def settings_of(kind, *more):
    return load(QUERIES if kind == "queries" else None, (*KINDS[kind], *more), {})


class Violation(AssertionError):
    """Something that must never be."""


def require(holds, text):
    if not holds:
        raise Violation(text)


class Inline(Executor):
    """The ledger's thread: a call is over when it was made."""

    def submit(self, work, /, *arguments):
        done = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 (whoever waits is told)
            done.set_exception(error)
        return done


class Ledger(MemoryLedger):
    """A ledger whose caller may die before and after each change; it keeps what was ever
    recorded."""

    def __init__(self, broker):
        super().__init__()
        self.effect = broker.at_ledger
        self.fencing = broker.fences
        self.asked = set()
        self.said = {}
        self.epochs = Counter()

    def admit(self, period, budget, plates, admissions):
        self.effect()
        found = super().admit(period, budget, plates, admissions)
        self.asked |= {one.release_id for one in admissions}
        self.effect()
        return found

    def record(self, releases):
        self.effect()
        found = super().record(releases)
        for (id_, _), payload in zip(releases, found, strict=True):
            before = self.said.setdefault(id_, payload)
            require(before == payload, f"{id_} was recorded as two payloads")
        self.effect()
        return found

    def published(self, release_ids):
        self.effect()
        super().published(release_ids)
        self.effect()


class Fences(Ledger):
    """A ledger that lets only the latest owner of a shard charge and record what is new."""

    def take_epoch(self, shard):
        self.epochs[shard] += 1
        return self.epochs[shard]

    def fenced(self, fence):
        return Owned(self, fence)


class Owned:
    """The ledger of an owner."""

    def __init__(self, ledger, fence):
        self.ledger = ledger
        self.fence = fence

    def __getattr__(self, name):
        return getattr(self.ledger, name)

    def admit(self, period, budget, plates, admissions):
        self._require_latest({one.release_id for one in admissions} <= self.ledger.asked)
        return self.ledger.admit(period, budget, plates, admissions)

    def record(self, releases):
        self._require_latest({id_ for id_, _ in releases} <= self.ledger.said.keys())
        return self.ledger.record(releases)

    def _require_latest(self, is_known):
        if not is_known and self.ledger.epochs[self.fence.shard] != self.fence.epoch:
            self.ledger.fencing()
            raise Fenced("a later epoch")


class Entropy(SeededEntropy):
    """Bits for what is charged and not recorded, and for nothing else."""

    def __init__(self, seed, ledger):
        super().__init__(seed)
        self.ledger = ledger

    def streams(self, release_ids):
        for id_ in release_ids:
            require(id_ in self.ledger.asked, f"{id_} is drawn for before it is charged")
        recorded = self.ledger.recorded(list(release_ids))
        require(not any(recorded), f"{release_ids}: drawn for although some are recorded")
        return super().streams(release_ids)


class Watched(Broker):
    """It looks at what is published, and lets something else happen at an effect."""

    def __init__(self):
        super().__init__()
        self.ledger = None
        self.owners = {}
        self.coming = []
        self.is_once = False
        self.seen = set()
        self.taken = set()
        self.was_taken_over = False

    def _due(self):
        """What comes at this effect."""
        if self.coming and self.coming[0][0] > 0:
            self.coming[0][0] -= 1
            return None
        return self.coming[0][1] if self.coming else None

    async def effect(self):
        await asyncio.sleep(0)
        what = self._due()
        if what is not None:
            del self.coming[0]
            await what()

    def fences(self):
        self.fenced += 1

    def at_ledger(self):
        """Between calls of the ledger only a death comes; anything else waits for the broker."""
        if self._due() is die:
            del self.coming[0]
            raise Died

    def append(self, topic, partition, value, headers=()):
        id_ = dict(headers).get("ce_id", b"").decode()
        if topic in (TOPICS.release.name, TOPICS.latest.name, TOPICS.queries.name):
            said = self.ledger.said.get(id_)
            require(said == value, f"{id_} is published, and the ledger has {said}")
        if id_ and self.is_once:
            # No checkpoint tells a withdrawal: the next owner may publish it again.
            may_repeat = kind_of(id_) == WITHDRAWN and self.was_taken_over
            is_first = (topic, id_) not in self.seen
            require(is_first or may_repeat, f"{id_} is published twice in {topic}")
            self.seen.add((topic, id_))
        super().append(topic, partition, value, headers)


async def die():
    raise Died


class Member:
    """A worker's place in the group: what is no longer its own it cannot commit."""

    def __init__(self, broker):
        self.broker = broker
        self.is_dead = False

    def __getattr__(self, name):
        return getattr(self.broker, name)

    async def commit(self, offsets):
        if self.is_dead:
            raise Died
        await self.broker.effect()
        if any(self.broker.owners.get(tp) is not self for tp in offsets):
            return False
        self.broker.offsets |= offsets
        await self.broker.effect()
        return True


class World(RuleBasedStateMachine):
    """Two places of workers; who has died is replaced once its place is given partitions again."""

    kinds = tuple(KINDS)

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.thread = Inline()
        self.broker = Watched()
        self.settings = None
        self.minute = 0
        self.workers = [None, None]
        self.members = [Member(self.broker), Member(self.broker)]
        self.at = [{}, {}]
        self.beside = []
        self.lives = 0
        self.is_lossy = False  # records were deleted that may not have been read
        self.is_exact = True  # nothing has come that the embedded road does not know
        self.withdrawn = set()
        self.is_archived = False
        self.are_told = False  # some worker lost partitions while it worked
        self.is_over = False
        self.commits_last = False

    @initialize(
        data=st.data(),
        once=st.booleans(),
        is_alike=st.sampled_from([True, True, False]),
        is_fenced=st.booleans(),
        commits_last=st.booleans(),
        trouble=st.sampled_from(TROUBLES),
        seed=SEEDS,
    )
    def begin(self, data, once, is_alike, is_fenced, commits_last, trouble, seed):
        """`is_alike`: all workers draw with the bits of the embedded road. `commits_last`: whoever
        dies has only failed, and a commit that waited comes before its end. `trouble` is what makes
        their outcome another than that."""
        self.kind = data.draw(st.sampled_from(self.kinds))
        self.trouble = trouble
        self.settings = settings_of(self.kind)
        self.broker.is_once = once
        has_fences = is_fenced or self.kind in NEED_FENCES
        self.ledger = Fences(self.broker) if has_fences else Ledger(self.broker)
        self.broker.ledger = self.ledger
        self.is_alike = is_alike
        self.commits_last = commits_last
        self.ping_for(40, seed)
        self.hears(give=frozenset({0, 2, 3}), deaf=())
        self.workers_go_on(seed)
        if seed % 3 == 0:
            self.a_hat_is_withdrawn(seed % 20)

    # --- pings and time ---

    @property
    def step(self):
        """Minutes between two pings of a plate."""
        return self.settings.policy.slot_seconds // 60 // 15

    @rule(rounds=st.integers(1, 16), seed=SEEDS)
    def pings_come(self, rounds, seed):
        self.ping_for(rounds, seed)
        self.workers_go_on(seed)

    def ping_for(self, rounds, seed):
        """Some plates stay, some roam; some pings are late, come twice, or are broken; some shards
        have none."""
        dice = random.Random(seed)
        cells = dice.choice([1, 2, 7, 7])
        for _ in range(rounds):
            self.pass_by(self.step)
            for number, plate in dice.sample(list(enumerate("abcdefgh")), 8):
                place = dice.randrange(7) % cells if number < 4 else number % min(3, cells)
                late = dice.choice([0, 0, 0, 5])
                ping = self.ping(plate, max(0, self.minute - late), place, dice.randint(5, 60))
                for _ in range(dice.choice([1, 1, 1, 2])):
                    self.broker.append(TOPICS.pings.name, number % 2, ping)
            if dice.random() < 0.2:
                self.broker.append(TOPICS.pings.name, dice.randrange(2), b"?")
            if self.settings.window_rules.in_processing_time:
                for of in range(2):
                    now = b"%d" % self.broker.now_ms
                    self.broker.append(TOPICS.pings.name, of, now, [(TICK, b"1")])

    def ping(self, plate, minute, place, speed):
        (lon, lat) = (72 + place / 6, 21.1)
        domain = self.settings.domain
        if len(domain):
            (lon, lat) = HEXAGONS.center_of(int(domain[place % len(domain)]))
        at = datetime.fromtimestamp(START / 1000 + 60 * minute, UTC).isoformat()
        return msgspec.json.encode(
            {
                "license_plate": plate,
                "observationDateTime": at,
                "speed": speed,
                "location": {"type": "Point", "coordinates": [lon, lat]},
            }
        )

    def pass_by(self, minutes):
        self.minute += minutes
        self.broker.now_ms = START + self.minute * MINUTE
        for worker in filter(None, self.workers):
            worker.time_s += 60 * minutes

    @rule(rounds=st.integers(0, 20), seed=SEEDS)
    def time_passes(self, rounds, seed):
        """A worker that looks at the clock commits, and tells silent partitions the time."""
        self.pass_by(self.step * rounds)
        for which, worker in enumerate(self.workers):
            if worker is not None:
                wall_ms = self.broker.now_ms + worker.wrong_ms
                self.run(self.commits(which))
                self.run(self.survives(which, worker.pings.tick(wall_ms)))
        self.workers_go_on(seed)

    @rule(broker_by=st.sampled_from(WRONG), worker_by=st.sampled_from(WRONG), seed=SEEDS)
    def clocks_are_set(self, broker_by, worker_by, seed):
        self.broker.wrong_ms = broker_by
        for worker in filter(None, self.workers):
            worker.wrong_ms = worker_by
        self.workers_go_on(seed)

    # --- workers ---

    def run(self, work):
        async def whole():
            await work
            await asyncio.gather(*self.beside)
            self.beside.clear()
            self.broker.coming.clear()

        try:
            self.loop.run_until_complete(whole())
        except BaseException:
            self.is_over = True
            raise

    @property
    def partitions(self):
        shards = self.settings.kafka.shards
        pings = [TP(TOPICS.pings.name, of) for of in range(2)]
        return pings + [TP(TOPICS.parts.name, shard) for shard in range(shards)]

    def hears(self, give, deaf):
        """The first worker has partitions of these numbers, the second all others. Who is deaf has
        not been told yet, and goes on with what it had."""

        async def work():
            self.broker.owners.clear()
            mine = {tp for number, tp in enumerate(self.partitions) if number in give}
            for which, tps in enumerate((mine, set(self.partitions) - mine)):
                if which not in deaf:
                    await self.take(which, tps)

        self.run(work())

    async def take(self, which, tps, back_to_ms=None):
        if self.workers[which] is None:
            self.lives += 1
            self.members[which] = Member(self.broker)
            self.workers[which] = Worker(
                self.broker,
                self.ledger,
                self.thread,
                self.settings,
                self.broker.is_once,
                accept_loss=self.is_lossy,
                city=MeanSpeed() if self.kind == "city" else None,
                back_to_ms=back_to_ms,
                entropy=Entropy(1 if self.is_alike else self.lives, self.ledger),
                offsets=self.members[which],
            )
        self.broker.was_taken_over |= not self.broker.taken.isdisjoint(tps)
        self.broker.taken |= tps
        self.broker.owners.update(dict.fromkeys(tps, self.members[which]))
        self.at[which] = {}
        if await self.survives(which, self.workers[which].assign(tps)):
            self.at[which] = {tp: self.broker.resumes_at(tp) for tp in tps}

    async def survives(self, which, work):
        """Do it. A worker dies if told to, and where it misses records that were deleted."""
        try:
            await work
        except Died:
            worker = self.workers[which]
            if self.commits_last and worker is not None:
                with suppress(Died):
                    await worker.commit()
            self.ends(which)
        except DataLoss:
            require(self.is_lossy, "records are missed, and none was deleted")
            self.ends(which)
        return self.workers[which] is not None

    def ends(self, which):
        self.workers[which] = None
        self.members[which].is_dead = True
        self.at[which] = {}

    @rule(seed=SEEDS)
    def workers_go_on(self, seed):
        """Each reads on, and does all that is due; after some effects something comes, and often
        death soon after it. Then partitions are given anew."""
        dice = random.Random(seed)
        for _ in range(4):
            which = dice.randrange(2)
            commit = partial(self.commits, which)
            takeover = partial(self.takes_over, which, dice)
            what = dice.choice([die, die, commit, commit, takeover, None])
            self.broker.coming = [[dice.randrange(60), what], [dice.randrange(5), die]]
            if what is None or dice.random() < 0.3:
                self.broker.coming.pop()
            self.run(self.work(which, dice.randint(1, 20), dice))
            if None in self.workers or dice.random() < 0.2:
                give = frozenset(number for number in range(5) if dice.random() < 0.5)
                self.hears(give, deaf=dice.choice([(), (), (0,), (1,)]))

    async def work(self, which, batches, dice):
        """Batches one after the other; those of two partitions beside each other."""
        for _ in range(batches if self.workers[which] is not None else 0):
            at = self.at[which]
            logs = self.broker.logs
            todo = [tp for tp in sorted(at) if at[tp] < len(logs[tp])]
            worker = self.workers[which]
            doing = []
            for tp in dice.sample(todo, min(len(todo), dice.choice([1, 1, 2]))):
                batch = logs[tp][at[tp] :][: dice.randint(1, 30)]
                at[tp] = batch[-1].offset + 1
                doing.append(self.survives(which, worker.process(batch)))
            if not todo:
                return
            await asyncio.gather(*doing)

    async def commits(self, which):
        """The clock of a worker commits while it works; the commit may arrive later."""
        if self.workers[which] is not None:
            committing = self.survives(which, self.workers[which].commit())
            self.beside.append(asyncio.ensure_future(committing))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def takes_over(self, which, dice):
        """The other worker has all partitions, and goes on; this one may not know yet."""
        self.broker.owners.clear()
        if dice.random() < 0.5 and self.workers[which] is not None:
            self.are_told = True
            self.workers[which].pings.revoke()
            self.workers[which].parts.revoke()
        await self.take(1 - which, set(self.partitions))
        await self.work(1 - which, dice.randint(0, 10), dice)

    # --- what operators and brokers do ---

    @rule(number=st.integers(0, 4), is_read=st.sampled_from([True, True, True, False]))
    def records_are_deleted(self, number, is_read):
        """Those that are committed, or also some behind them."""
        for tp in self.partitions[number : number + 1]:
            end = self.broker.offsets[tp].offset if tp in self.broker.offsets else 0
            if self.trouble == "loss" and not is_read and end < len(self.broker.logs[tp]):
                end += 1
                self.is_lossy = True
                self.is_exact = False
            self.broker.begins[tp] = max(self.broker.begins[tp], end)

    @precondition(lambda self: self.trouble == "settings")
    @rule(epsilon=st.sampled_from(["0.15", "0.2"]))
    def both_start_with_other_settings(self, epsilon):
        if self.kind not in ("prices", "add-remove", "days"):
            self.settings = settings_of(self.kind, f"release.mean_epsilon={epsilon}")
            self.is_exact = False
            self.start_anew()

    @precondition(lambda self: self.trouble == "set back")
    @rule()
    def clocks_of_the_log_are_set_back(self):
        self.is_exact = False
        self.start_anew(lambda: START + self.minute * MINUTE)

    def start_anew(self, back_to_ms=None):
        self.ends(0)
        self.ends(1)
        self.broker.owners.clear()
        self.run(self.take(0, set(self.partitions), back_to_ms))

    @rule(number=st.integers(0, 20))
    def a_hat_is_withdrawn(self, number):
        entries = [one for one in self.ledger.entries() if kind_of(one.release_id) == HAT]
        hats = sorted(one.release_id for one in entries if one.payload)
        for id_ in set(hats[number : number + 1]) - self.withdrawn:
            self.withdrawn.add(id_)
            withdraw(self.ledger, [id_], "a wrong unit", "2024-01-02T00:00:00+00:00", "test")
            self.is_exact = self.is_exact and not self.learns

    @property
    def learns(self):
        return promise_of(self.settings.policy).learns(self.settings.policy)

    @precondition(lambda self: self.kind == "by the hour")
    @rule()
    def what_is_over_is_archived(self):
        self.comes_to_rest()
        newest = max(
            (Id.of(one).slot[0] for one in self.ledger.said if kind_of(one) == HAT), default=0
        )
        waiting = dict(self.ledger.unpublished())
        with TemporaryDirectory() as folder, suppress(UsageError):
            archive(self.ledger, newest, Path(folder, "archive"))
            self.is_archived = True
        # The verb says how many never reached a reader.
        gone = waiting.keys() - dict(self.ledger.unpublished()).keys()
        self.withdrawn = {id_ for id_ in self.withdrawn if withdrawal_id(id_) not in gone}

    # --- the end ---

    def comes_to_rest(self):
        """A worker without faults does all that is left, by clocks that are right; what was told a
        later time is waited for."""
        self.start_anew()
        self.broker.wrong_ms = 0
        dice = random.Random(0)
        before = -1
        while (now := sum(map(len, self.broker.logs.values()))) > before:
            before = now
            self.run(self.work(0, 10**6, dice))
            ahead_ms = self.workers[0].pings.ahead_ms(self.broker.now_ms)
            self.pass_by(2 + max(0, ahead_ms) // MINUTE)
            self.run(self.workers[0].pings.tick(self.broker.now_ms))
        self.run(self.workers[0].commit())

    def teardown(self):
        try:
            if not self.is_over and self.settings is not None:
                self.ends_well()
        finally:
            self.loop.close()

    def ends_well(self):
        self.comes_to_rest()
        self.ping_for(16, 0)  # withdrawals are published beside later slots
        self.pass_by(16 * self.step)
        self.comes_to_rest()
        self.require_charged_once()
        self.require_done()
        if self.is_exact:
            self.require_same()
        told = [one for one in self.ledger.said if kind_of(one) == CITY_HOUR]
        require(bool(told) == (self.kind == "city's hour"), f"the city told of {told}")

    def require_charged_once(self):
        require(self.ledger.verify() == [], f"{self.ledger.verify()}")
        spent = Counter()
        for entry in self.ledger.entries():
            name = entry.release_id
            require(len(set(entry.plates)) == len(entry.plates), f"{name} names a plate twice")
            for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
                spent[entry.period, plate] += nano
                require(spent[entry.period, plate] <= entry.budget, f"{name} is over the budget")
            if kind_of(name) == HAT and entry.payload and self.kind in CHARGED_ALIKE:
                said = round(Release.decode(entry.payload).privacy.epsilon * NANO)
                most = max(entry.charged.tolist(), default=0)
                # Where the plan is lost, and that is accepted, the slot is released without HATs.
                is_lost = self.trouble == "loss" and not said
                require(said == most or is_lost, f"{name} was charged {most}, and says {said}")

    def require_done(self):
        for tp in self.partitions:
            end = len(self.broker.logs[tp])
            held = {self.broker.offsets[tp].offset}
            if tp.topic == TOPICS.parts.name:  # a day's slots are kept, and hold up nothing
                at = decode_checkpoint(self.broker.offsets[tp].metadata, 0).checkpoint
                held = {one.offset for one in (at.shard, at.planner) if one is not None}
            require(held == {end}, f"{tp} is held at {held} of {end}")
        waiting = [id_ for id_, _ in self.ledger.unpublished() if kind_of(id_) in PUBLISHED]
        require(not waiting, f"{waiting} were never published")
        rejoin = self.broker.rejoins == self.broker.fenced
        require(rejoin or self.are_told, "who is fenced off does not rejoin")
        told = outcome(self.broker)[0]
        missing = [id_ for id_ in map(withdrawal_id, self.withdrawn) if id_.encode() not in told]
        require(not missing, f"the withdrawals {missing} were never published")

    def require_same(self):
        expected = embedded(
            self.broker, self.settings, MeanSpeed() if self.kind == "city" else None
        )
        said = {id_.encode(): one for id_, one in self.ledger.said.items() if kind_of(id_) == HAT}
        require(said.keys() == expected.releases.keys(), "other HATs than on one machine")
        require(outcome(self.broker)[1].keys() == expected.refused, "other refusals")
        if self.is_alike:
            require(said == expected.releases, "other bytes than on one machine")
            self.require_like(expected.ledger, "records", lambda one: one.payload)
            estimates = list(dict.fromkeys(smoothed(self.broker)))
            require(estimates == expected.smoothed, "other estimates than on one machine")
        if self.is_alike or not self.learns:
            self.require_like(expected.ledger, "charges", charges_of)

    def require_like(self, ledger, text, told):
        """All that is left in our ledger, but withdrawals, is the same as in this one."""
        ours, theirs = (
            {
                one.release_id: told(one)
                for one in each.entries()
                if kind_of(one.release_id) != WITHDRAWN
            }
            for each in (self.ledger, ledger)
        )
        same = ours.items() <= theirs.items() if self.is_archived else ours == theirs
        require(same, f"other {text} than on one machine")


def charges_of(entry):
    return sorted(zip(entry.plates, entry.charged.tolist(), strict=True))
