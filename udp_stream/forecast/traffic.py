"""The traffic in each cell of a public domain, from noised sums alone: a Bayes filter on a grid of
its logarithm.

Traffic is a sum over plates, of weights or of 1 each; its noise has a known variance. A sum of
residuals is read through what is known of it: an unknown traffic blows nothing up. The model is
ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.forecast.anomalies import NEGLIGIBLE
from udp_stream.mechanisms.noise import Floats

LOG_STEP = 0.2
GRID = log(0.05) + LOG_STEP * np.arange(47)
TRAFFIC = np.exp(GRID)
"""Grid of traffic from 0.05, an empty cell, to 500, a city's main square; no noise is finer than a
step."""

EMPTY = 4.0
EMPTY_BELOW = 0.3
COMMON_UPTO = 60.0
COMMON_POWER = 0.5
"""A cell's prior: this weight on empty numbers, else the root of traffic, up to 60: domains are
drawn around buses."""

WALK = 0.3
JUMPS = 0.2
JUMP = 1.2
FORGOTTEN = 0.1
"""Change in an hour: deviation of the logarithm's change; the share of cells that change otherwise,
and their deviation; the part of the prior that comes back, so that no cell stays ruled out."""

SCATTER = 1.3
"""Variance of a sum of weights for each unit of its expectation: squared weights over weights."""

FACTOR_MAX = 5.0
FACTOR_FROM = 0.7
FACTOR_PRIOR = 4.0
"""A slot changes the city's traffic by a factor up to this, fitted over cells above so many
deviations of the noise; so many of its variances hold it near 1."""

OF_EARLIER_DAY = 1.2
UNLIKE_EARLIER_DAY = 0.03
"""Deviation of a cell's mean from that of the day before, before a day's first slot, and the weight
of cells that are unlike it."""

LEAST = 0.02
"""Least traffic that sums are divided by."""

NORMAL95 = 1.96
QUANTILE95 = 0.975
INFORMED_BELOW = 0.999
"""Half of a 95 % interval in deviations; its upper end; and the share of a variance above which
nothing was told."""


class TrafficPosterior(NamedTuple):
    """Posterior of a slot's cells (rows): the probability of each number of the grid, and, if that
    is the expected traffic, mean and variance of the true traffic.

    >>> traffic = TrafficFilter(cells=2, variance=1.0).learn(np.array([0.0, 30.0]), hours=0.0)
    >>> low, high = traffic.interval95()
    >>> traffic.mean.round(1).tolist(), bool(low[0] == 0), bool(low[1] < 30 < high[1])
    ([0.2, 30.0], True, True)
    """

    probability: Floats
    number: Floats
    variance_of: Floats

    @property
    def mean(self) -> Floats:
        """Expected traffic of each cell."""
        return np.asarray((self.probability * self.number).sum(axis=1))

    def interval95(self, unit_sd: float = 0.0) -> tuple[Floats, Floats]:
        """Both ends of the 95 % interval, if the unit of traffic is off by such a part."""
        mean = self.mean
        square = (self.probability * (self.number**2 + self.variance_of)).sum(axis=1)
        off = NORMAL95 * np.sqrt(np.maximum(square - mean**2, 0.0) + (unit_sd * mean) ** 2)
        # The posterior is skew: a cell that noise hides may be busy.
        upto = (np.cumsum(self.probability, axis=1) < QUANTILE95).sum(axis=1)
        most = TRAFFIC[np.minimum(upto, TRAFFIC.size - 1)] * (1 + NORMAL95 * unit_sd)
        return np.maximum(mean - off, 0.0), np.maximum(mean + off, most)

    def residual(self, total: Floats, noise: float, spread: Floats) -> tuple[Floats, Floats]:
        """Residuals as their noised weighed sums estimate them, km/h: values, and variances of
        their errors.

        A residual is N(0, spread) beforehand, its sum N(traffic * residual, noise). The value
        leaves the first two moments of the mixture over the traffic; its variance is inf where
        nothing is told.
        """
        before = spread[:, None]
        seen = total[:, None]
        own = noise + self.variance_of * before
        variance = own + self.number**2 * before
        logs = np.log(self.probability + NEGLIGIBLE) - 0.5 * (seen**2 / variance + np.log(variance))
        weight = np.exp(logs - logs.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        each = before * self.number / variance * seen
        mean = (weight * each).sum(axis=1)
        after = (weight * (before * own / variance + each**2)).sum(axis=1) - mean**2
        informed = after < INFORMED_BELOW * spread
        error = 1 / np.where(informed, 1 / after - 1 / spread, 1.0)
        return np.where(informed, mean / after * error, 0.0), np.where(informed, error, np.inf)


class TrafficFilter:
    """Beliefs about the traffic of cells, slot by slot; `variance` is that of the noise of a sum.

    >>> filtered = TrafficFilter(cells=2, variance=1.0)
    >>> morning, later = (filtered.learn(np.array([0.0, 30.0]), hours) for hours in (0.0, 1.0))
    >>> bool(later.mean[0] < morning.mean[0] < later.mean[1])
    True
    """

    def __init__(self, cells: int, variance: float) -> None:
        prior = np.where(
            TRAFFIC < EMPTY_BELOW, EMPTY, np.minimum(TRAFFIC, COMMON_UPTO) ** COMMON_POWER
        )
        self._prior = prior / prior.sum()
        self._variance = variance
        self._probability = np.tile(self._prior, (cells, 1))
        self._logs = np.zeros(cells)
        self._slots = 0

    def learn(self, seen: Floats, hours: float) -> TrafficPosterior:
        """The traffic of a slot by its noised sums, so many hours after the slot before; 0 on a
        day's first."""
        prior = self._walked(seen, hours) if hours else self._probability
        # The true traffic scatters around the expected traffic, the noised traffic around the true.
        scatter = SCATTER * TRAFFIC
        off = seen[:, None] - TRAFFIC
        variance = self._variance + scatter
        logs = -0.5 * (off**2 / variance + np.log(variance))
        found = prior * np.exp(logs - logs.max(axis=1, keepdims=True))
        self._probability = found / found.sum(axis=1, keepdims=True)
        self._logs = self._logs + (self._probability * GRID).sum(axis=1)
        self._slots = self._slots + 1
        gain = scatter / variance
        return TrafficPosterior(
            self._probability, np.maximum(TRAFFIC + gain * off, LEAST), scatter * (1 - gain)
        )

    def _walked(self, seen: Floats, hours: float) -> Floats:
        """Prior of a slot: the posterior of the slot before, times the city's factor, after so many
        hours."""
        expected = (self._probability * TRAFFIC).sum(axis=1)
        there = expected > FACTOR_FROM * sqrt(self._variance)
        alike = FACTOR_PRIOR * self._variance
        factor = ((expected * seen)[there].sum() + alike) / ((expected**2)[there].sum() + alike)
        steps = log(min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)) / LOG_STEP
        at = np.clip(np.arange(GRID.size) - steps, 0, GRID.size - 1)
        left = np.minimum(at.astype(np.int64), GRID.size - 2)
        part = at - left
        known = self._probability
        moved = known[:, left] * (1 - part) + known[:, left + 1] * part
        jumps = 1 - (1 - JUMPS) ** hours
        forgotten = 1 - (1 - FORGOTTEN) ** hours
        kernel = (1 - jumps) * _kernel(WALK * sqrt(hours)) + jumps * _kernel(JUMP)
        return np.asarray((1 - forgotten) * (moved @ kernel) + forgotten * self._prior)

    def next_day(self) -> None:
        """A night later a cell is about as busy as on average, or anything."""
        if self._slots:
            off = (GRID - (self._logs / self._slots)[:, None]) / OF_EARLIER_DAY
            found = np.exp(-0.5 * off**2) + UNLIKE_EARLIER_DAY
            self._probability = found / found.sum(axis=1, keepdims=True)
        self._logs = np.zeros_like(self._logs)
        self._slots = 0


def _kernel(deviation: float) -> Floats:
    found = np.exp(-0.5 * ((GRID[:, None] - GRID) / deviation) ** 2)
    return np.asarray(found / found.sum(axis=1, keepdims=True))
