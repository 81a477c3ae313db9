"""Source processor: a reader for each of our source partitions. Closed slots are sent to the shards, then offsets move.

Order makes it safe to be killed at any instant: chunks and refusals are on all replicas before the checkpoint behind
them is committed. A crash in between sends them again, under the same ids.

A rebalance replaces all readers. Work that was waiting meanwhile sees that its assignment is gone and stops. What it
has sent by then are the same chunks that the next reader will send.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from faust.types import TP

from streams.binding import other_version
from streams.consumer import Assignment, Common, Partitions, Place
from streams.kafka import Headers, OutgoingRecord
from udp_stream.errors import ConfigError
from udp_stream.pings.decode import Refusal
from udp_stream.release.facts import batch_read
from udp_stream.shuffle.source import Reject, Send, SourceProtocol
from udp_stream.windows.slots import LogPlaces, Look, ReadingRules, Refused, SourceCheckpoint, SourceReader

LOG_APPEND_TIME = 1
REJECTED_BYTES_MAX = 2**20 - 2**14
"""Kept of a refused message: all of it, unless the message alone nearly fills a record."""


UNDER_WAY_MAX = 16
"""Batches of refusals of one partition that may be unacknowledged."""


TICK = "udp-stream-tick"
"""The header of a tick record: no ping, only the time at which the broker appends it."""

ERROR = "udp-stream.errors"


class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    watermark: int | None = None
    rejected_through: int = 0
    binding: str = ""
    positions: int | None = None
    asked: str = ""


@dataclass(slots=True)
class _Source(Assignment):
    """One of our partitions. What is unacknowledged is refusals; reading continues meanwhile."""

    protocol: SourceProtocol
    active_s: float

    @property
    def next_offset(self) -> int:
        return self.protocol.reader.next_offset


class SourceProcessor(Partitions[_Source]):
    """The source partitions that are assigned to this worker."""

    lost = "pings were deleted before they were counted"

    def __init__(
        self,
        common: Common,
        rules: ReadingRules,
        idle_s: float,
        look: Look = lambda _messages, _read: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No partitions yet. Queries are what the rules ask for moments for."""
        super().__init__(common.topics.pings.name, common)
        self._rules, self._idle_s, self._look, self._clock = rules, idle_s, look, clock

    @asynccontextmanager
    async def _fenced(self, _tps: set[TP]) -> AsyncIterator[Callable[[Place], Awaitable[_Source]]]:
        """Nothing keeps a former owner from sending: it sends the same chunks, under the same ids."""
        yield self._resume

    async def _resume(self, place: Place) -> _Source:
        start, asked_before = self._start(place)
        reader, shards, of = SourceReader(self._rules, start), self._topics.parts.partitions, place.tp.partition
        protocol = SourceProtocol(of, shards, reader, self._periods, self._asked, asked_before)
        return _Source(of, protocol, self._clock())

    def _start(self, place: Place) -> tuple[SourceCheckpoint, str]:
        """Where to resume, and for which queries moments were sent up to there.

        The watermark stays, also where a log is read again: what is closed may not be counted again. What is refused
        from now on is rejected.
        """
        tp, committed, first, end = place
        if committed.offset < 0:
            return SourceCheckpoint(first), self._asked
        try:
            metadata = msgspec.json.decode(committed.metadata or b"{}", type=_Metadata)
        except msgspec.DecodeError as error:
            raise other_version(f"the last commit of {tp.topic}[{tp.partition}]") from error
        if committed.metadata:
            self._binding.require(metadata.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        offset, rejected_through = max(first, committed.offset), metadata.rejected_through
        if (again := self._restart_offset(place, max(committed.offset, rejected_through))) is not None:
            offset, rejected_through = again, min(rejected_through, end)
        return SourceCheckpoint(offset, metadata.watermark, rejected_through, metadata.positions), metadata.asked

    def _read(self, assigned: _Source, records: Sequence[Any]) -> None:
        if records[0].timestamp_type != LOG_APPEND_TIME:
            raise ConfigError(f"{records[0].topic}: expected message.timestamp.type=LogAppendTime, got CreateTime")
        messages, places = columns_of(records)
        result = assigned.protocol.read(messages, places)
        self._look(messages, result)
        # What is refused moves no clock: who sends nothing else would hold up the slots of all partitions.
        if result.pings or places.tick.any():
            assigned.active_s = self._clock()
        refusals = [one.refusal for one in result.refused]
        self._report(batch_read(result.messages, result.pings, refusals, result.newest_ms))

    async def _carry_out(self, assigned: _Source, step: Send | Reject) -> bool:
        if isinstance(step, Send):
            await self._send([(one.shard, one) for one in step.messages])
        else:
            await self._reject(assigned, step.refused)
        assigned.protocol.done(step)
        return isinstance(step, Send)

    async def _reject(self, assigned: _Source, refused: Sequence[Refused]) -> None:
        """Send the refusals; `commit` waits until the broker has them."""
        under_way = assigned.unacknowledged
        # Those that are done are awaited, too: so an error among them is raised here.
        while len(under_way) >= UNDER_WAY_MAX or (under_way and under_way[0].done()):
            await under_way.popleft()
        target, place = self._topics.rejected.name, (self._topic, assigned.partition)
        sent = await self._producer.send(
            OutgoingRecord(
                target,
                one.original[:REJECTED_BYTES_MAX],
                headers=rejected_headers(one.refusal, *place, one.offset),
            )
            for one in refused
        )
        under_way.append(sent)

    def _metadata(self, assigned: _Source, to: SourceCheckpoint) -> str:
        known = to.watermark_ms, to.rejected_through, self._binding.text, to.positions_ms, assigned.protocol.asked
        return msgspec.json.encode(_Metadata(*known)).decode()

    async def tick(self, wall_ms: int) -> None:
        """Append a tick record to each partition that is silent and read to its end, if the time alone closes a slot.
        Silent is one from which no ping was accepted for `idle_s`.

        The decision is then in the log, at the same offset for every reader.
        """
        for partition, assigned in list(self._assignments.items()):
            is_silent = self._clock() - assigned.active_s >= self._idle_s
            if not is_silent or not assigned.protocol.wants_tick(wall_ms):
                continue
            is_read = await self._offsets.is_read(TP(self._topic, partition), assigned.next_offset)
            # A rebalance may have come while the broker was asked.
            if is_read and self._is_ours(assigned):
                # Before the write: the tick may be read before the write returns, and reading resets this.
                assigned.protocol.ticked()
                record = OutgoingRecord(self._topic, b"{}", headers=[(TICK, b"1")], partition=partition)
                await self._producer.write([record])


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


def columns_of(records: Sequence[Any]) -> tuple[list[bytes], LogPlaces]:
    """The messages of the consumer's records, and their places; the value of a tick record is ignored."""
    tick = [bool(one.headers) and is_tick(one.headers) for one in records]
    places = LogPlaces(
        np.array([one.offset for one in records], dtype=np.int64),
        np.array([one.timestamp for one in records], dtype=np.int64),
        np.array(tick, dtype=bool),
    )
    values = [one.value or b"" for one in records]
    return [b"" if ticks else value for value, ticks in zip(values, tick, strict=True)] if any(tick) else values, places
