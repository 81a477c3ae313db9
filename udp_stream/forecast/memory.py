"""What a deployment remembers: the releases of today and of yesterday, in the order of their slots.

The memory ends by itself, so that a worker that starts later and reads two days of releases has the same forecasts as
one that ran all the time. Two banks do it: the older one has learnt from yesterday and today, the younger one from
today; at midnight the younger one becomes the older one.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.bank import FilterBank, Observed, Predicted
from udp_stream.forecast.one_thread import on_one_thread
from udp_stream.forecast.prior import SlotPrior

DAYS = 2
"""How many local days are remembered, the one of the slot among them."""


class Memory:
    """Forecasts of slots in their order; `day` is always the local date on which the slot starts.

    >>> no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
    >>> monday, cell, memory = dt.date(2024, 1, 8), np.array([7], np.uint64), Memory()
    >>> memory.learn(monday, Observed(cell, no_counts, np.array([30.0]), np.array([1.0]), np.array([True])))
    >>> forecasts = [memory.predict(monday + dt.timedelta(days), cell, no_counts).mean[0] for days in (0, 1, 2)]
    >>> [bool(forecast > 18) for forecast in forecasts]
    [True, True, False]
    """

    def __init__(self) -> None:
        """Nothing is known but what holds of any city."""
        self._day = dt.date.min
        self._older, self._younger = FilterBank(), FilterBank()

    @on_one_thread
    def predict(self, day: dt.date, cells: NDArray[np.uint64], prior: SlotPrior) -> Predicted:
        """The forecast of HATs in a slot of that day."""
        self._turn_to(day)
        return self._older.predict(cells, prior)

    @on_one_thread
    def guess(self, day: dt.date, prior: SlotPrior) -> Predicted:
        """What counts and the city alone say of HATs in a slot of that day."""
        self._turn_to(day)
        return self._older.guess(prior)

    @on_one_thread
    def learn(self, day: dt.date, seen: Observed) -> None:
        """What the slot's releases say."""
        self._turn_to(day)
        for bank in (self._older, self._younger):
            bank.learn(seen)

    def cells(self, day: dt.date) -> list[int]:
        """The cells that have been observed as far as is remembered on that day."""
        self._turn_to(day)
        return self._older.cells

    def _turn_to(self, day: dt.date) -> None:
        if day <= self._day:  # slots may close a little out of order around midnight
            return
        if (day - self._day).days < DAYS:
            self._older = self._younger
            self._older.next_day()
        else:
            self._older = FilterBank()
        self._younger, self._day = FilterBank(), day
