"""Figures on pings that were read: the plate, repeats, the unit of speeds. They change nothing; the
sentences about them are in the table of evidence (`cli/evidence.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf, isfinite, isinf, log, nan
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import KMH_PER_UNIT, QUANTA_PER_KMH, REPEATS_SHARE, factor_in_words
from udp_stream.pings.decode import Pings
from udp_stream.pings.repairs import SHARE_MIN
from udp_stream.pings.tracks import (
    JUMP_KMH,
    PINGS_JUDGED_MIN,
    PLATES_PER_PING,
    POLL_MS,
    SNAPSHOT_MS,
    steps_km,
)

SHARE_OF_ONE_PLATE = 0.1
TIMES_MEDIAN = 10
"""One of ten plates or more with a tenth of all pings and ten times the median's is a word for a
missing plate (the busiest bus of five recorded days had 3.4 times the median's)."""


class QualityWarning(str):
    """A warning of something that may be right: a single poll looks so, too."""

    __slots__ = ()


Figures = dict[str, object]
"""Figures that a sentence has places for."""

AUTUMN = "autumn"
SPRING = "spring"
SAME_AGAIN = "same again"
SHARED = "shared"
STEPS = "steps"
COARSE = "coarse"
"""Likely causes of repeats."""


def plates_of_messages(pings: Pings) -> tuple[Figures, bool] | None:
    """Figures if the plate looks like a message's id, and whether one poll would look so, too. With
    an id of each message in the plate's place, the promise for a vehicle is void."""
    size = len(pings)
    plates = np.unique(pings.plate).size
    if size < PINGS_JUDGED_MIN or plates <= PLATES_PER_PING * size:
        return None
    if np.ptp(pings.time_ms) <= SNAPSHOT_MS:
        return None
    quarter, three = np.quantile(pings.time_ms, (0.25, 0.75))
    return {"pings": size, "plates": plates}, bool(three - quarter <= POLL_MS)


def shared_plate(pings: Pings) -> Figures | None:
    """Figures if a plate looks like a word for a missing plate."""
    if len(pings) < PINGS_JUDGED_MIN:
        return None
    _, of_each = np.unique(pings.plate, return_counts=True)
    most = int(of_each.max())
    least = max(SHARE_OF_ONE_PLATE * len(pings), TIMES_MEDIAN * float(np.median(of_each)))
    if of_each.size < 10 or most < least:
        return None
    return {"pings": len(pings), "plates": of_each.size, "most": most}


_REPEATS_MIN = 2
_FAR_KM = 1.0
_LOOKED_AT = 1000
"""Repeats of a plate before they are said; how far another vehicle is; repeats whose times are
looked at."""


def repeats_of(pings: Pings, zone: tzinfo | None = None) -> dict[str, Figures]:
    """Figures, under the likely cause, if many pings of some plates share the time with another,
    and so count once; else nothing. `zone`: of times without an offset."""
    plate = pings.plate.astype(np.int64)
    time_ms = pings.time_ms
    if plate.size < 2:
        return {}
    order = np.lexsort((time_ms, plate))  # stable: the first in the log stays
    again = (np.diff(plate[order]) == 0) & (np.diff(time_ms[order]) == 0)
    of_plate = np.bincount(plate[order][1:][again], minlength=plate.max() + 1)
    if not ((of_plate > REPEATS_SHARE * np.bincount(plate)) & (of_plate >= _REPEATS_MIN)).any():
        return {}
    times = time_ms[order][1:][again]
    km = steps_km(pings.lon[order], pings.lat[order])[again]
    figures: Figures = {"repeats": int(again.sum()), "pings": plate.size}
    if zone is not None:
        shown = [_twice_or_left_out(one, zone) for one in times[:_LOOKED_AT].tolist()]
        earlier = datetime.fromtimestamp(int(times[0]) / 1000 - 7200, zone)
        before = earlier.utcoffset() or timedelta(0)
        for cause in (AUTUMN, SPRING):
            if np.mean([one == cause for one in shown]) > SHARE_MIN:
                return {cause: figures | {"zone": _fixed_zone(before)}}
    if (km > 0).mean() < 1 - SHARE_MIN:
        return {SAME_AGAIN: figures}
    if np.median(km[km > 0]) > _FAR_KM:
        return {SHARED: figures}
    step_s = int(np.gcd.reduce(time_ms)) // 1000
    step_s = step_s if np.ptp(time_ms) or step_s % 60 else 60  # a single time says no more
    if step_s > 1:
        steps = {60: "whole minutes", 3600: "whole hours"}.get(step_s, f"multiples of {step_s:,} s")
        return {STEPS: figures | {"steps": steps}}
    return {COARSE: figures}


def _twice_or_left_out(time_ms: int, zone: tzinfo) -> str:
    """Whether the zone's clock shows this time twice, or has just left an hour out."""
    shown = datetime.fromtimestamp(time_ms / 1000, zone)
    before = datetime.fromtimestamp(time_ms / 1000 - 3600, zone)
    first, second, earlier = (
        one.utcoffset() or timedelta(0)
        for one in (shown.replace(fold=0), shown.replace(fold=1), before)
    )
    return AUTUMN if first > second else SPRING if earlier < first else ""


def zone_without_spring(time_ms: Integers, zone: tzinfo) -> str:
    """The zone whose clock never changes that shows what this one shows before spring, if any of
    these times, as its clock shows them, is in the hour that spring leaves out; else ""."""
    for minute in np.unique(time_ms // 60_000).tolist():
        shown = datetime.fromtimestamp(minute * 60, UTC).replace(tzinfo=zone)
        first, second = (shown.replace(fold=fold).utcoffset() or timedelta(0) for fold in (0, 1))
        if first < second:
            return _fixed_zone(first)
    return ""


def _fixed_zone(offset: timedelta) -> str:
    hours = -offset / timedelta(hours=1)
    return f"Etc/GMT{hours:+.0f}" if hours % 1 == 0 else f"one that is {-hours:+g} h all year"


_STILL_S = 100
_STILL_PINGS = 4
_STILL_KMH = 5
"""A plate stands still if it sends so many pings, over so long, from a place that is the same to
the last digit, and reports in each that it goes faster. A bus in a jam does not."""


def still_plates(pings: Pings) -> int:
    """How many plates report a speed and do not move, by raw speeds."""
    order = np.argsort(pings.plate, kind="stable")
    starts = np.flatnonzero(np.diff(pings.plate[order].astype(np.int64), prepend=-1))
    if not starts.size:
        return 0
    columns = [column[order] for column in (pings.lat, pings.lon, pings.time_ms, pings.speed)]
    north, east, apart_ms, _ = (
        np.maximum.reduceat(one, starts) - np.minimum.reduceat(one, starts) for one in columns
    )
    still = (north == 0) & (east == 0) & (apart_ms >= _STILL_S * 1000)
    still &= np.minimum.reduceat(columns[3], starts) > _STILL_KMH * QUANTA_PER_KMH
    still &= np.diff(np.append(starts, order.size)) >= _STILL_PINGS
    return int(still.sum())


# The unit of speeds: between two pings of a bus that goes at an even speed, the distance over the
# time is that speed.
#
# In the wrong unit the two differ by the ratio of the units: 3.6, 1.6, 2.2, or its inverse. A unit
# is told only if the two agree in it. On 100 pairs the logarithm of the ratio is -0.05 to 0.07 in
# 98 of 100 draws. Feet a second, the nearest unit that is none of ours, lies 0.09 above km/h. Below
# there is none as near, and sparse pings cut corners.
#
# Buses that send once or twice a minute stop between two pings. There the distance of all pairs is
# set against the mean of the speeds at both ends. On 500 pairs of Austin's and Surat's buses the
# logarithm is -0.18 to 0.12. Mph and knots, 0.14 apart, may both fit: the nearest to the middle is
# the likeliest (right in 94 of 100 draws), and what is configured, or said by the feed, is not
# doubted.
#
# This looks at speeds without noise. Only the unit may be shown: the ratio, or the number of pairs,
# would tell a plate's speeds to a reader who knows all others.

PAIRS_MIN = 100
SPARSE_PAIRS_MIN = 500
"""With fewer pairs of pings 4 to 30 s apart they are looked for farther apart; with fewer of those
nothing is said."""

_SECONDS = (4, 30)  # apart: closer is measurement noise, further is another road
_MOVING_KMH = 5
_EVEN = 0.3  # of their mean: speeds that differ more say too little of the speed between (by 0.19 in Austin in 2015)
_BELOW = 0.12
_ABOVE = 0.08  # of the ratio's logarithm
_SPARSE_SECONDS = (30, 130)  # Austin's buses send every 120 s
_SPARSE_BELOW = 0.25
_SPARSE_ABOVE = 0.15


class UnitEvidence(NamedTuple):
    """Evidence of `pairs` pairs of pings: distance over time is `ratio` times the reported speed
    (median, by distance; of pings far apart of all together). `unit`: of those that fit the
    configured unit, or the nearest; None if none fits, or, with ratio nan, if there are too few
    pairs. `pairs` and `ratio` must not be shown. `changes`: the first pairs do not fit the same as
    the last ones, so that all together may fit a third. `named` is the unit in words: by its name
    only if nothing else fits, else by how many times it is the configured unit."""

    pairs: int
    ratio: float
    unit: str | None
    fits: tuple[str, ...] = ()
    changes: bool = False
    named: str = ""

    @property
    def fits_none(self) -> bool:
        """Whether there are pairs enough, and they fit no unit that is known here."""
        return self.unit is None and isfinite(self.ratio)

    @property
    def is_all_zero(self) -> bool:
        """Whether buses move, and no speed is above 0."""
        return isinf(self.ratio)


def unit_evidence(pings: Pings, configured: str) -> UnitEvidence:
    """The unit in which speeds that were read in the `configured` unit fit the movement; repeats do
    not count. Pairs 4 to 30 s apart count with both speeds above 5 km/h and near each other; if
    they are too few, all pairs 30 to 130 s apart."""
    order = np.lexsort((pings.time_ms, pings.plate))
    repeats = (np.diff(pings.plate[order]) == 0) & (np.diff(pings.time_ms[order]) == 0)
    order = order[np.append(True, ~repeats)[: order.size]]  # the first in the log stays
    plate = pings.plate[order]
    speed = pings.speed[order] / QUANTA_PER_KMH
    seconds = np.diff(pings.time_ms[order]) / 1000
    km = steps_km(pings.lon[order], pings.lat[order])
    of_one = plate[1:] == plate[:-1]
    near = (
        of_one
        & (seconds >= _SECONDS[0])
        & (seconds <= _SPARSE_SECONDS[1])
        & (km * 3600 <= JUMP_KMH * seconds)
    )
    if (
        near.sum() >= PAIRS_MIN
        and not speed.any()
        and km[near].sum() * 3600 > _MOVING_KMH * seconds[near].sum()
    ):
        return UnitEvidence(int(near.sum()), inf, None)
    dense = of_one & (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
    reported = (speed[1:] + speed[:-1]) / 2
    dense &= (np.minimum(speed[1:], speed[:-1]) > _MOVING_KMH) & (km > 0)
    dense &= np.abs(np.diff(speed)) <= _EVEN * reported
    said_km = seconds * reported / 3600
    if (pairs := int(dense.sum())) >= PAIRS_MIN:
        chosen = dense
        least = PAIRS_MIN
        band = (_BELOW, _ABOVE)
    else:
        chosen = near & (seconds >= _SPARSE_SECONDS[0])
        least = SPARSE_PAIRS_MIN
        band = (_SPARSE_BELOW, _SPARSE_ABOVE)
    rows = np.flatnonzero(chosen)
    if rows.size < least:
        return UnitEvidence(pairs, nan, None)
    rows = rows[np.argsort(pings.time_ms[order][1:][rows], kind="stable")]
    found = []
    at_ends = min(least, rows.size // 3)
    for some in (rows, rows[:at_ends], rows[-at_ends:]):
        gone = km[some]
        said = said_km[some]
        if not gone.any() or not said.any():
            return UnitEvidence(pairs, nan, None)
        ratio = _median(gone / said, said) if chosen is dense else float(gone.sum() / said.sum())
        found.append(_evidence(some.size, ratio, configured, *band))
    whole, first, last = found
    changes = not first.unit == last.unit == whole.unit
    if not changes and len(whole.fits) == 1:
        return whole._replace(named=repr(whole.unit))
    told = next((one for one in (last, first) if one.unit not in (None, configured)), whole)
    return whole._replace(changes=changes, named=factor_in_words(told.fits, configured))


def _sixtieths(places: int) -> Callable[[Floats], Floats | None]:
    """Degrees whose first decimals, two in a place, are minutes, then seconds; None if they are no
    such."""

    def degrees(column: Floats) -> Floats | None:
        rest = np.abs(column)
        found = np.floor(rest + _DIGITS)
        for place in range(1, places + 1):
            rest = (rest - np.floor(rest + _DIGITS)) * 100
            if (rest >= 60).any():
                return None
            whole = rest if place == places else np.floor(rest + _DIGITS)
            found = found + whole / 60.0**place
        return np.copysign(found, column)

    return degrees


_DIGITS = 1e-9
GRADS = "grads (400 to a circle; or speeds are feet a second)"
_GRADS_OFF = 0.05
"""Bound on the logarithm of the ratio: a larger value is of another fault."""
SCALES: Mapping[str, Callable[[Floats], Floats | None]] = {
    "degrees, minutes and seconds": _sixtieths(2),
    "degrees and minutes": _sixtieths(1),
    GRADS: lambda column: column * 0.9,
}
"""How positions may be written where degrees are expected, by what makes degrees of them."""

_SLOW_KMH = 35
"""On five recorded days 1 % of speeds were above 49 to 82 km/h: slower feeds may be miles an hour."""


def other_scale(pings: Pings, configured: str) -> tuple[str, str] | None:
    """The scale of SCALES in which positions and speeds fit each other, and the unit, if as degrees
    they do not. Minutes as decimals make miles of kilometres: there buses are slow besides."""
    evidence = unit_evidence(pings, configured)
    top_kmh = float(np.quantile(pings.speed, 0.99)) / QUANTA_PER_KMH
    if not isfinite(evidence.ratio):
        return None
    for scale, degrees in SCALES.items():
        lon = degrees(pings.lon)
        lat = degrees(pings.lat)
        if (
            lon is None
            or lat is None
            or (evidence.unit and (top_kmh > _SLOW_KMH or scale == GRADS))
        ):
            continue
        fit = unit_evidence(replace(pings, lon=lon, lat=lat), configured)
        off = abs(log(fit.ratio * KMH_PER_UNIT[configured] / KMH_PER_UNIT[fit.unit or "kmh"]))
        if fit.unit and (scale != GRADS or off < _GRADS_OFF):
            return scale, fit.unit
    return None


def _evidence(
    pairs: int, ratio: float, configured: str, below: float, above: float
) -> UnitEvidence:
    middle = (above - below) / 2
    half = (above + below) / 2
    units = KMH_PER_UNIT.items()
    off = {unit: abs(log(ratio * KMH_PER_UNIT[configured] / kmh) - middle) for unit, kmh in units}
    fits = tuple(sorted((unit for unit in off if off[unit] <= half), key=off.__getitem__))
    return UnitEvidence(
        pairs, ratio, configured if configured in fits else next(iter(fits), None), fits
    )


def _median(values: Floats, weights: Floats) -> float:
    """Half of the weight lies below it."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
