"""`cdf-trees`: its arithmetic against dense systems and coverings by hand; what it finds of the
paper."""

import csv
from math import prod

import numpy as np
import pytest

from lab.reproduce import write_outcome
from lab.trees import digits, even, plain_error, refined_errors
from tests.cdf_oracles import dense_error
from tests.lab.test_experiments import outcome_of, setup_of
from udp_stream.mechanisms.cdf import Tree

BRANCHINGS = [(5,), (2, 3), (3, 2), (2, 2, 2), (4, 3, 2)]


def covering(branching, k):
    """The levels of the nodes that cover the first k leaves, by the papers' procedure: from the
    root down."""
    taken, covered, size = [], 0, prod(branching)
    for level, b in enumerate(branching):
        size //= b
        while covered + size <= k:
            taken.append(level)
            covered += size
    return taken


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_digits_are_the_papers_coverings(branching):
    found = digits(branching)
    for k in range(prod(branching)):
        assert [covering(branching, k).count(level) for level in range(len(branching))] == found[
            :, k
        ].tolist()


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_errors_are_those_of_dense_systems(branching):
    """A node's refined count is least squares in its own subtree; coverings to the left and right
    add them up."""
    shares = np.random.default_rng(1).dirichlet(np.full(len(branching), 5.0))
    tree, bins = Tree(branching, tuple(shares.tolist()), prod(branching)), prod(branching)
    variances = []
    for level in range(len(branching)):
        below, weights, size = (
            branching[level + 1 :],
            shares[level:] ** 2 / 8,
            prod(branching[level + 1 :]),
        )
        rows = [np.kron(np.eye(n), np.ones(size // n)) for n in np.cumprod((1, *below)).tolist()]
        normal = sum(w * one.T @ one for w, one in zip(weights, rows, strict=True))
        variances.append(np.linalg.inv(normal).sum())
    left, both, plain = 0.0, 0.0, 0.0
    for k in range(1, bins):
        ours, theirs = (
            sum(variances[level] for level in covering(branching, n)) for n in (k, bins - k)
        )
        left, both = left + ours, both + ours * theirs / (ours + theirs)
        plain += sum(8 / shares[level] ** 2 for level in covering(branching, k))
    assert refined_errors(tree) == pytest.approx((left, both))
    assert plain_error(branching, tree.shares) == pytest.approx(plain)
    assert 8 * dense_error(tree) <= both * (1 + 1e-9) <= left * (1 + 2e-9) <= plain * (1 + 3e-9)


@pytest.fixture(scope="module")
def outcome():
    return outcome_of("cdf-trees", setup_of(repetitions=400))


def test_it_finds_the_papers_figures_and_one_case_that_the_text_leaves_open(outcome, tmp_path):
    trees, theorems, consistent = outcome.tables.values()
    (row,) = (one for one in trees if (one.bins, one.tree) == (256, "best plain"))
    assert (row.branching, row.plain) == ((16, 16), 122_880)
    assert row.gls == pytest.approx(41_040) and row.gls_best_budgets == pytest.approx(40_823, abs=1)
    assert all(
        row.gls_best_budgets <= row.gls <= row.both_coverings * (1 + 1e-9) <= row.plain
        for row in trees
    )
    assert [row.case for row in theorems if not row.holds] == ["2^2", "2^3", "2^5"] and len(
        theorems
    ) > 700
    (differs,) = [one for one in outcome.findings if not one.agrees]
    assert differs.values["source"] == "arXiv 2409.18573, Lemma V.2"
    for how in ("in l1", "in l2"):
        made, raw = (
            next(
                row
                for row in consistent
                if (row.samples, row.estimate, row.consistent) == (1000, "GLS", one)
            )
            for one in (how, "as it is")
        )
        assert made.l1 < raw.l1 and made.l2_squared < raw.l2_squared
    names = [path.name for path in write_outcome(outcome, "cdf-trees", tmp_path)]
    assert {
        "cdf-trees.csv",
        "cdf-trees-theorems.csv",
        "cdf-trees-consistency.csv",
        "cdf-trees.png",
    } < set(names)
    with (tmp_path / "cdf-trees.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(trees)


def test_drawn_errors_of_the_plain_estimate_are_the_formulas(outcome):
    stated = {
        "plain": plain_error((17, 17), even((17, 17))),
        "GLS": 8 * Tree((17, 17), (0.5, 0.5), 289).squared_error,
    }
    raw = [row for row in outcome.tables["cdf-trees-consistency"] if row.consistent == "as it is"]
    assert len(raw) == 4
    for row in raw:
        assert (
            abs(row.l2_squared * row.samples**2 - stated[row.estimate])
            < 4 * row.l2_squared_spread * row.samples**2
        )
