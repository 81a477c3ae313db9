"""The metadata of a commit on the shuffle topic: the checkpoint of the shard, on partition 0 of the planner, and of
queries where they are asked; which ledger the worker uses, and the ledger's high-water mark.

Brokers take 4096 bytes of metadata, and 256 sources and 256 shards may each have closed slots of their own. So it is
packed and compressed (2.9 kB at worst). What sources have closed of moments is written as how far that is from what
they have closed of slots, which is nearly the same for all of them.
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import msgspec

from streams.headers import other_version
from udp_stream.ledger.port import Mark
from udp_stream.shuffle.barrier import BarrierCheckpoint
from udp_stream.shuffle.protocol import ShardCheckpoint


class _Metadata(msgspec.Struct, frozen=True, array_like=True):
    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    binding: str = ""
    mark: Mark | None = None
    moments: BarrierCheckpoint | None = None


class ShardCommit(NamedTuple):
    """A commit's metadata; `binding` is the text of `binding.py`, None if the offsets were set by hand."""

    checkpoint: ShardCheckpoint
    binding: str | None
    mark: Mark | None


def encode_checkpoint(checkpoint: ShardCheckpoint, binding: str, mark: Mark | None) -> str:
    """The metadata of a commit."""
    moments = _shifted(checkpoint.moments, checkpoint.shard, -1)
    found = _Metadata(checkpoint.shard, checkpoint.planner, binding, mark, moments)
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(found), 9)).decode()


def decode_checkpoint(metadata: str, offset: int, name: str = "the commit") -> ShardCommit:
    """Undo `encode_checkpoint`. Offsets that were set by hand come without metadata. ConfigError, which names the
    commit, for anything else."""
    if not metadata:
        return ShardCommit(ShardCheckpoint.at(offset), None, None)
    try:
        found = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(metadata)), type=_Metadata)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise other_version(name) from error
    checkpoint = ShardCheckpoint(found.shard, found.planner, _shifted(found.moments, found.shard, 1))
    return ShardCommit(checkpoint, found.binding, found.mark)


def _shifted(moments: BarrierCheckpoint | None, shard: BarrierCheckpoint, sign: int) -> BarrierCheckpoint | None:
    """The times up to which sources have closed moments, plus or minus those for slots, where there are any."""
    if moments is None:
        return None
    others = (*shard.through_ms, *[0] * len(moments.through_ms))
    through_ms = tuple(ms + sign * other for ms, other in zip(moments.through_ms, others, strict=False))
    return BarrierCheckpoint(moments.offset, through_ms, moments.done_ms)
