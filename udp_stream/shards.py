"""A shard: collects the parts of closed slots until every source has closed them, then hands them on to be released.

A slot is due when every source partition says that it has closed through the slot's end. Markers follow the parts that
they count, so a due slot of which parts are missing means that the log of parts is damaged: that stops the shard,
rather than release a slot of which something is missing.

The frontier of the log of parts is where the oldest unreleased slot begins, with what each source had closed by then:
whoever goes on from there holds the same again. What is released already is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from udp_stream.errors import UdpStreamError
from udp_stream.parts import Marker, Part, merge
from udp_stream.slots import SlotPings

NOT_YET = -(2**62)
"""What a source has closed before it has said anything; in the frontier too, so it is a number that JSON can hold."""


@dataclass(frozen=True, slots=True)
class ShardFrontier:
    """Go on reading parts at `offset`, knowing what each source had closed (Unix ms)."""

    offset: int
    through_ms: tuple[int, ...]


@dataclass(slots=True)
class _Waiting:
    end_ms: int
    first: int
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)


class Shard:
    """The slots of one shard that are not released yet."""

    def __init__(self, sources: int, start: ShardFrontier | None = None) -> None:
        """From the beginning, or from a frontier; sources that it does not know have closed nothing."""
        known = () if start is None else start.through_ms
        if sources < max(1, len(known)):
            raise UdpStreamError(f"expected at least {max(1, len(known))} source partitions, got {sources}")
        self._through = [*known, *[NOT_YET] * (sources - len(known))]
        self._next = 0 if start is None else start.offset
        self._released = min(self._through)
        self._waiting: dict[int, _Waiting] = {}

    @property
    def waiting(self) -> int:
        """How many slots are held."""
        return len(self._waiting)

    def take(self, offset: int, message: Part | Marker) -> None:
        """Take in the message at an offset; those before the frontier, and repeats, change nothing."""
        if offset < self._next:
            return
        self._next = offset + 1
        if message.source >= len(self._through):
            raise UdpStreamError(
                f"a part of source partition {message.source} of {len(self._through)}: start the workers anew"
            )
        if isinstance(message, Part):
            if message.slot_end > self._released:
                slot = self._waiting.setdefault(message.slot_start, _Waiting(message.slot_end, offset))
                slot.parts.setdefault((message.source, message.number), message)
            return
        self._through[message.source] = max(self._through[message.source], message.through_ms)
        if message.slot_start in self._waiting:
            self._waiting[message.slot_start].counted[message.source] = message.parts

    def due(self) -> list[int]:
        """The starts of the slots that every source has closed, oldest first."""
        through = min(self._through)
        return [start for start, slot in sorted(self._waiting.items()) if slot.end_ms <= through]

    def slot(self, start: int) -> SlotPings:
        """The pings of a due slot, all sources together. UdpStreamError if some of its parts never came."""
        slot = self._waiting[start]
        held = dict.fromkeys(slot.counted, 0)
        for source, _ in slot.parts:
            held[source] = held.get(source, 0) + 1
        if held != slot.counted:
            missing = {source: slot.counted.get(source) for source in held if held[source] != slot.counted.get(source)}
            raise UdpStreamError(f"slot {start}: parts are missing of the sources (and their numbers) {missing}")
        return merge([slot.parts[key] for key in sorted(slot.parts)])

    def released(self, start: int) -> None:
        """Forget a slot: its releases have reached their readers."""
        self._released = max(self._released, self._waiting.pop(start).end_ms)

    def frontier(self) -> ShardFrontier:
        """Where to go on after losing everything; ask when no slot is due."""
        first = min((slot.first for slot in self._waiting.values()), default=self._next)
        return ShardFrontier(first, tuple(self._through))

    def through_ms(self) -> Sequence[int]:
        """What each source has closed."""
        return tuple(self._through)
