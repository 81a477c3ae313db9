"""Headers of what we write: CloudEvents (binary mode) on releases and estimates, reasons on what was refused, ticks.

They are functions of the record alone, so that what is published again is the same to the last byte. Messages between
workers and commits belong to a version of udp-stream; what another version has written is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Protocol

import numpy as np
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownProducerId,
)
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from streams.kafka import REQUEST_BYTES_MAX, Committed, Headers, Offsets, OutgoingRecord, Producer, write_batched
from streams.topics import RIGHTS, Topics, client_options, refusal
from udp_stream.errors import ConfigError, DependencyUnavailable, Fenced
from udp_stream.ledger.port import Ledger
from udp_stream.pings.decode import Refusal
from udp_stream.pings.times import parse_timestamps
from udp_stream.planning.periods import PositionPeriods
from udp_stream.release import forecaster, query_record
from udp_stream.release.facts import PublishedRelease
from udp_stream.release.forecaster import Smoothed, encode_smoothed
from udp_stream.release.query_record import QueryResult, decode_result, moment_of
from udp_stream.release.query_road import Answered
from udp_stream.release.record import SCHEMA, Release, decode, kind_of
from udp_stream.settings.sections import KafkaSection
from udp_stream.shuffle.barrier import NOT_YET
from udp_stream.shuffle.wire import shard_of, shard_of_period

TICK = "udp-stream-tick"
"""The header of a tick record: no ping, only the time at which the broker appends it."""

ERROR = "udp-stream.errors"


def release_headers(record: Release, source: str) -> Headers:
    """CloudEvents attributes of a release: its id is the release id, its time the end of the slot."""
    return _event(record.release_id, record.hat.slot_end, record.hat.cell, SCHEMA, source)


def query_headers(result: QueryResult, source: str) -> Headers:
    """CloudEvents attributes of a query's answer: its subject is the query, its time the moment."""
    return _event(result.release_id, result.query.moment, result.query.name, query_record.SCHEMA, source)


def smoothed_headers(estimate: forecaster.Smoothed, source: str) -> Headers:
    """CloudEvents attributes of a smoothed estimate: its id names cell and slot, its time is the end of the slot."""
    hat = estimate.hat
    id_ = f"{hat.cell}/{hat.slot_start}/{hat.slot_end}"
    return _event(id_, hat.slot_end, hat.cell, forecaster.SCHEMA, source)


def _event(id_: str, time: str, subject: str, schema: str, source: str) -> Headers:
    specversion, type_, from_, dataschema, content = _of_all(schema, source)
    return [
        specversion,
        ("ce_id", id_.encode()),
        type_,
        from_,
        ("ce_time", time.encode()),
        ("ce_subject", subject.encode()),
        dataschema,
        content,
    ]


@cache
def _of_all(schema: str, source: str) -> Headers:
    """What all events of a topic say alike."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", schema.replace("/", ".").encode()),
        ("ce_source", source.encode()),
        ("ce_dataschema", schema.encode()),
        ("content-type", b"application/json"),
    ]


def rejected_headers(refusal: Refusal, topic: str, partition: int, offset: int) -> Headers:
    """Where a refused message was and why it was refused; a refusal that is sent twice has the same `id`."""
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


def is_tick(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a record of the pings only tells the time.

    >>> is_tick([(TICK, b"1")]), is_tick([])
    (True, False)
    """
    return any(name == TICK for name, _ in headers)


def other_version(what: str) -> ConfigError:
    """What to raise for a message or commit that this version cannot read; nothing of it is quoted.

    >>> str(other_version("the message at bus.parts.v1[0], offset 7,"))[:82]
    'the message at bus.parts.v1[0], offset 7, is none that this version of udp-stream '
    """
    return ConfigError(
        f"{what} is none that this version of udp-stream reads: another version, or another program, has written it. "
        "All workers of a deployment need one version. After an upgrade: let the old version release every slot first, "
        "as docs/operations.md says (Upgrading)"
    )


# Records of releases, smoothed estimates and answers.


def release_records(topics: Topics, releases: Sequence[PublishedRelease]) -> list[OutgoingRecord]:
    """Each release for two topics: all releases, and the latest of each cell."""
    source = f"udp-stream/{topics.release.name}"
    headed = [(release, release_headers(release.record, source)) for release in releases]
    return [
        OutgoingRecord(topic, release.payload, key=release.record.hat.cell.encode(), headers=headers)
        for topic in (topics.release.name, topics.latest.name)
        for release, headers in headed
    ]


def smoothed_records(topics: Topics, estimates: Sequence[Smoothed]) -> list[OutgoingRecord]:
    """Each estimate, under its cell."""
    name = topics.smoothed.name
    return [
        OutgoingRecord(
            name,
            encode_smoothed(estimate),
            key=estimate.hat.cell.encode(),
            headers=smoothed_headers(estimate, f"udp-stream/{name}"),
        )
        for estimate in estimates
    ]


def query_records(topics: Topics, answers: Sequence[Answered]) -> list[OutgoingRecord]:
    """Each answer of a moment, under its query's name."""
    name = topics.queries.name
    return [
        OutgoingRecord(
            name,
            answer.payload,
            key=answer.name.encode(),
            headers=query_headers(decode_result(answer.payload), f"udp-stream/{name}"),
        )
        for answer in answers
    ]


# How a slot's releases reach their readers, and the shard's checkpoint moves past the slot: in this order, or at once.
#
# **At least once**: the records are written, then the shard's checkpoint is committed. A crash in between writes the
# same bytes again, under the same ids.
#
# **Strictly once**: records and checkpoint are one Kafka transaction. Readers of committed records
# (`isolation.level=read_committed`) see all of a slot or nothing, and never anything twice: the checkpoint moves with
# the records or not at all.
#
# It holds because of who may commit. Each shard has one transactional id. A worker that is assigned the shard first
# asks for a new epoch of that id: the broker then aborts or completes what the former owner had begun, and refuses all
# that it tries later (`Fenced`). Only *then* is the checkpoint read. So at any time one producer can commit, and it has
# seen the last commit before its own. The group's generation would say less: it is known to be stale only once the
# group has been formed anew, and the checkpoint could be read before that.
#
# Between slots the checkpoint moves with plain commits of the group (`kafka.py`). None of them can undo a
# transaction: a shard processor has one of either under way at a time, and commits are sent in the generation in which
# the shard was ours or not at all; the broker refuses them once the group was formed anew, which is before any other
# worker is assigned the shard.
#
# The producer is aiokafka's. kafka-python's (3.0.12) fences as well, and takes the group's generation. But a request of
# its transaction that meets a refused connection is dropped by its sender and never answered, so that
# `commit_transaction` waits for ever once a broker has restarted within a transaction (four of eight runs). It also
# takes two and a half times as long (0.25 s for 6,000 records, against 0.10).
#
# The worker may die after a commit and before it informs the ledger of the releases: `settle` informs it.

BEGIN_S = 60.0
"""For a new epoch: the broker first ends the former owner's transaction."""

CLOSE_S = 5.0

BATCH_BYTES_MAX = 2**19
"""Half of what brokers usually take as one batch."""

TRANSACTION_MS = 60_000
"""After this time the broker aborts a transaction. A slot takes well below a second; until a transaction ends,
readers of what is committed wait behind it."""

# The broker says one of these to a producer that is not the latest of its id, or whose transaction it has given up.
_LOST = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownProducerId,
)


class Publisher(Protocol):
    """Publishes the slots of one shard while the shard is ours."""

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """Return when readers can read the records and the checkpoint is committed. `Fenced`: the shard is not ours."""
        ...

    async def close(self) -> None:
        """Disconnect; what was not published stays unpublished."""
        ...


PublisherOf = Callable[[TP], Awaitable[Publisher]]


class AtLeastOnce:
    """Records first, then the checkpoint."""

    def __init__(self, producer: Producer, offsets: Offsets) -> None:
        """Nothing of its own to close."""
        self._producer = producer
        self._offsets = offsets

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """If the shard is no longer ours, the checkpoint is not committed: its owner writes the same records again."""
        await self._producer.write(records)
        await self._offsets.commit(checkpoint)

    async def close(self) -> None:
        """Nothing."""


class StrictlyOnce:
    """Records and checkpoint in one transaction; `begin` makes one."""

    def __init__(self, producer: AIOKafkaProducer, group: str) -> None:
        """Take over a producer that has its epoch."""
        self._producer = producer
        self._group = group
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    @classmethod
    async def begin(cls, kafka: KafkaSection, shard: TP) -> StrictlyOnce:
        """Fence off the former owner of the shard. DependencyUnavailable if the broker begins no transactions."""
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

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """One transaction. It is committed only after every record was taken; after any error, never by us. `Fenced`
        also if it is closed meanwhile; then the next owner finds out whether it was committed."""
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

    async def _transact(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        offsets = {TopicPartition(*tp): OffsetAndMetadata(offset, note) for tp, (offset, note) in checkpoint.items()}
        await self._producer.begin_transaction()
        await write_batched(self._producer, records)
        await self._producer.send_offsets_to_transaction(offsets, self._group)
        await self._producer.commit_transaction()

    async def close(self) -> None:
        """Disconnect. A transaction under way is aborted by the next owner, or by the broker after its timeout."""
        self._closed = True
        if self._under_way is not None:
            self._under_way.cancel()  # a producer that is stopped would never end it
        await _stop(self._producer)


async def _stop(producer: AIOKafkaProducer) -> None:
    # What it leaves open is ended by the next owner, or by the broker: a failure here changes nothing.
    with suppress(KafkaError, TimeoutError):
        await asyncio.wait_for(producer.stop(), CLOSE_S)


def settle(
    ledger: Ledger,
    shard: int,
    shards: int,
    released_ms: int,
    answered_ms: int = NOT_YET,
    periods: PositionPeriods | None = None,
) -> None:
    """Inform the ledger of what was published: of the shard, by its checkpoint, slots that end by `released_ms` and
    moments up to `answered_ms`; `periods` are those of positions, where queries are asked."""
    waiting = [(id_, payload) for id_, payload in ledger.unpublished()]
    gone = _released([one for one in waiting if kind_of(one[0]) == "hat"], shard, shards, released_ms)
    if periods is not None:
        gone += [id_ for id_, _ in waiting if _is_answered(id_, shard, shards, answered_ms, periods)]
    if gone:
        ledger.published(gone)


def _released(waiting: list[tuple[str, bytes]], shard: int, shards: int, released_ms: int) -> list[str]:
    if not waiting:
        return []
    hats = [decode(payload).hat for _, payload in waiting]
    ends, _ = parse_timestamps([hat.slot_end for hat in hats])
    of = shard_of(np.array([int(hat.cell, 16) for hat in hats], dtype=np.uint64), shards)
    through = (ends <= released_ms) & (of == shard)
    return [id_ for (id_, _), is_gone in zip(waiting, through.tolist(), strict=True) if is_gone]


def _is_answered(id_: str, shard: int, shards: int, answered_ms: int, periods: PositionPeriods) -> bool:
    """Whether it is an answer, or a round of one, that this shard has published."""
    if kind_of(id_) not in ("query", "round") or (moment_ms := moment_of(id_)) > answered_ms:
        return False
    return shard_of_period(periods.start_of(moment_ms), shards) == shard


def no_transaction(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """What to raise where the broker begins none.

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
