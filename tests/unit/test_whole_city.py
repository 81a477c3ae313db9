"""What a slot's plates are asked of the whole city: when, of whom, once, and what is made of the answer."""

import dataclasses
import datetime as dt

import numpy as np
import pytest

from tests.unit.test_forecaster import FLAGS, contents, said, slot_ends
from udp_stream.adapters.settings import load
from udp_stream.errors import ConfigError
from udp_stream.forecast.bank import USUAL_SPREAD, WIDER, Told
from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import SlotPrior
from udp_stream.forecast.slot import forecast_slot
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Admission
from udp_stream.planning import whole_city
from udp_stream.planning.whole_city import MEAN_PART, SPREAD_PART, TOLD_KMH, ask_city
from udp_stream.release.city_record import decode_city
from udp_stream.release.context import ReleaseContext, around_forecasts
from udp_stream.release.forecaster import Forecaster
from udp_stream.release.history import LedgerHistory
from udp_stream.release.record import CITY, city_id, kind_of
from udp_stream.release.road import release_slot
from udp_stream.release.smoothed import encode_smoothed, smooth_slot
from udp_stream.release.whole_city import charge_city
from udp_stream.testing import SeededEntropy

ON = (*FLAGS, "forecast.city=on")
SETTINGS = load(None, ON, {})
BUDGET = SETTINGS.policy.budget_nano
DAY = dt.date(2024, 1, 8)
CROWD = {"plates": 160, "pings": 8000}


def a_forecaster():
    return Forecaster(SETTINGS.calendar.slots, SETTINGS.policy.max_speed, "udp-stream test")


def released(ledger, number, forecaster=None, *flags, seed=3, **crowd):
    """One slot of a crowd down the road; its payloads."""
    forecaster = a_forecaster() if forecaster is None else forecaster
    given = ReleaseContext(load(None, (*ON, *flags), {}).policy, SETTINGS.calendar, SeededEntropy(seed), "test",
                           planner=around_forecasts(forecaster), forecaster=forecaster)  # fmt: skip
    return release_slot(*contents(number, **CROWD | crowd), given, ledger, publish=lambda _: None).payloads


def answers(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY]


def asked(counts, precision=0.0, policy=SETTINGS.policy):
    return ask_city(counts, forecast_slot(counts, Memory(), DAY, max_kmh=65.0), precision, policy)


@pytest.mark.parametrize("flags", [(), ("budget.accounting=approximate",)])
def test_all_are_charged_at_most_the_two_parts_and_whoever_can_move_a_sum_most_is_charged_them_whole(flags):
    counts, _ = contents(0, **CROWD)
    policy = load(None, (*ON, *flags), {}).policy
    found = asked(counts, policy=policy)
    parts = policy.budget_nano * MEAN_PART // 1000, policy.budget_nano * SPREAD_PART // 1000
    assert (found.costs.mean.nano, found.costs.spread.nano) == parts
    # Nobody moves both sums most: the sum of both parts is a bound, and rounding up to the lattice is a little more.
    assert 0.8 * sum(parts) < found.charges.max() <= 1.001 * sum(parts) + 2
    assert found.charges[np.unique(counts.plate)].min() > 0


def test_nothing_is_asked_where_it_is_off_where_answers_have_told_enough_or_of_few_plates():
    counts, _ = contents(0, **CROWD)
    enough = TOLD_KMH**-2
    assert asked(counts, 0.99 * enough) is not None
    assert asked(counts, 1.01 * enough) is None
    assert asked(counts, policy=load(None, FLAGS, {}).policy) is None
    assert asked(contents(0)[0]) is None  # of 25 plates


@pytest.mark.parametrize(
    "flags",
    [("release.mean=baseline",), *((f"release.counts={of}", "forecast.counts=off") for of in ("released", "none"))],
)
def test_who_has_no_forecasts_or_keeps_counts_back_cannot_ask(flags):
    load(None, flags, {})
    with pytest.raises(ConfigError, match=r"forecast\.city"):
        load(None, (*flags, "forecast.city=on"), {})


def test_whoever_cannot_pay_takes_no_part_and_is_not_charged():
    counts, _ = contents(0, **CROWD)
    found, ledger, policy = asked(counts), MemoryLedger(), SETTINGS.policy
    poor = np.arange(0, len(counts.plates), 3)
    all_but_a_little = np.full(poor.size, BUDGET - 10)
    ledger.admit("1d", BUDGET, counts.plates, [Admission("before", poor, all_but_a_little, 0, b"")])
    plan = charge_city(found, counts, "1d", policy, ledger)
    takes_part = plan.rows.weights > 0
    assert not takes_part[np.isin(counts.plate, poor)].any() and takes_part[~np.isin(counts.plate, poor)].all()
    (entry,) = answers(ledger)
    charged = dict(zip(entry.plates, entry.charged.tolist(), strict=True))
    assert {plate for plate, charge in charged.items() if charge == 0} == {counts.plates[i] for i in poor}
    assert plan.plates == len(counts.plates) - poor.size


def test_where_most_cannot_pay_nobody_is_charged():
    counts, _ = contents(0, **CROWD)
    ledger = MemoryLedger()
    poor = np.arange(len(counts.plates) * 3 // 5)
    ledger.admit("1d", BUDGET, counts.plates, [Admission("before", poor, np.full(poor.size, BUDGET - 10), 0, b"")])
    assert charge_city(asked(counts), counts, "1d", SETTINGS.policy, ledger) is None
    assert sum(int(entry.charged.sum()) for entry in answers(ledger)) == 0


def test_a_charge_on_other_terms_is_never_drawn_for():
    """A version that forecasts otherwise charges, and dies: what that charge allows is not known any more."""
    counts, _ = contents(0, **CROWD)
    ledger, found = MemoryLedger(), asked(counts)
    assert charge_city(found, counts, "1d", SETTINGS.policy, ledger) is not None
    moved = dataclasses.replace(found.rows, centres=found.rows.centres + 4096)
    assert charge_city(found._replace(rows=moved), counts, "1d", SETTINGS.policy, ledger) is None
    charges = [entry.charged.tolist() for entry in answers(ledger)]
    assert charge_city(found, counts, "1d", SETTINGS.policy, ledger) is not None  # who charged can go on
    assert [entry.charged.tolist() for entry in answers(ledger)] == charges


def test_a_slot_that_is_released_again_asks_and_draws_nothing_anew():
    ledger = MemoryLedger()
    first = released(ledger, 0)
    (kept,) = answers(ledger)
    assert released(ledger, 0, seed=4) == first
    (found,) = answers(ledger)
    assert found.payload == kept.payload is not None and found.published and not list(ledger.unpublished())
    assert np.array_equal(found.charged, kept.charged)


def test_what_is_recorded_says_what_plates_told():
    ledger = MemoryLedger()
    released(ledger, 0)
    (entry,) = answers(ledger)
    counts, values = contents(0, **CROWD)
    told = decode_city(entry.release_id, entry.payload).told
    of_row = np.add.reduceat(values.speed, values.starts[:-1]) / counts.count / 4096
    assert told.plates == len(counts.plates) and told.cells.tolist() == counts.cells.tolist()
    assert told.share.sum() == pytest.approx(1, abs=1e-4)
    of_plate = np.array([np.average(of_row[counts.plate == i], weights=counts.count[counts.plate == i])
                         for i in range(len(counts.plates))])  # fmt: skip
    assert abs(told.mean - of_plate.mean()) < 4 * told.variance**0.5  # 30 km/h from a forecast hides little here
    assert 0 < told.spread < 3 and 0 < told.variance < whole_city.NOISE_MAX_KMH**2


@pytest.mark.parametrize("flags", [(), ("release.min_plates=1000",)], ids=["releases", "every-hat-withheld"])
def test_a_forecaster_restarted_after_any_slot_has_learnt_the_same_answers(flags, monkeypatch):
    monkeypatch.setattr(whole_city, "TOLD_KMH", 1e-3)  # asked again and again
    ledger, always = MemoryLedger(), a_forecaster()
    numbers = [0, 1, 2, 3, 5, 8]
    for number in numbers:
        released(ledger, number, always, *flags)
        assert said(always, number + 1, ledger) == said(a_forecaster(), number + 1, ledger)
    asks = [entry.release_id for entry in answers(ledger)]
    assert len(asks) >= 4 and asks[0] == city_id(*slot_ends(0))
    without = MemoryLedger()
    for number in numbers:
        released(without, number, None, *flags, "forecast.city=off")
    assert not answers(without) and said(a_forecaster(), 9, without) != said(a_forecaster(), 9, ledger)


def test_estimates_follow_from_records_and_answers_alone():
    ledger = MemoryLedger()
    for number in range(3):
        released(ledger, number)
    history = LedgerHistory(ledger)
    made = []
    for one in (a_forecaster(), a_forecaster()):
        made.append([encode_smoothed(of) for number in range(3) for of in one.smoothed(slot_ends(number), history)])
    assert made[0] == made[1]

    class Without(LedgerHistory):
        def city(self, *_):
            return None

    other = a_forecaster()
    assert [encode_smoothed(of) for n in range(3) for of in other.smoothed(slot_ends(n), Without(ledger))] != made[0]


def test_what_is_told_moves_all_forecasts_towards_it_and_is_forgotten_after_two_days():
    memory, prior = Memory(), SlotPrior(np.zeros(0), np.full(3, 0.5), np.zeros((3, 6)))
    cells = np.array([7, 8, 9], np.uint64)
    before = memory.guess(DAY, prior).mean
    told = Told(cells, np.full(3, 1 / 3), float(before.mean()) - 8, 1.0, USUAL_SPREAD, 0.01, 120)
    memory.learn_city(DAY, told, prior)
    assert (memory.guess(DAY, prior).mean < before - 4).all()
    assert memory.precision(DAY) == pytest.approx(1.0) and memory.precision(DAY + dt.timedelta(days=3)) == 0
    assert (memory.guess(DAY + dt.timedelta(days=3), prior).mean == before).all()


@pytest.mark.parametrize(("spread", "noise", "low", "high"), [
    (USUAL_SPREAD, 0.01, 1, 1), (2 * USUAL_SPREAD, 0.01, 1.8, 2.0), (2 * USUAL_SPREAD, 10.0, 1, 1.1),
    (0.1, 0.001, *2 * WIDER[:1]), (99.0, 0.01, *2 * WIDER[1:]),
])  # fmt: skip
def test_plates_that_scatter_more_than_usual_make_intervals_wider(spread, noise, low, high):
    ledger = MemoryLedger()
    released(ledger, 0, None, "forecast.city=off")
    records = LedgerHistory(ledger).releases(*slot_ends(0), contents(0, **CROWD)[0].cells.tolist())
    memory, given = Memory(), (DAY, 65.0, "udp-stream test")
    cells = np.array([int(one.hat.cell, 16) for one in records], np.uint64)
    told = Told(cells, np.full(cells.size, 1 / cells.size), 20.0, 1e6, spread, noise, 160)  # nothing of the mean
    usual = smooth_slot(records, Memory(), *given)
    found = smooth_slot(records, memory, *given, told=told)
    # Each side for itself, as intervals are cut to [0, U].
    sides = [(abs(ours - one.value_kmh), abs(theirs - one.value_kmh)) for one, other in zip(found, usual, strict=True)
             for ours, theirs in zip(one.interval95_kmh, other.interval95_kmh, strict=True)
             if min(ours, theirs) > 0 and max(ours, theirs) < 65]  # fmt: skip
    wider = [ours / theirs for ours, theirs in sides]
    assert len(wider) > 3
    assert all(low - 0.02 <= one <= high + 0.02 for one in wider), wider


def test_slots_are_asked_until_the_citys_mean_is_told():
    """Of one day of crowded slots the first are asked; their answers together are as precise as asked for."""
    ledger, forecaster = MemoryLedger(), a_forecaster()
    for number in range(8):
        released(ledger, number, forecaster)
    found = answers(ledger)
    assert 1 <= len(found) < 8
    told = [decode_city(entry.release_id, entry.payload).told for entry in found]
    precision = np.cumsum([1 / one.variance for one in told])
    assert (precision[:-1] < TOLD_KMH**-2).all() and precision[-1] >= TOLD_KMH**-2
