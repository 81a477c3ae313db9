"""What a file is that holds no pings as text in UTF-8, by its first bytes, and the command that would help."""

from __future__ import annotations

import re
import shlex

import msgspec

from udp_stream.pings.json import UNREADABLE

_UNPACK = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet (.xlsx)", "unpack it, or save the sheet as CSV"),
    (b"PAR1", "Parquet", "write it as CSV"),
    (b"SQLite format 3\0", "a database of SQLite", "write its table as CSV"),
    (b"%PDF", "a PDF", "ask for the data as CSV or JSON"),
    (b"BZh", "compressed by bzip2", "unpack it with bunzip2"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it with unxz"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard", "unpack it with unzstd"),
)

_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\x09-\x7e]\0){2}|(?:\0[\x09-\x7e]){2}")

_SEPARATORS = (b",", b";", b"\t", b"|")

_NO_NUMBER = re.compile(rb"[:,\[]\s*-?(?:NaN|Infinity)\s*[,}\]]")
_NULLS = r"s/([:,[] *)-?(NaN|Infinity)/\1null/g"
_COMMA_LEFT = re.compile(rb",\s*[\]}]")
_SEVERAL = re.compile(rb"[\]}]\s*[\[{]")

_decode = msgspec.json.Decoder().decode

KIND_BYTES = 4
"""As many bytes tell most kinds."""


def other_kind(start: bytes, name: str = "FILE") -> str | None:
    """A clause that says which kind begins so, and what would help; None for what may be text in UTF-8.

    >>> other_kind(b"PK\\x03\\x04..")
    'a zip archive or a spreadsheet (.xlsx), which is not read: unpack it, or save the sheet as CSV'
    >>> other_kind(b"\\xff\\xfeb\\0", "bus.csv")
    'text in UTF-16: `iconv -f UTF-16 -t UTF-8 bus.csv > utf8.csv` writes it as it is read'
    >>> other_kind(b'{"license_plate": ')
    """
    for magic, kind, mend in _UNPACK:
        if start.startswith(magic):
            return f"{kind}, which is not read: {mend}"
    if match := _UTF16.match(start):
        encoding = "UTF-16" if match[0][0] > 0x7F else "UTF-16LE" if match[0][0] else "UTF-16BE"
        return f"text in {encoding}: {_iconv(encoding, name)}"
    return None


def is_binary(text: bytes) -> bool:
    """Whether a beginning has bytes that no text has.

    >>> is_binary(b"\\n\\x0d\\n\\x032.0"), is_binary(b"bus\\tv")
    (True, False)
    """
    return any(byte < ord("\t") for byte in text[:200])


def is_utf8(text: bytes) -> bool:
    """Whether a text can be read as UTF-8.

    >>> is_utf8("Zürich".encode()), is_utf8("Zürich".encode("latin-1"))
    (True, False)
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(name: str = "FILE") -> str:
    """A clause for text whose letters beyond ASCII are not UTF-8's: one byte each, in most old programs.

    >>> not_utf8("bus.csv")
    'text that is not UTF-8, but likely Latin-1: `iconv -f LATIN1 -t UTF-8 bus.csv > utf8.csv` writes it as it is read'
    """
    return f"text that is not UTF-8, but likely Latin-1: {_iconv('LATIN1', name)}"


def odd_text(first: bytes, name: str = "FILE") -> str | None:
    """A clause for a first line that is not UTF-8, or that has more lines in it, which end as old programs end them.

    >>> print(odd_text(b"bus;v\\r1;2\\r", "a.csv"))
    text whose lines end in a carriage return alone: `tr '\\r' '\\n' < a.csv > lines.csv` writes it as it is read
    >>> odd_text(b"bus;v\\r")
    """
    if not is_utf8(first):
        return not_utf8(name)
    if b"\r" in first.rstrip(b"\r"):
        ends = rf"`tr '\r' '\n' < {shlex.quote(name)} > lines.csv`"
        return f"text whose lines end in a carriage return alone: {ends} writes it as it is read"
    return None


def _iconv(encoding: str, name: str) -> str:
    """The command, with the name as a shell takes it.

    >>> _iconv("UTF-16", "my feed.csv")
    "`iconv -f UTF-16 -t UTF-8 'my feed.csv' > utf8.csv` writes it as it is read"
    """
    end = ".csv" if name.lower().removesuffix(".gz").endswith((".csv", ".tsv")) else ".json" if "." in name else ""
    typed = shlex.quote(name)
    if name.lower().endswith(".gz"):
        return f"`gzip -dc {typed} | iconv -f {encoding} -t UTF-8 > utf8{end}` writes it as it is read"
    return f"`iconv -f {encoding} -t UTF-8 {typed} > utf8{end}` writes it as it is read"


def no_pings(text: bytes, name: str = "FILE") -> str | None:
    """A clause for a file, a line or a message in which no ping was found, by the kind of it; never a word of it.

    >>> no_pings(b"null"), no_pings(b"hello")[:24]
    ('null alone, and no object', 'text without a separator')
    >>> no_pings(b"[4711, 72.8]", "a.ndjson")[:83]
    'values without names: put each line into an object: `sed \\'s/.*/{"r": [&]}/\\' a.ndjso'
    """
    if (kind := other_kind(text, name)) is not None:
        return kind
    text = text.lstrip()
    if text.startswith(b"<"):
        return "XML or HTML, which is not read: convert it, one ping a line"
    if is_binary(text):
        return "binary: a GTFS-realtime file has a name in .pb"
    if not is_utf8(text):
        return not_utf8(name)
    try:
        return _of_value(_decode(text), name)
    except UNREADABLE:
        return _of_text(text, name)


def _of_broken_json(text: bytes, name: str) -> str:
    if _NO_NUMBER.search(text):
        return f"JSON with NaN or Infinity, which JSON has not: `sed -E '{_NULLS}' {name} > nulls.json` writes null"
    if _COMMA_LEFT.search(text):
        return "JSON with a comma before a closing bracket: leave it out"
    if text.rstrip().endswith(b","):
        return "a line of a JSON array: such a file is read whole, if no comma stands before its closing bracket"
    if _SEVERAL.search(text):
        return f"several JSON documents in a row: `jq -c . {name} > lines.ndjson` writes one a line"
    return "JSON that is not whole"


def _of_value(value: object, name: str) -> str | None:
    """JSON that is no object."""
    match value:
        case None:
            return "null alone, and no object"
        case []:
            return "an empty array"
        case [bool() | int() | float() | str() | None, *_] | bool() | int() | float():
            command = f"""sed 's/.*/{{"r": [&]}}/' {shlex.quote(name)} > rows.ndjson"""
            which = 'which is which: [source] records = "r", plate = "0", ... (docs/feeds.md)'
            return f"values without names: put each line into an object: `{command}`, and say {which}"
        case _:
            return None


def _of_text(text: bytes, name: str) -> str | None:
    first = text.partition(b"\n")[0]
    if text.rstrip() in (b"[", b"{") or text.startswith((b'"', b"}", b"]")):
        return (
            "a piece of JSON laid out over many lines: one such document must not have a name that ends in .ndjson, "
            f"several are read after `jq -c . {name} > lines.ndjson`"
        )
    if first[:1] in (b"{", b"["):
        return _of_broken_json(text, name)
    if not any(one in first for one in _SEPARATORS):
        return "text without a separator (comma, semicolon, tab, bar): neither JSON nor CSV"
    if any(first.count(one) >= 3 for one in _SEPARATORS):
        return (
            "rows of CSV that cannot be read so: save some, with their header, as sample.csv, and "
            "`udp-stream init sample.csv --out city.toml` writes which column is which; then use --config city.toml"
        )
    return None
