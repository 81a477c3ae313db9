"""A shard: the slots of some cells, from the chunks of their pings to the plan on which they are released.

Sources send chunks. Once every source has closed a slot, the shard counts it, sends the counts to the planner, and
holds the slot until its plan arrives. The plan is written to the shard's own log, behind the chunks it follows from, so
reading from the checkpoint finds both again.

The planner is a `SlotBarrier` over the counts of all shards (`counts_of_shards`), in the log of partition 0.
"""

from __future__ import annotations

from functools import lru_cache

from udp_stream.planning.slot_plan import PlanChunk, SlotPlan, merge_plan
from udp_stream.shuffle.barrier import BarrierCheckpoint, SlotBarrier
from udp_stream.shuffle.count_chunks import CountChunk, CountsEnd
from udp_stream.shuffle.norm_chunks import Arriving, FactorChunk, Factors, merge_factors
from udp_stream.shuffle.ping_chunks import PingChunk, PingsEnd, merge
from udp_stream.windows.tables import SlotPings


class Shard:
    """The slots of one shard that are not released yet.

    >>> from udp_stream.planning.slot_plan import cut_plan
    >>> from udp_stream.shuffle.ping_chunks import cut
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

    >>> from udp_stream.shuffle.count_chunks import cut_counts
    >>> from udp_stream.testing import two_hats
    >>> planner = counts_of_shards(1)
    >>> for offset, message in enumerate(cut_counts(two_hats()[0], shard=0)):
    ...     planner.add(offset, message)
    >>> [len(planner.collect(start)) for start in planner.due()]
    [1]
    """
    return SlotBarrier(CountChunk, CountsEnd, shards, start, accept_loss)
