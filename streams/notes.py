"""What is noted with a commit of parts: the frontiers of the shard and, on partition 0, of the planner.

Brokers take 4096 bytes of metadata, and 256 sources and 256 shards may each have closed slots of their own: so it is
packed and compressed (at worst some 2.5 kB).
"""

from __future__ import annotations

import base64
import zlib

import msgspec

from udp_stream.gathering import GatheringFrontier


class PartsNote(msgspec.Struct, frozen=True, array_like=True):
    """The frontiers of one partition of parts."""

    shard: GatheringFrontier
    planner: GatheringFrontier | None = None

    @classmethod
    def at(cls, offset: int) -> PartsNote:
        """From there on, knowing nothing of what was before."""
        return cls(GatheringFrontier(offset), GatheringFrontier(offset))

    @property
    def offset(self) -> int:
        """Where to go on reading: each skips what is before its own frontier."""
        return self.shard.offset if self.planner is None else min(self.shard.offset, self.planner.offset)


def encode_note(note: PartsNote) -> str:
    """The metadata of a commit."""
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(note), 9)).decode()


def decode_note(metadata: str, offset: int) -> PartsNote:
    """Undo `encode_note`; whoever sets offsets by hand notes nothing with them."""
    if not metadata:
        return PartsNote.at(offset)
    return msgspec.msgpack.decode(zlib.decompress(base64.b64decode(metadata)), type=PartsNote)
