"""Simulated trees: the formula's error, at user level; and what consistency gains. Fixed seeds."""

import math

import numpy as np
import pytest

from tests.cdf_oracles import level_of_node, squared_error
from tests.forms import long_rows
from udp_stream.mechanisms.cdf import (
    Tree,
    best_tree,
    consistent_counts,
    level_counts,
    node_scales,
    optimal_shares,
    prefixes,
)
from udp_stream.mechanisms.noise import pure
from udp_stream.units import NANO

RUNS = 4000


def seeded_discrete_laplace(rng, scales, shape):
    """The difference of two geometric variables of ratio exp(-s/t): numpy's randomness, for tests only."""
    t, s = np.array(scales, dtype=float).T
    stop = -np.expm1(-s / t)
    return rng.geometric(stop, size=shape) - rng.geometric(stop, size=shape)


def simulated_errors(tree, cap, epsilon, seed, leaf_counts):
    rng = np.random.default_rng(seed)
    scales = [node_scales(tree, cap, pure(round(epsilon * NANO)))[level] for level in level_of_node(tree)]
    noisy = level_counts(tree, leaf_counts) + seeded_discrete_laplace(rng, scales, (RUNS, tree.nodes))
    estimates = prefixes(tree, noisy, int(leaf_counts.sum()))
    return ((estimates - np.cumsum(leaf_counts)) ** 2).sum(axis=1), estimates


TREES = [
    Tree((16,), (1.0,), 16), Tree((4, 4), (0.5, 0.5), 16), Tree((2, 8), (0.3, 0.7), 16),
    Tree((2, 2, 2, 2), (0.1, 0.2, 0.3, 0.4), 16), best_tree(13), best_tree(66),
    Tree((4, 5), optimal_shares((4, 5), 17), 17),
]  # fmt: skip
BEST = [best_tree(bins) for bins in (16, 64, 65, 100, 256, 729, 1024)]
CASES = [[(tree, *cost) for tree in (*TREES, *BEST)] for cost in ((1, 0.05), (7, 0.3))]
SHORT = [one for one in (*CASES[0][::2], *CASES[1][1::2]) if one[0].bins < 256]
"""Each smaller tree at one of both caps."""


@pytest.mark.parametrize(
    ("tree", "cap", "epsilon"),
    long_rows(SHORT, [*CASES[0], *CASES[1]]),
    ids=lambda value: f"{value.branching}-{value.bins}" if isinstance(value, Tree) else None,
)
def test_the_error_of_a_tree_is_the_formulas_and_not_one_30_percent_off(tree, cap, epsilon):
    leaf_counts = np.random.default_rng(1).integers(0, 50, tree.bins)
    errors, estimates = simulated_errors(tree, cap, epsilon, 2, leaf_counts)
    formula = squared_error(tree.branching, tree.shares, tree.bins) * (cap / epsilon) ** 2
    standard_error = errors.std() / math.sqrt(RUNS)
    assert standard_error < 0.03 * formula
    assert abs(errors.mean() - formula) < 3 * standard_error
    assert abs(errors.mean() - 1.3 * formula) > 4 * standard_error
    assert abs(errors.mean() - formula / 1.3) > 4 * standard_error
    bias = estimates.mean(axis=0) - np.cumsum(leaf_counts)
    assert (np.abs(bias) <= 4.5 * estimates.std(axis=0) / math.sqrt(RUNS) + 1e-6).all()
    assert bias[-1] == 0


def test_the_best_tree_beats_the_histogram_and_the_binary_tree_at_64_bins():
    leaf_counts = np.full(64, 10)
    mean_error = {
        name: simulated_errors(tree, 1, 0.1, 3, leaf_counts)[0].mean()
        for name, tree in {
            "best": best_tree(64),
            "histogram": Tree((64,), (1.0,), 64),
            "binary": Tree((2,) * 6, (1 / 6,) * 6, 64),
        }.items()
    }
    assert mean_error["best"] < 0.95 * mean_error["histogram"] and mean_error["best"] < 0.7 * mean_error["binary"]


def test_consistency_reduces_the_error():
    tree = best_tree(66)
    leaf_counts = np.random.default_rng(4).multinomial(500, np.full(66, 1 / 66))
    errors, estimates = simulated_errors(tree, 2, 1.0, 5, leaf_counts)
    rounded = np.rint(estimates).astype(np.int64)
    projected = ((consistent_counts(rounded, 500) - np.cumsum(leaf_counts)) ** 2).sum(axis=1)
    assert (np.sqrt(projected) <= np.sqrt(errors) + math.sqrt(66) / 2).all()
    assert projected.mean() < 0.95 * errors.mean()
