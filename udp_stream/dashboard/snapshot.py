"""A text packed once for all readers, and a slot as it is shown: its records, packed by kind."""

from __future__ import annotations

import gzip
import io
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Literal, NamedTuple

Kind = Literal["releases", "estimates", "withdrawals"]

BLOCK = 256


class CompressedText(NamedTuple):
    """A text in pieces, packed by gzip; its digest, bytes and lines, and each block's first key and
    offset.

    >>> text = compressed([b"a record\\n", b"another\\n"])
    >>> list(text.opened()), text.size, text.lines
    ([b'a record\\n', b'another\\n'], 17, 2)
    """

    body: bytes
    digest: str
    size: int
    lines: int
    blocks: tuple[tuple[str, int], ...]

    def opened(self) -> io.BufferedIOBase:
        return gzip.open(io.BytesIO(self.body))

    @property
    def is_whole(self) -> bool:
        """Whether it is the text that was packed; where it cannot be opened OSError, EOFError or
        zlib.error leaves."""
        return blake2b(self.opened().read(), digest_size=8).hexdigest() == self.digest

    def block_of(self, key: str) -> bytes:
        """The text of the only block that may have the piece of this key, where pieces are sorted
        by it."""
        at = bisect_right(self.blocks, (key, len(self.body)))
        if at == 0:
            return b""
        end = self.blocks[at][1] if at < len(self.blocks) else None
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(
            self.body[self.blocks[at - 1][1] : end]
        )


def compressed(
    pieces: Iterable[bytes], key: Callable[[bytes], str] = lambda _: ""
) -> CompressedText:
    """A text in pieces, packed, with at most a single piece in memory; the same bytes for the same
    pieces."""
    body = io.BytesIO()
    digest = blake2b(digest_size=8)
    size = 0
    lines = 0
    blocks = list[tuple[str, int]]()
    with gzip.GzipFile(filename="", mode="wb", fileobj=body, compresslevel=6, mtime=0) as packing:
        for number, piece in enumerate(pieces):
            if number % BLOCK == 0:
                packing.flush(zlib.Z_FULL_FLUSH)
                blocks.append((key(piece), body.tell()))
            packing.write(piece)
            digest.update(piece)
            size = size + len(piece)
            lines = lines + piece.count(b"\n")
    return CompressedText(body.getvalue(), digest.hexdigest(), size, lines, tuple(blocks))


NOTHING = compressed(())


class Slot(NamedTuple):
    """A slot as it is shown; `change` orders the changes of all slots, `hats` counts releases by
    status."""

    start_ms: int
    start: str
    end: str
    version: str
    change: int
    hats: Mapping[str, int]
    parts: Mapping[Kind, CompressedText]

    def listed(self) -> dict[str, object]:
        of_times = {"slot_start": self.start, "slot_end": self.end, "version": self.version}
        withdrawn = self.parts["withdrawals"].lines
        of_records = {"hats": self.hats, "estimates": self.parts["estimates"].lines}
        return of_times | of_records | ({"withdrawn": withdrawn} if withdrawn else {})
