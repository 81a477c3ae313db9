"""Ping chunks: a closed slot of one source partition, cut by cell into bounded messages for the shards.

A chunk is identified by (slot, source, shard, digest, number). Merging looks at nothing else, so chunks may arrive
twice and in any order. The digest covers all chunks of the slot for the shard: cutting the same pings again gives the
same digest, cutting them under other settings gives another one. An end marker (`PingsEnd`) follows the chunks; see
`barrier.py`.

In a chunk, as in the tables behind it, counts and speeds are separate fields.

Chunks hold raw speeds beside the hashes of plates: protect and delete their topic like that of the raw pings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.windows.tables import SlotPings, without_repeats

ROWS_MAX = 24_000
"""Of one chunk: 20 bytes a row and at most 16 for a plate's hash make 864 kB, below Kafka's usual limit of 1 MiB."""


class PingColumns(msgspec.Struct, frozen=True, array_like=True):
    """The public columns of a chunk, little-endian.

    `plates`: hashes of `hash_bytes` each. For each row, `plate`: its plate's number, `time`: ms since the slot's start,
    and `cell`.

    >>> from udp_stream.testing import seven_pings
    >>> chunk, _ = cut(seven_pings(), source=0, shards=1)
    >>> np.frombuffer(chunk.counts.time, "<u4").tolist()
    [0, 1000, 2000, 3000, 4000, 5000, 6000]
    """

    hash_bytes: int
    plates: bytes
    plate: bytes
    time: bytes
    cell: bytes


class PingChunk(msgspec.Struct, frozen=True, tag="pings.1"):
    """Some pings of a slot; `speeds` (quanta, 4 bytes each) belong to the rows of `counts`.

    >>> from udp_stream.testing import seven_pings
    >>> chunk, _ = cut(seven_pings(), source=3, shards=1)
    >>> chunk.sender, (np.frombuffer(chunk.speeds, "<i4") // 4096).tolist()
    (3, [10, 20, 30, 40, 50, 60, 30])
    """

    slot_start: int
    slot_end: int
    source: int
    shard: int
    digest: bytes
    number: int
    counts: PingColumns
    speeds: bytes

    @property
    def sender(self) -> int:
        """The source partition that these pings were read from."""
        return self.source


class SourceEnd(msgspec.Struct, frozen=True):
    """How far a source has sent what it has to, and what there was of one slot or moment.

    >>> SourceEnd(source=3, shard=0, through_ms=3_600_000).sender
    3
    """

    source: int
    shard: int
    through_ms: int
    slot_start: int | None = None
    digest: bytes = b""
    chunks: int = 0

    @property
    def sender(self) -> int:
        """The source partition."""
        return self.source


class PingsEnd(SourceEnd, frozen=True, tag="pings-end.1"):
    """The source has closed every slot that ends by `through_ms`.

    If `slot_start` is given, that slot has `chunks` chunks of this digest for this shard.

    >>> PingsEnd(source=3, shard=0, through_ms=3_600_000).slot_start is None  # no pings in what it has closed
    True
    """


def shard_of(cells: NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """The shard that releases each cell: spread evenly, and always the same for a given number of shards.

    >>> shard_of(np.array([0x87608c4d2ffffff, 0x87608c4d0ffffff], np.uint64), 1).tolist()
    [0, 0]
    """
    # Neighbouring cells differ in few bits, in the middle: folding and an odd multiplier (2**64 / golden ratio) carry
    # the difference into the high bits, and only those are taken.
    mixed = (cells ^ (cells >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(shards)).astype(np.int64)


def cut(slot: SlotPings, source: int, shards: int, rows_max: int = ROWS_MAX) -> Iterator[PingChunk | PingsEnd]:
    """The chunks of a closed slot for every shard, each followed by an end marker; shards without pings get one too.

    Repeats of (plate, time) are dropped here, since two of them may lie in cells of different shards. (Repeats that
    arrive on different source partitions first meet in a shard.)

    >>> from udp_stream.testing import seven_pings
    >>> [(type(message).__name__, message.shard) for message in cut(seven_pings(), source=0, shards=2)]
    [('PingChunk', 0), ('PingsEnd', 0), ('PingChunk', 1), ('PingsEnd', 1)]
    """
    slot = without_repeats(slot)
    of = shard_of(slot.cell, shards)
    for shard in range(shards):
        rows = np.flatnonzero(of == shard)
        chunks = [_columns(slot, rows[first : first + rows_max]) for first in range(0, rows.size, rows_max)]
        digest = digest_of(chunks)
        for number, (counts, speeds) in enumerate(chunks):
            yield PingChunk(slot.start_ms, slot.end_ms, source, shard, digest, number, counts, speeds)
        yield PingsEnd(source, shard, slot.end_ms, slot.start_ms, digest, len(chunks))


def digest_of(chunks: Iterable[object]) -> bytes:
    """8 bytes that identify the contents of a slot's chunks, and where one chunk ends and the next begins.

    >>> digest_of([(b"ab", b"")]) == digest_of([(b"a", b"b")])
    False
    """
    digest = blake2b(digest_size=8)
    for chunk in chunks:
        digest.update(msgspec.msgpack.encode(chunk))
    return digest.digest()


def _columns(slot: SlotPings, rows: NDArray[np.int64]) -> tuple[PingColumns, bytes]:
    counts = PingColumns(
        *plates_of(slot.plates, slot.plate[rows]),
        time=slot.time[rows].astype("<u4").tobytes(),
        cell=slot.cell[rows].astype("<u8").tobytes(),
    )
    return counts, slot.speed[rows].astype("<i4").tobytes()


def merge(chunks: Sequence[PingChunk]) -> SlotPings:
    """The pings of distinct chunks of one slot together; ValueError for none, or for chunks of different slots.

    >>> from udp_stream.testing import seven_pings
    >>> *chunks, _ = cut(seven_pings(), source=0, shards=1, rows_max=3)
    >>> len(chunks), merge(chunks).time.tolist() == seven_pings().time.tolist()
    (3, True)
    """
    if len({(chunk.slot_start, chunk.slot_end) for chunk in chunks}) != 1:
        raise ValueError(f"expected chunks of one slot, got {len(chunks)} chunks of none or several")
    number: dict[bytes, int] = {}
    plate = [_renumbered(chunk.counts, number) for chunk in chunks]
    return SlotPings(
        chunks[0].slot_start,
        chunks[0].slot_end,
        tuple(number),
        np.concatenate(plate),
        np.concatenate([np.frombuffer(chunk.counts.time, "<u4") for chunk in chunks]),
        np.concatenate([np.frombuffer(chunk.counts.cell, "<u8") for chunk in chunks]),
        np.concatenate([np.frombuffer(chunk.speeds, "<i4") for chunk in chunks]),
    )


def _renumbered(counts: PingColumns, number: dict[bytes, int]) -> NDArray[np.uint32]:
    """The plate column in the numbers of the whole slot; new plates are given the next ones."""
    hashes = hashes_of(counts.plates, counts.hash_bytes)
    new = dict.fromkeys(one for one in hashes if one not in number)
    number.update(zip(new, range(len(number), len(number) + len(new)), strict=True))
    codes = np.fromiter(map(number.__getitem__, hashes), np.uint32, len(hashes))
    renumbered: NDArray[np.uint32] = codes[np.frombuffer(counts.plate, "<u4")]
    return renumbered


def plates_of(plates: Sequence[bytes], rows: NDArray[np.integer[Any]]) -> tuple[int, bytes, bytes]:
    """The first columns of a message: the bytes of a hash, the hashes that some rows point to, and for each row its
    plate's number among them.

    >>> plates_of([b"aa", b"bb", b"cc"], np.array([2, 0, 2], np.uint32))
    (2, b'aacc', b'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x00\\x00\\x00')
    """
    is_here = np.zeros(len(plates), dtype=bool)
    is_here[rows] = True
    here, number = np.flatnonzero(is_here), np.cumsum(is_here) - 1  # as np.unique has them, without sorting
    hashes = b"".join(plates[i] for i in here.tolist())
    return len(hashes) // here.size, hashes, number[rows].astype("<u4").tobytes()


def hashes_of(plates: bytes, size: int) -> list[bytes]:
    """The plates' hashes, each of this many bytes, out of all of them one after the other.

    >>> hashes_of(b"aabbcc", 2)
    [b'aa', b'bb', b'cc']
    """
    hashes: list[bytes] = np.frombuffer(plates, f"V{size}").tolist()
    return hashes
