"""How plates find the HAT that they leave next: in batches where most take part, else by heaps. Both find the same.

E is not monotone along the way (to suppress the plate with most samples can lower the noise), but it only
falls when one of a HAT's two largest shares changes. At high levels, which few plates reach, each keeps a heap of lower
bounds on its E's; they are brought up to date when they come to the top, and fresh ones are pushed when a large share
goes. At low levels, which most plates reach, looking at all their HATs is quicker than any heap, by numpy for a batch
of plates at a time, and by hand for those HATs that the batch itself has changed. Both find the very same. Slow only
where a thousand plates are in a thousand HATs each (one to three minutes for 10^6 rows), which no slot of a city is.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Protocol

import numpy as np

from udp_stream.planning.city import City
from udp_stream.planning.worst_case import Floats, Integers

BATCHED_HATS_MAX = 32
"""Up to this many HATs per plate are looked at in batches of plates, more of them by heaps (measured)."""

_BATCH = 256
"""Plates per batch: enough that numpy's overhead is small, few enough that most of their HATs have not changed."""


class Choices(Protocol):
    """How plates find the HAT in which their suppression leaves the least E.

    >>> from udp_stream.planning.worst_case import Occupancy
    >>> rows = np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([4, 2, 1, 1])
    >>> choices: Choices = Batches(City(Occupancy(*rows, plates=2), 10**9))
    >>> choices.begin(2, np.array([0, 1])).tolist()
    [1.5, 1.3333333333333335]
    """

    def begin(self, level: int, plates: Integers) -> Floats:
        """The least E open to each of these plates (ascending), all of which are in `level` HATs."""
        ...

    def turns(self, order: Integers) -> Iterator[tuple[float, int]]:
        """Plate by plate, in an order given by places in `plates`: its least E by now, and the row (lowest on ties)."""
        ...

    def suppressed(self, row: int, others_may_fall: bool) -> None:
        """Between two turns: this row has gone, and perhaps with it the E of other rows of its HAT falls."""
        ...


class Batches:
    """Looks at all HATs of some hundred plates at once, and on a plate's turn again at those changed since.

    >>> from udp_stream.planning.worst_case import Occupancy
    >>> rows = np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([4, 2, 1, 1])
    >>> choices = Batches(City(Occupancy(*rows, plates=2), 10**9))
    >>> choices.begin(2, np.array([0, 1])).tolist(), [row for _, row in choices.turns(np.array([1, 0]))]
    ([1.5, 1.3333333333333335], [1, 2])
    """

    def __init__(self, city: City) -> None:
        """No plate has come into play yet."""
        self.city = city
        self.rows = np.empty((0, 0), dtype=np.int64)
        self.changed: set[int] = set()

    def begin(self, level: int, plates: Integers) -> Floats:
        """As in `Choices`."""
        self.rows = self.city.kept_by_plate(plates).reshape(-1, level)
        least: Floats = self.city.errors.errors_without(self.rows).min(axis=1)
        return least

    def turns(self, order: Integers) -> Iterator[tuple[float, int]]:
        """As in `Choices`."""
        for start in range(0, order.size, _BATCH):
            yield from self._batch(self.rows[order[start : start + _BATCH]])

    def _batch(self, rows: Integers) -> Iterator[tuple[float, int]]:
        table = self.city.errors.errors_without(rows)
        hats = self.city.errors.rows.hats[rows]
        # The table was made just now: only what this batch changes is missing in it.
        self.changed.clear()
        for errors, own, near in zip(table.tolist(), rows.tolist(), hats.tolist(), strict=True):
            if not self.changed.isdisjoint(near):
                for place, hat in enumerate(near):
                    if hat in self.changed:
                        errors[place] = self.city.errors.error_without(own[place])
            least = min(errors)
            yield least, own[errors.index(least)]

    def suppressed(self, row: int, others_may_fall: bool) -> None:  # noqa: ARG002
        """As in `Choices`."""
        self.changed.add(self.city.errors.rows.hat[row])


class Heaps:
    """A heap of (E at most, row) for each plate that has come into play.

    For every kept row of such a plate `bound[row]` is at most its E, and is in the plate's heap. While a HAT's two
    largest counts stay as they are its E's only rise (in doubles too: each operation is monotone) until it is lost, so
    bounds stay true.

    >>> from udp_stream.planning.worst_case import Occupancy
    >>> rows = np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([4, 2, 1, 1])
    >>> choices = Heaps(City(Occupancy(*rows, plates=2), 10**9))
    >>> choices.begin(2, np.array([0, 1])).tolist(), [row for _, row in choices.turns(np.array([1, 0]))]
    ([1.5, 1.3333333333333335], [1, 2])
    """

    def __init__(self, city: City) -> None:
        """No plate has come into play yet."""
        self.city = city
        self.heaps: dict[int, list[tuple[float, int]]] = {}
        self.bound = [-inf] * len(city.plate)  # of rows that are in no heap
        self.plates = np.empty(0, dtype=np.int64)

    def begin(self, level: int, plates: Integers) -> Floats:  # noqa: ARG002
        """As in `Choices`."""
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
        """As in `Choices`."""
        return self._best(self.plates[order].tolist())

    def _best(self, plates: list[int]) -> Iterator[tuple[float, int]]:
        """One plate after another, as things stand when it is asked for.

        This is where the time goes: `HatErrors.error_without` is written out, and everything looked up once.
        """
        errors, heaps, bound = self.city.errors, self.heaps, self.bound
        hat_of, count_of, kept_rows, epsilon = errors.rows.hat, errors.rows.count, errors.rows.kept, errors.epsilon
        total, kept, spare = errors.hats.total, errors.hats.kept, errors.hats.spare
        first, second = errors.hats.first, errors.hats.second
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
                    # In the order of `hat_error`: in another order the last bits could differ.
                    now = (1 - left / total[hat]) + largest / (left * epsilon)
                else:
                    now = -inf if spare[hat] else inf
                if now == error:
                    break
                bound[row] = now
                heapreplace(heap, (now, row))
            yield heap[0]

    def suppressed(self, row: int, others_may_fall: bool) -> None:
        """As in `Choices`."""
        if not others_may_fall:
            return
        errors, bound, hat = self.city.errors, self.bound, self.city.errors.rows.hat[row]
        for other in range(errors.rows_from[hat], errors.rows_from[hat + 1]):
            if errors.rows.kept[other] and bound[other] > -inf and (now := errors.error_without(other)) < bound[other]:
                bound[other] = now
                heappush(self.heaps[self.city.plate[other]], (now, other))
