"""Files that grow, and their lines, or those of topics, on their way to the slots.

A file is read up to its last line break; a missing file is waited for. A file that is replaced
(rotated) is read to its end first. An emptied or rewritten file is read from its start: records
have ids, so none comes twice. Where a file is large the last lines of all come first, and again in
their turn: the newest slots need not wait for the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from udp_stream.base.errors import UsageError
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.dashboard.slots import LINE_BYTES_MAX, Slots

READ_BYTES = 2**17
PAUSE_S = 0.1
SHOW_S = 1.0
NEWEST_BYTES = 8 * 2**20  # of a file's end: two days of a city of 100 cells by the hour
HEAD_BYTES = 256  # of a file's beginning: where it differs, another file was written under the name


class Batch(NamedTuple):
    """Lines from a place, which is empty for lines that come again. `at_end`: the newest lines of
    every place have been read, and from the second time on all that is there now."""

    place: str
    lines: Sequence[bytes]
    at_end: bool


@dataclass
class GrowingFile:
    """The whole lines of a file, as they come. `told` hears after each piece how many bytes were
    read, beside None.

    >>> from contextlib import closing
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "records").write_bytes(b"first\\nsec")
    ...     with closing(GrowingFile(Path(folder, "records"))) as file:
    ...         file.read(), file.read()
    ([b'first'], [])
    """

    path: Path
    told: Callable[[int, int | None], None] = lambda *_: None

    def __post_init__(self) -> None:
        if self.path.is_dir():
            raise UsageError(f"{self.path}: expected a file of records, got a folder")
        self._file: BinaryIO | None = None
        self._head = self._rest = b""
        self._at = 0

    def read(self) -> list[bytes]:
        """The next lines, without their breaks; none if there are no more for now. OSError may
        leave."""
        while piece := self._piece():
            *lines, self._rest = (self._rest + piece).split(b"\n")
            # A longer line is no record: its beginning is enough to refuse it by.
            if len(self._rest) > LINE_BYTES_MAX:
                self._rest = self._rest[: LINE_BYTES_MAX + 1]
            found = [line for line in lines if line]
            if found:
                return found
        return []

    @property
    def size(self) -> int:
        with suppress(FileNotFoundError):
            return self.path.stat().st_size
        return 0

    @property
    def is_begun(self) -> bool:
        """Whether some of it was read, or there is nothing to read."""
        return self._at > 0 or not self.size

    def newest(self) -> list[bytes]:
        """The last whole lines. `read` gives them again. OSError may leave."""
        if not self.size:
            return []
        start = max(0, self.size - NEWEST_BYTES)
        with self.path.open("rb") as file:
            file.seek(start)
            lines = file.read(NEWEST_BYTES).split(b"\n")
        return [line for line in lines[min(start, 1) : -1] if line]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _piece(self) -> bytes:
        if self._file is None or self._is_replaced(os.fstat(self._file.fileno())):
            self.close()
            try:
                self._file = self.path.open("rb")
            except FileNotFoundError:
                return b""
            self._start()
        number = self._file.fileno()
        if (
            os.fstat(number).st_size < self._at
            or os.pread(number, len(self._head), 0) != self._head
        ):
            self._start()  # it was emptied, or written anew
        piece = os.pread(number, READ_BYTES, self._at)
        self._at += len(piece)
        self.told(self._at, None)
        if len(self._head) < HEAD_BYTES:
            self._head = os.pread(number, min(HEAD_BYTES, self._at), 0)
        return piece

    def _start(self) -> None:
        self._head = b""
        self._rest = b""
        self._at = 0

    def _is_replaced(self, ours: os.stat_result) -> bool:
        with suppress(FileNotFoundError):
            return self._at == ours.st_size and not os.path.samestat(ours, self.path.stat())
        return False


def growing(files: Sequence[GrowingFile]) -> Iterator[Batch]:
    """The lines of files, without end; the newest first where any of the files is large."""
    if any(file.size > NEWEST_BYTES for file in files):
        for file in files:
            yield Batch("", file.newest(), at_end=False)
        yield Batch("", (), at_end=True)
    while True:
        for file in files:
            while lines := file.read():
                yield Batch(str(file.path), lines, at_end=False)
        yield Batch("", (), at_end=True)
        time.sleep(PAUSE_S)


def feed(batches: Iterable[Batch], slots: Slots, at_end: Callable[[bool], None]) -> None:
    """Hand lines to the slots. `at_end` is told, at the end of a reading, whether a slot has
    changed. The first refusal of each source is logged with its reason, never with the line."""
    said = set[str]()
    shown_s = time.monotonic()
    changed = False
    for batch in batches:
        refused = slots.take(batch.lines)
        if not batch.place:
            slots.refused -= refused.total()  # they are counted when they come again
        elif refused and batch.place not in said:
            said.add(batch.place)
            why = ", ".join(
                f"{counted(number, 'line')}: {reason}" for reason, number in refused.items()
            )
            log_message(f"{batch.place}: not shown ({why})", "refused", level=WARNING)
        if batch.at_end or time.monotonic() - shown_s > SHOW_S:
            changed |= slots.show()
            shown_s = time.monotonic()
        if batch.at_end:
            at_end(changed)
            changed = False
