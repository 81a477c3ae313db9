"""Norm chunks and factor chunks: what shards tell the planner of plates that share one clip, and what it answers.

A plate's HATs of a slot lie on several shards. Each shard sends, for every plate that was charged there, how far it is
from its forecasts in the shard's HATs (`mechanisms/ball.py`); the planner sums, and sends back each plate's factor.

Chunks say how many there are, as those of a plan do: the planner knows from its plan which shards have to answer. They
follow from the log and the plan, so a repeat has the same bytes. Norms and factors follow from speeds: they are as
secret as the pings on the same topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
import numpy as np

from udp_stream.mechanisms.ball import PlateNorms, SharedClips
from udp_stream.shuffle.ping_chunks import digest_of, hashes_of

ROWS_MAX = 16_000
"""Plates of one chunk: 32 bytes each and at most 16 for the hash make 768 kB, below Kafka's usual limit of 1 MiB."""


class NormColumns(msgspec.Struct, frozen=True, array_like=True):
    """Columns of 64-bit integers, little-endian, for hashes of `hash_bytes` each. `norm` follows from speeds.

    >>> NormColumns(1, b"ab", *4 * [b"16 bytes, 2 rows"]).hash_bytes
    1
    """

    hash_bytes: int
    plates: bytes
    hats: bytes
    room: bytes
    rounding: bytes
    norm: bytes


class NormChunk(msgspec.Struct, frozen=True, tag="norms.2"):
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


class FactorChunk(msgspec.Struct, frozen=True, tag="factors.1"):
    """The factors of a shard's plates, four bytes each, of `mechanisms.ball.WHOLE`; `norms` is the digest of its norms,
    `of_slot` that of the norms of all shards.

    >>> (answered,) = cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=2)
    >>> next(cut_factors(SharedClips({b"a": 7}, b"of slot"), answered)).factors
    b'\\x07\\x00\\x00\\x00'
    """

    slot_start: int
    slot_end: int
    shard: int
    digest: bytes
    number: int
    chunks: int
    norms: bytes
    of_slot: bytes
    hash_bytes: int
    plates: bytes
    factors: bytes


@dataclass(frozen=True, slots=True)
class Factors:
    """What the planner answers a shard: a factor for each plate, for norms of this digest.

    >>> answer = Factors(SharedClips({b"a": 7}, b"of slot"), b"digest")
    >>> answer.of(b"digest").factors, answer.of(b"another").factors
    ({b'a': 7}, {})
    """

    clips: SharedClips
    norms: bytes

    def of(self, norms: bytes) -> SharedClips:
        """The factors for who measured this; none, so 0 for every plate, for who measured anything else."""
        return self.clips if norms == self.norms else SharedClips({}, self.clips.norms)


C = TypeVar("C", NormChunk, FactorChunk)


class Arriving(Generic[C]):
    """Chunks of one set, as they come: in any order, repeated. Of sets that differ, the first that is whole counts.

    >>> (answered,), arriving = cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=2), Arriving()
    >>> for chunk in reversed(list(cut_factors(SharedClips({b"a": 7, b"b": 8}, b""), answered, rows_max=1))):
    ...     arriving.add(chunk)
    >>> merge_factors(arriving.whole()).clips.factors
    {b'a': 7, b'b': 8}
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

    >>> norms = PlateNorms((b"a", b"b"), *np.arange(8).reshape(4, 2))
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
    columns = zip(*((table.hats, table.room, table.rounding, table.norm) for table in tables), strict=True)
    return PlateNorms(plates, *(np.frombuffer(b"".join(column), "<i8") for column in columns))


def cut_factors(clips: SharedClips, answered: NormChunk, rows_max: int = ROWS_MAX) -> Iterator[FactorChunk]:
    """A shard's factors as messages, at least one, in answer to its norms; equal factors give equal messages.

    >>> (answered,) = cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=2)
    >>> [chunk.plates for chunk in cut_factors(SharedClips({b"b": 7, b"a": 8}, b""), answered, rows_max=1)]
    [b'a', b'b']
    """
    # Sorted, because a repeat must have the same bytes, whatever the dictionary's order.
    plates = sorted(clips.factors)
    values = np.array([clips.factors[plate] for plate in plates], "<u4")
    size = len(plates[0]) if plates else 1
    digest = blake2b(answered.digest + clips.norms + b"".join(plates) + values.tobytes(), digest_size=8).digest()
    of, starts = (answered.slot_start, answered.slot_end, answered.shard), range(0, max(1, len(plates)), rows_max)
    for number, at in enumerate(starts):
        some = b"".join(plates[at : at + rows_max]), values[at : at + rows_max].tobytes()
        yield FactorChunk(*of, digest, number, len(starts), answered.digest, clips.norms, size, *some)


def merge_factors(chunks: Sequence[FactorChunk]) -> Factors:
    """The factors from all chunks, in their order.

    >>> (answered,) = cut_norms(PlateNorms.nobody(), 0, 3_600_000, shard=2)
    >>> merge_factors(list(cut_factors(SharedClips({}, b"of slot"), answered))).clips.norms
    b'of slot'
    """
    plates = (plate for chunk in chunks for plate in hashes_of(chunk.plates, chunk.hash_bytes))
    values = np.frombuffer(b"".join(one.factors for one in chunks), "<u4").tolist()
    return Factors(SharedClips(dict(zip(plates, values, strict=True)), chunks[0].of_slot), chunks[0].norms)


def _columns(norms: PlateNorms, rows: slice) -> NormColumns:
    plates = norms.plates[rows]
    columns = (column[rows].astype("<i8").tobytes() for column in norms.columns)
    return NormColumns(len(plates[0]) if plates else 1, b"".join(plates), *columns)
