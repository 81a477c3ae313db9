"""Headers of what we write: CloudEvents (binary mode) on releases and estimates, reasons on what was refused, ticks.

They are functions of the record alone, so that what is published again is the same to the last byte. Messages between
workers and commits belong to a version of udp-stream; what another version has written is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from udp_stream.errors import ConfigError
from udp_stream.pings.decode import Refusal
from udp_stream.release import forecaster as smoothed
from udp_stream.release import query_record
from udp_stream.release.query_record import QueryResult
from udp_stream.release.record import SCHEMA, Release

Headers = list[tuple[str, bytes]]

TICK = "udp-stream-tick"
"""The header of a tick record: no ping, only the time at which the broker appends it."""

ERROR = "udp-stream.errors"


def release_headers(record: Release, source: str) -> Headers:
    """CloudEvents attributes of a release: its id is the release id, its time the end of the slot."""
    return _event(record.release_id, record.hat.slot_end, record.hat.cell, SCHEMA, source)


def query_headers(result: QueryResult, source: str) -> Headers:
    """CloudEvents attributes of a query's answer: its subject is the query, its time the moment."""
    return _event(result.release_id, result.query.moment, result.query.name, query_record.SCHEMA, source)


def smoothed_headers(estimate: smoothed.Smoothed, source: str) -> Headers:
    """CloudEvents attributes of a smoothed estimate: its id names cell and slot, its time is the end of the slot."""
    hat = estimate.hat
    id_ = f"{hat.cell}/{hat.slot_start}/{hat.slot_end}"
    return _event(id_, hat.slot_end, hat.cell, smoothed.SCHEMA, source)


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
