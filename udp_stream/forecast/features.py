"""What counts tell of speeds: features of a slot, for each plate in a HAT and for each HAT.

Pings come at regular times, so a plate's pings in a HAT are its time there, and time is way / speed. For the time a
feature is a ratio of counts, or its logarithm, so that feeds of 10 s and of 120 s look alike. Times are measured in R,
the upper quartile of the plates' pings in the slot: what a bus reports that drives all of it. For the way features say
which neighbouring HATs the plate is in, and how these lie to each other. Neither a position nor an hour is a feature:
with them a model learns cells by heart.

Everything here is a function of `SlotCounts`, which are public under swap-values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from udp_stream.windows.grid import neighbours_among
from udp_stream.windows.slot_tables import SlotCounts

Floats = NDArray[np.float64]

PER_ROW = 12
"""Features of a plate in a HAT."""

PER_HAT = 6
"""Features of a HAT."""


@dataclass(frozen=True, slots=True)
class SlotFeatures:
    """One line for each row of `SlotCounts` (a plate in a HAT), and one for each HAT.

    `by_row`, with m pings of the plate in the HAT, tot in the slot, in K HATs; M pings and n plates in the HAT:
    0 log(m/R), 1 m/tot, 2 log(K R/tot), 3 how many neighbouring HATs the plate visited, 4 log(M/(n R)), 5 log n,
    6 the neighbours' log(M/(n R)), 7 log of the largest other plate's pings over R, 8 log of the plate's mean pings
    in its other HATs over R, 9 to 11 how many pairs of those neighbours of 3 lie 60, 120 and 180 degrees apart.

    `by_hat`: 0 log(M/(n R)), then the means over the HAT's pings of 2, 1 and 3 above, 4 the neighbours'
    log(M/(n R)), 5 log n.

    >>> SlotFeatures(by_row=np.zeros((2, PER_ROW)), by_hat=np.zeros((1, PER_HAT))).by_row.shape
    (2, 12)
    """

    by_row: Floats
    by_hat: Floats


def features_of(counts: SlotCounts) -> SlotFeatures:
    """The features of a slot: arrays of (rows, 12) and (HATs, 6).

    >>> rows = dict(hat_rows=np.array([0, 2]), plate=np.array([0, 1]), count=np.array([30, 10]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([609162003746914303], np.uint64), **rows)
    >>> features = features_of(counts)
    >>> np.exp(features.by_row[:, 0]).round(3).tolist(), features.by_row[:, 1].tolist()  # R is 25 here
    ([1.2, 0.4], [1.0, 1.0])
    >>> features.by_hat.shape
    (1, 6)
    """
    if not counts.plate.size:
        return SlotFeatures(np.zeros((0, PER_ROW)), np.zeros((0, PER_HAT)))
    hats, plates = counts.cells.size, len(counts.plates)
    hat, plate, pings = _hat_of_row(counts), counts.plate, counts.count.astype(np.float64)
    total = np.bincount(plate, weights=pings, minlength=plates)
    visits = np.bincount(plate, minlength=plates).astype(np.float64)
    usual = float(np.percentile(total[total > 0], 75))
    in_hat = _sums(hat, pings, hats)
    in_hat_plates = np.diff(counts.hat_rows).astype(np.float64)
    neighbours = neighbours_among(counts.cells)
    dwell, around = _dwell(in_hat, in_hat_plates, neighbours, usual)
    own, elsewhere = np.log(pings / usual), total[plate] - pings
    visited = _visited_around(counts, hat, neighbours)
    others = np.maximum(visits[plate] - 1, 1)
    by_row = np.column_stack(
        [
            own,
            pings / total[plate],
            np.log(visits[plate] * usual / total[plate]),
            visited.sum(axis=1),
            dwell[hat],
            np.log(in_hat_plates)[hat],
            around[hat],
            _largest_other(counts, hat, pings, usual),
            np.where(elsewhere > 0, np.log(np.maximum(elsewhere, 1) / others / usual), own),
            _pairs_apart(visited),
        ]
    )
    means = [_sums(hat, pings * by_row[:, at], hats) / in_hat for at in (2, 1, 3)]
    return SlotFeatures(by_row, np.column_stack([dwell, *means, around, np.log(in_hat_plates)]))


def _sums(hat: NDArray[np.int64], values: Floats, hats: int) -> Floats:
    sums: Floats = np.bincount(hat, weights=values, minlength=hats).astype(np.float64)
    return sums


def _hat_of_row(counts: SlotCounts) -> NDArray[np.int64]:
    return np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))


def _dwell(in_hat: Floats, plates: Floats, neighbours: NDArray[np.int64], usual: float) -> tuple[Floats, Floats]:
    """Log pings per plate over R, of each HAT and of its neighbours together; its own where it has none."""
    there = neighbours >= 0
    pings = np.where(there, in_hat[neighbours], 0).sum(axis=1)
    visitors = np.where(there, plates[neighbours], 0).sum(axis=1)
    own = np.log(in_hat / (plates * usual))
    return own, np.where(pings > 0, np.log(np.maximum(pings, 1) / (np.maximum(visitors, 1) * usual)), own)


def _visited_around(counts: SlotCounts, hat: NDArray[np.int64], neighbours: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the HAT's six neighbours the row's plate is in, in the order around the HAT: (rows, 6)."""
    many = len(counts.plates)
    known = np.sort(hat * many + counts.plate, kind="stable")  # rows come in this order: next to nothing to sort
    near = neighbours[hat]
    # -1 finds nothing: no known number is negative.
    wanted = np.where(near >= 0, near * many + counts.plate[:, None], -1)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    visited: NDArray[np.bool_] = known[at] == wanted
    return visited


def _pairs_apart(visited: NDArray[np.bool_]) -> Floats:
    """How many pairs of the visited neighbours lie one, two and three places apart around the HAT: (rows, 3).

    They tell how long the plate's way through the HAT is: across all of it between neighbours that face each other, and
    across a corner between those that lie next to each other.

    >>> ahead, beside = [1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0]
    >>> _pairs_apart(np.array([ahead, beside], dtype=bool)).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    pairs: Floats = _pairs_of_all()[np.packbits(visited, axis=1, bitorder="little")[:, 0]]
    return pairs


@cache
def _pairs_of_all() -> Floats:
    """The pairs of each of the 64 sets of neighbours, by the number whose bits are the set."""
    visited = np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1, bitorder="little")[:, :6].astype(bool)
    pairs = [(visited & np.roll(visited, places, axis=1)).sum(axis=1) for places in (1, 2, 3)]
    pairs[2] //= 2  # each of those was found from both of its ends
    return np.column_stack(pairs).astype(np.float64)


def _largest_other(counts: SlotCounts, hat: NDArray[np.int64], pings: Floats, usual: float) -> Floats:
    """Log of the most pings of any other plate in the HAT, over R; the plate's own where it is alone."""
    order = np.lexsort((pings, hat))
    last = counts.hat_rows[1:] - 1
    largest = pings[order[last]]
    second = np.where(np.diff(counts.hat_rows) > 1, pings[order[np.maximum(last - 1, 0)]], largest)
    is_largest = np.zeros(pings.size, dtype=bool)
    is_largest[order[last]] = True
    other: Floats = np.log(np.where(is_largest, second[hat], largest[hat]) / usual)
    return other
