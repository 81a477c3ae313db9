"""Cumulative counts read off a tree by the plain covering estimate, and its error (arXiv 2409.18573, Section IV).

A cumulative count is the sum of the nodes of its *covering*: with k = sum_i d_i L_i, where L_i is the number of leaves
under a node of level i, the first k leaves are covered by d_i siblings in level i. So the total squared error is a sum
over digits, and `covering_uses` is all there is to know. The shares of the budget that are best for this estimate
follow from it, and so does the best tree (`search.py`); another estimate has others.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.cdfs.tree import Integers, Tree, check_branching, integers_of, level_budgets
from udp_stream.mechanisms.noise import Cost, Measure, expected_noise_of_counts, noise_of
from udp_stream.units import NANO


def covering_uses(branching: tuple[int, ...], bins: int) -> tuple[int, ...]:
    """Per level: how many nodes of it the coverings of the first `bins` - 1 prefixes use in all (the last is public).

    With bins = leaves this is K (b_i - 1) / 2, the count in the proof of Theorem IV.1.

    >>> covering_uses((4, 4), 16), covering_uses((4, 4), 13)
    ((24, 24), (15, 18))
    """
    check_branching(branching)
    leaves = math.prod(branching)
    if not 2 <= bins <= leaves:
        raise ValueError(f"expected 2 <= bins <= {leaves}, got {bins}")
    uses = []
    for b in branching:
        leaves //= b
        uses.append(digit_sum(bins, leaves, b))
    return tuple(uses)


def digit_sum(bins: int, leaves_below: int, b: int) -> int:
    """Sum over k < bins of the digit floor(k / leaves_below) mod b, in closed form.

    >>> digit_sum(7, 2, 3) == sum(k // 2 % 3 for k in range(7))
    True
    """
    periods, rest = divmod(bins, leaves_below * b)
    digit, part = divmod(rest, leaves_below)
    return (periods * b * (b - 1) + digit * (digit - 1)) // 2 * leaves_below + digit * part


def optimal_shares(branching: tuple[int, ...], bins: int | None = None, power: int = 1) -> tuple[float, ...]:
    """The shares of the budget of least squared error: proportional to the cube roots of `covering_uses`.

    For `bins` = leaves, the default, that is (b_i - 1)^(1/3): Theorem IV.2. Where the noise's family has the power 2, a
    level's variance is inverse to its share, and sum_i u_i / e_i is least for square roots. Raises ValueError if a
    level is never used, or for another power.

    >>> optimal_shares((9, 2))
    (0.6666666666666666, 0.3333333333333333)
    >>> optimal_shares((10, 2), power=2)
    (0.75, 0.25)
    """
    if power not in (1, 2):
        raise ValueError(f"expected noise of power 1 or 2, got {power}")
    uses = covering_uses(branching, math.prod(branching) if bins is None else bins)
    if min(uses) == 0:
        raise ValueError(f"expected bins > leaves under one child of the root, got {bins} with branching {branching}")
    roots = [math.cbrt(n) if power == 1 else math.sqrt(n) for n in uses]
    return tuple(root / math.fsum(roots) for root in roots)


_FINE_NANO = 2**20 * NANO
"""A cost at which rounding a level's share of it to whole nano-units cannot be seen in a double."""


@cache
def prefix_noise(tree: Tree, measure: Measure) -> float:
    """The noise of the plain estimate's prefixes, root mean square, in the expected size of noise on counts.

    That size is `expected_noise_of_counts` of the whole cost: the family says what a level's share of it buys. It is
    the same at every cost, as a family's scale goes by a power of the cost.

    >>> tree = Tree((16, 16), (0.5, 0.5), 256)
    >>> round(prefix_noise(tree, "pure"), 6) == round(math.sqrt(122880 / 256) / 2, 6)
    True
    """
    whole = Cost(measure, _FINE_NANO)
    noise, squares = noise_of(whole), []
    for uses, budget in zip(covering_uses(tree.branching, tree.bins), level_budgets(tree, whole.nano), strict=True):
        over, under = noise.counts_unit_scale(whole.with_nano(budget))
        squares.append(uses * noise.expected_square(over / under))
    return math.sqrt(math.fsum(squares) / tree.bins) / expected_noise_of_counts(whole)


def prefixes(tree: Tree, noisy_nodes: NDArray[Any], total: int | NDArray[Any]) -> Integers:
    """The plain covering estimate of the cumulative counts, (..., bins), the last one `total` (Definition IV.1).

    `noisy_nodes`: integers, (..., nodes), in the order of `level_counts`; `total`: the public number of samples, one
    for all or of shape (...). Unbiased; neither monotone nor in [0, total] (see `consistency`). Raises ValueError for a
    wrong shape or for counts that are not integers. Post-processing.

    >>> from udp_stream.mechanisms.cdfs.tree import level_counts
    >>> tree = Tree((2, 2), (0.5, 0.5), 3)
    >>> prefixes(tree, level_counts(tree, np.array([5, 1, 2])), total=8)
    array([5, 6, 8])
    """
    nodes = integers_of(noisy_nodes, "noisy counts")
    if nodes.ndim == 0 or nodes.shape[-1] != tree.nodes:
        raise ValueError(f"expected {tree.nodes} noisy counts, got shape {nodes.shape}")
    before = np.zeros((*nodes.shape[:-1], 1), dtype=np.int64)  # per node of a level: all that lies left of it
    start = 0
    for b, size in zip(tree.branching, tree.level_sizes, strict=True):
        siblings = nodes[..., start : start + size].reshape(*nodes.shape[:-1], size // b, b)
        here = np.repeat(before, b, axis=-1).reshape(siblings.shape)
        here[..., 1:] += np.cumsum(siblings[..., :-1], axis=-1)
        before = here.reshape(*nodes.shape[:-1], size)
        start += size
    result = np.empty((*nodes.shape[:-1], tree.bins), dtype=np.int64)
    # From place 1: what lies left of leaf k is the count of the first k leaves.
    result[..., :-1] = before[..., 1 : tree.bins]
    result[..., -1] = total
    return result
