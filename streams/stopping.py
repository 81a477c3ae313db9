"""How a worker stops: on a signal in good order and with status 0, on an error with a sentence and its status.

What fails after a signal is no failure of the worker: nothing of it is committed, and the next worker does it again.
It is said as a warning. A supervisor that sees a status of 1 would take a planned restart for a crash.

The watchdog ends a worker that is stuck for any reason, so that its supervisor can restart it.

A consumer that no longer fetches, a rebalance that never ends, a call without an answer, a broker that is gone: from
the outside they look alike. There is work to do, or the broker does not say that there is none, and for a long time
nothing is done. The watchdog checks exactly that, from a task that waits for nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

from aiokafka.errors import KafkaError
from faust.types import TP

from udp_stream.adapters.logs import ERROR, WARNING, fault, say
from udp_stream.errors import DependencyUnavailable, UdpStreamError

DRAIN_S = 10.0
"""For stopping in good order; after that the process ends as if it were killed, which loses nothing."""


class Stop:
    """Why the worker is to stop: an error, the first one, or None for being asked to."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.error: BaseException | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Stop where nothing is half done."""
        self._asked.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of an error. If we are stopping already, it changes nothing."""
        if not self.asked:
            self.error = error
            self._asked.set()
        elif self.error is None:
            say(f"while it stopped: {ours(error)}", "ended", level=WARNING)

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self._asked.is_set()

    @property
    def status(self) -> int:
        """The exit status that says why."""
        return 0 if self.error is None else ours(self.error).exit_status

    async def wait(self) -> None:
        """Until it is asked for."""
        await self._asked.wait()

    async def guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work unless we are stopping; what it raises stops us, and never reaches Faust."""
        if not self.asked:
            await self.last(work)

    async def last(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Do some work, one after the other, though we may be stopping; what one raises does not keep us from the
        next."""
        for work in works:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 (it ends the process, with its sentence)
                self.fail(error)

    def end_soon(self) -> None:
        """End the process for certain, soon."""

        def end() -> None:
            if self.error is not None:
                say(str(ours(self.error)), "failed", level=ERROR)
            # In this thread `sys.exit` would end the thread alone.
            os._exit(self.status)

        timer = threading.Timer(DRAIN_S, end)
        timer.daemon = True
        timer.start()


def heed_signals(stop: Stop) -> list[int]:
    """SIGTERM and SIGINT ask us to stop; the numbers of those that came."""
    came: list[int] = []

    def heed(number: int) -> None:
        came.append(number)
        stop.ask()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, heed, number)
    return came


def ours(error: BaseException) -> UdpStreamError:
    """One of ours as it is; any other by its kind and place, never its text, which may quote a ping.

    >>> str(ours(KeyError("GJ05BX1001")))
    'the worker stopped: KeyError at '
    """
    if isinstance(error, UdpStreamError):
        return error
    kind = DependencyUnavailable if isinstance(error, KafkaError) else UdpStreamError
    return kind(f"the worker stopped: {fault(error)}")


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
