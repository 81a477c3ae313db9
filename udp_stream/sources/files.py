"""Files of pings, and standard input, as frames of raw messages for `PingDecoder`.

What a file is, is decided in this order:

1. Gzip by its first two bytes, under any name.
2. A name ending in `.csv` or `.tsv` (or with `.gz`) is CSV, in `.ndjson` or `.jsonl` (or with
   `.gz`) is lines.
3. Else by content, after a byte order mark. It is XML if it begins with `<`: a document on each
   line, or over all of them, read as the JSON that says the same. It is CSV if the first line has
   the name of the plate and a separator in it and does not begin as JSON does. It is lines if the
   first line is JSON by itself and another follows, or if it is no beginning of JSON. It is one
   document otherwise: a single line, or JSON laid out over many. A first byte 0x1E makes it a
   sequence of texts (RFC 7464), under any name.

Lines: a message each. A document: an array of pings, bare or in an object (as the feed's format
has it), gives a message per ping, so that a huge file is not one oversized message; anything else
is a single message. A document that does not parse is read as lines, so that a first line cut short
costs only itself; one that ends too early gives the pings before its end, and then a UsageError.
CSV: see `rows.py`.

Nothing is judged here: what is broken is passed on, for the decoder to refuse it by name. Sources
raise `UsageError` only for what is wrong with the file as a whole.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from udp_stream.base.errors import UsageError
from udp_stream.pings.advice import KIND_BYTES, other_kind
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.json import PLAIN, FeedForm
from udp_stream.pings.repairs import of_packed
from udp_stream.pings.texts import (
    BYTE_ORDER_MARK,
    RECORD_SEPARATOR,
    UNREADABLE,
    finite,
    from_xml,
    whole_part,
)
from udp_stream.sources.rows import Frames, looks_like_csv, opened_table

MAGIC = b"\x1f\x8b"
"""The first two bytes of every member."""

_PIECE_BYTES = 2**12
"""Input at a time: of damaged data, zlib keeps to itself what it made of the same piece."""


class GzipError(ValueError):
    """The data are no gzip, or not whole; the message ends the sentence "the data ..."."""


class _BlockFile:
    """Blocks as the file that `gzip` reads: it gives what there is, and waits for no more."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def read(self, most: int) -> bytes:
        self._rest = self._rest or next((block for block in self._blocks if block), b"")
        size = min(most, _PIECE_BYTES)
        piece = self._rest[:size]
        self._rest = self._rest[size:]
        return piece


def inflated(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, decompressed if they begin as gzip does: any number of members, and zeros behind
    any of them.

    Output comes in blocks of bounded size. GzipError if the data are damaged, after what came
    before the damage.
    """
    start = b""
    while len(start) < len(MAGIC) and (block := next(blocks, b"")):
        start += block
    blocks = itertools.chain([start], blocks)
    if not start.startswith(MAGIC):
        yield from blocks
        return
    file = gzip.GzipFile(fileobj=cast(BinaryIO, _BlockFile(blocks)))
    try:
        while block := file.read1(_BLOCK_BYTES):
            yield block
    except EOFError as error:
        raise GzipError("end too early") from error
    except gzip.BadGzipFile as error:  # its text may quote the data
        raise GzipError("are damaged (a header or a checksum is wrong)") from error
    except zlib.error as error:
        raise GzipError(f"are damaged ({error})") from error


def as_far_as_whole(frames: Frames, log_message: Callable[[str], None]) -> Frames:
    """The frames before a UsageError, which is said; it is raised if no frame came before it."""
    is_begun = False
    try:
        for frame in frames:
            is_begun = True
            yield frame
    except UsageError as error:
        if not is_begun:
            raise
        log_message(str(error))


# How files begin: a byte order mark and lines before a header are left out; what is no text in
# UTF-8 is refused. Lines before a header are `sep=;`, which spreadsheets write, and such as begin
# with `#`. Neither can begin a ping.

_LINE_BEFORE = re.compile(rb"""\s*(?:#[^\n]*|["']?sep=[^\n]{1,4})\n""", re.IGNORECASE)
_MAY_BE_ONE = re.compile(rb"""\s*(?:#|["']?s(?:e(?:p(?:=[^\n]{0,4})?)?)?\r?$|$)""", re.IGNORECASE)

_HELD_MAX = 2**20
"""Bytes of lines before a header: a line that goes on longer is a ping, or refused."""


def _text_of(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of a text without its byte order mark. UsageError, with what would help, for files
    of other kinds."""
    start = b""
    for block in blocks:
        start += block
        if len(start) >= KIND_BYTES:
            break
    if (kind := other_kind(start)) is not None:
        where = "standard input" if path == "-" else path
        raise UsageError(f"{where}: expected text in UTF-8, found {of_packed(kind, path)}")
    yield start.removeprefix(BYTE_ORDER_MARK)
    yield from blocks


def _from_header(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks without the lines before a header; what cannot be such a line is handed on at
    once."""
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


def _to_first_line(blocks: Iterator[bytes]) -> Iterator[bytes]:
    is_begun = False
    for block in blocks:
        yield block
        text = block if is_begun else block.lstrip()
        is_begun = is_begun or bool(text)
        if b"\n" in text:
            return


def _first_line_and_more(blocks: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Blocks up to the first line that is not blank and the beginning of a second; and whether that
    is all there is."""
    head = [*_to_first_line(blocks)]
    _, _, rest = b"".join(head).lstrip().partition(b"\n")
    while not rest.strip():
        if (block := next(blocks, None)) is None:
            return head, True
        head.append(block)
        rest = block
    return head, False


def is_named_as_lines(path: str) -> bool:
    """Whether the name says that each line is a message."""
    return path.lower().removesuffix(".gz").endswith((".ndjson", ".jsonl"))


def is_named_as_csv(path: str) -> bool:
    """Whether the name says that each line but the first is a row."""
    return path.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


OnProgress = Callable[[int, int | None], None]
"""Called with the bytes read so far, before decompression, and how many there are, if that can be
known."""

GTFS_ENDS = (".pb", ".pbf")
"""Ends of names of GTFS-realtime files, which are not text."""

MAX_LINE_BYTES = 64 * 2**20
"""The rest of a longer line is dropped; what is passed on is still far more than any decoder
accepts."""

MAX_DOCUMENT_BYTES = 2**30
"""A document must be held in memory to be cut into pings; lines and CSV need not."""

_TOO_LARGE = f"one document of over {MAX_DOCUMENT_BYTES} bytes; write one ping a line instead"

_BLOCK_BYTES = (
    2**18
)  # measured: 64 KiB to 256 KiB read fastest, from 1 MiB on the caches are too small

_parse = msgspec.json.Decoder(msgspec.Raw).decode


def read_messages(
    path: str, batch: int = 4096, progress: OnProgress | None = None, form: FeedForm | None = PLAIN
) -> Generator[list[bytes], None, None]:
    """Batches of `batch` messages (the last may be shorter) of a file, or of standard input for
    `-`; rows of CSV as JSON.

    `form` says what a JSON document is cut into; without a form it is a single message.

    UsageError, when the first batch is asked for, if the file cannot be read or is of a kind that
    is not; and later if its compressed data are damaged or cut short, after the whole lines before
    that (of a document nothing) were given.
    """
    for ping_format, messages in formed_messages(path, batch, progress, form):
        yield ping_format.as_json(messages)


def formed_messages(
    path: str, batch: int = 4096, progress: OnProgress | None = None, form: FeedForm | None = PLAIN
) -> Generator[tuple[PingFormat, list[bytes]], None, None]:
    """The same, each batch with its format: of CSV that of rows under its header. `form` says where
    CSV has its columns; without a form rows have all of them."""
    if batch < 1:
        raise UsageError(f"expected batch >= 1, got {batch}")
    _refuse_gtfs(path)
    with closing(blocks_of(path, progress)) as blocks:
        text = _text_of(path, blocks)
        if not is_named_as_lines(path):
            text = _from_header(text)
        ping_format, messages = _messages(path, text, form)
        for some in _batches(messages, batch):
            yield ping_format, some


def blocks_of(path: str, progress: OnProgress | None = None) -> Generator[bytes, None, None]:
    """The content of a file in blocks, decompressed. UsageError if it cannot be read; if its
    compressed data are damaged, after what came before."""
    try:
        with _open(path) as file:
            yield from _inflate(path, _read_blocks(file, progress))
    except OSError as error:
        raise _unreadable(path, error) from error


class FileSource:
    """A file, or standard input for `-`, as a source. UsageError as of `require_readable`.
    `format` is known with the first frame."""

    def __init__(
        self, path: str, progress: OnProgress | None = None, form: FeedForm | None = PLAIN
    ) -> None:
        require_readable([path])
        self.format = (form or PLAIN).format
        self._messages = formed_messages(path, progress=progress, form=form)

    def messages(self) -> Frames:
        for ping_format, messages in self._messages:
            self.format = ping_format
            yield messages

    def close(self) -> None:
        self._messages.close()


def require_readable(paths: Iterable[str]) -> None:
    """UsageError for the first that is not there, is a directory, is of a kind that is not read, or
    may not be read.

    Nothing is read, and no pipe is opened: opening it would disturb its writer.
    """
    for path in paths:
        _refuse_gtfs(path)
        try:
            if not Path(path).is_fifo():
                with _open(path) as file:
                    os.read(file.fileno(), 0)  # fails on what is closed
        except OSError as error:
            raise _unreadable(path, error) from error


def _refuse_gtfs(path: str) -> None:
    if path.lower().removesuffix(".gz").endswith(GTFS_ENDS):
        raise UsageError(f"{path}: GTFS-realtime files (.pb) cannot be read here")


def _unreadable(path: str, error: OSError) -> UsageError:
    title = "standard input" if path == "-" else path
    return UsageError(f"{title} cannot be read: {error.strerror or error}")


def _open(path: str) -> AbstractContextManager[BinaryIO | io.FileIO]:
    if path == "-":
        return nullcontext(sys.stdin.buffer)
    # Unbuffered: a buffered read would wait until a named pipe has filled a whole block.
    return Path(path).open("rb", buffering=0)


def _read_blocks(file: BinaryIO | io.FileIO, progress: OnProgress | None) -> Iterator[bytes]:
    """Blocks of what is there; a pipe is not waited for until it fills a block."""
    read: Callable[[int], bytes | None] = (
        file.read1 if isinstance(file, io.BufferedReader) else file.read
    )
    done = 0
    total = None
    with suppress(OSError):  # standard input that is no file at all
        status = os.fstat(file.fileno())
        total = status.st_size if stat.S_ISREG(status.st_mode) else None
    while block := read(_BLOCK_BYTES):
        done += len(block)
        yield block
        if progress is not None:
            progress(done, total)


def _inflate(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from inflated(blocks)
    except GzipError as error:
        raise UsageError(f"{path}: its gzip data {error}; what came before was read") from error


def _batches(messages: Frames, size: int) -> Frames:
    """The same messages in lists of `size`; what is left is given before an error of the source is
    passed on."""
    held = list[bytes]()
    try:
        for some in messages:
            held += some
            whole = len(held) - len(held) % size
            for first in range(0, whole, size):
                yield held[first : first + size]
            del held[:whole]
    except UsageError:
        if held:
            yield held
        raise
    if held:
        yield held


_Formed = tuple[PingFormat, Frames]
"""Messages in runs of no particular length, and their format."""


def _messages(path: str, blocks: Iterator[bytes], form: FeedForm | None) -> _Formed:
    """The messages, read by the rule at the top of this file."""
    ping_format = (form or PLAIN).format
    start = next(blocks, b"")
    blocks = itertools.chain([start], blocks)
    if start.lstrip().startswith(RECORD_SEPARATOR):
        return ping_format, _lines(blocks, RECORD_SEPARATOR)
    if is_named_as_lines(path):
        return ping_format, _lines(blocks)
    if is_named_as_csv(path):
        return opened_table(path, _lines(blocks), form)
    head, is_all = _first_line_and_more(blocks)
    found = _by_content(path, head, blocks, form, is_all)
    return found or (ping_format, _lines(itertools.chain(head, blocks)))


def _by_content(
    path: str,
    head: list[bytes],
    blocks: Iterator[bytes],
    form: FeedForm | None,
    is_all: bool = False,
) -> _Formed | None:
    """The messages of CSV, XML or a document, by the first line, which the head has; None for other
    lines."""
    first, _, _ = b"".join(head).lstrip().partition(b"\n")
    blocks = itertools.chain(head, blocks)
    ping_format = (form or PLAIN).format
    if first.startswith(RECORD_SEPARATOR):
        return ping_format, _lines(blocks, RECORD_SEPARATOR)
    if looks_like_csv(first, None if form is None else form.mapping):
        return opened_table(path, _lines(blocks), form)
    if first.startswith(b"<"):
        return replace(ping_format, container="XML"), _xml(path, first, blocks, form)
    if is_all or _is_cut_short(first):
        return ping_format, _document(path, blocks, form)
    return None


def _is_cut_short(line: bytes) -> bool:
    try:
        _parse(finite(line))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        return False
    return False


def _document(path: str, blocks: Iterator[bytes], form: FeedForm | None) -> Frames:
    """A message for each ping of one JSON document; a document that does not parse, as lines."""
    text = whole(path, blocks)
    try:
        _parse(finite(text))
    except (msgspec.DecodeError, RecursionError) as error:
        pings = _split(whole_part(text) if "truncated" in str(error) else None, form)
        if pings is None:
            yield from _lines(iter([text]))
            return
        yield pings
        raise UsageError(f"{path}: its JSON ends too early; what came before was read") from error
    pings = _split(text, form)
    yield [text.strip()] if pings is None else pings


def whole(
    path: str, blocks: Iterable[bytes], most: int = MAX_DOCUMENT_BYTES, rule: str = _TOO_LARGE
) -> bytes:
    """All blocks together. UsageError, with the rule, if they have more bytes than `most`."""
    parts = []
    size = 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > most:
            raise UsageError(f"{path}: {rule}")
    return b"".join(parts)


def _xml(path: str, first: bytes, blocks: Iterator[bytes], form: FeedForm | None) -> Frames:
    """A message for each ping of XML: of a document on each line, if the first line is XML, or of
    the whole file."""
    runs = _lines(blocks) if from_xml(first) is not first else iter([[whole(path, blocks).strip()]])
    for run in runs:
        for text in map(from_xml, run):
            yield _split(text, form) or [text]


def _split(text: bytes | None, form: FeedForm | None) -> list[bytes] | None:
    """The pings of a document; None if what should be their array is none."""
    if text is None or form is None:
        return None if text is None else [text]
    try:
        pings = form.format.split(text)
    except (*UNREADABLE, ValueError):
        return None
    return None if pings is None else [bytes(ping) for ping in pings]


def _lines(blocks: Iterator[bytes], end: bytes = b"\n") -> Frames:
    """The lines, or what else ends so, of each block that are not blank, without their ends, cut
    off at MAX_LINE_BYTES. If the blocks end in an error, the unfinished line is dropped: half a row
    of CSV may look like a whole row."""
    held = list[bytes]()  # the line that goes on in the next block
    size = 0
    for block in blocks:
        lines = block.split(end)
        if len(lines) > 1:
            lines[0] = b"".join([*held, lines[0]])[:MAX_LINE_BYTES]
            held = []
            size = 0
            last = lines.pop()
            some = list(filter(None, lines))
            if some and min(some) < b"!":  # a line begins with white space: it may be nothing else
                some = [line for line in some if not line.isspace()]
            yield some
        else:
            last = block
        if last and size < MAX_LINE_BYTES:
            held.append(last[: MAX_LINE_BYTES - size])
            size += len(held[-1])
    if held and not (line := b"".join(held)).isspace():
        yield [line]


def prompt_messages(
    path: str, blocks: Iterator[bytes], form: FeedForm = PLAIN
) -> Iterator[tuple[PingFormat, list[bytes]]]:
    """The messages of a pipe with their format, each as soon as its line is whole; a JSON document
    over many lines at its end. UsageError as of `read_messages`.

    A first line that is JSON by itself is not held back until a second line shows that there are
    lines: pings of an array in it are a message each, as if it were the whole document.
    """
    blocks = _from_header(_text_of(path, _inflate(path, blocks)))
    head = [*_to_first_line(blocks)]
    found = _by_content(path, head, blocks, form)
    if found is None:
        first, _, rest = b"".join(head).lstrip().partition(b"\n")
        document = _document(path, iter([first]), form) if first else ()
        found = form.format, itertools.chain(document, _lines(itertools.chain([rest], blocks)))
    ping_format, messages = found
    for some in messages:
        yield ping_format, some
