"""The moments of one source partition: its plates' latest positions at every boundary that its log has passed.

It has a clock of its own. A restart reads again from the oldest ping that a later moment may need, which can be before
the pings that open slots need; and whether such a ping was late for its slot, when it was read first, follows from the
watermark of that place in the log. So the checkpoint keeps the watermark before the oldest ping needed, and the clock
begins there. Moments that were due by the checkpoint's own watermark have been told and are not told again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from udp_stream.windows.latest import LatestPositions, Moment, RowPlaces
from udp_stream.windows.slots import NEVER, AppendClock, Frame, WindowRules
from udp_stream.windows.tables import SlotGrid


@dataclass(frozen=True, slots=True)
class MomentRules:
    """At which boundaries positions are asked, and how old one may be then.

    >>> from datetime import UTC
    >>> rules = MomentRules((SlotGrid(900, UTC), SlotGrid(3600, UTC)), age_ms=600_000)
    >>> rules.through_at(4_000_000), rules.through_at(4_600_000)  # the latest boundary of any
    (3600000, 4500000)
    """

    grids: tuple[SlotGrid, ...]
    age_ms: int

    def through_at(self, time_ms: int) -> int:
        """The last boundary up to this time, Unix ms."""
        return max(int(grid.place(np.array([time_ms]))[0][0]) for grid in self.grids)


class SourceMoments:
    """Pings of one source partition in, moments out, in order of time and each of them once.

    Two pings, and a tick a quarter of an hour later:

    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import Pings
    >>> from udp_stream.windows.slots import LogPlaces
    >>> rules, none = MomentRules((SlotGrid(900, UTC),), age_ms=600_000), np.zeros(2)
    >>> moments = SourceMoments(rules, WindowRules(), str.encode, None)
    >>> times, message = np.array([500_000, 600_000]), np.array([0, 1], np.int32)
    >>> two = Pings(("A", "B"), np.array([0, 1], np.uint32), times, none, none, none, message, none)
    >>> places = LogPlaces(np.array([7, 8, 9]), np.array([500_000, 600_000, 1_400_000]), np.array([False, False, True]))
    >>> slot = np.zeros(2, np.int64)
    >>> (moment,) = moments.read(Frame(two, np.zeros(2, np.uint64), slot, slot + 3_600_000, places))
    >>> moment.time_ms, moment.plates, moments.first_needed()
    (900000, (b'A', b'B'), None)
    """

    def __init__(
        self,
        rules: MomentRules,
        windows: WindowRules,
        hash_plate: Callable[[str], bytes],
        watermark_ms: int | None,
        before_ms: int | None = None,
    ) -> None:
        """Resume at a checkpoint: with its watermark, and that before the first ping needed, if it is another one."""
        self._rules, self._grace_ms = rules, windows.grace_ms
        start_ms = watermark_ms if before_ms is None else before_ms
        self._clock = AppendClock(windows, None if start_ms == NEVER else start_ms)
        until_ms = None if watermark_ms is None else watermark_ms - windows.grace_ms
        self._latest = [
            LatestPositions(
                grid,
                rules.age_ms,
                windows.grace_ms,
                hash_plate,
                None if until_ms is None else int(grid.place(np.array([until_ms]))[0][0]),
            )
            for grid in rules.grids
        ]

    def read(self, frame: Frame) -> list[Moment]:
        """The moments that are due by the watermark behind a frame. How the log is cut into frames changes nothing."""
        observed, places = self._clock.observe(frame), frame.places
        if places is None:
            raise ValueError("expected offsets, got a log without them")
        late = frame.slot_end + self._grace_ms <= observed.watermark_before_ms
        rows = np.flatnonzero(~(late | observed.ahead))
        rows = rows[np.argsort(frame.pings.message[rows], kind="stable")]
        of_rows = RowPlaces(places.offset[frame.pings.message[rows]], observed.watermark_before_ms[rows])
        found: dict[int, Moment] = {}
        for latest in self._latest:
            for moment in self._told(latest, frame, rows, of_rows):
                found.setdefault(moment.time_ms, moment)  # a boundary of several grids holds the same in each
        return [found[time_ms] for time_ms in sorted(found)]

    def _told(self, latest: LatestPositions, frame: Frame, rows: NDArray[np.int64], places: RowPlaces) -> list[Moment]:
        # The first piece is empty: what a tick or refused pings have made due comes before the first row.
        cuts, found = [0, 0, *latest.segments(places.before_ms), rows.size], list[Moment]()
        for first, end in pairwise(cuts):
            before_ms = int(places.before_ms[end]) if end < rows.size else self._clock.watermark_ms
            watermark_ms, here = None if before_ms == NEVER else before_ms, slice(first, end)
            of_rows = RowPlaces(places.offset[here], places.before_ms[here])
            found += latest.push(frame.pings, rows[here], watermark_ms, of_rows)
        return found

    def through_at(self, watermark_ms: int) -> int:
        """Every moment up to this time is complete at this watermark."""
        return self._rules.through_at(watermark_ms - self._grace_ms)

    def first_needed(self) -> tuple[int, int] | None:
        """Of the first message that a later moment may need: its offset, and the watermark before it. None for none."""
        needed = [one for latest in self._latest if (one := latest.first_needed()) is not None]
        return min(needed, default=None)

    @property
    def watermark_ms(self) -> int:
        """How far its clock is; NEVER at first. While a restart reads again, that is behind the checkpoint's."""
        return NEVER if self._clock.watermark_ms is None else self._clock.watermark_ms
