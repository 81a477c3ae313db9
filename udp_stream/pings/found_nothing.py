"""Why the fields that have the name of a ping's field cannot be it: by the kind of their values, never by a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from udp_stream.pings.found_fields import (
    Record,
    Value,
    common_paths,
    dotted,
    is_reachable,
    is_shown,
    values_by_path,
)
from udp_stream.pings.found_mapping import named_paths, unnamed_degrees
from udp_stream.pings.json import Path
from udp_stream.pings.times import number_of

_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{8}")
_NUMBER_AND_MORE = re.compile(r"[^0-9]*[0-9][0-9.,]*[^0-9]+\S*")
_POINT = re.compile(r"(SRID=\d+;)?\s*POINT ?Z? ?\(.*", re.IGNORECASE)

_SHARE = 0.9
"""Of the values, what a kind must hold for."""

_SHOWN_MAX = 4
"""Sentences."""


def reasons(fields: Sequence[str], records: Sequence[Record]) -> list[str]:
    """A sentence for each path that may be shown, has the name of one of these fields, and cannot be it.

    >>> reasons(["time"], [{("time",): "10:35:53", ("lat",): 21.1}] * 3)
    ['time: a time of day without its date: join the two']
    """
    values = values_by_path(records)
    sentences = list(_out_of_reach(fields, records))
    if {"longitude", "latitude"} & set(fields):
        sentences += [*_points(values), *_degrees(values)]
    for field in fields:
        rare = named_paths(field, _rare(records))
        sentences += [
            f"{dotted(path)}: absent or null in more than half of the records" for path in rare if is_shown(path)
        ]
    for field in fields:
        paths = (path for path in named_paths(field, values) if is_shown(path) and isinstance(path[-1], str))
        sentences += [f"{dotted(path)}: {_why_not(field, values[path])}" for path in paths]
    return list(dict.fromkeys(sentences))[:_SHOWN_MAX]


def missing_fields(fields: Sequence[str]) -> str:
    """What no field could be found for, where nothing tells more.

    >>> missing_fields(["plate"])
    'A ping needs a plate. If another field has it, write [source] by hand (docs/feeds.md); else the feed is of no use'
    """
    degrees = {"longitude": "a longitude in degrees", "latitude": "a latitude in degrees"}
    needed = ", ".join(degrees.get(field, f"a {field}") for field in fields)
    have = "another field has it" if len(fields) == 1 else "other fields have them"
    return f"A ping needs {needed}. If {have}, write [source] by hand (docs/feeds.md); else the feed is of no use"


def _out_of_reach(fields: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
    """Keys that no path reaches, if they are of digits, or have the name of one of these fields."""
    keys = [path for path in common_paths(records) if not is_reachable(path)]
    if any(isinstance(step, str) and step.isdecimal() for path in keys for step in path):
        yield "keys of digits alone, which paths take for places in an array: rename them"
    as_paths: dict[Path, list[Value]] = {tuple(dotted(path).split(".")): [] for path in keys}
    for field in fields:
        for path in filter(is_shown, named_paths(field, as_paths)):
            name = dotted(path)
            renamed = name.replace(".", "_")
            yield f"{name}: a key with a dot in it, which no path reaches: rename it, to {renamed} perhaps"


def _rare(records: Sequence[Record]) -> dict[Path, list[Value]]:
    """The paths that some records have a value at, and fewer than half."""
    found: dict[Path, list[Value]] = {}
    for record in records:
        for path, value in record.items():
            if value is not None:
                found.setdefault(path, []).append(value)
    return {path: values for path, values in found.items() if 2 * len(values) < len(records)}


def _points(values: Mapping[Path, Sequence[Value]]) -> Iterator[str]:
    for path, found in values.items():
        if is_shown(path) and _mostly(found, _POINT.fullmatch):
            yield f"{dotted(path)}: a point as text (WKT): write longitude and latitude apart"


def _degrees(values: Mapping[Path, list[Value]]) -> Iterator[str]:
    names = [dotted(path) for path in unnamed_degrees(values) if is_shown(path)]
    if len(names) == 2:
        yield f"{names[0]}, {names[1]}: degrees, which do not say which of the two is the longitude"


def _why_not(field: str, values: Sequence[Value]) -> str:
    numbers = sum(_number(value) is not None for value in values)
    if field == "time":
        if _mostly(values, _CLOCK.fullmatch):
            return "a time of day without its date: join the two"
        if _mostly(values, _DATE.fullmatch):
            return "a date without a time of day"
        return f"{_kind(numbers, values)}, which is no time that is known here"
    if field == "plate":
        return f"{_kind(numbers, values)}, which is no plate"
    if numbers < _SHARE * len(values):
        if _mostly(values, _NUMBER_AND_MORE.fullmatch):
            return "text with a number and more in it, such as its unit: leave the number alone"
        return f"{_kind(numbers, values)}, where a number is needed"
    if field == "speed":
        return "no number that is a speed"
    return "numbers that are no degrees: divide them, by 1e7 perhaps"


def _mostly(values: Sequence[Value], fits: Callable[[str], object]) -> bool:
    return sum(isinstance(value, str) and bool(fits(value.strip())) for value in values) >= _SHARE * len(values)


def _number(value: Value) -> float | None:
    if isinstance(value, str):
        return number_of(value)
    return None if value is None or isinstance(value, bool) else float(value)


def _kind(numbers: int, values: Sequence[Value]) -> str:
    if 2 * numbers > len(values):
        return "numbers"
    return "text" if 2 * sum(isinstance(value, str) for value in values) > len(values) else "true or false"
