"""A mean that is projected pays twice: for its private interval, and for its noise. Together they
cost what it may."""

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.around import WHOLE, factors_for
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import (
    MECHANISMS,
    means_of_arrays,
    private_quantiles,
    quantile_intervals,
)
from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.testing import seeded_bits


@pytest.mark.parametrize("cost", [pure(8 * NANO + 7), concentrated(8 * NANO + 7)])
def test_each_end_of_an_interval_costs_half_of_what_the_interval_may(cost):
    """A quarter of the mean's cost, rounded down: with the same bits, ends that cost more would be
    others."""
    plan = MECHANISMS["fixed-quantile"].plan(
        SamplesPerPlate(np.ones(9, np.int64)), cost, Range(0, 60), "best-fit"
    )
    means, draws, bits = np.arange(0, 54, 6), 200, seeded_bits(7)
    each = cost.with_nano(cost.nano // 4)
    one = private_quantiles(bits, means, 6, 60, 1, each, draws)
    other = private_quantiles(bits, means, 3, 60, 1, each, draws)
    low, high = quantile_intervals(plan, means, seeded_bits(7), draws, (6, 3))
    assert (
        low.tolist() == np.minimum(one, other).tolist()
        and high.tolist() == np.maximum(one, other).tolist()
    )
    assert (one > other).any() and (one < other).any()  # some ends cross, and are ordered


def test_means_of_arrays_are_floored_over_the_places_that_were_filled():
    plan = MECHANISMS["array-averaging"].plan(SamplesPerPlate(np.array([4, 2, 1])), pure(NANO), Range(10, 110),
                                              "best-fit", cap=3)  # fmt: skip
    samples = np.array(
        [0, 11, 13, 90, 60, 111, 30]
    )  # below the range counts as 10, above it as 110
    assert plan.arrays.of_plate.tolist() == [0, 1, 1]
    assert means_of_arrays(plan, samples).tolist() == [(0 + 1 + 3) // 3, (50 + 100 + 20) // 3]
    # Without the second plate its places hold zeros: they are not filled by anybody else.
    rest = MECHANISMS["array-averaging"].subset(plan, np.array([True, False, True]))
    assert means_of_arrays(rest, samples[[0, 1, 2, 3, 6]]).tolist() == [(0 + 1 + 3) // 3, 20 // 3]


def test_a_plate_without_a_factor_moves_nothing():
    assert factors_for({b"a": 7, b"c": WHOLE}, [b"b", b"c", b"a"]).tolist() == [0, WHOLE, 7]
