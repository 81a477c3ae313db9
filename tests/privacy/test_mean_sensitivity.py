"""Sensitivity and worst-case bias of every mean mechanism, by brute force over all small cases.

Speeds in {0, 1, U} (U = 5 quanta: small and odd, so that floors bite), up to three plates of up to
three samples. A statistic's range over one plate's speeds, the others fixed, is what its noise has
to cover.
"""

import itertools

import numpy as np
import pytest

from tests.forms import long_but
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import (
    MECHANISMS,
    ArrayAveraging,
    Baseline,
    Levy,
    OptimalCappedSum,
    means_of_arrays,
    projected_queries,
)
from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

U = 5
SPEEDS = (0, 1, U)
COUNTS = [
    c for users in (1, 2, 3) for c in itertools.product((1, 2, 3), repeat=users) if sum(c) <= 7
]
FEW = [c for c in COUNTS if sum(c) <= 5]
"""The largest have most of the datasets."""

GROUPINGS = ("best-fit", "wrap-around")


def datasets(total):
    return np.array(list(itertools.product(SPEEDS, repeat=total)))


def range_over_one_plate(counts, results):
    shape = (len(SPEEDS),) * sum(counts)
    table = results.reshape(*shape, -1)
    widest = np.zeros(table.shape[-1], dtype=np.int64)
    start = 0
    for count in counts:
        axes = tuple(range(start, start + count))
        widest = np.maximum(
            widest,
            (table.max(axis=axes) - table.min(axis=axes)).reshape(-1, table.shape[-1]).max(0),
        )
        start += count
    return widest


def linear_plans(counts, epsilon_nano):
    hat = SamplesPerPlate(np.array(counts))
    yield Baseline().plan(hat, pure(epsilon_nano), Range(0, U), "best-fit")
    for fill in (0, 2, U):
        yield OptimalCappedSum().plan_with_fill(hat, pure(epsilon_nano), Range(0, U), fill)
    for grouping in GROUPINGS:
        for cap in range(1, hat.largest + 1):
            yield ArrayAveraging().plan(hat, pure(epsilon_nano), Range(0, U), grouping, cap)


@pytest.mark.parametrize("counts", long_but(FEW, COUNTS), ids=str)
def test_statistics_move_by_at_most_their_sensitivity_and_biases_stay_within_their_bounds(counts):
    data = datasets(sum(counts))
    truth = data.mean(axis=1)
    for plan in linear_plans(counts, NANO):
        mechanism = MECHANISMS[plan.mechanism]
        statistic = np.array([mechanism.query(plan, row, seeded_bits(0)).statistic for row in data])
        widest = int(range_over_one_plate(counts, statistic)[0])
        assert widest <= plan.sensitivity, plan
        bias = np.abs(statistic / plan.divisor - truth).max()
        floors = (
            1 if plan.arrays is not None else 0
        )  # array means are floored to whole quanta; U is only 5 of them
        assert bias <= plan.bias_bound + floors + 1e-9, plan


@pytest.mark.parametrize("counts", long_but(FEW, [c for c in COUNTS if len(c) > 1]), ids=str)
def test_sensitivities_and_bias_bounds_are_not_larger_than_needed(counts):
    """Each is reached by some dataset (0 and U), so the noise could not be less by this argument."""
    data = datasets(sum(counts))
    truth = data.mean(axis=1)
    hat = SamplesPerPlate(np.array(counts))
    plans = [
        Baseline().plan(hat, pure(NANO), Range(0, U), "best-fit"),
        OptimalCappedSum().plan(hat, pure(NANO), Range(0, U), "best-fit"),
    ]
    plans += [
        ArrayAveraging().plan(hat, pure(NANO), Range(0, U), grouping) for grouping in GROUPINGS
    ]
    for plan in plans:
        statistic = np.array(
            [MECHANISMS[plan.mechanism].query(plan, row, seeded_bits(0)).statistic for row in data]
        )
        if (
            plan.grouping != "wrap-around"
        ):  # there the plate with most samples may lie in a dropped array
            assert int(range_over_one_plate(counts, statistic)[0]) == plan.sensitivity
        assert np.abs(statistic / plan.divisor - truth).max() >= plan.bias_bound - 1e-9


def test_wrap_around_averaging_needs_half_of_what_the_papers_charge():
    """One plate in two arrays moves the mean by U/K, not 2U/K: both parts together are at most one
    array long."""
    counts = (3, 2, 2)
    plan = ArrayAveraging().plan(
        SamplesPerPlate(np.array(counts)), pure(NANO), Range(0, U), "wrap-around", 3
    )
    statistic = np.array(
        [ArrayAveraging().query(plan, row, seeded_bits(0)).statistic for row in datasets(7)]
    )
    arrays = plan.divisor // plan.cap
    assert range_over_one_plate(counts, statistic)[0] / plan.divisor == U / arrays


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("counts", long_but(FEW, [c for c in COUNTS if sum(c) <= 6]), ids=str)
def test_projected_sums_and_the_scores_of_private_intervals_move_as_charged(counts, grouping):
    data = datasets(sum(counts))
    plan = Levy().plan(SamplesPerPlate(np.array(counts)), pure(NANO), Range(0, U), grouping)
    means = np.array([means_of_arrays(plan, row) for row in data])
    arrays = {"best-fit": 1, "wrap-around": 2}[grouping]
    for low, high in itertools.combinations_with_replacement(range(U + 1), 2):
        ends = np.array([low]), np.array([high])
        statistic, sensitivity = np.array([projected_queries(plan, row, *ends) for row in means])[
            :, :, 0
        ].T
        assert statistic.tolist() == np.clip(means, low, high).sum(axis=1).tolist()
        assert range_over_one_plate(counts, statistic)[0] <= (high - low) * arrays <= sensitivity[0]
    at_or_below = np.array([[(row <= v).sum() for v in range(U + 1)] for row in means])
    below = np.array([[(row < v).sum() for v in range(U + 1)] for row in means])
    assert range_over_one_plate(counts, at_or_below).max() <= arrays
    assert range_over_one_plate(counts, below).max() <= arrays
    cost = np.maximum(
        below, means.shape[1] - at_or_below
    )  # Levy's max(#left, #right), for every bin
    assert range_over_one_plate(counts, cost).max() <= arrays


@pytest.mark.parametrize("name", ["levy", "fixed-quantile", "eps-quantile"])
def test_a_plate_in_two_poured_arrays_moves_a_projected_sum_by_twice_the_interval(name):
    """Arrays of three from plates of 3, 2, 2, 2 samples: the third has one in the second and one in
    the third array."""
    hat = SamplesPerPlate(np.array([3, 2, 2, 2]))
    plan = MECHANISMS[name].plan(hat, pure(NANO), Range(0, U), "wrap-around", 3)
    without = np.zeros(9, np.int64)
    other = without.copy()
    other[5:7] = U
    ends = np.array([0]), np.array([1])
    (of_zeros,), (sensitivity,) = projected_queries(plan, means_of_arrays(plan, without), *ends)
    (of_other,), _ = projected_queries(plan, means_of_arrays(plan, other), *ends)
    assert means_of_arrays(plan, other).tolist() == [0, U // 3, U // 3]
    assert of_other - of_zeros == sensitivity == 2 and plan.sensitivity == 2 * U
    in_one = MECHANISMS[name].plan(hat, pure(NANO), Range(0, U), "best-fit", 3)
    assert (
        projected_queries(in_one, means_of_arrays(in_one, without), *ends)[1] == 1
        and in_one.sensitivity == U
    )


@pytest.mark.parametrize("epsilon", [0.3, 0.5, 0.9, 1.0, 2.0, 3.7])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16)), (5,) * 8], ids=str
)
@pytest.mark.parametrize("fill", [0, 2048, 3072, 4096])
def test_the_optimal_cap_has_the_least_worst_case_error_among_all_caps(counts, fill, epsilon):
    """Closed form: the ceil(U / (max(c, U-c) eps))-th largest count; for c = U/2 the
    ceil(2/eps)-th."""
    speed, hat = 4096, SamplesPerPlate(np.array(counts))
    worst = max(fill, speed - fill)

    def error(cap):
        return worst * (1 - hat.kept(cap) / hat.total) + speed * cap / (hat.total * epsilon)

    plan = OptimalCappedSum().plan_with_fill(
        hat, pure(round(epsilon * NANO)), Range(0, speed), fill
    )
    least = min(error(cap) for cap in range(min(counts), max(counts) + 1))
    assert plan.error_bound == pytest.approx(error(plan.cap)) == pytest.approx(least)


@pytest.mark.parametrize("rho", [0.01, 0.05, 0.2, 0.6, 3.0])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16)), (5,) * 8], ids=str
)
@pytest.mark.parametrize("fill", [0, 2048, 3072, 4096])
def test_the_optimal_cap_has_the_least_worst_case_error_in_rho_too(counts, fill, rho):
    """Gaussian noise of sigma = 1 / sqrt(2 rho) has the expected size sigma sqrt(2 / pi) = 1 /
    sqrt(pi rho)."""
    speed, hat, cost = 4096, SamplesPerPlate(np.array(counts)), concentrated(round(rho * NANO))
    worst = max(fill, speed - fill)

    def error(cap):
        return worst * (1 - hat.kept(cap) / hat.total) + speed * cap / (
            hat.total * np.sqrt(np.pi * rho)
        )

    plan = OptimalCappedSum().plan_with_fill(hat, cost, Range(0, speed), fill)
    least = min(error(cap) for cap in range(min(counts), max(counts) + 1))
    assert plan.error_bound == pytest.approx(error(plan.cap)) == pytest.approx(least)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16))], ids=str
)
def test_the_papers_worst_case_cap_is_best_among_all_lengths(counts, epsilon):
    """E(m) = U (1 - G/M) + U m / (eps G) is least at one of the counts (arXiv 2405.06261)."""
    hat = SamplesPerPlate(np.array(counts))

    def error(cap):
        return 1 - hat.kept(cap) / hat.total + cap / (epsilon * hat.kept(cap))

    chosen = hat.worst_case_cap(1 / epsilon)
    assert error(chosen) == pytest.approx(
        min(error(cap) for cap in range(min(counts), max(counts) + 1))
    )


def test_the_papers_worst_case_cap_never_falls_as_epsilon_grows():
    hat = SamplesPerPlate(np.array([1, 2, 2, 5, 8, 9, 9, 30]))
    caps = [hat.worst_case_cap(1 / epsilon) for epsilon in np.geomspace(0.01, 100, 60)]
    assert caps == sorted(caps) and caps[0] < caps[-1]
