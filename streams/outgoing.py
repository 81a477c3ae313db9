"""What readers get of a slot, as records for Kafka: functions of the slot alone, so that a repeat is the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from streams.headers import query_headers, release_headers, smoothed_headers
from streams.producer import OutgoingRecord
from streams.topics import Topics
from udp_stream.release.delivery import PublishedRelease
from udp_stream.release.query_record import decode_result
from udp_stream.release.query_road import Answered
from udp_stream.release.smoothed import Smoothed, encode_smoothed


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
