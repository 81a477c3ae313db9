"""What a value of a setting may be, in words: from the types of the settings, and from msgspec's messages."""

from __future__ import annotations

import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}
_MESSAGE = re.compile(
    r"Expected `(?P<kinds>[a-z |]+)`(?: (?P<bound>[<>]=?) (?P<number>\S+))?(?P<length> of length [0-9]+)?"
    r"(?:, got (?:`[a-z]+`|[0-9]+))?$"
)


def words_of(kind: Any) -> list[str]:
    """The words that a setting of this type may be, or kinds of values beside them; none where it takes no word.

    >>> words_of(Literal["pure", "zcdp"] | Literal["auto"])
    ['pure', 'zcdp', 'auto']
    >>> words_of(Literal["auto"] | tuple[float, ...]), words_of(float | None), words_of(bool)
    (['auto', 'a list'], [], [])
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return words + [_kind_of(part) for part in parts if get_origin(part) is not Literal] if words else []


def _kind_of(kind: Any) -> str:
    origin = get_origin(kind)
    of = get_args(kind)[0] if origin is Annotated else origin or kind
    return _KINDS.get("array" if of is tuple else of.__name__, str(of))


def in_words(message: str) -> str:
    """A message of msgspec as our own say it; any other as it is.

    >>> in_words("Expected `float | null`, got `str`"), in_words("Expected `int` >= 1")
    ('expected a number', 'expected a whole number of at least 1')
    >>> in_words("Expected `array` of length 4, got 2"), in_words("Invalid time zone")
    ('expected a list of length 4', 'Invalid time zone')
    """
    found = _MESSAGE.match(message)
    if not found:
        return message
    kinds = [_KINDS.get(kind, kind) for kind in found["kinds"].split(" | ") if kind != "null"]
    bound = f" {_BOUNDS[found['bound']]} {found['number'].removesuffix('.0')}" if found["bound"] else ""
    return f"expected {' or '.join(kinds)}{bound}{found['length'] or ''}"
