"""Numbers as text, with a decimal point or a decimal comma: what feeds write that have no numbers, and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII)
_decode_numbers = msgspec.json.Decoder(list[float]).decode


def number_of(text: str) -> float | None:
    """The number that a text is, infinite if it is beyond floating point; None if it is none.

    Narrower than Python's `float`: no `nan`, no `inf`, no underscores. A comma is a decimal comma, never one of
    thousands.

    >>> number_of(" 12,5 "), number_of("-1e999"), number_of("1.234,5"), number_of("nan")
    (12.5, -inf, None, None)
    """
    match = _NUMBER.fullmatch(text)
    return float(match[1].replace(",", ".")) if match else None


def read_numbers(values: Sequence[float | str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column of numbers and texts, and where a text is no number (the column has nan there).

    >>> read_numbers([1.5, "2,5", "fast"])
    (array([1.5, 2.5, nan]), array([False, False,  True]))
    """
    size = len(values)
    bad = np.zeros(size, np.bool_)
    kinds = set(map(type, values))
    if str not in kinds:
        try:
            return np.fromiter(values, np.float64, size), bad
        except OverflowError:
            return np.fromiter(map(as_float, values), np.float64, size), bad
    if len(kinds) == 1 and (plain := _at_once([value for value in values if isinstance(value, str)])) is not None:
        return np.fromiter(plain, np.float64, size), bad
    numbers = [number_of(value) if isinstance(value, str) else as_float(value) for value in values]
    bad[[row for row, number in enumerate(numbers) if number is None]] = True
    return np.fromiter([np.nan if number is None else number for number in numbers], np.float64, size), bad


def as_float(number: float | str) -> float:
    """A number as a float: infinite if it is an integer beyond floating point.

    >>> as_float(7), as_float(10**400)
    (7.0, inf)
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _at_once(texts: Sequence[str]) -> list[float] | None:
    """The numbers of texts that are all spelt as JSON spells them, but for commas; None if any is not.

    Nearly all columns are: in one go it takes a tenth of the time. No text is more than one number: a comma within one
    is a point before the texts are put into an array, and a line break gives an array of more elements.
    """
    lines = "\n".join(texts).replace(",", ".")
    try:
        numbers = _decode_numbers(f"[{lines}]".replace("\n", ","))
    except msgspec.DecodeError:
        return None
    return numbers if len(numbers) == len(texts) else None
