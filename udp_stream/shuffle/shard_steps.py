"""The steps of a shard's protocol (`shard_protocol.py`), as values: what is due, with all that is needed to do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.planning.slot_plan import PlanChunk, SlotPlan
from udp_stream.shuffle.barrier import NOT_YET
from udp_stream.shuffle.count_chunks import CountChunk, CountsEnd, Released
from udp_stream.shuffle.norm_chunks import FactorChunk, NormChunk
from udp_stream.shuffle.position_chunks import PositionChunk
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues

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

    >>> from udp_stream.shuffle.count_chunks import cut_counts, merge_counts
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

    >>> from udp_stream.shuffle.position_chunks import cut_moment, merge_moment
    >>> from udp_stream.testing import a_moment
    >>> chunk, _ = cut_moment(a_moment(), source=0, shard=0)
    >>> len(merge_moment(Answer(chunk.slot_start, [chunk]).chunks).plates)
    8
    """

    time_ms: int
    chunks: Sequence[PositionChunk]


Step: TypeAlias = Count | Send | Learn | PlanSlot | Measure | AskCity | Remember | Release | Answer
