"""What a run that goes on says of itself: a line for each closed slot, and one now and then about what comes in.

An observer that turns facts into lines. It knows no file and no clock: its caller hands it the time, and takes the
lines. A line holds counts and times; facts have no plate, no cell and no speed.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from udp_stream.release.facts import BatchRead, Fact, SlotCounted, SlotPublished, SlotRecorded
from udp_stream.windows.tables import SlotGrid

QUIET_S: Final = 1.0
"""A slot's line comes so long after its last part: on Kafka its parts are released one by one."""

MINUTE_S: Final = 60.0
"""Between two lines about what comes in, while it changes."""

STEADY_S: Final = 600.0
"""Between two such lines while nothing changes: a quiet day has fewer than 200 lines."""

CHANGES_MAX: Final = 6
CHANGE_S: Final = 3600.0
"""The changes that are logged at once; one more may be for each hour. A feed that is polled once a minute, or refuses a
ping now and then, changes in every minute of the day: what is then not said at once is said after `STEADY_S`."""

BEHIND_S: Final = 600.0
"""From this lag on slots close by the times of pings, not by the clock on the wall: as of a recording."""

LAG_STEPS_S: Final = 10.0, 60.0, 600.0, 3600.0
"""Where a lag is another one: within these steps it has not changed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence, what kind of line it is, and its figures by name.

    >>> Line("slot", "13 HATs, 7 released", {"hats": 13, "released": 7}).figures["hats"]
    13
    """

    event: str
    text: str
    figures: Mapping[str, object]


@dataclass(slots=True)
class _Slot:
    """What is known of a closed slot so far."""

    first_s: float
    last_s: float
    due: int = 0
    pings: int = 0
    hats: Counter[str] = field(default_factory=Counter)


class RunLog:
    """Lines of one run. `now_s` is Unix time in seconds, and never goes back.

    >>> from zoneinfo import ZoneInfo
    >>> log = RunLog(SlotGrid(3600, ZoneInfo("Asia/Kolkata")), grace_ms=120_000)
    >>> facts = SlotCounted(1_641_011_400_000, 0), SlotRecorded(1_641_011_400_000, pings=840, made=2)
    >>> for fact in (*facts, SlotPublished(1_641_011_400_000, {"released": 1, "withheld_few_plates": 1})):
    ...     log.observe(fact, 1_641_015_120.0)
    >>> for line in log.lines(1_641_015_121.5): print(line.text)
    2022-01-01 10:00-11:00 IST: 2 HATs, 1 released, 840 pings, 0 refused, out after 0.0 s
    no pings; next slot closes at 12:02 IST, in 60 min
    """

    def __init__(self, slots: SlotGrid, grace_ms: int) -> None:
        """Nothing has happened yet. `slots` and the grace say when the next one closes."""
        self._grid, self._grace_s = slots, grace_ms / 1000
        self._newest_ms: int | None = None
        self._slots: dict[int, _Slot] = {}
        self._refused: Counter[str] = Counter()
        self._came: Counter[str] = Counter()
        self._pings = 0
        self._said_s: float | None = None
        self._said: tuple[object, ...] = ()
        self._changes_left = float(CHANGES_MAX)

    def observe(self, fact: Fact, now_s: float) -> None:
        """Count a fact."""
        match fact:
            case BatchRead():
                self._pings += fact.pings
                if fact.newest_ms is not None:
                    self._newest_ms = max(fact.newest_ms, self._newest_ms or fact.newest_ms)
                refused = {str(reason): count for reason, count in fact.refused.items()}
                self._came.update(refused)
                self._refused.update(refused)
            case SlotCounted() | SlotRecorded() | SlotPublished():
                self._of_slot(fact, now_s)
            case _:
                pass

    def _of_slot(self, fact: SlotCounted | SlotRecorded | SlotPublished, now_s: float) -> None:
        slot = self._slots.setdefault(fact.start_ms, _Slot(now_s, now_s))
        slot.last_s = now_s
        if isinstance(fact, SlotCounted):
            slot.due += 1
        elif isinstance(fact, SlotRecorded):
            slot.pings += fact.pings
        else:
            slot.due -= 1
            slot.hats.update(fact.hats)

    def lines(self, now_s: float, *, at_the_end: bool = False) -> list[Line]:
        """What is to be said now: of slots that are out, and of what comes in. Ask about once a second."""
        out = [start for start, slot in self._slots.items() if at_the_end or self._is_out(slot, now_s)]
        found = [self._slot_line(start, self._slots.pop(start)) for start in sorted(out)]
        if (line := self._incoming(now_s, at_the_end)) is not None:
            found.append(line)
        return found

    def _is_out(self, slot: _Slot, now_s: float) -> bool:
        return slot.due <= 0 and now_s - slot.last_s >= QUIET_S

    def _slot_line(self, start_ms: int, slot: _Slot) -> Line:
        start, end = self._wall(start_ms / 1000), self._wall(self._grid.end_of(start_ms) / 1000)
        refused, self._refused = self._refused, Counter()
        hats, released, took_s = slot.hats.total(), slot.hats["released"], slot.last_s - slot.first_s
        until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
        text = (
            f"{start:%Y-%m-%d %H:%M}-{until} {end:%Z}: {_counted(hats, 'HAT')}, "
            f"{released:,} released, {_counted(slot.pings, 'ping')}, {refused.total():,} refused, "
            f"out after {took_s:.1f} s"
        )
        if slot.due > 0:
            text += f", {slot.due} of its parts not yet"
        figures = {"slot_start": start.isoformat(), "hats": dict(slot.hats), "pings": slot.pings}
        return Line("slot", text, {**figures, "refused": dict(refused), "seconds": round(took_s, 3)})

    def _incoming(self, now_s: float, at_the_end: bool) -> Line | None:
        since_s = None if self._said_s is None else now_s - self._said_s
        if at_the_end and since_s is not None and not self._pings and not self._came:
            return None
        if since_s is not None and not at_the_end and since_s < MINUTE_S:
            return None
        lag_s = None if self._newest_ms is None else max(0.0, now_s - self._newest_ms / 1000)
        step = 0 if lag_s is None else sum(lag_s >= limit for limit in LAG_STEPS_S)
        state = self._pings > 0, frozenset(self._came), step
        if since_s is not None and since_s < STEADY_S and not at_the_end and not self._may_say(state, since_s):
            return None
        self._changes_left = min(CHANGES_MAX, self._changes_left + (since_s or 0.0) / CHANGE_S)
        line = self._incoming_line(now_s, since_s, lag_s, at_the_end=at_the_end)
        self._said_s, self._said, self._pings, self._came = now_s, state, 0, Counter()
        return line

    def _may_say(self, state: tuple[object, ...], since_s: float) -> bool:
        """Whether this is a change, and one that is said at once."""
        # `_incoming` adds what has come back by now only once a line is said.
        if state == self._said or self._changes_left + since_s / CHANGE_S < 1:
            return False
        self._changes_left -= 1
        return True

    def _incoming_line(self, now_s: float, since_s: float | None, lag_s: float | None, *, at_the_end: bool) -> Line:
        parts = [_counted(self._pings, "ping") if self._pings else "no pings"]
        if since_s is not None:
            parts[0] += f" in {duration_in_words(since_s)}"
        if lag_s is not None:
            parts.append(f"the newest ping is {duration_in_words(lag_s)} old")
        if self._came:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self._came.most_common())
            parts.append(f"{self._came.total():,} refused ({reasons})")
        figures = {"pings": self._pings, "refused": dict(self._came), "lag_seconds": lag_s and round(lag_s, 1)}
        if at_the_end:
            return Line("incoming", "; ".join(parts), figures)
        closes, at = self._next_close(now_s, lag_s)
        return Line("incoming", "; ".join([*parts, *closes]), figures | at)

    def _next_close(self, now_s: float, lag_s: float | None) -> tuple[list[str], dict[str, object]]:
        """By the clock on the wall; nothing while pings come that are far behind it, as slots close by their times."""
        if self._pings and lag_s is not None and lag_s >= BEHIND_S:
            return [], {}
        closes_s = self._grid.end_of(round((now_s - self._grace_s) * 1000)) / 1000 + self._grace_s
        text = f"next slot closes at {self._wall(closes_s):%H:%M %Z}, in {duration_in_words(closes_s - now_s)}"
        return [text], {"next_close": self._wall(closes_s).isoformat()}

    def _wall(self, time_s: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(time_s, self._grid.zone)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def duration_in_words(seconds: float) -> str:
    """In words, as coarse as is useful: a day for 36 h and more.

    >>> duration_in_words(89.4), duration_in_words(90), duration_in_words(7_200)
    ('89 s', '2 min', '2 h')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
