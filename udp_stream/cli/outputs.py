"""The files that a command writes.

Opening a file to write empties it. So outputs are compared with all files that the run needs, and
with what ledgers and keys look like, before any is opened. `run` appends lines of JSON, and removes
a last line that a crash cut off: the ledger has it. `replay` writes from the start, and makes other
forms of the lines at its end.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from logging import WARNING
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, BinaryIO, TypeVar

import msgspec

from udp_stream.base.errors import UsageError
from udp_stream.base.logs import log_message
from udp_stream.cli.process import STANDARD_OUTPUT, NamedFile
from udp_stream.export_formats import LINES, Kind, require_format, write_export
from udp_stream.ledgers.keys import is_key
from udp_stream.ledgers.opening import ledger_files
from udp_stream.ledgers.sqlite import MAGIC
from udp_stream.settings import Settings
from udp_stream.windows.grid import Grid

T = TypeVar("T")

FileRole = tuple[str, str | Path | None]
"""The purpose of a file, and its name: `-` for a standard stream, None for no file."""

PUBLIC = 0o666
PRIVATE = 0o600

TAIL_BYTES = 64 * 2**20
"""The end of an appended file in which ids are looked up: a run repeats the last seconds, and no
more."""

_WRITE_AHEAD_LOGS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # SQLite's, in either byte order


class _RecordId(msgspec.Struct):
    release_id: str = ""


class _Hat(msgspec.Struct):
    cell: str
    slot_start: str


class _Estimate(msgspec.Struct):
    hat: _Hat


def used_files(
    arguments: argparse.Namespace, settings: Settings, inputs: Iterable[str] = ()
) -> list[FileRole]:
    """The files of a run besides its outputs: the configuration, the ledger and its key, and the
    inputs."""
    names: list[FileRole] = [
        ("the input", "/dev/stdin" if name == "-" else name) for name in inputs
    ]
    needed: list[FileRole] = [
        ("the configuration", arguments.config),
        ("the domain", settings.hat.domain or None),
    ]
    return [*needed, *ledger_files(settings.ledger), *names]


def require_distinct(outputs: Iterable[FileRole], used: Iterable[FileRole]) -> None:
    """UsageError for an output that is a used file, another output, any ledger or key, or whose
    folder does not exist.

    Files that do not exist yet count too. Only the null device may serve twice.
    """
    needed = [(what, str(name)) for what, name in used if name is not None]
    before = list[tuple[str, str]]()
    for flag, name in ((flag, str(name)) for flag, name in outputs if name is not None):
        path = "/dev/stdout" if name == "-" else name
        if _is_same(path, os.devnull):
            continue
        for what, other in before if _is_stream(path) else needed + before:
            if _is_same(path, other):
                raise UsageError(f"{flag} {name}: expected a file of its own, got {what} {other}")
        if precious := _looks_like(path):
            raise UsageError(
                f"{flag} {name}: expected a file that may be overwritten, got {precious}"
            )
        if name != "-":
            require_place(Path(path))
        before.append((f"that of {flag}", path))


def require_lines(flag: str, name: str | None) -> None:
    """UsageError if a file of plain lines of JSON has the name of another or of a packed form."""
    if name is not None and require_format(name) != (LINES, False):
        raise UsageError(
            f"{flag} {name}: expected a name of plain lines of JSON, such as records.ndjson (`replay --out` and "
            "`--smoothed` write other forms)"
        )


Write = Callable[[Sequence[bytes]], None]
"""Writes records, each its JSON, before it returns."""


@contextmanager
def records_out(name: str, kind: Kind, grid: Grid) -> Iterator[Write]:
    """Write records to a file from its start, or to standard output for `-`. UsageError if it
    cannot be written."""
    with open_output(name) as out:
        if require_format(name) == (LINES, False):
            yield partial(_write_lines, out)
            return
        with TemporaryFile(dir=Path(name).parent) as lines:
            try:
                yield partial(_write_lines, lines)
            finally:
                lines.seek(0)
                write_export(name, lines, out, kind, grid)


def _write_lines(out: IO[bytes], payloads: Sequence[bytes]) -> None:
    out.write(b"".join(payload + b"\n" for payload in payloads))
    out.flush()


@dataclass
class Appender:
    """Adds lines to the file of a name; `-`, a pipe and a device are written to as they are.

    Each write first looks whether the file at the name is still ours. After logrotate it is another
    file, or is gone: so each line is on the path, whole. UsageError if the file cannot be written
    at the beginning, OSError later.
    """

    name: str
    mode: int = PUBLIC

    def __post_init__(self) -> None:
        self._is_stream = _is_stream(self.name)
        try:
            self._out = (
                open_output(self.name, self.mode).__enter__() if self._is_stream else self._opened()
            )
        except OSError as error:
            raise UsageError(f"{self.name}: cannot be written ({error.strerror})") from error

    def _opened(self) -> BinaryIO:
        """The file, with the end that a crash cut off removed. Writes go to its end, wherever
        copytruncate puts it."""
        opener = partial(os.open, mode=self.mode)
        out = io.BufferedRandom(NamedFile(self.name, "a+", opener=opener))
        out.truncate(out.seek(_end_of_lines(out)))
        return out

    def write(self, data: bytes, /) -> None:
        """Hand whole lines on to the operating system."""
        self.reopen()
        self._out.write(data)
        self._out.flush()

    def write_records(self, payloads: Sequence[bytes]) -> None:
        """The same of records, each its JSON."""
        if payloads:
            self.write(b"".join(payload + b"\n" for payload in payloads))

    def reopen(self) -> None:
        """Write to the file that has the name now, to a new file if there is none."""
        if self._is_stream:
            return
        ours = os.fstat(self._out.fileno())
        with suppress(FileNotFoundError):
            if os.path.samestat(ours, Path(self.name).stat()):
                return
        if not ours.st_nlink:
            text = "was removed, and is made anew: `udp-stream records` prints what it held"
            log_message(f"{self.name}: {text}", "output_removed", level=WARNING)
        self._out.close()
        self._out = self._opened()

    def ids(self) -> frozenset[str]:
        """The ids of the records at the end of the file."""
        return frozenset(record.release_id for record in self._last(_RecordId)) - {""}

    def hats(self) -> frozenset[tuple[str, str]]:
        """Cell and start of the slot of the estimates at the end of the file."""
        return frozenset(
            (estimate.hat.cell, estimate.hat.slot_start) for estimate in self._last(_Estimate)
        )

    def _last(self, kind: type[T]) -> Iterator[T]:
        """The lines at the end of the file that are of this kind."""
        if self._is_stream:
            return
        start = max(0, self._out.seek(0, os.SEEK_END) - TAIL_BYTES)
        self._out.seek(start)
        tail = self._out.read()
        for line in (tail.partition(b"\n")[2] if start else tail).split(b"\n"):
            with suppress(msgspec.DecodeError):  # a line that this program did not write
                yield msgspec.json.decode(line, type=kind)

    def close(self) -> None:
        if self.name != "-":
            self._out.close()


def _is_stream(name: str) -> bool:
    return name == "-" or (Path(name).exists() and not Path(name).is_file())


def _end_of_lines(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 2**16)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def open_output(name: str, mode: int = PUBLIC) -> AbstractContextManager[BinaryIO]:
    """The file, empty, or standard output for `-`; UsageError if it cannot be written. `mode` is a
    new file's."""
    try:
        if name != "-":
            return io.BufferedWriter(NamedFile(name, "w", opener=partial(os.open, mode=mode)))
        os.write(sys.stdout.fileno(), b"")  # fails if it is closed
    except OSError as error:
        title = STANDARD_OUTPUT if name == "-" else name
        raise UsageError(f"{title}: cannot be written ({error.strerror})") from error
    return nullcontext(sys.stdout.buffer)


def _is_same(path: str, other: str) -> bool:
    try:
        return Path(path).samefile(other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _looks_like(path: str) -> str | None:
    if not Path(path).is_file() or not os.access(path, os.R_OK):
        return None
    with Path(path).open("rb") as file:
        head = file.read(100)
    if head.startswith((MAGIC, *_WRITE_AHEAD_LOGS)):
        return "an SQLite database, as ledgers are"
    return "the key of a ledger" if is_key(head) else None


def require_place(path: Path) -> None:
    """UsageError if no file can be written there."""
    if path.is_dir():
        code = errno.EISDIR
    elif not path.parent.is_dir():
        code = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        code = errno.EACCES
    else:
        return
    raise UsageError(f"{path}: cannot be written ({os.strerror(code)})")


def require_queries(name: str | None, settings: Settings) -> None:
    """Results and queries need each other: a query without a reader would be charged for nothing."""
    if name is None:
        if settings.query:
            text = "the configuration's queries are not asked: --queries FILE asks, and names where the results go"
            log_message(text)
    elif not settings.query:
        raise UsageError("--queries: expected a configuration with [[query]], got none")
    elif require_format(name)[0] != LINES:
        raise UsageError(
            f"--queries: expected lines of JSON, as in answers.ndjson or answers.ndjson.gz, got {name}"
        )


def read_time(text: str | None, zone: tzinfo, otherwise: float = inf) -> float:
    """Unix seconds of an ISO 8601 date or time, in this zone where it tells none. UsageError for
    other text."""
    if text is None:
        return otherwise
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"expected a date or time such as 2026-10-01 or 2026-10-01T06:00, got {text!r}"
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=zone)).timestamp()
