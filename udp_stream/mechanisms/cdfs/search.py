"""The best tree for a number of bins: all heights, factorisations and paddings (arXiv 2409.18573, Section V).

The paper searches the factorisations of K and gives closed forms for prime powers. Here the search is exact and over
padded trees as well. With the optimal shares the error of a tree is 8 (sum_i u_i^(1/3))^3, where u_i is how often the
coverings use level i (`covering_uses`), and u_i depends only on the leaves below the level's nodes and on its own
branching. So the least sum is a shortest path from 1 leaf up to the root. For noise whose variance goes by the inverse
of its cost, not its square, square roots stand for the cube roots (`optimal_shares`).

Bound on the padding: below the root there are L < K leaves per child, and the root needs ceil(K / L) children; more
of them add empty bins that no prefix uses and change nothing. So K' < K + L < 2 K covers *every* padded tree, and there
are about K ln K steps to look at.

Costs are integers (roots scaled by 2**32 and rounded down), so that equal trees tie exactly, whatever the order of
addition, and every machine finds the same tree.
"""

from __future__ import annotations

import math
from functools import cache

from udp_stream.mechanisms.cdfs.bins import BINS_MAX
from udp_stream.mechanisms.cdfs.coverings import digit_sum, optimal_shares
from udp_stream.mechanisms.cdfs.tree import Tree

_Path = tuple[int, int, tuple[int, ...]]
"""Cost so far, height, branching from the top down: compared in this order."""


@cache
def best_tree(bins: int, power: int = 1) -> Tree:
    """The tree with the least expected squared error of the plain estimate of `bins` prefixes, with its optimal shares.

    `power` is that of the noise's family: 1 for Laplace noise, 2 for Gaussian noise.

    Ties go to the smaller height, then to the lexicographically first branching. Raises ValueError unless
    2 <= bins <= 4096. Public: depends on nothing but these two.

    >>> best_tree(64).branching, best_tree(1024).branching  # padded: they beat (8, 8) and (32, 32)
    ((7, 10), (9, 12, 10))
    >>> best_tree(64, power=2).branching
    (3, 5, 5)
    """
    if not 2 <= bins <= BINS_MAX:
        raise ValueError(f"expected 2 <= bins <= {BINS_MAX}, got {bins}")
    paths = _cheapest_paths(bins, power)
    _, _, branching = min(_step(paths[leaves], bins, leaves, -(-bins // leaves), power) for leaves in sorted(paths))
    return Tree(branching, optimal_shares(branching, bins, power), bins)


def _cheapest_paths(bins: int, power: int) -> dict[int, _Path]:
    """For every number of leaves below `bins`, the cheapest levels that make up a subtree of these."""
    paths: dict[int, _Path] = {1: (0, 0, ())}
    for leaves in range(1, bins):  # every entry is final when its turn comes: steps go up
        for b in range(2, (bins - 1) // leaves + 1):
            path = _step(paths[leaves], bins, leaves, b, power)
            if leaves * b not in paths or path < paths[leaves * b]:
                paths[leaves * b] = path
    return paths


def _step(path: _Path, bins: int, leaves: int, b: int, power: int) -> _Path:
    """Put a level of branching b on top of a subtree."""
    cost, height, branching = path
    uses = digit_sum(bins, leaves, b)
    # 2**64 under a square root is 2**32 outside: the scale of the cube roots.
    root = _scaled_cube_root(uses) if power == 1 else math.isqrt(uses << 64)
    return cost + root, height + 1, (b, *branching)


def _scaled_cube_root(n: int) -> int:
    """floor(2**32 * n**(1/3)), exactly.

    >>> _scaled_cube_root(27) == 3 * 2**32
    True
    """
    n <<= 96
    # Floating point only guesses; the loops make it exact.
    root = round(math.cbrt(n))
    while root**3 > n:
        root -= 1
    while (root + 1) ** 3 <= n:
        root += 1
    return root
