"""The typical week of a city, from its records: rows by cell, class of day and hour. It is the usual
week that forecasts begin a day with (`forecast/usual_week.py`)."""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Final, Literal

import msgspec
import numpy as np

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.forecast.usual_week import (
    HAT_FEATURES,
    HOURS,
    LASTING,
    Arrow,
    HatWeek,
    SumsWeek,
    course,
    design,
    on_one_thread,
)
from udp_stream.mechanisms.base import NonNegative
from udp_stream.release.forecaster import unexplained_of, value_of
from udp_stream.release.record import Release, Smoothed

DayClass = Literal["weekday", "saturday", "sunday"]
CLASSES: Final[tuple[DayClass, ...]] = ("weekday", "saturday", "sunday")

DAYS_MAX: Final = 120
"""The newest days that a typical week is made of: a city is another after a season."""

OF_CLIPS: Final = 0.025
"""Deviation that all releases share, as plates' speeds are skewed and clips are narrow: recorded
days 1 %, made-up cities 2 %."""

OF_DAYS: Final = 1.0
"""Deviation of the city on a day, km/h: the days that there were are a sample of all days."""

TAIL: Final = 1.96
APART: Final = 30.0
"""Variance between the plates of a unit of traffic under "add-remove", km2/h2."""

SERVED: Final = 0.5
"""Least expected traffic of a row under "add-remove", in units of a fifth of a slot."""


class TypicalHour(msgspec.Struct, frozen=True):
    """The usual mean speed of a cell in an hour of such days, with a 95 % interval. `days` have a
    release of it; with 0 it is a guess. `changed` is the date on which the cell was found to be
    another for good, null for none; then earlier days tell the course of its day alone.

    >>> TypicalHour("8742d98b6ffffff", None, "weekday", 8, 14.2, 13.0, 15.5, 9).day
    'weekday'
    """

    cell: str
    place: str | None
    day: DayClass
    hour: int
    value_kmh: NonNegative
    low_kmh: NonNegative
    high_kmh: NonNegative
    days: int
    changed: str | None = None


def class_of(date: str, holidays: Collection[str] = ()) -> DayClass:
    """The kind of a local date.

    >>> class_of("2024-01-08"), class_of("2024-01-08", ["2024-01-08"]), class_of("2024-01-06")
    ('weekday', 'sunday', 'saturday')
    """
    if date in holidays:
        return "sunday"
    return ("weekday", "saturday", "sunday")[max(0, dt.date.fromisoformat(date).weekday() - 4)]


class Week:
    """Gathers records, in any order; `rows` has the typical week. A withdrawn release tells
    nothing, and an estimate nothing that its releases do not tell.

    >>> list(Week().rows())
    []
    """

    def __init__(self) -> None:
        self._cells: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._hats = array("d")
        self._sums = array("d")

    def add(self, record: Release | Smoothed) -> None:
        if isinstance(record, Smoothed):
            return
        hat = record.hat
        cell = self._cells.setdefault(hat.cell, len(self._cells))
        slot = self._slots.setdefault(hat.slot_start, len(self._slots))
        noised = record.noised
        if noised is not None:
            amount = noised.plates if noised.weight is None else noised.weight
            seen = noised.residual, amount or 0.0, noised.forecast_kmh, noised.sd**2
            self._sums.extend((slot, cell, *seen))
            return
        forecast = record.forecast
        known = () if forecast is None else forecast.prior
        prior = known if len(known) == HAT_FEATURES - 1 else (0.0,) * (HAT_FEATURES - 1)
        value, variance = (0.0, np.inf)
        if record.mean is not None:
            value, noise = value_of(record)
            variance = noise + unexplained_of(record)
        is_clipped = forecast is not None and forecast.clip is not None
        self._hats.extend((slot, cell, value, variance, *prior, is_clipped))

    @on_one_thread
    def rows(self, holidays: Collection[str] = ()) -> Iterator[TypicalHour]:
        """By cell, class and hour in which there were buses."""
        dates = sorted({start[:10] for start in self._slots})[-DAYS_MAX:]
        classes = {date: class_of(date, holidays) for date in dates}
        slots = sorted((start, at) for start, at in self._slots.items() if start[:10] in classes)
        found = [*self._of_hats(slots, classes), *self._of_sums(slots, classes)]
        return iter(sorted(found, key=lambda row: (row.cell, CLASSES.index(row.day), row.hour)))

    def _of_hats(
        self, slots: list[tuple[str, int]], classes: dict[str, DayClass]
    ) -> Iterator[TypicalHour]:
        week = HatWeek()
        week.numbers_of(np.arange(len(self._cells)))
        by_slot = _by_slot(self._hats, 4 + HAT_FEATURES)
        features = np.zeros((len(CLASSES), len(self._cells), HOURS, 1 + HAT_FEATURES))
        days = np.zeros(features.shape[:3], np.int64)
        for date, of_date in groupby(slots, key=lambda slot: slot[0][:10]):
            which = CLASSES.index(classes[date])
            seen = np.zeros(days.shape[1:], np.bool_)
            for start, slot in of_date:
                hats = by_slot.get(slot, np.zeros((0, 4 + HAT_FEATURES)))
                hour = int(start[11:13])
                there = hats[:, 1].astype(np.int64)
                features[which, there, hour] += np.column_stack([np.ones(len(hats)), hats[:, 4:]])
                told = hats[np.isfinite(hats[:, 3])]
                cells = told[:, 1].astype(np.int64)
                week.add(int(which > 0), hour, cells, told[:, 2], told[:, 3], told[:, 4:])
                seen[cells, hour] = True
            week.night(dt.date.fromisoformat(date))
            days[which] += seen
        of_days = list(classes.values())
        dates = np.array([of_days.count(one) for one in CLASSES])
        many = features[..., :1]
        features[..., -1] = 0.0
        usual = features[..., 1:] / np.maximum(many, 1)
        yield from self._rows(week.beliefs(), usual, many[..., 0] > 0, week.changed, days, dates)

    def _of_sums(
        self, slots: list[tuple[str, int]], classes: dict[str, DayClass]
    ) -> Iterator[TypicalHour]:
        by_slot = _by_slot(self._sums, 6)
        if not by_slot:
            return
        week = SumsWeek(len(self._cells), APART)
        there = np.zeros((len(CLASSES), len(self._cells), HOURS), np.bool_)
        days = there.astype(np.int64)
        dates = np.zeros(len(CLASSES), np.int64)
        for date, of_date in groupby(slots, key=lambda slot: slot[0][:10]):
            which = CLASSES.index(classes[date])
            seen = np.zeros(HOURS, np.bool_)
            for start, slot in of_date:
                sums = by_slot.get(slot, np.zeros((0, 6)))
                if len(sums) < len(self._cells):  # of another domain, or in part
                    continue
                sums = sums[np.argsort(sums[:, 1])]
                hour = int(start[11:13])
                noise = np.array([sums[0, 5], sums[0, 5] / 25])
                week.add(int(which > 0), hour, sums[:, 2:4].T, sums[:, 4], noise, 1.0)
                seen[hour] = True
            week.night(dt.date.fromisoformat(date))
            days[which] += seen
            dates[which] += seen.any()
        beliefs = week.beliefs()
        for which, hour in np.argwhere(days.any(axis=1)).tolist():
            there[which, :, hour] = week.expected_traffic(int(which > 0), hour) >= SERVED
        usual = np.broadcast_to(
            week.features[None, :, None], (*there.shape, week.features.shape[1])
        )
        yield from self._rows(beliefs, usual, there, week.changed, days, dates)

    def _rows(
        self, beliefs: Arrow, features: Floats, is_there: Flags,
        changed: Integers, days: Integers, dates: Integers,
    ) -> Iterator[TypicalHour]:  # fmt: skip
        """`days` tell of each class, cell and hour, `dates` of each class."""
        names = list(self._cells)
        for which, hour in np.argwhere(is_there.any(axis=1)).tolist():
            at = np.flatnonzero(is_there[which, :, hour])
            columns = design(
                course(hour + 0.5), int(which > 0), features[which, at, hour], np.zeros(at.size)
            )
            kmh, variance = beliefs.predict(at, columns)
            spread = variance + LASTING**2 + OF_DAYS**2 / max(1, dates[which])
            off = TAIL * np.sqrt(spread + (OF_CLIPS * kmh) ** 2)
            for cell, value, each in zip(at.tolist(), kmh.tolist(), off.tolist(), strict=True):
                since = int(changed[cell])
                yield TypicalHour(
                    names[cell],
                    None,
                    CLASSES[which],
                    hour,
                    _rounded(value),
                    _rounded(value - each),
                    _rounded(value + each),
                    int(days[which, cell, hour]),
                    dt.date.fromordinal(since).isoformat() if since else None,
                )


def _rounded(kmh: float) -> float:
    return round(max(kmh, 0.0), 2)


def _by_slot(kept: array[float], width: int) -> dict[int, Floats]:
    """The kept rows of each slot."""
    rows = np.frombuffer(kept, dtype=np.float64).reshape(-1, width)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    slots, starts = np.unique(rows[:, 0], return_index=True)
    return dict(zip(slots.astype(int).tolist(), np.split(rows, starts[1:]), strict=False))
