"""Counts to the planner and plans back: cut, merged, doubled, out of order, and never a speed among
them."""

import dataclasses
import random
from itertools import count

import msgspec
import numpy as np
import pytest

from streams.protocol import PlannerState, ShardCheckpoint, ShardProtocol
from streams.wire import (
    CountChunk,
    CountsEnd,
    PingChunk,
    PingsEnd,
    ReleaseMarker,
    cut_counts,
    cut_norms,
    cut_pings,
    cut_plan,
    decode_message,
    encode_message,
    merge_counts,
    merge_pings,
    merge_plan,
    shard_of,
)
from tests.unit.test_flow import a_context
from tests.unit.test_planner import city
from tests.unit.test_shards import HOUR, chunks_of, some_slot, two_sources
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.around import PlateNorms
from udp_stream.release.charge import plan_slot
from udp_stream.testing import SLOT_END, two_hats
from udp_stream.windows.tables import PINGS_MAX, SlotPings, tabulate, without_repeats


def fields(counts):
    """All that counts say; plates by their hashes, in the order in which rows name them."""
    named = [counts.plates[plate] for plate in counts.plate.tolist()]
    columns = (column.tolist() for column in (counts.cells, counts.hat_rows, counts.count))
    return (
        counts.start_ms,
        counts.end_ms,
        named,
        sorted(counts.plates) == list(counts.plates),
        *columns,
    )


def crowded(seed):
    """Few plates, few times, few cells: many repeats of (plate, time), some of them in cells of
    other shards."""
    dice = np.random.default_rng(seed)
    size, plates = int(dice.integers(1, 300)), int(dice.integers(1, 12))
    return SlotPings(
        0, HOUR, tuple(b"%04d" % i for i in dice.permutation(plates)), dice.integers(0, plates, size).astype(np.uint32),
        dice.integers(0, 60, size).astype(np.uint32),
        dice.integers(1, int(dice.integers(2, 30)), size).astype(np.uint64) << np.uint64(30),
        dice.integers(0, 1000, size).astype(np.int32),
    )  # fmt: skip


def found_in(plan, cell, digest):
    return plan.find_all(np.array([cell], np.uint64), [digest])[0]


def count_chunks_of(pings, shards, rows_max=40):
    """What each shard sends of a slot that came through one source."""
    chunks = [chunk for chunk in cut_pings(pings, 0, shards, 25) if isinstance(chunk, PingChunk)]
    for shard in range(shards):
        mine = [chunk for chunk in chunks if chunk.shard == shard]
        if mine:
            messages = cut_counts(tabulate(merge_pings(mine))[0], shard, rows_max)
            yield from (decode_message(encode_message(one)) for one in messages)


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_the_counts_of_all_shards_together_are_the_counts_of_the_whole_slot(shards):
    dice = random.Random(shards)
    for seed in range(80):
        pings = crowded(seed)
        chunks = [one for one in count_chunks_of(pings, shards) if isinstance(one, CountChunk)]
        dice.shuffle(chunks)
        assert fields(merge_counts(chunks)) == fields(tabulate(pings)[0])


def test_the_planner_refuses_a_hat_of_too_many_samples_too(monkeypatch, limits):
    """A shard's word is not taken for it: by cell, slot, number and rule, with status 5."""
    counts, _ = tabulate(next(two_sources()))
    (chunk, _) = cut_counts(counts, 0)
    limits("udp_stream.windows.tables", PINGS_MAX=60)
    assert fields(merge_counts([chunk])) == fields(counts)
    limits("udp_stream.windows.tables", PINGS_MAX=59)
    with pytest.raises(PrivacyRefused) as refused:
        merge_counts([chunk])
    assert str(refused.value) == (
        "HAT 87608c4d2ffffff of the slot from 1970-01-01T01:00:00+00:00: expected at most 59 samples, got 60"
    )
    assert refused.value.exit_status == 5
    monkeypatch.undo()
    (chunk, _) = cut_counts(dataclasses.replace(counts, count=np.array([1, PINGS_MAX])), 0)
    with pytest.raises(
        PrivacyRefused, match=f"expected at most {PINGS_MAX} samples, got {PINGS_MAX + 1}"
    ):
        merge_counts([chunk])


def test_without_repeats_the_same_pings_are_left_as_in_the_table():
    dropped = 0
    for seed in range(80):
        pings = crowded(seed)
        left = without_repeats(pings)
        (counts, values), (again, same) = tabulate(pings), tabulate(left)
        assert fields(counts) == fields(again) and values.speed.tolist() == same.speed.tolist()
        assert again.repeats == 0 and left.plate.size == pings.plate.size - counts.repeats
        dropped += counts.repeats
    assert dropped > 1000


def test_what_a_shard_tells_the_planner_has_no_room_for_a_speed_and_does_not_depend_on_one():
    names = {
        field.name for kind in (CountChunk, CountsEnd) for field in msgspec.structs.fields(kind)
    }
    assert names.isdisjoint({"speed", "speeds", "values", "time"})
    pings = some_slot(3)
    other = dataclasses.replace(pings, speed=1000 - pings.speed)
    assert [encode_message(m) for m in count_chunks_of(pings, 3)] == [
        encode_message(m) for m in count_chunks_of(other, 3)
    ]


def test_messages_stay_below_the_broker_s_usual_limit():
    size = 60_000
    plates = tuple(i.to_bytes(16) for i in range(size))
    everybody = SlotPings(0, HOUR, plates, np.arange(size, dtype=np.uint32), np.full(size, HOUR, np.uint32),
                          np.full(size, 2**63, np.uint64), np.full(size, 2**30, np.int32))  # fmt: skip
    counts = tabulate(everybody)[0]
    told = list(cut_counts(counts, 0))
    assert len(told) == 4 and max(len(encode_message(one)) for one in told) < 1_000_000
    plan = plan_slot(city(1)[0], a_context(), MemoryLedger())
    wide = dataclasses.replace(plan, charged=np.full(400_000, 2**52))
    chunks = list(cut_plan(wide, 0))
    assert len(chunks) == 5 and max(len(encode_message(one)) for one in chunks) < 1_000_000


def a_plan(seed=1, flags=()):
    return plan_slot(city(seed)[0], a_context(*flags), MemoryLedger())


def same(one, other):
    columns = [
        (p.cells.tolist(), p.hat_rows.tolist(), p.digests, p.terms, p.charged.tolist())
        for p in (one, other)
    ]
    return columns[0] == columns[1] and (one.start_ms, one.end_ms) == (other.start_ms, other.end_ms)


@pytest.mark.parametrize("shards", [1, 3])
def test_every_shard_gets_its_part_of_the_plan_and_together_they_are_all_of_it(shards):
    plan = a_plan(flags=("release.suppression=chop-user",))
    found = []
    for shard in range(shards):
        share = plan.subset(shard_of(plan.cells, shards) == shard)
        chunks = [
            decode_message(encode_message(one)) for one in cut_plan(share, shard, chunk_bytes=50)
        ]
        chunk = merge_plan(chunks)
        for hat, cell in enumerate(chunk.cells.tolist()):
            at = plan.cells.tolist().index(cell)
            assert (
                chunk.terms[hat] == plan.terms[at]
                and found_in(chunk, cell, plan.digests[at]) == hat
            )
            assert chunk.charged_rows(hat).tolist() == plan.charged_rows(at).tolist()
            assert found_in(chunk, cell, b"another!") is None
        found += chunk.cells.tolist()
    assert sorted(found) == plan.cells.tolist()
    assert found_in(plan, 5, plan.digests[0]) is None and same(
        plan.subset(np.array([True] * 3)), plan
    )


def waiting_shard(slots=1, accept_loss=False):
    """A shard that has sent its counts."""
    shard = ShardProtocol(1, 2, sources=1, start=ShardCheckpoint.at(0), accept_loss=accept_loss)
    offset = count()
    for start in range(0, slots * HOUR, HOUR):
        for message in chunks_of(some_slot(1, start)):
            shard.add(next(offset), message)
        shard.counted(start, *tabulate(shard.next().pings))
    shard.sent(shard.next())
    return shard, offset


def test_a_shard_that_has_nothing_of_a_slot_commits_nothing_before_it_has_said_so():
    """Whoever takes over would not say it: the planner would wait for ever."""
    shard = ShardProtocol(1, shards=2, sources=1, start=ShardCheckpoint.at(0))
    shard.add(0, PingsEnd(0, 1, HOUR))
    assert not shard.may_commit
    step = shard.next()
    assert step.messages == [(0, CountsEnd(1, 1, HOUR))]
    shard.sent(step)
    assert shard.may_commit and shard.checkpoint().offset == 1


def plan_chunks_of(plan, size=200, start=0):
    slot = {"slot_start": start, "slot_end": start + HOUR}
    return [msgspec.structs.replace(chunk, **slot) for chunk in cut_plan(plan, 0, chunk_bytes=size)]


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_there_once_all_of_it_has_come_twice_or_out_of_order(seed):
    dice, plan = random.Random(seed), a_plan(seed)
    shard, offset = waiting_shard()
    chunks = plan_chunks_of(plan)
    log = [*chunks, *dice.choices(chunks, k=5)]
    dice.shuffle(log)
    seen = set()
    for chunk in log:
        assert (shard.next() is not None) == (len(seen) == len(chunks))
        shard.add(next(offset), chunk)
        seen.add(chunk.number)
    assert same(shard.next().plan, merge_plan(plan_chunks_of(plan)))
    shard.recorded(0)
    assert not shard.may_commit  # its own commit is on its way
    shard.published(0)
    assert shard.may_commit
    shard.add(next(offset), chunks[0])
    assert shard.next() is None and shard.checkpoint().offset == shard.next_offset


def test_plan_chunks_of_two_plans_never_make_one():
    """A planner that died halfway, and another that plans something else: the one that comes whole
    counts."""
    (old, new), (shard, offset) = (plan_chunks_of(a_plan(seed)) for seed in (1, 2)), waiting_shard()
    assert len(old) > 2 and len(new) > 2
    for chunk in [*old[:-1], *new[1:]]:
        shard.add(next(offset), chunk)
        assert shard.next() is None
    for chunk in [old[-1], *new]:
        shard.add(next(offset), chunk)
    assert same(shard.next().plan, merge_plan(new))


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_slot_whose_plan_is_lost_is_released_without_hats_only_where_that_is_accepted(
    accept_loss,
):
    shard, offset = waiting_shard(2, accept_loss)
    for chunk in plan_chunks_of(a_plan(), start=HOUR):
        shard.add(next(offset), chunk)
    step = shard.next()
    assert (step is not None) == accept_loss
    assert step is None or (step.start, step.plan.cells.tolist()) == (0, [])


def test_a_shard_whose_plan_is_older_than_the_settings_is_answered_once():
    """It would wait for ever: the planner's own plan asks nothing, and waits for no norms."""
    planner = PlannerState(shards=1, start=None, follows=True)
    for offset, message in enumerate(cut_counts(two_hats()[0], shard=0)):
        planner.add(offset, message)
    start = planner.slot_to_plan().start
    planner.planned(start, SLOT_END, [0])
    (norms,) = cut_norms(PlateNorms.nobody(), start, SLOT_END, shard=0, city=(5, 7))
    planner.add(planner.counts.next_offset, norms)
    assert not list(planner.answers_without_factors()), "the plan is not on the broker yet"
    planner.sent()
    (answer,) = planner.answers_without_factors()
    assert (answer.shard, answer.factors) == (0, b"")
    planner.add(planner.counts.next_offset, norms)  # its next owner says it again
    assert not list(planner.answers_without_factors()) and planner.city_to_ask() is None


def test_norms_that_came_before_a_plan_is_made_are_not_lost():
    """Who takes over the planner reads them behind the counts, and plans then."""
    planner = PlannerState(shards=1, start=None, follows=True)
    log = list(cut_counts(two_hats()[0], shard=0))
    start = log[0].slot_start
    log += cut_norms(PlateNorms.nobody(), start, SLOT_END, shard=0)
    for offset, message in enumerate(log):
        planner.add(offset, message)
    planner.slot_to_plan()
    planner.planned(start, SLOT_END, [0], hats={b"a": 1})
    planner.sent()
    assert planner.norms_to_remember().start == start


def test_what_a_shard_has_released_it_has_whatever_an_owner_of_before_says_later():
    planner = PlannerState(shards=1, start=None, follows=True)
    log = list(cut_counts(two_hats()[0], shard=0))
    start = log[0].slot_start
    log += [ReleaseMarker(0, SLOT_END), ReleaseMarker(0, start)]
    for offset, message in enumerate(log):
        planner.add(offset, message)
    planner.slot_to_plan()
    planner.planned(start, SLOT_END, [0])
    planner.sent()
    assert planner.slot_to_learn().start == start
