"""Pieces of JSON, for the readers of messages: trimmed, unwrapped, cut up, and why a piece is not what it should be.

Pieces stay bytes (`msgspec.Raw`) until it is known what they should be: a number that no float can hold, or a text that
is no UTF-8, then costs its own ping and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from udp_stream.pings.formats import NOT_IN_ARRAY
from udp_stream.pings.refusals import Reason, Refusal

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Tolerated before JSON, and before any file of pings."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises on bad bytes."""

_WHITE_SPACE = b" \t\r\n"

split_array = msgspec.json.Decoder(list[Raw]).decode
"""The elements of an array. Raises `UNREADABLE`."""

decode_string = msgspec.json.Decoder(str).decode
"""A JSON string. Raises `UNREADABLE`."""

_decode_anything = msgspec.json.Decoder(Raw).decode

# `++` and `*+` never go back: a string without an end would else take very long.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
"""Strings, brackets, and a quote that has no other."""

_INFINITE = re.compile(rb'("speed":|"coordinates":\[|"coordinates":\[[^],"]*,)null')

Read = TypeVar("Read")
"""What one ping becomes."""

Opened = tuple[Sequence[Read], Sequence[int], list[Refusal]]
"""Pings, their positions if they were in an array, refusals."""


class Fault(Exception):
    """Why a careful reader gave up: a reason and a path. It never leaves the readers.

    >>> Fault(Reason.NOT_JSON, "$").path
    '$'
    """

    def __init__(self, reason: Reason, path: str) -> None:
        """A reason, and a JSON path to the fault."""
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


def read_each(
    messages: Sequence[bytes],
    max_message_bytes: int,
    decode: Callable[[bytes], Read],
    open_message: Callable[[int, bytes], Opened[Read]],
) -> tuple[list[Read], NDArray[np.int32], NDArray[np.int32], list[Refusal]]:
    """The pings of a batch, for each its message and its position, and the refusals.

    `decode` is the quick reader: it takes a message that is one ping, and raises one of `UNREADABLE` for anything
    else. That is given to `open_message`, with its index; so is a message of over `max_message_bytes`.

    >>> read_each([b"1", b"[2,3]"], 9, msgspec.json.Decoder(int).decode, lambda at, text: ([2, 3], range(2), []))
    ([1, 2, 3], array([0, 1, 1], dtype=int32), array([-1,  0,  1], dtype=int32), [])
    """
    pings: list[Read] = []
    refusals: list[Refusal] = []
    pings_in_message = np.ones(len(messages), np.int32)
    arrays: list[tuple[int, Sequence[int]]] = []  # where the pings of an array begin, and their positions in it
    oversized = max(map(len, messages), default=0) > max_message_bytes
    rest = iter([text if len(text) <= max_message_bytes else b"" for text in messages] if oversized else messages)
    index = 0
    while True:
        before = len(pings)
        try:
            pings.extend(map(decode, rest))
            break
        except UNREADABLE:  # what was decoded before it is in the list, and `rest` is past the culprit
            index += len(pings) - before
        opened, positions, refused = open_message(index, messages[index])
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
    return pings, message, position, refusals


def read_array(
    index: int,
    array: bytes,
    max_pings: int,
    decode_all: Callable[[bytes], Sequence[Read]],
    read_one: Callable[[Raw], Read],
) -> Opened[Read]:
    """The pings of an array: by `decode_all` in one go, else piece by piece by `read_one`, which raises a Fault.

    >>> read_array(0, b"[1, 2]", 5, msgspec.json.Decoder(list[int]).decode, int)
    ([1, 2], range(0, 2), [])
    """
    try:
        return all_of(decode_all(array), max_pings)
    except UNREADABLE:
        pass
    try:
        pieces = split_array(array)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None
    if len(pieces) > max_pings:
        raise Fault(Reason.TOO_MANY_PINGS, "$")
    pings: list[Read] = []
    positions: list[int] = []
    refusals: list[Refusal] = []
    for place, piece in enumerate(pieces):
        try:
            pings.append(read_one(piece))
        except Fault as fault:
            refusals.append(Refusal(index, place, fault.reason, fault.path))
        else:
            positions.append(place)
    return pings, positions, refusals


def all_of(pings: Sequence[Read], max_pings: int) -> Opened[Read]:
    """All pings of an array; a Fault if they are more than a message may hold.

    >>> all_of(["ping"], 1)
    (['ping'], range(0, 1), [])
    """
    if len(pings) > max_pings:
        raise Fault(Reason.TOO_MANY_PINGS, "$")
    return pings, range(len(pings)), []


def trim(text: bytes) -> bytes:
    """The text without a byte order mark and white space before it.

    >>> trim(BYTE_ORDER_MARK + b" {}")
    b'{}'
    """
    return text.removeprefix(BYTE_ORDER_MARK).lstrip(_WHITE_SPACE)


def unwrap(text: bytes) -> bytes:
    """What a JSON string holds, as bytes.

    >>> unwrap(b'"[1]"')
    b'[1]'
    """
    try:
        return decode_string(text).encode()
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None


def whole_part(text: bytes) -> bytes | None:
    """JSON that ends too early, cut behind the last whole element of the outermost array that is open there and has
    one, and closed; if no array is open, behind the last whole object or array. None if that gives no JSON.

    >>> whole_part(b'{"results": [{"stops": [{}]}, {"stops": [{}, {"na')
    b'{"results": [{"stops": [{}]}]}'
    >>> whole_part(b'{"results": [{}], "count": 1')
    b'{"results": [{}]}'
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
    """A Fault unless the text is JSON, whatever it says.

    >>> require_json(b"[7]")
    """
    try:
        _decode_anything(text)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, "$") from None


def string(text: bytes, path: str) -> str:
    """The string that the text of a field is.

    >>> string(b'"A1"', "$.plate")
    'A1'
    """
    if not text.startswith(b'"'):
        raise Fault(Reason.WRONG_TYPE, path)
    try:
        return decode_string(text)
    except UNREADABLE:
        raise Fault(Reason.NOT_JSON, path) from None


def number(text: bytes, path: str) -> float:
    """Infinite if it is beyond floating point, which msgspec will not say; the range checks refuse it by its name.

    >>> number(b"12.5", "$.speed"), number(b"1e999", "$.speed")
    (12.5, inf)
    """
    if text[:1] not in b"-0123456789":
        raise Fault(Reason.WRONG_TYPE, path)
    return float(text)


def with_infinite(encoded: bytes) -> bytes:
    """Encoded pings of the contract's form with the numbers that are too large for JSON, which the encoder writes as
    null: they are refused for their values. In texts a quote has a backslash before it, so no text is changed.

    >>> with_infinite(b'{"location":{"coordinates":[null,null]},"speed":null}')
    b'{"location":{"coordinates":[1e999,1e999]},"speed":1e999}'
    """
    if b"null" not in encoded:
        return encoded
    return _INFINITE.sub(rb"\g<1>1e999", _INFINITE.sub(rb"\g<1>1e999", encoded))  # once for each coordinate
