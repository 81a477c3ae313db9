"""Suppression of plates, and worst-case errors of means and variances under it or a cap. Counts
only.

The worst case over all speeds in [0, U] of the bias of the mean of the kept samples, plus the
expected absolute noise; as shares of U (arXiv 2405.06261 and the slides that go with it): with G of
M samples kept, at most G* of a plate,

    E = 1 - G / M + G* / (G eps).

The same of the variance, as a share of U^2 (proven in `mechanisms/variance.py`; the slides exchange
two cases):

    E_var = k (M - k) / M^2 + k' (G - k') / (G^2 eps),    k = min(M - G, floor(M / 2)), k' = min(G*,
    floor(G / 2)).

A HAT's E is the sum over its statistics, each in its own unit as the slides add them: U E + U^2
E_var, taken in units of U (of U^2 where there is no mean). At U = 65 km/h that is nearly the
variance's alone. A cap m keeps G_l = min(m_l,
m) of each plate, so that G* = m; suppression keeps all of a plate's samples or none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NamedTuple

import numpy as np

from udp_stream.arrays import Flags, Floats, Integers
from udp_stream.mechanisms.variance import share_of_pairs
from udp_stream.units import NANO


def hat_error(total: int, kept: int, largest: int, epsilon: float) -> float:
    """Worst-case error E as a share of U: `kept` of `total` samples, at most `largest` of a plate;
    infinite if nothing is kept."""
    return (1 - kept / total) + largest / (kept * epsilon) if kept else inf


def variance_error(total: int, kept: int, largest: int, epsilon: float) -> float:
    """Worst-case error E_var of a variance as a share of U^2; infinite if nothing is kept."""
    return (
        _share_of_pairs(total - kept, total) + _share_of_pairs(largest, kept) / epsilon
        if kept
        else inf
    )


def _share_of_pairs(movable: int, total: int) -> float:
    """Share k (total - k) / total^2 for k = min(movable, floor(total / 2)), as
    `mechanisms/variance.py` has it for arrays."""
    share = min(movable, total // 2) / total
    return share * (1 - share)


class Nanos(NamedTuple):
    """The epsilons of a HAT's mean and variance, in nano-units; 0: not released.

    >>> Nanos(10**9)
    Nanos(mean=1000000000, variance=0)
    """

    mean: int
    variance: int = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The plates and samples of HATs, as in `SlotCounts`: HAT h has rows
    hat_rows[h]..hat_rows[h+1].

    In row r plate `plate[r]`, in 0..plates-1, has `count[r]` >= 1 samples; no plate twice in a HAT,
    no HAT without rows; else ValueError. `max_kmh` is U, by which a variance outweighs a mean.

    >>> pairs = Occupancy(np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([3, 1, 5]), plates=2)
    >>> pairs.hats, pairs.hat_of_row().tolist()
    (2, [0, 0, 1])
    """

    hat_rows: Integers
    plate: Integers
    count: Integers
    plates: int
    max_kmh: float = 1.0

    def __post_init__(self) -> None:
        rows = self.plate.size
        if (
            self.count.size != rows
            or self.hat_rows.size < 1
            or self.hat_rows[0] != 0
            or self.hat_rows[-1] != rows
        ):
            raise ValueError(
                "expected hat_rows from 0 to the number of rows, and one plate and count per row"
            )
        if rows and (np.diff(self.hat_rows).min() < 1 or self.count.min() < 1):
            raise ValueError("expected at least one row per HAT and at least one sample per row")
        if rows and not 0 <= self.plate.min() <= self.plate.max() < self.plates:
            raise ValueError(f"expected plates in 0..{self.plates - 1}")

    @property
    def hats(self) -> int:
        return self.hat_rows.size - 1

    def hat_of_row(self) -> Integers:
        return np.repeat(np.arange(self.hats), np.diff(self.hat_rows))


@dataclass(slots=True)
class _Hats:
    """Columns with an entry per HAT, for Python and numpy alike.

    `total` samples, of which `kept`; `spare` plates may still leave, negative once the HAT is lost;
    `first` and `second` are its two largest kept counts (0: none), at these places of
    `_Rows.by_count`.
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
    """Columns with an entry per row: HAT, count (for Python, and for numpy), `kept`. `by_count`: by
    HAT, largest count first."""

    hat: list[int]
    count: list[int]
    kept: bytearray
    by_count: list[int]
    hats: Integers
    counts: Integers


class HatErrors:
    """Worst-case error E of every HAT while rows (a plate's samples in a HAT) are suppressed and
    restored.

    Suppress only kept rows, restore only suppressed rows. A HAT that keeps fewer than `plates_min`
    plates (or all, if fewer) is lost: E is infinite, and suppressing more costs nothing.

    >>> city = Occupancy(np.array([0, 3]), np.array([0, 1, 2]), np.array([4, 2, 2]), plates=3)
    >>> errors = HatErrors(city, Nanos(10**9))
    >>> before, foreseen = errors.error(0), errors.error_without(0)
    >>> errors.suppress(0)
    >>> before, foreseen, errors.error(0)
    (0.5, 1.0, 1.0)
    >>> HatErrors(city, Nanos(10**9, 10**9)).error(0)
    0.75
    """

    def __init__(self, occupancy: Occupancy, nanos: Nanos, plates_min: int = 1) -> None:
        """Keep all rows; raises ValueError unless an epsilon is above 0 and none below, and for
        plates_min < 1."""
        if min(nanos) < 0 or not any(nanos):
            raise ValueError(f"expected an epsilon above 0, got {tuple(nanos)}")
        if plates_min < 1:
            raise ValueError(f"expected plates_min >= 1, got {plates_min}")
        hat = occupancy.hat_of_row()
        sizes = np.diff(occupancy.hat_rows)
        count = occupancy.count
        self.epsilon = nanos.mean / NANO
        self.variance_epsilon = nanos.variance / NANO
        self._unit = occupancy.max_kmh if nanos.mean else 1.0  # of a variance
        self.rows_from: list[int] = occupancy.hat_rows.tolist()
        total = array("q", np.diff(np.append(0, np.cumsum(count))[occupancy.hat_rows]).tolist())
        spare = array("q", np.maximum(sizes - plates_min, 0).tolist())
        starts = self.rows_from[:-1]
        self.hats = _Hats(total, total[:], spare, total[:], total[:], starts, starts[:])
        by_count: list[int] = np.lexsort((-count, hat)).tolist()
        self.rows = _Rows(
            hat.tolist(), count.tolist(), bytearray(b"\1") * count.size, by_count, hat, count
        )
        for h in range(len(total)):
            self._settle(h)

    def lost(self, hat: int) -> bool:
        return self.hats.spare[hat] < 0

    def error(self, hat: int) -> float:
        if self.lost(hat):
            return inf
        return self._error(self.hats.total[hat], self.hats.kept[hat], self.hats.first[hat])

    def error_without(self, row: int) -> float:
        """E of the row's HAT if this kept row were suppressed; -inf if the HAT is lost already."""
        hat = self.rows.hat[row]
        count = self.rows.count[row]
        hats = self.hats
        if hats.spare[hat] <= 0:
            return -inf if hats.spare[hat] else inf
        largest = hats.second[hat] if count == hats.first[hat] else hats.first[hat]
        return self._error(hats.total[hat], hats.kept[hat] - count, largest)

    def _error(self, total: int, kept: int, largest: int) -> float:
        error = hat_error(total, kept, largest, self.epsilon) if self.epsilon else 0.0
        if not self.variance_epsilon:
            return error
        return error + self._unit * variance_error(total, kept, largest, self.variance_epsilon)

    def errors_without(self, rows: Integers) -> Floats:
        """Values of `error_without` for many rows, in an array of any shape: the very same
        doubles."""
        hat = self.rows.hats[rows]
        count = self.rows.counts[rows]
        total, kept, first, second, spare = (
            np.frombuffer(column, np.int64)[hat]
            for column in (
                self.hats.total,
                self.hats.kept,
                self.hats.first,
                self.hats.second,
                self.hats.spare,
            )
        )
        left = kept - count
        largest = np.where(count == first, second, first)
        # The 1 only avoids a division by 0: a HAT with nothing left gets its E below.
        some = np.maximum(left, 1)
        shares = np.zeros(left.shape)
        if self.epsilon:
            shares = (1 - left / total) + largest / (some * self.epsilon)
        if self.variance_epsilon:
            pairs = (
                share_of_pairs(total - left, total)
                + share_of_pairs(largest, some) / self.variance_epsilon
            )
            shares += self._unit * pairs
        return np.where(spare > 0, shares, np.where(spare < 0, -inf, inf))

    def suppress(self, row: int) -> None:
        hat = self.rows.hat[row]
        count = self.rows.count[row]
        hats = self.hats
        self.rows.kept[row] = 0
        hats.spare[hat] -= 1
        hats.kept[hat] -= count
        if count >= hats.second[hat]:
            self._settle(hat)

    def restore(self, row: int) -> None:
        hat = self.rows.hat[row]
        self.rows.kept[row] = 1
        self.hats.spare[hat] += 1
        self.hats.kept[hat] += self.rows.count[row]
        # The row may be larger than both marks.
        self.hats.first_at[hat] = self.hats.second_at[hat] = self.rows_from[hat]
        self._settle(hat)

    def _settle(self, hat: int) -> None:
        """Move both marks on to the next kept rows (or the HAT's end), and note their counts."""
        hats = self.hats
        rows = self.rows
        end = self.rows_from[hat + 1]
        first_at = hats.first_at[hat]
        while first_at < end and not rows.kept[rows.by_count[first_at]]:
            first_at += 1
        second_at = max(hats.second_at[hat], first_at + 1)
        while second_at < end and not rows.kept[rows.by_count[second_at]]:
            second_at += 1
        hats.first_at[hat] = first_at
        hats.second_at[hat] = second_at
        hats.first[hat] = rows.count[rows.by_count[first_at]] if first_at < end else 0
        hats.second[hat] = rows.count[rows.by_count[second_at]] if second_at < end else 0


# Suppression takes plates out of some of their HATs altogether (arXiv 2405.06261).
#
# Privacy unit: license plate; neighbours: swap-values. Suppression reads counts alone, so it costs
# nothing. If every HAT is released eps-DP, a plate that is kept in K_l HATs loses K_l eps, and the
# slot is (eps max K_l)-DP: the slides' composition theorem for mechanisms on disjoint HATs.
#
# **CHOP-USER.** E_thresh is the largest E at the start. Level by level, from the largest number n
# of HATs that any plate is in: every plate that is in n HATs gives up the HAT in which its
# suppression leaves the least E. The first that cannot do so within E_thresh stops everything;
# otherwise n falls by 1. Plates of a level take their turns by the least E that was open to them
# when the level began, largest first; ties by plate index. On its turn a plate looks again, and
# ties between its HATs go to the lowest. E is computed in doubles exactly as `hat_error` and
# `variance_error` write it.
#
# **Promises.** (1) No HAT's E exceeds E_thresh afterwards: each step changes the E of a single HAT,
# to a value that was compared. (2) K = max_l K_l never grows. (3) So neither the slot's loss K eps
# nor the largest E grows, and no HAT is lost. E is the worst case of Baseline, and of the variance
# of all samples; for other mechanisms `slot.py` checks.

_BATCH = 256
"""Plates whose HATs are looked at together."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """Outcome of suppression. `keep[r]`: row r still counts. `hats_before`, `hats_after` (the
    papers' K): the most HATs of a plate.

    `threshold` is E_thresh, the largest error before; `errors[h]` is E of HAT h now; both are in
    units of U.

    >>> left = Suppression(np.array([True, False]), 2, 1, threshold=0.5, errors=np.array([0.25, 0.5]))
    >>> left.worst_error
    0.5
    """

    keep: Flags
    hats_before: int
    hats_after: int
    threshold: float
    errors: Floats

    @property
    def worst_error(self) -> float:
        return float(self.errors.max(initial=0.0))


def chop_user(occupancy: Occupancy, nanos: Nanos, plates_min: int = 1) -> Suppression:
    """Run CHOP-USER of arXiv 2405.06261, as fixed above: the loss max K_l eps falls, no HAT's E
    exceeds E_thresh.

    No HAT is left with fewer than `plates_min` plates, if it had them. Raises ValueError as
    `HatErrors` does.
    """
    plates = _Plates(occupancy, nanos, plates_min)
    plates.descend(0, plates.threshold)
    return plates.outcome()


def suppress_to(
    occupancy: Occupancy, nanos: Nanos, hats_max: int, plates_min: int = 1
) -> Suppression:
    """Suppress until no plate is in more than `hats_max` >= 1 HATs: CHOP-USER without a threshold,
    down to there.

    arXiv 2405.06261 names "fixed numbers of users contributing to each subset"; we read HATs per
    plate, as its loss goes by them. A plate whose leaving loses every HAT leaves the HAT with the
    fewest samples left (the lowest on ties). At last lost HATs give all their places away, and come
    back in turn if enough plates still have a place. Every HAT keeps `plates_min` plates (all, if
    it had fewer), or none and has infinite E. If hats_max >= K of `chop_user`, both take the same
    steps down to there.

    Raises ValueError for hats_max < 1, and as `HatErrors` does.
    """
    if hats_max < 1:
        raise ValueError(f"expected hats_max >= 1, got {hats_max}")
    plates = _Plates(occupancy, nanos, plates_min)
    plates.descend(hats_max, inf)
    plates.share_out(hats_max)
    return plates.outcome()


class _Plates:
    """All HATs and all plates of a slot, while plates are being suppressed."""

    def __init__(self, occupancy: Occupancy, nanos: Nanos, plates_min: int = 1) -> None:
        self.errors = HatErrors(occupancy, nanos, plates_min)
        self.hats = occupancy.hats
        self.plates = occupancy.plates
        self.threshold = max(map(self.errors.error, range(self.hats)), default=0.0)
        # Stable, so that each plate's rows are in ascending order.
        self.by_plate = np.argsort(occupancy.plate, kind="stable")
        self.in_hats: list[int] = np.bincount(occupancy.plate, minlength=self.plates).tolist()
        self.before = max(self.in_hats, default=0)
        self.plate_of = occupancy.plate
        self.plate: list[int] = occupancy.plate.tolist()
        self._changed: set[int] = set()

    def descend(self, floor: int, limit: float) -> None:
        """Suppress level by level to `floor` HATs per plate; stops before a suppression that would
        leave an E above `limit`."""
        initially = np.array(self.in_hats)
        kept = self.errors.hats.kept
        in_hat = self.errors.rows.hat
        by_hats = np.argsort(-initially, kind="stable")
        fewer = -initially[by_hats]
        for level in range(self.before, floor, -1):
            plates = np.sort(by_hats[: np.searchsorted(fewer, -level, side="right")])
            rows = self._contributing_rows(plates).reshape(-1, level)
            hardest_first = np.argsort(-self.errors.errors_without(rows).min(axis=1), kind="stable")
            for start in range(0, hardest_first.size, _BATCH):
                for error, row, of_plate in self._turns(
                    rows[hardest_first[start : start + _BATCH]]
                ):
                    if error > limit:
                        return
                    self._suppress(
                        row if error < inf else min(of_plate, key=lambda row: kept[in_hat[row]])
                    )

    def _turns(self, rows: Integers) -> Iterator[tuple[float, int, list[int]]]:
        """Turns of the plates (a line of `rows` each): the least E by now, the row (lowest on
        ties), and all of its rows."""
        table = self.errors.errors_without(rows)
        hats = self.errors.rows.hats[rows]
        self._changed.clear()  # only changes of this batch are missing in the table
        for errors, own, near in zip(table.tolist(), rows.tolist(), hats.tolist(), strict=True):
            if not self._changed.isdisjoint(near):
                for place, hat in enumerate(near):
                    if hat in self._changed:
                        errors[place] = self.errors.error_without(own[place])
            least = min(errors)
            yield least, own[errors.index(least)], own

    def share_out(self, hats_max: int) -> None:
        """Let lost HATs give their places away; each comes back if enough of its plates still have
        a place."""
        errors = self.errors
        lost = [
            range(errors.rows_from[hat], errors.rows_from[hat + 1])
            for hat in range(self.hats)
            if errors.lost(hat)
        ]
        for row in chain.from_iterable(lost):
            if errors.rows.kept[row]:
                self._suppress(row)
        for rows in lost:
            free = [row for row in rows if self.in_hats[self.plate[row]] < hats_max]
            if free and errors.hats.spare[errors.rows.hat[free[0]]] + len(free) >= 0:
                for row in free:
                    self.in_hats[self.plate[row]] += 1
                    errors.restore(row)

    def outcome(self) -> Suppression:
        # A copy: the buffer itself changes.
        keep = np.frombuffer(bytes(self.errors.rows.kept), dtype=bool)
        errors = np.array([self.errors.error(hat) for hat in range(self.hats)])
        return Suppression(keep, self.before, max(self.in_hats, default=0), self.threshold, errors)

    def _suppress(self, row: int) -> None:
        self.in_hats[self.plate[row]] -= 1
        self._changed.add(self.errors.rows.hat[row])
        self.errors.suppress(row)

    def _contributing_rows(self, plates: Integers) -> Integers:
        """The kept rows of these plates, plate by plate in ascending order, each plate's in
        ascending order."""
        asked = np.zeros(self.plates, dtype=bool)
        asked[plates] = True
        kept = np.frombuffer(self.errors.rows.kept, dtype=bool)
        return self.by_plate[(kept & asked[self.plate_of])[self.by_plate]]
