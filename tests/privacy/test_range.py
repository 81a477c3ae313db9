"""Ranges that do not start at 0: releases that stay inside, equivariance."""

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import (
    MECHANISMS,
)
from udp_stream.mechanisms.noise import lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS, accuracy_of, plan_automatic
from udp_stream.mechanisms.variance import plan_variance, variance_query
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.pipeline import estimate_hats
from udp_stream.testing import seeded_bits

GROUPINGS = ("best-fit", "wrap-around")

WIDTH, SHIFT = 40 * 4096, 17 * 4096 + 5
BY_PLATE = np.array([9, 7, 4, 4, 3, 2, 2, 1])
ADMITTED = np.array([False, True, True, False, True, True, True, True])


def pair_of_plans(name, grouping):
    hat, cost = SamplesPerPlate(BY_PLATE), pure(NANO // 2)
    for low in (0, SHIFT):
        yield MECHANISMS[name].plan(hat, cost, Range(low, low + WIDTH), grouping)


def but_for_ranges(plan):
    return {
        name: repr(getattr(plan, name))
        for name in type(plan).__match_args__
        if name not in ("range", "counts")
    }  # fmt: skip


def speeds():
    return np.random.default_rng(3).integers(0, WIDTH + 1, int(BY_PLATE.sum()))


def estimated(plan, samples, seed=7, runs=20):
    hat = HatPlan(Terms(), plan.counts.by_plate, {"mean": plan}, plan.charges)
    found = estimate_hats([hat] * runs, [samples] * runs, seeded_bits(seed))
    return [one["mean"] for one in found]


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mean_moves_with_its_range_and_nothing_else_does(name, grouping):
    at_zero, shifted = pair_of_plans(name, grouping)
    samples = speeds()
    for plans, kept in (
        ((at_zero, shifted), np.ones(BY_PLATE.size, dtype=bool)),
        (tuple(MECHANISMS[name].subset(plan, ADMITTED) for plan in (at_zero, shifted)), ADMITTED),
    ):
        assert but_for_ranges(plans[0]) == but_for_ranges(plans[1])
        assert plans[0].charges.tolist() == plans[1].charges.tolist()
        assert plans[0].error_bound == plans[1].error_bound
        own = samples[np.repeat(kept, BY_PLATE)]
        for one, other in zip(
            estimated(plans[0], own), estimated(plans[1], own + SHIFT), strict=True
        ):
            assert other.scale == one.scale and other.value == pytest.approx(one.value + SHIFT)
            if one.projected_to is not None:
                assert other.projected_to == tuple(end + SHIFT for end in one.projected_to)
            before = accuracy_of(plans[0], one.value, one.scale, projected_to=one.projected_to)
            after = accuracy_of(plans[1], other.value, other.scale, projected_to=other.projected_to)
            ends = before.low + SHIFT, before.high + SHIFT
            assert after == pytest.approx((before.expected_abs_error, *ends))


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_and_intervals_stay_inside_whatever_speeds_and_noise_are(name, grouping):
    limits = Range(SHIFT, SHIFT + WIDTH)
    plan = MECHANISMS[name].plan(SamplesPerPlate(BY_PLATE), pure(NANO // 100), limits, grouping)
    wild = np.random.default_rng(4).integers(0, 10**7, int(BY_PLATE.sum()))
    beyond = False
    for one in estimated(plan, wild, runs=40):
        beyond |= not limits.low <= one.value <= limits.high
        assert limits.low <= plan.released(one.value) <= limits.high
        if one.projected_to is not None:
            assert limits.low <= one.projected_to[0] <= one.projected_to[1] <= limits.high
        record = STATISTICS["mean"].record(plan, one)
        low, high = record.interval95_kmh
        assert (
            limits.low / 4096 - 1e-3 <= low <= record.value_kmh <= high <= limits.high / 4096 + 1e-3
        )
        assert record.bias_bound_kmh <= WIDTH / 4096
    assert beyond or plan.noise_bound < WIDTH / 10  # the noise is large enough to leave the range


def test_the_automatic_choice_does_not_depend_on_where_the_range_lies():
    hat, cost = SamplesPerPlate(BY_PLATE), pure(NANO // 2)
    plans = [
        plan_automatic(hat, cost, Range(low, low + WIDTH), "best-fit", "epsilon")
        for low in (0, SHIFT)
    ]
    assert but_for_ranges(plans[0]) == but_for_ranges(plans[1])


def test_a_variance_does_not_depend_on_where_the_range_lies():
    samples = speeds()
    plans = [
        plan_variance(SamplesPerPlate(BY_PLATE), pure(NANO), Range(low, low + WIDTH))
        for low in (0, SHIFT)
    ]
    for one, other in (plans, [STATISTICS["variance"].subset(plan, ADMITTED) for plan in plans]):
        assert (
            but_for_ranges(one) == but_for_ranges(other)
            and one.charges.tolist() == other.charges.tolist()
        )
        assert lattice_of(one.sensitivity, one.cost) == lattice_of(other.sensitivity, other.cost)
    assert variance_query(plans[0], samples) == variance_query(plans[1], samples + SHIFT)


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5)])
def test_a_range_without_width_is_refused(low, high):
    with pytest.raises(ValueError, match="low < high"):
        Range(low, high)
