"""How far speeds scatter around what is forecast: the model's public constants, in km/h.

Measured on Austin's buses of 2015 to 2017 at H3 7 and one hour. They say how precise a forecast is and how wide a clip
should be. Nothing private follows from them: if they are wrong for a city, releases err more, and protect as much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BETWEEN_PLATES = 4.0
"""Standard deviation of a plate's mean speed in a HAT around its forecast, however many pings it sends there."""

PER_PING = 18.0
"""What one ping adds to it, divided by the square root of their number."""

HAT_VARIANCE = 1.0
"""Variance of a HAT's mean that neither cell nor counts explain, whatever its size."""

SAMPLED = 0.7
"""How much of the plates' scatter reaches the HAT's mean: they share a street, and some of it is forecast."""

MEASURED_AT, SLOWEST = 17.0, 12.0
"""The mean speed in km/h at which the above hold. Where buses drive faster, estimates err more in proportion: a narrow
clip does not see how far the fast ones are off. Below `SLOWEST` nothing is gained any more."""


def at_speed(kmh: Floats) -> Floats:
    """What a deviation of the above is to be multiplied with in HATs of such a speed."""
    factor: Floats = np.maximum(kmh, SLOWEST) / MEASURED_AT
    return factor


def plate_variance(pings: NDArray[np.int64]) -> Floats:
    """Variance of the mean of that many pings of one plate in a HAT around its forecast, in km2/h2."""
    variance: Floats = BETWEEN_PLATES**2 + PER_PING**2 / pings
    return variance


def mean_variance(pings: NDArray[np.int64], hat: NDArray[np.int64], hats: int) -> Floats:
    """Variance of each HAT's mean of pings around its cell's forecast; `hat` is each row's HAT."""
    total = np.bincount(hat, weights=pings, minlength=hats)
    squares = np.bincount(hat, weights=pings**2 * plate_variance(pings), minlength=hats)
    variance: Floats = HAT_VARIANCE + SAMPLED * squares / np.maximum(total, 1) ** 2
    return variance
