"""CSV: lines under a header to columns, by the paths of the feed's mapping.

Columns are found by these paths, in any order, others ignored: `location.coordinates.0`, or as
`location.coordinates[0]`; both coordinates may be one column `location.coordinates` with text such
as `[72.83, 21.17]`. Cells are separated by a comma, a semicolon, a tab or a bar: by whichever the
header has the columns, unless the mapping says which. An empty cell is a missing field. A cell of
longitude, latitude or speed may have a decimal comma where no comma separates.

A message is a line: quoted cells cannot hold line breaks. A block of lines is read a column at a
time. Rows that lack a cell, or have an odd number, are made JSON, as they were before pandas, or
another writer, flattened them; the form's reader of JSON decides on them, and knows why. Topics
and journals have all rows so (`as_json`). A line that is no row of the header's width, or not
UTF-8, stays as it is, which no reader takes for JSON.
"""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import nan
from operator import itemgetter, methodcaller
from typing import Any

import msgspec
import numpy as np

from udp_stream.base.arrays import Flags, Floats
from udp_stream.base.errors import UsageError
from udp_stream.pings.advice import no_pings, odd_text
from udp_stream.pings.decode import (
    NOT_IN_ARRAY,
    PingFormat,
    WireBatch,
    WireColumns,
    columns_of,
)
from udp_stream.pings.found import shown_names
from udp_stream.pings.json import PLAIN, FeedForm, joined_plates, times_of
from udp_stream.pings.mapping import SECONDS_AGO, FeedMapping, Path, dotted, steps_of
from udp_stream.pings.texts import UNREADABLE, trim
from udp_stream.pings.time_forms import found_time_form
from udp_stream.pings.times import joined_times, number_of, read_numbers

Frames = Iterator[list[bytes]]
"""Messages, or lines, in runs."""

DELIMITERS = (",", ";", "\t", "|")
"""Separators of cells, the likeliest first."""

ROW_NO_HEADER = (
    "the first line looks like a row, and not like a header: write the names of the columns above it, such as "
    "plate,time,lon,lat,speed. (A line that begins with # is left out: no header.)"
)

_JSON_NUMBER = re.compile(r"\s*(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII)
_TYPE: Path = ("location", "type")

_LOOKED_AT = 50
"""Lines by which a delimiter is found."""

_encode = msgspec.json.Encoder().encode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_numbers = msgspec.json.Decoder(list[float]).decode


def opened_table(path: str, runs: Frames, form: FeedForm | None) -> tuple[PingFormat, Frames]:
    """The format of the lines behind a header, and these lines. UsageError if a column is missing.

    Without a form all columns are read. Lines come in runs of any length.
    """
    first = next((run for run in runs if run), None)
    if first is None:
        return (form or PLAIN).format, iter(())
    table = _all_columns(path, first) if form is None else _mapped_columns(path, first[0], form)
    return table.format, filter(None, chain([first[1:]], runs))


def looks_like_csv(line: bytes, mapping: FeedMapping | None) -> bool:
    """Whether a first line is a header with a column for the plate, among others; without a
    mapping, of any columns."""
    is_other = trim(line).startswith((b"{", b"[", b'"{', b'"[', b'"\\', b'" ', b"<"))
    plate = dotted(mapping.steps["plate"]).encode() if mapping else b""
    return (
        not is_other
        and plate in line
        and any(delimiter.encode() in line for delimiter in DELIMITERS)
    )


def looks_like_row(cells: Sequence[str]) -> bool:
    """Whether a cell of a first line is a number or a time: then it is no header, and no cell may
    be shown."""
    return any(number_of(cell) is not None or found_time_form([cell]) is not None for cell in cells)


def delimiter_of(lines: Sequence[bytes]) -> str:
    """The delimiter that cuts the most columns out of header and rows alike; "" if there is none."""
    widths = {
        one: [len(_cells(line, one) or []) for line in lines[:_LOOKED_AT]] for one in DELIMITERS
    }
    fitting = [
        one
        for one, (first, *rest) in widths.items()
        if first > 1 and 2 * rest.count(first) >= max(1, len(rest))
    ]
    return max(fitting, key=lambda one: widths[one][0], default="")


def _mapped_columns(path: str, line: bytes, form: FeedForm) -> _Table:
    mapping = form.mapping
    delimiters = (mapping.delimiter,) if mapping.delimiter else DELIMITERS
    headers = {delimiter: _cells(line, delimiter) or [] for delimiter in delimiters}
    lacking = list[list[Path]]()
    for delimiter, header in headers.items():
        columns = _places(header)
        wanted, missing = _wanted(columns, mapping)
        if not missing:
            fields = [(steps, columns[steps], cell) for steps, cell in wanted.items()]
            return _Table(delimiter, len(header), fields, form)
        lacking.append(missing)
    if (kind := odd_text(line)) is not None:
        raise UsageError(f"{path}: expected text in UTF-8, found {kind}")
    cells = max(headers.values(), key=len)
    least = min(lacking, key=lambda paths: len(paths))
    names = ", ".join(map(dotted, least))
    found = shown_names((cell.strip(),) for cell in cells)
    instead = (
        f"; found {found}: `udp-stream init FILE` writes which is which"
        if found and len(cells) > 1
        else ""
    )
    instead = f"; {ROW_NO_HEADER}" if looks_like_row(cells) else instead  # which shows no cell
    raise UsageError(f"{path}: expected a CSV header with {names}{instead}")


def _all_columns(path: str, lines: Sequence[bytes]) -> _Table:
    delimiter = delimiter_of(lines)
    header = (_cells(lines[0], delimiter) if delimiter else None) or []
    if looks_like_row(header):
        raise UsageError(f"{path}: {ROW_NO_HEADER}")
    if not (columns := _places(header)):
        found = no_pings(b"\n".join(lines[:_LOOKED_AT])) or "text"
        raise UsageError(
            f"{path}: expected pings in CSV with a header and rows as wide, found {found}"
        )
    fields = [(steps, at, Cell.ARRAY) for steps, at in columns.items()]
    return _Table(delimiter, len(header), fields, PLAIN)


def _places(header: Sequence[str]) -> dict[Path, int]:
    """The places of columns by their paths: without names that are no path, and of equal names the
    first."""
    found = dict[Path, int]()
    for at, name in enumerate(header):
        with suppress(ValueError):
            found.setdefault(steps_of(name.strip()), at)
    return found


def _wanted(
    columns: Mapping[Path, int], mapping: FeedMapping
) -> tuple[dict[Path, Cell], list[Path]]:
    lon = mapping.steps["longitude"]
    lat = mapping.steps["latitude"]
    is_array = lon[:-1] == lat[:-1] and isinstance(lon[-1], int) and len(lon) > 1
    array = lon[:-1] if is_array else None
    wanted = {_TYPE: Cell.TEXT} if lon[:1] == _TYPE[:1] and _TYPE in columns else {}
    for field, path in mapping.leaves:
        if array in columns and path[:-1] == array:
            wanted[path[:-1]] = Cell.ARRAY
        else:
            wanted[path] = Cell.TEXT if field in ("plate", "time") else Cell.NUMBER
    missing = [array if path[:-1] == array else path for path in wanted if path not in columns]
    return wanted, sorted(dict.fromkeys(missing), key=lambda path: path == array)


class Cell(enum.Enum):
    """How the cells of a column are read: as they are, as numbers, or as arrays where they are
    arrays of JSON."""

    TEXT = enum.auto()
    NUMBER = enum.auto()
    ARRAY = enum.auto()


@dataclass
class _Table:
    """Rows under a header. `fields`: the path of a value, its place in a row, how its cell is read."""

    delimiter: str
    width: int
    fields: Sequence[tuple[Path, int, Cell]]
    form: FeedForm

    def __post_init__(self) -> None:
        self.format = replace(
            self.form.format,
            read=self.read,
            split=lambda _: None,
            as_json=self.as_json,
            container=self.delimiter,
        )

    def read(self, lines: Sequence[bytes], max_message_bytes: int, max_pings: int) -> WireBatch:
        cells = self._cells(lines)
        lacks = np.zeros(len(lines), np.bool_)
        for path, column in cells.items():
            if path == _TYPE:
                lacks |= np.array([cell != "Point" for cell in column])
            elif "" in column:
                lacks |= np.array([not cell for cell in column])
        if self.form.mapping.time_format == SECONDS_AGO:
            lacks[:] = True
        rows = np.flatnonzero(~lacks).astype(np.int32)
        if rows.size < len(lines):
            some = rows.tolist()
            cells = {path: [column[row] for row in some] for path, column in cells.items()}
        wire, is_bad = self._columns(cells, rows.size)
        if is_bad.any():
            lacks[rows[is_bad]] = True
            rows = rows[~is_bad]
            wire = wire.taken(np.flatnonzero(~is_bad))
        odd = np.flatnonzero(lacks).astype(np.int32)
        position = np.full(rows.size, NOT_IN_ARRAY, np.int32)
        if not odd.size:
            return WireBatch((), rows, position, [], wire)
        messages = self.as_json([lines[row] for row in odd.tolist()])
        batch = self.form.format.read(messages, max_message_bytes, max_pings)
        message = np.append(rows, odd[batch.message])
        order = np.argsort(message, kind="stable")
        wire = wire.beside(batch.columns or columns_of(batch.pings)).taken(order)
        position = np.append(position, batch.position)[order]
        refusals = [replace(one, message=int(odd[one.message])) for one in batch.refusals]
        return WireBatch((), message[order], position, refusals, wire)

    def as_json(self, lines: Sequence[bytes]) -> list[bytes]:
        return [self._message(line) for line in lines]

    def _cells(self, lines: Sequence[bytes]) -> dict[Path, list[str]]:
        """The cells of each path; empty where a line is no row."""
        width = self.width
        delimiter = self.delimiter
        rows = list[list[str]]()
        if (text := _plain_text(lines)) is not None:
            if '"' not in text and set(map(methodcaller("count", delimiter.encode()), lines)) == {
                width - 1
            }:
                cells = text.replace("\n", delimiter).split(
                    delimiter
                )  # all together: quotes are the exception
                return {path: cells[place::width] for path, place, _ in self.fields}
            with suppress(csv.Error):  # a quote has no other
                rows = list(csv.reader(text.split("\n"), delimiter=delimiter, strict=True))
        if len(rows) != len(lines):  # or a quoted cell went on behind the end of its line
            rows = [_cells(line, delimiter) or [] for line in lines]
        even = [row if len(row) == width else [""] * width for row in rows]
        return {path: list(map(itemgetter(place), even)) for path, place, _ in self.fields}

    def _columns(self, cells: Mapping[Path, list[str]], size: int) -> tuple[WireColumns, Flags]:
        """So many rows as columns, and which of them have an odd number."""
        mapping = self.form.mapping
        plates = [cells[path] for path in mapping.plates]
        times = [cells[path] for path in mapping.times]
        time_ms, status = times_of(
            joined_times(times, mapping.time_format) if times[1:] else times[0], mapping
        )
        numbers = {"speed": np.zeros(size)}  # where none is read
        is_bad = np.zeros(size, np.bool_)
        for field, path in [*mapping.steps.items()][2:]:
            if path in cells:
                column, is_none = self._numbers(cells[path])
            else:
                column, is_none = _elements(cells[path[:-1]], path[-1])
            numbers[field] = column
            is_bad |= is_none
        plate = joined_plates(*plates) if plates[1:] else plates[0]
        lon = numbers["longitude"]
        lat = numbers["latitude"]
        return WireColumns(plate, time_ms, status, lon, lat, numbers["speed"]), is_bad

    def _numbers(self, cells: list[str]) -> tuple[Floats, Flags]:
        """A column of numbers, and where a cell is none: in the contract's form as JSON has them."""
        if not self.form.is_plain:
            return read_numbers(cells)
        column, is_none = read_numbers(cells, _json_number)
        if self.delimiter == "," and "," in "".join(cells):
            is_none |= np.array(["," in cell for cell in cells], np.bool_)
        return column, is_none

    def _message(self, line: bytes) -> bytes:
        """The JSON of a row, with the fields that it has; the line as it is if it is no row."""
        row = _cells(line, self.delimiter)
        if row is None or len(row) != self.width:
            return line
        found = [(path, row[place], cell) for path, place, cell in self.fields]
        absent = {path[:-1] for path, text, _ in found if not text and isinstance(path[-1], int)}
        pairs = [
            (path, self._value(text, cell))
            for path, text, cell in found
            if text
            and not (
                isinstance(path[-1], int) and path[:-1] in absent
            )  # half an array would be another
        ]
        return _encode(nested(pairs))

    def _value(self, text: str, cell: Cell) -> str | msgspec.Raw:
        if cell is Cell.NUMBER:
            return _number(text, self.delimiter)
        return _array(text) if cell is Cell.ARRAY else text


def _elements(cells: list[str], at: str | int) -> tuple[Floats, Flags]:
    """An element of arrays of numbers, such as `[72.83, 21.17]`, and where a cell is no such array."""
    found = [_element(cell, int(at)) for cell in cells]
    return np.array(found), np.isnan(found)


def _element(cell: str, at: int) -> float:
    try:
        return _decode_numbers(cell)[at]
    except (*UNREADABLE, IndexError):
        return nan


def nested(pairs: Iterable[tuple[Path, str | msgspec.Raw]]) -> Any:
    """Values at their paths; elements of arrays that have none are null. Keys are in the order of
    the pairs."""
    root = dict[str | int, Any]()
    for path, value in pairs:
        here = root
        for step in path[:-1]:
            if not isinstance(here.get(step), dict):
                here[step] = {}
            here = here[step]
        here[path[-1]] = value
    return _with_arrays(root)


def _with_arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = {step: _with_arrays(inner) for step, inner in value.items()}
    if not made or not all(isinstance(step, int) for step in made):
        return {str(step): inner for step, inner in made.items()}
    return [made.get(at) for at in range(max(made) + 1)]


def _plain_text(lines: Sequence[bytes]) -> str | None:
    """The lines as a single text, None if any of them needs a look of its own."""
    try:
        text = b"\n".join(lines).decode()
    except UnicodeDecodeError:
        return None
    text = text.replace("\r\n", "\n").removesuffix("\r")
    return None if "\r" in text or max(map(len, lines)) > csv.field_size_limit() else text


def _cells(line: bytes, delimiter: str) -> list[str] | None:
    """The cells of a line, None if it is not UTF-8 or its quotes do not match."""
    try:
        return next(csv.reader([line.decode()], delimiter=delimiter, strict=True), None)
    except (UnicodeDecodeError, csv.Error):
        return None


def _json_number(cell: str) -> float | None:
    match = _JSON_NUMBER.fullmatch(cell.replace(",", "."))
    return float(match[1]) if match else None


def _number(cell: str, delimiter: str) -> str | msgspec.Raw:
    match = _JSON_NUMBER.fullmatch(cell if delimiter == "," else cell.replace(",", "."))
    return msgspec.Raw(match[1].encode()) if match else cell


def _array(cell: str) -> str | msgspec.Raw:
    text = cell.strip().encode()
    try:
        _decode_array(text)
    except (msgspec.DecodeError, RecursionError):
        return cell
    return msgspec.Raw(text)
