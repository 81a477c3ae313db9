"""Producer: the records that workers write. A write is done once every replica has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.connections import client_options, unreachable_in_loop
from streams.headers import Headers
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import DependencyUnavailable

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
