"""Where to resume a partition of the shuffle topic: its shard, and on partition 0 the planner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from udp_stream.lifecycle import SLOT_LIFE, SlotState, advance
from udp_stream.mechanisms.ball import PlateNorms, merged_norms
from udp_stream.planning.slot_plan import PlanChunk, SlotPlan, cut_plan, merge_plan
from udp_stream.shuffle.barrier import NOT_YET, BarrierCheckpoint, SlotBarrier, SlotStage
from udp_stream.shuffle.wire import (
    Arriving,
    CountChunk,
    CountsEnd,
    FactorChunk,
    Factors,
    NormChunk,
    PingChunk,
    PingsEnd,
    PositionChunk,
    Released,
    cut_counts,
    cut_factors,
    cut_norms,
    merge,
    merge_factors,
    merge_norms,
    positions_of_sources,
    shard_of,
)
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues


class ShardCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where to resume one partition of the shuffle topic.

    >>> ShardCheckpoint(BarrierCheckpoint(9), planner=BarrierCheckpoint(4)).offset, ShardCheckpoint.at(7).offset
    (4, 7)
    """

    shard: BarrierCheckpoint
    planner: BarrierCheckpoint | None = None
    moments: BarrierCheckpoint | None = None

    @classmethod
    def at(cls, offset: int) -> ShardCheckpoint:
        """From this offset on, with no knowledge of what is before it."""
        return cls(BarrierCheckpoint(offset), BarrierCheckpoint(offset), BarrierCheckpoint(offset))

    @property
    def offset(self) -> int:
        """Where to resume reading. Shard, planner and queries each skip what is before their own checkpoint."""
        return min(one.offset for one in (self.shard, self.planner, self.moments) if one is not None)

    @property
    def read_to(self) -> int:
        """What is before this offset was read, as far as the checkpoint tells: what it still needs may lie before."""
        return max(one.offset for one in (self.shard, self.planner, self.moments) if one is not None)

    def again_from(self, offset: int) -> ShardCheckpoint:
        """The same, of a log that is read again from this offset on: what is done stays done.

        >>> ShardCheckpoint(BarrierCheckpoint(9, (3_600_000,), 7_200_000)).again_from(2).shard
        BarrierCheckpoint(offset=2, through_ms=(3600000,), done_ms=7200000)
        """
        planner, moments = (one and replace(one, offset=offset) for one in (self.planner, self.moments))
        return ShardCheckpoint(replace(self.shard, offset=offset), planner, moments)


# The steps of a shard's protocol, as values: what is due, with all that is needed to do it.

PLANNER = 0
"""The partition whose owner plans for all shards."""

Outgoing = tuple[int, CountChunk | CountsEnd | PlanChunk | NormChunk | FactorChunk | Released]
"""A partition of the shuffle topic, and a message for it."""


@dataclass(frozen=True, slots=True)
class Count:
    """Count the pings of this slot.

    >>> from udp_stream.testing import SLOT_START, seven_pings
    >>> Count(SLOT_START, seven_pings()).pings.plate.size
    7
    """

    start: int
    pings: SlotPings


@dataclass(frozen=True, slots=True)
class Send:
    """Send these messages; per partition in this order. They say that all is counted through `through_ms`, and
    released through `released_ms`.

    >>> step = Send([(PLANNER, CountsEnd(shard=2, through_ms=3_600_000))], through_ms=3_600_000)
    >>> [(partition, message.shard) for partition, message in step.messages]
    [(0, 2)]
    """

    messages: Sequence[Outgoing]
    through_ms: int
    released_ms: int = NOT_YET


@dataclass(frozen=True, slots=True)
class Learn:
    """Learn the releases of this slot, all of which are recorded, and publish its smoothed estimates.

    >>> from udp_stream.testing import SLOT_END, SLOT_START
    >>> (Learn(SLOT_START, SLOT_END).end_ms - SLOT_START) // 60_000
    60
    """

    start: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class PlanSlot:
    """Plan and charge this slot from the counts of all shards.

    >>> from udp_stream.shuffle.wire import cut_counts, merge_counts
    >>> from udp_stream.testing import SLOT_START, two_hats
    >>> chunk, _ = cut_counts(two_hats()[0], shard=0)
    >>> merge_counts(PlanSlot(SLOT_START, [chunk]).chunks).cells.size
    2
    """

    start: int
    chunks: Sequence[CountChunk]


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure how far the plates of this slot are from their forecasts.

    Its plan lets each share one clip among HATs, or asks something of the whole city.

    >>> from udp_stream.testing import SLOT_START, two_hats
    >>> counts, values = two_hats()
    >>> Measure(SLOT_START, counts, values, SlotPlan.empty(counts)).plan.in_balls
    False
    """

    start: int
    counts: SlotCounts
    values: SlotValues
    plan: SlotPlan


@dataclass(frozen=True, slots=True)
class AskCity:
    """Draw and record what this plan asks of the whole city, from the sums over all shards.

    >>> from udp_stream.testing import two_hats
    >>> AskCity(SlotPlan.empty(two_hats()[0]), sums=()).plan.city is None
    True
    """

    plan: SlotPlan
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Remember:
    """Remember the norms of the slot's plates, from all shards: what is remembered before says which factors hold.

    `expected`: in how many HATs that share its clip each plate was charged.

    >>> from udp_stream.testing import SLOT_END, SLOT_START
    >>> Remember(SLOT_START, SLOT_END, PlateNorms.nobody(), {b"plate": 2}).norms.plates
    ()
    """

    start: int
    end_ms: int
    norms: PlateNorms
    expected: Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class Release:
    """Draw and record this slot on its plan, with the factors of its plates where they share clips among HATs.

    >>> from udp_stream.testing import SLOT_START, two_hats
    >>> counts, values = two_hats()
    >>> Release(SLOT_START, counts, values, SlotPlan.empty(counts)).plan.cells.size
    0
    """

    start: int
    counts: SlotCounts
    values: SlotValues
    plan: SlotPlan
    factors: Mapping[bytes, int] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the queries of this moment: its chunks of all sources are there.

    >>> from udp_stream.shuffle.wire import cut_moment, merge_moment
    >>> from udp_stream.testing import a_moment
    >>> chunk, _ = cut_moment(a_moment(), source=0, shard=0)
    >>> len(merge_moment(Answer(chunk.slot_start, [chunk]).chunks).plates)
    8
    """

    time_ms: int
    chunks: Sequence[PositionChunk]


Step: TypeAlias = Count | Send | Learn | PlanSlot | Measure | AskCity | Remember | Release | Answer


# A shard: the slots of some cells, from the chunks of their pings to the plan on which they are released.
#
# Sources send chunks. Once every source has closed a slot, the shard counts it, sends the counts to the planner, and
# holds the slot until its plan arrives. The plan is written to the shard's own log, behind the chunks it follows from,
# so reading from the checkpoint finds both again.
#
# The planner is a `SlotBarrier` over the counts of all shards (`counts_of_shards`), in the log of partition 0.


class Shard:
    """The slots of one shard that are not released yet.

    >>> from udp_stream.planning.slot_plan import cut_plan
    >>> from udp_stream.shuffle.wire import cut
    >>> from udp_stream.testing import seven_pings, two_hats
    >>> shard, (chunk, end) = Shard(sources=1), cut(seven_pings(), source=0, shards=1)
    >>> shard.add(0, chunk)
    >>> shard.add(1, end)
    >>> (start,) = shard.due()
    >>> shard.collect(start).plate.size, shard.plan(start)
    (7, None)
    >>> (plan,) = cut_plan(SlotPlan.empty(two_hats()[0]), shard=0)
    >>> shard.add(2, plan)
    >>> shard.plan(start).cells.size, shard.checkpoint().offset, shard.checkpoint(released=start).offset
    (0, 0, 3)
    """

    def __init__(self, sources: int, start: BarrierCheckpoint | None = None, accept_loss: bool = False) -> None:
        """From the beginning, or from a checkpoint. Sources that the checkpoint does not know have closed nothing.

        With `accept_loss`, a slot whose chunks are missing consists of those that are there.
        """
        self._pings = SlotBarrier(PingChunk, PingsEnd, sources, start, accept_loss)
        self._plans: dict[int, dict[int, PlanChunk]] = {}
        self._factors: dict[int, Arriving[FactorChunk]] = {}

    @property
    def through_ms(self) -> int:
        """Every source has closed all slots that end by this time."""
        return self._pings.through_ms

    @property
    def released_ms(self) -> int:
        """Every slot that ends by this time is released, as far as the shard has any of it."""
        return self._pings.clear_ms

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read."""
        return self._pings.next_offset

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset. Messages before the checkpoint, and repeats, change nothing."""
        self._pings.add(offset, message)
        # A plan of a slot that is not held came again after the slot was done, or its pings are lost: nothing waits.
        if isinstance(message, PlanChunk) and self._pings.holds(message.slot_start):
            chunks = self._plans.setdefault(message.slot_start, {})
            if any(chunk.digest != message.digest for chunk in chunks.values()):
                chunks.clear()  # chunks of two plans do not mix; the plan that is sent last arrives whole
            chunks[message.number] = message
        elif isinstance(message, FactorChunk) and self._pings.holds(message.slot_start):
            self._factors.setdefault(message.slot_start, Arriving()).add(message)

    def due(self) -> list[int]:
        """The starts of the slots that every source has closed and that were not collected yet, oldest first."""
        return self._pings.due()

    def collect(self, start: int) -> SlotPings:
        """The pings of a due slot, all sources together, once. DependencyUnavailable if some are missing."""
        return merge(self._pings.collect(start))

    def plan(self, start: int) -> SlotPlan | None:
        """The plan of a slot, once all of its chunks have arrived."""
        chunks = self._plans.get(start, {})
        if not chunks or len(chunks) < next(iter(chunks.values())).chunks:
            return None
        return _merged(tuple(chunks[number] for number in sorted(chunks)))

    def planned_after(self, start: int) -> bool:
        """Whether there is a plan, or a part of one, of a slot that starts later. Plans come in the order of slots."""
        return any(other > start for other in self._plans)

    def factors(self, start: int) -> Factors | None:
        """The factors of a slot's plates, once all of their chunks have arrived."""
        arriving = self._factors.get(start)
        chunks = None if arriving is None else arriving.whole()
        return None if chunks is None else merge_factors(chunks)

    def released(self, start: int) -> None:
        """Forget a slot: its releases are published."""
        self._pings.done(start)
        self._plans.pop(start, None)
        self._factors.pop(start, None)

    def checkpoint(self, released: int | None = None) -> BarrierCheckpoint:
        """Where to resume after a crash; with `released`, once that slot is released, too."""
        return self._pings.checkpoint(released)


_merged = lru_cache(maxsize=4)(merge_plan)
"""A slot that waits for factors is asked for its plan with every batch."""


def counts_of_shards(
    shards: int, start: BarrierCheckpoint | None = None, accept_loss: bool = False
) -> SlotBarrier[CountChunk]:
    """What the planner reads: the counts of all shards.

    >>> from udp_stream.shuffle.wire import cut_counts
    >>> from udp_stream.testing import two_hats
    >>> planner = counts_of_shards(1)
    >>> for offset, message in enumerate(cut_counts(two_hats()[0], shard=0)):
    ...     planner.add(offset, message)
    >>> [len(planner.collect(start)) for start in planner.due()]
    [1]
    """
    return SlotBarrier(CountChunk, CountsEnd, shards, start, accept_loss)


# The planner: slots from the counts of all shards, one after another, and what must come before the next one.
#
# Where plans follow from releases, a slot is planned once all that was planned before is released. Shards say so in the
# planner's log (`Released`), behind the counts that the plan follows from. So what the planner knows of earlier slots
# is the same whenever and wherever it plans, and it waits for messages, never for a clock, and blocks no shard.
# Whichever worker has the shard goes on with its own steps meanwhile.
#
# The planner's checkpoint stays before the counts of a slot until its smoothed estimates are published. So its next
# owner knows which slots to wait for by reading on from there. A shard says again what it has released whenever it is
# taken over, as its last owner may have died before it could.
#
# A shard that lost its pings, and accepts that, has nothing more to release once its sources have closed the
# slot; it says so like any other, so nothing waits for what will never come.


@dataclass(slots=True)
class _Planned:
    """A slot whose plan is made, and the shards that have to release it.

    `hats`, where norms are waited for: in how many HATs that share its clip each plate was charged. None once the
    factors are made; `answered` are the shards that have them. `asks`, where something is asked of the whole city: the
    plan. None once that is recorded.
    """

    start: int
    end_ms: int
    shards: tuple[int, ...]
    hats: Mapping[bytes, int] | None = None
    asks: SlotPlan | None = None
    is_sent: bool = False
    answered: set[int] = field(default_factory=set)


class Planner:
    """What is to be planned and, where plans follow from releases, learnt.

    >>> from udp_stream.shuffle.wire import cut_counts
    >>> from udp_stream.testing import SLOT_END, two_hats
    >>> planner = Planner(shards=1, start=None, follows=True)
    >>> for offset, message in enumerate(cut_counts(two_hats()[0], shard=0)):
    ...     planner.add(offset, message)
    >>> start, chunks = planner.due()
    >>> planner.planned(start, SLOT_END, [0])
    >>> planner.sent()
    >>> planner.released(), planner.checkpoint().offset
    (None, 0)
    >>> planner.add(2, Released(shard=0, through_ms=SLOT_END))
    >>> planner.released() == (start, SLOT_END), planner.checkpoint(done=start).offset
    (True, 3)
    """

    def __init__(
        self, shards: int, start: BarrierCheckpoint | None, accept_loss: bool = False, follows: bool = False
    ) -> None:
        """From the beginning, or from a checkpoint. `follows`: plans follow from releases."""
        self._stage: SlotStage[CountChunk] = SlotStage(counts_of_shards(shards, start, accept_loss), follows)
        self._follows = follows
        self._released_ms = [NOT_YET] * shards
        self._planned: _Planned | None = None
        self._norms: dict[int, dict[int, Arriving[NormChunk]]] = {}

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read."""
        return self._stage.next_offset

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset. Repeats, and messages before the checkpoint, change nothing."""
        self._stage.add(offset, message)
        if self._follows and isinstance(message, Released):
            # A new owner says again what its predecessor did, and may say less at first.
            self._released_ms[message.shard] = max(self._released_ms[message.shard], message.through_ms)
        elif isinstance(message, NormChunk) and self._stage.holds(message.slot_start):
            # Only of slots held: norms that come again after `learnt` would never be removed.
            self._norms.setdefault(message.slot_start, {}).setdefault(message.shard, Arriving()).add(message)

    def due(self) -> tuple[int, Sequence[CountChunk]] | None:
        """The slot to plan now, with its chunks; each slot once."""
        # One at a time: the next plan is to follow from what this one releases.
        return None if self._planned else self._stage.due()

    def planned(
        self,
        start: int,
        end_ms: int,
        shards: Sequence[int],
        hats: Mapping[bytes, int] | None = None,
        asks: SlotPlan | None = None,
    ) -> None:
        """The slot is charged, and its plan is about to be sent to these shards.

        `hats`, where norms are waited for: in how many HATs that share its clip each plate was charged. `asks`: the
        plan, if it asks something of the whole city.
        """
        self._stage.worked(start)
        if self._follows:
            self._planned = _Planned(start, end_ms, tuple(shards), hats, asks)

    def sent(self) -> None:
        """The plan of every slot that was planned is on the broker."""
        self._stage.sent()
        if self._planned:
            self._planned.is_sent = True

    def asked(self) -> tuple[SlotPlan, tuple[int, ...]] | None:
        """What to record of the whole city now, before shards are answered: the plan, and the sums over them all.

        No sums, if a shard does not ask."""
        slot, chunks = self._planned, self._all_norms()
        if slot is None or slot.asks is None or chunks is None:
            return None
        # Every chunk of a shard carries the shard's whole part, so only the first counts.
        return slot.asks, tuple(map(sum, zip(*(of_shard[0].city for of_shard in chunks), strict=False)))

    def answered(self) -> None:
        """That is recorded."""
        if self._planned:
            self._planned.asks = None

    def _all_norms(self) -> list[Sequence[NormChunk]] | None:
        """The norms of the planned slot, once all of them are there and are not answered yet.

        A shard that has released the slot without a word, as its pings were lost, is not waited for. Plates that were
        charged there are then counted in fewer HATs, and have the factor 0.
        """
        slot = self._planned
        if slot is None or slot.hats is None or not slot.is_sent:
            return None
        arriving = self._norms.get(slot.start, {})
        chunks = {shard: arriving[shard].whole() for shard in slot.shards if shard in arriving}
        # All or none: without the norms of one shard, every plate that is on others, too, would have the factor 0.
        if any(not chunks.get(shard) and self._released_ms[shard] < slot.end_ms for shard in slot.shards):
            return None
        return [of_shard for of_shard in chunks.values() if of_shard]

    def measured(self) -> tuple[int, int, PlateNorms, Mapping[bytes, int]] | None:
        """Whose norms to remember now, before shards are answered: the slot, the norms of all shards, and in how many
        HATs each plate was charged. Once all norms are there, and what the whole city was asked is recorded."""
        slot, chunks = self._planned, self._all_norms()
        if slot is None or slot.asks is not None or not slot.hats or chunks is None:
            return None
        return slot.start, slot.end_ms, merged_norms([merge_norms(of_shard) for of_shard in chunks]), slot.hats

    def remembered(self, factors: Mapping[bytes, int]) -> Iterator[FactorChunk]:
        """They are, and these are the plates' factors: what to answer each shard that sent norms."""
        slot, chunks = self._planned, self._all_norms()
        if slot is None or chunks is None:
            return
        slot.hats = None
        for of_shard in chunks:
            slot.answered.add(of_shard[0].shard)
            yield from cut_factors(factors, merge_norms(of_shard), of_shard[0])

    def answers(self) -> Iterator[FactorChunk]:
        """What to answer shards whose plates share no clip by this plan. They have the factor 0 where they share one by
        an older plan, as under other settings."""
        slot = self._planned
        if slot is None or not slot.is_sent:
            return
        if slot.hats is not None and not slot.hats and slot.asks is None:
            yield from self.remembered({})  # only the city was asked: there is nothing to remember
        elif slot.hats is None:
            for shard, arriving in self._norms.get(slot.start, {}).items():
                if shard not in slot.answered and (chunks := arriving.whole()):
                    slot.answered.add(shard)
                    yield from cut_factors({}, merge_norms(chunks), chunks[0])

    def released(self) -> tuple[int, int] | None:
        """Start and end of the slot to learn now: its plan was sent, and all of its shards have released it."""
        slot = self._planned
        if slot is None or not slot.is_sent or any(self._released_ms[shard] < slot.end_ms for shard in slot.shards):
            return None
        return slot.start, slot.end_ms

    def learnt(self, start: int) -> None:
        """The slot's smoothed estimates are published."""
        self._planned = None
        self._norms.pop(start, None)
        self._stage.done(start)

    def checkpoint(self, done: int | None = None) -> BarrierCheckpoint:
        """Where to resume after a crash; with `done`, once that slot is learnt, too."""
        return self._stage.checkpoint(done)


# The protocol of a shard, and on partition 0 of the planner: what to do next, and what may be committed. No I/O.
#
# Slot by slot, in order of time. `next` gives the first of these steps that is due; the caller does it and says so.
#
# | step | when | answer of the caller |
# | --- | --- | --- |
# | `Count` | every source has closed a slot | `counted`; its counts are sent next |
# | `Send` | something is to be sent: counts, plans, or the time through which all is counted or released | `sent` |
# | `Learn` | all shards have released what was planned, where plans follow from it | `publishing`, `learnt` |
# | `PlanSlot` | all shards have counted a slot; on partition 0 alone | `planned`; each shard is sent its share next |
# | `Measure` | the oldest counted slot has its plan; clips are shared, or the city asked | `measured`; norms are next |
# | `AskCity` | all norms are there, and the city is asked; on partition 0 | `city_asked` |
# | `Remember` | all norms are there, and what the city told; on partition 0 | `remembered`; factors are next |
# | `Release` | the oldest counted slot has its plan, and factors if it was measured | `recorded`, then `published` |
# | `Answer` | every source has sent the positions of a moment; only where queries are asked | `answering`, `answered` |
#
# The output of a step is on all replicas before a checkpoint moves past its input, and a repeated output changes
# nothing. So a crash anywhere repeats a step with the same outcome.
#
# Where plates share clips among HATs of several shards, each shard sends its norms, and the planner answers each with
# the factors of its plates once all shards that the plan went to have sent theirs, or have released the slot, and the
# ledger remembers all of them. A shard that releases has measured, too. Plates of which it has measured something else
# than the planner answered, as under other settings, get the factor 0; no other plate's factor depends on that.
#
# Where something is asked of the whole city, each shard sends its part of the sums beside its norms, and waits for the
# answer in the same way. The planner first records what the city told, so that whoever finds all HATs of a slot
# recorded finds that, too.
#
# A shard's checkpoint stays before the chunks of a slot until the slot is published, and its plan lies behind them. The
# planner's checkpoint stays before the counts until every plan is sent; where plans follow from releases, until the
# slot is learnt. Partition 0 has both. It stays before the positions of a moment until that is answered.
#
# Charging and recording are done under the fence of the partition. A worker that is refused there has lost the
# partition, and drops this object with all that is in it.


@dataclass(slots=True)
class _Slot:
    """A slot that every source has closed, and once it is counted its tables."""

    state: SlotState
    table: tuple[SlotCounts, SlotValues] | None = None
    measured: Mapping[bytes, int] | None = None  # the check of each plate whose clip is shared


class ShardProtocol:
    """One partition of the shuffle topic, while it is ours. Do what `next` says until it says nothing.

    >>> from udp_stream.shuffle.wire import cut
    >>> from udp_stream.testing import seven_pings
    >>> from udp_stream.windows.tables import tabulate
    >>> protocol = ShardProtocol(PLANNER, shards=1, sources=1, start=ShardCheckpoint.at(0))
    >>> for offset, message in enumerate(cut(seven_pings(), source=0, shards=1)):
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
    ) -> None:
        """Resume from a checkpoint. With `accept_loss`, a slot whose chunks are missing consists of those there are,
        and one whose plan will never come has a plan without HATs.

        `follows`: plans follow from releases, so a slot is planned once all that was planned before is released.
        `asks`: queries are asked. Where none were when the checkpoint was made, chunks of a moment may lie before it.
        `asked` is their digest. A moment that some source has not sent for these queries is never answered.
        """
        self._partition = partition
        self._shards = shards
        self._shard = Shard(sources, start.shard, accept_loss)
        self._planner = Planner(shards, start.planner, accept_loss, follows) if partition == PLANNER else None
        self._moments: SlotStage[PositionChunk] | None = None
        if asks:
            barrier = positions_of_sources(
                sources, start.moments or BarrierCheckpoint(start.offset), accept_loss or start.moments is None, asked
            )
            self._moments = SlotStage(barrier, is_followed=True)
        self._follows, self._accept_loss = follows, accept_loss
        self._released_sent_ms = NOT_YET  # whatever was sent before: its owner may have died before it could
        self._slots: dict[int, _Slot] = {}
        self._outbox: list[Outgoing] = []
        # No checkpoint is committed before the counts up to its closing times are sent.
        self._counts_sent_through_ms = self._shard.through_ms
        self._step: Step | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next message to read: the first that shard or planner does not know."""
        readers = (self._shard, self._planner, self._moments)
        return min(one.next_offset for one in readers if one is not None)

    @property
    def done_ms(self) -> int:
        """Every slot that ends by this time is published."""
        return self._shard.checkpoint().done_ms

    def add(self, offset: int, message: object) -> None:
        """Add the message at an offset. Messages before the checkpoint, and repeats, change nothing."""
        self._shard.add(offset, message)
        for one in (self._planner, self._moments):
            if one is not None:
                one.add(offset, message)

    def next(self) -> Step | None:
        """The first step that is due; the same one until the caller says that it was done."""
        if self._step is None:
            self._answer_others()
            # Counts go out first, as other shards wait for the plan that needs them; answers last, as no release waits
            # for one. The step is kept until it is done, so a call in between cannot start it twice.
            of_planner = self._ask_city, self._remember, self._learn, self._plan
            steps = self._count, self._send, *of_planner, self._measure, self._release, self._answer
            self._step = next((step for due in steps if (step := due()) is not None), None)
        return self._step

    def _count(self) -> Count | None:
        for start in self._shard.due()[:1]:
            self._slots[start] = _Slot(advance(SLOT_LIFE, SlotState.OPEN, "closed by all sources"))
            return Count(start, self._shard.collect(start))
        return None

    def counted(self, start: int, counts: SlotCounts, values: SlotValues) -> None:
        """The slot is counted. Its counts are sent to the planner next, unless its plan has arrived already."""
        slot, self._step = self._slots[start], None
        slot.state, slot.table = advance(SLOT_LIFE, slot.state, "counted"), (counts, values)
        # A plan that is there was made from the same counts, which an earlier owner of this partition has sent.
        if self._shard.plan(start) is None:
            self._outbox += [(PLANNER, message) for message in cut_counts(counts, self._partition)]

    def _send(self) -> Send | None:
        through, messages = self._shard.through_ms, list(self._outbox)
        if through > self._counts_sent_through_ms:
            messages.append((PLANNER, CountsEnd(self._partition, through)))
        # Only where the planner waits for it: else every slot would cost a message that is never read.
        released = max(self._released_sent_ms, self._shard.released_ms if self._follows else NOT_YET)
        if released > self._released_sent_ms:
            messages.append((PLANNER, Released(self._partition, released)))
        return Send(messages, through, released) if messages else None

    def sent(self, step: Send) -> None:
        """What this step held is on the broker."""
        self._step = None
        self._outbox.clear()
        self._counts_sent_through_ms, self._released_sent_ms = step.through_ms, step.released_ms
        if self._planner is not None:
            self._planner.sent()

    def _learn(self) -> Learn | None:
        slot = None if self._planner is None else self._planner.released()
        return None if slot is None else Learn(*slot)

    def publishing(self, step: Learn) -> ShardCheckpoint:
        """Its estimates are about to be published: with this checkpoint, which is behind the slot's counts."""
        return self._checkpoint(learnt=step.start)

    def learnt(self, step: Learn) -> None:
        """Readers have the estimates, and the checkpoint is committed. The next slot may be planned."""
        self._step = None
        if self._planner is not None:
            self._planner.learnt(step.start)

    def _plan(self) -> PlanSlot | None:
        due = None if self._planner is None else self._planner.due()
        return None if due is None else PlanSlot(*due)

    def planned(self, start: int, counts: SlotCounts, plan: SlotPlan) -> None:
        """The slot is charged. Each shard that has counted something is sent its share of the plan next, even if that
        has no HATs."""
        self._step = None
        of_plan = shard_of(plan.cells, self._shards)
        shards = sorted(set(shard_of(counts.cells, self._shards).tolist()))
        # Also a share without HATs: the shard holds the slot, and its checkpoint, until a plan says what becomes of it.
        for shard in shards:
            self._outbox += [(shard, chunk) for chunk in cut_plan(plan.for_hats(of_plan == shard), shard)]
        if self._planner is not None:
            hats = plan.hats_in_balls(counts) if plan.is_measured else None
            self._planner.planned(start, counts.end_ms, shards, hats, None if plan.city is None else plan)

    def _answer_others(self) -> None:
        """Shards that wait for factors though their plates share no clip by the planner's plan are answered at once."""
        if self._planner is not None:
            self._outbox += [(chunk.shard, chunk) for chunk in self._planner.answers()]

    def _measure(self) -> Measure | None:
        for start, slot in sorted(self._slots.items())[:1]:
            plan = self._shard.plan(start)
            if plan is not None and plan.is_measured and slot.table is not None and slot.measured is None:
                return Measure(start, *slot.table, plan)
        return None

    def measured(self, step: Measure, norms: PlateNorms, city: tuple[int, ...] = ()) -> None:
        """The slot's plates are measured. Their norms, and their part of the sums over the whole city, are sent to the
        planner next, unless it has answered already."""
        chunks = list(cut_norms(norms, step.start, step.counts.end_ms, self._partition, city=city))
        self._step = None
        self._slots[step.start].measured = dict(zip(norms.plates, norms.checks.tolist(), strict=True))
        if self._shard.factors(step.start) is None:
            self._outbox += [(PLANNER, chunk) for chunk in chunks]

    def _ask_city(self) -> AskCity | None:
        asked = None if self._planner is None else self._planner.asked()
        return None if asked is None else AskCity(*asked)

    def city_asked(self) -> None:
        """What the whole city was asked is recorded: the shards may draw."""
        self._step = None
        if self._planner is not None:
            self._planner.answered()

    def _remember(self) -> Remember | None:
        measured = None if self._planner is None else self._planner.measured()
        return None if measured is None else Remember(*measured)

    def remembered(self, factors: Mapping[bytes, int]) -> None:
        """The ledger remembers the norms, and these factors hold. Each shard is sent those of its plates next."""
        self._step = None
        if self._planner is not None:
            self._outbox += [(chunk.shard, chunk) for chunk in self._planner.remembered(factors)]

    def _release(self) -> Release | None:
        # The oldest only, whichever plan came first: a checkpoint says through which time all slots are done.
        for start, slot in sorted(self._slots.items())[:1]:
            plan, factors = self._shard.plan(start), self._shard.factors(start)
            # The planner has lost our counts of this slot, or it had planned it before a later one.
            if plan is None and self._accept_loss and slot.table is not None and self._shard.planned_after(start):
                plan = SlotPlan.empty(slot.table[0])
            if plan is not None and slot.table is not None and (factors is not None or not plan.is_measured):
                slot.state = advance(SLOT_LIFE, slot.state, "plan complete")
                return Release(start, *slot.table, plan, None if factors is None else factors.of(slot.measured or {}))
        return None

    def recorded(self, start: int) -> ShardCheckpoint:
        """The slot's releases are recorded: publish them together with this checkpoint, which is behind the slot."""
        slot = self._slots[start]
        slot.state = advance(SLOT_LIFE, slot.state, "recorded")
        return self._checkpoint(released=start)

    def published(self, start: int) -> None:
        """Readers have the slot, and its checkpoint is committed."""
        self._step = None
        advance(SLOT_LIFE, self._slots.pop(start).state, "published")
        self._shard.released(start)

    def _answer(self) -> Answer | None:
        due = None if self._moments is None else self._moments.due()
        return None if due is None else Answer(*due)

    def answering(self, step: Answer) -> ShardCheckpoint:
        """Its answers are about to be published: with this checkpoint, which is behind the moment's positions."""
        return self._checkpoint(answered=step.time_ms)

    def answered(self, step: Answer) -> None:
        """Readers have the answers, and the checkpoint is committed."""
        self._step = None
        if self._moments is not None:
            self._moments.done(step.time_ms)

    @property
    def answered_ms(self) -> int:
        """Every moment up to this time that this shard has had is answered and published."""
        return NOT_YET if self._moments is None else self._moments.checkpoint().done_ms

    @property
    def may_commit(self) -> bool:
        """Whether a commit of `checkpoint` is safe: everything that follows from what was read has been sent, and no
        slot is being published, which commits a checkpoint of its own."""
        # A slot that is being published brings a checkpoint of its own, in the transaction with its records. A commit
        # beside it could move back.
        is_quiet = all(slot.state in (SlotState.COUNTED, SlotState.PLANNED) for slot in self._slots.values())
        return is_quiet and not self._shard.due() and self._send() is None

    def checkpoint(self) -> ShardCheckpoint:
        """Where to resume after a crash; commit it only while `may_commit`."""
        return self._checkpoint()

    def _checkpoint(
        self, released: int | None = None, learnt: int | None = None, answered: int | None = None
    ) -> ShardCheckpoint:
        planner = None if self._planner is None else self._planner.checkpoint(learnt)
        moments = None if self._moments is None else self._moments.checkpoint(answered)
        return ShardCheckpoint(self._shard.checkpoint(released), planner, moments)
