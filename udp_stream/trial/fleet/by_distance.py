"""The same buses, reporting by distance: a ping each time a bus has driven a given distance, and none while it stands.

Some feeds do so. Counts then tell how far a bus drove in a cell, and no longer how long it stayed, so what a forecast
takes from counts of a feed that reports by time is wrong there.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from udp_stream.trial.fleet.fleet import FleetColumns


def by_distance(dense: FleetColumns, metres: float) -> FleetColumns:
    """Of a fleet that pings about every second, the pings that it would send after each `metres` driven.

    >>> column = np.array([0.0, 0.0, 0.0, 0.0])
    >>> dense = FleetColumns(np.zeros(4, int), np.arange(4) * 1000, column, column, np.array([36.0, 0.0, 36.0, 36.0]))
    >>> by_distance(dense, metres=10).time_ms.tolist()
    [0, 2000, 3000]
    """
    order = np.lexsort((dense.time_ms, dense.plate))
    plate, seconds = dense.plate[order], dense.time_ms[order] / 1000
    is_first = np.diff(plate, prepend=-1) != 0
    step_m = dense.speed_kmh[order] / 3.6 * np.where(is_first, 0.0, np.diff(seconds, prepend=0.0))
    driven = np.cumsum(step_m)
    driven -= driven[is_first][np.cumsum(is_first) - 1]
    marks = np.floor(driven / metres + 1e-9)
    kept = np.sort(order[is_first | (np.diff(marks, prepend=0.0) > 0)])
    return FleetColumns(*(getattr(dense, one.name)[kept] for one in fields(FleetColumns)))
