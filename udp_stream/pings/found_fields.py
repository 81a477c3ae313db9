"""The fields of a sample: which paths its records have, and what kind of values are there.

Names and kinds may be shown, values not: so what is for people's eyes is `shown_names`, which holds back a name that
may be a value itself, such as a key that is a plate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from udp_stream.pings.json_pieces import UNREADABLE, trim
from udp_stream.pings.mapping import Path

Value = str | int | float | bool | None
"""A value of JSON that is no object and no array."""

Record = Mapping[Path, Value]
"""A record, flat: the values at its paths."""

_DEPTH_MAX, _ELEMENTS_MAX, _FIELDS_MAX = 8, 16, 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z_ ./()°%-]{0,39}")
_DIGITS_MAX = 2
"""A name of more digits than this may be a plate."""

NAMES_MAX = 12
"""Names that one sentence shows."""

_decode = msgspec.json.Decoder().decode


def record_of(piece: bytes) -> Record | None:
    """One piece of JSON as a flat record; None if it is no object and no array, or cannot be read.

    >>> record_of(b'{"vehicle": {"id": "A1"}, "at": [72.8, 21.1], "stops": [{"id": 1}]}')
    {('vehicle', 'id'): 'A1', ('at', 0): 72.8, ('at', 1): 21.1, ('stops', 0, 'id'): 1}
    """
    try:
        value = _decode(trim(piece))
    except UNREADABLE:
        return None
    if not isinstance(value, dict | list):
        return None
    flat: dict[Path, Value] = {}
    _flatten(value, (), flat)
    return flat


def _flatten(value: object, path: Path, flat: dict[Path, Value]) -> None:
    if len(path) > _DEPTH_MAX or len(flat) >= _FIELDS_MAX:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, (*path, str(key)), flat)
    elif isinstance(value, list):
        for at, inner in enumerate(value[:_ELEMENTS_MAX]):
            _flatten(inner, (*path, at), flat)
    elif path and isinstance(value, str | int | float | None):
        flat[path] = value


def values_by_path(records: Sequence[Record]) -> dict[Path, list[Value]]:
    """The values of every path that at least half of the records have; nulls are left out.

    >>> values_by_path([{("id",): 1, ("x",): None}, {("id",): 2, ("GJ05",): 3}, {("id",): 3}])
    {('id',): [1, 2, 3]}
    """
    found: defaultdict[Path, list[Value]] = defaultdict(list)
    for record in records:
        for path, value in record.items():
            if value is not None:
                found[path].append(value)
    return {path: values for path, values in found.items() if 2 * len(values) >= len(records)}


def dotted(path: Path) -> str:
    """A path as `[source]` has it.

    >>> dotted(("location", "coordinates", 0))
    'location.coordinates.0'
    """
    return ".".join(map(str, path))


def is_shown(path: Path) -> bool:
    """Whether a path may be shown: its keys are words, and not what may be a plate.

    >>> is_shown(("vehicle", "id")), is_shown(("GJ05BX1916", "speed")), is_shown(("at", 0))
    (True, False, True)
    """
    return all(isinstance(step, int) or _is_word(step) for step in path)


def _is_word(name: str) -> bool:
    digits = sum(character.isdigit() for character in name)
    return digits <= _DIGITS_MAX and _NAME.fullmatch(re.sub(r"[0-9]", "a", name)) is not None


def shown_names(paths: Iterable[Path]) -> str:
    """The paths that may be shown, in one clause.

    >>> shown_names([("vehicle", "id"), ("A1", "B2C3D4"), ("speed",)])
    'vehicle.id, speed'
    """
    names = [dotted(path) for path in paths if is_shown(path)]
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
