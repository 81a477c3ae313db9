"""Draw a slot: the half of the road that sees speeds. It takes some or all HATs of a slot, and the slot's plan.

For each HAT it plans for the plates that were charged, *then* draws noise, *then* records. The ledger keeps the first
record of a HAT: a second draw is dropped unseen. Recorded HATs are looked up first; they draw nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Admission, Entropy, Ledger, Mark
from udp_stream.mechanisms.accuracy import NOBODY
from udp_stream.mechanisms.ball import factors_for
from udp_stream.planning.slot_plan import SlotPlan
from udp_stream.release.context import ReleaseContext
from udp_stream.release.decide import decide, unplanned
from udp_stream.release.estimate import HatEstimate, estimate_hats
from udp_stream.release.once import draw_once
from udp_stream.release.outcome import NO_ROWS, HatOutcome, hats_of, ids_of
from udp_stream.release.record import SCHEMA, Counts, Hat, Release, encode
from udp_stream.release.statistic_records import forecast_record, privacy_record, statistics
from udp_stream.windows.tables import SlotCounts, SlotValues, cell_center


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

    `factors` are those of the clips that plates share among their HATs (`balls.py`), once the ledger remembers what
    they follow from; ValueError if the plan has such HATs and there are none. The ledger's mark is raised last, so that
    whatever is published, some mark knows.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.charge import plan_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> plan = plan_slot(counts, context, ledger)
    >>> drawn = record_slot(counts, values, plan, context, ledger)
    >>> again = record_slot(counts, values, plan, context, ledger)
    >>> len(drawn.made), len(again.made), drawn.payloads == again.payloads
    (2, 0, True)
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
        samples = [values.of_admitted(hat.rows, hat.admitted) for hat in hats[run]]
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
