"""The clocks of a log: what time it is by the log itself, whatever the reader's own clock says.

A clock hears one frame (a run of messages) at a time. It says for each ping against which time its lateness is judged
(`before_ms`) and whether it is from the future, and then shows the new time, by which slots close.

**Agreement**, for files: they have no append times, so the time is the newest that several plates have reached.
**Append**, for a partition of a topic with broker's append times: the newest event time that was no more than a little
ahead of its own append time, less the disorder that is waited for; or the latest tick record's. It is counted message
by message, so how a fetch cuts the log changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decoder import Pings

Times = NDArray[np.int64]

NEVER = -(2**63)
"""Before any time there is."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """What never changes while the windows live. Times in ms.

    `ahead_ms`, the quorums: of the agreement clock. `skew_ms`, `disorder_ms`: of the append clock: how far a ping may
    be ahead of the broker, and how long after the newest ping older ones are waited for.
    """

    grace_ms: int = 120_000
    ahead_ms: int = 86_400_000
    pings_per_slot_max: int = 50_000_000
    quorum_min: int = 3
    quorum_share: float = 0.02
    ping_share: float = 0.05
    skew_ms: int = 30_000
    disorder_ms: int = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class LogPlaces:
    """Where the messages of a frame stand in their partition: one value for each message, tick records included.

    `offset` rises; `append_ms` is the broker's append time; `tick` is True for records that only tell the time and have
    no pings.
    """

    offset: Times
    append_ms: Times
    tick: NDArray[np.bool_]

    def behind(self, count: int) -> LogPlaces:
        """The same without the first `count` messages."""
        return LogPlaces(self.offset[count:], self.append_ms[count:], self.tick[count:])


@dataclass(frozen=True, slots=True)
class Frame:
    """One run of the log, decoded and placed: `cell`, `slot_start` and `slot_end` belong to the rows of `pings`.

    `places` is None for a log without offsets and append times.
    """

    pings: Pings
    cell: NDArray[np.uint64]
    slot_start: Times
    slot_end: Times
    places: LogPlaces | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What a clock says of a frame's rows: the time before each was heard, and which come from the future."""

    before_ms: Times
    ahead: NDArray[np.bool_]


class Clock(Protocol):
    """Turns frames into times. `now_ms` is None before the first, and never goes back."""

    now_ms: int | None

    def hear(self, frame: Frame) -> Heard:
        """Judge the rows of the next frame, and move on to the time after it."""
        ...


class AgreementClock:
    """The newest time that several plates have reached: the clock of a log without append times.

    Several is `quorum_min` plates or `quorum_share` of those seen in the last two days, whichever is more (all, if
    there are fewer): neither one plate alone nor a few broken ones of a large fleet can move it. A plate stands for
    the newest time of the last frame it was in, so one wrong time is forgotten with the plate's next frame. And
    `ping_share` of the frame's pings must agree too, so that wrong times strewn over many plates do not add up.
    """

    def __init__(self, rules: WindowRules) -> None:
        """A clock that has not begun: `now_ms` is None until the first ping."""
        self._rules = rules
        self._stands: dict[str, int] = {}
        self._crowded = 1024
        self.now_ms: int | None = None

    def hear(self, frame: Frame) -> Heard:
        """All of a frame is heard together: what closes a slot does not make its own neighbours late."""
        before = NEVER if self.now_ms is None else self.now_ms
        self.advance(frame.pings)
        ahead = frame.pings.time_ms > (self.now_ms or 0) + self._rules.ahead_ms
        return Heard(np.full(ahead.size, before), ahead)

    def advance(self, pings: Pings) -> None:
        """Take in a frame. Pings too far ahead of the new time count for nothing, now or later."""
        if pings.time_ms.size == 0:
            return
        stands = self._heard(pings, pings.time_ms)
        share = int(np.ceil(self._rules.ping_share * pings.time_ms.size))
        self._set(min(self._reached(stands), _kth_newest(pings.time_ms, share)))
        if self.now_ms is not None:
            within = pings.time_ms <= self.now_ms + self._rules.ahead_ms
            self._stands = stands if within.all() else self._heard(pings, np.where(within, pings.time_ms, NEVER))
            if len(self._stands) > self._crowded:
                self._forget(self.now_ms - 2 * 86_400_000)

    def _heard(self, pings: Pings, time_ms: Times) -> dict[str, int]:
        """Where every plate stands, this frame's plates anew; a plate without a usable time stays where it was."""
        newest = np.full(len(pings.plates), NEVER)
        np.maximum.at(newest, pings.plate, time_ms)
        usable = newest != NEVER
        plates = pings.plates if usable.all() else compress(pings.plates, usable)
        return self._stands | dict(zip(plates, newest[usable].tolist(), strict=True))

    def _reached(self, stands: dict[str, int]) -> int:
        times = np.fromiter(stands.values(), dtype=np.int64, count=len(stands))
        quorum = max(self._rules.quorum_min, int(np.ceil(self._rules.quorum_share * times.size)))
        return _kth_newest(times, quorum)

    def _set(self, time_ms: int) -> None:
        self.now_ms = time_ms if self.now_ms is None else max(self.now_ms, time_ms)

    def _forget(self, before_ms: int) -> None:
        self._stands = {plate: time for plate, time in self._stands.items() if time >= before_ms}
        self._crowded = max(1024, 2 * len(self._stands))


def _kth_newest(times: Times, k: int) -> int:
    at = max(0, times.size - k)
    return int(np.partition(times, at)[at])


class AppendClock:
    """The newest accepted event time of one source partition less `disorder_ms`, or its latest tick's, if later.

    A ping is accepted if its time is at most `skew_ms` after its message's append time, so no plate can move the clock
    past what the broker has seen. A tick says that until its append time nothing else came: it counts like a ping of
    that moment. Pings of one message are heard together; a message is judged by what stands before it in the log.
    """

    def __init__(self, rules: WindowRules, now_ms: int | None = None) -> None:
        """A clock that goes on from `now_ms`, as a frontier remembers it."""
        self._rules = rules
        self.now_ms = now_ms

    def hear(self, frame: Frame) -> Heard:
        """Judge each row by the messages before its own. ValueError for a frame without append times."""
        places, pings = frame.places, frame.pings
        if places is None:
            raise ValueError("expected append times, got a log without them: use AgreementClock")
        ahead = pings.time_ms > places.append_ms[pings.message] + self._rules.skew_ms
        told = np.where(places.tick, places.append_ms, NEVER)
        np.maximum.at(told, pings.message[~ahead], pings.time_ms[~ahead])
        told = np.where(told == NEVER, NEVER, told - self._rules.disorder_ms)
        times = np.maximum.accumulate(np.append(NEVER if self.now_ms is None else self.now_ms, told))
        if times[-1] != NEVER:
            self.now_ms = int(times[-1])
        return Heard(times[pings.message], ahead)
