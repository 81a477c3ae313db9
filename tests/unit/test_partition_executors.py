"""Batches of a partition are processed in order, one at a time; those of other partitions do not
wait for them."""

import asyncio
from types import SimpleNamespace

from streams.worker import PartitionExecutors


def batch(partition, *offsets):
    return [SimpleNamespace(partition=partition, offset=offset) for offset in offsets]


class Slow:
    def __init__(self):
        self.events, self.may_end = [], {}

    async def __call__(self, records):
        name = records[0].partition, records[0].offset
        self.events.append(("begun", *name))
        try:
            await self.gate(*name).wait()
        except asyncio.CancelledError:
            self.events.append(("cancelled", *name))
            raise
        self.events.append(("ended", *name))

    def gate(self, *name):
        return self.may_end.setdefault(name, asyncio.Event())


async def one_waits(slow):
    """Lanes with a batch under way, and the task that has the next one of its partition."""
    executors = PartitionExecutors(slow)
    await executors.add(batch(0, 0))
    waiting = asyncio.ensure_future(executors.add(batch(0, 5)))
    await settled()
    return executors, waiting


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def test_partitions_go_on_beside_each_other_and_each_in_its_order():
    async def run():
        slow = Slow()
        executors = PartitionExecutors(slow)
        await executors.add(batch(0, 0))
        await executors.add(batch(1, 0))
        waiting = asyncio.ensure_future(executors.add(batch(0, 5)))
        await settled()
        assert slow.events == [("begun", 0, 0), ("begun", 1, 0)] and not waiting.done()
        slow.gate(0, 0).set()
        await waiting
        await settled()
        assert slow.events[2:] == [("ended", 0, 0), ("begun", 0, 5)]
        await executors.end()

    asyncio.run(run())


def test_a_batch_that_waits_when_a_rebalance_comes_is_dropped_and_the_next_ones_are_not():
    async def run():
        slow = Slow()
        executors, waiting = await one_waits(slow)
        executors.revoke()
        slow.gate(0, 0).set()
        await waiting
        await settled()
        assert slow.events == [("begun", 0, 0), ("ended", 0, 0)]
        await executors.add(batch(0, 3))
        await settled()
        assert slow.events[2:] == [("begun", 0, 3)]
        await executors.end()

    asyncio.run(run())


def test_at_the_end_nothing_is_under_way():
    async def run():
        slow = Slow()
        executors = PartitionExecutors(slow)
        await executors.add(batch(0, 0))
        await executors.add(batch(1, 0))
        slow.gate(1, 0).set()
        await settled()
        await executors.end()
        assert slow.events[2:] == [("ended", 1, 0), ("cancelled", 0, 0)]
        await executors.end()  # and may be told again

    asyncio.run(run())


def test_an_agent_that_is_cancelled_while_it_waits_leaves_what_it_waits_for():
    async def run():
        slow = Slow()
        _, waiting = await one_waits(slow)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        slow.gate(0, 0).set()
        await settled()
        assert slow.events == [("begun", 0, 0), ("ended", 0, 0)]

    asyncio.run(run())
