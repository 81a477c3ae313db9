"""Tallies: the counts of a closed slot of one shard, in bounded messages for the planner, who sees no speed.

A tally is known by (slot, shard, digest, number), and what comes twice or in another order changes nothing. The digest
is that of all tallies of the slot from the shard. A marker follows the tallies of its slot, names their digest, tells
how many they are, and says up to when its shard has counted everything. Together they are the counts of the slot as
`slots.tabulate` would have made them: shards share out cells, so no HAT is in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.shuffle.ping_chunks import digest_of, hashes_of, plates_of
from udp_stream.windows.slot_tables import PINGS_MAX, SlotCounts, require_countable

ROWS_MAX = 24_000
"""Of one tally: 16 bytes each and at most 16 of a plate's hash make 768 kB, below Kafka's usual limit of 1 MiB."""


class HowOften(msgspec.Struct, frozen=True, array_like=True):
    """Columns, little-endian: hashes of `hash_bytes` each, and for each row its plate's number, cell and samples."""

    hash_bytes: int
    plates: bytes
    plate: bytes
    cell: bytes
    count: bytes


class Tally(msgspec.Struct, frozen=True, tag="tally"):
    """Some rows of a shard's counts. There is no room for a speed."""

    slot_start: int
    slot_end: int
    shard: int
    digest: bytes
    number: int
    counts: HowOften

    @property
    def sender(self) -> int:
        """Who has counted."""
        return self.shard


class Tallied(msgspec.Struct, frozen=True, tag="tallied"):
    """The shard has counted every slot that ends by `through_ms`; the slot that starts at `slot_start`, if any is
    named, has so many tallies of this digest."""

    shard: int
    through_ms: int
    slot_start: int | None = None
    digest: bytes = b""
    parts: int = 0

    @property
    def sender(self) -> int:
        """Who has counted."""
        return self.shard


def cut_counts(counts: SlotCounts, shard: int, rows_max: int = ROWS_MAX) -> Iterator[Tally | Tallied]:
    """The tallies of a slot of one shard and their marker."""
    cell = np.repeat(counts.cells, np.diff(counts.hat_rows))
    pieces = [_columns(counts, cell, slice(first, first + rows_max)) for first in range(0, cell.size, rows_max)]
    digest = digest_of(pieces)
    for number, piece in enumerate(pieces):
        yield Tally(counts.start_ms, counts.end_ms, shard, digest, number, piece)
    yield Tallied(shard, counts.end_ms, counts.start_ms, digest, len(pieces))


def _columns(counts: SlotCounts, cell: NDArray[np.uint64], rows: slice) -> HowOften:
    return HowOften(
        *plates_of(counts.plates, counts.plate[rows]),
        cell=cell[rows].astype("<u8").tobytes(),
        count=counts.count[rows].astype("<u4").tobytes(),
    )


def merge_counts(tallies: Sequence[Tally], samples_max: int = PINGS_MAX) -> SlotCounts:
    """The counts of all shards together; ValueError for no tallies, or tallies of different slots; PrivacyRefused if a
    HAT has more than `samples_max` samples."""
    if len({(tally.slot_start, tally.slot_end) for tally in tallies}) != 1:
        raise ValueError(f"expected tallies of one slot, got {len(tallies)} tallies of none or several")
    tables = [tally.counts for tally in tallies]
    hashes = [hashes_of(table.plates, table.hash_bytes) for table in tables]
    plates = sorted(set().union(*hashes))
    rank = {plate: number for number, plate in enumerate(plates)}
    numbers = [np.array([rank[plate] for plate in known], dtype=np.int64) for known in hashes]
    plate = np.concatenate(
        [of_table[np.frombuffer(table.plate, "<u4")] for of_table, table in zip(numbers, tables, strict=True)]
    )
    cell = np.concatenate([np.frombuffer(table.cell, "<u8") for table in tables])
    count = np.concatenate([np.frombuffer(table.count, "<u4") for table in tables]).astype(np.int64)
    order = np.lexsort((plate, cell))
    cells, first = np.unique(cell[order], return_index=True)
    counts = SlotCounts(
        start_ms=tallies[0].slot_start,
        end_ms=tallies[0].slot_end,
        plates=tuple(plates),
        cells=cells.astype(np.uint64),
        hat_rows=np.append(first, cell.size),
        plate=plate[order],
        count=count[order],
        repeats=0,
    )
    require_countable(counts, samples_max)
    return counts
