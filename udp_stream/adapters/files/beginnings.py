"""How files begin: a byte order mark and lines before a header are left out; what is no text in UTF-8 is refused.

Lines before a header are `sep=;`, which spreadsheets write, and such as begin with `#`. Neither can begin a ping.
Nothing is left out behind the header: a line that is no ping is refused by the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from udp_stream.errors import UsageError
from udp_stream.pings.json import BYTE_ORDER_MARK
from udp_stream.pings.other_kinds import KIND_BYTES, other_kind

_LINE_BEFORE = re.compile(rb"""\s*(?:#[^\n]*|["']?sep=[^\n]{1,4})\n""", re.IGNORECASE)
_MAY_BE_ONE = re.compile(rb"""\s*(?:#|["']?s(?:e(?:p(?:=[^\n]{0,4})?)?)?\r?$|$)""", re.IGNORECASE)

_HELD_MAX = 2**20
"""Bytes of lines before a header: what goes on longer is none."""


def text_of(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of a text without its byte order mark. UsageError, with what would help, for files of other kinds.

    >>> b"".join(text_of("bus.csv", iter([BYTE_ORDER_MARK + b"{}", b"[]"])))
    b'{}[]'
    >>> list(text_of("bus.csv", iter([b"PK", b"\\x03\\x04"])))
    Traceback (most recent call last):
    udp_stream.errors.UsageError: bus.csv: expected text in UTF-8, found a zip archive or a spreadsheet (.x...
    """
    start = b""
    for block in blocks:
        start += block
        if len(start) >= KIND_BYTES:
            break
    if (kind := other_kind(start)) is not None:
        raise UsageError(f"{'standard input' if path == '-' else path}: expected text in UTF-8, found {kind}")
    yield start.removeprefix(BYTE_ORDER_MARK)
    yield from blocks


def from_header(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks without the lines before a header; what cannot be one is handed on at once.

    >>> b"".join(from_header(iter([b"sep=;\\r", b"\\n# by ", b"X\\nbus;v\\n#1;2"])))
    b'bus;v\\n#1;2'
    """
    held = b""
    for block in blocks:
        held += block
        while match := _LINE_BEFORE.match(held):
            held = held[match.end() :]
        if len(held) > _HELD_MAX or not _MAY_BE_ONE.match(held):
            break
    if held:
        yield held
    yield from blocks


def first_line_and_more(blocks: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Blocks up to the first line that is not blank and the beginning of a second; and whether that is all there is.

    >>> first_line_and_more(iter([b"\\n[1,", b"\\n2", b"]"]))
    ([b'\\n[1,', b'\\n2'], False)
    """
    head: list[bytes] = []
    is_line_begun = is_line_ended = False
    for block in blocks:
        head.append(block)
        text = block if is_line_begun else block.lstrip()
        is_line_begun = is_line_begun or bool(text)
        if not is_line_ended:
            _, newline, text = text.partition(b"\n")
            is_line_ended = bool(newline)
        if is_line_ended and text.strip():
            return head, False
    return head, True


def is_named_as_lines(path: str) -> bool:
    """Whether the name says that each line is a message.

    >>> is_named_as_lines("monday.NDJSON.gz"), is_named_as_lines("monday.json")
    (True, False)
    """
    return path.lower().removesuffix(".gz").endswith((".ndjson", ".jsonl"))


def is_named_as_csv(path: str) -> bool:
    """Whether the name says that each line but the first is a row.

    >>> is_named_as_csv("monday.csv.gz"), is_named_as_csv("-")
    (True, False)
    """
    return path.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
