"""The traffic in each cell of a public domain, from noised sums alone: a Bayes filter on a grid of its logarithm.

Traffic is a sum over plates: of weights (a fifth of a slot counts 1), or of 1 each. Its noise has a known variance. So
each cell has a posterior over 47 numbers from 0.05 to 500, which walks from slot to slot. A sum of residuals is read
through it: where the traffic is unknown, the sum tells little, and blows nothing up. All of it is post-processing of
noised sums. The model is ours (docs/mechanisms/presence.md).
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from udp_stream.mechanisms.noise import Floats

LOG_STEP = 0.2
"""Of the grid: the noise of a sum is coarser at every number that it can tell."""

GRID = log(0.05) + LOG_STEP * np.arange(47)
"""Logarithms of traffic, from 0.05 (an empty cell) to 500 (a city's main square)."""

TRAFFIC = np.exp(GRID)

EMPTY, EMPTY_BELOW, COMMON_UPTO, COMMON_POWER = 4.0, 0.3, 60.0, 0.5
"""The prior of a cell: this weight on each empty number, else the root of the traffic, up to 60: a domain is drawn
where buses drive."""

WALK = 0.3
"""Standard deviation of the logarithm's change in an hour, where traffic goes on as before."""

JUMPS, JUMP = 0.2, 1.2
"""The share of cells that change otherwise in an hour, and the deviation of their change: services begin and end."""

FORGOTTEN = 0.1
"""The part of the prior that comes back in an hour: no cell stays ruled out."""

SCATTER = 1.3
"""Variance of a sum of weights around the expected one, for each unit of it: squared weights over weights."""

FACTOR_MAX, FACTOR_FROM, FACTOR_PRIOR = 5.0, 0.7, 4.0
"""A city's traffic changes by at most this factor from slot to slot. It is a regression over cells above so many
deviations of the noise, and counts "no change" as a cell of two deviations."""

OF_EARLIER_DAY, UNLIKE_EARLIER_DAY = 1.2, 0.03
"""Before a day's first slot: a cell is within this deviation of its mean of the day before, or anything."""

LEAST = 0.02
"""Of traffic that sums are divided by."""

NEGLIGIBLE = 1e-300
"""Added to probabilities before a logarithm."""

SEEN_BELOW = 0.999
"""An observation that leaves more of the variance than this is none."""


class Traffic(NamedTuple):
    """What is known of a slot's traffic: for each cell (row) the probability of each number of the grid, and, if the
    expected traffic is that number, mean and variance of the true one.

    >>> filtered = TrafficFilter(cells=2, variance=1.0)
    >>> traffic = filtered.learn(np.array([0.0, 30.0]), hours=0.0)
    >>> traffic.mean.round(1).tolist(), traffic.interval95[1].round(1).tolist()
    ([0.2, 30.0], [1.1, 31.9])
    """

    probability: Floats
    number: Floats
    variance_of: Floats

    @property
    def mean(self) -> Floats:
        """Expected traffic of each cell."""
        return np.asarray((self.probability * self.number).sum(axis=1))

    @property
    def variance(self) -> Floats:
        return np.asarray((self.probability * (self.number**2 + self.variance_of)).sum(axis=1) - self.mean**2)

    @property
    def interval95(self) -> tuple[Floats, Floats]:
        """Both ends of the 95 % interval."""
        mean, off = self.mean, 1.96 * np.sqrt(self.variance)
        return np.maximum(mean - off, 0.0), mean + off

    def residual(self, total: Floats, noise: float, spread: Floats) -> tuple[Floats, Floats]:
        """What a noised sum of weighed residuals (km/h) tells of a cell's residual: a value and its variance.

        The residual is N(0, spread) beforehand, and the sum N(traffic * residual, noise). The value with its variance
        leaves the same first two moments as the mixture over the traffic; the variance is inf where nothing is told.
        """
        before, seen = spread[:, None], total[:, None]
        own = noise + self.variance_of * before  # of the sum, given the expected traffic and the residual
        variance = own + self.number**2 * before
        logs = np.log(self.probability + NEGLIGIBLE) - 0.5 * (seen**2 / variance + np.log(variance))
        weight = np.exp(logs - logs.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        each = before * self.number / variance * seen
        mean = (weight * each).sum(axis=1)
        after = (weight * (before * own / variance + each**2)).sum(axis=1) - mean**2
        told = after < SEEN_BELOW * spread
        off = np.where(told, 1 / np.where(told, 1 / after - 1 / spread, 1.0), np.inf)
        return np.where(told, mean / after * np.where(told, off, 0.0), 0.0), off


class TrafficFilter:
    """Beliefs about the traffic of cells, slot by slot; `variance` is that of the noise of a sum.

    >>> filtered = TrafficFilter(cells=2, variance=1.0)
    >>> morning, later = (filtered.learn(np.array([0.0, 30.0]), hours) for hours in (0.0, 1.0))
    >>> bool(later.mean[0] < morning.mean[0] < later.mean[1])
    True
    """

    def __init__(self, cells: int, variance: float, scatter: float = SCATTER) -> None:
        prior = np.where(TRAFFIC < EMPTY_BELOW, EMPTY, np.minimum(TRAFFIC, COMMON_UPTO) ** COMMON_POWER)
        self._prior = prior / prior.sum()
        self._probability = np.tile(self._prior, (cells, 1))
        self._variance, self._scatter = variance, scatter
        self._logs, self._slots = np.zeros(cells), 0

    def learn(self, seen: Floats, hours: float) -> Traffic:
        """The traffic of a slot by its noised sums, so many hours after the slot before; 0 on a day's first."""
        prior = self._probability if hours == 0 else self._walked(seen, hours)
        # Of each number of the grid as expected traffic: the true one scatters around it, the noised one around both.
        scatter = self._scatter * TRAFFIC
        variance = self._variance + scatter
        off = seen[:, None] - TRAFFIC
        logs = -0.5 * (off**2 / variance + np.log(variance))
        found = prior * np.exp(logs - logs.max(axis=1, keepdims=True))
        self._probability = found / found.sum(axis=1, keepdims=True)
        self._logs, self._slots = self._logs + (self._probability * GRID).sum(axis=1), self._slots + 1
        gain = scatter / variance
        number = np.maximum(TRAFFIC + gain * off, LEAST)
        return Traffic(self._probability, number, np.tile(scatter * (1 - gain), (seen.size, 1)))

    def _walked(self, seen: Floats, hours: float) -> Floats:
        """The prior of a slot: what is known of the one before, times the city's factor, after so many hours."""
        expected = (self._probability * TRAFFIC).sum(axis=1)
        there = expected > FACTOR_FROM * np.sqrt(self._variance)
        alike = FACTOR_PRIOR * self._variance
        factor = ((expected * seen)[there].sum() + alike) / ((expected**2)[there].sum() + alike)
        steps = np.log(np.clip(factor, 1 / FACTOR_MAX, FACTOR_MAX)) / LOG_STEP
        last = GRID.size - 1
        at = np.clip(np.arange(GRID.size) - steps, 0, last)
        left = at.astype(np.int64)
        part = at - left
        moved = self._probability[:, left] * (1 - part) + self._probability[:, np.minimum(left + 1, last)] * part
        jumps, forgotten = 1 - (1 - JUMPS) ** hours, 1 - (1 - FORGOTTEN) ** hours
        kernel = (1 - jumps) * _kernel(WALK * np.sqrt(hours)) + jumps * _kernel(JUMP)
        return np.asarray((1 - forgotten) * (moved @ kernel) + forgotten * self._prior)

    def next_day(self) -> None:
        """A night later a cell is about as busy as on average, or anything."""
        if self._slots:
            off = (GRID - (self._logs / self._slots)[:, None]) / OF_EARLIER_DAY
            found = np.exp(-0.5 * off**2) + UNLIKE_EARLIER_DAY
            self._probability = found / found.sum(axis=1, keepdims=True)
        self._logs, self._slots = np.zeros_like(self._logs), 0


def _kernel(deviation: float) -> Floats:
    found = np.exp(-0.5 * ((GRID[:, None] - GRID) / deviation) ** 2)
    return np.asarray(found / found.sum(axis=1, keepdims=True))
