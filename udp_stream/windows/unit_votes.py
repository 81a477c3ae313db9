"""Which plates of a slot move as fast as they report in another unit than the one set: one vote a plate. Secret.

No verb asks it yet: `mechanisms/above.py` says what an answer costs, and what no price can buy.

Privacy unit: license plate. Neighbours: swap-values. Which plates are asked follows from times and places, which are
public; whether one votes, from its own speeds besides. So who is asked is the same for neighbours, and the number of
votes differs by at most one.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH
from udp_stream.windows.movement import Places, km_between

PAIRS_LEAST = 3
"""Of a plate that is asked, where it moved from one ping to the next."""

_SECONDS, _KMH = (4, 130), (5, 120)  # of such a pair: farther apart it went round corners, faster it jumped
_ALIKE = 0.2  # mph and knots, 0.14 apart in the logarithm, are not told apart


def unit_votes(
    plate: NDArray[np.integer],
    time: NDArray[np.integer],
    lat: Places,
    lon: Places,
    speed: NDArray[np.integer],
    unit: str,
    plates: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each of so many plates, whether it is asked, and whether it votes. Columns are a slot's pings, `time` in ms
    after its start, `speed` in quanta as read in this unit, without the clamp."""
    others = [kmh for kmh in KMH_PER_UNIT.values() if abs(log(kmh / KMH_PER_UNIT[unit])) > _ALIKE]
    place = (lat.astype(np.int64) << 32) + lon  # any order that follows from places
    plate_time = plate.astype(np.uint64) << np.uint64(32) | time.astype(np.uint64)
    # Of pings of one plate, time and place the slowest counts: which one is the plate's own business.
    rows = np.lexsort((speed, place, plate_time))
    rows = rows[np.diff(plate_time[rows], prepend=np.uint64(2**64 - 1)) != 0]
    before, after = rows[:-1], rows[1:]
    seconds = (time[after].astype(np.int64) - time[before]) / 1000
    km = km_between(lat[before], lon[before], lat[after], lon[after])
    is_pair = (plate[before] == plate[after]) & (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
    is_pair &= (km * 3600 > _KMH[0] * seconds) & (km * 3600 < _KMH[1] * seconds)
    of, said = plate[after][is_pair], (speed[before].astype(np.int64) + speed[after]) / 2 / QUANTA_PER_KMH
    gone_km = np.bincount(of, km[is_pair], plates)
    said_km = np.bincount(of, (said * seconds / 3600)[is_pair], plates)
    asked = np.bincount(of, minlength=plates) >= PAIRS_LEAST
    ratio = np.log(gone_km[asked] / np.maximum(said_km[asked], 1e-9))
    off = np.abs(ratio - np.array([[log(kmh / KMH_PER_UNIT[unit])] for kmh in others]))
    votes = np.zeros(plates, np.bool_)
    votes[asked] = off.min(axis=0) < np.abs(ratio)
    return asked, votes
