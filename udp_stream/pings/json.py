"""JSON to pings, by a mapping that says where a feed has their fields. The contract's own form is one mapping, strict.

A message is one ping, an array of pings, or an object that has the array at `records`; a JSON string that holds one of
these is unwrapped once. Without `records` the array may also be `results`, or in a feed's own form GeoJSON's
`features`, of an object that has no plate. A message in which the path `records` leads nowhere is one ping, or an
array: so a file is cut into pings, and a topic may hold them one by one. A byte order mark and white space around a
message are tolerated.

Mapped fields are lenient: a number may be text, with a point or a comma, and a plate an integer. In the contract's form
a number is a number, a plate and a time are texts, and a location that says a type is a Point.

There are two readers. The quick one is msgspec's typed decoder, of objects and arrays of the mapped fields alone: it
takes a whole batch in one pass and knows only yes or no. What it cannot take is opened by hand, piece by piece; that
decides, and knows why. So a ping costs 0.6 us when all is well and some 15 us when not, and one bad ping costs its
message nothing else.

Of fields given twice the last counts. Fields that we do not know are skipped, their text not checked beyond JSON's
grammar. JSON nested deeper than the interpreter's recursion limit (about 1,000 levels, less what the caller has used)
cannot be read and is refused as not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from operator import attrgetter, itemgetter
from types import GenericAlias
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from udp_stream.pings.decode import (
    NOT_IN_ARRAY,
    FieldPaths,
    Location,
    PingFormat,
    PingRules,
    Point,
    Reason,
    Refusal,
    WireBatch,
    WireColumns,
    WirePing,
    originals,
)
from udp_stream.pings.times import EPOCHS, ISO, TimeValue, read_numbers, read_times

FIELDS: Final = ("plate", "time", "longitude", "latitude", "speed")
"""The fields of a ping, in the order in which they are read and refused."""

Path = tuple[str | int, ...]
"""Keys of objects, and indices of arrays."""

INDEX_MAX = 1000
"""No ping lies in an array as long as this: a larger index is a slip."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Tolerated before JSON, and before any file of pings."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises on bad bytes."""

ENVELOPES = ("results", "features")
"""Where the array of pings may be in an object that is no ping. The contract's form has the first alone."""

_PATH_CHARS_MAX = 400
_STEPS_MAX = 16
_NO_KEY = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')
"""Signs of keys that the quick reader of JSON, and a file of TOML, cannot have as they are."""

_ZONED = datetime(2013, 11, 12, 13, 14, 15, tzinfo=timezone(timedelta(hours=5, minutes=30)))
"""A moment whose parts all differ, so that a pattern that leaves one out is noticed."""

_WHITE_SPACE = b" \t\r\n"

_PLATE_DIGITS_MAX = 64
"""No integer plate is longer than a plate may be; Python refuses to read integers of over 4,300 digits at all."""

# `++` and `*+` never go back: a string without an end would else take very long.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
"""Strings, brackets, and a quote that has no other."""

_INFINITE = re.compile(rb'("speed":|"coordinates":\[|"coordinates":\[[^],"]*,)null')

split_array = msgspec.json.Decoder(list[Raw]).decode
"""The elements of an array, as bytes. Raises `UNREADABLE`."""

_decode_string = msgspec.json.Decoder(str).decode
_decode_anything = msgspec.json.Decoder(Raw).decode
_decode_object = msgspec.json.Decoder(dict[str | int, Raw]).decode
_encode = msgspec.json.Encoder().encode

Row = msgspec.Struct
"""A ping as a decoder makes it: nested structs with the fields of the mapping, whatever they are called."""

Opened = tuple[Sequence[Row], Sequence[int], list[Refusal]]
"""Pings, their positions if they were in an array, refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMapping:
    """Where fields are. ValueError names the field, the value and the rule that it breaks.

    `records`: the path of the array of pings in a message; "" finds one ping, an array, `results` or GeoJSON's
    `features`. `time_format`: `iso`, `epoch_s`, `epoch_ms`, `epoch_us`, or a pattern of `strptime`. `zone`: of times
    without an offset, None refuses them. `delimiter`: of CSV, "" finds it.

    >>> mapping = FeedMapping(plate="vehicle.id", longitude="lon", latitude="lat", time_format="epoch_s")
    >>> mapping.paths.plate, mapping.steps["speed"]
    ('$.vehicle.id', ('speed',))
    >>> FeedMapping(plate="speed")
    Traceback (most recent call last):
    ValueError: speed: expected a path of its own, got 'speed', which is that of plate
    """

    plate: str = "license_plate"
    time: str = "observationDateTime"
    longitude: str = "location.coordinates.0"
    latitude: str = "location.coordinates.1"
    speed: str = "speed"
    records: str = ""
    time_format: str = ISO
    zone: tzinfo | None = None
    delimiter: str = ""

    def __post_init__(self) -> None:
        """Hold every path, and the format of times, to its rule."""
        check_time_format(self.time_format)
        if self.records:
            steps_of(self.records, "records")
        _check_together(self.steps)

    @property
    def steps(self) -> dict[str, Path]:
        """The path of each field."""
        return {name: steps_of(getattr(self, name), name) for name in FIELDS}

    @property
    def record_steps(self) -> Path:
        """The path of the array of pings; empty if it is to be found."""
        return steps_of(self.records, "records") if self.records else ()

    @property
    def paths(self) -> FieldPaths:
        """What refusals name."""
        steps = self.steps
        lon, lat = steps["longitude"], steps["latitude"]
        common = lon[: next((at for at, (a, b) in enumerate(zip(lon, lat, strict=False)) if a != b), 0)]
        return FieldPaths(
            *(json_path(steps["plate"]), json_path(steps["time"]), json_path(common)),
            *(json_path(lon), json_path(lat), json_path(steps["speed"])),
        )

    @property
    def one_element(self) -> dict[str, tuple[str, int]]:
        """Fields whose path leads through one element of an array, with the path and that element's index."""
        through = {name: first_element(steps) for name, steps in self.steps.items()}
        return {name: (getattr(self, name), at) for name, at in through.items() if at is not None}

    @property
    def reads_offsets(self) -> bool:
        """Whether a time may say how far it is from UTC."""
        return self.time_format == ISO or self.time_format in EPOCHS or "%z" in self.time_format


def steps_of(path: str, name: str = "path") -> Path:
    """A path taken apart. ValueError, with the name of what has it, if it is none."""
    text = re.sub(r"\[([0-9]+)\]", r".\1", path.removeprefix("$")).removeprefix(".")
    steps = text.split(".")
    if len(path) > _PATH_CHARS_MAX or len(steps) > _STEPS_MAX or not all(step.strip() for step in steps):
        rule = "expected a path such as vehicle.position.latitude or coordinates.0"
        raise ValueError(f"{name}: {rule}, got {path[:80]!r}")
    if _NO_KEY.search(path):
        rule = "expected keys without quotes, backslashes and control characters"
        raise ValueError(f"{name}: {rule}, got {path[:80]!r}")
    taken = tuple(int(step) if step.isdecimal() and step.isascii() and len(step) < 9 else step for step in steps)
    highest = max((step for step in taken if isinstance(step, int)), default=0)
    if highest >= INDEX_MAX:
        raise ValueError(f"{name}: expected indices of arrays below {INDEX_MAX}, got {highest}")
    return taken


def _check_together(steps: dict[str, Path]) -> None:
    """Paths that cannot hold in one ping: two the same, one inside another, a key beside an index."""
    names = list(steps)
    for at, name in enumerate(names):
        for other in names[:at]:
            ours, theirs = steps[name], steps[other]
            alike = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            text = ".".join(map(str, ours))
            if alike is None and len(ours) == len(theirs):
                raise ValueError(f"{name}: expected a path of its own, got {text!r}, which is that of {other}")
            if alike is None:
                raise ValueError(f"{name}: expected a path beside {other}'s, got {text!r}: one lies inside the other")
            if isinstance(ours[alike], int) != isinstance(theirs[alike], int):
                raise ValueError(f"{name}: got {text!r}: of one value it makes an array, and {other}'s path an object")


def first_element(path: Path) -> int | None:
    """The first index on the way of a path; None if there is none but a last one, as of coordinates."""
    return next((step for step in path[:-1] if isinstance(step, int)), None)


def json_path(steps: Path) -> str:
    """As refusals write it."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def check_time_format(time_format: str) -> None:
    """ValueError if it is no format of times: a pattern must have the date and the time of day."""
    if time_format == ISO or time_format in EPOCHS:
        return
    if "%" not in time_format:
        known = ", ".join([ISO, *EPOCHS])
        raise ValueError(f"time_format: expected {known}, or a pattern such as %d/%m/%Y %H:%M:%S, got {time_format!r}")
    if "%Z" in time_format:
        raise ValueError(f"time_format: expected %z, as names of zones (%Z) are ambiguous, got {time_format!r}")
    try:
        read = datetime.strptime(_ZONED.strftime(time_format), time_format)
    except (ValueError, re.error) as error:
        raise ValueError(f"time_format: expected a pattern of strptime, got {time_format!r} ({error})") from error
    if read.replace(second=15, microsecond=0, tzinfo=None) != _ZONED.replace(tzinfo=None):
        raise ValueError(f"time_format: expected a pattern with the date, hour and minute, got {time_format!r}")


@dataclass(frozen=True, slots=True)
class FeedForm:
    """How messages spell pings: the mapping, and the format that reads messages by it.

    >>> PLAIN.format is JSON, mapped_form(FeedMapping(plate="bus")).format.paths.plate
    (True, '$.bus')
    """

    mapping: FeedMapping
    format: PingFormat

    @property
    def is_plain(self) -> bool:
        """Whether it is the contract's own form, read strictly."""
        return self.format is JSON


def mapped_form(mapping: FeedMapping) -> FeedForm:
    """Read by this mapping, and leniently, whatever it says."""
    reader = _Reader(mapping)
    return FeedForm(mapping, PingFormat(reader.read, reader.split, mapping.paths, is_json=True))


class _Reader:
    """Both readers of one mapping, lenient."""

    envelopes: Sequence[str] = ENVELOPES

    def __init__(self, mapping: FeedMapping) -> None:
        self._mapping = mapping
        self._steps = [mapping.steps[name] for name in FIELDS]
        self._records = mapping.record_steps
        self._is_epoch = mapping.time_format in EPOCHS
        time: object = int | float | str if self._is_epoch else str
        self._form = node_of(list(zip(self._steps, range(5), strict=True)), (str | int, time, *[float | str] * 3))
        self._of_array = isinstance(self._steps[0][0], int)
        self._decodes(self._form.struct)
        getters = getters_of(self._form)
        self._get: list[Callable[[Row], Any]] = [attrgetter(getters[leaf]) for leaf in range(5)]

    def _decodes(self, row: type[Row]) -> None:
        self._decode = msgspec.json.Decoder(row).decode
        self._decode_all = msgspec.json.Decoder(GenericAlias(list, row)).decode

    def read(self, messages: Sequence[bytes], max_message_bytes: int, max_pings: int) -> WireBatch:
        """As `PingFormat.read`."""
        rows: list[Row] = []
        refusals: list[Refusal] = []
        pings_in_message = np.ones(len(messages), np.int32)
        arrays: list[tuple[int, Sequence[int]]] = []  # where the pings of an array begin, and their positions in it
        oversized = max(map(len, messages), default=0) > max_message_bytes
        rest = iter([text if len(text) <= max_message_bytes else b"" for text in messages] if oversized else messages)
        index = 0
        while True:
            before = len(rows)
            try:
                rows.extend(map(self._decode, rest))
                break
            except UNREADABLE:  # what was decoded before it is in the list, and `rest` is past the culprit
                index += len(rows) - before
            try:
                opened, positions, refused = self._open(index, messages[index], max_message_bytes, max_pings)
            except Fault as fault:
                opened, positions, refused = [], [], [Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path)]
            pings_in_message[index] = len(opened)
            if positions:
                arrays.append((len(rows), positions))
            rows += opened
            refusals += refused
            index += 1
        message = np.repeat(np.arange(len(messages), dtype=np.int32), pings_in_message)
        position = np.full(len(rows), NOT_IN_ARRAY, np.int32)
        for first, positions in arrays:
            position[first : first + len(positions)] = positions
        return self._batch(rows, message, position, refusals)

    def split(self, message: bytes) -> Sequence[bytes | Raw] | None:
        """As `PingFormat.split`. ValueError if the path of the array leads to what is none."""
        text = trim(message)
        if text.startswith(b'"'):
            return None
        try:
            array = self._array(text)
        except Fault as fault:
            raise ValueError(f"{fault.path}: expected an array") from None
        return None if array is None else split_array(array)

    def _batch(
        self, rows: list[Row], message: NDArray[np.int32], position: NDArray[np.int32], refusals: list[Refusal]
    ) -> WireBatch:
        """As columns, without the rows in which a text of longitude, latitude or speed is no number."""
        plates: list[str] = list(map(str, map(self._get[0], rows)))
        times: list[TimeValue] = list(map(self._get[1], rows))
        time_ms, status = read_times(times, self._mapping.time_format, self._mapping.zone)
        (lon, no_lon), (lat, no_lat), (speed, no_speed) = (read_numbers(list(map(get, rows))) for get in self._get[2:])
        bad = np.array([no_lon, no_lat, no_speed])
        if bad.any():
            paths = [json_path(steps) for steps in self._steps[2:]]
            for row in np.flatnonzero(bad.any(axis=0)).tolist():
                path = paths[int(bad[:, row].argmax())]
                refusals.append(Refusal(int(message[row]), int(position[row]), Reason.WRONG_TYPE, path))
            refusals.sort(key=lambda refusal: (refusal.message, refusal.position))
            good = np.flatnonzero(~bad.any(axis=0))
            plates, message, position = [plates[row] for row in good.tolist()], message[good], position[good]
            time_ms, status, lon, lat, speed = time_ms[good], status[good], lon[good], lat[good], speed[good]
        return WireBatch((), message, position, refusals, WireColumns(plates, time_ms, status, lon, lat, speed))

    def _open(self, index: int, message: bytes, max_bytes: int, max_pings: int) -> Opened:
        """What the quick reader could not take: an array, an envelope, a string, or something to refuse (a Fault)."""
        if len(message) > max_bytes:
            raise Fault(Reason.OVERSIZED_MESSAGE, "$")
        text = trim(message)
        if text.startswith(b'"'):
            text = trim(unwrap(text))
        array = self._array(text)
        if array is None:
            return [self._row(Raw(text))], [], []
        try:
            rows = self._decode_all(array)
            if len(rows) > max_pings:
                raise Fault(Reason.TOO_MANY_PINGS, "$")
            return rows, range(len(rows)), []
        except UNREADABLE:
            return self._open_pieces(index, array, max_pings)

    def _open_pieces(self, index: int, array: bytes, max_pings: int) -> Opened:
        """The pings of an array piece by piece, of which some are none."""
        try:
            pieces = split_array(array)
        except UNREADABLE:
            raise Fault(Reason.NOT_JSON, "$") from None
        if len(pieces) > max_pings:
            raise Fault(Reason.TOO_MANY_PINGS, "$")
        rows: list[Row] = []
        positions: list[int] = []
        refusals: list[Refusal] = []
        for place, piece in enumerate(pieces):
            try:
                rows.append(self._row(piece))
                positions.append(place)
            except Fault as fault:
                refusals.append(Refusal(index, place, fault.reason, fault.path))
        return rows, positions, refusals

    def _array(self, text: bytes) -> bytes | None:
        """The array of pings in a message; None if it is one ping, or nothing. A Fault if `records` is no array."""
        if text.startswith(b"["):
            return None if self._of_array and not text[1:].lstrip().startswith((b"[", b"]")) else text
        if not text.startswith(b"{"):
            return None
        pieces = _Pieces(Raw(text))
        found = self._enveloped(pieces)
        if found is not None and not bytes(found[1]).startswith(b"["):
            raise Fault(Reason.WRONG_TYPE, json_path(found[0]))
        return None if found is None else bytes(found[1])

    def _enveloped(self, pieces: _Pieces) -> tuple[Path, Raw] | None:
        if self._records:
            array = pieces.find(self._records)
            return None if array is None else (self._records, array)
        if pieces.find(self._steps[0]) is not None:
            return None
        found = ((((name,), pieces.find((name,)))) for name in self.envelopes)
        return next(((path, array) for path, array in found if array is not None), None)

    def _row(self, piece: Raw) -> Row:
        """The ping that a piece is, or a Fault: the first in the order of the fields."""
        try:
            return self._decode(piece)
        except UNREADABLE:
            pieces = _Pieces(piece)
        if not bytes(piece).startswith((b"{", b"[")):
            require_json(piece)
            raise Fault(Reason.WRONG_TYPE, "$")
        return self._careful(pieces)

    def _careful(self, pieces: _Pieces) -> Row:
        plate, time, *numbers = self._steps
        found = [_plate(pieces, plate), _time(pieces, time, self._is_epoch), *(_number(pieces, of) for of in numbers)]
        return built(self._form, found)


class _PlainRow(WirePing, gc=False):
    # Never read. An array is no bool, so an envelope fails here at once and not after a look at all of its pings.
    results: bool | UnsetType = UNSET


class _PlainReader(_Reader):
    """Both readers of the contract's form, strict. Its rows are pings, and stay so for who writes them again."""

    envelopes = ENVELOPES[:1]

    def __init__(self) -> None:
        super().__init__(FeedMapping())
        self._decodes(_PlainRow)

    def _batch(
        self, rows: list[Row], message: NDArray[np.int32], position: NDArray[np.int32], refusals: list[Refusal]
    ) -> WireBatch:
        return WireBatch(cast(list[WirePing], rows), message, position, refusals)

    def _careful(self, pieces: _Pieces) -> WirePing:
        plate, time, longitude, latitude, speed = self._steps
        name, when = (string(pieces.get(path), json_path(path)) for path in (plate, time))
        kind = ("location", "type")
        if (said := pieces.find(kind)) is not None and string(bytes(said), json_path(kind)) != "Point":
            raise Fault(Reason.WRONG_TYPE, json_path(kind))
        try:
            lon, lat = (number(pieces.get(path), json_path(path)) for path in (longitude, latitude))
        except Fault as fault:
            if fault.reason == Reason.MISSING_FIELD and fault.path in map(json_path, (longitude, latitude)):
                raise Fault(Reason.WRONG_TYPE, json_path(longitude[:-1])) from None  # of fewer than two numbers
            raise
        return WirePing(name, when, Location(Point(lon, lat)), number(pieces.get(speed), json_path(speed)))


class _Pieces:
    """A piece of JSON, looked into by paths; what was opened once is remembered."""

    def __init__(self, piece: Raw) -> None:
        self._piece = piece
        self._opened: dict[Path, dict[str | int, Raw]] = {}

    def get(self, path: Path) -> bytes:
        """The text at a path, or a Fault that says how far it leads."""
        piece = self._piece
        for depth, step in enumerate(path):
            container = self._open(path[:depth], piece, step)
            if step not in container:
                raise Fault(Reason.MISSING_FIELD, json_path(path[: depth + 1]))
            piece = container[step]
        return bytes(piece)

    def find(self, path: Path) -> Raw | None:
        """The same, None if it leads nowhere. A Fault if this is not JSON."""
        try:
            return Raw(self.get(path))
        except Fault as fault:
            if fault.reason == Reason.NOT_JSON:
                raise
            return None

    def _open(self, path: Path, piece: Raw, step: str | int) -> dict[str | int, Raw]:
        if path not in self._opened:
            text, opens = bytes(piece), b"{" if isinstance(step, str) else b"["
            if not text.startswith(opens):
                if not path:
                    require_json(piece)
                raise Fault(Reason.WRONG_TYPE, json_path(path))
            try:
                self._opened[path] = (
                    _decode_object(text) if isinstance(step, str) else dict(enumerate(split_array(text)))
                )
            except UNREADABLE:
                raise Fault(Reason.NOT_JSON, json_path(path)) from None
        return self._opened[path]


def _plate(pieces: _Pieces, path: Path) -> str:
    """A string, or an integer as its digits."""
    text = pieces.get(path)
    if text.startswith(b'"'):
        return string(text, json_path(path))
    if not text.lstrip(b"-").isdigit() or len(text) > _PLATE_DIGITS_MAX:
        raise Fault(Reason.WRONG_TYPE, json_path(path))
    return str(int(text))


def _time(pieces: _Pieces, path: Path, is_epoch: bool) -> TimeValue:
    """A string, or where times are counted a number."""
    text = pieces.get(path)
    if text.startswith(b'"') or not is_epoch:
        return string(text, json_path(path))
    return number(text, json_path(path))


def _number(pieces: _Pieces, path: Path) -> float | str:
    """A number, or a string that the column will be asked about."""
    text = pieces.get(path)
    return string(text, json_path(path)) if text.startswith(b'"') else number(text, json_path(path))


class Single(NamedTuple):
    """What a sender asks of a message that is one ping: the plate, the time as it stands, the length of the speed.

    >>> Single("A1", "2024-01-25", 4).speed_bytes
    4
    """

    plate: str
    time: TimeValue
    speed_bytes: int


def single_ping(message: bytes, mapping: FeedMapping) -> Single | None:
    """The message as one ping of a plate; None for anything else, whatever it is."""
    pieces, steps = _Pieces(Raw(trim(message))), mapping.steps
    try:
        plate = _plate(pieces, steps["plate"])
        speed = pieces.find(steps["speed"])
    except Fault:
        return None
    try:
        time = _time(pieces, steps["time"], mapping.time_format in EPOCHS)
    except Fault:
        time = ""
    return Single(plate, time, 0 if speed is None else len(bytes(speed))) if plate.strip() else None


@dataclass(frozen=True, slots=True)
class Node:
    """An object or an array of the form: its struct, and for each of its fields a node, a leaf's number, or None.

    >>> node_of([(("id",), 0)], (str,)).children
    (0,)
    """

    struct: type[Row]
    children: tuple[Node | int | None, ...]


def node_of(paths: Sequence[tuple[Path, int]], types: Sequence[object], depth: int = 0) -> Node:
    """The tree of these paths, of which each ends in a leaf with its number; `types` are those of the leaves."""
    groups: dict[str | int, list[tuple[Path, int]]] = {}
    for path, leaf in paths:
        groups.setdefault(path[depth], []).append((path, leaf))
    is_array = any(isinstance(key, int) for key in groups)
    keys: list[str | int] = list(range(1 + max(int(key) for key in groups))) if is_array else list(groups)
    fields: list[tuple[str, Any]] = []
    children: list[Node | int | None] = []
    for at, key in enumerate(keys):
        group = groups.get(key, [])
        if not group:
            children.append(None)
            fields.append((f"f{at}", Raw))
        elif len(group[0][0]) == depth + 1:
            leaf = group[0][1]
            children.append(leaf)
            fields.append((f"f{at}", types[leaf]))
        else:
            child = node_of(group, types, depth + 1)
            children.append(child)
            fields.append((f"f{at}", child.struct))
    rename = None if is_array else {f"f{at}": str(key) for at, key in enumerate(keys)}
    struct = msgspec.defstruct("Mapped", fields, array_like=is_array, rename=rename, gc=False)
    return Node(struct, tuple(children))


def getters_of(node: Node, prefix: str = "") -> dict[int, str]:
    """The dotted attribute of each leaf."""
    found: dict[int, str] = {}
    for at, child in enumerate(node.children):
        if isinstance(child, Node):
            found |= getters_of(child, f"{prefix}f{at}.")
        elif child is not None:
            found[child] = f"{prefix}f{at}"
    return found


def built(node: Node, values: Sequence[object]) -> Row:
    """A row of these values, as a decoder would have made it."""
    made = [
        built(child, values) if isinstance(child, Node) else Raw(b"null") if child is None else values[child]
        for child in node.children
    ]
    return node.struct(*made)


class Fault(Exception):
    """Why a careful reader gave up: a reason and a path. It never leaves the readers.

    >>> Fault(Reason.NOT_JSON, "$").path
    '$'
    """

    def __init__(self, reason: Reason, path: str) -> None:
        """A reason, and a JSON path to the fault."""
        super().__init__(reason, path)
        self.reason, self.path = reason, path


def trim(text: bytes) -> bytes:
    """The text without a byte order mark and white space before it."""
    return text.removeprefix(BYTE_ORDER_MARK).lstrip(_WHITE_SPACE)


def unwrap(text: bytes) -> bytes:
    """What a JSON string holds, as bytes."""
    try:
        return _decode_string(text).encode()
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None


def whole_part(text: bytes) -> bytes | None:
    """JSON that ends too early, cut behind the last whole element of the outermost array that is open there and has
    one, and closed; if no array is open, behind the last whole object or array. None if that gives no JSON.
    """
    opened: list[tuple[bytes, list[int]]] = []  # how each bracket is closed, and where elements in it ended
    for mark in _MARKS.finditer(text):
        match mark[0]:
            case b"{":
                opened.append((b"}", []))
            case b"[":
                opened.append((b"]", []))
            case b"}" | b"]":
                if not opened or opened.pop()[0] != mark[0]:
                    return None
                if opened:
                    opened[-1][1][:] = [mark.end()]
            case b'"':
                break
    kind = b"]" if any(closer == b"]" for closer, _ in opened) else b"}"
    for depth, (closer, ends) in enumerate(opened):
        if closer == kind and ends:
            part = text[: ends[0]] + b"".join(closer for closer, _ in opened[depth::-1])
            return part if _is_json(part) else None
    return None


def _is_json(text: bytes) -> bool:
    try:
        _decode_anything(text)
    except UNREADABLE:
        return False
    return True


def require_json(text: bytes | Raw) -> None:
    """A Fault unless the text is JSON, whatever it says."""
    try:
        _decode_anything(text)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None


def string(text: bytes, path: str) -> str:
    """The string that the text of a field is."""
    if not text.startswith(b'"'):
        raise Fault(Reason.WRONG_TYPE, path)
    try:
        return _decode_string(text)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, path) from None


def number(text: bytes, path: str) -> float:
    """Infinite if it is beyond floating point, which msgspec will not say; the range checks refuse it by its name."""
    if text[:1] not in b"-0123456789":
        raise Fault(Reason.WRONG_TYPE, path)
    return float(text)


def with_infinite(encoded: bytes) -> bytes:
    """Encoded pings of the contract's form with the numbers that are too large for JSON, which the encoder writes as
    null: they are refused for their values. In texts a quote has a backslash before it, so no text is changed.
    """
    if b"null" not in encoded:
        return encoded
    return _INFINITE.sub(rb"\g<1>1e999", _INFINITE.sub(rb"\g<1>1e999", encoded))  # once for each coordinate


def json_messages(messages: list[bytes], ping_format: PingFormat, rules: PingRules) -> list[bytes]:
    """Messages of a format as messages of JSON, which is what topics hold: a message for each ping, in order.

    What the format refuses stays as it is, for the reader of the topic to refuse. Messages of JSON stay as they are.
    """
    if ping_format.is_json:
        return messages
    batch = ping_format.read(messages, rules.max_message_bytes, rules.max_pings_per_message)
    places = zip(batch.message.tolist(), batch.position.tolist(), strict=True)
    pieces = [(place, with_infinite(_encode(ping))) for place, ping in zip(places, batch.pings, strict=True)]
    refused = zip(batch.refusals, originals(messages, batch.refusals, ping_format), strict=True)
    pieces += [((refusal.message, refusal.position), data) for refusal, data in refused]
    return [data for _, data in sorted(pieces, key=itemgetter(0))]


_PLAIN_READER = _PlainReader()

JSON = PingFormat(_PLAIN_READER.read, _PLAIN_READER.split, is_json=True)
"""The contract's form, as the exchange, its recordings and our topics have it."""

PLAIN = FeedForm(FeedMapping(), JSON)
"""The same, with its mapping."""


# Feeds that are known by name: where they have the fields of a ping, and in which unit their speeds are.
#
# Each is read from its specification or from recorded messages; docs/feeds.md has the addresses.


@dataclass(frozen=True, slots=True)
class Preset:
    """The keys of `[source]` that a feed needs, and the unit of its speeds; None where the feed does not say.

    >>> PRESETS["gtfs-rt"].keys["records"], PRESETS["gtfs-rt"].unit
    ('entity', 'mps')
    """

    title: str
    unit: str | None
    keys: dict[str, str]

    @property
    def mapping(self) -> FeedMapping:
        """Where the feed has the fields of a ping."""
        return FeedMapping(**self.keys, zone=None)


def _preset(title: str, unit: str | None, *paths: str, **more: str) -> Preset:
    """Paths in the order of `FIELDS`, as many as are not those of the contract's form."""
    return Preset(title, unit, dict(zip(FIELDS, paths, strict=False)) | more)


PRESETS: Final = {
    # iudx-resource-server docs/openapi.yaml; unit by displacement (docs/pings.md)
    "iudx": _preset("India's data exchange, TransitManagement; also numbers as text and integer plates", "kmh"),
    # RFC 7946, sections 3.2 and 3.3
    "geojson": _preset(
        *("GeoJSON features with the exchange's names as properties", None),
        *("properties.license_plate", "properties.observationDateTime"),
        *("geometry.coordinates.0", "geometry.coordinates.1", "properties.speed"),
    ),
    # google/transit gtfs-realtime.proto, JSON by protobuf's own mapping
    "gtfs-rt": _preset(
        *("GTFS-realtime VehiclePositions as JSON, names in camelCase or with underscores", "mps"),
        *("vehicle.vehicle.id", "vehicle.timestamp"),
        *("vehicle.position.longitude", "vehicle.position.latitude", "vehicle.position.speed"),
        time_format="epoch_s",
        records="entity",
    ),
    # scascketta/CapMetrics, data/vehicle_positions/2017-03-21.csv
    "capmetro": _preset(
        *("CSV of CapMetrics' recordings of Austin's buses, from 2016 on", "mps"),
        *("vehicle_id", "timestamp", "longitude", "latitude"),
    ),
    # api-v3.mbta.com, resource Vehicle
    "mbta": _preset(
        *("MBTA's V3 API, /vehicles (JSON:API)", "mps", "id", "attributes.updated_at"),
        *("attributes.longitude", "attributes.latitude", "attributes.speed"),
        records="data",
    ),
    # digitransit.fi, high-frequency positioning; HSLdevcom/transitdata-common protos/hfp.proto
    "hfp": _preset(
        *("HSL's high-frequency positions (Digitransit), the payload of event VP", "mps"),
        *("VP.veh", "VP.tst", "VP.long", "VP.lat", "VP.spd"),
    ),
    # dados.mobilidade.rio/gps/sppo, as its readers describe it
    "rio-sppo": _preset(
        *("Rio de Janeiro's buses (SPPO): text throughout, decimal commas", "kmh"),
        *("ordem", "datahora", "longitude", "latitude", "velocidade"),
        time_format="epoch_ms",
    ),
}
"""By the name that `source.preset` has. Keys that a preset leaves out have the values of the contract's form."""

WITHOUT_SPEED: Final = {
    "wmata": "BusPositions of WMATA's JSON API has no speeds; its GTFS-realtime feed has: gtfs-rt",
    "nextbus": "times are seconds before a time that the message has once (secsSinceReport), which no path reaches",
    "umo": "times are seconds before a time that the message has once (secsSinceReport), which no path reaches",
    "tfl": "TfL's unified API has arrivals and no positions of buses",
}
"""Feeds that someone may ask for by name, and why there can be no preset."""
