"""Position chunks: a moment of one source partition, in bounded messages for the shard that answers its queries.

One shard has all moments of a budget period, and answers them in order of time: what a plate has left then follows from
the log, and never from which worker was faster. Periods are spread over the shards.

A chunk is identified by (moment, source, digest, number), as ping chunks are; an end marker (`PositionsEnd`) follows
the chunks, and every shard gets one for each boundary. So a shard knows when it has heard from all sources; see
`barrier.py`, for which a moment is a slot that starts and ends at once.

Chunks hold positions beside the hashes of plates: protect and delete their topic like that of the raw pings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from udp_stream.shuffle.barrier import BarrierCheckpoint, EndMarker, SlotBarrier
from udp_stream.shuffle.ping_chunks import SourceEnd, digest_of, hashes_of, shard_of
from udp_stream.windows.latest import Moment

ROWS_MAX = 20_000
"""Of one chunk: 24 bytes a row and 16 for a plate's hash make 800 kB, below Kafka's usual limit of 1 MiB."""


class PositionColumns(msgspec.Struct, frozen=True, array_like=True):
    """Columns, little-endian: hashes of `hash_bytes` each; `seen`: ms since the epoch; degrees.

    >>> from udp_stream.testing import a_moment
    >>> chunk, _ = cut_moment(a_moment(), source=0, shard=0)
    >>> np.frombuffer(chunk.columns.lon, "<f8")[:3].tolist()
    [0.0, 0.0, 0.0135]
    """

    hash_bytes: int
    plates: bytes
    seen: bytes
    lat: bytes
    lon: bytes


class PositionChunk(msgspec.Struct, frozen=True, tag="positions.1"):
    """Some plates of a moment, as one source partition knows them.

    >>> PositionChunk(900_000, 3, 1, b"digest", 0, PositionColumns(2, b"aa", b"", b"", b"")).slot_end
    900000
    """

    slot_start: int
    source: int
    shard: int
    digest: bytes
    number: int
    columns: PositionColumns

    @property
    def slot_end(self) -> int:
        """The moment itself."""
        return self.slot_start

    @property
    def sender(self) -> int:
        """The source partition that these positions were read from."""
        return self.source


class PositionsEnd(SourceEnd, frozen=True, tag="positions-end.1"):
    """The source has sent every moment up to `through_ms`.

    If `slot_start` is given, that moment has `chunks` chunks of this digest for this shard. `asked` is the digest of
    the queries that it was sent for. If that is not the shard's own, other queries' moments were sent, or none: what
    is known of the moments up to then is not whole.

    >>> PositionsEnd(source=3, shard=0, through_ms=900_000).slot_start is None  # no plate of its was there
    True
    """

    asked: str = ""


def shard_of_period(start_ms: int, shards: int) -> int:
    """The shard that answers all moments of the budget period that starts then, Unix ms.

    >>> sorted({shard_of_period(day * 86_400_000, 4) for day in range(30)})
    [0, 1, 2, 3]
    """
    return int(shard_of(np.array([start_ms]).astype(np.uint64), shards)[0])


def cut_moment(
    moment: Moment, source: int, shard: int, asked: str = "", rows_max: int = ROWS_MAX
) -> Iterator[PositionChunk | PositionsEnd]:
    """The chunks of a moment, and their end marker, which says for which queries they are.

    >>> from udp_stream.testing import a_moment
    >>> *chunks, end = cut_moment(a_moment(), source=0, shard=0, rows_max=3)
    >>> [len(merge_moment([chunk]).plates) for chunk in chunks], end.chunks
    ([3, 3, 2], 3)
    """
    columns = [_columns(moment, slice(at, at + rows_max)) for at in range(0, len(moment.plates), rows_max)]
    digest = digest_of(columns)
    for number, some in enumerate(columns):
        yield PositionChunk(moment.time_ms, source, shard, digest, number, some)
    yield PositionsEnd(source, shard, moment.time_ms, moment.time_ms, digest, len(columns), asked)


def _columns(moment: Moment, rows: slice) -> PositionColumns:
    plates = moment.plates[rows]
    return PositionColumns(
        len(plates[0]),
        b"".join(plates),
        moment.seen_ms[rows].astype("<i8").tobytes(),
        moment.lat[rows].astype("<f8").tobytes(),
        moment.lon[rows].astype("<f8").tobytes(),
    )


def merge_moment(chunks: Sequence[PositionChunk]) -> Moment:
    """The moment of all sources together: each plate with its latest position. Of several of one time that of the
    source with the lowest number counts, wherever they are.

    ValueError for no chunks, or chunks of different moments.

    >>> from udp_stream.testing import a_moment
    >>> *chunks, _ = cut_moment(a_moment(), source=0, shard=0, rows_max=3)
    >>> merge_moment([*chunks[::-1], chunks[0]]).plates == a_moment().plates
    True
    """
    if len({chunk.slot_start for chunk in chunks}) != 1:
        raise ValueError(f"expected chunks of one moment, got {len(chunks)} chunks of none or several")
    tables = [chunk.columns for chunk in chunks]
    # As objects: NumPy's own byte strings lose zero bytes at the end, and a hash may end in them.
    plates = np.array([plate for one in tables for plate in hashes_of(one.plates, one.hash_bytes)], object)
    seen_ms = np.concatenate([np.frombuffer(one.seen, "<i8") for one in tables])
    lat, lon = (np.concatenate([np.frombuffer(getattr(one, name), "<f8") for one in tables]) for name in ("lat", "lon"))
    known, number = np.unique(plates, return_inverse=True)
    source = np.repeat([chunk.source for chunk in chunks], [len(one.seen) // 8 for one in tables])
    order = np.lexsort((-source, seen_ms, number))
    last = order[np.append(np.diff(number[order]) > 0, True)]
    return Moment(chunks[0].slot_start, tuple(known.tolist()), lat[last], lon[last], seen_ms[last])


def positions_of_sources(
    sources: int, start: BarrierCheckpoint | None = None, accept_loss: bool = False, asked: str = ""
) -> SlotBarrier[PositionChunk]:
    """What a shard reads to answer queries: the moments of all sources, as far as they were sent for these queries.

    >>> from udp_stream.testing import a_moment
    >>> barrier = positions_of_sources(1)
    >>> for offset, message in enumerate(cut_moment(a_moment(), source=0, shard=0)):
    ...     barrier.add(offset, message)
    >>> [merge_moment(barrier.collect(time_ms)).time_ms for time_ms in barrier.due()]
    [1641011400000]
    """

    def is_of_others(marker: EndMarker) -> bool:
        return isinstance(marker, PositionsEnd) and marker.asked != asked

    return SlotBarrier(PositionChunk, PositionsEnd, sources, start, accept_loss, is_of_others)
