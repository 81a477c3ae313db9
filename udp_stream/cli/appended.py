"""A file of lines that is written to its end, by one run after another."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final

import msgspec

from udp_stream.adapters.records_out import SUFFIXES
from udp_stream.cli.outputs import PUBLIC, open_output
from udp_stream.errors import UsageError

TAIL_BYTES: Final = 64 * 2**20
"""Of what stands in a file, so much is looked at: a run reads the last seconds again, and no more."""


class _Named(msgspec.Struct):
    release_id: str = ""


_decode = msgspec.json.Decoder(_Named).decode


@contextmanager
def appended(name: str, mode: int = PUBLIC) -> Iterator[BinaryIO]:
    """The file, at its end, or standard output for `-`. A last line that was cut off is removed: it comes again.

    UsageError for a form that has an end, and if the file cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for text in (b"one", b"two"):
    ...         with appended(f"{folder}/lines") as out:
    ...             _ = out.write(text + b"\\n" + b'{"cut o')
    ...     with open(f"{folder}/lines") as file: file.readlines()
    ['one\\n', 'two\\n', '{"cut o']
    """
    if name == "-":
        with open_output(name) as out:
            yield out
        return
    if name.lower().endswith((*SUFFIXES, ".gz")):
        raise UsageError(f"{name}: expected a name such as releases.ndjson: lines of JSON can be added to a file")
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, mode)
    except OSError as error:
        raise UsageError(f"{name}: cannot be written ({error.strerror})") from error
    with io.BufferedRandom(io.FileIO(descriptor, "r+")) as out:
        out.truncate(_end_of_lines(out))
        out.seek(0, os.SEEK_END)
        yield out


def ids_in(out: BinaryIO) -> frozenset[str]:
    """The ids of the releases at the end of such a file; none of standard output, which cannot be read."""
    if not out.seekable() or not out.readable():
        return frozenset()
    size = out.seek(0, os.SEEK_END)
    out.seek(max(0, size - TAIL_BYTES))
    lines = out.read().split(b"\n")
    out.seek(0, os.SEEK_END)
    return frozenset(_id_of(line) for line in lines) - {""}


def write_lines(out: BinaryIO, lines: Sequence[bytes]) -> None:
    """Write them, and hand them on to the operating system."""
    out.write(b"".join(line + b"\n" for line in lines))
    out.flush()


def _id_of(line: bytes) -> str:
    try:
        return _decode(line).release_id
    except msgspec.DecodeError:  # the first line of the tail, cut; or a line of somebody else's
        return ""


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
