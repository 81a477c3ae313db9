"""The local search of `suppress_to`: move by move, the HAT of largest E gives a plate up or gets one back."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from udp_stream.planning.city import City


class Move(NamedTuple):
    """What may be done for a HAT: restore a row, suppress one, or both.

    `error` is the largest E that it leaves in the HATs concerned.

    >>> Move(0.5, restore=None, suppress=3).rows
    (3,)
    """

    error: float
    restore: int | None
    suppress: int | None

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that it changes."""
        return tuple(row for row in (self.restore, self.suppress) if row is not None)

    @property
    def turn(self) -> tuple[float, int, int]:
        """Of two moves the one with the least is made: the error, then no restore, then the lowest rows."""
        restore, suppress = (-1 if row is None else row for row in (self.restore, self.suppress))
        return self.error, restore, suppress


def even_out(city: City, hats_max: int) -> None:
    """Move by move, lower the largest E, as `suppress_to` says.

    >>> import numpy as np
    >>> from udp_stream.planning.worst_case import Occupancy
    >>> city = City(Occupancy(np.array([0, 3]), np.array([0, 1, 2]), np.array([9, 1, 1]), plates=3), 10**8)
    >>> even_out(city, hats_max=1)
    >>> city.outcome().keep.tolist()
    [False, True, True]
    """
    errors = city.errors
    worst = [(-errors.error(hat), hat) for hat in range(city.hats)]
    heapify(worst)
    for _ in range(len(city.plate)):
        while worst and -worst[0][0] != errors.error(worst[0][1]):
            heappop(worst)  # since replaced by a newer entry
        if not worst:
            return
        largest, hat = -worst[0][0], worst[0][1]
        move = min(_moves(city, hat, hats_max), key=lambda one: one.turn, default=None)
        if largest == inf and (move is None or move.error == inf):
            heappop(worst)  # lost, and no move brings it back
            continue
        if move is None or move.error >= largest:
            return
        _make(city, move)
        for row in move.rows:
            heappush(worst, (-errors.error(errors.rows.hat[row]), errors.rows.hat[row]))


def _make(city: City, move: Move) -> None:
    if move.restore is not None:
        city.restore(move.restore)
    if move.suppress is not None:
        city.suppress(move.suppress)


def _moves(city: City, hat: int, hats_max: int) -> Iterator[Move]:
    """All that may be done for a HAT."""
    errors, error = city.errors, city.errors.error(hat)
    for row in range(errors.rows_from[hat], errors.rows_from[hat + 1]):
        plate = city.plate[row]
        if errors.rows.kept[row]:
            yield Move(errors.error_without(row), restore=None, suppress=row)
        elif city.in_hats[plate] < hats_max:
            yield Move(errors.error_with(row), restore=row, suppress=None)
        elif (back := errors.error_with(row)) < error:
            for out in city.kept_rows(plate):  # a plate with no place left gives one up for this
                yield Move(max(back, errors.error_without(out)), restore=row, suppress=out)
