"""How far from UTC the times of a feed say that they are. Times are public: any run may look at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from udp_stream.pings.decode import NOT_IN_ARRAY, PingFormat, Pings
from udp_stream.pings.found_times import offset_minutes
from udp_stream.pings.json import FeedMapping, single_ping, trim, unwrap
from udp_stream.pings.times import EPOCHS

LOOKED_AT = 200
"""Times of a batch, from all over it."""


class SaidOffset(NamedTuple):
    """What a time says: minutes ahead of UTC; and the time, Unix ms.

    >>> SaidOffset(330, 1706159153000).minutes
    330
    """

    minutes: int
    at_ms: int


def said_offsets(
    messages: Sequence[bytes], pings: Pings, mapping: FeedMapping, ping_format: PingFormat
) -> list[SaidOffset]:
    """What the times of some of these pings say, which were read from these messages; none that say nothing, or of
    which nothing is read.

    >>> from udp_stream.pings.decode import PingDecoder, PingRules
    >>> from udp_stream.pings.json import JSON, PLAIN
    >>> one = b'{"license_plate": "A1", "observationDateTime": "2024-01-25T10:35:53+05:30", "speed": 12.5, "location":'
    >>> messages = [b"[" + one + b' {"type": "Point", "coordinates": [72.8, 21.1]}}]']
    >>> pings, _ = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON).decode(messages)
    >>> said_offsets(messages, pings, PLAIN.mapping, PLAIN.format)
    [SaidOffset(minutes=330, at_ms=1706159153000)]
    """
    if not ping_format.is_json or not mapping.reads_offsets or mapping.time_format in EPOCHS:
        return []
    rows = np.unique(np.linspace(0, len(pings) - 1, min(len(pings), LOOKED_AT)).astype(np.intp))
    found: list[SaidOffset] = []
    for row, piece in zip(rows.tolist(), _pieces(messages, pings, rows.tolist(), ping_format), strict=True):
        ping = single_ping(piece, mapping)
        minutes = None if ping is None else offset_minutes(ping.time)
        if minutes is not None:
            found.append(SaidOffset(minutes, int(pings.time_ms[row])))
    return found


def _pieces(messages: Sequence[bytes], pings: Pings, rows: Sequence[int], ping_format: PingFormat) -> Iterator[bytes]:
    """The bytes of each of these pings; a message is opened once for those that follow each other."""
    opened, text, pieces = -1, b"", None
    for row in rows:
        message, position = int(pings.message[row]), int(pings.position[row])
        if message != opened:
            opened, text = message, trim(messages[message])
            text = trim(unwrap(text)) if text.startswith(b'"') else text
            pieces = None if position == NOT_IN_ARRAY else ping_format.split(text)
        yield text if pieces is None else bytes(pieces[position])
