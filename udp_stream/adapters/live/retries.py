"""When to try again, and what to say of it: back-off with jitter, and errors said once and then counted."""

from __future__ import annotations

from collections.abc import Callable

from udp_stream.adapters.live.source import Failed
from udp_stream.adapters.text import counted
from udp_stream.errors import DependencyUnavailable
from udp_stream.units import duration_name

LONGEST_S = 60.0
"""Between two tries, unless the server asks for more: a city loses a minute of pings, not more."""

ASKED_MAX_S = 3600.0
"""As long as a server may ask us to wait."""

SAY_AGAIN_S = 300.0
"""The same failure is said again after this time, with how often it was."""


class Retries:
    """The failures of one source in a row.

    >>> said = []
    >>> retries = Retries("http://host/", 10.0, said.append, clock=lambda: 0.0, fraction=lambda: 1.0)
    >>> [retries.failed(Failed("answers with 503")) for _ in range(4)]
    [10.0, 20.0, 40.0, 60.0]
    >>> retries.worked()
    >>> said
    ['http://host/ answers with 503; tried again in 10s', 'http://host/ works again, after 4 failures in 0s']
    """

    def __init__(
        self,
        name: str,
        first_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float],
        fraction: Callable[[], float],
    ) -> None:
        """`first_s`: the longest pause after a first failure. `fraction` draws from [0, 1), so that clients that failed
        together do not come back together."""
        self._name, self._first_s, self._say, self._clock, self._fraction = name, first_s, say, clock, fraction
        self._has_worked = False
        self._count = 0
        self._began_s = self._said_s = 0.0
        self._said = ""

    def worked(self) -> None:
        """A try went well."""
        if self._count:
            past = self._since(self._began_s)
            self._say(f"{self._name} works again, after {counted(self._count, 'failure')} in {past}")
        self._has_worked, self._count, self._said = True, 0, ""

    def failed(self, failure: Failed) -> float:
        """Seconds until the next try. DependencyUnavailable for a final failure before anything has worked: a person
        who has just typed a wrong address is to know at once."""
        if failure.is_final and not self._has_worked:
            raise DependencyUnavailable(f"{self._name} {failure.sentence}")
        now = self._clock()
        self._began_s = self._began_s if self._count else now
        # Ten doublings at most: after some 1,000 failures the power would be too large for a float.
        most = min(self._first_s * 2.0 ** min(self._count, 10), max(LONGEST_S, self._first_s))
        pause = most * (0.5 + self._fraction() / 2)
        if failure.wait_s is not None:
            pause = max(pause, min(failure.wait_s, ASKED_MAX_S))
        self._count += 1
        if failure.sentence != self._said:
            self._say(f"{self._name} {failure.sentence}; tried again in {_seconds(pause)}")
            self._said, self._said_s = failure.sentence, now
        elif now - self._said_s >= SAY_AGAIN_S:
            past = f"{counted(self._count, 'failure')} in {self._since(self._began_s)}"
            self._say(f"{self._name} {failure.sentence}; {past}")
            self._said_s = now
        return pause

    def _since(self, began_s: float) -> str:
        return _seconds(self._clock() - began_s)


def _seconds(seconds: float) -> str:
    return duration_name(round(seconds)) if seconds >= 0.5 else "0s"
