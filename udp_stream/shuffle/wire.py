"""Ping chunks: a closed slot of one source partition, cut by cell into bounded messages for the shards.

A chunk is identified by (slot, source, shard, digest, number). Merging looks at nothing else, so chunks may arrive
twice and in any order. The digest covers all chunks of the slot for the shard: cutting the same pings again gives the
same digest, cutting them under other settings gives another one. An end marker (`PingsEnd`) follows the chunks; see
`barrier.py`.

In a chunk, as in the tables behind it, counts and speeds are separate fields.

Chunks hold raw speeds beside the hashes of plates: protect and delete their topic like that of the raw pings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.planning.slot_plan import PlanChunk
from udp_stream.shuffle.barrier import BarrierCheckpoint, EndMarker, SlotBarrier
from udp_stream.windows.latest import Moment
from udp_stream.windows.tables import PINGS_MAX, SlotCounts, SlotPings, numbered, require_countable, without_repeats

PING_ROWS_MAX = 24_000
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


def cut(slot: SlotPings, source: int, shards: int, rows_max: int = PING_ROWS_MAX) -> Iterator[PingChunk | PingsEnd]:
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
        chunks = [_ping_columns(slot, rows[first : first + rows_max]) for first in range(0, rows.size, rows_max)]
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


def _ping_columns(slot: SlotPings, rows: NDArray[np.int64]) -> tuple[PingColumns, bytes]:
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


# Count chunks: the counts of a closed slot of one shard, in bounded messages for the planner. They hold no speed.
#
# A chunk is identified by (slot, shard, digest, number); repeats and order do not matter. The digest covers all chunks
# of the slot from the shard, and an end marker (`CountsEnd`) follows them; see `barrier.py`. Merged, they are the
# counts that `slot_tables.tabulate` would give for the whole slot: shards divide the cells, so no HAT is in two of
# them.

COUNT_ROWS_MAX = 24_000
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


def cut_counts(counts: SlotCounts, shard: int, rows_max: int = COUNT_ROWS_MAX) -> Iterator[CountChunk | CountsEnd]:
    """The chunks of a slot of one shard, and their end marker.

    >>> from udp_stream.testing import two_hats
    >>> *chunks, end = cut_counts(two_hats()[0], shard=0, rows_max=2)
    >>> [chunk.number for chunk in chunks], end.chunks
    ([0, 1, 2], 3)
    """
    cell = np.repeat(counts.cells, np.diff(counts.hat_rows))
    chunks = [_count_columns(counts, cell, slice(first, first + rows_max)) for first in range(0, cell.size, rows_max)]
    digest = digest_of(chunks)
    for number, columns in enumerate(chunks):
        yield CountChunk(counts.start_ms, counts.end_ms, shard, digest, number, columns)
    yield CountsEnd(shard, counts.end_ms, counts.start_ms, digest, len(chunks))


def _count_columns(counts: SlotCounts, cell: NDArray[np.uint64], rows: slice) -> CountColumns:
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


# Norm chunks and factor chunks: what shards tell the planner of plates that share one clip, and what it answers.
#
# A plate's HATs of a slot lie on several shards. Each shard sends, for every plate that was charged there, how far it
# is from its forecasts in the shard's HATs (`mechanisms/ball.py`); the planner sums, and sends back each plate's
# factor. The plate's check from the shard's norms goes with it: where the shard measures anything else by now, as under
# other settings, that plate has the factor 0.
#
# Chunks say how many there are, as those of a plan do: the planner knows from its plan which shards have to answer.
# They follow from the log and the plan, so a repeat has the same bytes. Norms and factors follow from speeds: they are
# as secret as the pings on the same topic.

NORM_ROWS_MAX = 16_000
"""Plates of one chunk: 40 bytes each and at most 16 for the hash make 896 kB, below Kafka's usual limit of 1 MiB."""


class NormColumns(msgspec.Struct, frozen=True, array_like=True):
    """Columns of 64-bit integers, little-endian, for hashes of `hash_bytes` each. The last two follow from speeds.

    >>> NormColumns(1, b"ab", *5 * [b"16 bytes, 2 rows"]).hash_bytes
    1
    """

    hash_bytes: int
    plates: bytes
    hats: bytes
    room: bytes
    rounding: bytes
    norm: bytes
    checks: bytes


class NormChunk(msgspec.Struct, frozen=True, tag="norms.3"):
    """Chunk `number` of `chunks` of a shard's norms of a slot; `digest` covers all of them.

    `city` is the shard's part of the sums over the whole city, if they are asked for (`release/whole_city.py`).

    >>> next(cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=2)).chunks  # a shard without plates says so
    1
    """

    slot_start: int
    slot_end: int
    shard: int
    digest: bytes
    number: int
    chunks: int
    norms: NormColumns
    city: tuple[int, ...] = ()


class FactorChunk(msgspec.Struct, frozen=True, tag="factors.2"):
    """The factors of a shard's plates, four bytes each, of `mechanisms.ball.WHOLE`, and their checks from its norms,
    eight bytes each.

    >>> norms = PlateNorms((b"a",), *np.arange(5).reshape(5, 1))
    >>> next(cut_factors({b"a": 7}, norms, next(cut_norms(norms, 0, 3_600_000, shard=2)))).factors
    b'\\x07\\x00\\x00\\x00'
    """

    slot_start: int
    slot_end: int
    shard: int
    digest: bytes
    number: int
    chunks: int
    hash_bytes: int
    plates: bytes
    factors: bytes
    checks: bytes


@dataclass(frozen=True, slots=True)
class Factors:
    """What the planner answers a shard: a factor for each plate, and the check of the norms that it holds for.

    >>> Factors({b"a": 7, b"b": 8}, {b"a": 1, b"b": 1}).of({b"a": 1, b"b": 2, b"c": 1})
    {b'a': 7, b'b': 0, b'c': 0}
    """

    factors: Mapping[bytes, int]
    checks: Mapping[bytes, int]

    def of(self, measured: Mapping[bytes, int]) -> dict[bytes, int]:
        """The factors for who measured these checks; 0 for each plate of which anything else was measured."""
        return {
            plate: self.factors[plate] if self.checks.get(plate) == check else 0 for plate, check in measured.items()
        }


C = TypeVar("C", NormChunk, FactorChunk)


class Arriving(Generic[C]):
    """Chunks of one set, as they come: in any order, repeated. Of sets that differ, the first that is whole counts.

    >>> arriving = Arriving()
    >>> for chunk in reversed(list(cut_norms(PlateNorms((b"a", b"b"), *np.ones((5, 2), int)), 0, 9, 2, rows_max=1))):
    ...     arriving.add(chunk)
    >>> merge_norms(arriving.whole()).plates
    (b'a', b'b')
    """

    def __init__(self) -> None:
        """Nothing is there."""
        self._sets: dict[bytes, dict[int, C]] = {}
        self._first: list[C] | None = None

    def add(self, chunk: C) -> None:
        """Add a chunk."""
        chunks = self._sets.setdefault(chunk.digest, {})
        chunks[chunk.number] = chunk
        if self._first is None and len(chunks) == chunk.chunks:
            self._first = [chunks[number] for number in sorted(chunks)]

    def whole(self) -> list[C] | None:
        """All chunks in their order, once they are there."""
        return self._first


def cut_norms(
    norms: PlateNorms,
    slot_start: int,
    slot_end: int,
    shard: int,
    rows_max: int = NORM_ROWS_MAX,
    city: tuple[int, ...] = (),
) -> Iterator[NormChunk]:
    """A shard's norms as messages, at least one; equal norms give equal messages.

    >>> norms = PlateNorms((b"a", b"b"), *np.arange(10).reshape(5, 2))
    >>> chunks = list(cut_norms(norms, 0, 3_600_000, shard=0, rows_max=1))
    >>> len(chunks), merge_norms(chunks).norm.tolist()
    (2, [6, 7])
    """
    tables = [_norm_columns(norms, slice(at, at + rows_max)) for at in range(0, max(1, len(norms.plates)), rows_max)]
    digest = digest_of([*tables, city])
    for number, table in enumerate(tables):
        yield NormChunk(slot_start, slot_end, shard, digest, number, len(tables), table, city)


def merge_norms(chunks: Sequence[NormChunk]) -> PlateNorms:
    """The norms from all chunks of a shard, in their order.

    >>> merge_norms(list(cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=0))).plates
    ()
    """
    tables = [chunk.norms for chunk in chunks]
    plates = tuple(plate for table in tables for plate in hashes_of(table.plates, table.hash_bytes))
    columns = zip(*((one.hats, one.room, one.rounding, one.norm, one.checks) for one in tables), strict=True)
    return PlateNorms(plates, *(np.frombuffer(b"".join(column), "<i8") for column in columns))


def cut_factors(
    factors: Mapping[bytes, int], norms: PlateNorms, answered: NormChunk, rows_max: int = NORM_ROWS_MAX
) -> Iterator[FactorChunk]:
    """The factors of a shard's plates as messages, at least one, in answer to these norms, the first chunk of which is
    at hand; 0 for plates that have none. Equal factors give equal messages.

    >>> norms = PlateNorms((b"a", b"b"), *np.arange(10).reshape(5, 2))
    >>> (answered,) = cut_norms(norms, 0, 3_600_000, shard=2)
    >>> [chunk.plates for chunk in cut_factors({b"b": 7, b"a": 8}, norms, answered, rows_max=1)]
    [b'a', b'b']
    """
    plates = norms.plates
    columns = np.array([factors.get(plate, 0) for plate in plates], "<u4"), norms.checks.astype("<i8")
    size = len(plates[0]) if plates else 1
    digest = blake2b(b"".join([*plates, *(column.tobytes() for column in columns)]), digest_size=8).digest()
    of, starts = (answered.slot_start, answered.slot_end, answered.shard), range(0, max(1, len(plates)), rows_max)
    for number, at in enumerate(starts):
        some = slice(at, at + rows_max)
        of_some = b"".join(plates[some]), *(column[some].tobytes() for column in columns)
        yield FactorChunk(*of, digest, number, len(starts), size, *of_some)


def merge_factors(chunks: Sequence[FactorChunk]) -> Factors:
    """The factors from all chunks, in their order.

    >>> norms = PlateNorms((b"a",), *np.arange(5).reshape(5, 1))
    >>> merge_factors(list(cut_factors({b"a": 7}, norms, next(cut_norms(norms, 0, 9, shard=2)))))
    Factors(factors={b'a': 7}, checks={b'a': 4})
    """
    plates = [plate for chunk in chunks for plate in hashes_of(chunk.plates, chunk.hash_bytes)]
    values = np.frombuffer(b"".join(one.factors for one in chunks), "<u4").tolist()
    checks = np.frombuffer(b"".join(one.checks for one in chunks), "<i8").tolist()
    return Factors(dict(zip(plates, values, strict=True)), dict(zip(plates, checks, strict=True)))


def _norm_columns(norms: PlateNorms, rows: slice) -> NormColumns:
    plates = norms.plates[rows]
    columns = (column[rows].astype("<i8").tobytes() for column in norms.columns)
    return NormColumns(len(plates[0]) if plates else 1, b"".join(plates), *columns)


# Position chunks: a moment of one source partition, in bounded messages for the shard that answers its queries.
#
# One shard has all moments of a budget period, and answers them in order of time: what a plate has left then follows
# from the log, and never from which worker was faster. Periods are spread over the shards.
#
# A chunk is identified by (moment, source, digest, number), as ping chunks are; an end marker (`PositionsEnd`) follows
# the chunks, and every shard gets one for each boundary. So a shard knows when it has heard from all sources; see
# `barrier.py`, for which a moment is a slot that starts and ends at once.
#
# Chunks hold positions beside the hashes of plates: protect and delete their topic like that of the raw pings.

POSITION_ROWS_MAX = 20_000
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
    moment: Moment, source: int, shard: int, asked: str = "", rows_max: int = POSITION_ROWS_MAX
) -> Iterator[PositionChunk | PositionsEnd]:
    """The chunks of a moment, and their end marker, which says for which queries they are.

    >>> from udp_stream.testing import a_moment
    >>> *chunks, end = cut_moment(a_moment(), source=0, shard=0, rows_max=3)
    >>> [len(merge_moment([chunk]).plates) for chunk in chunks], end.chunks
    ([3, 3, 2], 3)
    """
    columns = [_position_columns(moment, slice(at, at + rows_max)) for at in range(0, len(moment.plates), rows_max)]
    digest = digest_of(columns)
    for number, some in enumerate(columns):
        yield PositionChunk(moment.time_ms, source, shard, digest, number, some)
    yield PositionsEnd(source, shard, moment.time_ms, moment.time_ms, digest, len(columns), asked)


def _position_columns(moment: Moment, rows: slice) -> PositionColumns:
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


# The messages of the shuffle topic, in bytes: pings from sources, counts to the planner, plans back; norms of plates
# to the planner and factors back, where a plate's HATs share one clip; what is released, where plans follow from it;
# positions from sources, where queries are asked.
#
# One topic and one encoding, so a shard's partition holds everything that its releases follow from, in order.
#
# Tags end in a version: change it with the layout. A worker that meets a tag it does not know stops.

Pings: TypeAlias = PingChunk | PingsEnd | PositionChunk | PositionsEnd
Message: TypeAlias = Pings | CountChunk | CountsEnd | PlanChunk | NormChunk | FactorChunk | Released

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """The message as bytes; equal messages give equal bytes.

    >>> encode_message(CountsEnd(shard=1, through_ms=3_600_000)) == encode_message(CountsEnd(1, 3_600_000))
    True
    """
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """Undo `encode_message`; raises msgspec.DecodeError for any other bytes.

    >>> decode_message(encode_message(CountsEnd(shard=1, through_ms=3_600_000)))
    CountsEnd(shard=1, through_ms=3600000, slot_start=None, digest=b'', chunks=0)
    """
    return _decoder.decode(data)
