"""Suppression: plates give nothing at all to some of their HATs, so that each is in fewer of them (arXiv 2405.06261).

Privacy unit: license plate; neighbours: swap-values. Only counts are read here, so suppression itself costs nothing.
If every HAT is released eps-DP, a plate that is kept in K_l HATs loses K_l eps, and the slot is (eps max K_l)-DP: the
slides' composition theorem for mechanisms on disjoint HATs.

**The error of a HAT** with M samples of which suppression leaves G > 0, the largest share of one plate being G*, is the
worst-case bias of the kept samples' mean plus its expected noise, as a share of U:

    E = 1 - G / M + G* / (G eps)

and infinite where fewer than a given number of plates would be left (1 unless told otherwise; all that a HAT has, if
those are fewer): that HAT is lost. No HAT is lost as long as another choice is left, under CHOP-USER none ever.

**CHOP-USER.** E_thresh is the largest E at the start. Level by level, from the largest number n of HATs that any plate
is in: every plate that is in n HATs gives up the one in which its suppression leaves the least E. The first that cannot
do so within E_thresh stops everything; otherwise n falls by one. What the papers leave open is fixed here so that the
outcome is a function of the counts:

* Plates of a level take their turns hardest first: by the least E that was open to them when the level began, largest
  first; ties by plate index. (Over 192 drawn cities K came out 1 % lower than by plate index alone, and a third as
  many suppressions fell in the last, unfinished level, where they no longer lower K.)
* On its turn a plate looks again, and ties between its HATs go to the lowest.
* E is computed in doubles exactly as `worst_case.hat_error` writes it.

**Promises.** (1) No HAT's E exceeds E_thresh afterwards: none did at the start, and each step changes the E of one HAT,
to a value that has just been compared. (2) K = max_l K_l is at most what it was: HATs are only ever given up. (3) So
neither the slot's loss K eps nor the largest E is larger than before. E is Baseline's worst case; of other mechanisms
nothing follows yet (`slot_terms.py` sees to that).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.worst_case import Floats, HatErrors, Integers, Occupancy

__all__ = ["Occupancy", "Suppression", "chop_user", "suppress_to"]

_BATCH = 256
"""Plates whose HATs are looked at together: enough that numpy's overhead is small, few enough that most of their HATs
have not changed by the time that their turn comes."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """What is left: `keep[r]` says whether row r still counts; errors are shares of U.

    `hats_before` and `hats_after` (the papers' K) are the most HATs that one plate is in; `threshold` is E_thresh, the
    largest noise error before; `errors[h]` is E of HAT h now.

    >>> left = Suppression(np.array([True, False]), 2, 1, threshold=0.5, errors=np.array([0.25, 0.5]))
    >>> left.worst_error
    0.5
    """

    keep: NDArray[np.bool_]
    hats_before: int
    hats_after: int
    threshold: float
    errors: Floats

    @property
    def worst_error(self) -> float:
        """The largest of the errors; 0 without HATs."""
        return float(self.errors.max(initial=0.0))


def chop_user(occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> Suppression:
    """CHOP-USER of arXiv 2405.06261, as fixed above: the loss max K_l eps falls, no HAT's E exceeds E_thresh.

    No HAT is left with fewer than `plates_min` plates, if it had them.

    Plate 0, alone in the first HAT (so E_thresh = 1 / eps), leaves one of its three; plates 1 and 2 cannot leave any:

    >>> rows = dict(plate=np.array([0, 0, 1, 2, 0, 1, 2]), count=np.array([4, 1, 2, 2, 1, 2, 2]), plates=3)
    >>> chopped = chop_user(Occupancy(np.array([0, 1, 4, 7]), **rows), epsilon_nano=10**9)
    >>> chopped.keep.astype(int).tolist(), chopped.hats_before, chopped.hats_after, chopped.threshold
    ([1, 0, 1, 1, 1, 1, 1], 3, 2, 1.0)

    Raises ValueError for epsilon_nano < 1 or plates_min < 1. 10^5 plates in 10^4 HATs, 10^6 rows: seconds.
    """
    plates = _Plates(occupancy, epsilon_nano, plates_min)
    plates.descend(0, plates.threshold)
    return plates.outcome()


def suppress_to(occupancy: Occupancy, epsilon_nano: int, hats_max: int, plates_min: int = 1) -> Suppression:
    """No plate in more than `hats_max` >= 1 HATs: CHOP-USER without a threshold, down to there.

    The abstract of arXiv 2405.06261 has the aim, for a fixed privacy loss; the rule is ours. A plate that can only
    leave HATs that are lost by it leaves the one with the fewest samples left (the lowest on ties), and lost HATs are
    left for nothing. At last these give all their places away, and one by one come back if enough of their plates still
    have a place.

    Promises: max K_l <= hats_max. Every HAT keeps `plates_min` plates (all, if it had fewer), or none and has infinite
    E. If hats_max >= K of `chop_user`, none is lost and no E exceeds E_thresh: both take the same steps down to there.

    >>> pairs = Occupancy(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([3, 1, 3, 3]), plates=2)
    >>> suppress_to(pairs, 10**9, hats_max=1).keep.astype(int).tolist()
    [1, 0, 0, 1]

    Raises ValueError for hats_max < 1, epsilon_nano < 1 or plates_min < 1.
    """
    if hats_max < 1:
        raise ValueError(f"expected hats_max >= 1, got {hats_max}")
    plates = _Plates(occupancy, epsilon_nano, plates_min)
    plates.descend(hats_max, inf)
    plates.share_out(hats_max)
    return plates.outcome()


class _Plates:
    """All HATs and all plates of a slot, while plates are being suppressed."""

    def __init__(self, occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> None:
        """Nothing is suppressed yet; ValueError as in `HatErrors`."""
        self.errors = HatErrors(occupancy, epsilon_nano, plates_min)
        self.hats, self.plates = occupancy.hats, occupancy.plates
        self.threshold = max(map(self.errors.error, range(self.hats)), default=0.0)
        # Stable, so that each plate's rows are in ascending order.
        self.by_plate = np.argsort(occupancy.plate, kind="stable")
        self.in_hats: list[int] = np.bincount(occupancy.plate, minlength=self.plates).tolist()
        self.before = max(self.in_hats, default=0)
        self.plate_of = occupancy.plate
        self.plate: list[int] = occupancy.plate.tolist()
        self._changed: set[int] = set()

    def descend(self, floor: int, limit: float) -> None:
        """Level by level to `floor` HATs per plate; stops before a suppression that would leave an E above `limit`."""
        initially = np.array(self.in_hats)
        by_hats = np.argsort(-initially, kind="stable")
        fewer = -initially[by_hats]
        for level in range(self.before, floor, -1):
            # Plates that began in more HATs have come down to this level by now.
            plates = np.sort(by_hats[: np.searchsorted(fewer, -level, side="right")])
            rows = self._kept_rows(plates).reshape(-1, level)
            hardest_first = np.argsort(-self.errors.errors_without(rows).min(axis=1), kind="stable")
            for start in range(0, hardest_first.size, _BATCH):
                for error, row, of_plate in self._turns(rows[hardest_first[start : start + _BATCH]]):
                    if error > limit:
                        return
                    # Every HAT that it can leave is lost by that: it leaves the one with the fewest samples.
                    self._suppress(row if error < inf else min(of_plate, key=self._samples_left))

    def _turns(self, rows: Integers) -> Iterator[tuple[float, int, list[int]]]:
        """Plate by plate (a line of `rows` each): its least E by now, the row (lowest on ties), and all of its rows."""
        table, hats = self.errors.errors_without(rows), self.errors.rows.hats[rows]
        self._changed.clear()  # the table was made just now: only what this batch changes is missing in it
        for errors, own, near in zip(table.tolist(), rows.tolist(), hats.tolist(), strict=True):
            if not self._changed.isdisjoint(near):
                for place, hat in enumerate(near):
                    if hat in self._changed:
                        errors[place] = self.errors.error_without(own[place])
            least = min(errors)
            yield least, own[errors.index(least)], own

    def share_out(self, hats_max: int) -> None:
        """Lost HATs give all of their places away; each comes back if enough of its plates have a place by then."""
        errors = self.errors
        lost = [range(errors.rows_from[hat], errors.rows_from[hat + 1]) for hat in range(self.hats) if errors.lost(hat)]
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
        """What is left by now."""
        # A copy, as the buffer itself changes with every row that goes or comes back.
        keep = np.frombuffer(bytes(self.errors.rows.kept), dtype=bool)
        errors = np.array([self.errors.error(hat) for hat in range(self.hats)])
        return Suppression(keep, self.before, max(self.in_hats, default=0), self.threshold, errors)

    def _suppress(self, row: int) -> None:
        self.in_hats[self.plate[row]] -= 1
        self._changed.add(self.errors.rows.hat[row])
        self.errors.suppress(row)

    def _kept_rows(self, plates: Integers) -> Integers:
        """The kept rows of these plates, plate by plate in ascending order, each plate's in ascending order."""
        asked = np.zeros(self.plates, dtype=bool)
        asked[plates] = True
        kept = np.frombuffer(self.errors.rows.kept, dtype=bool)
        return self.by_plate[(kept & asked[self.plate_of])[self.by_plate]]

    def _samples_left(self, row: int) -> int:
        return self.errors.hats.kept[self.errors.rows.hat[row]]
