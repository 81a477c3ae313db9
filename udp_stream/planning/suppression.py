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

**Speed.** E is not monotone along the way (to suppress the plate with most samples can lower the noise), but it only
falls when one of a HAT's two largest shares changes. At high levels, which few plates reach, each keeps a heap of lower
bounds on its E's; they are brought up to date when they come to the top, and fresh ones are pushed when a large share
goes. At low levels, which most plates reach, looking at all their HATs is quicker than any heap, by numpy for a batch
of plates at a time, and by hand for those HATs that the batch itself has changed. Both find the very same. Slow only
where a thousand plates are in a thousand HATs each (one to three minutes for 10^6 rows), which no slot of a city is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.worst_case import HatErrors, Occupancy

__all__ = ["Occupancy", "Suppression", "chop_user", "suppress_to"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_BATCHED_HATS_MAX = 32
"""Up to this many HATs per plate are looked at in batches of plates, more of them by heaps (measured)."""

_BATCH = 256
"""Plates per batch: enough that numpy's overhead is small, few enough that most of their HATs have not changed."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """What is left: `keep[r]` says whether row r still counts; errors are shares of U.

    `hats_before` and `hats_after` (the papers' K) are the most HATs that one plate is in; `threshold` is E_thresh, the
    largest noise error before; `errors[h]` is E of HAT h now.
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

    Raises ValueError for epsilon_nano < 1 or plates_min < 1. 10^5 plates in 10^4 HATs, 10^6 rows: seconds
    (`benchmarks/chop_user_speed.py`).
    """
    city = _City(occupancy, epsilon_nano, plates_min)
    _descend(city, 0, city.threshold)
    return city.outcome()


def suppress_to(occupancy: Occupancy, epsilon_nano: int, hats_max: int, plates_min: int = 1) -> Suppression:
    """No plate in more than `hats_max` >= 1 HATs, and the worst E as small as a local search finds it.

    The abstract of arXiv 2405.06261 has the aim, for a fixed privacy loss; the rule is ours. First CHOP-USER without a
    threshold, down to `hats_max`: a plate that can only leave HATs that are lost by it leaves the one with the fewest
    samples left (the lowest on ties), and lost HATs are left for nothing. These give all their places away, and one by
    one come back if enough of their plates still have a place. Then, as long as it helps, the HAT of largest E (the
    lowest on ties; lost ones that no move brings back are passed over) loses a plate, or gets one back that may be in
    one more HAT, or gets one back that in turn leaves another of its HATs: whichever leaves the least E in the worse of
    the HATs concerned, if that is less than the largest E was. Each move lowers the descending list of all E's, in
    lexicographic order, so this ends; at the latest after as many moves as rows.

    Promises: max K_l <= hats_max. Every HAT keeps `plates_min` plates (all, if it had fewer), or none and has infinite
    E. If hats_max >= K of `chop_user`, none is lost and no E exceeds E_thresh: down to there both take the same steps,
    and no move raises the largest E. The optimum it need not find; on cities small enough to try everything it mostly
    does (see the tests).

    >>> pairs = Occupancy(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([3, 1, 3, 3]), plates=2)
    >>> suppress_to(pairs, 10**9, hats_max=1).keep.astype(int).tolist()
    [1, 0, 0, 1]

    Raises ValueError for hats_max < 1, epsilon_nano < 1 or plates_min < 1.
    """
    if hats_max < 1:
        raise ValueError(f"expected hats_max >= 1, got {hats_max}")
    city = _City(occupancy, epsilon_nano, plates_min)
    _descend(city, hats_max, inf)
    _share_out(city, hats_max)
    _even_out(city, hats_max)
    return city.outcome()


class _City:
    """All HATs and all plates, while plates are being suppressed."""

    def __init__(self, occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> None:
        self.errors = HatErrors(occupancy, epsilon_nano, plates_min)
        self.hats, self.plates = occupancy.hats, occupancy.plates
        self.threshold = max(map(self.errors.error, range(self.hats)), default=0.0)
        self.by_plate = np.argsort(occupancy.plate, kind="stable")
        self.in_hats: list[int] = np.bincount(occupancy.plate, minlength=self.plates).tolist()
        self.rows_from: list[int] = np.append(0, np.cumsum(self.in_hats)).tolist()
        self.before = max(self.in_hats, default=0)
        self.plate_of = occupancy.plate
        self.plate: list[int] = occupancy.plate.tolist()
        self._rows: dict[int, list[int]] = {}  # of a plate: the kept ones, and perhaps some suppressed since

    def suppress(self, row: int) -> bool:
        self.in_hats[self.plate[row]] -= 1
        return self.errors.suppress(row)

    def restore(self, row: int) -> None:
        plate = self.plate[row]
        self._rows[plate] = sorted([*self.kept_rows(plate), row])
        self.in_hats[plate] += 1
        self.errors.restore(row)

    def kept_rows(self, plate: int) -> list[int]:
        """The kept rows of one plate, in ascending order."""
        rows = self._rows.get(plate)
        if rows is None:
            rows = self.by_plate[self.rows_from[plate] : self.rows_from[plate + 1]].tolist()
        self._rows[plate] = [row for row in rows if self.errors.kept_rows[row]]
        return self._rows[plate]

    def least_loss(self, plate: int) -> int:
        """The kept row of a plate in the HAT with the fewest samples left, the lowest on ties."""
        return min(self.kept_rows(plate), key=lambda row: self.errors.kept[self.errors.hat[row]])

    def kept_by_plate(self, plates: Integers) -> Integers:
        """The kept rows of these plates, plate by plate in ascending order, each plate's in ascending order."""
        asked = np.zeros(self.plates, dtype=bool)
        asked[plates] = True
        kept = np.frombuffer(self.errors.kept_rows, dtype=bool)
        return self.by_plate[(kept & asked[self.plate_of])[self.by_plate]]

    def outcome(self) -> Suppression:
        keep = np.frombuffer(bytes(self.errors.kept_rows), dtype=bool)
        errors = np.array([self.errors.error(hat) for hat in range(self.hats)])
        return Suppression(keep, self.before, max(self.in_hats, default=0), self.threshold, errors)


class _Choices(Protocol):
    """How plates find the HAT in which their suppression leaves the least E."""

    def begin(self, level: int, plates: Integers) -> Floats:
        """The least E open to each of these plates (ascending), all of which are in `level` HATs."""
        ...

    def turns(self, order: Integers) -> Iterator[tuple[float, int]]:
        """Plate by plate, in an order given by places in `plates`: its least E by now, and the row (lowest on ties)."""
        ...

    def suppressed(self, row: int, others_may_fall: bool) -> None:
        """Between two turns: this row has gone, and perhaps with it the E of other rows of its HAT falls."""
        ...


def _descend(city: _City, floor: int, limit: float) -> None:
    """Level by level to `floor` HATs per plate; stops before a suppression that would leave an E above `limit`."""
    initially = np.array(city.in_hats)
    by_hats = np.argsort(-initially, kind="stable")
    fewer = -initially[by_hats]
    choices: _Choices = _Heaps(city)
    for level in range(city.before, floor, -1):
        plates = np.sort(by_hats[: np.searchsorted(fewer, -level, side="right")])
        if level <= _BATCHED_HATS_MAX and isinstance(choices, _Heaps):
            choices = _Batches(city)
        hardest_first = np.argsort(-choices.begin(level, plates), kind="stable")
        for error, row in choices.turns(hardest_first):
            if error > limit:
                return
            if error == inf:
                row = city.least_loss(city.plate[row])
            choices.suppressed(row, city.suppress(row))


def _share_out(city: _City, hats_max: int) -> None:
    """Lost HATs give all of their places away; each comes back if enough of its plates have a place left by then."""
    errors = city.errors
    lost = [range(errors.rows_from[hat], errors.rows_from[hat + 1]) for hat in range(city.hats) if errors.lost(hat)]
    for row in chain.from_iterable(lost):
        if errors.kept_rows[row]:
            city.suppress(row)
    for rows in lost:
        free = [row for row in rows if city.in_hats[city.plate[row]] < hats_max]
        if free and errors.spare[errors.hat[free[0]]] + len(free) >= 0:
            for row in free:
                city.restore(row)


class _Batches:
    """Looks at all HATs of some hundred plates at once, and on a plate's turn again at those changed since."""

    def __init__(self, city: _City) -> None:
        self.city = city
        self.rows = np.empty((0, 0), dtype=np.int64)
        self.changed: set[int] = set()

    def begin(self, level: int, plates: Integers) -> Floats:
        self.rows = self.city.kept_by_plate(plates).reshape(-1, level)
        least: Floats = self.city.errors.errors_without(self.rows).min(axis=1)
        return least

    def turns(self, order: Integers) -> Iterator[tuple[float, int]]:
        for start in range(0, order.size, _BATCH):
            yield from self._batch(self.rows[order[start : start + _BATCH]])

    def _batch(self, rows: Integers) -> Iterator[tuple[float, int]]:
        table = self.city.errors.errors_without(rows)
        hats = self.city.errors.hat_of[rows]
        self.changed.clear()
        for errors, own, near in zip(table.tolist(), rows.tolist(), hats.tolist(), strict=True):
            if not self.changed.isdisjoint(near):
                for place, hat in enumerate(near):
                    if hat in self.changed:
                        errors[place] = self.city.errors.error_without(own[place])
            least = min(errors)
            yield least, own[errors.index(least)]

    def suppressed(self, row: int, others_may_fall: bool) -> None:  # noqa: ARG002
        self.changed.add(self.city.errors.hat[row])


class _Heaps:
    """A heap of (E at most, row) for each plate that has come into play.

    For every kept row of such a plate `bound[row]` is at most its E, and is in the plate's heap. While a HAT's two
    largest counts stay as they are its E's only rise (in doubles too: each operation is monotone) until it is lost, so
    bounds stay true.
    """

    def __init__(self, city: _City) -> None:
        self.city = city
        self.heaps: dict[int, list[tuple[float, int]]] = {}
        self.bound = [-inf] * len(city.plate)  # of rows that are in no heap
        self.plates = np.empty(0, dtype=np.int64)

    def begin(self, level: int, plates: Integers) -> Floats:  # noqa: ARG002
        for plate in plates.tolist():
            if plate not in self.heaps:
                self.heaps[plate] = self._heap(self.city.kept_rows(plate))
        self.plates = plates
        return np.array([error for error, _ in self._best(plates.tolist())])

    def _heap(self, rows: list[int]) -> list[tuple[float, int]]:
        entries = list(zip(self.city.errors.errors_without(np.array(rows)).tolist(), rows, strict=True))
        for error, row in entries:
            self.bound[row] = error
        heapify(entries)
        return entries

    def turns(self, order: Integers) -> Iterator[tuple[float, int]]:
        return self._best(self.plates[order].tolist())

    def _best(self, plates: list[int]) -> Iterator[tuple[float, int]]:
        """One plate after another, as things stand when it is asked for.

        This is where the time goes: `HatErrors.error_without` is written out, and everything looked up once.
        """
        errors, heaps, bound = self.city.errors, self.heaps, self.bound
        hat_of, count_of, kept_rows, epsilon = errors.hat, errors.count, errors.kept_rows, errors.epsilon
        total, kept, first, second = errors.total, errors.kept, errors.first, errors.second
        spare = errors.spare
        for plate in plates:
            heap = heaps[plate]
            while True:
                error, row = heap[0]
                if not kept_rows[row]:
                    heappop(heap)
                    continue
                hat, count = hat_of[row], count_of[row]
                left, largest = kept[hat] - count, first[hat]
                if count == largest:
                    largest = second[hat]
                if spare[hat] > 0:
                    now = (1 - left / total[hat]) + largest / (left * epsilon)
                else:
                    now = -inf if spare[hat] else inf
                if now == error:
                    break
                bound[row] = now
                heapreplace(heap, (now, row))
            yield heap[0]

    def suppressed(self, row: int, others_may_fall: bool) -> None:
        if not others_may_fall:
            return
        errors, bound, hat = self.city.errors, self.bound, self.city.errors.hat[row]
        for other in range(errors.rows_from[hat], errors.rows_from[hat + 1]):
            if errors.kept_rows[other] and bound[other] > -inf and (now := errors.error_without(other)) < bound[other]:
                bound[other] = now
                heappush(self.heaps[self.city.plate[other]], (now, other))


def _even_out(city: _City, hats_max: int) -> None:
    """Move by move, lower the largest E, as `suppress_to` says."""
    errors = city.errors
    worst = [(-errors.error(hat), hat) for hat in range(city.hats)]
    heapify(worst)
    for _ in range(len(city.plate)):
        while worst and -worst[0][0] != errors.error(worst[0][1]):
            heappop(worst)  # since replaced by a newer entry
        if not worst:
            return
        error, back, out = min(_moves(city, worst[0][1], hats_max), default=(inf, -1, -1))
        if error == -worst[0][0] == inf:
            heappop(worst)  # lost, and no move brings it back
            continue
        if error >= -worst[0][0]:
            return
        if back >= 0:
            city.restore(back)
        if out >= 0:
            city.suppress(out)
        for row in (back, out):
            if row >= 0:
                heappush(worst, (-errors.error(errors.hat[row]), errors.hat[row]))


def _moves(city: _City, hat: int, hats_max: int) -> Iterator[tuple[float, int, int]]:
    """What may be done for a HAT: (largest E of the HATs concerned, row to restore or -1, row to suppress or -1)."""
    errors, error = city.errors, city.errors.error(hat)
    for row in range(errors.rows_from[hat], errors.rows_from[hat + 1]):
        plate = city.plate[row]
        if errors.kept_rows[row]:
            yield errors.error_without(row), -1, row
        elif city.in_hats[plate] < hats_max:
            yield errors.error_with(row), row, -1
        elif (back := errors.error_with(row)) < error:
            yield from ((max(back, errors.error_without(out)), row, out) for out in city.kept_rows(plate))
