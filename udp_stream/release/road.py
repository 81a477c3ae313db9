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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Admission, Entropy, Ledger, Mark
from udp_stream.ledger.rules import cut
from udp_stream.mechanisms.accuracy import NOBODY
from udp_stream.mechanisms.ball import PlateNorms, check_of, factors_for, norms_of, room_and_rounding, summed_norms
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.charge import ReleaseContext, decide, draw_once, plan_slot, record_city, slot_sums, unplanned
from udp_stream.release.estimate import HatEstimate, estimate_hats
from udp_stream.release.hats import NO_ROWS, HatOutcome, hats_of, ids_of
from udp_stream.release.record import (
    SCHEMA,
    Counts,
    Hat,
    Release,
    clips_id,
    encode,
    forecast_record,
    privacy_record,
    statistics,
)
from udp_stream.windows.tables import SlotCounts, SlotValues, cell_center

HASH_BYTES = 8
"""Of a plate and its lengths, in what the ledger remembers of a slot."""


def slot_factors(
    counts: SlotCounts, values: SlotValues, plan: SlotPlan, context: ReleaseContext, ledger: Ledger
) -> Mapping[bytes, int] | None:
    """The factors of all plates, from the whole slot; None where no HAT of the plan shares a clip."""
    if not plan.in_balls:
        return None
    norms, expected = slot_norms(counts, values, plan, context.policy), plan.hats_in_balls(counts)
    return factors_once(norms, expected, (counts.start_ms, counts.end_ms), context, ledger)


def factors_once(
    norms: PlateNorms, expected: Mapping[bytes, int], slot: tuple[int, int], context: ReleaseContext, ledger: Ledger
) -> dict[bytes, int]:
    """Each plate's factor in the slot (start and end in Unix ms), from the norms of all of it; 0 for a plate whose
    lengths are not those that the ledger remembers, or whose HATs are not as many as `expected`.
    """
    if not expected:
        return {}
    start, end = slot
    name, policy = clips_id(start // 1000, (end - start) // 1000), context.policy
    # A key of this slot's own, so that equal lengths have other hashes in another slot.
    key = context.derive_key(name)
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
    """The norms of the plates that were charged in these HATs: of a whole slot, or of a shard's part of it. Secret."""
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
        norm, cell = norms_of(around, clamped.samples_of(hat.rows, hat.admitted)), int(counts.cells[hat.number])
        each = zip(room.tolist(), rounding.tolist(), norm.tolist(), strict=True)
        checks = np.array([check_of(cell, *of_plate) for of_plate in each], np.int64)
        parts.append(np.stack([np.zeros_like(norm), room, rounding, norm, checks]))
    norms = summed_norms(plates, np.concatenate(rows), np.concatenate(parts, axis=1))
    # Charged is what counts: a plate that was charged in a HAT and stays out of it by now has nothing to add there.
    return replace(norms, hats=np.array([hats_in[plate] for plate in plates], np.int64))


# Draw a slot: the half of the road that sees speeds. It takes some or all HATs of a slot, and the slot's plan.
#
# For each HAT it plans for the plates that were charged, *then* draws noise, *then* records. The ledger keeps the first
# record of a HAT: a second draw is dropped unseen. Recorded HATs are looked up first; they draw nothing.


@dataclass(frozen=True, slots=True)
class RecordedSlot:
    """HATs that are recorded, by cell, and the ledger's mark, which knows them; None where there are no HATs.

    `made` are the ids of those that this call recorded; the others were there before.

    >>> from udp_stream.testing import released_slot
    >>> slot = released_slot()
    >>> list(slot.payloads), len(slot.made), slot.mark.recorded
    (['8742d98b6ffffff-1641009600-3600', '8742d9d4cffffff-1641009600-3600'], 2, 2)
    """

    hats: tuple[HatOutcome, ...]
    made: frozenset[str]
    mark: Mark | None

    @property
    def payloads(self) -> dict[str, bytes]:
        """What readers are to have, by release id."""
        return {hat.release_id: hat.payload for hat in self.hats if hat.payload is not None}

    def published(self, ledger: Ledger) -> RecordedSlot:
        """Readers have them: inform the ledger."""
        ledger.published(ids_of(self.hats))
        return replace(self, hats=tuple(hat.published() for hat in self.hats))


def record_slot(
    counts: SlotCounts,
    values: SlotValues,
    plan: SlotPlan,
    context: ReleaseContext,
    ledger: Ledger,
    factors: Mapping[bytes, int] | None = None,
) -> RecordedSlot:
    """Draw and record these HATs on their plan. A HAT that the plan lacks, or has with other rows, is withheld.

    `factors` are those of the clips that plates share among their HATs (`road.py`), once the ledger remembers what
    they follow from; ValueError if the plan has such HATs and there are none. The ledger's mark is raised last, so that
    whatever is published, some mark knows.
    """
    hats = hats_of(counts)

    def draw(todo: Sequence[int]) -> list[bytes]:
        new = decide([hats[i] for i in todo], counts, plan, context.policy)
        for i, decided in zip(todo, new, strict=True):
            hats[i] = decided
        _admit_unplanned(new, counts, context, ledger)
        return _draw(new, counts, values, context, factors)

    drawn = draw_once(ledger, ids_of(hats), draw)
    done = tuple(hat.recorded(payload) for hat, payload in zip(hats, drawn.payloads, strict=True))
    return RecordedSlot(done, drawn.made, ledger.mark(_witness(done)) if done else None)


def _witness(hats: Sequence[HatOutcome]) -> str:
    """The record that tells this ledger from any other: the longest one has noise in it, if any of them has."""
    return max(hats, key=lambda hat: len(hat.payload or b"")).release_id


def _admit_unplanned(hats: Sequence[HatOutcome], counts: SlotCounts, context: ReleaseContext, ledger: Ledger) -> None:
    """What is recorded must have been admitted, also where no plate is."""
    terms, min_plates = msgspec.json.encode(unplanned(context.policy)), context.policy.min_plates
    admissions = [
        Admission(hat.release_id, NO_ROWS, NO_ROWS, min_plates, terms)
        for hat in hats
        if hat.terms.withheld == "unplanned"
    ]
    if admissions:
        context.before_charge()
        period = context.calendar.slot_in_period(counts.start_ms).period
        ledger.admit(period, context.policy.budget_nano, counts.plates, admissions)


def _draw(
    hats: Sequence[HatOutcome],
    counts: SlotCounts,
    values: SlotValues,
    context: ReleaseContext,
    factors: Mapping[bytes, int] | None,
) -> list[bytes]:
    """The records of these HATs, with fresh noise."""
    # Speeds were clamped when they were read; if U has been lowered since, sensitivities hold for the lower one only.
    clamped = values.clamped(context.policy.max_speed)
    drawn = [hat for hat in hats if hat.plan is not None]
    estimates = _estimate(drawn, clamped, context.entropy, [_factors(hat, counts, factors) for hat in drawn])
    common = _common(counts, context)
    return [encode(_record(hat, counts, estimates.get(hat.number), common)) for hat in hats]


def _factors(hat: HatOutcome, counts: SlotCounts, factors: Mapping[bytes, int] | None) -> NDArray[np.int64] | None:
    """Those of the plates that contribute to the HAT."""
    if factors is None or not hat.terms.in_ball:
        return None
    return factors_for(factors, [counts.plates[i] for i in counts.plate[hat.rows][hat.admitted].tolist()])


def _estimate(
    hats: Sequence[HatOutcome],
    values: SlotValues,
    entropy: Entropy,
    factors: Sequence[NDArray[np.int64] | None],
) -> Mapping[int, HatEstimate]:
    """Estimates by the numbers of the HATs, all of which have plans."""
    estimates: dict[int, HatEstimate] = {}
    for run, bits in entropy.streams(ids_of(hats)):
        plans = [hat.plan for hat in hats[run] if hat.plan is not None]
        samples = [values.samples_of(hat.rows, hat.admitted) for hat in hats[run]]
        estimates |= zip(
            (hat.number for hat in hats[run]), estimate_hats(plans, samples, bits, factors[run]), strict=True
        )
    return estimates


@dataclass(frozen=True, slots=True)
class _Common:
    """What all records of a slot say alike."""

    context: ReleaseContext
    fingerprint: str
    slot_start: str
    slot_end: str


def _common(counts: SlotCounts, context: ReleaseContext) -> _Common:
    iso = context.calendar.slots.iso
    return _Common(context, context.policy.fingerprint(), iso(counts.start_ms), iso(counts.end_ms))


def _record(hat: HatOutcome, counts: SlotCounts, estimate: HatEstimate | None, common: _Common) -> Release:
    context, by_plate, admitted = common.context, counts.count[hat.rows], hat.admitted
    contributed = int(np.count_nonzero(admitted))
    left_out = NOBODY if contributed == admitted.size else by_plate[~admitted]
    mean, variance, cdf = statistics(hat.plan, estimate, left_out)
    used, forecast = 0 if hat.plan is None else hat.plan.used_samples, forecast_record(hat.terms, hat.plan, estimate)
    plates, pings = int(by_plate.size), int(by_plate.sum())
    shown = context.policy.counts_released == "all"
    return Release(
        schema=SCHEMA,
        release_id=hat.release_id,
        status=hat.status,
        hat=Hat(
            cell=hat.cell,
            resolution=context.policy.resolution,
            center=cell_center(int(counts.cells[hat.number])),
            slot_start=common.slot_start,
            slot_end=common.slot_end,
        ),
        mean=mean,
        variance=variance,
        cdf=cdf,
        counts=Counts(plates, pings, contributed, used) if shown else None,
        privacy=privacy_record(context.policy, hat.terms, hat.charge_nano, context.caveats),
        policy=common.fingerprint,
        software=context.software,
        trial=context.trial,
        forecast=forecast,
    )


# The road from a closed slot to published releases. Its order is the guarantee.
#
# 1. *Charge* (`charge.py`). It sees the counts of the whole slot, and no speed: price every HAT, then charge its
#    plates.
# 2. *Draw* (`road.py`). What the whole city is asked is drawn and recorded first (`charge.py`). Where plates share
#    a clip among their HATs, the ledger remembers their lengths, and they are scaled into it (`road.py`). Draw noise
#    for the plates that were charged, then record. The ledger keeps the first record of a HAT; a second draw is dropped
#    unseen.
# 3. *Publish* what the ledger holds, once its high-water mark is raised; then inform the ledger.
#
# A crash between any two steps loses nothing and repeats nothing: the ledger remembers terms, verdicts and records, so
# that the next run comes to the same bytes.
#
# The embedded runtime takes the whole road at once, here. On Kafka one planner charges for many shards, and each shard
# draws and publishes its own cells (`streams/shards.py`).


def release_slot(
    counts: SlotCounts,
    values: SlotValues,
    context: ReleaseContext,
    ledger: Ledger,
    publish: Callable[[RecordedSlot], None],
) -> RecordedSlot:
    """Release every HAT of a closed slot: `publish` has handed them to their readers when it returns."""
    plan = plan_slot(counts, context, ledger)
    record_city(context.city, slot_sums(context.city, counts, values, plan), plan, context.entropy, ledger)
    factors = slot_factors(counts, values, plan, context, ledger)
    recorded = record_slot(counts, values, plan, context, ledger, factors)
    publish(recorded)
    return recorded.published(ledger)
