"""Trees of counts: shapes, coverings, errors, sensitivity and scales."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.cdf_oracles import level_of_node, squared_error
from udp_stream.mechanisms.cdf import (
    Tree,
    covering_uses,
    level_budgets,
    level_counts,
    node_scales,
    optimal_shares,
    prefixes,
)
from udp_stream.mechanisms.noise import pure
from udp_stream.units import NANO

BRANCHINGS = [(2,), (5,), (2, 2), (3, 2), (2, 3), (2, 2, 2), (4, 3, 2), (2, 5, 3)]
PADDED = [(b, bins) for b in BRANCHINGS for bins in range(math.prod(b) // b[0] + 1, math.prod(b) + 1) if bins > 1]


def tree_of(branching, bins=None):
    bins = math.prod(branching) if bins is None else bins
    return Tree(branching, optimal_shares(branching, bins), bins)


def node_intervals(branching):
    """(level, first leaf, one past the last) of every node, by recursion."""
    nodes, leaves = [], math.prod(branching)
    size = leaves
    for level, b in enumerate(branching):
        size //= b
        nodes += [(level, start, start + size) for start in range(0, leaves, size)]
    return nodes


def covering(branching, k):
    """The covering of the first k leaves by the papers' procedure: from the root down, take what still fits."""
    taken, covered = [], set()
    for i, (_, start, end) in enumerate(node_intervals(branching)):
        if end <= k and not covered & set(range(start, end)):
            taken.append(i)
            covered |= set(range(start, end))
    return taken


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_node_counts_are_the_samples_in_the_nodes_intervals(branching):
    tree = tree_of(branching)
    leaves = np.random.default_rng(3).integers(0, 9, size=(2, 3, tree.leaves))
    counts = level_counts(tree, leaves)
    intervals = node_intervals(branching)
    assert counts.shape == (2, 3, tree.nodes)
    assert (level_of_node(tree) == [level for level, _, _ in intervals]).all()
    for i, (_, start, end) in enumerate(intervals):
        assert (counts[..., i] == leaves[..., start:end].sum(axis=-1)).all()


@pytest.mark.parametrize(("branching", "bins"), PADDED)
def test_prefixes_are_the_sums_over_the_papers_coverings(branching, bins):
    tree = tree_of(branching, bins)
    noisy = np.random.default_rng(4).integers(-50, 50, size=(2, 2, tree.nodes))
    total = np.array([[7, 8], [9, 10]])
    result = prefixes(tree, noisy, total)
    assert result.shape == (2, 2, bins)
    for k in range(1, bins):
        assert (result[..., k - 1] == noisy[..., covering(branching, k)].sum(axis=-1)).all()
    assert (result[..., -1] == total).all()


@pytest.mark.parametrize(("branching", "bins"), PADDED)
def test_squared_error_is_the_variance_of_the_coverings_nodes(branching, bins):
    tree = tree_of(branching, bins)
    uses = np.zeros(len(branching), dtype=int)
    for k in range(1, bins):
        np.add.at(uses, level_of_node(tree)[covering(branching, k)], 1)
    assert tuple(uses) == covering_uses(branching, bins)
    expected = sum(2 * n * (2 / e) ** 2 for n, e in zip(uses.tolist(), tree.shares, strict=True))
    assert squared_error(branching, tree.shares, bins) == pytest.approx(expected, rel=1e-12)


def test_a_padding_so_wide_that_a_level_is_never_used_is_refused():
    with pytest.raises(ValueError, match="under one child of the root"):
        optimal_shares((2, 8), 8)


@pytest.mark.parametrize(("branching", "bins"), [((8, 8, 16), 1024), ((2, 9), 18), ((7, 10), 65), ((3, 4, 6), 50)])
def test_optimal_shares_are_a_minimum_of_the_error(branching, bins):
    def error(free):
        shares = np.exp(free) / np.exp(free).sum()
        return squared_error(branching, tuple(shares), bins)

    best = squared_error(branching, optimal_shares(branching, bins), bins)
    found = minimize(error, np.zeros(len(branching)), method="BFGS", options={"gtol": 1e-3})
    assert best <= found.fun * (1 + 1e-9)
    assert np.exp(found.x) / np.exp(found.x).sum() == pytest.approx(optimal_shares(branching, bins), rel=1e-3)
    rng = np.random.default_rng(7)
    for _ in range(200):
        assert error(np.log(optimal_shares(branching, bins)) + rng.normal(0, 0.05, len(branching))) >= best


# -- privacy ---------------------------------------------------------------------------------------------------------


def histograms(samples, bins):
    """Every way to put so many samples in so many bins."""
    for places in itertools.combinations_with_replacement(range(bins), samples):
        yield np.bincount(places, minlength=bins)


@pytest.mark.parametrize(("branching", "bins"), [((3,), 3), ((2, 2), 4), ((2, 2), 3), ((3, 2), 5), ((2, 2, 2), 7)])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_plate_changes_a_level_by_at_most_twice_its_samples_and_can_do_so(branching, bins, cap):
    """By brute force over all pairs of a plate's samples, next to another plate that stays."""
    tree = tree_of(branching, bins)
    level = level_of_node(tree)
    for samples in range(cap + 1):
        ways = np.array(list(histograms(samples, bins)))
        other = np.array(list(histograms(1, bins)))
        for still in other:
            counts = level_counts(tree, ways + still)
            change = np.abs(counts[:, None] - counts[None])
            worst = [int(change[..., level == i].sum(axis=-1).max()) for i in range(len(branching))]
            assert worst == [2 * samples] * len(branching)


@given(st.sampled_from([b for b in BRANCHINGS if len(b) > 1]), st.integers(1, 5000), st.integers(10**6, 100 * NANO))
def test_scales_cover_the_sensitivity_at_a_total_loss_of_at_most_epsilon(branching, cap, epsilon_nano):
    tree = tree_of(branching)
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
    tree = tree_of(branching)
    budgets = level_budgets(tree, epsilon_nano)
    assert sum(budgets) == epsilon_nano
    assert all(abs(e - s * epsilon_nano) < len(branching) + 1e-3 for e, s in zip(budgets, tree.shares, strict=True))


@pytest.mark.parametrize("epsilon_nano", [2, 0, -5])
def test_a_budget_that_leaves_a_level_nothing_is_refused(epsilon_nano):
    with pytest.raises(ValueError, match="at least 1 nano-epsilon"):
        level_budgets(tree_of((2, 2, 2)), epsilon_nano)


def test_noise_beyond_the_samplers_range_is_refused():
    tree = Tree((2, 2), (0.5, 0.5), 4)
    assert node_scales(tree, cap=2**25, cost=pure(2 * NANO)) == [(2**26, 1)] * 2
    with pytest.raises(ValueError, match="noise scale of at most"):
        node_scales(tree, cap=2**25 + 1, cost=pure(2 * NANO))
    with pytest.raises(ValueError, match="cap >= 1"):
        node_scales(tree, cap=0, cost=pure(2 * NANO))
