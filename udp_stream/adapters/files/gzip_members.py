"""Gzip, decompressed as it comes: any number of members, one after another, and zeros behind any of them.

Output comes in blocks of bounded size, however well the data are packed. Of damaged data, what was whole
before the damage is given first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

MAGIC = b"\x1f\x8b"
"""The first two bytes of every member."""

_PIECE_BYTES = 2**12  # of the input: of damaged data, zlib keeps to itself what it made of the same piece
_GZIP = 16 + zlib.MAX_WBITS  # 16: zlib is to expect a header of gzip, and no other


class GzipError(ValueError):
    """The data are no gzip, or not whole; the message ends the sentence "the data ...".

    >>> list(GzipMembers(1000).end())
    Traceback (most recent call last):
    udp_stream.adapters.files.gzip_members.GzipError: end too early
    """


class GzipMembers:
    """Feed it the data as they come, in blocks of any size, and end it once.

    >>> import gzip
    >>> members = GzipMembers(block_bytes=4)
    >>> [*members.feed(gzip.compress(b"2022-01-01") + gzip.compress(b"T10") + bytes(9)), *members.end()]
    [b'2022', b'-01-', b'01', b'T10']
    """

    def __init__(self, block_bytes: int) -> None:
        """Blocks of output have at most this many bytes."""
        self._block_bytes = block_bytes
        self._member = zlib.decompressobj(_GZIP)
        self._is_between = False  # members: one has ended, and of the next nothing has come

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The output of the next data. GzipError if they are damaged, after what comes out before the
        damage."""
        for first in range(0, len(data), _PIECE_BYTES):
            rest = data[first : first + _PIECE_BYTES]
            while rest := self._begun(rest):
                if out := self._decompress(rest):
                    yield out
                self._is_between = self._member.eof
                rest = self._member.unused_data if self._is_between else self._member.unconsumed_tail

    def end(self) -> Iterator[bytes]:
        """What is left. GzipError if the last member has not ended."""
        while not self._member.eof and (out := self._decompress(b"")):
            yield out
        if not self._member.eof:
            raise GzipError("end too early")

    def _begun(self, rest: bytes) -> bytes:
        """What belongs to a member, and that member begun: between members zeros are skipped."""
        if self._is_between and (rest := rest.lstrip(b"\0")):
            self._member, self._is_between = zlib.decompressobj(_GZIP), False
        return rest

    def _decompress(self, data: bytes) -> bytes:
        try:
            return self._member.decompress(data, self._block_bytes)
        except zlib.error as error:
            raise GzipError(f"are damaged ({error})") from error
