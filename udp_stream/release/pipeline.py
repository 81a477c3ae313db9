"""The steps of a slot from its plan to its records under "swap-values": measure, draw, record,
mark.

A crash between any two steps loses nothing and repeats nothing: the ledger keeps the first terms,
the first verdict and the first record of an id, so the next run comes to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.arrays import Integers
from udp_stream.ledger.ids import CITY, CLIPS, id_of
from udp_stream.ledger.port import Admission, Bits, Entropy, Ledger, LedgerView, Mark
from udp_stream.ledger.rules import cut
from udp_stream.mechanisms.around import (
    AROUND,
    ForecastClipPlan,
    PlateNorms,
    check_of,
    factors_for,
    norms_of,
    room_and_rounding,
    summed_norms,
)
from udp_stream.mechanisms.base import EMPTY_PLATES, Query, StatisticPlan, noisy_integers
from udp_stream.mechanisms.noise import Noise
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.plan import HatPlan, Terms, plan_hat
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.charge import (
    EMPTY_ROWS,
    HatInFlight,
    ReleaseContext,
    hats_of,
    ids_of,
    require_public_counts,
    require_relation,
)
from udp_stream.release.city import CityQuestion, require_paid
from udp_stream.release.record import (
    Counts,
    Estimate,
    Hat,
    Release,
    forecast_record,
    privacy_record,
    statistics,
)
from udp_stream.windows.tables import SlotCounts, SlotValues

# Draw: the only place where speeds meet noise. Everything released is an integer vector plus noise
# of a single family, drawn in a single call for all HATs of a slot; what follows is
# post-processing.


class _StatisticQuery(msgspec.Struct, frozen=True, eq=False):
    """A statistic of the HAT at this place in a slot, and its query."""

    place: int
    statistic: str
    query: Query


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
        _StatisticQuery(place, name, _query(name, of_statistic, speeds, shrink, bits))
        for place, (plan, speeds, shrink) in enumerate(
            zip(plans, samples, factors or [None] * len(plans), strict=True)
        )
        for name, of_statistic in plan.statistics.items()
    ]
    values: list[dict[str, Any]] = [{} for _ in plans]
    # Where nothing is asked there is no family of noise, and `_family` would refuse.
    noisy = noisy_integers([one.query for one in asked], _family(plans), bits) if asked else []
    for (
        name,
        statistic,
    ) in STATISTICS.items():  # all HATs of a statistic at once: CDFs are the quicker for it
        of_hats = [
            (one, integers)
            for one, integers in zip(asked, noisy, strict=True)
            if one.statistic == name
        ]
        found = statistic.values(
            [plans[one.place].statistics[name] for one, _ in of_hats],
            [one.query for one, _ in of_hats],
            [integers for _, integers in of_hats],
        )
        for (one, _), value in zip(of_hats, found, strict=True):
            values[one.place][name] = value
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
    counts: SlotCounts,
    values: SlotValues,
    plan: SlotPlan,
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
    hats = hats_of(counts, context.policy.grid)

    def draw(todo: Sequence[int]) -> list[bytes]:
        decided = decide([hats[i] for i in todo], counts, plan, context.policy)
        for i, hat in zip(todo, decided, strict=True):
            hats[i] = hat
        _admit_unplanned(decided, counts, context, ledger)
        # DRAW. Noisy values of each HAT that has a plan, by its number. From here on all is public.
        estimates = _estimate(decided, counts, values, context, factors)
        iso = context.calendar.slots.iso
        alike = context.policy.fingerprint(), iso(counts.start_ms), iso(counts.end_ms)
        return [
            Release.encode(_record(hat, counts, estimates.get(hat.number), context, alike))
            for hat in decided
        ]

    # RECORD. HATs that are recorded are looked up and draw nothing. Of two draws the ledger keeps
    # the first.
    known = None if plan.seen is None else plan.seen.payloads
    drawn = draw_once(ledger, ids_of(hats), draw, known)
    require_relation(context.policy.neighbours, ids_of(hats), drawn.payloads)
    done = tuple(hat.recorded(payload) for hat, payload in zip(hats, drawn.payloads, strict=True))
    if not done:
        return RecordedSlot(done, drawn.made, None, plan.seen)
    # MARK. Raised last, so that whatever is published, some mark knows.
    payloads = dict(zip(ids_of(hats), drawn.payloads, strict=True))
    return RecordedSlot(done, drawn.made, ledger.mark(witness(payloads)), plan.seen)


def witness(payloads: Mapping[str, bytes]) -> str:
    """The id of the record that tells this ledger from any other: the longest has noise in it, if
    any of them has."""
    return max(payloads, key=lambda id_: len(payloads[id_]))


@dataclass(frozen=True, slots=True)
class RecordedSlot:
    """HATs that are recorded, by cell, and the ledger's mark, which knows them; None where there
    are no HATs.

    `made` are the ids of those that this call recorded; the others were there before. `seen`
    is the ledger after the charges of the slot's plates, where this process made them.

    >>> from udp_stream.testing import released_slot
    >>> slot = released_slot()
    >>> list(slot.payloads), len(slot.made), slot.mark.recorded
    (['8742d98b6ffffff-1641009600-3600', '8742d9d4cffffff-1641009600-3600'], 2, 2)
    """

    hats: tuple[HatInFlight, ...]
    made: frozenset[str]
    mark: Mark | None
    seen: LedgerView | None = None

    @property
    def payloads(self) -> dict[str, bytes]:
        return {hat.release_id: hat.payload for hat in self.hats if hat.payload is not None}

    def published(self, ledger: Ledger) -> RecordedSlot:
        ledger.published(ids_of(self.hats))
        return replace(self, hats=tuple(hat.published() for hat in self.hats))


@dataclass(frozen=True, slots=True)
class DrawResult:
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


def unplanned(policy: Policy) -> Terms:
    """The terms of a HAT that no plan knows."""
    return Terms(withheld="unplanned").within(policy)


def decide(
    hats: Sequence[HatInFlight], counts: SlotCounts, plan: SlotPlan, policy: Policy
) -> list[HatInFlight]:
    """Each HAT as the plan has it: charged, with the plan for its plates that were charged; or
    withheld."""
    found = plan.find_hats(counts)
    return [_decided(hat, counts, found[hat.number], plan, policy) for hat in hats]


def _decided(
    hat: HatInFlight, counts: SlotCounts, at: int | None, plan: SlotPlan, policy: Policy
) -> HatInFlight:
    if at is None:
        return hat.withheld(unplanned(policy))
    terms = plan.terms[at]
    charged = plan.charged_rows(at)
    offered = terms.select_offered(charged)
    if terms.withheld or not offered.size:
        return hat.withheld(terms)
    priced = (plan.priced[at] if plan.priced is not None else None) or plan_hat(
        terms.select_offered(counts.count[hat.rows]), terms, policy
    )
    # Charges are remembered, counts are read again: a plate whose charge is below its part by now
    # stays out.
    paid = (offered > 0) & (offered >= priced.charges)
    paying = int(np.count_nonzero(paid))
    paid_rows = terms.restore_rows(offered if paying == paid.size else offered * paid, charged.size)
    # The ledger charged enough plates, or none; of those that it charged, some may stay out by now.
    if paying < max(1, policy.min_plates):
        return hat.withheld(terms, paid_rows)
    return hat.charged_by_plan(terms, paid_rows, priced.subset(paid))


def _admit_unplanned(
    hats: Sequence[HatInFlight], counts: SlotCounts, context: ReleaseContext, ledger: Ledger
) -> None:
    terms = msgspec.json.encode(unplanned(context.policy))
    min_plates = context.policy.min_plates
    admissions = [
        Admission(hat.release_id, EMPTY_ROWS, EMPTY_ROWS, min_plates, terms)
        for hat in hats
        if hat.terms.withheld == "unplanned"
    ]
    if admissions:
        context.before_charge()
        period = context.calendar.slot_in_period(counts.start_ms).period
        ledger.admit(period, context.policy.budget_nano, counts.plates, admissions)


def _estimate(
    hats: Sequence[HatInFlight],
    counts: SlotCounts,
    values: SlotValues,
    context: ReleaseContext,
    factors: Mapping[bytes, int] | None,
) -> Mapping[int, Estimate]:
    """Estimates with fresh noise, by the numbers of the HATs; none of a HAT that is withheld."""
    # Speeds were clamped when they were read; if U has been lowered since, sensitivities hold for
    # the lower one only.
    clamped = values.clamped(context.policy.max_speed)
    drawn = [(hat, hat.plan) for hat in hats if hat.plan is not None]
    estimates: dict[int, Estimate] = {}
    for run, bits in context.entropy.streams([hat.release_id for hat, _ in drawn]):
        found = estimate_hats(
            [plan for _, plan in drawn[run]],
            [clamped.samples_of(hat.rows, hat.admitted) for hat, _ in drawn[run]],
            bits,
            [_factors(hat, counts, factors) for hat, _ in drawn[run]],
        )
        estimates |= zip((hat.number for hat, _ in drawn[run]), found, strict=True)
    return estimates


def _factors(
    hat: HatInFlight, counts: SlotCounts, factors: Mapping[bytes, int] | None
) -> NDArray[np.int64] | None:
    if factors is None or not hat.terms.is_jointly_clipped:
        return None
    return factors_for(
        factors, [counts.plates[i] for i in counts.plate[hat.rows][hat.admitted].tolist()]
    )


def _record(
    hat: HatInFlight,
    counts: SlotCounts,
    estimate: Estimate | None,
    context: ReleaseContext,
    alike: tuple[str, str, str],
) -> Release:
    """The record of a HAT; `alike` are the fingerprint of the policy and both ends of the slot."""
    by_plate = counts.count[hat.rows]
    admitted = hat.admitted
    (fingerprint, slot_start, slot_end) = alike
    contributed = int(np.count_nonzero(admitted))
    left_out = EMPTY_PLATES if contributed == admitted.size else by_plate[~admitted]
    used = 0 if hat.plan is None else hat.plan.used_samples
    forecast = forecast_record(hat.terms, hat.plan, estimate)
    plates = int(by_plate.size)
    pings = int(by_plate.sum())
    return Release(
        release_id=hat.release_id,
        status=hat.status,
        hat=Hat.of(int(counts.cells[hat.number]), context.policy.grid, slot_start, slot_end),
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
    counts: SlotCounts, values: SlotValues, plan: SlotPlan, context: ReleaseContext, ledger: Ledger
) -> Mapping[bytes, int] | None:
    """The factors of all plates, from the whole slot; None where no HAT of the plan shares a clip."""
    if not plan.has_joint_clips:
        return None
    norms = slot_norms(counts, values, plan, context.policy)
    expected = plan.jointly_clipped_hats(counts)
    return factors_once(norms, expected, (counts.start_ms, counts.end_ms), context, ledger)


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
    asked = Admission(name, EMPTY_ROWS, EMPTY_ROWS, 0, b"".join(sorted(hashes.values())))
    (verdict,) = ledger.admit(
        context.calendar.slot_in_period(slot[0]).period, policy.budget_nano, (), [asked]
    )
    held = set(cut(verdict.terms, len(verdict.terms) // HASH_BYTES))
    factors = norms.factors(expected)
    return {plate: factor if hashes.get(plate) in held else 0 for plate, factor in factors.items()}


def slot_norms(
    counts: SlotCounts, values: SlotValues, plan: SlotPlan, policy: Policy
) -> PlateNorms:
    """The norms of the plates that were charged in these HATs: of a whole slot, or of a shard's
    part of it. Secret."""
    hats_in = plan.jointly_clipped_hats(counts)
    plates = tuple(sorted(hats_in))
    number = {plate: i for i, plate in enumerate(plates)}
    clamped = values.clamped(policy.max_speed)
    rows = [np.zeros(0, np.int64)]
    parts = [np.zeros((5, 0), np.int64)]
    for hat in decide(hats_of(counts, policy.grid), counts, plan, policy):
        around = None if hat.plan is None else hat.plan.around
        if around is None or not around.around.width.ball:
            continue
        of_hat = counts.plate[hat.rows][hat.admitted].tolist()
        rows.append(np.array([number[counts.plates[plate]] for plate in of_hat]))
        room, rounding = room_and_rounding(around)
        norm = norms_of(around, clamped.samples_of(hat.rows, hat.admitted))
        cell = int(counts.cells[hat.number])
        each = zip(room.tolist(), rounding.tolist(), norm.tolist(), strict=True)
        checks = np.array([check_of(cell, *of_plate) for of_plate in each], np.int64)
        parts.append(np.stack([np.zeros_like(norm), room, rounding, norm, checks]))
    norms = summed_norms(plates, np.concatenate(rows), np.concatenate(parts, axis=1))
    # Charged is what counts: a plate that was charged in a HAT and stays out of it by now has
    # nothing to add there.
    return replace(norms, hats=np.array([hats_in[plate] for plate in plates], np.int64))


# What the whole city is asked (`charge.py` has its road): measured over all rows, drawn once,
# recorded before any HAT.


def slot_sums(
    question: CityQuestion | None, counts: SlotCounts, values: SlotValues, plan: SlotPlan
) -> tuple[int, ...]:
    """The sums over HATs of a slot, or of a shard's part, that the plan knows with these rows.
    Secret. Empty where nothing is asked. PrivacyRefused if a plate was charged less than the sums
    ask of it."""
    if plan.city is None or question is None:
        return ()
    columns = np.zeros((2, counts.count.size), dtype=np.int64)
    for hat, at in enumerate(plan.find_hats(counts)):
        if at is not None:
            rows = slice(*plan.hat_rows[at : at + 2].tolist())
            columns[:, counts.rows(hat)] = plan.city.weights[rows], plan.city.charged[rows]
    of_rows = replace(plan.city, weights=columns[0], charged=columns[1])
    require_paid(question, counts, of_rows)
    return question.sums(counts, values, of_rows)


def record_city(
    question: CityQuestion | None,
    sums: tuple[int, ...],
    plan: SlotPlan,
    entropy: Entropy,
    ledger: Ledger,
) -> None:
    """Draw and record the answer to the plan's question to the city, if none is recorded. `sums`
    are of the whole slot; empty, where some part was measured without the question: then nothing
    happens."""
    if (city := plan.city) is None or question is None or not sums:
        return
    name = id_of(CITY, plan.start_ms, plan.end_ms)

    def draw(_: object) -> list[bytes]:
        ((_, bits),) = entropy.streams([name])
        return [question.answer(sums, city, bits)]

    draw_once(ledger, [name], draw)
    ledger.published([name])  # no reader waits for it
