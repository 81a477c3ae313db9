"""Files that one run after another adds to: lines, or records in the form that the suffix names.

What a crash cut off at a file's end is removed when the file is opened again; the run writes it anew from the ledger.
Lines of JSON and rows of CSV end with a newline. In `.gz` of them each write is a member, and a member that is not
whole was cut off; the first member holds no record, so that a file of ours always has a whole one.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from udp_stream.adapters.records_out import Kind, csv_header, csv_rows, records_out, require_form
from udp_stream.cli.named_files import NamedFile
from udp_stream.cli.outputs import PUBLIC, open_output
from udp_stream.errors import UsageError

TAIL_BYTES: Final = 64 * 2**20
"""Of what stands in a file, so much is looked at: a run reads the last seconds again, and no more."""

_BLOCK_BYTES: Final = 2**12  # of packed data; unpacked it is 4 MiB at most
_GZIP: Final = 16 + zlib.MAX_WBITS  # 16: zlib is to expect a header of gzip, and no other


class _Named(msgspec.Struct):
    release_id: str = ""


_decode = msgspec.json.Decoder(_Named).decode


class Appended(NamedTuple):
    """What adds records, given as their JSON; and the ids of those at the end of the file, none where it cannot be read
    again.

    >>> Appended(lambda payloads: None, frozenset()).ids
    frozenset()
    """

    write: Callable[[Sequence[bytes]], None]
    ids: frozenset[str]


def require_appendable(name: str) -> tuple[bool, bool]:
    """Whether a file of this name is CSV, and whether it is packed; to be asked before anything is opened.

    UsageError for a form that has an end.

    >>> require_appendable("city.csv.gz"), require_appendable("-")
    ((True, True), (False, False))
    """
    suffix, is_packed = require_form(name)
    if suffix not in ("", ".csv"):
        raise UsageError(
            f"{name}: expected .ndjson or .csv, or .gz of these: a {suffix} file has an end, and `run` goes on. "
            "`replay` writes it"
        )
    return suffix == ".csv", is_packed


@contextmanager
def appended_records(name: str, kind: Kind) -> Iterator[Appended]:
    """A file that records of this type are added to, in the form that `require_appendable` tells.

    Standard output (`-`), a pipe or a device is written to from the start, as `records_out` does. UsageError if the
    file cannot be written, or is none that this would have written.

    >>> from tempfile import TemporaryDirectory
    >>> from udp_stream.release.record import Release
    >>> from udp_stream.testing import released_slot
    >>> first, *_ = released_slot().payloads.items()
    >>> with TemporaryDirectory() as folder:
    ...     with appended_records(f"{folder}/city.csv.gz", Release) as out:
    ...         out.write([first[1]])
    ...     with appended_records(f"{folder}/city.csv.gz", Release) as out:
    ...         out.ids == {first[0]}
    True
    """
    is_csv, is_packed = require_appendable(name)
    if _is_stream(name):
        with open_output(name) as out, records_out(name, out, kind) as write_on:
            yield Appended(write_on, frozenset())
        return
    header = csv_header(kind) if is_csv else b""
    with _opened(name, PUBLIC) as out:
        head, tail = _cut_members(name, out, header) if is_packed else _cut_lines(out)
        pack = partial(gzip.compress, mtime=0) if is_packed else bytes

        def put(lines: bytes) -> None:
            out.write(pack(lines))
            out.flush()

        if out.tell() == 0:
            put(header)
        elif is_csv and head != header:
            raise UsageError(f"{name}: has other columns than records of this version: name another file")

        def write(payloads: Sequence[bytes]) -> None:
            if payloads:
                put(csv_rows(payloads, kind) if is_csv else b"".join(payload + b"\n" for payload in payloads))

        yield Appended(write, _ids_of_rows(header, tail) if is_csv else _ids_of_lines(tail))


@contextmanager
def appended(name: str, mode: int = PUBLIC) -> Iterator[BinaryIO]:
    """The file at its end, for lines; standard output for `-`, a pipe or a device as it is. A last line that was cut
    off is removed. UsageError if it cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for text in (b"one", b"two"):
    ...         with appended(f"{folder}/lines") as out:
    ...             _ = out.write(text + b"\\n" + b'{"cut o')
    ...     with open(f"{folder}/lines") as file: file.readlines()
    ['one\\n', 'two\\n', '{"cut o']
    """
    if _is_stream(name):
        with open_output(name, mode) as out:
            yield out
        return
    with _opened(name, mode) as file:
        _cut_lines(file)
        yield file


def _is_stream(name: str) -> bool:
    """Whether it is no file that could be read again: standard output, a pipe, a device."""
    return name == "-" or (Path(name).exists() and not Path(name).is_file())


@contextmanager
def _opened(name: str, mode: int) -> Iterator[BinaryIO]:
    try:
        # "w+" would empty the file, and "r+" without O_CREAT would ask for one that is there.
        file = NamedFile(name, "r+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, mode))
    except OSError as error:
        raise UsageError(f"{name}: cannot be written ({error.strerror})") from error
    with io.BufferedRandom(file) as out:
        yield out


def _cut_lines(file: BinaryIO) -> tuple[bytes, bytes]:
    """Remove what is behind the last newline, and go there. The first line, and the last ones."""
    end = _end_of_lines(file)
    file.truncate(end)
    file.seek(0)
    head = file.readline()
    file.seek(max(0, end - TAIL_BYTES))
    tail = file.read()
    return head, tail if end <= TAIL_BYTES else tail.partition(b"\n")[2]


def _end_of_lines(file: BinaryIO) -> int:
    """The byte behind the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 2**16)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _cut_members(name: str, file: BinaryIO, header: bytes) -> tuple[bytes, bytes]:
    """The same for a packed file: remove what is behind its last whole member.

    UsageError for a file that is no gzip, is damaged, or would lose records of others: one that a replay wrote is one
    member.
    """
    whole, part, end, read = bytearray(), bytearray(), 0, 0
    head = b""
    member = zlib.decompressobj(_GZIP)
    while data := file.read(_BLOCK_BYTES):
        read += len(data)
        while data:
            try:
                part += member.decompress(data)
            except zlib.error as error:
                what = f"is damaged behind byte {end:,}" if end else "is no gzip"
                raise UsageError(f"{name}: {what}: name another file") from error
            data = member.unused_data
            if member.eof:
                end, head = read - len(data), head or bytes(part).partition(b"\n")[0] + b"\n"
                whole += part
                part.clear()
                member = zlib.decompressobj(_GZIP)
        # One byte more than the tail is kept: by it the end of this function knows that something was left out.
        del whole[: -TAIL_BYTES - 1], part[: -TAIL_BYTES - 1]
    if end == 0 and part.count(b"\n") > header.count(b"\n"):
        raise UsageError(f"{name}: is not whole, and was not written by `run`: name another file")
    file.truncate(end)
    file.seek(end)
    return head, bytes(whole) if len(whole) <= TAIL_BYTES else bytes(whole).partition(b"\n")[2]


def _ids_of_lines(lines: bytes) -> frozenset[str]:
    return frozenset(_id_of(line) for line in lines.split(b"\n")) - {""}


def _id_of(line: bytes) -> str:
    try:
        return _decode(line).release_id
    except msgspec.DecodeError:  # a line that this program did not write
        return ""


def _ids_of_rows(header: bytes, lines: bytes) -> frozenset[str]:
    """Of rows of these columns; the header is one, too, and its id is none."""
    (names,) = csv.reader([header.decode()])
    rows = csv.reader(lines.decode("utf-8", "replace").splitlines())
    return frozenset(row[names.index("release_id")] for row in rows if len(row) == len(names)) - {"", "release_id"}
