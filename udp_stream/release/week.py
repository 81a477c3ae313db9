"""The typical week of a city, from its records: rows by cell, class of day and hour
(`forecast/typical.py`)."""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Collection, Iterator
from typing import Final

import msgspec
import numpy as np

from udp_stream.arrays import Flags, Floats, Integers
from udp_stream.forecast.anomalies import ReleaseClip
from udp_stream.forecast.model import PER_HAT
from udp_stream.forecast.typical import (
    AT_KMH,
    CLASSES,
    HOURS,
    DayClass,
    ReleaseColumns,
    TypicalSpeeds,
    usual_week,
)
from udp_stream.mechanisms.base import NonNegative
from udp_stream.release.forecaster import clipped_of, unexplained_of, value_of
from udp_stream.release.record import Release, Smoothed

DAYS_MAX: Final = 120
"""The newest days that a typical week is made of: a city is another after a season."""

TOP_KMH: Final = 65.0

_RELEASE = 12
_COUNTS = 1 + PER_HAT
_GUESS = 1
"""Numbers of a release, of a HAT's counts, and of its guess, as they are kept."""


class TypicalHour(msgspec.Struct, frozen=True):
    """The usual mean speed of a cell in an hour of such days, with a 95 % interval. `days` have a
    release of it; with 0 it is a guess. `changed` is the date from which on the cell is another,
    null for none; then earlier days tell the course of its day alone.

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
    nothing.

    >>> list(Week().rows())
    []
    """

    def __init__(self) -> None:
        self._cells: dict[str, int] = {}
        self._dates: dict[str, int] = {}
        self._releases = array("d")
        self._counts = array("d")
        self._guesses = array("d")

    def add(self, record: Release | Smoothed) -> None:
        hat = record.hat
        date = hat.slot_start[:10]
        hour = int(hat.slot_start[11:13])
        cell = self._cells.setdefault(hat.cell, len(self._cells))
        place = cell, self._dates.setdefault(date, len(self._dates)), hour
        if isinstance(record, Smoothed):
            if record.release_id is not None:
                self._guesses.extend((*place, record.guess.counts_kmh))
            return
        forecast = record.forecast
        known = () if forecast is None else forecast.prior
        prior = known if len(known) == _COUNTS else (0.0,) * _COUNTS
        self._counts.extend((*place, *prior))
        if record.mean is not None:
            value, noise = value_of(record)
            off = 0.0 if forecast is None else forecast.deviation_kmh
            self._releases.extend(
                (*place, value, noise, unexplained_of(record), off**2, *clipped_of(record), *prior)
            )

    def rows(self, holidays: Collection[str] = ()) -> Iterator[TypicalHour]:
        """By cell, class and hour in which there were buses."""
        dates = sorted(self._dates)[-DAYS_MAX:]
        before: TypicalSpeeds | None = None
        found = list[TypicalHour]()
        for day in CLASSES:
            chosen = [date for date in dates if class_of(date, holidays) == day]
            if chosen and self._cells:
                usual, is_there = self._of_class(chosen, before)
                before = before or usual
                found += _rows(
                    sorted(self._cells, key=lambda cell: self._cells[cell]),
                    day,
                    usual,
                    is_there,
                    chosen,
                )
        yield from sorted(found, key=lambda row: (row.cell, CLASSES.index(row.day), row.hour))

    def _of_class(
        self, dates: list[str], before: TypicalSpeeds | None
    ) -> tuple[TypicalSpeeds, Flags]:
        cells = len(self._cells)
        number = np.full(len(self._dates), -1)
        number[[self._dates[date] for date in dates]] = np.arange(len(dates))
        counts, place = _of_days(self._counts, 3 + _COUNTS, number)
        of_guess, at_guess = _of_days(self._guesses, 3 + _GUESS, number)
        usual, many = _means(counts[:, 3:], place, cells)
        guess, guessed = _means(of_guess[:, 3:] / AT_KMH, at_guess, cells)
        releases, at = _of_days(self._releases, _RELEASE + _COUNTS, number)
        order = np.argsort(number[releases[:, 1].astype(np.int64)], kind="stable")
        releases = releases[order]
        (cell, day, hour) = (column[order] for column in at)
        scale = _scale(usual[many > 0])
        apart = (releases[:, 12:] - usual[cell, hour]) / scale
        clipped = [
            ReleaseClip(one[0], one[1], int(one[2]), one[3], one[4])
            for one in releases[:, 7:12].tolist()
        ]
        value, noise, unexplained, off = releases[:, 3:7].T
        seen = ReleaseColumns(cell, day, hour, value, noise, unexplained, off, clipped, apart)
        features = np.concatenate(
            [_standard(usual, many > 0), _standard(guess, guessed > 0)], axis=2
        )
        top = max(TOP_KMH, float(np.quantile(seen.value, 0.999)) if seen.value.size else 0.0)
        return usual_week(seen, features, len(dates), top, before), (many + guessed) > 0


def _of_days(
    kept: array[float], width: int, number: Integers
) -> tuple[Floats, tuple[Integers, Integers, Integers]]:
    """The kept rows of these days; their cells, numbers of their days, and hours."""
    rows = np.frombuffer(kept, dtype=np.float64).reshape(-1, width)
    rows = rows[number[rows[:, 1].astype(np.int64)] >= 0]
    cell, date, hour = rows[:, :3].astype(np.int64).T
    return rows, (cell, number[date], hour)


def _means(
    values: Floats, at: tuple[Integers, Integers, Integers], cells: int
) -> tuple[Floats, Floats]:
    """By cell and hour, and of how many."""
    total = np.zeros((cells, HOURS, values.shape[1]))
    many = np.zeros((cells, HOURS))
    np.add.at(total, (at[0], at[2]), values)
    np.add.at(many, (at[0], at[2]), 1)
    return total / np.maximum(many, 1)[:, :, None], many


def _scale(values: Floats) -> Floats:
    found: Floats = (
        np.maximum(values.std(axis=0), 1e-6) if len(values) else np.ones(values.shape[1])
    )
    return found


def _standard(values: Floats, known: Flags) -> Floats:
    here = values[known]
    if not len(here):
        return np.zeros(values.shape)
    found: Floats = np.where(known[:, :, None], (values - here.mean(axis=0)) / _scale(here), 0.0)
    return np.where(here.std(axis=0) > 1e-6, found, 0.0)


def _rows(
    cells: list[str],
    day: DayClass,
    usual: TypicalSpeeds,
    is_there: Flags,
    dates: list[str],
) -> Iterator[TypicalHour]:
    low = usual.low
    high = usual.high
    for at, hour in np.argwhere(is_there).tolist():
        mean, least, most = (round(float(one[at, hour]), 2) for one in (usual.mean, low, high))
        since = int(usual.changed[at])
        changed = dates[since] if since >= 0 else None
        yield TypicalHour(
            cells[at], None, day, hour, mean, least, most, int(usual.days[at, hour]), changed
        )
