"""Slot barrier: hold the chunks of a slot until every sender has ended it.

A shard waits for the pings of all source partitions, and for their positions where queries are asked; the planner waits
for the counts of all shards.

A sender cuts what it knows of a slot into numbered chunks and sends an end marker behind them (`wire.py`). The marker
names the digest of those chunks, how many there are, and the time up to which the sender has closed everything.

1. A slot is due once every sender has closed it.
2. Of each sender, only the chunks of its first end marker count. A sender that died halfway, or a successor that
   cut the same log under other settings, leaves chunks with another digest; those are dropped.
3. The log keeps order, so a marker whose chunks are missing means a damaged log: raise, unless `accept_loss`. That goes
   for a reader that begins in the middle, too: the log has lost what was before.
4. A repeated chunk or marker changes nothing.
5. If an end marker is of another kind, every slot up to it is skipped. It counts as done, without an outcome, because
   its data is incomplete.

The checkpoint is the offset of the first chunk of the oldest slot held, with what each sender had closed by then, and
the time up to which slots are done. Reading again from a checkpoint gives the same slots, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from udp_stream.errors import DependencyUnavailable, UdpStreamError
from udp_stream.shuffle.wire import Chunk, EndMarker

NOT_YET = -(2**62)
"""The closing time of a sender that has sent no end marker. Checkpoints hold it too, so it fits in a message."""


C = TypeVar("C", bound=Chunk)


class BarrierCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Resume reading at `offset`, with what each sender had closed by then; slots that end by `done_ms` are done.

    >>> BarrierCheckpoint(0).done_ms == NOT_YET
    True
    """

    offset: int
    through_ms: tuple[int, ...] = ()
    done_ms: int = NOT_YET


@dataclass(slots=True)
class _HeldSlot:
    """A slot that is not done. `chunks` are keyed by (sender, digest, number).

    Once a sender has closed the slot, only the chunks it closed the slot with are left. `missing` has, for each sender
    with too few of them, how many there should be.
    """

    end_ms: int
    checkpoint: BarrierCheckpoint
    chunks: dict[tuple[int, bytes, int], Any] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    collected: bool = False

    def close(self, sender: int, digest: bytes | None) -> int:
        """Keep only the sender's chunks of this digest (None: keep none of them), and return how many there are."""
        self.chunks = {key: chunk for key, chunk in self.chunks.items() if key[0] != sender or key[1] == digest}
        return sum(key[0] == sender for key in self.chunks)


class SlotBarrier(Generic[C]):
    """The slots of one log that are not done yet. It ignores messages of other types than its chunk and its marker.

    >>> from udp_stream.shuffle.wire import PingChunk, PingsEnd, cut_pings
    >>> from udp_stream.testing import seven_pings
    >>> barrier = SlotBarrier(PingChunk, PingsEnd, senders=1)
    >>> chunk, end = cut_pings(seven_pings(), source=0, shards=1)
    >>> barrier.add(0, chunk)
    >>> barrier.due(), barrier.checkpoint().offset
    ([], 0)
    >>> barrier.add(1, end)
    >>> (start,) = barrier.due()
    >>> barrier.collect(start) == [chunk], barrier.checkpoint().offset, barrier.checkpoint(done=start).offset
    (True, 0, 2)
    """

    def __init__(
        self,
        chunk: type[C],
        marker: type[EndMarker],
        senders: int,
        start: BarrierCheckpoint | None = None,
        accept_loss: bool = False,
        skips: Callable[[EndMarker], bool] | None = None,
    ) -> None:
        """From the beginning, or from a checkpoint. Senders that the checkpoint does not know have closed nothing.

        With `accept_loss`, a slot whose chunks are missing consists of those that are there. `skips` says of a marker
        whether it is of another kind.
        """
        start = start or BarrierCheckpoint(0)
        known = start.through_ms
        if senders < max(1, len(known)):
            raise UdpStreamError(f"{chunk.__name__}: expected at least {max(1, len(known))} senders, got {senders}")
        self._chunk, self._marker, self._accept_loss = chunk, marker, accept_loss
        self._through = (*known, *[NOT_YET] * (senders - len(known)))
        self._skips = skips
        self._next = start.offset
        self._done_ms = start.done_ms
        self._held: dict[int, _HeldSlot] = {}

    @property
    def through_ms(self) -> int:
        """Every sender has closed all slots that end by this time."""
        return min(self._through)

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read."""
        return self._next

    @property
    def clear_ms(self) -> int:
        """Every slot that ends by this time is done, or no sender had anything of it."""
        # Up to the start of the oldest slot held: what ends by then came before it.
        return max(self._done_ms, min([self.through_ms, *self._held]))

    def holds(self, start: int) -> bool:
        """Whether a chunk of this slot has arrived and the slot is not done."""
        return start in self._held

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset. Messages before the checkpoint, and repeats, change nothing."""
        if offset < self._next:
            return
        if isinstance(message, self._chunk):
            self._add_chunk(offset, message)
        elif isinstance(message, self._marker):
            self._add_marker(message)
        self._next = offset + 1

    def _add_chunk(self, offset: int, chunk: C) -> None:
        self._require_known(chunk.sender)
        # The first end marker has decided which chunks count: a late one may neither join them nor open the slot again.
        if chunk.slot_end <= max(self._done_ms, self._through[chunk.sender]):
            return
        if chunk.slot_start not in self._held:
            # With this chunk still unread: a reader that resumes here meets it again, and every marker that follows it.
            here = BarrierCheckpoint(offset, self._through)
            self._held[chunk.slot_start] = _HeldSlot(chunk.slot_end, here)
        self._held[chunk.slot_start].chunks.setdefault((chunk.sender, chunk.digest, chunk.number), chunk)

    def _add_marker(self, marker: EndMarker) -> None:
        self._require_known(marker.sender)
        if self._skips is not None and self._skips(marker):
            self._skip(marker.through_ms)
        self._hold_if_all_are_missing(marker)
        for start in self._advance(marker):
            self._end(start, marker)
            self._forget_if_empty(start)

    def _hold_if_all_are_missing(self, marker: EndMarker) -> None:
        """A slot that is said to have chunks, and of which there is none: held, so that it is not passed over. It ends
        when the marker that names it says so."""
        start, end_ms = marker.slot_start, marker.through_ms
        is_first = end_ms > max(self._done_ms, self._through[marker.sender])
        if start is not None and marker.chunks and is_first and start not in self._held and not self._accept_loss:
            self._held[start] = _HeldSlot(end_ms, BarrierCheckpoint(self._next, self._through))

    def _skip(self, through_ms: int) -> None:
        """Every slot up to then is done without an outcome, but one whose outcome is under way."""
        self._done_ms = max(self._done_ms, through_ms)
        self._held = {start: held for start, held in self._held.items() if held.collected or held.end_ms > through_ms}

    def _advance(self, marker: EndMarker) -> list[int]:
        """Move the sender's closing time, never back; the slots held that this closes."""
        # A successor that resumes earlier closes earlier slots again. Those were ended by the first marker.
        before, through = self._through[marker.sender], max(self._through[marker.sender], marker.through_ms)
        self._through = (*self._through[: marker.sender], through, *self._through[marker.sender + 1 :])
        return [start for start, held in self._held.items() if before < held.end_ms <= through]

    def _end(self, start: int, marker: EndMarker) -> None:
        """The sender has ended the slot: with the chunks that the marker names, or with none if it names another."""
        held, is_named = self._held[start], marker.slot_start == start
        found = held.close(marker.sender, marker.digest if is_named else None)
        if is_named and found < marker.chunks and not self._accept_loss:
            held.missing[marker.sender] = marker.chunks

    def _forget_if_empty(self, start: int) -> None:
        """Every sender has closed it without chunks: nothing waits for it."""
        held = self._held[start]
        if held.end_ms <= self.through_ms and not held.chunks and not held.missing:
            del self._held[start]

    def _require_known(self, sender: int) -> None:
        if sender >= len(self._through):
            name = self._chunk.__name__
            raise UdpStreamError(f"{name}: expected senders 0 to {len(self._through) - 1}, got {sender}: start anew")

    def due(self) -> list[int]:
        """The starts of the slots that every sender has closed and that were not collected yet, oldest first."""
        through = self.through_ms
        return [start for start, held in sorted(self._held.items()) if held.end_ms <= through and not held.collected]

    def collect(self, start: int) -> list[C]:
        """The chunks of a due slot, by sender and number, once. DependencyUnavailable if some are missing."""
        held = self._held[start]
        if held.missing:
            raise DependencyUnavailable(
                f"{self._chunk.__name__}: slot {start}: chunks are missing; senders that sent more than is there, with "
                f"how many: {held.missing}. `udp-stream worker --accept-loss` continues without them"
            )
        chunks = [held.chunks[key] for key in sorted(held.chunks)]
        # Still held: the checkpoint stays before the slot until its outcome is delivered.
        held.chunks, held.collected = {}, True
        return chunks

    def done(self, start: int) -> None:
        """Forget a slot: its outcome has been delivered."""
        # Slots that were skipped meanwhile may have moved it further.
        self._done_ms = max(self._done_ms, self._held.pop(start).end_ms)

    def checkpoint(self, done: int | None = None) -> BarrierCheckpoint:
        """Where to resume after a crash; with `done`, once that slot is done, too."""
        here = BarrierCheckpoint(self._next, self._through)
        # A reader resumes at one offset, so the oldest chunk that is still needed decides. Chunks of slots that are
        # done may follow it: `done_ms` drops them when they are read again.
        held = (slot.checkpoint for start, slot in self._held.items() if start != done)
        first = min(held, key=_offset, default=here)
        done_ms = self._done_ms if done is None else max(self._done_ms, self._held[done].end_ms)
        return BarrierCheckpoint(first.offset, first.through_ms, done_ms)


def _offset(checkpoint: BarrierCheckpoint) -> int:
    return checkpoint.offset
