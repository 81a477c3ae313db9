"""As usual, or something happened: what a release says of its HAT where either may be.

A HAT's mean is as forecast, or, with a probability of `HAPPENS`, off by far more: an accident, a flood, a free road. So
it has a mixture of two normal distributions, and so has what a release leaves of it. A clip lets only so much of a
large difference through. The posterior is taken on a grid of speeds with what the clip lets through of each
(`widths.response`), not by dividing by a gain.

Everything here is post-processing of releases and counts. The model is ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.widths import response

Floats = NDArray[np.float64]

HAPPENS = 0.1
"""The share of HATs in which something is taken to have happened."""

HAPPENED_SD, AT_KMH, SLOWEST = 10.0, 20.0, 10.0
"""The standard deviation of what then happened, in km/h, where 20 km/h are forecast; in proportion to the forecast, but
for forecasts below 10 km/h."""

GOES_ON = 0.25
"""The part of the probability of news that a cell takes on to its next slot."""

GOES_ON_BY = 0.6
"""The part of what happened that is then expected again."""

PROBABILITY_MAX = 0.999
"""Of news, where the filter's weight is divided by its complement."""

SPREAD_POWER, SLOWEST_SPREAD = 1.0, 5.0

STEP_KMH = 0.5
"""Of the grid of speeds."""


class Carried(NamedTuple):
    """What a cell's last slot hands on: the probability that its news goes on, and how far it was off, in km/h."""

    probability: float
    off: float


NOTHING = Carried(0.0, 0.0)


def happened_variance(kmh: Floats) -> Floats:
    """Of what news adds to HATs of such a forecast, in km2/h2."""
    variance: Floats = (HAPPENED_SD * np.maximum(kmh, SLOWEST) / AT_KMH) ** 2
    return variance


class Clipped(NamedTuple):
    """How a release was clipped: around what, half width and HATs that share it, gain, a plate's deviation, km/h.

    A half width of 0 stands for a release that nothing clipped.
    """

    centre: float
    half_width: float
    hats: int
    gain: float
    scatter: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """HAT by HAT: the probability of news, and mean and variance of the HAT's mean speed with and without news.

    >>> one = Posterior(np.array([0.25]), np.array([20.0]), np.array([4.0]), np.array([8.0]), np.array([9.0]))
    >>> one.mean.tolist(), one.variance.tolist()
    ([17.0], [32.25])
    """

    news: Floats
    usual_mean: Floats
    usual_variance: Floats
    news_mean: Floats
    news_variance: Floats

    @property
    def mean(self) -> Floats:
        """Of the mixture."""
        return (1 - self.news) * self.usual_mean + self.news * self.news_mean

    @property
    def variance(self) -> Floats:
        """Of the mixture."""
        apart = self.news_mean - self.usual_mean
        within = (1 - self.news) * self.usual_variance + self.news * self.news_variance
        return within + self.news * (1 - self.news) * apart**2


    def replaced(self, at: NDArray[np.int64], other: Posterior) -> Posterior:
        """The same with these HATs of `other`."""
        columns = []
        for name in ("news", "usual_mean", "usual_variance", "news_mean", "news_variance"):
            column = getattr(self, name).copy()
            column[at] = getattr(other, name)
            columns.append(column)
        return Posterior(*columns)


def unmeasured(mean: Floats, variance: Floats, carried: Sequence[Carried], max_kmh: float) -> Posterior:
    """Of HATs without a release."""
    return posterior(mean, variance, carried, np.full(mean.size, np.nan), np.ones(mean.size), (), max_kmh)


def posterior(
    mean: Floats,
    variance: Floats,
    carried: Sequence[Carried],
    value: Floats,
    noise: Floats,
    clipped: Sequence[Clipped],
    max_kmh: float,
) -> Posterior:
    """Of HATs with a normal forecast (rest included), each with a value, its noise's variance, and its clip.

    A value of NaN stands for no release.
    """
    grid = np.arange(STEP_KMH / 2, max_kmh, STEP_KMH)
    goes_on, off = (np.array([getattr(one, name) for one in carried]) for name in Carried._fields)
    wide = variance + happened_variance(mean)
    usual = _density(grid, mean, variance)
    news = HAPPENS * (1 - goes_on)[:, None] * _density(grid, mean, wide)
    news += goes_on[:, None] * _density(grid, mean + GOES_ON_BY * off, wide)
    weight = (1 - HAPPENS) * (1 - goes_on)
    seen = _likelihood(grid, value, noise, variance, clipped)
    usual, news = usual * seen, news * seen
    of_usual, of_news = usual.sum(axis=1), news.sum(axis=1)
    probability = of_news / (of_news + weight * of_usual)
    return Posterior(probability, *_moments(grid, usual, of_usual), *_moments(grid, news, of_news))


def _density(grid: Floats, mean: Floats, variance: Floats) -> Floats:
    found: Floats = np.exp(-((grid - mean[:, None]) ** 2) / (2 * variance[:, None])) / np.sqrt(variance)[:, None]
    return found + 1e-300


def _moments(grid: Floats, weights: Floats, total: Floats) -> tuple[Floats, Floats]:
    mean = weights @ grid / total
    return mean, (weights * (grid - mean[:, None]) ** 2).sum(axis=1) / total


def _likelihood(grid: Floats, value: Floats, noise: Floats, variance: Floats, clipped: Sequence[Clipped]) -> Floats:
    """Of each value, at each speed of the grid; ones where there is no release."""
    likelihood = np.ones((value.size, grid.size))
    for at in np.flatnonzero(~np.isnan(value)).tolist():
        clip, expected = clipped[at], grid
        if clip.half_width:
            off = (grid - clip.centre) / clip.scatter
            spread = (np.maximum(grid, SLOWEST_SPREAD) / max(clip.centre, SLOWEST_SPREAD)) ** SPREAD_POWER
            passed = response(clip.half_width, clip.hats, off, spread, float(np.sqrt(variance[at])) / clip.scatter)
            expected = clip.centre + clip.scatter * passed / clip.gain
        distance = (value[at] - expected) ** 2 / (2 * noise[at])
        likelihood[at] = np.exp(distance.min() - distance)
    return likelihood
