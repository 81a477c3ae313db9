"""The files that a command writes: of their own, and named when they cannot be written.

Opening a file to write empties it. So what a command is about to write is compared with all that the run needs, file by
file and not name by name, and with what ledgers and keys look like, before anything is opened.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO

from udp_stream.adapters.ledgers.opening import ledger_files
from udp_stream.adapters.ledgers.plate_keys import is_key
from udp_stream.adapters.ledgers.sqlite.file import MAGIC
from udp_stream.adapters.records_out import require_form
from udp_stream.adapters.settings import Settings
from udp_stream.cli.named_files import NamedFile
from udp_stream.cli.named_files import named as named  # for those who open outputs
from udp_stream.errors import UsageError

FileRole = tuple[str, str | Path | None]
"""What a file is for, and its name: `-` for a standard stream, None for no file."""

PUBLIC, PRIVATE = 0o666, 0o600
"""Modes of new files."""

_WRITE_AHEAD_LOGS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # SQLite's, in either byte order


def used_files(arguments: argparse.Namespace, settings: Settings, inputs: Iterable[str] = ()) -> list[FileRole]:
    """What a run needs besides its outputs: the configuration, the ledger and its key, and the inputs."""
    needed: list[FileRole] = [("the configuration", arguments.config)]
    needed += ledger_files(settings.ledger)
    return needed + [("the input", "/dev/stdin" if name == "-" else name) for name in inputs]


def require_distinct(outputs: Iterable[FileRole], used: Iterable[FileRole]) -> None:
    """UsageError for an output that is a used file, another output, any ledger or key, or whose folder does not exist.

    Nothing is opened to write. Files that do not exist yet count too. Only the null device may serve twice.
    """
    needed, before = _named_ones(used), list[tuple[str, str]]()
    for flag, name in _named_ones(outputs):
        path = "/dev/stdout" if name == "-" else name
        if _is_same(path, os.devnull):
            continue
        for what, other in before if _is_special(path) else needed + before:
            if _is_same(path, other):
                raise UsageError(f"{flag} {name}: expected a file of its own, got {what} {other}")
        if precious := _looks_like(path):
            raise UsageError(f"{flag} {name}: expected a file that may be overwritten, got {precious}")
        if name != "-":
            require_place(Path(path))
        before.append((f"that of {flag}", path))


def require_lines(flag: str, name: str | None) -> None:
    """UsageError if a file of plain lines of JSON has the name of another form, or of a packed one.

    >>> require_lines("--rejected", "refused.ndjson")
    """
    if name is not None and require_form(name) != ("", False):
        raise UsageError(f"{flag} {name}: expected the name of lines of JSON that are not packed, as in refused.ndjson")


def _named_ones(roles: Iterable[FileRole]) -> list[tuple[str, str]]:
    return [(what, str(name)) for what, name in roles if name is not None]


def open_output(name: str, mode: int = PUBLIC) -> AbstractContextManager[BinaryIO]:
    """The file, empty, or standard output for `-`; UsageError if it cannot be written. `mode`: of a new file, less the
    umask; one that is there keeps its own."""
    try:
        if name != "-":
            return io.BufferedWriter(NamedFile(name, "w", opener=partial(os.open, mode=mode)))
        os.write(sys.stdout.fileno(), b"")  # fails if it is closed
    except OSError as error:
        raise UsageError(f"{_title(name)}: cannot be written ({error.strerror})") from error
    return nullcontext(sys.stdout.buffer)


def _title(name: str) -> str:
    return "standard output" if name == "-" else name


def _is_same(one: str, other: str) -> bool:
    """Whether both names are one file; for files that do not exist, whether they would be."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _is_special(path: str) -> bool:
    """Whether it is there and nothing that is emptied when it is opened: a terminal, a pipe."""
    return Path(path).exists() and not Path(path).is_file()


def _looks_like(path: str) -> str | None:
    """What the file is if it is of those that must not be lost."""
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
