"""Where 95 % of HATs' mean speeds are around their smoothed estimates: public constants, fixed before any ping.

The filter's variance says what releases left open. Three things are in no filter: parked buses and open roads make
tails heavier than normal, but not those of the fewest pings, as a speed has bounds; plates of one HAT differ by more
than their pings tell; and where a HAT's neighbours are crossed quickly, some buses drive much faster than any narrow
clip lets a release see. `python -m benchmarks.train_intervals` fits the constants, on days of other years than it
reports (docs/measurements.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.speed_spread import at_speed

Floats = NDArray[np.float64]

TAIL = 1.5
"""Deviations within which 95 % of HATs are."""

FEW_PINGS = 0.3
"""By how much that is too wide for a HAT of a single ping; for one of n pings, by an n-th."""

PLATES_DIFFER = 100.0
"""km2/h2, what the mean of one plate is off by beside what its pings tell; a HAT of n plates has an n-th of it."""

OPEN_ROADS = 0.4
"""How much farther the upper end is, as a power of e, for each standard deviation that the pings per plate in the
neighbouring HATs are fewer than usual."""

NEIGHBOURS_DWELL = 4
"""The feature of a HAT that says how long plates are in the neighbouring HATs (`forecast/model.py`)."""


def plates_differ(plates: NDArray[np.int64], gain: Floats) -> Floats:
    """Variance of HATs' means because plates differ, in km2/h2; a HAT's own release takes away `gain` of it.

    >>> plates_differ(np.array([1, 4, 4]), np.array([0.0, 0.0, 0.5])).tolist()
    [100.0, 25.0, 12.5]
    """
    variance: Floats = (1 - gain) * PLATES_DIFFER / np.maximum(plates, 1)
    return variance


def of_few_pings(variance: Floats, pings: NDArray[np.int64]) -> Floats:
    """What intervals take for the variance of HATs of so many pings: less for the fewest.

    >>> of_few_pings(np.full(3, 100.0), np.array([1, 3, 300])).round(1).tolist()
    [49.0, 81.0, 99.8]
    """
    taken: Floats = (1 - FEW_PINGS / np.maximum(pings, 1)) ** 2 * variance
    return taken


def ends(mean: Floats, variance: Floats, features: Floats) -> tuple[Floats, Floats]:
    """Both ends of 95 % intervals around estimates, in km/h, which the caller cuts to [0, U].

    `variance` is in km2/h2 at the speed `MEASURED_AT`; `features` has a standardised line of six for each HAT.

    >>> street, motorway = np.zeros(6), np.array([0, 0, 0, 0, -1.0, 0])
    >>> low, high = ends(np.array([17.0, 17.0]), np.array([4.0, 4.0]), np.array([street, motorway]))
    >>> low.round(1).tolist(), high.round(1).tolist()
    ([14.0, 14.0], [20.0, 21.5])
    """
    off = TAIL * at_speed(mean) * np.sqrt(variance)
    quicker = np.maximum(-features[:, NEIGHBOURS_DWELL], 0.0)
    return mean - off, mean + np.exp(OPEN_ROADS * quicker) * off
