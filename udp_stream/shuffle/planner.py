"""The planner: slots from the counts of all shards, one after another, and what must come before the next one.

Where plans follow from releases, a slot is planned once all that was planned before is released. Shards say so in the
planner's log (`Released`), behind the counts that the plan follows from. So what the planner knows of earlier slots is
the same whenever and wherever it plans, and it waits for messages, never for a clock, and blocks no shard. Whichever
worker has the shard goes on with its own steps meanwhile.

The planner's checkpoint stays before the counts of a slot until its smoothed estimates are published. So its next owner
knows which slots to wait for by reading on from there. A shard says again what it has released whenever it is
taken over, as its last owner may have died before it could.

A shard that lost its pings, and accepts that, has nothing more to release once its sources have closed the
slot; it says so like any other, so nothing waits for what will never come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from udp_stream.mechanisms.ball import PlateNorms, merged_norms
from udp_stream.planning.slot_plan import SlotPlan
from udp_stream.shuffle.barrier import NOT_YET, BarrierCheckpoint
from udp_stream.shuffle.count_chunks import CountChunk, Released
from udp_stream.shuffle.norm_chunks import Arriving, FactorChunk, NormChunk, cut_factors, merge_norms
from udp_stream.shuffle.shard import counts_of_shards
from udp_stream.shuffle.stage import SlotStage


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

    >>> from udp_stream.shuffle.count_chunks import cut_counts
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
