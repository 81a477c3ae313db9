"""The protocol of a shard, and on partition 0 of the planner: what to do next, and what may be
committed. No I/O.

Slot by slot, in order of time. `next` gives the first of these steps that is due; the caller does
it and says so.

| step | when | answer of the caller |
| --- | --- | --- |
| `CountSlot` | every source has closed a slot | `counted`; its counts are sent next |
| `SendMessages` | something is to be sent: counts, plans, the time through which all is counted or released | `sent` |
| `QueryCity` | all norms are there, and the city is asked; on partition 0 | `city_queried` |
| `RecordNorms` | all norms are there, and what the city told; on partition 0 | `remembered`; factors are next |
| `LearnSlot` | all shards have released what was planned, where plans follow from it; on 0 | `publishing`, `learnt` |
| `PlanSlot` | all shards have counted a slot; on partition 0 | `planned`; each shard is sent its share next |
| `MeasureNorms` | the oldest counted slot has a question, or a plan that shares clips or asks the city | `measured`; norms next |
| `ReleaseSlot` | the oldest counted slot has its plan, and factors if it was measured | `recorded`, then `published` |
| `AnswerShard` | every source has sent the positions of a moment, where queries are asked | `answering`, `answered` |
| `KeepSlot` | a released slot is read again, where its day needs it | `kept` |

The output of a step is on all replicas before a checkpoint moves past its input, and a repeated
output changes nothing. So a crash anywhere repeats a step with the same outcome.

**Shards.** The plan of a slot is written to the shard's own log, behind the chunks that it follows
from, so reading from the checkpoint finds both again. The shard's checkpoint stays before the
chunks of a slot until the slot is published, and before the positions of a moment until its answers
are.

Where a day's plates are summed at its end, the checkpoint stays before the chunks of all slots of
the day, too (`keep_from`): a new owner counts again what is released.

**The planner** reads the counts of all shards in the log of partition 0. Its checkpoint stays
before the counts of a slot until every plan is sent; where plans follow from releases, until the
slot is learnt. There a slot is planned once all that was planned before is released, and shards say
what they have released (`Released`) in the same log, behind the counts. So what the planner knows
of earlier slots is the same whenever and wherever it plans; it waits for messages, never for a
clock. A shard says again what it has released whenever it is taken over, as its last owner may have
died before it could; so does a shard that lost its pings, and accepts that, once its sources have
closed the slot.

**Shared clips.** Where plates share clips among HATs of several shards, each shard sends its norms,
and the planner answers each with the factors of its plates once all shards that the plan went to
have sent theirs, or have released the slot, and the ledger remembers all of them. A shard that
releases has measured, too. Plates of which it has measured something else than the planner
answered, as under other settings, get the factor 0; no other plate's factor depends on that. Where
something is asked of the whole city, each shard sends its part of the sums beside its norms, and
waits for the answer in the same way. The planner first records what the city told, so that whoever
finds all HATs of a slot recorded finds that, too.

**The city's hour.** A plan that is a question alone comes before the plan of the HATs: shards send
their part of its sums, and the planner plans the slot again once the answer is recorded. A planner
that takes over finds it in the ledger, or asks the same again. So a shard keeps questions and plans
apart, and answers a question whatever else it has of the slot: it may come late, behind the plan.
Where no shard answers, as all have lost the slot, it is planned without.

Charging and recording are done under the fence of the partition: a worker that is refused there
drops this object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from streams import wire
from streams.wire import (
    PLANNER,
    Chunk,
    ChunkAssembly,
    EndMarker,
    NormChunk,
    PlanChunk,
    shard_of,
)
from udp_stream.base.errors import DataLoss, UdpStreamError
from udp_stream.mechanisms.around import PlateNorms, merged_norms
from udp_stream.planning.slot import SlotPlan
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues

# --- the slot barrier: it holds the chunks of a slot until every sender has ended it ---
#
# 1. A slot is due once every sender has closed it.
# 2. Of each sender, only the chunks of its first end marker count. A sender that died halfway, or a
#    successor under other settings, leaves chunks with another digest; those are dropped.
# 3. The log keeps order, so a marker whose chunks are missing means a damaged log: raise, unless
#    `accept_loss`. That goes for a reader that begins in the middle, too: the log has lost what was
#    before.
# 4. A repeated chunk or marker changes nothing.
# 5. If an end marker is of another kind, every slot up to it is skipped. It counts as done, without
#    an outcome, because its data is incomplete.
#
# The checkpoint is the offset of the first chunk of the oldest slot held, with what each sender had
# closed by then, and the time up to which slots are done. Reading again from a checkpoint gives the
# same slots, in the same order.

NOT_YET = -(2**62)
"""The closing time of a sender that has sent no end marker. Checkpoints hold it too, so it fits in
a message."""


C = TypeVar("C", bound=Chunk)


class BarrierCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Resume reading at `offset`, with what each sender had closed by then; slots that end by
    `done_ms` are done.

    >>> BarrierCheckpoint(0).done_ms == NOT_YET
    True
    """

    offset: int
    through_ms: tuple[int, ...] = ()
    done_ms: int = NOT_YET

    def back_to(self, now_ms: int) -> BarrierCheckpoint:
        """The checkpoint with all open again that was closed ahead of now."""
        through_ms = tuple(NOT_YET if ms > now_ms else ms for ms in self.through_ms)
        return BarrierCheckpoint(
            self.offset, through_ms, NOT_YET if self.done_ms > now_ms else self.done_ms
        )


@dataclass(slots=True)
class _HeldSlot:
    """A slot that is not done. `chunks` are keyed by (sender, digest, number).

    Once a sender has closed the slot, only the chunks it closed the slot with are left. `missing`
    has, for each sender with too few of them, how many there should be.
    """

    end_ms: int
    checkpoint: BarrierCheckpoint
    chunks: dict[tuple[int, bytes, int], Any] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    collected: bool = False

    def close(self, sender: int, digest: bytes | None) -> int:
        """Keep only the sender's chunks of this digest (None: keep none of them), and return how
        many there are."""
        self.chunks = {
            key: chunk for key, chunk in self.chunks.items() if key[0] != sender or key[1] == digest
        }
        return sum(key[0] == sender for key in self.chunks)


class SlotBarrier(Generic[C]):
    """The slots of a log that are not done yet. It ignores messages of other types than its chunk
    and its marker.

    >>> from streams.wire import cut_pings
    >>> from udp_stream.testing import seven_pings
    >>> barrier = SlotBarrier(wire.PingChunk, wire.PingsEnd, senders=1)
    >>> chunk, end = cut_pings(seven_pings(), source=0, shards=1)
    >>> barrier.add(0, chunk)
    >>> barrier.due(), barrier.checkpoint().offset
    ([], 0)
    >>> barrier.add(1, end)
    >>> (start,) = barrier.due()
    >>> barrier.collect(start) == [chunk], barrier.checkpoint().offset, barrier.checkpoint(done=start).offset
    (True, 0, 2)
    """

    def __init__(
        self,
        chunk: type[C],
        marker: type[EndMarker],
        senders: int,
        start: BarrierCheckpoint | None = None,
        accept_loss: bool = False,
        skips: Callable[[EndMarker], bool] | None = None,
    ) -> None:
        """Begin at the beginning, or at a checkpoint. Senders that the checkpoint does not know
        have closed nothing.

        With `accept_loss`, a slot whose chunks are missing consists of those that are there.
        `skips` says of a marker whether it is of another kind.
        """
        start = start or BarrierCheckpoint(0)
        known = start.through_ms
        if senders < max(1, len(known)):
            raise UdpStreamError(
                f"{chunk.__name__}: expected at least {max(1, len(known))} senders, got {senders}"
            )
        self._chunk = chunk
        self._marker = marker
        self._accept_loss = accept_loss
        self._through = (*known, *[NOT_YET] * (senders - len(known)))
        self.through_ms = min(self._through)
        """Time, Unix ms, up to which every sender has closed all slots that end."""
        self._skips = skips
        self._next = start.offset
        self._done_ms = start.done_ms
        self._held: dict[int, _HeldSlot] = {}

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def clear_ms(self) -> int:
        """Time, Unix ms, up to which every slot that ends is done, or no sender had anything of
        it."""
        # Up to the start of the oldest slot held: what ends by then came before it.
        return max(self._done_ms, min([self.through_ms, *self._held]))

    def holds(self, start: int) -> bool:
        """Whether a chunk of this slot has arrived and the slot is not done."""
        return start in self._held

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset. Messages before the checkpoint, and repeats, change
        nothing."""
        if offset < self._next:
            return
        if isinstance(message, self._chunk):
            self._add_chunk(offset, message)
        elif isinstance(message, self._marker):
            self._require_known(message.sender)
            if self._skips is not None and self._skips(message):
                self._skip(message.through_ms)
            self._hold_if_all_are_missing(message)
            for start in self._advance(message):
                self._end(start, message)
                # A slot that every sender has closed without chunks: nothing waits for it.
                held = self._held[start]
                if held.end_ms <= self.through_ms and not held.chunks and not held.missing:
                    del self._held[start]
        self._next = offset + 1

    def _add_chunk(self, offset: int, chunk: C) -> None:
        self._require_known(chunk.sender)
        # The first end marker has decided which chunks count: a late chunk may neither join them
        # nor open the slot again.
        if chunk.slot_end <= max(self._done_ms, self._through[chunk.sender]):
            return
        if chunk.slot_start not in self._held:
            # With this chunk still unread: a reader that resumes here meets it again, and every
            # marker that follows it.
            here = BarrierCheckpoint(offset, self._through)
            self._held[chunk.slot_start] = _HeldSlot(chunk.slot_end, here)
        self._held[chunk.slot_start].chunks.setdefault(
            (chunk.sender, chunk.digest, chunk.number), chunk
        )

    def _hold_if_all_are_missing(self, marker: EndMarker) -> None:
        """Hold a slot that is said to have chunks and has none, so that it is not passed over."""
        start = marker.slot_start
        end_ms = marker.through_ms
        is_first = end_ms > max(self._done_ms, self._through[marker.sender])
        if (
            start is not None
            and marker.chunks
            and is_first
            and start not in self._held
            and not self._accept_loss
        ):
            self._held[start] = _HeldSlot(end_ms, BarrierCheckpoint(self._next, self._through))

    def _skip(self, through_ms: int) -> None:
        """Make every slot up to then done without an outcome, except those whose outcome is under
        way."""
        self._done_ms = max(self._done_ms, through_ms)
        self._held = {
            start: held
            for start, held in self._held.items()
            if held.collected or held.end_ms > through_ms
        }

    def _advance(self, marker: EndMarker) -> list[int]:
        """Move the sender's closing time, never back; the slots held that this closes."""
        # A successor that resumes earlier closes earlier slots again. Those were ended by the first
        # marker.
        before = self._through[marker.sender]
        through = max(self._through[marker.sender], marker.through_ms)
        self._through = (
            *self._through[: marker.sender],
            through,
            *self._through[marker.sender + 1 :],
        )
        self.through_ms = min(self._through)
        return [start for start, held in self._held.items() if before < held.end_ms <= through]

    def _end(self, start: int, marker: EndMarker) -> None:
        held = self._held[start]
        is_named = marker.slot_start == start
        found = held.close(marker.sender, marker.digest if is_named else None)
        if is_named and found < marker.chunks and not self._accept_loss:
            held.missing[marker.sender] = marker.chunks

    def _require_known(self, sender: int) -> None:
        if sender >= len(self._through):
            name = self._chunk.__name__
            raise UdpStreamError(
                f"{name}: expected senders 0 to {len(self._through) - 1}, got {sender}: start anew"
            )

    def due(self) -> list[int]:
        """Slots that every sender has closed and that were not collected yet, oldest first, by
        their starts."""
        held = sorted(self._held.items())
        return [
            start for start, slot in held if slot.end_ms <= self.through_ms and not slot.collected
        ]

    def collect(self, start: int) -> list[C]:
        """The chunks of a due slot, by sender and number, once. Lost if some are missing."""
        held = self._held[start]
        if held.missing:
            raise DataLoss(
                f"{self._chunk.__name__}: slot {start}: chunks are missing; senders that sent more than is there, with "
                f"how many: {held.missing}. `udp-stream worker --accept-loss` continues without them"
            )
        chunks = [held.chunks[key] for key in sorted(held.chunks)]
        # Still held: the checkpoint stays before the slot until its outcome is delivered.
        held.chunks = {}
        held.collected = True
        return chunks

    def done(self, start: int) -> None:
        """Forget a slot: its outcome has been delivered."""
        # Slots that were skipped meanwhile may have moved it further.
        self._done_ms = max(self._done_ms, self._held.pop(start).end_ms)

    def forget_before(self, start_ms: int) -> None:
        """Forget the slots that were collected and start before this time."""
        for start in sorted(self._held):
            if start < start_ms and self._held[start].collected:
                self.done(start)

    def checkpoint(self, done: int | None = None) -> BarrierCheckpoint:
        """Where to resume after a crash; with `done`, once that slot is done, too."""
        here = BarrierCheckpoint(self._next, self._through)
        # A reader resumes at a single offset, so the oldest chunk that is still needed decides.
        # Chunks of slots that are done may follow it: `done_ms` drops them when they are read
        # again.
        held = (slot.checkpoint for start, slot in self._held.items() if start != done)
        first = min(held, key=attrgetter("offset"), default=here)
        done_ms = self._done_ms if done is None else max(self._done_ms, self._held[done].end_ms)
        return BarrierCheckpoint(first.offset, first.through_ms, done_ms)


Outgoing = tuple[
    int,
    wire.CountChunk
    | wire.CountsEnd
    | PlanChunk
    | NormChunk
    | wire.FactorChunk
    | wire.ReleaseMarker,
]
"""A partition of the shuffle topic, and a message for it."""


class CountSlot(NamedTuple):
    """Count the pings of this slot."""

    start: int
    pings: SlotPings


class SendMessages(NamedTuple):
    """Send these messages, per partition in this order: all is counted and released through these
    times."""

    messages: Sequence[Outgoing]
    through_ms: int
    released_ms: int = NOT_YET


class LearnSlot(NamedTuple):
    """Learn the releases of this slot, all of which are recorded, and publish its smoothed
    estimates."""

    start: int
    end_ms: int


class PlanSlot(NamedTuple):
    """Plan and charge this slot from the counts of all shards. If it `asks`, the plan may be a
    question to the city alone; once that is answered this comes again."""

    start: int
    chunks: Sequence[wire.CountChunk]
    asks: bool = True


class MeasureNorms(NamedTuple):
    """Measure how far the plates of this slot are from their forecasts.

    Its plan lets each share a clip among HATs, or asks something of the whole city.
    """

    start: int
    counts: SlotCounts
    values: SlotValues
    plan: SlotPlan


class QueryCity(NamedTuple):
    """Draw and record this plan's query of the whole city, from the sums over all shards; of a
    question alone, from their norms."""

    plan: SlotPlan
    sums: tuple[int, ...]
    norms: PlateNorms


class RecordNorms(NamedTuple):
    """Remember the norms of the slot's plates, from all shards: what is remembered before says
    which factors hold.

    `expected`: in how many HATs that share its clip each plate was charged.
    """

    start: int
    end_ms: int
    norms: PlateNorms
    expected: Mapping[bytes, int]


class ReleaseSlot(NamedTuple):
    """Draw and record this slot on its plan, with the factors of its plates where they share clips
    among HATs."""

    start: int
    counts: SlotCounts
    values: SlotValues
    plan: SlotPlan
    factors: Mapping[bytes, int] | None = None


class KeepSlot(NamedTuple):
    """Keep the entries of this slot for its day: it is released, and was read again."""

    start: int
    pings: SlotPings


class AnswerShard(NamedTuple):
    """Answer the queries of this moment: its chunks of all sources are there."""

    time_ms: int
    chunks: Sequence[wire.PositionChunk]


Step: TypeAlias = (
    CountSlot
    | SendMessages
    | LearnSlot
    | PlanSlot
    | MeasureNorms
    | QueryCity
    | RecordNorms
    | ReleaseSlot
    | AnswerShard
    | KeepSlot
)


class ShardCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where to resume a partition of the shuffle topic: its shard, on partition 0 the planner, its
    queries, and the day under way.

    >>> ShardCheckpoint(BarrierCheckpoint(9), planner=BarrierCheckpoint(4)).offset, ShardCheckpoint.at(7).offset
    (4, 7)
    """

    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    moments: BarrierCheckpoint | None = None
    day: BarrierCheckpoint | None = None

    @classmethod
    def at(cls, offset: int) -> ShardCheckpoint:
        """A checkpoint from this offset on, with no knowledge of what is before it."""
        return cls(BarrierCheckpoint(offset), BarrierCheckpoint(offset), BarrierCheckpoint(offset))

    @property
    def offset(self) -> int:
        """Where to resume reading. Each part skips what is before its own checkpoint."""
        parts = self.shard, self.planner, self.moments, self.day
        return min(one.offset for one in parts if one is not None)

    @property
    def read_to(self) -> int:
        """Offset up to which the checkpoint tells that all was read; what it still needs may lie
        before."""
        return max(
            one.offset for one in (self.shard, self.planner, self.moments) if one is not None
        )

    def back_to(self, now_ms: int) -> ShardCheckpoint:
        """The log's clock was ahead, and goes back. The ledger still has what was charged and
        recorded."""
        return self._each(lambda one: one.back_to(now_ms))

    def with_offset(self, offset: int) -> ShardCheckpoint:
        """The same, of a log that is read again from this offset on: what is done stays done."""
        return self._each(lambda one: replace(one, offset=offset))

    def _each(self, change: Callable[[BarrierCheckpoint], BarrierCheckpoint]) -> ShardCheckpoint:
        others = (one and change(one) for one in (self.planner, self.moments, self.day))
        return ShardCheckpoint(change(self.shard), *others)


# --- the planner, on partition 0 ---


@dataclass(slots=True)
class _PlannedSlot:
    """A slot whose plan is made, and the shards that have to release it.

    `hats`, where norms are waited for: in how many HATs that share its clip each plate was charged.
    None once the factors are made; `answered` are the shards that have them. `city`, where
    something is asked of the whole city: the plan. None once that is recorded.
    """

    start: int
    end_ms: int
    shards: tuple[int, ...]
    hats: Mapping[bytes, int] | None = None
    city: SlotPlan | None = None
    is_sent: bool = False
    answered: set[int] = field(default_factory=set)

    @property
    def is_question(self) -> bool:
        return self.city is not None and self.city.is_question


class PlannerState:
    """Slots to be planned and, where plans follow from releases, learnt. `counts` are those of all
    shards.

    >>> from udp_stream.testing import SLOT_END, two_hats
    >>> planner = PlannerState(shards=1, start=None, follows=True)
    >>> for offset, message in enumerate(wire.cut_counts(two_hats()[0], shard=0)):
    ...     planner.add(offset, message)
    >>> start = planner.slot_to_plan().start
    >>> planner.planned(start, SLOT_END, [0])
    >>> planner.sent()
    >>> planner.slot_to_learn(), planner.counts.checkpoint().offset
    (None, 0)
    >>> planner.add(2, wire.ReleaseMarker(shard=0, through_ms=SLOT_END))
    >>> planner.slot_to_learn() == LearnSlot(start, SLOT_END), planner.counts.checkpoint(done=start).offset
    (True, 3)
    """

    def __init__(
        self,
        shards: int,
        start: BarrierCheckpoint | None,
        accept_loss: bool = False,
        follows: bool = False,
    ) -> None:
        """Begin at the beginning, or at a checkpoint. `follows`: plans follow from releases."""
        self.counts = SlotBarrier(wire.CountChunk, wire.CountsEnd, shards, start, accept_loss)
        self._follows = follows
        self._released_ms = [NOT_YET] * shards
        self._planned: _PlannedSlot | None = None
        self._unsent: list[int] = []
        self._counted: PlanSlot | None = None
        self._again: PlanSlot | None = None
        self._norms: dict[tuple[int, bool], dict[int, ChunkAssembly[NormChunk]]] = {}

    def add(self, offset: int, message: object) -> None:
        self.counts.add(offset, message)
        if self._follows and isinstance(message, wire.ReleaseMarker):
            # A new owner says again what its predecessor did, and may say less at first.
            self._released_ms[message.shard] = max(
                self._released_ms[message.shard], message.through_ms
            )
        elif isinstance(message, NormChunk) and self.counts.holds(message.slot_start):
            # Only of slots held: norms that come again after `learnt` would never be removed.
            of_slot = self._norms.setdefault((message.slot_start, message.is_question), {})
            of_slot.setdefault(message.sender, ChunkAssembly()).add(message)

    def next(self) -> Step | None:
        of_planned = self._planned and (
            self.city_to_ask() or self.norms_to_remember() or self.slot_to_learn()
        )
        return of_planned or self.slot_to_plan()

    def slot_to_plan(self) -> PlanSlot | None:
        # A slot at a time: the next plan is to follow from what this one releases.
        if self._planned:
            return None
        if self._again is not None:
            return self._again
        for start in self.counts.due()[:1]:
            self._counted = PlanSlot(start, self.counts.collect(start))
            return self._counted
        return None

    def planned(
        self,
        start: int,
        end_ms: int,
        shards: Sequence[int],
        hats: Mapping[bytes, int] | None = None,
        city: SlotPlan | None = None,
    ) -> None:
        """The slot is charged, and its plan is about to be sent to these shards; `hats` and `city`
        as in `_PlannedSlot`."""
        if city is None or not city.is_question:
            self._counted = self._again = None
        if self._follows:
            self._planned = _PlannedSlot(start, end_ms, tuple(shards), hats, city)
        else:
            self._unsent.append(start)

    def sent(self) -> None:
        for start in self._unsent:
            self.counts.done(start)
        self._unsent.clear()
        if self._planned:
            self._planned.is_sent = True

    def _all_norms(self) -> list[Sequence[NormChunk]] | None:
        """The norms of the planned slot, once all of them are there and are not answered yet.

        A shard that has released the slot without a word, as its pings were lost, is not waited
        for. Plates that were charged there are then counted in fewer HATs, and have the factor 0.
        """
        slot = self._planned
        if slot is None or slot.hats is None or not slot.is_sent:
            return None
        arriving = self._norms.get((slot.start, slot.is_question), {})
        chunks = {shard: arriving[shard].whole for shard in slot.shards if shard in arriving}
        # All or none: without the norms of a shard, every plate that is on others, too, would have
        # the factor 0.
        if any(
            not chunks.get(shard) and self._released_ms[shard] < slot.end_ms
            for shard in slot.shards
        ):
            return None
        return [of_shard for of_shard in chunks.values() if of_shard]

    def city_to_ask(self) -> QueryCity | None:
        """Query of the whole city to record now, before shards are answered; without sums if a
        shard sends none. None if none is due."""
        slot = self._planned
        if slot is None or slot.city is None or (chunks := self._all_norms()) is None:
            return None
        # Every chunk of a shard carries the shard's whole part, so only the first counts.
        return QueryCity(
            slot.city,
            tuple(map(sum, zip(*(of_shard[0].city for of_shard in chunks), strict=False))),
            merged_norms([wire.merge_norms(of_shard) for of_shard in chunks]),
        )

    def city_queried(self) -> None:
        if self._planned and self._planned.is_question:
            self._planned = None
            if self._counted is not None:
                self._again = self._counted._replace(asks=False)
        elif self._planned:
            self._planned.city = None

    def norms_to_remember(self) -> RecordNorms | None:
        """The norms to remember now, before shards are answered: once all of them are there, and
        what the whole city was asked is recorded."""
        slot = self._planned
        if (
            slot is None
            or slot.city is not None
            or not slot.hats
            or (chunks := self._all_norms()) is None
        ):
            return None
        norms = merged_norms([wire.merge_norms(of_shard) for of_shard in chunks])
        return RecordNorms(slot.start, slot.end_ms, norms, slot.hats)

    def remembered(self, factors: Mapping[bytes, int]) -> Iterator[wire.FactorChunk]:
        """The factors hold: answer each shard that sent norms."""
        slot = self._planned
        chunks = self._all_norms()
        if slot is None or chunks is None:
            return
        slot.hats = None
        for of_shard in chunks:
            slot.answered.add(of_shard[0].shard)
            yield from wire.cut_factors(factors, wire.merge_norms(of_shard), of_shard[0])

    def answers_without_factors(self) -> Iterator[wire.FactorChunk]:
        """Answers to shards whose plates share no clip by this plan. Plates have the factor 0 where
        they share a clip by an older plan, as under other settings."""
        slot = self._planned
        if slot is None or not slot.is_sent:
            return
        if slot.hats is not None and not slot.hats and slot.city is None:
            yield from self.remembered({})  # only the city was asked: there is nothing to remember
        elif slot.hats is None:
            for shard, arriving in self._norms.get((slot.start, False), {}).items():
                if shard not in slot.answered and (chunks := arriving.whole):
                    slot.answered.add(shard)
                    yield from wire.cut_factors({}, wire.merge_norms(chunks), chunks[0])

    def slot_to_learn(self) -> LearnSlot | None:
        slot = self._planned
        if (
            slot is None
            or not slot.is_sent
            or any(self._released_ms[shard] < slot.end_ms for shard in slot.shards)
        ):
            return None
        return LearnSlot(slot.start, slot.end_ms)

    def learnt(self, start: int) -> None:
        self._planned = None
        for is_question in (False, True):
            self._norms.pop((start, is_question), None)
        self.counts.done(start)


@dataclass(slots=True)
class _DueSlot:
    """A slot that every source has closed, and once it is counted its tables."""

    table: tuple[SlotCounts, SlotValues] | None = None
    is_asked: bool = False  # a question to the city alone was measured
    measured: Mapping[bytes, int] | None = None  # the check of each plate whose clip is shared


_merged_plan = lru_cache(maxsize=4)(wire.merge_plan)
"""A slot that waits for factors is asked for its plan with every batch."""


class ShardProtocol:
    """A partition of the shuffle topic, while it is ours. Do what `next` says until it says
    nothing.

    >>> from streams.wire import cut_pings
    >>> from udp_stream.testing import seven_pings
    >>> from udp_stream.windows.tables import tabulate
    >>> protocol = ShardProtocol(PLANNER, shards=1, sources=1, start=ShardCheckpoint.at(0))
    >>> for offset, message in enumerate(cut_pings(seven_pings(), source=0, shards=1)):
    ...     protocol.add(offset, message)
    >>> count = protocol.next()
    >>> protocol.counted(count.start, *tabulate(count.pings))
    >>> send = protocol.next()
    >>> [type(message).__name__ for _, message in send.messages], protocol.may_commit
    (['CountChunk', 'CountsEnd', 'CountsEnd'], False)
    >>> protocol.sent(send)
    >>> protocol.next(), protocol.may_commit, protocol.checkpoint().offset  # the slot waits for its plan
    (None, True, 0)
    """

    def __init__(
        self,
        partition: int,
        shards: int,
        sources: int,
        start: ShardCheckpoint,
        accept_loss: bool = False,
        follows: bool = False,
        asks: bool = False,
        asked: str = "",
        keeps: bool = False,
    ) -> None:
        """Resume from a checkpoint. With `accept_loss`, a slot whose chunks are missing consists of
        those there are, and a slot whose plan will never come has a plan without HATs.

        `follows`: plans follow from releases, so a slot is planned once all that was planned before
        is released. `asks`: queries are asked. Where none were when the checkpoint was made, chunks
        of a moment may lie before it. `asked` is their digest. A moment that some source has not
        sent for these queries is never answered. `keeps`: slots of the day under way are needed
        at its end.
        """
        self._partition = partition
        self._shards = shards
        self._pings = SlotBarrier(wire.PingChunk, wire.PingsEnd, sources, start.shard, accept_loss)
        self._plans: dict[int, ChunkAssembly[PlanChunk]] = {}
        self._questions: dict[int, ChunkAssembly[PlanChunk]] = {}
        self._factors: dict[int, ChunkAssembly[wire.FactorChunk]] = {}
        self._planner = (
            PlannerState(shards, start.planner, accept_loss, follows)
            if partition == PLANNER
            else None
        )
        self._moments: SlotBarrier[wire.PositionChunk] | None = None
        if asks:

            def is_of_others(marker: EndMarker) -> bool:
                return isinstance(marker, wire.PositionsEnd) and marker.asked != asked

            at = start.moments or BarrierCheckpoint(start.offset)
            is_lost = accept_loss or start.moments is None
            self._moments = SlotBarrier(
                wire.PositionChunk, wire.PositionsEnd, sources, at, is_lost, is_of_others
            )
        self._day: SlotBarrier[wire.PingChunk] | None = None
        if keeps:
            at = start.day or start.shard
            self._day = SlotBarrier(wire.PingChunk, wire.PingsEnd, sources, at, accept_loss=True)
        self._follows = follows
        self._accept_loss = accept_loss
        self._released_sent_ms = (
            NOT_YET  # whatever was sent before: its owner may have died before it could
        )
        self._slots: dict[int, _DueSlot] = {}
        self._outbox: list[Outgoing] = []
        # No checkpoint is committed before the counts up to its closing times are sent.
        self._counts_sent_through_ms = self._pings.through_ms
        self._step: Step | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read: the first that shard, planner or queries do not
        know."""
        counts = None if self._planner is None else self._planner.counts
        parts = self._pings, counts, self._moments, self._day
        return min(one.next_offset for one in parts if one is not None)

    @property
    def done_ms(self) -> int:
        """Time, Unix ms, up to which every slot that ends is published."""
        return self._pings.checkpoint().done_ms

    def add(self, offset: int, message: object) -> None:
        self._pings.add(offset, message)
        # A plan of a slot that is not held came again after the slot was done, or its pings are
        # lost: nothing waits.
        if isinstance(message, PlanChunk) and self._pings.holds(message.slot_start):
            # A question may come again behind the plan of the HATs, and takes nothing of its place.
            plans = self._questions if message.is_question else self._plans
            plans.setdefault(message.slot_start, ChunkAssembly(latest=True)).add(message)
        elif isinstance(message, wire.FactorChunk) and self._pings.holds(message.slot_start):
            self._factors.setdefault(message.slot_start, ChunkAssembly()).add(message)
        if self._planner is not None:
            self._planner.add(offset, message)
        for more in (self._moments, self._day):
            if more is not None:
                more.add(offset, message)

    def next(self) -> Step | None:
        """The first step that is due; the same step until the caller says that it was done."""
        if self._step is None:
            planner = self._planner
            if planner is not None:
                # Shards that wait for factors though their plates share no clip by our plan are
                # answered at once.
                self._outbox += [
                    (chunk.shard, chunk) for chunk in planner.answers_without_factors()
                ]
            # Counts go out first, as other shards wait for the plan that needs them; answers last,
            # as no release waits for an answer. The step is kept until it is done, so a call in
            # between cannot start it twice.
            of_shard = self._keep() or self._count() or self._send()
            of_planner = None if of_shard or planner is None else planner.next()
            self._step = (
                of_shard or of_planner or self._measure() or self._release() or self._answer()
            )
        return self._step

    def _keep(self) -> KeepSlot | None:
        """A slot of the day that is not to be released any more: its last owner has."""
        if self._day is None:
            return None
        for start in self._day.due()[:1]:
            if not self._pings.holds(start):
                return KeepSlot(start, wire.merge_pings(self._day.collect(start)))
        return None

    def kept(self) -> None:
        self._step = None

    def keep_from(self, start_ms: int) -> None:
        """Slots that start earlier are not needed any more."""
        if self._day is not None:
            self._day.forget_before(start_ms)

    def _count(self) -> CountSlot | None:
        for start in self._pings.due()[:1]:
            self._slots[start] = _DueSlot()
            return CountSlot(start, wire.merge_pings(self._pings.collect(start)))
        return None

    def counted(self, start: int, counts: SlotCounts, values: SlotValues) -> None:
        """The slot is counted. Its counts are sent to the planner next, unless its plan has arrived
        already."""
        slot = self._slots[start]
        self._step = None
        slot.table = counts, values
        # A plan that is there, or a question, was made from the same counts, which an earlier owner
        # of this partition has sent.
        if self._plan_of(start) is None and self._question_of(start) is None:
            self._outbox += [
                (PLANNER, message) for message in wire.cut_counts(counts, self._partition)
            ]

    def _plan_of(self, start: int) -> SlotPlan | None:
        chunks = self._plans[start].whole if start in self._plans else None
        return None if chunks is None else _merged_plan(chunks)

    def _question_of(self, start: int) -> SlotPlan | None:
        chunks = self._questions[start].whole if start in self._questions else None
        return None if chunks is None else _merged_plan(chunks)

    def _factors_of(self, start: int) -> wire.ScaleFactors | None:
        chunks = self._factors[start].whole if start in self._factors else None
        return None if chunks is None else wire.merge_factors(chunks)

    def _send(self) -> SendMessages | None:
        through = self._pings.through_ms
        messages = list(self._outbox)
        if through > self._counts_sent_through_ms:
            messages.append((PLANNER, wire.CountsEnd(self._partition, self._partition, through)))
        # Only where the planner waits for it: else every slot would cost a message that is never
        # read.
        released = max(self._released_sent_ms, self._pings.clear_ms if self._follows else NOT_YET)
        if released > self._released_sent_ms:
            messages.append((PLANNER, wire.ReleaseMarker(self._partition, released)))
        return SendMessages(messages, through, released) if messages else None

    def sent(self, step: SendMessages) -> None:
        self._step = None
        self._outbox.clear()
        self._counts_sent_through_ms = step.through_ms
        self._released_sent_ms = step.released_ms
        if self._planner is not None:
            self._planner.sent()

    def publishing(self, step: LearnSlot) -> ShardCheckpoint:
        """Checkpoint with which the slot's estimates are about to be published; it is behind the
        slot's counts."""
        return self._checkpoint(learnt=step.start)

    def learnt(self, step: LearnSlot) -> None:
        self._step = None
        if self._planner is not None:
            self._planner.learnt(step.start)

    def planned(self, start: int, counts: SlotCounts, plan: SlotPlan) -> None:
        """The slot is charged. Each shard that has counted something is sent its share of the plan
        next, even if that has no HATs."""
        self._step = None
        of_plan = shard_of(plan.cells, self._shards)
        # Of a slot without pings, which there is under "add-remove", the only shard there is the
        # first.
        shards = sorted(set(shard_of(counts.cells, self._shards).tolist())) or [PLANNER]
        # Also a share without HATs: the shard holds the slot, and its checkpoint, until a plan says
        # what becomes of it.
        for shard in shards:
            self._outbox += [
                (shard, chunk) for chunk in wire.cut_plan(plan.subset(of_plan == shard), shard)
            ]
        if self._planner is not None:
            hats = plan.jointly_clipped_hats(counts) if plan.is_measured else None
            self._planner.planned(
                start, counts.end_ms, shards, hats, None if plan.city is None else plan
            )

    def _measure(self) -> MeasureNorms | None:
        for start, slot in sorted(self._slots.items())[:1]:
            if slot.table is None:
                continue
            # Also where the plan of the HATs is there: it may be an older one, as under other
            # settings, and the planner waits for what it asks now.
            question = None if slot.is_asked else self._question_of(start)
            if question is not None:
                return MeasureNorms(start, *slot.table, question)
            plan = self._plan_of(start)
            if plan is not None and plan.is_measured and slot.measured is None:
                return MeasureNorms(start, *slot.table, plan)
        return None

    def measured(self, step: MeasureNorms, norms: PlateNorms, city: tuple[int, ...] = ()) -> None:
        """The slot's plates are measured. Their norms, and their part of the sums over the whole
        city, are sent to the planner next, unless it has answered already. Its answer to norms of
        HATs says nothing of a question's."""
        is_question = step.plan.is_question
        slot_end = step.counts.end_ms
        chunks = list(
            wire.cut_norms(
                norms, step.start, slot_end, self._partition, city=city, is_question=is_question
            )
        )
        self._step = None
        slot = self._slots[step.start]
        if is_question:
            slot.is_asked = True
        else:
            slot.measured = dict(zip(norms.plates, norms.checks.tolist(), strict=True))
        if is_question or self._factors_of(step.start) is None:
            self._outbox += [(PLANNER, chunk) for chunk in chunks]

    def city_queried(self) -> None:
        """The answer of the whole city is recorded: the shards may draw, or their HATs be planned."""
        self._step = None
        if self._planner is not None:
            self._planner.city_queried()

    def remembered(self, factors: Mapping[bytes, int]) -> None:
        """The ledger remembers the norms, and these factors hold. Each shard is sent those of its
        plates next."""
        self._step = None
        if self._planner is not None:
            self._outbox += [(chunk.shard, chunk) for chunk in self._planner.remembered(factors)]

    def _release(self) -> ReleaseSlot | None:
        # The oldest only, whichever plan came first: a checkpoint says through which time all slots
        # are done.
        for start, slot in sorted(self._slots.items())[:1]:
            plan = self._plan_of(start)
            factors = self._factors_of(start)
            # The planner has lost our counts of this slot, or it had planned it before a later
            # slot. Plans come in the order of slots, so a part of a later plan, or question, tells.
            is_lost = (
                plan is None
                and self._accept_loss
                and any(other > start for other in (*self._plans, *self._questions))
            )
            if is_lost and slot.table is not None:
                plan = SlotPlan.empty(slot.table[0])
            if (
                plan is not None
                and slot.table is not None
                and (factors is not None or not plan.is_measured)
            ):
                ours = None if factors is None else factors.of(slot.measured or {})
                return ReleaseSlot(start, *slot.table, plan, ours)
        return None

    def recorded(self, start: int) -> ShardCheckpoint:
        """The slot's releases are recorded: publish them together with this checkpoint, which is
        behind the slot."""
        return self._checkpoint(released=start)

    def published(self, start: int) -> None:
        """Called once readers have the slot and its checkpoint is committed."""
        self._step = None
        del self._slots[start]
        self._pings.done(start)
        if self._day is not None and start in self._day.due():
            self._day.collect(start)
        for of_slots in (self._plans, self._questions, self._factors):
            of_slots.pop(start, None)

    def _answer(self) -> AnswerShard | None:
        if self._moments is not None:
            for time_ms in self._moments.due()[:1]:
                return AnswerShard(time_ms, self._moments.collect(time_ms))
        return None

    def answering(self, step: AnswerShard) -> ShardCheckpoint:
        """Checkpoint with which the moment's answers are about to be published; it is behind the
        moment's positions."""
        return self._checkpoint(answered=step.time_ms)

    def answered(self, step: AnswerShard) -> None:
        self._step = None
        if self._moments is not None:
            self._moments.done(step.time_ms)

    @property
    def answered_ms(self) -> int:
        """Time, Unix ms, up to which every moment that this shard has had is answered and
        published."""
        return NOT_YET if self._moments is None else self._moments.checkpoint().done_ms

    @property
    def may_commit(self) -> bool:
        """Whether a commit of `checkpoint` is safe: everything that follows from what was read has
        been sent, and no step is under way: it may publish, and commit a checkpoint of its own."""
        # A commit beside a transaction, or behind one that failed though it took effect, could move
        # its checkpoint back.
        return self._step is None and not self._pings.due() and self._send() is None

    def checkpoint(self) -> ShardCheckpoint:
        """Where to resume after a crash; commit it only while `may_commit`."""
        return self._checkpoint()

    def _checkpoint(
        self, released: int | None = None, learnt: int | None = None, answered: int | None = None
    ) -> ShardCheckpoint:
        planner = None if self._planner is None else self._planner.counts.checkpoint(learnt)
        moments = None if self._moments is None else self._moments.checkpoint(answered)
        day = None if self._day is None else self._day.checkpoint()
        return ShardCheckpoint(self._pings.checkpoint(released), planner, moments, day)
