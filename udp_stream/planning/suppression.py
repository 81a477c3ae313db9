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

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import chain, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.base.units import NANO


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
    no HAT without rows. `max_kmh` is U, by which a variance outweighs a mean.

    >>> pairs = Occupancy(np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([3, 1, 5]), plates=2)
    >>> pairs.hats, pairs.hat_of_row().tolist()
    (2, [0, 0, 1])
    """

    hat_rows: Integers
    plate: Integers
    count: Integers
    plates: int
    max_kmh: float = 1.0

    @property
    def hats(self) -> int:
        return self.hat_rows.size - 1

    def hat_of_row(self) -> Integers:
        return np.repeat(np.arange(self.hats), np.diff(self.hat_rows))


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
        """Keep all rows; raises ValueError unless an epsilon is above 0 and none below. `plates_min`
        is at least 1."""
        if min(nanos) < 0 or not any(nanos):
            raise ValueError(f"expected an epsilon above 0, got {tuple(nanos)}")
        self._epsilon = nanos.mean / NANO
        self._variance_epsilon = nanos.variance / NANO
        self._unit = occupancy.max_kmh if nanos.mean else 1.0  # of a variance
        self._count: list[int] = occupancy.count.tolist()
        self.hat: list[int] = occupancy.hat_of_row().tolist()
        """The HAT of each row."""
        self.keep = [True] * len(self.hat)
        """Whether each row still counts."""
        self._counts = [
            sorted(self._count[start:end]) for start, end in pairwise(occupancy.hat_rows.tolist())
        ]
        self._total = list(map(sum, self._counts))
        self.kept = self._total[:]
        """The samples that each HAT keeps."""
        self.least = [min(plates_min, len(counts)) for counts in self._counts]
        """The plates that each HAT keeps, or is lost."""

    def lost(self, hat: int) -> bool:
        return len(self._counts[hat]) < self.least[hat]

    def error(self, hat: int) -> float:
        return inf if self.lost(hat) else self._error(hat, self.kept[hat], self._counts[hat][-1])

    def error_without(self, row: int) -> float:
        """E of the row's HAT if this kept row were suppressed; -inf if the HAT is lost already."""
        hat = self.hat[row]
        count = self._count[row]
        counts = self._counts[hat]
        if len(counts) <= self.least[hat]:
            return -inf if self.lost(hat) else inf
        largest = counts[-2] if count == counts[-1] else counts[-1]
        return self._error(hat, self.kept[hat] - count, largest)

    def _error(self, hat: int, kept: int, largest: int) -> float:
        """E where a HAT keeps so many samples, at most `largest` of a plate."""
        total = self._total[hat]
        error = (1 - kept / total) + largest / (kept * self._epsilon) if self._epsilon else 0.0
        if self._variance_epsilon:
            of_noise = _share_of_pairs(largest, kept) / self._variance_epsilon
            error += self._unit * (_share_of_pairs(total - kept, total) + of_noise)
        return error

    def suppress(self, row: int) -> None:
        counts = self._counts[self.hat[row]]
        del counts[bisect_left(counts, self._count[row])]
        self.keep[row] = False
        self.kept[self.hat[row]] -= self._count[row]

    def restore(self, row: int) -> None:
        insort(self._counts[self.hat[row]], self._count[row])
        self.keep[row] = True
        self.kept[self.hat[row]] += self._count[row]


def _share_of_pairs(movable: int, total: int) -> float:
    """Share k (total - k) / total^2 for k = min(movable, floor(total / 2)), as
    `mechanisms/variance.py` has it for arrays."""
    share = min(movable, total // 2) / total
    return share * (1 - share)


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
# ties between its HATs go to the lowest. E is computed in doubles exactly as `HatErrors` writes it.
#
# **Promises.** (1) No HAT's E exceeds E_thresh afterwards: each step changes the E of a single HAT,
# to a value that was compared. (2) K = max_l K_l never grows. (3) So neither the slot's loss K eps
# nor the largest E grows, and no HAT is lost. E is the worst case of Baseline, and of the variance
# of all samples; for other mechanisms `slot.py` checks.


class Suppression(NamedTuple):
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

    Raises ValueError as `HatErrors` does.
    """
    plates = _Plates(occupancy, nanos, plates_min)
    plates.descend(hats_max, inf)
    plates.share_out(hats_max)
    return plates.outcome()


class _Plates:
    """All HATs and all plates of a slot, while plates are being suppressed."""

    def __init__(self, occupancy: Occupancy, nanos: Nanos, plates_min: int) -> None:
        self.errors = HatErrors(occupancy, nanos, plates_min)
        self.hats = occupancy.hats
        self.threshold = max(map(self.errors.error, range(self.hats)), default=0.0)
        self.rows_from: list[int] = occupancy.hat_rows.tolist()
        self.plate: list[int] = occupancy.plate.tolist()
        self.rows_of: list[list[int]] = [[] for _ in range(occupancy.plates)]
        """The kept rows of each plate."""
        for row, plate in enumerate(self.plate):
            self.rows_of[plate].append(row)
        self.before = self._most()

    def _most(self) -> int:
        return max(map(len, self.rows_of), default=0)

    def descend(self, floor: int, limit: float) -> None:
        """Suppress level by level to `floor` HATs per plate; stops before a suppression that would
        leave an E above `limit`."""
        errors = self.errors
        for level in range(self.before, floor, -1):
            plates = [rows for rows in self.rows_of if len(rows) == level]
            # Stable: ties by plate.
            plates.sort(key=lambda rows: -min(map(errors.error_without, rows)))
            for rows in plates:
                least, row = min((errors.error_without(row), row) for row in rows)
                if least > limit:
                    return
                if least == inf:
                    row = min(rows, key=lambda row: errors.kept[errors.hat[row]])
                self._suppress(row)

    def share_out(self, hats_max: int) -> None:
        """Let lost HATs give their places away; each comes back if enough of its plates still have
        a place."""
        errors = self.errors
        lost = [hat for hat in range(self.hats) if errors.lost(hat)]
        rows_of_lost = [range(*self.rows_from[hat : hat + 2]) for hat in lost]
        for row in chain.from_iterable(rows_of_lost):
            if errors.keep[row]:
                self._suppress(row)
        for hat, rows in zip(lost, rows_of_lost, strict=True):
            free = [row for row in rows if len(self.rows_of[self.plate[row]]) < hats_max]
            if len(free) >= errors.least[hat]:
                for row in free:
                    self.rows_of[self.plate[row]].append(row)
                    errors.restore(row)

    def outcome(self) -> Suppression:
        errors = np.array([self.errors.error(hat) for hat in range(self.hats)])
        keep = np.array(self.errors.keep, dtype=bool)
        return Suppression(keep, self.before, self._most(), self.threshold, errors)

    def _suppress(self, row: int) -> None:
        self.rows_of[self.plate[row]].remove(row)
        self.errors.suppress(row)
