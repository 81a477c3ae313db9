"""The CDF of one HAT, user-level eps-DP: a plan from counts, noisy tree counts, consistent shares.

Every plate gives its first min(m_l, cap) samples, so it moves at most `cap` of the n = sum of those. Source: arXiv
2409.18573, Definition IV.1 with the user-level remark after Theorem IV.1, and Section VI for consistency.

Plate by plate: g = min(m_l, cap) samples move a level by at most 2 g in l1, whose noise is for 2 cap at e_i, so plate l
loses e_i g / cap there, and eps g / cap in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.cdfs.automatic import auto_bins
from udp_stream.mechanisms.cdfs.bins import Bins, bins_from_edges, equal_bins
from udp_stream.mechanisms.cdfs.consistency import consistent_counts, shares
from udp_stream.mechanisms.cdfs.search import best_tree
from udp_stream.mechanisms.cdfs.tree import (
    Tree,
    level_budgets,
    level_counts,
    level_of_node,
    node_scales,
    prefixes,
    squared_error,
)
from udp_stream.mechanisms.grouping import SamplesPerPlate, within_cap
from udp_stream.mechanisms.noise import Cost, Noise, noise_of
from udp_stream.units import NANO

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CdfPlan:
    """How one HAT's CDF will be taken, from counts, cost and settings only.

    `kept` of the samples are used, at most `cap` of a plate. `t` and `s` give each node's noise scale t/s.
    """

    bins: Bins
    tree: Tree
    counts: SamplesPerPlate
    cap: int
    kept: int
    cost: Cost
    budgets_nano: tuple[int, ...]
    t: Integers
    s: Integers

    @property
    def noise(self) -> Noise:
        """The family that the noise is of."""
        return noise_of(self.cost)

    @property
    def given(self) -> Integers:
        """How many samples each plate gives."""
        return np.minimum(self.counts.by_plate, self.cap)

    @property
    def charges(self) -> Integers:
        """What each plate loses, in nano-units rounded up: at most `cost`."""
        return self.noise.charges(self.given, self.cap, self.cost)

    @property
    def bias_bound(self) -> float:
        """The most by which dropping samples can move a share."""
        return 1 - self.kept / self.counts.total

    @property
    def rms_error(self) -> float:
        """Root mean square noise of a share before consistency, over the edges."""
        error = squared_error(self.tree.branching, self.tree.shares, self.tree.bins) / self.tree.bins
        return self.cap * math.sqrt(error) * NANO / (self.kept * self.cost.nano)


def plan_cdf(
    counts: SamplesPerPlate, cost: Cost, max_kmh: float, bins: Literal["auto"] | int | tuple[float, ...]
) -> CdfPlan:
    """Bins, tree, cap and scales. The cap is the count of least dropped share plus noise at eight bins.

    It is lower where the noise of that could not be drawn, also once rounding has taken a nano or two from a level's
    budget, for the plates that are admitted.

    Raises ValueError if the bins are not valid for `max_kmh` or the epsilon is too small to draw noise for.
    """
    kept = counts.kept_at_every_count
    epsilon = cost.nano / NANO
    error = 1 - kept / counts.total + counts.descending * (_noise_at_eight_bins() / epsilon) / kept
    best = int(np.argmin(error))
    cap, used = int(counts.descending[best]), int(kept[best])
    chosen = auto_bins(used, cap, epsilon, max_kmh) if bins == "auto" else _fixed_bins(bins, max_kmh)
    tree = best_tree(chosen.count)
    least = cost.with_nano(min(level_budgets(tree, cost.nano)))
    drawable = max(1, noise_of(cost).counts_drawable(least))
    if cap > drawable:
        cap, used = drawable, counts.kept(drawable)
    budgets, t, s = _noise_of_nodes(chosen.count, cap, cost)
    return CdfPlan(chosen, tree, counts, cap, used, cost, budgets, t, s)


def cdf_for_admitted(plan: CdfPlan, admitted: NDArray[np.bool_]) -> CdfPlan:
    """The plan for those of its plates (at least one) that were admitted: same bins and cap, each within its charge."""
    counts, given = SamplesPerPlate(plan.counts.by_plate[admitted]), plan.given[admitted]
    cap = int(given.max())
    cost = plan.noise.within(given, cap, plan.charges[admitted], plan.cost)
    budgets, t, s = _noise_of_nodes(plan.bins.count, cap, cost)
    kept = int(given.sum())
    return replace(plan, counts=counts, cap=cap, kept=kept, cost=cost, budgets_nano=budgets, t=t, s=s)


@lru_cache(maxsize=1024)
def _noise_of_nodes(bins: int, cap: int, cost: Cost) -> tuple[tuple[int, ...], Integers, Integers]:
    """The levels' budgets, and every node's scale t/s; the HATs of a slot share a few of these."""
    tree = best_tree(bins)
    scales = np.array(node_scales(tree, cap, cost), dtype=np.int64)[level_of_node(tree)]
    return tuple(level_budgets(tree, cost.nano)), scales[:, 0].copy(), scales[:, 1].copy()


@cache
def _noise_at_eight_bins() -> float:
    tree = best_tree(8)
    return math.sqrt(squared_error(tree.branching, tree.shares, tree.bins) / 8)


@cache
def _fixed_bins(bins: int | tuple[float, ...], max_kmh: float) -> Bins:
    return equal_bins(bins, max_kmh) if isinstance(bins, int) else bins_from_edges(bins, max_kmh)


def node_counts(plan: CdfPlan, samples: Integers) -> Integers:
    """The exact counts of the tree's nodes; one plate moves level i of them by at most 2 cap in l1."""
    kept = samples[within_cap(plan.counts, plan.cap)]
    leaves = np.bincount(plan.bins.bin_of(kept), minlength=plan.tree.leaves)
    return level_counts(plan.tree, leaves)


def cdf_values(plan: CdfPlan, noisy_nodes: Integers) -> list[float]:
    """Shares at the edges from noisy node counts: one per edge, non-decreasing in [0, 1], the last one 1.

    Post-processing. The value at the first edge is that at exact zero if zeros have a bin of their own, else 0.
    """
    return cdf_values_of_many([plan], noisy_nodes[np.newaxis])[0]


def cdf_values_of_many(plans: list[CdfPlan], noisy_nodes: Integers) -> list[list[float]]:
    """`cdf_values` of plans that share bins, row by row of `noisy_nodes`: one pass over all of them."""
    totals = np.array([plan.kept for plan in plans])
    counts = consistent_counts(prefixes(plans[0].tree, noisy_nodes, totals), totals)
    values = np.asarray(shares(counts, totals))
    zeros_apart = plans[0].bins.edges_kmh[1] == 0
    first = values[:, :1] if zeros_apart else np.zeros((len(plans), 1))
    rows: list[list[float]] = np.hstack((first, values)).tolist()
    return rows
