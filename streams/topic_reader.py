"""Topics read from outside, as a subscriber would: nothing is committed, no group is joined."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.connections import client_options
from streams.topics import Topic, partitions_of
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import DependencyUnavailable

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
