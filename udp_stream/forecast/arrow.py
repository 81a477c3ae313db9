"""One filter: a Gaussian over what all HATs share and an effect of each cell, updated slot by slot in O(cells).

The model of a HAT's mean speed, in km/h:

    T = city + slope * prior + beta . features + cell + rest

`globals` are what all HATs share: city mean, slope of the prior, six slopes of features, and the skew that a narrow
clip adds to what is observed. Given them the cells are independent, so that the covariance is an arrow: cells on the
diagonal, globals at the border. It is kept as the globals' mean and covariance, and for each cell the effect given the
globals: `intercept + coupling . globals`, with a variance of its own. Each update is exact (a Kalman filter's).

Source: the Gaussian conditioning formulas; the model is ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.features import PER_HAT

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

GLOBALS = 2 + PER_HAT + 1
"""City mean, slope of the prior, slopes of the features, skew: the columns of a design."""

CITY_MEAN, CITY_SD = 18.0, 5.0
SLOPE_MEAN, SLOPE_SD = 12.6, 6.0
CITY_SLOPE_CORRELATION = 0.5
SKEW_SD = 1.0
"""What is believed of a city before its first release, in km/h: buses in traffic."""

NIGHT = 0.1
"""How much of what was believed at first, as a share of its variance, is open again a day later. The means of recorded
days lie 1.3 km/h apart, and a tenth of `CITY_SD` squared is 1.6 km/h."""


def design_of(prior: Floats, features: Floats, is_clipped: NDArray[np.bool_]) -> Floats:
    """The design of HATs, shape (HATs, 9); `is_clipped` where it is for what a narrow clip observes.

    >>> design_of(np.array([0.5]), np.zeros((1, 6)), np.array([True])).tolist()
    [[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    return np.column_stack([np.ones(prior.size), prior, features, is_clipped])


class ArrowFilter:
    """Beliefs about one city under one pair of hyperparameters.

    `cell_sd` is how far cells differ from what their counts say, `slope_sd` how far the features' slopes are from 0.
    Cells are numbered by the caller, from 0; `grow` makes room for more.

    >>> arrow = ArrowFilter(cell_sd=2.0, slope_sd=0.5)
    >>> arrow.grow(1)
    >>> at, design = np.array([0]), design_of(np.zeros(1), np.zeros((1, 6)), np.array([False]))
    >>> before = arrow.predict(at, design)
    >>> _ = arrow.update(at, design, np.array([24.0]), np.array([29.0]))
    >>> after = arrow.predict(at, design)
    >>> before[0].tolist(), before[1].tolist(), after[0].round(3).tolist(), after[1].round(3).tolist()
    ([18.0], [29.0], [21.0], [14.5])
    """

    def __init__(self, cell_sd: float, slope_sd: float) -> None:
        """Before any release."""
        self._cell_variance = cell_sd**2
        self.mean = np.zeros(GLOBALS)
        self.mean[:2] = CITY_MEAN, SLOPE_MEAN
        self._covariance = np.diag([CITY_SD**2, SLOPE_SD**2, *[slope_sd**2] * PER_HAT, SKEW_SD**2])
        self._covariance[0, 1] = self._covariance[1, 0] = CITY_SLOPE_CORRELATION * CITY_SD * SLOPE_SD
        self._first = self._covariance.copy()
        self._intercept = np.zeros(0)
        self._coupling = np.zeros((0, GLOBALS))
        self._variance = np.zeros(0)

    def grow(self, more: int) -> None:
        """Make room for more cells, of which nothing is known."""
        self._intercept = np.append(self._intercept, np.zeros(more))
        self._coupling = np.vstack([self._coupling, np.zeros((more, GLOBALS))])
        self._variance = np.append(self._variance, np.full(more, self._cell_variance))

    def predict(self, at: Integers, design: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of T, without its rest, at cells (-1: one never seen) with these designs."""
        intercept, border, variance = self._given_globals(at, design)
        spread = np.einsum("ij,ij->i", border @ self._covariance, border)
        return intercept + border @ self.mean, variance + spread

    def update(self, at: Integers, design: Floats, value: Floats, variance: Floats) -> float:
        """Condition on T + noise = value, for distinct cells; gives the log of the values' likelihood."""
        intercept, border, own = self._given_globals(at, design)
        weight = 1 / (own + variance)
        off = value - intercept - border @ self.mean
        weighed = border * weight[:, None]
        before = np.linalg.inv(self._covariance)
        precision = before + weighed.T @ border
        self._covariance = np.linalg.inv(precision)
        moved = self._covariance @ (weighed.T @ off)
        self.mean = self.mean + moved
        gain = own * weight
        self._intercept[at] += gain * (value - intercept)
        self._coupling[at] -= gain[:, None] * border
        self._variance[at] = own * (1 - gain)
        misfit = float(off @ (off * weight) - moved @ precision @ moved)
        determinant = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(before)[1] - np.log(weight).sum()
        return -0.5 * (misfit + float(determinant))

    def next_day(self) -> None:
        """A night later city and cells may have changed."""
        self._covariance = self._covariance + NIGHT * self._first
        # Never wider than for a cell that was never seen.
        self._variance = np.minimum(self._variance + NIGHT * self._cell_variance, self._cell_variance)

    def _given_globals(self, at: Integers, design: Floats) -> tuple[Floats, Floats, Floats]:
        """T given the globals: intercept, slopes on them, variance."""
        known = at >= 0
        if not known.any():
            return np.zeros(at.size), design, np.full(at.size, self._cell_variance)
        intercept = np.where(known, self._intercept[at], 0.0)
        coupling = np.where(known[:, None], self._coupling[at], 0.0)
        return intercept, design + coupling, np.where(known, self._variance[at], self._cell_variance)
