"""Pings: raw messages to columns, and a refusal for everything that does not count.

A format (`json.py`, `snapshots.py`) gives fields of the right type, and says why a piece is no
ping. It judges no value: limits, box and speeds are `PingDecoder`'s. So a format that is wrong can
lose pings or invent them, but cannot get a speed past the bound that the noise is scaled to.

A ping with several faults is refused for the first: the shape (fields present and of their type:
plate, time, location, speed), then the values in the order of `_checks`.
"""

from __future__ import annotations

import enum
import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.base.units import KMH_PER_UNIT, KMH_QUANTUM, QUANTA_PER_KMH
from udp_stream.pings.times import NO_OFFSET, NO_TIME, parse_timestamps

MAX_PLATE_CHARS = 64  # bounds what a ping can make the ledger and the open slots remember

YEAR_2000_MS = 946_684_800_000
YEAR_2100_MS = 4_102_444_800_000
_MAX_QUANTA = 2**31 - 1  # speeds are kept in columns of 32 bits, signed

PLACEHOLDERS = frozenset(
    {"null", "none", "nil", "n/a", "#n/a", "na", "nan", "unknown", "undefined", "-", "--", "\\n"}
)
"""Words, in small letters, that stand where a value is missing. All vehicles without a plate would
share a budget."""

_PLACEHOLDER_CHARS = max(map(len, PLACEHOLDERS))


Box = tuple[float, float, float, float]
"""West, south, east, north, in degrees."""

EARTH: Box = -180.0, -90.0, 180.0, 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRules:
    """Limits of accepted pings. ValueError names the field, the value and the rule that it breaks.

    `unit`: of the source's speeds. Pings faster than `max_kmh` are clamped to it, and above
    `reject_above_kmh` refused. `box`: edges included; it cannot cross the antimeridian. Times are
    accepted from the year 2000 up to but not 2100.
    `max_pings_per_message`: twice the 5,000 that the exchange's API gives in a single answer.
    `max_message_bytes`: 8 MiB holds that many pings of 800 bytes (the exchange's have about 490).

    >>> PingRules(max_kmh=65, reject_above_kmh=200).max_quanta
    266240
    >>> PingRules(max_kmh=65, reject_above_kmh=50)
    Traceback (most recent call last):
    ValueError: expected reject_above_kmh to be finite and >= max_kmh (65), got 50
    """

    unit: str = "kmh"
    max_kmh: float
    reject_above_kmh: float
    box: Box | None = None
    max_message_bytes: int = 8 * 2**20
    max_pings_per_message: int = 10_000

    def __post_init__(self) -> None:
        highest = _MAX_QUANTA // QUANTA_PER_KMH
        west, south, east, north = self.box or EARTH
        limits = (
            ("unit", self.unit in KMH_PER_UNIT, f"to be one of {', '.join(KMH_PER_UNIT)}"),
            ("max_kmh", KMH_QUANTUM <= self.max_kmh <= highest, f"in [{KMH_QUANTUM}, {highest}]"),
            (
                "reject_above_kmh",
                self.max_kmh <= self.reject_above_kmh < math.inf,
                f"to be finite and >= max_kmh ({self.max_kmh})",
            ),
            (
                "box",
                -180 <= west < east <= 180 and -90 <= south < north <= 90,
                "to be west, south, east, north with -180 <= west < east <= 180 and -90 <= south < north <= 90",
            ),
        )
        for name, holds, rule in limits:
            if not holds:
                raise ValueError(f"expected {name} {rule}, got {getattr(self, name)!r}")

    @property
    def max_quanta(self) -> int:
        """The highest speed that a ping may have, in quanta: `max_kmh` rounded down."""
        return math.floor(self.max_kmh * QUANTA_PER_KMH)


class Reason(enum.StrEnum):
    """The closed list. Names are public: in `bus.pings.rejected.v1`, in metrics and in the docs."""

    NOT_JSON = "not_json"
    NOT_GTFS_REALTIME = "not_gtfs_realtime"
    OTHER_EVENT = "other_event"  # no ping, and no fault: HSL's topics have other events than VP
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    NO_UTC_OFFSET = "no_utc_offset"
    TIME_OUT_OF_RANGE = "time_out_of_range"
    TIME_ROLLED_OVER = "time_rolled_over"  # windows/clocks.py: 1,024 weeks behind the log's clock
    TIME_IN_FUTURE = (
        "time_in_future"  # windows/clocks.py: only the log's clock knows what is ahead of it
    )
    COORDINATES_OUT_OF_RANGE = "coordinates_out_of_range"
    ZERO_COORDINATES = "zero_coordinates"
    OUTSIDE_BOX = "outside_box"
    OUTSIDE_ZONES = "outside_zones"  # windows/slots.py: no fault, where zones are some streets
    SPEED_NOT_FINITE = "speed_not_finite"
    SPEED_NEGATIVE = "speed_negative"
    SPEED_ABOVE_LIMIT = "speed_above_limit"
    EMPTY_PLATE = "empty_plate"
    PLACEHOLDER_PLATE = "placeholder_plate"
    OVERSIZED_MESSAGE = "oversized_message"
    TOO_MANY_PINGS = "too_many_pings"
    LATE = "late"  # windows/slots.py: the slot of the ping has closed; the refusal says by how much (lag_ms)
    SLOT_FULL = "slot_full"  # windows/slots.py: an open slot holds as many pings as it may


@dataclass(frozen=True, slots=True)
class Refusal:
    """A ping, or a whole message, that is not counted.

    `message`: its index in the batch. `position`: the ping's place in the message's array, -1 if
    the message is the ping or is refused whole. `path`: a JSON path to the fault, such as
    `$.location.coordinates[1]`, never content. `lag_ms`: how late, for `late`.
    """

    message: int
    position: int
    reason: Reason
    path: str
    lag_ms: int | None = None


NOT_IN_ARRAY = -1  # the position of a ping that is a message by itself


class Point(Struct, array_like=True, gc=False):
    """Degrees in GeoJSON's order; an altitude, or anything else behind the first two, is skipped."""

    lon: float
    lat: float


class Location(Struct, gc=False):
    """A GeoJSON point; `type` may be left out."""

    coordinates: Point
    type: Literal["Point"] = "Point"


class WirePing(Struct, gc=False):
    """A ping whose fields have the right types; values are not checked yet. `speed` is in the
    source's unit."""

    license_plate: str
    observationDateTime: str  # noqa: N815  the feed's name
    location: Location
    speed: float


class PlacedPing(Struct, gc=False):
    """A ping whose speed is derived later: none is written, and 0 stands in its column."""

    license_plate: str
    observationDateTime: str  # noqa: N815  the feed's name
    location: Location
    speed: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class WireColumns:
    """Such pings as columns of equal length. `time_ms`, `time_status`: as `times.parse_timestamps`
    gives them."""

    plates: Sequence[str]
    time_ms: Integers
    time_status: NDArray[np.uint8]
    lon: Floats
    lat: Floats
    speed: Floats

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.time_ms, self.time_status, self.lon, self.lat, self.speed

    def taken(self, rows: NDArray[np.intp]) -> WireColumns:
        """These rows, in this order."""
        plates = [self.plates[row] for row in rows.tolist()]
        return WireColumns(plates, *(column[rows] for column in self._arrays))

    def beside(self, *more: WireColumns) -> WireColumns:
        """The rows of all."""
        every = (self, *more)
        arrays = zip(*(one._arrays for one in every), strict=True)
        plates = [plate for one in every for plate in one.plates]
        return WireColumns(plates, *map(np.concatenate, arrays))


class FieldPaths(NamedTuple):
    """Where a format has each field, as JSON paths: what a refusal names."""

    plate: str = "$.license_plate"
    time: str = "$.observationDateTime"
    position: str = "$.location.coordinates"
    longitude: str = "$.location.coordinates[0]"
    latitude: str = "$.location.coordinates[1]"
    speed: str = "$.speed"


PLAIN_PATHS = FieldPaths()  # of the contract's own form


@dataclass(frozen=True, slots=True, eq=False)
class WireBatch:
    """The pings of a batch in order, as objects or `columns`, where each comes from, and what was
    refused.

    `message`: for each ping the index of its message. `position`: its place there, NOT_IN_ARRAY if
    it is a message by itself. `refusals` are in the order of messages and positions. `notes` count
    how pings were read, such as the field that plates are from. `untimed`: which pings have no time
    but their message's, where a format can tell and places may be looked at.
    """

    pings: Sequence[WirePing | PlacedPing]
    message: NDArray[np.int32]
    position: NDArray[np.int32]
    refusals: list[Refusal]
    columns: WireColumns | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    untimed: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class PingFormat:
    """How messages spell pings: two pure functions, and what is known of the format.

    `read(messages, max_message_bytes, max_pings_per_message)`: the pings of a batch, and a refusal
    for every other piece. It raises nothing, whatever the bytes. `split(message)`: the bytes of
    each ping of a message that `read` opened, by position, to keep those of refused pings; None to
    keep the whole message. `is_json`: messages are JSON, in the form of the feed's mapping, or
    `as_json` makes them so. `container`: JSON, XML, or the delimiter of CSV. `is_exchanged`:
    longitudes stand where latitudes are read, and the other way round.

    >>> from udp_stream.pings.json import JSON
    >>> JSON.read([b"{}"], 1000, 10).refusals[0].path, [bytes(ping) for ping in JSON.split(b"[1, {}]")]
    ('$.license_plate', [b'1', b'{}'])
    """

    read: Callable[[Sequence[bytes], int, int], WireBatch]
    split: Callable[[bytes], Sequence[bytes | Raw] | None]
    paths: FieldPaths = PLAIN_PATHS
    is_json: bool = False
    as_json: Callable[[Sequence[bytes]], list[bytes]] = list
    container: str = "JSON"
    is_exchanged: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Pings:
    """The accepted pings of a batch, in the order of their messages, as read-only columns of one
    length.

    `plates`: the distinct plates, in order of first appearance. `plate`: index into them.
    `time_ms`: Unix milliseconds, UTC, rounded down. `lat`, `lon`: degrees. `speed`: quanta of
    1/4096 km/h, rounded to the nearest, in [0, max_quanta]. `message`, `position`: as in `Refusal`.
    """

    plates: tuple[str, ...]
    plate: NDArray[np.uint32]
    time_ms: Integers
    lat: Floats
    lon: Floats
    speed: NDArray[np.int32]
    message: NDArray[np.int32]
    position: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.plate)


@dataclass(frozen=True, slots=True)
class PingDecoder:
    """Bytes to columns by fixed rules; holds no state, so any number of batches may go through one
    decoder.

    >>> from udp_stream.pings.json import JSON
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
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
    format: PingFormat

    def decode(self, messages: Sequence[bytes]) -> tuple[Pings, list[Refusal]]:
        """The accepted pings, and the refusals in the order of messages and positions; no bytes
        make it raise. Every ping of every message is in one of the two; so is every message, but
        for an array without pings."""
        batch = self.format.read(
            messages, self.rules.max_message_bytes, self.rules.max_pings_per_message
        )
        wire = columns_of(batch.pings) if batch.columns is None else batch.columns
        if self.format.is_exchanged:
            wire = replace(wire, lon=wire.lat, lat=wire.lon)
        plates, plate = _index_plates(wire.plates)
        with np.errstate(over="ignore"):  # becomes infinite, and is refused for it
            kmh = wire.speed * KMH_PER_UNIT[self.rules.unit]
        checks = list(_checks(wire, plates, plate, kmh, self.rules, self.format.paths))
        fault = np.zeros(
            len(plate), np.uint8
        )  # the place of a ping's first fault in the checks, plus 1
        for number in range(
            len(checks), 0, -1
        ):  # backwards: the first fault is written last, and stands
            fault[checks[number - 1][0]] = number
        rows = np.flatnonzero(fault)
        if not rows.size:
            return self._pings(batch, wire, plates, plate, kmh), batch.refusals
        found = zip(
            batch.message[rows].tolist(),
            batch.position[rows].tolist(),
            fault[rows].tolist(),
            strict=True,
        )
        refused = [
            Refusal(message, position, *checks[number - 1][1:])
            for message, position, number in found
        ]
        every = sorted(
            batch.refusals + refused, key=lambda refusal: (refusal.message, refusal.position)
        )
        kept = fault == 0
        in_use = np.zeros(len(plates), np.bool_)  # not the plates that only refused pings had
        in_use[plate[kept]] = True
        plate = np.cumsum(in_use, dtype=np.uint32)[plate] - np.uint32(1)
        plates = [text for text, used in zip(plates, in_use.tolist(), strict=True) if used]
        return self._pings(batch, wire, plates, plate, kmh, kept), every

    def _pings(
        self,
        batch: WireBatch,
        wire: WireColumns,
        plates: list[str],
        plate: NDArray[np.uint32],
        kmh: Floats,
        kept: slice | Flags = slice(None),
    ) -> Pings:
        """The rows that are kept, all of them without fault."""
        # Clamped here, before anything is stored: sensitivities rest on no speed being above
        # max_quanta.
        quanta = np.minimum(np.rint(kmh[kept] * QUANTA_PER_KMH), self.rules.max_quanta).astype(
            np.int32
        )
        columns: tuple[NDArray[Any], ...] = (
            *(plate[kept], wire.time_ms[kept], wire.lat[kept], wire.lon[kept]),
            *(quanta, batch.message[kept], batch.position[kept]),
        )
        for column in columns:
            column.flags.writeable = False
        return Pings(tuple(plates), *columns)


def _checks(
    wire: WireColumns,
    plates: list[str],
    plate: NDArray[np.uint32],
    kmh: Floats,
    rules: PingRules,
    paths: FieldPaths,
) -> Iterator[tuple[Flags, Reason, str]]:
    """The checks of values in their order: which rows fail, the reason, and the path."""
    lengths = np.fromiter(map(len, plates), np.int64, len(plates))
    chars = lengths[plate]
    are_words = np.zeros(len(plates), np.bool_)
    for short in np.flatnonzero(
        lengths <= _PLACEHOLDER_CHARS
    ).tolist():  # plates are longer, nearly all
        are_words[short] = plates[short].lower() in PLACEHOLDERS
    yield chars == 0, Reason.EMPTY_PLATE, paths.plate
    yield are_words[plate], Reason.PLACEHOLDER_PLATE, paths.plate
    yield chars > MAX_PLATE_CHARS, Reason.WRONG_TYPE, paths.plate
    yield wire.time_status == NO_TIME, Reason.WRONG_TYPE, paths.time
    yield wire.time_status == NO_OFFSET, Reason.NO_UTC_OFFSET, paths.time
    is_other_time = (wire.time_ms < YEAR_2000_MS) | (wire.time_ms >= YEAR_2100_MS)
    yield is_other_time, Reason.TIME_OUT_OF_RANGE, paths.time
    lon = wire.lon
    lat = wire.lat
    # So, and not with >: JSON has no nan, but another format may.
    yield ~(np.abs(lon) <= 180), Reason.COORDINATES_OUT_OF_RANGE, paths.longitude
    yield ~(np.abs(lat) <= 90), Reason.COORDINATES_OUT_OF_RANGE, paths.latitude
    yield (lon == 0) & (lat == 0), Reason.ZERO_COORDINATES, paths.position
    if rules.box is not None:
        west, south, east, north = rules.box
        outside = (lon < west) | (lon > east) | (lat < south) | (lat > north)
        yield outside, Reason.OUTSIDE_BOX, paths.position
    yield ~np.isfinite(wire.speed), Reason.SPEED_NOT_FINITE, paths.speed
    yield wire.speed < 0, Reason.SPEED_NEGATIVE, paths.speed
    yield kmh > rules.reject_above_kmh, Reason.SPEED_ABOVE_LIMIT, paths.speed


def columns_of(wire: Sequence[WirePing | PlacedPing]) -> WireColumns:
    """Pings as columns."""
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
    """A plate without white space around it, in NFKC, without format characters, which nobody sees."""
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
    # Again, as texts that differ in white space alone may now be the same plate.
    plates, renamed = _index_plates(names)
    return plates, renamed[plate]


def originals(
    messages: Sequence[bytes], refusals: Sequence[Refusal], ping_format: PingFormat
) -> Iterator[bytes]:
    """The bytes of each refusal, cut out of its array; the whole message if it came in a string."""
    cut_up = -1
    pieces = None
    for refusal in refusals:
        piece: bytes | Raw = messages[refusal.message]
        if refusal.position != NOT_IN_ARRAY:
            if refusal.message != cut_up:
                cut_up = refusal.message
                pieces = ping_format.split(messages[refusal.message])
            if pieces is not None:
                piece = pieces[refusal.position]
        yield bytes(piece)
