"""The watch: a worker that is stuck, for whatever reason, ends, so that whoever looks after it can start it again.

A consumer that fetches no more, a rebalance that never ends, a call that is never answered, a broker that is gone: from
the outside they all look like one thing. There is something to do, or nobody says that there is not, and for a long
time nothing is done. That is what is looked for here, by asking from a task that waits for nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from faust.types import TP

from udp_stream.errors import DependencyUnavailable

Places = Callable[[], Mapping[TP, int]]
"""What is ours, and up to where it is read."""

Idle = Callable[[Mapping[TP, int]], Awaitable[bool]]
"""Whether all of it is read to its end, by what the broker says."""


class Watch:
    """Looks every now and then; `patience_s` without progress, with something to do, is too long."""

    def __init__(
        self, places: Places, idle: Idle, patience_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """The watch begins now."""
        self._places = places
        self._idle = idle
        self._patience_s = patience_s
        self._clock = clock
        self._seen: Mapping[TP, int] = {}
        self._moved_s = clock()
        self._asked: asyncio.Task[bool] | None = None

    async def keep(self) -> None:
        """For ever; DependencyUnavailable once we are stuck."""
        while True:
            await self.look(self._patience_s / 8)

    async def look(self, seconds: float) -> None:
        """Look once, which takes so long."""
        if self._asked is None:  # a question that is never answered is asked once
            self._asked = asyncio.ensure_future(self._ask())
        await asyncio.gather(asyncio.wait({self._asked}, timeout=seconds), asyncio.sleep(seconds))
        idle = False
        if self._asked.done():
            idle, self._asked = self._asked.result(), None
        places = dict(self._places())
        if idle or places != self._seen:
            self._seen, self._moved_s = places, self._clock()
        elif self._clock() - self._moved_s > self._patience_s:
            raise DependencyUnavailable(
                f"nothing was done for {self._patience_s:g} s, with something to do or no word from Kafka: start again"
            )

    async def _ask(self) -> bool:
        try:
            return await self._idle(self._places())
        except Exception:  # noqa: BLE001 (whatever it is: nobody said that there is nothing to do)
            return False
