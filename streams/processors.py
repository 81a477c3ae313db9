"""The two processors of a worker, of source partitions and of shards: each carries out a protocol
without I/O."""

from __future__ import annotations

import asyncio
import base64
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
from faust.types import TP

from streams import protocol as steps
from streams import wire
from streams.kafka import (
    CommittedOffset,
    Headers,
    Offsets,
    OutgoingRecord,
    Producer,
    query_records,
    release_records,
    shortened,
    smoothed_records,
    withdrawal_records,
)
from streams.protocol import NOT_YET, BarrierCheckpoint, ShardCheckpoint, ShardProtocol
from streams.topics import (
    OTHER_QUERIES,
    LedgerIdentity,
    Topics,
    mark_header,
    mark_in,
    other_version,
)
from streams.wire import (
    PLANNER,
    SendChunks,
    SendRefused,
    SourceProtocol,
    decode_message,
    encode_message,
)
from udp_stream.base.arrays import Integers
from udp_stream.base.errors import ConfigError, DataLoss, Fenced
from udp_stream.embedded.runtime import log_clock_ahead
from udp_stream.ledger.ids import HAT, QUERY, ROUND, Id, end_of, kind_of
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.pings.decode import Reason, Refusal
from udp_stream.planning.policy import PositionPeriods
from udp_stream.planning.slot import PlannedSlot, SlotPlan
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.events import (
    Observer,
    PublishedRelease,
    QueriesPublished,
    SlotCounted,
    SlotsDropped,
    batch_read,
    report_recorded,
    report_to,
    slot_published,
)
from udp_stream.release.pipeline import (
    RecordedSlot,
    factors_once,
    hour_norms,
    record_city,
    record_hour,
    slot_norms,
    slot_sums,
)
from udp_stream.release.promise import promise_of
from udp_stream.release.query_pipeline import QuerySet, report_answers
from udp_stream.release.record import UnitDoubt
from udp_stream.release.withdrawal import unpublished_withdrawals
from udp_stream.windows.clocks import LogPlaces
from udp_stream.windows.grid import HEXAGONS, Grid
from udp_stream.windows.slots import (
    FeedCheck,
    ReadingRules,
    RefusedMessage,
    SourceCheckpoint,
    SourceReader,
)
from udp_stream.windows.tables import SlotCounts, tabulate


class ProcessorContext(NamedTuple):
    """Context that both processors of a worker share. `queries` are those that are asked, if any
    are. Clocks of the log that are ahead of `back_to_ms` go back."""

    topics: Topics
    offsets: Offsets
    producer: Producer
    binding: LedgerIdentity
    accept_loss: bool = False
    observers: Sequence[Observer] = ()
    queries: QuerySet | None = None
    back_to_ms: Callable[[], int] | None = None


@dataclass(slots=True)
class Assignment:
    """A partition in the hands of this worker: its protocol, the last checkpoint that was
    committed, and what has to be acknowledged before the next commit."""

    partition: int
    protocol: Any
    committed: Any = field(default=None, init=False)
    unacknowledged: deque[asyncio.Future[None]] = field(default_factory=deque, init=False)


A = TypeVar("A", bound=Assignment)


class PartitionStart(NamedTuple):
    """A partition that becomes ours: its last commit, the first offset that is left, and that of
    its next record."""

    tp: TP
    committed: CommittedOffset
    first: int
    end: int


class Partitions(ABC, Generic[A]):
    """The partitions of a topic that are assigned to this worker, each with a protocol that says
    what is due.

    A consumer whose next record is gone goes on with the first that is left, and says nothing: so
    the beginning of a partition is looked at when it becomes ours, and at every gap. Its end is
    looked at when it becomes ours: behind a lost end new records would pass for read. With
    `accept_loss` reading goes on from the first record that is left.
    """

    lost: str
    """The consequence, in words, of records of this topic that are gone."""

    def __init__(self, topic: str, common: ProcessorContext) -> None:
        self._topic, self._topics, self._offsets, self._producer, self._binding = topic, *common[:4]
        self._accept_loss = common.accept_loss
        self._queries = common.queries
        self._back_to_ms = common.back_to_ms
        self._asked = "" if self._queries is None else self._queries.digest
        self._periods = None if self._queries is None else self._queries.periods
        self._report = report_to(common.observers)
        self._assignments: dict[int, A] = {}
        self._revocations = 0
        self._committing = asyncio.Lock()
        self._goes_back = False
        self._headers: Headers = [self._binding.header]  # of messages between workers
        self.done = 0  # steps, for the watchdog: nothing is read during a batch of many slots

    def next_offsets(self) -> dict[TP, int]:
        return {
            TP(self._topic, of): assigned.protocol.next_offset
            for of, assigned in self._assignments.items()
        }

    def revoke(self) -> None:
        self._revocations += 1
        for assigned in self._assignments.values():
            self._drop(assigned)
        self._assignments = {}

    async def assign(self, tps: set[TP]) -> None:
        """Take these partitions, unless they are revoked meanwhile: fence off their former owners,
        and only then read the checkpoints."""
        self.revoke()
        revocations = self._revocations
        self._goes_back = False
        assignments: dict[int, A] = {}
        async with self._fenced(tps) as resume:
            committed = await self._offsets.committed(tps)
            first = await self._offsets.first(tps)
            ends = await self._offsets.ends(tps)
            for tp in tps:
                assignments[tp.partition] = await resume(
                    PartitionStart(tp, committed[tp], first[tp], ends[tp])
                )
            if revocations == self._revocations:
                self._assignments = assignments
        if self._goes_back and revocations == self._revocations:
            await self.commit()  # the consumer goes by commits
            await self._offsets.seek()

    async def process(self, records: Sequence[Any]) -> None:
        of = records[0].partition
        assigned = self._assignments.get(of)
        if assigned is None:
            return
        next_offset = assigned.protocol.next_offset
        # The broker is asked only where there is a gap. There may be a gap without a loss: offsets
        # need not be dense.
        if records[0].offset > next_offset and not self._accept_loss:
            tp = TP(records[0].topic, of)
            self._require(tp, (await self._offsets.first({tp}))[tp], next_offset)
        self._read(assigned, records)
        commit_is_due = False
        try:
            while (
                self._assignments.get(of) is assigned
                and (step := assigned.protocol.next()) is not None
            ):
                commit_is_due = await self._carry_out(assigned, step) or commit_is_due
                self.done += 1
        except Fenced:  # its owner does the same, though the group has not said so yet
            if self._is_ours(assigned):
                self._drop(self._assignments.pop(assigned.partition))
                await self._offsets.rejoin()
            return
        if commit_is_due:
            await self.commit()

    async def commit(self) -> None:
        """Commit the checkpoints that have moved, if everything before them is on the broker.

        It runs to its end even if its caller is cancelled: until then nothing else may move a
        checkpoint.
        """
        await asyncio.shield(self._commit())

    async def _commit(self) -> None:
        async with self._committing:
            moved = [
                (assigned, to)
                for assigned in self._assignments.values()
                if assigned.protocol.may_commit
                and (to := assigned.protocol.checkpoint()) != assigned.committed
            ]
            # A list of its own: more may be sent while we wait.
            for sending in [
                sending for assigned, _ in moved for sending in assigned.unacknowledged
            ]:
                await sending
            if moved and await self._offsets.commit(self._commits(moved)):
                for assigned, to in moved:
                    assigned.committed = to

    def _commits(self, moved: Sequence[tuple[A, Any]]) -> dict[TP, CommittedOffset]:
        return {
            TP(self._topic, assigned.partition): CommittedOffset(
                to.offset, self._metadata(assigned, to)
            )
            for assigned, to in moved
        }

    def _is_ours(self, assigned: A) -> bool:
        return self._assignments.get(assigned.partition) is assigned

    async def _send(self, messages: Sequence[tuple[int, Any]]) -> None:
        name = self._topics.parts.name
        headers = self._headers
        await self._producer.write(
            OutgoingRecord(name, encode_message(message), headers=headers, partition=partition)
            for partition, message in messages
        )

    def _require(self, tp: TP, first: int, offset: int) -> None:
        """Raise DataLoss if the partition begins, at `first`, behind this offset."""
        if first > offset and not self._accept_loss:
            raise DataLoss(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {offset} on: "
                f"{self.lost}. `udp-stream worker --accept-loss` continues without them"
            )

    def _restart_offset(self, place: PartitionStart, read_to: int) -> int | None:
        """Where to read the partition again if it ends before what was read of it: at its first
        record, as the consumer does. None if it has all from the commit on. Lost unless
        `accept_loss`."""
        self._require(place.tp, place.first, place.committed.offset)
        if place.end >= read_to:
            return None
        if not self._accept_loss:
            raise shortened(place.tp, place.end, read_to)
        self._goes_back = True
        return place.first

    @abstractmethod
    def _fenced(
        self, tps: set[TP]
    ) -> AbstractAsyncContextManager[Callable[[PartitionStart], Awaitable[A]]]:
        """Fence off former owners; what it yields resumes a partition from its checkpoint."""

    @abstractmethod
    def _read(self, assigned: A, records: Sequence[Any]) -> None:
        """Give a batch to the protocol."""

    @abstractmethod
    async def _carry_out(self, assigned: A, step: Any) -> bool:
        """Carry out a step of the protocol, and tell it; gives whether a commit is due."""

    @abstractmethod
    def _metadata(self, assigned: A, to: Any) -> str:
        """Metadata that is committed beside the offset of this checkpoint."""

    def _drop(self, assigned: A) -> None:
        """A partition is no longer ours. Work that is waiting sees that its assignment is gone."""


# --- the source processor: a reader for each of our source partitions ---
#
# Chunks and refusals are on all replicas before the checkpoint behind them is committed. After a
# crash or a rebalance in between the next reader sends the same again, under the same ids.

LOG_APPEND_TIME = 1
REJECTED_BYTES_MAX = 2**20 - 2**14
"""Most bytes kept of a refused message: all of it, unless the message alone nearly fills a
record."""


UNDER_WAY_MAX = 16
"""Batches of refusals of a partition that may be unacknowledged."""


DAY_MS = 86_400_000

TICK = "udp-stream-tick"
"""The header of a record without a ping. Its value is its writer's time, Unix ms. The earlier
counts, that or the broker's append time: either clock may be wrong."""

ERROR = "udp-stream.errors"


class _SourceMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    watermark: int | None = None
    rejected_through: int = 0
    binding: str = ""
    positions: int | None = None
    asked: str = ""
    unread: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Source(Assignment):
    """A partition of ours. Only refusals are unacknowledged; reading continues meanwhile."""

    protocol: SourceProtocol
    active_s: float


class SourceProcessor(Partitions[_Source]):
    """The source partitions that are assigned to this worker."""

    lost = "pings were deleted before they were counted"

    def __init__(
        self,
        common: ProcessorContext,
        rules: ReadingRules,
        idle_s: float,
        check: FeedCheck = lambda _messages, _read: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(common.topics.pings.name, common)
        self._rules = rules
        self._idle_s = idle_s
        self._check = check
        self._clock = clock

    @asynccontextmanager
    async def _fenced(
        self, _tps: set[TP]
    ) -> AsyncIterator[Callable[[PartitionStart], Awaitable[_Source]]]:
        """No fence: a former owner may go on sending, as it sends the same chunks, under the same
        ids."""
        yield self._resume

    async def _resume(self, place: PartitionStart) -> _Source:
        start, asked_before = self._start(place)
        reader = SourceReader(self._rules, start)
        shards = self._topics.parts.partitions
        of = place.tp.partition
        protocol = SourceProtocol(of, shards, reader, self._periods, self._asked, asked_before)
        return _Source(of, protocol, self._clock())

    def _start(self, place: PartitionStart) -> tuple[SourceCheckpoint, str]:
        """Where to resume, and for which queries moments were sent up to there.

        The watermark stays, also where a log is read again: what is closed may not be counted
        again. What is refused from now on is rejected.
        """
        tp, committed, first, end = place
        if committed.offset < 0:
            return SourceCheckpoint(first), self._asked
        try:
            metadata = msgspec.json.decode(committed.metadata or b"{}", type=_SourceMetadata)
        except msgspec.DecodeError as error:
            raise other_version(f"the last commit of {tp.topic}[{tp.partition}]") from error
        if committed.metadata:
            self._binding.require(
                metadata.binding, f"the worker that last committed {tp.topic}[{tp.partition}]"
            )
        offset = max(first, committed.offset)
        rejected_through = metadata.rejected_through
        if (
            again := self._restart_offset(place, max(committed.offset, rejected_through))
        ) is not None:
            offset = again
            rejected_through = min(rejected_through, end)
        watermark = metadata.watermark
        if self._back_to_ms is not None and watermark is not None:
            ahead_ms = self._rules.through_at(watermark) - self._back_to_ms()
            if ahead_ms > 0:
                log_clock_ahead(ahead_ms / 1000, resets=True)
                return SourceCheckpoint(offset, rejected_through=rejected_through), metadata.asked
        return SourceCheckpoint(
            offset, watermark, rejected_through, metadata.positions, metadata.unread
        ), metadata.asked

    def _read(self, assigned: _Source, records: Sequence[Any]) -> None:
        if records[0].timestamp_type != LOG_APPEND_TIME:
            raise ConfigError(
                f"{records[0].topic}: expected message.timestamp.type=LogAppendTime, got CreateTime"
            )
        messages, places = columns_of(records)
        result = assigned.protocol.read(messages, places)
        self._check(messages, result)
        # What is refused moves no clock: who sends nothing else would hold up the slots of all
        # partitions.
        if result.pings or places.tick.any():
            assigned.active_s = self._clock()
        self._report(batch_read(result))

    async def _carry_out(self, assigned: _Source, step: SendChunks | SendRefused) -> bool:
        if isinstance(step, SendChunks):
            await self._send([(one.shard, one) for one in step.messages])
        else:
            await self._reject(assigned, step.refused)
        assigned.protocol.done(step)
        return isinstance(step, SendChunks)

    async def _reject(self, assigned: _Source, refused: Sequence[RefusedMessage]) -> None:
        under_way = assigned.unacknowledged
        # Those that are done are awaited, too: so an error among them is raised here.
        while len(under_way) >= UNDER_WAY_MAX or (under_way and under_way[0].done()):
            await under_way.popleft()
        target = self._topics.rejected.name
        sent = await self._producer.send(
            OutgoingRecord(
                target,
                message.original[:REJECTED_BYTES_MAX],
                headers=rejected_headers(
                    message.refusal, self._topic, assigned.partition, message.offset
                ),
            )
            for message in refused
        )
        under_way.append(sent)

    def open_slots(self) -> tuple[int, int]:
        readers = [assigned.protocol.reader for assigned in self._assignments.values()]
        slots = frozenset[int]().union(*(reader.open_slots for reader in readers))
        return len(slots), sum(reader.open_pings for reader in readers)

    def clock_ms(self) -> int | None:
        """Time of the furthest of our partitions' clocks, Unix ms."""
        shown = (assigned.protocol.reader.clock_ms for assigned in self._assignments.values())
        return max((ms for ms in shown if ms is not None), default=None)

    def _metadata(self, assigned: _Source, to: SourceCheckpoint) -> str:
        metadata = _SourceMetadata(
            to.watermark_ms,
            to.rejected_through,
            self._binding.text,
            to.positions_ms,
            assigned.protocol.asked,
            to.gaps,
        )
        return msgspec.json.encode(metadata).decode()

    def ahead_ms(self, wall_ms: int) -> int:
        """How far slots are closed ahead of this time, on any of our partitions; 0 or less if none
        is."""
        readers = [assigned.protocol.reader for assigned in self._assignments.values()]
        return max((reader.ahead_ms(wall_ms) for reader in readers), default=0)

    async def tick(self, wall_ms: int) -> None:
        """Append a tick record to each partition that is silent and read to its end, if the time
        alone closes a slot. A partition is silent if no ping of it was accepted for `idle_s`. In
        processing time a tick is appended whatever comes and is unread: who sends much would hold
        up the slots of all.

        The decision is then in the log, at the same offset for every reader.
        """
        in_processing_time = self._rules.windows.in_processing_time
        for partition, assigned in list(self._assignments.items()):
            is_silent = in_processing_time or self._clock() - assigned.active_s >= self._idle_s
            if not is_silent or not assigned.protocol.wants_tick(wall_ms):
                continue
            is_read = in_processing_time or await self._offsets.is_read(
                TP(self._topic, partition), assigned.protocol.next_offset
            )
            # A rebalance may have come while the broker was asked.
            if is_read and self._is_ours(assigned):
                # Before the write: the tick may be read before the write returns, and reading
                # resets this.
                assigned.protocol.ticked()
                record = OutgoingRecord(
                    self._topic, b"%d" % wall_ms, headers=[(TICK, b"1")], partition=partition
                )
                await self._producer.write([record])


def rejected_headers(refusal: Refusal, topic: str, partition: int, offset: int) -> Headers:
    """Where a refused message was and why it was refused; a refusal that is sent twice has the same
    `id`."""
    attributes = {
        f"{ERROR}.id": f"{topic}-{partition}-{offset}-{refusal.position}",
        f"{ERROR}.reason": str(refusal.reason),
        f"{ERROR}.path": refusal.path,
        f"{ERROR}.topic": topic,
        f"{ERROR}.partition": str(partition),
        f"{ERROR}.offset": str(offset),
    }
    if refusal.lag_ms is not None:
        attributes[f"{ERROR}.lag_ms"] = str(refusal.lag_ms)
    return [(name, value.encode()) for name, value in attributes.items()]


def is_late(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a refused ping was late.

    >>> is_late([(f"{ERROR}.reason", b"late")]), is_late([])
    (True, False)
    """
    return (f"{ERROR}.reason", str(Reason.LATE).encode()) in headers


def is_tick(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a record of the pings only tells the time.

    >>> is_tick([(TICK, b"1")]), is_tick([])
    (True, False)
    """
    return any(name == TICK for name, _ in headers)


def columns_of(records: Sequence[Any]) -> tuple[list[bytes], LogPlaces]:
    """The messages of the consumer's records, and their places; ticks have no message."""
    tick = [bool(one.headers) and is_tick(one.headers) for one in records]
    values = [one.value or b"" for one in records]
    times_ms = [one.timestamp for one in records]
    for at in np.flatnonzero(tick).tolist():
        if values[at].isdigit():  # earlier versions wrote `{}`
            times_ms[at] = min(times_ms[at], int(values[at]))
        values[at] = b""
    places = LogPlaces(
        np.array([one.offset for one in records], dtype=np.int64),
        np.array(times_ms, dtype=np.int64),
        np.array(tick, dtype=bool),
    )
    return values, places


# --- the shard processor: the protocol of each of our shards, and on partition 0 of the planner, over Kafka ---
#
# Releases are published, and with them or after them the checkpoint moves past the slot
# (`Publisher`); then the ledger is informed, by the next owner of the shard if a worker dies before
# that. Checkpoints are committed in order: a late checkpoint would undo what was published
# meanwhile.
#
# The planner charges under the fence of partition 0, shards record under their own: the ledger
# serves the worker that was assigned a shard last. What the planner learns from releases, it learns
# anew whenever partition 0 is assigned.
#
# Brokers take 4096 bytes of a commit's metadata, so it is packed and compressed: 2.9 kB for 256
# sources and 256 shards. What sources have closed of moments is written as the distance from what
# they have closed of slots.


class _ShardMetadata(msgspec.Struct, frozen=True, array_like=True):
    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    binding: str = ""
    mark: Mark | None = None
    moments: BarrierCheckpoint | None = None
    day: BarrierCheckpoint | None = None


class ShardCommit(NamedTuple):
    """A commit's metadata; `binding` is the text of a `LedgerIdentity`, None if the offsets were
    set by hand."""

    checkpoint: ShardCheckpoint
    binding: str | None
    mark: Mark | None


def encode_checkpoint(checkpoint: ShardCheckpoint, binding: str, mark: Mark | None) -> str:
    """The metadata of a commit."""
    moments = _shifted(checkpoint.moments, checkpoint.shard, -1)
    found = _ShardMetadata(
        checkpoint.shard, checkpoint.planner, binding, mark, moments, checkpoint.day
    )
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(found), 9)).decode()


def decode_checkpoint(metadata: str, offset: int, name: str = "the commit") -> ShardCommit:
    """Undo `encode_checkpoint`. Offsets that were set by hand come without metadata. ConfigError,
    which names the commit, for anything else."""
    if not metadata:
        return ShardCommit(ShardCheckpoint.at(offset), None, None)
    try:
        found = msgspec.msgpack.decode(
            zlib.decompress(base64.b64decode(metadata)), type=_ShardMetadata
        )
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise other_version(name) from error
    moments = _shifted(found.moments, found.shard, 1)
    checkpoint = ShardCheckpoint(found.shard, found.planner, moments, found.day)
    return ShardCommit(checkpoint, found.binding, found.mark)


def _shifted(
    moments: BarrierCheckpoint | None, shard: BarrierCheckpoint, sign: int
) -> BarrierCheckpoint | None:
    """The times up to which sources have closed moments, plus or minus those for slots, where there
    are any."""
    if moments is None:
        return None
    others = (*shard.through_ms, *[0] * len(moments.through_ms))
    through_ms = tuple(
        ms + sign * other for ms, other in zip(moments.through_ms, others, strict=False)
    )
    return BarrierCheckpoint(moments.offset, through_ms, moments.done_ms)


@runtime_checkable
class FencedLedger(Protocol):
    """A ledger that lets only the latest owner of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; owners with an earlier epoch are refused from now on."""

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the owner of (shard, epoch)."""


def fenced_for(ledger: Ledger, shard: str) -> Ledger:
    """The ledger for the new owner of this shard; the same ledger where it has no fences."""
    if not isinstance(ledger, FencedLedger):
        return ledger
    from udp_stream.ledgers.redis import Fence

    return ledger.fenced(Fence(shard, ledger.take_epoch(shard)))


class Publisher(Protocol):
    """Publishes the slots of a shard while the shard is ours."""

    async def publish(
        self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, CommittedOffset]
    ) -> None:
        """Return when readers can read the records and the checkpoint is committed. `Fenced`: the
        shard is not ours."""

    async def close(self) -> None:
        """Disconnect; what was not published stays unpublished."""


class AtLeastOncePublisher(NamedTuple):
    """Publisher of records first, then the checkpoint."""

    producer: Producer
    offsets: Offsets

    async def publish(
        self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, CommittedOffset]
    ) -> None:
        """The checkpoint of a shard that is not ours is not committed: its owner writes the same
        records again."""
        await self.producer.write(records)
        await self.offsets.commit(checkpoint)

    async def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class ShardAssignment(Assignment):
    """A shard of ours: its protocol, its fenced ledger, how it publishes, and what it releases
    with."""

    protocol: ShardProtocol
    ledger: Ledger
    publisher: Publisher
    context: ReleaseContext
    begun: int = 0
    """The partition's end when it became ours: who writes behind that is running now."""


T = TypeVar("T")


class ShardProcessor(Partitions[ShardAssignment]):
    """The shards that are assigned to this worker."""

    lost = "chunks were deleted before they were released"

    def __init__(
        self,
        common: ProcessorContext,
        context: ReleaseContext,
        ledger: Ledger,
        thread: ThreadPoolExecutor,
        publisher_of: Callable[[TP], Awaitable[Publisher]] | None = None,
    ) -> None:
        """Begin without shards. The ledger is called in `thread` alone. Without `publisher_of`,
        releases are at least once."""
        super().__init__(common.topics.parts.name, common)
        self._context = context
        self._promise = promise_of(context.policy)
        self._ledger = ledger
        self._thread = thread
        self._publisher_of = self._at_least_once if publisher_of is None else publisher_of
        self._mark: Mark | None = None
        self._last_plan: SlotPlan | None = (
            None  # our own planner has priced most HATs that we release
        )
        self._closing: set[asyncio.Future[None]] = set()
        self._work: Mapping[type, Callable[[ShardAssignment, Any], Awaitable[None]]] = {
            steps.SendMessages: self._send_all,
            steps.CountSlot: self._count,
            steps.MeasureNorms: self._measure,
            steps.ReleaseSlot: self._release,
            steps.PlanSlot: self._plan,
            steps.QueryCity: self._ask_city,
            steps.LearnSlot: self._learn,
            steps.RecordNorms: self._remember,
            steps.AnswerShard: self._answer,
            steps.KeepSlot: self._keep,
        }

    async def close(self) -> None:
        self.revoke()
        await asyncio.gather(*self._closing)

    def _drop(self, assigned: ShardAssignment) -> None:
        self._report(SlotsDropped())
        self._close_later(assigned.publisher)

    def _close_later(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _at_least_once(self, _tp: TP) -> Publisher:
        return AtLeastOncePublisher(self._producer, self._offsets)

    @asynccontextmanager
    async def _fenced(
        self, tps: set[TP]
    ) -> AsyncIterator[Callable[[PartitionStart], Awaitable[ShardAssignment]]]:
        """A publisher for each partition; those of partitions that do not become ours are closed at
        the end."""
        publishers = dict(
            zip(tps, await asyncio.gather(*map(self._publisher_of, tps)), strict=True)
        )
        try:
            yield lambda place: self._resume(place, publishers[place.tp])
        finally:
            taken = [assigned.publisher for assigned in self._assignments.values()]
            for publisher in publishers.values():
                if not any(publisher is one for one in taken):
                    self._close_later(publisher)

    async def _resume(self, place: PartitionStart, publisher: Publisher) -> ShardAssignment:
        """The ledger is informed of what the former owner published."""
        tp = place.tp
        start = await self._start(place)
        shards = self._topics.parts.partitions
        known = len(start.shard.through_ms)
        sources = await self._offsets.partitions(self._topics.pings.name, known)
        context = self._context
        follows = self._promise.learns(context.policy)
        # Twice as long as they are needed: else they may be gone then.
        is_kept = int(self._topics.parts.settings["retention.ms"]) >= 2 * DAY_MS
        protocol = ShardProtocol(
            tp.partition,
            shards,
            sources,
            start,
            self._accept_loss,
            follows,
            self._periods is not None,
            self._asked,
            keeps=self._promise.keep is not None and is_kept,
        )
        ledger = await self._in_thread(fenced_for, self._ledger, f"{tp.topic}/{tp.partition}")
        await self._in_thread(
            settle,
            self._ledger,
            tp.partition,
            shards,
            protocol.done_ms,
            protocol.answered_ms,
            self._periods,
            context.policy.grid,
        )
        step = protocol.next()
        # The former owner may have died on sending these.
        if isinstance(step, steps.SendMessages):
            await self._send(step.messages)
            protocol.sent(step)
        if follows and tp.partition == PLANNER:
            context = self._promise.with_forecaster(context)
        return ShardAssignment(tp.partition, protocol, ledger, publisher, context, place.end)

    async def _start(self, place: PartitionStart) -> ShardCheckpoint:
        """Where to resume. PrivacyRefused if the last worker used another ledger, or if ours is
        older than its mark."""
        tp = place.tp
        committed = place.committed
        if committed.offset < 0:
            return ShardCheckpoint.at(place.first)
        found = decode_checkpoint(
            committed.metadata, committed.offset, f"the last commit of {tp.topic}[{tp.partition}]"
        )
        if found.binding is not None:
            self._binding.require(
                found.binding, f"the worker that last committed {tp.topic}[{tp.partition}]"
            )
        if found.mark is not None:
            await self._in_thread(self._ledger.compare, found.mark)
            self._remember_mark(found.mark)
        again = self._restart_offset(place, found.checkpoint.read_to)
        to = found.checkpoint if again is None else found.checkpoint.with_offset(again)
        return to if self._back_to_ms is None else to.back_to(self._back_to_ms())

    def _remember_mark(self, mark: Mark | None) -> None:
        """Remember the highest mark of the ledger that any worker has seen."""
        if mark is not None and (self._mark is None or mark.at_least(self._mark)):
            self._mark, self._headers = mark, [self._binding.header, *mark_header(mark)]

    def _read(self, assigned: ShardAssignment, records: Sequence[Any]) -> None:
        """Add the records. ConfigError if another version wrote a record, or if its writer, who is
        running, asks other queries."""
        for one in records:
            where = f"{one.topic}[{one.partition}] at {one.offset}"
            self._binding.require_in(one.headers, f"the writer of {where}")
            mark = mark_in(one.headers)
            if mark is not None:
                self._remember_mark(mark)
            try:
                message = decode_message(one.value)
            except msgspec.DecodeError as error:
                raise other_version(
                    f"the message at {one.topic}[{one.partition}], offset {one.offset},"
                ) from error
            # Without `asked` it is no other configuration: it tells up to when moments are lost.
            is_running = one.offset >= assigned.begun
            if (
                is_running
                and isinstance(message, wire.PositionsEnd)
                and message.asked not in ("", self._asked)
            ):
                raise ConfigError(f"the writer of {where} {OTHER_QUERIES}")
            assigned.protocol.add(one.offset, message)

    def doubt(self) -> UnitDoubt | None:
        """The releases that give evidence of another unit of speed, if we plan and some do."""
        planner = self._assignments.get(PLANNER)
        return None if planner is None else planner.context.doubt

    async def _carry_out(self, assigned: ShardAssignment, step: Any) -> bool:
        await self._work[type(step)](assigned, step)
        return True

    async def _count(self, assigned: ShardAssignment, step: steps.CountSlot) -> None:
        counts, values = await self._in_thread(tabulate, step.pings)
        self._report(SlotCounted(step.start, counts.repeats))
        assigned.protocol.counted(step.start, counts, values)

    async def _plan(self, assigned: ShardAssignment, step: steps.PlanSlot) -> None:
        def plan_it() -> tuple[SlotCounts, SlotPlan]:
            counts = wire.merge_counts(step.chunks)
            return counts, self._promise.plan(counts, assigned.context, assigned.ledger, step.asks)

        counts, plan = await self._compared(assigned, plan_it)
        assigned.protocol.planned(step.start, counts, plan)
        self._last_plan = plan

    async def _learn(self, assigned: ShardAssignment, step: steps.LearnSlot) -> None:
        smoothed = partial(assigned.context.smoothed, (step.start, step.end_ms), assigned.ledger)
        # An older copy of the ledger lacks releases: what was not learnt from it would never be
        # said.
        records = smoothed_records(self._topics, await self._compared(assigned, smoothed))
        protocol = assigned.protocol
        await self._publish(
            assigned,
            records,
            None,
            partial(protocol.publishing, step),
            partial(protocol.learnt, step),
        )

    async def _measure(self, assigned: ShardAssignment, step: steps.MeasureNorms) -> None:
        """How far the slot's plates are from their forecasts, and its part of the sums over the
        whole city. Secret."""
        context = assigned.context
        slot = PlannedSlot(step.counts, step.plan, context.policy)
        measured = lambda: (  # noqa: E731
            (hour_norms(slot, step.values), ())
            if step.plan.is_question
            else (slot_norms(slot, step.values), slot_sums(context, slot, step.values))
        )
        assigned.protocol.measured(step, *await self._in_thread(measured))

    async def _ask_city(self, assigned: ShardAssignment, step: steps.QueryCity) -> None:
        measured = (record_hour, step.norms) if step.plan.is_question else (record_city, step.sums)
        record, of_shards = measured
        await self._in_thread(record, assigned.context, of_shards, step.plan, assigned.ledger)
        assigned.protocol.city_queried()

    async def _remember(self, assigned: ShardAssignment, step: steps.RecordNorms) -> None:
        slot = (step.start, step.end_ms)
        work = partial(
            factors_once, step.norms, step.expected, slot, assigned.context, assigned.ledger
        )
        assigned.protocol.remembered(await self._compared(assigned, work))

    async def _release(self, assigned: ShardAssignment, step: steps.ReleaseSlot) -> None:
        # Before the mark is raised.
        withdrawn = await self._in_thread(self._withdrawn, assigned)
        recorded = await self._in_thread(self._record, assigned, step)
        releases = [PublishedRelease(payload) for payload in recorded.payloads.values()]
        report_recorded(self._report, step.counts, recorded, releases, assigned.context.policy.grid)
        protocol = assigned.protocol
        start = step.start
        out = release_records(self._topics, releases) + withdrawal_records(
            self._topics, withdrawn.values()
        )
        await self._publish(
            assigned,
            out,
            recorded.mark,
            partial(protocol.recorded, start),
            partial(protocol.published, start),
        )
        if assigned.context.plate_day is not None:
            protocol.keep_from(assigned.context.plate_day.needed_from(step.counts.end_ms))
        await self._in_thread(recorded.published, assigned.ledger)
        if withdrawn:
            await self._in_thread(assigned.ledger.published, list(withdrawn))
        self._report(slot_published(step.start, releases))

    def _record(self, assigned: ShardAssignment, step: steps.ReleaseSlot) -> RecordedSlot:
        plan = step.plan if self._last_plan is None else step.plan.with_priced(self._last_plan)
        context = assigned.context
        slot = PlannedSlot(step.counts, plan, context.policy)
        return self._promise.record(slot, step.values, context, assigned.ledger, step.factors)

    async def _keep(self, assigned: ShardAssignment, step: steps.KeepSlot) -> None:
        def keep_it() -> None:
            if self._promise.keep is not None:
                self._promise.keep(*tabulate(step.pings), assigned.context, assigned.ledger)

        await self._in_thread(keep_it)
        assigned.protocol.kept()

    def _withdrawn(self, assigned: ShardAssignment) -> dict[str, bytes]:
        shards = self._topics.parts.partitions
        grid = assigned.context.policy.grid

        def is_ours(cell: str) -> bool:
            return int(_shards_of([cell], grid, shards)[0]) == assigned.partition

        return unpublished_withdrawals(assigned.ledger, is_ours)

    async def _answer(self, assigned: ShardAssignment, step: steps.AnswerShard) -> None:
        moment = await self._in_thread(wire.merge_moment, step.chunks)
        work = (
            (lambda: None)
            if self._queries is None
            else partial(self._queries.record, moment, assigned.ledger)
        )
        recorded = await self._in_thread(work)
        protocol = assigned.protocol
        answers = recorded.answers if recorded else ()
        report_answers(self._report, step.time_ms, answers)
        out = query_records(self._topics, answers)
        mark = recorded.mark if recorded else None
        await self._publish(
            assigned, out, mark, partial(protocol.answering, step), partial(protocol.answered, step)
        )
        if recorded is not None:
            await self._in_thread(recorded.published, assigned.ledger)
            self._report(QueriesPublished(step.time_ms, len(answers)))

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
                # Another machine has seen the ledger further than the mark that is kept here.
                await self._in_thread(lambda: self._ledger.compare(self._mark))
            to = checkpoint()
            self._remember_mark(mark)
            await assigned.publisher.publish(records, self._commits([(assigned, to)]))
            done()
            assigned.committed = to

    async def _send_all(self, assigned: ShardAssignment, step: steps.SendMessages) -> None:
        await self._send(step.messages)
        assigned.protocol.sent(step)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    async def _compared(self, assigned: ShardAssignment, work: Callable[[], T]) -> T:
        """Do the work, then compare the ledger with its mark: what an older copy allows must not
        outlive it in the log."""

        def work_and_compare() -> T:
            found = work()
            assigned.ledger.compare(self._mark)
            return found

        return await self._in_thread(work_and_compare)

    def _metadata(self, _assigned: ShardAssignment, to: ShardCheckpoint) -> str:
        return encode_checkpoint(to, self._binding.text, self._mark)


def settle(
    ledger: Ledger,
    shard: int,
    shards: int,
    released_ms: int,
    answered_ms: int = NOT_YET,
    periods: PositionPeriods | None = None,
    grid: Grid = HEXAGONS,
) -> None:
    """Inform the ledger of what the shard has published, by its checkpoint: slots that end by
    `released_ms`, moments up to `answered_ms`; `periods` are those of positions, where queries are
    asked."""
    waiting = [id_ for id_, _ in ledger.unpublished()]
    hats = [id_ for id_ in waiting if kind_of(id_) == HAT and 1000 * end_of(id_) <= released_ms]
    of = _shards_of((Id.of(id_).key for id_ in hats), grid, shards)
    gone = [id_ for id_, at in zip(hats, of.tolist(), strict=True) if at == shard]
    for id_ in waiting:
        moment_ms = 1000 * end_of(id_)
        if (
            periods is not None
            and kind_of(id_) in (QUERY, ROUND)
            and moment_ms <= answered_ms
            and wire.shard_of_period(periods.start_of(moment_ms), shards) == shard
        ):
            gone.append(id_)
    if gone:
        ledger.published(gone)


def _shards_of(ids: Iterable[str], grid: Grid, shards: int) -> Integers:
    return wire.shard_of(np.fromiter(map(grid.cell_of, ids), np.uint64), shards)
