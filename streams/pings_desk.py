"""The desk of the pings: a reader for each source partition of ours; closed slots go out as parts, then offsets move.

Order is what makes it safe to be killed at any instant: parts and refusals are taken by all replicas before the
frontier that lets go of them is committed. Dying in between writes them again, under the same ids.

A rebalance replaces all readers. Work that awaits meanwhile sees that its reader is no longer the one at the desk, and
leaves; what it has written by then are the same parts that the next reader will write.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from faust.types import TP

from streams.binding import Binding
from streams.headers import TICK, is_tick, rejected_headers
from streams.offsets import Committed, Offsets
from streams.outlet import Message, Outlet
from streams.topics import Topics
from udp_stream.errors import ConfigError, DependencyUnavailable
from udp_stream.shuffle.ping_chunks import Marker, cut
from udp_stream.shuffle.wire import encode_message
from udp_stream.windows.clocks import LogPlaces
from udp_stream.windows.slot_tables import SlotPings
from udp_stream.windows.source_reader import Frontier, ReadingRules, Refused, SourceReader

LOG_APPEND_TIME = 1
REJECTED_BYTES_MAX = 2**20 - 2**14
"""Of a refused message, what is kept: all of it but for one that nearly fills a record by itself."""


UNDER_WAY_MAX = 16
"""Batches of refusals, of one partition, that may be on their way."""


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    clock: int | None = None
    told: int = 0
    binding: str = ""


@dataclass(slots=True)
class _Place:
    """A reader at the desk; `safe` is False while something that it closed is not yet taken by the broker.

    `telling` are refusals on their way to the broker while the next pings are read, batch by batch.
    """

    reader: SourceReader
    heard_s: float
    safe: bool = True
    telling: deque[asyncio.Future[None]] = field(default_factory=deque)
    told_through_ms: int | None = None
    noted: Frontier | None = None
    ticked: bool = False


class PingsDesk:
    """What this worker does with the partitions of pings that it has."""

    def __init__(
        self,
        rules: ReadingRules,
        topics: Topics,
        offsets: Offsets,
        outlet: Outlet,
        binding: Binding,
        idle_s: float,
        accept_loss: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """An empty desk. `accept_loss`: go on where the log begins, if it begins after the frontier."""
        self._rules = rules
        self._topics = topics
        self._offsets = offsets
        self._outlet = outlet
        self._binding = binding
        self._idle_s = idle_s
        self._accept_loss = accept_loss
        self._clock = clock
        self._places: dict[int, _Place] = {}
        self._committing = asyncio.Lock()
        self.pings = 0

    def clear(self) -> None:
        """The partitions are no longer ours: forget everything at once."""
        self._places = {}

    def next_offsets(self) -> dict[TP, int]:
        """Up to where each of our partitions is read."""
        name = self._topics.pings.name
        return {TP(name, partition): place.reader.next_offset for partition, place in self._places.items()}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours: go on from their frontiers."""
        committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
        self._places = {
            tp.partition: _Place(SourceReader(self._rules, self._start(tp, committed[tp], first[tp])), self._clock())
            for tp in tps
        }

    def _start(self, tp: TP, committed: Committed, first: int) -> Frontier:
        if committed.offset < 0:
            return Frontier(first)
        note = msgspec.json.decode(committed.metadata or b"{}", type=_Note)
        if committed.metadata:
            self._binding.require(note.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        if first > committed.offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {committed.offset} on: "
                "pings were deleted before they were counted. `udp-stream worker --accept-loss` goes on without them"
            )
        return Frontier(max(first, committed.offset), note.clock, note.told)

    async def take(self, records: Sequence[Any]) -> None:
        """A batch of one partition: place its pings, hand on what it closes, move the frontier."""
        partition = records[0].partition
        place = self._places.get(partition)
        if place is None:
            return
        if records[0].timestamp_type != LOG_APPEND_TIME:
            raise ConfigError(f"{records[0].topic}: expected message.timestamp.type=LogAppendTime, got CreateTime")
        place.safe = False
        taken = place.reader.take(*columns_of(records))
        place.heard_s, place.ticked = self._clock(), False
        self.pings += taken.pings
        await self._tell(partition, place, taken.refused)
        moved = await self._close(partition, place, taken.closed)
        place.safe = True
        if moved:
            await self.commit()

    async def _tell(self, partition: int, place: _Place, refused: Sequence[Refused]) -> None:
        """Send the refusals; `commit` waits until they have arrived."""
        if not refused:
            return
        source, target = self._topics.pings.name, self._topics.rejected.name
        while len(place.telling) >= UNDER_WAY_MAX or (place.telling and place.telling[0].done()):
            await place.telling.popleft()
        sent = await self._outlet.send(
            Message(
                target,
                one.original[:REJECTED_BYTES_MAX],
                headers=rejected_headers(one.refusal, source, partition, one.offset),
            )
            for one in refused
        )
        place.telling.append(sent)

    async def _close(self, partition: int, place: _Place, closed: Sequence[SlotPings]) -> bool:
        """Write the parts of closed slots, and up to when all is closed; True if that has moved."""
        through = place.reader.through_ms
        if through == place.told_through_ms:
            return False
        shards = self._topics.parts.partitions
        messages = [part for slot in closed for part in cut(slot, partition, shards)]
        if through is not None:
            messages += [Marker(partition, shard, through) for shard in range(shards)]
        await self._outlet.write(
            Message(self._topics.parts.name, encode_message(one), headers=[self._binding.header], partition=one.shard)
            for one in messages
        )
        place.told_through_ms = through
        return True

    async def commit(self) -> None:
        """Note the frontiers that have moved, of readers whose work is handed on; one commit after the other, so that
        none goes back."""
        async with self._committing:
            places = [(partition, place) for partition, place in self._places.items() if place.safe]
            moved = {partition: (place, place.reader.frontier()) for partition, place in places}
            moved = {partition: (place, to) for partition, (place, to) in moved.items() if to != place.noted}
            for telling in [telling for place, _ in moved.values() for telling in place.telling]:
                await telling
            if moved and await self._offsets.commit(self._notes({p: to for p, (_, to) in moved.items()})):
                for place, to in moved.values():
                    place.noted = to

    def _notes(self, frontiers: Mapping[int, Frontier]) -> dict[TP, Committed]:
        return {
            TP(self._topics.pings.name, partition): Committed(
                to.offset, msgspec.json.encode(_Note(to.clock_ms, to.told, self._binding.text)).decode()
            )
            for partition, to in frontiers.items()
        }

    async def tick(self, wall_ms: int) -> None:
        """Append a tick record to each partition that is silent and read to its end, where time alone closes a slot.

        The decision is then in the log, at the same place for every reader.
        """
        for partition, place in list(self._places.items()):
            silent = self._clock() - place.heard_s >= self._idle_s
            if not (silent and place.safe and not place.ticked and place.reader.tick_would_close(wall_ms)):
                continue
            tp = TP(self._topics.pings.name, partition)
            if await self._offsets.is_read(tp, place.reader.next_offset) and self._places.get(partition) is place:
                place.ticked = True  # until it is read, or something else is
                await self._outlet.write([Message(tp.topic, b"{}", headers=[(TICK, b"1")], partition=partition)])


def columns_of(records: Sequence[Any]) -> tuple[list[bytes], LogPlaces]:
    """The messages of the consumer's records, and where they stand; what a tick says by its value is not looked at."""
    tick = [bool(one.headers) and is_tick(one.headers) for one in records]
    places = LogPlaces(
        np.array([one.offset for one in records], dtype=np.int64),
        np.array([one.timestamp for one in records], dtype=np.int64),
        np.array(tick, dtype=bool),
    )
    values = [one.value or b"" for one in records]
    return [b"" if told else value for value, told in zip(values, tick, strict=True)] if any(tick) else values, places
