"""The papers' way to consistent counts, which ours is held to: a dynamic programme over all values
(arXiv 2409.18573, Section VI). It takes any metric, also one that is not convex.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.cdf import rows_and_totals

Integers = NDArray[np.int64]
Cost = Callable[[Integers, int], NDArray[Any]]
"""Cost of putting each of an array of values in the place of one noisy count."""

TRELLIS_CELLS_MAX = 2**26
"""The trellis holds bins * (total + 1) costs: half a gigabyte at most."""


def trellis(noisy: NDArray[Any], total: int, cost: Cost) -> Integers:
    """The consistent counts of least additive cost, by the papers' dynamic programme; one row, any
    metric.

    `noisy`: integers, (bins,); `cost(values, y)`: the cost of each of the values in place of the
    noisy count y, such as `squared`, `absolute` or `hamming`. Running minima make it O(bins *
    total), not O(bins * total^2) as in equations 8-10; the smallest values win ties. Raises
    ValueError as `consistent_counts` does, and for more than 2**26 cells.

    >>> trellis(np.array([3, 1, 3, 9]), total=9, cost=hamming)
    array([0, 1, 3, 9])
    """
    rows, totals = rows_and_totals(noisy, total)
    if np.ndim(noisy) != 1:
        raise ValueError(f"expected one row of noisy counts, got shape {np.shape(noisy)}")
    row, top = rows[0].tolist(), int(totals[0])
    if len(row) * (top + 1) > TRELLIS_CELLS_MAX:
        raise ValueError(
            f"expected at most {TRELLIS_CELLS_MAX} trellis cells, got {len(row)} bins x {top + 1} values"
        )
    values = np.arange(top + 1, dtype=np.int64)
    best: list[NDArray[Any]] = []  # best[i][v]: least cost of the entries 0..i if entry i is v
    for y in row[:-1]:
        arrive = np.minimum.accumulate(best[-1]) if best else 0
        best.append(np.asarray(cost(values, y)) + arrive)
    path = [top]
    for costs in reversed(best):
        path.append(int(np.argmin(costs[: path[-1] + 1])))
    return np.array(path[::-1], dtype=np.int64)


def squared(values: Integers, y: int) -> Integers:
    return (values - y) ** 2


def absolute(values: Integers, y: int) -> Integers:
    return np.abs(values - y)


def hamming(values: Integers, y: int) -> Integers:
    """The Hamming metric's cost: 1 where v differs from y. Not convex: only `trellis` takes it."""
    return np.asarray(values != y, dtype=np.int64)
