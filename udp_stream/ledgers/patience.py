"""How long a worker waits for a ledger that is away, in place of ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from udp_stream.base.logs import Outage

WAIT_S: Final = 900.0
"""After this time a worker ends (status 4): another may reach the ledger. The group waits 1,000 s."""

WAITS: Final = "; the worker waits for it, for a quarter of an hour at most"

PAUSE_S: Final = 2.0

SAID_S: Final = 2.0
"""A shorter outage is not said: a server that starts again, a replica that takes over."""


class Patience:
    """Shared by all calls of a worker. `tries` tells its watchdog that something is done: a
    question without an answer takes half a minute. Until a ledger is open (`is_open`) it is for a
    full server alone: a server that is away ends a start."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, seconds: float = WAIT_S
    ) -> None:
        there = "the ledger answers again"
        self._outage = Outage(
            f"the ledger does not answer{WAITS}", there, after_s=SAID_S, clock=clock
        )
        self._clock = clock
        self._asked_s = clock()
        self._seconds = seconds
        self.tries = 0
        self.is_open = False
        self._is_full = False
        self._ended = threading.Event()

    @property
    def lasted_s(self) -> float:
        return self._outage.lasted_s

    def close(self) -> None:
        """The worker stops: nothing is waited for any more."""
        self._ended.set()

    def ask(self) -> None:
        """A try begins."""
        self._asked_s = self._clock()

    def away(self, why: str = "") -> None:
        """The try has failed; `why` says what a person can do."""
        self.tries += 1
        self._is_full = bool(why)
        if not (self.is_open or why):
            return
        gone = f"the ledger takes nothing: {why}{WAITS}" if why else ""
        self._outage.away(gone, self._clock() - self._asked_s)

    def back(self) -> None:
        self._outage.back()

    def wait(self, seconds: float) -> bool:
        """Whether the worker stops before so long a pause is over."""
        return self._ended.wait(seconds)

    def goes_on(self) -> bool:
        """Whether to try again, after a pause."""
        is_due = self.lasted_s < self._seconds and (self.is_open or self._is_full)
        return is_due and not self.wait(PAUSE_S)
