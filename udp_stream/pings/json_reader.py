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
from msgspec import UNSET, Raw, Struct, UnsetType

from udp_stream.pings.formats import NOT_IN_ARRAY, Location, PingFormat, Point, WireBatch, WirePing
from udp_stream.pings.json_pieces import (
    UNREADABLE,
    Fault,
    Opened,
    all_of,
    number,
    read_array,
    read_each,
    require_json,
    split_array,
    string,
    trim,
    unwrap,
)
from udp_stream.pings.refusals import Reason, Refusal


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


def read_batch(messages: Sequence[bytes], max_message_bytes: int, max_pings_per_message: int) -> WireBatch:
    """The pings of a batch of messages; nothing is raised, whatever the bytes.

    >>> batch = read_batch([b"[]", b'{"license_plate": 7}', b"?"], 1000, 10)
    >>> [(refusal.message, refusal.reason.value, refusal.path) for refusal in batch.refusals]
    [(1, 'wrong_type', '$.license_plate'), (2, 'not_json', '$')]
    """
    read = read_each(
        *(messages, max_message_bytes, _decode_ping),
        lambda index, message: _open_message(index, message, max_message_bytes, max_pings_per_message),
    )
    return WireBatch(*read)


def split_message(message: bytes) -> list[Raw] | None:
    """The pings of an array or envelope, each as its original bytes; None for one ping, and for a string.

    Call it for JSON alone; msgspec.DecodeError leaves for anything else, and for `results` that are no array.

    >>> [bytes(ping) for ping in split_message(b'{"results": [{"speed": 1}, 2]}') or []]
    [b'{"speed": 1}', b'2']
    """
    text = trim(message)
    if text.startswith(b"["):
        return split_array(text)
    if text.startswith(b"{"):
        array = _enveloped(_decode_object(text))
        return None if array is None else split_array(array)
    return None


JSON = PingFormat(read_batch, split_message, is_json=True)
"""Messages of JSON, as the exchange, its recordings and our topics have them."""


def _open_message(index: int, message: bytes, max_bytes: int, max_pings: int) -> Opened[WirePing]:
    """What the quick reader could not take: an array, an envelope, a string, or something to refuse."""
    try:
        if len(message) > max_bytes:
            raise Fault(Reason.OVERSIZED_MESSAGE, "$")
        text = trim(message)
        if text.startswith(b'"'):
            text = trim(unwrap(text))
        if text.startswith(b"["):
            return _open_array(index, text, max_pings)
        return _open_object(index, text, len(text) != len(message), max_pings)
    except Fault as fault:
        return [], [], [Refusal(index, NOT_IN_ARRAY, fault.reason, fault.path)]


def _open_object(index: int, text: bytes, is_changed: bool, max_pings: int) -> Opened[WirePing]:
    try:
        if b'"results"' in text:  # a guess at which decoder may succeed; what follows decides
            return all_of(_decode_envelope(text).results, max_pings)
        if is_changed:
            return [_decode_ping(text)], [], []
    except UNREADABLE:
        pass
    loose = _read_object(text)
    array = _enveloped(loose)
    if array is None:
        return [_check(loose)], [], []
    if not array.startswith(b"["):
        raise Fault(Reason.WRONG_TYPE, "$.results")
    return _open_array(index, array, max_pings)


def _open_array(index: int, array: bytes, max_pings: int) -> Opened[WirePing]:
    return read_array(index, array, max_pings, _decode_pings, _read_ping)


def _read_ping(piece: Raw) -> WirePing:
    try:
        return _decode_ping(piece)
    except UNREADABLE:
        return _check(_read_object(piece))


def _read_object(text: bytes | Raw) -> _LooseObject:
    try:
        return _decode_object(text)
    except msgspec.ValidationError:  # no object; msgspec has not looked whether the rest of it is JSON
        require_json(text)
        raise Fault(Reason.WRONG_TYPE, "$") from None
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None


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
        raise Fault(Reason.MISSING_FIELD, path)
    return bytes(raw)


def _string(raw: Raw | UnsetType, path: str) -> str:
    return string(_present(raw, path), path)


def _number(raw: Raw | UnsetType, path: str) -> float:
    return number(_present(raw, path), path)


def _location(raw: Raw | UnsetType, path: str) -> Location:
    text = _present(raw, path)
    if not text.startswith(b"{"):
        raise Fault(Reason.WRONG_TYPE, path)
    loose = _decode_location(text)
    if loose.type is not UNSET and _string(loose.type, f"{path}.type") != "Point":
        raise Fault(Reason.WRONG_TYPE, f"{path}.type")
    array = _present(loose.coordinates, f"{path}.coordinates")
    numbers = split_array(array) if array.startswith(b"[") else []
    if len(numbers) < 2:
        raise Fault(Reason.WRONG_TYPE, f"{path}.coordinates")
    lon, lat = (_number(one, f"{path}.coordinates[{place}]") for place, one in enumerate(numbers[:2]))
    return Location(Point(lon, lat))
