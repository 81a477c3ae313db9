"""Worst-case errors of means: of a cap in one HAT, and of many HATs while plates are suppressed. Counts only.

The worst case over all speeds in [0, U] of the bias of the mean of the samples that a rule keeps, plus the expected
absolute noise for one plate's influence on it; as shares of U (arXiv 2405.06261 and the slides that go with it): with G
of M samples kept, at most G* of one plate,

    E = 1 - G / M + G* / (G eps).

A cap m keeps G_l = min(m_l, m) of each plate, so that G* = m; suppression keeps all of a plate's samples or none.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.units import NANO

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def hat_error(total: int, kept: int, largest: int, epsilon: float) -> float:
    """E as a share of U: `kept` of `total` samples, at most `largest` of one plate; infinite if nothing is kept.

    >>> hat_error(total=20, kept=15, largest=3, epsilon=0.5)
    0.65
    """
    return (1 - kept / total) + largest / (kept * epsilon) if kept else inf


def epsilon_limits(counts: SamplesPerPlate) -> tuple[float, float]:
    """(eps_min, eps_max): m_min is a best cap exactly for eps <= eps_min, m_max exactly for eps >= eps_max.

    E(m_min) <= E(m) means eps <= M (m/G(m) - 1/L) / (G(m) - L m_min), and E(m_max) <= E(m) means
    eps >= M (m_max/M - m/G(m)) / (M - G(m)); both limits are reached at one of the counts, because E is concave between
    two of them. (inf, 0) if all counts are equal. The slides state eps_min = m_min / (L M) and
    eps_max = (M / (L m_min))^2: sufficient, but far off. In fact 1 / (L (L - 1)) <= eps_min and eps_max <= 1: from
    eps = 1 on, capping never helps in the worst case.

    >>> epsilon_limits(SamplesPerPlate(np.array([9, 3, 2, 2])))
    (0.3999999999999999, 0.7000000000000001)
    """
    if counts.largest == int(counts.descending[-1]):
        return inf, 0.0
    caps, at = np.unique(counts.descending, return_index=True)
    kept = counts.kept_at_every_count[at]
    least = counts.total * (caps[1:] / kept[1:] - 1 / counts.plates) / (kept[1:] - kept[0])
    most = counts.total * (caps[-1] / counts.total - caps[:-1] / kept[:-1]) / (counts.total - kept[:-1])
    return float(least.min()), float(most.max())


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Who is in which HAT with how many samples, as in `slots.SlotCounts`: HAT h has rows hat_rows[h]..hat_rows[h+1].

    Row r says that plate `plate[r]`, in 0..plates-1, has `count[r]` >= 1 samples; no plate twice in one HAT, no HAT
    without rows. Raises ValueError where this can be seen not to hold.

    >>> pairs = Occupancy(np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([3, 1, 5]), plates=2)
    >>> pairs.hats, pairs.hat_of_row().tolist()
    (2, [0, 0, 1])
    """

    hat_rows: Integers
    plate: Integers
    count: Integers
    plates: int

    def __post_init__(self) -> None:
        """Check the shape."""
        rows = self.plate.size
        if self.count.size != rows or self.hat_rows.size < 1 or self.hat_rows[0] != 0 or self.hat_rows[-1] != rows:
            raise ValueError("expected hat_rows from 0 to the number of rows, and one plate and count per row")
        if rows and (np.diff(self.hat_rows).min() < 1 or self.count.min() < 1):
            raise ValueError("expected at least one row per HAT and at least one sample per row")
        if rows and not 0 <= self.plate.min() <= self.plate.max() < self.plates:
            raise ValueError(f"expected plates in 0..{self.plates - 1}")

    @property
    def hats(self) -> int:
        """How many HATs there are."""
        return self.hat_rows.size - 1

    def hat_of_row(self) -> Integers:
        """The HAT of each row."""
        return np.repeat(np.arange(self.hats), np.diff(self.hat_rows))


@dataclass(slots=True)
class _Hats:
    """One entry per HAT, as 64-bit integers that Python reads one by one and numpy all at once.

    `total` samples, of which `kept`; `spare` is how many plates may still leave, negative once the HAT is lost; `first`
    and `second` are its two largest kept counts (0 where there is none), at these places of `_Rows.by_count`.
    """

    total: array[int]
    kept: array[int]
    spare: array[int]
    first: array[int]
    second: array[int]
    first_at: list[int]
    second_at: list[int]


@dataclass(slots=True)
class _Rows:
    """One entry per row: its HAT, its count, and whether it is kept; HAT and count once for Python, once for numpy.

    `by_count` lists the rows HAT by HAT, the largest count first.
    """

    hat: list[int]
    count: list[int]
    kept: bytearray
    by_count: list[int]
    hats: Integers
    counts: Integers


class HatErrors:
    """E of every HAT while rows (one plate's samples in one HAT) are suppressed and restored.

    Plain Python, as it goes one row at a time. Constant time per suppression, taken over all of them; `restore` looks
    at the HAT's rows. Rows must be suppressed only while kept, restored only while suppressed.

    A HAT that keeps fewer than `plates_min` plates (or than it ever had, if that is less) is lost: its E is infinite,
    and to suppress more of it costs nothing.

    >>> city = Occupancy(np.array([0, 3]), np.array([0, 1, 2]), np.array([4, 2, 2]), plates=3)
    >>> errors = HatErrors(city, epsilon_nano=10**9)
    >>> before, foreseen = errors.error(0), errors.error_without(0)
    >>> errors.suppress(0)
    >>> before, foreseen, errors.error(0)
    (0.5, 1.0, 1.0)
    """

    def __init__(self, occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> None:
        """Keep all rows; raises ValueError for epsilon_nano < 1 or plates_min < 1."""
        if epsilon_nano < 1:
            raise ValueError(f"expected epsilon_nano >= 1, got {epsilon_nano}")
        if plates_min < 1:
            raise ValueError(f"expected plates_min >= 1, got {plates_min}")
        hat, sizes, count = occupancy.hat_of_row(), np.diff(occupancy.hat_rows), occupancy.count
        self.epsilon = epsilon_nano / NANO
        self.rows_from: list[int] = occupancy.hat_rows.tolist()
        total = array("q", np.diff(np.append(0, np.cumsum(count))[occupancy.hat_rows]).tolist())
        spare = array("q", np.maximum(sizes - plates_min, 0).tolist())
        starts = self.rows_from[:-1]
        self.hats = _Hats(total, total[:], spare, total[:], total[:], starts, starts[:])
        by_count: list[int] = np.lexsort((-count, hat)).tolist()
        self.rows = _Rows(hat.tolist(), count.tolist(), bytearray(b"\1") * count.size, by_count, hat, count)
        for h in range(len(total)):
            self._settle(h)

    def lost(self, hat: int) -> bool:
        """Whether a HAT keeps too few plates."""
        return self.hats.spare[hat] < 0

    def error(self, hat: int) -> float:
        """E of a HAT as it is."""
        if self.lost(hat):
            return inf
        return hat_error(self.hats.total[hat], self.hats.kept[hat], self.hats.first[hat], self.epsilon)

    def error_without(self, row: int) -> float:
        """E of the row's HAT if this kept row were suppressed; -inf if the HAT is lost already."""
        hat, count, hats = self.rows.hat[row], self.rows.count[row], self.hats
        kept, largest = hats.kept[hat] - count, hats.first[hat]
        if count == largest:
            largest = hats.second[hat]
        if hats.spare[hat] <= 0:
            return -inf if hats.spare[hat] else inf
        return (1 - kept / hats.total[hat]) + largest / (kept * self.epsilon)

    def errors_without(self, rows: Integers) -> Floats:
        """`error_without` of many rows, in an array of any shape: the very same doubles."""
        hat, count = self.rows.hats[rows], self.rows.counts[rows]
        total, kept, first, second, spare = (
            np.frombuffer(column, np.int64)[hat]
            for column in (self.hats.total, self.hats.kept, self.hats.first, self.hats.second, self.hats.spare)
        )
        left, largest = kept - count, np.where(count == first, second, first)
        # The 1 only avoids a division by 0: a HAT with nothing left gets its E below.
        shares = (1 - left / total) + largest / (np.maximum(left, 1) * self.epsilon)
        return np.where(spare > 0, shares, np.where(spare < 0, -inf, inf))

    def suppress(self, row: int) -> None:
        """Suppress a kept row."""
        hat, count, hats = self.rows.hat[row], self.rows.count[row], self.hats
        self.rows.kept[row] = 0
        hats.spare[hat] -= 1
        hats.kept[hat] -= count
        if count >= hats.second[hat]:
            self._settle(hat)

    def restore(self, row: int) -> None:
        """Take a suppressed row back."""
        hat = self.rows.hat[row]
        self.rows.kept[row] = 1
        self.hats.spare[hat] += 1
        self.hats.kept[hat] += self.rows.count[row]
        # From the start again: the row may be larger than both marks.
        self.hats.first_at[hat] = self.hats.second_at[hat] = self.rows_from[hat]
        self._settle(hat)

    def _settle(self, hat: int) -> None:
        """Move both marks on to the next kept rows (or the HAT's end), and note their counts."""
        hats, rows, end = self.hats, self.rows, self.rows_from[hat + 1]
        first_at = hats.first_at[hat]
        while first_at < end and not rows.kept[rows.by_count[first_at]]:
            first_at += 1
        second_at = max(hats.second_at[hat], first_at + 1)
        while second_at < end and not rows.kept[rows.by_count[second_at]]:
            second_at += 1
        hats.first_at[hat], hats.second_at[hat] = first_at, second_at
        hats.first[hat] = rows.count[rows.by_count[first_at]] if first_at < end else 0
        hats.second[hat] = rows.count[rows.by_count[second_at]] if second_at < end else 0
