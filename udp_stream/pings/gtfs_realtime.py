"""GTFS-realtime VehiclePositions to pings: one message is one poll of a feed, one entity one vehicle.

| ping | field of the entity |
| --- | --- |
| plate | `vehicle.vehicle.license_plate`; where that is empty, `vehicle.vehicle.id` |
| time | `vehicle.timestamp`; where that is unset, the message's `header.timestamp` |
| place | `vehicle.position` |
| speed | `vehicle.position.speed`, metres a second; unset is `missing_field`, and never 0 |

Entities without a vehicle (trip updates, alerts) and deleted ones are no pings. What was taken from where, and how
often, is in the batch's notes. A feed that fills `license_plate` now and then would give one bus two plates, and so two
budgets: the notes are there to see that.

The messages are opened by `protobuf` with the bindings of MobilityData: what they refuse is no message. Paths of
refusals name the contract's fields, as for JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from udp_stream.errors import needs
from udp_stream.pings.decode import NOT_IN_ARRAY, Location, PingFormat, Point, Reason, Refusal, WireBatch, WirePing
from udp_stream.pings.json import JSON

if TYPE_CHECKING:
    from google.transit.gtfs_realtime_pb2 import FeedHeader, FeedMessage, VehiclePosition

UNIT = "mps"
"""Of every speed, by the specification."""

FROM_LICENSE_PLATE = "plate from vehicle.license_plate"
FROM_ID = "plate from vehicle.id"
TIME_OF_HEADER = "time from header.timestamp"
NO_VEHICLE = "entity without a vehicle"
"""What notes count."""

YEAR_9999_S = 253_402_300_799
"""The last second of the year 9999. Later times become it, and are refused for it."""

_HEADER_TAG, _CONTINUES = 0x0A, 0x80

_encode = msgspec.json.Encoder().encode


class _Fault(Exception):
    """Why an entity is no ping. It never leaves this file."""

    def __init__(self, reason: Reason, path: str) -> None:
        super().__init__(reason, path)
        self.reason, self.path = reason, path


def read_batch(messages: Sequence[bytes], max_message_bytes: int, max_pings_per_message: int) -> WireBatch:
    """The pings of a batch of messages; nothing is raised, whatever the bytes."""
    batch = _Batch()
    for index, message in enumerate(messages):
        try:
            if len(message) > max_message_bytes:
                raise _Fault(Reason.OVERSIZED_MESSAGE, "$")
            feed = _parse(message)
            if len(feed.entity) > max_pings_per_message:
                raise _Fault(Reason.TOO_MANY_PINGS, "$")
        except _Fault as fault:
            batch.refusals.append(Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path))
        else:
            batch.add(index, feed)
    return batch.finished()


def split_message(message: bytes) -> list[bytes]:
    """Every entity of a message that could be opened as the JSON ping that it is, without the fields that it lacks."""
    feed = _parse(message)
    return [_encode(_fields(entity.vehicle, feed.header)) for entity in feed.entity]


GTFS_REALTIME = PingFormat(read_batch, split_message)
"""Messages of VehiclePositions."""


def _read_single(messages: Sequence[bytes], max_message_bytes: int, max_pings_per_message: int) -> WireBatch:
    batch = JSON.read(messages, max_message_bytes, max_pings_per_message)
    for place, refusal in enumerate(batch.refusals):
        if refusal.reason == Reason.NOT_JSON:
            batch.refusals[place] = replace(refusal, reason=Reason.NOT_GTFS_REALTIME)
    return batch


SINGLE = PingFormat(_read_single, JSON.split)
"""Single pings of such messages, made by `Unrepeated`: as JSON; and a message that could not be opened, as it is."""


def header_time(start: bytes) -> int | None:
    """The POSIX seconds of a message's header, from its first bytes; None if they do not hold it."""
    length, shift, place = 0, 0, 1
    if not start or start[0] != _HEADER_TAG:
        return None
    while place < min(len(start), 4):
        length |= (start[place] & ~_CONTINUES) << shift
        place, shift = place + 1, shift + 7
        if not start[place - 1] & _CONTINUES:
            break
    header_class, _, error_class = _bindings()
    try:
        header = header_class.FromString(start[place : place + length])
    except error_class:
        return None
    return header.timestamp or None


class _Batch:
    """What the messages of a batch have given so far."""

    def __init__(self) -> None:
        self.pings: list[WirePing] = []
        self.seconds: list[int] = []
        self.places: list[tuple[int, int]] = []
        self.refusals: list[Refusal] = []
        self.notes: Counter[str] = Counter()

    def add(self, index: int, feed: FeedMessage) -> None:
        """The entities of one message."""
        header = feed.header
        for place, entity in enumerate(feed.entity):
            if entity.is_deleted or not entity.HasField("vehicle"):
                self.notes[NO_VEHICLE] += 1
                continue
            vehicle = entity.vehicle
            try:
                ping, time_s, source = _ping(vehicle, header)
            except _Fault as fault:
                self.refusals.append(Refusal(index, place, fault.reason, fault.path))
                continue
            self.notes[source] += 1
            if not vehicle.HasField("timestamp"):
                self.notes[TIME_OF_HEADER] += 1
            self.pings.append(ping)
            self.seconds.append(time_s)
            self.places.append((index, place))

    def finished(self) -> WireBatch:
        """All of it."""
        for ping, text in zip(self.pings, _time_texts(self.seconds), strict=True):
            ping.observationDateTime = text
        message, position = np.array(self.places, np.int32).reshape(-1, 2).T
        return WireBatch(self.pings, message, position, self.refusals, notes=self.notes)


def _ping(vehicle: VehiclePosition, header: FeedHeader) -> tuple[WirePing, int, str]:
    """One vehicle, its time and the source of its plate, or the first fault in the order of the contract's fields."""
    plate, source = _plate(vehicle)
    if plate is None:
        raise _Fault(Reason.MISSING_FIELD, "$.license_plate")
    if not isinstance(plate, str):
        raise _Fault(Reason.WRONG_TYPE, "$.license_plate")
    if (time_s := _time_s(vehicle, header)) is None:
        raise _Fault(Reason.MISSING_FIELD, "$.observationDateTime")
    has = (where := vehicle.position).HasField
    if not (has("longitude") and has("latitude")):
        raise _Fault(Reason.MISSING_FIELD, "$.location")
    if not has("speed"):
        raise _Fault(Reason.MISSING_FIELD, "$.speed")
    return WirePing(plate, "", Location(Point(where.longitude, where.latitude)), where.speed), time_s, source


def _fields(vehicle: VehiclePosition, header: FeedHeader) -> dict[str, object]:
    """The contract's fields that a vehicle has."""
    (plate, _), time_s, where = _plate(vehicle), _time_s(vehicle, header), vehicle.position
    found: dict[str, object] = {}
    if plate is not None:
        found["license_plate"] = plate if isinstance(plate, str) else list(plate)  # so that it stays a wrong type
    if time_s is not None:
        (found["observationDateTime"],) = _time_texts([time_s])
    if where.HasField("longitude") and where.HasField("latitude"):
        found["location"] = Location(Point(where.longitude, where.latitude))
    if where.HasField("speed"):
        found["speed"] = where.speed
    return found


def _plate(vehicle: VehiclePosition) -> tuple[str | bytes | None, str]:
    """The first of plate and id that is not blank, and which; bytes if it is not UTF-8, None if there is none."""
    described = vehicle.vehicle
    for text, source in ((described.license_plate, FROM_LICENSE_PLATE), (described.id, FROM_ID)):
        if text.strip():
            return text, source
    return None, FROM_ID


def _time_s(vehicle: VehiclePosition, header: FeedHeader) -> int | None:
    """POSIX seconds. A time that was set to 0 stays 0, which is refused: only an absent one is the header's."""
    if vehicle.HasField("timestamp"):
        return vehicle.timestamp
    return header.timestamp or None


def _time_texts(seconds: Sequence[int]) -> list[str]:
    """POSIX seconds in the contract's form."""
    times = np.array([min(time_s, YEAR_9999_S) for time_s in seconds], "datetime64[s]")
    return [f"{text}Z" for text in np.datetime_as_string(times).tolist()]


def _parse(message: bytes) -> FeedMessage:
    _, message_class, error_class = _bindings()
    try:
        feed = message_class.FromString(message)
    except error_class:
        raise _Fault(Reason.NOT_GTFS_REALTIME, "$") from None
    if not feed.HasField("header"):  # the specification demands it; a few other bytes can be read as a message, too
        raise _Fault(Reason.NOT_GTFS_REALTIME, "$")
    return feed


@cache
def _bindings() -> tuple[type[FeedHeader], type[FeedMessage], type[Exception]]:
    """The classes of headers and messages, and the error of bytes that are none. DependencyUnavailable without them."""
    with needs("reader of GTFS-realtime", "sources"):
        from google.protobuf.message import DecodeError
        from google.transit.gtfs_realtime_pb2 import FeedHeader, FeedMessage
    return FeedHeader, FeedMessage, DecodeError
