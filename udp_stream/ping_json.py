"""Messages as they arrive, bytes of JSON, to one `WirePing` a ping, and refusals for what is none.

A message is one ping, an array of pings, or an object with `results`, an array of pings, and no `license_plate`; or a
JSON string that holds one of these, unwrapped once. A byte order mark and white space around it are tolerated.

There are two readers. The quick one is msgspec's typed decoder: it takes a whole batch in one pass and knows only yes
or no. What it cannot take is opened by hand, piece by piece, in `_read_carefully`, which decides and knows why. So a
ping costs 0.6 us when all is well and some 5 us when not, and one bad ping costs its message nothing else.

Of fields given twice the last counts. Fields that we do not know are skipped, their text not checked beyond JSON's
grammar. JSON nested deeper than the interpreter's recursion limit (about 1,000 levels, less what the caller has used)
cannot be read and is refused as not JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType
from numpy.typing import NDArray

from udp_stream.ping_refusals import Reason, Refusal

NOT_IN_ARRAY = -1
"""The position of a ping that is a message by itself."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # all that msgspec raises on bad bytes
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"


class Point(Struct, array_like=True, gc=False):
    """GeoJSON's order; an altitude, or anything else behind the first two, is skipped."""

    lon: float
    lat: float


class Location(Struct, gc=False):
    """A GeoJSON point; `type` may be left out."""

    coordinates: Point
    type: Literal["Point"] = "Point"


class WirePing(Struct, gc=False):
    """A ping whose fields have the right JSON types; their values are not checked yet.

    `results` makes an envelope fail at once here instead of after a look at all of its pings.
    """

    license_plate: str
    observationDateTime: str  # noqa: N815  the feed's name
    location: Location
    speed: float
    results: UnsetType = UNSET


class _Envelope(Struct, gc=False):
    results: list[WirePing]
    license_plate: UnsetType = UNSET


class _LooseLocation(Struct, gc=False):
    coordinates: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET


class _LooseObject(Struct, gc=False):
    """Any JSON object: a ping with its faults, or an envelope."""

    license_plate: Raw | UnsetType = UNSET
    observationDateTime: Raw | UnsetType = UNSET  # noqa: N815  the feed's name
    location: Raw | UnsetType = UNSET
    speed: Raw | UnsetType = UNSET
    results: Raw | UnsetType = UNSET


_decode_ping = msgspec.json.Decoder(WirePing).decode
_decode_pings = msgspec.json.Decoder(list[WirePing]).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_object = msgspec.json.Decoder(_LooseObject).decode
_decode_location = msgspec.json.Decoder(_LooseLocation).decode
_split_array = msgspec.json.Decoder(list[Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode


class _Fault(Exception):  # noqa: N818  never leaves this file
    """Why the careful reader gave up: a reason and a path."""

    def __init__(self, reason: Reason, path: str) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


@dataclass(frozen=True, slots=True, eq=False)
class WireBatch:
    """The pings of a batch in order; for each the index of its message and its position there; and what was refused."""

    pings: list[WirePing]
    message: NDArray[np.int32]
    position: NDArray[np.int32]
    refusals: list[Refusal]


def read_batch(messages: Sequence[bytes], max_message_bytes: int, max_pings_per_message: int) -> WireBatch:
    """The pings of a batch of messages; raises nothing, whatever the bytes.

    >>> batch = read_batch([b"[]", b'{"license_plate": 7}', b"?"], 1000, 10)
    >>> [(refusal.message, refusal.reason.value, refusal.path) for refusal in batch.refusals]
    [(1, 'wrong_type', '$.license_plate'), (2, 'not_json', '$')]
    """
    pings: list[WirePing] = []
    places = _Places()
    refusals: list[Refusal] = []
    if max(map(len, messages), default=0) > max_message_bytes:
        admissible: Sequence[bytes] = [text if len(text) <= max_message_bytes else b"" for text in messages]
    else:
        admissible = messages
    rest = iter(admissible)
    index = 0
    while index < len(messages):
        before = len(pings)
        try:
            pings.extend(map(_decode_ping, rest))  # what was decoded before an exception stays in the list
        except _UNREADABLE:
            pass
        index += places.add_whole_messages(index, len(pings) - before)
        if index == len(messages):
            break
        try:
            if len(messages[index]) > max_message_bytes:
                raise _Fault(Reason.OVERSIZED_MESSAGE, "$")
            opened, positions = _open(index, admissible[index], max_pings_per_message, refusals)
        except _Fault as fault:
            refusals.append(Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path))
        else:
            pings.extend(opened)
            places.add(index, positions)
        index += 1
    return WireBatch(pings, places.messages(), places.positions(), refusals)
