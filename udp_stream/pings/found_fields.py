"""The fields of a sample: which paths its records have, and what kind of values are there.

Names and kinds may be shown, values not: so what is for people's eyes is `shown_names`, which holds back a name that
may be a value itself, such as a key that is a plate.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from udp_stream.pings.json import UNREADABLE, Path, first_element, steps_of, trim

Value = str | int | float | bool | None
"""A value of JSON that is no object and no array."""

Record = Mapping[Path, Value]
"""A record, flat: the values at its paths."""

KEYED = "*"
"""The step in place of the keys of an object that holds many objects: such keys are values, plates perhaps."""

BY_KEYS = (
    "pings stand under keys of their own, such as plates, which no path reaches: write one ping a line, with its key "
    "as a field"
)
"""What would help there."""

_DEPTH_MAX, _ELEMENTS_MAX, _FIELDS_MAX = 8, 16, 200
_KEYED_MIN = 16
"""Objects in one object from which on its keys are values, and no names."""

_NAME = re.compile(r"[^\W\d][\w ./()°%-]{0,39}")
_DIGITS_MAX = 1
"""A name of more digits than this may be a plate; so may one with a digit and no small letter."""

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
        objects = [inner for inner in value.values() if isinstance(inner, dict)]
        if len(objects) >= _KEYED_MIN:
            _flatten(objects[0], (*path, KEYED), flat)
            value = {key: inner for key, inner in value.items() if not isinstance(inner, dict)}
        for key, inner in value.items():
            _flatten(inner, (*path, str(key)), flat)
    elif isinstance(value, list):
        for at, inner in enumerate(value[:_ELEMENTS_MAX]):
            _flatten(inner, (*path, at), flat)
    elif path and isinstance(value, str | int | float | None):
        flat[path] = value


def values_by_path(records: Sequence[Record]) -> dict[Path, list[Value]]:
    """The values of every path that at least half of the records have; nulls are left out, and what no path reaches.

    >>> values_by_path([{("id",): 1, ("x",): None}, {("id",): 2, ("GJ05",): 3}, {("id",): 3}])
    {('id',): [1, 2, 3]}
    """
    found: defaultdict[Path, list[Value]] = defaultdict(list)
    for record in records:
        for path, value in record.items():
            if value is not None and KEYED not in path:
                found[path].append(value)
    return {path: values for path, values in found.items() if 2 * len(values) >= len(records) and is_reachable(path)}


def is_reachable(path: Path) -> bool:
    """Whether `[source]` can say this path: no key of it has a dot in it, or is of digits alone.

    >>> is_reachable(("vehicle", "id")), is_reachable(("vehicle.id",)), is_reachable(("0",))
    (True, False, False)
    """
    try:
        return steps_of(dotted(path)) == path
    except ValueError:
        return False


def common_paths(records: Sequence[Record]) -> list[Path]:
    """The paths that at least half of the records have, in the order of their names; of those, nulls too.

    >>> common_paths([{("x",): None, ("id",): 1}, {("id",): 2, ("AB12CDE", "t"): 3}, {("id",): 3, ("x",): 7}])
    [('id',), ('x',)]
    """
    found = Counter(path for record in records for path in record)
    return sorted((path for path, count in found.items() if 2 * count >= len(records)), key=dotted)


def are_by_key(records: Sequence[Record]) -> bool:
    """Whether pings stand under keys that are values: in an object of many objects, or each record under another.

    >>> are_by_key([{("AB12CDE", "t"): 3}, {("XY34FGH", "t"): 3}, {("LM56NOP", "t"): 3}]), are_by_key([{("id",): 1}])
    (True, False)
    """
    keyed = sum(any(KEYED in path for path in record) for record in records)
    nested = sum(any(len(path) > 1 for path in record) for record in records)
    return 2 * keyed > len(records) or (2 * nested > len(records) and not common_paths(records))


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


def leads_through_words(path: Path) -> bool:
    """The same of all keys but the last, where a field's own name tells that it is one.

    >>> leads_through_words(("vehicle", "LAT 02")), leads_through_words(("AB12CDE", "lat"))
    (True, False)
    """
    return is_shown(path[:-1])


def _is_word(name: str) -> bool:
    digits = sum(character.isdigit() for character in name)
    could_be_plate = digits > _DIGITS_MAX or (digits > 0 and not any(map(str.islower, name)))
    return name == KEYED or (not could_be_plate and _NAME.fullmatch(name) is not None)


def shown_names(paths: Iterable[Path]) -> str:
    """The paths that may be shown, in one clause; of the elements of an array, the first.

    >>> shown_names([("vehicle", "id"), ("A1", "B2C3D4"), ("at", 0, "x"), ("at", 1, "x"), ("speed",)])
    'vehicle.id, at.0.x, speed'
    """
    names = [dotted(path) for path in paths if is_shown(path) and not first_element(path)]
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
