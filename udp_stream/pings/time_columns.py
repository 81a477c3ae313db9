"""Times as feeds write them to Unix milliseconds, a column at a time: ISO, counts from 1970, and patterns.

A time without an offset is local time of the feed's zone. Of an hour that the clock shows twice the first is meant; of
one that it leaves out, what the clock would have shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.mapping import EPOCHS, ISO
from udp_stream.pings.numbers import read_numbers
from udp_stream.pings.timestamps import NO_OFFSET, READ, UNREADABLE, parse_timestamps

TimeValue = str | int | float
"""A time as a message has it."""

Times = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Unix milliseconds, rounded down, and READ, UNREADABLE or NO_OFFSET."""

_MICROSECONDS_MAX = 2**62
_NEVER_MS = -(2**62)
"""Read, and before any time that is accepted."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_OFFSET = re.compile("(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})$")

_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2}
_ISO_FORM = b"0000-00-00T00:00:00Z"
_ISO_PLACES = {"Y": 0, "m": 5, "d": 8, "H": 11, "M": 14, "S": 17}
_ASCII_MAX = 127


def read_times(values: Sequence[TimeValue], time_format: str, zone: tzinfo | None) -> Times:
    """A column of times in one format.

    >>> from zoneinfo import ZoneInfo
    >>> read_times([1706159153, "1706159153.5"], "epoch_s", None)[0]
    array([1706159153000, 1706159153500])
    >>> read_times(["25/01/2024 10:35"], "%d/%m/%Y %H:%M", ZoneInfo("Asia/Kolkata"))
    (array([1706159100000]), array([0], dtype=uint8))
    >>> read_times(["2024-01-25T10:35:00"], "iso", None)[1].tolist() == [NO_OFFSET]
    True
    """
    if time_format in EPOCHS:
        return _from_epoch(values, EPOCHS[time_format])
    texts = [value if isinstance(value, str) else "" for value in values]
    if time_format != ISO:
        time_ms, status = _from_pattern(texts, time_format)
    elif zone is None:
        return parse_timestamps(texts)
    else:
        time_ms, status = _from_iso(texts)
    local = np.flatnonzero(status == NO_OFFSET)
    if zone is not None and local.size:
        status[local] = READ
        time_ms[local] -= _offsets_ms(time_ms[local], zone)
    return time_ms, status


def _from_iso(texts: Sequence[str]) -> Times:
    """Texts without an offset are NO_OFFSET, and their milliseconds those of UTC."""
    if texts and _OFFSET.search(texts[0]):  # then so have all, most likely
        time_ms, status = parse_timestamps(texts)
        local = np.flatnonzero(status == NO_OFFSET)
        time_ms[local] = parse_timestamps([f"{texts[row]}Z" for row in local.tolist()])[0]
        return time_ms, status
    time_ms, status = parse_timestamps([f"{text}Z" for text in texts])
    # What fails with a Z behind it may have an offset of its own.
    others = np.flatnonzero(status == UNREADABLE)
    status[status == READ] = NO_OFFSET
    time_ms[others], status[others] = parse_timestamps([texts[row] for row in others.tolist()])
    return time_ms, status


def _offsets_ms(local_ms: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    """How far the zone's clock is ahead of UTC when it shows these times; asked once a minute of them."""
    minutes, which = np.unique(local_ms // 60_000, return_inverse=True)
    return np.array([_offset_ms(minute, zone) for minute in minutes.tolist()], np.int64)[which]


def _offset_ms(minute: int, zone: tzinfo) -> int:
    try:
        shown = (_EPOCH + timedelta(minutes=minute)).replace(tzinfo=zone)
        return (shown.utcoffset() or timedelta(0)) // _MILLISECOND
    except OverflowError:  # at the ends of the calendar, where nothing is accepted
        return 0


def _from_epoch(values: Sequence[TimeValue], microseconds: int) -> Times:
    """Counts are rounded to a microsecond, then down: a fraction of seconds in binary falls short of its decimals."""
    count, bad = read_numbers(values)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.rint(count * microseconds)
        known = np.abs(exact) < _MICROSECONDS_MAX  # false for nan
    time_ms = np.where(known, exact, 0).astype(np.int64) // 1000
    time_ms[~known] = _NEVER_MS
    return time_ms, np.where(bad, UNREADABLE, READ).astype(np.uint8)


def _from_pattern(texts: Sequence[str], pattern: str) -> Times:
    """By rewriting as ISO where the pattern is of digits alone, which is five times as fast; by strptime otherwise.

    Texts without an offset are NO_OFFSET, and their milliseconds those of UTC.
    """
    size = len(texts)
    time_ms, status = np.zeros(size, np.int64), np.full(size, UNREADABLE, np.uint8)
    quick = _as_iso(texts, pattern)
    if quick is not None:
        time_ms, status = parse_timestamps(quick)
        status[status == READ] = NO_OFFSET
    known: dict[str, tuple[int, int]] = {}
    for row in np.flatnonzero(status == UNREADABLE).tolist():
        text = texts[row]
        if text not in known:
            known[text] = _parse_one(text, pattern)
        time_ms[row], status[row] = known[text]
    return time_ms, status


def _as_iso(texts: Sequence[str], pattern: str) -> list[str] | None:
    """The same times as ISO in UTC, and others for texts that need a look; None for a pattern of more than digits.

    All texts of a pattern of digits have one width, and each of its parts one place in it.
    """
    places: dict[str, list[int]] = {}
    literal: dict[int, int] = {}
    width = 0
    for part in filter(None, re.split("(%.)", pattern)):
        if part[0] != "%":
            literal |= {width + at: ord(character) for at, character in enumerate(part)}
        elif part[1] in places or part[1] not in _DIGITS:
            return None
        else:
            places[part[1]] = list(range(width, width + _DIGITS[part[1]]))
        width += len(part) if part[0] != "%" else _DIGITS[part[1]]
    if not set("YmdHM") <= set(places) or max(literal.values(), default=0) > _ASCII_MAX:
        return None
    fitting = [text if len(text) == width else "?" * width for text in texts]
    source = np.frombuffer("".join(fitting).encode("latin-1", "replace"), np.uint8).reshape(-1, width)
    iso = np.tile(np.frombuffer(_ISO_FORM, np.uint8), (len(texts), 1))
    for directive, first in _ISO_PLACES.items():
        if directive in places:
            iso[:, first : first + _DIGITS[directive]] = source[:, places[directive]]
    iso[(source[:, list(literal)] != list(literal.values())).any(axis=1)] = ord("?")
    joined, size = iso.tobytes().decode("latin-1"), len(_ISO_FORM)
    return [joined[first : first + size] for first in range(0, len(joined), size)]


def _parse_one(text: str, pattern: str) -> tuple[int, int]:
    try:
        moment = datetime.strptime(text, pattern)
        status = NO_OFFSET if moment.tzinfo is None else READ
        aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        milliseconds = (aware - _EPOCH) / _MILLISECOND
    except (ValueError, OverflowError):
        return 0, UNREADABLE
    return (int(milliseconds // 1), status) if isfinite(milliseconds) else (0, UNREADABLE)
