"""Files that are there whole or not at all: made under another name, and given their own when they are complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def draft_of(path: Path, *suffixes: str) -> Iterator[Path]:
    """A free name beside the path, to make the file under. What is left there in the end is removed, and so is what
    has these suffixes as well.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "ledger")
    ...     with draft_of(file) as draft:
    ...         _ = draft.write_text("whole")
    ...         link_first(draft, file)
    ...     [each.name for each in Path(folder).iterdir()]
    ['ledger']
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")  # two processes may make one file at once
    try:
        yield draft
    finally:
        for suffix in ("", *suffixes):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def link_first(draft: Path, path: Path) -> None:
    """Give a finished draft its name, unless another process was first: then that one's file stands.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for text in ("first", "second"):
    ...         _ = Path(folder, text).write_text(text)
    ...         link_first(Path(folder, text), Path(folder, "ledger"))
    ...     Path(folder, "ledger").read_text()
    'first'
    """
    with suppress(FileExistsError):
        # A link and not a rename: a rename would replace the file of the process that was first.
        os.link(draft, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to disk, so that a new file in it survives the machine; OSError may leave.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sync_directory(Path(folder))
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
