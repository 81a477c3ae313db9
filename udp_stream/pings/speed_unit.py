"""Are speeds in the unit that the configuration says? The pings themselves tell: a bus moves as fast as it reports.

Between two consecutive pings of a moving bus, the distance over the time is about its speed (a little less: roads are
no straight lines). With the wrong unit the two differ by the ratio of the units: 3.6, 1.6, 2.2, or one over it.

This looks at speeds without noise. Only the unit may be shown, which is a verdict: the ratio, or the number of pairs
(which report to be moving), would tell one plate's speeds to a reader who knows all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from udp_stream.pings.decoder import Pings
from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH

PAIRS_MIN = 100
"""With fewer pairs of pings nothing is said."""

_SECONDS = (4, 30)  # apart: closer is measurement noise, further is another road
_MOVING_KMH = 5
_METRES_PER_DEGREE = 111_195


@dataclass(frozen=True, slots=True)
class UnitEvidence:
    """What `pairs` pairs of pings say: distance over time is `ratio` times the reported speed (median).

    `unit` is the unit that fits best; None, and ratio nan, if there are too few pairs to say. `pairs` and `ratio`
    follow from raw speeds: not to be shown.

    >>> UnitEvidence(pairs=500, ratio=3.58, unit="mps").unit
    'mps'
    """

    pairs: int
    ratio: float
    unit: str | None


def unit_evidence(pings: Pings, configured: str) -> UnitEvidence:
    """The unit in which these pings' speeds fit their movement best; `configured` is the one they were read in.

    Only pairs of one plate 4 to 30 s apart count, with both speeds above 5 km/h. After `doctor`'s test in the data
    exchange's own quality reports: for Surat's feed, read as km/h, the ratio is 1.04.

    A bus that goes 100 m north every 10 s, and reports 10, reports metres a second:

    >>> n, none = 200, np.zeros(200)
    >>> time_ms, lat, quanta = np.arange(n) * 10_000, np.arange(n) * 100 / 111_195, np.full(n, 10 * QUANTA_PER_KMH)
    >>> unit_evidence(Pings(("A1",), none, time_ms, lat, none, quanta, none, none), configured="kmh").unit
    'mps'
    """
    order = np.lexsort((pings.time_ms, pings.plate))
    plate, speed = pings.plate[order], pings.speed[order] / QUANTA_PER_KMH
    seconds = np.diff(pings.time_ms[order]) / 1000
    lat, lon = pings.lat[order], pings.lon[order]
    east = np.diff(lon) * np.cos(np.radians(lat[:-1]))
    km = np.hypot(np.diff(lat), east) * _METRES_PER_DEGREE / 1000
    fits = (plate[1:] == plate[:-1]) & (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
    fits &= (np.minimum(speed[1:], speed[:-1]) > _MOVING_KMH) & (km > 0)
    pairs = int(fits.sum())
    if pairs < PAIRS_MIN:
        return UnitEvidence(pairs, float("nan"), None)
    reported = (speed[1:] + speed[:-1])[fits] / 2
    ratio = float(np.median(km[fits] / (seconds[fits] / 3600) / reported))
    here = KMH_PER_UNIT[configured]
    best = min(KMH_PER_UNIT, key=lambda unit: abs(log(ratio * here / KMH_PER_UNIT[unit])))
    return UnitEvidence(pairs, ratio, best)
