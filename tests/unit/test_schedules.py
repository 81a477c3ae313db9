"""Budget schedules: the paper's Algorithm 3, what schedules add up to over a day, and never more than what is left."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_planner import city
from udp_stream.adapters.settings import load
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.planning.schedules import PeriodSoFar, shares_of
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import ReleaseContext
from udp_stream.testing import SeededEntropy

BUDGET = 12 * 10**9
WEIGHTS = (1.0, 0.0, 3.0, 4.0)
EVERY = ("spread", "uniform", "ramp", WEIGHTS)


def day(schedule, visits, pays=lambda share, hat: share):
    """What a plate pays for each HAT of a day in which it makes as many visits in each slot as it is expected to."""
    charged, charges, paid = 0, 0, []
    for slot in range(len(WEIGHTS)):
        at = PeriodSoFar(np.array([charged]), np.array([charges]), np.array([visits]), slot, len(WEIGHTS) - 1 - slot)
        share = int(shares_of(schedule, BUDGET, at)[0])
        for hat in range(visits):
            cost = min(pays(share, hat), BUDGET - charged)
            paid.append(cost)
            charged += cost
        charges += visits
    return paid


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("visits", [1, 3])
def test_a_plate_that_pays_its_share_has_spent_its_budget_at_the_end_of_a_day_and_no_more(schedule, visits):
    paid = day(schedule, visits)
    assert BUDGET - 100 <= sum(paid) <= BUDGET
    if schedule != WEIGHTS:
        assert max(paid) - min(paid) < 100  # every HAT alike


def test_weights_part_the_budget_over_slots_and_a_slots_part_over_its_hats():
    paid = np.array(day(WEIGHTS, 2)).reshape(4, 2).sum(axis=1) / BUDGET
    assert paid == pytest.approx([1 / 8, 0, 3 / 8, 4 / 8])


def test_what_is_saved_goes_to_later_hats_by_each_schedule_in_its_way():
    """A plate that pays half of its share: even parts stay even, spreading and the ramp hand the savings on."""
    half = {schedule: day(schedule, 3, lambda share, _: share // 2) for schedule in ("spread", "uniform", "ramp")}
    assert max(half["uniform"]) == min(half["uniform"]) == BUDGET // 24
    for schedule in ("spread", "ramp"):
        assert half[schedule][3] > 1.05 * half[schedule][0] and sum(half[schedule]) > 1.2 * sum(half["uniform"])
    assert half["ramp"][3] > half["spread"][3]  # three quarters of the savings at once


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, BUDGET))
def test_the_ramp_is_algorithm_3(m, done, charged):
    """With m HATs in the period, of which `done` are over; exactly, by fractions."""
    done = min(done, m - 1)
    at = PeriodSoFar(np.array([charged]), np.array([done]), np.array([m - done]), 0, 0)
    found, left = int(shares_of("ramp", BUDGET, at)[0]), BUDGET - charged
    gamma = Fraction(3, 4) + Fraction(done, 4 * (m - 1)) if m > 1 else Fraction(1)
    saved = left - Fraction(m - done, m) * BUDGET
    expected = gamma * saved + Fraction(BUDGET, m) if saved >= 0 else Fraction(left, m - done)
    assert abs(found - min(expected, left)) <= 2


@given(st.sampled_from(EVERY), st.integers(0, 2 * BUDGET), st.integers(0, 500), st.integers(0, 50), st.integers(0, 3))
def test_no_schedule_allows_more_than_is_left_or_less_than_nothing(schedule, charged, charges, now, gone):
    at = PeriodSoFar(np.array([charged]), np.array([charges]), np.array([now]), gone, 3 - gone)
    assert 0 <= shares_of(schedule, BUDGET, at)[0] <= max(0, BUDGET - charged)


def test_a_slot_is_planned_by_the_schedule_that_is_configured():
    """The same city in its first hour of a day: weights say how much of a day's budget that hour is worth."""
    charged, counts = {}, city(1)[0]
    gone = load(None, ("release.mean=baseline",), {}).calendar.slot_in_period(counts.start_ms).slots_gone
    only_here, even = ([float(slot == gone) for slot in range(24)], [1.0] * 24)
    for schedule in ("spread", "uniform", str(only_here), str(even)):
        flags = ("release.mean=baseline", "release.min_plates=2", f"budget.schedule={schedule}")
        settings, ledger = load(None, flags, {}), MemoryLedger()
        context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy(1), "test")
        plan = plan_slot(counts, context, ledger)
        charged[schedule] = max(one.charge_nano for one in plan.terms)
    assert charged[str(only_here)] > 10 * charged[str(even)] > 0
    assert charged["spread"] == charged["uniform"] > charged[str(even)]  # nothing was saved or spent yet
