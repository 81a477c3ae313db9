"""Budget schedules: what they add up to over a day, and never more than what is left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_planner import city
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.policy import PeriodSoFar, shares_of
from udp_stream.release.charge import ReleaseContext, plan_slot
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

BUDGET, SLOTS = 12 * 10**9, 4
EVERY = ("spread", "uniform")


def day(schedule, visits, pays=lambda share, hat: share):
    """What a plate pays for each HAT of a day in which it makes as many visits in each slot as it
    is expected to."""
    charged, charges, paid = 0, 0, []
    for slot in range(SLOTS):
        at = PeriodSoFar(
            np.array([charged]), np.array([charges]), np.array([visits]), slot, SLOTS - 1 - slot
        )
        share = int(shares_of(schedule, BUDGET, at)[0])
        for hat in range(visits):
            cost = min(pays(share, hat), BUDGET - charged)
            paid.append(cost)
            charged += cost
        charges += visits
    return paid


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("visits", [1, 3])
def test_a_plate_that_pays_its_share_has_spent_its_budget_at_the_end_of_a_day_and_no_more(
    schedule, visits
):
    paid = day(schedule, visits)
    assert BUDGET - 100 <= sum(paid) <= BUDGET
    assert max(paid) - min(paid) < 100  # every HAT alike


def test_what_is_saved_is_spread_over_later_hats_and_kept_where_parts_are_uniform():
    """A plate that pays half of its share."""
    half = {schedule: day(schedule, 3, lambda share, _: share // 2) for schedule in EVERY}
    assert max(half["uniform"]) == min(half["uniform"]) == BUDGET // 24
    assert half["spread"][3] > 1.05 * half["spread"][0] and sum(half["spread"]) > 1.2 * sum(
        half["uniform"]
    )


@given(
    st.sampled_from(EVERY),
    st.integers(0, 2 * BUDGET),
    st.integers(0, 500),
    st.integers(0, 50),
    st.integers(0, 3),
)
def test_no_schedule_allows_more_than_is_left_or_less_than_nothing(
    schedule, charged, charges, now, gone
):
    at = PeriodSoFar(np.array([charged]), np.array([charges]), np.array([now]), gone, 3 - gone)
    assert 0 <= shares_of(schedule, BUDGET, at)[0] <= max(0, BUDGET - charged)


def test_a_slot_is_planned_by_the_schedule_that_is_configured():
    """A plate that has saved: what is left is spread, and a uniform part stays as it is."""
    charged, (counts, _) = {}, city(1)
    for schedule in EVERY:
        flags = ("release.mean=baseline", "release.min_plates=2", f"budget.schedule={schedule}")
        settings, ledger = load(None, flags, {}), MemoryLedger()
        context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy(1), "test")
        for slot in range(3):
            start = counts.start_ms + slot * (counts.end_ms - counts.start_ms)
            plan = plan_slot(city(1, start=start)[0], context, ledger)
        charged[schedule] = max(one.charge_nano for one in plan.terms)
    assert charged["spread"] > charged["uniform"] > 0
