"""What the city's answer lets a plate lose, by every road to it, is what it was charged; and that
is checked."""

import dataclasses
from functools import cache
from math import sqrt

import msgspec
import numpy as np
import pytest
from h3.api.basic_int import grid_disk

from streams.wire import cut_plan, merge_plan
from tests.failing import Died
from tests.unit.test_flow import run
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.ledger.ids import CITY, CITY_HOUR, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.noise import counts_scale
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import ReleaseContext, plan_slot, with_forecaster
from udp_stream.release.city import CityTree, ShapeQuestion
from udp_stream.release.pipeline import slot_sums
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.tables import SlotPings, SlotValues, tabulate

START, HOUR_MS = 1_641_011_400_000, 3_600_000
CELLS, MORE_CELLS = (
    tuple(sorted(map(int, grid_disk(609161983530369023, size)))) for size in (1, 2)
)
PURE, RHO = ("budget.accounting=pure",), ("budget.accounting=approximate",)
U = 65 * 4096


def city(plates=150, cells=CELLS):
    """A slot: each third plate stays in one cell, others have many pings in one and few in others;
    1 to 60 in all."""
    rng = np.random.default_rng(0)
    plate, cell = [], []
    for number in range(plates):
        home, pings = number % len(cells), int(rng.integers(1, 61))
        is_away = rng.random(pings) < (0.0 if number % 3 == 0 else 0.3)
        plate += [number] * pings
        cell += np.where(is_away, rng.integers(0, len(cells), pings), home).tolist()
    return slot_of(plates, np.array(plate), np.array(cells, np.uint64)[cell])


def crowded(plates=150, visits=6, pings=20):
    """A slot in which each plate has as many pings in each of its HATs as in any other: it pays
    what all HATs cost."""
    rng = np.random.default_rng(0)
    cell = np.concatenate(
        [rng.permutation(len(MORE_CELLS))[:visits].repeat(pings) for _ in range(plates)]
    )
    return slot_of(
        plates, np.arange(plates).repeat(visits * pings), np.array(MORE_CELLS, np.uint64)[cell]
    )


def slot_of(plates, plate, cell):
    names = tuple(f"hash{i:04}".encode() for i in range(plates))
    times, speed = (
        np.arange(plate.size, dtype=np.uint32),
        np.random.default_rng(1).integers(0, U + 1, plate.size),
    )
    pings = SlotPings(
        START,
        START + HOUR_MS,
        names,
        plate.astype(np.uint32),
        times,
        cell.astype(np.uint64),
        speed.astype(np.int32),
    )
    return tabulate(pings)


def context(flags, question=None, seed=1):
    settings = load(None, flags, {})
    made = ReleaseContext(
        settings.policy, settings.calendar, SeededEntropy(seed), "udp-stream test", city=question
    )
    return with_forecaster(made)


def charges_of(ledger, kind=CITY):
    (entry,) = (one for one in ledger.entries() if kind_of(one.release_id) == kind)
    return dict(zip(entry.plates, entry.charged.tolist(), strict=True))


def shards_of(counts, values, plan, number=3):
    """Each shard's cells as they travel. A plate's rows lie on several shards, in unequal numbers."""
    owner = np.arange(counts.cells.size) % number
    for shard in range(number):
        mine = owner == shard
        rows = np.repeat(mine, np.diff(counts.hat_rows))
        kept, plate = np.unique(counts.plate[rows], return_inverse=True)
        here = dataclasses.replace(
            counts, plates=tuple(counts.plates[i] for i in kept.tolist()), cells=counts.cells[mine],
            hat_rows=np.append(0, np.cumsum(np.diff(counts.hat_rows)[mine])), plate=plate, count=counts.count[rows],
        )  # fmt: skip
        speed = values.speed[np.repeat(rows, counts.count)]
        yield (
            here,
            SlotValues(speed, np.append(0, np.cumsum(here.count))),
            merge_plan(list(cut_plan(plan.subset(mine), shard))),
        )


def together(counts, values, plan):
    given = context(PURE)
    return np.array(slot_sums(given, PlannedSlot(counts, plan, given.policy), values))


def apart(counts, values, plan):
    return sum(together(*of_shard) for of_shard in shards_of(counts, values, plan))


def loss_nano(tree, moved):
    """What the noise of an answer lets a plate lose that moves the sums so: exact, of discrete
    noise a bound."""
    t, s = counts_scale(tree.most, tree.cost)
    if tree.cost.measure == "pure":
        return np.abs(moved).sum() * s / t * NANO
    return (sqrt((moved.astype(float) ** 2).sum()) * s / t) ** 2 / 2 * NANO


def with_speeds(counts, values, plate, speeds):
    mine = np.repeat(counts.plate == counts.plates.index(plate), counts.count)
    speed = values.speed.copy()
    speed[mine] = speeds(int(mine.sum()))
    return dataclasses.replace(values, speed=speed)


@cache
def planned(flags):
    counts, values = city()
    ledger = MemoryLedger()
    return counts, values, plan_slot(counts, context(flags), ledger), charges_of(ledger)


@pytest.mark.parametrize("sums", [together, apart])
@pytest.mark.parametrize("flags", [PURE, RHO])
def test_a_plate_loses_what_it_was_charged_in_one_hat_or_many_on_one_shard_or_many(flags, sums):
    counts, values, plan, charged = planned(flags)
    tree, rng = msgspec.json.decode(plan.city.about, type=CityTree), np.random.default_rng(3)
    hats = np.bincount(counts.plate)
    assert (hats == 1).sum() > 40 and (hats > 2).sum() > 40
    of_loss = []
    for number in (
        *np.flatnonzero(hats == 1)[:12].tolist(),
        *np.flatnonzero(hats > 2)[:12].tolist(),
    ):
        plate = counts.plates[number]
        slow, fast = (
            with_speeds(counts, values, plate, lambda n, kmh=kmh: np.full(n, kmh * 4096))
            for kmh in (0, 65)
        )
        mixed = with_speeds(counts, values, plate, lambda n: rng.integers(0, 2 * U, n))
        found = [sums(counts, one, plan) for one in (slow, fast, mixed)]
        most = max(loss_nano(tree, a - b) for a in found for b in found)
        assert most <= charged[plate]
        of_loss.append(most / charged[plate])
    assert min(of_loss) > 0.99, (
        "a plate that drives otherwise throughout moves all that it pays for"
    )


def test_plates_that_the_plan_does_not_know_move_nothing():
    counts, values, plan, _ = planned(RHO)
    known, truth = merge_plan(list(cut_plan(plan, 0))), together(counts, values, plan)
    fewer = np.array([number for number in range(counts.cells.size) if number != 2])
    keep = np.isin(np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows)), fewer)
    # Rows of the third HAT belong to plates that were never charged, as many and with as many
    # pings.
    strangers = dataclasses.replace(
        counts,
        plates=(*counts.plates, *(f"zzzz{i:04}".encode() for i in range(len(counts.plates)))),
        plate=np.where(keep, counts.plate, counts.plate + len(counts.plates)),
    )
    speeds = [
        values,
        dataclasses.replace(values, speed=np.where(np.repeat(keep, counts.count), values.speed, 0)),
    ]
    first, second = (together(strangers, one, known) for one in speeds)
    assert np.array_equal(first, second) and first.sum() < truth.sum()
    rest = dataclasses.replace(plan, rows=plan.digests).subset(np.arange(counts.cells.size) != 2)
    assert np.array_equal(first, together(counts, values, rest))


class Underpaid(ShapeQuestion):
    """Asks plates of a single HAT for one nano-unit."""

    def ask(self, counts, policy, known):
        plan = super().ask(counts, policy, known)
        if plan is None:
            return None
        of_one = np.bincount(counts.plate)[counts.plate] == 1
        return dataclasses.replace(plan, charged=np.where(of_one, 1, plan.charged))


@pytest.mark.parametrize("flags", [PURE, RHO])
def test_an_answer_that_was_not_paid_for_is_never_drawn(flags):
    ledger, contents = MemoryLedger(), city()
    with pytest.raises(PrivacyRefused, match="city:"):
        run(ledger, context(flags, Underpaid()), contents)
    assert 1 in charges_of(ledger).values() and not any(entry.payload for entry in ledger.entries())


def test_a_shard_refuses_a_plan_whose_charges_pay_for_less_than_its_weights_ask():
    counts, values, plan, _ = planned(PURE)
    for part, of_values, of_plan in shards_of(counts, values, plan):
        charged = of_plan.city.charged.copy()
        charged[part.plate == part.plate[np.argmax(of_plan.city.weights * part.count)]] //= 1000
        broken = dataclasses.replace(
            of_plan, city=dataclasses.replace(of_plan.city, charged=charged)
        )
        with pytest.raises(PrivacyRefused, match="city:"):
            together(part, of_values, broken)


MUCH = (*PURE, "budget.epsilon=100")
"""Under pure accounting the city's hour is asked for much."""


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(
    ("flags", "questions"),
    [(PURE, {CITY}), (RHO, {CITY, CITY_HOUR}), (MUCH, {CITY, CITY_HOUR})],
    ids=["pure", "rho", "much"],
)
def test_a_crash_at_every_call_of_a_slot_with_an_ask_comes_to_the_bytes_of_an_undisturbed_run(
    flags, questions, answered
):
    contents, log = crowded(), []
    flags = ("budget.epsilon=20", *flags, "release.min_plates=3")
    expected, undisturbed = (
        run(undisturbed_ledger := MemoryLedger(), context(flags), contents, log=log),
        log.copy(),
    )
    records = [Release.decode(payload) for _, payload in expected]
    assert len({one.privacy.epsilon for one in records}) > 2, (
        "some at the price, some at a part, and some withheld"
    )
    kinds = {kind_of(entry.release_id) for entry in undisturbed_ledger.entries() if entry.payload}
    assert questions == kinds & {CITY, CITY_HOUR}
    for dies_at in range(len(undisturbed)):
        ledger = MemoryLedger()
        with pytest.raises(Died):
            run(ledger, context(flags), contents, dies_at, answered=answered)
        run(ledger, context(flags), contents)
        assert payloads_of(ledger) == payloads_of(undisturbed_ledger), (
            dies_at,
            undisturbed[dies_at],
        )


def payloads_of(ledger):
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    return {
        entry.release_id: (
            entry.payload,
            sorted(zip(entry.plates, entry.charged.tolist(), strict=True)),
        )
        for entry in ledger.entries()
    }
