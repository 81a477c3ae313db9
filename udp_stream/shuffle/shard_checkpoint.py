"""Where to resume a partition of the shuffle topic: its shard, and on partition 0 the planner."""

from __future__ import annotations

import msgspec

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
