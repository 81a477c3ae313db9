"""Count chunks: the counts of a closed slot of one shard, in bounded messages for the planner. They hold no speed.

A chunk is identified by (slot, shard, digest, number); repeats and order do not matter. The digest covers all chunks of
the slot from the shard, and an end marker (`CountsEnd`) follows them; see `barrier.py`. Merged, they are the counts
that `slot_tables.tabulate` would give for the whole slot: shards divide the cells, so no HAT is in two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.shuffle.ping_chunks import digest_of, hashes_of, plates_of
from udp_stream.windows.tables import PINGS_MAX, SlotCounts, numbered, require_countable

ROWS_MAX = 24_000
"""Of one chunk: 16 bytes a row and at most 16 for a plate's hash make 768 kB, below Kafka's usual limit of 1 MiB."""


class CountColumns(msgspec.Struct, frozen=True, array_like=True):
    """Columns, little-endian: hashes of `hash_bytes` each, and for each row its plate's number, cell and samples.

    >>> from udp_stream.testing import two_hats
    >>> chunk, _ = cut_counts(two_hats()[0], shard=0)
    >>> np.frombuffer(chunk.counts.count, "<u4").tolist()
    [1, 2, 2, 1, 1]
    """

    hash_bytes: int
    plates: bytes
    plate: bytes
    cell: bytes
    count: bytes


class CountChunk(msgspec.Struct, frozen=True, tag="counts.1"):
    """Some rows of a shard's counts. No field can hold a speed.

    >>> CountChunk(0, 3_600_000, 2, b"digest", 0, CountColumns(2, b"aa", b"", b"", b"")).sender
    2
    """

    slot_start: int
    slot_end: int
    shard: int
    digest: bytes
    number: int
    counts: CountColumns

    @property
    def sender(self) -> int:
        """The shard."""
        return self.shard


class CountsEnd(msgspec.Struct, frozen=True, tag="counts-end.1"):
    """The shard has counted every slot that ends by `through_ms`.

    If `slot_start` is given, that slot has `chunks` chunks of this digest.

    >>> CountsEnd(shard=2, through_ms=3_600_000).slot_start is None  # it has counted nothing, and says so
    True
    """

    shard: int
    through_ms: int
    slot_start: int | None = None
    digest: bytes = b""
    chunks: int = 0

    @property
    def sender(self) -> int:
        """The shard."""
        return self.shard


class Released(msgspec.Struct, frozen=True, tag="released.1"):
    """The shard has published every slot that ends by `through_ms`. Sent where plans follow from releases.

    It stays true for ever, so it may come late, twice or out of order.

    >>> Released(shard=2, through_ms=3_600_000).through_ms
    3600000
    """

    shard: int
    through_ms: int


def cut_counts(counts: SlotCounts, shard: int, rows_max: int = ROWS_MAX) -> Iterator[CountChunk | CountsEnd]:
    """The chunks of a slot of one shard, and their end marker.

    >>> from udp_stream.testing import two_hats
    >>> *chunks, end = cut_counts(two_hats()[0], shard=0, rows_max=2)
    >>> [chunk.number for chunk in chunks], end.chunks
    ([0, 1, 2], 3)
    """
    cell = np.repeat(counts.cells, np.diff(counts.hat_rows))
    chunks = [_columns(counts, cell, slice(first, first + rows_max)) for first in range(0, cell.size, rows_max)]
    digest = digest_of(chunks)
    for number, columns in enumerate(chunks):
        yield CountChunk(counts.start_ms, counts.end_ms, shard, digest, number, columns)
    yield CountsEnd(shard, counts.end_ms, counts.start_ms, digest, len(chunks))


def _columns(counts: SlotCounts, cell: NDArray[np.uint64], rows: slice) -> CountColumns:
    return CountColumns(
        *plates_of(counts.plates, counts.plate[rows]),
        cell=cell[rows].astype("<u8").tobytes(),
        count=counts.count[rows].astype("<u4").tobytes(),
    )


def merge_counts(chunks: Sequence[CountChunk], samples_max: int = PINGS_MAX) -> SlotCounts:
    """The counts of all shards together; ValueError for no chunks, or chunks of different slots; PrivacyRefused if a
    HAT has more than `samples_max` samples.

    >>> from udp_stream.testing import two_hats
    >>> *chunks, _ = cut_counts(two_hats()[0], shard=0, rows_max=2)
    >>> merged = merge_counts(chunks[::-1])
    >>> merged.hat_rows.tolist(), merged.count.tolist()
    ([0, 4, 5], [1, 2, 2, 1, 1])
    """
    if len({(chunk.slot_start, chunk.slot_end) for chunk in chunks}) != 1:
        raise ValueError(f"expected chunks of one slot, got {len(chunks)} chunks of none or several")
    tables = [chunk.counts for chunk in chunks]
    hashes = [hashes_of(table.plates, table.hash_bytes) for table in tables]
    # Sorted, so that plates' numbers do not depend on the order in which chunks came.
    plates = sorted(set().union(*hashes))
    rank = {plate: number for number, plate in enumerate(plates)}
    numbers = [np.array([rank[plate] for plate in known], dtype=np.int64) for known in hashes]
    plate = np.concatenate(
        [of_table[np.frombuffer(table.plate, "<u4")] for of_table, table in zip(numbers, tables, strict=True)]
    )
    cell = np.concatenate([np.frombuffer(table.cell, "<u8") for table in tables])
    count = np.concatenate([np.frombuffer(table.count, "<u4") for table in tables]).astype(np.int64)
    cells, hat = numbered(cell)
    # A sort that is quick where much is in order already, as each shard's rows are.
    order = np.argsort(hat.astype(np.int64) * len(plates) + plate, kind="stable")
    counts = SlotCounts(
        start_ms=chunks[0].slot_start,
        end_ms=chunks[0].slot_end,
        plates=tuple(plates),
        cells=cells.astype(np.uint64),
        hat_rows=np.append(0, np.cumsum(np.bincount(hat, minlength=cells.size))),
        plate=plate[order],
        count=count[order],
        repeats=0,
    )
    require_countable(counts, samples_max)
    return counts
