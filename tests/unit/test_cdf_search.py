"""The search for the best tree: against exhaustion, and against the best tree of the papers' plain
estimate."""

import itertools
import math
from functools import cache

import numpy as np
import pytest

from lab.trees import plain_error
from tests.cdf_oracles import squared_error
from tests.forms import long_but
from udp_stream.mechanisms.cdf import (
    BINS_MAX,
    SHARE_MIN,
    Tree,
    best_coarsening,
    best_tree,
    level_counts,
    optimal_shares,
    prefixes,
    requested_tree,
    tree_of,
)


@cache
def factorisations(n):
    """All ordered factorisations of n in factors >= 2."""
    if n == 1:
        return [()]
    return [(b, *rest) for b in range(2, n + 1) if n % b == 0 for rest in factorisations(n // b)]


def least_error(bins, power):
    """Over every tree that is no wider than it need be: the least error with the optimal budgets."""
    shapes = (
        (-(-bins // leaves), *b)
        for leaves in range(1, bins)
        for b in factorisations(leaves)
        if len(b) < 7
    )
    trees = ((b, optimal_shares(b, bins, power)) for b in shapes)
    # with Laplace noise a level can be best without a budget: that tree is one of fewer levels
    return min(
        Tree(b, shares, bins, power).squared_error for b, shares in trees if min(shares) > 1e-6
    )


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    "bins",
    long_but([*range(2, 26), 31, 48], [*range(2, 26), 30, 31, 37, 47, 48, 50, 64, 65, 66, 100]),
)
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
def test_known_best_trees_err_a_third_as_much_as_the_best_of_the_plain_estimate(
    bins, branching, error, plain
):
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


def coarsenings(branching):
    """The tree itself, and what is left of it without some of its levels."""
    for stays in itertools.product((True, False), repeat=len(branching) - 1):
        left = [branching[0]]
        for b, one in zip(branching[1:], stays, strict=True):
            left = [*left, b] if one else [*left[:-1], left[-1] * b]
        yield tuple(left)


@pytest.mark.parametrize("power", [1, 2])
def test_a_tree_is_beside_the_best_of_all_of_its_coarsenings(power):
    lost = 0
    for branching in (
        (4, 4, 4),
        (8, 2),
        (2,) * 6,
        (3, 5, 2, 2),
        (2, 16, 2),
        (17, 2),
        (2, 2, 3, 3, 2),
    ):
        bins = math.prod(branching)
        for of in {bins, bins - bins // branching[0] // 2}:
            least = min(tree_of(one, of, power).squared_error for one in coarsenings(branching))
            assert best_coarsening(branching, of, power).squared_error == pytest.approx(
                least, rel=1e-9
            )
            asked = requested_tree(branching, of, power)
            assert asked.branching == branching and min(asked.shares) >= SHARE_MIN[power] * (
                1 - 1e-6
            )
            assert least * (1 - 1e-9) <= asked.squared_error <= 1.4 * least
            lost += asked.squared_error > least * (1 + 1e-6)
    assert lost > 5 if power == 1 else lost == 0


def test_figures_of_trees_that_lose_to_a_coarsening():
    errors = (8 * of((4, 4, 4), 64).squared_error for of in (best_coarsening, requested_tree))
    local = 8 * Tree((4, 4, 4), optimal_shares((4, 4, 4)), 64).squared_error
    assert [round(one) for one in (*errors, local)] == [4892, 5265, 6030]


@pytest.mark.parametrize(
    ("branching", "bins"), [((4,), 4), ((2, 2, 2), 8), ((2, 2, 2), 6), ((3, 2), 5), ((2, 5, 3), 30)]
)
def test_the_papers_plain_estimate_adds_up_the_fewest_nodes(branching, bins):
    tree = requested_tree(branching, bins, levels="even")
    assert tree.shares == (1 / len(branching),) * len(branching)
    leaves = np.random.default_rng(2).integers(0, 9, (3, bins))
    assert (
        prefixes(tree, level_counts(tree, leaves), leaves.sum(axis=-1))
        == np.cumsum(leaves, axis=-1)
    ).all()
    noise = np.random.default_rng(3).integers(
        -50, 51, (20_000, tree.nodes)
    )  # of variance 850 in each node
    off = prefixes(tree, noise, 0)
    assert (off**2).sum(axis=-1).mean() * len(branching) ** 2 / 850 == pytest.approx(
        tree.squared_error, rel=0.03
    )
    if bins == tree.leaves:
        assert 8 * tree.squared_error == pytest.approx(
            plain_error(branching, tree.shares), rel=1e-12
        )
