"""Rows of cells to JSON: values at paths, as nested objects and arrays, and a template for rows that have all cells."""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter, methodcaller

import msgspec

from udp_stream.errors import UsageError
from udp_stream.pings.found import found_time_form, no_pings, odd_text, shown_names
from udp_stream.pings.mapping import FeedMapping, Path, steps_of
from udp_stream.pings.texts import trim
from udp_stream.pings.times import number_of

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


# Rows of CSV, as pandas flattens pings, to the JSON messages that they were.
#
# Columns are found by the paths of the feed's mapping, in any order, others ignored: `location.coordinates.0`, or as
# `location.coordinates[0]`; both coordinates may be one column `location.coordinates` with text such as `[72.83,
# 21.17]`. Cells are separated by a comma, a semicolon, a tab or a bar: the one by which the header has the columns,
# unless the mapping says which. An empty cell is a missing field. A cell of longitude, latitude or speed that holds a
# JSON number becomes one, also with a decimal comma where no comma separates; any other stays text, for the decoder to
# refuse by its path.
#
# Why rows become JSON, and are no `PingFormat` of their own: topics hold JSON, so `feed` needs the text anyway; what is
# kept of a refused row is that text (docs); and whether a file is CSV is known from its content, once it is being read.
#
# A row is a line: quoted cells cannot hold line breaks. A line that is no row of the header's width, or not UTF-8, is
# passed on as it is, which no decoder takes for JSON.
#
# A block of lines is read a column at a time: what most rows have in common is decided once for all of them. Rows that
# lack a cell, and blocks with anything odd in them, are read row by row, which decides.

DELIMITERS = (",", ";", "\t", "|")
"""What may separate cells, the likeliest first."""

ROW_NO_HEADER = (
    "the first line looks like a row, and not like a header: write the names of the columns above it, such as "
    "plate,time,lon,lat,speed. (A line that begins with # is left out: no header.)"
)

_JSON_NUMBER = re.compile(r"\s*(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*-?[0-9]+,[0-9]+\s*", re.ASCII)
_TYPE = ("location", "type")

_LOOKED_AT = 50
"""Lines by which a delimiter is found."""

_FEW = 16
"""As many cells are looked at one by one, where one of them is no plain number."""

_STAND_IN = "0"
"""In place of a cell that is not there, as any kind of column has it; the row is made anew."""

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_numbers = msgspec.json.Decoder(list[float]).decode

_Row = Sequence[str]


def csv_batches(path: str, runs: Iterator[list[bytes]], mapping: FeedMapping | None) -> Iterator[list[bytes]]:
    """A JSON ping for every line but the first, which names the columns; UsageError if one that is needed is absent.

    Without a mapping all columns are read. Lines come in runs of any length. No line at all is no ping, as in any other
    file.
    """
    first = next((run for run in runs if run), None)
    if first is None:
        return
    reader = _RowReader(_all_columns(path, first) if mapping is None else _columns(path, first[0], mapping))
    for run in chain([first[1:]], runs):
        if run:
            yield reader.messages(run)


def looks_like_csv(line: bytes, mapping: FeedMapping | None) -> bool:
    """Whether a first line is a header with a column for the plate, among others; without a mapping, of any columns.

    >>> looks_like_csv(b"license_plate;speed", FeedMapping()), looks_like_csv(b'{"license_plate":1,', FeedMapping())
    (True, False)
    """
    is_other = trim(line).startswith((b"{", b"[", b'"{', b'"[', b'"\\', b'" ', b"<"))
    plate = _name(mapping.steps["plate"]).encode() if mapping else b""
    return not is_other and plate in line and any(delimiter.encode() in line for delimiter in DELIMITERS)


def delimiter_of(lines: Sequence[bytes]) -> str:
    """The delimiter that cuts the most columns out of header and rows alike; "" if there is none."""
    widths = {one: [len(_cells(line, one) or []) for line in lines[:_LOOKED_AT]] for one in DELIMITERS}
    fitting = [
        one for one, (first, *rest) in widths.items() if first > 1 and 2 * rest.count(first) >= max(1, len(rest))
    ]
    return max(fitting, key=lambda one: widths[one][0], default="")


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which column has which value: the path where JSON has it, the place in a row, and how a cell is read."""

    delimiter: str
    width: int
    fields: tuple[tuple[Path, int, Cell], ...]


def _columns(path: str, line: bytes, mapping: FeedMapping) -> _Columns:
    delimiters = (mapping.delimiter,) if mapping.delimiter else DELIMITERS
    missing: list[str] = []
    for delimiter in delimiters:
        header = [_column_name(cell) for cell in _cells(line, delimiter) or []]
        fields, absent = _fields(header, mapping)
        if not absent:
            return _Columns(delimiter, len(header), fields)
        if not missing or len(absent) < len(missing):
            missing = absent
    if (kind := odd_text(line)) is not None:
        raise UsageError(f"{path}: expected text in UTF-8, found {kind}")
    raise UsageError(f"{path}: expected a CSV header with {', '.join(missing)}{_found_in(line, mapping)}")


def _all_columns(path: str, lines: Sequence[bytes]) -> _Columns:
    """Every column that a path can name; of two of one name the first."""
    delimiter = delimiter_of(lines)
    header = (_cells(lines[0], delimiter) if delimiter else None) or []
    if looks_like_row(header):
        raise UsageError(f"{path}: {ROW_NO_HEADER}")
    fields: dict[Path, int] = {}
    for at, name in enumerate(header):
        with suppress(ValueError):
            fields.setdefault(steps_of(name.strip()), at)
    if not fields:
        found = no_pings(b"\n".join(lines[:_LOOKED_AT])) or "text"
        raise UsageError(f"{path}: expected pings in CSV with a header and rows as wide, found {found}")
    return _Columns(delimiter, len(header), tuple((steps, at, Cell.ARRAY) for steps, at in fields.items()))


def _found_in(line: bytes, mapping: FeedMapping) -> str:
    """What the header has instead, by the separator that gives the most columns; no cell of what may be a row."""
    delimiters = (mapping.delimiter,) if mapping.delimiter else DELIMITERS
    cells = max((_cells(line, delimiter) or [] for delimiter in delimiters), key=len)
    if looks_like_row(cells):
        return f"; {ROW_NO_HEADER}"
    found = shown_names((cell.strip(),) for cell in cells)
    return f"; found {found}: `udp-stream init FILE` writes which is which" if found and len(cells) > 1 else ""


def looks_like_row(cells: Sequence[str]) -> bool:
    """Whether the cells of a first line are values: one is a number or a time. Then none of them may be shown.

    >>> looks_like_row(["AB12CDE", "2024-01-25T10:35:53Z", "on time"]), looks_like_row(["bus", "time", "coordinates.0"])
    (True, False)
    """
    return any(number_of(cell) is not None or found_time_form([cell]) is not None for cell in cells)


def _fields(header: Sequence[str], mapping: FeedMapping) -> tuple[tuple[tuple[Path, int, Cell], ...], list[str]]:
    """What the columns of a header are, and the names of those that it lacks."""
    place = {name: at for at, name in reversed(list(enumerate(header)))}  # of equal names, the first
    array = _array_of(mapping)
    joined = array if array is not None and _name(array) in place else None
    fields: list[tuple[Path, int, Cell]] = []
    missing: list[str] = []
    for field, path in mapping.leaves:
        if field == "longitude" and path[:1] == _TYPE[:1] and _name(_TYPE) in place:
            fields.append((_TYPE, place[_name(_TYPE)], Cell.TEXT))
        kind = Cell.TEXT if field in ("plate", "time") else Cell.NUMBER
        if joined is not None and field in ("longitude", "latitude"):
            if field == "longitude":
                fields.append((joined, place[_name(joined)], Cell.ARRAY))
        elif _name(path) in place:
            fields.append((path, place[_name(path)], kind))
        else:
            missing.append(_name(path if array is None or kind is Cell.TEXT or field == "speed" else array))
    return tuple(fields), sorted(dict.fromkeys(missing), key=lambda name: array is not None and name == _name(array))


def _array_of(mapping: FeedMapping) -> Path | None:
    """The array that has both coordinates, if one has."""
    lon, lat = mapping.steps["longitude"], mapping.steps["latitude"]
    is_one = lon[:-1] == lat[:-1] and isinstance(lon[-1], int) and len(lon) > 1
    return lon[:-1] if is_one else None


def _name(path: Path) -> str:
    """A column's name for a path."""
    return ".".join(map(str, path))


def _column_name(cell: str) -> str:
    """The same for a cell of a header, in whichever spelling of paths it is; another one stays as it is."""
    try:
        return _name(steps_of(cell.strip()))
    except ValueError:
        return cell.strip()


class _RowReader:
    """Rows of one header to JSON."""

    def __init__(self, columns: _Columns) -> None:
        self._columns = columns
        self._needed = [place for _, place, cell in columns.fields]
        self._template = Template([path for path, _, _ in columns.fields])

    def messages(self, lines: list[bytes]) -> list[bytes]:
        """A message for each line."""
        text = _plain_text(lines)
        if text is None:
            return [self._message(line, _cells(line, self._columns.delimiter)) for line in lines]
        if '"' not in text and (columns := self._flat(lines, text)) is not None:
            return self._joined(lines, columns)
        rows = self._rows(text)
        if len(rows) != len(lines):  # a quoted cell went on behind the end of its line, or a quote has no other
            return [self._message(line, _cells(line, self._columns.delimiter)) for line in lines]
        width = self._columns.width
        even = [row if len(row) == width else [""] * width for row in rows]
        return self._joined(lines, [list(map(itemgetter(place), even)) for place in self._needed])

    def _flat(self, lines: list[bytes], text: str) -> list[list[str]] | None:
        """The needed columns of rows without quotes, cut in one go; None if a row lacks a cell, or has one too many."""
        width, delimiter = self._columns.width, self._columns.delimiter
        if set(map(methodcaller("count", delimiter.encode()), lines)) != {width - 1}:
            return None
        cells = text.replace("\n", delimiter).split(delimiter)
        return [cells[place::width] for place in self._needed]

    def _rows(self, text: str) -> list[list[str]]:
        """The cells of all lines; none if a quote has no other."""
        lines, delimiter = text.split("\n"), self._columns.delimiter
        if '"' not in text:
            return [line.split(delimiter) for line in lines]
        try:
            return list(csv.reader(lines, delimiter=delimiter, strict=True))
        except csv.Error:
            return []

    def _joined(self, lines: list[bytes], columns: list[list[str]]) -> list[bytes]:
        """Messages of rows by their needed columns, which it may change; rows that lack a cell one by one, in their
        places."""
        lacking = sorted({row for column in columns for row in _empty(column)})
        for column in columns:
            for row in lacking:
                column[row] = _STAND_IN
        made = self._made(columns)
        for row in lacking:
            made[row] = self._message(lines[row], _cells(lines[row], self._columns.delimiter))
        return made

    def _made(self, columns: list[list[str]]) -> list[bytes]:
        """Messages of the needed columns, none of whose cells is empty."""
        cells = [cell for _, _, cell in self._columns.fields]
        return self._template.filled([self._column(*one) for one in zip(columns, cells, strict=True)])

    def _column(self, column: list[str], cell: Cell) -> Sequence[str]:
        """The JSON of a column's cells."""
        if cell is Cell.TEXT:
            joined = "".join(column)
            if joined.isprintable() and '"' not in joined and "\\" not in joined:
                return [f'"{text}"' for text in column]
        if cell is Cell.NUMBER:
            return self._numbers(column)
        return [_encode(self._value(text, cell)).decode() for text in column]

    def _numbers(self, column: list[str]) -> Sequence[str]:
        """The JSON of a column of numbers; a cell that needs a look of its own costs the cells around it little."""
        if (numbers := _numbers_at_once(column, self._columns.delimiter)) is not None:
            return numbers
        if len(column) <= _FEW:
            return [_encode(self._value(text, Cell.NUMBER)).decode() for text in column]
        half = len(column) // 2
        return [*self._numbers(column[:half]), *self._numbers(column[half:])]

    def _value(self, text: str, cell: Cell) -> str | msgspec.Raw:
        if cell is Cell.NUMBER:
            return _number(text, self._columns.delimiter)
        return _array(text) if cell is Cell.ARRAY else text

    def _message(self, line: bytes, row: _Row | None) -> bytes:
        """The message of one row, with the fields that are there; the line as it is if it is no row."""
        if row is None or len(row) != self._columns.width:
            return line
        found = [(path, row[place], cell) for path, place, cell in self._columns.fields]
        absent = {path[:-1] for path, text, _ in found if not text and isinstance(path[-1], int)}
        pairs = [
            (path, self._value(text, cell))
            for path, text, cell in found
            if text and not (isinstance(path[-1], int) and path[:-1] in absent)  # half an array would be another one
        ]
        return _encode(nested(pairs))


def _empty(column: list[str]) -> Iterator[int]:
    """The rows without a cell, which are few as a rule."""
    with suppress(ValueError):
        row = -1
        while True:
            yield (row := column.index("", row + 1))


def _plain_text(lines: list[bytes]) -> str | None:
    """The lines as one text, None if one of them needs a look of its own."""
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


def _numbers_at_once(column: list[str], delimiter: str) -> Sequence[str] | None:
    """The cells if all of them are numbers as JSON spells them, but for decimal commas; None if any needs a look."""
    joined = "\n".join(column)
    if joined.split() != column or (delimiter == "," and "," in joined):
        return None
    if "," in joined:
        joined = joined.replace(",", ".")
        column = joined.split("\n")
    try:
        numbers = _decode_numbers(f"[{joined}]".replace("\n", ","))
    except msgspec.DecodeError:
        return None
    return column if len(numbers) == len(column) else None


def _number(cell: str, delimiter: str) -> str | msgspec.Raw:
    if delimiter != "," and _DECIMAL_COMMA.fullmatch(cell):
        cell = cell.replace(",", ".")
    match = _JSON_NUMBER.fullmatch(cell)
    return msgspec.Raw(match[1].encode()) if match else cell


def _array(cell: str) -> str | msgspec.Raw:
    text = cell.strip().encode()
    try:
        _decode_array(text)
    except (msgspec.DecodeError, RecursionError):
        return cell
    return msgspec.Raw(text)
