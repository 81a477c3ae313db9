"""Source processor: a reader for each of our source partitions. Closed slots are sent to the shards, then offsets move.

Order makes it safe to be killed at any instant: chunks and refusals are on all replicas before the checkpoint behind
them is committed. A crash in between sends them again, under the same ids.

A rebalance replaces all readers. Work that was waiting meanwhile sees that its assignment is gone and stops. What it
has sent by then are the same chunks that the next reader will send.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from faust.types import TP

from streams.binding import Binding
from streams.kafka import Committed, Needed, Offsets, OutgoingRecord, Producer
from streams.publishing import TICK, is_tick, other_version, rejected_headers
from streams.topics import Topics
from udp_stream.errors import ConfigError
from udp_stream.release.facts import Observer, batch_read, report_to
from udp_stream.release.query_road import QuerySet
from udp_stream.shuffle.source import Send, SourceProtocol, ToShard
from udp_stream.shuffle.wire import encode_message
from udp_stream.windows.slots import LogPlaces
from udp_stream.windows.source import Look, ReadingRules, Refused, SourceCheckpoint, SourceReader

LOG_APPEND_TIME = 1
REJECTED_BYTES_MAX = 2**20 - 2**14
"""Kept of a refused message: all of it, unless the message alone nearly fills a record."""


UNDER_WAY_MAX = 16
"""Batches of refusals of one partition that may be unacknowledged."""


class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    watermark: int | None = None
    rejected_through: int = 0
    binding: str = ""
    positions: int | None = None
    asked: str = ""


@dataclass(slots=True)
class _Assignment:
    """One of our partitions. `rejecting` are the batches of refusals that the broker has not acknowledged yet; reading
    continues meanwhile."""

    protocol: SourceProtocol
    active_s: float
    rejecting: deque[asyncio.Future[None]] = field(default_factory=deque)
    committed: SourceCheckpoint | None = None

    def checkpoint_if_moved(self) -> SourceCheckpoint | None:
        """The checkpoint to commit, if there is a new one and it is safe once `rejecting` are acknowledged."""
        if not self.protocol.may_commit or (to := self.protocol.checkpoint()) == self.committed:
            return None
        return to


class SourceProcessor:
    """The source partitions that are assigned to this worker."""

    def __init__(
        self,
        rules: ReadingRules,
        topics: Topics,
        offsets: Offsets,
        producer: Producer,
        binding: Binding,
        idle_s: float,
        accept_loss: bool = False,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] = (),
        queries: QuerySet | None = None,
        look: Look = lambda _messages, _read: None,
    ) -> None:
        """No partitions yet. With `accept_loss`, a log that begins after the checkpoint is read from its start, as is
        one that ends before what was read.

        `queries` are what the rules ask for moments for.
        """
        self._rules = rules
        self._topics = topics
        self._offsets = offsets
        self._producer = producer
        self._binding = binding
        self._idle_s, self._look = idle_s, look
        self._needed = Needed(offsets, "pings were deleted before they were counted", accept_loss)
        self._periods = None if queries is None else queries.periods
        self._asked = "" if queries is None else queries.digest
        self._clock = clock
        self._assignments: dict[int, _Assignment] = {}
        self._revocations = 0
        self._committing = asyncio.Lock()
        self._report = report_to(*observers)

    def revoke(self) -> None:
        """The partitions are no longer ours: drop their state at once."""
        self._revocations += 1
        self._assignments = {}

    def next_offsets(self) -> dict[TP, int]:
        """The next offset to read, for each of our partitions."""
        name = self._topics.pings.name
        return {
            TP(name, partition): assigned.protocol.reader.next_offset
            for partition, assigned in self._assignments.items()
        }

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours, if they are not revoked meanwhile: resume from their checkpoints."""
        revocations = self._revocations
        committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
        ends = await self._offsets.ends(tps)
        if revocations != self._revocations:
            return
        self._assignments = {
            tp.partition: self._assignment(tp, *self._start(tp, committed[tp], first[tp], ends[tp])) for tp in tps
        }
        await self._needed.go_back(self.commit)

    def _assignment(self, tp: TP, start: SourceCheckpoint, asked_before: str) -> _Assignment:
        reader, shards = SourceReader(self._rules, start), self._topics.parts.partitions
        protocol = SourceProtocol(tp.partition, shards, reader, self._periods, self._asked, asked_before)
        return _Assignment(protocol, self._clock())

    def _start(self, tp: TP, committed: Committed, first: int, end: int) -> tuple[SourceCheckpoint, str]:
        """Where to resume, and for which queries moments were sent up to there.

        The watermark stays, also where a log is read again: what is closed may not be counted again. What is refused
        from now on is rejected.
        """
        if committed.offset < 0:
            return SourceCheckpoint(first), self._asked
        try:
            metadata = msgspec.json.decode(committed.metadata or b"{}", type=_Metadata)
        except msgspec.DecodeError as error:
            raise other_version(f"the last commit of {tp.topic}[{tp.partition}]") from error
        if committed.metadata:
            self._binding.require(metadata.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        read_to = max(committed.offset, metadata.rejected_through)
        offset, rejected_through = max(first, committed.offset), metadata.rejected_through
        if (again := self._needed.restart_offset(tp, first, end, committed.offset, read_to)) is not None:
            offset, rejected_through = again, min(rejected_through, end)
        return SourceCheckpoint(offset, metadata.watermark, rejected_through, metadata.positions), metadata.asked

    async def process(self, records: Sequence[Any]) -> None:
        """Process a batch of one partition: read its pings, send the slots they close, commit."""
        partition = records[0].partition
        assigned = self._assignments.get(partition)
        if assigned is None:
            return
        if records[0].timestamp_type != LOG_APPEND_TIME:
            raise ConfigError(f"{records[0].topic}: expected message.timestamp.type=LogAppendTime, got CreateTime")
        await self._needed.require_before(records, assigned.protocol.reader.next_offset)
        worked = False
        messages, places = columns_of(records)
        result = assigned.protocol.read(messages, places)
        self._look(messages, result)
        # What is refused moves no clock: who sends nothing else would hold up the slots of all partitions.
        if result.pings or places.tick.any():
            assigned.active_s = self._clock()
        refusals = [one.refusal for one in result.refused]
        self._report(batch_read(result.messages, result.pings, refusals, result.newest_ms))
        while (step := assigned.protocol.next()) is not None:
            if isinstance(step, Send):
                await self._send(step.messages)
            else:
                await self._reject(partition, assigned, step.refused)
            assigned.protocol.done(step)
            worked = worked or isinstance(step, Send)
        if worked:
            await self.commit()

    async def _reject(self, partition: int, assigned: _Assignment, refused: Sequence[Refused]) -> None:
        """Send the refusals; `commit` waits until the broker has them."""
        source, target = self._topics.pings.name, self._topics.rejected.name
        # Those that are done are awaited, too: so an error among them is raised here.
        while len(assigned.rejecting) >= UNDER_WAY_MAX or (assigned.rejecting and assigned.rejecting[0].done()):
            await assigned.rejecting.popleft()
        sent = await self._producer.send(
            OutgoingRecord(
                target,
                one.original[:REJECTED_BYTES_MAX],
                headers=rejected_headers(one.refusal, source, partition, one.offset),
            )
            for one in refused
        )
        assigned.rejecting.append(sent)

    async def _send(self, messages: Sequence[ToShard]) -> None:
        name, headers = self._topics.parts.name, [self._binding.header]
        await self._producer.write(
            OutgoingRecord(name, encode_message(one), headers=headers, partition=one.shard) for one in messages
        )

    async def commit(self) -> None:
        """Commit the checkpoints that have moved and whose work is on the broker.

        One commit after the other, so that no checkpoint goes back.
        """
        async with self._committing:
            moved: dict[int, tuple[_Assignment, SourceCheckpoint]] = {}
            for partition, assigned in self._assignments.items():
                if (to := assigned.checkpoint_if_moved()) is not None:
                    moved[partition] = assigned, to
            # A list of its own: `_reject` adds and removes some while we wait.
            for rejecting in [rejecting for assigned, _ in moved.values() for rejecting in assigned.rejecting]:
                await rejecting
            commits = {
                TP(self._topics.pings.name, of): self._committed(assigned, to) for of, (assigned, to) in moved.items()
            }
            if moved and await self._offsets.commit(commits):
                for assigned, to in moved.values():
                    assigned.committed = to

    def _committed(self, assigned: _Assignment, to: SourceCheckpoint) -> Committed:
        metadata = _Metadata(
            to.watermark_ms, to.rejected_through, self._binding.text, to.positions_ms, assigned.protocol.asked
        )
        return Committed(to.offset, msgspec.json.encode(metadata).decode())

    async def tick(self, wall_ms: int) -> None:
        """Append a tick record to each partition that is silent and read to its end, if the time alone closes a slot.
        Silent is one from which no ping was accepted for `idle_s`.

        The decision is then in the log, at the same offset for every reader.
        """
        for partition, assigned in list(self._assignments.items()):
            is_silent = self._clock() - assigned.active_s >= self._idle_s
            if not is_silent or not assigned.protocol.wants_tick(wall_ms):
                continue
            tp = TP(self._topics.pings.name, partition)
            is_read = await self._offsets.is_read(tp, assigned.protocol.reader.next_offset)
            # A rebalance may have come while the broker was asked.
            if is_read and self._assignments.get(partition) is assigned:
                # Before the write: the tick may be read before the write returns, and reading resets this.
                assigned.protocol.ticked()
                await self._producer.write(
                    [OutgoingRecord(tp.topic, b"{}", headers=[(TICK, b"1")], partition=partition)]
                )


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
