"""Pings: raw messages to columns, and a refusal for everything that does not count.

A format (`formats.py`) reads the messages, `timestamps` the times; here are the rules for the values, checked a
column at a time. A ping with several faults is refused for the first of them: first the shape (fields present and of
their JSON type: plate, time, location, speed), then the values in this order: plate, time, coordinates out of range,
zero, outside the box, speed not finite, negative, above the limit.
"""

from __future__ import annotations

import math
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

from udp_stream.pings.formats import NOT_IN_ARRAY, PingFormat, WirePing
from udp_stream.pings.json_reader import JSON
from udp_stream.pings.refusals import Reason, Refusal
from udp_stream.pings.timestamps import NO_OFFSET, UNREADABLE, parse_timestamps
from udp_stream.units import KMH_PER_UNIT, KMH_QUANTUM, QUANTA_PER_KMH

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

_YEAR_2000_MS = 946_684_800_000
_YEAR_2100_MS = 4_102_444_800_000
_MAX_QUANTA = 2**31 - 1

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRules:
    """What is accepted. A pure value; ValueError names the field, the value and the rule that it breaks.

    `unit`: of the source's speeds. `max_kmh`: faster pings are clamped to it. `reject_above_kmh`: faster ones are
    refused, this speed itself is not. `box`: west, south, east, north in degrees, edges included; it cannot cross the
    antimeridian. Times are accepted from `earliest_ms` up to but not `latest_ms`, Unix milliseconds.

    `max_pings_per_message`: twice the 5,000 that the exchange's API gives in one answer. `max_message_bytes`: 8 MiB
    holds that many pings of 800 bytes (the exchange's have about 490).

    >>> PingRules(max_kmh=65, reject_above_kmh=200).max_quanta
    266240
    >>> PingRules(max_kmh=65, reject_above_kmh=50)
    Traceback (most recent call last):
    ValueError: expected reject_above_kmh to be finite and >= max_kmh (65), got 50
    """

    unit: str = "kmh"
    max_kmh: float
    reject_above_kmh: float
    box: tuple[float, float, float, float] | None = None
    earliest_ms: int = _YEAR_2000_MS
    latest_ms: int = _YEAR_2100_MS
    max_message_bytes: int = 8 * 2**20
    max_pings_per_message: int = 10_000

    def __post_init__(self) -> None:
        """Hold every field to its rule."""
        _expect(self.unit in KMH_PER_UNIT, "unit", self.unit, f"to be one of {', '.join(KMH_PER_UNIT)}")
        highest = _MAX_QUANTA // QUANTA_PER_KMH
        _expect(KMH_QUANTUM <= self.max_kmh <= highest, "max_kmh", self.max_kmh, f"in [{KMH_QUANTUM}, {highest}]")
        _expect(
            self.max_kmh <= self.reject_above_kmh < math.inf,
            *("reject_above_kmh", self.reject_above_kmh, f"to be finite and >= max_kmh ({self.max_kmh})"),
        )
        if self.box is not None:
            rule = "to be west, south, east, north with -180 <= west < east <= 180 and -90 <= south < north <= 90"
            _expect(len(self.box) == 4, "box", self.box, rule)
            west, south, east, north = self.box
            _expect(-180 <= west < east <= 180 and -90 <= south < north <= 90, "box", self.box, rule)
        _expect(self.earliest_ms < self.latest_ms, "earliest_ms", self.earliest_ms, f"< latest_ms ({self.latest_ms})")
        _expect(self.max_message_bytes >= 1, "max_message_bytes", self.max_message_bytes, ">= 1")
        _expect(self.max_pings_per_message >= 1, "max_pings_per_message", self.max_pings_per_message, ">= 1")

    @property
    def max_quanta(self) -> int:
        """The highest speed that a ping may have, in quanta: `max_kmh` rounded down."""
        return math.floor(self.max_kmh * QUANTA_PER_KMH)


def _expect(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ValueError(f"expected {name} {rule}, got {value!r}")


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
        columns = _Columns(batch.pings, batch.message, batch.position, self.rules)
        refused = columns.refusals()
        if not refused:
            return columns.pings(slice(None)), batch.refusals
        everything = sorted(batch.refusals + refused, key=lambda refusal: (refusal.message, refusal.position))
        return columns.pings(columns.fault == 0), everything


# What the value checks find, in their order. The number in the fault column is the place here, plus 1; 0 is no fault.
_FAULTS = (
    (Reason.EMPTY_PLATE, "$.license_plate"),
    (Reason.WRONG_TYPE, "$.license_plate"),
    (Reason.WRONG_TYPE, "$.observationDateTime"),
    (Reason.NO_UTC_OFFSET, "$.observationDateTime"),
    (Reason.TIME_OUT_OF_RANGE, "$.observationDateTime"),
    (Reason.COORDINATES_OUT_OF_RANGE, "$.location.coordinates[0]"),
    (Reason.COORDINATES_OUT_OF_RANGE, "$.location.coordinates[1]"),
    (Reason.ZERO_COORDINATES, "$.location.coordinates"),
    (Reason.OUTSIDE_BOX, "$.location.coordinates"),
    (Reason.SPEED_NOT_FINITE, "$.speed"),
    (Reason.SPEED_NEGATIVE, "$.speed"),
    (Reason.SPEED_ABOVE_LIMIT, "$.speed"),
)


class _Columns:
    """The columns of a batch before the values are checked, and `fault`, what the checks found in each row."""

    def __init__(
        self, wire: Sequence[WirePing], message: NDArray[np.int32], position: NDArray[np.int32], rules: PingRules
    ) -> None:
        size = len(wire)
        self.message, self.position, self.rules = message, position, rules
        self.plates, self.plate = _index_plates([ping.license_plate for ping in wire])
        self.time_ms, self.time_status = parse_timestamps([ping.observationDateTime for ping in wire])
        points = [ping.location.coordinates for ping in wire]
        self.lon = np.fromiter([point.lon for point in points], np.float64, size)
        self.lat = np.fromiter([point.lat for point in points], np.float64, size)
        self.source_speed = np.fromiter([ping.speed for ping in wire], np.float64, size)
        with np.errstate(over="ignore"):  # becomes infinite, and is refused for it
            self.kmh = self.source_speed * KMH_PER_UNIT[rules.unit]
        self.fault = np.zeros(size, np.uint8)
        checks = self._checks()
        for number in range(len(checks), 0, -1):  # backwards: the first fault is written last, and stands
            self.fault[checks[number - 1]] = number

    def _checks(self) -> tuple[NDArray[np.bool_], ...]:
        """Where each of `_FAULTS` is found."""
        rules, lon, lat = self.rules, self.lon, self.lat
        chars = np.fromiter(map(len, self.plates), np.int64, len(self.plates))[self.plate]
        if rules.box is None:
            outside = np.zeros(len(lon), np.bool_)
        else:
            west, south, east, north = rules.box
            outside = (lon < west) | (lon > east) | (lat < south) | (lat > north)
        return (
            chars == 0,
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

    def refusals(self) -> list[Refusal]:
        """One for each row with a fault."""
        rows = np.flatnonzero(self.fault)
        found = zip(self.message[rows].tolist(), self.position[rows].tolist(), self.fault[rows].tolist(), strict=True)
        return [Refusal(message, position, *_FAULTS[fault - 1]) for message, position, fault in found]

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


def plate_name(text: str) -> str:
    """The plate that is meant: white space around it is dropped.

    >>> plate_name(" GJ05ZZ0001 ")
    'GJ05ZZ0001'
    """
    return text.strip()


def _index_plates(texts: list[str]) -> tuple[list[str], NDArray[np.uint32]]:
    """The distinct plates, stripped of white space, and for each text the index of its plate."""
    index: defaultdict[str, int] = defaultdict(count().__next__)
    plate = np.fromiter(map(index.__getitem__, texts), np.uint32, len(texts))
    stripped = [plate_name(text) for text in index]  # distinct texts only: few, where pings are many
    if stripped == list(index):
        return stripped, plate
    plates, renamed = _index_plates(stripped)
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
    if ping_format is JSON:
        return messages
    batch = ping_format.read(messages, rules.max_message_bytes, rules.max_pings_per_message)
    places = zip(batch.message.tolist(), batch.position.tolist(), strict=True)
    pieces = [(place, _encode(ping)) for place, ping in zip(places, batch.pings, strict=True)]
    refused = zip(batch.refusals, originals(messages, batch.refusals, ping_format), strict=True)
    pieces += [((refusal.message, refusal.position), data) for refusal, data in refused]
    return [data for _, data in sorted(pieces, key=itemgetter(0))]
