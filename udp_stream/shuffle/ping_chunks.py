"""Parts: a closed slot of one source partition, cut by cell into bounded messages for the shards that release it.

A part is known by (slot, source, shard, digest, number), and merging looks at nothing else, so that parts may come
twice and in any order. The digest is that of all parts of the slot for the shard: whoever cuts the same pings again
says the same, and parts that were cut under other settings are told apart. What counts say and what speeds say are
apart in the message as they are in the tables behind it. A marker follows the parts of its slot, names their digest,
tells how many they are, and says up to when its source has closed.

Parts hold raw speeds beside the hashes of plates: their topic is to be guarded and forgotten like the raw pings'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.windows.slot_tables import SlotPings, without_repeats

ROWS_MAX = 24_000
"""Of one part: 20 bytes each and at most 16 of a plate's hash make 864 kB, below Kafka's usual limit of 1 MiB."""


class WhoWhere(msgspec.Struct, frozen=True, array_like=True):
    """The public columns of a part, little-endian: hashes of `hash_bytes` each, and for each row its plate's number,
    ms since the slot's start, and cell."""

    hash_bytes: int
    plates: bytes
    plate: bytes
    time: bytes
    cell: bytes


class Part(msgspec.Struct, frozen=True, tag="part"):
    """Some pings of a slot; `speeds` (quanta, 4 bytes each) belong to the rows of `counts`."""

    slot_start: int
    slot_end: int
    source: int
    shard: int
    digest: bytes
    number: int
    counts: WhoWhere
    speeds: bytes

    @property
    def sender(self) -> int:
        """Who has read these pings."""
        return self.source


class Marker(msgspec.Struct, frozen=True, tag="closed"):
    """The source has closed every slot that ends by `through_ms`; the slot that starts at `slot_start`, if any is
    named, has so many parts of this digest for this shard."""

    source: int
    shard: int
    through_ms: int
    slot_start: int | None = None
    digest: bytes = b""
    parts: int = 0

    @property
    def sender(self) -> int:
        """Who has closed its slots."""
        return self.source


def shard_of(cells: NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """The shard that releases each cell: spread evenly, and for ever the same for a number of shards.

    >>> shard_of(np.array([0x87608c4d2ffffff, 0x87608c4d0ffffff], np.uint64), 1).tolist()
    [0, 0]
    """
    mixed = (cells ^ (cells >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(shards)).astype(np.int64)


def cut(slot: SlotPings, source: int, shards: int, rows_max: int = ROWS_MAX) -> Iterator[Part | Marker]:
    """The parts of a closed slot for every shard, each followed by its marker; shards without pings get markers too.

    Repeats of (plate, time) go here, since two of them may lie in cells of different shards. (Those that reach
    different source partitions do not meet before they are in one shard.)
    """
    slot = without_repeats(slot)
    of = shard_of(slot.cell, shards)
    for shard in range(shards):
        rows = np.flatnonzero(of == shard)
        pieces = [_columns(slot, rows[first : first + rows_max]) for first in range(0, rows.size, rows_max)]
        digest = digest_of(pieces)
        for number, (counts, speeds) in enumerate(pieces):
            yield Part(slot.start_ms, slot.end_ms, source, shard, digest, number, counts, speeds)
        yield Marker(source, shard, slot.end_ms, slot.start_ms, digest, len(pieces))


def digest_of(pieces: Iterable[object]) -> bytes:
    """8 bytes that tell all that a sender says of a slot, piece by piece, from anything else that it might say.

    >>> digest_of([(b"ab", b"")]) == digest_of([(b"a", b"b")])
    False
    """
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(msgspec.msgpack.encode(piece))
    return digest.digest()


def _columns(slot: SlotPings, rows: NDArray[np.int64]) -> tuple[WhoWhere, bytes]:
    counts = WhoWhere(
        *plates_of(slot.plates, slot.plate[rows]),
        time=slot.time[rows].astype("<u4").tobytes(),
        cell=slot.cell[rows].astype("<u8").tobytes(),
    )
    return counts, slot.speed[rows].astype("<i4").tobytes()


def merge(parts: Sequence[Part]) -> SlotPings:
    """The pings of distinct parts of one slot together; ValueError for none, or for parts of different slots."""
    if len({(part.slot_start, part.slot_end) for part in parts}) != 1:
        raise ValueError(f"expected parts of one slot, got {len(parts)} parts of none or several")
    number: dict[bytes, int] = {}
    plate = [_renumbered(part.counts, number) for part in parts]
    return SlotPings(
        parts[0].slot_start,
        parts[0].slot_end,
        tuple(number),
        np.concatenate(plate),
        np.concatenate([np.frombuffer(part.counts.time, "<u4") for part in parts]),
        np.concatenate([np.frombuffer(part.counts.cell, "<u8") for part in parts]),
        np.concatenate([np.frombuffer(part.speeds, "<i4") for part in parts]),
    )


def _renumbered(counts: WhoWhere, number: dict[bytes, int]) -> NDArray[np.uint32]:
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
    here, plate = np.unique(rows, return_inverse=True)
    hashes = b"".join(plates[i] for i in here.tolist())
    return len(hashes) // here.size, hashes, plate.astype("<u4").tobytes()


def hashes_of(plates: bytes, size: int) -> list[bytes]:
    """The plates' hashes of so many bytes each, out of all of them one after the other.

    >>> hashes_of(b"aabbcc", 2)
    [b'aa', b'bb', b'cc']
    """
    hashes: list[bytes] = np.frombuffer(plates, f"V{size}").tolist()
    return hashes
