"""What the answer on the city's hour lets a plate lose, by every road to it, is what it was charged
for it; its noise is as large as is said; and nothing but that charge is answered."""

import dataclasses
from math import sqrt

import msgspec
import numpy as np
import pytest
from scipy import stats

from streams.wire import cut_norms, merge_norms
from tests.failing import Died
from tests.privacy.replayed import Named, audited, played
from tests.privacy.test_city_audit import (
    MUCH,
    RHO,
    charges_of,
    city,
    context,
    payloads_of,
    shards_of,
    with_speeds,
)
from tests.unit.test_flow import run
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.ids import CITY, CITY_HOUR, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.around import PlateNorms, merged_norms
from udp_stream.mechanisms.noise import Lattice, lattice_of
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release import charge
from udp_stream.release import city as of_city
from udp_stream.release.charge import charge_city, plan_slot, with_forecaster
from udp_stream.release.city import CityHour, HourMean, hour_charges, hour_plan
from udp_stream.release.pipeline import hour_norms, record_hour
from udp_stream.release.promise import release_slot
from udp_stream.testing import SeededEntropy
from udp_stream.windows.tables import SlotValues

BOTH = pytest.mark.parametrize("flags", [RHO, MUCH], ids=["rho", "pure"])
PERIOD = "1d"


def questioned(flags, plates=150):
    """A slot of a city about as slow as forecast, and the plan that is the question of its hour
    alone."""
    counts, fast = city(plates)
    values = dataclasses.replace(fast, speed=fast.speed // 4)
    plan = plan_slot(counts, context(flags), MemoryLedger(), asks=True)
    assert plan.is_question
    return counts, values, plan


def answer(plan, counts, flags, norms, entropy=None):
    """The record that these norms lead to, once the plates are charged for it."""
    given, ledger = context(flags), MemoryLedger()
    if entropy is not None:
        given = dataclasses.replace(given, entropy=entropy)
    assert charge_city(plan.city, hour_charges, counts, PERIOD, given.policy, ledger) is not None
    record_hour(given, norms, plan, ledger)
    (entry,) = ledger.entries()
    return entry.payload


def together(counts, values, plan, flags):
    return hour_norms(PlannedSlot(counts, plan, context(flags).policy), values)


def apart(counts, values, plan, flags):
    """By shards, as their norms travel."""
    arrived = []
    for shard, part in enumerate(shards_of(counts, values, plan)):
        pieces = cut_norms(
            together(*part, flags),
            counts.start_ms,
            counts.end_ms,
            shard,
            rows_max=7,
            is_question=True,
        )
        arrived.append(merge_norms(list(pieces)))
    return merged_norms(arrived)


def hour_of(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY_HOUR]


# The noise, as it comes.

DRAWS = 400


def as_forecast(counts, plan):
    """Speeds near the forecasts: of each plate some km/h off, in all of its pings alike. And the
    statistic without noise, plate by plate, in integers."""
    off = np.random.default_rng(4).integers(-9, 10, len(counts.plates)) * QUANTA_PER_KMH
    of_rows = plan.city.around + off[counts.plate]
    starts = np.append(0, np.cumsum(counts.count))
    values = SlotValues(np.repeat(of_rows, counts.count), starts)
    exact = whole = 0
    for plate in range(len(counts.plates)):
        rows = np.flatnonzero(counts.plate == plate).tolist()
        (weight,) = set(plan.city.weights[rows].tolist())
        pings = int(counts.count[rows].sum())
        room = 5 * QUANTA_PER_KMH * pings
        exact += weight * min(room, max(-room, int(off[plate]) * pings))
        whole += weight * pings
    return values, exact, whole


@BOTH
def test_the_noise_of_an_answer_has_the_stated_scale_and_30_percent_off_is_noticed(flags):
    """A process that ends once the answer is recorded, often."""
    counts, _, plan = questioned(flags)
    values, exact, whole = as_forecast(counts, plan)
    log = []
    run(MemoryLedger(), context(flags), (counts, values), log=log)
    off = []
    for number in range(DRAWS):
        given = dataclasses.replace(context(flags), entropy=SeededEntropy(number))
        ledger = MemoryLedger()
        with pytest.raises(Died):
            run(
                ledger,
                with_forecaster(given),
                (counts, values),
                log.index("published"),
                answered=True,
            )
        (entry,) = hour_of(ledger)
        told = CityHour.decode(entry.payload).offset_kmh
        # The clip is undone by a table: done again, it gives what was drawn.
        clipped = np.interp(told, of_city.OFFSETS, of_city.clipped_mean(of_city.OFFSETS))
        off.append(clipped - exact / whole / QUANTA_PER_KMH)
    about = msgspec.json.decode(plan.city.about, type=HourMean)
    paid = plan.city.charged.max() / NANO
    most = np.bincount(counts.plate, weights=plan.city.weights * counts.count).max()
    reach = 2 * 5 * most / whole
    is_pure = about.cost.measure == "pure"
    scale = reach / paid if is_pure else reach / sqrt(2 * paid)
    size = np.abs(np.array(off)) / scale
    law = (size.sum(), stats.gamma(DRAWS)) if is_pure else ((size**2).sum(), stats.chi2(DRAWS))

    def likely(share):
        found = law[0] / (share if is_pure else share**2)
        return 2 * min(law[1].cdf(found), law[1].sf(found))

    assert likely(1.0) > 1e-3 > max(likely(0.7), likely(1.3))
    family = "laplace" if is_pure else "norm"
    assert stats.kstest(np.array(off) / scale, family).pvalue > 1e-4


# What is lost, beside what is charged.


def slot_played(counts, values, flags, seed, given=None):
    """A slot down the road; `given` noisy integers replace its own."""
    to = dataclasses.replace(context(flags), entropy=Named(seed))

    def go(_, this):
        def publish(recorded):
            this.payloads.extend(recorded.payloads.values())

        release_slot(counts, values, to, this.ledger, publish)

    return played([None], go, given)


def slot_audited(contents, plate, flags, kind=None, seed=1):
    fast, slow = (
        with_speeds(*contents, plate, lambda n, kmh=kmh: np.full(n, kmh * QUANTA_PER_KMH))
        for kmh in (65, 0)
    )
    first = slot_played(contents[0], fast, flags, seed)
    second = slot_played(contents[0], slow, flags, seed, given=first)
    assert first.ledger.calls == second.ledger.calls and first.payloads == second.payloads
    assert payloads_of(first.ledger) == payloads_of(second.ledger)
    return audited(first, second, plate, kind), first, second


def some_plates(counts):
    """Plates in one HAT and in many, with the fewest and the most pings."""
    hats = np.bincount(counts.plate)
    pings = np.bincount(counts.plate, weights=counts.count)
    found = []
    for group in (np.flatnonzero(hats == 1), np.flatnonzero(hats > 2)):
        by_pings = group[np.argsort(pings[group], kind="stable")]
        found += by_pings[[0, by_pings.size // 2, -1]].tolist()
    return [counts.plates[number] for number in found]


@BOTH
def test_no_plate_of_a_slot_with_the_question_loses_more_than_its_charges(flags):
    contents = city()
    for plate in some_plates(contents[0]):
        whole, first, second = slot_audited(contents, plate, flags)
        kinds = {kind_of(entry.release_id) for entry in first.ledger.entries() if entry.payload}
        assert {"hat", CITY, CITY_HOUR} <= kinds
        assert 0 < whole.most <= whole.charged
        hour = audited(first, second, plate, CITY_HOUR)
        # It drives at either end of the clip: all that it pays for is lost.
        assert 0.99 * hour.charged < hour.most <= hour.charged
        if flags is MUCH:
            assert abs(hour.seen) <= hour.most


def test_noise_for_the_hour_that_is_too_small_is_caught(planted):
    def narrow(sensitivity, cost):
        honest = lattice_of(sensitivity, cost)
        return Lattice(honest.t * 7 // 10, honest.shift)

    planted(of_city, lattice_of=narrow)
    contents = city()
    for flags, more in ((MUCH, 1.4), (RHO, 2.0)):
        for plate in some_plates(contents[0])[::2]:
            hour, *_ = slot_audited(contents, plate, flags, CITY_HOUR)
            assert hour.most > more * hour.charged


def underpaid(counts, policy, known):
    """Asks plates of a single HAT for one nano-unit."""
    plan = hour_plan(counts, policy, known)
    of_one = np.bincount(counts.plate)[counts.plate] == 1
    return plan and dataclasses.replace(plan, charged=np.where(of_one, 1, plan.charged))


@BOTH
def test_an_hour_that_was_not_paid_for_is_never_drawn(planted, flags):
    planted(charge, hour_plan=underpaid)
    ledger = MemoryLedger()
    with pytest.raises(PrivacyRefused, match="city-hour:"):
        run(ledger, context(flags), city())
    assert hour_of(ledger) and not any(entry.payload for entry in ledger.entries())


# Together and apart.


@BOTH
def test_shards_together_give_the_bytes_of_the_whole_slot(flags):
    counts, values, plan = questioned(flags)
    assert (np.bincount(counts.plate) > 2).sum() > 40, "plates on several shards"
    some = some_plates(counts)
    found = set()
    for plate in (some[0], some[-1]):
        for kmh in (0, 19, 65):
            driven = with_speeds(
                counts, values, plate, lambda n, kmh=kmh: np.full(n, kmh * QUANTA_PER_KMH)
            )
            one, other = (
                answer(plan, counts, flags, norms(counts, driven, plan, flags))
                for norms in (together, apart)
            )
            assert one == other is not None
            found.add(one)
    assert len(found) > 1


@BOTH
def test_a_plate_that_the_plan_does_not_know_moves_nothing(flags):
    counts, values, plan = questioned(flags)
    hat_of = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
    keep = hat_of != 2
    strangers = dataclasses.replace(
        counts,
        plates=(*counts.plates, *(b"zzzz%04d" % i for i in range(len(counts.plates)))),
        plate=np.where(keep, counts.plate, counts.plate + len(counts.plates)),
    )
    found = []
    for kmh in (0, 65):
        speed = np.where(np.repeat(keep, counts.count), values.speed, kmh * QUANTA_PER_KMH)
        driven = dataclasses.replace(values, speed=speed)
        # The plan travelled: its HATs are known by their rows.
        ((_, _, known),) = shards_of(counts, values, plan, number=1)
        norms = together(strangers, driven, known, flags)
        assert not norms.norm[len(counts.plates) :].any()
        found.append(answer(plan, counts, flags, norms))
    rest = dataclasses.replace(plan, rows=plan.digests).subset(np.arange(counts.cells.size) != 2)
    found.append(answer(plan, counts, flags, together(counts, values, rest, flags)))
    assert len(set(found)) == 1
    assert found[0] != answer(plan, counts, flags, together(counts, values, plan, flags))


@BOTH
def test_a_plate_that_no_shard_measured_moves_nothing_and_without_any_nothing_is_drawn(flags):
    counts, values, plan = questioned(flags)
    found = set()
    for plate in some_plates(counts):
        number = counts.plates.index(plate)
        of_plate = set()
        for kmh in (0, 65):
            driven = with_speeds(
                counts, values, plate, lambda n, kmh=kmh: np.full(n, kmh * QUANTA_PER_KMH)
            )
            norms = together(counts, driven, plan, flags)
            columns = [np.delete(column, number) for column in norms.columns]
            names = (*counts.plates[:number], *counts.plates[number + 1 :])
            of_plate.add(answer(plan, counts, flags, PlateNorms(names, *columns)))
        assert len(of_plate) == 1
        found |= of_plate
    assert len(found) > 1
    assert answer(plan, counts, flags, PlateNorms.nobody()) is None


@BOTH
def test_plates_that_no_shard_measured_take_no_part_in_the_mean(flags):
    """Of a city that is 4 km/h off a half of which is measured, 4 km/h are told, and not 2."""
    counts, _, plan = questioned(flags, plates=300)
    starts = np.append(0, np.cumsum(counts.count))
    slow = SlotValues(np.repeat(plan.city.around - 4 * QUANTA_PER_KMH, counts.count), starts)
    norms = together(counts, slow, plan, flags)
    half = PlateNorms(norms.plates[::2], *(column[::2] for column in norms.columns))
    told = {}
    for name, measured in (("all", norms), ("half", half)):
        found = [
            CityHour.decode(answer(plan, counts, flags, measured, SeededEntropy(seed)))
            for seed in range(20)
        ]
        told[name] = np.median([one.offset_kmh for one in found]), found[0].usual_deviation_kmh
    assert told["half"][0] == pytest.approx(told["all"][0], abs=1.0)
    assert told["half"][1] > 1.1 * told["all"][1]


# What is asked by another.


class NoHour(SeededEntropy):
    """Has no bits for the city's hour."""

    def streams(self, release_ids):
        assert not any(kind_of(name) == CITY_HOUR for name in release_ids)
        return super().streams(release_ids)


@BOTH
@pytest.mark.parametrize("change", ["about", "around", "weights"])
def test_a_question_that_another_version_charged_is_not_answered_and_the_slot_is_released(
    flags, change
):
    counts, values, plan = questioned(flags)
    given, ledger = context(flags), MemoryLedger()
    other = {
        "about": plan.city.about.replace(b'"own":', b'"own":1'),
        "around": plan.city.around + 1,
        "weights": np.maximum(plan.city.weights - 1, 0),
    }
    asked = dataclasses.replace(plan.city, **{change: other[change]})
    period = given.calendar.slot_in_period(counts.start_ms).period
    assert charge_city(asked, hour_charges, counts, period, given.policy, ledger) is not None
    before = charges_of(ledger, CITY_HOUR)
    for _ in range(2):
        published = run(
            ledger, dataclasses.replace(context(flags), entropy=NoHour(1)), (counts, values)
        )
        (entry,) = hour_of(ledger)
        assert entry.payload is None and charges_of(ledger, CITY_HOUR) == before
        assert len(published) == counts.cells.size
    assert ledger.verify() == [] and list(ledger.unpublished()) == []


@BOTH
def test_hats_that_a_version_charged_without_the_question_keep_their_terms(flags):
    """It died before it recorded any. The next one asks, and draws what was charged."""
    contents, log = city(), []
    with pytest.MonkeyPatch.context() as older:
        older.setattr(charge, "hour_plan", lambda *_: None)
        run(without := MemoryLedger(), context(flags), contents, log=log)
        ledger = MemoryLedger()
        with pytest.raises(Died):
            run(ledger, context(flags), contents, log.index("mark") - 1)
    run(ledger, context(flags), contents)
    (entry,) = hour_of(ledger)
    assert entry.payload is not None and hour_of(without) == []
    found = payloads_of(ledger)
    del found[entry.release_id]
    assert found == payloads_of(without)
