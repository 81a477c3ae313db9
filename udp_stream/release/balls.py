"""The clips that plates share among their HATs of a slot: each plate's norm, and the factor that it is scaled by.

Where all of a slot is in one place, `slot_clips` has the factors. On Kafka a plate's HATs lie on several shards: each
sends `slot_norms` of its own, and the planner has the factors of their sums. Both come to the same integers, as sums
of integers have no order. Norms follow from speeds, plan and counts alone, so a worker that computes them again finds
the same. `mechanisms/ball.py` has the guarantee.
"""

from __future__ import annotations

import numpy as np

from udp_stream.mechanisms.ball import PlateNorms, SharedClips, norms_of, room_and_rounding, sums
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import SlotPlan
from udp_stream.release.decide import decide
from udp_stream.release.outcome import hats_of
from udp_stream.windows.tables import SlotCounts, SlotValues


def slot_clips(counts: SlotCounts, values: SlotValues, plan: SlotPlan, policy: Policy) -> SharedClips | None:
    """The factors of all plates, from the whole slot; None where no HAT of the plan shares a clip.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.charge import plan_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context = two_hats(), a_context()
    >>> slot_clips(counts, values, plan_slot(counts, context, MemoryLedger()), context.policy) is None
    True
    """
    return slot_norms(counts, values, plan, policy).clips(plan.hats_in_balls(counts)) if plan.in_balls else None


def slot_norms(counts: SlotCounts, values: SlotValues, plan: SlotPlan, policy: Policy) -> PlateNorms:
    """The norms of the plates that were charged in these HATs: of a whole slot, or of a shard's part of it. Secret.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.charge import plan_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context = two_hats(), a_context()
    >>> slot_norms(counts, values, plan_slot(counts, context, MemoryLedger()), context.policy).plates
    ()
    """
    hats_in = plan.hats_in_balls(counts)
    # Sorted, as the digest that the ledger remembers goes over them in their order.
    plates = tuple(sorted(hats_in))
    number = {plate: i for i, plate in enumerate(plates)}
    # Each list begins with an empty array: numpy cannot join none.
    clamped, rows, parts = values.clamped(policy.max_speed), [np.zeros(0, np.int64)], [np.zeros((3, 0), np.int64)]
    for hat in decide(hats_of(counts), counts, plan, policy):
        around = None if hat.plan is None else hat.plan.around
        if around is None or not around.around.width.ball:
            continue
        of_hat = counts.plate[hat.rows][hat.admitted].tolist()
        rows.append(np.array([number[counts.plates[plate]] for plate in of_hat]))
        norm = norms_of(around, clamped.of_admitted(hat.rows, hat.admitted))
        parts.append(np.stack([*room_and_rounding(around), norm]))
    all_rows, columns = np.concatenate(rows), np.concatenate(parts, axis=1)
    hats = np.array([hats_in[plate] for plate in plates], np.int64)
    return PlateNorms(plates, hats, *(sums(all_rows, column, len(plates)) for column in columns))
