"""What is decided of a HAT once its charges are known."""

import dataclasses

import pytest
from msgspec.structs import replace

from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import CountsPlanner, plan_slot
from udp_stream.testing import a_context, two_hats


def decided(late, policy):
    """The larger of two HATs, of whose four plates these rows were charged less than they cost."""
    (counts, _), context = two_hats(), a_context()
    plan = plan_slot(counts, context, MemoryLedger())
    charged = plan.charged.copy()
    charged[late] -= 1
    slot = PlannedSlot(counts, dataclasses.replace(plan, charged=charged), policy)
    return slot.hats[0], charged


def test_a_plate_that_was_charged_less_than_its_part_by_now_stays_out_and_is_not_counted_as_charged():
    """Its pings have become more since it was charged: nothing is taken back, and nothing of it is
    in the release."""
    ready, charged = decided([1], a_context().policy)
    assert ready.paid.tolist() == [charged[0], 0, charged[2], charged[3]]
    assert ready.admitted.tolist() == [True, False, True, True]
    assert ready.plan.by_plate.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("min_plates", "late", "is_released"), [(3, 1, True), (3, 2, False), (1, 3, True)]
)
def test_of_plates_that_were_charged_enough_have_to_be_left_once_some_stay_out(
    min_plates, late, is_released
):
    """The ledger counted all that it charged; those whose pings have become more since do not count
    any more."""
    hat, _ = decided(slice(late), replace(a_context().policy, min_plates=min_plates))
    assert not hat.terms.withheld and (hat.plan is not None) == is_released
    assert int(hat.admitted.sum()) == 4 - late
    # What is withheld costs nothing, says its record.
    assert (hat.charge_nano > 0) == is_released


class Watched(MemoryLedger):
    """A ledger that remembers what it was asked to admit."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def admit(self, period, budget, plates, admissions):
        self.asked += admissions
        return super().admit(period, budget, plates, admissions)


class PlannedWith:
    """The planner by counts, with other terms of each HAT."""

    def __init__(self, **changes):
        self.changes = changes

    def plan(self, slot, balances):
        return [replace(one, **self.changes) for one in CountsPlanner().plan(slot, balances)]


def asked_of_the_ledger(min_plates, **changes):
    (counts, _), context, ledger = two_hats(), a_context(), Watched()
    policy = replace(context.policy, min_plates=min_plates)
    planner = PlannedWith(**changes)
    plan_slot(counts, dataclasses.replace(context, policy=policy, planner=planner), ledger)
    return ledger.asked[0]


@pytest.mark.parametrize(("allowance", "expected"), [(0, None), (700, [700] * 4)])
def test_the_ledger_is_asked_to_leave_out_plates_beyond_their_allowance(allowance, expected):
    asked = asked_of_the_ledger(2, allowance_nano=allowance)
    assert expected == (None if asked.allowances is None else asked.allowances.tolist())


@pytest.mark.parametrize(("of_terms", "of_settings", "expected"), [(0, 2, 2), (4, 2, 4), (3, 4, 4)])
def test_the_ledger_is_asked_to_admit_as_many_plates_as_terms_and_settings_want(
    of_terms, of_settings, expected
):
    asked = asked_of_the_ledger(of_settings, admitted_min=of_terms)
    assert asked.min_admitted == expected
