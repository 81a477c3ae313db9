"""Texts such as `2022-01-01T10:10:35+05:30` to Unix milliseconds, a batch at a time.

The rule for what counts as a time is msgspec's (RFC 3339, with `t`, `z`, a space for the `T` and `+0530` tolerated; no
leap seconds, no 24:00, no year 0). The six spellings that feeds really use have fixed widths and are read as columns of
digits, 0.1 us each instead of 0.8 us through `datetime`; every other text, and every one that fails there, is given
to msgspec one by one. So the fast way never decides that a text is wrong, and a test holds it to msgspec's answers.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

READ: Final = 0
UNREADABLE: Final = 1
NO_OFFSET: Final = 2

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

# Width of the text -> (digits of the fraction, whether the offset is written as hours and minutes or as Z).
_SPELLINGS = {20: (0, False), 24: (3, False), 27: (6, False), 25: (0, True), 29: (3, True), 32: (6, True)}

_FEWEST_FOR_COLUMNS = 128  # below it msgspec, at 1 us a text, is done before numpy (150 us a call) has started

_NO_DAYS = 0
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
            time_ms, read = _parse_fixed_width(_with_blanks(texts, others, width), *_SPELLINGS[width])
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


def _parse_fixed_width(
    texts: Sequence[str], fraction_digits: int, has_offset: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Milliseconds of texts of one width, and which of them were spelled `YYYY-MM-DDThh:mm:ss[.fraction](Z|+hh:mm)`.

    Anything but ASCII becomes one byte that is no digit, so that the rows stay aligned.
    """
    fraction = "." + "0" * fraction_digits if fraction_digits else ""
    template = np.frombuffer(f"0000-00-00T00:00:00{fraction}{'+00:00' if has_offset else 'Z'}".encode(), np.uint8)
    freedom = 9 * (template == ord("0")).view(np.uint8) + 2 * (template == ord("+")).view(np.uint8)  # + , or -
    joined = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8)
    # One contiguous row per place in the text; digits become their values, and what is below its template wraps round.
    places = np.ascontiguousarray(joined.reshape(-1, template.size).T) - template[:, None]
    good: NDArray[np.bool_] = (places <= freedom[:, None]).all(axis=0)

    date = _first_if_all_alike(places[:10])
    year = _two_digits(date, 0).astype(np.int32) * 100 + _two_digits(date, 2)
    day, is_day = _days_since_1970(year, _two_digits(date, 5), _two_digits(date, 8))
    hour, minute, second = _two_digits(places, 11), _two_digits(places, 14), _two_digits(places, 17)
    good &= is_day & (hour <= 23) & (minute <= 59) & (second <= 59)
    minutes = day.astype(np.int64) * 1440 + (hour.astype(np.int64) * 60 + minute)
    if has_offset:
        zone = _first_if_all_alike(places[-6:])
        sign, offset_hour, offset_minute = zone[0], _two_digits(zone, 1), _two_digits(zone, 4)
        good &= (sign != ord(",") - ord("+")) & (offset_hour <= 23) & (offset_minute <= 59)
        offset = offset_hour.astype(np.int64) * 60 + offset_minute
        minutes -= np.where(sign == 0, offset, -offset)
    time_ms = minutes * 60_000 + second.astype(np.int64) * 1000
    if fraction_digits:
        time_ms += _two_digits(places, 20).astype(np.int64) * 10 + places[22]
    return time_ms, good


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
    days = before * 365 + before // 4 - before // 100 + before // 400 + days_before + day - (_DAYS_BEFORE_1970 + 1)
    return days, (year >= 1) & (day >= 1) & (day <= days_in_month)
