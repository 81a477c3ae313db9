"""Pseudo-users: the samples of a HAT grouped into arrays, from counts alone (arXiv 2401.15906, Section III-A).

With a cap m, user l gives its first min(m_l, m) samples. BestFit packs whole users into arrays of length m, so that a
user touches one array; WrapAround pours the users one after another and keeps the full arrays, so that a user touches
at most two. Users are taken in non-increasing order of their counts, ties in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class HatCounts:
    """How many samples each user has in one HAT, and what follows from that.

    `by_user` holds positive integers in the users' canonical order. Public under swap-values, hence free to use.
    """

    def __init__(self, by_user: Integers) -> None:
        """Take the counts; raises ValueError unless there is at least one user and each has a sample."""
        if by_user.size == 0 or by_user.min() < 1:
            raise ValueError("expected at least one user, each with at least one sample")
        self.by_user = by_user
        self.users = int(by_user.size)
        self.total = int(by_user.sum())
        self.largest = int(by_user.max())

    @cached_property
    def order(self) -> Integers:
        """Users by non-increasing count, ties as they came."""
        return np.argsort(-self.by_user, kind="stable")

    @cached_property
    def descending(self) -> Integers:
        """The counts in that order."""
        return self.by_user.take(self.order)

    @cached_property
    def median(self) -> int:
        """The largest value that at least half of the users reach: the papers' med, exactly ceil(L/2) of them."""
        return int(self.descending[(self.users + 1) // 2 - 1])

    def kept(self, cap: int) -> int:
        """How many samples remain when every user gives at most `cap`."""
        return int(np.minimum(self.by_user, cap).sum())

    @cached_property
    def kept_at_every_count(self) -> Integers:
        """`kept(m)` for m each entry of `descending`."""
        ascending = self.descending[::-1]
        below = np.concatenate(([0], np.cumsum(ascending)[:-1]))
        kept: Integers = (below + ascending * np.arange(self.users, 0, -1))[::-1]
        return kept

    @cached_property
    def place_of_sample(self) -> NDArray[np.int32]:
        """For each sample of the HAT (user by user), how many of its user's samples come before it."""
        starts = (np.cumsum(self.by_user) - self.by_user).astype(np.int32)
        return np.arange(self.total, dtype=np.int32) - np.repeat(starts, self.by_user)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A grouping: `of_user[l]` is the array that user l goes into whole, `filled[i]` how many samples array i holds."""

    cap: int
    of_user: Integers
    filled: Integers

    @property
    def count(self) -> int:
        """The number of non-empty arrays, the papers' K-bar."""
        return int(self.filled.size)


def best_fit(counts: HatCounts, cap: int) -> Arrays:
    """Every user whole into the fullest array with room for it, lowest index on ties; O(L log L).

    >>> best_fit(HatCounts(np.array([5, 2, 1, 4, 2])), cap=4).of_user
    array([0, 2, 3, 1, 2])

    Source: arXiv 2401.15906, Section III-A 2. Arrays wait in heaps by their free room (at most `cap` of them), so
    the fullest array that fits is the first heap at or above the user's size.
    """
    sizes = np.minimum(counts.descending, cap)
    smallest = int(sizes[-1])
    # The first users leave no room that anybody could use: each has an array of its own.
    alone = int(np.searchsorted(-sizes, smallest - cap - 1, side="right"))
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
    of_user = np.empty(counts.users, dtype=np.int64)
    of_user[counts.order] = of_sorted
    return Arrays(cap, of_user, np.array(filled, dtype=np.int64))


def wrap_around_count(counts: HatCounts, cap: int) -> int:
    """K, the number of full arrays under WrapAround: floor(sum min(m_l, cap) / cap)."""
    return counts.kept(cap) // cap


def wrap_around_positions(counts: HatCounts, cap: int) -> Integers:
    """Which samples fill the K arrays, in order: indices into the HAT's samples (user by user), K * cap of them.

    Array i holds the positions i * cap to (i + 1) * cap of the result. Source: arXiv 2401.15906, Section III-A 1.
    """
    starts = np.cumsum(counts.by_user) - counts.by_user
    sizes = np.minimum(counts.descending, cap)
    used = wrap_around_count(counts, cap) * cap
    first = np.repeat(starts.take(counts.order) - (np.cumsum(sizes) - sizes), sizes)[:used]
    return first + np.arange(used)


def wrap_around_given(counts: HatCounts, cap: int) -> Integers:
    """How many of each user's samples are among those K * cap: always its first ones, as pouring stops once.

    >>> wrap_around_given(HatCounts(np.array([2, 5, 1])), cap=3).tolist()
    [2, 3, 1]
    >>> wrap_around_given(HatCounts(np.array([2, 5, 2])), cap=3).tolist()
    [2, 3, 1]
    """
    sizes = np.minimum(counts.descending, cap)
    poured_before = np.cumsum(sizes) - sizes
    given = np.empty(counts.users, dtype=np.int64)
    given[counts.order] = np.clip(wrap_around_count(counts, cap) * cap - poured_before, 0, sizes)
    return given


def first_of_each(counts: HatCounts, given: Integers) -> NDArray[np.bool_]:
    """Which of the HAT's samples (user by user) are among their user's first `given[user]`."""
    kept: NDArray[np.bool_] = counts.place_of_sample < np.repeat(given, counts.by_user)
    return kept


def within_cap(counts: HatCounts, cap: int) -> NDArray[np.bool_]:
    """Which of the HAT's samples (user by user) are among their user's first `cap`."""
    kept: NDArray[np.bool_] = counts.place_of_sample < cap
    return kept
