"""Messages of JSON in a feed's own form, by a mapping, to columns: a `PingFormat` as `json_reader` is one.

A message is one ping, an array of pings, or an object that has the array at `records`; a JSON string that holds one of
these is unwrapped once. Without `records` the array may also be `results`, or GeoJSON's `features`, of an object that
has no plate. A message in which the path `records` leads nowhere is one ping, or an array: so a file is cut into pings,
and a topic may hold them one by one.

Mapped fields are lenient: a number may be text, with a point or a comma, and a plate an integer.

There are two readers, as in `json_reader`. The quick one is a typed decoder made from the paths: objects and arrays of
the mapped fields alone. The careful one walks the paths through pieces of JSON and knows why a ping is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from udp_stream.pings.formats import NOT_IN_ARRAY, PingFormat, WireBatch, WireColumns
from udp_stream.pings.json_pieces import (
    UNREADABLE,
    Fault,
    Opened,
    number,
    read_array,
    read_each,
    require_json,
    split_array,
    string,
    trim,
    unwrap,
)
from udp_stream.pings.mapped_rows import Row, built, getters_of, node_of
from udp_stream.pings.mapping import FIELDS, FeedMapping, Path, json_path
from udp_stream.pings.refusals import Reason, Refusal
from udp_stream.pings.times import EPOCHS, TimeValue, read_numbers, read_times

ENVELOPES = ("results", "features")
"""Where the array of pings may be in an object that is no ping."""

_PLATE_DIGITS_MAX = 64
"""No integer plate is longer than a plate may be; Python refuses to read integers of over 4,300 digits at all."""

_decode_object = msgspec.json.Decoder(dict[str | int, Raw]).decode


def mapped_format(mapping: FeedMapping) -> PingFormat:
    """The format of a feed.

    >>> feed = mapped_format(FeedMapping(plate="id", longitude="x", latitude="y", speed="v", time_format="epoch_s",
    ...                                  time="t", records="buses"))
    >>> batch = feed.read([b'{"buses": [{"id": 7, "t": 1706159153, "x": "72,8", "y": 21.1, "v": "12.5"}, {}]}'], 999, 9)
    >>> batch.columns.plates, batch.columns.lon, batch.columns.speed
    (['7'], array([72.8]), array([12.5]))
    >>> [(refusal.position, refusal.reason.value, refusal.path) for refusal in batch.refusals]
    [(1, 'missing_field', '$.id')]
    """
    reader = _Reader(mapping)
    return PingFormat(reader.read, reader.split, mapping.paths, is_json=True)


class _Reader:
    """Both readers of one mapping."""

    def __init__(self, mapping: FeedMapping) -> None:
        self._mapping = mapping
        self._steps = [mapping.steps[name] for name in FIELDS]
        self._records = mapping.record_steps
        self._is_epoch = mapping.time_format in EPOCHS
        time: object = int | float | str if self._is_epoch else str
        self._form = node_of(list(zip(self._steps, range(5), strict=True)), (str | int, time, *[float | str] * 3))
        self._of_array = isinstance(self._steps[0][0], int)
        self._decode = msgspec.json.Decoder(self._form.struct).decode
        self._decode_all = msgspec.json.Decoder(GenericAlias(list, self._form.struct)).decode
        getters = getters_of(self._form)
        self._get: list[Callable[[Row], Any]] = [attrgetter(getters[leaf]) for leaf in range(5)]

    def read(self, messages: Sequence[bytes], max_message_bytes: int, max_pings: int) -> WireBatch:
        """As `PingFormat.read`."""
        rows, message, position, refusals = read_each(
            *(messages, max_message_bytes, self._decode),
            lambda index, text: self._open(index, text, max_message_bytes, max_pings),
        )
        columns, bad = self._columns(rows)
        if bad.any():
            refusals += self._refused(bad, message, position)
            refusals.sort(key=lambda refusal: (refusal.message, refusal.position))
            good = np.flatnonzero(~bad.any(axis=0))
            columns, message, position = _taken(columns, good), message[good], position[good]
        return WireBatch((), message, position, refusals, columns)

    def split(self, message: bytes) -> Sequence[bytes | Raw] | None:
        """As `PingFormat.split`. ValueError if `records` leads to what is no array."""
        text = trim(message)
        if text.startswith(b'"'):
            return None
        try:
            array = self._array(text)
        except Fault as fault:
            raise ValueError(f"{fault.path}: expected an array") from None
        return None if array is None else split_array(array)

    def _columns(self, rows: Sequence[Row]) -> tuple[WireColumns, NDArray[np.bool_]]:
        """The columns, and where a text of longitude, latitude or speed is no number."""
        plates: list[str] = list(map(str, map(self._get[0], rows)))
        times: list[TimeValue] = list(map(self._get[1], rows))
        time_ms, status = read_times(times, self._mapping.time_format, self._mapping.zone)
        (lon, no_lon), (lat, no_lat), (speed, no_speed) = (read_numbers(list(map(get, rows))) for get in self._get[2:])
        return WireColumns(plates, time_ms, status, lon, lat, speed), np.array([no_lon, no_lat, no_speed])

    def _refused(
        self, bad: NDArray[np.bool_], message: NDArray[np.int32], position: NDArray[np.int32]
    ) -> list[Refusal]:
        paths = [json_path(steps) for steps in self._steps[2:]]
        return [
            Refusal(int(message[row]), int(position[row]), Reason.WRONG_TYPE, paths[int(bad[:, row].argmax())])
            for row in np.flatnonzero(bad.any(axis=0)).tolist()
        ]

    def _open(self, index: int, message: bytes, max_bytes: int, max_pings: int) -> Opened[Row]:
        """What the quick reader could not take: an array, an envelope, a string, or something to refuse."""
        try:
            if len(message) > max_bytes:
                raise Fault(Reason.OVERSIZED_MESSAGE, "$")
            text = trim(message)
            if text.startswith(b'"'):
                text = trim(unwrap(text))
            array = self._array(text)
            if array is None:
                return [self._row(Raw(text))], [], []
            return read_array(index, array, max_pings, self._decode_all, self._row)
        except Fault as fault:
            return [], [], [Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path)]

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
        return next((((name,), array) for name in ENVELOPES if (array := pieces.find((name,))) is not None), None)

    def _row(self, piece: Raw) -> Row:
        """The ping that a piece is, or a Fault: the first in the order of the fields."""
        try:
            return self._decode(piece)
        except UNREADABLE:
            pieces = _Pieces(piece)
        if not bytes(piece).startswith((b"{", b"[")):
            require_json(piece)
            raise Fault(Reason.WRONG_TYPE, "$")
        plate, time, *numbers = self._steps
        found = [_plate(pieces, plate), _time(pieces, time, self._is_epoch), *(_number(pieces, of) for of in numbers)]
        return built(self._form, found)


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
    """The message as one ping of a plate; None for anything else, whatever it is.

    >>> single_ping(b'{"bus": 7, "t": "now", "speed": 12.5}', FeedMapping(plate="bus", time="t"))
    Single(plate='7', time='now', speed_bytes=4)
    >>> single_ping(b"[]", FeedMapping())
    """
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


def _taken(columns: WireColumns, rows: NDArray[np.intp]) -> WireColumns:
    """These rows of the columns."""
    return WireColumns(
        [columns.plates[row] for row in rows.tolist()],
        *(columns.time_ms[rows], columns.time_status[rows]),
        *(columns.lon[rows], columns.lat[rows], columns.speed[rows]),
    )
