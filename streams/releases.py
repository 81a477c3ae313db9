"""The output topics read from their beginning, as any reader of releases or answers would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from streams.connections import client_options, unreachable
from streams.topics import BOOTSTRAP_MS, partitions_of, topics_of
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import needs
from udp_stream.release.facts import PublishedRelease, ReleaseReader

POLL_MS = 500


def read_releases(kafka: KafkaSection, follow: bool = False) -> ReleaseReader:
    """Every release, in order within a cell; all that are there now, or with `follow` also all that come.

    Each record once with `kafka.transactions`. Without, one that was published twice comes twice, with the same bytes
    and release id. Raises DependencyUnavailable if no broker answers or the topic is missing.
    """
    yield from (PublishedRelease(value) for value in _values(kafka, topics_of(kafka).release.name, follow))


def read_answers(kafka: KafkaSection, follow: bool = False) -> Iterator[bytes]:
    """Every result of a standing query, in order within a query and a budget period; otherwise as `read_releases`."""
    return _values(kafka, topics_of(kafka).queries.name, follow)


def _values(kafka: KafkaSection, topic: str, follow: bool) -> Iterator[bytes]:
    with needs("Kafka client", "kafka"):
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError
    partitions = [TopicPartition(topic, number) for number in range(partitions_of(kafka, topic))]
    try:
        with closing(
            KafkaConsumer(
                **client_options(kafka),
                bootstrap_timeout_ms=BOOTSTRAP_MS,
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
        ) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            # By position, not by a count of records: the ends of transactions take offsets, too.
            while follow or any(consumer.position(partition) < ends[partition] for partition in partitions):
                for records in consumer.poll(timeout_ms=POLL_MS).values():
                    yield from (record.value for record in records)
    except KafkaError as error:
        raise unreachable(kafka, error) from error
