"""The clocks of a log: its watermark, whatever the reader's own clock says.

A watermark is a time up to which the log counts as complete. A clock observes a frame (a run of
messages) at a time. For each ping it gives the watermark before the ping (`watermark_before_ms`),
by which lateness is judged, and whether the ping is from the future. Then it shows the new
watermark, by which slots close.

Ours differs from the field's: there, lateness that is allowed for is part of the watermark. Ours is
the log's own time, guarded against wrong clocks; a slot closes `grace_ms` behind it.

**Agreement**, for files: they have no append times, so the watermark is the newest time that
several plates have reached. **Append**, for a partition of a topic with the broker's append times:
the newest event time that was no more than a little ahead of its own append time, less the disorder
that is allowed for; or the latest tick record's. It is computed message by message, so how a fetch
cuts the log changes nothing.

**Wall**, where whole plates are hidden: the latest tick record's time. No ping moves it, so no
plate decides whether another's pings count. **Span**, for files then: a public span of time, all of
whose slots close at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple, Protocol

import numpy as np

from udp_stream.base.arrays import Cells, Flags, Integers
from udp_stream.pings.decode import PingRules, Pings
from udp_stream.windows.grid import HEXAGONS, Grid
from udp_stream.windows.tables import SlotGrid

Times = Integers

NEVER = -(2**63)
"""A time before all others."""

SEEN_MS = 2 * 86_400_000
"""Time without a ping, in ms, after which a plate has left, for the agreement clock."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Rules that never change while the windows live. Times in ms.

    `ahead_ms`, the quorums: of the agreement clock. `skew_ms`, `disorder_ms`: of the append clock:
    how far a ping may be ahead of the broker, and how long after the newest ping older pings are
    waited for. `movement`: speeds are derived where a slot closes; None takes those of the pings.
    `archived_ms`: the ledger closed all slots that end by then. `in_processing_time`: whole plates
    are hidden, so slots close by the wall's time, and limits are by plate.

    >>> WindowRules(grace_ms=60_000).quorum_min
    3
    """

    grace_ms: int = 120_000
    ahead_ms: int = 86_400_000
    pings_per_slot_max: int = 50_000_000  # 1 GB at 20 bytes a ping: out of reach of a city
    quorum_min: int = 3
    quorum_share: float = 0.02
    ping_share: float = 0.05
    skew_ms: int = 30_000
    disorder_ms: int = 60_000
    movement: PingRules | None = None
    archived_ms: int = NEVER
    in_processing_time: bool = False
    grid: Grid = HEXAGONS

    def late_by(self, slot_end: Times, watermark_before_ms: Times) -> tuple[Times, Flags]:
        """The time that pings are judged by, and which are late: of slots that had closed by then."""
        judged: Times = np.maximum(watermark_before_ms, self.archived_ms + self.grace_ms)
        late: Flags = slot_end + self.grace_ms <= judged
        return judged, late


class LogPlaces(NamedTuple):
    """The places of a frame's messages in their partition: a value for each message, tick records
    included.

    `offset` rises; `append_ms` is the broker's append time; `tick` is True for records that only
    tell the time and have no pings.

    >>> places = LogPlaces(np.array([40, 41]), np.array([7_000, 8_000]), np.array([False, True]))
    >>> places.behind(1).offset
    array([41])
    """

    offset: Times
    append_ms: Times
    tick: Flags

    def behind(self, count: int) -> LogPlaces:
        return LogPlaces(self.offset[count:], self.append_ms[count:], self.tick[count:])


class Frame(NamedTuple):
    """A run of the log, decoded and placed: `cell`, `slot_start` and `slot_end` belong to the rows
    of `pings`.

    `places` is None for a log without offsets and append times.

    >>> none, no_time = np.zeros(0), np.zeros(0, np.int64)
    >>> empty = Pings((), none, no_time, none, none, none, none, none)
    >>> Frame(empty, np.zeros(0, np.uint64), no_time, no_time).places is None
    True
    """

    pings: Pings
    cell: Cells
    slot_start: Times
    slot_end: Times
    places: LogPlaces | None = None


class FrameObservation(NamedTuple):
    """Observation of each row of a frame: the watermark before it, whether it comes from the
    future, and whether its clock has rolled over (`are_rolled_over`). `outside`: whether its slot
    is none of those that are asked for; None if all are.

    >>> none = np.zeros(2, bool)
    >>> FrameObservation(np.array([7_000, 7_000]), np.array([False, True]), none).ahead.sum()
    np.int64(1)
    """

    watermark_before_ms: Times
    ahead: Flags
    rolled_over: Flags
    outside: Flags | None = None


ROLLOVER_MS = 1024 * 7 * 86_400_000
"""Rollover of GPS, in ms: it counts 1,024 weeks and begins again, so a receiver that does not know
of it is 7,168 days behind."""


def are_rolled_over(time_ms: Times, now_ms: Times | int) -> Flags:
    """Mask of times that are 1,024 weeks before now, give or take a day: of a recording made then,
    none is refused, as its own clock says that it is then."""
    return np.abs(now_ms - ROLLOVER_MS - time_ms) <= 86_400_000


class Clock(Protocol):
    """Turns frames into watermarks. `watermark_ms` is None before the first ping, and never goes
    back.

    >>> clocks: list[Clock] = [AgreementClock(WindowRules()), AppendClock(WindowRules())]
    >>> [clock.watermark_ms for clock in clocks]
    [None, None]
    """

    watermark_ms: int | None

    @property
    def over(self) -> Sequence[tuple[int, int]] | None:
        """Slots that the last frame has closed, with or without pings; None where open slots close
        by the watermark."""

    @property
    def at_end(self) -> Sequence[tuple[int, int]] | None:
        """Slots that close at the end of a file, with or without pings; None for the open ones."""

    def observe(self, frame: Frame) -> FrameObservation:
        """Judge the rows of the next frame, and move the watermark past it."""


class LogClock(Clock, Protocol):
    """A clock of a log with append times.

    >>> log: LogClock = AppendClock(WindowRules())
    >>> log.after_tick(190_000)
    130000
    """

    @property
    def shown_ms(self) -> int | None:
        """Time that the clock shows to people, Unix ms."""

    def after_tick(self, wall_ms: int) -> int:
        """The watermark behind a tick record of this time, if nothing else has moved it further."""


class AgreementClock:
    """The newest time that several plates have reached: the clock of a log without append times.

    Several is `quorum_min` plates or `quorum_share` of those seen in the last two days, whichever
    is more (all, if there are fewer): neither a single plate nor a few broken plates of a large
    fleet can move it. A plate counts with the newest time of the last frame it was in, so a wrong
    time is forgotten with the plate's next frame. And `ping_share` of the frame's pings must agree
    too, so that wrong times strewn over many plates do not add up.

    A plate has left, and is not waited for, once two others have come two days further, in steps of
    at most `ahead_ms`: a fleet may shrink to less than a quorum. Clocks that are wrong by more than
    a step never come that far.

    Four plates, of which the last is far ahead: the third newest time counts.

    >>> clock, plates, none = AgreementClock(WindowRules()), ("A", "B", "C", "D"), np.zeros(4)
    >>> times = np.array([1_000, 3_000, 2_000, 10**15])
    >>> clock.advance(Pings(plates, np.arange(4, dtype=np.uint32), times, none, none, none, none, none))
    >>> clock.watermark_ms
    2000
    """

    over = None
    at_end = None

    def __init__(self, rules: WindowRules) -> None:
        self._rules = rules
        self._newest_of: dict[str, int] = {}
        self._crowded = (
            1024  # plates: below it, looking for old plates to forget costs more than they do
        )
        self._believed_ms = rules.ahead_ms  # what is later comes from the future
        self.watermark_ms: int | None = None

    def observe(self, frame: Frame) -> FrameObservation:
        before = NEVER if self.watermark_ms is None else self.watermark_ms
        self.advance(frame.pings)
        time_ms = frame.pings.time_ms
        rolled_over = are_rolled_over(
            time_ms, 0 if self.watermark_ms is None else self.watermark_ms
        )
        return FrameObservation(
            np.full(time_ms.size, before), time_ms > self._believed_ms, rolled_over
        )

    def advance(self, pings: Pings) -> None:
        """Take in a frame. Pings too far ahead of the new time count for nothing, now or later."""
        if pings.time_ms.size == 0:
            return
        newest_of = self._newest_times(pings, pings.time_ms)
        share = int(np.ceil(self._rules.ping_share * pings.time_ms.size))
        # The older of the two: plates and pings must both have reached the time.
        self._set(min(self._reached(newest_of), _kth_newest(pings.time_ms, share)))
        if self.watermark_ms is not None:
            self._believed_ms = self.watermark_ms + self._rules.ahead_ms
            if (pings.time_ms <= self._believed_ms).all():
                self._newest_of = newest_of
            else:
                self._step_by_step(pings, self.watermark_ms, share)
            if len(self._newest_of) > self._crowded:
                self._forget(self.watermark_ms - SEEN_MS)

    def _step_by_step(self, pings: Pings, watermark_ms: int, share: int) -> None:
        """Advance where some pings are further ahead than is believed. Believe what is within a
        step of what two plates have come to, until nothing more is; plates that are left behind by
        then are not waited for."""
        come_to_ms = _second_newest(self._newest_of)
        before_ms = NEVER
        self._believed_ms = max(self._believed_ms, come_to_ms + self._rules.ahead_ms)
        while before_ms < self._believed_ms:
            within = pings.time_ms <= self._believed_ms
            newest_of = self._newest_times(pings, np.where(within, pings.time_ms, NEVER))
            if within.any():
                come_to_ms = min(
                    _second_newest(newest_of), _kth_newest(pings.time_ms[within], share)
                )
            if come_to_ms - SEEN_MS > watermark_ms:
                newest_of = {
                    plate: time for plate, time in newest_of.items() if time >= come_to_ms - SEEN_MS
                }
                self._set(min(self._reached(newest_of), come_to_ms))
            before_ms = self._believed_ms
            self._believed_ms = max(self._believed_ms, come_to_ms + self._rules.ahead_ms)
        self._newest_of = newest_of

    def _newest_times(self, pings: Pings, time_ms: Times) -> dict[str, int]:
        """The newest time of every plate, this frame's plates anew; a plate without a usable time
        keeps its old time."""
        newest = np.full(len(pings.plates), NEVER)
        np.maximum.at(newest, pings.plate, time_ms)
        usable = newest != NEVER
        plates = pings.plates if usable.all() else compress(pings.plates, usable)
        return self._newest_of | dict(zip(plates, newest[usable].tolist(), strict=True))

    def _reached(self, newest_of: dict[str, int]) -> int:
        times = np.fromiter(newest_of.values(), dtype=np.int64, count=len(newest_of))
        quorum = max(self._rules.quorum_min, int(np.ceil(self._rules.quorum_share * times.size)))
        return _kth_newest(times, quorum)

    def _set(self, time_ms: int) -> None:
        self.watermark_ms = (
            time_ms if self.watermark_ms is None else max(self.watermark_ms, time_ms)
        )

    def _forget(self, before_ms: int) -> None:
        self._newest_of = {
            plate: time for plate, time in self._newest_of.items() if time >= before_ms
        }
        # Doubled, so that forgetting stays rare as fleets grow.
        self._crowded = max(1024, 2 * len(self._newest_of))


def _second_newest(newest_of: dict[str, int]) -> int:
    """Time that two plates have reached; with fewer plates, before any time there is."""
    # Two days later than NEVER: from the lowest integer nothing can be taken.
    return sorted(newest_of.values())[-2] if len(newest_of) > 1 else NEVER + SEEN_MS


def _kth_newest(times: Times, k: int) -> int:
    at = max(0, times.size - k)
    return int(np.partition(times, at)[at])


class _OfLog:
    """The watermark of a log with append times, moved message by message."""

    def __init__(self, rules: WindowRules, watermark_ms: int | None = None) -> None:
        self._rules = rules
        self.watermark_ms = watermark_ms

    def _passed(self, told: Times) -> Times:
        """The watermark before each message, and behind the last, of which each tells a time."""
        # The old watermark goes in front: place i is then the watermark before message i.
        before = NEVER if self.watermark_ms is None else self.watermark_ms
        times = np.maximum.accumulate(np.append(before, told))
        if times[-1] != NEVER:
            self.watermark_ms = int(times[-1])
        return times


def _places_of(frame: Frame) -> LogPlaces:
    if frame.places is None:
        raise ValueError("expected append times, got a log without them: use another clock")
    return frame.places


class AppendClock(_OfLog):
    """The newest accepted event time of a source partition less `disorder_ms`, or its latest
    tick's, if later.

    A ping is accepted if its time is at most `skew_ms` after its message's append time, so no plate
    can move the clock past what the broker has seen. A tick says that until its append time nothing
    else came: it counts like a ping of that moment. Pings of a message are observed together; a
    message is judged by those before it in the log.

    A ping of 100 s, a ping from the future, and a tick at 190 s; the disorder that is allowed for
    is 60 s:

    >>> clock, none, message = AppendClock(WindowRules()), np.zeros(2), np.array([0, 1], np.int32)
    >>> two = Pings(("A",), none.astype(np.uint32), np.array([100_000, 10**15]), none, none, none, message, none)
    >>> appended = LogPlaces(np.arange(3), np.array([101_000, 102_000, 190_000]), np.array([False, False, True]))
    >>> observed = clock.observe(Frame(two, np.zeros(2, np.uint64), two.time_ms, two.time_ms, appended))
    >>> observed.ahead.tolist(), observed.watermark_before_ms[1], clock.watermark_ms
    ([False, True], np.int64(40000), 130000)
    """

    over = None
    at_end = None

    def observe(self, frame: Frame) -> FrameObservation:
        """Judge each row by the messages before its own. ValueError for a frame without append
        times."""
        places = _places_of(frame)
        pings = frame.pings
        ahead = pings.time_ms > places.append_ms[pings.message] + self._rules.skew_ms
        reached = np.where(places.tick, places.append_ms, NEVER)
        np.maximum.at(reached, pings.message[~ahead], pings.time_ms[~ahead])
        # NEVER is the lowest integer: less anything, it would wrap round to the far future.
        reached = np.where(reached == NEVER, NEVER, reached - self._rules.disorder_ms)
        return FrameObservation(
            self._passed(reached)[pings.message],
            ahead,
            are_rolled_over(pings.time_ms, places.append_ms[pings.message]),
        )

    @property
    def shown_ms(self) -> int | None:
        return self.watermark_ms

    def after_tick(self, wall_ms: int) -> int:
        return wall_ms - self._rules.disorder_ms


SLOTS_MAX = 48
"""Slots that a tick closes, the oldest first: those behind them, after a jump of the wall, have no
record."""


class WallClock(_OfLog):
    """The time of the log's latest tick record, whatever the pings say.

    A ping is late, and from the future, by its own message's append time; late also by the ticks
    before it. The log begins with its first tick: the first slot is the first to begin then or
    later, and the watermark goes at once to where all slots before it are closed. From there on
    each slot closes, `SLOTS_MAX` at a tick, with or without pings: `over` has those that the last
    frame's ticks have closed.

    Slots of 10 s, a grace of 2 s. A tick at 12 s: the slot from 20 s is the first. It closes by the
    tick at 32 s:

    >>> from datetime import UTC
    >>> clock, none = WallClock(WindowRules(grace_ms=2_000), SlotGrid(10, UTC)), np.zeros(0)
    >>> empty = Pings((), none.astype(np.uint32), none.astype(int), none, none, none, none.astype(int), none)
    >>> ticks = LogPlaces(np.arange(3), np.array([12_000, 31_999, 32_000]), np.ones(3, bool))
    >>> _ = clock.observe(Frame(empty, none.astype(np.uint64), empty.time_ms, empty.time_ms, ticks))
    >>> clock.over, clock.watermark_ms
    ([(20000, 30000)], 32000)
    """

    at_end = None

    def __init__(self, rules: WindowRules, grid: SlotGrid, watermark_ms: int | None = None) -> None:
        super().__init__(rules, watermark_ms)
        self._grid = grid
        self.shown_ms: int | None = None
        """Time of the latest tick that was read, Unix ms."""
        self.over = list[tuple[int, int]]()

    def observe(self, frame: Frame) -> FrameObservation:
        """Judge each row by its own message and the ticks before it. ValueError for a frame without
        append times."""
        places = _places_of(frame)
        pings = frame.pings
        ticks = np.flatnonzero(places.tick)
        told = np.where(places.tick, places.append_ms, NEVER)
        if ticks.size:
            self.shown_ms = int(told[ticks[-1]])
        if self.watermark_ms is None and ticks.size:
            told[ticks[0]] = self._grid.end_of(int(told[ticks[0]]) - 1) + self._rules.grace_ms
        times = self._passed(told)
        self.over = [
            slot
            for at in ticks.tolist()
            for slot in self._between(int(times[at]), int(times[at + 1]))
        ]
        own_ms = places.append_ms[pings.message]
        before_ms = times[pings.message]
        # Before the first tick nobody knows which slots will be whole.
        least_ms = np.where(before_ms == NEVER, frame.slot_end + self._rules.grace_ms, before_ms)
        ahead = pings.time_ms > own_ms + self._rules.skew_ms
        return FrameObservation(
            np.maximum(own_ms, least_ms), ahead, are_rolled_over(pings.time_ms, own_ms)
        )

    def _between(self, before_ms: int, behind_ms: int) -> list[tuple[int, int]]:
        if before_ms in (NEVER, behind_ms):
            return []
        since, until = (
            self._grid.start_of(ms - self._rules.grace_ms) for ms in (before_ms, behind_ms)
        )
        if self._rules.archived_ms != NEVER:
            since = max(since, self._grid.start_of(self._rules.archived_ms))
        return self._grid.between(since, until, SLOTS_MAX)

    def after_tick(self, wall_ms: int) -> int:
        return wall_ms


class SpanClock:
    """The clock of files: no ping of these slots is late, and none of another slot counts. They
    close at the end."""

    watermark_ms: int | None = None
    over = ()

    def __init__(self, slots: Sequence[tuple[int, int]]) -> None:
        """`slots`: start and end of each, in order, without a gap."""
        self.at_end = slots

    def observe(self, frame: Frame) -> FrameObservation:
        start = frame.slot_start
        none = np.zeros(frame.slot_start.size, bool)
        outside = (start < self.at_end[0][0]) | (start > self.at_end[-1][0])
        return FrameObservation(np.full(start.size, NEVER), none, none, outside)


# The clock of the wall, for times of arrival and ticks: what is in a log by then stays.

STEP_S = 2.0
"""A clock that is corrected moves less between two looks; more is a jump."""

SETTLED_S = 600.0
"""Seconds that a jump has lasted before it is believed, where the source says nothing."""

SKEW_S = 30.0
LAG_S = 600.0
"""Seconds that a source may be ahead or behind: else it speaks against a jump, however long that
has lasted."""


class SteadyClock:
    """The wall's time in seconds, unless it jumps against monotonic time. Then the source's own
    times say which of the two is right. Where they do not, monotonic time is, for `SETTLED_S`.

    Give it the times of pings with `hear`. `lag_max_s`: pings of a sound source are at most so old.
    `hears` is False where no ping may move it.

    An hour ahead for a moment; and an hour ahead from the beginning, until the wall is set right:

    >>> now = {"wall": 7000.0, "steady": 10.0}
    >>> clock = SteadyClock(lambda: now["wall"], lambda: now["steady"])
    >>> clock.hear(np.array([6_990_000]))
    >>> now.update(wall=10_601.0, steady=11.0)
    >>> clock.now_s()
    7001.0
    >>> clock = SteadyClock(lambda: now["wall"], lambda: now["steady"])
    >>> clock.hear(np.array([7_001_000]))
    >>> now.update(wall=7002.0, steady=12.0)
    >>> clock.now_s()
    7002.0
    """

    def __init__(
        self,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        lag_max_s: float = float("inf"),
        hears: bool = True,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lag_max_s = lag_max_s
        self._hears = hears
        # All of them are seconds ahead of monotonic time.
        self._since_s = monotonic()
        self._believed = wall() - self._since_s
        self._jumped: tuple[float, float] | None = None  # and since when
        self._heard: float | None = None
        self._newest: float | None = None

    def now_s(self) -> float:
        steady_s = self._monotonic()
        ahead = self._wall() - steady_s
        if self.is_in_doubt:
            if self._jumped is None or abs(ahead - self._jumped[0]) > STEP_S:
                self._jumped = ahead, steady_s
            if not self._is_right(ahead, steady_s):
                return steady_s + self._believed
            self._since_s = steady_s
        self._believed = ahead
        self._jumped = None
        return steady_s + ahead

    def _is_right(self, ahead: float, steady_s: float) -> bool:
        heard = self._heard
        if heard is not None and abs(ahead - heard) < abs(self._believed - heard):
            return True
        since_s = self._since_s if self._jumped is None else self._jumped[1]
        if heard is None:  # nothing speaks for what was believed first, either
            return steady_s - self._since_s < SETTLED_S or steady_s - since_s >= SETTLED_S
        return steady_s - since_s >= SETTLED_S and -SKEW_S <= ahead - heard <= LAG_S

    @property
    def monotonic_s(self) -> float:
        return self._monotonic()

    def now_ms(self) -> int:
        return round(self.now_s() * 1000)

    def has_lasted(self, seconds: float) -> bool:
        """Whether the wall has not jumped for so long, as far as it was believed."""
        return self._monotonic() - self._since_s >= seconds

    @property
    def is_in_doubt(self) -> bool:
        return abs(self._wall() - self._monotonic() - self._believed) > STEP_S

    def tick_s(self) -> float:
        """The time of a tick: no later than the newest ping could make it."""
        now_s = self.now_s()
        return (
            now_s
            if self._newest is None
            else min(now_s, self._monotonic() + self._newest + self._lag_max_s)
        )

    def hear(self, time_ms: Times) -> None:
        """The times of a frame's pings: what nine tenths of them have not passed counts."""
        if time_ms.size and self._hears:
            self._heard = float(np.quantile(time_ms, 0.9)) / 1000 - self._monotonic()
            if self._heard <= self._believed + SKEW_S:
                self._newest = (
                    self._heard if self._newest is None else max(self._newest, self._heard)
                )
