"""Each plate's latest position at the moments at which queries are asked, by the clock of the log.

A *moment* is a boundary of a grid in time. It is due once the clock has passed it and the grace, as
a slot's end is. It has each plate's last accepted ping before it, unless that is older than the age
that is allowed. So what a moment holds follows from the log alone, and so does when it is due. A
moment at which no plate has a position is left out.

A ping that comes later than the grace is not in its moment; it may still be the latest of its plate
at a later moment. A ping that is late for its slot is refused, and is in no moment.

**The first ping of a plate and time in the log counts.** Queries protect positions, so no position
may decide which ping counts: a plate that moved a little could else have jumped to its other ping.
The latest position follows from plates, times and the log's order alone, so it moves no farther
than the plate's pings do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.pings.decode import Pings
from udp_stream.windows.clocks import NEVER, AppendClock, Frame, WindowRules
from udp_stream.windows.tables import SlotGrid

_ROW = np.dtype(
    [
        ("plate", "<i8"),
        ("time", "<i8"),
        ("lat", "<f8"),
        ("lon", "<f8"),
        ("offset", "<i8"),
        ("before", "<i8"),
    ]
)

_ROWS_MIN = 1 << 18
"""How many rows wait before repeats between two moments are dropped: 12 MiB."""

_NAMES_SPARE = 4096
"""How many names of plates without a position are kept before they are forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The plates of a moment as keyed hashes, ascending, with a position each in degrees; `time_ms`
    is the boundary, Unix ms.

    `seen_ms` is when each was there, Unix ms. It is needed to join the moments of several logs, and
    for nothing else.
    """

    time_ms: int
    plates: tuple[bytes, ...]
    lat: Floats
    lon: Floats
    seen_ms: Integers = field(default_factory=lambda: np.zeros(0, np.int64))


class RowPlaces(NamedTuple):
    """Places of the rows that are pushed: the offset of its message, and the watermark before
    it."""

    offset: Integers
    before_ms: Integers


class LatestPositions:
    """The latest positions of a log, at every boundary of a grid; those up to `closed_ms` have been
    told already.

    `hash_plate` turns a plate into its keyed hash; nothing behind this knows plates.

    >>> from datetime import UTC
    >>> latest = LatestPositions(SlotGrid(900, UTC), age_ms=600_000, grace_ms=0, hash_plate=str.encode)
    >>> def ping(plate, minute):
    ...     at, none = np.array([21.0 + minute / 100]), np.zeros(1)
    ...     return Pings((plate,), np.zeros(1, np.uint32), np.array([minute * 60_000]), at, at, none, none, none)
    >>> for plate, minute in (("A", 1), ("A", 12), ("B", 2)):
    ...     assert not latest.push(ping(plate, minute), np.array([0]), watermark_ms=minute * 60_000)
    >>> (moment,) = latest.push(ping("A", 16), np.array([0]), watermark_ms=16 * 60_000)
    >>> moment.time_ms, moment.plates, moment.lat.tolist()  # B's position is 13 minutes old
    (900000, (b'A',), [21.12])
    """

    def __init__(
        self,
        grid: SlotGrid,
        age_ms: int,
        grace_ms: int,
        hash_plate: Callable[[str], bytes],
        closed_ms: int | None = None,
    ) -> None:
        self._grid = grid
        self._age_ms = age_ms
        self._grace_ms = grace_ms
        self._hash_plate = hash_plate
        self._codes: dict[str, int] = {}
        self._rows: NDArray[np.void] = np.empty(0, _ROW)
        self._fresh: list[NDArray[np.void]] = []
        self._fresh_rows = 0
        self._closed_ms = closed_ms
        self._earliest_ms = None if closed_ms is None else grid.end_of(closed_ms)

    def push(
        self,
        pings: Pings,
        rows: Integers,
        watermark_ms: int | None,
        places: RowPlaces | None = None,
    ) -> list[Moment]:
        if rows.size:
            self._add(pings, rows, places)
        until_ms = None if watermark_ms is None else watermark_ms - self._grace_ms
        if until_ms is None or (self._earliest_ms is not None and until_ms < self._earliest_ms):
            return []
        found = list(self._due(until_ms))
        self._close_through(until_ms)
        return found

    def segments(self, before_ms: Integers) -> list[int]:
        """Where to cut rows in the order of the log, so that each moment is taken behind the rows
        that make it due.

        `before_ms` is the watermark before each row. A log whose frames are cut anywhere is pushed
        in these pieces.
        """
        seen = np.unique(before_ms)
        known = seen[seen > NEVER]
        starts, _ = self._grid.place(known - self._grace_ms)
        crossed = known[np.flatnonzero(np.diff(starts)) + 1].tolist()
        if known.size < seen.size:  # the log's first watermark closes what is before it
            crossed = [*known[:1].tolist(), *crossed]
        return [int(np.searchsorted(before_ms, at)) for at in crossed]

    def first_needed(self) -> tuple[int, int] | None:
        """Offset of the first message that a later moment may need, and the watermark before it;
        None for none."""
        rows = self._gathered()
        if not rows.size:
            return None
        first = rows[np.argmin(rows["offset"])]
        return int(first["offset"]), int(first["before"])

    def flush(self) -> list[Moment]:
        """The log has ended: every moment up to the end of the stretch that its last ping lies in."""
        rows = self._gathered()
        return list(self._due(self._grid.end_of(int(rows["time"].max())))) if rows.size else []

    def _add(self, pings: Pings, rows: Integers, places: RowPlaces | None) -> None:
        if self._closed_ms is None:
            first = self._grid.end_of(int(pings.time_ms[rows].min()))
            self._earliest_ms = (
                first if self._earliest_ms is None else min(first, self._earliest_ms)
            )
        is_needed = self._are_needed(pings.time_ms[rows])
        rows = rows[is_needed]
        taken = np.zeros(rows.size, _ROW)
        used = np.unique(pings.plate[rows])
        code = np.zeros(len(pings.plates), np.int64)
        code[used] = [
            self._codes.setdefault(pings.plates[i], len(self._codes)) for i in used.tolist()
        ]
        taken["plate"] = code[pings.plate[rows]]
        taken["time"] = pings.time_ms[rows]
        taken["lat"] = pings.lat[rows]
        taken["lon"] = pings.lon[rows]
        if places is not None:
            taken["offset"] = places.offset[is_needed]
            taken["before"] = places.before_ms[is_needed]
        self._fresh.append(taken)
        self._fresh_rows += rows.size
        if self._fresh_rows > max(_ROWS_MIN, self._rows.size):
            gathered = self._gathered()
            _, ends = self._grid.place(gathered["time"])
            self._rows = _latest(gathered, ends)

    def _gathered(self) -> NDArray[np.void]:
        if self._fresh:
            self._rows = np.concatenate([self._rows, *self._fresh])
            self._fresh = []
            self._fresh_rows = 0
        return self._rows

    def _due(self, until_ms: int) -> Iterator[Moment]:
        """The moments from the first boundary behind the oldest row that has been in no moment."""
        while (rows := self._gathered()).size:
            moment_ms = self._grid.end_of(int(rows["time"].min()))
            if self._closed_ms is not None:
                moment_ms = max(moment_ms, self._grid.end_of(self._closed_ms))
            if moment_ms > until_ms:
                return
            before = rows["time"] < moment_ms
            found = _latest(rows[before])
            self._close_through(moment_ms)
            # Rows that no later moment can have leave here. So no row is too old when its next
            # moment comes.
            rows = np.concatenate([found, rows[~before]])
            self._rows = rows[self._are_needed(rows["time"])]
            # Before names are forgotten: `found` still has the old codes.
            names = list(self._codes)
            self._forget_names(names)
            if found.size:
                yield self._moment(moment_ms, found, names)

    def _are_needed(self, time_ms: Integers) -> Flags:
        _, first_ms = self._grid.place(time_ms)
        if self._earliest_ms is not None:
            first_ms = np.maximum(first_ms, self._earliest_ms)
        return np.asarray(time_ms >= first_ms - self._age_ms)

    def _close_through(self, until_ms: int) -> None:
        boundary = self._grid.start_of(until_ms)
        self._closed_ms = boundary if self._closed_ms is None else max(boundary, self._closed_ms)
        self._earliest_ms = self._grid.end_of(self._closed_ms)

    def _moment(self, moment_ms: int, found: NDArray[np.void], names: list[str]) -> Moment:
        hashes = [self._hash_plate(names[code]) for code in found["plate"].tolist()]
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        lat, lon, seen_ms = (found[name][order] for name in ("lat", "lon", "time"))
        return Moment(moment_ms, tuple(hashes[i] for i in order), lat, lon, seen_ms)

    def _forget_names(self, names: list[str]) -> None:
        used, again = np.unique(self._rows["plate"], return_inverse=True)
        if len(names) > 2 * used.size + _NAMES_SPARE:
            self._rows["plate"] = again
            self._codes = {names[code]: i for i, code in enumerate(used.tolist())}


def _latest(rows: NDArray[np.void], stretch: Integers | None = None) -> NDArray[np.void]:
    """Each plate's latest row, or that of each of its stretches, if they are given. Among rows of
    the same plate and time it is the first, which is the first in the log: rows are added in its
    order."""
    stretches = np.zeros(rows.size, np.int64) if stretch is None else stretch
    order = np.lexsort((-np.arange(rows.size), rows["time"], stretches, rows["plate"]))
    plate = rows["plate"][order]
    part = stretches[order]
    is_last = np.ones(order.size, bool)
    is_last[:-1] = (plate[1:] != plate[:-1]) | (part[1:] != part[:-1])
    return rows[order[is_last]]


# The moments of a source partition: its plates' latest positions at every boundary that its log has
# passed.
#
# It has a clock of its own. A restart reads again from the oldest ping that a later moment may
# need, which can be before those that open slots need. Whether such a ping was late when it was
# read first follows from the watermark at its offset: the checkpoint keeps that, and the clock
# begins there. Moments due by the checkpoint's watermark were told.


@dataclass(frozen=True, slots=True)
class MomentRules:
    """The boundaries at which positions are asked, and how old a position may be then.

    >>> from datetime import UTC
    >>> rules = MomentRules((SlotGrid(900, UTC), SlotGrid(3600, UTC)), age_ms=600_000)
    >>> rules.through_at(4_000_000), rules.through_at(4_600_000)  # the latest boundary of any
    (3600000, 4500000)
    """

    grids: tuple[SlotGrid, ...]
    age_ms: int

    def through_at(self, time_ms: int) -> int:
        return max(grid.start_of(time_ms) for grid in self.grids)


class SourceMoments:
    """Pings of a source partition in, moments out, in order of time and each of them once.

    Two pings, and a tick a quarter of an hour later:

    >>> from datetime import UTC
    >>> from udp_stream.windows.clocks import LogPlaces
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
        self._rules = rules
        self._windows = windows
        self._grace_ms = windows.grace_ms
        start_ms = watermark_ms if before_ms is None else before_ms
        self._clock = AppendClock(windows, None if start_ms == NEVER else start_ms)
        # Moments of a time that the ledger has closed count as told.
        until_ms = max(
            windows.archived_ms, NEVER if watermark_ms is None else watermark_ms - windows.grace_ms
        )
        closed = [None if until_ms == NEVER else grid.start_of(until_ms) for grid in rules.grids]
        self._latest = [
            LatestPositions(grid, rules.age_ms, windows.grace_ms, hash_plate, closed_ms)
            for grid, closed_ms in zip(rules.grids, closed, strict=True)
        ]

    def read(self, frame: Frame) -> list[Moment]:
        """The moments that are due by the watermark behind a frame. How the log is cut into frames
        changes nothing."""
        observed = self._clock.observe(frame)
        places = frame.places
        if places is None:
            raise ValueError("expected offsets, got a log without them")
        _, late = self._windows.late_by(frame.slot_end, observed.watermark_before_ms)
        rows = np.flatnonzero(~(late | observed.ahead | observed.rolled_over))
        rows = rows[np.argsort(frame.pings.message[rows], kind="stable")]
        of_rows = RowPlaces(
            places.offset[frame.pings.message[rows]], observed.watermark_before_ms[rows]
        )
        found: dict[int, Moment] = {}
        for latest in self._latest:
            # The first piece is empty: moments that a tick or refused pings have made due come
            # before the first row.
            for first, end in pairwise([0, 0, *latest.segments(of_rows.before_ms), rows.size]):
                before_ms = int(of_rows.before_ms[end]) if end < rows.size else self.watermark_ms
                watermark_ms = None if before_ms == NEVER else before_ms
                here = slice(first, end)
                of_piece = RowPlaces(of_rows.offset[here], of_rows.before_ms[here])
                for moment in latest.push(frame.pings, rows[here], watermark_ms, of_piece):
                    # A boundary of several grids holds the same in each.
                    found.setdefault(moment.time_ms, moment)
        return [found[time_ms] for time_ms in sorted(found)]

    def through_at(self, watermark_ms: int) -> int:
        return self._rules.through_at(watermark_ms - self._grace_ms)

    def first_needed(self) -> tuple[int, int] | None:
        """Offset of the first message that a later moment may need, and the watermark before it;
        None for none."""
        return min(
            (first for latest in self._latest if (first := latest.first_needed()) is not None),
            default=None,
        )

    @property
    def watermark_ms(self) -> int:
        """The watermark, Unix ms; NEVER at first. While a restart reads again, it is behind the
        checkpoint's."""
        return NEVER if self._clock.watermark_ms is None else self._clock.watermark_ms
