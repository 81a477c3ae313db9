"""Producer: the records that workers write. A write is done once every replica has it.

Many records are written in batches that we fill ourselves: one future for each record takes half of publishing's time.
A record goes where the client's own partitioner would send it, by its key. The records of a slot are functions of the
slot alone, so that a repeat has the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from streams.connections import client_options, unreachable_in_loop
from streams.headers import Headers, query_headers, release_headers, smoothed_headers
from streams.topics import Topics
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import DependencyUnavailable
from udp_stream.release.facts import PublishedRelease
from udp_stream.release.forecaster import Smoothed, encode_smoothed
from udp_stream.release.query_record import decode_result
from udp_stream.release.query_road import Answered

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
