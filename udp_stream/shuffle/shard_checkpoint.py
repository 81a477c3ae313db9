"""Where to resume a partition of the shuffle topic: its shard, and on partition 0 the planner."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from udp_stream.shuffle.barrier import BarrierCheckpoint


class ShardCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where to resume one partition of the shuffle topic.

    >>> ShardCheckpoint(BarrierCheckpoint(9), planner=BarrierCheckpoint(4)).offset, ShardCheckpoint.at(7).offset
    (4, 7)
    """

    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    moments: BarrierCheckpoint | None = None

    @classmethod
    def at(cls, offset: int) -> ShardCheckpoint:
        """From this offset on, with no knowledge of what is before it."""
        return cls(BarrierCheckpoint(offset), BarrierCheckpoint(offset), BarrierCheckpoint(offset))

    @property
    def offset(self) -> int:
        """Where to resume reading. Shard, planner and queries each skip what is before their own checkpoint."""
        return min(one.offset for one in (self.shard, self.planner, self.moments) if one is not None)

    @property
    def read_to(self) -> int:
        """What is before this offset was read, as far as the checkpoint tells: what it still needs may lie before."""
        return max(one.offset for one in (self.shard, self.planner, self.moments) if one is not None)

    def again_from(self, offset: int) -> ShardCheckpoint:
        """The same, of a log that is read again from this offset on: what is done stays done.

        >>> ShardCheckpoint(BarrierCheckpoint(9, (3_600_000,), 7_200_000)).again_from(2).shard
        BarrierCheckpoint(offset=2, through_ms=(3600000,), done_ms=7200000)
        """
        planner, moments = (one and replace(one, offset=offset) for one in (self.planner, self.moments))
        return ShardCheckpoint(replace(self.shard, offset=offset), planner, moments)
