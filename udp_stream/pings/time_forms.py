"""The format of a sample of times: of those that its look allows, which reads nearly all of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from functools import cache
from typing import NamedTuple

import numpy as np

from udp_stream.pings.decode import YEAR_2000_MS, YEAR_2100_MS
from udp_stream.pings.repairs import SHARE_MIN, Value
from udp_stream.pings.times import (
    EPOCHS,
    ISO,
    NO_TIME,
    READ,
    TimeValue,
    as_float,
    count_in,
    number_of,
    plain_halves,
    read_times,
)

TIMES_MAX = 200
"""Times that are looked at."""

_DATES = (
    *(
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%d.%m.%Y",
        "%d-%m-%Y",
        "%m-%d-%Y",
        "%Y/%m/%d",
        "%Y-%m-%d",
        "%Y%m%d",
        "%Y.%m.%d",
    ),
    *(
        "%d/%m/%y",
        "%m/%d/%y",
        "%d.%m.%y",
        "%d %b %Y",
        "%d-%b-%Y",
        "%d %B %Y",
        "%b %d, %Y",
        "%b %d %Y",
        "%a, %d %b %Y",
    ),
)
_CLOCKS = (
    *("%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%S,%f", "%H:%M", "%H%M%S", "%H%M", "%H.%M.%S"),
    *("%I:%M:%S %p", "%I:%M %p", "%I:%M:%S%p", "%I:%M%p", "%p %I:%M:%S"),
)
_COUNT_MIN = 1e8
"""Seconds since 1970: what is less is no time of our days."""


class TimeForm(NamedTuple):
    """A format that reads nearly all of a sample. `has_offset`: times say how far they are from
    UTC. `span_ms`: of the whole sample. `is_ambiguous`: with day and month exchanged the format
    reads them over the same span."""

    time_format: str
    has_offset: bool
    span_ms: int
    is_ambiguous: bool = False


def found_time_form(values: Sequence[Value]) -> TimeForm | None:
    """The format of these times; None if they are no times. Of several patterns the shortest span
    decides, as a recording is of few days; then the day is first."""
    values = values[:: -(-len(values) // TIMES_MAX) or 1]  # from all over the sample
    times: list[TimeValue] = [
        value for value in values if isinstance(value, str | int | float) and value is not True
    ]
    least = SHARE_MIN * len(times)
    texts = [value for value in times if isinstance(value, str)]
    if not times or len(times) < SHARE_MIN * len(values):
        return None
    numbers = [
        number_of(count_in(value)) if isinstance(value, str) else as_float(value) for value in times
    ]
    is_count = sum(number is not None and number > _COUNT_MIN for number in numbers) >= least
    is_text = len(texts) >= least
    for one in (*(EPOCHS if is_count else ()), *((ISO,) if is_text else ())):
        if form := _form(times, one):
            return form
    forms = [
        form for one in (_patterns(texts[0]) if is_text else ()) if (form := _form(times, one))
    ]
    if not forms:
        return None
    best = min(forms, key=lambda form: form.span_ms)
    exchanged = re.sub("%d(.)%m", r"%m\1%d", best.time_format)
    same = {form.time_format for form in forms if form.span_ms == best.span_ms} - {best.time_format}
    return best._replace(is_ambiguous=exchanged in same)


def form_of_day(values: Sequence[Value], day: str) -> TimeForm | None:
    """The format of times of day without a date, as times of this day; None if they are no such."""
    if not all(":" in str(value) for value in values):
        return None
    form = found_time_form([f"01.01.2024 {value}" for value in values])
    clock = form and form.time_format.partition(" ")[2]
    return form and form._replace(time_format=f"{day} {clock}")


def _form(times: Sequence[TimeValue], time_format: str) -> TimeForm | None:
    time_ms, status = read_times(times, time_format, UTC)
    good = (status != NO_TIME) & (time_ms >= YEAR_2000_MS) & (time_ms < YEAR_2100_MS)
    if good.sum() < SHARE_MIN * len(times):
        return None
    says = (
        time_format in EPOCHS
        or (read_times(times, time_format, None)[1][good] == READ).mean() >= SHARE_MIN
    )
    return TimeForm(time_format, bool(says), int(np.ptp(time_ms[good])))


def _patterns(example: str) -> Iterator[str]:
    """Patterns that the example's look allows; what looks like an offset may be a year."""
    example = plain_halves(example)
    offset = re.search(r"( ?)(?:Z|[+-][0-9]{2}:?[0-9]{2})$", example)
    readings = [(f"{offset[1]}%z", example[: offset.start()])] if offset else []
    for tail, rest in readings if example.endswith("Z") else [("", example), *readings]:
        yield from (f"{pattern}{tail}" for pattern in _patterns_by_look()[look_of(rest)])


@cache
def _patterns_by_look() -> Mapping[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    dates_first = [
        f"{day}{joint}{clock}"
        for day in _DATES
        for joint in (" ", "T", ", ", "", "-")
        for clock in _CLOCKS
    ]
    clocks_first = [
        f"{clock}{joint}{day}" for day in _DATES for joint in (" ", ", ") for clock in _CLOCKS
    ]
    for pattern in [*dates_first, *clocks_first, "%a %b %d %H:%M:%S %Y"]:
        found[look_of(re.sub("%.", "0", re.sub("%[bBap]", "a", pattern)))].append(pattern)
    return found


def look_of(text: str) -> str:
    """A text with a 0 for each run of digits, and an a for each run of letters."""
    return re.sub(r"[^\W0-9_]+", "a", re.sub("[0-9]+", "0", text))
