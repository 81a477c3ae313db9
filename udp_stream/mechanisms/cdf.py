"""CDFs of the speeds in a HAT, private at user level: bins, trees of counts, the search for both,
consistent values.

**Bins** are public cut points. A bin is the half-open interval (e_j, e_{j+1}], so that the
cumulative count up to a bin is the number of samples *at most* its right edge. The first plain bin
also holds 0. Buses stand still a lot: with edges that start `0, 0` the exact zeros have a bin of
their own.

Speeds are integers in quanta, and s/4096 <= e holds exactly when s <= floor(4096 e): 4096 e is
exact in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import NO_INTEGERS, Flags, Floats, Integers
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import (
    Branching,
    Choice,
    Levels,
    NonNegative,
    Part,
    Positive,
    PublicSettings,
    Query,
    RequestedBins,
    SamplesPerPlate,
    Share,
    Statistic,
    StatisticTerms,
    epsilon_stated,
    first_samples,
)
from udp_stream.mechanisms.noise import (
    MEASURES,
    Cost,
    Noise,
    counts_scale,
    expected_noise_of_counts,
    noise_of,
)

BINS_MAX = 65536
"""Most bins of a CDF: a limit on the search and on the arrays per HAT."""


@dataclass(frozen=True)
class Bins:
    """The edges of the bins in km/h, non-decreasing; public.

    Raises ValueError, with the rule, unless there are 2..65536 bins whose edges are finite, start
    at 0 (doubled if the exact zeros have a bin of their own) and else lie at least a quantum apart.

    >>> Bins((0.0, 0.0, 20.0, 65.0)).count
    3
    """

    edges_kmh: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = self.edges_kmh
        if not 2 <= len(edges) - 1 <= BINS_MAX:
            raise ValueError(f"expected 2..{BINS_MAX} bins, got {len(edges) - 1}")
        for place, edge in enumerate(edges):
            if not math.isfinite(edge):
                raise ValueError(f"expected finite edges, got {edge} at place {place}")
        if edges[0] != 0:
            raise ValueError(f"expected edges that start at 0, got {edges[0]}")
        for left, right in pairwise(edges[1:] if edges[1] == 0 else edges):
            if not left < right:
                raise ValueError(
                    f"expected strictly increasing edges after an optional doubled 0, got {left}, {right}"
                )
            if _floor_quanta(left) == _floor_quanta(right):
                raise ValueError(
                    f"expected edges at least 1/{QUANTA_PER_KMH} km/h apart, got {left}, {right}"
                )

    @property
    def count(self) -> int:
        return len(self.edges_kmh) - 1

    @property
    def max_kmh(self) -> float:
        return self.edges_kmh[-1]

    @cached_property
    def _bin_of_quantum(self) -> NDArray[np.uint16]:
        """The bin of every speed 0, 1, ... up to the last edge: half a megabyte at 65 km/h, eight
        times a bisection."""
        quanta = [_floor_quanta(edge) for edge in self.edges_kmh]
        first = quanta[1] + 1  # a zero bin holds the speed 0, a plain bin all up to its right edge
        sizes = [first, *(right - left for left, right in pairwise(quanta[1:]))]
        return np.repeat(np.arange(self.count, dtype=np.uint16), sizes)

    def bin_of(self, speeds_quanta: NDArray[Any]) -> Integers:
        """The bin, 0..count-1, of each speed; any shape, speeds integers in quanta in [0, max_kmh *
        4096].

        A speed above the last edge is counted in the last bin. ValueError for an array that is not
        of integers.
        """
        speeds = np.asarray(speeds_quanta)
        if speeds.dtype.kind not in "iu":
            raise ValueError(f"expected speeds in integer quanta, got dtype {speeds.dtype}")
        return self._bin_of_quantum.take(speeds, mode="clip").astype(np.int64)


CITY_KMH: Final = (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 27.0, 35.0, 45.0, 60.0)
"""Right edges of the bins below U, the first of which has exact zeros; U is the last."""


@lru_cache(maxsize=16)
def city_bins(max_speed: int) -> Bins:
    """The bins up to U, in quanta."""
    max_kmh = max_speed / QUANTA_PER_KMH
    return Bins((0.0, *(edge for edge in CITY_KMH if edge < max_kmh), max_kmh))


@lru_cache(maxsize=1024)
def equal_bins(count: int, max_kmh: float, zeros_apart: bool = False) -> Bins:
    """`count` bins of equal width on [0, max_kmh], after a bin of exact zeros if `zeros_apart`;
    else ValueError."""
    if not 1 <= count <= BINS_MAX:
        raise ValueError(f"expected 1..{BINS_MAX} equal bins, got {count}")
    # count * max / count may miss max by an ulp
    edges = (*(j * max_kmh / count for j in range(count)), float(max_kmh))
    return Bins((0.0, *edges) if zeros_apart else edges)


@lru_cache(maxsize=1024)
def bins_from_edges(edges_kmh: tuple[float, ...], max_kmh: float) -> Bins:
    """Bins with the given edges, from 0 to max_kmh, in whole quanta; ValueError names the rule that
    they break."""
    bins = Bins(tuple(float(edge) for edge in edges_kmh))
    # In quanta, as U is by the time that plans are made: 65.3 km/h is not a whole number of them.
    if _floor_quanta(bins.max_kmh) != _floor_quanta(max_kmh):
        raise ValueError(f"expected edges that end at max_kmh = {max_kmh}, got {bins.max_kmh}")
    return bins


def _floor_quanta(edge_kmh: float) -> int:
    return math.floor(edge_kmh * QUANTA_PER_KMH)


# Level-uniform trees of counts: their shape, and the noise of their nodes (arXiv 2409.18573,
# Section IV).
#
# The bins of a CDF are the leaves of a tree, padded at the right with publicly empty leaves. Each
# node but the root holds the number of samples below it plus noise; the root's is public. Level i
# (1..h, from the root down) has branching b_i and a part e_i of the CDF's budget, sum e_i = eps.
#
# **Privacy.** Unit: a plate in a HAT, with at most `cap` samples kept. Neighbours: `swap values`,
# the plate's samples move to any bins, counts stay. Assumed: the plate is in the counts with at
# most `cap` samples. In a level each sample leaves a node and enters another, so the level changes
# by at most 2 cap in l1, and discrete Laplace noise of scale 2 cap / e_i makes it e_i-DP; the
# levels compose to sum e_i = eps (Definition IV.1, and the remark after Theorem IV.1). A plate with
# n < cap samples loses eps n / cap.


@dataclass(frozen=True)
class Tree:
    """A level-uniform tree: branching from the root down, each level's share of the budget, the
    bins it is for.

    `power` is that of the noise's family: the variance of a level's noise goes by share^(-2 /
    power). `is_plain`: a prefix is the sum of the fewest nodes that cover it (Definition IV.1), not
    the estimate by least squares. Raises ValueError unless all branchings are at least 2, and
    2 <= bins <= leaves.

    >>> tree = Tree(branching=(3, 2), shares=(0.6, 0.4), bins=5)
    >>> tree.leaves, tree.nodes, tree.level_sizes
    (6, 9, (3, 6))
    """

    branching: tuple[int, ...]
    shares: tuple[float, ...]
    bins: int
    power: int = 1
    is_plain: bool = False

    def __post_init__(self) -> None:
        branching = self.branching
        if not branching or min(branching) < 2:
            raise ValueError(
                f"expected at least one level, each with branching >= 2, got {branching}"
            )
        if not 2 <= self.bins <= min(self.leaves, BINS_MAX):
            raise ValueError(f"expected 2 <= bins <= {min(self.leaves, BINS_MAX)}, got {self.bins}")

    @property
    def leaves(self) -> int:
        return math.prod(self.branching)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes in each level, from that below the root down to the leaves."""
        return tuple(accumulate(self.branching, mul))

    @property
    def nodes(self) -> int:
        """The number of nodes but the root: the length of the last axis of `level_counts`."""
        return sum(self.level_sizes)

    @cached_property
    def precisions(self) -> list[float]:
        """Precision of a subtree's own count, level by level: 1 / variance, where the whole budget
        on a node buys 1."""
        own = [share ** (2 / self.power) for share in self.shares]
        found = [0.0]
        for precision, b in zip(reversed(own), (1, *reversed(self.branching[1:])), strict=True):
            found.append(precision + found[-1] / b)
        return found[:0:-1]

    @property
    def squared_error(self) -> float:
        """Expected squared l2 error of `prefixes`, in variances of a node that had the whole
        budget."""
        if self.is_plain:
            covering = zip(self._left_of_prefixes, self.shares, strict=True)
            return math.fsum(nodes / share ** (2 / self.power) for nodes, share in covering)
        parts = zip(contrasts(self.branching, self.bins), self.precisions, strict=True)
        return math.fsum(contrast / precision for contrast, precision in parts)

    @property
    def _left_of_prefixes(self) -> list[int]:
        """How many nodes of each level cover the first `bins` - 1 prefixes (Lemma IV.1), summed
        over them."""
        before = np.arange(self.bins)
        pairs = zip(self.level_sizes, self.branching, strict=True)
        return [int((before // (self.leaves // size) % b).sum()) for size, b in pairs]


def level_counts(tree: Tree, leaf_counts: NDArray[Any]) -> Integers:
    """The exact counts of all nodes but the root, (..., nodes): the level below the root first, the
    leaves last.

    `leaf_counts`: integers, (..., leaves), or (..., bins).
    """
    ends = [(0, 0)] * (leaf_counts.ndim - 1) + [(0, tree.leaves - leaf_counts.shape[-1])]
    levels = [np.pad(leaf_counts, ends)]
    for b in reversed(tree.branching[1:]):
        below = levels[-1]
        levels.append(
            np.add.reduce(below.reshape(*below.shape[:-1], below.shape[-1] // b, b), axis=-1)
        )
    return np.concatenate(levels[::-1], axis=-1)


def level_budgets(tree: Tree, epsilon_nano: int) -> tuple[int, ...]:
    """Each level's part of the budget in nano-epsilon: integers >= 1 that sum to exactly
    `epsilon_nano`.

    Shares are rounded down, the last level takes the remainder. Raises ValueError if a level would
    get nothing.
    """
    budgets = [math.floor(share * epsilon_nano) for share in tree.shares[:-1]]
    budgets.append(epsilon_nano - sum(budgets))
    if min(budgets) < 1:
        raise ValueError(
            f"expected at least 1 nano-epsilon for each of {len(budgets)} levels, got {epsilon_nano}"
        )
    return tuple(budgets)


def node_scales(tree: Tree, cap: int, cost: Cost) -> list[tuple[int, int]]:
    """Scale t/s of each level's noise, by which the tree costs every plate at most `cost`.

    Raises ValueError if cap < 1, a level has no budget, or a scale exceeds 2**26.
    """
    if cap < 1:
        raise ValueError(f"expected cap >= 1, got {cap}")
    return [counts_scale(cap, cost.with_nano(budget)) for budget in level_budgets(tree, cost.nano)]


# Cumulative counts read off a tree by generalised least squares (GLS), their error, and the best
# budgets.
#
# The root's count is known. Every other node has noise, of variance v_i in level i, and L_i leaves.
# The best linear unbiased estimate of all counts takes two passes (Hay et al. 2010; arXiv
# 2409.18573, Appendix B, has part of it):
#
# * *Up.* A node's own noisy count and the sum of its children's estimates are combined by their
#   precisions: p_i = 1 / v_i + p_(i+1) / b_(i+1), and p_h = 1 / v_h.
# * *Down.* What the children's estimates leave of their parent's final count is spread over them
#   evenly.
#
# **Error.** Let d siblings of level i and a fraction g of the next sibling be among the first k
# leaves. The prefix depends on that level's estimates by their *contrast*, the sum of these less (d
# + g) / b_i of all b_i. A contrast of siblings is uncorrelated with their sum, so with every other
# level's. Its variance is (d + g^2 - (d + g)^2 / b_i) / p_i. Summed over k that is c_i / p_i, with
# c_i in closed form (`contrasts`). Empty leaves of a padded tree count like all others.


def contrasts(branching: tuple[int, ...], bins: int) -> tuple[float, ...]:
    """Sum c_i for each level of d + g^2 - (d + g)^2 / b over the first `bins` - 1 prefixes; the
    last is known."""
    leaves = math.prod(branching)
    below = [leaves // size for size in accumulate(branching, mul)]
    return tuple(_contrast(bins, under, b) for under, b in zip(below, branching, strict=True))


def _contrast(bins: int, leaves: int, b: int) -> float:
    """Contrast of a level, where with q = k mod L and r = k mod b L, d is (r - q) / L and g is q /
    L: sums of remainders and of their squares."""
    (q, q2) = _sums_of_remainders(bins, leaves)
    (r, r2) = _sums_of_remainders(bins, leaves * b)
    return (leaves * b * (r - q) + b * q2 - r2) / (leaves * leaves * b)


def _sums_of_remainders(n: int, m: int) -> tuple[int, int]:
    """Sums of k mod m and of its square over k < n."""
    periods, rest = divmod(n, m)
    first = periods * (m * (m - 1) // 2) + rest * (rest - 1) // 2
    return first, periods * ((m - 1) * m * (2 * m - 1) // 6) + (rest - 1) * rest * (
        2 * rest - 1
    ) // 6


def prefixes(tree: Tree, noisy_nodes: NDArray[Any], total: int | NDArray[Any]) -> Floats:
    """The GLS estimate of the cumulative counts, (..., bins), the last being `total`; of a plain
    tree, sums of nodes.

    `noisy_nodes`: integers, (..., nodes), in the order of `level_counts`; `total`: the public
    number of samples, an integer or of shape (...). Unbiased; neither whole nor monotone nor in [0,
    total] (see `consistent_counts`). Post-processing.
    """
    of_levels = np.split(noisy_nodes.astype(np.float64), np.cumsum(tree.level_sizes)[:-1], axis=-1)
    families = [
        of_level.reshape(*of_level.shape[:-1], -1, b)
        for of_level, b in zip(of_levels, tree.branching, strict=True)
    ]
    if tree.is_plain:
        return _plain_prefixes(tree, families, total)
    sums = [family.sum(axis=-1) for family in families]
    for i in range(len(families) - 2, -1, -1):
        own = tree.shares[i] ** (2 / tree.power) / tree.precisions[i]
        families[i] = own * families[i] + (1 - own) * sums[i + 1].reshape(families[i].shape)
        sums[i] = families[i].sum(axis=-1)
    counts = np.broadcast_to(np.asarray(total, dtype=np.float64)[..., np.newaxis], sums[0].shape)
    for family, of_family in zip(families, sums, strict=True):
        missing = (counts - of_family) / family.shape[-1]
        counts = (family + missing[..., np.newaxis]).reshape(*noisy_nodes.shape[:-1], -1)
    result = np.cumsum(counts[..., : tree.bins], axis=-1)
    result[..., -1] = total
    return result


def _plain_prefixes(tree: Tree, families: Sequence[Floats], total: int | NDArray[Any]) -> Floats:
    """Nodes before a leaf: on each level, the siblings left of the node that it is in."""
    result = np.zeros((*families[0].shape[:-2], tree.bins))
    before = np.arange(1, tree.bins)
    for family, size in zip(families, tree.level_sizes, strict=True):
        left = (np.cumsum(family, axis=-1) - family).reshape(*family.shape[:-2], -1)
        result[..., :-1] += left[..., before // (tree.leaves // size)]
    result[..., -1] = total
    return result


@cache
def prefix_noise(tree: Tree, measure: str) -> float:
    """The noise of `prefixes`, root mean square, in the expected size of noise on counts, at every
    cost alike."""
    whole = Cost(measure, NANO)
    over, under = noise_of(whole).counts_unit_scale(whole)
    variance = noise_of(whole).expected_square(over / under) * tree.squared_error / tree.bins
    return math.sqrt(variance) / expected_noise_of_counts(whole)


# The best budgets of a tree, and the best tree for a number of bins: all heights, factorisations
# and paddings.
#
# With Q_i = p_i L_i, to which level j >= i adds L_j / v_j, the error is sum_i c_i L_i / Q_i. As 1 /
# (x + y) is at most w^2 / x + (1 - w)^2 / y for every w in (0, 1), with equality where w is x's
# part, the error is at most a sum over levels of A_j / (L_j e_j^(2 / power)), whose least is in
# closed form. Repeated from there it never rises; a dozen rounds settle eleven digits.
#
# A level can be best without any budget. Then it is left out: its nodes' children become their
# grandparents'.
#
# The search is a shortest path from 1 leaf up to the root, by what a level adds to the error's
# root: the root of c_i times 1 - 1/b_i (below the top) for noise of power 2. That is exact: the
# budgets then have a closed form, by Lagrange. For Laplace noise it is b_i / (b_i + 1), nearly, so
# the error decides among the few cheapest trees. Costs are integers, and errors are compared by
# nine digits, so that every machine finds the same tree.
#
# Padding: with L < K leaves per child of the root, which has ceil(K / L) children, there are less
# than K + L < 2 K.

SHARE_MIN = {1: 0.04, 2: 0.002}
"""Least share of a level, by the noise's power: at the least epsilon, noise for less could not be
drawn."""

_BELOW_TOP_MAX = 64
"""Most children below the top: wider levels lose to two that make up the same."""

_SHORTLIST = {1: 8, 2: 2}
_COARSENINGS = 32
_ROUNDS_MAX = 1000

_Path = tuple[int, int, tuple[int, ...]]
"""Cost so far, height, branching from the top down: compared in this order."""


def optimal_shares(
    branching: tuple[int, ...], bins: int | None = None, power: int = 1
) -> tuple[float, ...]:
    """The shares of the budget of least squared error of `prefixes`, by nine decimals; `bins` =
    leaves by default.

    A share can be nearly 0: see `tree_of`.
    """
    leaves = math.prod(branching)
    sums = contrasts(branching, leaves if bins is None else bins)
    shares = _descended([1 / len(branching)] * len(branching), branching, leaves, sums, power)
    return _by_nine_decimals(shares)


def _descended(
    start: Sequence[float],
    branching: tuple[int, ...],
    leaves: int,
    sums: Sequence[float],
    power: int,
    least: float = 0,
) -> list[float]:
    """Shares of at least `least` each, from a start that has no less; no step raises the error."""
    below = [leaves // size for size in accumulate(branching, mul)]
    shares = list(start)
    exponent = 2 / power
    for _ in range(_ROUNDS_MAX):
        adds = [share**exponent * n for share, n in zip(shares, below, strict=True)]
        known = [*accumulate(reversed(adds))][::-1]
        pulls = accumulate(c * n / q**2 for c, n, q in zip(sums, below, known, strict=True))
        roots = [
            (a * x * x / n) ** (1 / (1 + exponent))
            for a, x, n in zip(pulls, adds, below, strict=True)
        ]
        last = shares
        shares = _in_proportion(roots, least)
        if all(abs(now - then) < 1e-11 for now, then in zip(shares, last, strict=True)):
            break
    return shares


def _in_proportion(roots: Sequence[float], least: float) -> list[float]:
    """Shares that sum to 1, in proportion to `roots` where that is at least `least`, which the
    others get."""
    few: set[int] = set()
    while True:
        whole = math.fsum(root for i, root in enumerate(roots) if i not in few)
        shares = [
            least if i in few else (1 - len(few) * least) * root / whole
            for i, root in enumerate(roots)
        ]
        if all(share >= least for share in shares):
            return shares
        few |= {i for i, share in enumerate(shares) if share < least}


def _by_nine_decimals(shares: Sequence[float]) -> tuple[float, ...]:
    rounded = [round(share, 9) for share in shares[:-1]]
    return (*rounded, round(1 - math.fsum(rounded), 9))


@cache
def tree_of(branching: tuple[int, ...], bins: int, power: int = 1) -> Tree:
    """The tree of this branching with the best budgets; levels that are best without any are left
    out.

    >>> tree_of((2, 2, 2, 2, 2, 2), 64).branching, tree_of((2, 2, 2), 8, power=2).branching
    ((4, 16), (2, 2, 2))
    """
    while min(shares := optimal_shares(branching, bins, power)) < SHARE_MIN[power]:
        stays = [share >= SHARE_MIN[power] for share in shares[:-1]]
        if all(stays):  # only the leaves got little, and they are needed
            stays[-1] = False
        sizes = [
            size
            for size, stays_here in zip(accumulate(branching, mul), (*stays, True), strict=True)
            if stays_here
        ]
        branching = tuple(size // above for above, size in pairwise((1, *sizes)))
    return Tree(branching, shares, bins, power)


@cache
def best_coarsening(branching: tuple[int, ...], bins: int, power: int = 1) -> Tree:
    """The tree of least error among this tree and those that leave some of its levels out.

    >>> best_coarsening((4, 4, 4), 64).branching, best_coarsening((4, 4, 4), 64, power=2).branching
    ((4, 16), (4, 4, 4))
    """
    sizes = (1, *accumulate(branching, mul))
    leaves = math.prod(branching)
    # To each level, the cheapest ways from the leaves up: the same costs as in the search for the
    # best tree.
    ways: dict[int, list[_Path]] = {leaves: [(0, 0, ())]}
    for size in sizes[-2::-1]:
        found = []
        for under, paths in ways.items():
            b = under // size
            factor = 1.0 if size == 1 else b / (b + 1) if power == 1 else 1 - 1 / b
            found += [_step(path, bins, leaves // under, b, power, factor) for path in paths]
        ways[size] = sorted(found)[:_COARSENINGS]
    trees = [tree_of(found, bins, power) for _, _, found in ways[1]]
    return min(trees, key=lambda tree: (tree.squared_error, len(tree.branching)))


@cache
def requested_tree(
    branching: tuple[int, ...], bins: int, power: int = 1, levels: Levels = "best"
) -> Tree:
    """The tree of this branching, with all of its levels. "best": with budgets of least error, each
    at least `SHARE_MIN`. "even": the plain estimate at even budgets (arXiv 2409.18573, Definition
    IV.1).

    >>> tree = requested_tree((4, 4, 4), 64)
    >>> tree.branching, tree.shares[1], requested_tree((4, 4, 4), 64, levels="even").is_plain
    ((4, 4, 4), 0.04, True)
    """
    if levels == "even":
        return Tree(branching, (1 / len(branching),) * len(branching), bins, power, is_plain=True)
    least = SHARE_MIN[power]
    sums = contrasts(branching, bins)
    leaves = math.prod(branching)
    best = best_coarsening(branching, bins, power)
    of_size = dict(zip(best.level_sizes, best.shares, strict=True))
    # Errors have local minima: with the shares of the best coarsening, and with those from even
    # shares.
    starts = (
        [of_size.get(size, 0.0) for size in accumulate(branching, mul)],
        optimal_shares(branching, bins, power),
    )
    found = [
        _descended(
            _in_proportion([max(share, 1e-12) for share in start], least),
            branching,
            leaves,
            sums,
            power,
            least,
        )
        for start in starts
    ]
    trees = [Tree(branching, _by_nine_decimals(shares), bins, power) for shares in found]
    return min(trees, key=lambda tree: tree.squared_error)


@cache
def best_tree(bins: int, power: int = 1) -> Tree:
    """The tree with the least expected squared error of `prefixes` for so many bins, with its best
    budgets.

    `power` is that of the noise's family: 1 for Laplace noise, 2 for Gaussian noise. Ties go to the
    smaller height, then to the lexicographically first branching. Raises ValueError unless 2 <=
    bins <= 65536.
    """
    if not 2 <= bins <= BINS_MAX:
        raise ValueError(f"expected 2 <= bins <= {BINS_MAX}, got {bins}")
    paths = _cheapest_paths(bins, power)
    whole = sorted(
        _step(path, bins, leaves, -(-bins // leaves), power, 1.0) for leaves, path in paths.items()
    )
    trees = [tree_of(branching, bins, power) for _, _, branching in whole[: _SHORTLIST[power]]]
    return min(
        trees,
        key=lambda tree: (float(f"{tree.squared_error:.8e}"), len(tree.branching), tree.branching),
    )


def _cheapest_paths(bins: int, power: int) -> dict[int, _Path]:
    """The cheapest levels that make up a subtree of each number of leaves below `bins`."""
    paths: dict[int, _Path] = {1: (0, 0, ())}
    for leaves in range(1, bins):  # every entry is final when its turn comes: steps go up
        for b in range(2, min(_BELOW_TOP_MAX, (bins - 1) // leaves) + 1) if leaves in paths else ():
            path = _step(
                paths[leaves], bins, leaves, b, power, b / (b + 1) if power == 1 else 1 - 1 / b
            )
            if leaves * b not in paths or path < paths[leaves * b]:
                paths[leaves * b] = path
    return paths


def _step(path: _Path, bins: int, leaves: int, b: int, power: int, factor: float) -> _Path:
    """Put a level of branching b on top of a subtree."""
    cost, height, branching = path
    root = (_contrast(bins, leaves, b) * factor) ** (power / (2 + power))
    return cost + round(2**32 * root), height + 1, (b, *branching)


# Consistent CDFs: the nearest cumulative counts that could be real (arXiv 2409.18573, Section VI).
#
# Real cumulative counts are integers, non-decreasing, in [0, total], and the last is the total. The
# papers find the nearest such sequence with a trellis (`tests/trellis.py`). For a convex metric
# that is additive over the entries, pooling adjacent violators reaches the same optimum:
#
# * The last entry is fixed and has no say. The rest is unconstrained isotonic regression, clipped
#   to [0, total]: clipping an unbounded optimum gives a bounded one, for every separable convex
#   cost.
# * Ask of each entry only whether it lies above c + 1/2. For l2 the answer compares a block's mean
#   with c + 1/2, in reals as in integers; so the integer optimum is the real one rounded to
#   nearest.
# * Of two neighbouring blocks whose *rounded* values do not rise, an optimum never puts the left
#   one below any c + 1/2 and the right one above. So they can be pooled at once, in any order and
#   many pairs at a time, all in integers.

NOISY_MAX = 2**45
"""Largest noisy count, as all are clamped here: sums over 65536 bins, doubled, fit 63 bits. Noise
of scale 2**26 never gets there."""

_POOLING_ROUNDS = 64


def consistent_counts(noisy: NDArray[Any], total: int | NDArray[Any]) -> Integers:
    """The consistent counts nearest to `noisy` in l2: integers, non-decreasing, in [0, total], the
    last equal to total.

    `noisy`: integer cumulative counts, (..., bins); `total`: integers >= 0, a single integer or of
    shape (...). Halves round up. O(bins) per row. Raises ValueError for values that are not
    integers, for no bins, or for a negative total.
    """
    rows, totals = rows_and_totals(noisy, total)
    result = np.empty(rows.shape, dtype=np.int64)
    np.clip(
        _pooled_means(rows[:, :-1]) if rows.shape[1] > 1 else rows[:, :-1],
        0,
        totals[:, None],
        out=result[:, :-1],
    )
    result[:, -1] = totals
    return result.reshape(np.shape(noisy))


def rows_and_totals(noisy: NDArray[Any], total: int | NDArray[Any]) -> tuple[Integers, Integers]:
    """All rows as a (rows, bins) array, and the total of each; ValueError as `consistent_counts`
    says."""
    array = np.asarray(noisy)
    totals = np.asarray(total)
    if array.dtype.kind not in "iu" or totals.dtype.kind not in "iu":
        raise ValueError(
            f"expected integer counts and totals, got dtypes {array.dtype} and {totals.dtype}"
        )
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"expected at least one bin, got shape {array.shape}")
    if (totals < 0).any():
        raise ValueError("expected total >= 0, got a negative one")
    number = array.size // array.shape[-1]
    spread = np.broadcast_to(totals, array.shape[:-1]).reshape(number)
    rows = np.clip(
        array.reshape(number, array.shape[-1]).astype(np.int64, copy=False), -NOISY_MAX, NOISY_MAX
    )
    return rows, spread.astype(np.int64, copy=False)


def _pooled_means(rows: Integers) -> Integers:
    """Isotonic regression in l2, rounded to nearest, of every row: all runs of blocks that do not
    rise are pooled.

    After 64 rounds a stack finishes: O(bins) per row in any case.
    """
    row_of_block = np.repeat(np.arange(len(rows)), rows.shape[1])
    sums = rows.ravel()
    sizes = np.ones(rows.size, dtype=np.int64)
    for _ in range(_POOLING_ROUNDS):
        means = (2 * sums + sizes) // (2 * sizes)  # rounded to nearest, halves up, exactly
        rises = np.ones(means.size, dtype=np.bool_)
        rises[1:] = (means[1:] > means[:-1]) | (row_of_block[1:] != row_of_block[:-1])
        if rises.all():
            return np.repeat(means, sizes).reshape(rows.shape)
        starts = np.flatnonzero(rises)
        sums = np.add.reduceat(sums, starts)
        sizes = np.add.reduceat(sizes, starts)
        row_of_block = row_of_block[starts]
    blocks = _pooled_by_stack(
        zip(sums.tolist(), sizes.tolist(), row_of_block.tolist(), strict=True)
    )
    return np.repeat([mean for mean, *_ in blocks], [size for _, _, size, _ in blocks]).reshape(
        rows.shape
    )


def _pooled_by_stack(blocks: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Pooled blocks, a block at a time, from and to blocks in order: rounded mean, sum, size,
    row."""
    stack: list[tuple[int, int, int, int]] = []
    for value, size, row in blocks:
        mean = (2 * value + size) // (2 * size)
        while stack and stack[-1][3] == row and stack[-1][0] >= mean:
            value = value + stack[-1][1]
            size = size + stack.pop()[2]
            mean = (2 * value + size) // (2 * size)
        stack.append((mean, value, size, row))
    return stack


# The automatic choice of bins: as many as the noise in a HAT lets a reader tell apart, from public
# quantities only.
#
# A CDF with few bins is coarse, one with many bins is noisy. The proxy adds two errors, in shares
# of the HAT's samples:
#
# * *resolution*, 1 / (2 count): a reader who interpolates in a bin with a share p of the samples is
#   wrong by about p / 2 at worst, and under a uniform public prior each of `count` equal bins has
#   the share 1 / count;
# * *noise*, cap b / n times the `count` noisy prefixes of the best tree, root mean square, before
#   consistency; b is the expected size of noise on counts in which a plate moves a sample: 2 /
#   eps for Laplace noise.
#
# All inputs must be public: counts, the cap, the budget, earlier releases; never a speed.

LADDER = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 52, 65)
"""Numbers of equal bins to choose from, next to the bin of exact zeros; several divide 65 km/h into
whole widths."""


def auto_bins(counts_total_n: int, cap: int, cost: Cost, max_kmh: float) -> Bins:
    """The bins (exact zeros, then equal bins) that minimise the proxy above for a HAT.

    `counts_total_n`: samples in the HAT; `cap`: the most that a plate moves; both at least 1.
    """
    noise = cap * expected_noise_of_counts(cost) / counts_total_n

    def proxy(count: int) -> float:
        return 1 / (2 * count) + noise * _noise_factor(count, cost.measure)

    return equal_bins(min(LADDER, key=proxy), max_kmh, zeros_apart=True)


@cache
def _noise_factor(count: int, measure: str) -> float:
    """Root mean square error of the `count` noisy prefixes, in units cap b / n; the last of the
    tree's is exact."""
    return prefix_noise(best_tree(count + 1, MEASURES[measure].noise.power), measure) * math.sqrt(
        (count + 1) / count
    )


# The CDF of a HAT, user-level eps-DP: a plan from counts, noisy tree counts, consistent shares.
#
# Every plate gives its first g = min(m_l, cap) samples, so it moves at most `cap` of the n = sum of
# those. They move a level by at most 2 g in l1, whose noise is for 2 cap at e_i, so plate l loses
# e_i g / cap there, and eps g / cap in all. Source: arXiv 2409.18573, Definition IV.1 with the
# user-level remark after Theorem IV.1, and Section VI for consistency.

TREE = "tree"


@dataclass(frozen=True, slots=True)
class CdfPlan:
    """How a HAT's CDF will be taken, from counts, cost and settings only.

    `kept` of the samples are used, at most `cap` of a plate. `t` and `s` give each node's noise
    scale t/s.

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
        return noise_of(self.cost)

    @property
    def given(self) -> Integers:
        return np.minimum(self.counts.by_plate, self.cap)

    @property
    def charges(self) -> Integers:
        return self.noise.charges(self.given, self.cap, self.cost)

    @property
    def rms_error(self) -> float:
        """Root mean square noise of a share before it is made monotone, over the edges: that of the
        GLS estimate."""
        return self.cap * _prefix_noise_at(self.tree, self.cost) / self.kept


def plan_cdf(
    counts: SamplesPerPlate,
    cost: Cost,
    max_kmh: float,
    bins: RequestedBins,
    choice: Choice | None = None,
    branching: Branching = "auto",
    levels: Levels = "best",
) -> CdfPlan:
    """Plan the CDF of a HAT: bins, tree, cap and scales of noise (arXiv 2409.18573, Section IV).

    Args:
        counts: Samples of each plate.
        cost: The most that a plate may lose.
        max_kmh: U, the last edge.
        bins: "auto", a number of equal bins, or edges in km/h.
        choice: A choice that was made before; without it, the best for these counts is taken.
        branching: Children of a node on each level from the root down, or "auto".
        levels: Budgets of least error, or the paper's plain estimate at even budgets.

    Returns:
        The plan. A plate of g of at most `cap` samples loses the part g / cap of the cost, or under
        rho its square.

    Raises:
        ValueError: For bins that are not valid for `max_kmh`, too few leaves for them, or too small
            a cost.
    """
    if choice is None or not (
        choice.bins or isinstance(bins, tuple)
    ):  # edges that it was for may be gone by now
        choice = _best_choice(counts, cost, max_kmh, bins, branching, levels)
    cap = choice.cap_among(counts)
    chosen = _bins_of(choice, max_kmh, bins)
    tree = _tree(chosen.count, branching, cost, levels)
    return CdfPlan(
        chosen, tree, counts, cap, counts.kept(cap), cost, *_noise_of_nodes(tree, cap, cost), choice
    )


def _tree(bins: int, branching: Branching, cost: Cost, levels: Levels) -> Tree:
    power = noise_of(cost).power
    return (
        best_tree(bins, power)
        if branching == "auto"
        else requested_tree(branching, bins, power, levels)
    )


def _best_choice(
    counts: SamplesPerPlate,
    cost: Cost,
    max_kmh: float,
    bins: RequestedBins,
    branching: Branching,
    levels: Levels,
) -> Choice:
    """The cap is the count of least dropped share plus noise at eight bins, or lower where noise
    could not be drawn."""
    power = noise_of(cost).power
    cap = counts.worst_case_cap(_prefix_noise_at(best_tree(8, power), cost))
    if bins == "auto" and branching != "auto":
        choice = Choice(TREE, cap, math.prod(branching) - 1, zeros_apart=True)
    elif bins == "auto":
        equal = auto_bins(counts.kept(cap), cap, cost, max_kmh).count - 1
        choice = Choice(TREE, cap, equal, zeros_apart=True)
    else:
        choice = Choice(TREE, cap, bins if isinstance(bins, int) else 0)
    drawable = _drawable_cap(
        _tree(_bins_of(choice, max_kmh, bins).count, branching, cost, levels), cost
    )
    return choice if cap <= drawable else msgspec.structs.replace(choice, cap=drawable)


@lru_cache(maxsize=1024)
def _drawable_cap(tree: Tree, cost: Cost) -> int:
    """The largest cap for which the noise of each level can be drawn; at least 1."""
    least = cost.with_nano(min(level_budgets(tree, cost.nano)))
    return max(1, noise_of(cost).counts_drawable(least))


def _bins_of(choice: Choice, max_kmh: float, bins: RequestedBins) -> Bins:
    """The chosen number of equal bins, or else those with the configured edges."""
    if choice.bins or not isinstance(bins, tuple):
        return equal_bins(choice.bins, max_kmh, choice.zeros_apart)
    return bins_from_edges(bins, max_kmh)


@lru_cache(maxsize=1024)
def _noise_of_nodes(tree: Tree, cap: int, cost: Cost) -> tuple[tuple[int, ...], Integers, Integers]:
    """The levels' budgets, and every node's scale t/s; the HATs of a slot share a few of these."""
    t, s = (
        np.repeat(of_levels, tree.level_sizes)
        for of_levels in zip(*node_scales(tree, cap, cost), strict=True)
    )
    return level_budgets(tree, cost.nano), t, s


@lru_cache(maxsize=1024)
def _prefix_noise_at(tree: Tree, cost: Cost) -> float:
    """Root mean square noise of a prefix for each sample that a plate moves, by the family of the
    cost."""
    return prefix_noise(tree, cost.measure) * expected_noise_of_counts(cost)


def node_counts(plan: CdfPlan, samples: Integers) -> Integers:
    """The exact counts of the tree's nodes; a plate moves level i of them by at most 2 cap in
    l1."""
    kept = samples if plan.kept == samples.size else samples[first_samples(plan.counts, plan.cap)]
    leaves = np.bincount(plan.bins.bin_of(kept), minlength=plan.tree.leaves)
    return level_counts(plan.tree, leaves)


def cdf_values_of_many(plans: Sequence[CdfPlan], noisy_nodes: Integers) -> list[list[float]]:
    """Shares at the edges from noisy node counts, row by row, of plans that share bins, in a single
    pass.

    A share per edge, non-decreasing in [0, 1], the last 1. The value at the first edge is that at
    exact zero if zeros have a bin of their own, else 0. Post-processing.
    """
    totals = np.array([plan.kept for plan in plans])
    estimates = prefixes(plans[0].tree, noisy_nodes, totals)
    counts = consistent_counts(np.rint(estimates).astype(np.int64), totals)
    values = counts / totals[:, None]
    zeros_apart = plans[0].bins.edges_kmh[1] == 0
    first = values[:, :1] if zeros_apart else np.zeros((len(plans), 1))
    rows: list[list[float]] = np.hstack((first, values)).tolist()
    return rows


class Cdf(Part, frozen=True):
    """The share of the admitted plates' samples at or below each edge.

    A first edge that is given twice gives exact zeros a bin of their own. `budgets` are the tree
    levels' parts of `epsilon`, or of the CDF's rho where losses are counted in rho;
    `expected_rms_error` is the noise of a value before it is made monotone, in shares.

    >>> cdf = Cdf((0.0, 20.0, 65.0), (0.0, 0.4, 1.0), 0.5, branching=(2,), budgets=(0.5,), expected_rms_error=0.02)
    >>> len(cdf.values) == len(cdf.edges_kmh), list(cdf.values) == sorted(cdf.values)
    (True, True)
    """

    edges_kmh: tuple[NonNegative, ...]
    """Upper ends of the bins, km/h; a first edge that is given twice gives exact zeros a bin."""
    values: tuple[Share, ...]
    """Share of samples at or below each edge; never falls, and ends in 1."""
    epsilon: Positive
    """Largest charge to a plate of the HAT for it."""
    branching: tuple[int, ...]
    """Children of a node on each level of the tree."""
    budgets: tuple[Positive, ...]
    """Each tree level's part of the epsilon, or of the rho."""
    expected_rms_error: NonNegative
    """Noise of a value before it is made monotone, in shares."""


class CdfStatistic(Statistic[CdfPlan, list[float]]):
    """A CDF by a tree of counts: the best tree, or that of the configured branching.

    >>> from udp_stream.mechanisms.base import Range
    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = CdfStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> statistic.values([plan], [query], [query.integers])
    [[0.0, 0.5, 1.0, 1.0, 1.0]]
    """

    name = of = "cdf"
    plural = "cumulative distributions"

    def plan(
        self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings
    ) -> CdfPlan:
        name = asked.mechanism if asked.choice is None else asked.choice.mechanism
        if name not in ("auto", TREE):
            raise ValueError(f"expected a CDF by {TREE!r}, got {name!r}")
        max_kmh = public.range.high / QUANTA_PER_KMH
        return plan_cdf(
            counts, asked.cost, max_kmh, public.bins, asked.choice, public.branching, public.levels
        )

    def subset(self, plan: CdfPlan, admitted: Flags) -> CdfPlan:
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        given = plan.given[admitted]
        cap = int(given.max())
        cost = plan.noise.within(given, cap, plan.charges[admitted], plan.cost)
        budgets_nano, t, s = _noise_of_nodes(plan.tree, cap, cost)
        return replace(
            plan,
            counts=counts,
            cap=cap,
            kept=int(given.sum()),
            cost=cost,
            budgets_nano=budgets_nano,
            t=t,
            s=s,
        )

    def query(self, plan: CdfPlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        return Query(node_counts(plan, samples), plan.t, plan.s)

    def values(
        self, plans: Sequence[CdfPlan], queries: Sequence[Query], noisy: Sequence[Integers]
    ) -> list[list[float]]:
        del queries
        values: list[list[float]] = [[] for _ in plans]
        groups: dict[tuple[float, ...], list[int]] = {}
        for i, plan in enumerate(plans):
            groups.setdefault(plan.bins.edges_kmh, []).append(i)
        for alike in groups.values():
            rows = cdf_values_of_many(
                [plans[i] for i in alike], np.stack([noisy[i] for i in alike])
            )
            for i, row in zip(alike, rows, strict=True):
                values[i] = row
        return values

    def record(self, plan: CdfPlan, value: list[float], left_out: Integers = NO_INTEGERS) -> Cdf:  # noqa: ARG002
        """Record of its values at its edges, for the admitted plates, whatever the others are."""
        return Cdf(
            edges_kmh=plan.bins.edges_kmh,
            values=tuple(round(share, 6) for share in value),
            epsilon=epsilon_stated(plan.cost),
            branching=plan.tree.branching,
            budgets=tuple(budget / NANO for budget in plan.budgets_nano),
            expected_rms_error=round(plan.rms_error, 4),
        )

    def columns(self, plan: CdfPlan, bits: Bits) -> list[tuple[str, str]]:  # noqa: ARG002
        found = [("CDF bins", str(plan.bins.count)), ("CDF rms error", f"{plan.rms_error:.3f}")]
        best = best_coarsening(plan.tree.branching, plan.tree.bins, plan.tree.power)
        if best.squared_error < plan.tree.squared_error * (1 - 1e-6):  # so the tree was asked for
            error = plan.cap * _prefix_noise_at(best, plan.cost) / plan.kept
            found.append(("of its best coarsening", f"{error:.3f} {list(best.branching)}"))
        return found
