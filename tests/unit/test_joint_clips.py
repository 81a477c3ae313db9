"""Shared clips on the road: the same factors for any number of shards, messages of any size, and
settings."""

import re
from dataclasses import replace

import numpy as np
import pytest

from streams.wire import (
    ChunkAssembly,
    cut_factors,
    cut_norms,
    decode_message,
    encode_message,
    merge_factors,
    merge_norms,
    shard_of,
)
from tests.forms import PURE_ENV
from tests.runtime.harness import fleet_log, frames_of
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import CLIPS, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.opening import ledger_sentence
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.around import WHOLE, PlateNorms, merged_norms
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import (
    ReleaseContext,
    key_without_secret,
    plan_slot,
    with_forecaster,
)
from udp_stream.release.pipeline import (
    HASH_BYTES,
    factors_once,
    record_slot,
    slot_factors,
    slot_norms,
)
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.grid import Hexagons
from udp_stream.windows.tables import SlotPings, tabulate

IN_RHO = ("hat.slot=1h", "hat.timezone=UTC", "budget.accounting=approximate", "release.mean=forecast-clip",
          "release.cdf=tree", "release.cdf_epsilon=0.1")  # fmt: skip


def slot_of(part=None, shards=1):
    """Forty plates all over a city for an hour, or what one shard has of them."""
    rng = np.random.default_rng(3)
    plate, time = (
        np.repeat(np.arange(40, dtype=np.uint32), 60),
        np.tile(np.arange(60, dtype=np.uint32) * 60_000, 40),
    )
    lat, lon = 21.1 + rng.random(2400) / 10, 72.8 + rng.random(2400) / 10
    cell, speed = Hexagons(7).cells_of(lat, lon), rng.integers(0, 65 * 4096, 2400).astype(np.int32)
    keep = slice(None) if part is None else shard_of(cell, shards) == part
    names = tuple(bytes([i]) * 16 for i in range(40))
    pings = SlotPings(0, 3_600_000, names, plate[keep], time[keep], cell[keep], speed[keep])
    return tabulate(pings)


def context_of(*flags):
    settings = load(None, (*IN_RHO, *flags), PURE_ENV)
    return with_forecaster(
        ReleaseContext(settings.policy, settings.calendar, SeededEntropy(1), "test")
    )


def planned(*flags):
    (counts, values), context, ledger = slot_of(), context_of(*flags), MemoryLedger()
    return counts, values, plan_slot(counts, context, ledger), context, ledger


def factors_of(norms, plan, counts, context, ledger):
    return factors_once(
        norms, plan.jointly_clipped_hats(counts), (counts.start_ms, counts.end_ms), context, ledger
    )


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_factors_and_records_are_the_same_for_any_number_of_shards(shards):
    counts, values, plan, context, ledger = planned()
    slot = PlannedSlot(counts, plan, context.policy)
    whole = slot_factors(slot, values, context, ledger)
    assert plan.has_joint_clips and sum(0 < factor < WHOLE for factor in whole.values()) > 10
    parts = [slot_of(shard, shards) for shard in range(shards)]
    norms = [
        slot_norms(PlannedSlot(part, plan, context.policy), of_part) for part, of_part in parts
    ]
    assert shards == 1 or any(set(norms[0].plates) & set(norms[1].plates))  # plates are on several
    for other in (ledger, planned()[4]):  # on a ledger that remembers the whole slot, too
        assert factors_of(merged_norms(norms[::-1]), plan, counts, context, other) == whole
    payloads = record_slot(slot, values, context, ledger, whole).payloads
    other, found = planned()[4], {}
    for part, of_part in parts:
        part = PlannedSlot(part, plan, context.policy)
        found |= record_slot(part, of_part, context, other, whole).payloads
    assert found == payloads


def test_of_a_shard_that_is_missing_plates_move_nothing_and_without_factors_nothing_is_drawn():
    counts, values, plan, context, ledger = planned()
    part, rest = (
        slot_norms(PlannedSlot(of_shard, plan, context.policy), its_values)
        for of_shard, its_values in (slot_of(0, 2), slot_of(1, 2))
    )
    factors = factors_of(part, plan, counts, context, ledger)
    missing = {plate for plate in plan.jointly_clipped_hats(counts) if plate in rest.plates}
    assert missing and {factors[plate] for plate in missing} == {0}
    with pytest.raises(ValueError, match="needs each plate's factor"):
        record_slot(PlannedSlot(counts, plan, context.policy), values, context, ledger)
    assert ledger.recorded([hat.release_id for hat in ledger.entries()]) == [None] * len(
        list(ledger.entries())
    )


def of_plates(values, counts, chosen, change):
    mine = np.isin(np.repeat(counts.plate, counts.count), chosen)
    return replace(values, speed=np.where(mine, change(values.speed), values.speed))


CHANGES = {
    "half as fast": lambda speed: speed // 2,
    "one step of its lattice slower": lambda speed: np.maximum(speed - 40, 0),
    "a lower U": lambda speed: np.minimum(speed, 65 * 4096 // 2),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_of_a_slot_that_was_drawn_in_part_only_plates_with_other_speeds_move_nothing(changed):
    """Its first HATs may have used up what such a plate can lose in the slot; of all others nothing
    has changed."""
    counts, values, plan, context, ledger = planned()
    slot = PlannedSlot(counts, plan, context.policy)
    ours = slot_factors(slot, values, context, ledger)
    half, of_half = slot_of(0, 2)
    record_slot(PlannedSlot(half, plan, context.policy), of_half, context, ledger, ours)
    chosen = [3, 17, 30]
    after = slot_factors(slot, of_plates(values, counts, chosen, CHANGES[changed]), context, ledger)
    others = {counts.plates[plate] for plate in chosen}
    assert {plate for plate in ours if after[plate] != ours[plate]} == others
    assert all(after[plate] == 0 for plate in others)
    assert slot_factors(slot, values, context, ledger) == ours  # the first ones stand


def test_plates_that_come_or_go_between_two_runs_leave_the_others_as_they_are():
    counts, values, plan, context, ledger = planned()
    norms, expected = (
        slot_norms(PlannedSlot(counts, plan, context.policy), values),
        plan.jointly_clipped_hats(counts),
    )
    slot, gone, come = (counts.start_ms, counts.end_ms), norms.plates[4], b"\xff" * 16
    ours = factors_once(norms, expected, slot, context, ledger)
    left = [at for at, plate in enumerate(norms.plates) if plate != gone]
    columns = [np.append(column[left], column[0]) for column in norms.columns]
    other = PlateNorms((*(norms.plates[at] for at in left), come), *columns)
    hats = {plate: expected.get(plate, int(norms.hats[0])) for plate in other.plates}
    after = factors_once(other, hats, slot, context, ledger)
    assert after == {plate: 0 if plate == come else ours[plate] for plate in other.plates}


def test_what_was_planned_without_a_shared_clip_is_released_without_one():
    counts, values, plan, context, ledger = planned("release.mean=levy")
    slot = PlannedSlot(counts, plan, context.policy)
    assert not plan.has_joint_clips and slot_factors(slot, values, context, ledger) is None
    together = (
        context_of().policy
    )  # the setting changes between plan and draw: terms say what holds
    assert together.has_joint_clips
    assert slot_norms(PlannedSlot(counts, plan, together), values).plates == ()
    assert record_slot(slot, values, context, ledger).made


def test_messages_carry_norms_and_factors_whole_in_any_order_and_sets_do_not_mix():
    plates = tuple(number.to_bytes(16) for number in range(50))
    norms = PlateNorms(plates, *np.random.default_rng(1).integers(-(2**62), 2**62, (5, 50)))
    chunks = [decode_message(encode_message(one)) for one in cut_norms(norms, 0, 9, 1, rows_max=7)]
    old, arriving = list(cut_norms(PlateNorms.nobody(), 0, 9, 1)), ChunkAssembly()
    begun = next(cut_norms(PlateNorms(plates[:9], *np.ones((5, 9), np.int64)), 0, 9, 1, rows_max=7))
    for one in (
        begun,
        *chunks[::-1],
        chunks[3],
        *old,
    ):  # the first that is whole counts, whatever comes behind it
        arriving.add(one)
    merged = merge_norms(arriving.whole)
    assert merged.plates == plates and all(map(np.array_equal, merged.columns, norms.columns))
    factors, measured = (
        dict(zip(plates, range(50), strict=True)),
        dict(zip(plates, norms.checks.tolist(), strict=True)),
    )
    answer = [
        decode_message(encode_message(one))
        for one in cut_factors(factors, norms, chunks[0], rows_max=7)
    ]
    assert merge_factors(answer[::-1]).of(measured) == merge_factors(answer).of(measured) == factors
    others = measured | {plates[9]: measured[plates[8]], b"not answered": 5}
    assert merge_factors(answer).of(others) == factors | {plates[9]: 0, b"not answered": 0}


def test_clips_are_shared_in_rho_around_forecasts():
    flags = IN_RHO, (), (*IN_RHO, "release.mean=optimal", "release.mean_epsilon=0.1")
    assert [load(None, one, PURE_ENV).policy.has_joint_clips for one in flags] == [
        True,
        False,
        False,
    ]


def test_a_ledger_holds_no_hash_of_norms_that_can_be_computed_without_the_key():
    """Norms of a slot are few numbers: who guesses them could else see from the ledger that the
    guess is right."""
    counts, values, plan, context, _ = planned()
    held = []
    for key in (b"one key", b"another"):
        ledger = planned()[4]
        keyed = replace(context, derive_key=lambda text, key=key: key + text.encode()[:5])
        slot_factors(PlannedSlot(counts, plan, keyed.policy), values, keyed, ledger)
        (kept,) = [entry for entry in ledger.entries() if kind_of(entry.release_id) == CLIPS]
        (verdict,) = ledger.admit(
            kept.period,
            kept.budget,
            (),
            [Admission.of_nobody(kept.release_id)],
        )
        assert kept.payload is None and not kept.plates
        held.append(
            {verdict.terms[at : at + HASH_BYTES] for at in range(0, len(verdict.terms), HASH_BYTES)}
        )
        assert (
            len(verdict.terms)
            == HASH_BYTES * len(plan.jointly_clipped_hats(counts))
            == HASH_BYTES * len(held[-1])
        )
    assert not held[0] & held[1]


def test_a_run_hashes_them_with_the_plates_key():
    settings, asked = load(None, (*IN_RHO, "hat.timezone=Asia/Kolkata"), PURE_ENV), []

    def hashed(text):
        asked.append(text)
        return key_without_secret(text)

    EmbeddedRuntime(settings, MemoryLedger(), SeededEntropy(1), hashed, "test", lambda _: None).run(
        frames_of(fleet_log())
    )
    assert [text for text in asked if text.startswith(f"{CLIPS}:")]


def test_a_ledger_names_its_latest_slot_and_counts_what_it_remembers():
    counts, values, plan, context, ledger = planned()
    slot = PlannedSlot(counts, plan, context.policy)
    record_slot(slot, values, context, ledger, slot_factors(slot, values, context, ledger))
    said = ledger_sentence("city.ledger", {}, ledger.progress(), context.calendar.slots)
    assert re.search(
        r"^ledger city.ledger: \d+ HATs and slots, .* the latest of 1970-01-01T00:00:00\+00:00$",
        said,
    ), said
