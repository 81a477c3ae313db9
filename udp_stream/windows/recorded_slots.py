"""A whole recording, slot by slot: for experiments and plans, which look at all of it at once. Lateness does not
matter here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from udp_stream.windows.grid import SlotGrid
from udp_stream.windows.slot_tables import SlotCounts, SlotPings, SlotValues, tabulate


def slots_of(
    plates: Sequence[bytes],
    plate: NDArray[np.integer],
    time_ms: NDArray[np.int64],
    cell: NDArray[np.uint64],
    speed: NDArray[np.integer],
    grid: SlotGrid,
) -> Iterator[tuple[SlotCounts, SlotValues]]:
    """Pings as columns of one length, in any order, as the tables of their slots, in the order of the slots.

    `plate` indexes `plates`, `time_ms` is Unix ms, `speed` is in quanta.

    >>> from zoneinfo import ZoneInfo
    >>> time_ms, cell = np.array([3_600_000, 5, 9]), np.full(3, 7, np.uint64)
    >>> slots = slots_of([b"A1"], np.zeros(3, int), time_ms, cell, np.array([1, 2, 3]), SlotGrid(3600, ZoneInfo("UTC")))
    >>> [(counts.start_ms, values.speed.tolist()) for counts, values in slots]
    [(0, [2, 3]), (3600000, [1])]
    """
    starts, ends = grid.place(time_ms)
    order = np.argsort(starts, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(starts[order]) > 0)) if order.size else order
    for here in np.split(order, first[1:]) if order.size else ():
        start = int(starts[here[0]])
        yield tabulate(
            SlotPings(
                start_ms=start,
                end_ms=int(ends[here[0]]),
                plates=tuple(plates),
                plate=plate[here].astype(np.uint32),
                time=(time_ms[here] - start).astype(np.uint32),
                cell=cell[here],
                speed=speed[here].astype(np.int32),
            )
        )
