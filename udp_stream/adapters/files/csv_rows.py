"""Rows of CSV, as pandas flattens pings, to the JSON messages that they were.

Columns, in any order, others ignored: `license_plate`, `observationDateTime`, `speed`, and the coordinates as
`location.coordinates` with text such as `[72.83, 21.17]`, or as `location.coordinates.0` and `.1`, or as
`location.coordinates[0]` and `[1]`; `location.type` if there is one. An empty cell is a missing field. A cell that
holds a JSON number (or, for `location.coordinates`, array) becomes one; any other stays text, for the decoder to
refuse by its path.

Why rows become JSON, and are no `PingFormat` of their own: topics hold JSON, so `feed` needs the text anyway; what is
kept of a refused row is that text (docs); and whether a file is CSV is known from its content, once it is being read.

A row is a line: quoted cells cannot hold line breaks. A line that is no row of the header's width, or not UTF-8, is
passed on as it is, which no decoder takes for JSON.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator

import msgspec

from udp_stream.errors import UsageError

_JSON_NUMBER = re.compile(r"\s*(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*", re.ASCII)
_COORDINATES = "location.coordinates"
_SPLIT_COORDINATES = ((f"{_COORDINATES}.0", f"{_COORDINATES}.1"), (f"{_COORDINATES}[0]", f"{_COORDINATES}[1]"))

_encode = msgspec.json.Encoder().encode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode

_Row = list[str]
_Value = str | msgspec.Raw | list[str | msgspec.Raw]


def csv_messages(path: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    """A JSON ping for every line but the first, which names the columns; UsageError if one that is needed is absent.

    No line at all is no ping, as in any other file.

    >>> header = b"license_plate,observationDateTime,speed,location.coordinates"
    >>> list(csv_messages("f.csv", iter([header, b'A1,,nan,"[72.8, 21.1]"'])))
    [b'{"license_plate":"A1","location":{"coordinates":[72.8, 21.1]},"speed":"nan"}']
    """
    first = next(lines, None)
    if first is None:
        return
    header = [name.strip() for name in _cells(first) or []]
    column = {name: place for place, name in reversed(list(enumerate(header)))}  # of equal names, the first
    missing = [name for name in ("license_plate", "observationDateTime", "speed") if name not in column]
    read_coordinates = _coordinates_reader(column)
    if missing or read_coordinates is None:
        absent = ", ".join(missing + ([] if read_coordinates else [_COORDINATES]))
        raise UsageError(f"{path}: expected a CSV header with {absent}")
    plate, time, speed = column["license_plate"], column["observationDateTime"], column["speed"]
    location_type = column.get("location.type")
    for line in lines:
        row = _cells(line)
        if row is None or len(row) != len(header):
            yield line
            continue
        location = _present(
            type=row[location_type] if location_type is not None else "", coordinates=read_coordinates(row)
        )
        ping = _present(license_plate=row[plate], observationDateTime=row[time])
        if location:
            ping["location"] = location
        ping |= _present(speed=_number(row[speed]))
        yield _encode(ping)


def _cells(line: bytes) -> _Row | None:
    """The cells of a line, None if it is not UTF-8 or its quotes do not match."""
    try:
        return next(csv.reader([line.decode()], strict=True), None)
    except (UnicodeDecodeError, csv.Error):
        return None


def _present(**fields: _Value) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value != ""}


def _number(cell: str) -> str | msgspec.Raw:
    match = _JSON_NUMBER.fullmatch(cell)
    return msgspec.Raw(match[1].encode()) if match else cell


def _coordinates_reader(column: dict[str, int]) -> Callable[[_Row], _Value] | None:
    """How to get the coordinates out of a row, by what the columns are called."""
    if _COORDINATES in column:
        place = column[_COORDINATES]
        return lambda row: _array(row[place])
    for lon_name, lat_name in _SPLIT_COORDINATES:
        if lon_name in column and lat_name in column:
            lon, lat = column[lon_name], column[lat_name]
            return lambda row: [_number(row[lon]), _number(row[lat])] if row[lon] and row[lat] else ""
    return None


def _array(cell: str) -> str | msgspec.Raw:
    text = cell.strip().encode()
    try:
        _decode_array(text)
    except (msgspec.DecodeError, RecursionError):
        return cell
    return msgspec.Raw(text)
