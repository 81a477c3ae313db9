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
from functools import cache, lru_cache

from udp_stream.mechanisms.cdfs.bins import Bins, zero_and_equal_bins
from udp_stream.mechanisms.cdfs.coverings import prefix_noise
from udp_stream.mechanisms.cdfs.search import best_tree
from udp_stream.mechanisms.noise import FAMILIES, Cost, Measure, expected_noise_of_counts

LADDER = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 52, 65)
"""Numbers of equal bins to choose from, next to the bin of exact zeros; several divide 65 km/h into whole widths."""


def auto_bins(counts_total_n: int, cap: int, cost: Cost, max_kmh: float) -> Bins:
    """The bins, one of exact zeros and equal ones, that minimise the proxy above for a HAT.

    `counts_total_n`: samples in the HAT (public); `cap`: the most that a plate moves; `cost`: the CDF's; `max_kmh`:
    the largest speed. Deterministic and cheap: a bisection, about a microsecond. Raises ValueError unless all four are
    positive and finite.

    >>> from udp_stream.mechanisms.noise import pure
    >>> [auto_bins(n, cap=4, cost=pure(10**9), max_kmh=65.0).count - 1 for n in (10, 100, 1000, 10_000)]
    [2, 6, 26, 65]
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
