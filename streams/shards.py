"""Shard processor: carries out the protocol of each of our shards, and on partition 0 of the planner, over Kafka.

What is due, and what may be committed, is decided in `shuffle/protocol.py`. Here messages are read and sent, the
ledger is called, slots are published, and checkpoints are committed.

Releases are published, and with them or after them the checkpoint moves past the slot (`publishing.py`); then the
ledger is informed. If a worker dies before that, the next owner of the shard informs it. Checkpoints are committed one
after the other: one that arrived late would undo what was published meanwhile.

The planner charges under the fence of partition 0, shards record under their own: of the workers that think a shard is
theirs, the ledger serves the one that was assigned it last. What the planner learns from releases, it learns anew
whenever partition 0 is assigned: another worker may have planned meanwhile. Rounds of queries are charged and recorded
by the shard that has the moment's positions.

The metadata of a commit has the checkpoint of the shard, on partition 0 of the planner, and of queries where they are
asked; which ledger the worker uses, and the ledger's high-water mark. Brokers take 4096 bytes of it, and 256 sources
and 256 shards may each have closed slots of their own. So it is packed and compressed (2.9 kB at worst). What sources
have closed of moments is written as how far that is from what they have closed of slots: nearly the same for all.
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

from streams.binding import mark_header, mark_in, other_version
from streams.consumer import Assignment, Common, Partitions, Place
from streams.kafka import OutgoingRecord
from streams.publishing import (
    AtLeastOnce,
    Publisher,
    PublisherOf,
    query_records,
    release_records,
    settle,
    smoothed_records,
)
from streams.topics import OTHER_QUERIES
from udp_stream.errors import ConfigError, Fenced
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.charge import ReleaseContext, plan_slot, with_forecaster
from udp_stream.release.facts import PublishedRelease, SlotCounted, report_recorded, slot_published
from udp_stream.release.query_road import report_answers, report_published
from udp_stream.release.road import factors_once, record_city, record_slot, slot_norms, slot_sums
from udp_stream.shuffle import protocol as steps
from udp_stream.shuffle.barrier import BarrierCheckpoint
from udp_stream.shuffle.protocol import ShardCheckpoint, ShardProtocol
from udp_stream.shuffle.wire import PLANNER, PositionsEnd, decode_message, merge_counts, merge_moment
from udp_stream.windows.tables import SlotCounts, tabulate


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
class ShardAssignment(Assignment):
    """One of our shards: its protocol, its fenced ledger, how it publishes, and what it releases with."""

    protocol: ShardProtocol
    ledger: Ledger
    publisher: Publisher
    context: ReleaseContext
    begun: int = 0
    """The partition's end when it became ours: who writes behind that is running now."""

    @property
    def next_offset(self) -> int:
        """The next offset to read."""
        return self.protocol.next_offset


T = TypeVar("T")


class ShardProcessor(Partitions[ShardAssignment]):
    """The shards that are assigned to this worker."""

    lost = "chunks were deleted before they were released"

    def __init__(
        self,
        common: Common,
        context: ReleaseContext,
        ledger: Ledger,
        thread: ThreadPoolExecutor,
        publisher_of: PublisherOf | None = None,
    ) -> None:
        """No shards yet. The ledger is called in `thread` alone. Without `publisher_of`, releases are at least once."""
        super().__init__(common.topics.parts.name, common)
        self._context, self._ledger, self._thread = context, ledger, thread
        self._publisher_of = self._at_least_once if publisher_of is None else publisher_of
        self._mark: Mark | None = None
        self._last_plan: SlotPlan | None = None  # our own planner has priced most HATs that we release
        self._closing: set[asyncio.Future[None]] = set()
        self._work: Mapping[type, Callable[[ShardAssignment, Any], Awaitable[None]]] = {
            steps.Send: self._send_all,
            steps.Count: self._count,
            steps.Measure: self._measure,
            steps.Release: self._release,
            steps.PlanSlot: self._plan,
            steps.AskCity: self._ask_city,
            steps.Learn: self._learn,
            steps.Remember: self._remember,
            steps.Answer: self._answer,
        }

    async def close(self) -> None:
        """Drop all partitions, and close their publishers."""
        self.revoke()
        await asyncio.gather(*self._closing)

    def _drop(self, assigned: ShardAssignment) -> None:
        self._close_later(assigned.publisher)

    def _close_later(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _at_least_once(self, _tp: TP) -> Publisher:
        return AtLeastOnce(self._producer, self._offsets)

    @asynccontextmanager
    async def _fenced(self, tps: set[TP]) -> AsyncIterator[Callable[[Place], Awaitable[ShardAssignment]]]:
        """A publisher for each partition; those of partitions that do not become ours are closed at the end."""
        publishers = dict(zip(tps, await asyncio.gather(*map(self._publisher_of, tps)), strict=True))
        try:
            yield lambda place: self._resume(place, publishers[place.tp])
        finally:
            taken = [assigned.publisher for assigned in self._assignments.values()]
            for publisher in publishers.values():
                if not any(publisher is one for one in taken):
                    self._close_later(publisher)

    async def _resume(self, place: Place, publisher: Publisher) -> ShardAssignment:
        """A partition from its checkpoint on; the ledger is informed of what its former owner published."""
        tp, start = place.tp, await self._start(place)
        shards, known = self._topics.parts.partitions, len(start.shard.through_ms)
        sources, follows = self._offsets.partitions(self._topics.pings.name, known), self._context.policy.forecasts
        given = self._accept_loss, follows, self._periods is not None, self._asked
        protocol = ShardProtocol(tp.partition, shards, sources, start, *given)
        ledger = await self._in_thread(partial(fenced_for, self._ledger, f"{tp.topic}/{tp.partition}"))
        through = protocol.done_ms, protocol.answered_ms
        await self._in_thread(partial(settle, self._ledger, tp.partition, shards, *through, self._periods))
        if isinstance(step := protocol.next(), steps.Send):  # what the former owner released, and may have died on
            await self._send(step.messages)
            protocol.sent(step)
        context = with_forecaster(self._context) if follows and tp.partition == PLANNER else self._context
        return ShardAssignment(tp.partition, protocol, ledger, publisher, context, place.end)

    async def _start(self, place: Place) -> ShardCheckpoint:
        """Where to resume. PrivacyRefused if the last worker used another ledger, or if ours is older than its mark."""
        tp, committed = place.tp, place.committed
        if committed.offset < 0:
            return ShardCheckpoint.at(place.first)
        found = decode_checkpoint(
            committed.metadata, committed.offset, f"the last commit of {tp.topic}[{tp.partition}]"
        )
        if found.binding is not None:
            self._binding.require(found.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        if found.mark is not None:
            await self._in_thread(partial(self._ledger.compare, found.mark))
            self._remember_mark(found.mark)
        again = self._restart_offset(place, found.checkpoint.read_to)
        return found.checkpoint if again is None else found.checkpoint.with_offset(again)

    def _remember_mark(self, mark: Mark | None) -> None:
        """Remember the highest mark of the ledger that any worker has seen."""
        if mark is not None and (self._mark is None or mark.at_least(self._mark)):
            self._mark, self._headers = mark, [self._binding.header, *mark_header(mark)]

    def _read(self, assigned: ShardAssignment, records: Sequence[Any]) -> None:
        """Add the records. ConfigError if another version wrote one, or if its writer, who is running, asks other
        queries."""
        for one in records:
            where = f"{one.topic}[{one.partition}] at {one.offset}"
            self._binding.require_in(one.headers, f"the writer of {where}")
            if (mark := mark_in(one.headers)) is not None:
                self._remember_mark(mark)
            try:
                message = decode_message(one.value)
            except msgspec.DecodeError as error:
                raise other_version(f"the message at {one.topic}[{one.partition}], offset {one.offset},") from error
            # Without `asked` it is no other configuration: it tells up to when moments are lost.
            is_running = one.offset >= assigned.begun
            if is_running and isinstance(message, PositionsEnd) and message.asked not in ("", self._asked):
                raise ConfigError(f"the writer of {where} {OTHER_QUERIES}")
            assigned.protocol.add(one.offset, message)

    async def _carry_out(self, assigned: ShardAssignment, step: Any) -> bool:
        await self._work[type(step)](assigned, step)
        return True

    async def _count(self, assigned: ShardAssignment, step: steps.Count) -> None:
        counts, values = await self._in_thread(partial(tabulate, step.pings))
        self._report(SlotCounted(step.start, counts.repeats))
        assigned.protocol.counted(step.start, counts, values)

    async def _plan(self, assigned: ShardAssignment, step: steps.PlanSlot) -> None:
        def plan_it() -> tuple[SlotCounts, SlotPlan]:
            counts = merge_counts(step.chunks)
            return counts, plan_slot(counts, assigned.context, assigned.ledger)

        counts, plan = await self._compared(assigned, plan_it)
        assigned.protocol.planned(step.start, counts, plan)
        self._last_plan = plan

    async def _learn(self, assigned: ShardAssignment, step: steps.Learn) -> None:
        """Publish the slot's smoothed estimates, with the checkpoint behind its counts."""
        smoothed = partial(assigned.context.smoothed, (step.start, step.end_ms), assigned.ledger)
        # An older copy of the ledger lacks releases: what was not learnt from it would never be said.
        records = smoothed_records(self._topics, await self._compared(assigned, smoothed))
        protocol = assigned.protocol
        await self._publish(assigned, records, None, partial(protocol.publishing, step), partial(protocol.learnt, step))

    async def _measure(self, assigned: ShardAssignment, step: steps.Measure) -> None:
        """How far the slot's plates are from their forecasts, and its part of the sums over the whole city. Secret."""
        of_slot, context = (step.counts, step.values, step.plan), assigned.context
        measured = lambda: (slot_norms(*of_slot, context.policy), slot_sums(context.city, *of_slot))  # noqa: E731
        assigned.protocol.measured(step, *await self._in_thread(measured))

    async def _ask_city(self, assigned: ShardAssignment, step: steps.AskCity) -> None:
        """Record what the whole city is asked."""
        context = assigned.context
        await self._in_thread(
            partial(record_city, context.city, step.sums, step.plan, context.entropy, assigned.ledger)
        )
        assigned.protocol.city_asked()

    async def _remember(self, assigned: ShardAssignment, step: steps.Remember) -> None:
        """Remember the plates' norms; the factors that hold."""
        of_slot = step.norms, step.expected, (step.start, step.end_ms)
        work = partial(factors_once, *of_slot, assigned.context, assigned.ledger)
        assigned.protocol.remembered(await self._compared(assigned, work))

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
            await assigned.publisher.publish(records, self._commits([(assigned, to)]))
            done()
            assigned.committed = to

    async def _send_all(self, assigned: ShardAssignment, step: steps.Send) -> None:
        await self._send(step.messages)
        assigned.protocol.sent(step)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run slow work in the ledger's thread, so that it blocks only the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _compared(self, assigned: ShardAssignment, work: Callable[[], T]) -> T:
        """The same, and compare the ledger with its mark: what an older copy of it allows must not outlive it in the
        log."""

        def work_and_compare() -> T:
            found = work()
            assigned.ledger.compare(self._mark)
            return found

        return await self._in_thread(work_and_compare)

    def _metadata(self, _assigned: ShardAssignment, to: ShardCheckpoint) -> str:
        return encode_checkpoint(to, self._binding.text, self._mark)
