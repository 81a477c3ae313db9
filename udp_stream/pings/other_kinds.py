"""What a file is that holds no pings as text in UTF-8, by its first bytes; never a word of it."""

from __future__ import annotations

import re

import msgspec

from udp_stream.pings.json import UNREADABLE

_MAGIC = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet (.xlsx): unpack it, or save the sheet as CSV"),
    (b"PAR1", "Parquet: write it as CSV"),
    (b"SQLite format 3\0", "a database of SQLite: write its table as CSV"),
    (b"%PDF", "a PDF"),
    (b"BZh", "compressed by bzip2: unpack it"),
    (b"\xfd7zXZ\0", "compressed by xz: unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard: unpack it"),
)
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\x09-\x7e]\0){2}|(?:\0[\x09-\x7e]){2}")
_NO_NUMBER = re.compile(rb"[:,\[]\s*-?(?:NaN|Infinity)\s*[,}\]]")

_CUT = "JSON that is not whole (if it goes on in the next line, its name must not end in .ndjson)"

KIND_BYTES = 4
"""As many bytes tell most kinds."""


def other_kind(start: bytes) -> str | None:
    """The kind that begins so, and what would help; None for what may be text in UTF-8."""
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind
    return "text in UTF-16: save it as UTF-8" if _UTF16.match(start) else None


def odd_text(first: bytes) -> str | None:
    """Of a first line that is not UTF-8, or that has more lines in it, which end as old programs end them."""
    try:
        first.decode()
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    return "text whose lines end in a carriage return alone" if b"\r" in first.rstrip(b"\r") else None


def no_pings(text: bytes) -> str | None:
    """The kind of a file, a line or a message in which no ping was found; None where it is one of the right kind."""
    if (kind := other_kind(text)) is not None:
        return kind
    text = text.lstrip()
    if text.startswith(b"<"):
        return "XML or HTML"
    if any(byte < ord("\t") for byte in text[:200]):
        return "binary: GTFS-realtime has a name in .pb"
    if (kind := odd_text(text.partition(b"\n")[0])) is not None:
        return kind
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE:
        if _NO_NUMBER.search(text):
            return "JSON with NaN or Infinity, which JSON has not"
        return _CUT if text[:1] in (b"{", b"[", b'"', b"}", b"]") else "text, neither JSON nor CSV"
    held = value[0] if isinstance(value, list) and value else value
    return None if isinstance(held, dict | list | str) and held else "JSON that is no object"
