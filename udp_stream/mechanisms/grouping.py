"""Pseudo-users: the samples of a HAT grouped into arrays, from counts alone (arXiv 2401.15906, Section III-A).

The papers' *user* is a plate. With a cap m, plate l gives its first min(m_l, m) samples. BestFit packs whole plates
into arrays of length m, so that a plate touches one array; WrapAround pours the plates one after another and keeps the
full arrays, so that a plate touches at most two. Plates are taken in non-increasing order of their counts, ties in the
order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class SamplesPerPlate:
    """How many samples each plate has in one HAT, and what follows from that.

    `by_plate` holds positive integers in the plates' canonical order. Public under swap-values, hence free to use.

    >>> counts = SamplesPerPlate(np.array([5, 2, 9]))
    >>> counts.plates, counts.total, counts.largest, counts.median, counts.kept(4)
    (3, 16, 9, 5, 10)
    """

    def __init__(self, by_plate: Integers) -> None:
        """Take the counts; raises ValueError unless there is at least one plate and each has a sample."""
        if by_plate.size == 0 or by_plate.min() < 1:
            raise ValueError("expected at least one plate, each with at least one sample")
        self.by_plate = by_plate
        self.plates = int(by_plate.size)
        self.total = int(by_plate.sum())
        self.largest = int(by_plate.max())

    @cached_property
    def order(self) -> Integers:
        """Plates by non-increasing count, ties as they came."""
        return (-self.by_plate).argsort(kind="stable")

    @cached_property
    def descending(self) -> Integers:
        """The counts in that order."""
        return self.by_plate.take(self.order)

    @cached_property
    def median(self) -> int:
        """The largest value that at least half of the plates reach: the papers' med, exactly ceil(L/2) of them."""
        return int(self.descending[(self.plates + 1) // 2 - 1])

    def kept(self, cap: int) -> int:
        """How many samples remain when every plate gives at most `cap`."""
        return int(np.minimum(self.by_plate, cap).sum())

    @cached_property
    def kept_at_every_count(self) -> Integers:
        """`kept(m)` for m each entry of `descending`."""
        ascending = self.descending[::-1]
        below = ascending.cumsum() - ascending
        kept: Integers = (below + ascending * np.arange(self.plates, 0, -1))[::-1]
        return kept

    def errors_at_every_count(self, noise: float) -> NDArray[np.float64]:
        """E(m) = 1 - G/M + m noise / G for m each entry of `descending`, where caps leave G of the M samples.

        The worst case of what is dropped, plus noise whose expected size is m `noise` (arXiv 2405.06261).
        """
        kept = self.kept_at_every_count
        errors: NDArray[np.float64] = 1 - kept / self.total + self.descending * noise / kept
        return errors

    @cached_property
    def place_of_sample(self) -> NDArray[np.int32]:
        """For each sample of the HAT (plate by plate), how many of its plate's samples come before it."""
        # 32 bits hold it: a HAT has at most 2**28 samples (`slot_tables.PINGS_MAX`).
        starts = (np.cumsum(self.by_plate) - self.by_plate).astype(np.int32)
        return np.arange(self.total, dtype=np.int32) - np.repeat(starts, self.by_plate)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A grouping: plate l goes whole into array `of_plate[l]`; array i holds `filled[i]` samples.

    >>> best_fit(SamplesPerPlate(np.array([3, 2, 1])), cap=3).filled.tolist()  # the second array holds two plates
    [3, 3]
    """

    cap: int
    of_plate: Integers
    filled: Integers

    @property
    def count(self) -> int:
        """The number of non-empty arrays, the papers' K-bar."""
        return int(self.filled.size)


def best_fit(counts: SamplesPerPlate, cap: int) -> Arrays:
    """Every plate whole into the fullest array with room for it, lowest index on ties; O(L log L).

    Source: arXiv 2401.15906, Section III-A 2. Arrays wait in heaps by their free room (at most `cap` of them), so
    the fullest array that fits is the first heap at or above the plate's size.
    """
    sizes = np.minimum(counts.descending, cap)
    smallest = int(sizes[-1])
    # The first plates leave no room that another could use: each has an array of its own.
    alone = int((-sizes).searchsorted(smallest - cap - 1, side="right"))
    of_sorted = list(range(alone))
    filled = sizes[:alone].tolist()
    rooms: list[int] = []
    waiting: dict[int, list[int]] = {}
    for size in sizes[alone:].tolist():
        at = bisect_left(rooms, size)
        if at == len(rooms):
            array, room = len(filled), cap
            filled.append(0)
        else:
            room = rooms[at]
            heap = waiting[room]
            array = heappop(heap)
            if not heap:
                del rooms[at], waiting[room]
        of_sorted.append(array)
        filled[array] += size
        room -= size
        if room >= smallest:
            if room not in waiting:
                waiting[room] = []
                insort(rooms, room)
            heappush(waiting[room], array)
    of_plate = np.empty(counts.plates, dtype=np.int64)
    of_plate[counts.order] = of_sorted
    return Arrays(cap, of_plate, np.array(filled, dtype=np.int64))


def wrap_around_count(counts: SamplesPerPlate, cap: int) -> int:
    """K, the number of full arrays under WrapAround: floor(sum min(m_l, cap) / cap)."""
    return counts.kept(cap) // cap


def wrap_around_positions(counts: SamplesPerPlate, cap: int) -> Integers:
    """Which samples fill the K arrays, in order: indices into the HAT's samples (plate by plate), K * cap of them.

    Array i holds the positions i * cap to (i + 1) * cap of the result. Source: arXiv 2401.15906, Section III-A 1.
    """
    starts = np.cumsum(counts.by_plate) - counts.by_plate
    sizes = np.minimum(counts.descending, cap)
    used = wrap_around_count(counts, cap) * cap
    first = np.repeat(starts.take(counts.order) - (np.cumsum(sizes) - sizes), sizes)[:used]
    return first + np.arange(used)


def wrap_around_given(counts: SamplesPerPlate, cap: int) -> Integers:
    """How many of each plate's samples are among those K * cap: always its first ones, as pouring stops once."""
    sizes = np.minimum(counts.descending, cap)
    poured_before = np.cumsum(sizes) - sizes
    given = np.empty(counts.plates, dtype=np.int64)
    given[counts.order] = np.clip(wrap_around_count(counts, cap) * cap - poured_before, 0, sizes)
    return given


def first_samples(counts: SamplesPerPlate, given: Integers) -> NDArray[np.bool_]:
    """Which of the HAT's samples (plate by plate) are among their plate's first `given[plate]`."""
    kept: NDArray[np.bool_] = counts.place_of_sample < np.repeat(given, counts.by_plate)
    return kept


def within_cap(counts: SamplesPerPlate, cap: int) -> NDArray[np.bool_]:
    """Which of the HAT's samples (plate by plate) are among their plate's first `cap`."""
    kept: NDArray[np.bool_] = counts.place_of_sample < cap
    return kept
