"""Counts to the planner and plans back: cut, merged, doubled, out of order, and never a speed among
them."""

import dataclasses
import random
from itertools import count

import msgspec
import numpy as np
import pytest

from streams.protocol import (
    NOT_YET,
    BarrierCheckpoint,
    MeasureNorms,
    PlannerState,
    PlanSlot,
    QueryCity,
    ReleaseSlot,
    ShardCheckpoint,
    ShardProtocol,
)
from streams.wire import (
    PLANNER,
    CountChunk,
    CountsEnd,
    NormChunk,
    PingChunk,
    PingsEnd,
    ReleaseMarker,
    cut_counts,
    cut_factors,
    cut_norms,
    cut_pings,
    cut_plan,
    decode_message,
    encode_message,
    merge_counts,
    merge_norms,
    merge_pings,
    merge_plan,
    shard_of,
)
from tests.unit.test_flow import a_context
from tests.unit.test_planner import city
from tests.unit.test_shards import HOUR, chunks_of, some_slot, two_sources
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import CITY_HOUR
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.around import PlateNorms
from udp_stream.mechanisms.base import ForecastClipTerms, StatisticTerms
from udp_stream.planning.plan import Terms
from udp_stream.planning.slot import CityPlan, SlotPlan
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


@pytest.mark.parametrize("partial", [0, 1])
def test_a_slot_of_which_one_shard_has_a_part_is_partial(partial):
    """The others' sources may have read all of it; no HAT of it is released."""
    sent = []
    for shard in range(2):
        pings = dataclasses.replace(some_slot(shard), partial=shard == partial)
        sent += cut_counts(tabulate(pings)[0], shard)
    assert merge_counts([one for one in sent if isinstance(one, CountChunk)]).partial


def test_a_planner_that_is_behind_its_shard_reads_from_there():
    """Records that were deleted between the two would be missed without a word."""
    start = ShardCheckpoint(BarrierCheckpoint(9), planner=BarrierCheckpoint(4))
    assert ShardProtocol(PLANNER, 1, sources=1, start=start).next_offset == 4


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


# The city's hour: a question alone comes before the plan of a slot's HATs.


def a_question(counts):
    rows = np.arange(counts.count.size)
    return SlotPlan.question(
        counts, CityPlan(rows + 1, rows + 70, 9, b"about", CITY_HOUR, rows + 4096)
    )


def a_clipped_plan(counts):
    """Its plates' clips are shared, so they are measured."""
    ball = ForecastClipTerms(0, b"\0\0" * counts.count.size, ball=True)
    terms = (Terms((StatisticTerms("mean", 1, around=ball),)),) * counts.cells.size
    return SlotPlan(
        *counts.slot, counts.cells, counts.hat_rows, counts, terms, np.ones_like(counts.count)
    )


def norms_of(counts, norm=3):
    ones = np.ones(len(counts.plates), np.int64)
    return PlateNorms(counts.plates, ones, ones, ones, norm * ones, ones)


def asked_shard(**more):
    """A shard that has sent its counts, and these."""
    shard, offset = waiting_shard(**more)
    counts, _ = tabulate(some_slot(1, 0))
    return shard, offset, counts


def gives(shard, offset, chunks):
    for chunk in chunks:
        shard.add(next(offset), decode_message(encode_message(chunk)))


def measures(shard):
    """The shard measures what it is asked, and sends it; the messages."""
    step = shard.next()
    assert isinstance(step, MeasureNorms)
    shard.measured(step, norms_of(step.counts))
    sending = shard.next()
    shard.sent(sending)
    return [message for _, message in sending.messages]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_question_and_its_norms_travel_whole(shards):
    counts = merge_counts(
        [one for one in count_chunks_of(some_slot(4), shards) if isinstance(one, CountChunk)]
    )
    plan = a_question(counts)
    rows = np.diff(counts.hat_rows)
    of_shard = shard_of(plan.cells, shards)
    for shard in range(shards):
        here = of_shard == shard
        chunks = [
            decode_message(encode_message(one))
            for one in cut_plan(plan.subset(here), shard, chunk_bytes=70)
        ]
        found = merge_plan(chunks)
        assert found.is_question and found.is_measured and not found.charged.any()
        assert all(chunk.is_question for chunk in chunks) and len(chunks) > 2
        assert found.cells.tolist() == plan.cells[here].tolist()
        city = found.city
        asked = plan.city.subset(np.repeat(here, rows))
        assert (city.kind, city.plates, city.about) == (CITY_HOUR, 9, b"about")
        for name in ("weights", "charged", "around"):
            assert getattr(city, name).tolist() == getattr(asked, name).tolist()
    assert not any(chunk.is_question for chunk in cut_plan(a_clipped_plan(counts), 0))
    norms = norms_of(counts, -7)
    sent = list(cut_norms(norms, *counts.slot, 2, rows_max=6, is_question=True))
    again = [decode_message(encode_message(one)) for one in sent]
    assert again == sent and all(one.is_question for one in again) and len(again) == 4
    assert merge_norms(again).norm.tolist() == norms.norm.tolist()
    assert not any(one.is_question for one in cut_norms(norms, *counts.slot, 2))


def test_a_shard_measures_a_question_once_and_its_norms_once_and_releases_nothing_on_a_question():
    shard, offset, counts = asked_shard()
    question = list(cut_plan(a_question(counts), 1, chunk_bytes=200))
    gives(shard, offset, question)
    (norms,) = measures(shard)
    assert isinstance(norms, NormChunk) and norms.is_question
    gives(shard, offset, question)
    assert shard.next() is None and shard.checkpoint().offset == 0
    gives(shard, offset, cut_plan(a_clipped_plan(counts), 1))
    (norms,) = measures(shard)
    assert not norms.is_question
    assert shard.next() is None
    gives(shard, offset, cut_factors({}, norms_of(counts), norms))
    step = shard.next()
    assert isinstance(step, ReleaseSlot) and not step.plan.is_question


def test_a_shard_that_was_answered_on_an_older_plan_releases_nothing_on_a_question():
    shard, offset, counts = asked_shard()
    (norms,) = cut_norms(norms_of(counts), *counts.slot, 1)
    gives(
        shard, offset, [*cut_plan(a_question(counts), 1), *cut_factors({}, norms_of(counts), norms)]
    )
    measures(shard)
    assert shard.next() is None


def test_a_question_that_comes_again_behind_the_plan_takes_nothing_of_its_place():
    """A planner that was taken for dead sends the rest of its question late: the slot would be held
    for ever."""
    shard, offset, counts = asked_shard()
    question = list(cut_plan(a_question(counts), 1, chunk_bytes=200))
    plan = a_plan()
    gives(shard, offset, question)
    measures(shard)
    gives(shard, offset, plan_chunks_of(plan))
    gives(shard, offset, question[1:])
    step = shard.next()
    assert isinstance(step, ReleaseSlot) and same(step.plan, merge_plan(plan_chunks_of(plan)))


def test_who_takes_a_shard_over_behind_the_plan_says_what_the_question_asks_and_releases():
    """Where the answer is not recorded the planner asks again; a shard that has read both at once,
    and factors of an older plan, would be waited for."""
    shard, offset, counts = asked_shard()
    (first,) = cut_norms(norms_of(counts), *counts.slot, 1)
    gives(
        shard,
        offset,
        [
            *cut_plan(a_question(counts), 1, chunk_bytes=200),
            *cut_plan(a_clipped_plan(counts), 1),
            *cut_factors({}, norms_of(counts), first),
        ],
    )
    (norms,) = measures(shard)
    assert norms.is_question
    step = shard.next()
    assert isinstance(step, MeasureNorms) and not step.plan.is_question
    shard.measured(step, norms_of(counts))
    assert isinstance(shard.next(), ReleaseSlot)


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_question_of_a_later_slot_tells_that_an_earlier_one_is_lost(accept_loss):
    """The planner waits for our part of it: the earlier slot would be held for ever."""
    shard, offset, _ = asked_shard(slots=2, accept_loss=accept_loss)
    later, _ = tabulate(some_slot(1, HOUR))
    gives(shard, offset, cut_plan(a_question(later), 1))
    step = shard.next()
    assert (step is not None) == accept_loss
    assert step is None or (step.start, step.plan.cells.tolist()) == (0, [])


class AskingPlanner:
    """A planner of two shards that has asked a question of all of a slot."""

    def __init__(self):
        whole = tabulate(some_slot(1))[0]
        of_shard = shard_of(whole.cells, 2)
        self.counts = [
            whole.subset(np.repeat(of_shard == shard, np.diff(whole.hat_rows))) for shard in (0, 1)
        ]
        self.planner = PlannerState(shards=2, start=None, follows=True)
        for shard, counts in enumerate(self.counts):
            self.hears(*cut_counts(counts, shard))
        step = self.planner.slot_to_plan()
        assert step.asks
        self.plan(a_question(merge_counts(step.chunks)))

    def hears(self, *messages):
        for message in messages:
            self.planner.add(self.planner.counts.next_offset, message)

    def plan(self, city=None):
        hats = {plate: 1 for counts in self.counts for plate in counts.plates}
        self.planner.planned(0, HOUR, [0, 1], hats, city)
        self.planner.sent()

    def norms(self, shard, is_question, norm=3):
        counts = self.counts[shard]
        return cut_norms(norms_of(counts, norm), 0, HOUR, shard, is_question=is_question)


def test_a_planner_plans_again_once_the_city_is_told_and_holds_the_counts_until_all_is_learnt():
    asking = AskingPlanner()
    planner = asking.planner
    nothing_done = planner.counts.checkpoint()
    assert (nothing_done.offset, nothing_done.done_ms) == (0, NOT_YET)
    asking.hears(*asking.norms(0, True), *asking.norms(1, False))
    assert planner.next() is None, "norms of HATs are no answer to a question"
    asking.hears(*asking.norms(1, True, 5))
    step = planner.next()
    assert isinstance(step, QueryCity) and step.plan.is_question
    assert set(step.norms.norm.tolist()) == {3 + 5}
    assert planner.counts.checkpoint() == nothing_done
    planner.city_queried()
    again = planner.next()
    assert isinstance(again, PlanSlot) and (again.start, again.asks) == (0, False)
    assert fields(merge_counts(again.chunks)) == fields(tabulate(some_slot(1))[0])
    asking.plan()
    assert planner.next() is None, "answers to a question are no norms of HATs"
    asking.hears(*asking.norms(0, False))
    assert set(planner.next().norms.norm.tolist()) == {3 + 3}
    list(planner.remembered({}))
    asking.hears(*asking.norms(0, True), *asking.norms(1, True))
    assert planner.next() is None and planner.counts.checkpoint() == nothing_done
    asking.hears(ReleaseMarker(0, HOUR), ReleaseMarker(1, HOUR))
    assert planner.next().start == 0 and planner.counts.checkpoint() == nothing_done
    planner.learnt(0)
    assert planner.next() is None
    assert planner.counts.checkpoint().offset == planner.counts.next_offset


def test_shards_that_have_released_already_are_not_waited_for_by_who_asks_anew():
    """Nobody tells the city, and the slot is planned without it."""
    asking = AskingPlanner()
    asking.hears(ReleaseMarker(0, HOUR))
    assert asking.planner.next() is None
    asking.hears(ReleaseMarker(1, HOUR))
    step = asking.planner.next()
    assert isinstance(step, QueryCity) and step.norms.plates == ()
    asking.planner.city_queried()
    assert not asking.planner.next().asks
    asking.plan()
    assert asking.planner.norms_to_remember().norms.plates == ()
