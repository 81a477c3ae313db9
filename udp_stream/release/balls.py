"""The clips that plates share among their HATs of a slot: each plate's norm, and the factor that it is scaled by.

Where all of a slot is in one place, `slot_factors` has the factors. On Kafka a plate's HATs lie on several shards: each
sends `slot_norms` of its own, and the planner has the factors of their sums. Both come to the same integers, as sums
of integers have no order. Norms follow from speeds, plan and counts alone, so a worker that computes them again finds
the same. `mechanisms/ball.py` has the guarantee.

HATs of a slot may be drawn by several runs, the first of which died. A shared clip holds for HATs of the same lengths,
so before any factor is used the ledger remembers all plates' lengths (`factors_once`): as the terms of an admission
that charges nobody, eight bytes a plate. They are a set of hashes with the plates' key, each of a plate and its lengths
HAT by HAT: neither which plate a hash belongs to nor what it is a hash of can be told without the key. A plate whose
hash is not in the set (other speeds, another U, other HATs) gets the factor 0, and moves nothing; other plates keep
theirs. The hash of other lengths is in the set by chance at most n times in 2**64, of n plates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from udp_stream.ledger.packing import cut
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.mechanisms.ball import PlateNorms, check_of, norms_of, room_and_rounding, summed_norms
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import SlotPlan
from udp_stream.release.context import ReleaseContext
from udp_stream.release.decide import decide
from udp_stream.release.outcome import NO_ROWS, hats_of
from udp_stream.release.record import clips_id
from udp_stream.windows.tables import SlotCounts, SlotValues

HASH_BYTES = 8
"""Of a plate and its lengths, in what the ledger remembers of a slot."""


def slot_factors(
    counts: SlotCounts, values: SlotValues, plan: SlotPlan, context: ReleaseContext, ledger: Ledger
) -> Mapping[bytes, int] | None:
    """The factors of all plates, from the whole slot; None where no HAT of the plan shares a clip.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.charge import plan_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> slot_factors(counts, values, plan_slot(counts, context, ledger), context, ledger) is None
    True
    """
    if not plan.in_balls:
        return None
    norms, expected = slot_norms(counts, values, plan, context.policy), plan.hats_in_balls(counts)
    return factors_once(norms, expected, (counts.start_ms, counts.end_ms), context, ledger)


def factors_once(
    norms: PlateNorms, expected: Mapping[bytes, int], slot: tuple[int, int], context: ReleaseContext, ledger: Ledger
) -> dict[bytes, int]:
    """Each plate's factor in the slot (start and end in Unix ms), from the norms of all of it; 0 for a plate whose
    lengths are not those that the ledger remembers, or whose HATs are not as many as `expected`.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context
    >>> ledger, near, far = MemoryLedger(), [1, 400, 0, 81, 7], [1, 400, 0, 100, 8]
    >>> for lengths in ([near, near], [near, far]):
    ...     norms = PlateNorms((b"a", b"b"), *np.array(lengths).T)
    ...     factors_once(norms, {b"a": 1, b"b": 1}, (0, 3_600_000), a_context(), ledger)
    {b'a': 1048576, b'b': 1048576}
    {b'a': 1048576, b'b': 0}
    """
    if not expected:
        return {}
    start, end = slot
    name, policy = clips_id(start // 1000, (end - start) // 1000), context.policy
    # A key of this slot's own, so that equal lengths have other hashes in another slot.
    key = context.keyed(name)
    hashes = {
        plate: blake2b(plate + check.to_bytes(8, "little", signed=True), key=key, digest_size=HASH_BYTES).digest()
        for plate, hats, check in zip(norms.plates, norms.hats.tolist(), norms.checks.tolist(), strict=True)
        if expected.get(plate) == hats
    }
    asked = Admission(name, NO_ROWS, NO_ROWS, 0, b"".join(sorted(hashes.values())))
    (verdict,) = ledger.admit(context.calendar.slot_in_period(start).period, policy.budget_nano, (), [asked])
    held = set(cut(verdict.terms, len(verdict.terms) // HASH_BYTES))
    factors = norms.factors(expected)
    return {plate: factor if hashes.get(plate) in held else 0 for plate, factor in factors.items()}


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
    plates = tuple(sorted(hats_in))
    number = {plate: i for i, plate in enumerate(plates)}
    # Each list begins with an empty array: numpy cannot join none.
    clamped, rows, parts = values.clamped(policy.max_speed), [np.zeros(0, np.int64)], [np.zeros((5, 0), np.int64)]
    for hat in decide(hats_of(counts), counts, plan, policy):
        around = None if hat.plan is None else hat.plan.around
        if around is None or not around.around.width.ball:
            continue
        of_hat = counts.plate[hat.rows][hat.admitted].tolist()
        rows.append(np.array([number[counts.plates[plate]] for plate in of_hat]))
        room, rounding = room_and_rounding(around)
        norm, cell = norms_of(around, clamped.of_admitted(hat.rows, hat.admitted)), int(counts.cells[hat.number])
        each = zip(room.tolist(), rounding.tolist(), norm.tolist(), strict=True)
        checks = np.array([check_of(cell, *of_plate) for of_plate in each], np.int64)
        parts.append(np.stack([np.zeros_like(norm), room, rounding, norm, checks]))
    norms = summed_norms(plates, np.concatenate(rows), np.concatenate(parts, axis=1))
    # Charged is what counts: a plate that was charged in a HAT and stays out of it by now has nothing to add there.
    return replace(norms, hats=np.array([hats_in[plate] for plate in plates], np.int64))
