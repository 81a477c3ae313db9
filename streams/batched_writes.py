"""Many records at once: batches that we fill ourselves, as one future for each record takes half of publishing's time.

A record goes where the client's own partitioner would send it: by its key, as Kafka's clients do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import lru_cache
from itertools import zip_longest

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from streams.producer import OutgoingRecord

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
