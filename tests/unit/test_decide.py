"""What is decided of a HAT once its charges are known."""

import dataclasses

import pytest
from msgspec.structs import replace

from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import hats_of, plan_slot
from udp_stream.release.pipeline import decide
from udp_stream.testing import a_context, two_hats


def test_a_plate_that_was_charged_less_than_its_part_by_now_stays_out_and_is_not_counted_as_charged():
    """Its pings have become more since it was charged: nothing is taken back, and nothing of it is
    in the release."""
    (counts, _), context = two_hats(), a_context()
    plan = plan_slot(counts, context, MemoryLedger())
    charged = plan.charged.copy()
    charged[1] -= 1
    ready, _ = decide(
        hats_of(counts, context.policy.grid),
        counts,
        dataclasses.replace(plan, charged=charged),
        context.policy,
    )
    assert ready.charged.tolist() == [charged[0], 0, charged[2], charged[3]]
    assert ready.admitted.tolist() == [
        True,
        False,
        True,
        True,
    ] and ready.plan.by_plate.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("min_plates", "late", "status"),
    [(3, 1, "released"), (3, 2, "withheld_budget"), (1, 3, "released")],
)
def test_of_plates_that_were_charged_enough_have_to_be_left_once_some_stay_out(
    min_plates, late, status
):
    """The ledger counted all that it charged; those whose pings have become more since do not count
    any more."""
    (counts, _), context = two_hats(), a_context()
    policy = replace(context.policy, min_plates=min_plates)
    plan = plan_slot(counts, context, MemoryLedger())
    charged = plan.charged.copy()
    charged[:late] -= 1
    decided, _ = decide(
        hats_of(counts, context.policy.grid),
        counts,
        dataclasses.replace(plan, charged=charged),
        policy,
    )
    assert (decided.status, int(decided.admitted.sum())) == (status, 4 - late)
    assert (decided.charge_nano > 0) == (
        status == "released"
    )  # what is withheld costs nothing, says its record


def test_the_ledger_is_asked_to_leave_out_plates_beyond_their_allowance():
    (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    plan, hat = plan_slot(counts, context, ledger), hats_of(counts, context.policy.grid)[0]
    for allowance, expected in ((0, None), (700, [700] * 4)):
        terms = replace(plan.terms[0], allowance_nano=allowance)
        asked = hat.with_price(terms, plan.priced[0]).admission(counts, min_plates=2)
        assert expected == (None if asked.allowances is None else asked.allowances.tolist())


def test_the_ledger_is_asked_to_admit_as_many_plates_as_terms_and_settings_want():
    (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    plan, hat = plan_slot(counts, context, ledger), hats_of(counts, context.policy.grid)[0]
    for of_terms, of_settings, expected in ((0, 2, 2), (4, 2, 4), (3, 4, 4)):
        terms = replace(plan.terms[0], admitted_min=of_terms)
        assert (
            hat.with_price(terms, plan.priced[0]).admission(counts, of_settings).min_admitted
            == expected
        )
