"""Rows of cells to JSON: values at paths, as nested objects and arrays, and a template for rows that have all cells."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

import msgspec

from udp_stream.pings.json import Path

_encode = msgspec.json.Encoder().encode

# No name of a field looks like a mark: in JSON a control character of a name is escaped.
_MARK = re.compile("\x01([0-9]+)\x01")


class Cell(enum.Enum):
    """What the cell of a column holds.

    >>> Cell.TEXT.name
    'TEXT'
    """

    TEXT = enum.auto()
    NUMBER = enum.auto()
    ARRAY = enum.auto()


def nested(pairs: Sequence[tuple[Path, str | msgspec.Raw]]) -> dict[str, object] | list[object]:
    """Values at their paths; elements of arrays that have none are null. Keys are in the order of the pairs.

    >>> nested([(("id",), "A1"), (("at", 1), "y"), (("at", 0), "x")])
    {'id': 'A1', 'at': ['x', 'y']}
    """
    root = _container(pairs[0][0][0] if pairs else "")
    for path, value in pairs:
        here = root
        for step, following in zip(path, (*path[1:], None), strict=True):
            if following is None:
                _put(here, step, value)
                break
            inner = _at(here, step)
            if not isinstance(inner, dict | list):
                inner = _container(following)
                _put(here, step, inner)
            here = inner
    return root


def _container(step: str | int) -> dict[str, object] | list[object]:
    """What a step leads into."""
    if isinstance(step, int):
        return []
    return {}


def _at(container: dict[str, object] | list[object], step: str | int) -> object:
    if isinstance(container, dict):
        return container.get(str(step))
    return container[step] if isinstance(step, int) and step < len(container) else None


def _put(container: dict[str, object] | list[object], step: str | int, value: object) -> None:
    if isinstance(container, dict):
        container[str(step)] = value
    elif isinstance(step, int):
        container.extend([None] * (step + 1 - len(container)))
        container[step] = value


class Template:
    """The JSON of a row, with holes for its values.

    >>> Template([("id",), ("at", 1), ("at", 0)]).filled([['"A1"'], ["21.1"], ["72.8"]])
    [b'{"id":"A1","at":[72.8,21.1]}']
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """A hole at each path."""
        marked = nested([(path, msgspec.Raw(f"\x01{at}\x01".encode())) for at, path in enumerate(paths)])
        text = _encode(marked).decode()
        self._order = [int(at) for at in _MARK.findall(text)]
        self._text = _MARK.sub("%s", text.replace("%", "%%"))

    def filled(self, columns: Sequence[Sequence[str]]) -> list[bytes]:
        """The JSON of every row; columns are in the order of the paths, their cells JSON."""
        rows = list(map(self._text.__mod__, zip(*(columns[at] for at in self._order), strict=True)))
        return "\n".join(rows).encode().split(b"\n") if rows else []  # JSON on one line has no line break
