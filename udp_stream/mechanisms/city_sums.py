"""Two sums over all plates of a slot: how far the city is off its forecasts, and how widely plates scatter around them.

Not from a paper; ours (docs/mechanisms/forecast.md). A narrow clip hides how far plates are off, so in a city whose
speeds are skewed, as where many buses stand, releases drift to something like a median. These sums see what it hides.
With S_r the sum of the m_r samples of row r (a plate in a HAT) in [0, U], f_r its forecast, s(m) the deviation of
`speed_spread.py`, and q_l = floor(2^20 / m_l) for a plate of m_l samples in the whole slot,

    mean part     sum over rows of q_l clip(S_r - m_r f_r, -m_r R, m_r R)      (cut where f_r +- R leaves [0, U]),
    spread part   sum over rows of q_l min(|S_r - m_r f_r| / s(m_r), 3 m_r)    (in 1/256, rounded down),

so that each plate weighs alike, and each of its HATs by its pings there. Integers: sums of parts of a slot add up to
those of the whole, in any order.

Privacy unit: license plate. Neighbours: swap-values. Each row's summand lies between two ends that follow from counts
and forecasts, whatever its speeds are. So plate l moves a sum by at most the widths of its rows together, which is its
move; the sensitivity is the largest of these; a plate's charge is its own share, for both sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import Cost, Lattice, charges_of, lattice_of, noise_of
from udp_stream.mechanisms.speed_spread import plate_variance
from udp_stream.mechanisms.statistic import Query
from udp_stream.units import QUANTA_PER_KMH

Integers = NDArray[np.int64]

WEIGHT_BITS: Final = 20
"""All samples of a plate together weigh 2**20, less what rounding takes."""

REACH_KMH: Final = 30
"""How far from its forecast a row counts in the mean part."""

FARTHEST: Final = 3
"""Deviations that it counts as at most in the spread part, which is in steps of 2**-8 of one."""

STEP_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class CityRows:
    """Row by row: samples, the weight of each of them (0: its plate takes no part), and the forecast, in quanta.

    >>> rows = CityRows(np.array([36, 4]), np.array([26214, 0]), np.array([17 * 4096, 22 * 4096]))
    >>> rows.part(slice(0, 1)).samples.tolist()
    [36]
    """

    samples: Integers
    weights: Integers
    centres: Integers

    def part(self, rows: slice | NDArray[np.bool_]) -> CityRows:
        """Some of the rows."""
        return CityRows(self.samples[rows], self.weights[rows], self.centres[rows])


@dataclass(frozen=True, slots=True)
class CityCosts:
    """What both sums cost, and the sensitivities that their noise is for, at speeds up to `high`, in quanta.

    >>> costs = CityCosts(Cost("pure", 2 * 10**8), Cost("pure", 10**8), 60 * 2**32, 3 * 2**28, high=2**18)
    >>> [round(one, 2) for one in costs.deviations(plates=120)]  # km/h, and deviations
    [3.54, 0.35]
    """

    mean: Cost
    spread: Cost
    mean_sensitivity: int
    spread_sensitivity: int
    high: int

    @property
    def lattices(self) -> tuple[Lattice, Lattice]:
        """Where the noise of the two lives."""
        return lattice_of(self.mean_sensitivity, self.mean), lattice_of(self.spread_sensitivity, self.spread)

    def deviations(self, plates: int) -> tuple[float, float]:
        """Standard deviations of the noise in the answer of so many plates: in km/h, and in deviations."""
        noise = noise_of(self.mean)
        mean, spread = (noise.expected_square(one.t) ** 0.5 * 2.0**one.shift for one in self.lattices)
        return mean / (_WHOLE * QUANTA_PER_KMH * plates), spread / (_WHOLE * _STEPS * plates)


@dataclass(frozen=True, slots=True)
class CityAnswer:
    """What the noisy sums say: how far plates are off their forecasts on average, in km/h, and in deviations of theirs.

    >>> CityAnswer(mean_kmh=-1.5, spread=0.8).spread
    0.8
    """

    mean_kmh: float
    spread: float


_WHOLE, _STEPS = 2**WEIGHT_BITS, 2**STEP_BITS


def weights_of(samples: Integers, plate: Integers) -> Integers:
    """The weight of each row's samples, if all plates take part; `plate` is each row's plate.

    >>> weights_of(np.array([2, 6, 4]), np.array([0, 1, 0])).tolist()
    [174762, 174762, 174762]
    """
    of_plate = np.bincount(plate, weights=samples).astype(np.int64)
    weights: Integers = np.maximum(1, _WHOLE // np.maximum(of_plate, 1))[plate]
    return weights


def mean_moves(rows: CityRows, high: int) -> Integers:
    """By how much each row alone can move the mean part, at speeds up to `high`, in quanta.

    >>> rows = CityRows(np.array([2]), np.array([100]), np.array([20 * 4096]))
    >>> mean_moves(rows, high=65 * 4096) / (200 * 4096)  # from 20 below its forecast to 30 above
    array([50.])
    """
    least, most = _ends(rows, high)
    moves: Integers = rows.weights * rows.samples * (most - least)
    return moves


def spread_moves(rows: CityRows) -> Integers:
    """By how much each row alone can move the spread part.

    >>> spread_moves(CityRows(np.array([2]), np.array([100]), np.array([20 * 4096]))) / (200 * 256)
    array([3.])
    """
    moves: Integers = rows.weights * rows.samples * (FARTHEST * _STEPS)
    return moves


def costs_of(rows: CityRows, plate: Integers, mean: Cost, spread: Cost, high: int) -> tuple[CityCosts, Integers]:
    """The costs of both sums with their sensitivities, and what each plate is charged, nano-units rounded up.

    >>> rows = CityRows(np.array([6, 6]), np.array([174762, 174762]), np.array([30, 10]) * 4096)
    >>> costs, charges = costs_of(rows, np.array([0, 1]), Cost("pure", 2 * 10**8), Cost("pure", 10**8), 2**18)
    >>> charges.tolist()  # forecast to be slow, the other one can move less
    [300000000, 233333342]
    """
    plates = int(plate.max()) + 1
    moves = [_of_plates(plate, one, plates) for one in (mean_moves(rows, high), spread_moves(rows))]
    most = [max(1, int(one.max())) for one in moves]
    charges: Integers = charges_of(moves[0], most[0], mean) + charges_of(moves[1], most[1], spread)
    return CityCosts(mean, spread, most[0], most[1], high), charges


def city_sums(rows: CityRows, sums: Integers, high: int) -> tuple[int, int]:
    """The two sums over these rows; `sums` are those of each row's samples, of which none is above `high`. Secret.

    >>> rows = CityRows(np.array([2, 4]), np.array([100, 0]), np.array([20, 20]) * 4096)
    >>> mean, spread = city_sums(rows, np.array([50, 0]) * 4096, high=65 * 4096)
    >>> mean / (200 * 4096), round(spread / (200 * 256), 2)
    (5.0, 0.37)
    """
    off = sums - rows.samples * rows.centres
    least, most = _ends(rows, high)
    clipped = np.minimum(np.maximum(off, rows.samples * least), rows.samples * most)
    steps = np.minimum((np.abs(off) << STEP_BITS) // _deviations(rows.samples), rows.samples * (FARTHEST * _STEPS))
    return int(rows.weights @ clipped), int(rows.weights @ steps)


def city_queries(sums: tuple[int, int], costs: CityCosts) -> list[Query]:
    """The two sums with the scales of their noise.

    >>> costs = CityCosts(Cost("pure", 10**9), Cost("pure", 10**9), 30 * 2**32, 3 * 2**28, 2**18)
    >>> [round(query.scale / 2**28, 3) for query in city_queries((0, 0), costs)]
    [480.0, 3.0]
    """
    return [Query.of_one(exact, lattice) for exact, lattice in zip(sums, costs.lattices, strict=True)]


def answer_of(queries: Sequence[Query], noisy: Sequence[Integers], plates: int) -> CityAnswer:
    """What the noisy sums say of so many plates.

    >>> costs = CityCosts(Cost("pure", 10**9), Cost("pure", 10**9), 30 * 2**32, 3 * 2**28, 2**18)
    >>> queries = city_queries((50 * 2**32, 40 * 2**28), costs)
    >>> answer_of(queries, [query.integers for query in queries], plates=50)
    CityAnswer(mean_kmh=1.0, spread=0.8)
    """
    mean, spread = (query.noisy_value(one) for query, one in zip(queries, noisy, strict=True))
    return CityAnswer(mean / (_WHOLE * QUANTA_PER_KMH * plates), spread / (_WHOLE * _STEPS * plates))


def without(rows: CityRows, taking: NDArray[np.bool_]) -> CityRows:
    """The rows with the weight 0 where they are not `taking` part.

    >>> without(CityRows(np.array([2]), np.array([100]), np.array([7])), np.array([False])).weights.tolist()
    [0]
    """
    return replace(rows, weights=np.where(taking, rows.weights, 0))


def _ends(rows: CityRows, high: int) -> tuple[Integers, Integers]:
    """What a sample may differ from its forecast by on average, at least and at most."""
    reach = REACH_KMH * QUANTA_PER_KMH
    return np.maximum(-reach, -rows.centres), np.minimum(reach, high - rows.centres)


def _deviations(samples: Integers) -> Integers:
    """Of the mean of that many samples around its forecast, in quanta."""
    deviations: Integers = np.rint(np.sqrt(plate_variance(samples)) * QUANTA_PER_KMH).astype(np.int64)
    return deviations


def _of_plates(plate: Integers, moves: Integers, plates: int) -> Integers:
    """Of each plate: the sum of its rows'."""
    found = np.zeros(plates, np.int64)
    np.add.at(found, plate, moves)
    return found
