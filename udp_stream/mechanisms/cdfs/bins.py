"""Bins: the public cut points at which a CDF is known.

A bin is the half-open interval (e_j, e_{j+1}], so that the cumulative count up to a bin is the number of samples *at
most* its right edge, which is what a CDF says. The first plain bin also holds 0. Buses stand still a lot: with edges
that start `0, 0` the exact zeros have a bin of their own.

Speeds are integers in quanta (`units.QUANTA_PER_KMH`), and so is every comparison: s/4096 <= e holds exactly when
s <= floor(4096 e), and 4096 is a power of two, so that 4096 e is exact in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.units import QUANTA_PER_KMH

BINS_MAX = 4096
"""Most bins of one CDF: beyond any use for speeds, and a limit on the search and on the arrays per HAT."""


@dataclass(frozen=True)
class Bins:
    """The edges of the bins in km/h, non-decreasing; public, a part of the plan and of the release.

    Raises ValueError, with the rule, unless there are 2..4096 bins whose edges are finite, start at 0 (doubled if the
    exact zeros have a bin of their own) and else lie at least one quantum apart.

    >>> Bins((0.0, 0.0, 20.0, 65.0)).count
    3
    """

    edges_kmh: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the rules above."""
        edges = self.edges_kmh
        if not 2 <= len(edges) - 1 <= BINS_MAX:
            raise ValueError(f"expected 2..{BINS_MAX} bins, got {len(edges) - 1}")
        if not all(math.isfinite(edge) for edge in edges):
            raise ValueError(f"expected finite edges, got {_brief(edges)}")
        if edges[0] != 0:
            raise ValueError(f"expected edges that start at 0, got {edges[0]}")
        for left, right in pairwise(edges[1:] if edges[1] == 0 else edges):
            if not left < right:
                raise ValueError(f"expected strictly increasing edges after an optional doubled 0, got {left}, {right}")
            if _floor_quanta(left) == _floor_quanta(right):
                raise ValueError(f"expected edges at least 1/{QUANTA_PER_KMH} km/h apart, got {left}, {right}")

    @property
    def count(self) -> int:
        """The number of bins, that of exact zeros included."""
        return len(self.edges_kmh) - 1

    @property
    def max_kmh(self) -> float:
        """The last edge: the largest speed there can be."""
        return self.edges_kmh[-1]

    @cached_property
    def _bin_of_quantum(self) -> NDArray[np.uint16]:
        """The bin of every speed 0, 1, ... up to the last edge: half a megabyte at 65 km/h, eight times a bisection."""
        quanta = [_floor_quanta(edge) for edge in self.edges_kmh]
        first = quanta[1] + 1  # a zero bin holds the speed 0, a plain one all up to its right edge
        sizes = [first, *(right - left for left, right in pairwise(quanta[1:]))]
        return np.repeat(np.arange(self.count, dtype=np.uint16), sizes)

    def bin_of(self, speeds_quanta: NDArray[Any]) -> NDArray[np.int64]:
        """The bin, 0..count-1, of each speed; any shape, speeds integers in quanta in [0, max_kmh * 4096].

        A speed above the last edge, which no accepted ping has, is counted in the last bin. Raises ValueError for an
        array that is not of integers: it would be in km/h.

        >>> bins = zero_and_equal_bins(2, 10.0)
        >>> bins.bin_of(np.array([0, 1, 5 * 4096, 5 * 4096 + 1, 10 * 4096]))
        array([0, 1, 1, 2, 2])
        """
        speeds = np.asarray(speeds_quanta)
        if speeds.dtype.kind not in "iu":
            raise ValueError(f"expected speeds in integer quanta, got dtype {speeds.dtype}")
        return self._bin_of_quantum.take(speeds, mode="clip").astype(np.int64)


def equal_bins(count: int, max_kmh: float) -> Bins:
    """`count` bins of equal width on [0, max_kmh]; ValueError with the rule if there are no such bins.

    >>> equal_bins(2, 65.0).edges_kmh
    (0.0, 32.5, 65.0)
    """
    return Bins(_equal_edges(count, max_kmh))


def zero_and_equal_bins(count: int, max_kmh: float) -> Bins:
    """A bin of exact zeros, then `count` bins of equal width on (0, max_kmh]: `count + 1` bins; ValueError as above.

    >>> zero_and_equal_bins(2, 65.0).edges_kmh
    (0.0, 0.0, 32.5, 65.0)
    """
    return Bins((0.0, *_equal_edges(count, max_kmh)))


def bins_from_edges(edges_kmh: Iterable[float], max_kmh: float) -> Bins:
    """Bins with the given edges, from 0 to max_kmh, in whole quanta; raises ValueError naming the rule that they break.

    >>> bins_from_edges([0, 0, 10, 20.5, 65], max_kmh=65).count
    4
    >>> bins_from_edges([0, 10, 65.3], max_kmh=65.2998046875).max_kmh  # 267,468 quanta both
    65.3
    """
    bins = Bins(tuple(float(edge) for edge in edges_kmh))
    # In quanta, as U is by the time that plans are made: 65.3 km/h is not a whole number of them.
    if _floor_quanta(bins.max_kmh) != _floor_quanta(max_kmh):
        raise ValueError(f"expected edges that end at max_kmh = {max_kmh}, got {bins.max_kmh}")
    return bins


def _equal_edges(count: int, max_kmh: float) -> tuple[float, ...]:
    if not 1 <= count <= BINS_MAX:
        raise ValueError(f"expected 1..{BINS_MAX} equal bins, got {count}")
    return (*(j * max_kmh / count for j in range(count)), float(max_kmh))  # count * max / count may miss max by an ulp


def _floor_quanta(edge_kmh: float) -> int:
    return math.floor(edge_kmh * QUANTA_PER_KMH)


def _brief(edges: tuple[float, ...]) -> str:
    """The first edge that is not finite, with its place."""
    place = next(i for i, edge in enumerate(edges) if not math.isfinite(edge))
    return f"{edges[place]} at place {place}"
