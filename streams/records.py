"""Published records as records of Kafka: CloudEvents in binary mode, each under its cell or its
query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from streams.kafka import Headers, OutgoingRecord
from streams.topics import Topics
from udp_stream.release import record, withdrawal
from udp_stream.release.events import (
    PublishedRelease,
)
from udp_stream.release.query_pipeline import RecordedAnswer
from udp_stream.release.record import Smoothed, decode_result, encode_smoothed
from udp_stream.release.withdrawal import decode_withdrawal


def release_records(topics: Topics, releases: Sequence[PublishedRelease]) -> list[OutgoingRecord]:
    """Each release for two topics: all releases, and the latest of each cell."""
    made = []
    for release in releases:
        hat = release.record.hat
        made.append(
            _event(
                topics.release.name,
                record.SCHEMA,
                release.record.release_id,
                hat.slot_end,
                hat.cell,
                release.payload,
            )
        )
    return made + [
        OutgoingRecord(topics.latest.name, record.value, record.key, record.headers)
        for record in made
    ]


def withdrawal_records(topics: Topics, payloads: Iterable[bytes]) -> list[OutgoingRecord]:
    """Each withdrawal, where the record is that it withdraws; the latest of a cell stays what it
    is."""
    found = [(payload, decode_withdrawal(payload)) for payload in payloads]
    name = topics.release.name
    schema = withdrawal.SCHEMA
    return [
        _event(
            name,
            schema,
            withdrawal.release_id,
            withdrawal.withdrawn_at,
            withdrawal.hat.cell,
            payload,
        )
        for payload, withdrawal in found
    ]


def smoothed_records(topics: Topics, estimates: Sequence[Smoothed]) -> list[OutgoingRecord]:
    """Each estimate, under its cell."""
    made = []
    for estimate in estimates:
        hat = estimate.hat
        payload = encode_smoothed(estimate)
        id_ = f"{hat.cell}/{hat.slot_start}/{hat.slot_end}"
        made.append(
            _event(
                topics.smoothed.name, record.SMOOTHED_SCHEMA, id_, hat.slot_end, hat.cell, payload
            )
        )
    return made


def query_records(topics: Topics, answers: Sequence[RecordedAnswer]) -> list[OutgoingRecord]:
    """Each answer of a moment, under its query's name."""
    name = topics.queries.name
    found = [(answer.payload, decode_result(answer.payload)) for answer in answers]
    return [
        _event(
            name,
            record.QUERY_SCHEMA,
            result.release_id,
            result.query.moment,
            result.query.name,
            payload,
        )
        for payload, result in found
    ]


def _event(
    topic: str, schema: str, id_: str, time: str, subject: str, value: bytes
) -> OutgoingRecord:
    """A record under its subject; `time` is the end of its slot, or its moment."""
    key = subject.encode()
    (version, type_, source, schema_header, content) = _headers_of_all(topic, schema)
    id_header = ("ce_id", id_.encode())
    time_header = ("ce_time", time.encode())
    subject_header = ("ce_subject", key)
    headers = [
        version,
        id_header,
        type_,
        source,
        time_header,
        subject_header,
        schema_header,
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
