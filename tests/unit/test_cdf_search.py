"""The search for the best tree, against exhaustion and against the papers' closed forms."""

import itertools
import math
from functools import cache

import pytest
from scipy.optimize import brentq

from tests.cdf_oracles import squared_error
from udp_stream.mechanisms.trees import BINS_MAX, best_tree, covering_uses, optimal_shares


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


@pytest.mark.parametrize("bins", [100, 127, 256, 289, 512])
def test_no_tree_padded_to_half_as_many_again_beats_the_best(bins):
    tree = best_tree(bins)
    error = squared_error(tree.branching, tree.shares, bins)
    assert error == pytest.approx(least_error(bins, bins * 3 // 2), rel=1e-9)


@pytest.mark.parametrize(
    ("bins", "branching", "error"),
    [(17, (17,), 1088), (64, (7, 10), 14150), (256, (14, 19), 122242), (1024, (9, 12, 10), 995893)],
)
def test_known_best_trees(bins, branching, error):
    tree = best_tree(bins)
    assert tree.branching == branching
    assert round(squared_error(branching, tree.shares, bins)) == error


@pytest.mark.parametrize(("bins", "unpadded"), [(64, (8, 8)), (256, (16, 16)), (1024, (32, 32)), (1024, (8, 8, 16))])
def test_padding_beats_the_trees_of_exactly_the_bins(bins, unpadded):
    tree = best_tree(bins)
    assert squared_error(tree.branching, tree.shares, bins) < squared_error(unpadded, optimal_shares(unpadded), bins)


@pytest.mark.parametrize("bins", range(2, 300))
def test_equally_good_trees_go_to_the_smaller_height_then_the_first_branching(bins):
    """Among the reorderings that pad alike, none that is as good comes before."""
    tree = best_tree(bins)
    error = squared_error(tree.branching, tree.shares, bins)
    for other in set(itertools.permutations(tree.branching)):
        if other < tree.branching and min(covering_uses(other, bins)) > 0:
            assert squared_error(other, optimal_shares(other, bins), bins) > error * (1 + 1e-12)


@pytest.mark.parametrize("bins", [-1, 0, 1, BINS_MAX + 1])
def test_numbers_of_bins_out_of_range_are_refused(bins):
    with pytest.raises(ValueError, match="2 <= bins <= 4096"):
        best_tree(bins)


def test_the_largest_number_of_bins_has_a_tree_of_three_levels_near_the_relaxed_optimum():
    tree = best_tree(BINS_MAX)
    assert len(tree.branching) == 3 and all(14 <= b <= 18 for b in tree.branching)


# -- the papers' closed forms ------------------------------------------------------------------------------------------


def test_the_best_common_branching_is_16_8_in_reals_and_17_in_integers():
    """Lemma IV.3: with b^h = K the error is 4 K ln^3 K f(b), f(b) = (b - 1) / ln^3 b."""

    def f(b):
        return (b - 1) / math.log(b) ** 3

    root = brentq(lambda b: b * math.log(b) - 3 * (b - 1), 2, 100)
    assert 16.7 < root < 16.9
    assert min(range(2, 1000), key=f) == 17
    for b, h in [(2, 8), (4, 4), (16, 2)]:
        error = squared_error((b,) * h, (1 / h,) * h, 256)
        assert error == pytest.approx(4 * 256 * math.log(256) ** 3 * f(b))


@pytest.mark.parametrize(("p", "power"), [(2, 7), (2, 10), (3, 5), (5, 4), (2, 9)])
def test_for_a_prime_power_and_equal_budgets_exponents_differ_by_at_most_one(p, power):
    """Theorem V.1: power = q h + r; h - r levels have branching p^q, r have p^(q+1)."""
    for h in range(1, power + 1):
        q, r = divmod(power, h)
        closed_form = sum(b - 1 for b in (p**q,) * (h - r) + (p ** (q + 1),) * r)
        assert closed_form == min(sum(b - 1 for b in bs) for bs in factorisations(p**power) if len(bs) == h)


def test_equal_branching_can_be_worse_than_unequal_when_budgets_are_equal():
    """Lemma V.2 for K = 2^7, whose only common branchings are 2 and 128."""
    mixed = squared_error((8, 16), (0.5, 0.5), 128)
    assert mixed < min(squared_error((2,) * 7, (1 / 7,) * 7, 128), squared_error((128,), (1.0,), 128))
