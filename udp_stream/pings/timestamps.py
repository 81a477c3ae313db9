"""Texts such as `2022-01-01T10:10:35+05:30` to Unix milliseconds, a batch at a time.

The rule for what counts as a time is msgspec's (RFC 3339, with `t`, `z`, a space for the `T` and `+0530` tolerated; no
leap seconds, no 24:00, no year 0). The six spellings that feeds really use have fixed widths and are read as columns of
digits, 0.1 us each instead of 0.8 us through `datetime`; every other text, and every one that fails there, is given
to msgspec one by one. So the fast way never decides that a text is wrong, and a test holds it to msgspec's answers.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

READ: Final = 0
UNREADABLE: Final = 1
NO_OFFSET: Final = 2

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

_EXAMPLES = (
    "2022-01-01T10:10:35Z",
    "2022-01-01T10:10:35.123Z",
    "2022-01-01T10:10:35.123456Z",
    "2022-01-01T10:10:35+05:30",
    "2022-01-01T10:10:35.123+05:30",
    "2022-01-01T10:10:35.123456+05:30",
)
"""One of each spelling that is read as columns; no two have the same width."""

_FEWEST_FOR_COLUMNS = 128  # below it msgspec, at 1 us a text, is done before numpy (150 us a call) has started

_COMMA = ord(",") - ord("+")  # it stands between + and -

_NO_DAYS = 0
# Month 0, and the last place, to which months above 12 are clipped, have no days: they give no date.
_DAYS_IN_MONTH = np.array([_NO_DAYS, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, _NO_DAYS], np.int32)
_DAYS_BEFORE_MONTH = np.cumsum(_DAYS_IN_MONTH, dtype=np.int32) - _DAYS_IN_MONTH
_DAYS_BEFORE_1970 = 719162  # from 0001-01-01


def parse_timestamps(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Unix milliseconds (UTC) of each text, and READ, UNREADABLE or NO_OFFSET (then the milliseconds are no time).

    Fractions finer than a microsecond are rounded to one (as msgspec does), then milliseconds are rounded down.

    >>> parse_timestamps(["1970-01-01T05:30:01.0019+05:30", "2022-01-01T00:00:00", "yesterday"])
    (array([1001,    0,    0]), array([0, 2, 1], dtype=uint8))
    """
    count = len(texts)
    time_ms = np.zeros(count, np.int64)
    unread = np.ones(count, np.bool_)
    status = np.zeros(count, np.uint8)
    if count >= _FEWEST_FOR_COLUMNS:
        widths = np.fromiter(map(len, texts), np.int64, count)
        width = int(np.median(widths))  # one feed, one spelling: nearly all have this width
        others = np.flatnonzero(widths != width)
        if width in _SPELLINGS and others.size <= count // 2:
            time_ms, read = _parse_fixed_width(_with_blanks(texts, others, width), _SPELLINGS[width])
            unread = ~read
            unread[others] = False
            time_ms[others], status[others] = parse_timestamps([texts[row] for row in others.tolist()])
    for row in np.flatnonzero(unread).tolist():
        time_ms[row], status[row] = _parse_one(texts[row])
    return time_ms, status


def _with_blanks(texts: Sequence[str], rows: NDArray[np.int64], width: int) -> Sequence[str]:
    """The same texts, but for those rows one of the given width that is no time."""
    if not rows.size:
        return texts
    replaced = list(texts)
    for row in rows.tolist():
        replaced[row] = "?" * width
    return replaced


def _parse_one(text: str) -> tuple[int, int]:
    try:
        moment = msgspec.convert(text, datetime.datetime)
    except msgspec.ValidationError:
        return 0, UNREADABLE
    if moment.tzinfo is None:
        return 0, NO_OFFSET
    return (moment - _EPOCH) // _MILLISECOND, READ


@dataclass(frozen=True, slots=True, eq=False)
class _Spelling:
    """A fixed width, made from an example. `template`: its bytes, with 0 for a digit and + for a sign. `freedom`: by
    how much a byte may be above the template's: 9 for a digit, 2 for a sign (+ , or -; the comma is refused later)."""

    template: NDArray[np.uint8]
    freedom: NDArray[np.uint8]
    has_fraction: bool
    has_offset: bool

    @classmethod
    def of(cls, example: str) -> _Spelling:
        template = np.frombuffer(re.sub("[0-9]", "0", example).encode(), np.uint8)
        freedom = np.where(template == ord("0"), 9, np.where(template == ord("+"), 2, 0)).astype(np.uint8)
        return cls(template, freedom, "." in example, "+" in example)


_SPELLINGS = {len(example): _Spelling.of(example) for example in _EXAMPLES}


def _parse_fixed_width(texts: Sequence[str], spelling: _Spelling) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Milliseconds of texts of the spelling's width, and which of them are times in that spelling."""
    places, good = _digits(texts, spelling)
    day, is_day = _date(places[:10])
    hour, minute, second = _two_digits(places, 11), _two_digits(places, 14), _two_digits(places, 17)
    good &= is_day & (hour <= 23) & (minute <= 59) & (second <= 59)
    minutes = day.astype(np.int64) * 1440 + (hour.astype(np.int64) * 60 + minute)
    if spelling.has_offset:
        offset, is_offset = _offset(places[-6:])
        good &= is_offset
        minutes -= offset
    time_ms = minutes * 60_000 + second.astype(np.int64) * 1000
    if spelling.has_fraction:  # rounded down: digits behind the third do not count
        time_ms += _two_digits(places, 20).astype(np.int64) * 10 + places[22]
    return time_ms, good


def _digits(texts: Sequence[str], spelling: _Spelling) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A row for each place in the texts, in which a digit stands as its value; and which texts follow the spelling.

    Anything but ASCII becomes one byte that is no digit, so that the texts stay aligned. A byte below its template's
    wraps round, and so is above it by more than it may.
    """
    joined = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8)
    places = np.ascontiguousarray(joined.reshape(-1, spelling.template.size).T) - spelling.template[:, None]
    good = np.asarray((places <= spelling.freedom[:, None]).all(axis=0))
    return places, good


def _date(places: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Days since 1970-01-01 of the ten places `YYYY-MM-DD`, and which are dates; one column if all are alike."""
    date = _first_if_all_alike(places)
    year = _two_digits(date, 0).astype(np.int32) * 100 + _two_digits(date, 2)
    return _days_since_1970(year, _two_digits(date, 5), _two_digits(date, 8))


def _offset(places: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Minutes ahead of UTC of the six places `+hh:mm`, and which of them are offsets; one column if all are alike."""
    zone = _first_if_all_alike(places)
    sign, hour, minute = zone[0], _two_digits(zone, 1), _two_digits(zone, 4)
    ahead = hour.astype(np.int64) * 60 + minute
    return np.where(sign == 0, ahead, -ahead), (sign != _COMMA) & (hour <= 23) & (minute <= 59)


def _first_if_all_alike(places: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One column to stand for all, if the texts have the same there: mostly so for the date and the offset."""
    return places[:, :1] if (places == places[:, :1]).all() else places


def _two_digits(places: NDArray[np.uint8], place: int) -> NDArray[np.uint8]:
    value: NDArray[np.uint8] = places[place] * np.uint8(10) + places[place + 1]
    return value


def _days_since_1970(
    year: NDArray[np.int32], month: NDArray[np.uint8], day: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Days since 1970-01-01 of proleptic Gregorian dates, and which of them are dates (day 0 of year 0 is none)."""
    before = year - 1
    century = year // 100
    is_leap = (year & 3 == 0) & ((century * 100 != year) | (century & 3 == 0))
    days_in_month = _DAYS_IN_MONTH.take(month, mode="clip") + (is_leap & (month == 2))
    days_before = _DAYS_BEFORE_MONTH.take(month, mode="clip") + (is_leap & (month > 2))
    # One more is taken off, as days of a month count from 1.
    days = before * 365 + before // 4 - before // 100 + before // 400 + days_before + day - (_DAYS_BEFORE_1970 + 1)
    return days, (year >= 1) & (day >= 1) & (day <= days_in_month)
