"""The desk of the parts: a shard for each of our partitions; slots that are due are released, then offsets move.

The planner of "auto" epsilons looks at how many HATs each plate visits in the slot it is given. A shard sees its own
cells alone, so "auto" needs one planner over all shards, which is not built: it runs with one shard (the configuration
refuses more), and then plans equal the embedded runtime's. Fixed epsilons may have any number of shards.

Slots are released in order of time. A release is published, and taken by all replicas, before it is marked as published
and before the frontier lets go of its parts. Dying in between publishes the same bytes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
from faust.types import TP

from streams.driver import drive
from streams.headers import release_headers
from streams.offsets import Committed, Offsets
from streams.outlet import Message, Outlet
from streams.topics import Topics
from udp_stream.adapters.embedded import Payloads, Summary
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.flow import Office, release_slot
from udp_stream.parts import decode_part
from udp_stream.ports import Ledger
from udp_stream.release import decode
from udp_stream.shards import Shard, ShardFrontier
from udp_stream.slots import tabulate


@runtime_checkable
class Fencing(Protocol):
    """A ledger that lets only the latest holder of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; holders of earlier ones are refused from now on."""
        ...

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the holder of (shard, epoch)."""
        ...


class _Note(msgspec.Struct, frozen=True):
    through: tuple[int, ...] = ()


@dataclass(slots=True)
class _Place:
    shard: Shard
    ledger: Ledger
    safe: bool = True
    noted: ShardFrontier | None = None


class PartsDesk:
    """What this worker does with the partitions of parts that it has."""

    def __init__(
        self,
        office: Office,
        topics: Topics,
        offsets: Offsets,
        outlet: Outlet,
        ledger: Ledger,
        thread: ThreadPoolExecutor,
        accept_loss: bool = False,
    ) -> None:
        """An empty desk. The ledger is called in `thread` alone."""
        self._office = office
        self._topics = topics
        self._offsets = offsets
        self._outlet = outlet
        self._ledger = ledger
        self._thread = thread
        self._accept_loss = accept_loss
        self._places: dict[int, _Place] = {}
        self.summary = Summary()

    def clear(self) -> None:
        """The partitions are no longer ours: forget everything at once."""
        self._places = {}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours: go on from their frontiers, and fence off whoever had them."""
        committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
        sources = self._offsets.partitions(self._topics.pings.name)
        places = {}
        for tp in tps:
            start = self._start(tp, committed[tp], first[tp])
            places[tp.partition] = _Place(Shard(sources, start), await self._fenced(tp))
        self._places = places

    def _start(self, tp: TP, committed: Committed, first: int) -> ShardFrontier:
        if committed.offset < 0:
            return ShardFrontier(first, ())
        note = msgspec.json.decode(committed.metadata or b"{}", type=_Note)
        if first > committed.offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {committed.offset} on: "
                "parts were deleted before they were released. `udp-stream worker --accept-loss` goes on without them"
            )
        return ShardFrontier(max(first, committed.offset), note.through)

    async def _fenced(self, tp: TP) -> Ledger:
        if not isinstance(self._ledger, Fencing):
            return self._ledger
        from udp_stream.adapters.redis_ledger import Fence

        name = f"{tp.topic}/{tp.partition}"
        epoch = await asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.take_epoch, name)
        return self._ledger.fenced(Fence(name, epoch))

    async def take(self, records: Sequence[Any]) -> None:
        """A batch of one partition: collect its parts, release the slots that are due, move the frontier."""
        partition = records[0].partition
        place = self._places.get(partition)
        if place is None:
            return
        place.safe = False
        for one in records:
            place.shard.take(one.offset, decode_part(one.value))
        due = place.shard.due()
        for start in due:
            try:
                await self._release(place, start)
            except PrivacyRefused:
                if self._places.get(partition) is place:
                    raise
            if self._places.get(partition) is not place:
                return  # a rebalance has taken it: whoever has it now releases the same
        place.safe = True
        if due:
            await self.commit()

    async def _release(self, place: _Place, start: int) -> None:
        loop = asyncio.get_running_loop()
        counts, values = await loop.run_in_executor(self._thread, lambda: tabulate(place.shard.slot(start)))
        flow = release_slot(counts, values, self._office)
        payloads = await drive(flow, place.ledger, self._publish, self._thread)
        place.shard.released(start)
        self.summary.repeats += counts.repeats
        self.summary.take(payloads)

    async def _publish(self, payloads: Payloads) -> None:
        """Each record to those who want all, and to those who want the latest of each cell."""
        source = f"udp-stream/{self._topics.release.name}"
        for topic in (self._topics.release.name, self._topics.latest.name):
            await self._outlet.write(
                Message(topic, payload, key=cell.encode(), headers=release_headers(decode(payload), source))
                for _, cell, payload in payloads
            )

    async def commit(self) -> None:
        """Note the frontiers that have moved, of shards of which nothing is due."""
        moved = {partition: (place, place.shard.frontier()) for partition, place in self._places.items() if place.safe}
        moved = {partition: (place, to) for partition, (place, to) in moved.items() if to != place.noted}
        notes = {
            TP(self._topics.parts.name, partition): Committed(
                to.offset, msgspec.json.encode(_Note(to.through_ms)).decode()
            )
            for partition, (_, to) in moved.items()
        }
        if notes and await self._offsets.commit(notes):
            for place, to in moved.values():
                place.noted = to
