"""The forecast of one slot: for each HAT, and for each plate in it, before any of its speeds is seen."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import CountsRead, SlotPrior, prior_of
from udp_stream.mechanisms.speed_spread import mean_variance
from udp_stream.windows.slot_tables import SlotCounts

Floats = NDArray[np.float64]

EDGE_KMH = 1.0
"""No plate is forecast to be nearer than this to 0 or U: a clip needs room on both sides."""


@dataclass(frozen=True, slots=True)
class SlotForecast:
    """In km/h, HAT by HAT: mean speed, its variance without the HAT's rest, and the rest's variance.

    `plates` has the mean speed of each row of the slot's counts. What makes the forecast is public, and so is it.

    >>> nothing_read = SlotPrior(np.zeros(2), np.zeros(1), np.zeros((1, 6)))
    >>> one = SlotForecast(nothing_read, np.array([18.0]), np.array([25.0]), np.array([9.0]), np.array([17.0, 19.0]))
    >>> float(np.sqrt(one.variance + one.rest)[0]).__round__(2)  # how far the HAT's mean may be off
    5.83
    """

    prior: SlotPrior
    mean: Floats
    variance: Floats
    rest: Floats
    plates: Floats


def forecast_slot(
    counts: SlotCounts, memory: Memory, day: dt.date, max_kmh: float, read: CountsRead = "plates"
) -> SlotForecast:
    """The forecast of a slot of that local day, from its counts and from what was released before it.

    >>> rows = dict(hat_rows=np.array([0, 2]), plate=np.array([0, 1]), count=np.array([30, 10]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([609162003746914303], np.uint64), **rows)
    >>> forecast = forecast_slot(counts, Memory(), dt.date(2024, 1, 8), max_kmh=65.0, read="off")
    >>> forecast.mean.tolist(), forecast.plates.tolist()
    ([18.0], [18.0, 18.0])
    """
    prior, hats = prior_of(counts, read), counts.cells.size
    hat = np.repeat(np.arange(hats), np.diff(counts.hat_rows))
    predicted = memory.predict(day, counts.cells, prior)
    mean = np.clip(predicted.mean, 0.0, max_kmh)
    plates = mean[hat] + predicted.slope * (prior.by_row - prior.by_hat[hat])
    # A quarter at most: where U is small, the edges would else meet.
    edge = min(EDGE_KMH, max_kmh / 4)
    return SlotForecast(
        prior,
        mean,
        predicted.variance,
        mean_variance(counts.count, hat, hats),
        np.clip(plates, edge, max_kmh - edge),
    )
