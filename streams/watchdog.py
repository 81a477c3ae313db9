"""Watchdog: end a worker that is stuck for any reason, so that its supervisor can restart it.

A consumer that no longer fetches, a rebalance that never ends, a call without an answer, a broker that is gone: from
the outside they look alike. There is work to do, or the broker does not say that there is none, and for a long time
nothing is done. The watchdog checks exactly that, from a task that waits for nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from faust.types import TP

from udp_stream.errors import DependencyUnavailable

Positions = Callable[[], Mapping[TP, int]]
"""The next offset to read, for each of our partitions."""

Idle = Callable[[Mapping[TP, int]], Awaitable[bool]]
"""Whether the broker says that all of them are read to their ends."""


class Watchdog:
    """Checks at intervals; `patience_s` without progress while there is work to do means that we are stuck."""

    def __init__(
        self,
        positions: Positions,
        idle: Idle,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        done: Callable[[], int] = lambda: 0,
    ) -> None:
        """Patience begins now. `done`: how many steps were done. A batch may have many; nothing is read meanwhile."""
        self._positions = positions
        self._done = done
        self._idle = idle
        self._patience_s = patience_s
        self._clock = clock
        self._seen: tuple[Mapping[TP, int], int] = {}, 0
        self._moved_s = clock()
        self._asked: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Check for ever; DependencyUnavailable once we are stuck, or if `idle` says that there is no going on."""
        while True:
            await self.check(self._patience_s / 8)

    async def check(self, seconds: float) -> None:
        """Check once, in this many seconds."""
        if self._asked is None:  # a question that is never answered is asked once
            self._asked = asyncio.ensure_future(self._ask())
        await asyncio.gather(asyncio.wait({self._asked}, timeout=seconds), asyncio.sleep(seconds))
        idle = False
        if self._asked.done():
            idle, self._asked = self._asked.result(), None
        seen = dict(self._positions()), self._done()
        if idle or seen != self._seen:
            self._seen, self._moved_s = seen, self._clock()
        elif self._clock() - self._moved_s > self._patience_s:
            raise DependencyUnavailable(
                f"no progress for {self._patience_s:g} s, with work to do or no answer from Kafka: restart the worker"
            )

    async def _ask(self) -> bool:
        try:
            return await self._idle(self._positions())
        except DependencyUnavailable:
            raise
        except Exception:  # noqa: BLE001 (any error: the broker did not say that there is no work)
            return False
