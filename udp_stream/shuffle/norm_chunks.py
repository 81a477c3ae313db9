"""Norm chunks and factor chunks: what shards tell the planner of plates that share one clip, and what it answers.

A plate's HATs of a slot lie on several shards. Each shard sends, for every plate that was charged there, how far it is
from its forecasts in the shard's HATs (`mechanisms/ball.py`); the planner sums, and sends back each plate's factor. The
plate's check from the shard's norms goes with it: where the shard measures anything else by now, as under other
settings, that plate has the factor 0.

Chunks say how many there are, as those of a plan do: the planner knows from its plan which shards have to answer. They
follow from the log and the plan, so a repeat has the same bytes. Norms and factors follow from speeds: they are as
secret as the pings on the same topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
import numpy as np

from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.shuffle.ping_chunks import digest_of, hashes_of

ROWS_MAX = 16_000
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
    rows_max: int = ROWS_MAX,
    city: tuple[int, ...] = (),
) -> Iterator[NormChunk]:
    """A shard's norms as messages, at least one; equal norms give equal messages.

    >>> norms = PlateNorms((b"a", b"b"), *np.arange(10).reshape(5, 2))
    >>> chunks = list(cut_norms(norms, 0, 3_600_000, shard=0, rows_max=1))
    >>> len(chunks), merge_norms(chunks).norm.tolist()
    (2, [6, 7])
    """
    tables = [_columns(norms, slice(at, at + rows_max)) for at in range(0, max(1, len(norms.plates)), rows_max)]
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
    factors: Mapping[bytes, int], norms: PlateNorms, answered: NormChunk, rows_max: int = ROWS_MAX
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


def _columns(norms: PlateNorms, rows: slice) -> NormColumns:
    plates = norms.plates[rows]
    columns = (column[rows].astype("<i8").tobytes() for column in norms.columns)
    return NormColumns(len(plates[0]) if plates else 1, b"".join(plates), *columns)
