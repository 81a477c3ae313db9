"""Pings: raw messages to columns, and a refusal for everything that does not count.

A format (`formats.py`) reads the messages, `times` the times; here are the rules for the values, checked a
column at a time. A ping with several faults is refused for the first of them: first the shape (fields present and of
their JSON type: plate, time, location, speed), then the values in this order: plate, time, coordinates out of range,
zero, outside the box, speed not finite, negative, above the limit.
"""

from __future__ import annotations

import enum
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from udp_stream.pings.formats import NOT_IN_ARRAY, FieldPaths, PingFormat, WireBatch, WireColumns, WirePing
from udp_stream.pings.json_pieces import with_infinite
from udp_stream.pings.json_reader import JSON
from udp_stream.pings.refusals import Reason, Refusal
from udp_stream.pings.rules import PLACEHOLDERS, PingRules
from udp_stream.pings.times import NO_OFFSET, UNREADABLE, parse_timestamps
from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH

__all__ = [
    "PingDecoder",
    "PingRules",
    "Pings",
    "Reason",
    "Refusal",
    "json_messages",
    "original",
    "originals",
    "plate_name",
]

MAX_PLATE_CHARS = 64
"""No plate is longer. It bounds what one ping can make the ledger and the open slots remember."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class Pings:
    """The accepted pings of one batch, in the order of their messages, as read-only columns of one length.

    `plates`: the distinct plates, without surrounding white space, in order of first appearance. `plate`: index into
    them. `time_ms`: Unix milliseconds, UTC, rounded down. `lat`, `lon`: degrees. `speed`: quanta of 1/4096 km/h,
    rounded to the nearest, in [0, max_quanta]. `message`: index of the message in the batch. `position`: the ping's
    place in its message's array, -1 if the message is the ping itself.

    >>> pings, _ = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200)).decode([])
    >>> len(pings), pings.plates, pings.speed
    (0, (), array([], dtype=int32))
    """

    plates: tuple[str, ...]
    plate: NDArray[np.uint32]
    time_ms: NDArray[np.int64]
    lat: NDArray[np.float64]
    lon: NDArray[np.float64]
    speed: NDArray[np.int32]
    message: NDArray[np.int32]
    position: NDArray[np.int32]

    def __len__(self) -> int:
        """How many pings."""
        return len(self.plate)


@dataclass(frozen=True, slots=True)
class PingDecoder:
    """Bytes to columns by fixed rules; holds no state, so any number of batches may go through one decoder.

    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200))
    >>> good = b'{"license_plate": "A1", "observationDateTime": "1999-12-31T19:00:01-05:00", "speed": 12.5, "location":'
    >>> good += b' {"type": "Point", "coordinates": [72.8, 21.1]}}'
    >>> pings, refusals = decoder.decode([b"[" + good + b", {}]", good.replace(b"72.8", b"272.8")])
    >>> pings.plates, pings.time_ms, pings.speed, pings.message, pings.position
    (('A1',), array([946684801000]), array([51200], dtype=int32), array([0], dtype=int32), array([0], dtype=int32))
    >>> for refusal in refusals: print(refusal.message, refusal.position, refusal.reason, refusal.path)
    0 1 missing_field $.license_plate
    1 -1 coordinates_out_of_range $.location.coordinates[0]
    """

    rules: PingRules
    format: PingFormat = JSON

    def decode(self, messages: Sequence[bytes]) -> tuple[Pings, list[Refusal]]:
        """The accepted pings, and the refusals in the order of messages and positions; no bytes make it raise.

        Every ping of every message is in one of the two; so is every message, but for an array without pings.
        """
        batch = self.format.read(messages, self.rules.max_message_bytes, self.rules.max_pings_per_message)
        columns = _Columns(batch, self.rules)
        refused = columns.refusals(self.format.paths)
        if not refused:
            return columns.pings(slice(None)), batch.refusals
        everything = sorted(batch.refusals + refused, key=lambda refusal: (refusal.message, refusal.position))
        return columns.pings(columns.fault == 0), everything


class _Field(enum.IntEnum):
    """The place of a field's path in `FieldPaths`."""

    PLATE = FieldPaths._fields.index("plate")
    TIME = FieldPaths._fields.index("time")
    POSITION = FieldPaths._fields.index("position")
    LONGITUDE = FieldPaths._fields.index("longitude")
    LATITUDE = FieldPaths._fields.index("latitude")
    SPEED = FieldPaths._fields.index("speed")


# What the value checks find, in their order. The number in the fault column is the place here, plus 1; 0 is no fault.
_FAULTS = (
    (Reason.EMPTY_PLATE, _Field.PLATE),
    (Reason.PLACEHOLDER_PLATE, _Field.PLATE),
    (Reason.WRONG_TYPE, _Field.PLATE),
    (Reason.WRONG_TYPE, _Field.TIME),
    (Reason.NO_UTC_OFFSET, _Field.TIME),
    (Reason.TIME_OUT_OF_RANGE, _Field.TIME),
    (Reason.COORDINATES_OUT_OF_RANGE, _Field.LONGITUDE),
    (Reason.COORDINATES_OUT_OF_RANGE, _Field.LATITUDE),
    (Reason.ZERO_COORDINATES, _Field.POSITION),
    (Reason.OUTSIDE_BOX, _Field.POSITION),
    (Reason.SPEED_NOT_FINITE, _Field.SPEED),
    (Reason.SPEED_NEGATIVE, _Field.SPEED),
    (Reason.SPEED_ABOVE_LIMIT, _Field.SPEED),
)


_PLACEHOLDER_CHARS = max(map(len, PLACEHOLDERS))


class _Columns:
    """The columns of a batch before the values are checked, and `fault`, what the checks found in each row."""

    def __init__(self, batch: WireBatch, rules: PingRules) -> None:
        wire = _columns_of(batch.pings) if batch.columns is None else batch.columns
        size = len(wire.plates)
        self.message, self.position, self.rules = batch.message, batch.position, rules
        self.plates, self.plate = _index_plates(wire.plates)
        self.time_ms, self.time_status = wire.time_ms, wire.time_status
        self.lon, self.lat, self.source_speed = wire.lon, wire.lat, wire.speed
        with np.errstate(over="ignore"):  # becomes infinite, and is refused for it
            self.kmh = self.source_speed * KMH_PER_UNIT[rules.unit]
        self.fault = np.zeros(size, np.uint8)
        checks = self._checks()
        for number in range(len(checks), 0, -1):  # backwards: the first fault is written last, and stands
            self.fault[checks[number - 1]] = number

    def _checks(self) -> tuple[NDArray[np.bool_], ...]:
        """Where each of `_FAULTS` is found."""
        rules, lon, lat = self.rules, self.lon, self.lat
        lengths = np.fromiter(map(len, self.plates), np.int64, len(self.plates))
        chars, are_words = lengths[self.plate], np.zeros(len(self.plates), np.bool_)
        for short in np.flatnonzero(lengths <= _PLACEHOLDER_CHARS).tolist():  # plates are longer, nearly all
            are_words[short] = self.plates[short].lower() in PLACEHOLDERS
        if rules.box is None:
            outside = np.zeros(len(lon), np.bool_)
        else:
            west, south, east, north = rules.box
            outside = (lon < west) | (lon > east) | (lat < south) | (lat > north)
        return (
            chars == 0,
            are_words[self.plate],
            chars > MAX_PLATE_CHARS,
            self.time_status == UNREADABLE,
            self.time_status == NO_OFFSET,
            (self.time_ms < rules.earliest_ms) | (self.time_ms >= rules.latest_ms),
            ~(np.abs(lon) <= 180),  # so, and not with >: JSON has no nan, but another format may
            ~(np.abs(lat) <= 90),
            (lon == 0) & (lat == 0),
            outside,
            ~np.isfinite(self.source_speed),
            self.source_speed < 0,
            self.kmh > rules.reject_above_kmh,
        )

    def refusals(self, paths: FieldPaths) -> list[Refusal]:
        """One for each row with a fault."""
        rows = np.flatnonzero(self.fault)
        found = zip(self.message[rows].tolist(), self.position[rows].tolist(), self.fault[rows].tolist(), strict=True)
        faults = [(reason, paths[field]) for reason, field in _FAULTS]
        return [Refusal(message, position, *faults[fault - 1]) for message, position, fault in found]

    def pings(self, kept: slice | NDArray[np.bool_]) -> Pings:
        """The rows that are kept, all of them without fault, in their final form."""
        plates, plate = self.plates, self.plate[kept]
        if not isinstance(kept, slice):  # forget the plates that only refused pings had
            in_use = np.zeros(len(plates), np.bool_)
            in_use[plate] = True
            plate = (np.cumsum(in_use, dtype=np.uint32) - np.uint32(1))[plate]
            plates = [text for text, used in zip(plates, in_use.tolist(), strict=True) if used]
        # Clamped here, before anything is stored: sensitivities rest on no speed being above max_quanta.
        quanta = np.minimum(np.rint(self.kmh[kept] * QUANTA_PER_KMH), self.rules.max_quanta).astype(np.int32)
        columns: tuple[NDArray[Any], ...] = (
            *(plate, self.time_ms[kept], self.lat[kept], self.lon[kept]),
            *(quanta, self.message[kept], self.position[kept]),
        )
        for column in columns:
            column.flags.writeable = False
        return Pings(tuple(plates), *columns)


def _columns_of(wire: Sequence[WirePing]) -> WireColumns:
    size = len(wire)
    time_ms, time_status = parse_timestamps([ping.observationDateTime for ping in wire])
    points = [ping.location.coordinates for ping in wire]
    return WireColumns(
        [ping.license_plate for ping in wire],
        time_ms,
        time_status,
        np.fromiter([point.lon for point in points], np.float64, size),
        np.fromiter([point.lat for point in points], np.float64, size),
        np.fromiter([ping.speed for ping in wire], np.float64, size),
    )


def plate_name(text: str) -> str:
    """The plate that is meant: white space around it is dropped, and what is written alike is one plate.

    Unicode has several ways to write one letter, and characters that nobody sees: NFKC, without format characters.

    >>> plate_name(" GJ05ZZ0001 "), plate_name("S\\u00c1NTA1") == plate_name("SA\\u0301NTA1\\u200b")
    ('GJ05ZZ0001', True)
    """
    if text.isascii():
        return text.strip()
    visible = (letter for letter in text if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", "".join(visible)).strip()


def _index_plates(texts: Sequence[str]) -> tuple[list[str], NDArray[np.uint32]]:
    """The distinct plates, by their names, and for each text the index of its plate."""
    index: defaultdict[str, int] = defaultdict(count().__next__)
    plate = np.fromiter(map(index.__getitem__, texts), np.uint32, len(texts))
    names = [plate_name(text) for text in index]  # distinct texts only: few, where pings are many
    if names == list(index):
        return names, plate
    # Again, as texts that differ in white space alone may now be one plate.
    plates, renamed = _index_plates(names)
    return plates, renamed[plate]


def original(messages: Sequence[bytes], refusal: Refusal) -> bytes:
    """The bytes of what was refused, cut out of the array if it was in one; the whole message if it came in a string.

    >>> original([b'[{"speed": 1}, {}]'], Refusal(0, 1, Reason.MISSING_FIELD, "$.license_plate"))
    b'{}'
    """
    return next(originals(messages, [refusal]))


def originals(
    messages: Sequence[bytes], refusals: Sequence[Refusal], ping_format: PingFormat = JSON
) -> Iterator[bytes]:
    """The bytes of each refusal, in order; a message is cut up once for all of its refusals that follow each other.

    >>> both = [Refusal(0, 0, Reason.MISSING_FIELD, "$.speed"), Refusal(0, 2, Reason.WRONG_TYPE, "$")]
    >>> list(originals([b"[{}, 1, 2]"], both))
    [b'{}', b'2']
    """
    cut_up, pieces = -1, None
    for refusal in refusals:
        piece: bytes | Raw = messages[refusal.message]
        if refusal.position != NOT_IN_ARRAY:
            if refusal.message != cut_up:
                cut_up, pieces = refusal.message, ping_format.split(messages[refusal.message])
            if pieces is not None:
                piece = pieces[refusal.position]
        yield bytes(piece)


def json_messages(messages: list[bytes], ping_format: PingFormat, rules: PingRules) -> list[bytes]:
    """Messages of a format as messages of JSON, which is what topics hold: a message for each ping, in order.

    What the format refuses stays as it is, for the reader of the topic to refuse. Messages of JSON stay as they are.

    >>> json_messages([b'[{"speed": 1}, {}]'], JSON, PingRules(max_kmh=65, reject_above_kmh=200))
    [b'[{"speed": 1}, {}]']
    """
    if ping_format.is_json:
        return messages
    batch = ping_format.read(messages, rules.max_message_bytes, rules.max_pings_per_message)
    places = zip(batch.message.tolist(), batch.position.tolist(), strict=True)
    pieces = [(place, with_infinite(_encode(ping))) for place, ping in zip(places, batch.pings, strict=True)]
    refused = zip(batch.refusals, originals(messages, batch.refusals, ping_format), strict=True)
    pieces += [((refusal.message, refusal.position), data) for refusal, data in refused]
    return [data for _, data in sorted(pieces, key=itemgetter(0))]
