"""What tests hold CDFs to: the error of a tree, that of a number of bins, and the level of each
node."""

import math

import numpy as np

from udp_stream.mechanisms.cdf import Floats, Integers, Tree, best_tree, prefix_noise
from udp_stream.mechanisms.noise import MEASURES


def squared_error(branching: tuple[int, ...], shares: tuple[float, ...], bins: int) -> float:
    """Expected squared l2 error of the GLS estimate of the first `bins` prefixes of the CDF, in
    units 1/(n eps)^2.

    (In units 1/eps^2 for counts; times cap^2 at user level.) The last prefix is public and has no
    error. The noise is taken for continuous: at a scale of one count or more the discrete one's
    variance is less by under 8 %.

    >>> round(squared_error((16, 16), (0.5, 0.5), 256)), round(squared_error((256,), (1.0,), 256))
    (41040, 87380)
    """
    return 8 * Tree(branching, shares, bins).squared_error


def dense_gls(tree: Tree) -> tuple[Floats, Floats]:
    """Matrices from noisy nodes and the total to the first `bins` - 1 prefixes: the papers' dense
    least squares."""
    size = tree.leaves
    rows = []
    for count in tree.level_sizes:
        rows += list(np.kron(np.eye(count), np.ones(size // count)))
    design, weights = (
        np.array(rows),
        np.repeat(np.array(tree.shares) ** (2 / tree.power), tree.level_sizes),
    )
    free = design[:, :-1] - design[:, -1:]
    solve = np.linalg.inv(free.T @ (weights[:, None] * free)) @ (free.T * weights)
    sums = np.tril(np.ones((size - 1, size - 1)))[: tree.bins - 1]
    return sums @ solve, -(sums @ solve @ design[:, -1])


def dense_error(tree: Tree) -> float:
    """The error that the dense solution has, in variances of a node that had the whole budget."""
    variances = np.repeat(np.array(tree.shares) ** (-2 / tree.power), tree.level_sizes)
    return float((dense_gls(tree)[0] ** 2 @ variances).sum())


def proxy_error(count: int, noise: float, measure: str = "pure") -> float:
    """The proxy of the sup error, in shares of the samples, of `count` equal bins and a zero bin;
    noise is cap b / n.

    >>> round(proxy_error(8, noise=0.02), 4)
    0.099
    """
    tree = best_tree(count + 1, MEASURES[measure].noise.power)
    return 1 / (2 * count) + noise * prefix_noise(tree, measure) * math.sqrt((count + 1) / count)


def level_of_node(tree: Tree) -> Integers:
    """For each node, in the order of `level_counts`, the index of its level."""
    return np.repeat(np.arange(len(tree.branching), dtype=np.int64), tree.level_sizes)
