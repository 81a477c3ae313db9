"""CSV: rows of cells to JSON messages, as they were before pandas, or another writer, flattened
them.

Columns are found by the paths of the feed's mapping, in any order, others ignored:
`location.coordinates.0`, or as `location.coordinates[0]`; both coordinates may be one column
`location.coordinates` with text such as `[72.83, 21.17]`. Cells are separated by a comma, a
semicolon, a tab or a bar: by whichever the header has the columns, unless the mapping says which.
An empty cell is a missing field. A cell of longitude, latitude or speed that holds a JSON number
becomes one, also with a decimal comma where no comma separates; any other stays text, for the
decoder to refuse by its path.

Rows become JSON because topics hold JSON, and so does what is kept of a refused row. A row is a
line: quoted cells cannot hold line breaks. A line that is no row of the header's width, or not
UTF-8, is passed on as it is, which no decoder takes for JSON.

A block of lines is read a column at a time. Rows that lack a cell, and blocks with anything odd in
them, are read row by row, which decides.
"""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any

import msgspec

from udp_stream.errors import UsageError
from udp_stream.pings.advice import no_pings, odd_text
from udp_stream.pings.found import shown_names
from udp_stream.pings.mapping import FeedMapping, Path, dotted, steps_of
from udp_stream.pings.texts import trim
from udp_stream.pings.time_forms import found_time_form
from udp_stream.pings.times import number_of

DELIMITERS = (",", ";", "\t", "|")
"""What may separate cells, the likeliest first."""

ROW_NO_HEADER = (
    "the first line looks like a row, and not like a header: write the names of the columns above it, such as "
    "plate,time,lon,lat,speed. (A line that begins with # is left out: no header.)"
)

_MARK = re.compile(
    "\x01([0-9]+)\x01"
)  # no name of a field looks so: in JSON control characters are escaped
_JSON_NUMBER = re.compile(r"\s*(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*-?[0-9]+,[0-9]+\s*", re.ASCII)
_TYPE: Path = ("location", "type")

_LOOKED_AT = 50
"""Lines by which a delimiter is found."""

_FEW = 16
"""As many cells are looked at singly, where one of them is no plain number."""

_STAND_IN = "0"
"""In place of a cell that is not there, as any kind of column has it; the row is made anew."""

_encode = msgspec.json.Encoder().encode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_numbers = msgspec.json.Decoder(list[float]).decode


def csv_batches(
    path: str, runs: Iterator[list[bytes]], mapping: FeedMapping | None
) -> Iterator[list[bytes]]:
    """A JSON ping for every line but the first, which names the columns. UsageError if a column is
    missing.

    Without a mapping all columns are read. Lines come in runs of any length.
    """
    first = next((run for run in runs if run), None)
    if first is None:
        return
    reader = (
        _all_columns(path, first) if mapping is None else _mapped_columns(path, first[0], mapping)
    )
    for run in chain([first[1:]], runs):
        if run:
            yield reader.messages(run)


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


def _mapped_columns(path: str, line: bytes, mapping: FeedMapping) -> _RowReader:
    delimiters = (mapping.delimiter,) if mapping.delimiter else DELIMITERS
    headers = {delimiter: _cells(line, delimiter) or [] for delimiter in delimiters}
    lacking: list[list[Path]] = []
    for delimiter, header in headers.items():
        columns = _places(header)
        wanted, missing = _wanted(columns, mapping)
        if not missing:
            fields = [(steps, columns[steps], cell) for steps, cell in wanted.items()]
            return _RowReader(delimiter, len(header), fields)
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


def _all_columns(path: str, lines: Sequence[bytes]) -> _RowReader:
    delimiter = delimiter_of(lines)
    header = (_cells(lines[0], delimiter) if delimiter else None) or []
    if looks_like_row(header):
        raise UsageError(f"{path}: {ROW_NO_HEADER}")
    if not (columns := _places(header)):
        found = no_pings(b"\n".join(lines[:_LOOKED_AT])) or "text"
        raise UsageError(
            f"{path}: expected pings in CSV with a header and rows as wide, found {found}"
        )
    return _RowReader(
        delimiter, len(header), [(steps, at, Cell.ARRAY) for steps, at in columns.items()]
    )


def _places(header: Sequence[str]) -> dict[Path, int]:
    """The places of columns by their paths: without names that are no path, and of equal names the
    first."""
    found: dict[Path, int] = {}
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


class _RowReader:
    """Rows of one header to JSON. `fields`: where JSON has a value, its place in a row, and how its
    cell is read."""

    def __init__(
        self, delimiter: str, width: int, fields: Sequence[tuple[Path, int, Cell]]
    ) -> None:
        self._delimiter = delimiter
        self._width = width
        self._fields = fields
        self._needed = [place for _, place, _ in fields]
        self._template = Template([path for path, _, _ in fields])

    def messages(self, lines: list[bytes]) -> list[bytes]:
        width = self._width
        delimiter = self._delimiter
        rows = list[list[str]]()
        if (text := _plain_text(lines)) is not None:
            if '"' not in text and set(map(methodcaller("count", delimiter.encode()), lines)) == {
                width - 1
            }:
                cells = text.replace("\n", delimiter).split(
                    delimiter
                )  # in one go: quotes are the exception
                return self._joined(lines, [cells[place::width] for place in self._needed])
            with suppress(csv.Error):  # a quote has no other
                rows = list(csv.reader(text.split("\n"), delimiter=delimiter, strict=True))
        if len(rows) != len(lines):  # or a quoted cell went on behind the end of its line
            return [self._message(line, _cells(line, delimiter)) for line in lines]
        even = [row if len(row) == width else [""] * width for row in rows]
        return self._joined(lines, [list(map(itemgetter(place), even)) for place in self._needed])

    def _joined(self, lines: list[bytes], columns: list[list[str]]) -> list[bytes]:
        """Messages of rows by their needed columns, which it may change. Rows that lack a cell are
        made singly."""
        odd = [column for column in columns if "" in column]
        lacking = sorted({row for column in odd for row, cell in enumerate(column) if not cell})
        for column in columns:
            for row in lacking:
                column[row] = _STAND_IN
        kinds = [cell for _, _, cell in self._fields]
        made = self._template.filled(
            [self._column(*one) for one in zip(columns, kinds, strict=True)]
        )
        for row in lacking:
            made[row] = self._message(lines[row], _cells(lines[row], self._delimiter))
        return made

    def _column(self, column: list[str], cell: Cell) -> Sequence[str]:
        """The JSON of a column's cells, in one go where none of them needs a look of its own."""
        if cell is Cell.TEXT:
            joined = "".join(column)
            if joined.isprintable() and '"' not in joined and "\\" not in joined:
                return [f'"{text}"' for text in column]
        if cell is Cell.NUMBER:
            if (numbers := _numbers_at_once(column, self._delimiter)) is not None:
                return numbers
            if len(column) > _FEW:  # so that an odd cell costs those around it little
                half = len(column) // 2
                return [*self._column(column[:half], cell), *self._column(column[half:], cell)]
        return [_encode(self._value(text, cell)).decode() for text in column]

    def _value(self, text: str, cell: Cell) -> str | msgspec.Raw:
        if cell is Cell.NUMBER:
            return _number(text, self._delimiter)
        return _array(text) if cell is Cell.ARRAY else text

    def _message(self, line: bytes, row: Sequence[str] | None) -> bytes:
        """The message of a row, with the fields that it has; the line as it is if it is no row."""
        if row is None or len(row) != self._width:
            return line
        found = [(path, row[place], cell) for path, place, cell in self._fields]
        absent = {path[:-1] for path, text, _ in found if not text and isinstance(path[-1], int)}
        pairs = [
            (path, self._value(text, cell))
            for path, text, cell in found
            if text
            and not (
                isinstance(path[-1], int) and path[:-1] in absent
            )  # half an array would be another one
        ]
        return _encode(nested(pairs))


def nested(pairs: Iterable[tuple[Path, str | msgspec.Raw]]) -> Any:
    """Values at their paths; elements of arrays that have none are null. Keys are in the order of
    the pairs."""
    root: dict[str | int, Any] = {}
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


class Template:
    """The JSON of a row, with holes for its values.

    >>> Template([("id",), ("at", 1), ("at", 0)]).filled([['"A1"'], ["21.1"], ["72.8"]])
    [b'{"id":"A1","at":[72.8,21.1]}']
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        marked = nested(
            [(path, msgspec.Raw(f"\x01{at}\x01".encode())) for at, path in enumerate(paths)]
        )
        text = _encode(marked).decode()
        self._order = [int(at) for at in _MARK.findall(text)]
        self._text = _MARK.sub("%s", text.replace("%", "%%"))

    def filled(self, columns: Sequence[Sequence[str]]) -> list[bytes]:
        """The JSON of every row; columns are in the order of the paths, their cells JSON."""
        rows = list(map(self._text.__mod__, zip(*(columns[at] for at in self._order), strict=True)))
        return (
            "\n".join(rows).encode().split(b"\n") if rows else []
        )  # JSON on one line has no line break


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
    """The cells if all of them are numbers as JSON spells them, but for decimal commas; None if any
    needs a look."""
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
