"""CDFs end to end at user level: sensitivity by brute force through the plan, noise scales, and an
audit with power."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.cdf_oracles import level_of_node
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import SamplesPerPlate, noisy_integers
from udp_stream.mechanisms.cdf import cdf_values_of_many, node_counts, plan_cdf
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.testing import seeded_bits

EDGES = (0.0, 0.0, 10.0, 30.0, 65.0)
SPEEDS = (0, 5 * 4096, 20 * 4096, 65 * 4096)
COUNTS = [
    c for users in (1, 2, 3) for c in itertools.product((1, 2, 3), repeat=users) if sum(c) <= 5
]


def test_bins_and_budgets_are_functions_of_counts_and_the_budget_is_spent_exactly():
    plan = plan_cdf(SamplesPerPlate(np.array([9, 4, 4, 2])), pure(333_333_333), 65.0, 65)
    assert sum(plan.budgets_nano) == plan.cost.nano == 333_333_333
    scale = (plan.t / plan.s)[np.unique(level_of_node(plan.tree), return_index=True)[1]]
    for exact, drawn in zip(
        (2 * plan.cap * NANO / budget for budget in plan.budgets_nano), scale, strict=True
    ):
        assert exact <= drawn <= exact * (1 + 1e-4)


def releases(plan, samples, seed, runs):
    query = STATISTICS["cdf"].query(plan, samples, bytes)
    return np.array(noisy_integers([query] * runs, plan.noise, seeded_bits(seed)))


def likelihood_ratio_loss(plan, first, second, drawn):
    """log P(output | first) / P(output | second) of what was drawn from the first, exactly."""
    rate = plan.s / plan.t
    return (rate * (np.abs(drawn - second) - np.abs(drawn - first))).sum(axis=1)


@pytest.mark.parametrize(
    ("bins", "branching", "levels"),
    [(EDGES, "auto", 1), (64, "auto", 2), ("auto", (4, 4, 4), 3)],
    ids=str,
)
def test_neighbours_cannot_be_told_apart_beyond_epsilon(bins, branching, levels):
    counts = SamplesPerPlate(np.array([6, 3, 3, 2]))
    plan = plan_cdf(counts, pure(NANO), 65.0, bins, branching=branching)
    assert len(plan.tree.branching) == levels
    slow, fast = (np.zeros(14, dtype=np.int64) for _ in range(2))
    fast[:6] = 65 * 4096
    ends = node_counts(plan, slow), node_counts(plan, fast)
    loss = likelihood_ratio_loss(plan, *ends, releases(plan, slow, "audit", 20_000))
    assert 0.9 < loss.max() <= 1.0 + 1e-9
    thin = replace(plan, t=np.maximum(1, np.round(plan.t * 0.7)).astype(np.int64))
    loss = likelihood_ratio_loss(thin, *ends, releases(thin, slow, "audit", 20_000))
    assert loss.max() > 1.3  # noise 30 % too small is seen


def test_noise_has_its_scale_in_every_level_and_30_percent_off_is_noticed():
    plan = plan_cdf(SamplesPerPlate(np.full(30, 4)), pure(NANO // 10), 65.0, 65)
    samples = np.random.default_rng(1).integers(0, 65 * 4096, 120)
    noise = releases(plan, samples, "scale", 1000) - node_counts(plan, samples)
    for level in range(len(plan.tree.branching)):
        here = level_of_node(plan.tree) == level
        draws = noise[:, here].ravel() / (plan.t / plan.s)[here][0]
        draws = (
            draws
            + np.random.default_rng(2).uniform(-0.5, 0.5, draws.size) / (plan.t / plan.s)[here][0]
        )
        assert stats.kstest(draws, "laplace").pvalue > 1e-6
        assert stats.kstest(draws / 0.7, "laplace").pvalue < 1e-6
        assert stats.kstest(draws / 1.3, "laplace").pvalue < 1e-6


def test_values_are_a_distribution_function_whatever_the_noise():
    plan = plan_cdf(SamplesPerPlate(np.array([2, 1, 1])), pure(NANO // 100), 65.0, EDGES)
    for nodes in releases(plan, np.array([0, 0, 4096, 8192]), "shape", 200):
        (values,) = cdf_values_of_many([plan], nodes[np.newaxis])
        assert values == sorted(values) and values[-1] == 1 and 0 <= values[0] == values[1]
        assert len(values) == len(EDGES) and not any(math.isnan(value) for value in values)
