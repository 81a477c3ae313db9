"""What is gone from a log: deleted before it was read, or lost by its broker after it was.

A consumer whose next record is gone goes on with the first one that is left, and says nothing. So a partition is looked
at when it becomes ours, and whenever what comes next is not the record that was to come.

Retention may be shorter than the time that a worker was behind. And a log may end before what was read of it: its
broker has lost the end of it, or it was made anew and the group's commits were kept. New records then have offsets that
a reader would take for read. So a partition's end is looked at when it becomes ours, and whenever the broker is asked
for it (`offsets.py`). Where the log has grown further meanwhile, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from faust.types import TP

from streams.offsets import Offsets, shortened
from udp_stream.errors import DependencyUnavailable


class Needed:
    """What is still needed of the partitions of one topic has to be there, unless `accept_loss`.

    >>> Needed(None, "pings were deleted", accept_loss=True).require(TP("pings", 0), first=9, offset=7)
    >>> Needed(None, "pings were deleted", accept_loss=False).require(TP("pings", 0), first=9, offset=7)
    Traceback (most recent call last):
    udp_stream.errors.DependencyUnavailable: pings[0] begins at offset 9, but is still needed from 7 on: pings were ...
    """

    def __init__(self, offsets: Offsets, lost: str, accept_loss: bool) -> None:
        """`lost`: what it means that something is gone, in words."""
        self._offsets, self._lost, self._accept_loss = offsets, lost, accept_loss
        self._goes_back = False

    def again_from(self, tp: TP, first: int, end: int, offset: int, read_to: int) -> int | None:
        """Where to read the partition again, with what is known of it, if it ends before what was read: at its first
        record, as the consumer does. None if it has all from `offset` on. DependencyUnavailable unless `accept_loss`.

        >>> needed = Needed(None, "pings were deleted", accept_loss=True)
        >>> needed.again_from(TP("pings", 0), 0, end=9, offset=7, read_to=9)
        >>> needed.again_from(TP("pings", 0), 0, end=9, offset=12, read_to=15)
        0
        """
        self.require(tp, first, offset)
        if end >= read_to:
            return None
        if not self._accept_loss:
            raise shortened(tp, end, read_to)
        self._goes_back = True
        return first

    async def go_back(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Have the consumer read what `again_from` has said, if it has: it goes by commits."""
        if self._goes_back:
            self._goes_back = False
            await commit()
            await self._offsets.seek()

    def require(self, tp: TP, first: int, offset: int) -> None:
        """DependencyUnavailable if the partition begins, at `first`, behind this offset."""
        if first > offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {offset} on: "
                f"{self._lost}. `udp-stream worker --accept-loss` continues without them"
            )

    async def require_before(self, records: Sequence[Any], next_offset: int) -> None:
        """The same, for the records from `next_offset` up to these, which have come instead."""
        # The broker is asked only where there is a gap. There may be one without a loss: offsets need not be dense.
        if records[0].offset > next_offset and not self._accept_loss:
            tp = TP(records[0].topic, records[0].partition)
            self.require(tp, (await self._offsets.first({tp}))[tp], next_offset)
