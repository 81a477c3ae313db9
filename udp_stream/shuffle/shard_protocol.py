"""The protocol of a shard, and on partition 0 of the planner: what to do next, and what may be committed. No I/O.

Slot by slot, in order of time. `next` gives the first of these steps that is due; the caller does it and says so.

| step | when | answer of the caller |
| --- | --- | --- |
| `Count` | every source has closed a slot | `counted`; its counts are sent next |
| `Send` | something is to be sent: counts, plans, or the time through which all is counted or released | `sent` |
| `Learn` | all shards have released what was planned; only where plans follow from releases | `publishing`, `learnt` |
| `PlanSlot` | all shards have counted a slot; on partition 0 alone | `planned`; each shard is sent its share next |
| `Measure` | the oldest counted slot has its plan; clips are shared, or the city asked | `measured`; norms are next |
| `AskCity` | all norms are there, and the city is asked; on partition 0 | `city_asked` |
| `Remember` | all norms are there, and what the city told; on partition 0 | `remembered`; factors are next |
| `Release` | the oldest counted slot has its plan, and factors if it was measured | `recorded`, then `published` |
| `Answer` | every source has sent the positions of a moment; only where queries are asked | `answering`, `answered` |

The output of a step is on all replicas before a checkpoint moves past its input, and a repeated output changes nothing.
So a crash anywhere repeats a step with the same outcome.

Where plates share clips among HATs of several shards, each shard sends its norms, and the planner answers each with the
factors of its plates once all shards that the plan went to have sent theirs, or have released the slot, and the ledger
remembers all of them. A shard that releases has measured, too. Plates of which it has measured something else than the
planner answered, as under other settings, get the factor 0; no other plate's factor depends on that.

Where something is asked of the whole city, each shard sends its part of the sums beside its norms, and waits for the
answer in the same way. The planner first records what the city told, so that whoever finds all HATs of a slot recorded
finds that, too.

A shard's checkpoint stays before the chunks of a slot until the slot is published, and its plan lies behind them. The
planner's checkpoint stays before the counts until every plan is sent; where plans follow from releases, until the slot
is learnt (`planner.py`). Partition 0 has both. It stays before the positions of a moment until that is answered.

Charging and recording are done under the fence of the partition. A worker that is refused there has lost the partition,
and drops this object with all that is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from udp_stream.lifecycle import SLOT_LIFE, SlotState, advance
from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.planning.slot_plan import SlotPlan, cut_plan
from udp_stream.shuffle.barrier import NOT_YET, BarrierCheckpoint
from udp_stream.shuffle.count_chunks import CountsEnd, Released, cut_counts
from udp_stream.shuffle.norm_chunks import cut_norms
from udp_stream.shuffle.ping_chunks import shard_of
from udp_stream.shuffle.planner import Planner
from udp_stream.shuffle.position_chunks import PositionChunk, positions_of_sources
from udp_stream.shuffle.shard import Shard
from udp_stream.shuffle.shard_checkpoint import ShardCheckpoint
from udp_stream.shuffle.shard_steps import (
    PLANNER,
    Answer,
    AskCity,
    Count,
    Learn,
    Measure,
    Outgoing,
    PlanSlot,
    Release,
    Remember,
    Send,
    Step,
)
from udp_stream.shuffle.stage import SlotStage
from udp_stream.windows.tables import SlotCounts, SlotValues


@dataclass(slots=True)
class _Slot:
    """A slot that every source has closed, and once it is counted its tables."""

    state: SlotState
    table: tuple[SlotCounts, SlotValues] | None = None
    measured: Mapping[bytes, int] | None = None  # the check of each plate whose clip is shared


class ShardProtocol:
    """One partition of the shuffle topic, while it is ours. Do what `next` says until it says nothing.

    >>> from udp_stream.shuffle.ping_chunks import cut
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
