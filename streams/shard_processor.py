"""Shard processor: a shard for each of our partitions of the shuffle topic; on partition 0 also the planner of all.

Slot by slot, in order of time:

* Once every source has closed a slot, the shard counts it and sends the counts to the planner, on partition 0, with the
  time through which it has counted everything. That time is also sent alone.
* Once all shards have counted a slot, the planner plans and charges it, once, and sends each shard its share of the
  plan, on the shard's own partition.
* Once its plan has arrived, the shard releases the slot.

The output of each step is on all replicas before a checkpoint moves past its input, and a repeated output changes
nothing. So a crash anywhere repeats a step with the same outcome.

A shard's checkpoint stays before the chunks of a slot until the slot is released, and its plan lies behind them. The
planner's checkpoint stays before the counts until every plan is sent. Partition 0 has both.

Releases are published, and with them or after them the checkpoint moves past the slot (`publishing.py`); then the
ledger is informed. If a worker dies before that, the next owner of the shard informs it. Checkpoints are committed one
after the other: one that arrived late would undo what was published meanwhile.

The planner charges under the fence of partition 0, shards record under their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from faust.types import TP

from streams.binding import Binding, mark_header, mark_in, require_same
from streams.checkpoints import ShardCheckpoint, decode_checkpoint, encode_checkpoint
from streams.headers import release_headers
from streams.offsets import Committed, Offsets
from streams.producer import OutgoingRecord, Producer
from streams.publishing import AtLeastOnce, Publisher, PublisherOf, settle
from streams.topics import Topics
from udp_stream.adapters.embedded import Summary
from udp_stream.errors import DependencyUnavailable, Fenced
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.planning.slot_plan import SlotPlan, cut_plan
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import ReleaseContext
from udp_stream.release.draw import Payloads, RecordedSlot, record_slot
from udp_stream.release.record import decode
from udp_stream.shuffle.barrier import SlotBarrier
from udp_stream.shuffle.count_chunks import CountChunk, CountsEnd, cut_counts, merge_counts
from udp_stream.shuffle.ping_chunks import shard_of
from udp_stream.shuffle.shard import Shard, counts_of_shards
from udp_stream.shuffle.wire import Message, decode_message, encode_message
from udp_stream.windows.slot_tables import SlotCounts, SlotValues, tabulate

PLANNER = 0
"""The partition whose owner plans for all shards."""

T = TypeVar("T")


@runtime_checkable
class Fencing(Protocol):
    """A ledger that lets only the latest owner of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; owners with an earlier one are refused from now on."""
        ...

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the owner of (shard, epoch)."""
        ...


@dataclass(slots=True)
class _Assignment:
    """One of our partitions. `tables` are the slots that are counted and wait for their plans.

    `may_commit` is False from the moment a checkpoint moves until everything before it has been sent.
    """

    partition: int
    shard: Shard
    planner: SlotBarrier[CountChunk] | None
    ledger: Ledger
    publisher: Publisher
    counts_sent_through_ms: int
    tables: dict[int, tuple[SlotCounts, SlotValues]] = field(default_factory=dict)
    may_commit: bool = True
    committed: ShardCheckpoint | None = None

    def add(self, offset: int, message: Message) -> None:
        self.shard.add(offset, message)
        if self.planner is not None:
            self.planner.add(offset, message)

    def checkpoint(self) -> ShardCheckpoint:
        return ShardCheckpoint(self.shard.checkpoint(), None if self.planner is None else self.planner.checkpoint())


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
    ) -> None:
        """No shards yet. The ledger is called in `thread` alone. Without `publisher_of`, releases are at least once."""
        self._binding = binding
        self._mark: Mark | None = None
        self._context = context
        self._topics = topics
        self._offsets = offsets
        self._producer = producer
        self._ledger = ledger
        self._thread = thread
        self._accept_loss = accept_loss
        self._publisher_of = self._at_least_once if publisher_of is None else publisher_of
        self._assignments: dict[int, _Assignment] = {}
        self._last_plan: SlotPlan | None = None
        self._revocations = 0
        self._closing: set[asyncio.Future[None]] = set()
        self._committing = asyncio.Lock()
        self.summary = Summary()

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
        name = self._topics.parts.name
        return {TP(name, partition): assigned.shard.next_offset for partition, assigned in self._assignments.items()}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours: fence off their former owners, and only then read the checkpoints."""
        self.revoke()
        revocations = self._revocations
        publishers = dict(zip(tps, await asyncio.gather(*map(self._publisher_of, tps)), strict=True))
        assignments: dict[int, _Assignment] = {}
        try:
            assignments = await self._take_over(publishers)
        finally:
            if assignments and revocations == self._revocations:
                self._assignments = assignments
            else:  # it failed, or they were revoked again meanwhile
                for publisher in publishers.values():
                    self._close_later(publisher)

    async def _take_over(self, publishers: Mapping[TP, Publisher]) -> dict[int, _Assignment]:
        tps, shards = set(publishers), self._topics.parts.partitions
        committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
        assignments = {}
        for tp, publisher in publishers.items():
            start = await self._committed_checkpoint(tp, committed[tp], first[tp])
            assigned = self._assignment(tp, start, await self._fenced(tp), publisher)
            done_ms = assigned.checkpoint().shard.done_ms
            await self._in_thread(lambda tp=tp, done_ms=done_ms: settle(self._ledger, tp.partition, shards, done_ms))  # type: ignore[misc]
            assignments[tp.partition] = assigned
        return assignments

    def _close_later(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _at_least_once(self, _tp: TP) -> Publisher:
        return AtLeastOnce(self._producer, self._offsets)

    async def _committed_checkpoint(self, tp: TP, committed: Committed, first: int) -> ShardCheckpoint:
        """Where to resume. PrivacyRefused if the last worker used another ledger, or if ours is older than its mark."""
        if committed.offset < 0:
            return ShardCheckpoint.at(first)
        found = decode_checkpoint(committed.metadata, committed.offset)
        if found.binding is not None:
            self._binding.require(found.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        if found.mark is not None:
            await self._in_thread(lambda: self._ledger.compare(found.mark))
            self._remember_mark(found.mark)
        if first > committed.offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {committed.offset} "
                "on: chunks were deleted before they were released. `udp-stream worker --accept-loss` continues "
                "without them"
            )
        return found.checkpoint

    def _remember_mark(self, mark: Mark | None) -> None:
        """Remember the highest mark of the ledger that any worker has seen."""
        if mark is not None and (self._mark is None or mark.at_least(self._mark)):
            self._mark = mark

    def _assignment(self, tp: TP, start: ShardCheckpoint, ledger: Ledger, publisher: Publisher) -> _Assignment:
        shard = Shard(self._offsets.partitions(self._topics.pings.name), start.shard, self._accept_loss)
        planner = None
        if tp.partition == PLANNER:
            planner = counts_of_shards(self._topics.parts.partitions, start.planner, self._accept_loss)
        return _Assignment(tp.partition, shard, planner, ledger, publisher, shard.through_ms)

    async def _fenced(self, tp: TP) -> Ledger:
        if not isinstance(self._ledger, Fencing):
            return self._ledger
        from udp_stream.adapters.ledgers.redis.ledger import Fence

        ledger, name = self._ledger, f"{tp.topic}/{tp.partition}"
        epoch = await self._in_thread(lambda: ledger.take_epoch(name))
        return ledger.fenced(Fence(name, epoch))

    async def process(self, records: Sequence[Any]) -> None:
        """Process a batch of one partition: add it, do what is due, commit."""
        assigned = self._assignments.get(records[0].partition)
        if assigned is None:
            return
        assigned.may_commit = False
        for one in records:
            require_same(self._binding, one.headers, f"the writer of {one.topic}[{one.partition}] at {one.offset}")
            self._remember_mark(mark_in(one.headers))
            assigned.add(one.offset, decode_message(one.value))
        try:
            done = [await self._send_counts(assigned), await self._plan(assigned), await self._release(assigned)]
        except Fenced:
            await self._leave(assigned)
            return  # its owner does the same
        if any(done):
            await self.commit()

    async def _leave(self, assigned: _Assignment) -> None:
        """Another worker owns this shard, though the group has not said so yet: drop it, and ask to rejoin."""
        if self._is_ours(assigned):
            self._close_later(self._assignments.pop(assigned.partition).publisher)
            await self._offsets.rejoin()

    def _is_ours(self, assigned: _Assignment) -> bool:
        return self._assignments.get(assigned.partition) is assigned

    async def _send_counts(self, assigned: _Assignment) -> bool:
        """Count what is closed, and send the counts to the planner, or only the time through which all is counted."""
        messages: list[CountChunk | CountsEnd] = []
        for start in assigned.shard.due():
            table = await self._in_thread(lambda start=start: tabulate(assigned.shard.collect(start)))  # type: ignore[misc]
            assigned.tables[start] = table
            self.summary.repeats += table[0].repeats
            if assigned.shard.plan(start) is None:
                messages += cut_counts(table[0], assigned.partition)
        through = assigned.shard.through_ms
        if through > assigned.counts_sent_through_ms:
            messages.append(CountsEnd(assigned.partition, through))
        await self._send(PLANNER, messages)
        assigned.counts_sent_through_ms, assigned.may_commit = through, True
        return bool(messages)

    async def _plan(self, assigned: _Assignment) -> bool:
        """Plan the slots that all shards have counted; send each shard its share."""
        planner = assigned.planner
        due = [] if planner is None else planner.due()
        for start in due:
            if planner is None or not self._is_ours(assigned):
                break
            chunks = planner.collect(start)
            counts = await self._in_thread(lambda chunks=chunks: merge_counts(chunks))  # type: ignore[misc]
            plan = await self._in_thread(partial(plan_slot, counts, self._context, assigned.ledger))
            # A plan that was charged on an older copy of the ledger must not outlive it in the log.
            await self._in_thread(lambda: assigned.ledger.compare(self._mark))
            await self._send_plan(counts, plan)
            planner.done(start)
            self._last_plan = plan
        return bool(due)

    async def _send_plan(self, counts: SlotCounts, plan: SlotPlan) -> None:
        """Send each shard that has counted something its share of the plan, even if that has no HATs."""
        shards = self._topics.parts.partitions
        of_plan, concerned = shard_of(plan.cells, shards), set(shard_of(counts.cells, shards).tolist())
        for shard in sorted(concerned):
            await self._send(shard, list(cut_plan(plan.for_hats(of_plan == shard), shard)))

    async def _release(self, assigned: _Assignment) -> bool:
        """Release the slots that are planned, oldest first."""
        released = False
        for start, (counts, values) in sorted(assigned.tables.items()):
            plan = assigned.shard.plan(start)
            if plan is None or not self._is_ours(assigned):
                break
            if self._last_plan is not None:  # our own planner has priced most of these HATs
                plan = plan.with_priced(self._last_plan)
            recorded = await self._in_thread(partial(record_slot, counts, values, plan, self._context, assigned.ledger))
            await self._publish(assigned, start, recorded)
            await self._in_thread(partial(recorded.published, assigned.ledger))
            self.summary.add(recorded.payloads)
            released = True
        return released

    async def _publish(self, assigned: _Assignment, start: int, recorded: RecordedSlot) -> None:
        """Publish a slot, with the checkpoint behind it, once no other commit is under way."""
        async with self._committing:
            if not self._is_ours(assigned):
                raise Fenced("a rebalance has taken the shard")
            if recorded.mark is not None and self._mark is not None and not recorded.mark.at_least(self._mark):
                # Another machine has seen the ledger further than the mark that is kept on this one.
                await self._in_thread(lambda: self._ledger.compare(self._mark))
            assigned.may_commit = False  # until the slot is published, `commit` must not send this checkpoint
            assigned.shard.released(start)
            del assigned.tables[start]
            to = assigned.checkpoint()
            self._remember_mark(recorded.mark)
            await assigned.publisher.publish(self._records(recorded.payloads), self._commits({assigned.partition: to}))
            assigned.committed, assigned.may_commit = to, True

    async def _send(self, partition: int, messages: Sequence[Message]) -> None:
        name = self._topics.parts.name
        headers = [self._binding.header, *mark_header(self._mark)]
        await self._producer.write(
            OutgoingRecord(name, encode_message(one), headers=headers, partition=partition) for one in messages
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run slow work in the ledger's thread, so that it blocks only the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _records(self, payloads: Payloads) -> list[OutgoingRecord]:
        """Each release for two topics: all releases, and the latest of each cell."""
        source = f"udp-stream/{self._topics.release.name}"
        headed = [(cell.encode(), payload, release_headers(decode(payload), source)) for _, cell, payload in payloads]
        return [
            OutgoingRecord(topic, payload, key=cell, headers=headers)
            for topic in (self._topics.release.name, self._topics.latest.name)
            for cell, payload, headers in headed
        ]

    async def commit(self) -> None:
        """Commit the checkpoints that have moved, if everything before them has been sent.

        It runs to its end even if its caller is cancelled: until it has arrived, nothing else may move a checkpoint.
        """
        await asyncio.shield(self._commit())

    async def _commit(self) -> None:
        async with self._committing:
            moved = {
                partition: (assigned, assigned.checkpoint())
                for partition, assigned in self._assignments.items()
                if assigned.may_commit
            }
            moved = {
                partition: (assigned, to) for partition, (assigned, to) in moved.items() if to != assigned.committed
            }
            if moved and await self._offsets.commit(self._commits({p: to for p, (_, to) in moved.items()})):
                for assigned, to in moved.values():
                    assigned.committed = to

    def _commits(self, checkpoints: Mapping[int, ShardCheckpoint]) -> dict[TP, Committed]:
        name = self._topics.parts.name
        return {
            TP(name, partition): Committed(to.offset, encode_checkpoint(to, self._binding.text, self._mark))
            for partition, to in checkpoints.items()
        }
