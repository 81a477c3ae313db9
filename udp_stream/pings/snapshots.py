"""Snapshots of a fleet, as a poll is answered with: GTFS-realtime to pings, and each ping of
several snapshots once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from udp_stream.base.errors import needs
from udp_stream.pings.advice import LABEL
from udp_stream.pings.decode import (
    NOT_IN_ARRAY,
    PLACEHOLDERS,
    Location,
    PingFormat,
    PlacedPing,
    Point,
    Reason,
    Refusal,
    WireBatch,
    WirePing,
    originals,
)
from udp_stream.pings.json import (
    JSON,
    PLAIN,
    Fault,
    FeedForm,
    joined_plates,
    unwrap,
    with_infinite,
)
from udp_stream.pings.texts import from_xml, length_at, trim

if TYPE_CHECKING:
    from google.transit.gtfs_realtime_pb2 import FeedHeader, FeedMessage, VehiclePosition

# GTFS-realtime VehiclePositions to pings: a message is a poll of a feed, an entity a vehicle.
#
# | ping | field of the entity |
# | --- | --- |
# | plate | `vehicle.vehicle.license_plate`; where that is empty or "N/A", `vehicle.vehicle.id`; or what is named |
# | time | `vehicle.timestamp`; where that is unset, the message's `header.timestamp`; also if they are milliseconds |
# | place | `vehicle.position` |
# | speed | `vehicle.position.speed`, metres a second; unset is `missing_field`, and never 0 |
#
# Entities that are deleted or have no vehicle (trip updates, alerts) are no pings. The batch's
# notes count which fields were used: a feed that fills `license_plate` now and then gives a bus two
# plates, and so two budgets.

UNIT = "mps"  # of every speed, by the specification

FROM_LICENSE_PLATE = "plate from vehicle.license_plate"
FROM_ID = "plate from vehicle.id"
FROM_NAMED = "plate from the fields that source.plate names"
TIME_OF_HEADER = "time from header.timestamp"
TIME_IN_MS = "time in milliseconds"
NO_VEHICLE = "entity without a vehicle"
OTHER_FEEDS = {"alert": "alert", "trip_update": "trip update"}
"""Fields of entities without a vehicle, and what feeds of them hold."""

OLD = "time far before header.timestamp"
"""Events that notes count."""

_MILLISECONDS_MIN = 10**11
"""A time in seconds is less until the year 5138, a time in milliseconds is more since 1973."""

OLD_S = 600
"""A vehicle whose time is as long before its message's does not send, or its clock stands."""

MOVED = "plate and time of another place"

STANDING = "report a speed above 5 km/h and do not move"
_STANDING_POLLS = 8
_GOING = 5 / 3.6  # half a minute's feed, polled each 10 s, has each fix three times

YEAR_9999_S = 253_402_300_799
"""The last second of the year 9999. Later times become it, and are refused for it."""

HEADER_TAG = b"\n"
"""In protobuf the first byte of every message: its first field is the header."""

_encode = msgspec.json.Encoder().encode


@dataclass
class _VehicleReader:
    """`named`: the fields that name a vehicle, if not those of the table; without `speeds` none is
    looked at."""

    named: tuple[str, ...] = ()
    speeds: bool = True

    def read(self, messages: Sequence[bytes], max_message_bytes: int, max_pings: int) -> WireBatch:
        pings = list[WirePing | PlacedPing]()
        seconds = list[int]()
        places = list[tuple[int, int]]()
        untimed = list[bool]()
        refusals = list[Refusal]()
        notes = Counter[str]()
        for index, message in enumerate(messages):
            place = NOT_IN_ARRAY
            try:
                feed = _parse(message, max_message_bytes, max_pings)
            except Fault as fault:
                refusals.append(Refusal(index, place, fault.reason, fault.path))
                continue
            header = feed.header
            for place, entity in enumerate(feed.entity):
                vehicle = entity.vehicle
                if entity.is_deleted or not entity.HasField("vehicle"):
                    notes[NO_VEHICLE] += 1
                    notes.update(
                        what for field, what in OTHER_FEEDS.items() if entity.HasField(field)
                    )
                    continue
                try:
                    ping, time_s, source = self._ping(vehicle, header)
                except Fault as fault:
                    refusals.append(Refusal(index, place, fault.reason, fault.path))
                    continue
                notes[source] += 1
                is_timed = vehicle.HasField("timestamp")
                notes[TIME_OF_HEADER] += not is_timed
                untimed.append(self.speeds and not is_timed)
                if (vehicle.timestamp or header.timestamp) >= _MILLISECONDS_MIN:
                    notes[TIME_IN_MS] += 1
                else:
                    notes[OLD] += is_timed and header.timestamp - vehicle.timestamp > OLD_S
                pings.append(ping)
                seconds.append(time_s)
                places.append((index, place))
        for ping, text in zip(pings, _time_texts(seconds), strict=True):
            ping.observationDateTime = text
        message_of, position = np.array(places, np.int32).reshape(-1, 2).T
        return WireBatch(pings, message_of, position, refusals, notes=notes, untimed=untimed)

    def split(self, message: bytes) -> list[bytes]:
        """Every entity as the JSON ping that it is; its label, where nothing else names it."""
        feed = _parse(message)
        pieces = []
        for entity in feed.entity:
            (plate, _), time_s, location, speed = self._values(entity.vehicle, feed.header)
            label = entity.vehicle.vehicle.label
            values = {
                LABEL: label if plate is None and label.strip() else None,
                "license_plate": list(plate)
                if isinstance(plate, bytes)
                else plate,  # so that it stays a wrong type
                "observationDateTime": None if time_s is None else _time_texts([time_s])[0],
                "location": location,
                "speed": speed,
            }
            pieces.append(
                _encode({name: value for name, value in values.items() if value is not None})
            )
        return pieces

    def _ping(
        self, vehicle: VehiclePosition, header: FeedHeader
    ) -> tuple[WirePing | PlacedPing, int, str]:
        """A vehicle, its time and the source of its plate, or the first fault in the order of
        fields."""
        (plate, source), time_s, location, speed = self._values(vehicle, header)
        if isinstance(plate, bytes):
            raise Fault(Reason.WRONG_TYPE, "$.license_plate")
        if plate is None or time_s is None or location is None:
            field = (
                "license_plate"
                if plate is None
                else "observationDateTime"
                if time_s is None
                else "location"
            )
            raise Fault(Reason.MISSING_FIELD, f"$.{field}")
        if not self.speeds:
            return PlacedPing(plate, "", location), time_s, source
        if speed is None:
            raise Fault(Reason.MISSING_FIELD, "$.speed")
        return WirePing(plate, "", location, speed), time_s, source

    def _values(self, vehicle: VehiclePosition, header: FeedHeader) -> _Values:
        where = vehicle.position
        has = where.HasField
        location = (
            Location(Point(where.longitude, where.latitude))
            if has("longitude") and has("latitude")
            else None
        )
        return (
            self._plate(vehicle),
            _time_s(vehicle, header),
            location,
            where.speed if has("speed") else None,
        )

    def _plate(self, vehicle: VehiclePosition) -> tuple[str | bytes | None, str]:
        """The first of plate and id that is neither blank nor a word for a missing value, or what
        named fields say together, and which; bytes if it is not UTF-8, None if both are blank."""
        described = vehicle.vehicle
        if self.named:
            texts = [getattr(described, name) for name in self.named]
            if not all(isinstance(text, str) and text.strip() for text in texts):
                return next((text for text in texts if not isinstance(text, str)), None), FROM_NAMED
            return (
                joined_plates(*([text] for text in texts))[0] if texts[1:] else texts[0]
            ), FROM_NAMED
        word: tuple[str | None, str] = (None, FROM_ID)
        for text, source in (
            (described.license_plate, FROM_LICENSE_PLATE),
            (described.id, FROM_ID),
        ):
            if isinstance(text, bytes) or (
                text.strip() and text.strip().lower() not in PLACEHOLDERS
            ):
                return text, source
            word = (text, source) if text.strip() and word[0] is None else word
        return word


_Values = tuple[tuple[str | bytes | None, str], int | None, Location | None, float | None]
"""A vehicle's plate and where that is from, its time, place and speed."""


def _format(form: FeedForm) -> PingFormat:
    reader = _VehicleReader(form.gtfs_plate, bool(form.mapping.speed))
    return PingFormat(reader.read, reader.split)


GTFS_REALTIME = _format(PLAIN)
"""Messages of VehiclePositions."""


def _read_single(
    messages: Sequence[bytes],
    max_message_bytes: int,
    max_pings_per_message: int,
    plain: PingFormat = JSON,
) -> WireBatch:
    batch = plain.read(messages, max_message_bytes, max_pings_per_message)
    for place, refusal in enumerate(batch.refusals):
        if refusal.reason == Reason.NOT_JSON:
            batch.refusals[place] = replace(refusal, reason=Reason.NOT_GTFS_REALTIME)
    return batch


SINGLE = PingFormat(_read_single, JSON.split)
"""Single pings of such messages, made by `RepeatFilter`: as JSON; and a message that could not be
opened, as it is."""


def gtfs_formats(form: FeedForm) -> tuple[PingFormat, PingFormat]:
    """The formats of messages, and of single pings, where feeds of JSON are in this form: with
    speeds, or without."""
    if not form.is_plain:
        return _format(form), SINGLE
    read = partial(_read_single, plain=form.format)
    single = replace(form.format, read=read, split=JSON.split, is_json=False)
    return _format(form), SINGLE if form.format == JSON else single


def header_time(start: bytes) -> int | None:
    """The POSIX seconds of a message's header, from its first bytes; None if they do not hold it."""
    behind = next(
        (start[at:] for at in range(6) if start[at : at + 3 : 2] == b"\n\n"), start
    )  # of a length, if any
    start = start if start.startswith(HEADER_TAG) else behind
    if not start.startswith(HEADER_TAG):
        return None
    length, place = length_at(start, 1)
    header_class, _, error_class = _bindings()
    try:
        header = header_class.FromString(start[place : place + length])
    except error_class:
        return None
    return _seconds(header.timestamp) or None


def _time_s(vehicle: VehiclePosition, header: FeedHeader) -> int | None:
    """POSIX seconds; the header's if the vehicle has none. A time that was set to 0 stays 0, which
    is refused."""
    if vehicle.HasField("timestamp"):
        return _seconds(vehicle.timestamp)
    return _seconds(header.timestamp) or None


def _seconds(time: int) -> int:
    return time // 1000 if time >= _MILLISECONDS_MIN else time


def _time_texts(seconds: Sequence[int]) -> list[str]:
    """POSIX seconds in the contract's form."""
    times = np.array([min(time_s, YEAR_9999_S) for time_s in seconds], "datetime64[s]")
    return [f"{text}Z" for text in np.datetime_as_string(times).tolist()]


def _parse(
    message: bytes, max_bytes: int | None = None, max_pings: int | None = None
) -> FeedMessage:
    if max_bytes is not None and len(message) > max_bytes:
        raise Fault(Reason.OVERSIZED_MESSAGE, "$")
    _, message_class, error_class = _bindings()
    try:
        feed = message_class.FromString(message)
    except error_class:
        raise Fault(Reason.NOT_GTFS_REALTIME, "$") from None
    if not feed.HasField(
        "header"
    ):  # the specification demands it; a few other bytes can be read as a message, too
        raise Fault(Reason.NOT_GTFS_REALTIME, "$")
    if max_pings is not None and len(feed.entity) > max_pings:
        raise Fault(Reason.TOO_MANY_PINGS, "$")
    return feed


@cache
def _bindings() -> tuple[type[FeedHeader], type[FeedMessage], type[Exception]]:
    """The classes of headers and messages, and the error of bytes that are none.
    DependencyUnavailable without them."""
    with needs("reader of GTFS-realtime", "sources"):
        from google.protobuf.message import DecodeError
        from google.transit.gtfs_realtime_pb2 import FeedHeader, FeedMessage
    return FeedHeader, FeedMessage, DecodeError


# Snapshots of a fleet to messages of single pings, each ping once.
#
# A poll is answered with the last ping of every vehicle, again and again. Downstream a plate and a
# time count once. But a bus that was parked an hour ago would be refused as late in every poll, and
# every repeat would be stored.
#
# A ping is a repeat if it has the plate and time of another, or, without a time of its own, the
# plate and place. Speeds are not compared, so that no speed decides what is handed on. Nor are
# places where speeds are derived from them: there a fix without a time is new in each poll.
#
# What is remembered of a plate follows from its own pings and the wall's time: no plate decides
# what is handed on of another. What comes again later is a repeat for its slot, too, if the slot is
# still open.

REMEMBERED = 32
"""Snapshots that had a new ping of the plate, up to twice as many. Servers behind an address answer
with snapshots of different age; a queue sends 1,000 messages again, if it has to: 32 of each of 31
buses."""

FORGOTTEN_S = 86_400
"""All is forgotten as often: plates that are gone take no memory for ever."""

PIECE_BYTES_MAX = 2**16
"""A longer piece is shortened, and then refused: a ping has some 150 bytes, and a record of Kafka
at most 1 MiB."""

_ELEMENTS_MAX = 8
_TEXT_MAX = 200
"""Kept of each array and text of an answer that is refused whole: enough to see what it is."""

_NO_JSON = b"\0"
"""Behind a message that is not of its format: it may be JSON, and must not be read as pings in
another unit."""

_encode_lines = msgspec.json.Encoder().encode_lines

_Key = str | int | bytes
_Place = tuple[float, float] | None


@dataclass(slots=True)
class _Plate:
    """How many snapshots had a new ping of a plate; its last pings, with where each was first, and
    the last of these snapshots that had it."""

    snapshots: int = 0
    pings: dict[_Key, tuple[_Place, int]] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop old pings; at each snapshot that would cost more than reading."""
        if self.snapshots % REMEMBERED == 0:
            oldest = self.snapshots - REMEMBERED
            self.pings = {key: seen for key, seen in self.pings.items() if seen[1] > oldest}


class RepeatFilter:
    """The new pings of snapshots, given in the order of their times. A snapshot of more than
    `max_bytes` or `max_pings` is refused.

    `counts`: how many pings were `read`, `repeats`, or `refused` by the format; and the notes of
    the format. `unreadable`: why nothing of the last snapshot could be read; it is handed on even
    so.

    >>> once = RepeatFilter(JSON, max_bytes=1000, max_pings=10)
    >>> ping = b'{"license_plate":"A1","observationDateTime":"now","speed":5,"location":{"coordinates":[72.5,21.25]}}'
    >>> once.take(b"[" + ping + b", 7]")  # doctest: +ELLIPSIS
    [b'{"license_plate":"A1",...,"location":{"coordinates":[72.5,21.25],"type":"Point"},"speed":5.0}', b'7']
    >>> once.take(b"[7, " + ping.replace(b"5", b"6", 1) + b"]"), once.counts["repeats"]
    ([], 2)
    """

    def __init__(self, ping_format: PingFormat, max_bytes: int, max_pings: int) -> None:
        self._format = ping_format
        self._limits = (max_bytes, max_pings)
        self._taken = self._days = 0
        self._plates = defaultdict[str, _Plate](_Plate)
        self._fixes: dict[
            str, tuple[Point, int, int]
        ] = {}  # the last, in how many snapshots, in which last
        self.counts: Counter[str] = Counter()
        self.unreadable: Reason | None = None

    def take(self, snapshot: bytes, now_s: float = 0.0) -> list[bytes]:
        """A JSON message for each new ping, in order; other pieces as they are, for the reader to
        refuse. A ping in the contract's form keeps its fields and no others. `now_s`: seconds of a
        steady clock, where snapshots are live."""
        self._forget(int(now_s // FORGOTTEN_S))
        snapshot = from_xml(snapshot)
        batch = self._format.read([snapshot], *self._limits)
        pieces = zip(
            batch.refusals, originals([snapshot], batch.refusals, self._format), strict=True
        )
        refused = [
            (one.position, self._alone(self._shortened(piece, one), one)) for one, piece in pieces
        ]
        self.counts["read"] += batch.message.size
        self.counts["refused"] += len(refused)
        self.counts.update(batch.notes)
        whole = (
            one
            for one in batch.refusals
            if one.position == NOT_IN_ARRAY and one.path in ("$", "$.results")
        )
        self.unreadable = next(
            (one.reason for one in whole), None
        )  # no message, too large, or without its array
        self._count_standing(batch)
        positions, new = self._new_pings(snapshot, batch)
        if refused:
            digests = [blake2b(piece, digest_size=16).digest() for _, piece in refused]
            others = self._new([(_EMPTY_PLATES, digest, None) for digest in digests])
            self.counts["repeats"] += len(refused) - len(others)
            both = [*zip(positions, new, strict=True), *(refused[at] for at in others)]
            new = [message for _, message in sorted(both, key=itemgetter(0))]
        self._taken += 1
        return (
            [piece + _NO_JSON for piece in new]
            if self.unreadable and not self._format.is_json
            else new
        )

    def _new_pings(self, snapshot: bytes, batch: WireBatch) -> tuple[list[int], list[bytes]]:
        """The positions of new pings in the snapshot, and their messages."""
        new = self._new(_known_by(batch))
        self.counts["repeats"] += batch.message.size - len(new)
        if not new:
            return [], []
        positions = batch.position[new].tolist()
        if batch.pings:
            # In a single pass, and cut at the ends of lines: in JSON's texts an end of a line is
            # `\\n`.
            messages = with_infinite(_encode_lines([batch.pings[at] for at in new])).split(b"\n")[
                :-1
            ]
        else:
            places = [Refusal(0, position, Reason.WRONG_TYPE, "$") for position in positions]
            text = trim(snapshot)
            text = unwrap(text) if text.startswith(b'"') else text
            messages = list(originals([text], places, self._format))
        if max(map(len, messages)) > PIECE_BYTES_MAX:
            messages = [message[:PIECE_BYTES_MAX] for message in messages]
        return positions, messages

    def _shortened(self, piece: bytes, refusal: Refusal) -> bytes:
        """A refused piece; of a longer one the beginnings of its arrays and texts, if these are
        refused for the same reason, else its first bytes."""
        if len(piece) <= PIECE_BYTES_MAX:
            return piece
        try:
            short = json.dumps(_beginnings(json.loads(piece)), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return piece[:PIECE_BYTES_MAX]
        again = self._format.read([short], *self._limits).refusals
        is_same = [(one.reason, one.path) for one in again] == [(refusal.reason, refusal.path)]
        return short if is_same and len(short) <= PIECE_BYTES_MAX else piece[:PIECE_BYTES_MAX]

    def _alone(self, piece: bytes, refusal: Refusal) -> bytes:
        """A refused piece as a message that is refused for the same reason, and once: maybe in an
        array."""
        boxed = b"[" + piece + b"]"
        alone, within = (self._format.read([one], *self._limits) for one in (piece, boxed))
        if alone.message.size or len(alone.refusals) != 1:
            return boxed
        is_same, is_boxed = (
            [one.reason for one in batch.refusals] == [refusal.reason] for batch in (alone, within)
        )
        return boxed if is_boxed and not is_same else piece

    def _count_standing(self, batch: WireBatch) -> None:
        """Count plates that report a speed from the same place in so many snapshots in a row,
        without times."""
        for ping, is_untimed in zip(batch.pings, batch.untimed, strict=False):
            place = ping.location.coordinates
            last, polls, seen = self._fixes.get(ping.license_plate, (None, 0, -1))
            is_same = (
                is_untimed and ping.speed > _GOING and place == last and seen == self._taken - 1
            )
            self._fixes[ping.license_plate] = place, polls + 1 if is_same else 1, self._taken
        standing = sum(polls >= _STANDING_POLLS for _, polls, _ in self._fixes.values())
        if standing or self.counts[STANDING]:
            self.counts[STANDING] = standing

    def _new(self, pings: Sequence[tuple[str, _Key, _Place]]) -> list[int]:
        """The indices of pings that none of their plate's remembered snapshots had. Those that came
        from another place are counted: they are more than repeats."""
        new = list[int]()
        moved = 0
        for at, (plate, key, place) in enumerate(pings):
            seen = self._plates[plate].pings
            if key not in seen:
                new.append(at)
                seen[key] = place, 0
            elif seen[key][0] != place:
                moved += 1
        if moved:
            self.counts[MOVED] += moved
        with_new = {pings[at][0] for at in new}
        for plate in with_new:
            self._plates[plate].snapshots += 1
        for plate, key, _ in pings:
            own = self._plates[plate]
            own.pings[key] = own.pings[key][0], own.snapshots
        for plate in with_new:
            self._plates[plate].forget()
        return new

    def _forget(self, days: int) -> None:
        """Forget all at the turn of the clock's days, whoever sends then."""
        if days != self._days:
            self._days = days
            self._plates.clear()
            self._fixes.clear()


def _beginnings(value: Any) -> Any:
    """The same with short arrays and texts."""
    if isinstance(value, dict):
        return {name: _beginnings(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_beginnings(one) for one in value[:_ELEMENTS_MAX]]
    return value[:_TEXT_MAX] if isinstance(value, str) else value


_EMPTY_PLATES = ""
"""Instead of the plate of a piece that is refused."""


def _known_by(batch: WireBatch) -> list[tuple[str, _Key, _Place]]:
    """The plate of each ping, what tells it from others of its plate, and its place."""
    if batch.columns is not None:
        wire = batch.columns
        places = zip(wire.lon.tolist(), wire.lat.tolist(), strict=True)
        return list(zip(wire.plates, wire.time_ms.tolist(), places, strict=True))
    found = list[tuple[str, _Key, _Place]]()
    for ping, is_untimed in zip(batch.pings, batch.untimed or repeat(False), strict=False):
        place = ping.location.coordinates.lon, ping.location.coordinates.lat
        found.append(
            (ping.license_plate, str(place) if is_untimed else ping.observationDateTime, place)
        )
    return found
