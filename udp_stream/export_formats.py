"""Export: records as `.csv`, `.geojson`, `.parquet`, `.gz` of the first two, or lines of JSON (also
packed).

Every form has the same fields: a column for each field of the record's type, `mean.value_kmh` for a
nested field. Where a field is null, so are its columns. Statistics without a field of their own are
in lines of JSON alone.
"""

from __future__ import annotations

import csv
import gzip
import io
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from udp_stream.base.errors import UsageError, needs
from udp_stream.windows.grid import Grid, Ring, is_hole

Kind = type[msgspec.Struct]
PlaceOf = Callable[[str], str]

ROW_GROUP = 10_000
"""Records of a row group of Parquet."""

_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""How a formula begins, also in full width (OWASP, "CSV Injection")."""

_OTHERS = (".xlsx", ".xls", ".ods", ".zip", ".bz2", ".xz", ".zst", ".tsv", ".kml", ".gpkg", ".shp", ".avro",
                 ".feather", ".arrow", ".orc", ".db", ".sqlite", ".html", ".xml", ".pdf")  # fmt: skip
"""Suffixes of forms that are not written: lines of JSON under such a name would be taken for what
they are not."""


def require_format(name: str) -> tuple[str, bool]:
    """The form of a file of this name (any that is not known: lines of JSON), and whether it is
    packed; to be asked before the file is opened, which empties it.

    UsageError for a form that cannot be packed, or that is known and not written;
    DependencyUnavailable if its library is not installed.

    >>> require_format("monday.csv.gz"), require_format("-")
    (('csv', True), ('ndjson', False))
    """
    forms = *TEXTS, PARQUET
    plain = name[:-3] if name.lower().endswith(".gz") else name
    if plain.lower().endswith(_OTHERS):
        raise UsageError(
            f"{name}: expected a form that is written: {', '.join(forms)}, or .gz of the first"
        )
    form = next((form for form in forms if plain.lower().endswith(f".{form}")), LINES)
    if form == PARQUET:
        if plain != name:
            raise UsageError(f"{name}: expected .{form} without .gz: it is packed by itself")
        with needs("PyArrow", "parquet"):
            import pyarrow.parquet  # noqa: F401
    return form, plain != name


def write_export(name: str, lines: Iterable[bytes], out: BinaryIO, kind: Kind, grid: Grid) -> None:
    """Records, each its JSON and a line break, in the form of a file of this name. Raises as
    `require_format`."""
    form, is_packed = require_format(name)
    if form == PARQUET:
        _write_parquet(lines, out, kind)
        return
    pieces = TEXTS[form].pieces(lines, kind, grid, None)
    if is_packed:  # without name and time in its head, so that the same records give the same bytes
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed:
            packed.writelines(pieces)
    else:
        out.writelines(pieces)


def _csv(
    lines: Iterable[bytes],
    kind: Kind,
    grid: Grid,  # noqa: ARG001
    place_of: PlaceOf | None,
) -> Iterator[bytes]:
    names = [*(name for name, _ in columns(kind)), *(["place"] if place_of else [])]
    yield csv_line(names)
    for line in lines:
        row = flat(msgspec.json.decode(line))
        if place_of is not None:
            row["place"] = place_of(row["hat.cell"])
        yield csv_line([_cell(row.get(name)) for name in names])


def csv_line(row: Sequence[object]) -> bytes:
    """A row of CSV. Texts with a line break of any system are quoted, as a part of them could be
    read as a row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n").encode() + b"\n"


def as_text(value: object) -> object:
    """A text that a spreadsheet would take for a formula after an apostrophe; any other value as it
    is.

    >>> as_text("=1+1"), as_text("a-b"), as_text(-3.2)
    ("'=1+1", 'a-b', -3.2)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _geojson(
    lines: Iterable[bytes], kind: Kind, grid: Grid, place_of: PlaceOf | None
) -> Iterator[bytes]:
    """A FeatureCollection, a feature a line."""
    names = [name for name, _ in columns(kind)]
    between = b'{"type":"FeatureCollection","features":[\n'
    for line in lines:
        record = msgspec.json.decode(line)
        fields = flat(record)
        properties = {name: fields.get(name) for name in names}
        if place_of is not None:
            properties["place"] = place_of(record["hat"]["cell"])
        geometry = cell_geometry(record.get("cell") or record["hat"]["cell"], grid)
        feature = {"type": "Feature", "geometry": geometry, "properties": properties}
        yield between + msgspec.json.encode(feature)
        between = b",\n"
    yield b'{"type":"FeatureCollection","features":[\n]}\n' if between != b",\n" else b"\n]}\n"


def cell_geometry(cell: str, grid: Grid) -> dict[str, object]:
    """A cell as GeoJSON has it."""
    parts = list[list[Ring]]()
    for ring in grid.rings_of(grid.cell_of(cell)):
        if is_hole(ring):
            parts[-1].append(ring)
        else:
            parts.append([ring])
    is_one = len(parts) == 1
    return {
        "type": "Polygon" if is_one else "MultiPolygon",
        "coordinates": parts[0] if is_one else parts,
    }


def _write_parquet(lines: Iterable[bytes], out: BinaryIO, kind: Kind) -> None:
    import pyarrow
    import pyarrow.parquet

    types_of = {"text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64()}
    types_of |= {"flag": pyarrow.bool_()}
    types_of |= {f"{name} list": pyarrow.list_(of) for name, of in types_of.items()}
    types_of["number list list"] = pyarrow.list_(types_of["number list"])
    schema = pyarrow.schema([(name, types_of[of]) for name, of in columns(kind)])
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        rest = iter(lines)
        while some := list(islice(rest, ROW_GROUP)):
            rows = [flat(msgspec.json.decode(line)) for line in some]
            full = [{name: row.get(name) for name in schema.names} for row in rows]
            writer.write_table(pyarrow.Table.from_pylist(full, schema=schema))


def flat(record: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A record's fields by their paths; objects are followed, lists are kept."""
    found = dict[str, Any]()
    for name, value in record.items():
        found |= (
            flat(value, f"{before}{name}.")
            if isinstance(value, dict)
            else {f"{before}{name}": value}
        )
    return found


def columns(kind: Kind, before: str = "") -> list[tuple[str, str]]:
    """Name and type of each column of a record type: text, whole, number or flag, or a list of
    these."""
    config = kind.__struct_config__
    found = [(f"{before}{config.tag_field}", "text")] if config.tag else []
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        of = _without_null(hints[field.name])
        name = f"{before}{field.encode_name}"
        if isinstance(of, type) and issubclass(of, msgspec.Struct):
            found += columns(of, f"{name}.")
        elif typing.get_origin(of) is Mapping:  # its keys are a closed list
            keys, values = typing.get_args(of)
            found += [
                (f"{name}.{key}", _type_of(_without_null(values))) for key in typing.get_args(keys)
            ]
        elif typing.get_origin(of) is not dict:  # whose keys nobody knows beforehand
            found.append((name, _type_of(of)))
    return found


def _without_null(of: Any) -> Any:
    of = typing.get_args(of)[0] if typing.get_origin(of) is typing.Annotated else of
    if typing.get_origin(of) in (typing.Union, types.UnionType):
        (inner,) = set(typing.get_args(of)) - {type(None), msgspec.UnsetType}
        return _without_null(inner)
    return of


def _type_of(of: Any) -> str:
    if typing.get_origin(of) is tuple:
        return f"{_type_of(_without_null(typing.get_args(of)[0]))} list"
    if typing.get_origin(of) is Literal or of is str:
        return "text"
    return {bool: "flag", int: "whole", float: "number"}[of]


def _cell(value: object) -> object:
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return as_text(value)


class TextForm(NamedTuple):
    """A form of records: its media type, and how records become pieces of its text; with a last
    column `place`, by cell, if a function for places is given."""

    media_type: str
    pieces: Callable[[Iterable[bytes], Kind, Grid, PlaceOf | None], Iterable[bytes]]


LINES = "ndjson"
PARQUET = "parquet"

TEXTS = {
    LINES: TextForm("application/x-ndjson", lambda lines, *_: lines),
    "csv": TextForm("text/csv; charset=utf-8", _csv),
    "geojson": TextForm("application/geo+json", _geojson),
}
"""Texts by the suffix of a file's name, and by `form=` of the dashboard."""
