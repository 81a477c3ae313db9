"""Where 95 % of HATs' mean speeds are around their smoothed estimates: public constants, fixed before any ping.

The filter's variance says what releases left open. Three things are in no filter: parked buses and open roads make
tails heavier than normal, but not those of the fewest pings, as a speed has bounds; plates of one HAT differ by more
than their pings tell; and where a HAT's neighbours are crossed quickly, some buses drive much faster than any narrow
clip lets a release see. `python -m benchmarks.train_intervals` fits the constants, on days of other years than it
reports (docs/measurements.md).

Where forecasts read less than each plate's counts, the filter knows less than it takes itself to: cells differ by more
than any of its hyperparameters allows. What it left open then counts as more, in intervals and in expected errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.model import CountsRead
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


class Widths(NamedTuple):
    """How wide: `wider` multiplies the deviations that a filter gives, the others are as the constants of their names.

    >>> widths_for("plates")
    Widths(wider=1.0, tail=1.5, open_roads=0.4, few_pings=0.3)
    """

    wider: float
    tail: float
    open_roads: float
    few_pings: float = 0.0


UNREAD: Mapping[CountsRead, Widths] = {"published": Widths(1.15, 1.7, 0.4), "off": Widths(1.35, 1.4, 0.8)}
"""Where forecasts read less. If they read nothing, every road may be an open one: `open_roads` is then for all of them,
at one deviation."""


def widths_for(read: CountsRead) -> Widths:
    """Those for what forecasts read of counts.

    >>> widths_for("off").wider > widths_for("published").wider > 1
    True
    """
    return UNREAD.get(read) or Widths(1.0, TAIL, OPEN_ROADS, FEW_PINGS)


def left_open(variance: Floats, read: CountsRead) -> Floats:
    """What a filter says that it left open, as what it did, in km2/h2.

    >>> left_open(np.array([4.0]), "plates").tolist(), left_open(np.array([4.0]), "off").round(2).tolist()
    ([4.0], [7.29])
    """
    variance_left: Floats = widths_for(read).wider ** 2 * variance
    return variance_left


def plates_differ(plates: NDArray[np.int64], gain: Floats) -> Floats:
    """Variance of HATs' means because plates differ, in km2/h2; a HAT's own release takes away `gain` of it.

    >>> plates_differ(np.array([1, 4, 4]), np.array([0.0, 0.0, 0.5])).tolist()
    [100.0, 25.0, 12.5]
    """
    variance: Floats = (1 - gain) * PLATES_DIFFER / np.maximum(plates, 1)
    return variance


def of_few_pings(variance: Floats, pings: NDArray[np.int64], read: CountsRead) -> Floats:
    """What intervals take for the variance of HATs of so many pings: less for the fewest, where forecasts read each
    plate's counts.

    >>> of_few_pings(np.full(3, 100.0), np.array([1, 3, 300]), "plates").round(1).tolist()
    [49.0, 81.0, 99.8]
    >>> of_few_pings(np.full(1, 100.0), np.array([1]), "off").tolist()
    [100.0]
    """
    taken: Floats = (1 - widths_for(read).few_pings / np.maximum(pings, 1)) ** 2 * variance
    return taken


def ends(mean: Floats, variance: Floats, features: Floats, read: CountsRead = "plates") -> tuple[Floats, Floats]:
    """Both ends of 95 % intervals around estimates, in km/h, which the caller cuts to [0, U].

    `variance` is in km2/h2 at the speed `MEASURED_AT`; `features` has a standardised line of six for each HAT.

    >>> street, motorway = np.zeros(6), np.array([0, 0, 0, 0, -1.0, 0])
    >>> low, high = ends(np.array([17.0, 17.0]), np.array([4.0, 4.0]), np.array([street, motorway]))
    >>> low.round(1).tolist(), high.round(1).tolist()
    ([14.0, 14.0], [20.0, 21.5])
    """
    widths = widths_for(read)
    off = widths.tail * at_speed(mean) * np.sqrt(variance)
    quicker = np.ones(mean.size) if read == "off" else np.maximum(-features[:, NEIGHBOURS_DWELL], 0.0)
    return mean - off, mean + np.exp(widths.open_roads * quicker) * off
