"""Whether pings follow each other as those of a single vehicle do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from math import nan

import numpy as np

from udp_stream.base.arrays import Flags, Floats
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.pings.decode import Pings
from udp_stream.pings.mapping import SECONDS_AGO, Path
from udp_stream.pings.repairs import Value, is_missing, numbers_of
from udp_stream.pings.times import NO_TIME, TimeValue, read_times

JUMP_KMH = 200
_METRES_PER_DEGREE = 111_195

Track = tuple[Flags, Floats, Floats, Floats]
"""Which records have a place and a time, and their seconds, longitude and latitude."""


def track_of(
    records: Sequence[Mapping[Path, Value]],
    paths: Mapping[str, Path],
    times: Sequence[Value],
    time_format: str,
) -> Track | None:
    """The track of records with these times; None if they have no time or no place of their own."""
    if time_format == SECONDS_AGO or not {"longitude", "latitude"} <= {*paths}:
        return None
    if not any(time is not None for time in times):  # of their messages
        return None
    stamps: list[TimeValue] = ["" if time is None or time is True else time for time in times]
    time_ms, status = read_times(stamps, time_format, UTC)
    places = [
        [numbers_of([record.get(paths[field])]) for record in records]
        for field in ("longitude", "latitude")
    ]
    lon, lat = (np.array([one[0] if one else nan for one in column]) for column in places)
    return (status != NO_TIME) & np.isfinite(lon) & np.isfinite(lat), time_ms / 1000, lon, lat


PINGS_JUDGED_MIN = 50
PLATES_PER_PING = 0.9
SNAPSHOT_MS = 60_000
POLL_MS = 180_000
"""Fewer pings say nothing of a plate; more plates for each ping look like ids of messages, unless
all are of a minute. They may be a poll's if the middle half of the times lies within three (43 s in
one of 1,708 of Delhi's buses)."""

_FOLLOWING_MIN = 10
_FOLLOWING_SHARE = 0.95


def follow(values: Sequence[Value], track: Track | None) -> bool | None:
    """Whether pings of one value follow each other no faster than a bus goes; None if too few
    values come again."""
    if track is None:
        return None
    good = track[0] & np.array([not is_missing(value) for value in values])
    seconds, lon, lat = (column[good] for column in track[1:])
    _, code = np.unique(
        [str(value) for value, is_good in zip(values, good, strict=True) if is_good],
        return_inverse=True,
    )
    order = np.lexsort((seconds, code))
    same = np.diff(code[order]) == 0
    if same.sum() < _FOLLOWING_MIN or code.max() == 0:
        return None
    apart = np.diff(seconds[order])[same]
    km = steps_km(lon[order], lat[order])[same]
    slack = 60 if (seconds % 60 == 0).all() else 5  # the clock's own steps
    return bool((km * 3600 <= JUMP_KMH * (apart + slack)).mean() >= _FOLLOWING_SHARE)


def steps_km(lon: Floats, lat: Floats) -> Floats:
    """The distance of each place from the place before, km."""
    east = np.diff(lon) * np.cos(np.radians(lat[:-1]))
    return np.hypot(np.diff(lat), east) * _METRES_PER_DEGREE / 1000


def as_pings(track: Track, plates: Sequence[Value], speeds: Sequence[Value]) -> Pings:
    """Records with a place, a time and a speed, in km/h, as columns."""
    read = [numbers_of([speed]) for speed in speeds]
    good = track[0] & np.array([bool(one) for one in read])
    rows = np.flatnonzero(good).tolist()
    _, plate = np.unique([str(plates[row]) for row in rows], return_inverse=True)
    seconds, lon, lat = (column[good] for column in track[1:])
    kmh = np.clip([read[row][0] for row in rows], 0, 1000)
    quanta = np.rint(kmh * QUANTA_PER_KMH).astype(np.int32)
    nowhere = np.zeros(len(rows), np.int32)
    time_ms = (seconds * 1000).astype(np.int64)
    return Pings((), plate.astype(np.uint32), time_ms, lat, lon, quanta, nowhere, nowhere)
