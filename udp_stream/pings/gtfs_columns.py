"""Vehicles of a GTFS-realtime message as columns, read from its bytes.

Most entities are plain: a vehicle with a plate, a time, a place and a speed, each given once. They are read here, all
at once, at 1 us a vehicle instead of 3 us. The others are read one by one from what `protobuf` has made of them
(`gtfs_realtime`). `protobuf` has opened the message before, so its bytes are in order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.formats import Location, Point, WireColumns, WirePing
from udp_stream.pings.protobuf_columns import ABSENT, FIXED32, TEXT, VARINT, Bytes, Column, columns, floats, padded, tag

_HEADER, _ENTITY = tag(1, TEXT), tag(2, TEXT)
_IS_DELETED, _VEHICLE = tag(2, VARINT), tag(4, TEXT)
_POSITION, _TIMESTAMP, _DESCRIBED = tag(2, TEXT), tag(5, VARINT), tag(8, TEXT)
_LATITUDE, _LONGITUDE, _SPEED = tag(1, FIXED32), tag(2, FIXED32), tag(5, FIXED32)
_ID, _LICENSE_PLATE = tag(1, TEXT), tag(3, TEXT)
"""Fields of a FeedMessage, FeedEntity, VehiclePosition, Position and VehicleDescriptor, by the specification."""

YEAR_9999_S = 253_402_300_799
"""The last second of the year 9999."""

_FEWEST = 100
"""Vehicles. Columns cost 0.3 ms a message, which is the time of this many vehicles one by one."""

_CONTINUES, _SEVEN_BITS, _SHIFT, _LENGTH_BITS = 0x80, 0x7F, 7, 35

Times = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Vehicles:
    """A row for each entity of a message. What is not plain has no values yet. `plated`: plain ones with a license
    plate. `seconds`: POSIX seconds; those beyond the year 9999 are its last one, and refused for it.

    >>> vehicles_of(b"", 2).is_plain.tolist()
    [False, False]
    """

    plates: list[str]
    seconds: Times
    lon: Floats
    lat: Floats
    speed: Floats
    is_plain: NDArray[np.bool_]
    plated: int = 0

    def put(self, row: int, ping: WirePing, time_s: int) -> None:
        """A vehicle that was read in another way."""
        self.plates[row], self.seconds[row] = ping.license_plate, min(time_s, YEAR_9999_S)
        self.lon[row], self.lat[row] = ping.location.coordinates.lon, ping.location.coordinates.lat
        self.speed[row] = ping.speed


def vehicles_of(message: bytes, entities: int) -> Vehicles:
    """The plain vehicles of a message that `protobuf` has opened, and has found so many entities in.

    >>> message = bytes.fromhex("12180a01312213120f0d0000aa4115000091422d0000a04028014202") + b"A1"
    >>> vehicles_of(message, 1).is_plain.tolist()  # one is read otherwise: columns are for many
    [False]
    """
    start, end = _entities(message) if entities >= _FEWEST else (np.zeros(0, np.int64),) * 2
    if start.size == entities:
        return _plain_vehicles(message, start, end)
    lon, lat, speed = np.zeros((3, entities))
    return Vehicles([""] * entities, np.zeros(entities, np.int64), lon, lat, speed, np.zeros(entities, np.bool_))


def wire_columns(vehicles: Sequence[Vehicles], kept: Sequence[NDArray[np.intp]]) -> WireColumns:
    """The kept rows of several messages.

    >>> wire_columns([], []).plates
    []
    """
    plates: list[str] = []
    parts = [(np.zeros(0, np.int64), *np.zeros((3, 0)))]
    for one, rows in zip(vehicles, kept, strict=True):
        plates += one.plates if rows.size == len(one.plates) else [one.plates[row] for row in rows.tolist()]
        parts.append((one.seconds[rows], one.lon[rows], one.lat[rows], one.speed[rows]))
    seconds, lon, lat, speed = (np.concatenate(column) for column in zip(*parts, strict=True))
    return WireColumns(plates, seconds * 1000, np.zeros(seconds.size, np.uint8), lon, lat, speed)


class ColumnPings(Sequence[WirePing]):
    """Columns of whole seconds as single pings, which are made when the first is wanted.

    >>> seconds = np.array([1000]), np.zeros(1, np.uint8)
    >>> ColumnPings(WireColumns(["A1"], *seconds, *np.array([[72.5], [21.25], [5.0]])))[0].observationDateTime
    '1970-01-01T00:00:01Z'
    """

    def __init__(self, columns: WireColumns) -> None:
        """Nothing is made yet."""
        self._columns = columns

    @cached_property
    def _pings(self) -> list[WirePing]:
        wire = self._columns
        rows = zip(
            *(wire.plates, time_texts(wire.time_ms // 1000)),
            *(wire.lon.tolist(), wire.lat.tolist(), wire.speed.tolist()),
            strict=True,
        )
        return [WirePing(plate, text, Location(Point(lon, lat)), speed) for plate, text, lon, lat, speed in rows]

    @overload
    def __getitem__(self, at: int) -> WirePing: ...
    @overload
    def __getitem__(self, at: slice) -> list[WirePing]: ...
    def __getitem__(self, at: int | slice) -> WirePing | list[WirePing]:
        """One, or several."""
        return self._pings[at]

    def __iter__(self) -> Iterator[WirePing]:
        """All, in order."""
        return iter(self._pings)

    def __len__(self) -> int:
        """How many."""
        return len(self._columns.plates)


def time_texts(seconds: Times) -> list[str]:
    """POSIX seconds in the contract's form.

    >>> time_texts(np.array([1, 2**60]))
    ['1970-01-01T00:00:01Z', '9999-12-31T23:59:59Z']
    """
    times, place = np.unique(np.minimum(seconds, YEAR_9999_S), return_inverse=True)
    texts = [f"{text}Z" for text in np.datetime_as_string(times.astype("datetime64[s]")).tolist()]
    return [texts[index] for index in place.tolist()]


def _entities(message: bytes) -> tuple[Times, Times]:
    """Where each entity starts and ends; none if something else than entities and a header is found."""
    starts, ends = array("q"), array("q")
    at, size = 0, len(message)
    while at + 1 < size:
        field, length = message[at], message[at + 1]
        at += 2
        if length & _CONTINUES:
            length, at = _length(message, at - 1)
        if field == _ENTITY:
            starts.append(at)
            ends.append(at + length)
        elif field != _HEADER:
            break
        at += length
    if at != size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.array(starts), np.array(ends)


def _length(message: bytes, at: int) -> tuple[int, int]:
    """A varint, and where what follows starts."""
    length = 0
    for shift in range(0, _LENGTH_BITS, _SHIFT):
        byte = message[at] if at < len(message) else 0
        length, at = length | (byte & _SEVEN_BITS) << shift, at + 1
        if not byte & _CONTINUES:
            break
    return length, at


def _plain_vehicles(message: bytes, start: Times, end: Times) -> Vehicles:
    data = padded(message)
    entity, odd = columns(data, start, end, (_IS_DELETED, _VEHICLE))
    vehicle, odd_vehicle = _inside(data, entity[_VEHICLE], (_POSITION, _TIMESTAMP, _DESCRIBED))
    position, odd_position = _inside(data, vehicle[_POSITION], (_LATITUDE, _LONGITUDE, _SPEED))
    described, odd_description = _inside(data, vehicle[_DESCRIBED], (_ID, _LICENSE_PLATE))
    has_plate = described[_LICENSE_PLATE].value > 0
    first = np.where(has_plate, described[_LICENSE_PLATE].start, described[_ID].start)
    last = np.where(has_plate, described[_LICENSE_PLATE].end, described[_ID].end)
    needed = vehicle[_TIMESTAMP], *position.values()
    plain = ~(odd | odd_vehicle | odd_position | odd_description) & (entity[_IS_DELETED].value == 0)
    # A plate with a blank in front may be all blanks, where the id counts: it is read with care.
    plain &= (last > first) & (data[first] > ord(" ")) & np.all([column.is_there for column in needed], axis=0)
    plates = _texts(message, np.where(plain, first, 0), np.where(plain, last, 0), plain)
    seconds = np.minimum(vehicle[_TIMESTAMP].value, YEAR_9999_S).astype(np.int64)
    lon, lat, speed = (floats(data, position[field].start) for field in (_LONGITUDE, _LATITUDE, _SPEED))
    return Vehicles(plates, seconds, lon, lat, speed, plain, int(np.count_nonzero(plain & has_plate)))


def _inside(data: Bytes, message: Column, tags: tuple[int, ...]) -> tuple[dict[int, Column], NDArray[np.bool_]]:
    return columns(data, message.start, np.where(message.start == ABSENT, ABSENT, message.end), tags)


def _texts(message: bytes, first: Times, last: Times, plain: NDArray[np.bool_]) -> list[str]:
    """The texts between; what is no UTF-8 is not plain."""
    # Latin-1 has a character for each byte, so that places in bytes are places in the text.
    letters = message.decode("latin-1")
    texts = [letters[at:to] for at, to in zip(first.tolist(), last.tolist(), strict=True)]
    if not "".join(texts).isascii():
        for row, text in enumerate(texts):
            if not text.isascii():
                try:
                    texts[row] = text.encode("latin-1").decode()
                except UnicodeDecodeError:
                    texts[row], plain[row] = "", False
    return texts
