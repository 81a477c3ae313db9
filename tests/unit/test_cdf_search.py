"""The search for the best tree: against exhaustion, and against the best tree of the papers' plain estimate."""

from functools import cache

import pytest

from tests.cdf_oracles import squared_error
from udp_stream.mechanisms.cdf import BINS_MAX, Tree, best_tree, optimal_shares


@cache
def factorisations(n):
    """All ordered factorisations of n in factors >= 2."""
    if n == 1:
        return [()]
    return [(b, *rest) for b in range(2, n + 1) if n % b == 0 for rest in factorisations(n // b)]


def least_error(bins, power):
    """Over every tree that is no wider than it need be: the least error with the optimal budgets."""
    shapes = ((-(-bins // leaves), *b) for leaves in range(1, bins) for b in factorisations(leaves) if len(b) < 7)
    trees = ((b, optimal_shares(b, bins, power)) for b in shapes)
    # with Laplace noise a level can be best without a budget: that tree is one of fewer levels
    return min(Tree(b, shares, bins, power).squared_error for b, shares in trees if min(shares) > 1e-6)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bins", [*range(2, 26), 30, 31, 37, 47, 48, 50, 64, 65, 66, 100])
def test_no_tree_even_a_padded_one_beats_the_best(bins, power):
    tree = best_tree(bins, power)
    assert (tree.bins, tree.power) == (bins, power) and tree.leaves < 2 * bins
    assert tree.squared_error == pytest.approx(least_error(bins, power), rel=1e-8)


@pytest.mark.parametrize(
    ("bins", "branching", "error", "plain"),
    [
        (17, (17,), 384, 1088), (64, (8, 8), 4712, 14150), (256, (16, 16), 40823, 122242),
        (1024, (8, 8, 16), 322998, 995893), (4096, (16, 16, 16), 2160317, 6609885),
        (65536, (16, 16, 16, 16), 81101343, 251e6),
    ],
)  # fmt: skip
def test_known_best_trees_err_a_third_as_much_as_the_best_of_the_plain_estimate(bins, branching, error, plain):
    tree = best_tree(bins)
    assert tree.branching == branching
    assert round(squared_error(branching, tree.shares, bins)) == error
    assert bins < 64 or error <= 0.34 * plain


def test_the_error_at_equal_budgets_is_the_one_worked_out_by_hand():
    assert squared_error((16, 16), (0.5, 0.5), 256) == pytest.approx(41_040)


@pytest.mark.parametrize("bins", [-1, 0, 1, BINS_MAX + 1])
def test_numbers_of_bins_out_of_range_are_refused(bins):
    with pytest.raises(ValueError, match="2 <= bins <= 65536"):
        best_tree(bins)
