"""A broker in memory, and workers over it: the processors of `streams/` with a ledger, killed
between any two of their effects."""

import asyncio
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from faust.types import TP

from streams.kafka import CommittedOffset
from streams.processors import ProcessorContext, ShardProcessor, SourceProcessor
from streams.topics import LedgerIdentity, topics_of
from tests.failing import Died
from udp_stream.base.errors import Fenced
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.query_pipeline import QueryContext, QuerySet
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.slots import ReadingRules

FLAGS = (
    "hat.slot=1h", "hat.timezone=UTC", "release.min_plates=2", "budget.accounting=pure", "release.mean_epsilon=1.0",
    "kafka.partitions=2",
)  # fmt: skip
SETTINGS = load(None, FLAGS, {})
TOPICS = topics_of(SETTINGS.kafka)
START = 1_704_067_200_000
MINUTE = 60_000
OURS = LedgerIdentity("5eed", "cafe")


class Broker:
    """Logs in memory, and the offsets of one group; it may die before or after anything that is
    asked of it."""

    def __init__(self, dice=None):
        self.logs = defaultdict(list)
        self.offsets = {}
        self.begins = defaultdict(int)
        self.now_ms = START
        self.wrong_ms = 0
        self.dice = dice
        self.dies = 0.12
        self.is_read_to_end = True
        self.epochs = defaultdict(int)
        self.fenced = self.rejoins = self.seeks = 0

    async def effect(self):
        """Called before and after each effect."""
        if self.dice is not None and self.dice.random() < self.dies:
            raise Died

    def append(self, topic, partition, value, headers=()):
        log = self.logs[TP(topic, partition)]
        log.append(
            SimpleNamespace(
                topic=topic,
                partition=partition,
                offset=len(log),
                timestamp=self.now_ms + self.wrong_ms,
                timestamp_type=1,
                value=value,
                headers=tuple(headers),
            )
        )

    async def write(self, messages):
        for one in list(messages):
            await self.effect()
            self.append(one.topic, one.partition or 0, one.value, one.headers)
        await self.effect()

    async def send(self, messages):
        await self.write(messages)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def commit(self, offsets):
        await self.effect()
        self.offsets |= offsets
        await self.effect()
        return True

    async def committed(self, tps):
        return {tp: self.offsets.get(tp, CommittedOffset(-1, "")) for tp in tps}

    async def first(self, tps):
        return {tp: self.begins[tp] for tp in tps}

    async def ends(self, tps):
        return {tp: len(self.logs[tp]) for tp in tps}

    async def is_read(self, tp, next_offset):
        return self.is_read_to_end and next_offset == len(self.logs[tp])

    async def partitions(self, _topic, before):
        assert before in (0, 2)
        return 2

    async def rejoin(self):
        self.rejoins += 1

    async def seek(self):
        self.seeks += 1

    def resumes_at(self, tp):
        """Where a consumer that is assigned this partition reads on."""
        committed = self.offsets.get(tp, CommittedOffset(0, ""))
        return max(self.begins[tp], committed.offset)

    def of_topic(self, topic):
        return {tp: log for tp, log in self.logs.items() if tp.topic == topic.name}


class Once:
    """A transaction as the broker keeps it: all or nothing, and only for the latest of a shard."""

    def __init__(self, broker, shard):
        self.broker = broker
        self.shard = shard
        broker.epochs[shard] += 1
        self.epoch = broker.epochs[shard]

    async def publish(self, messages, checkpoint):
        await self.broker.effect()
        if self.broker.epochs[self.shard] != self.epoch:
            self.broker.fenced += 1
            raise Fenced("a later epoch")
        for one in messages:
            self.broker.append(one.topic, one.partition or 0, one.value, one.headers)
        self.broker.offsets |= checkpoint
        await self.broker.effect()

    async def close(self):
        """Nothing is open."""


def rules_of(settings, context, moments=None, hash_plate=str.encode):
    slots = context.calendar.slots
    decoder = PingDecoder(settings.ping_rules, JSON)
    return ReadingRules(decoder, settings.window_rules, slots, hash_plate, moments)


def context_of(settings, entropy=None, city=None):
    return ReleaseContext(
        settings.policy,
        settings.calendar,
        SeededEntropy(1) if entropy is None else entropy,
        "test",
        city=city,
        judges_unit=settings.judges_unit,
        domain=settings.domain,
    )


def queries_of(settings, context):
    """The standing queries; None where none are asked."""
    asked = settings.standing_queries
    of_positions = QueryContext(settings.position_periods, context)
    return QuerySet(asked, settings.zone, of_positions) if asked else None


class Worker:
    def __init__(
        self,
        broker,
        ledger,
        thread,
        settings=SETTINGS,
        once=False,
        accept_loss=False,
        binding=OURS,
        observers=(),
        city=None,
        back_to_ms=None,
        entropy=None,
        hash_plate=str.encode,
        offsets=None,
    ):
        """`offsets`: its place in the group; without it, the group has nobody else."""
        context = context_of(settings, entropy, city)
        self.broker = broker
        self.time_s = 0.0
        self.wrong_ms = 0
        self.topics = topics_of(settings.kafka)
        queries = queries_of(settings, context)
        common = ProcessorContext(
            self.topics,
            broker if offsets is None else offsets,
            broker,
            binding,
            accept_loss,
            observers,
            queries,
            back_to_ms,
        )
        rules = rules_of(settings, context, queries and queries.moments, hash_plate)
        self.pings = SourceProcessor(common, rules, 60, clock=lambda: self.time_s)
        self.parts = ShardProcessor(common, context, ledger, thread, self.once if once else None)

    async def once(self, shard):
        return Once(self.broker, shard)

    @property
    def all_partitions(self):
        sources = {TP(TOPICS.pings.name, 0), TP(TOPICS.pings.name, 1)}
        return sources | {
            TP(TOPICS.parts.name, shard) for shard in range(self.topics.parts.partitions)
        }

    async def assign(self, tps=None):
        """Take these partitions, or all."""
        tps = self.all_partitions if tps is None else tps
        await self.pings.assign({tp for tp in tps if tp.topic == TOPICS.pings.name})
        await self.parts.assign({tp for tp in tps if tp.topic == TOPICS.parts.name})

    async def process(self, batch):
        await (self.pings if batch[0].topic == TOPICS.pings.name else self.parts).process(batch)

    async def commit(self):
        await self.pings.commit()
        await self.parts.commit()

    async def run(self, dice):
        """Take over, read everything in batches, tell silent partitions the time, until nothing
        more comes."""
        await self.assign()
        logs = self.broker.logs
        at = {tp: self.broker.resumes_at(tp) for tp in self.all_partitions}
        while True:
            todo = [tp for tp in sorted(at) if at[tp] < len(logs[tp])]
            if not todo:
                self.time_s += 100
                before = sum(map(len, logs.values()))
                await self.pings.tick(self.broker.now_ms)
                if sum(map(len, logs.values())) == before:
                    await self.commit()
                    return
                continue
            tp = dice.choice(todo)
            batch = logs[tp][at[tp] :][: dice.randint(1, 30)]
            at[tp] = batch[-1].offset + 1
            await self.process(batch)


async def lives(broker, dice, ledger=None, settings=SETTINGS, once=False, city=None):
    """Workers one after another on one ledger until one comes through; how many died."""
    ledger = ledger or MemoryLedger()
    deaths = 0
    with ThreadPoolExecutor(1) as thread:
        while True:
            try:
                await Worker(broker, ledger, thread, settings, once, city=city).run(dice)
            except Died:
                deaths += 1
                if deaths > 200:
                    broker.dice = None
            else:
                assert ledger.verify() == [] and list(ledger.unpublished()) == []
                return deaths


def outcome(broker):
    """Payload by release id, refusals by id: the same, whoever died how often."""
    releases, refused = {}, {}
    for record in broker.logs[TP(TOPICS.release.name, 0)]:
        id_ = dict(record.headers)["ce_id"]
        assert releases.setdefault(id_, record.value) == record.value
    for record in broker.logs[TP(TOPICS.rejected.name, 0)]:
        refused[dict(record.headers)["udp-stream.errors.id"]] = record.value
    return releases, refused


def smoothed(broker):
    """Estimates in the order in which each was first written."""
    return [one.value for one in broker.logs[TP(TOPICS.smoothed.name, 0)]]


def charges(ledger):
    """Who was charged what, by release id."""
    assert ledger.verify() == []
    return {
        entry.release_id: sorted(zip(entry.plates, entry.charged.tolist(), strict=True))
        for entry in ledger.entries()
    }
