"""Gathering: what several senders say of a slot, until each of them has closed it.

The same thing twice: a shard gathers parts from sources, the planner gathers counts from shards. A sender's pieces of a
slot are followed by its marker, which names their digest, counts them, and says up to when the sender has closed
everything. A slot is due once all have closed it, and is held from its first piece until it is done.

**What a sender says of a slot is what it was first closed with**, and nothing else: the pieces of the digest that its
first marker beyond the slot names, or nothing, if that names none. Senders die within a slot and are slow to leave, and
who comes after them may read the same log under other settings. Pieces of another digest, which nobody has closed, or
of a slot that was closed already, count for nothing. So pieces of two cuts are never mixed, what is left of one that
was given up holds up nobody, and whoever reads the log again, from wherever, gathers the same.

A marker stands behind its pieces: if some of them are missing then the log is damaged. That stops the reader, rather
than go on with a slot of which something is missing; unless it is to accept the loss.

The frontier of the log is where the oldest slot that is held begins, with what senders had closed *by then* and up to
when slots are done: whoever goes on from there sees the same again, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from udp_stream.errors import UdpStreamError

NOT_YET = -(2**62)
"""What a sender has closed before it has said anything; in frontiers too, so it is a number that messages can hold."""


class Piece(Protocol):
    """Part of what a sender says of a slot."""

    @property
    def slot_start(self) -> int:
        """Unix ms."""
        ...

    @property
    def slot_end(self) -> int:
        """Unix ms."""
        ...

    @property
    def sender(self) -> int:
        """Who says it, from 0."""
        ...

    @property
    def digest(self) -> bytes:
        """Of all its pieces of the slot: those of one digest belong together."""
        ...

    @property
    def number(self) -> int:
        """Which of these pieces, from 0."""
        ...


class Closing(Protocol):
    """A sender's marker: closed through `through_ms`; the slot that is named, if one is, with so many `parts` of this
    digest."""

    @property
    def sender(self) -> int:
        """Who says it, from 0."""
        ...

    @property
    def through_ms(self) -> int:
        """Unix ms."""
        ...

    @property
    def slot_start(self) -> int | None:
        """Unix ms."""
        ...

    @property
    def digest(self) -> bytes:
        """Of its pieces of that slot."""
        ...

    @property
    def parts(self) -> int:
        """How many pieces it has sent of that slot."""
        ...


P = TypeVar("P", bound=Piece)


class GatheringFrontier(msgspec.Struct, frozen=True, array_like=True):
    """Go on reading at `offset`, knowing what each sender had closed, and that slots are done that end by `done_ms`."""

    offset: int
    through_ms: tuple[int, ...] = ()
    done_ms: int = NOT_YET


@dataclass(slots=True)
class _Held:
    """`pieces` are known by (sender, digest, number); of senders that have closed the slot only what they closed it
    with. `missing`: how many there should be, of senders of which there are fewer."""

    end_ms: int
    frontier: GatheringFrontier
    pieces: dict[tuple[int, bytes, int], Any] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    gathered: bool = False

    def close(self, sender: int, digest: bytes | None) -> int:
        """Keep of a sender the pieces of this digest alone, and say how many; None: it says nothing of the slot."""
        self.pieces = {key: piece for key, piece in self.pieces.items() if key[0] != sender or key[1] == digest}
        return sum(key[0] == sender for key in self.pieces)


class Gathering(Generic[P]):
    """The slots of one log that are not done yet. It heeds pieces and markers of its own types and no other message."""

    def __init__(
        self,
        piece: type[P],
        marker: type[Closing],
        senders: int,
        start: GatheringFrontier | None = None,
        accept_loss: bool = False,
    ) -> None:
        """From the beginning, or from a frontier; senders that it does not know have closed nothing. `accept_loss`: a
        slot of which pieces are missing is what is there."""
        start = start or GatheringFrontier(0)
        known = start.through_ms
        if senders < max(1, len(known)):
            raise UdpStreamError(f"{piece.__name__}: expected at least {max(1, len(known))} senders, got {senders}")
        self._piece, self._marker, self._accept_loss = piece, marker, accept_loss
        self._through = (*known, *[NOT_YET] * (senders - len(known)))
        self._next = start.offset
        self._done_ms = start.done_ms
        self._held: dict[int, _Held] = {}

    @property
    def through_ms(self) -> int:
        """Up to when every sender has closed its slots."""
        return min(self._through)

    @property
    def next_offset(self) -> int:
        """Up to where the log is read."""
        return self._next

    def holds(self, start: int) -> bool:
        """Whether something has come of this slot, and it is not done."""
        return start in self._held

    def take(self, offset: int, message: object) -> None:
        """Take in the message at an offset; those before the frontier, and repeats, change nothing."""
        if offset < self._next:
            return
        if isinstance(message, self._piece):
            self._take_piece(offset, message)
        elif isinstance(message, self._marker):
            self._take_marker(message)
        self._next = offset + 1

    def _take_piece(self, offset: int, piece: P) -> None:
        self._require_known(piece.sender)
        if piece.slot_end <= max(self._done_ms, self._through[piece.sender]):
            return
        if piece.slot_start not in self._held:
            here = GatheringFrontier(offset, self._through)
            self._held[piece.slot_start] = _Held(piece.slot_end, here)
        self._held[piece.slot_start].pieces.setdefault((piece.sender, piece.digest, piece.number), piece)

    def _take_marker(self, marker: Closing) -> None:
        sender = marker.sender
        self._require_known(sender)
        before, through = self._through[sender], max(self._through[sender], marker.through_ms)
        self._through = (*self._through[:sender], through, *self._through[sender + 1 :])
        for start in [start for start, held in self._held.items() if before < held.end_ms <= through]:
            held, named = self._held[start], marker.slot_start == start
            found = held.close(sender, marker.digest if named else None)
            if named and found < marker.parts and not self._accept_loss:
                held.missing[sender] = marker.parts
            if held.end_ms <= self.through_ms and not held.pieces and not held.missing:
                del self._held[start]  # all have closed it with nothing

    def _require_known(self, sender: int) -> None:
        if sender >= len(self._through):
            name = self._piece.__name__
            raise UdpStreamError(f"{name}: expected senders 0 to {len(self._through) - 1}, got {sender}: start anew")

    def due(self) -> list[int]:
        """The starts of the slots that every sender has closed and that were not gathered yet, oldest first."""
        through = self.through_ms
        return [start for start, held in sorted(self._held.items()) if held.end_ms <= through and not held.gathered]

    def gather(self, start: int) -> list[P]:
        """The pieces of a due slot, by sender and number, once. UdpStreamError if some are missing."""
        held = self._held[start]
        if held.missing:
            name = self._piece.__name__
            raise UdpStreamError(
                f"{name}: slot {start}: pieces are missing of senders (and their numbers) {held.missing}"
            )
        pieces = [held.pieces[key] for key in sorted(held.pieces)]
        held.pieces, held.gathered = {}, True
        return pieces

    def done(self, start: int) -> None:
        """Forget a slot: what follows from it has reached all who need it."""
        self._done_ms = max(self._done_ms, self._held.pop(start).end_ms)

    def frontier(self) -> GatheringFrontier:
        """Where to go on after losing everything."""
        here = GatheringFrontier(self._next, self._through)
        first = min((held.frontier for held in self._held.values()), key=_offset, default=here)
        return GatheringFrontier(first.offset, first.through_ms, self._done_ms)


def _offset(frontier: GatheringFrontier) -> int:
    return frontier.offset
