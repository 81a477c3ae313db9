"""Level-uniform trees of counts: their shape, and the noise of their nodes (arXiv 2409.18573, Section IV).

**Theory of operation.** The bins of a CDF are the leaves of a tree. Each node but the root holds the number of samples
below it plus noise; the root's, the number of all samples, is public. Level i (1..h, from the root down) has branching
b_i and a part e_i of the CDF's budget, sum e_i = eps. (What
cumulative counts are read off them, and how far those are off: `coverings.py`.)

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
        check_branching(self.branching)
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


def level_counts(tree: Tree, leaf_counts: NDArray[Any]) -> Integers:
    """The exact counts of all nodes but the root, (..., nodes): the level below the root first, the leaves last.

    `leaf_counts`: integers, (..., leaves), or (..., bins), which is padded with the empty leaves. Raises ValueError for
    another shape or for counts that are not integers. Not private: noise goes on every node.

    >>> level_counts(Tree((2, 2), (0.5, 0.5), 3), np.array([5, 1, 2]))
    array([6, 2, 5, 1, 2, 0])
    """
    counts = integers_of(leaf_counts, "leaf counts")
    if counts.ndim == 0 or counts.shape[-1] not in (tree.bins, tree.leaves):
        raise ValueError(f"expected {tree.bins} or {tree.leaves} leaf counts, got shape {counts.shape}")
    levels = [_padded(counts, tree.leaves)]
    for b in reversed(tree.branching[1:]):
        below = levels[-1]
        levels.append(np.add.reduce(below.reshape(*below.shape[:-1], below.shape[-1] // b, b), axis=-1))
    return np.concatenate(levels[::-1], axis=-1)


def level_budgets(tree: Tree, epsilon_nano: int) -> tuple[int, ...]:
    """Each level's part of the budget in nano-epsilon: integers >= 1 that sum to exactly `epsilon_nano`.

    Shares are rounded down, the last level takes the remainder. Raises ValueError if a level would get nothing.

    >>> level_budgets(Tree((9, 2), (2 / 3, 1 / 3), 18), 100)
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


def check_branching(branching: tuple[int, ...]) -> None:
    """ValueError unless there is a level, and each has two children or more a node.

    >>> check_branching((2, 3))
    >>> check_branching((2, 1))
    Traceback (most recent call last):
        ...
    ValueError: expected at least one level, each with branching >= 2, got (2, 1)
    """
    if not branching or min(branching) < 2:
        raise ValueError(f"expected at least one level, each with branching >= 2, got {branching}")


def integers_of(values: NDArray[Any], what: str) -> Integers:
    """As 64-bit integers; ValueError for anything else.

    >>> integers_of(np.array([1, 2], np.uint8), "counts").dtype
    dtype('int64')
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected integer {what}, got dtype {array.dtype}")
    return array.astype(np.int64, copy=False)


def _padded(counts: Integers, leaves: int) -> Integers:
    missing = leaves - counts.shape[-1]
    return np.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(0, missing)]) if missing else counts
