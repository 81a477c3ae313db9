"""Lanes: partitions are processed beside each other, and the batches of each in the order of its log.

Most of a batch's time is waiting: for the ledger, for a transaction, for the broker to take what was sent. A slot's
shards would else wait for each other, one after the other. To the protocols, two partitions of one worker are then what
those of two workers are.

A batch that waits for its turn when a rebalance comes is dropped. The partition may be ours again by then, at its
checkpoint, and the batch lies further on: processed first, it would make the reader skip all that is between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


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
