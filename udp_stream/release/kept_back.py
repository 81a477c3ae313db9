"""What stands for counts that a record keeps back (`release.counts`): public constants, by the record's status.

Nothing that such a record shows may follow from these counts, but what is there to be shown: the status, what a
released HAT cost, and how far its statistics may be off. So a measured HAT still says what was measured, beyond [0, U]
too: it is noisy, and costs nothing more. How far it may be off is taken from its scale alone. What was forecast follows
from earlier releases, where forecasts read no counts. In the place of the HAT's rest and of its number of plates are
those of a usual HAT of its status in Austin.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, sqrt
from typing import Final

import numpy as np

from udp_stream.forecast.model import PER_HAT
from udp_stream.mechanisms.noise import Measure
from udp_stream.mechanisms.speed_spread import mean_variance
from udp_stream.planning.terms import Terms
from udp_stream.release.record import Forecast, Mean, Release, Status

REST_KMH: Final[Mapping[Status, float]] = {
    "released": 2.2,
    "withheld_budget": 2.1,
    "withheld_uninformative": 4.7,
    "withheld_few_plates": 10.0,
    "withheld_unplanned": 10.0,
}
"""The deviation of a HAT's mean that releases of other HATs cannot lower: root mean square, weighed by pings."""

PLATES: Final[Mapping[Status, int]] = {
    "released": 21,
    "withheld_budget": 24,
    "withheld_uninformative": 5,
    "withheld_few_plates": 1,
    "withheld_unplanned": 1,
}
"""How many plates it has: one over the mean of one over their number, weighed by pings."""

_PER_SIZE: Final[Mapping[Measure, float]] = {"pure": sqrt(2), "zcdp": 1.2533}
"""The standard deviation of noise, in its expected sizes: of Laplace's, and of Gauss's."""


def forecast_kept_back(terms: Terms, mean: Mean | None, forecast: Forecast | None) -> Forecast | None:
    """What a record without counts says of its forecast; nothing of a HAT that is withheld.

    None, too, if the forecast was made before counts were kept back: it may follow from them.

    >>> from udp_stream.planning.terms import HatForecast
    >>> mean = Mean(0.0, "forecast-clip", None, 0.5, 2.0, 2.5, (0.0, 6.0), 65.0)
    >>> terms = Terms(forecast=HatForecast(18.0, deviation=8.0, rest=7.1, prior=7 * (0.0,), learnt=4.0))
    >>> shown = forecast_kept_back(terms, mean, Forecast(18.0, 8.0, 7.1, 7 * (0.0,), -1.5, 2.9))
    >>> shown.deviation_kmh, shown.rest_kmh, shown.measured_kmh, shown.measured_deviation_kmh
    (4.565, 2.2, -1.5, 2.828)
    """
    foretold = terms.forecast
    if mean is None or forecast is None or foretold is None or not foretold.learnt:
        return None
    rest, is_measured = REST_KMH["released"], forecast.measured_kmh is not None
    return Forecast(
        value_kmh=foretold.value,
        deviation_kmh=round(hypot(foretold.learnt, rest), 3),
        rest_kmh=rest,
        prior=(1 + PER_HAT) * (0.0,),
        measured_kmh=forecast.measured_kmh,
        measured_deviation_kmh=round(_PER_SIZE[terms.measure] * mean.scale_kmh, 3) if is_measured else None,
    )


def rest_of(record: Release) -> float:
    """The variance of a HAT's rest, in km2/h2, where its record says nothing of it.

    From its counts, as if all plates sent alike; of a usual HAT of its status where they are kept back.

    >>> from msgspec.structs import replace
    >>> from udp_stream.release.record import decode
    >>> from udp_stream.testing import released_slot
    >>> record = decode(released_slot().hats[0].payload)  # six pings of four plates
    >>> [round(rest_of(one), 2) for one in (record, replace(record, counts=None))]
    [60.5, 4.84]
    """
    if record.counts is None:
        return REST_KMH[record.status] ** 2
    plates, samples = max(1, record.plates), max(1, record.samples)
    pings = np.full(plates, max(1, samples // plates))
    return float(mean_variance(pings, np.zeros(plates, dtype=np.int64), 1)[0])


def plates_of(record: Release) -> int:
    """How many plates the HAT has, or a usual HAT of its status where that is kept back.

    >>> from msgspec.structs import replace
    >>> from udp_stream.release.record import decode
    >>> from udp_stream.testing import released_slot
    >>> record = decode(released_slot().hats[0].payload)
    >>> plates_of(record), plates_of(replace(record, counts=None))
    (4, 21)
    """
    return PLATES[record.status] if record.counts is None else record.counts.plates
