"""Our own commits through Faust's consumer: the one file that reaches into it.

A commit is (offset, metadata) per partition, kept by the broker under the group. It is made only while the partition is
ours. A commit that comes too late is dropped; the next worker reads that part of the log again.

Records may be gone from a log: deleted before they were read, or lost by the broker afterwards.

A consumer whose next record is gone goes on with the first one that is left, and says nothing. So a partition is looked
at when it becomes ours, and whenever what comes next is not the record that was to come.

Retention may be shorter than the time that a worker was behind. And a log may end before what was read of it: its
broker has lost the end of it, or it was made anew and the group's commits were kept. New records then have offsets that
a reader would take for read. So a partition's end is looked at when it becomes ours, and whenever the broker is asked
for it. Where the log has grown further meanwhile, nobody can tell.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from types import TracebackType
from typing import Any, NamedTuple, Self

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from streams.topics import Topic, client_options, partitions_of, unreachable_in_loop
from udp_stream.errors import ConfigError, DependencyUnavailable
from udp_stream.logs import counted
from udp_stream.settings.sections import KafkaSection

AGAIN_S = 0.1
"""Between two attempts at a commit, or at reading one."""

_NOT_OURS = (IllegalGenerationError, IllegalStateError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors which say that the group was, or is being, formed anew."""


class Committed(NamedTuple):
    """Where to resume a partition, and the metadata committed with it; offset -1 if nothing was ever committed."""

    offset: int
    metadata: str


class Offsets:
    """Commits and positions of an app that is running."""

    def __init__(self, app: faust.App) -> None:
        """Nothing is asked before the app has started."""
        self._app = app

    @property
    def _thread(self) -> Any:
        return self._app.consumer._thread  # type: ignore[attr-defined]

    async def commit(self, offsets: Mapping[TP, Committed]) -> bool:
        """Commit; False, and nothing committed, if a partition is no longer ours."""
        commits = {
            TopicPartition(*tp): OffsetAndMetadata(offset, metadata) for tp, (offset, metadata) in offsets.items()
        }
        generation = self._thread._consumer._coordinator.generation  # in which they are ours, if they still are
        try:
            await self._thread.call_thread(self._commit, commits, generation)
        except _NOT_OURS:
            return False
        return True

    async def _commit(self, commits: Mapping[TopicPartition, OffsetAndMetadata], generation: int) -> None:
        """Like the consumer's own commit, but without retries in a later generation of the group.

        In a later generation the partition may belong to another worker whose checkpoint is further on. The broker
        would still accept our commit: from any member, and from anyone if the group has no members.
        """
        consumer = self._thread._consumer
        subscription, coordinator = consumer._subscription.subscription, consumer._coordinator
        assignment = subscription and subscription.assignment
        if generation < 0 or not assignment or not commits.keys() <= assignment.tps:
            raise IllegalStateError("these partitions are not all assigned")
        while True:
            await coordinator.ensure_coordinator_known()
            async with coordinator._commit_lock:
                # Looked at under the lock: the group may have been formed anew while we waited for it.
                if coordinator.generation != generation:
                    raise IllegalGenerationError("the group was formed anew")
                try:
                    await coordinator._do_commit_offsets(assignment, commits)
                    return
                except KafkaError as error:
                    if not error.retriable or isinstance(error, _NOT_OURS):
                        raise
            await asyncio.sleep(AGAIN_S)

    async def committed(self, tps: Collection[TP]) -> dict[TP, Committed]:
        """The last commit of each partition. It waits until the broker knows: right after its start it does not."""
        return await self._thread.call_thread(self._fetch, tps) if tps else {}

    async def _fetch(self, tps: Collection[TP]) -> dict[TP, Committed]:
        """Like the client's own (aiokafka 0.14), but an error that stands beside all partitions is one.

        A coordinator that is being loaded, after a broker's start, answers with such an error and without partitions.
        The client takes that for "nothing was ever committed": a shard would begin as if nothing were released yet.
        """
        coordinator, asked = self._thread._consumer._coordinator, defaultdict[str, list[int]](list)
        for tp in tps:
            asked[tp.topic].append(tp.partition)
        while True:
            await coordinator.ensure_coordinator_known()
            try:
                request = OffsetFetchRequest(coordinator.group_id, list(asked.items()))
                return _commits_in(await coordinator._send_req(request), tps)
            except NotCoordinatorForGroupError:
                coordinator.coordinator_dead()
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def first(self, tps: Collection[TP]) -> dict[TP, int]:
        """The first offset that each partition still has."""
        if not tps:
            return {}
        found = await self._app.consumer.earliest_offsets(*(TopicPartition(*tp) for tp in tps))
        return {TP(*tp): offset for tp, offset in found.items()}

    async def ends(self, tps: Collection[TP]) -> dict[TP, int]:
        """Where each partition ends now: the offset of its next record. It may wait for the broker for ever."""
        if not tps:
            return {}
        found = await self._thread.call_thread(self._thread._consumer.end_offsets, [TopicPartition(*tp) for tp in tps])
        return {TP(*tp): offset for tp, offset in found.items()}

    async def is_read(self, tp: TP, next_offset: int) -> bool:
        """Whether it is ours and all that it has now was fetched, handed over and read, up to `next_offset`.

        DependencyUnavailable if it ends before that.
        """
        handed = self._app.consumer._read_offset.get(tp)  # type: ignore[attr-defined]
        if handed is not None and handed > next_offset:
            return False
        asked = TopicPartition(*tp)
        try:
            position = await self._thread.call_thread(self._thread._consumer.position, asked)
        except IllegalStateError:  # a rebalance has begun
            return False
        ends = await self._thread.call_thread(self._thread._consumer.end_offsets, [asked])
        if ends[asked] < next_offset:
            raise shortened(tp, ends[asked], next_offset)
        return bool(position >= ends[asked])

    async def seek(self) -> None:
        """Go on from the commits. What is being fetched from elsewhere is dropped."""
        consumer: Any = self._app.consumer
        consumer.drop_fetched()
        await consumer.perform_seek()

    async def rejoin(self) -> None:
        """Ask for the group to be formed anew: we have found that a partition is no longer ours."""

        async def ask() -> None:
            self._thread._consumer._coordinator.request_rejoin()

        await self._thread.call_thread(ask)

    async def all_read(self, next_offsets: Mapping[TP, int]) -> bool:
        """Whether the group has us, no rebalance is under way, these are all that is ours, and `is_read` holds of each.

        It may wait for the broker for ever.
        """
        if self._app.rebalancing or not self._app.consumer_generation_id:
            return False
        if self._app.consumer.assignment() - next_offsets.keys():
            return False
        if not next_offsets:  # of nothing: then at least that the broker answers
            await self._thread.call_thread(self._thread._consumer._client.fetch_all_metadata)
        return all([await self.is_read(tp, offset) for tp, offset in next_offsets.items()])

    def assigned(self, topic: str) -> set[TP]:
        """The topic's partitions that are ours now."""
        return {tp for tp in self._app.consumer.assignment() if tp.topic == topic}

    def partitions(self, topic: str, before: int) -> int:
        """How many partitions the topic has. ConfigError if it had more `before`: a slot would wait for all of them."""
        found = len(self._thread._consumer.partitions_for_topic(topic) or ())
        if found < max(1, before):
            raise ConfigError(
                f"{topic}: expected at least {counted(max(1, before), 'partition')}, as it had before, got {found}: it "
                "was deleted, or made anew. Give it as many; `udp-stream topics create` makes a topic that is missing"
            )
        return found


def shortened(tp: TP, end: int, read_to: int) -> DependencyUnavailable:
    """What to raise where a partition ends before what was read of it.

    >>> str(shortened(TP("pings", 0), 9, 15))[:67]
    'pings[0] ends at offset 9, but was read up to 15 before: its broker'
    """
    return DependencyUnavailable(
        f"{tp.topic}[{tp.partition}] ends at offset {end}, but was read up to {read_to} before: its broker has lost "
        "the end of it, or the topic was made anew and the group's commits were kept. `udp-stream worker "
        "--accept-loss` continues without what is lost, from the first record that there is"
    )


def _commits_in(response: Any, tps: Collection[TP]) -> dict[TP, Committed]:
    """What the broker answers of each partition; KafkaError if it tells of an error, or not of all of them."""
    _require_ok(response.error_code)
    found: dict[TP, Committed] = {}
    for topic, partitions in response.topics:
        for partition, offset, metadata, code in partitions:
            _require_ok(code)
            found[TP(topic, partition)] = Committed(offset, metadata or "")
    if found.keys() != set(tps):
        raise KafkaError(f"expected the commits of {sorted(tps)}, got those of {sorted(found)}")
    return found


def _require_ok(code: int) -> None:
    if code:
        raise for_code(code)()


class Needed:
    """What is still needed of the partitions of one topic has to be there, unless `accept_loss`.

    >>> Needed(None, "pings were deleted", accept_loss=True).require(TP("pings", 0), first=9, offset=7)
    >>> Needed(None, "pings were deleted", accept_loss=False).require(TP("pings", 0), first=9, offset=7)
    Traceback (most recent call last):
    udp_stream.errors.DependencyUnavailable: pings[0] begins at offset 9, but is still needed from 7 on: pings were ...
    """

    def __init__(self, offsets: Offsets, lost: str, accept_loss: bool) -> None:
        """`lost`: what it means that something is gone, in words."""
        self._offsets, self._lost, self._accept_loss = offsets, lost, accept_loss
        self._goes_back = False

    def restart_offset(self, tp: TP, first: int, end: int, offset: int, read_to: int) -> int | None:
        """Where to read the partition again, with what is known of it, if it ends before what was read: at its first
        record, as the consumer does. None if it has all from `offset` on. DependencyUnavailable unless `accept_loss`.

        >>> needed = Needed(None, "pings were deleted", accept_loss=True)
        >>> needed.restart_offset(TP("pings", 0), 0, end=9, offset=7, read_to=9)
        >>> needed.restart_offset(TP("pings", 0), 0, end=9, offset=12, read_to=15)
        0
        """
        self.require(tp, first, offset)
        if end >= read_to:
            return None
        if not self._accept_loss:
            raise shortened(tp, end, read_to)
        self._goes_back = True
        return first

    async def go_back(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Have the consumer read again from what `restart_offset` gave, if it gave anything: it goes by commits."""
        if self._goes_back:
            self._goes_back = False
            await commit()
            await self._offsets.seek()

    def require(self, tp: TP, first: int, offset: int) -> None:
        """DependencyUnavailable if the partition begins, at `first`, behind this offset."""
        if first > offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {offset} on: "
                f"{self._lost}. `udp-stream worker --accept-loss` continues without them"
            )

    async def require_before(self, records: Sequence[Any], next_offset: int) -> None:
        """The same, for the records from `next_offset` up to these, which have come instead."""
        # The broker is asked only where there is a gap. There may be one without a loss: offsets need not be dense.
        if records[0].offset > next_offset and not self._accept_loss:
            tp = TP(records[0].topic, records[0].partition)
            self.require(tp, (await self._offsets.first({tp}))[tp], next_offset)


# Producer: the records that workers write. A write is done once every replica has it.
#
# Many records are written in batches that we fill ourselves: one future for each record takes half of publishing's
# time. A record goes where the client's own partitioner would send it, by its key. The records of a slot are functions
# of the slot alone, so that a repeat has the same bytes.

Headers = list[tuple[str, bytes]]

REQUEST_BYTES_MAX = 2**20
"""A record with its headers, as brokers usually allow."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """One record to write; the key chooses the partition where none is given."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None


class Producer:
    """A producer with acks from all replicas, in order within a partition; use it with `async with`."""

    def __init__(self, kafka: KafkaSection) -> None:
        """Make it inside a running loop; it connects on entering."""
        self._kafka = kafka
        self._producer = AIOKafkaProducer(
            **client_options(kafka),
            acks="all",
            enable_idempotence=True,
            max_batch_size=2**17,
            max_request_size=REQUEST_BYTES_MAX,
        )

    async def __aenter__(self) -> Self:
        """Connect. DependencyUnavailable if no broker answers."""
        try:
            await self._producer.start()
        except KafkaError as error:
            await self._producer.stop()
            raise await unreachable_in_loop(self._kafka, error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, after what is under way."""
        await self._producer.stop()

    async def write(self, records: Iterable[OutgoingRecord]) -> None:
        """Write all and return when every replica has them.

        DependencyUnavailable if the broker refuses one; then some of them may have been written.
        """
        await (await self.send(records))

    async def send(self, records: Iterable[OutgoingRecord]) -> asyncio.Future[None]:
        """Start writing; the future is done when every replica has all of them, or fails as `write` does."""
        try:
            under_way = [
                await self._producer.send(
                    one.topic, one.value, key=one.key, partition=one.partition, headers=one.headers
                )
                for one in records
            ]
        except KafkaError as error:
            raise _refused(error) from error
        return asyncio.ensure_future(_arrival(under_way))


async def _arrival(under_way: list[asyncio.Future[Any]]) -> None:
    try:
        await asyncio.gather(*under_way)
    except KafkaError as error:
        raise _refused(error) from error


def _refused(error: KafkaError) -> DependencyUnavailable:
    return DependencyUnavailable(f"Kafka did not take a record: {error}")


_Batch = tuple[str, int, BatchBuilder]


@lru_cache(maxsize=2**16)
def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's clients send a key. Keys are cells, which come again in every slot.

    >>> partition_of(b"8742d98b6ffffff", 8), partition_of(b"8742d98b6ffffff", 1)
    (6, 0)
    """
    hashed: int = murmur2(key)
    # The sign bit is cleared as Kafka's clients do; `abs` would send some keys elsewhere.
    return (hashed & 0x7FFFFFFF) % partitions


async def write_batched(producer: AIOKafkaProducer, records: Iterable[OutgoingRecord]) -> None:
    """Return when every replica has all of them, in their order within a partition; raises the first KafkaError.

    Each has a key or a partition.
    """
    under_way: list[Awaitable[object]] = []
    try:
        # One batch of every partition at a time: the client sends them together, and has one of each under way.
        for batches in zip_longest(*await _batches(producer, records)):
            for topic, partition, batch in filter(None, batches):
                under_way.append(await producer.send_batch(batch, topic, partition=partition))
    finally:
        taken = await asyncio.gather(*under_way, return_exceptions=True)
    for error in taken:
        if isinstance(error, BaseException):
            raise error


async def _batches(producer: AIOKafkaProducer, records: Iterable[OutgoingRecord]) -> list[list[_Batch]]:
    """The records of each partition, in batches."""
    partitions: dict[str, int] = {}
    found: dict[tuple[str, int], list[_Batch]] = {}
    for one in records:
        if one.topic not in partitions:
            partitions[one.topic] = len(await producer.partitions_for(one.topic))
        at = partition_of(one.key or b"", partitions[one.topic]) if one.partition is None else one.partition
        batches = found.setdefault((one.topic, at), [])
        if not batches or not _fits(batches[-1], one):
            batches.append((one.topic, at, producer.create_batch()))
            _fits(batches[-1], one)  # an empty batch takes one record, however large that is
    return list(found.values())


def _fits(batch: _Batch, one: OutgoingRecord) -> bool:
    """Put it into the batch, unless that is full."""
    return batch[2].append(timestamp=None, key=one.key, value=one.value, headers=one.headers) is not None


# Topics read from outside, as a subscriber would: nothing is committed, no group is joined.

SECONDS_MAX = 30.0
"""A broker that stops answering ends the read."""


def read_topic(kafka: KafkaSection, topic: Topic, latest: int | None = None) -> list[Any]:
    """The committed records of a topic, in order within each partition; with `latest`, only the last ones of each.

    Raises DependencyUnavailable if the broker does not answer, or stops answering, or has no such topic.
    """
    there = replace(topic, partitions=partitions_of(kafka, topic.name))
    try:
        return asyncio.run(asyncio.wait_for(records_of(kafka, there, latest), SECONDS_MAX))
    except (KafkaError, TimeoutError) as error:
        raise DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {str(error) or 'no answer'}") from error


async def records_of(kafka: KafkaSection, topic: Topic, latest: int | None = None) -> list[Any]:
    """The same, of a topic that has these partitions, for as long as it takes; raises what the client raises."""
    consumer = AIOKafkaConsumer(**client_options(kafka), enable_auto_commit=False, isolation_level="read_committed")
    try:
        await consumer.start()
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        consumer.assign(partitions)
        first, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(
                partition, first[partition] if latest is None else max(first[partition], ends[partition] - latest)
            )
        records = []
        # By position, not by a count of records: the ends of transactions take offsets, too.
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                records += some
        return records
    finally:
        await consumer.stop()
