"""Doubts about pings that were read: the plate, repeats, the unit of speeds. They change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from math import inf, isinf, isnan, log, nan

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decode import Pings
from udp_stream.pings.found import PINGS_JUDGED_MIN, PLATES_PER_PING, POLL_MS, SNAPSHOT_MS
from udp_stream.pings.repairs import SHARE_MIN
from udp_stream.pings.tracks import JUMP_KMH, steps_km
from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH, REPEATS_SHARE, factor_in_words

SHARE_OF_ONE_PLATE = 0.1
TIMES_MEDIAN = 10
"""One of ten plates or more with a tenth of all pings and ten times the median's is a word for a
missing plate (the busiest bus of five recorded days had 3.4 times the median's)."""


class QualityWarning(str):
    """A warning of something that may be right: a single poll looks so, too."""

    __slots__ = ()


def plate_warning(pings: Pings, field: str = "source.plate") -> str | None:
    """A sentence if the plate looks like a message's id, or a word for a missing plate. With an id
    of each message in the plate's place, the promise for a vehicle is void."""
    plate = pings.plate.astype(np.int64)
    time_ms = pings.time_ms
    if plate.size < PINGS_JUDGED_MIN:
        return None
    of_each = np.bincount(plate)
    of_each = of_each[of_each > 0]
    quarter, three = np.quantile(time_ms, (0.25, 0.75))
    what = f"{plate.size:,} pings of {of_each.size:,} plates"
    if of_each.size > PLATES_PER_PING * plate.size and np.ptp(time_ms) > SNAPSHOT_MS:
        sentence = f"{what}: is {field} the vehicle's, and not the message's? (One poll alone looks so, too.)"
        return QualityWarning(sentence) if three - quarter <= POLL_MS else sentence
    most = int(of_each.max())
    median = float(np.median(of_each))
    if of_each.size >= 10 and most >= max(SHARE_OF_ONE_PLATE * plate.size, TIMES_MEDIAN * median):
        return f"{what}, and {most:,} are of one: is it a word for a missing plate? Who shares a plate shares a budget"
    return None


_REPEATS_MIN = 2
_FAR_KM = 1.0
_LOOKED_AT = 1000
"""Repeats of a plate before they are said; how far another vehicle is; repeats whose times are
looked at."""


def repeat_warning(pings: Pings, zone: tzinfo | None = None) -> QualityWarning | None:
    """A sentence if many pings of some plates share the time with another, and so count once, with
    the likely cause. `zone`: of times without an offset."""
    plate = pings.plate.astype(np.int64)
    time_ms = pings.time_ms
    if plate.size < 2:
        return None
    order = np.lexsort((time_ms, plate))  # stable: the first in the log stays
    again = (np.diff(plate[order]) == 0) & (np.diff(time_ms[order]) == 0)
    of_plate = np.bincount(plate[order][1:][again], minlength=plate.max() + 1)
    if not ((of_plate > REPEATS_SHARE * np.bincount(plate)) & (of_plate >= _REPEATS_MIN)).any():
        return None
    count = int(again.sum())
    times = time_ms[order][1:][again]
    km = steps_km(pings.lon[order], pings.lat[order])[again]
    of_all = f"{count:,} of {plate.size:,} pings"
    share = f"{of_all} share plate and time with another and count once"
    if (
        zone is not None
        and np.mean([_comes_twice(one, zone) for one in times[:_LOOKED_AT].tolist()]) > SHARE_MIN
    ):
        hour = "the recording holds autumn's doubled hour without offsets"
        return QualityWarning(
            f"{hour}: {of_all} count as repeats: have the feed send offsets, or UTC"
        )
    if (km > 0).mean() < 1 - SHARE_MIN:
        return QualityWarning(
            f"{share}: they are the same again, as polls and resent messages have them"
        )
    if np.median(km[km > 0]) > _FAR_KM:
        return QualityWarning(f"{share}, and lie far from it: do several vehicles share a plate?")
    step_s = int(np.gcd.reduce(time_ms)) // 1000
    step_s = step_s if np.ptp(time_ms) or step_s % 60 else 60  # a single time says no more
    if step_s > 1:
        steps = {60: "whole minutes", 3600: "whole hours"}.get(step_s, f"multiples of {step_s:,} s")
        return QualityWarning(f"times are {steps}: {share}: have the feed send seconds")
    return QualityWarning(
        f"{share}, and lie elsewhere: the feed's times are coarser than its pings"
    )


def _comes_twice(time_ms: int, zone: tzinfo) -> bool:
    """Whether the zone's clock shows this time twice."""
    shown = datetime.fromtimestamp(time_ms / 1000, zone).replace(tzinfo=None)
    first, second = (shown.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


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

FITS_NONE = "by how far buses go, speeds fit no unit that is known (scaled? changed? places that stand still?)"
ALL_ZERO = 'every speed is 0, and buses move: the feed has no speeds (speed.from = "movement" derives them)'
"""The faults of evidence."""

_SECONDS = (4, 30)  # apart: closer is measurement noise, further is another road
_MOVING_KMH = 5
_EVEN = 0.3  # of their mean: speeds that differ more say too little of the speed between (by 0.19 in Austin in 2015)
_BELOW = 0.12
_ABOVE = 0.08  # of the ratio's logarithm
_SPARSE_SECONDS = (30, 130)  # Austin's buses send every 120 s
_SPARSE_BELOW = 0.25
_SPARSE_ABOVE = 0.15


@dataclass(frozen=True, slots=True)
class UnitEvidence:
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
    def fault(self) -> str | None:
        """A clause if there are pairs enough, and they fit no unit that is known here."""
        if self.unit is not None or isnan(self.ratio):
            return None
        return ALL_ZERO if isinf(self.ratio) else FITS_NONE


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
        return replace(whole, named=repr(whole.unit))
    told = next((one for one in (last, first) if one.unit not in (None, configured)), whole)
    return replace(whole, changes=changes, named=factor_in_words(told.fits, configured))


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


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Half of the weight lies below it."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
