"""What is noted with a commit of parts: the frontiers of the shard and, on partition 0, of the planner; on which ledger
the worker works, and how far that had come.

Brokers take 4096 bytes of metadata, and 256 sources and 256 shards may each have closed slots of their own: so it is
packed and compressed (at worst some 2.6 kB).
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import msgspec

from udp_stream.ledger.port import Mark
from udp_stream.shuffle.barrier import GatheringFrontier


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


class _Noted(msgspec.Struct, frozen=True, array_like=True):
    shard: GatheringFrontier
    planner: GatheringFrontier | None = None
    binding: str = ""
    mark: Mark | None = None


class Noted(NamedTuple):
    """What a commit says: the frontiers, `binding.py`'s text (None if somebody has set offsets by hand), the mark."""

    frontiers: PartsNote
    binding: str | None
    mark: Mark | None


def encode_note(note: PartsNote, binding: str, mark: Mark | None) -> str:
    """The metadata of a commit."""
    noted = _Noted(note.shard, note.planner, binding, mark)
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(noted), 9)).decode()


def decode_note(metadata: str, offset: int) -> Noted:
    """Undo `encode_note`; whoever sets offsets by hand notes nothing with them."""
    if not metadata:
        return Noted(PartsNote.at(offset), None, None)
    noted = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(metadata)), type=_Noted)
    return Noted(PartsNote(noted.shard, noted.planner), noted.binding, noted.mark)
