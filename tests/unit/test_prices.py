"""Prices around forecasts: a HAT that too few plates can pay for is offered at a quarter, by
balances and counts."""

import dataclasses
import datetime as dt
from math import ceil

import numpy as np
import pytest

from benchmarks.feeds import feed_of
from benchmarks.forecast_days import OURS, joined, run
from benchmarks.made_up_city import MadeUpCity
from tests.forms import PURE_ENV
from tests.unit.test_forecaster import (
    FLAGS,
    MIDNIGHT,
    SETTINGS,
    SLOT,
    a_forecaster,
    contents,
    nothing_spent,
    terms_held,
)
from udp_stream.forecast.model import Memory
from udp_stream.ledger.port import Admission, Balance
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.plan import HatPlans
from udp_stream.planning.slot import (
    HEAD_START,
    PART_OF_PRICE,
    PRICE_OF_UNKNOWN,
    PRICES_PER_BUDGET,
    PRICES_STEP,
    PRICES_STEPS,
    prices_per_budget,
    terms_around,
)
from udp_stream.release.charge import ForecastPlanner, ReleaseContext
from udp_stream.release.forecaster import LedgerHistory
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

AUTO = load(None, (*FLAGS, "budget.epsilon=60"), PURE_ENV).policy
COUNTS, VALUES = contents(0)
IN_PERIOD = SETTINGS.calendar.slot_in_period(MIDNIGHT)
FORECAST = a_forecaster().forecast(COUNTS, LedgerHistory(MemoryLedger()))


def pace(policy, in_period=IN_PERIOD):
    """The most that a plate may have been charged by the end of this slot."""
    day, (gone, left) = policy.budget_nano // policy.days, in_period.of_day
    before, at_once = policy.budget_nano * in_period.day // policy.days, day * HEAD_START // 100
    return before + at_once + (day - at_once) * (gone + 1) // (gone + 1 + left)


def terms(policy, balance, forecast=FORECAST):
    return terms_around(COUNTS, forecast, balance, IN_PERIOD, policy, HatPlans(policy.public))


def priced(policy, balance, forecast=FORECAST):
    return [
        one.statistics[0].epsilon_nano
        for one in terms(policy, balance, forecast)
        if not one.withheld
    ]


def spent_but(left):
    """All plates have this much left of the first slot's pace."""
    return Balance(
        np.full(len(COUNTS.plates), pace(AUTO) - left), np.ones(len(COUNTS.plates), np.int64)
    )


def whole_price():
    """A twelfth of the budget: nothing is known of any cell, and the pace leaves enough."""
    return int(PRICE_OF_UNKNOWN * (AUTO.budget_nano // PRICES_PER_BUDGET))


def cheapest_price():
    """The same where the pace leaves next to nothing."""
    return int(PRICE_OF_UNKNOWN * (AUTO.budget_nano // (PRICES_STEP * PRICES_STEPS)))


def test_what_the_pace_leaves_of_the_usual_plate_is_shared_by_the_hats_that_it_is_in():
    """By hand: of three plates, in 2, 3 and 5 HATs, the usual has a twelfth of a day left."""
    plate = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    counts = dataclasses.replace(COUNTS, plates=(b"a", b"b", b"c", b"none"), plate=plate)

    def many(*left):
        balance = Balance(1000 - np.array([*left, 0]), np.ones(4, np.int64))
        return prices_per_budget(counts, balance, 1000, 1000)

    assert many(81, 81, 81) == 36 and many(54, 81, 135) == 36
    assert many(1000, 1000, 1000) == PRICES_STEP
    assert many(0, 0, 0) == PRICES_STEP * PRICES_STEPS == many(-50, -50, 9)


def test_a_hat_that_too_few_plates_can_pay_for_is_offered_at_a_quarter():
    price = whole_price()
    fresh = priced(AUTO, nothing_spent(COUNTS))
    assert len(fresh) > 10 and fresh[0] == price
    # Each plate could pay a quarter, and not the whole: so of HATs whose plates pay alike.
    least = cheapest_price()
    little = priced(AUTO, spent_but(least // 3))
    assert little.count(least // PART_OF_PRICE) > 3
    assert set(little) <= {least, least // PART_OF_PRICE}
    # Where they cannot even pay that, it is asked as before: the ledger withholds it.
    assert set(priced(AUTO, spent_but(0))) == {least}


def test_an_automatic_variance_costs_what_the_mean_does_also_at_a_part_of_the_price():
    both = load(
        None, (*FLAGS, "budget.epsilon=60", "release.variance_epsilon=auto"), PURE_ENV
    ).policy
    fresh = terms(both, nothing_spent(COUNTS))
    little = terms(both, spent_but(cheapest_price() // 3))
    for found in (fresh, little):
        asked = [one for one in found if not one.withheld]
        assert asked and all(
            one.statistics[0].epsilon_nano == one.nano_of("variance") for one in asked
        )
    assert fresh[0].statistics[0].epsilon_nano == whole_price() // 2  # half of it for each
    half = int(PRICE_OF_UNKNOWN * (AUTO.budget_nano // (2 * PRICES_STEP * PRICES_STEPS)))
    assert {one.nano_of("variance") for one in little} >= {half // PART_OF_PRICE}


def test_at_a_fixed_epsilon_no_part_of_it_is_offered():
    fixed = load(
        None, (*FLAGS, "budget.epsilon=60", f"release.mean_epsilon={whole_price() / 1e9}"), PURE_ENV
    ).policy
    assert set(priced(fixed, spent_but(whole_price() // 3))) == {whole_price()}


def test_the_choice_follows_from_balances_and_counts_whatever_speed_is_forecast():
    other = dataclasses.replace(FORECAST, mean=FORECAST.mean + 9, plates=FORECAST.plates + 9)
    for balance in (
        nothing_spent(COUNTS),
        spent_but(whole_price() // 3),
        spent_but(whole_price() // 2),
    ):
        found = [terms(AUTO, balance, of) for of in (FORECAST, other)]
        assert [one.charge_nano for one in found[0]] == [one.charge_nano for one in found[1]]
        assert found[0] != found[1]


def test_a_quarter_is_charged_within_the_pace_of_each_plate():
    """By the road, on a ledger where plates have a third of the least price left."""
    ledger, members, price = MemoryLedger(), np.arange(len(COUNTS.plates)), cheapest_price()
    before = pace(AUTO) - price // 3
    earlier = Admission("earlier", members, np.full(members.size, before), 0, b"")
    ledger.admit(IN_PERIOD.period, AUTO.budget_nano, COUNTS.plates, [earlier])
    planner = ForecastPlanner(a_forecaster())
    context = ReleaseContext(
        AUTO, SETTINGS.calendar, SeededEntropy(1), "udp-stream test", planner=planner
    )
    slot = release_slot(COUNTS, VALUES, context, ledger, publish=lambda _: None)
    made = [one for one in map(Release.decode, slot.payloads.values()) if one.status == "released"]
    assert len(made) > 3 and all(one.mean.epsilon <= price / PART_OF_PRICE / 1e9 for one in made)
    charged = ledger.balances(IN_PERIOD.period, COUNTS.plates).charged
    assert before < charged.max() <= pace(AUTO)
    assert all(one.counts.admitted_plates >= ceil(one.counts.plates / 2) for one in made)
    asked = [one for one in terms_held(ledger, slot, IN_PERIOD.period) if not one.withheld]
    assert {ceil(one.counts.plates / 2) for one in made} <= {one.admitted_min for one in asked}


@pytest.mark.parametrize(
    "flags",
    [("budget.epsilon=200",), ("budget.epsilon=100", "budget.accounting=approximate")],
    ids=["pure", "approximate"],
)
def test_no_plate_is_ever_charged_beyond_the_pace(flags):
    """Two days of a week's budget, of which earlier days left nothing: prices and quarters
    together."""
    settings, ledger, forecaster = (
        load(None, (*FLAGS, *flags, "budget.period=1w"), PURE_ENV),
        MemoryLedger(),
        a_forecaster(),
    )
    policy, paid, place = settings.policy, set(), settings.calendar.slot_in_period(MIDNIGHT)
    plates = COUNTS.plates
    gone = np.full(len(plates), policy.budget_nano * place.day // policy.days)
    earlier = Admission("earlier", np.arange(len(plates)), gone, 0, b"")
    ledger.admit(place.period, policy.budget_nano, plates, [earlier])
    for number in range(8):
        counts, values = contents(number)
        context = ReleaseContext(
            policy, settings.calendar, SeededEntropy(2), "udp-stream test", planner=ForecastPlanner(forecaster),
            forecaster=forecaster,
        )  # fmt: skip
        slot = release_slot(counts, values, context, ledger, publish=lambda _: None)
        in_period = settings.calendar.slot_in_period(MIDNIGHT + number * SLOT)
        asked = terms_held(ledger, slot, in_period.period)
        records = map(Release.decode, slot.payloads.values())
        paid |= {
            of_hat.statistics[0].epsilon_nano
            for of_hat, record in zip(asked, records, strict=True)
            if record.status == "released"
        }
        charged = ledger.balances(next(iter(ledger.periods())), counts.plates).charged
        assert 0 < charged.max() <= pace(policy, in_period)
        assert {one.allowance_nano for one in asked if not one.withheld} <= {
            pace(policy, in_period)
        }
    assert any(one // PART_OF_PRICE in paid for one in paid), paid


def test_the_less_is_known_of_a_cell_the_more_it_costs_and_the_last_bits_of_a_variance_do_not_decide():
    def prices(variance):
        of = dataclasses.replace(FORECAST, variance=np.full(FORECAST.variance.size, variance))
        return max(priced(AUTO, spent_but(whole_price()), of))

    least = prices(2.0)
    assert prices(1.0) == least and prices(6.0) == prices(50.0) == PRICE_OF_UNKNOWN * least
    for edge in np.arange(2.5, 6.5, 0.5).tolist():
        assert (
            prices(edge * (1 - 4e-16))
            == prices(edge)
            == prices(edge * (1 + 4e-16))
            > prices(edge - 0.01)
        )


DAY_MS = 86_400_000
MONDAY, TUESDAY = dt.date(2024, 1, 8), dt.date(2024, 1, 9)


def remembered(*slots):
    """Pings of Monday, by the part of the day at which their slots end."""
    memory = Memory()
    for part, pings in slots:
        memory.count(MONDAY, part, pings)
    return memory


@pytest.mark.parametrize(
    ("slots", "part", "ahead"),
    [
        ([(0.25, 10), (0.5, 50), (0.75, 30), (1.0, 10)], 0.5, 0.05),  # 60 % of the pings by noon
        ([(0.25, 10), (0.5, 50), (0.75, 30), (1.0, 10)], 0.25, -0.075),
        (
            [(0.75, 30), (1.0, 10)],
            0.5,
            -0.25,
        ),  # recorded from noon on: half of the clock's pace is left
        ([(0.25, 0), (1.0, 0)], 0.5, 0.0),  # counts are left out
        ([], 0.25, 0.0),  # a first day that begins at midnight
    ],
)
def test_the_pace_is_ahead_of_the_clock_as_far_as_yesterdays_pings_were(slots, part, ahead):
    memory = remembered(*slots)
    assert memory.ahead(TUESDAY, part, 0.25) == pytest.approx(ahead)
    if slots:
        assert memory.ahead(TUESDAY, 1.0, 0.25) == 0


def test_what_was_not_spent_before_a_late_start_is_let_out_over_three_hours():
    memory, hour, found = Memory(), 1 / 24, []
    for at in (7, 8, 9, 10):  # ends of slots: the first begins at 06:00
        found.append(memory.ahead(TUESDAY, at * hour, hour))
        memory.count(TUESDAY, at * hour, 100)
    assert found == pytest.approx([-2 / 3 * 0.25, -1 / 3 * 0.25, 0.0, 0.0])
    midnight = Memory()
    midnight.count(TUESDAY, hour, 1)
    assert midnight.ahead(TUESDAY, 8 * hour, hour) == 0.0  # it ran all night


@pytest.mark.parametrize("flags", [(), ("budget.accounting=pure",), ("release.mean_epsilon=0.5",)])
def test_the_second_slot_of_a_day_from_six_has_most_of_what_the_first_had(flags):
    day = joined(feed_of("made-up:65:Asia/Kolkata"), tuple(MadeUpCity(1).slots(0, hours=(6, 8))))
    measured = run([day], seed=0, flags=(*OURS, *flags))[0].measured
    first, second = (int(measured[day.hour == hour].sum()) for hour in (6, 7))
    assert first > 25 and second >= 0.6 * first


def test_a_forecaster_counts_each_slot_once_and_plans_the_next_day_by_it():
    """All of Monday's pings are in its first slot: Tuesday's is ahead of the clock."""
    ledger, forecaster = MemoryLedger(), a_forecaster()
    context = ReleaseContext(AUTO, SETTINGS.calendar, SeededEntropy(1), "test", planner=ForecastPlanner(forecaster),
                             forecaster=forecaster)  # fmt: skip
    release_slot(COUNTS, VALUES, context, ledger, lambda _: None)
    tomorrow = dataclasses.replace(
        COUNTS, start_ms=COUNTS.start_ms + DAY_MS, end_ms=COUNTS.end_ms + DAY_MS
    )
    expected = 0.5 * (1 - (COUNTS.end_ms - MIDNIGHT) / DAY_MS)
    assert forecaster.forecast(COUNTS, LedgerHistory(ledger)).ahead == 0
    for asked in (forecaster, forecaster, a_forecaster()):  # also one that reads the ledger
        assert asked.forecast(tomorrow, LedgerHistory(ledger)).ahead == pytest.approx(expected)


@pytest.mark.parametrize(
    ("period", "ahead", "more"),
    [("1d", 0.1, 0.08), ("1d", -0.02, -0.016), ("1w", 0.1, 0.08 / 7), ("1d", 2.0, None), ("12h", 0.1, 0.0),
     ("rolling 1d", 0.1, 0.0)],
)  # fmt: skip
def test_a_plate_may_be_charged_as_far_as_traffic_is_ahead_and_never_beyond_its_budget(
    period, ahead, more
):
    settings = load(None, (*FLAGS, "budget.epsilon=60", f"budget.period={period}"), PURE_ENV)
    in_period = settings.calendar.slot_in_period(MIDNIGHT)

    def allowed(by):
        forecast = dataclasses.replace(FORECAST, ahead=by)
        plans = HatPlans(settings.policy.public)
        found = terms_around(
            COUNTS, forecast, nothing_spent(COUNTS), in_period, settings.policy, plans
        )
        (allowance,) = {one.allowance_nano for one in found if not one.withheld}
        return allowance

    budget = settings.policy.budget_nano
    expected = budget if more is None else allowed(0.0) + round(more * budget)
    assert allowed(ahead) == pytest.approx(expected, abs=2) and allowed(ahead) <= budget
