"""The automatic choice of bins: as many as the noise in a HAT lets a reader tell apart, from public quantities only.

**The proxy.** A CDF with few bins is coarse, one with many is noisy. The proxy takes one number for each of the two
errors, in shares of the HAT's samples, and adds them:

* *resolution*, 1 / (2 count): a reader who interpolates in a bin with a share p of the samples is wrong by about p / 2
  at worst, and under a uniform public prior each of `count` equal bins has the share 1 / count;
* *noise*, cap b / n times the `count` noisy prefixes of the best tree, root mean square, before consistency, which only
  helps; b is the expected size of noise on counts in which a plate moves one sample: 2 / eps for Laplace noise.

The sup error itself exceeds the noise term by a factor that grows like a logarithm, and the resolution term where
speeds bunch; the proxy is for comparing candidates. In cap b / n every candidate's proxy is a straight line, so the
choice is where that number falls among the corners of their lower envelope.

What is passed must be public: counts, the cap and the budget, or earlier releases; never a speed of the HAT.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.grouping import SamplesPerPlate, within_cap
from udp_stream.mechanisms.noise import FAMILIES, Cost, Measure, Noise, expected_noise_of_counts, noise_of
from udp_stream.mechanisms.statistic import BinsAsked, Choice
from udp_stream.mechanisms.trees import (
    Bins,
    Tree,
    best_tree,
    bins_from_edges,
    consistent_counts,
    equal_bins,
    level_budgets,
    level_counts,
    node_scales,
    prefix_noise,
    prefixes,
    shares,
    zero_and_equal_bins,
)

LADDER = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 52, 65)
"""Numbers of equal bins to choose from, next to the bin of exact zeros; several divide 65 km/h into whole widths."""


def auto_bins(counts_total_n: int, cap: int, cost: Cost, max_kmh: float) -> Bins:
    """The bins, one of exact zeros and equal ones, that minimise the proxy above for a HAT.

    `counts_total_n`: samples in the HAT (public); `cap`: the most that a plate moves; `cost`: the CDF's; `max_kmh`:
    the largest speed. Deterministic and cheap: a bisection, about a microsecond. Raises ValueError unless all four are
    positive and finite.
    """
    if counts_total_n < 1 or cap < 1:
        raise ValueError(f"expected counts_total_n >= 1 and cap >= 1, got {counts_total_n} and {cap}")
    if not 0 < max_kmh < math.inf:
        raise ValueError(f"expected positive, finite max_kmh, got {max_kmh}")
    corners, counts = _envelope(cost.measure)
    noise = cap * expected_noise_of_counts(cost) / counts_total_n
    return _zero_and_equal_bins(counts[bisect_right(corners, noise)], max_kmh)


@cache
def _noise_factor(count: int, measure: Measure) -> float:
    """Root mean square error of the `count` noisy prefixes, in units cap b / n; the last of the tree's is exact."""
    return prefix_noise(best_tree(count + 1, FAMILIES[measure].power), measure) * math.sqrt((count + 1) / count)


@cache
def _envelope(measure: Measure) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The corners, in rising noise, of the lower envelope of the proxies, and the ladder's count between them.

    From the best candidate without noise (the largest) to the next whose line crosses first, and so on.
    """
    corners: list[float] = []
    counts = [max(LADDER)]
    while counts[-1] != min(LADDER):
        corner, count = min((_crossing(counts[-1], lower, measure), lower) for lower in LADDER if lower < counts[-1])
        corners.append(corner)
        counts.append(count)
    return tuple(corners), tuple(counts)


def _crossing(count: int, lower: int, measure: Measure) -> float:
    """The noise from which on `lower` bins are better than `count`."""
    return (1 / (2 * lower) - 1 / (2 * count)) / (_noise_factor(count, measure) - _noise_factor(lower, measure))


@lru_cache(maxsize=1024)
def _zero_and_equal_bins(count: int, max_kmh: float) -> Bins:
    return zero_and_equal_bins(count, max_kmh)


# The CDF of one HAT, user-level eps-DP: a plan from counts, noisy tree counts, consistent shares.
#
# Every plate gives its first min(m_l, cap) samples, so it moves at most `cap` of the n = sum of those. Source: arXiv
# 2409.18573, Definition IV.1 with the user-level remark after Theorem IV.1, and Section VI for consistency.
#
# Plate by plate: g = min(m_l, cap) samples move a level by at most 2 g in l1, whose noise is for 2 cap at e_i, so plate
# l loses e_i g / cap there, and eps g / cap in all.

Integers = NDArray[np.int64]

TREE = "tree"
"""The name of this mechanism."""


@dataclass(frozen=True, slots=True)
class CdfPlan:
    """How one HAT's CDF will be taken, from counts, cost and settings only.

    `kept` of the samples are used, at most `cap` of a plate. `t` and `s` give each node's noise scale t/s. `choice` is
    what fixed it beside counts, cost and U when it was priced.

    >>> from udp_stream.mechanisms.noise import pure
    >>> counts = SamplesPerPlate(np.array([3, 1, 1]))
    >>> plan = plan_cdf(counts, pure(10**9), max_kmh=40.0, bins=4)
    >>> plan.cap, plan.kept, plan.bins.edges_kmh, plan.charges.tolist()
    (1, 3, (0.0, 10.0, 20.0, 30.0, 40.0), [1000000000, 1000000000, 1000000000])
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
    choice: Choice

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
        return self.cap * _prefix_noise_at(self.tree, self.cost) / self.kept


def plan_cdf(
    counts: SamplesPerPlate, cost: Cost, max_kmh: float, bins: BinsAsked, choice: Choice | None = None
) -> CdfPlan:
    """Bins, tree, cap and scales, by a choice that was made before, or else the best one for these counts.

    Raises ValueError if the bins are not valid for `max_kmh` or the cost is too small to draw noise for.
    """
    if choice is None or not (choice.bins or isinstance(bins, tuple)):  # edges that it was for may be gone by now
        choice = _best_choice(counts, cost, max_kmh, bins)
    cap, chosen = choice.cap_among(counts), _bins_of(choice, max_kmh, bins)
    budgets, t, s = _noise_of_nodes(chosen.count, cap, cost)
    tree = best_tree(chosen.count, noise_of(cost).power)
    return CdfPlan(chosen, tree, counts, cap, counts.kept(cap), cost, budgets, t, s, choice)


def _best_choice(counts: SamplesPerPlate, cost: Cost, max_kmh: float, bins: BinsAsked) -> Choice:
    """The cap is the count of least dropped share plus noise at eight bins.

    It is lower where the noise of that could not be drawn, also once rounding has taken a nano or two from a level's
    budget, for the plates that are admitted.
    """
    kept, power = counts.kept_at_every_count, noise_of(cost).power
    best = int(counts.errors_at_every_count(_prefix_noise_at(best_tree(8, power), cost)).argmin())
    cap = int(counts.descending[best])
    if bins == "auto":
        equal = auto_bins(int(kept[best]), cap, cost, max_kmh).count - 1
        choice = Choice(TREE, cap, equal, zeros_apart=True)
    else:
        choice = Choice(TREE, cap, bins if isinstance(bins, int) else 0)
    drawable = _drawable_cap(_bins_of(choice, max_kmh, bins).count, cost)
    return choice if cap <= drawable else msgspec.structs.replace(choice, cap=drawable)


@lru_cache(maxsize=1024)
def _drawable_cap(bins: int, cost: Cost) -> int:
    """The largest cap for which the noise of each level can be drawn; at least 1."""
    least = cost.with_nano(min(level_budgets(best_tree(bins, noise_of(cost).power), cost.nano)))
    return max(1, noise_of(cost).counts_drawable(least))


def _bins_of(choice: Choice, max_kmh: float, bins: BinsAsked) -> Bins:
    """The chosen number of equal bins, or else those with the configured edges."""
    if choice.bins or not isinstance(bins, tuple):
        return _equal_bins(choice.bins, choice.zeros_apart, max_kmh)
    return _bins_from_edges(bins, max_kmh)


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
    tree = best_tree(bins, noise_of(cost).power)
    t, s = (np.repeat(of_levels, tree.level_sizes) for of_levels in zip(*node_scales(tree, cap, cost), strict=True))
    return level_budgets(tree, cost.nano), t, s


@lru_cache(maxsize=1024)
def _prefix_noise_at(tree: Tree, cost: Cost) -> float:
    """Root mean square noise of a prefix for each sample that a plate moves, by the family of the cost."""
    return prefix_noise(tree, cost.measure) * expected_noise_of_counts(cost)


@lru_cache(maxsize=1024)
def _equal_bins(count: int, zeros_apart: bool, max_kmh: float) -> Bins:
    return (zero_and_equal_bins if zeros_apart else equal_bins)(count, max_kmh)


@cache
def _bins_from_edges(edges_kmh: tuple[float, ...], max_kmh: float) -> Bins:
    return bins_from_edges(edges_kmh, max_kmh)


class CdfMechanism(Protocol):
    """One way of taking a CDF: noisy counts of nodes, and what cumulative shares they say.

    >>> class Zeros(TreeCdf):
    ...     name = "zeros"
    ...
    ...     def node_counts(self, plan: CdfPlan, samples: Integers) -> Integers:
    ...         return np.zeros_like(super().node_counts(plan, samples))
    >>> from udp_stream.mechanisms.noise import pure
    >>> mechanism: CdfMechanism = Zeros()
    >>> plan = mechanism.plan(SamplesPerPlate(np.array([1, 1])), pure(10**9), max_kmh=20.0, bins=2, choice=None)
    >>> mechanism.node_counts(plan, np.array([5, 15]) * 4096).any()
    np.False_
    """

    @property
    def name(self) -> str:
        """As in terms."""
        ...

    def plan(
        self, counts: SamplesPerPlate, cost: Cost, max_kmh: float, bins: BinsAsked, choice: Choice | None
    ) -> CdfPlan:
        """Fix everything that counts can fix; its choice names this mechanism."""
        ...

    def subset(self, plan: CdfPlan, admitted: NDArray[np.bool_]) -> CdfPlan:
        """The plan for those of its plates (at least one) that the ledger admitted, within each one's charge."""
        ...

    def node_counts(self, plan: CdfPlan, samples: Integers) -> Integers:
        """The integers to which noise of the plan's scales t/s is added."""
        ...

    def values(self, plans: Sequence[CdfPlan], noisy_nodes: Integers) -> list[list[float]]:
        """Shares at the edges, row by row, of plans that share bins: post-processing."""
        ...


class TreeCdf:
    """The best tree for the bins, the plain covering estimate, made consistent.

    >>> from udp_stream.mechanisms.noise import pure
    >>> tree, counts = TreeCdf(), SamplesPerPlate(np.array([1, 1, 1]))
    >>> plan = tree.plan(counts, pure(10**9), max_kmh=40.0, bins=4, choice=None)
    >>> nodes = tree.node_counts(plan, np.array([5, 15, 35]) * 4096)
    >>> tree.values([plan], nodes[np.newaxis])
    [[0.0, 0.3333333333333333, 0.6666666666666666, 0.6666666666666666, 1.0]]
    """

    name = TREE

    def plan(
        self, counts: SamplesPerPlate, cost: Cost, max_kmh: float, bins: BinsAsked, choice: Choice | None
    ) -> CdfPlan:
        """As `plan_cdf`."""
        return plan_cdf(counts, cost, max_kmh, bins, choice)

    def subset(self, plan: CdfPlan, admitted: NDArray[np.bool_]) -> CdfPlan:
        """The same bins and cap."""
        return cdf_for_admitted(plan, admitted)

    def node_counts(self, plan: CdfPlan, samples: Integers) -> Integers:
        """Of the tree."""
        return node_counts(plan, samples)

    def values(self, plans: Sequence[CdfPlan], noisy_nodes: Integers) -> list[list[float]]:
        """Consistent ones."""
        return cdf_values_of_many(plans, noisy_nodes)


def node_counts(plan: CdfPlan, samples: Integers) -> Integers:
    """The exact counts of the tree's nodes; one plate moves level i of them by at most 2 cap in l1."""
    kept = samples[within_cap(plan.counts, plan.cap)]
    leaves = np.bincount(plan.bins.bin_of(kept), minlength=plan.tree.leaves)
    return level_counts(plan.tree, leaves)


def cdf_values_of_many(plans: Sequence[CdfPlan], noisy_nodes: Integers) -> list[list[float]]:
    """Shares at the edges from noisy node counts, row by row, of plans that share bins: one pass over all of them.

    One per edge, non-decreasing in [0, 1], the last one 1. The value at the first edge is that at exact zero if zeros
    have a bin of their own, else 0. Post-processing.
    """
    totals = np.array([plan.kept for plan in plans])
    counts = consistent_counts(prefixes(plans[0].tree, noisy_nodes, totals), totals)
    values = np.asarray(shares(counts, totals))
    zeros_apart = plans[0].bins.edges_kmh[1] == 0
    first = values[:, :1] if zeros_apart else np.zeros((len(plans), 1))
    rows: list[list[float]] = np.hstack((first, values)).tolist()
    return rows


# CDFs of the speeds in a HAT, private at user level: bins, trees, their search, consistency (arXiv 2409.18573).

CDF_MECHANISMS: dict[str, CdfMechanism] = {mechanism.name: mechanism for mechanism in (TreeCdf(),)}
"""By their names in terms."""
