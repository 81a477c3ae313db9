"""The messages of the shuffle topic, how rows are cut into them, and the protocol of a source
(`SourceProtocol`).

| message | way | content |
| --- | --- | --- |
| `PingChunk`, `PingsEnd` | source to shard | the pings of a closed slot in the shard's cells, with speeds |
| `PositionChunk`, `PositionsEnd` | source to shard | the positions at a moment, where queries are asked |
| `CountChunk`, `CountsEnd` | shard to planner | the counts of a slot in the shard's cells, without speeds |
| `PlanChunk` | planner to shard | terms and charges of the shard's HATs; or, before them, a question to the city alone |
| `NormChunk` | shard to planner | how far plates are from their forecasts, where HATs share clips, or the city is asked |
| `FactorChunk` | planner to shard | the factors of these plates |
| `ReleaseMarker` | shard to planner | the time through which all is published, where plans follow from releases |

A sender cuts the rows of a slot into chunks: numbered, bounded, and under a common digest. The
digest covers all of them: cutting the same rows again gives the same bytes, cutting them under
other settings gives another digest. Readers look at slot, sender, digest and number, so chunks may
arrive twice and in any order.

Where a reader has to hear from all senders, an end marker follows the chunks, and `SlotBarrier`
waits for it. Where the reader knows who has to answer, the number of chunks in each is enough
(`ChunkAssembly`).

A shard's partition holds everything that its releases follow from, in order: speeds and positions
beside the hashes of plates. Protect and delete it like the raw pings. Norms and factors follow from
speeds, and are as secret.

Tags end in a version: change it with the layout. A worker that meets a tag it does not know stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Cells, Integers
from udp_stream.mechanisms.around import PlateNorms
from udp_stream.planning.plan import Terms
from udp_stream.planning.policy import PositionPeriods
from udp_stream.planning.slot import DIGEST_BYTES, CityPlan, SlotPlan
from udp_stream.windows.clocks import LogPlaces
from udp_stream.windows.positions import Moment
from udp_stream.windows.slots import ReadResult, RefusedMessage, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import (
    SlotCounts,
    SlotPings,
    numbered,
    require_countable,
    without_repeats,
)

PLANNER = 0
"""The partition whose owner plans for all shards."""


class Chunk(msgspec.Struct, frozen=True):
    """Chunk `number` of the `chunks` that hold a sender's rows of a slot; `digest` covers all of
    them.

    `sender` is the source partition, the shard, or the planner. `shard` has the cells that the rows
    are of, or answers the queries of the moment.

    >>> from udp_stream.testing import seven_pings
    >>> *chunks, _ = cut_pings(seven_pings(), source=3, shards=1, rows_max=4)
    >>> [(chunk.sender, chunk.number, chunk.chunks) for chunk in chunks]
    [(3, 0, 2), (3, 1, 2)]
    """

    slot_start: int
    slot_end: int
    sender: int
    shard: int
    digest: bytes
    number: int
    chunks: int


class PlateChunk(Chunk, frozen=True):
    """Rows in columns, little-endian, of the types in `COLUMNS`; `plates` are hashes of
    `hash_bytes` each.

    With a column `plate`, that is each row's number among the hashes; else each plate has a single
    row. `ROWS_MAX` rows with hashes of 16 bytes stay below 900 kB, and so below Kafka's usual limit
    of 1 MiB.
    """

    ROWS_MAX: ClassVar[int]
    COLUMNS: ClassVar[Mapping[str, str]]

    hash_bytes: int
    plates: bytes


class EndMarker(msgspec.Struct, frozen=True):
    """The sender has closed every slot that ends by `through_ms`, and sent it to this shard, or for
    it.

    If `slot_start` is given, that slot has `chunks` chunks of this digest.

    >>> PingsEnd(sender=3, shard=0, through_ms=3_600_000).slot_start is None  # no pings in what it has closed
    True
    """

    sender: int
    shard: int
    through_ms: int
    slot_start: int | None = None
    digest: bytes = b""
    chunks: int = 0


C = TypeVar("C", bound=Chunk)
P = TypeVar("P", bound=PlateChunk)

_encoder = msgspec.msgpack.Encoder()


def _framed(
    kind: type[C],
    slot: tuple[int, int],
    sender: int,
    shard: int,
    contents: Sequence[Mapping[str, Any]],
) -> list[C]:
    """Chunks of these contents, under a digest that also covers where each ends and the next
    begins."""
    covers = blake2b(digest_size=DIGEST_BYTES)
    for content in contents:
        covers.update(_encoder.encode(list(content.values())))
    digest = covers.digest()
    return [
        kind(*slot, sender, shard, digest, number, len(contents), **content)
        for number, content in enumerate(contents)
    ]


def _cut(
    kind: type[P],
    slot: tuple[int, int],
    sender: int,
    shard: int,
    plates: Sequence[bytes],
    columns: Mapping[str, NDArray[Any]],
    rows_max: int,
    least: int = 0,
    **others: object,
) -> list[P]:
    """Chunks of rows, `least` of them at least. Each has the hashes of its own plates alone, and
    all `others`."""
    contents = []
    size = len(plates) if "plate" not in kind.COLUMNS else columns["plate"].size
    for first in range(0, max(size, least), rows_max):
        some = {name: column[first : first + rows_max] for name, column in columns.items()}
        hashes = plates[first : first + rows_max]
        if "plate" in some:
            here, some["plate"] = np.unique(some["plate"], return_inverse=True)
            hashes = [plates[i] for i in here.tolist()]
        content: dict[str, Any] = {
            "hash_bytes": len(hashes[0]) if hashes else 1,
            "plates": b"".join(hashes),
        }
        content |= {
            name: some[name].astype(type_, copy=False).tobytes()
            for name, type_ in kind.COLUMNS.items()
        }
        contents.append(content | others)
    return _framed(kind, slot, sender, shard, contents)


def _end(slot: tuple[int, int], chunks: Sequence[Chunk]) -> tuple[int, int, bytes, int]:
    return slot[1], slot[0], chunks[0].digest if chunks else b"", len(chunks)


def _hashes(chunk: PlateChunk) -> list[bytes]:
    hashes: list[bytes] = np.frombuffer(chunk.plates, f"V{chunk.hash_bytes}").tolist()
    return hashes


def _column(chunks: Sequence[PlateChunk], name: str) -> NDArray[Any]:
    return np.concatenate(
        [np.frombuffer(getattr(chunk, name), chunk.COLUMNS[name]) for chunk in chunks]
    )


def _joined_plates(chunks: Sequence[PlateChunk]) -> tuple[tuple[bytes, ...], NDArray[np.uint32]]:
    """The plates of all chunks, each once, in the order in which they come; and each row's number
    among them."""
    number: dict[bytes, int] = {}
    rows = []
    for chunk in chunks:
        numbers = np.array(
            [number.setdefault(plate, len(number)) for plate in _hashes(chunk)], np.uint32
        )
        rows.append(numbers[_column([chunk], "plate")] if "plate" in chunk.COLUMNS else numbers)
    return tuple(number), np.concatenate(rows)


def _sorted_plates(chunks: Sequence[PlateChunk]) -> tuple[tuple[bytes, ...], Integers]:
    """The same in ascending order, so that numbers do not depend on the order in which chunks came."""
    plates, rows = _joined_plates(chunks)
    order = sorted(range(len(plates)), key=plates.__getitem__)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return tuple(plates[i] for i in order), rank[rows]


def _slot_of(chunks: Sequence[Chunk]) -> tuple[int, int]:
    """Start and end of the chunks' slot; ValueError for none or several."""
    slots = {(chunk.slot_start, chunk.slot_end) for chunk in chunks}
    if len(slots) != 1:
        raise ValueError(
            f"expected chunks of one slot, got {len(chunks)} chunks of none or several"
        )
    return slots.pop()


class ChunkAssembly(Generic[C]):
    """Chunks of a sender and slot, without an end marker, as they come: in any order, repeated.

    Of sets that differ, the first that is whole counts; with `latest`, the last that began.

    >>> arriving = ChunkAssembly()
    >>> for chunk in reversed(list(cut_norms(PlateNorms((b"a", b"b"), *np.ones((5, 2), int)), 0, 9, 2, rows_max=1))):
    ...     arriving.add(chunk)
    >>> merge_norms(arriving.whole).plates
    (b'a', b'b')
    """

    def __init__(self, latest: bool = False) -> None:
        self._latest = latest
        self._sets: dict[bytes, dict[int, C]] = {}
        self.whole: tuple[C, ...] | None = None
        """All chunks in their order, once they are there."""

    def add(self, chunk: C) -> None:
        if self._latest and chunk.digest not in self._sets:
            self._sets = {}
            self.whole = None  # chunks of two sets do not mix
        chunks = self._sets.setdefault(chunk.digest, {})
        chunks[chunk.number] = chunk
        if self.whole is None and len(chunks) == chunk.chunks:
            self.whole = tuple(chunks[number] for number in sorted(chunks))


class PingChunk(PlateChunk, frozen=True, tag="pings.2", omit_defaults=True):
    """Some pings of a slot. `time`: ms since the slot's start; `speed`: quanta, the only column
    that is not public.

    `partial`: the source read less than half of the slot.

    >>> from udp_stream.testing import seven_pings
    >>> chunk, _ = cut_pings(seven_pings(), source=3, shards=1)
    >>> np.frombuffer(chunk.time, "<u4").tolist(), (np.frombuffer(chunk.speed, "<i4") // 4096).tolist()
    ([0, 1000, 2000, 3000, 4000, 5000, 6000], [10, 20, 30, 40, 50, 60, 30])
    """

    ROWS_MAX: ClassVar[int] = 24_000
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "plate": "<u4",
        "time": "<u4",
        "cell": "<u8",
        "speed": "<i4",
    }

    plate: bytes
    time: bytes
    cell: bytes
    speed: bytes
    partial: bool = False


class PingsEnd(EndMarker, frozen=True, tag="pings-end.2"):
    """The source has sent all pings of the slots that it closed."""


def shard_of(cells: Cells, shards: int) -> Integers:
    """The shard that releases each cell: spread evenly, and always the same for a given number of
    shards."""
    # Neighbouring cells differ in few bits, in the middle: folding and an odd multiplier (2**64 /
    # golden ratio) carry the difference into the high bits, and only those are taken.
    mixed = (cells ^ (cells >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(shards)).astype(np.int64)


def cut_pings(
    slot: SlotPings, source: int, shards: int, rows_max: int = PingChunk.ROWS_MAX, least: int = 0
) -> Iterator[PingChunk | PingsEnd]:
    """The chunks of a closed slot for every shard, each followed by an end marker; shards without
    pings get a marker too. `least`: chunks that are sent also without pings, so that a shard holds
    the slot.

    Repeats of (plate, time) are dropped here, since two of them may lie in cells of different
    shards. (Repeats that arrive on different source partitions first meet in a shard.)
    """
    slot = without_repeats(slot)
    times = (slot.start_ms, slot.end_ms)
    of = shard_of(slot.cell, shards)
    for shard in range(shards):
        rows = np.flatnonzero(of == shard)
        columns = {name: getattr(slot, name)[rows] for name in PingChunk.COLUMNS}
        chunks = _cut(
            PingChunk, times, source, shard, slot.plates, columns, rows_max, least, **_marks(slot)
        )
        yield from chunks
        yield PingsEnd(source, shard, *_end(times, chunks))


def merge_pings(chunks: Sequence[PingChunk]) -> SlotPings:
    """The pings of distinct chunks of a slot; ValueError for none, or for chunks of different
    slots."""
    start_ms, end_ms = _slot_of(chunks)
    plates, plate = _joined_plates(chunks)
    return SlotPings(
        start_ms,
        end_ms,
        plates,
        plate,
        time=_column(chunks, "time"),
        cell=_column(chunks, "cell"),
        speed=_column(chunks, "speed"),
        partial=any(chunk.partial for chunk in chunks),
    )


def _marks(slot: SlotPings | SlotCounts) -> dict[str, bool]:
    """Marks of a slot, only where they are true: digests of other slots stay as they were."""
    return {"partial": True} if slot.partial else {}


class CountChunk(PlateChunk, frozen=True, tag="counts.2", omit_defaults=True):
    """Some rows of a shard's counts: plates, cells and samples. No field can hold a speed."""

    ROWS_MAX: ClassVar[int] = 24_000
    COLUMNS: ClassVar[Mapping[str, str]] = {"plate": "<u4", "cell": "<u8", "count": "<u4"}

    plate: bytes
    cell: bytes
    count: bytes
    partial: bool = False


class CountsEnd(EndMarker, frozen=True, tag="counts-end.2"):
    """The end of a shard's counts."""


class ReleaseMarker(msgspec.Struct, frozen=True, tag="released.1"):
    """The shard has published every slot that ends by `through_ms`. Sent where plans follow from
    releases.

    It stays true for ever, so it may come late, twice or out of order.
    """

    shard: int
    through_ms: int


def cut_counts(
    counts: SlotCounts, shard: int, rows_max: int = CountChunk.ROWS_MAX
) -> Iterator[CountChunk | CountsEnd]:
    """The chunks of a slot of a shard, and their end marker."""
    cell = np.repeat(counts.cells, np.diff(counts.hat_rows))
    columns = {"plate": counts.plate, "cell": cell, "count": counts.count}
    slot = counts.slot
    chunks = _cut(
        CountChunk, slot, shard, shard, counts.plates, columns, rows_max, least=1, **_marks(counts)
    )
    yield from chunks
    yield CountsEnd(shard, shard, *_end(slot, chunks))


def merge_counts(chunks: Sequence[CountChunk]) -> SlotCounts:
    """The counts of all shards, as `tabulate` would give them for the whole slot: shards divide the
    cells.

    ValueError for no chunks, or chunks of different slots; PrivacyRefused if a HAT has more than
    `PINGS_MAX` samples.
    """
    (start_ms, end_ms) = _slot_of(chunks)
    (plates, plate) = _sorted_plates(chunks)
    cells, hat = numbered(_column(chunks, "cell"))
    # A sort that is quick where much is in order already, as each shard's rows are.
    order = np.argsort(hat.astype(np.int64) * len(plates) + plate, kind="stable")
    counts = SlotCounts(
        start_ms=start_ms,
        end_ms=end_ms,
        plates=plates,
        cells=cells.astype(np.uint64),
        hat_rows=np.append(0, np.cumsum(np.bincount(hat, minlength=cells.size))),
        plate=plate[order],
        count=_column(chunks, "count").astype(np.int64)[order],
        repeats=0,
        partial=any(chunk.partial for chunk in chunks),
    )
    require_countable(counts)
    return counts


class PlanChunk(Chunk, frozen=True, tag="plan.7"):
    """A piece of a shard's plan, which names no plate and holds no speed. `is_question`: of a
    question to the city alone."""

    BYTES_MAX: ClassVar[int] = 800_000

    content: bytes
    is_question: bool = False


class _PlanColumns(msgspec.Struct, frozen=True, array_like=True):
    """A slot plan as it travels: columns little-endian, terms as they are; of the city weights,
    charges, plates, `about`, kind, forecasts."""

    start_ms: int
    end_ms: int
    cells: bytes
    hat_rows: bytes
    digests: bytes
    terms: tuple[Terms, ...]
    charged: bytes
    city: tuple[bytes, bytes, int, bytes, str, bytes] | None


def _bytes(column: Integers) -> bytes:
    return column.astype("<i8").tobytes()


_plan_decoder: msgspec.msgpack.Decoder[_PlanColumns] = msgspec.msgpack.Decoder(_PlanColumns)


def cut_plan(
    plan: SlotPlan, shard: int, chunk_bytes: int = PlanChunk.BYTES_MAX
) -> Iterator[PlanChunk]:
    """A shard's plan as messages; equal plans give equal messages."""
    city = plan.city
    content = _encoder.encode(
        _PlanColumns(
            plan.start_ms,
            plan.end_ms,
            plan.cells.astype("<u8").tobytes(),
            _bytes(plan.hat_rows),
            b"".join(plan.digests),
            plan.terms,
            _bytes(plan.charged),
            None
            if city is None
            else (
                _bytes(city.weights),
                _bytes(city.charged),
                city.plates,
                city.about,
                city.kind,
                _bytes(city.around),
            ),
        )
    )
    pieces = [
        {"content": content[at : at + chunk_bytes], "is_question": plan.is_question}
        for at in range(0, len(content), chunk_bytes)
    ]
    yield from _framed(PlanChunk, (plan.start_ms, plan.end_ms), PLANNER, shard, pieces)


def merge_plan(chunks: Sequence[PlanChunk]) -> SlotPlan:
    """The plan from all of its chunks, in order."""
    columns = _plan_decoder.decode(b"".join(chunk.content for chunk in chunks))
    digests = columns.digests
    city = columns.city
    return SlotPlan(
        columns.start_ms,
        columns.end_ms,
        np.frombuffer(columns.cells, "<u8"),
        np.frombuffer(columns.hat_rows, "<i8"),
        tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)),
        columns.terms,
        np.frombuffer(columns.charged, "<i8"),
        city=city
        and CityPlan(
            np.frombuffer(city[0], "<i8"),
            np.frombuffer(city[1], "<i8"),
            *city[2:5],
            np.frombuffer(city[5], "<i8"),
        ),
    )


# --- norms and factors, where a plate's HATs of several shards share a clip ---
#
# Each shard sends, for every plate that was charged there, how far it is from its forecasts in the
# shard's HATs (`mechanisms/around.py`); the planner sums, and sends back each plate's factor. The
# check of the shard's norms of the plate goes with it: where the shard measures anything else by
# now, as under other settings, it has the factor 0.


class NormChunk(PlateChunk, frozen=True, tag="norms.5"):
    """Some plates' norms in a shard's HATs. Norms and checks follow from speeds.

    `city` is the shard's part of the sums over the whole city, if they are asked for
    (`release/charge.py`); `is_question`, if nothing else is.
    """

    ROWS_MAX: ClassVar[int] = 16_000
    COLUMNS: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("hats", "room", "rounding", "norm", "checks"), "<i8"
    )

    hats: bytes
    room: bytes
    rounding: bytes
    norm: bytes
    checks: bytes
    city: tuple[int, ...] = ()
    is_question: bool = False


class FactorChunk(PlateChunk, frozen=True, tag="factors.3"):
    """Some plates' factors, of `mechanisms.around.WHOLE`, and the checks of the norms that they
    hold for."""

    COLUMNS: ClassVar[Mapping[str, str]] = {"factors": "<u4", "checks": "<i8"}

    factors: bytes
    checks: bytes


class ScaleFactors(NamedTuple):
    """The planner's answer to a shard: a factor for each plate, and the check of the norms that it
    holds for.

    >>> ScaleFactors({b"a": 7, b"b": 8}, {b"a": 1, b"b": 1}).of({b"a": 1, b"b": 2, b"c": 1})
    {b'a': 7, b'b': 0, b'c': 0}
    """

    factors: Mapping[bytes, int]
    checks: Mapping[bytes, int]

    def of(self, measured: Mapping[bytes, int]) -> dict[bytes, int]:
        """The factors for who measured these checks; 0 for each plate of which anything else was
        measured."""
        return {
            plate: self.factors[plate] if self.checks.get(plate) == check else 0
            for plate, check in measured.items()
        }


def cut_norms(
    norms: PlateNorms,
    slot_start: int,
    slot_end: int,
    shard: int,
    rows_max: int = NormChunk.ROWS_MAX,
    city: tuple[int, ...] = (),
    is_question: bool = False,
) -> Iterator[NormChunk]:
    """A shard's norms as messages; equal norms give equal messages."""
    columns = dict(zip(NormChunk.COLUMNS, norms.columns, strict=True))
    slot = (slot_start, slot_end)
    yield from _cut(
        NormChunk,
        slot,
        shard,
        shard,
        norms.plates,
        columns,
        rows_max,
        least=1,
        city=city,
        is_question=is_question,
    )


def merge_norms(chunks: Sequence[NormChunk]) -> PlateNorms:
    """The norms from all chunks of a shard, in their order."""
    plates = tuple(plate for chunk in chunks for plate in _hashes(chunk))
    return PlateNorms(plates, *(_column(chunks, name) for name in NormChunk.COLUMNS))


def cut_factors(
    factors: Mapping[bytes, int],
    norms: PlateNorms,
    answered: NormChunk,
    rows_max: int = NormChunk.ROWS_MAX,
) -> Iterator[FactorChunk]:
    """The factors of a shard's plates as messages, in answer to these norms; 0 for a
    plate without a factor.

    `answered` is the first chunk of the norms. Equal factors give equal messages.
    """
    slot = answered.slot_start, answered.slot_end
    columns = {
        "factors": np.array([factors.get(plate, 0) for plate in norms.plates], "<u4"),
        "checks": norms.checks,
    }
    yield from _cut(
        FactorChunk, slot, PLANNER, answered.shard, norms.plates, columns, rows_max, least=1
    )


def merge_factors(chunks: Sequence[FactorChunk]) -> ScaleFactors:
    """The factors from all chunks, in their order."""
    plates = [plate for chunk in chunks for plate in _hashes(chunk)]
    values, checks = (_column(chunks, name).tolist() for name in ("factors", "checks"))
    return ScaleFactors(
        dict(zip(plates, values, strict=True)), dict(zip(plates, checks, strict=True))
    )


# --- positions, from sources to the shard that answers the queries of a budget period ---
#
# A single shard has all moments of a period, and answers them in order of time: what a plate has
# left then follows from the log, and never from which worker was faster. A moment is a slot that
# starts and ends at once.


class PositionChunk(PlateChunk, frozen=True, tag="positions.2"):
    """Some plates of a moment, as a source partition knows them. `seen`: Unix ms; `lat`, `lon`:
    degrees."""

    ROWS_MAX: ClassVar[int] = 20_000
    COLUMNS: ClassVar[Mapping[str, str]] = {"seen": "<i8", "lat": "<f8", "lon": "<f8"}

    seen: bytes
    lat: bytes
    lon: bytes


class PositionsEnd(EndMarker, frozen=True, tag="positions-end.2"):
    """The source has sent every moment up to `through_ms`; every shard is told so at each boundary.

    `asked` is the digest of the queries that they were sent for. If that is not the shard's own,
    other queries' moments were sent, or none: what is known of the moments up to then is not whole.
    """

    asked: str = ""


def shard_of_period(start_ms: int, shards: int) -> int:
    """The shard that answers all moments of the budget period that starts then, Unix ms."""
    return int(shard_of(np.array([start_ms]).astype(np.uint64), shards)[0])


def cut_moment(
    moment: Moment, source: int, shard: int, asked: str = "", rows_max: int = PositionChunk.ROWS_MAX
) -> Iterator[PositionChunk | PositionsEnd]:
    """The chunks of a moment, and their end marker, which says for which queries they are."""
    slot = (moment.time_ms,) * 2
    columns = {"seen": moment.seen_ms, "lat": moment.lat, "lon": moment.lon}
    chunks = _cut(PositionChunk, slot, source, shard, moment.plates, columns, rows_max)
    yield from chunks
    yield PositionsEnd(source, shard, *_end(slot, chunks), asked)


def merge_moment(chunks: Sequence[PositionChunk]) -> Moment:
    """The moment of all sources, with each plate's latest position; on ties, that of the lowest
    source counts.

    ValueError for no chunks, or chunks of different moments.
    """
    (time_ms, _) = _slot_of(chunks)
    (plates, plate) = _sorted_plates(chunks)
    seen_ms, lat, lon = (_column(chunks, name) for name in ("seen", "lat", "lon"))
    source = np.repeat(
        [chunk.sender for chunk in chunks], [len(chunk.seen) // 8 for chunk in chunks]
    )
    order = np.lexsort((-source, seen_ms, plate))
    last = order[np.append(np.diff(plate[order]) > 0, True)]
    return Moment(time_ms, plates, lat[last], lon[last], seen_ms[last])


ToShard: TypeAlias = PingChunk | PingsEnd | PositionChunk | PositionsEnd
"""Messages of a source; each names the shard that it is for."""

Message: TypeAlias = (
    ToShard | CountChunk | CountsEnd | PlanChunk | NormChunk | FactorChunk | ReleaseMarker
)

encode_message: Callable[[Message], bytes] = _encoder.encode
"""Encode a message; equal messages give equal bytes."""

decode_message: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


# --- the protocol of a source partition. No I/O. ---
#
# A checkpoint may be committed only while no step is due: messages before it are not read again.
# Chunks that are sent twice, after a crash, have the same digest, and change nothing.


class SendRefused(NamedTuple):
    """Send these refused messages to their topic, in order."""

    refused: Sequence[RefusedMessage]


class SendChunks(NamedTuple):
    """Send these messages, each to its own shard's partition; per shard in this order.

    They hold all slots that were closed when this step was made, `slots` of them, and say so
    through `through_ms`; and all `moments` that were due, through `moments_ms`.
    """

    messages: Sequence[ToShard]
    slots: int
    through_ms: int
    moments: int = 0
    moments_ms: int | None = None


class SourceProtocol:
    """A source partition, while it is ours. Do what `next` says until it says nothing, after each
    `read`.

    >>> from udp_stream.pings.json import JSON
    >>> import numpy as np
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingDecoder, PingRules
    >>> from udp_stream.windows.clocks import WindowRules
    >>> from udp_stream.windows.tables import SlotGrid
    >>> from udp_stream.windows.slots import ReadingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> rules = ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), lambda plate: plate.encode())
    >>> protocol = SourceProtocol(0, shards=2, reader=SourceReader(rules, SourceCheckpoint(40)))
    >>> eight_ms = 8 * 3_600_000
    >>> places = LogPlaces(np.array([40, 41]), np.full(2, eight_ms), np.array([False, True]))
    >>> _ = protocol.read([b"junk", b""], places)
    >>> while (step := protocol.next()) is not None:
    ...     print(type(step).__name__, protocol.may_commit)
    ...     protocol.done(step)
    SendRefused False
    SendChunks False
    >>> protocol.may_commit, protocol.checkpoint().offset, protocol.wants_tick(eight_ms)
    (True, 42, False)
    """

    def __init__(
        self,
        source: int,
        shards: int,
        reader: SourceReader,
        periods: PositionPeriods | None = None,
        asked: str = "",
        asked_before: str | None = None,
    ) -> None:
        """A reader of moments needs the `periods` of positions: the moments of a period go to a
        single shard.

        `asked` is the digest of the queries that moments are sent for, `asked_before` that of the
        checkpoint's. Where they differ, pings that the new queries need are not read again: shards
        are told so, up to where all is read.
        """
        self.reader = reader
        self._source = source
        self._shards = shards
        self._periods = periods
        self._asked = asked
        self._refused: list[RefusedMessage] = []
        self._closed: list[SlotPings] = []
        self._moments: list[Moment] = []
        self._asked_before = asked if asked_before is None or not asked else asked_before
        self._lost_ms = None if self._asked_before == asked else reader.moments_lost_ms
        self._announced: tuple[int | None, int | None] = None, None
        self._has_ticked = False
        self._step: SendRefused | SendChunks | None = None

    def read(self, messages: Sequence[bytes], places: LogPlaces) -> ReadResult:
        result = self.reader.read(messages, places)
        self._refused += result.refused
        self._closed += result.closed
        self._moments += result.moments
        if not self.reader.is_in_processing_time or places.tick.any():
            self._has_ticked = False
        # A step that was handed out stays as it is: `done` removes just what it holds.
        self._step = self._step or self._due()
        return result

    def next(self) -> SendRefused | SendChunks | None:
        return self._step

    def done(self, step: SendRefused | SendChunks) -> None:
        if isinstance(step, SendRefused):
            # By number, not all: more may have been read while the broker took these.
            del self._refused[: len(step.refused)]
        else:
            del self._closed[: step.slots]
            del self._moments[: step.moments]
            self._announced = step.through_ms, step.moments_ms
            if step.moments_ms is not None:
                self._asked_before = self._asked
                self._lost_ms = None
        self._step = self._due()

    def _due(self) -> SendRefused | SendChunks | None:
        if self._refused:
            return SendRefused(tuple(self._refused))
        through = self.reader.through_ms
        moments_ms = self.reader.moments_ms
        if through is None or (through, moments_ms) == self._announced:
            return None
        messages: list[ToShard] = []
        if through != self._announced[0]:
            # Markers behind the chunks, and a marker for every shard, also without chunks: a shard
            # waits for all sources.
            cut = partial(
                cut_pings,
                source=self._source,
                shards=self._shards,
                least=int(self.reader.is_in_processing_time),
            )
            messages += [chunk for slot in self._closed for chunk in cut(slot)]
            messages += [PingsEnd(self._source, shard, through) for shard in range(self._shards)]
        if moments_ms is not None and moments_ms != self._announced[1]:
            messages += self._positions(moments_ms)
        return SendChunks(messages, len(self._closed), through, len(self._moments), moments_ms)

    def _positions(self, through_ms: int) -> list[ToShard]:
        shards = range(self._shards)
        lost_ms = self._lost_ms
        messages: list[ToShard] = []
        if lost_ms is not None:
            # Without `asked`: a marker for no query, so shards skip the moments up to it.
            messages += [PositionsEnd(self._source, shard, lost_ms) for shard in shards]
        for moment in self._moments:
            start_ms = 0 if self._periods is None else self._periods.start_of(moment.time_ms)
            shard = shard_of_period(start_ms, self._shards)
            messages += cut_moment(moment, self._source, shard, self._asked)
        return [
            *messages,
            *(PositionsEnd(self._source, shard, through_ms, asked=self._asked) for shard in shards),
        ]

    @property
    def next_offset(self) -> int:
        return self.reader.next_offset

    @property
    def asked(self) -> str:
        """The digest of the queries that moments up to the checkpoint were sent for, as far as
        shards know."""
        return self._asked_before

    @property
    def may_commit(self) -> bool:
        return self._step is None

    def checkpoint(self) -> SourceCheckpoint:
        """Where to resume after a crash; commit it only while `may_commit`."""
        return self.reader.checkpoint()

    def wants_tick(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close a slot. A single tick is enough
        until something is read; by the wall, until a tick is, and neither refusals nor chunks that
        are on their way hold it up."""
        is_free = self.may_commit or self.reader.is_in_processing_time
        return is_free and not self._has_ticked and self.reader.tick_would_close(wall_ms)

    def ticked(self) -> None:
        self._has_ticked = True
