"""Which field is the vehicle's, by what its values do: a message's id is another in each ping, a feed's id always one.

The plate is what a budget protects. With a message's id in its place each ping would have a budget of its own, and the
promise for a vehicle would be void, without a refusal. With a route's name, or a word for a missing plate, vehicles
would share one, and what they send in the same second would be a repeat. Where and when plates pinged is public, so a
run may say so; it names no plate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.found_fields import Value
from udp_stream.pings.json import Path

JUDGED_MIN = 50
"""With fewer pings nothing is said."""

UNIQUE_MIN = 0.9
"""Plates for each ping, from which on a plate looks like a message's id."""

SNAPSHOT_MS = 60_000
"""Within a minute a vehicle may have one ping: a poll is of that kind."""

SHARE_MAX = 0.1
"""Of all pings, what one of ten plates or more may have; beyond it the plate has to be like the others."""

TIMES_MEDIAN_MAX = 10
"""As many times the pings of the median plate; the busiest of five recorded days had 3.4 times as many."""

PLATES_MIN = 10
"""With fewer plates none has too large a share."""

FAR_KM = 5.0
"""No vehicle is in two places so far apart at one second. In five recorded days of buses there is no such pair."""

FAR_PINGS_MIN = 10
FAR_SHARE_MIN = 0.001
"""Pings in two far places: fewer are stray fixes."""

_KM_PER_DEGREE = 111.2


POLL_MS = 180_000
"""Within which the middle half of a poll's vehicles reported: within 43 s in a poll of 1,708 of Delhi's buses."""

VEHICLE_ID = "vehicle.id"
"""Where plates of GTFS-realtime are from, if no plate is set."""


class Candidate(NamedTuple):
    """A path that may be the plate's. `is_name`: it ends in a name that plates have, and not only in a longer one.

    >>> Candidate(("vehicle", "id"), ["A1", "A2"], True).path
    ('vehicle', 'id')
    """

    path: Path
    values: Sequence[Value]
    is_name: bool


def plate_warning(pings: int, plates: int, span_ms: int, field: str = "source.plate") -> str | None:
    """A sentence if this number of plates in this number of pings is not what vehicles give; None if they may be.

    `span_ms`: from the first ping to the last. `field`: where the plate is from.

    >>> plate_warning(5000, 5000, 1_800_000)
    "5,000 pings of 5,000 plates: is source.plate the vehicle's, and not the message's? (One poll alone looks so, too.)"
    >>> plate_warning(5000, 208, 1_800_000), plate_warning(5000, 5000, 30_000)
    (None, None)
    """
    if pings < JUDGED_MIN or not _are_per_ping(pings, plates, span_ms):
        return None
    return (
        f"{pings:,} pings of {plates:,} plates: is {field} the vehicle's, and not the message's? "
        "(One poll alone looks so, too.)"
    )


def may_be_one_poll(time_ms: NDArray[np.int64]) -> bool:
    """Whether the middle half of the times is as near together as in one poll, in which some vehicles stand for hours.

    >>> may_be_one_poll(np.array([0, 7_000_000, 7_030_000, 7_060_000, 7_090_000, 9**18]))
    True
    """
    quarter, three = np.quantile(time_ms, (0.25, 0.75))
    return bool(three - quarter <= POLL_MS)


def shared_plate_warning(
    plate: NDArray[np.integer], time_ms: NDArray[np.int64], lon: NDArray[np.float64], lat: NDArray[np.float64]
) -> str | None:
    """A sentence if one plate seems to stand for several vehicles; None if none does. `plate` numbers the plates.

    >>> nobody = np.where(np.arange(400) % 4, np.arange(400) % 40, 0)
    >>> shared_plate_warning(nobody, np.arange(400) * 1000, np.zeros(400), np.zeros(400))  # doctest: +ELLIPSIS
    'one plate has 100 of 400 pings, the median plate has 10: is it a word for a missing plate? Vehicles that share ...'
    >>> shared_plate_warning(np.arange(400) % 40, np.arange(400) * 1000, np.zeros(400), np.zeros(400))
    """
    if plate.size < JUDGED_MIN:
        return None
    of_each = np.bincount(plate)
    most, median = int(of_each.max()), int(np.median(of_each[of_each > 0]))
    if np.count_nonzero(of_each) >= PLATES_MIN and most >= max(SHARE_MAX * plate.size, TIMES_MEDIAN_MAX * median):
        return (
            f"one plate has {most:,} of {plate.size:,} pings, the median plate has {median:,}: is it a word for a "
            "missing plate? Vehicles that share a plate share its budget"
        )
    far = _in_two_places(plate, time_ms, lon, lat)
    if far < max(FAR_PINGS_MIN, FAR_SHARE_MIN * plate.size):
        return None
    return (
        f"{far:,} of {plate.size:,} pings are {FAR_KM:g} km or more from another of the same plate and second: is "
        "source.plate the vehicle's, and not a route's? Vehicles that share a plate share its budget"
    )


def _in_two_places(
    plate: NDArray[np.integer], time_ms: NDArray[np.int64], lon: NDArray[np.float64], lat: NDArray[np.float64]
) -> int:
    """How many pings are far from the one before them that has the same plate and second."""
    order = np.lexsort((time_ms, plate))
    together = (np.diff(plate[order].astype(np.int64)) == 0) & (np.diff(time_ms[order] // 1000) == 0)
    north = np.diff(lat[order]) * _KM_PER_DEGREE
    east = np.diff(lon[order]) * _KM_PER_DEGREE * np.cos(np.radians(lat[order][1:]))
    return int((together & (np.hypot(north, east) >= FAR_KM)).sum())


def _are_per_ping(pings: int, plates: int, span_ms: int) -> bool:
    return span_ms > SNAPSHOT_MS and plates > UNIQUE_MIN * pings


def likeliest_plate(candidates: Sequence[Candidate], times: Sequence[Value], span_ms: int) -> Path | None:
    """The first candidate that is no id of each message, and not of all of them; the first of all if there is no such.

    `candidates` come in the order of their names; `times` are the values at the path of the time.

    >>> ids = Candidate(("id",), [f"m{at}" for at in range(90)], True)
    >>> buses = Candidate(("device",), [f"b{at % 9}" for at in range(90)], True)
    >>> likeliest_plate([ids, buses], range(90), 900_000), likeliest_plate([ids, buses], range(90), 9_000)
    (('device',), ('id',))
    """
    if not candidates:
        return None
    first = candidates[0]
    good = [one for one in candidates if one.is_name >= first.is_name and _may_be_vehicles(one, times, span_ms)]
    return good[0].path if good else first.path


def _may_be_vehicles(one: Candidate, times: Sequence[Value], span_ms: int) -> bool:
    pings, plates = len(one.values), len(set(one.values))
    if pings < JUDGED_MIN:
        return True
    if plates == 1:  # one vehicle's pings differ in their times, those of many do not
        return len(set(times)) > UNIQUE_MIN * len(times)
    return not _are_per_ping(pings, plates, span_ms)
