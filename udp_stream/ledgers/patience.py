"""How long a worker waits for a ledger that is away, in place of ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from udp_stream.logs import Outage

WAIT_S: Final = 900.0
"""After this time a worker ends (status 4): another may reach the ledger. The group waits 1,000 s."""

PAUSE_S: Final = 2.0

SAID_S: Final = 2.0
"""A shorter outage is not said: a server that starts again, a replica that takes over."""


class Patience:
    """Shared by all calls of a worker. `tries` tells its watchdog that something is done: a question without an answer
    takes half a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, seconds: float = WAIT_S) -> None:
        self._outage = Outage(
            "the ledger does not answer; the worker waits for it, for a quarter of an hour at most",
            "the ledger answers again",
            after_s=SAID_S,
            clock=clock,
        )
        self._seconds, self.tries, self._ended = seconds, 0, threading.Event()

    @property
    def lasted_s(self) -> float:
        return self._outage.lasted_s

    def end(self) -> None:
        """The worker stops: nothing is waited for any more."""
        self._ended.set()

    def away(self) -> None:
        self.tries += 1
        self._outage.away()

    def back(self) -> None:
        self._outage.back()

    def goes_on(self) -> bool:
        """Whether to try again, after a pause."""
        return self.lasted_s < self._seconds and not self._ended.wait(PAUSE_S)


@runtime_checkable
class Patient(Protocol):
    """A ledger that can be away for a while."""

    def wait_with(self, patience: Patience) -> None:
        """Every later call waits as long as this says."""
