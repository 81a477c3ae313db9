"""Writes, reads and commits of workers, through aiokafka.

A write is done once every replica has it. We fill a slot's batches ourselves: a future for each
record takes half of publishing's time.

**Strictly once**: records and checkpoint are a single transaction. Readers of committed records
(`isolation.level=read_committed`) see all of a slot or nothing, and never twice. It holds because
of who may commit. Each shard has a transactional id. A worker that is assigned the shard first asks
for a new epoch of that id: the broker then aborts or completes what the former owner had begun, and
refuses all that it tries later (`Fenced`). Only *then* is the checkpoint read. So at any time a
single producer can commit, and it has seen the last commit before its own. The group's generation
would say less: it is known to be stale only once the group has been formed anew.

Between slots the checkpoint moves with plain commits of the group, through Faust's consumer. None
of them can undo a transaction: a shard processor has a single transaction or commit under way at a
time, and commits are sent in the generation in which the shard was ours or not at all. A commit
that comes too late is dropped; the next worker reads again.

kafka-python (3.0.12) fences as well. But a request of its transaction that meets a refused
connection is never answered: `commit_transaction` waited for ever in four of eight restarts of a
broker. It also takes two and a half times as long (0.25 s for 6,000 records, against 0.10).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.errors import KafkaError as KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata

from streams.topics import (
    RIGHTS,
    LedgerIdentity,
    Topic,
    client_options,
    partitions_of,
    raised,
    refusal,
    unreachable_in_loop,
)
from udp_stream.base.errors import (
    ConfigError,
    DataLoss,
    DependencyUnavailable,
    Fenced,
    PrivacyRefused,
)
from udp_stream.base.logs import counted
from udp_stream.settings.sections import KafkaSection

if TYPE_CHECKING:
    import faust
    from faust.types import TP
from functools import cache

from streams.topics import Topics
from udp_stream.release.events import PublishedRelease
from udp_stream.release.query_pipeline import RecordedAnswer
from udp_stream.release.record import QueryResult, Record, Release, Smoothed, Withdrawal, schema_of

Headers = list[tuple[str, bytes]]

REQUEST_BYTES_MAX = 2**20
"""Most bytes of a record with its headers: the usual limit of brokers."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write; the key chooses the partition where none is given."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None


class Producer:
    """A producer with acks from all replicas, in order within a partition; use it with `async
    with`."""

    def __init__(self, kafka: KafkaSection) -> None:
        self._kafka = kafka
        self._producer = AIOKafkaProducer(
            **client_options(kafka),
            acks="all",
            enable_idempotence=True,
            max_batch_size=2**17,
            max_request_size=REQUEST_BYTES_MAX,
        )

    async def __aenter__(self) -> Self:
        """Raise DependencyUnavailable if no broker answers."""
        try:
            await self._producer.start()
        except KafkaError as error:
            await self._producer.stop()
            raise await unreachable_in_loop(self._kafka, error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def write(self, records: Iterable[OutgoingRecord]) -> None:
        """Write all and return when every replica has them.

        DependencyUnavailable if the broker refuses any; then some of them may have been written.
        """
        await (await self.send(records))

    async def send(self, records: Iterable[OutgoingRecord]) -> asyncio.Future[None]:
        """Start writing; the future is done when every replica has all of them, or fails as `write`
        does."""
        under_way = []
        try:
            for record in records:
                if record.partition is not None:
                    # The client asks for partitions every five minutes, and takes an unknown partition
                    # for a fault of ours: the consumer may have a partition of a topic that was
                    # raised meanwhile. May block indefinitely.
                    while record.partition not in await self._producer.partitions_for(record.topic):
                        await self._producer.client.force_metadata_update()
                        await asyncio.sleep(AGAIN_S)
                sent = await self._producer.send(
                    record.topic, record.value, record.key, record.partition, headers=record.headers
                )
                under_way.append(sent)
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
    """Return when every replica has all records, in order within a partition; raises the first
    KafkaError."""
    under_way: list[Awaitable[object]] = []
    try:
        # A batch of every partition at a time: the client sends them together, and has a single
        # batch of each under way.
        for batches in zip_longest(*await _batches(producer, records)):
            for topic, partition, batch in filter(None, batches):
                under_way.append(await producer.send_batch(batch, topic, partition=partition))
    finally:
        taken = await asyncio.gather(*under_way, return_exceptions=True)
    for error in taken:
        if isinstance(error, BaseException):
            raise error


async def _batches(
    producer: AIOKafkaProducer, records: Iterable[OutgoingRecord]
) -> list[list[_Batch]]:
    partitions: dict[str, int] = {}
    found: dict[tuple[str, int], list[_Batch]] = {}
    for record in records:
        if record.topic not in partitions:
            partitions[record.topic] = len(await producer.partitions_for(record.topic))
        at = (
            partition_of(record.key or b"", partitions[record.topic])
            if record.partition is None
            else record.partition
        )
        batches = found.setdefault((record.topic, at), [])
        if not batches or not _fits(batches[-1], record):
            batches.append((record.topic, at, producer.create_batch()))
            _fits(batches[-1], record)  # an empty batch takes a record, however large that is
    return list(found.values())


def _fits(batch: _Batch, record: OutgoingRecord) -> bool:
    """Put a record into the batch; False if that is full."""
    return (
        batch[2].append(timestamp=None, key=record.key, value=record.value, headers=record.headers)
        is not None
    )


class CommittedOffset(NamedTuple):
    """Where to resume a partition, and the metadata committed with it; offset -1 if nothing was
    ever committed."""

    offset: int
    metadata: str


BEGIN_S = 60.0
"""Timeout in seconds of a new epoch: the broker first ends the former owner's transaction."""

CLOSE_S = 5.0

BATCH_BYTES_MAX = 2**19
"""Most bytes of a batch: half of what brokers usually take."""

TRANSACTION_MS = 60_000
"""Time in ms after which the broker aborts a transaction. A slot takes well below a second; until a
transaction ends, readers of what is committed wait behind it."""

# The broker sends these errors to a producer that is not the latest of its id, or whose transaction
# it has given up.
_LOST = (
    errors.InvalidProducerEpoch,
    errors.InvalidProducerIdMapping,
    errors.InvalidTxnState,
    errors.OutOfOrderSequenceNumber,
    errors.ProducerFenced,
    errors.UnknownProducerId,
)


class TransactionalPublisher:
    """Records and checkpoint in a single transaction; `begin` starts a transaction."""

    def __init__(self, producer: AIOKafkaProducer, group: str) -> None:
        self._producer = producer
        self._group = group
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    @classmethod
    async def begin(cls, kafka: KafkaSection, shard: TP) -> TransactionalPublisher:
        """Fence off the former owner of the shard. DependencyUnavailable if the broker begins no
        transactions."""
        producer = AIOKafkaProducer(
            **client_options(kafka),
            acks="all",
            transactional_id=f"{kafka.group}/{shard.topic}/{shard.partition}",
            transaction_timeout_ms=TRANSACTION_MS,
            max_batch_size=BATCH_BYTES_MAX,
            max_request_size=REQUEST_BYTES_MAX,
        )
        try:
            await asyncio.wait_for(producer.start(), BEGIN_S)
        except (KafkaError, TimeoutError) as error:
            await _stop(producer)
            raise no_transaction(kafka, error) from error
        return cls(producer, kafka.group)

    async def publish(
        self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, CommittedOffset]
    ) -> None:
        """Write a transaction. It is committed only after every record was taken; after any error,
        never by us. `Fenced` also if it is closed meanwhile; then the next owner finds out whether
        it was committed."""
        self._under_way = asyncio.ensure_future(self._transact(records, checkpoint))
        try:
            await self._under_way
        except asyncio.CancelledError:
            if self._closed:
                raise Fenced("the shard was dropped while it published") from None
            raise
        except KafkaError as error:
            if isinstance(error, _LOST) or isinstance(error.__cause__, _LOST):
                raise Fenced(
                    "another worker has begun a later transaction of this shard, or the broker has ended ours"
                ) from error
            raise DependencyUnavailable(f"Kafka did not take a slot's releases: {error}") from error

    async def _transact(
        self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, CommittedOffset]
    ) -> None:
        offsets = {
            TopicPartition._make(tp): OffsetAndMetadata(offset, note)
            for tp, (offset, note) in checkpoint.items()
        }
        await self._producer.begin_transaction()
        await write_batched(self._producer, records)
        await self._producer.send_offsets_to_transaction(offsets, self._group)
        await self._producer.commit_transaction()

    async def close(self) -> None:
        """Disconnect. A transaction under way is aborted by the next owner, or by the broker after
        its timeout."""
        self._closed = True
        if self._under_way is not None:
            self._under_way.cancel()  # a producer that is stopped would never end it
        await _stop(self._producer)


async def _stop(producer: AIOKafkaProducer) -> None:
    # What it leaves open is ended by the next owner, or by the broker: a failure here changes
    # nothing.
    with suppress(KafkaError, TimeoutError):
        await asyncio.wait_for(producer.stop(), CLOSE_S)


def no_transaction(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """Error to raise where the broker begins no transaction.

    >>> str(no_transaction(KafkaSection(), TimeoutError()))[:90]
    'Kafka at localhost:9092 cannot begin a transaction (TimeoutError): are there fewer brokers'
    """
    why = f" ({type(error).__name__}): are there fewer brokers than transaction.state.log.replication.factor?"
    if getattr(error, "errno", None) in RIGHTS:
        why = f": {refusal(error)}."
    return DependencyUnavailable(
        f"Kafka at {kafka.bootstrap} cannot begin a transaction{why} With kafka.transactions = false releases are "
        "published at least once"
    )


AGAIN_S = 0.1
"""Seconds between two attempts at a commit, or at reading a commit."""

NotAssigned = errors.IllegalStateError

_NOT_OURS = (
    errors.IllegalGenerationError,
    NotAssigned,
    errors.RebalanceInProgressError,
    errors.UnknownMemberIdError,
)
"""Errors which say that the group was, or is being, formed anew."""


class Offsets:
    """Commits and positions of an app that is running: all that reaches into Faust's consumer from
    outside of it."""

    def __init__(self, app: faust.App) -> None:
        self._app = app

    @property
    def _thread(self) -> Any:
        return self._app.consumer._thread  # type: ignore[attr-defined]

    async def commit(self, offsets: Mapping[TP, CommittedOffset]) -> bool:
        """Commit; False, and nothing committed, if a partition is no longer ours."""
        commits = {
            TopicPartition._make(tp): OffsetAndMetadata(offset, metadata)
            for tp, (offset, metadata) in offsets.items()
        }
        # In which they are ours, if they still are.
        generation = self._thread._consumer._coordinator.generation
        try:
            await self._thread.call_thread(self._commit, commits, generation)
        except _NOT_OURS:
            return False
        return True

    async def _commit(
        self, commits: Mapping[TopicPartition, OffsetAndMetadata], generation: int
    ) -> None:
        """Like the consumer's own commit, but without retries in a later generation of the group.

        In a later generation the partition may belong to another worker whose checkpoint is further
        on. The broker would still accept our commit: from any member, and from anyone if the group
        has no members.
        """
        consumer = self._thread._consumer
        subscription = consumer._subscription.subscription
        coordinator = consumer._coordinator
        assignment = subscription and subscription.assignment
        if generation < 0 or not assignment or not commits.keys() <= assignment.tps:
            raise NotAssigned("these partitions are not all assigned")
        while True:
            await coordinator.ensure_coordinator_known()
            async with coordinator._commit_lock:
                # Looked at under the lock: the group may have been formed anew while we waited for
                # it.
                if coordinator.generation != generation:
                    raise errors.IllegalGenerationError("the group was formed anew")
                try:
                    await coordinator._do_commit_offsets(assignment, commits)
                    return
                except KafkaError as error:
                    if not error.retriable or isinstance(error, _NOT_OURS):
                        raise
            await asyncio.sleep(AGAIN_S)

    async def committed(self, tps: Collection[TP]) -> dict[TP, CommittedOffset]:
        """The last commit of each partition. It waits until the broker knows: right after its start
        it does not."""
        return await self._thread.call_thread(self._fetch, tps) if tps else {}

    async def _fetch(self, tps: Collection[TP]) -> dict[TP, CommittedOffset]:
        """Like the client's own (aiokafka 0.14), but an error that stands beside all partitions is
        raised.

        A coordinator that is being loaded, after a broker's start, answers with such an error and
        without partitions. The client takes that for "nothing was ever committed": a shard would
        begin as if nothing were released yet.
        """
        coordinator = self._thread._consumer._coordinator
        asked = defaultdict[str, list[int]](list)
        for tp in tps:
            asked[tp.topic].append(tp.partition)
        while True:
            await coordinator.ensure_coordinator_known()
            try:
                request = OffsetFetchRequest(coordinator.group_id, list(asked.items()))
                return _commits_in(await coordinator._send_req(request), tps)
            except errors.NotCoordinatorForGroupError:
                coordinator.coordinator_dead()
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def first(self, tps: Collection[TP]) -> dict[TP, int]:
        if not tps:
            return {}
        found = await self._app.consumer.earliest_offsets(*(TopicPartition._make(tp) for tp in tps))
        return {tp: found[TopicPartition._make(tp)] for tp in tps}

    async def ends(self, tps: Collection[TP]) -> dict[TP, int]:
        """The offset of each partition's next record. It may wait for the broker for ever."""
        if not tps:
            return {}
        found = await self._thread.call_thread(
            self._thread._consumer.end_offsets, [TopicPartition._make(tp) for tp in tps]
        )
        return {tp: found[TopicPartition._make(tp)] for tp in tps}

    async def is_read(self, tp: TP, next_offset: int) -> bool:
        """Whether it is ours and all that it has now was fetched, handed over and read, up to
        `next_offset`.

        Lost if it ends before that.
        """
        handed = self._app.consumer._read_offset.get(tp)  # type: ignore[attr-defined]
        if handed is not None and handed > next_offset:
            return False
        asked = TopicPartition._make(tp)
        try:
            position = await self._thread.call_thread(self._thread._consumer.position, asked)
        except NotAssigned:  # a rebalance has begun
            return False
        ends = await self._thread.call_thread(self._thread._consumer.end_offsets, [asked])
        if ends[asked] < next_offset:
            raise shortened(tp, ends[asked], next_offset)
        return bool(position >= ends[asked])

    def unread(self, next_offsets: Mapping[TP, int]) -> int:
        """How many offsets are left from these on, as of the last fetch of each partition. The
        broker is not asked."""
        if not next_offsets:  # nor is there a consumer, perhaps
            return 0
        subscription = self._thread._consumer._subscription.subscription
        assignment = subscription and subscription.assignment
        states = (
            [(assignment.state_value(tp), offset) for tp, offset in next_offsets.items()]
            if assignment
            else []
        )
        return sum(
            max(0, (state.highwater or 0) - offset) for state, offset in states if state is not None
        )

    async def seek(self) -> None:
        consumer: Any = self._app.consumer
        consumer.drop_fetched()
        await consumer.perform_seek()

    async def rejoin(self) -> None:
        """Ask for the group to be formed anew: we have found that a partition is no longer ours."""

        async def ask() -> None:
            self._thread._consumer._coordinator.request_rejoin()

        await self._thread.call_thread(ask)

    async def all_read(self, next_offsets: Mapping[TP, int]) -> bool:
        """Whether the group has us, no rebalance is under way, these are all that is ours, and
        `is_read` holds of each.

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
        return {tp for tp in self._app.consumer.assignment() if tp.topic == topic}

    def known_partitions(self, topic: str) -> int:
        """How many the topic has as far as the consumer knows, which need not ask."""
        return len(self._thread._consumer.partitions_for_topic(topic) or ())

    async def partitions_now(self, topic: str) -> int:
        """How many partitions the broker says that the topic has. It may wait for the broker for
        ever."""
        cluster = await self._thread.call_thread(self._thread._consumer._client.fetch_all_metadata)
        return len(cluster.partitions_for_topic(topic) or ())

    async def partitions(self, topic: str, before: int) -> int:
        """How many partitions the topic has. ConfigError if it had more `before`: a slot would wait
        for all of them."""
        consumer = self._thread._consumer
        # Others may know of more than we do.
        await self._thread.call_thread(consumer._client.force_metadata_update)
        found = len(consumer.partitions_for_topic(topic) or ())
        if found < max(1, before):
            raise ConfigError(
                f"{topic}: expected at least {counted(max(1, before), 'partition')}, as it had before, got {found}: it "
                "was deleted, or made anew. Give it as many; `udp-stream topics create` makes a topic that is missing"
            )
        return found


def shortened(tp: TP, end: int, read_to: int) -> DataLoss:
    """Error to raise where a partition ends before what was read of it."""
    return DataLoss(
        f"{tp.topic}[{tp.partition}] ends at offset {end}, but was read up to {read_to} before: its broker has lost "
        "the end of it, or the topic was made anew and the group's commits were kept. `udp-stream worker "
        "--accept-loss` continues without what is lost, from the first record that there is"
    )


def _commits_in(response: Any, tps: Collection[TP]) -> dict[TP, CommittedOffset]:
    """The commit of each partition; KafkaError if the answer tells of an error, or lacks a
    partition."""
    _require_ok(response.error_code)
    found: dict[tuple[str, int], CommittedOffset] = {}
    for topic, partitions in response.topics:
        for partition, offset, metadata, code in partitions:
            _require_ok(code)
            found[topic, partition] = CommittedOffset(offset, metadata or "")
    if found.keys() != set(tps):
        raise KafkaError(f"expected the commits of {sorted(tps)}, got those of {sorted(found)}")
    return {tp: found[tp] for tp in tps}


def _require_ok(code: int) -> None:
    if code:
        raise errors.for_code(code)()


SECONDS_MAX = 30.0
"""A broker that stops answering ends the read."""


def read_topic(kafka: KafkaSection, topic: Topic, latest: int | None = None) -> list[Any]:
    """The committed records of a topic, in order within each partition; with `latest`, only the
    last records of each.

    Raises DependencyUnavailable if the broker does not answer, or stops answering, or has no such
    topic.
    """
    there = replace(topic, partitions=partitions_of(kafka, topic.name))
    try:
        return asyncio.run(asyncio.wait_for(records_of(kafka, there, latest), SECONDS_MAX))
    except (KafkaError, TimeoutError) as error:
        raise DependencyUnavailable(
            f"Kafka at {kafka.bootstrap}: {str(error) or 'no answer'}"
        ) from error


async def records_of(kafka: KafkaSection, topic: Topic, latest: int | None = None) -> list[Any]:
    """The same, of a topic that has these partitions, for as long as it takes; raises what the
    client raises."""
    consumer = AIOKafkaConsumer(
        **client_options(kafka), enable_auto_commit=False, isolation_level="read_committed"
    )
    try:
        await consumer.start()
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        consumer.assign(partitions)
        first = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(
                partition,
                first[partition]
                if latest is None
                else max(first[partition], ends[partition] - latest),
            )
        records = []
        # By position, not by a count of records: the ends of transactions take offsets, too.
        while any(
            [await consumer.position(partition) < ends[partition] for partition in partitions]
        ):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                records += some
        return records
    finally:
        await consumer.stop()


class _Registration(msgspec.Struct, frozen=True):
    ledger: str
    partitions: int = 0  # of the pings; 0: an older version wrote it


async def register(
    kafka: KafkaSection, topic: Topic, binding: LedgerIdentity, producer: Producer
) -> None:
    """Work on this ledger from now on. PrivacyRefused if the deployment works on another ledger,
    ConfigError if it began with another number of partitions, DependencyUnavailable if the broker
    does not tell.
    """
    first = await _first(kafka, topic)
    if first is None:
        ours = _Registration(binding.text, kafka.partitions)
        await producer.write([OutgoingRecord(topic.name, msgspec.json.encode(ours), partition=0)])
        first = await _first(kafka, topic)
    binding.require(
        first.ledger if first else None, f"the deployment ({topic.name} at {kafka.bootstrap})"
    )
    if first and first.partitions not in (0, kafka.partitions):
        raise ConfigError(raised("kafka.partitions", kafka.partitions, first.partitions))


def registered(kafka: KafkaSection, topic: Topic) -> LedgerIdentity | None:
    """The ledger that the deployment works on; None without a registration. Raises as `read_topic`,
    and PrivacyRefused for a registration that cannot be read."""
    first = _said(read_topic(kafka, topic))
    try:
        return None if first is None else LedgerIdentity.read(first.ledger)
    except ValueError as error:
        raise PrivacyRefused(
            f"{topic.name}: expected a claim of a ledger in its first record: {error}"
        ) from error


async def _first(kafka: KafkaSection, topic: Topic) -> _Registration | None:
    try:
        records = await asyncio.wait_for(records_of(kafka, topic), SECONDS_MAX)
    except (KafkaError, TimeoutError) as error:
        raise DependencyUnavailable(
            f"Kafka at {kafka.bootstrap}: {topic.name}: {str(error) or 'no answer'}"
        ) from error
    return _said(records)


def _said(records: Sequence[Any]) -> _Registration | None:
    if not records:
        return None
    try:
        return msgspec.json.decode(records[0].value, type=_Registration)
    except msgspec.DecodeError:
        # Not None: there is a registration, and `require` refuses it if it names no ledger.
        return _Registration("")


# Published records as records of Kafka: CloudEvents in binary mode, each under its cell or its
# query.


def release_records(topics: Topics, releases: Sequence[PublishedRelease]) -> list[OutgoingRecord]:
    """Each release for two topics: all releases, and the latest of each cell."""
    made = [
        _of_hat(topics.release, one.record.release_id, one.record, one.payload) for one in releases
    ]
    latest = topics.latest.name
    return made + [replace(record, topic=latest) for record in made]


def withdrawal_records(topics: Topics, payloads: Iterable[bytes]) -> list[OutgoingRecord]:
    """Each withdrawal, where the record is that it withdraws; the latest of a cell stays what it
    is."""
    marks = [(Withdrawal.decode(payload), payload) for payload in payloads]
    return [
        _event(
            topics.release, Withdrawal, mark.release_id, mark.withdrawn_at, mark.hat.cell, payload
        )
        for mark, payload in marks
    ]


def smoothed_records(topics: Topics, estimates: Sequence[Smoothed]) -> list[OutgoingRecord]:
    """Each estimate, under its cell."""
    made = []
    for one in estimates:
        id_ = f"{one.hat.cell}/{one.hat.slot_start}/{one.hat.slot_end}"
        made.append(_of_hat(topics.smoothed, id_, one, one.encode()))
    return made


def query_records(topics: Topics, answers: Sequence[RecordedAnswer]) -> list[OutgoingRecord]:
    """Each answer of a moment, under its query's name."""
    found = [(QueryResult.decode(answer.payload).query, answer) for answer in answers]
    return [
        _event(topics.queries, QueryResult, of.release_id, query.moment, query.name, of.payload)
        for query, of in found
    ]


def _of_hat(topic: Topic, id_: str, record: Release | Smoothed, payload: bytes) -> OutgoingRecord:
    return _event(topic, type(record), id_, record.hat.slot_end, record.hat.cell, payload)


def _event(
    topic: Topic, kind: type[Record], id_: str, time: str, subject: str, value: bytes
) -> OutgoingRecord:
    """A record under its subject; `time` is the end of its slot, or its moment."""
    key = subject.encode()
    (version, type_, source, schema, content) = _headers_of_all(topic.name, schema_of(kind))
    headers = [
        version,
        ("ce_id", id_.encode()),
        type_,
        source,
        ("ce_time", time.encode()),
        ("ce_subject", key),
        schema,
        content,
    ]
    return OutgoingRecord(topic.name, value, key, headers)


@cache  # a slot has thousands of records
def _headers_of_all(topic: str, schema: str) -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", schema.replace("/", ".").encode()),
        ("ce_source", f"udp-stream/{topic}".encode()),
        ("ce_dataschema", schema.encode()),
        ("content-type", b"application/json"),
    ]
