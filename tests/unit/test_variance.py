"""The variance's plan: which cap it chooses, what it promises, what it refuses; its value;
worst-case error limits."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.noise import lattice_of, pure
from udp_stream.mechanisms.samplers import discrete_laplace
from udp_stream.mechanisms.variance import plan_variance, variance_query
from udp_stream.testing import seeded_bits

U = 65 * 4096
counts_lists = st.lists(st.integers(1, 12), min_size=1, max_size=15)
epsilons = st.integers(10**6, 10 * NANO)


@given(counts_lists, epsilons)
def test_the_cap_has_the_least_error_bound_of_all_caps(counts, epsilon_nano):
    hat = SamplesPerPlate(np.array(counts))
    bounds = [
        plan_variance(hat, pure(epsilon_nano), Range(0, U), cap).error_bound
        for cap in range(1, hat.largest + 1)
    ]
    assert plan_variance(hat, pure(epsilon_nano), Range(0, U)).error_bound == pytest.approx(
        min(bounds), rel=1e-9
    )


def test_the_best_cap_is_a_count_unless_one_plate_holds_half_of_the_samples():
    """Between two counts bias and noise are concave in the cap, but for parity, which matters in
    that case only."""
    for counts in itertools.combinations_with_replacement(range(1, 7), 4):
        hat = SamplesPerPlate(np.array(counts))
        for epsilon_nano in (NANO // 20, NANO // 3, NANO, 4 * NANO):
            plan = plan_variance(hat, pure(epsilon_nano), Range(0, U))
            if 2 * plan.cap < plan.kept:
                assert plan.cap in counts
    between = plan_variance(SamplesPerPlate(np.array([3, 1])), pure(NANO // 10), Range(0, U))
    assert (between.cap, between.kept) == (
        2,
        3,
    )  # an odd number: U^2/4 (1 - 1/9) instead of U^2/4 with caps 1 and 3


def test_without_noise_the_value_is_the_variance():
    rng = np.random.default_rng(1)
    plan = plan_variance(SamplesPerPlate(np.array([4, 3, 2])), pure(NANO), Range(0, U), 4)
    samples = rng.integers(0, U + 1, 9)
    assert plan.value(variance_query(plan, samples).statistic) == pytest.approx(samples.var())


def test_the_noise_is_as_large_as_the_plan_says():
    """Mean absolute noise over 20,000 draws within 5 % of the bound: a scale 30 % off would not
    pass."""
    plan = plan_variance(SamplesPerPlate(np.full(40, 5)), pure(NANO), Range(0, U))
    lattice = lattice_of(plan.sensitivity, plan.cost)
    noise = discrete_laplace(seeded_bits("variance"), np.full(20_000, lattice.t))
    absolute = np.abs(noise.astype(float) * 2.0**lattice.shift / plan.divisor).mean()
    assert absolute == pytest.approx(plan.noise_bound, rel=0.05)


def mean_error(hat, epsilon, cap):
    kept = hat.kept(cap)
    return (1 - kept / hat.total) + cap / (epsilon * kept)


@given(counts_lists, epsilons)
def test_errors_at_every_count_are_those_of_the_formula_and_least_at_the_worst_case_cap(
    counts, epsilon_nano
):
    hat = SamplesPerPlate(np.array(counts))
    errors = hat.errors_at_every_count(NANO / epsilon_nano)
    expected = [mean_error(hat, epsilon_nano / NANO, int(cap)) for cap in hat.descending]
    assert errors.tolist() == pytest.approx(expected)
    assert mean_error(
        hat, epsilon_nano / NANO, hat.worst_case_cap(NANO / epsilon_nano)
    ) == pytest.approx(errors.min())
