"""Agents: batches from Faust to the processors, rebalances to their assignments, and one way to stop on any failure.

Faust would ack a batch that its agent failed on, and continue behind it. Here the first error stops the process:
nothing more is committed, and the next worker reads again what was under way.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import faust

from streams.app import batches
from streams.lanes import Lanes
from streams.offsets import Offsets
from streams.shard_processor import ShardProcessor
from streams.source_processor import SourceProcessor
from streams.stopping import Stop
from streams.topics import Topics
from udp_stream.adapters.files.heartbeat import Heartbeat

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
