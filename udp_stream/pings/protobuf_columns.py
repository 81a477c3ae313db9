"""Fields of many protobuf messages at once, as columns: one step reads the next field of every message.

The bytes are those that `protobuf` has opened: here nothing is checked but what would lead out of a message. What this
reader does not know to be read as `protobuf` reads it is `odd`, and is for the caller to read another way: a field that
is given twice, a group, a length that is no length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Values = NDArray[np.uint64]

VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5
"""Wire types. TEXT is whatever has a length: bytes, texts and messages."""

ABSENT = -1
"""The place of a field that a message has not."""

_CONTINUES, _SEVEN_BITS, _SHIFT, _VARINT_BYTES = 0x80, 0x7F, 7, 10
_KIND_BITS, _KIND = 3, 7
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_LENGTH_MAX = 2**31 - 1
"""Of a field, in bytes, by the encoding."""

_SPARE = np.zeros(_VARINT_BYTES, np.uint8)
"""Behind the last byte, so that a varint that is cut off ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One field of all messages. `start`: where its value is in the bytes, or ABSENT. `value`: the number of a varint,
    the bytes of a TEXT; 0 for others.

    >>> Column(np.array([4, ABSENT]), np.array([2, 0], np.uint64)).is_there.tolist()
    [True, False]
    """

    start: Places
    value: Values

    @property
    def is_there(self) -> NDArray[np.bool_]:
        """Which messages have the field."""
        there: NDArray[np.bool_] = self.start != ABSENT
        return there

    @property
    def end(self) -> Places:
        """Where a TEXT ends. One that is absent ends where it starts."""
        return self.start + self.value.astype(np.int64)


def tag(number: int, kind: int) -> int:
    """What stands before a field.

    >>> tag(4, TEXT)
    34
    """
    return number << _KIND_BITS | kind


def padded(data: bytes) -> Bytes:
    """The bytes as `columns` wants them.

    >>> padded(b"a")[:2].tolist()
    [97, 0]
    """
    return np.concatenate([np.frombuffer(data, np.uint8), _SPARE])


def columns(
    data: Bytes, start: Places, end: Places, tags: Sequence[int]
) -> tuple[dict[int, Column], NDArray[np.bool_]]:
    """Of messages that lie in `data` from `start` to `end` the fields with these tags; and which messages are odd.

    An empty message (`start` is its `end`, even if ABSENT) has no field. Columns of odd messages mean nothing.

    >>> data = padded(bytes.fromhex("08ac02120141"))
    >>> found, odd = columns(data, np.array([0, 3]), np.array([6, 6]), [tag(1, VARINT), tag(2, TEXT)])
    >>> found[8].value.tolist(), found[18].start.tolist(), odd.tolist()
    ([300, 0], [5, 5], [False, False])
    """
    size = start.size
    found = {each: Column(np.full(size, ABSENT), np.zeros(size, np.uint64)) for each in tags}
    odd = np.zeros(size, np.bool_)
    rows = np.flatnonzero(start < end)
    at, last = start[rows], end[rows]
    while rows.size:
        here, first = _varints(data, at)
        # Not behind the end: a tag that is cut off must not lead out of its message.
        value, first, after = _values(data, here, np.minimum(first, last))
        good = (after > at) & (after <= last)
        if not good.all():
            odd[rows[~good]] = True
            rows, first, after, last = rows[good], first[good], after[good], last[good]
            here, value = here[good], value[good]
        _keep(found, rows, here, first, value, odd)
        on = after < last
        rows, at, last = (rows, after, last) if on.all() else (rows[on], after[on], last[on])
    return found, odd


def floats(data: Bytes, start: Places) -> NDArray[np.float64]:
    """Of FIXED32 values that are floats; 0 where they are absent.

    >>> floats(padded(bytes.fromhex("0000aa41")), np.array([0, ABSENT])).tolist()
    [21.25, 0.0]
    """
    four = data[np.maximum(start, 0)[:, None] + np.arange(4)]
    with np.errstate(invalid="ignore"):  # some of the bit patterns that are no number make a cast complain
        return np.where(start == ABSENT, 0.0, four.view("<f4")[:, 0].astype(np.float64))


def _keep(
    found: Mapping[int, Column], rows: Places, here: Values, first: Places, value: Values, odd: NDArray[np.bool_]
) -> None:
    """What this step has read of the wanted fields."""
    for each, column in found.items():
        is_it = here == each
        if not is_it.any():
            continue
        ours, start, number = (rows, first, value) if is_it.all() else (rows[is_it], first[is_it], value[is_it])
        odd[ours] |= column.start[ours] != ABSENT
        column.start[ours], column.value[ours] = start, number


def _values(data: Bytes, here: Values, at: Places) -> tuple[Values, Places, Places]:
    """The numbers or lengths of values, where they start, and where they end: nowhere (0) for what has no such kind."""
    kind = here & np.uint64(_KIND)
    if (kind == kind[0]).all():  # messages of one feed are alike: nearly every step
        return _values_of(int(kind[0]), data, at)
    value, first, end = np.zeros_like(here), at.copy(), np.zeros_like(at)
    for each in np.unique(kind).tolist():
        is_it = kind == each
        value[is_it], first[is_it], end[is_it] = _values_of(each, data, at[is_it])
    return value, first, end


def _values_of(kind: int, data: Bytes, at: Places) -> tuple[Values, Places, Places]:
    """The same for values of one kind."""
    if kind in (VARINT, TEXT):
        value, after = _varints(data, at)
        if kind == VARINT:
            return value, at, after
        return value, after, np.where(value <= _LENGTH_MAX, after + value.astype(np.int64), 0)
    return np.zeros(at.size, np.uint64), at, at + _WIDTHS[kind] if kind in _WIDTHS else np.zeros_like(at)


def _varints(data: Bytes, at: Places) -> tuple[Values, Places]:
    """The numbers that start there, modulo 2^64, and where what follows starts."""
    byte = data[at]
    value, after = byte.astype(np.uint64), at + 1
    rows = np.flatnonzero(byte & _CONTINUES)
    if not rows.size:
        return value, after
    value &= np.uint64(_SEVEN_BITS)
    for place in range(1, _VARINT_BYTES):
        byte = data[np.minimum(at[rows] + place, data.size - 1)]
        value[rows] |= (byte & _SEVEN_BITS).astype(np.uint64) << np.uint64(_SHIFT * place)
        after[rows] = at[rows] + place + 1
        rows = rows[(byte & _CONTINUES) != 0]
        if not rows.size:
            break
    return value, after
