"""JSON to pings, by a mapping that says where a feed has their fields. The contract's own form is
a single mapping, strict.

A message is a ping, an array of pings, or an object that has the array at `records`; a JSON string
that holds any of these is unwrapped once. Without `records` the array may also be `results`, or in
a feed's own form GeoJSON's `features`, of an object that has no plate. A message in which `records`
leads nowhere is a ping, or an array. An object at `records` is a ping, and a string there is
unwrapped once.

A feed may say a time once for all pings of a message (`message_time`): it is the time of pings that
have none, and what times that count back (`seconds_ago`) count from. Pings that are cut out of a
message carry it under that name.

Mapped fields are lenient: a number may be text, with a point or a comma, and a plate an integer. In
the contract's form a number is a number, a plate and a time are texts, and a location that says a
type is a Point.

The quick reader, msgspec's typed decoder of the mapped fields, takes a whole batch in a single pass
and knows only yes or no. What it cannot take the careful reader opens piece by piece, and knows
why. So a ping costs 0.6 us when all is well and some 15 us when not, and a bad ping costs its
message nothing else.

Of fields given twice the last counts. Unknown fields are skipped. JSON nested deeper than the
interpreter's recursion limit (about 1,000 levels, less what the caller has used) is refused as not
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from types import GenericAlias
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType
from numpy.typing import NDArray

from udp_stream.pings.decode import (
    NOT_IN_ARRAY,
    PLACEHOLDERS,
    PLAIN_PATHS,
    Location,
    PingFormat,
    PingRules,
    PlacedPing,
    Point,
    Reason,
    Refusal,
    WireBatch,
    WireColumns,
    WirePing,
    originals,
    plate_name,
)
from udp_stream.pings.mapping import (
    ANY_KEY,
    MESSAGE_TIME,
    SECONDS_AGO,
    FeedMapping,
    Path,
    json_path,
)
from udp_stream.pings.texts import UNREADABLE, as_written, finite, is_json, trim
from udp_stream.pings.times import (
    EPOCHS,
    ISO,
    READ,
    TimeColumns,
    TimeValue,
    count_in,
    joined_times,
    number_of,
    read_numbers,
    read_times,
)

ENVELOPES = ("results", "features")
"""Where the array of pings may be in an object that is no ping. The contract's form has the first
alone."""

_AGO_MAX_S = 1e10  # with more a time is out of range in any case
_PLATE_DIGITS_MAX = (
    64  # as of any plate; Python refuses to read integers of over 4,300 digits at all
)

_OTHER_EVENT = re.compile(rb'\s*\{\s*"[A-Z]{2,8}"\s*:\s*\{')
"""How the message of an event begins, as HSL names them: VP, DUE, ARS."""

_INFINITE = re.compile(rb'("speed":|"coordinates":\[|"coordinates":\[[^],"]*,)null')

split_array = msgspec.json.Decoder(list[Raw]).decode
"""The elements of an array, as bytes. Raises `UNREADABLE`."""

_decode_string = msgspec.json.Decoder(str).decode
_decode_object = msgspec.json.Decoder(dict[str | int, Raw]).decode
_encode = msgspec.json.Encoder().encode


def _never(_: object) -> Any:
    """A decoder that takes nothing."""
    raise msgspec.DecodeError


Opened = tuple[Sequence[Struct], Sequence[int], list[Refusal]]
"""Pings, as a decoder makes them; their positions if they were in an array; refusals."""


@dataclass(frozen=True, slots=True)
class FeedForm:
    """The mapping of a feed, and the format that reads messages by it. `gtfs_plate`: the fields of
    GTFS-realtime's vehicle that name it, if not in the order of `snapshots.py`."""

    mapping: FeedMapping
    format: PingFormat
    gtfs_plate: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is the contract's own form, read strictly."""
        return self.format.read in (JSON.read, JSON_WITHOUT_SPEEDS.read)


def mapped_form(mapping: FeedMapping) -> FeedForm:
    """A form that is read by this mapping, leniently."""
    reader = _Reader(mapping)
    return FeedForm(mapping, PingFormat(reader.read, reader.split, mapping.paths, is_json=True))


def without_speeds(form: FeedForm) -> FeedForm:
    """The same form where speeds are derived from positions: none is looked at."""
    mapping = replace(form.mapping, speed="")
    plain = replace(form.format, read=JSON_WITHOUT_SPEEDS.read, split=JSON_WITHOUT_SPEEDS.split)
    return replace(form, mapping=mapping, format=plain) if form.is_plain else mapped_form(mapping)


def exchanged(form: FeedForm) -> FeedForm:
    """The same form where longitude and latitude stand under each other's name."""
    mapping = replace(
        form.mapping, longitude=form.mapping.latitude, latitude=form.mapping.longitude
    )
    if not form.is_plain:
        return mapped_form(mapping)
    paths = PLAIN_PATHS._replace(longitude=PLAIN_PATHS.latitude, latitude=PLAIN_PATHS.longitude)
    return replace(form, format=replace(form.format, is_exchanged=True, paths=paths))


class _Reader:
    """Both readers of a mapping, lenient."""

    envelopes: Sequence[str] = ENVELOPES

    def __init__(self, mapping: FeedMapping) -> None:
        self._mapping = mapping
        self._steps = [path for _, path in mapping.leaves]
        self._fields = len(mapping.steps)
        self._times = len(mapping.times) - 1  # beyond the first
        self._records = mapping.record_steps
        first = {path[0] for path in self._steps}
        event = f'{{"{first.pop()}":{{'.encode() if len(first) == 1 else b""
        self._event = self._steps[0][:1] if _OTHER_EVENT.match(event) else ()
        time: object = (
            int | float | str
            if mapping.time_format in EPOCHS
            else str | int
            if self._times
            else str
        )
        leaves = range(len(self._steps))
        types = (str | int, time, *[float | str] * (self._fields - 2))
        more = [types[0]] * (len(leaves) - len(types))
        self._form = node_of(list(zip(self._steps, leaves, strict=True)), (*types, *more))
        self._of_array = isinstance(self._steps[0][0], int)
        self._decodes(self._form.struct)
        getters = getters_of(self._form)
        self._get: list[Callable[[Struct], Any]] = [attrgetter(getters[leaf]) for leaf in leaves]

    def _decodes(self, row: type[Struct]) -> None:
        # Where times count back from the message's, the quick reader would take them for times: it
        # takes nothing.
        is_slow = self._mapping.time_format == SECONDS_AGO
        self._decode = _never if is_slow else msgspec.json.Decoder(row).decode
        self._decode_all = (
            _never if is_slow else msgspec.json.Decoder(GenericAlias(list, row)).decode
        )

    def read(self, messages: Sequence[bytes], max_message_bytes: int, max_pings: int) -> WireBatch:
        rows = list[Struct]()
        refusals = list[Refusal]()
        pings_in_message = np.ones(len(messages), np.int32)
        arrays: list[
            tuple[int, Sequence[int]]
        ] = []  # where the pings of an array begin, and their positions in it
        oversized = max(map(len, messages), default=0) > max_message_bytes
        rest = iter(
            [text if len(text) <= max_message_bytes else b"" for text in messages]
            if oversized
            else messages
        )
        index = 0
        while True:
            before = len(rows)
            try:
                rows.extend(map(self._decode, rest))
                break
            except UNREADABLE:  # `rest` is past the culprit
                index += len(rows) - before
            try:
                opened, positions, refused = self._open(
                    index, messages[index], max_message_bytes, max_pings
                )
            except Fault as fault:
                opened = []
                positions = []
                refused = [Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path)]
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
        """As `PingFormat.split`. ValueError if the path of the array leads to something else."""
        text = trim(message)
        if text.startswith(b'"'):
            return None
        plain = finite(text)
        try:
            array = self._array(plain)
            said = self._message_time(plain) if array is not None else None
        except Fault as fault:
            raise ValueError(f"{fault.path}: expected an array") from None
        if array is None:
            return None
        pieces: Sequence[bytes | Raw] = split_array(array)
        if said is not None:
            pieces = [_with_time(bytes(piece), said) for piece in pieces]
        return pieces if plain is text else [as_written(bytes(piece)) for piece in pieces]

    def _batch(
        self,
        rows: list[Struct],
        message: NDArray[np.int32],
        position: NDArray[np.int32],
        refusals: list[Refusal],
    ) -> WireBatch:
        """As columns, without rows in which a text is no number. A speed that is not read is 0."""
        plates: list[str] = list(map(str, map(self._get[0], rows)))
        if others := self._get[self._fields + self._times :]:
            plates = joined_plates(plates, *(map(str, map(get, rows)) for get in others))
        times: list[TimeValue] = list(map(self._get[1], rows))
        if self._times:
            columns = [
                list(map(str, map(get, rows))) for get in self._get[self._fields :][: self._times]
            ]
            joined = joined_times([list(map(str, times)), *columns], self._mapping.time_format)
            times = [
                one if type(one) is ReadyTime else text
                for one, text in zip(times, joined, strict=True)
            ]
        time_ms, status = times_of(times, self._mapping)
        numbers = [read_numbers(list(map(get, rows))) for get in self._get[2 : self._fields]]
        lon, lat, speed = [column for column, _ in [*numbers, (np.zeros(len(rows)), None)][:3]]
        wire = WireColumns(plates, time_ms, status, lon, lat, speed)
        bad = np.array([is_none for _, is_none in numbers])
        if bad.any():
            paths = [json_path(steps) for steps in self._steps[2 : self._fields]]
            for row in np.flatnonzero(bad.any(axis=0)).tolist():
                path = paths[int(bad[:, row].argmax())]
                refusals.append(
                    Refusal(int(message[row]), int(position[row]), Reason.WRONG_TYPE, path)
                )
            refusals.sort(key=lambda refusal: (refusal.message, refusal.position))
            good = np.flatnonzero(~bad.any(axis=0))
            message = message[good]
            position = position[good]
            wire = wire.taken(good)
        return WireBatch((), message, position, refusals, wire)

    def _open(self, index: int, message: bytes, max_bytes: int, max_pings: int) -> Opened:
        """A message that the quick reader could not take, or a Fault."""
        if len(message) > max_bytes:
            raise Fault(Reason.OVERSIZED_MESSAGE, "$")
        text = finite(trim(message))
        if text.startswith(b'"'):
            text = finite(trim(unwrap(text)))
        array = self._array(text)
        if array is None:
            return [self._row(Raw(text), self._message_time(text))], [], []
        try:
            rows = self._decode_all(array)
            if len(rows) > max_pings:
                raise Fault(Reason.TOO_MANY_PINGS, "$")
            return rows, range(len(rows)), []
        except UNREADABLE:
            return self._open_pieces(index, array, max_pings, self._message_time(text))

    def _open_pieces(self, index: int, array: bytes, max_pings: int, said: Raw | None) -> Opened:
        """The pings of an array piece by piece, and refusals of other pieces."""
        try:
            pieces = split_array(array)
        except UNREADABLE:
            raise Fault(Reason.NOT_JSON, "$") from None
        if len(pieces) > max_pings:
            raise Fault(Reason.TOO_MANY_PINGS, "$")
        rows = list[Struct]()
        positions = list[int]()
        refusals = list[Refusal]()
        for place, piece in enumerate(pieces):
            try:
                rows.append(self._row(piece, said))
                positions.append(place)
            except Fault as fault:
                refusals.append(Refusal(index, place, fault.reason, fault.path))
        return rows, positions, refusals

    def _array(self, text: bytes) -> bytes | None:
        """The array of pings in a message; None if it is a ping, or nothing. A Fault if `records`
        is no array."""
        if (
            self._records
            and text.startswith((b"{", b"["))
            and (gathered := self._gathered(text)) is not None
        ):
            return gathered
        if text.startswith(b"["):
            return (
                None if self._of_array and not text[1:].lstrip().startswith((b"[", b"]")) else text
            )
        if not text.startswith(b"{"):
            return None
        pieces = _Pieces(Raw(text))
        found = self._enveloped(pieces)
        if found is None:
            # A message with its time and nothing of a ping has no vehicles: writers leave an empty
            # array out.
            says_time = (
                self._records
                and self._mapping.message_time
                and pieces.find(self._mapping.message_steps)
            )
            return b"[]" if says_time and pieces.find(self._steps[0][:1]) is None else None
        held = bytes(found[1])
        if self._records and held.startswith(b'"'):
            held = finite(trim(unwrap(held, json_path(found[0]))))
        if self._records and held.startswith(b"{"):
            return b"[" + held + b"]"
        if not held.startswith(b"["):
            raise Fault(Reason.WRONG_TYPE, json_path(found[0]))
        return held

    def _gathered(self, text: bytes) -> bytes | None:
        """The pings of arrays in arrays or at any key, or with a plate from around their array;
        None where the plain reading does."""
        plates = self._mapping.plates
        wanted = dict.fromkeys((*plates, (ANY_KEY,))) if ANY_KEY in self._records else plates
        is_keyed = ANY_KEY in self._records
        pieces = _Pieces(Raw(text))
        if is_keyed and pieces.find((ANY_KEY,)) is not None:  # a ping that was cut out
            return None
        if text.startswith(b"{") and not is_keyed:
            is_found = pieces.find(self._records) is not None
            around = [
                pieces,
                *(pieces.at(self._records[:depth]) for depth in range(1, len(self._records))),
            ]
            if is_found and not any(
                one.find(path[:1]) is not None for one in around if one for path in plates
            ):
                return None
        try:
            groups = list(records_within(Raw(text), self._records))
            found = [
                piece
                for records, outside in groups
                for piece in with_plates(records, outside, [*wanted])
            ]
        except UNREADABLE:
            raise Fault(Reason.NOT_JSON, "$") from None
        return b"[" + b",".join(found) + b"]" if groups else None

    def _message_time(self, text: bytes) -> Raw | None:
        """The message's time as it stands, also in a ping that was cut out of a message."""
        if not self._mapping.message_time or not text.startswith(b"{"):
            return None
        pieces = _Pieces(Raw(text))
        return pieces.find((MESSAGE_TIME,)) or pieces.find(self._mapping.message_steps)

    def _enveloped(self, pieces: _Pieces) -> tuple[Path, Raw] | None:
        if self._records:
            array = pieces.find(self._records)
            return None if array is None else (self._records, array)
        if pieces.find(self._steps[0]) is not None:
            return None
        found = ((((name,), pieces.find((name,)))) for name in self.envelopes)
        return next(((path, array) for path, array in found if array is not None), None)

    def _row(self, piece: Raw, said: Raw | None) -> Struct:
        """The ping that a piece is, or a Fault: the first in the order of the fields. `said`: the
        message's time."""
        try:
            return self._decode(piece)
        except UNREADABLE:
            pieces = _Pieces(piece)
        if not bytes(piece).startswith((b"{", b"[")):
            require_json(piece)
            raise Fault(Reason.WRONG_TYPE, "$")
        if self._event and _OTHER_EVENT.match(bytes(piece)) and pieces.find(self._event) is None:
            raise Fault(Reason.OTHER_EVENT, json_path(self._event))
        return self._careful(pieces, said)

    def _careful(self, pieces: _Pieces, said: Raw | None) -> Struct:
        plate, *others = map(pieces.plate, self._mapping.plates)
        time = _time_of(pieces, self._steps[1], self._mapping, said)
        of_message = type(time) is ReadyTime
        times = ["" if of_message else pieces.plate(path) for path in self._mapping.times[1:]]
        numbers = map(pieces.either, self._steps[2 : self._fields])
        return built(self._form, [plate, time, *numbers, *times, *others])


class _PlainRow(WirePing, gc=False):
    # Never read. An array is no bool, so an envelope fails here at once and not after a look at all
    # of its pings.
    results: bool | UnsetType = UNSET


class _PlacedRow(PlacedPing, gc=False):
    results: bool | UnsetType = UNSET


class _PlainReader(_Reader):
    """Both readers of the contract's form, strict. Its rows are pings, which can be written again."""

    envelopes = ENVELOPES[:1]

    def __init__(self, mapping: FeedMapping) -> None:
        super().__init__(mapping)
        self._decodes(_PlainRow if mapping.speed else _PlacedRow)

    def _batch(
        self,
        rows: list[Struct],
        message: NDArray[np.int32],
        position: NDArray[np.int32],
        refusals: list[Refusal],
    ) -> WireBatch:
        return WireBatch(cast(list[WirePing | PlacedPing], rows), message, position, refusals)

    def _careful(self, pieces: _Pieces, _said: Raw | None) -> Struct:
        plate, time, longitude, latitude, *speed = self._steps
        name = pieces.string(plate)
        when = pieces.string(time)
        kind = ("location", "type")
        if pieces.find(kind) is not None and pieces.string(kind) != "Point":
            raise Fault(Reason.WRONG_TYPE, json_path(kind))
        try:
            lon = pieces.number(longitude)
            lat = pieces.number(latitude)
        except Fault as fault:
            if fault.reason == Reason.MISSING_FIELD and fault.path in map(
                json_path, (longitude, latitude)
            ):
                raise Fault(
                    Reason.WRONG_TYPE, json_path(longitude[:-1])
                ) from None  # of fewer than two numbers
            raise
        place = Location(Point(lon, lat))
        if not speed:
            return PlacedPing(name, when, place)
        return WirePing(name, when, place, pieces.number(speed[0]))


class _Pieces:
    """A piece of JSON, read by paths; objects and arrays are opened once."""

    def __init__(self, piece: Raw) -> None:
        self.text = piece
        self._opened = dict[Path, dict[str | int, Raw]]()

    def get(self, path: Path) -> bytes:
        """The text at a path, or a Fault that says how far the path leads."""
        piece = self.text
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

    def at(self, path: Path) -> _Pieces | None:
        """The object at a path; None if there is none."""
        found = self.find(path)
        return _Pieces(found) if found is not None and bytes(found).startswith(b"{") else None

    def string(self, path: Path) -> str:
        if not (text := self.get(path)).startswith(b'"'):
            raise Fault(Reason.WRONG_TYPE, json_path(path))
        return _string_of(text, json_path(path))

    def number(self, path: Path) -> float:
        """Infinite if it is beyond floating point, where msgspec raises; the range checks refuse
        it."""
        if (text := self.get(path))[:1] not in b"-0123456789":
            raise Fault(Reason.WRONG_TYPE, json_path(path))
        return float(text)

    def either(self, path: Path) -> float | str:
        return self.string(path) if self.get(path).startswith(b'"') else self.number(path)

    def plate(self, path: Path) -> str:
        """A string, or an integer as its digits."""
        if (text := self.get(path)).startswith(b'"'):
            return self.string(path)
        if not text.lstrip(b"-").isdigit() or len(text) > _PLATE_DIGITS_MAX:
            raise Fault(Reason.WRONG_TYPE, json_path(path))
        return str(int(text))

    def time(self, path: Path, time_format: str, is_part: bool) -> TimeValue:
        """A string, where times are counted a number, or the digits of a date or a time of day."""
        return (
            self.either(path)
            if time_format in EPOCHS
            else self.plate(path)
            if is_part
            else self.string(path)
        )

    def _open(self, path: Path, piece: Raw, step: str | int) -> dict[str | int, Raw]:
        if path not in self._opened:
            text = bytes(piece)
            opens = b"{" if isinstance(step, str) else b"["
            if not text.startswith(opens):
                if not path:
                    require_json(piece)
                raise Fault(Reason.WRONG_TYPE, json_path(path))
            try:
                is_object = isinstance(step, str)
                self._opened[path] = (
                    _decode_object(text) if is_object else {**dict(enumerate(split_array(text)))}
                )
            except UNREADABLE:
                raise Fault(Reason.NOT_JSON, json_path(path)) from None
        return self._opened[path]


Around = tuple[_Pieces, ...]
"""The objects around a ping, from inside to outside."""


def records_within(
    text: Raw, path: Path, around: Around = ()
) -> Iterator[tuple[list[Raw], Around]]:
    """The pings of each array at a path that may lead through arrays and any keys, and the objects
    around them. Raises `UNREADABLE`."""
    start = bytes(text)[:1]
    keyed = path[:1] == (ANY_KEY,)
    if not path:
        if start == b'"':
            text = Raw(finite(trim(unwrap(bytes(text)))))
            start = bytes(text)[:1]
        if start in (b"[", b"{"):
            yield (split_array(text) if start == b"[" else [text]), around
    elif start == b"[" and not isinstance(path[0], int):
        for one in (every := split_array(text)):
            yield from records_within(one, path, around)
        if not every:
            yield [], around
    elif start == b"[":
        for at, one in enumerate(split_array(text)):
            if at == path[0]:
                yield from records_within(one, path[1:], around)
    elif start == b"{":
        held = _decode_object(text)
        if keyed and not held:
            yield [], around
        here = (_Pieces(text), *around)
        for key in held if keyed else [key for key in path[:1] if key in held]:
            if not keyed:
                yield from records_within(held[key], path[1:], here)
            elif bytes(held[key])[:1] in (b"{", b"["):
                own = (_Pieces(Raw(_encode({ANY_KEY: key}))), *here)
                yield from records_within(held[key], path[1:], own)


def with_plates(records: list[Raw], around: Around, plates: Sequence[Path]) -> list[bytes]:
    """The pings of an array, with the plates that none of them has its own of, from the nearest
    object around it."""
    pieces = list(map(bytes, records))
    if not around or any(not piece.startswith(b"{") for piece in pieces):
        return pieces
    for plate in plates:
        found = next((one for outside in around if (one := outside.find(plate)) is not None), None)
        if found is not None and all(_Pieces(piece).find(plate[:1]) is None for piece in records):
            held: object = found
            for step in reversed(plate):
                held = {str(step): held}
            named = _encode(held)
            pieces = [
                piece[:-1] + (b"," if piece[1:-1].strip() else b"") + named[1:] for piece in pieces
            ]
    return pieces


class ReadyTime(int):
    """A time that is worked out already."""


def times_of(values: Sequence[TimeValue], mapping: FeedMapping) -> TimeColumns:
    """A column of times as a mapping has them, some of which may be worked out already."""
    ready = (
        [at for at, value in enumerate(values) if type(value) is ReadyTime]
        if mapping.message_time
        else []
    )
    if not ready:
        return read_times(values, mapping.time_format, mapping.zone)
    # In the format of the others it is a count that is too large, or no text: it is written over.
    time_format = ISO if mapping.time_format == SECONDS_AGO else mapping.time_format
    time_ms, status = read_times(values, time_format, mapping.zone)
    time_ms[ready] = [int(values[at]) for at in ready]
    status[ready] = READ
    return time_ms, status


def _time_of(pieces: _Pieces, path: Path, mapping: FeedMapping, said: Raw | None) -> TimeValue:
    """The ping's own time; the message's, where it has none; or that less the seconds that the ping
    says."""
    counts_back = mapping.time_format == SECONDS_AGO
    is_part = len(mapping.times) > 1
    if not mapping.message_time:
        return pieces.time(path, mapping.time_format, is_part)
    own = pieces.find(path)
    said = pieces.find((MESSAGE_TIME,)) or said  # a ping that was cut out of a message has it
    if own is None and said is None:
        raise Fault(Reason.MISSING_FIELD, json_path(mapping.message_steps if counts_back else path))
    if not counts_back and own is not None and bytes(own) != b"null":
        return pieces.time(path, mapping.time_format, is_part)
    if said is None:
        raise Fault(Reason.MISSING_FIELD, json_path(mapping.message_steps))
    sent_ms = _moment(bytes(said), mapping)
    if not counts_back:
        return ReadyTime(sent_ms)
    seconds = pieces.either(path)
    ago_s = number_of(seconds) if isinstance(seconds, str) else seconds
    if ago_s is None:
        raise Fault(Reason.WRONG_TYPE, json_path(path))
    return ReadyTime(sent_ms - round(min(max(ago_s, -_AGO_MAX_S), _AGO_MAX_S) * 1000))


def _moment(text: bytes, mapping: FeedMapping) -> int:
    """Unix milliseconds of a message's time: a count from 1970 by its size, a time in the mapping's
    pattern, or ISO."""
    value = (
        _string_of(text, json_path(mapping.message_steps))
        if text.startswith(b'"')
        else text.decode()
    )
    count = number_of(count_in(value))
    value = value if count is None else count_in(value)
    patterns = [mapping.time_format] if "%" in mapping.time_format else []
    formats = [*patterns, ISO] if count is None else [epoch_of(count)]
    for time_format in formats:
        time_ms, status = read_times([value], time_format, mapping.zone)
        if status[0] == READ:
            return int(time_ms[0])
    raise Fault(Reason.WRONG_TYPE, json_path(mapping.message_steps))


def epoch_of(count: float) -> str:
    """Which of `EPOCHS` a count of our days is, by its size."""
    return "epoch_s" if count < 1e11 else "epoch_ms" if count < 1e14 else "epoch_us"


def _with_time(piece: bytes, said: Raw) -> bytes:
    """An object with the message's time behind its fields."""
    inner = piece[1:-1].strip() if piece.startswith(b"{") else b""
    return b'{%s,"%s":%s}' % (inner, MESSAGE_TIME.encode(), bytes(said)) if inner else piece


def joined_plates(*columns: Iterable[str]) -> list[str]:
    """The plate that several values make, the same for no others: `12/1001`, with tilde and slash
    within a value as a JSON pointer has them. If a value is missing, or a word for a missing value,
    the plate is that."""
    known = dict[tuple[str, ...], str]()
    plates = []
    for values in zip(*columns, strict=True):
        if (plate := known.get(values)) is None:
            names = [plate_name(value) for value in values]
            missing = next(
                (name for name in names if not name or name.lower() in PLACEHOLDERS), None
            )
            escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
            plate = known[values] = "/".join(escaped) if missing is None else missing
        plates.append(plate)
    return plates


class SinglePing(NamedTuple):
    """The parts of a ping that `feed` needs: the plate, the time as it stands, the length of the
    speed."""

    plate: str
    time: TimeValue
    speed_bytes: int


def single_ping(message: bytes, mapping: FeedMapping) -> SinglePing | None:
    """The message as a ping of a plate; None for any other message."""
    text = finite(trim(message))
    pieces = _Pieces(Raw(text))
    steps = mapping.steps
    try:
        plate, *others = map(pieces.plate, mapping.plates)
        speed = pieces.find(steps["speed"]) if "speed" in steps else None
    except Fault:
        return None
    if others:
        (plate,) = joined_plates([plate], *([other] for other in others))
    try:
        said = pieces.find(mapping.message_steps) if mapping.message_time else None
        time = _time_of(pieces, steps["time"], mapping, said)
    except Fault:
        time = ""
    # The length of the message without its speed must not depend on how the speed is spelt.
    speed_bytes = 0 if speed is None else len(message) - len(text) + len(bytes(speed))
    if mapping.times[1:] and type(time) is not ReadyTime:
        rest = [pieces.find(path) for path in mapping.times[1:]]
        texts = [str(msgspec.json.decode(part)) if part is not None else "" for part in rest]
        (time,) = joined_times([[str(time)], *([text] for text in texts)], mapping.time_format)
    return SinglePing(plate, time, speed_bytes) if plate.strip() else None


@dataclass(frozen=True, slots=True)
class Node:
    """An object or an array of the form: its struct, and each field's node, leaf's number, or None."""

    struct: type[Struct]
    children: tuple[Node | int | None, ...]


def node_of(paths: Sequence[tuple[Path, int]], types: Sequence[object], depth: int = 0) -> Node:
    """The tree of these paths, with the numbers of their leaves; `types` are those of the leaves."""
    groups = dict[str | int, list[tuple[Path, int]]]()
    for path, leaf in paths:
        groups.setdefault(path[depth], []).append((path, leaf))
    is_array = any(isinstance(key, int) for key in groups)
    keys: list[str | int] = (
        list(range(1 + max(int(key) for key in groups))) if is_array else list(groups)
    )
    children: list[Node | int | None] = [
        None
        if group is None
        else group[0][1]
        if len(group[0][0]) == depth + 1
        else node_of(group, types, depth + 1)
        for group in map(groups.get, keys)
    ]
    kinds = [
        child.struct if isinstance(child, Node) else Raw if child is None else types[child]
        for child in children
    ]
    fields: list[Any] = [(f"f{at}", kind) for at, kind in enumerate(kinds)]
    rename = None if is_array else {f"f{at}": str(key) for at, key in enumerate(keys)}
    struct = msgspec.defstruct("Mapped", fields, array_like=is_array, rename=rename, gc=False)
    return Node(struct, tuple(children))


def getters_of(node: Node, prefix: str = "") -> dict[int, str]:
    """The dotted attribute of each leaf."""
    found = dict[int, str]()
    for at, child in enumerate(node.children):
        if isinstance(child, Node):
            found |= getters_of(child, f"{prefix}f{at}.")
        elif child is not None:
            found[child] = f"{prefix}f{at}"
    return found


def built(node: Node, values: Sequence[object]) -> Struct:
    """A row of these values, as a decoder would have made it."""
    made = [
        built(child, values)
        if isinstance(child, Node)
        else Raw(b"null")
        if child is None
        else values[child]
        for child in node.children
    ]
    return node.struct(*made)


class Fault(Exception):
    """The careful reader refuses a piece, for a reason, at a path; never raised out of `pings/`."""

    def __init__(self, reason: Reason, path: str) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


def unwrap(text: bytes, path: str = "$") -> bytes:
    """The content of the JSON string at a path."""
    return _string_of(text, path).encode()


def _string_of(text: bytes, path: str) -> str:
    try:
        return _decode_string(text)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, path) from None


def require_json(text: bytes | Raw) -> None:
    """A Fault unless the text is JSON, whatever it says."""
    if not is_json(text):
        raise Fault(Reason.NOT_JSON, "$")


def with_infinite(encoded: bytes) -> bytes:
    """Encoded pings of the contract's form, with numbers too large for JSON in place of the
    encoder's null. No text is changed, as a quote in it has a backslash before it."""
    if b"null" not in encoded:
        return encoded
    return _INFINITE.sub(
        rb"\g<1>1e999", _INFINITE.sub(rb"\g<1>1e999", encoded)
    )  # once for each coordinate


def json_messages(messages: list[bytes], ping_format: PingFormat, rules: PingRules) -> list[bytes]:
    """Messages of JSON, as topics hold them: a message for each ping, in order. Pieces that the
    format refuses, and messages of JSON, stay as they are."""
    if ping_format.is_json:
        return ping_format.as_json(messages)
    batch = ping_format.read(messages, rules.max_message_bytes, rules.max_pings_per_message)
    places = zip(batch.message.tolist(), batch.position.tolist(), strict=True)
    pieces = [
        (place, with_infinite(_encode(ping)))
        for place, ping in zip(places, batch.pings, strict=True)
    ]
    refused = zip(batch.refusals, originals(messages, batch.refusals, ping_format), strict=True)
    pieces += [((refusal.message, refusal.position), data) for refusal, data in refused]
    return [data for _, data in sorted(pieces, key=itemgetter(0))]


_PLAIN_READER = _PlainReader(FeedMapping())
_SPEEDLESS_READER = _PlainReader(FeedMapping(speed=""))

JSON = PingFormat(_PLAIN_READER.read, _PLAIN_READER.split, is_json=True)
"""The contract's form, as the exchange, its recordings and our topics have it."""

JSON_WITHOUT_SPEEDS = PingFormat(_SPEEDLESS_READER.read, _SPEEDLESS_READER.split, is_json=True)


PLAIN = FeedForm(FeedMapping(), JSON)
