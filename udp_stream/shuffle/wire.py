"""The messages of the shuffle topic, in bytes: pings from sources, counts to the planner, plans back; norms of plates
to the planner and factors back, where a plate's HATs share one clip; what is released, where plans follow from it;
positions from sources, where queries are asked.

One topic and one encoding, so a shard's partition holds everything that its releases follow from, in order.

Tags end in a version: change it with the layout. A worker that meets a tag it does not know stops.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from udp_stream.planning.slot_plan import PlanChunk
from udp_stream.shuffle.count_chunks import CountChunk, CountsEnd, Released
from udp_stream.shuffle.norm_chunks import FactorChunk, NormChunk
from udp_stream.shuffle.ping_chunks import PingChunk, PingsEnd
from udp_stream.shuffle.position_chunks import PositionChunk, PositionsEnd

Pings: TypeAlias = PingChunk | PingsEnd | PositionChunk | PositionsEnd
Message: TypeAlias = Pings | CountChunk | CountsEnd | PlanChunk | NormChunk | FactorChunk | Released

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """The message as bytes; equal messages give equal bytes.

    >>> encode_message(CountsEnd(shard=1, through_ms=3_600_000)) == encode_message(CountsEnd(1, 3_600_000))
    True
    """
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """Undo `encode_message`; raises msgspec.DecodeError for any other bytes.

    >>> decode_message(encode_message(CountsEnd(shard=1, through_ms=3_600_000)))
    CountsEnd(shard=1, through_ms=3600000, slot_start=None, digest=b'', chunks=0)
    """
    return _decoder.decode(data)
