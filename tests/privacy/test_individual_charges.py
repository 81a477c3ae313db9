"""Individual accounting: who is charged in full, and what is refused. What plates lose, whoever was
halted, is in `test_sensitivity.py`."""

import itertools

import numpy as np
import pytest

from tests.forms import PURE_ENV
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import (
    Range,
    SamplesPerPlate,
    wrap_around_given,
    wrap_around_positions,
)
from udp_stream.mechanisms.means import MECHANISMS, ArrayAveraging
from udp_stream.mechanisms.noise import pure
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.settings import load

COUNTS = [
    c for users in (1, 2, 3) for c in itertools.product((1, 2, 3), repeat=users) if sum(c) <= 6
]
GROUPINGS = ("best-fit", "wrap-around")


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_wrap_around_uses_the_first_samples_of_each_plate(counts):
    hat = SamplesPerPlate(np.array(counts))
    plate_of_sample = np.repeat(np.arange(len(counts)), counts)
    for cap in range(1, hat.largest + 1):
        poured = wrap_around_positions(hat, cap)
        given = wrap_around_given(hat, cap)
        assert (
            np.bincount(plate_of_sample[poured], minlength=len(counts)).tolist() == given.tolist()
        )
        assert (hat.place_of_sample[poured] < given[plate_of_sample[poured]]).all()


@pytest.mark.parametrize("name", ["levy", "fixed-quantile", "eps-quantile"])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_plates_are_charged_in_full_where_speeds_choose_the_interval(name, grouping):
    hat = SamplesPerPlate(np.array([40, 39, 1, 40]))
    plan = MECHANISMS[name].plan(hat, pure(NANO), Range(0, 65 * 4096), grouping)
    assert plan.charges.tolist() == [NANO] * 4
    final = MECHANISMS[name].subset(plan, np.array([False, True, True, True]))
    assert final.charges.tolist() == [NANO] * 3 and final.cost.nano == NANO


def policy_of(*flags):
    return load(None, flags, PURE_ENV).policy


def test_a_plan_that_would_cost_a_plate_more_than_it_paid_is_refused(planted):
    """The check behind every mechanism's promise: packing the admitted plates anew is caught."""
    policy = policy_of("release.mean=array-averaging")
    plan = plan_hat(np.array([8, 8, 7, 1]), terms_of(policy, {"mean": NANO}), policy)
    admitted = np.array([True, True, False, True])
    assert plan.subset(admitted).charges.tolist() == [NANO, NANO, NANO // 8]

    def packed_anew(self, plan, admitted):
        return self.plan(
            SamplesPerPlate(plan.counts.by_plate[admitted]), plan.cost, plan.range, "best-fit"
        )

    planted(ArrayAveraging, subset=packed_anew)
    with pytest.raises(Exception, match="lose more"):
        plan.subset(admitted)
