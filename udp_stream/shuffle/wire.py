"""What travels on the topic of parts, in bytes: parts from sources, counts to the planner, plans back.

One topic and one encoding: a shard's partition then holds everything that its releases follow from, in order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from udp_stream.planning.slot_plan import PlanPiece
from udp_stream.shuffle.count_chunks import Tallied, Tally
from udp_stream.shuffle.ping_chunks import Marker, Part

Message: TypeAlias = Part | Marker | Tally | Tallied | PlanPiece

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Its bytes: the same for equal messages."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """The message of some bytes; raises msgspec.DecodeError if they are none."""
    return _decoder.decode(data)
