"""Published records as records of Kafka: CloudEvents in binary mode, each under its cell or its
query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from streams.kafka import Headers, OutgoingRecord
from streams.topics import Topics
from udp_stream.release.events import PublishedRelease
from udp_stream.release.query_pipeline import RecordedAnswer
from udp_stream.release.record import QueryResult, Record, Release, Smoothed, Withdrawal, schema_of


def release_records(topics: Topics, releases: Sequence[PublishedRelease]) -> list[OutgoingRecord]:
    """Each release for two topics: all releases, and the latest of each cell."""
    made = []
    for release in releases:
        id_ = release.record.release_id
        hat = release.record.hat
        name = topics.release.name
        made.append(_event(name, Release, id_, hat.slot_end, hat.cell, release.payload))
    return made + [
        OutgoingRecord(topics.latest.name, record.value, record.key, record.headers)
        for record in made
    ]


def withdrawal_records(topics: Topics, payloads: Iterable[bytes]) -> list[OutgoingRecord]:
    """Each withdrawal, where the record is that it withdraws; the latest of a cell stays what it
    is."""
    made = []
    for payload in payloads:
        mark = Withdrawal.decode(payload)
        name = topics.release.name
        cell = mark.hat.cell
        made.append(_event(name, Withdrawal, mark.release_id, mark.withdrawn_at, cell, payload))
    return made


def smoothed_records(topics: Topics, estimates: Sequence[Smoothed]) -> list[OutgoingRecord]:
    """Each estimate, under its cell."""
    made = []
    for estimate in estimates:
        hat = estimate.hat
        id_ = f"{hat.cell}/{hat.slot_start}/{hat.slot_end}"
        name = topics.smoothed.name
        made.append(_event(name, Smoothed, id_, hat.slot_end, hat.cell, estimate.encode()))
    return made


def query_records(topics: Topics, answers: Sequence[RecordedAnswer]) -> list[OutgoingRecord]:
    """Each answer of a moment, under its query's name."""
    made = []
    for answer in answers:
        query = QueryResult.decode(answer.payload).query
        id_ = answer.release_id
        name = topics.queries.name
        made.append(_event(name, QueryResult, id_, query.moment, query.name, answer.payload))
    return made


def _event(
    topic: str, kind: type[Record], id_: str, time: str, subject: str, value: bytes
) -> OutgoingRecord:
    """A record under its subject; `time` is the end of its slot, or its moment."""
    key = subject.encode()
    (version, type_, source, schema, content) = _headers_of_all(topic, schema_of(kind))
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
    return OutgoingRecord(topic, value, key, headers)


@cache  # a slot has thousands of records
def _headers_of_all(topic: str, schema: str) -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", schema.replace("/", ".").encode()),
        ("ce_source", f"udp-stream/{topic}".encode()),
        ("ce_dataschema", schema.encode()),
        ("content-type", b"application/json"),
    ]
