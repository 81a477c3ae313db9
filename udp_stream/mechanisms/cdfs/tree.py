"""Level-uniform trees of counts, and the cumulative counts read off them (arXiv 2409.18573, Section IV).

**Theory of operation.** The bins of a CDF are the leaves of a tree. Each node but the root holds the number of samples
below it plus noise; the root's, the number of all samples, is public. Level i (1..h, from the root down) has branching
b_i and a part e_i of the CDF's budget, sum e_i = eps. A cumulative count is the sum of the nodes of its *covering*:
with k = sum_i d_i L_i, where L_i is the number of leaves under a node of level i, the first k leaves are covered by d_i
siblings in level i. So the total squared error is a sum over digits, and `covering_uses` is all there is to know.

A tree may have more leaves than the CDF has bins: the bins at the right end are then always empty (publicly so).

**Privacy.** Unit: one plate in one HAT, with at most `cap` samples kept. Neighbours: `swap values`, the plate's samples
move to any bins, counts stay. Assumed: the plate is in the counts with at most `cap` samples. In one level each sample
leaves one node and enters another, so the level changes by at most 2 cap in l1, and discrete Laplace noise of scale
2 cap / e_i makes it e_i-DP; the levels compose to sum e_i = eps (Definition IV.1, and the remark after Theorem IV.1).
A plate with n < cap samples loses eps n / cap. What is computed from the noisy counts loses nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.cdfs.bins import BINS_MAX
from udp_stream.mechanisms.noise import Cost, counts_scale

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """A level-uniform tree: branching from the root down, each level's share of the budget, the bins it is for.

    Public, a part of the plan. Raises ValueError, with the rule, unless all branchings are at least 2, there is one
    positive share per level, the shares sum to 1, and 2 <= bins <= leaves.

    >>> tree = Tree(branching=(3, 2), shares=(0.6, 0.4), bins=5)
    >>> tree.leaves, tree.nodes, tree.level_sizes
    (6, 9, (3, 6))
    """

    branching: tuple[int, ...]
    shares: tuple[float, ...]
    bins: int

    def __post_init__(self) -> None:
        """Check the rules above."""
        _check_branching(self.branching)
        if len(self.shares) != len(self.branching):
            raise ValueError(f"expected a share per level, got {len(self.shares)} for {len(self.branching)} levels")
        if not all(share > 0 for share in self.shares) or not math.isclose(math.fsum(self.shares), 1, rel_tol=1e-9):
            raise ValueError(f"expected positive shares that sum to 1, got {self.shares}")
        if not 2 <= self.bins <= min(self.leaves, BINS_MAX):
            raise ValueError(f"expected 2 <= bins <= {min(self.leaves, BINS_MAX)}, got {self.bins}")

    @property
    def leaves(self) -> int:
        """The number of leaves, K' >= K; the last K' - K are always empty."""
        return math.prod(self.branching)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """The number of nodes in each level, from the one below the root down to the leaves."""
        return tuple(accumulate(self.branching, mul))

    @property
    def nodes(self) -> int:
        """The number of nodes but the root: the length of the last axis of `level_counts`."""
        return sum(self.level_sizes)


def covering_uses(branching: tuple[int, ...], bins: int) -> tuple[int, ...]:
    """Per level: how many nodes of it the coverings of the first `bins` - 1 prefixes use in all (the last is public).

    With bins = leaves this is K (b_i - 1) / 2, the count in the proof of Theorem IV.1.

    >>> covering_uses((4, 4), 16), covering_uses((4, 4), 13)
    ((24, 24), (15, 18))
    """
    _check_branching(branching)
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


def optimal_shares(branching: tuple[int, ...], bins: int | None = None) -> tuple[float, ...]:
    """The shares of the budget that minimise `squared_error`, proportional to the cube roots of `covering_uses`.

    For `bins` = leaves, the default, that is (b_i - 1)^(1/3): Theorem IV.2. Raises ValueError if a level is never used.

    >>> optimal_shares((9, 2))
    (0.6666666666666666, 0.3333333333333333)
    """
    uses = covering_uses(branching, math.prod(branching) if bins is None else bins)
    if min(uses) == 0:
        raise ValueError(f"expected bins > leaves under one child of the root, got {bins} with branching {branching}")
    roots = [math.cbrt(n) for n in uses]
    return tuple(root / math.fsum(roots) for root in roots)


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


def level_of_node(tree: Tree) -> Integers:
    """For each node, in the order of `level_counts`, the index of its level into `branching`, `shares`, `node_scales`.

    >>> level_of_node(Tree((2, 2), (0.5, 0.5), 4))
    array([0, 0, 1, 1, 1, 1])
    """
    return np.repeat(np.arange(len(tree.branching), dtype=np.int64), tree.level_sizes)


def level_counts(tree: Tree, leaf_counts: NDArray[Any]) -> Integers:
    """The exact counts of all nodes but the root, (..., nodes): the level below the root first, the leaves last.

    `leaf_counts`: integers, (..., leaves), or (..., bins), which is padded with the empty leaves. Raises ValueError for
    another shape or for counts that are not integers. Not private: noise goes on every node.

    >>> level_counts(Tree((2, 2), (0.5, 0.5), 3), np.array([5, 1, 2]))
    array([6, 2, 5, 1, 2, 0])
    """
    counts = _integers(leaf_counts, "leaf counts")
    if counts.ndim == 0 or counts.shape[-1] not in (tree.bins, tree.leaves):
        raise ValueError(f"expected {tree.bins} or {tree.leaves} leaf counts, got shape {counts.shape}")
    levels = [_padded(counts, tree.leaves)]
    for b in reversed(tree.branching[1:]):
        below = levels[-1]
        levels.append(below.reshape(*below.shape[:-1], below.shape[-1] // b, b).sum(axis=-1))
    return np.concatenate(levels[::-1], axis=-1)


def prefixes(tree: Tree, noisy_nodes: NDArray[Any], total: int | NDArray[Any]) -> Integers:
    """The plain covering estimate of the cumulative counts, (..., bins), the last one `total` (Definition IV.1).

    `noisy_nodes`: integers, (..., nodes), in the order of `level_counts`; `total`: the public number of samples, one
    for all or of shape (...). Unbiased; neither monotone nor in [0, total] (see `consistency`). Raises ValueError for a
    wrong shape or for counts that are not integers. Post-processing.

    >>> tree = Tree((2, 2), (0.5, 0.5), 3)
    >>> prefixes(tree, level_counts(tree, np.array([5, 1, 2])), total=8)
    array([5, 6, 8])
    """
    nodes = _integers(noisy_nodes, "noisy counts")
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
    result[..., :-1] = before[..., 1 : tree.bins]
    result[..., -1] = total
    return result


def level_budgets(tree: Tree, epsilon_nano: int) -> tuple[int, ...]:
    """Each level's part of the budget in nano-epsilon: integers >= 1 that sum to exactly `epsilon_nano`.

    Shares are rounded down, the last level takes the remainder. Raises ValueError if a level would get nothing.

    >>> level_budgets(Tree((9, 2), optimal_shares((9, 2)), 18), 100)
    (66, 34)
    """
    budgets = [math.floor(share * epsilon_nano) for share in tree.shares[:-1]]
    budgets.append(epsilon_nano - sum(budgets))
    if min(budgets) < 1:
        raise ValueError(
            f"expected at least 1 nano-epsilon for each of {len(budgets)} levels, got {epsilon_nano} in all"
        )
    return tuple(budgets)


def node_scales(tree: Tree, cap: int, cost: Cost) -> list[tuple[int, int]]:
    """Per level the scale t/s of the noise by which the tree costs every plate at most `cost`.

    A plate moves at most `cap` samples in each level (`noise.counts_scale`). Raises ValueError if cap < 1, a level has
    no budget, or a scale exceeds 2**26.

    >>> node_scales(Tree((2, 2), (0.5, 0.5), 4), cap=3, cost=Cost("pure", 1_000_000_000))
    [(786432, 65536), (786432, 65536)]
    """
    if cap < 1:
        raise ValueError(f"expected cap >= 1, got {cap}")
    return [counts_scale(cap, cost.with_nano(budget)) for budget in level_budgets(tree, cost.nano)]


def _check_branching(branching: tuple[int, ...]) -> None:
    if not branching or min(branching) < 2:
        raise ValueError(f"expected at least one level, each with branching >= 2, got {branching}")


def _integers(values: NDArray[Any], what: str) -> Integers:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected integer {what}, got dtype {array.dtype}")
    return array.astype(np.int64, copy=False)


def _padded(counts: Integers, leaves: int) -> Integers:
    missing = leaves - counts.shape[-1]
    return np.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(0, missing)]) if missing else counts
