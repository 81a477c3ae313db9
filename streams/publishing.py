"""What a slot's readers get, and how the shard's checkpoint moves past the slot.

* Records of releases, smoothed estimates and answers, with CloudEvents in their headers (binary mode). They are
  functions of the slot alone, so that what is published again is the same to the last byte.
* **At least once** (`AtLeastOnce`): the records are written, then the shard's checkpoint is committed. A crash in
  between writes the same bytes again, under the same ids. **Strictly once** (`kafka.StrictlyOnce`): both are one
  transaction.
* The worker may die after a commit and before it informs the ledger of the releases: `settle` informs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np
from faust.types import TP

from streams.kafka import Committed, Headers, Offsets, OutgoingRecord, Producer
from streams.topics import Topics
from udp_stream.ledger.port import Ledger
from udp_stream.pings.times import parse_timestamps
from udp_stream.planning.policy import PositionPeriods
from udp_stream.release import forecaster, query_record
from udp_stream.release.facts import PublishedRelease
from udp_stream.release.forecaster import Smoothed, encode_smoothed
from udp_stream.release.query_record import QueryResult, decode_result, moment_of
from udp_stream.release.query_road import Answered
from udp_stream.release.record import SCHEMA, Release, decode, kind_of
from udp_stream.shuffle.protocol import NOT_YET
from udp_stream.shuffle.wire import shard_of, shard_of_period


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
