"""The traffic in each cell of a public domain, from noised sums alone: a Bayes filter on a grid of
its logarithm.

Traffic is a sum over plates, of weights or of 1 each; its noise has a known variance. A sum of
residuals is read through what is known of it: an unknown traffic blows nothing up. The model is
ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Floats
from udp_stream.forecast.anomalies import NEGLIGIBLE

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

_PRIOR = np.where(TRAFFIC < EMPTY_BELOW, EMPTY, np.minimum(TRAFFIC, COMMON_UPTO) ** COMMON_POWER)
TRAFFIC_PRIOR = _PRIOR / _PRIOR.sum()

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

LIKE_USUAL_SD = 0.35
UNLIKE_USUAL = 0.15
UNLIKE_USUAL_SD = 1.2
UNLIKELY = 1e-6
"""Deviation of a day's traffic from the usual traffic of the hour; the part of cells that are unlike
it, and their deviation; what is added, so that nothing is ruled out."""

BUSY_SHARE = 0.9
SHARE_MORE = 0.07
LOG_SHARE = (-2.7, 1.5)
"""Cells are relative to those with nine tenths of all traffic; little is added before the logarithm,
which is cut, as that of an empty cell is noise."""

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
        return told(
            self.probability,
            self.number,
            self.variance_of,
            total,
            noise,
            np.zeros_like(total),
            spread,
        )


def told(
    probability: Floats, number: Floats, variance_of: Floats, total: Floats, noise: Floats | float,
    forecast_off: Floats, spread: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Values of what is N(0, spread) beforehand, and the variances of their errors, inf where
    nothing is told.

    A noised sum is N(traffic * (value - forecast_off), noise); traffic has these probabilities
    (rows) of these numbers, each with a variance. The value leaves the first two moments of the
    mixture.
    """
    before = spread[:, None]
    seen = total[:, None] + number * forecast_off[:, None]
    own = np.reshape(noise, (-1, 1)) + variance_of * before
    variance = own + number**2 * before
    logs = np.log(probability + NEGLIGIBLE) - 0.5 * (seen**2 / variance + np.log(variance))
    weight = normed(np.exp(logs - logs.max(axis=1, keepdims=True)))
    each = before * number / variance * seen
    mean = (weight * each).sum(axis=1)
    after = (weight * (before * own / variance + each**2)).sum(axis=1) - mean**2
    informed = after < INFORMED_BELOW * spread
    error = 1 / np.where(informed, 1 / after - 1 / spread, 1.0)
    return np.where(informed, mean / after * error, 0.0), np.where(informed, error, np.inf)


class TrafficFilter:
    """Beliefs about the traffic of cells, slot by slot; `variance` is that of the noise of a sum, and
    may change between slots.

    >>> filtered = TrafficFilter(cells=2, variance=1.0)
    >>> morning, later = (filtered.learn(np.array([0.0, 30.0]), hours) for hours in (0.0, 1.0))
    >>> bool(later.mean[0] < morning.mean[0] < later.mean[1])
    True
    """

    def __init__(self, cells: int, variance: float) -> None:
        self._prior = TRAFFIC_PRIOR
        self.variance = variance
        self._probability = np.tile(self._prior, (cells, 1))

    def learn(self, seen: Floats, hours: float, usual: Floats | None = None) -> TrafficPosterior:
        """The traffic of a slot by its noised sums, so many hours after the slot before; 0 on a
        day's first. `usual` has the probabilities of the hour's traffic on other days."""
        prior = self._walked(seen, hours) if hours else self._probability
        if usual is not None:
            walked = np.sqrt(prior / self._prior) if hours else 1.0
            prior = normed(walked * (usual @ _day_like_usual())) + UNLIKELY
        # The true traffic scatters around the expected traffic, the noised traffic around the true.
        scatter = SCATTER * TRAFFIC
        off = seen[:, None] - TRAFFIC
        variance = self.variance + scatter
        logs = -0.5 * (off**2 / variance + np.log(variance))
        self._probability = normed(prior * np.exp(logs - logs.max(axis=1, keepdims=True)))
        gain = scatter / variance
        return TrafficPosterior(
            self._probability, np.maximum(TRAFFIC + gain * off, LEAST), scatter * (1 - gain)
        )

    def _walked(self, seen: Floats, hours: float) -> Floats:
        """Prior of a slot: the posterior of the slot before, times the city's factor, after so many
        hours."""
        expected = (self._probability * TRAFFIC).sum(axis=1)
        there = expected > FACTOR_FROM * sqrt(self.variance)
        alike = FACTOR_PRIOR * self.variance
        factor = ((expected * seen)[there].sum() + alike) / ((expected**2)[there].sum() + alike)
        steps = log(min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX))
        jumps = 1 - (1 - JUMPS) ** hours
        forgotten = 1 - (1 - FORGOTTEN) ** hours
        walk = (1 - jumps) * kernel(WALK * sqrt(hours)) + jumps * kernel(JUMP)
        return np.asarray(
            (1 - forgotten) * (moved(self._probability, steps) @ walk) + forgotten * self._prior
        )


def kernel(deviation: float) -> Floats:
    """Probabilities of a step on the grid from each number (rows)."""
    return normed(np.exp(-0.5 * ((GRID[:, None] - GRID) / deviation) ** 2))


def normed(weights: Floats) -> Floats:
    """Rows that sum to 1."""
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def normed_logs(logs: Floats) -> Floats:
    """The same from logarithms."""
    return normed(np.exp(logs - logs.max(axis=1, keepdims=True)))


def moved(probability: Floats, by: float) -> Floats:
    """Probabilities of traffic (rows) whose logarithm is greater by so much."""
    at = np.clip(np.arange(GRID.size) - by / LOG_STEP, 0, GRID.size - 1)
    left = np.minimum(at.astype(np.int64), GRID.size - 2)
    part = at - left
    return np.asarray(probability[:, left] * (1 - part) + probability[:, left + 1] * part)


def log_share(traffic: Floats) -> Floats:
    """Logarithm of each cell's traffic over that of busy cells."""
    top = np.sort(traffic)[::-1]
    busy = 1 + int(np.searchsorted(np.cumsum(top), BUSY_SHARE * top.sum()))
    return np.asarray(np.clip(np.log(traffic / top[:busy].mean() + SHARE_MORE), *LOG_SHARE))


@cache
def _day_like_usual() -> Floats:
    return (1 - UNLIKE_USUAL) * kernel(LIKE_USUAL_SD) + UNLIKE_USUAL * kernel(UNLIKE_USUAL_SD)
