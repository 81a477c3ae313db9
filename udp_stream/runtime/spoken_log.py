"""A run's log while it goes on: its lines, with a clock and a voice."""

from __future__ import annotations

import time

from udp_stream.logs import say
from udp_stream.release.facts import Fact, RunLog
from udp_stream.windows.tables import SlotGrid


class SpokenLog:
    """A `RunLog` with a clock and a voice: an observer of a run. `say_due` is to be called about once a second.

    >>> import sys
    >>> from datetime import UTC
    >>> from udp_stream.logs import begin_log, end_log
    >>> from udp_stream.release.facts import BatchRead
    >>> begin_log(sys.stdout, as_json=False)
    >>> log = SpokenLog(SlotGrid(3600, UTC), grace_ms=120_000)
    >>> log.observe(BatchRead(messages=3, pings=2, refused={}))
    >>> log.say_due()  # doctest: +ELLIPSIS
    udp-stream: 2 pings; next slot closes at ... UTC, in ...
    >>> end_log()
    """

    def __init__(self, slots: SlotGrid, grace_ms: int) -> None:
        """Nothing is said yet."""
        self._log = RunLog(slots, grace_ms)

    def observe(self, fact: Fact) -> None:
        """Count a fact."""
        self._log.observe(fact, time.time())

    def say_due(self, *, at_the_end: bool = False) -> None:
        """Say what is due now."""
        for line in self._log.lines(time.time(), at_the_end=at_the_end):
            say(line.text, line.event, line.figures)
