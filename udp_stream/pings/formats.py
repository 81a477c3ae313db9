"""Ping format: how the bytes of messages spell pings. JSON is one (`json_reader`); others may be binary.

A format gives fields of the right type, and says why a piece is no ping. It judges no value: limits, box and
speeds are `PingDecoder`'s, the same for every format. So a format that is wrong can lose pings or invent
them, but it cannot get a speed past the bound that the noise is scaled to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from udp_stream.pings.refusals import Refusal

NOT_IN_ARRAY = -1
"""The position of a ping that is a message by itself."""


class Point(Struct, array_like=True, gc=False):
    """Degrees in GeoJSON's order; an altitude, or anything else behind the first two, is skipped.

    >>> from msgspec import json
    >>> json.decode(b"[72.8, 21.1, 12.0]", type=Point)
    Point(lon=72.8, lat=21.1)
    """

    lon: float
    lat: float


class Location(Struct, gc=False):
    """A GeoJSON point; `type` may be left out.

    >>> from msgspec import json
    >>> json.encode(Location(Point(72.8, 21.1)))
    b'{"coordinates":[72.8,21.1],"type":"Point"}'
    """

    coordinates: Point
    type: Literal["Point"] = "Point"


class WirePing(Struct, gc=False):
    """A ping whose fields have the right types; their values are not checked yet.

    `observationDateTime` is a text that `times` reads; `speed` is in the source's unit.

    >>> WirePing("A1", "2022-01-01T10:10:35+05:30", Location(Point(72.8, 21.1)), 12.5).location.coordinates.lat
    21.1
    """

    license_plate: str
    observationDateTime: str  # noqa: N815  the feed's name
    location: Location
    speed: float


@dataclass(frozen=True, slots=True, eq=False)
class WireColumns:
    """The same as columns of one length, for formats that have them without making an object of each ping.

    `time_ms`, `time_status`: as `times.parse_timestamps` gives them. `speed` is in the source's unit.

    >>> none = np.zeros(0)
    >>> len(WireColumns([], none.astype(np.int64), none.astype(np.uint8), none, none, none).plates)
    0
    """

    plates: Sequence[str]
    time_ms: NDArray[np.int64]
    time_status: NDArray[np.uint8]
    lon: NDArray[np.float64]
    lat: NDArray[np.float64]
    speed: NDArray[np.float64]


class FieldPaths(NamedTuple):
    """Where a format has each field, as JSON paths: what a refusal names.

    >>> FieldPaths().longitude
    '$.location.coordinates[0]'
    """

    plate: str = "$.license_plate"
    time: str = "$.observationDateTime"
    position: str = "$.location.coordinates"
    longitude: str = "$.location.coordinates[0]"
    latitude: str = "$.location.coordinates[1]"
    speed: str = "$.speed"


PLAIN_PATHS = FieldPaths()
"""Of the contract's own form."""


@dataclass(frozen=True, slots=True, eq=False)
class WireBatch:
    """The pings of a batch in order, where each of them comes from, and what was refused.

    `message`: for each ping the index of its message in the batch. `position`: its place there, NOT_IN_ARRAY
    if it is a message by itself. `refusals` are in the order of messages and positions. A format gives the pings one
    by one, or all of them as `columns`. `notes`: what a person should know of how pings were read, such as the field
    that plates are from, and of how many.

    >>> of_messages = np.array([0, 1, 1], np.int32), np.array([NOT_IN_ARRAY, 0, 1], np.int32)
    >>> three = WireBatch([WirePing("A1", "now", Location(Point(0, 0)), 5.0)] * 3, *of_messages, [])
    >>> three.pings[2].speed, three.message[2], three.position[2]
    (5.0, np.int32(1), np.int32(1))
    """

    pings: Sequence[WirePing]
    message: NDArray[np.int32]
    position: NDArray[np.int32]
    refusals: list[Refusal]
    columns: WireColumns | None = None
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PingFormat:
    """Two functions, both pure, and what is known of the format.

    `read(messages, max_message_bytes, max_pings_per_message)`: the pings of a batch, and a refusal for every
    piece that is none. It raises nothing, whatever the bytes.

    `split(message)`: the bytes of each ping of a message that `read` could open, by position, for what is
    kept of refused pings; None if the message is to be kept whole.

    `paths`: where it has each field. `is_json`: its messages are JSON, and go into topics as they are.

    >>> from udp_stream.pings.json_reader import JSON
    >>> JSON.read([b"{}"], 1000, 10).refusals[0].path, [bytes(ping) for ping in JSON.split(b"[1, {}]")]
    ('$.license_plate', [b'1', b'{}'])
    """

    read: Callable[[Sequence[bytes], int, int], WireBatch]
    split: Callable[[bytes], Sequence[bytes | Raw] | None]
    paths: FieldPaths = PLAIN_PATHS
    is_json: bool = False
