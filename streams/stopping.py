"""How a worker stops: on a signal in good order and with status 0, on an error with a sentence and its status.

What fails after a signal is no failure of the worker: nothing of it is committed, and the next worker does it again.
It is said as a warning. A supervisor that sees a status of 1 would take a planned restart for a crash.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

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
