"""Trees of counts: shapes, coverings, errors, sensitivity and scales."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.cdf_oracles import dense_error, dense_gls, level_of_node
from udp_stream.base.units import NANO
from udp_stream.mechanisms.cdf import (
    SHARE_MIN,
    Tree,
    level_budgets,
    level_counts,
    node_scales,
    optimal_shares,
    prefixes,
    tree_of,
)
from udp_stream.mechanisms.noise import pure

BRANCHINGS = [(2,), (5,), (2, 2), (3, 2), (2, 3), (2, 2, 2), (4, 3, 2), (2, 5, 3)]
PADDED = [
    (b, bins)
    for b in BRANCHINGS
    for bins in range(math.prod(b) // b[0] + 1, math.prod(b) + 1)
    if bins > 1
]


def even_tree(branching):
    return Tree(branching, (1 / len(branching),) * len(branching), math.prod(branching))


def node_intervals(branching):
    """(level, first leaf, one past the last) of every node, by recursion."""
    nodes, leaves = [], math.prod(branching)
    size = leaves
    for level, b in enumerate(branching):
        size //= b
        nodes += [(level, start, start + size) for start in range(0, leaves, size)]
    return nodes


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_node_counts_are_the_samples_in_the_nodes_intervals(branching):
    tree = even_tree(branching)
    leaves = np.random.default_rng(3).integers(0, 9, size=(2, 3, tree.leaves))
    counts = level_counts(tree, leaves)
    intervals = node_intervals(branching)
    assert counts.shape == (2, 3, tree.nodes)
    assert (level_of_node(tree) == [level for level, _, _ in intervals]).all()
    for i, (_, start, end) in enumerate(intervals):
        assert (counts[..., i] == leaves[..., start:end].sum(axis=-1)).all()


def random_trees():
    """Of all heights and paddings, with shares drawn; for either family of noise."""
    dice = np.random.default_rng(5)
    for branching, bins in [
        *PADDED,
        ((7, 10), 65),
        ((3, 2, 2, 2, 3), 65),
        ((2,) * 6, 50),
        ((4, 13), 50),
    ]:
        for power in (1, 2):
            shares = dice.dirichlet(np.full(len(branching), 2.0))
            yield Tree(branching, tuple(shares.tolist()), bins, power)


@pytest.mark.parametrize(
    "tree", list(random_trees()), ids=lambda tree: f"{tree.branching}-{tree.bins}-{tree.power}"
)
def test_two_passes_give_the_dense_least_squares_solution_and_its_error(tree):
    noisy = np.random.default_rng(4).integers(-50, 50, size=(2, 2, tree.nodes))
    total = np.array([[7, 8], [9, 10]])
    of_nodes, of_total = dense_gls(tree)
    result = prefixes(tree, noisy, total)
    assert result.shape == (2, 2, tree.bins)
    expected = noisy @ of_nodes.T + total[..., None] * of_total
    np.testing.assert_allclose(result[..., :-1], expected, rtol=0, atol=1e-8)
    assert (result[..., -1] == total).all()
    assert tree.squared_error == pytest.approx(dense_error(tree), rel=1e-9)


@pytest.mark.parametrize(
    "tree", list(random_trees()), ids=lambda tree: f"{tree.branching}-{tree.bins}-{tree.power}"
)
def test_without_noise_the_prefixes_are_exact(tree):
    leaves = np.random.default_rng(6).integers(0, 9, size=(3, tree.bins))
    found = prefixes(tree, level_counts(tree, leaves), leaves.sum(axis=-1))
    np.testing.assert_allclose(found, leaves.cumsum(axis=-1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    ("branching", "bins"),
    [((8, 8, 16), 1024), ((2, 9), 18), ((7, 10), 65), ((3, 4, 6), 50), ((2, 8), 8)],
)
def test_optimal_shares_are_a_minimum_of_the_error(branching, bins, power):
    def error(free):
        shares = np.exp(free) / np.exp(free).sum()
        return Tree(branching, tuple(shares), bins, power).squared_error

    ours = np.log(np.maximum(optimal_shares(branching, bins, power), 1e-9))  # a level's can be 0
    best = error(ours)
    found = minimize(
        error,
        ours + 1e-3,
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000},
    )
    assert best <= found.fun * (1 + 1e-6)
    rng = np.random.default_rng(7)
    for _ in range(200):
        assert error(ours + rng.normal(0, 0.05, len(branching))) >= best * (1 - 1e-9)


def test_levels_that_are_best_without_a_budget_are_left_out():
    kept = tree_of((2,) * 6, 64)
    assert (
        math.prod(kept.branching) == 64
        and len(kept.branching) < 6
        and min(kept.shares) >= SHARE_MIN[1]
    )
    with_all = (
        Tree((2,) * 6, optimal_shares((2,) * 6, 64), 64)
        if min(optimal_shares((2,) * 6, 64)) > 0
        else kept
    )
    assert kept.squared_error <= with_all.squared_error * (1 + 1e-9)
    even = Tree((2,) * 6, (1 / 6,) * 6, 64)
    assert kept.squared_error < 0.8 * even.squared_error


# -- privacy
# ---------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([b for b in BRANCHINGS if len(b) > 1]),
    st.integers(1, 5000),
    st.integers(10**6, 100 * NANO),
)
def test_scales_cover_the_sensitivity_at_a_total_loss_of_at_most_epsilon(
    branching, cap, epsilon_nano
):
    tree = even_tree(branching)
    try:
        scales = node_scales(tree, cap, pure(epsilon_nano))
    except ValueError:
        assert 2 * cap * NANO / min(level_budgets(tree, epsilon_nano)) > 2**26 - 1
        return
    loss = Fraction(0)
    for (t, s), budget in zip(scales, level_budgets(tree, epsilon_nano), strict=True):
        exact = Fraction(2 * cap * NANO, budget)
        assert exact <= Fraction(t, s) < exact + Fraction(1, s)
        assert 1 <= t <= 2**26 and s in {2**k for k in range(17)}
        assert s == 2**16 or exact * 2 * s > 2**26  # no finer denominator would fit
        loss += 2 * cap / Fraction(t, s)
    assert loss <= Fraction(epsilon_nano, NANO)


@given(st.sampled_from(BRANCHINGS), st.integers(10, 20 * NANO))
def test_level_budgets_sum_to_exactly_epsilon_and_are_the_shares_rounded(branching, epsilon_nano):
    tree = even_tree(branching)
    budgets = level_budgets(tree, epsilon_nano)
    assert sum(budgets) == epsilon_nano
    assert all(
        abs(e - s * epsilon_nano) < len(branching) + 1e-3
        for e, s in zip(budgets, tree.shares, strict=True)
    )


@pytest.mark.parametrize("epsilon_nano", [2, 0, -5])
def test_a_budget_that_leaves_a_level_nothing_is_refused(epsilon_nano):
    with pytest.raises(ValueError, match="at least 1 nano-epsilon"):
        level_budgets(even_tree((2, 2, 2)), epsilon_nano)


def test_noise_beyond_the_samplers_range_is_refused():
    tree = Tree((2, 2), (0.5, 0.5), 4)
    assert node_scales(tree, cap=2**25, cost=pure(2 * NANO)) == [(2**26, 1)] * 2
    with pytest.raises(ValueError, match="noise scale of at most"):
        node_scales(tree, cap=2**25 + 1, cost=pure(2 * NANO))
    with pytest.raises(ValueError, match="cap >= 1"):
        node_scales(tree, cap=0, cost=pure(2 * NANO))
