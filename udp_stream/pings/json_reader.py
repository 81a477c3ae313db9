"""Messages as they arrive, bytes of JSON, to one `WirePing` a ping, and refusals for what is none.

A message is one ping, an array of pings, or an object with `results`, an array of pings, and no `license_plate`; or a
JSON string that holds one of these, unwrapped once. A byte order mark and white space around it are tolerated.

There are two readers. The quick one is msgspec's typed decoder: it takes a whole batch in one pass and knows only yes
or no. What it cannot take is opened by hand, piece by piece; that decides, and knows why. So a
ping costs 0.6 us when all is well and some 15 us when not, and one bad ping costs its message nothing else.

Of fields given twice the last counts. Fields that we do not know are skipped, their text not checked beyond JSON's
grammar. JSON nested deeper than the interpreter's recursion limit (about 1,000 levels, less what the caller has used)
cannot be read and is refused as not JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType

from udp_stream.pings.formats import NOT_IN_ARRAY, Location, PingFormat, Point, WireBatch, WirePing
from udp_stream.pings.refusals import Reason, Refusal

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Tolerated before JSON, and before any file of pings."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # all that msgspec raises on bad bytes
_WHITE_SPACE = b" \t\r\n"


class _Ping(WirePing, gc=False):
    # Never read. An array is no bool, so an envelope fails here at once and not after a look at all of its pings.
    results: bool | UnsetType = UNSET


class _Envelope(Struct, gc=False):
    results: list[_Ping]
    license_plate: UnsetType = UNSET


class _LooseLocation(Struct, gc=False):
    coordinates: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET


class _LooseObject(Struct, gc=False):
    """Any JSON object: a ping with its faults, or an envelope."""

    license_plate: Raw | UnsetType = UNSET
    observationDateTime: Raw | UnsetType = UNSET  # noqa: N815  the feed's name
    location: Raw | UnsetType = UNSET
    speed: Raw | UnsetType = UNSET
    results: Raw | UnsetType = UNSET


_decode_ping = msgspec.json.Decoder(_Ping).decode
_decode_pings = msgspec.json.Decoder(list[_Ping]).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_object = msgspec.json.Decoder(_LooseObject).decode
_decode_location = msgspec.json.Decoder(_LooseLocation).decode
_split_array = msgspec.json.Decoder(list[Raw]).decode
_decode_anything = msgspec.json.Decoder(Raw).decode
_decode_string = msgspec.json.Decoder(str).decode


class _Fault(Exception):
    """Why the careful reader gave up: a reason and a path. It never leaves this file."""

    def __init__(self, reason: Reason, path: str) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


def read_batch(messages: Sequence[bytes], max_message_bytes: int, max_pings_per_message: int) -> WireBatch:
    """The pings of a batch of messages; nothing is raised, whatever the bytes.

    >>> batch = read_batch([b"[]", b'{"license_plate": 7}', b"?"], 1000, 10)
    >>> [(refusal.message, refusal.reason.value, refusal.path) for refusal in batch.refusals]
    [(1, 'wrong_type', '$.license_plate'), (2, 'not_json', '$')]
    """
    pings: list[WirePing] = []
    refusals: list[Refusal] = []
    pings_in_message = np.ones(len(messages), np.int32)
    arrays: list[tuple[int, Sequence[int]]] = []  # where the pings of an array begin, and their positions in it
    oversized = max(map(len, messages), default=0) > max_message_bytes
    rest = iter([text if len(text) <= max_message_bytes else b"" for text in messages] if oversized else messages)
    index = 0
    while True:
        before = len(pings)
        try:
            pings.extend(map(_decode_ping, rest))
            break
        except _UNREADABLE:  # what was decoded before it is in the list, and `rest` is past the culprit
            index += len(pings) - before
        opened, positions, refused = _open_message(index, messages[index], max_message_bytes, max_pings_per_message)
        pings_in_message[index] = len(opened)
        if positions:
            arrays.append((len(pings), positions))
        pings += opened
        refusals += refused
        index += 1
    message = np.repeat(np.arange(len(messages), dtype=np.int32), pings_in_message)
    position = np.full(len(pings), NOT_IN_ARRAY, np.int32)
    for first, positions in arrays:
        position[first : first + len(positions)] = positions
    return WireBatch(pings, message, position, refusals)


def split_message(message: bytes) -> list[Raw] | None:
    """The pings of an array or envelope, each as its original bytes; None for one ping, and for a string.

    Call it for JSON alone; msgspec.DecodeError leaves for anything else, and for `results` that are no array.

    >>> [bytes(ping) for ping in split_message(b'{"results": [{"speed": 1}, 2]}') or []]
    [b'{"speed": 1}', b'2']
    """
    text = _trim(message)
    if text.startswith(b"["):
        return _split_array(text)
    if text.startswith(b"{"):
        array = _enveloped(_decode_object(text))
        return None if array is None else _split_array(array)
    return None


JSON = PingFormat(read_batch, split_message)
"""Messages of JSON, as the exchange, its recordings and our topics have them."""

_Opened = tuple[Sequence[WirePing], Sequence[int], list[Refusal]]
"""Pings, their positions if they were in an array, refusals."""


def _open_message(index: int, message: bytes, max_bytes: int, max_pings: int) -> _Opened:
    """What the quick reader could not take: an array, an envelope, a string, or something to refuse."""
    try:
        if len(message) > max_bytes:
            raise _Fault(Reason.OVERSIZED_MESSAGE, "$")
        text = _trim(message)
        if text.startswith(b'"'):
            text = _trim(_unwrap(text))
        if text.startswith(b"["):
            return _open_array(index, text, max_pings)
        return _open_object(index, text, len(text) != len(message), max_pings)
    except _Fault as fault:
        return [], [], [Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path)]


def _trim(text: bytes) -> bytes:
    return text.removeprefix(BYTE_ORDER_MARK).lstrip(_WHITE_SPACE)


def _unwrap(text: bytes) -> bytes:
    try:
        return _decode_string(text).encode()
    except _UNREADABLE:
        raise _Fault(Reason.NOT_JSON, "$") from None


def _open_object(index: int, text: bytes, is_changed: bool, max_pings: int) -> _Opened:
    try:
        if b'"results"' in text:  # a guess at which decoder may succeed; what follows decides
            return _all_of(_decode_envelope(text).results, max_pings)
        if is_changed:
            return [_decode_ping(text)], [], []
    except _UNREADABLE:
        pass
    loose = _read_object(text)
    array = _enveloped(loose)
    if array is None:
        return [_check(loose)], [], []
    if not array.startswith(b"["):
        raise _Fault(Reason.WRONG_TYPE, "$.results")
    return _open_array(index, array, max_pings)


def _open_array(index: int, array: bytes, max_pings: int) -> _Opened:
    try:
        return _all_of(_decode_pings(array), max_pings)
    except _UNREADABLE:
        pass
    try:
        pieces = _split_array(array)
    except _UNREADABLE:
        raise _Fault(Reason.NOT_JSON, "$") from None
    if len(pieces) > max_pings:
        raise _Fault(Reason.TOO_MANY_PINGS, "$")
    pings: list[WirePing] = []
    positions: list[int] = []
    refusals: list[Refusal] = []
    for place, piece in enumerate(pieces):
        try:
            pings.append(_read_ping(piece))
        except _Fault as fault:
            refusals.append(Refusal(index, place, fault.reason, fault.path))
        else:
            positions.append(place)
    return pings, positions, refusals


def _all_of(pings: Sequence[WirePing], max_pings: int) -> _Opened:
    if len(pings) > max_pings:
        raise _Fault(Reason.TOO_MANY_PINGS, "$")
    return pings, range(len(pings)), []


def _read_ping(piece: Raw) -> WirePing:
    try:
        return _decode_ping(piece)
    except _UNREADABLE:
        return _check(_read_object(piece))


def _read_object(text: bytes | Raw) -> _LooseObject:
    try:
        return _decode_object(text)
    except msgspec.ValidationError:  # no object; msgspec has not looked whether the rest of it is JSON
        _require_json(text)
        raise _Fault(Reason.WRONG_TYPE, "$") from None
    except _UNREADABLE:
        raise _Fault(Reason.NOT_JSON, "$") from None


def _require_json(text: bytes | Raw) -> None:
    try:
        _decode_anything(text)
    except _UNREADABLE:
        raise _Fault(Reason.NOT_JSON, "$") from None


def _enveloped(loose: _LooseObject) -> bytes | None:
    """What should be the array of pings; None if this is no envelope."""
    if loose.results is UNSET or loose.license_plate is not UNSET:
        return None
    return bytes(loose.results)


def _check(loose: _LooseObject) -> WirePing:
    """The ping in a loose object, or the first fault in the order of the contract's fields."""
    return WirePing(
        _string(loose.license_plate, "$.license_plate"),
        _string(loose.observationDateTime, "$.observationDateTime"),
        _location(loose.location, "$.location"),
        _number(loose.speed, "$.speed"),
    )


def _present(raw: Raw | UnsetType, path: str) -> bytes:
    if raw is UNSET:
        raise _Fault(Reason.MISSING_FIELD, path)
    return bytes(raw)


def _string(raw: Raw | UnsetType, path: str) -> str:
    text = _present(raw, path)
    if not text.startswith(b'"'):
        raise _Fault(Reason.WRONG_TYPE, path)
    try:
        return _decode_string(text)
    except _UNREADABLE:
        raise _Fault(Reason.NOT_JSON, path) from None


def _number(raw: Raw | UnsetType, path: str) -> float:
    """Infinite if it is beyond floating point, which msgspec will not say; the range checks refuse it by its name."""
    text = _present(raw, path)
    if text[:1] not in b"-0123456789":
        raise _Fault(Reason.WRONG_TYPE, path)
    return float(text)


def _location(raw: Raw | UnsetType, path: str) -> Location:
    text = _present(raw, path)
    if not text.startswith(b"{"):
        raise _Fault(Reason.WRONG_TYPE, path)
    loose = _decode_location(text)
    if loose.type is not UNSET and _string(loose.type, f"{path}.type") != "Point":
        raise _Fault(Reason.WRONG_TYPE, f"{path}.type")
    array = _present(loose.coordinates, f"{path}.coordinates")
    numbers = _split_array(array) if array.startswith(b"[") else []
    if len(numbers) < 2:
        raise _Fault(Reason.WRONG_TYPE, f"{path}.coordinates")
    lon, lat = (_number(number, f"{path}.coordinates[{place}]") for place, number in enumerate(numbers[:2]))
    return Location(Point(lon, lat))
