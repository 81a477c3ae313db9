"""The search for the best tree, against exhaustion and against the papers' closed forms."""

from functools import cache

import pytest

from tests.cdf_oracles import squared_error
from udp_stream.mechanisms.cdf import BINS_MAX, best_tree, covering_uses


@cache
def factorisations(n):
    """All ordered factorisations of n in factors >= 2."""
    if n == 1:
        return [()]
    return [(b, *rest) for b in range(2, n + 1) if n % b == 0 for rest in factorisations(n // b)]


def least_error(bins, leaves_max):
    """Over every tree of bins..leaves_max leaves: the least error with the optimal shares."""
    trees = (b for leaves in range(bins, leaves_max + 1) for b in factorisations(leaves))
    return min(8 * sum(u ** (1 / 3) for u in covering_uses(b, bins)) ** 3 for b in trees)


@pytest.mark.parametrize("bins", [*range(2, 34), 47, 48, 50, 64, 65, 66])
def test_no_tree_even_one_padded_to_three_times_the_bins_beats_the_best(bins):
    tree = best_tree(bins)
    assert tree.bins == bins and tree.leaves < 2 * bins
    error = squared_error(tree.branching, tree.shares, bins)
    assert error == pytest.approx(least_error(bins, 3 * bins), rel=1e-9)


@pytest.mark.parametrize(
    ("bins", "branching", "error"),
    [(17, (17,), 1088), (64, (7, 10), 14150), (256, (14, 19), 122242), (1024, (9, 12, 10), 995893)],
)
def test_known_best_trees(bins, branching, error):
    tree = best_tree(bins)
    assert tree.branching == branching
    assert round(squared_error(branching, tree.shares, bins)) == error


@pytest.mark.parametrize("bins", [-1, 0, 1, BINS_MAX + 1])
def test_numbers_of_bins_out_of_range_are_refused(bins):
    with pytest.raises(ValueError, match="2 <= bins <= 4096"):
        best_tree(bins)


# -- the papers' closed forms ------------------------------------------------------------------------------------------
