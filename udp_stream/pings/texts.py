"""Messages that are nearly JSON: with something before it, with `NaN` in it, cut short, or XML in
its place.

Before JSON may stand a byte order mark, white space, the topic or key that a client prints, a
Schema Registry frame. Python's writers leave `NaN` and `Infinity` in it. Elements of XML become
objects.
"""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import msgspec

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Tolerated before JSON, and before any file of pings."""

RECORD_SEPARATOR = b"\x1e"
"""Before each record of a JSON text sequence (RFC 7464)."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises on bad bytes."""

_WHITE_SPACE = b" \t\r\n"
_STARTS = tuple(b'{["')

_WORDS = re.compile(rb'[^{}\[\]"\x00-\x08\n-\x1f]*+')

_FRAME_BYTES = 5  # a zero, and four bytes of the schema's number (Confluent's wire format)

# `++` and `*+` never go back: a string without an end would else take very long.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_MARKS = re.compile(_STRING + rb'|["\[\]{}]', re.DOTALL)
"""Strings, brackets, and a quote that has no other."""

_NO_NUMBER = re.compile(_STRING + rb"|(-?Infinity|NaN)", re.DOTALL)
_SPELT = {b"NaN": b"1e99901", b"Infinity": b"1e99902", b"-Infinity": b"-1e99902"}
"""Numbers that JSON has no word for, as numbers too large for any: refused for their values, at
their paths."""

_decode_anything = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode


def trim(text: bytes) -> bytes:
    """The text from its JSON on: without byte order mark, white space, separator, topic or key, a
    registry's frame.

    >>> trim(b'/hfp/v2/vp/0012/01001 {"VP": 1}'), trim(b"\\0\\0\\0\\7{[1]")
    (b'{"VP": 1}', b'[1]')
    """
    text = text.removeprefix(BYTE_ORDER_MARK).lstrip(_WHITE_SPACE + RECORD_SEPARATOR)
    if not text or text[0] in _STARTS:
        return text
    if text[0] == 0:
        return (
            text[_FRAME_BYTES:]
            if text[_FRAME_BYTES : _FRAME_BYTES + 1] in (b"{", b"[", b'"')
            else text
        )
    words = _words_before(text)
    return text[len(words) :]


def _words_before(text: bytes) -> bytes:
    """Words that clients print before a message: a topic is among them, or a tab behind them."""
    match = _WORDS.match(text)
    words = match[0] if match else b""
    is_json = text[len(words) : len(words) + 2].startswith((b"{", b"[[", b"[{"))
    return (
        words
        if is_json and (words.endswith(b"\t") or (b"/" in words and words.endswith(b" ")))
        else b""
    )


def delimited(data: bytes) -> list[bytes] | None:
    """Messages of protobuf, each behind its length, as a varint or in four bytes; None if the data
    are no such.

    >>> delimited(b"\\4\\n\\2ab\\3\\n\\1c"), delimited(b"\\n\\2ab")
    ([b'\\n\\x02ab', b'\\n\\x01c'], None)
    """
    for order in ("", "big", "little"):
        place = 0
        found = list[bytes]()
        while place < len(data):
            length, place = length_at(data, place, order)
            if length <= 0 or place + length > len(data) or data[place : place + 1] != b"\n":
                break
            found.append(data[place : place + length])
            place += length
        else:
            return found or None
    return None


def length_at(data: bytes, place: int, order: str = "") -> tuple[int, int]:
    """A length at this place, a varint or four bytes of this order, and the place behind it; 0 if
    there is none."""
    if order:
        return int.from_bytes(
            data[place : place + 4], "big" if order == "big" else "little"
        ), place + 4
    length = shift = 0
    while place < len(data) and shift < 35:
        byte = data[place]
        length = length | (byte & 0x7F) << shift
        place = place + 1
        shift = shift + 7
        if byte < 0x80:
            return length, place
    return 0, place


def frame_of(text: bytes) -> int | None:
    """The number of the schema in a registry's frame; None where there is none."""
    is_one = len(text) > _FRAME_BYTES and text[0] == 0
    return int.from_bytes(text[1:_FRAME_BYTES], "big") if is_one else None


def finite(text: bytes) -> bytes:
    """JSON, with numbers that are too large in place of `NaN` and `Infinity`; in strings they stay.

    >>> finite(b'{"speed": NaN, "name": "NaN"}'), as_written(b'[1e99901]')
    (b'{"speed": 1e99901, "name": "NaN"}', b'[NaN]')
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    return _NO_NUMBER.sub(lambda match: _SPELT[match[1]] if match[1] else match[0], text)


def as_written(piece: bytes) -> bytes:
    """A piece of what `finite` gave, as it was."""
    for word in (b"-Infinity", b"Infinity", b"NaN"):
        piece = piece.replace(_SPELT[word], word)
    return piece


def value_of(text: bytes) -> object:
    """The value of JSON, which may have `NaN` in it. Raises one of `UNREADABLE`.

    >>> value_of(b'[1, NaN]')
    [1, nan]
    """
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        if finite(text) is text:
            raise
    try:
        return json.loads(text)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def is_json(text: bytes | msgspec.Raw) -> bool:
    """Whether this is JSON, whatever it says."""
    try:
        _decode_anything(text)
    except UNREADABLE:
        return False
    return True


def whole_part(text: bytes) -> bytes | None:
    """JSON that ends too early, up to the last whole element of the outermost open array that has
    any, and closed; without an open array, up to the last whole object or array. None if that is no
    JSON."""
    opened: list[
        tuple[bytes, list[int]]
    ] = []  # how each bracket is closed, and where elements in it ended
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
            return part if is_json(part) else None
    return None


# XML to JSON. An element becomes an object of its attributes and elements, without namespaces;
# without either it is its text. Elements of the same name are an array. So is a single delivery or
# activity of SIRI, so that paths are those of SIRI's JSON. A document type is refused: it may
# define entities that grow without end.

_ALWAYS_ARRAYS = frozenset({"VehicleMonitoringDelivery", "VehicleActivity"})
_DEPTH_MAX = 64


def from_xml(text: bytes) -> bytes:
    """A document of XML as JSON; anything else, a page, and XML with a document type, as it is.

    >>> from_xml(b'<body><vehicle id="8801" lat="37.7"/><vehicle id="8802" lat="37.8"/></body>')
    b'{"body":{"vehicle":[{"id":"8801","lat":"37.7"},{"id":"8802","lat":"37.8"}]}}'
    """
    start = text.removeprefix(BYTE_ORDER_MARK).lstrip(_WHITE_SPACE)
    if not start.startswith(b"<") or b"<!DOCTYPE" in start:
        return text
    try:
        root = ElementTree.fromstring(start)
        return (
            text
            if _local(root.tag) == "html"
            else _encode({_local(root.tag): _value_of_element(root, 1)})
        )
    except (
        ElementTree.ParseError,
        ValueError,
        LookupError,
    ):  # the last two: an encoding that is not known, the depth
        return text


def _value_of_element(element: ElementTree.Element, depth: int) -> object:
    if depth > _DEPTH_MAX:
        raise ValueError
    values: dict[str, Any] = {_local(name): value for name, value in element.items()}
    for child in element:
        name = _local(child.tag)
        value = _value_of_element(child, depth + 1)
        held = values.get(name)
        if isinstance(held, list):
            held.append(value)
        elif held is None:
            values[name] = [value] if name in _ALWAYS_ARRAYS else value
        else:
            values[name] = [held, value]
    said = "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    return values | ({"value": said} if said else {}) if values else said


def _local(name: str) -> str:
    return name.rpartition("}")[2]
