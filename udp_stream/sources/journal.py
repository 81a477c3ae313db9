"""The journal of a live run: what arrived, in order, until the slots that it belongs to are
published.

A folder of segments. A segment is a file named after the offset of its first message. It holds
frames: a length, a checksum, the time of arrival, and messages that came together; without messages
a frame is a tick. A frame counts once it is synced. A last frame that a crash cut off was never
acknowledged, and is removed when the journal is opened.

It holds raw pings: only its owner may read it, segments that are no longer needed are deleted, and
a single process has it at a time.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.base.files import bytes_of, named, sync_directory, write_whole

JOURNAL_BYTES_MAX = 8 * 2**30
"""8 GiB hold an hour of 150,000 buses that ping every 10 s: a journal with more has slots that do
not close."""

NO_LIMIT = 2**63
"""Where whole plates are hidden: who sends much must not end the run of all. The disk is the limit."""

SEGMENT_BYTES = 64 * 2**20
"""A segment is closed once it has so many bytes."""

SEGMENT_MS = 600_000
"""Or once its first frame is so old: so pings that are no longer needed are deleted soon."""

_HEAD = struct.Struct("<II")
_SUFFIX = ".journal"


class JournalFrame(NamedTuple):
    """A frame: the offset of its first message, its arrival (Unix ms), its messages. A tick has an
    offset alone.

    `gap`: since and until when (Unix ms) nobody wrote to the journal before it. `resets`: the log's
    clock goes back to the arrival.
    """

    offset: int
    arrival_ms: int
    messages: list[bytes]
    gap: tuple[int, int] | None = None
    resets: bool = False

    @property
    def behind(self) -> int:
        return self.offset + max(1, len(self.messages))


class _StoredFrame(msgspec.Struct, frozen=True, array_like=True):
    arrival_ms: int
    messages: list[bytes]
    gap: tuple[int, int] | None = None
    resets: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredFrame).decode


def journal_size(folder: Path) -> int:
    """Bytes of the segments in a journal's folder, also while another run has it; the journal is
    not opened."""
    return bytes_of(folder.glob(f"*{_SUFFIX}"))


class Journal:
    """A journal that is open for writing. Use it as a context manager.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with Journal(Path(folder, "city.journal"), "ledger 5eed") as journal:
    ...         _ = journal.append([b"one", b"two"], arrival_ms=7_000), journal.append([], arrival_ms=8_000)
    ...         journal.sync()
    ...     with Journal(Path(folder, "city.journal"), "ledger 5eed") as journal:
    ...         [(arrived.offset, arrived.messages) for arrived in journal.frames(since=0)], journal.next_offset
    ([(0, [b'one', b'two']), (2, [])], 3)
    """

    def __init__(self, folder: Path, owner: str, max_bytes: int = JOURNAL_BYTES_MAX) -> None:
        """Open it, or make it for this owner: the ledger that its pings are charged on.

        PrivacyRefused if it belongs to another owner; DependencyUnavailable if another process has
        it, or it is damaged. `max_bytes`: of all segments; `append` refuses what would be more.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(owner)
            self._segments = sorted(int(path.stem) for path in folder.glob(f"*{_SUFFIX}"))
            self._sizes = {first: self._path(first).stat().st_size for first in self._segments}
            self.last_ms: int | None = None
            """The arrival of the last frame; None before the first."""
            self.next_offset = self._repair()
        # A journal that could not be opened is never left by a `with`: its lock would stay.
        except BaseException:
            os.close(self._lock)
            raise
        self._out: BinaryIO | None = None
        self._began_ms = 0

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._out is not None:
                with named(self._path(self._segments[-1])):
                    self._out.close()  # tries again to write what did not fit
        finally:
            os.close(self._lock)

    def append(
        self,
        messages: Sequence[bytes],
        arrival_ms: int,
        gap: tuple[int, int] | None = None,
        resets: bool = False,
    ) -> JournalFrame:
        """A frame behind all others: messages, or a tick if there are none. It counts once `sync`
        has returned.

        DependencyUnavailable if the journal would be too large, or cannot be written.
        """
        arrived = JournalFrame(self.next_offset, arrival_ms, list(messages), gap, resets)
        body = _encode(_StoredFrame(arrival_ms, arrived.messages, gap, resets))
        frame = _HEAD.pack(len(body), zlib.crc32(body)) + body
        if self.bytes + len(frame) > self._max_bytes:
            raise DependencyUnavailable(
                f"the journal {self.folder} would have more than {self._max_bytes:,} bytes: pings of open slots come "
                "in faster than it is made for, or slots do not close"
            )
        out = self._segment(arrival_ms)
        with named(self._path(self._segments[-1])):
            out.write(frame)
        self._sizes[self._segments[-1]] += len(frame)
        self.next_offset = arrived.behind
        self.last_ms = arrival_ms
        return arrived

    def sync(self) -> None:
        """All that was appended is on disk when this returns."""
        if self._out is not None:
            with named(self._path(self._segments[-1])):
                self._out.flush()
                os.fdatasync(self._out.fileno())

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def first_offset(self) -> int:
        return self._segments[0] if self._segments else self.next_offset

    def frames(self, since: int) -> Iterator[JournalFrame]:
        """The synced frames that end behind this offset, in order."""
        for at, first in enumerate(self._segments):
            if at + 1 < len(self._segments) and self._segments[at + 1] <= since:
                continue
            for arrived, _ in self._read(first):
                if arrived.behind > since:
                    yield arrived

    def drop_before(self, offset: int) -> None:
        """Delete the segments all of whose frames are before this offset."""
        # The last segment stays: only it says which offset is next when the journal is opened
        # again.
        while len(self._segments) > 1 and self._segments[1] <= offset:
            first = self._segments.pop(0)
            self._path(first).unlink()
            del self._sizes[first]

    def _take(self, owner: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DependencyUnavailable(
                f"the journal {self.folder} is in use by another run"
            ) from error
        name = self.folder / "owner"
        if not name.exists():
            write_whole(name, owner.encode())
        elif (theirs := name.read_text()) != owner:
            raise PrivacyRefused(
                f"the journal {self.folder} belongs to {theirs}, and this run has {owner}: the same pings on two "
                "ledgers are two budgets. Name the ledger that it belongs to, or another journal"
            )

    def _segment(self, arrival_ms: int) -> BinaryIO:
        if self._out is not None:
            is_young = arrival_ms - self._began_ms < SEGMENT_MS
            if self._sizes[self._segments[-1]] < SEGMENT_BYTES and is_young:
                return self._out
            # `sync` reaches the open file alone: a frame in another would never be synced.
            self.sync()
            self._out.close()
        # A crash may have left the last segment empty: it has this offset already, and is written
        # to again.
        if not self._segments or self._segments[-1] != self.next_offset:
            self._segments.append(self.next_offset)
            self._sizes[self.next_offset] = 0
        path = self._path(self._segments[-1])
        self._out = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        self._began_ms = arrival_ms
        sync_directory(self.folder)
        return self._out

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:020}{_SUFFIX}"

    def _repair(self) -> int:
        """Cut off what a crash left behind the last whole frame; gives the next offset."""
        if not self._segments:
            return 0
        behind = self._segments[-1]
        good = 0
        for arrived, end in self._read(self._segments[-1]):
            behind = arrived.behind
            good = end
            self.last_ms = arrived.arrival_ms
        with self._path(self._segments[-1]).open("r+b") as file:
            file.truncate(good)
        self._sizes[self._segments[-1]] = good
        return behind

    def _read(self, first: int) -> Iterator[tuple[JournalFrame, int]]:
        """The frames of a segment, each with the byte behind it, up to the first that is not whole.

        DependencyUnavailable if that is not in the last segment: then frames behind it would be
        lost.
        """
        offset = first
        end = 0
        with self._path(first).open("rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, checksum = _HEAD.unpack(head)
                body = file.read(length)
                if len(body) < length or zlib.crc32(body) != checksum:
                    break
                frame = _decode(body)
                end += _HEAD.size + length
                arrived = JournalFrame(
                    offset, frame.arrival_ms, frame.messages, frame.gap, frame.resets
                )
                offset = arrived.behind
                yield arrived, end
        later = [one for one in self._segments if one > first]
        if later and offset != later[0]:
            raise DependencyUnavailable(
                f"{self._path(first)} is damaged: it has messages up to {offset}, and the next file begins at "
                f"{later[0]}"
            )
