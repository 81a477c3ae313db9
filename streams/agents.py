"""Agents: batches from Faust to the processors, rebalances to their assignments, and one way to stop on any failure.

Faust would ack a batch that its agent failed on, and continue behind it. Here the first error stops the process:
nothing more is committed, and the next worker reads again what was under way.

Lanes: partitions are processed beside each other, and the batches of each in the order of its log.

Most of a batch's time is waiting: for the ledger, for a transaction, for the broker to take what was sent. A slot's
shards would else wait for each other, one after the other. To the protocols, two partitions of one worker are then what
those of two workers are.

A batch that waits for its turn when a rebalance comes is dropped. The partition may be ours again by then, at its
checkpoint, and the batch lies further on: processed first, it would make the reader skip all that is between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import faust

from streams.consumer import batches
from streams.offsets import Offsets
from streams.shard_processor import ShardProcessor
from streams.source_processor import SourceProcessor
from streams.stopping import Stop
from streams.topics import Topics
from udp_stream.adapters.files.heartbeat import Heartbeat


class Lanes:
    """At most one batch of each partition under way.

    >>> from types import SimpleNamespace
    >>> async def process(records):
    ...     print(records[0].offset)
    >>> async def example():
    ...     lanes = Lanes(process)
    ...     for offset in (7, 8):
    ...         await lanes.add([SimpleNamespace(partition=0, offset=offset)])
    ...     await asyncio.sleep(0)
    ...     await lanes.end()
    >>> asyncio.run(example())
    7
    8
    """

    def __init__(self, process: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        """`process` a batch of one partition; it does not raise."""
        self._process = process
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self._rebalances = 0

    async def add(self, records: Sequence[Any]) -> None:
        """Process a batch, once the one before it of the same partition is done, unless a rebalance comes first.

        It returns when this one has begun.
        """
        partition, rebalances = records[0].partition, self._rebalances
        if (before := self._under_way.get(partition)) is not None:
            # Not awaited itself: if we were cancelled here, that would cancel the batch under way.
            await asyncio.wait([before])
        if rebalances == self._rebalances:
            self._under_way[partition] = asyncio.ensure_future(self._process(records))

    def revoke(self) -> None:
        """A rebalance has begun: what waits is dropped; the next owner of the partition reads it again."""
        self._rebalances += 1

    async def end(self) -> None:
        """Cancel what is under way. It returns when nothing is."""
        for batch in self._under_way.values():
            batch.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)


COMMIT_S = 5.0


def connect(
    app: faust.App, topics: Topics, offsets: Offsets, pings: SourceProcessor, parts: ShardProcessor, stop: Stop
) -> tuple[Lanes, Lanes]:
    """Make the agents, and connect to rebalances; what is under way, to be ended with the app."""
    ping_lanes = Lanes(lambda records: stop.guard(lambda: pings.process(records)))
    part_lanes = Lanes(lambda records: stop.guard(lambda: parts.process(records)))

    async def read_pings(stream: Any) -> None:
        async for records in stream:
            await ping_lanes.add(records)

    async def read_parts(stream: Any) -> None:
        async for records in stream:
            await part_lanes.add(records)

    async def revoked(*_: Any, **__: Any) -> None:
        ping_lanes.revoke()
        part_lanes.revoke()
        pings.revoke()
        parts.revoke()

    async def assigned(*_: Any, **__: Any) -> None:
        await stop.guard(lambda: pings.assign(offsets.assigned(topics.pings.name)))
        await stop.guard(lambda: parts.assign(offsets.assigned(topics.parts.name)))

    app.agent(batches(app, topics.pings), name="pings")(read_pings)
    app.agent(batches(app, topics.parts), name="parts")(read_parts)
    # Nothing else refers to these functions: by weak references they would be gone at once.
    app.on_partitions_revoked.connect(revoked, weak=False)
    app.on_rebalance_complete.connect(assigned, weak=False)
    return ping_lanes, part_lanes


async def keep_time(
    app: faust.App, pings: SourceProcessor, parts: ShardProcessor, stop: Stop, idle_s: float, heartbeat: Heartbeat
) -> None:
    """Until we stop: ticks for silent partitions, a commit now and then, a look at whether Faust has failed, and a sign
    of life once the group has taken us in."""
    pause_s = min(idle_s / 4, 1.0)
    committed_s = time.monotonic()

    async def due_commit() -> None:
        await pings.commit()
        await parts.commit()

    async def show_life() -> None:
        heartbeat.beat()

    while not stop.asked:
        await asyncio.sleep(pause_s)
        if app.crashed:
            stop.fail(app.crash_reason or RuntimeError("Faust has ended"))
        if app.rebalancing:
            continue
        if app.consumer_generation_id:
            await stop.guard(show_life)
        await stop.guard(lambda: pings.tick(round(time.time() * 1000)))
        if time.monotonic() - committed_s >= COMMIT_S:
            await stop.guard(due_commit)
            committed_s = time.monotonic()
