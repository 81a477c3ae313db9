"""Are speeds in the unit that the configuration says? The pings themselves tell: a bus moves as fast as it reports.

Between two consecutive pings of a bus that goes at an even speed, the distance over the time is that speed. With the
wrong unit the two differ by the ratio of the units: 3.6, 1.6, 2.2, or one over it. A unit is told only if the two agree
in it. Else none is: speeds may be in knots, or ten times too large.

How near they must agree was measured on the recorded feeds. Pairs at an even speed, 4 to 30 s apart, weighed by their
distance: the logarithm of the ratio is 0.03 in Surat and 0.01, 0.03 and 0.01 on three days of Austin, in any unit. Of
100 such pairs alone it is -0.05 to 0.07 in 98 of 100 draws. The least unit that is none of ours, feet a second, lies
0.09 above km/h; knots lie 0.14 above mph. So a ratio may be `_ABOVE` more than one. Below a unit of ours there is
none as near, and sparse pings cut corners (-0.02 at 30 to 60 s): it may be `_BELOW` less.

This looks at speeds without noise. Only the unit may be shown, which is a verdict: the ratio, or the number of pairs
(which report to be moving), would tell one plate's speeds to a reader who knows all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, log

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decode import Pings
from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH

PAIRS_MIN = 100
"""With fewer pairs of pings nothing is said."""

FITS_NONE = "by how far buses go, speeds fit no unit that is known (knots? scaled?)"
"""Of evidence that `fits_none`."""

_SECONDS = (4, 30)  # apart: closer is measurement noise, further is another road
_MOVING_KMH = 5
_EVEN = 0.3  # of their mean: speeds that differ more say too little of the speed between (by 0.19 in Austin in 2015)
_BELOW, _ABOVE = 0.12, 0.08  # of the ratio's logarithm
_METRES_PER_DEGREE = 111_195


@dataclass(frozen=True, slots=True)
class UnitEvidence:
    """What `pairs` pairs of pings say: distance over time is `ratio` times the reported speed (median, by distance).

    `unit` is the unit that fits; None if none does, and, with ratio nan, if there are too few pairs to say. `pairs` and
    `ratio` follow from raw speeds: not to be shown.

    >>> UnitEvidence(pairs=500, ratio=3.58, unit="mps").unit
    'mps'
    """

    pairs: int
    ratio: float
    unit: str | None

    @property
    def fits_none(self) -> bool:
        """Whether there are pairs enough, and they fit no unit that is known here."""
        return self.unit is None and not isnan(self.ratio)


def unit_evidence(pings: Pings, configured: str) -> UnitEvidence:
    """The unit in which these pings' speeds fit their movement; `configured` is the one they were read in.

    Only pairs of one plate 4 to 30 s apart count, with both speeds above 5 km/h and near each other. After `doctor`'s
    test in the data exchange's own quality reports: for Surat's feed, read as km/h, the ratio is 1.03.

    A bus that goes 100 m north every 10 s, and reports 10, reports metres a second:
    """
    order = np.lexsort((pings.time_ms, pings.plate))
    plate, speed = pings.plate[order], pings.speed[order] / QUANTA_PER_KMH
    seconds = np.diff(pings.time_ms[order]) / 1000
    lat, lon = pings.lat[order], pings.lon[order]
    east = np.diff(lon) * np.cos(np.radians(lat[:-1]))
    km = np.hypot(np.diff(lat), east) * _METRES_PER_DEGREE / 1000
    fits = (plate[1:] == plate[:-1]) & (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
    reported = (speed[1:] + speed[:-1]) / 2
    fits &= (np.minimum(speed[1:], speed[:-1]) > _MOVING_KMH) & (km > 0)
    fits &= np.abs(np.diff(speed)) <= _EVEN * reported
    pairs = int(fits.sum())
    if pairs < PAIRS_MIN:
        return UnitEvidence(pairs, float("nan"), None)
    said_km = (seconds * reported)[fits] / 3600
    ratio = _median(km[fits] / said_km, said_km)
    apart = {unit: log(ratio * KMH_PER_UNIT[configured] / kmh) for unit, kmh in KMH_PER_UNIT.items()}
    return UnitEvidence(pairs, ratio, next((unit for unit, off in apart.items() if -_BELOW <= off <= _ABOVE), None))


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Half of the weight lies below it."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
