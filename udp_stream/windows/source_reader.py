"""A reader of one source partition: records in, closed slots and refusals out, and the frontier to go on from.

**The frontier** is all that a restart needs besides the log: the offset of the oldest ping in an open slot, the clock,
and up to where refusals were told. Reading again from there gives the same slots: what belongs to slots that were
closed by then is late by the remembered clock and skipped without a word; what belongs to open ones is counted again.

The reader does no I/O. Whoever drives it commits the frontier once everything that it closed is safely handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from udp_stream.pings.decoder import PingDecoder, Pings, Refusal, originals
from udp_stream.windows.clocks import AppendClock, Frame, LogPlaces, WindowRules
from udp_stream.windows.grid import SlotGrid, cells_of
from udp_stream.windows.open_slots import LateOrFull, Windows
from udp_stream.windows.slot_tables import SlotPings


@dataclass(frozen=True, slots=True)
class Frontier:
    """Go on at `offset`, with this clock, and tell refusals from `told` on."""

    offset: int
    clock_ms: int | None = None
    told: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, where its message stands in the partition, and the original bytes."""

    offset: int
    refusal: Refusal
    original: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What some records brought: slots closed, oldest first, refusals in order, and how many pings were counted."""

    closed: list[SlotPings]
    refused: list[Refused]
    pings: int


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """What all readers of a deployment share. `hashed` gives a plate's keyed hash."""

    decoder: PingDecoder
    windows: WindowRules
    grid: SlotGrid
    resolution: int
    hashed: Callable[[str], bytes]


class SourceReader:
    """The open slots of one source partition, and where it stands."""

    def __init__(self, rules: ReadingRules, start: Frontier) -> None:
        """Go on from a frontier."""
        self._rules = rules
        self._clock = AppendClock(rules.windows, start.clock_ms)
        self._windows = Windows(rules.windows, rules.hashed, self._clock)
        self._told = start.told
        self.next_offset = start.offset

    def take(self, messages: Sequence[bytes], places: LogPlaces) -> Taken:
        """The next messages of the partition, in order, and where they stand; those read before are skipped."""
        known = int(np.searchsorted(places.offset, self.next_offset))
        if known:
            messages, places = messages[known:], places.behind(known)
        if not messages:
            return Taken([], [], 0)
        pings, refusals = self._rules.decoder.decode(messages)
        start, end = self._rules.grid.place(pings.time_ms)
        cell = cells_of(pings.lat, pings.lon, self._rules.resolution)
        closed, unplaced = self._windows.push(Frame(pings, cell, start, end, places))
        refusals = [refusal for refusal in refusals if not places.tick[refusal.message]]
        refusals += [refusal_of(pings, one) for one in unplaced]
        self.next_offset = int(places.offset[-1]) + 1
        return Taken(closed, self._untold(messages, places, refusals), len(pings) - len(unplaced))

    def _untold(self, messages: Sequence[bytes], places: LogPlaces, refusals: list[Refusal]) -> list[Refused]:
        """The refusals that nobody was told of before, in order."""
        untold = [refusal for refusal in refusals if places.offset[refusal.message] >= self._told]
        untold.sort(key=lambda refusal: (refusal.message, refusal.position))
        return [
            Refused(int(places.offset[refusal.message]), refusal, data)
            for refusal, data in zip(untold, originals(messages, untold), strict=True)
        ]

    @property
    def through_ms(self) -> int | None:
        """Every slot that ends by then is closed for good; None before the first ping or tick."""
        return None if self._clock.now_ms is None else self.through_at(self._clock.now_ms)

    def through_at(self, clock_ms: int) -> int:
        """What would be closed if the clock stood there."""
        starts, _ = self._rules.grid.place(np.array([clock_ms - self._rules.windows.grace_ms]))
        return int(starts[0])

    def tick_would_close(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close any slot, be it an empty one."""
        through = self.through_ms
        return through is None or self.through_at(wall_ms - self._rules.windows.disorder_ms) > through

    @property
    def open_pings(self) -> int:
        """How many pings wait in open slots."""
        return self._windows.open_pings

    def frontier(self) -> Frontier:
        """Where to go on after losing everything; ask when what was closed and refused is safely handed on."""
        first = self._windows.first_open
        offset = self.next_offset if first is None else first
        return Frontier(offset, self._clock.now_ms, max(self._told, self.next_offset))


def refusal_of(pings: Pings, refused: LateOrFull) -> Refusal:
    """What a window refused, as a refusal of its message."""
    message, position = int(pings.message[refused.row]), int(pings.position[refused.row])
    return Refusal(message, position, refused.reason, "$.observationDateTime", refused.lag_ms)
