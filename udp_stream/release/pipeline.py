"""The steps of a slot from its plan to its records under "swap-values": measure, draw, record,
mark.

A crash between any two steps loses nothing and repeats nothing: the ledger keeps the first terms,
the first verdict and the first record of an id, so the next run comes to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np

from udp_stream.base.arrays import NO_INTEGERS, Integers
from udp_stream.ledger.ids import CLIPS, id_of
from udp_stream.ledger.port import Admission, Bits, Ledger, LedgerView, Mark
from udp_stream.ledger.rules import cut
from udp_stream.mechanisms.around import (
    AROUND,
    ForecastClipPlan,
    PlateNorms,
    checks_of,
    factors_for,
    norms_of,
    room_and_rounding,
    summed_norms,
)
from udp_stream.mechanisms.base import Query, StatisticPlan, noisy_integers
from udp_stream.mechanisms.noise import Noise
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.plan import HatPlan
from udp_stream.planning.slot import CityPlan, PlannedHat, PlannedSlot, SlotPlan, unplanned
from udp_stream.release.charge import (
    ReleaseContext,
    require_public_counts,
    require_relation,
)
from udp_stream.release.city import hour_answer, hour_residuals, require_paid
from udp_stream.release.record import (
    Counts,
    Estimate,
    Hat,
    Release,
    Status,
    forecast_record,
    hat_ids,
    privacy_record,
    statistics,
)
from udp_stream.windows.tables import SlotCounts, SlotValues

# Draw: the only place where speeds meet noise. Everything released is an integer vector plus noise
# of a single family, drawn in a single call for all HATs of a slot; what follows is
# post-processing.


def estimate_hats(
    plans: Sequence[HatPlan],
    samples: Sequence[Integers],
    bits: Bits,
    factors: Sequence[Integers | None] | None = None,
) -> list[Estimate]:
    """An estimate per plan; `samples[i]` are its admitted plates' speeds in quanta, in the order
    of its counts, `factors[i]` those of their clips (`mechanisms/around.py`); ValueError if a
    shared clip has none."""
    asked = [
        (place, name, _query(name, of_statistic, speeds, shrink, bits))
        for place, (plan, speeds, shrink) in enumerate(
            zip(plans, samples, factors or [None] * len(plans), strict=True)
        )
        for name, of_statistic in plan.statistics.items()
    ]
    values: list[dict[str, Any]] = [{} for _ in plans]
    # Where nothing is asked there is no family of noise, and `_family` would refuse.
    noisy = noisy_integers([query for *_, query in asked], _family(plans), bits) if asked else []
    # All HATs of a statistic at once: CDFs are the quicker for it.
    for name, statistic in STATISTICS.items():
        here = [i for i, (_, own, _) in enumerate(asked) if own == name]
        places = [asked[i][0] for i in here]
        found = statistic.values(
            [plans[place].statistics[name] for place in places],
            [asked[i][2] for i in here],
            [noisy[i] for i in here],
        )
        for place, value in zip(places, found, strict=True):
            values[place][name] = value
    return list(values)


def _query(
    name: str, plan: StatisticPlan, samples: Integers, factors: Integers | None, bits: Bits
) -> Query:
    if isinstance(plan, ForecastClipPlan) and plan.around.width.ball and factors is not None:
        return AROUND.joint_query(plan, samples, factors)
    return STATISTICS[name].query(plan, samples, bits)


def _family(plans: Sequence[HatPlan]) -> Noise:
    """The only family of all plans: a ledger keeps one measure, hence so do the plans of a slot."""
    families = {of_statistic.noise for plan in plans for of_statistic in plan.statistics.values()}
    if len(families) != 1:
        raise ValueError(
            f"expected plans with noise of one family, got {sorted(one.name for one in families)}"
        )
    return families.pop()


def record_slot(
    slot: PlannedSlot,
    values: SlotValues,
    context: ReleaseContext,
    ledger: Ledger,
    factors: Mapping[bytes, int] | None = None,
) -> RecordedSlot:
    """Draw and record HATs of a slot on its plan; a HAT that the plan lacks, or has with other
    rows, is withheld.

    `factors` are those of the plates' clips, once the ledger remembers what they follow from;
    ValueError if the plan has such HATs and there are none. PrivacyRefused under "add-remove",
    which this road does not keep.
    """
    require_public_counts(context.policy)
    counts = slot.counts
    ids = hat_ids(counts.cells.tolist(), counts.slot, context.policy.grid)

    def draw(todo: Sequence[int]) -> list[bytes]:
        _admit_unplanned(ids, todo, slot, context, ledger)
        # DRAW. Noisy values of each HAT that has a plan, by its number. From here on all is public.
        estimates = _estimate(ids, todo, slot, values, context, factors)
        alike = (context.policy.fingerprint(), *map(context.calendar.slots.iso, counts.slot))
        return [
            Release.encode(
                _record(
                    ids[hat],
                    int(counts.cells[hat]),
                    counts.count[counts.rows(hat)],
                    slot.hats[hat],
                    estimates.get(hat),
                    context,
                    alike,
                )
            )
            for hat in todo
        ]

    # RECORD. HATs that are recorded are looked up and draw nothing. Of two draws the ledger keeps
    # the first.
    return record_hats(ids, draw, context.policy.neighbours, ledger, slot.plan.seen)


def record_hats(
    ids: Sequence[str],
    draw: Callable[[Sequence[int]], Sequence[bytes]],
    neighbours: str,
    ledger: Ledger,
    seen: LedgerView | None = None,
) -> RecordedSlot:
    """Record HATs as `draw_once`, and raise the mark. PrivacyRefused if one is recorded under
    another neighbour relation. `seen` is the ledger after the charges, with what is recorded."""
    drawn = draw_once(ledger, ids, draw, None if seen is None else seen.payloads)
    require_relation(neighbours, ids, drawn.payloads)
    payloads = dict(zip(ids, drawn.payloads, strict=True))
    # MARK. Raised last, so that whatever is published, some mark knows.
    mark = ledger.mark(witness(payloads)) if payloads else None
    return RecordedSlot(payloads, drawn.made, mark, seen)


def witness(payloads: Mapping[str, bytes]) -> str:
    """The id of the record that tells this ledger from any other: the longest has noise in it, if
    any of them has."""
    return max(payloads, key=lambda id_: len(payloads[id_]))


class RecordedSlot(NamedTuple):
    """The payload of each HAT by its id, by cell, as the ledger holds it; and the ledger's mark,
    which knows them; None where there are no HATs.

    `made` are the ids of those that this call recorded; the others were there before. `seen`
    is the ledger after the charges of the slot's plates, where this process made them.

    >>> from udp_stream.testing import released_slot
    >>> slot = released_slot()
    >>> list(slot.payloads), len(slot.made), slot.mark.recorded
    (['8742d98b6ffffff-1641009600-3600', '8742d9d4cffffff-1641009600-3600'], 2, 2)
    """

    payloads: Mapping[str, bytes]
    made: frozenset[str]
    mark: Mark | None
    seen: LedgerView | None = None

    def published(self, ledger: Ledger) -> None:
        """Inform the ledger: readers have these payloads."""
        ledger.published(list(self.payloads))


class DrawResult(NamedTuple):
    """The payload of each id as the ledger holds it, and the ids that this call has recorded.

    >>> DrawResult(payloads=(b"17", b"before"), made=frozenset({"query:stop:7"})).payloads[0]
    b'17'
    """

    payloads: tuple[bytes, ...]
    made: frozenset[str]


def draw_once(
    ledger: Ledger,
    release_ids: Sequence[str],
    draw: Callable[[Sequence[int]], Sequence[bytes]],
    known: Sequence[bytes | None] | None = None,
) -> DrawResult:
    """The payload of each id: the recorded one, else what `draw` makes of the positions of ids that
    are not recorded. The ledger raises PrivacyRefused for an id that was never charged. `known` has
    what is recorded, if the ledger was read since the charge."""
    known = ledger.recorded(release_ids) if known is None else known
    payloads = {i: payload for i, payload in enumerate(known) if payload is not None}
    todo = [i for i in range(len(release_ids)) if i not in payloads]
    if not todo:
        return DrawResult(tuple(payloads[i] for i in range(len(release_ids))), frozenset())
    drawn = draw(todo)
    kept = ledger.record(
        [(release_ids[i], payload) for i, payload in zip(todo, drawn, strict=True)]
    )
    payloads |= zip(todo, kept, strict=True)
    made = (
        release_ids[i] for i, ours, first in zip(todo, drawn, kept, strict=True) if ours == first
    )
    return DrawResult(tuple(payloads[i] for i in range(len(release_ids))), frozenset(made))


# Draw: from what was charged to noisy values, and to records.


_WITHHELD: dict[str, Status] = {
    "few_plates": "withheld_few_plates",
    "uninformative": "withheld_uninformative",
    "unplanned": "withheld_unplanned",
    "partial": "withheld_partial",
    "unit": "withheld_unit",
}


def _admit_unplanned(
    ids: Sequence[str],
    todo: Sequence[int],
    slot: PlannedSlot,
    context: ReleaseContext,
    ledger: Ledger,
) -> None:
    terms = msgspec.json.encode(unplanned(context.policy))
    min_plates = context.policy.min_plates
    admissions = [
        Admission.of_nobody(ids[hat], terms, min_plates)
        for hat in todo
        if slot.hats[hat].terms.withheld == "unplanned"
    ]
    if admissions:
        context.before_charge()
        period = context.calendar.slot_in_period(slot.counts.start_ms).period
        ledger.admit(period, context.policy.budget_nano, slot.counts.plates, admissions)


def _estimate(
    ids: Sequence[str],
    todo: Sequence[int],
    slot: PlannedSlot,
    values: SlotValues,
    context: ReleaseContext,
    factors: Mapping[bytes, int] | None,
) -> Mapping[int, Estimate]:
    """Estimates with fresh noise, by the numbers of the HATs; none of a HAT that is withheld."""
    # Speeds were clamped when they were read; if U has been lowered since, sensitivities hold for
    # the lower one only.
    clamped = values.clamped(context.policy.max_speed)
    of_plates = None if factors is None else factors_for(factors, slot.counts.plates)
    drawn = [(hat, plan) for hat in todo if (plan := slot.hats[hat].plan) is not None]
    estimates: dict[int, Estimate] = {}
    for run, bits in context.entropy.streams([ids[hat] for hat, _ in drawn]):
        found = estimate_hats(
            [plan for _, plan in drawn[run]],
            [
                clamped.samples_of(slot.counts.rows(hat), slot.hats[hat].admitted)
                for hat, _ in drawn[run]
            ],
            bits,
            [_factors(hat, slot, of_plates) for hat, _ in drawn[run]],
        )
        estimates |= zip((hat for hat, _ in drawn[run]), found, strict=True)
    return estimates


def _factors(hat: int, slot: PlannedSlot, of_plates: Integers | None) -> Integers | None:
    if of_plates is None or not slot.hats[hat].terms.is_jointly_clipped:
        return None
    return of_plates[slot.admitted_plates(hat)]


def _record(
    release_id: str,
    cell: int,
    by_plate: Integers,
    hat: PlannedHat,
    estimate: Estimate | None,
    context: ReleaseContext,
    alike: Sequence[str],
) -> Release:
    """The record of a HAT of plates with these samples; `alike` are the fingerprint of the policy
    and both ends of the slot."""
    admitted = hat.admitted
    fingerprint, slot_start, slot_end = alike
    contributed = int(np.count_nonzero(admitted))
    left_out = NO_INTEGERS if contributed == admitted.size else by_plate[~admitted]
    used = 0 if hat.plan is None else hat.plan.used_samples
    forecast = forecast_record(hat.terms, hat.plan, estimate)
    plates = int(by_plate.size)
    pings = int(by_plate.sum())
    return Release(
        release_id=release_id,
        status="released" if hat.plan else _WITHHELD.get(hat.terms.withheld, "withheld_budget"),
        hat=Hat.of(cell, context.policy.grid, slot_start, slot_end),
        **statistics(hat.plan, estimate, left_out),
        counts=Counts(plates, pings, contributed, used) if context.policy.shows_counts else None,
        privacy=privacy_record(context.policy, hat.terms, hat.charge_nano, context.caveats),
        policy=fingerprint,
        software=context.software,
        trial=context.trial,
        forecast=forecast,
    )


# Clips that plates share among their HATs of a slot: each plate's norm, and its scale factor
# (`mechanisms/around.py` has the guarantee).
#
# `slot_factors` has the factors of a whole slot. On Kafka each shard sends its `slot_norms`, and
# the planner has the factors of their sums: the same integers. Norms follow from speeds, plan and
# counts alone.
#
# HATs of a slot may be drawn by several runs, the first of which died. A shared clip holds for HATs
# of the same lengths, so before any factor is used the ledger remembers all plates' lengths
# (`factors_once`), as the terms of an admission that charges nobody: a set of keyed hashes, eight
# bytes each, of a plate and its lengths HAT by HAT. Without the key neither plate nor lengths can
# be told. A plate whose hash is not in the set (other speeds, another U, other HATs) gets the
# factor 0, and moves nothing. The hash of other lengths is in the set by chance at most n times in
# 2**64, of n plates.

HASH_BYTES = 8
"""Bytes of the hash of a plate and its lengths, which the ledger remembers of a slot."""


def slot_factors(
    slot: PlannedSlot, values: SlotValues, context: ReleaseContext, ledger: Ledger
) -> Mapping[bytes, int] | None:
    """The factors of all plates, from the whole slot; None where no HAT of the plan shares a clip."""
    if not slot.plan.has_joint_clips:
        return None
    counts = slot.counts
    norms = slot_norms(slot, values)
    return factors_once(norms, slot.jointly_clipped_hats, counts.slot, context, ledger)


def factors_once(
    norms: PlateNorms,
    expected: Mapping[bytes, int],
    slot: tuple[int, int],
    context: ReleaseContext,
    ledger: Ledger,
) -> dict[bytes, int]:
    """Each plate's factor in the slot (start and end in Unix ms), from the norms of all of it; 0
    for a plate with other lengths than the ledger remembers, or not as many HATs as `expected`."""
    if not expected:
        return {}
    name = id_of(CLIPS, *slot)
    policy = context.policy
    # A key of this slot's own, so that equal lengths have other hashes in another slot.
    key = context.derive_key(name)
    hashes = {
        plate: blake2b(
            plate + check.to_bytes(8, "little", signed=True), key=key, digest_size=HASH_BYTES
        ).digest()
        for plate, hats, check in zip(
            norms.plates, norms.hats.tolist(), norms.checks.tolist(), strict=True
        )
        if expected.get(plate) == hats
    }
    asked = Admission.of_nobody(name, b"".join(sorted(hashes.values())))
    (verdict,) = ledger.admit(
        context.calendar.slot_in_period(slot[0]).period, policy.budget_nano, (), [asked]
    )
    held = set(cut(verdict.terms, len(verdict.terms) // HASH_BYTES))
    factors = norms.factors(expected)
    return {plate: factor if hashes.get(plate) in held else 0 for plate, factor in factors.items()}


def slot_norms(slot: PlannedSlot, values: SlotValues) -> PlateNorms:
    """The norms of the plates that were charged in these HATs: of a whole slot, or of a shard's
    part of it. Secret."""
    hats_in = slot.jointly_clipped_hats
    plates = tuple(sorted(hats_in))
    number = {plate: i for i, plate in enumerate(plates)}
    places = np.array([number.get(plate, -1) for plate in slot.counts.plates], np.int64)
    clamped = values.clamped(slot.policy.max_speed)
    rows = [np.zeros(0, np.int64)]
    parts = [np.zeros((4, 0), np.int64)]
    for hat, planned in enumerate(slot.hats):
        around = None if planned.plan is None else planned.plan.around
        if around is None or not around.around.width.ball:
            continue
        rows.append(places[slot.admitted_plates(hat)])
        norm = norms_of(around, clamped.samples_of(slot.counts.rows(hat), planned.admitted))
        cell = np.full_like(norm, slot.counts.cells[hat].astype(np.int64))
        parts.append(np.stack([cell, *room_and_rounding(around), norm]))
    columns = np.concatenate(parts, axis=1)
    checks = checks_of(columns)
    none = np.zeros_like(checks)
    norms = summed_norms(plates, np.concatenate(rows), np.stack([none, *columns[1:], checks]))
    # Charged is what counts: a plate that was charged in a HAT and stays out of it by now has
    # nothing to add there.
    return replace(norms, hats=np.array([hats_in[plate] for plate in plates], np.int64))


# What the whole city is asked (`charge.py` has its road): measured over all rows, drawn once,
# recorded before any HAT.


def slot_sums(context: ReleaseContext, slot: PlannedSlot, values: SlotValues) -> tuple[int, ...]:
    """The sums over HATs of a slot, or of a shard's part, that the plan knows with these rows.
    Secret. Empty where nothing is asked. PrivacyRefused if a plate was charged less than the sums
    ask of it."""
    counts = slot.counts
    plan = slot.plan
    city = plan.city
    question = context.question
    if city is None or question is None:
        return ()
    weights, charged = _of_rows(slot, city.weights, city.charged)
    of_rows = replace(city, weights=weights, charged=charged)
    require_paid(question.charges, counts, of_rows)
    return question.sums(counts, values, of_rows)


def _of_rows(slot: PlannedSlot, *columns: Integers) -> Integers:
    """Columns of the plan's rows as columns of the slot's; 0 in HATs that the plan does not know
    with these rows."""
    found = np.zeros((len(columns), slot.counts.count.size), dtype=np.int64)
    for hat, at in enumerate(slot.found):
        if at is not None:
            rows = slice(*slot.plan.hat_rows[at : at + 2].tolist())
            found[:, slot.counts.rows(hat)] = [column[rows] for column in columns]
    return found


def hour_norms(slot: PlannedSlot, values: SlotValues) -> PlateNorms:
    """How far each plate is off its forecasts in all, where the plan is the question of the city's
    hour: of a whole slot, or of a shard's part of it. Secret."""
    if (city := slot.plan.city) is None:
        return PlateNorms.nobody()
    (around,) = _of_rows(slot, city.around)
    plates = slot.counts.plates
    none = np.zeros(len(plates), np.int64)
    residuals = hour_residuals(slot.counts, values, around)
    return PlateNorms(plates, none, none, none, residuals, none)


def record_hour(context: ReleaseContext, norms: PlateNorms, plan: SlotPlan, ledger: Ledger) -> None:
    """Draw and record the answer to the question of the city's hour, if none is recorded. `norms`
    are of the whole slot that was planned here; plates without any take no part. Nothing happens if
    all are."""
    counts = plan.rows
    if (city := plan.city) is None or not isinstance(counts, SlotCounts):
        return
    measured = dict(zip(norms.plates, norms.norm.tolist(), strict=True))
    if not measured:
        return
    is_measured = np.array([plate in measured for plate in counts.plates])
    city = replace(city, weights=np.where(is_measured[counts.plate], city.weights, 0))
    residuals = np.array([measured.get(plate, 0) for plate in counts.plates], np.int64)
    _record_answer(context, plan, city, ledger, partial(hour_answer, residuals, counts, city))


def record_city(
    context: ReleaseContext, sums: tuple[int, ...], plan: SlotPlan, ledger: Ledger
) -> None:
    """Draw and record the answer to the plan's question to the city, if none is recorded. `sums`
    are of the whole slot; empty, where some part was measured without the question: then nothing
    happens."""
    city = plan.city
    question = context.question
    if city is None or question is None or not sums:
        return
    _record_answer(context, plan, city, ledger, partial(question.answer, sums, city))


def _record_answer(
    context: ReleaseContext,
    plan: SlotPlan,
    city: CityPlan,
    ledger: Ledger,
    answer: Callable[[Bits], bytes],
) -> None:
    name = id_of(city.kind, plan.start_ms, plan.end_ms)

    def draw(_: object) -> list[bytes]:
        ((_, bits),) = context.entropy.streams([name])
        return [answer(bits)]

    draw_once(ledger, [name], draw)
    ledger.published([name])  # no reader waits for it
