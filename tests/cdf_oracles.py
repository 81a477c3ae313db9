"""What tests hold CDFs to: the error of a tree, that of a number of bins, and the level of each node."""

from __future__ import annotations

import math

import numpy as np

from udp_stream.mechanisms.cdf import Integers, Tree, best_tree, covering_uses, prefix_noise
from udp_stream.mechanisms.noise import FAMILIES, Measure


def squared_error(branching: tuple[int, ...], shares: tuple[float, ...], bins: int) -> float:
    """Expected squared l2 error of the plain estimate of the first `bins` prefixes of the CDF, in units 1/(n eps)^2.

    (In units 1/eps^2 for counts; times cap^2 at user level.) For bins = leaves it is 4 K sum_i (b_i - 1)/e_i^2:
    Theorem IV.1. For a padded tree it counts what the bins asked for use; the last prefix is public and has no error.
    The noise is taken for continuous: at a scale of one count or more the discrete one's variance is less by under 8 %.

    >>> round(squared_error((16, 16), (0.5, 0.5), 256)), round(squared_error((256,), (1.0,), 256))
    (122880, 261120)
    """
    uses = covering_uses(branching, bins)
    if len(shares) != len(branching):
        raise ValueError(f"expected a share per level, got {len(shares)} for {len(branching)} levels")
    return math.fsum(8 * n / share**2 for n, share in zip(uses, shares, strict=True))


def proxy_error(count: int, noise: float, measure: Measure = "pure") -> float:
    """The proxy of the sup error, in shares of the samples, of `count` equal bins and a zero bin; noise is cap b / n.

    >>> round(proxy_error(8, noise=0.02), 4)
    0.1225
    """
    tree = best_tree(count + 1, FAMILIES[measure].power)
    return 1 / (2 * count) + noise * prefix_noise(tree, measure) * math.sqrt((count + 1) / count)


def level_of_node(tree: Tree) -> Integers:
    """For each node, in the order of `level_counts`, the index of its level into `branching`, `shares`, `node_scales`.

    >>> level_of_node(Tree((2, 2), (0.5, 0.5), 4))
    array([0, 0, 1, 1, 1, 1])
    """
    return np.repeat(np.arange(len(tree.branching), dtype=np.int64), tree.level_sizes)
