"""Times and numbers as feeds write them, a column at a time: ISO, counts from 1970, patterns; 12.5
and "12,5".

What counts as a time is msgspec's rule (RFC 3339, with `t`, `z`, a space for the `T` and `+0530`
tolerated; no leap seconds, no 24:00, no year 0). Nine spellings of fixed widths are read as columns
of digits, 0.1 us each; every other text, and what fails there, goes to msgspec, 0.8 us each. Dates
are not given to numpy as text: a wrong date ends the process (numpy 2.4.6, "S19" to datetime64).

A time without an offset is local time of the feed's zone. Of an hour that the clock shows twice the
first is meant; in an hour that it leaves out, the clock is taken to go on. Its hours of 24 to 47,
as those of a service day, are of the next day.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from operator import itemgetter
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Floats, Integers

READ = 0
NO_TIME = 1
NO_OFFSET = 2

ISO = "iso"

EPOCHS = {"epoch_s": 10**6, "epoch_ms": 10**3, "epoch_us": 1}
"""Time formats that count from 1970-01-01 UTC, and how many microseconds their unit has."""

TimeValue = str | int | float
"""A time as a message has it."""

TimeColumns = tuple[Integers, NDArray[np.uint8]]
"""Unix milliseconds, rounded down, and READ, NO_TIME or NO_OFFSET (then the milliseconds are those
of UTC)."""

_SECONDS = "0000-00-00T00:00:00"
_MILLISECONDS = "0000-00-00T00:00:00.000"
_MICROSECONDS = "0000-00-00T00:00:00.000000"
_SPELLINGS = {
    len(date + offset): np.frombuffer((date + offset).encode(), np.uint8)
    for date in (_SECONDS, _MILLISECONDS, _MICROSECONDS)
    for offset in ("Z", "+00:00", "")
}
"""Spellings that are read as columns, by their widths. 0 stands for a digit, + for a sign."""

_FEWEST_AT_ONCE = 128  # below it msgspec is done before numpy has started
_COMMA = ord(",") - ord("+")  # it stands between + and -
_YEAR_1_MONTH = (1 - 1970) * 12

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECONDS_MAX = 2**62
_NEVER_MS = -(2**62)  # the latter is read, and before any time that is accepted

_NUMBER = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII
)
_DOT_NET = re.compile(r"/Date\((-?[0-9]+)(?:[+-][0-9]{4})?\)/", re.ASCII)
_HALF_OF_DAY = re.compile(r"(?<![^\W\d_])([ap])(?:\.\s?|\s)?m(?![^\W\d_])\.?", re.IGNORECASE)
_HALVES = {"上午": "AM", "下午": "PM", "오전": "AM", "오후": "PM", "π.μ.": "AM", "μ.μ.": "PM"}
_MIDNIGHT = re.compile(r"[T ]00:00(?::00(?:\.0+)?)?Z?$")  # behind a date, as data bases write it
_PAST_24 = re.compile("(?:(?<=[ T])|^(?=..:))(?:2[4-9]|3[0-9]|4[0-7])(?=:?[0-5][0-9])")
_DAY_MS = 86_400_000
TODAY = "today"
OF_A_DAY = re.compile(f"({TODAY}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}) (?=.*%)")
"""The beginning of a pattern that reads times of this day, or of the day on which they come."""
_WIDTHS = {"%H%M%S": 6, "%H%M": 4, "%Y%m%d": 8, "%d%m%Y": 8, "%m%d%Y": 8, "%y%m%d": 6, "%d%m%y": 6}
_FEW = 16  # texts that are read singly, where any of them is spelt otherwise
_decode_numbers = msgspec.json.Decoder(list[float]).decode


def read_times(values: Sequence[TimeValue], time_format: str, zone: tzinfo | None) -> TimeColumns:
    """A column of times in a single format: `iso`, one of `EPOCHS`, or a pattern of `strptime`,
    also of times of a day, such as `2024-03-05 %H:%M:%S`."""
    if time_format in EPOCHS:
        if time_format == "epoch_ms":
            values = [count_in(value) if isinstance(value, str) else value for value in values]
        return _from_epoch(values, EPOCHS[time_format])
    texts = [value if isinstance(value, str) else "" for value in values]
    if "%p" in time_format:
        texts = list(map(plain_halves, texts))
    if day := OF_A_DAY.match(time_format):
        if day[1] != TODAY:  # else they have got their day as they came
            texts = [f"{day[0]}{text.strip()}" for text in texts]
        time_format = OF_A_DAY.sub("%Y-%m-%d ", time_format)
    if time_format == ISO and zone is None:
        return parse_timestamps(texts)
    read = parse_timestamps if time_format == ISO else partial(_one_by_one, pattern=time_format)
    time_ms, status = read(texts)
    past = [row for row in np.flatnonzero(status == NO_TIME) if _PAST_24.search(texts[row])]
    if past:
        day_before = [
            _PAST_24.sub(lambda hour: f"{int(hour[0]) - 24:02}", texts[row]) for row in past
        ]
        time_ms[past], status[past] = read(day_before)
        time_ms[past] += _DAY_MS
    local = np.flatnonzero(status == NO_OFFSET)
    if zone is not None and local.size:
        status[local] = READ
        minutes, which = np.unique(time_ms[local] // 60_000, return_inverse=True)
        time_ms[local] -= np.array(
            [_offset_ms(minute, zone) for minute in minutes.tolist()], np.int64
        )[which]
    return time_ms, status


AHEAD_MS = 3_600_000
"""A clock that is further ahead shows a time of the day before."""


def on_its_day(clock: str, time_format: str, zone: tzinfo, now_ms: int) -> str:
    """A time of day with the latest day of the zone on which it is at most an hour ahead of now; as it
    is if the format does not read it."""
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    days = [f"{now + timedelta(days=ahead):%Y-%m-%d} {clock}" for ahead in (1, 0, -1, -2)]
    time_ms, status = read_times(days, time_format, zone)
    good = np.flatnonzero((status == READ) & (time_ms <= now_ms + AHEAD_MS))
    return days[good[0]] if good.size else clock


def plain_halves(text: str) -> str:
    """A time whose half of the day is `am` or `pm`, as `strptime` reads it.

    >>> plain_halves("04/03/2024 06:00:00\\u202fa. m."), plain_halves("6:00 P.M.")
    ('04/03/2024 06:00:00 am', '6:00 PM')
    """
    if not text.isascii():
        text = " ".join(text.split())
        for word, half in _HALVES.items():
            text = text.replace(word, half)
    return _HALF_OF_DAY.sub(lambda found: found[1] + ("M" if found[1].isupper() else "m"), text)


def joined_times(columns: Sequence[Sequence[str]], time_format: str) -> list[str]:
    """Times of several fields, such as a date and a time of day, with a blank between. Digits that
    lost their leading zeros, as numbers do, get them back; digits in the place of `%H:%M:%S` are
    seconds of the day."""
    columns = [*([_MIDNIGHT.sub("", text) for text in some] for some in columns[:-1]), columns[-1]]
    patterns = time_format.split(" ")
    if len(patterns) == len(columns):
        columns = [
            [_part(text, pattern) for text in some]
            for some, pattern in zip(columns, patterns, strict=True)
        ]
    return [" ".join(map(str.strip, parts)) for parts in zip(*columns, strict=True)]


def _part(text: str, pattern: str) -> str:
    if pattern == "%H:%M:%S" and text.isdecimal():
        minutes, second = divmod(int(text), 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return text.zfill(_WIDTHS.get(pattern, 0))


def count_in(text: str) -> str:
    """The milliseconds in a date as .NET writes it, whose offset is for people; another text as it
    is.

    >>> count_in("/Date(1709550000000-0500)/")
    '1709550000000'
    """
    found = _DOT_NET.fullmatch(text.strip())
    return found[1] if found else text


def parse_timestamps(texts: Sequence[str]) -> TimeColumns:
    """ISO texts. Fractions finer than a microsecond are rounded to it, as msgspec does, then
    milliseconds down."""
    time_ms = np.zeros(len(texts), np.int64)
    status = np.zeros(len(texts), np.uint8)
    unread = np.ones(len(texts), np.bool_)
    if len(texts) >= _FEWEST_AT_ONCE:
        widths = np.fromiter(map(len, texts), np.int64, len(texts))
        for width, template in _SPELLINGS.items():
            rows = np.flatnonzero(widths == width)
            if rows.size >= _FEWEST_AT_ONCE:
                chosen = texts if rows.size == len(texts) else itemgetter(*rows.tolist())(texts)
                time_ms[rows], read = _at_once(chosen, template)
                unread[rows] = ~read
                status[rows] = (
                    READ if template[-1] == ord("Z") or ord("+") in template else NO_OFFSET
                )
    rest = np.flatnonzero(unread)
    if rest.size:
        time_ms[rest], status[rest] = _one_by_one([texts[row] for row in rest.tolist()], ISO)
    return time_ms, status


def _at_once(texts: Sequence[str], template: NDArray[np.uint8]) -> tuple[Integers, Flags]:
    """Milliseconds of texts of the template's width, and where they are times in that spelling."""
    # Anything but ASCII becomes one byte that is no digit, so that texts stay aligned. A byte below
    # its template's wraps round, and so is above it by more than it may.
    letters = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8).reshape(
        -1, template.size
    )
    values = np.ascontiguousarray(letters.T) - template[:, None]
    freedom = np.where(
        template == ord("0"), np.uint8(9), np.where(template == ord("+"), np.uint8(2), np.uint8(0))
    )
    good = (values <= freedom[:, None]).all(axis=0)
    date = _one_if_alike(values[:10])
    ahead = _one_if_alike(values[-6:])
    month, day, hour, minute, second = (
        _two(date, 5),
        _two(date, 8),
        *(_two(values, place) for place in (11, 14, 17)),
    )
    months = (_two(date, 0).astype(np.int64) * 100 + _two(date, 2) - 1970) * 12 + month - 1
    start = (months[:1] if (months == months[0]).all() else months).astype("datetime64[M]")
    first, behind = (each.astype("datetime64[D]").astype(np.int64) for each in (start, start + 1))
    good &= (
        (months >= _YEAR_1_MONTH)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (day <= behind - first)
    )
    good &= (hour <= 23) & (minute <= 59) & (second <= 59)
    minutes = (first + day - 1) * 1440 + hour.astype(np.int64) * 60 + minute
    if ord("+") in template:
        sign = ahead[0]
        hours = _two(ahead, 1)
        rest = _two(ahead, 4)
        good &= (sign != _COMMA) & (hours <= 23) & (rest <= 59)
        offset = hours.astype(np.int64) * 60 + rest
        minutes -= np.where(sign == 0, offset, -offset)
    time_ms = minutes * 60_000 + second.astype(np.int64) * 1000
    if ord(".") in template:  # rounded down: digits behind the third do not count
        time_ms += _two(values, 20).astype(np.int64) * 10 + values[22]
    return time_ms, good


def _one_if_alike(places: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One column for all where all have the same there: mostly so for the date and the offset."""
    return places[:, :1] if (places == places[:, :1]).all() else places


def _two(places: NDArray[np.uint8], place: int) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = places[place] * np.uint8(10) + places[place + 1]
    return found


def _one_by_one(texts: Sequence[str], pattern: str) -> TimeColumns:
    """By msgspec for ISO, else by `strptime`; each text that is there several times is read once."""
    known = {text: _read_one(text, pattern) for text in set(texts)}
    found = np.array([known[text] for text in texts], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1].astype(np.uint8)


def _read_one(text: str, pattern: str) -> tuple[int, int]:
    try:
        moment = (
            msgspec.convert(text, datetime) if pattern == ISO else datetime.strptime(text, pattern)
        )
        if moment.tzinfo is not None:
            return (moment - _EPOCH) // _MILLISECOND, READ
        return (moment.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND, NO_OFFSET
    except (msgspec.ValidationError, ValueError, OverflowError):
        return 0, NO_TIME


def _offset_ms(minute: int, zone: tzinfo) -> int:
    """How far the zone's clock is ahead of UTC when it shows this minute."""
    try:
        shown = (_EPOCH + timedelta(minutes=minute)).replace(tzinfo=zone)
        return (shown.utcoffset() or timedelta(0)) // _MILLISECOND
    except OverflowError:  # at the ends of the calendar, where nothing is accepted
        return 0


def _from_epoch(values: Sequence[TimeValue], microseconds: int) -> TimeColumns:
    """Counts are rounded to a microsecond, then down: a fraction of seconds in binary falls short
    of its decimals."""
    count, bad = read_numbers(values)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.rint(count * microseconds)
        known = np.abs(exact) < _MICROSECONDS_MAX  # false for nan
    time_ms = np.where(known, exact, 0).astype(np.int64) // 1000
    time_ms[~known] = _NEVER_MS
    return time_ms, np.where(bad, NO_TIME, READ).astype(np.uint8)


def number_of(text: str) -> float | None:
    """The number in a text, infinite if it is beyond floating point; None if it is no number.
    Narrower than Python's `float`: no `nan`, no `inf`, no underscores. A comma is a decimal comma,
    and never separates thousands."""
    match = _NUMBER.fullmatch(text)
    return float(match[1].replace(",", ".")) if match else None


def as_float(number: float | str) -> float:
    """A number as a float: infinite if it is an integer beyond floating point."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def read_numbers(
    values: Sequence[float | str], number: Callable[[str], float | None] = number_of
) -> tuple[Floats, Flags]:
    """A column of numbers and texts, and where a text is no number (the column has nan there)."""
    bad = np.zeros(len(values), np.bool_)
    kinds = set(map(type, values))
    if str not in kinds:
        try:
            return np.fromiter(values, np.float64, len(values)), bad
        except OverflowError:  # an integer beyond floating point
            return np.fromiter(map(as_float, values), np.float64, len(values)), bad
    if kinds == {str}:
        # Nearly all texts are spelt as JSON spells numbers, but for commas: all together it takes a
        # tenth of the time. No text is more than one number: its commas are points by then, and a
        # line break gives one number too many.
        lines = "\n".join(cast(Sequence[str], values)).replace(",", ".")
        try:
            plain = _decode_numbers(f"[{lines}]".replace("\n", ","))
        except msgspec.DecodeError:
            plain = []
        if len(plain) == len(values):
            return np.array(plain), bad
        if len(values) > _FEW:  # so that an odd text costs those around it little
            half = len(values) // 2
            parts = [read_numbers(some, number) for some in (values[:half], values[half:])]
            column, is_bad = (np.concatenate(one) for one in zip(*parts, strict=True))
            return column, is_bad
    numbers = [number(value) if isinstance(value, str) else as_float(value) for value in values]
    bad[:] = [number is None for number in numbers]
    return np.array([np.nan if number is None else number for number in numbers], np.float64), bad
