"""The metadata of a commit on the shuffle topic: the checkpoint of the shard, on partition 0 of the planner, and of
queries where they are asked; which ledger the worker uses, and the ledger's high-water mark.

Brokers take 4096 bytes of metadata, and 256 sources and 256 shards may each have closed slots of their own. So it is
packed and compressed (2.9 kB at worst). What sources have closed of moments is written as how far that is from what
they have closed of slots, which is nearly the same for all of them.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
from faust.types import TP

from streams.binding import Binding, mark_header, mark_in, require_same
from streams.kafka import Committed, Needed, Offsets, OutgoingRecord, Producer
from streams.publishing import (
    AtLeastOnce,
    Publisher,
    PublisherOf,
    other_version,
    query_records,
    release_records,
    settle,
    smoothed_records,
)
from streams.topics import OTHER_QUERIES, Topics
from udp_stream.errors import ConfigError, Fenced
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.charge import ReleaseContext, plan_slot, with_forecaster
from udp_stream.release.facts import Observer, PublishedRelease, SlotCounted, report_recorded, report_to, slot_published
from udp_stream.release.query_road import QuerySet, report_answers, report_published
from udp_stream.release.road import factors_once, record_city, record_slot, slot_norms, slot_sums
from udp_stream.shuffle import protocol as steps
from udp_stream.shuffle.barrier import BarrierCheckpoint
from udp_stream.shuffle.protocol import AskCity, Measure, Remember, ShardCheckpoint, ShardProtocol
from udp_stream.shuffle.wire import PLANNER, PositionsEnd, decode_message, encode_message, merge_counts, merge_moment
from udp_stream.windows.tables import tabulate


class _Metadata(msgspec.Struct, frozen=True, array_like=True):
    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    binding: str = ""
    mark: Mark | None = None
    moments: BarrierCheckpoint | None = None


class ShardCommit(NamedTuple):
    """A commit's metadata; `binding` is the text of `binding.py`, None if the offsets were set by hand."""

    checkpoint: ShardCheckpoint
    binding: str | None
    mark: Mark | None


def encode_checkpoint(checkpoint: ShardCheckpoint, binding: str, mark: Mark | None) -> str:
    """The metadata of a commit."""
    moments = _shifted(checkpoint.moments, checkpoint.shard, -1)
    found = _Metadata(checkpoint.shard, checkpoint.planner, binding, mark, moments)
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(found), 9)).decode()


def decode_checkpoint(metadata: str, offset: int, name: str = "the commit") -> ShardCommit:
    """Undo `encode_checkpoint`. Offsets that were set by hand come without metadata. ConfigError, which names the
    commit, for anything else."""
    if not metadata:
        return ShardCommit(ShardCheckpoint.at(offset), None, None)
    try:
        found = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(metadata)), type=_Metadata)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise other_version(name) from error
    checkpoint = ShardCheckpoint(found.shard, found.planner, _shifted(found.moments, found.shard, 1))
    return ShardCommit(checkpoint, found.binding, found.mark)


def _shifted(moments: BarrierCheckpoint | None, shard: BarrierCheckpoint, sign: int) -> BarrierCheckpoint | None:
    """The times up to which sources have closed moments, plus or minus those for slots, where there are any."""
    if moments is None:
        return None
    others = (*shard.through_ms, *[0] * len(moments.through_ms))
    through_ms = tuple(ms + sign * other for ms, other in zip(moments.through_ms, others, strict=False))
    return BarrierCheckpoint(moments.offset, through_ms, moments.done_ms)


# A partition of the shuffle topic in the hands of this worker.
#
# Of the workers that think a shard is theirs, the ledger serves the one that was assigned it last: the fence.


@runtime_checkable
class Fencing(Protocol):
    """A ledger that lets only the latest owner of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; owners with an earlier one are refused from now on."""
        ...

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the owner of (shard, epoch)."""
        ...


def fenced_for(ledger: Ledger, shard: str) -> Ledger:
    """The ledger for the new owner of this shard; the same one where it knows no fences."""
    if not isinstance(ledger, Fencing):
        return ledger
    from udp_stream.ledgers.redis import Fence

    return ledger.fenced(Fence(shard, ledger.take_epoch(shard)))


@dataclass(slots=True)
class ShardAssignment:
    """Its protocol, its fenced ledger, how it publishes, and what it releases with."""

    partition: int
    protocol: ShardProtocol
    ledger: Ledger
    publisher: Publisher
    context: ReleaseContext
    begun: int = 0
    """The partition's end when it became ours: who writes behind that is running now."""
    committed: ShardCheckpoint | None = None

    def add(self, record: Any, asked: str) -> None:
        """Add a record of the partition. ConfigError if another version wrote it, or if its writer, who is running,
        asks other queries than `asked`."""
        try:
            message = decode_message(record.value)
        except msgspec.DecodeError as error:
            where = f"{record.topic}[{record.partition}], offset {record.offset},"
            raise other_version(f"the message at {where}") from error
        # An empty `asked` is no other configuration: it tells up to when moments are lost.
        if record.offset >= self.begun and isinstance(message, PositionsEnd) and message.asked not in ("", asked):
            raise ConfigError(f"the writer of {record.topic}[{record.partition}] at {record.offset} {OTHER_QUERIES}")
        self.protocol.add(record.offset, message)

    def checkpoint_if_moved(self) -> ShardCheckpoint | None:
        """The checkpoint to commit, if there is a new one and it is safe."""
        if not self.protocol.may_commit or (to := self.protocol.checkpoint()) == self.committed:
            return None
        return to

    def measure(self, step: Measure) -> tuple[PlateNorms, tuple[int, ...]]:
        """How far the slot's plates are from their forecasts, and its part of the sums over the whole city. Secret."""
        of_slot = step.counts, step.values, step.plan
        return slot_norms(*of_slot, self.context.policy), slot_sums(self.context.city, *of_slot)

    def ask_city(self, step: AskCity) -> None:
        """Record what the whole city is asked."""
        record_city(self.context.city, step.sums, step.plan, self.context.entropy, self.ledger)

    def remember(self, step: Remember) -> dict[bytes, int]:
        """Remember the plates' norms; the factors that hold."""
        slot = step.start, step.end_ms
        return factors_once(step.norms, step.expected, slot, self.context, self.ledger)


# Shard processor: carries out the protocol of each of our shards, and on partition 0 of the planner, over Kafka.
#
# What is due, and what may be committed, is decided in `shuffle/protocol.py`. Here messages are read and sent, the
# ledger is called, slots are published, and checkpoints are committed.
#
# Releases are published, and with them or after them the checkpoint moves past the slot (`publishing.py`); then the
# ledger is informed. If a worker dies before that, the next owner of the shard informs it. Checkpoints are committed
# one after the other: one that arrived late would undo what was published meanwhile.
#
# The planner charges under the fence of partition 0, shards record under their own. What the planner learns from
# releases, it learns anew whenever partition 0 is assigned: another worker may have planned meanwhile. Rounds of
# queries are charged and recorded by the shard that has the moment's positions.

T = TypeVar("T")


class ShardProcessor:
    """The shards that are assigned to this worker."""

    def __init__(
        self,
        context: ReleaseContext,
        topics: Topics,
        offsets: Offsets,
        producer: Producer,
        ledger: Ledger,
        binding: Binding,
        thread: ThreadPoolExecutor,
        accept_loss: bool = False,
        publisher_of: PublisherOf | None = None,
        observers: Sequence[Observer] = (),
        queries: QuerySet | None = None,
    ) -> None:
        """No shards yet. The ledger is called in `thread` alone. Without `publisher_of`, releases are at least once."""
        self._mark: Mark | None = None
        self._context, self._topics, self._offsets = context, topics, offsets
        self._binding, self._producer, self._ledger, self._thread = binding, producer, ledger, thread
        self._accept_loss = accept_loss
        self._needed = Needed(offsets, "chunks were deleted before they were released", accept_loss)
        self._queries, self._asked = queries, "" if queries is None else queries.digest
        self._publisher_of = self._at_least_once if publisher_of is None else publisher_of
        self._assignments: dict[int, ShardAssignment] = {}
        self._last_plan: SlotPlan | None = None  # our own planner has priced most HATs that we release
        self._revocations, self._committing = 0, asyncio.Lock()
        self.done = 0  # steps, for the watchdog: one batch may hold many slots, and nothing is read meanwhile
        self._closing: set[asyncio.Future[None]] = set()
        self._report = report_to(*observers)

    def revoke(self) -> None:
        """The partitions are no longer ours: drop their state at once."""
        self._revocations += 1
        for assigned in self._assignments.values():
            self._close_later(assigned.publisher)
        self._assignments = {}

    async def close(self) -> None:
        """Drop all partitions, and close their publishers."""
        self.revoke()
        await asyncio.gather(*self._closing)

    def next_offsets(self) -> dict[TP, int]:
        """The next offset to read, for each of our partitions."""
        return {TP(self._topics.parts.name, of): one.protocol.next_offset for of, one in self._assignments.items()}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours: fence off their former owners, and only then read the checkpoints."""
        self.revoke()
        async with self._takeover(tps) as (publishers, assignments):
            committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
            ends = await self._offsets.ends(tps)
            for tp, publisher in publishers.items():
                start = await self._committed_checkpoint(tp, committed[tp], first[tp], ends[tp])
                assignments[tp.partition] = await self._resume(tp, start, publisher, ends[tp])
        await self._needed.go_back(self.commit)

    @asynccontextmanager
    async def _takeover(self, tps: set[TP]) -> AsyncIterator[tuple[Mapping[TP, Publisher], dict[int, ShardAssignment]]]:
        """Publishers of these partitions, and the assignments to be made of them. These are ours at the end, unless
        that failed or the partitions were revoked meanwhile; then the publishers are closed."""
        revocations = self._revocations
        publishers = dict(zip(tps, await asyncio.gather(*map(self._publisher_of, tps)), strict=True))
        assignments, is_whole = dict[int, ShardAssignment](), False
        try:
            yield publishers, assignments
            is_whole = revocations == self._revocations
        finally:
            if is_whole:
                self._assignments = assignments
            else:
                for publisher in publishers.values():
                    self._close_later(publisher)

    async def _resume(self, tp: TP, start: ShardCheckpoint, publisher: Publisher, end: int) -> ShardAssignment:
        """A partition from its checkpoint on; the ledger is informed of what its former owner published."""
        shards, known = self._topics.parts.partitions, len(start.shard.through_ms)
        sources, follows = self._offsets.partitions(self._topics.pings.name, known), self._context.policy.forecasts
        periods = None if self._queries is None else self._queries.periods
        given = self._accept_loss, follows, periods is not None, self._asked
        protocol = ShardProtocol(tp.partition, shards, sources, start, *given)
        ledger = await self._in_thread(partial(fenced_for, self._ledger, f"{tp.topic}/{tp.partition}"))
        through = protocol.done_ms, protocol.answered_ms
        await self._in_thread(partial(settle, self._ledger, tp.partition, shards, *through, periods))
        if isinstance(step := protocol.next(), steps.Send):  # what the former owner released, and may have died on
            await self._send(step.messages)
            protocol.sent(step)
        context = with_forecaster(self._context) if follows and tp.partition == PLANNER else self._context
        return ShardAssignment(tp.partition, protocol, ledger, publisher, context, end)

    def _close_later(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _at_least_once(self, _tp: TP) -> Publisher:
        return AtLeastOnce(self._producer, self._offsets)

    async def _committed_checkpoint(self, tp: TP, committed: Committed, first: int, end: int) -> ShardCheckpoint:
        """Where to resume. PrivacyRefused if the last worker used another ledger, or if ours is older than its mark."""
        if committed.offset < 0:
            return ShardCheckpoint.at(first)
        name = f"the last commit of {tp.topic}[{tp.partition}]"
        found = decode_checkpoint(committed.metadata, committed.offset, name)
        if found.binding is not None:
            self._binding.require(found.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        if found.mark is not None:
            await self._in_thread(lambda: self._ledger.compare(found.mark))
            self._remember_mark(found.mark)
        again = self._needed.restart_offset(tp, first, end, committed.offset, found.checkpoint.read_to)
        return found.checkpoint if again is None else found.checkpoint.with_offset(again)

    def _remember_mark(self, mark: Mark | None) -> None:
        """Remember the highest mark of the ledger that any worker has seen."""
        if mark is not None and (self._mark is None or mark.at_least(self._mark)):
            self._mark = mark

    async def process(self, records: Sequence[Any]) -> None:
        """Process a batch of one partition: add it, do what is due, commit."""
        if (assigned := self._assignments.get(records[0].partition)) is None:
            return
        await self._needed.require_before(records, assigned.protocol.next_offset)
        for one in records:
            require_same(self._binding, one.headers, f"the writer of {one.topic}[{one.partition}] at {one.offset}")
            self._remember_mark(mark_in(one.headers))
            assigned.add(one, self._asked)
        try:
            worked = await self._do_what_is_due(assigned)
        except Fenced:
            await self._leave(assigned)
            return  # its owner does the same
        if worked:
            await self.commit()

    async def _do_what_is_due(self, assigned: ShardAssignment) -> bool:
        """Carry out steps of the protocol until none is due, or the partition is lost; whether there was one."""
        worked = False
        while self._is_ours(assigned) and (step := assigned.protocol.next()) is not None:
            await self._work[type(step)](assigned, step)
            self.done, worked = self.done + 1, True
        return worked

    @property
    def _work(self) -> Mapping[type, Callable[[ShardAssignment, Any], Awaitable[None]]]:
        """What carries out each step."""
        work: dict[type, Callable[[ShardAssignment, Any], Awaitable[None]]] = {steps.Send: self._send_all}
        work |= {steps.Count: self._count, steps.Measure: self._measure, steps.Release: self._release}
        work |= {steps.PlanSlot: self._plan, steps.AskCity: self._ask_city, steps.Learn: self._learn}
        return work | {steps.Remember: self._remember, steps.Answer: self._answer}

    async def _leave(self, assigned: ShardAssignment) -> None:
        """Another worker owns this shard, though the group has not said so yet: drop it, and ask to rejoin."""
        if self._is_ours(assigned):
            self._close_later(self._assignments.pop(assigned.partition).publisher)
            await self._offsets.rejoin()

    def _is_ours(self, assigned: ShardAssignment) -> bool:
        return self._assignments.get(assigned.partition) is assigned

    async def _count(self, assigned: ShardAssignment, step: steps.Count) -> None:
        counts, values = await self._in_thread(partial(tabulate, step.pings))
        self._report(SlotCounted(step.start, counts.repeats))
        assigned.protocol.counted(step.start, counts, values)

    async def _plan(self, assigned: ShardAssignment, step: steps.PlanSlot) -> None:
        counts = await self._in_thread(partial(merge_counts, step.chunks))
        plan = await self._in_thread(partial(plan_slot, counts, assigned.context, assigned.ledger))
        # A plan that was charged on an older copy of the ledger must not outlive it in the log.
        await self._in_thread(lambda: assigned.ledger.compare(self._mark))
        assigned.protocol.planned(step.start, counts, plan)
        self._last_plan = plan

    async def _learn(self, assigned: ShardAssignment, step: steps.Learn) -> None:
        """Publish the slot's smoothed estimates, with the checkpoint behind its counts."""
        smoothed = partial(assigned.context.smoothed, (step.start, step.end_ms), assigned.ledger)
        records = smoothed_records(self._topics, await self._in_thread(smoothed))
        # An older copy of the ledger lacks releases: what was not learnt from it would never be said.
        await self._in_thread(lambda: assigned.ledger.compare(self._mark))
        protocol = assigned.protocol
        await self._publish(assigned, records, None, partial(protocol.publishing, step), partial(protocol.learnt, step))

    async def _measure(self, assigned: ShardAssignment, step: steps.Measure) -> None:
        norms, city = await self._in_thread(partial(assigned.measure, step))
        assigned.protocol.measured(step, norms, city)

    async def _ask_city(self, assigned: ShardAssignment, step: steps.AskCity) -> None:
        await self._in_thread(partial(assigned.ask_city, step))
        assigned.protocol.city_asked()

    async def _remember(self, assigned: ShardAssignment, step: steps.Remember) -> None:
        factors = await self._in_thread(partial(assigned.remember, step))
        # Factors that an older copy of the ledger allows must not outlive it in the log.
        await self._in_thread(lambda: assigned.ledger.compare(self._mark))
        assigned.protocol.remembered(factors)

    async def _release(self, assigned: ShardAssignment, step: steps.Release) -> None:
        plan = step.plan if self._last_plan is None else step.plan.with_priced(self._last_plan)
        work = step.counts, step.values, plan, assigned.context, assigned.ledger, step.factors
        recorded = await self._in_thread(partial(record_slot, *work))
        releases = [PublishedRelease(payload) for payload in recorded.payloads.values()]
        report_recorded(self._report, step.counts, recorded, releases)
        protocol, start = assigned.protocol, step.start
        out = release_records(self._topics, releases)
        published = partial(protocol.recorded, start), partial(protocol.published, start)
        await self._publish(assigned, out, recorded.mark, *published)
        await self._in_thread(partial(recorded.published, assigned.ledger))
        self._report(slot_published(step.start, releases))

    async def _answer(self, assigned: ShardAssignment, step: steps.Answer) -> None:
        """Answer the queries of a moment, in the shard's own rounds of charging and drawing; then publish them."""
        moment = await self._in_thread(partial(merge_moment, step.chunks))
        work = (lambda: None) if self._queries is None else partial(self._queries.record, moment, assigned.ledger)
        recorded, protocol = await self._in_thread(work), assigned.protocol
        answers = recorded.answers if recorded else ()
        report_answers(self._report, step.time_ms, answers)
        out, mark = query_records(self._topics, answers), recorded.mark if recorded else None
        await self._publish(assigned, out, mark, partial(protocol.answering, step), partial(protocol.answered, step))
        if recorded is not None:
            await self._in_thread(partial(recorded.published, assigned.ledger))
            report_published(self._report, step.time_ms, answers)

    async def _publish(
        self,
        assigned: ShardAssignment,
        records: Sequence[OutgoingRecord],
        mark: Mark | None,
        checkpoint: Callable[[], ShardCheckpoint],
        done: Callable[[], None],
    ) -> None:
        """Publish records with the checkpoint behind them, once no other commit is under way."""
        async with self._committing:
            if not self._is_ours(assigned):
                raise Fenced("a rebalance has taken the shard")
            if mark is not None and self._mark is not None and not mark.at_least(self._mark):
                # Another machine has seen the ledger further than the mark that is kept on this one.
                await self._in_thread(lambda: self._ledger.compare(self._mark))
            to = checkpoint()
            self._remember_mark(mark)
            await assigned.publisher.publish(records, self._commits({assigned.partition: to}))
            done()
            assigned.committed = to

    async def _send_all(self, assigned: ShardAssignment, step: steps.Send) -> None:
        await self._send(step.messages)
        assigned.protocol.sent(step)

    async def _send(self, messages: Sequence[steps.Outgoing]) -> None:
        name, headers = self._topics.parts.name, [self._binding.header, *mark_header(self._mark)]
        await self._producer.write(
            OutgoingRecord(name, encode_message(message), headers=headers, partition=partition)
            for partition, message in messages
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run slow work in the ledger's thread, so that it blocks only the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def commit(self) -> None:
        """Commit the checkpoints that have moved, if everything before them has been sent.

        It runs to its end even if its caller is cancelled: until it has arrived, nothing else may move a checkpoint.
        """
        await asyncio.shield(self._commit())

    async def _commit(self) -> None:
        async with self._committing:
            checkpoints = [(assigned, assigned.checkpoint_if_moved()) for assigned in self._assignments.values()]
            moved = [(assigned, to) for assigned, to in checkpoints if to is not None]
            if moved and await self._offsets.commit(self._commits({one.partition: to for one, to in moved})):
                for assigned, to in moved:
                    assigned.committed = to

    def _commits(self, checkpoints: Mapping[int, ShardCheckpoint]) -> dict[TP, Committed]:
        name, known = self._topics.parts.name, (self._binding.text, self._mark)
        return {TP(name, of): Committed(to.offset, encode_checkpoint(to, *known)) for of, to in checkpoints.items()}
