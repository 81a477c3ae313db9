"""The format of times, told from a sample of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo

import numpy as np

from udp_stream.pings.found_fields import Value
from udp_stream.pings.times import EPOCHS, ISO, NO_OFFSET, UNREADABLE, TimeValue, as_float, number_of, read_times

EARLIEST_MS, LATEST_MS = 946_684_800_000, 4_102_444_800_000
"""2000 to 2099: what a ping's time may be."""

_DATES = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y-%m-%d", "%Y%m%d", "%Y.%m.%d"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%b %d %Y", "%a, %d %b %Y"),
)
_CLOCKS = ("%H:%M:%S", "%H:%M:%S.%f", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H%M%S", "%H.%M.%S")
_JOINTS = (" ", "T", ", ", "", "-")
_PATTERNS = (
    *(f"{date}{joint}{clock}" for date in _DATES for joint in _JOINTS for clock in _CLOCKS),
    *(f"{clock}{joint}{date}" for date in _DATES for joint in (" ", ", ") for clock in _CLOCKS),
)
_DIRECTIVE = re.compile("%.")
_WORDS = ("%b", "%B", "%a", "%p")

_COUNT_MIN = 1e8
"""Seconds since 1970: what is less is no time of our days."""

_OFFSET_MAX = 14 * 60
"""Minutes: no clock is farther from UTC."""

_SHARE_MIN = 0.9
"""Of the sample, what a format must read."""


@dataclass(frozen=True, slots=True)
class TimeForm:
    """A format that reads nearly all of a sample. `has_offset`: times say how far they are from UTC.

    `span_ms` is from the first to the last of them, read as UTC where they do not say. `month_first`: the same
    format with day and month exchanged, where it reads them over the same span; else "".

    >>> found_time_form(["25.01.2024 10:35:00", "26.01.2024 09:00:00"])
    TimeForm(time_format='%d.%m.%Y %H:%M:%S', has_offset=False, span_ms=80700000, month_first='')
    """

    time_format: str
    has_offset: bool
    span_ms: int
    month_first: str = ""


def found_time_form(values: Sequence[Value]) -> TimeForm | None:
    """The format of these times; None if they are none.

    >>> found_time_form(["soon"]) is None, found_time_form([1706159153000]).time_format
    (True, 'epoch_ms')

    Where day and month could be either, the format that gives the shorter span: a recording is of few days. If that
    does not tell, the day is first.
    """
    times: list[TimeValue] = [value for value in values if isinstance(value, str | int | float) and value is not True]
    if not times or len(times) < _SHARE_MIN * len(values):
        return None
    numbers = [number_of(value) if isinstance(value, str) else as_float(value) for value in times]
    if sum(number is not None and number > _COUNT_MIN for number in numbers) >= _SHARE_MIN * len(times):
        forms = [form for one in EPOCHS if (form := _form(times, one)) is not None]
        if forms:
            return forms[0]
    if sum(isinstance(value, str) for value in times) < _SHARE_MIN * len(times):
        return None
    if (iso := _form(times, ISO)) is not None:
        return iso
    example = next(value for value in times if isinstance(value, str))
    forms = [form for pattern in _patterns(example) if (form := _form(times, pattern)) is not None]
    best = min(forms, key=lambda form: form.span_ms, default=None)
    if best is None:
        return None
    exchanged = re.sub("%d(.)%m", r"%m\1%d", best.time_format)
    others = (form.time_format for form in forms if form.span_ms == best.span_ms)
    return replace(best, month_first=next((one for one in others if one == exchanged != best.time_format), ""))


def _form(times: Sequence[TimeValue], time_format: str) -> TimeForm | None:
    zone: tzinfo = UTC
    time_ms, status = read_times(times, time_format, zone)
    good = (status != UNREADABLE) & (time_ms >= EARLIEST_MS) & (time_ms < LATEST_MS)
    if good.sum() < _SHARE_MIN * len(times):
        return None
    has_offset = time_format in EPOCHS or float(
        (read_times(times, time_format, None)[1][good] != NO_OFFSET).mean()
    ) >= _SHARE_MIN  # fmt: skip
    return TimeForm(time_format, has_offset, int(np.ptp(time_ms[good])))


def _patterns(example: str) -> list[str]:
    """Patterns that the example's look allows: digits stand where digits can stand, words where words can."""
    readings = [("", example)]  # as it is, too: what looks like an offset may be a year, as in 10:35 25-01-2024
    if match := re.search(r"( ?)[+-][0-9]{2}:?[0-9]{2}$", example):
        readings.append((f"{match[1]}%z", example[: match.start()]))
    elif example.endswith("Z"):
        readings = [("%z", example[:-1])]
    looks = [(tail, _look(rest)) for tail, rest in readings]
    fitting = [(pattern, _look(_DIRECTIVE.sub(_stand_in, pattern))) for pattern in _PATTERNS]
    return [f"{pattern}{tail}" for tail, look in looks for pattern, shape in fitting if shape == look]


def _stand_in(directive: re.Match[str]) -> str:
    return "a" if directive[0] in _WORDS else "0"


def _look(text: str) -> str:
    """A text with each run of digits as one, and each run of letters as one."""
    return re.sub(r"[^\W0-9_]+", "a", re.sub("[0-9]+", "0", text))


def offset_minutes(text: Value) -> int | None:
    """Minutes ahead of UTC that a text of a time says; 0 for Z, None if it says nothing.

    >>> offset_minutes("2024-01-25T10:35:00+05:30"), offset_minutes("2024-01-25T10:35:00Z"), offset_minutes("10:35")
    (330, 0, None)
    """
    if not isinstance(text, str):
        return None
    if re.search("[0-9][Zz]$", text):
        return 0
    match = re.search(r"[0-9. ]([+-])([0-9]{2}):?([0-9]{2})$", text)
    if match is None or len(text) < len("2024-01-25T10:35+05:30"):
        return None
    minutes = int(match[2]) * 60 + int(match[3])
    if minutes > _OFFSET_MAX:  # a year
        return None
    return -minutes if match[1] == "-" else minutes
