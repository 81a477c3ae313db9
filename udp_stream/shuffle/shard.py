"""A shard: the slots of some cells, from the parts of their pings to the plan on which they are released.

Sources send parts; once all of them have closed a slot the shard counts it and tells the planner, and holds it until
its plan has come back. The plan is written into the shard's own log, behind the parts that it was made from: whoever
reads from the frontier on finds both again.

The planner is a `Gathering` of the tallies of all shards (`counts_of_shards`), in the log of partition 0.
"""

from __future__ import annotations

from udp_stream.planning.slot_plan import PlanPiece, SlotPlan, merge_plan
from udp_stream.shuffle.barrier import Gathering, GatheringFrontier
from udp_stream.shuffle.count_chunks import Tallied, Tally
from udp_stream.shuffle.ping_chunks import Marker, Part, merge
from udp_stream.windows.slot_tables import SlotPings


class Shard:
    """The slots of one shard that are not released yet."""

    def __init__(self, sources: int, start: GatheringFrontier | None = None, accept_loss: bool = False) -> None:
        """From the beginning, or from a frontier; sources that it does not know have closed nothing. `accept_loss`: a
        slot of which parts are missing is what is there."""
        self._parts = Gathering(Part, Marker, sources, start, accept_loss)
        self._plans: dict[int, dict[int, PlanPiece]] = {}

    @property
    def through_ms(self) -> int:
        """Up to when every source has closed its slots."""
        return self._parts.through_ms

    @property
    def next_offset(self) -> int:
        """Up to where the log of parts is read."""
        return self._parts.next_offset

    def take(self, offset: int, message: object) -> None:
        """Take in the message at an offset; those before the frontier, and repeats, change nothing."""
        self._parts.take(offset, message)
        if isinstance(message, PlanPiece) and self._parts.holds(message.slot_start):
            pieces = self._plans.setdefault(message.slot_start, {})
            if any(piece.digest != message.digest for piece in pieces.values()):
                pieces.clear()  # pieces of two plans make none: the one that is sent last comes whole
            pieces[message.number] = message

    def due(self) -> list[int]:
        """The starts of the slots that every source has closed and that were not gathered yet, oldest first."""
        return self._parts.due()

    def gather(self, start: int) -> SlotPings:
        """The pings of a due slot, all sources together, once. UdpStreamError if parts are missing."""
        return merge(self._parts.gather(start))

    def plan(self, start: int) -> SlotPlan | None:
        """The plan of a slot, if all of it has come."""
        pieces = self._plans.get(start, {})
        if not pieces or len(pieces) < next(iter(pieces.values())).pieces:
            return None
        return merge_plan([pieces[number] for number in sorted(pieces)])

    def released(self, start: int) -> None:
        """Forget a slot: its releases have reached their readers."""
        self._parts.done(start)
        self._plans.pop(start, None)

    def frontier(self) -> GatheringFrontier:
        """Where to go on after losing everything."""
        return self._parts.frontier()


def counts_of_shards(
    shards: int, start: GatheringFrontier | None = None, accept_loss: bool = False
) -> Gathering[Tally]:
    """What the planner reads: the tallies of all shards."""
    return Gathering(Tally, Tallied, shards, start, accept_loss)
