"""A stage: work that is done once per slot when all senders have ended it. Barrier, work, output, in this order.

The planner is one: its barrier is over the counts of all shards, its work is to plan and charge, its output are the
plans. A stage behind publishing, over what shards have published, has the same three parts.

The barrier's checkpoint stays before a slot until its output is sent, or, where something else has to follow on that,
until it has been done. So a crash repeats the work, which must come to the same output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from udp_stream.shuffle.barrier import BarrierCheckpoint, Chunk, SlotBarrier

C = TypeVar("C", bound=Chunk)


class SlotStage(Generic[C]):
    """One stage of one partition: `due` slots are worked on, `worked` gives their output, `sent` lets go of them.

    >>> from udp_stream.shuffle.ping_chunks import PingChunk, PingsEnd, cut
    >>> from udp_stream.testing import seven_pings
    >>> stage = SlotStage(SlotBarrier(PingChunk, PingsEnd, senders=1))
    >>> for offset, message in enumerate(cut(seven_pings(), source=0, shards=1)):
    ...     stage.add(offset, message)
    >>> start, chunks = stage.due()
    >>> stage.worked(start)
    >>> stage.checkpoint().offset, stage.due()
    (0, None)
    >>> stage.sent()
    >>> stage.checkpoint().offset
    2
    """

    def __init__(self, barrier: SlotBarrier[C], is_followed: bool = False) -> None:
        """With a barrier at its checkpoint. If `is_followed`, it holds a slot until the caller says `done`."""
        self._barrier = barrier
        self._is_followed = is_followed
        self._worked: list[int] = []

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read."""
        return self._barrier.next_offset

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset; what the barrier does not know, and repeats, change nothing."""
        self._barrier.add(offset, message)

    def holds(self, start: int) -> bool:
        """Whether there is anything of the slot, and it is not done."""
        return self._barrier.holds(start)

    def due(self) -> tuple[int, Sequence[C]] | None:
        """The oldest slot that all senders have ended, with its chunks; each slot once."""
        for start in self._barrier.due()[:1]:
            return start, self._barrier.collect(start)
        return None

    def worked(self, start: int) -> None:
        """The slot's output is there, and about to be sent."""
        self._worked.append(start)

    def sent(self) -> None:
        """The output of every slot that was worked on is on the broker."""
        if not self._is_followed:
            for start in self._worked:
                self.done(start)
        self._worked.clear()

    def done(self, start: int) -> None:
        """Nothing more follows on this slot."""
        self._barrier.done(start)

    def checkpoint(self, done: int | None = None) -> BarrierCheckpoint:
        """Where to resume after a crash; with `done`, once that slot is done, too."""
        return self._barrier.checkpoint(done)
