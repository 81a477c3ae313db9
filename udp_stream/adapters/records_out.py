"""Records into files, in the form that the file's suffix names: `.ndjson` (any other suffix, too), `.csv`, `.geojson`,
`.parquet`, and each of the first three with `.gz` behind it.

Every form has the same fields: a row has a column for each field of the record's type, `mean.value_kmh` for a field in
a field. Where a field is null, so are its columns. A form that has an end (GeoJSON, Parquet) is whole only once it is
closed; a program that reads along needs `.ndjson` or `.csv`.
"""

from __future__ import annotations

import csv
import gzip
import io
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec

from udp_stream.errors import UsageError, needs
from udp_stream.windows.tables import cell_boundary

Kind = type[msgspec.Struct]

SUFFIXES: Final = ".csv", ".geojson", ".parquet"
"""Of the forms besides lines of JSON."""


_OTHERS: Final = (".xlsx", ".xls", ".ods", ".zip", ".bz2", ".xz", ".zst", ".tsv", ".kml", ".gpkg", ".shp", ".avro",
                 ".feather", ".arrow", ".orc", ".db", ".sqlite", ".html", ".xml", ".pdf")  # fmt: skip
"""Of forms that are not written: lines of JSON under such a name would be taken for what they are not."""


class Form(Protocol):
    """Takes records as their JSON bytes, the records of a slot together."""

    def write(self, payloads: Sequence[bytes]) -> None:
        """Write them and hand them on to the operating system."""
        ...

    def close(self) -> None:
        """Write what ends the form; the file stays open."""
        ...


def require_form(name: str) -> tuple[str, bool]:
    """The suffix of a name's form (any but ours: lines of JSON), and whether it is packed; to be asked before the file
    is opened, which empties it.

    UsageError for a form that cannot be packed, or that is known and not written; DependencyUnavailable if its library
    is not installed.

    >>> require_form("monday.csv.gz"), require_form("-")
    (('.csv', True), ('', False))
    """
    plain = name[:-3] if name.lower().endswith(".gz") else name
    if plain.lower().endswith(_OTHERS):
        raise UsageError(f"{name}: expected .ndjson, .csv, .geojson or .parquet, or .gz of the first three")
    suffix = next((suffix for suffix in SUFFIXES if plain.lower().endswith(suffix)), "")
    if suffix == ".parquet":
        if plain != name:
            raise UsageError(f"{name}: expected .parquet without .gz: it is packed by itself")
        with needs("PyArrow", "parquet"):
            import pyarrow.parquet  # noqa: F401
    return suffix, plain != name


@contextmanager
def records_out(name: str, out: BinaryIO, kind: Kind) -> Iterator[Callable[[Sequence[bytes]], None]]:
    """What writes records of this type to a file of this name, open as `out`. Raises what `require_form` does.

    >>> import io
    >>> from udp_stream.release.record import Release
    >>> from udp_stream.testing import released_slot
    >>> out = io.BytesIO()
    >>> with records_out("releases.csv", out, Release) as write:
    ...     write(list(released_slot().payloads.values()))
    >>> lines = out.getvalue().decode().splitlines()
    >>> len(lines), lines[0][:38]
    (3, 'schema,release_id,status,hat.cell,hat.')
    """
    suffix, is_packed = require_form(name)
    # Without name and time in its head, so that the same records give the same bytes.
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) if is_packed else None
    form = _form(suffix, typing.cast("BinaryIO", packed or out), kind)

    def write(payloads: Sequence[bytes]) -> None:
        form.write(payloads)
        if packed is not None:
            packed.flush()
        out.flush()

    try:
        yield write
    finally:
        form.close()
        if packed is not None:
            packed.close()
        out.flush()


def _form(suffix: str, out: BinaryIO, kind: Kind) -> Form:
    if suffix == ".csv":
        return _Csv(out, kind)
    if suffix == ".geojson":
        return _GeoJson(out, kind)
    if suffix == ".parquet":
        return _Parquet(out, kind)
    return _Lines(out)


class _Lines:
    """One JSON record a line, as the ledger has it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, payloads: Sequence[bytes]) -> None:
        self._out.write(b"".join(payload + b"\n" for payload in payloads))

    def close(self) -> None:
        pass


class _Csv:
    """A header, then a row a record; lists are JSON, null is empty."""

    def __init__(self, out: BinaryIO, kind: Kind) -> None:
        self._out, self._kind = out, kind
        self._out.write(csv_header(kind))

    def write(self, payloads: Sequence[bytes]) -> None:
        self._out.write(csv_rows(payloads, self._kind))

    def close(self) -> None:
        pass


class _GeoJson:
    """A FeatureCollection: the cell's hexagon, with the record as properties, one feature a line.

    A hexagon on the 180th meridian has two parts.
    """

    def __init__(self, out: BinaryIO, kind: Kind) -> None:
        self._out, self._names, self._is_first = out, [name for name, _ in columns(kind)], True
        self._out.write(b'{"type":"FeatureCollection","features":[')

    def write(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            record = msgspec.json.decode(payload)
            rings = [[ring] for ring in cell_boundary(int(record["hat"]["cell"], 16))]
            geometry: dict[str, object] = {"type": "Polygon", "coordinates": rings[0]}
            if len(rings) > 1:
                geometry = {"type": "MultiPolygon", "coordinates": rings}
            fields = flat(record)
            feature = {
                "type": "Feature",
                "geometry": geometry,
                "properties": {name: fields.get(name) for name in self._names},
            }
            self._out.write((b"\n" if self._is_first else b",\n") + msgspec.json.encode(feature))
            self._is_first = False

    def close(self) -> None:
        self._out.write(b"\n]}\n")


class _Parquet:
    """A row group a slot; lists are lists."""

    def __init__(self, out: BinaryIO, kind: Kind) -> None:
        import pyarrow
        import pyarrow.parquet

        types_of = {"text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64()}
        types_of |= {"flag": pyarrow.bool_()}
        types_of |= {f"{name} list": pyarrow.list_(of) for name, of in types_of.items()}
        self._schema = pyarrow.schema([(name, types_of[of]) for name, of in columns(kind)])
        self._table = pyarrow.Table
        self._writer = pyarrow.parquet.ParquetWriter(out, self._schema)

    def write(self, payloads: Sequence[bytes]) -> None:
        rows = [flat(msgspec.json.decode(payload)) for payload in payloads]
        if rows:
            full = [{name: row.get(name) for name in self._schema.names} for row in rows]
            self._writer.write_table(self._table.from_pylist(full, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def csv_header(kind: Kind) -> bytes:
    """The first line of a CSV of records of this type.

    >>> from udp_stream.release.record import Counts
    >>> csv_header(Counts)
    b'plates,samples,admitted_plates,used_samples\\n'
    """
    return _csv_lines([[name for name, _ in columns(kind)]])


def csv_rows(payloads: Sequence[bytes], kind: Kind) -> bytes:
    """A line for each record; lists are JSON, null is empty. No line of a record of ours has a newline in it.

    >>> from udp_stream.release.record import Counts
    >>> csv_rows([b'{"plates": 3, "samples": 40}'], Counts)
    b'3,40,,\\n'
    """
    names = [name for name, _ in columns(kind)]
    rows = [flat(msgspec.json.decode(payload)) for payload in payloads]
    return _csv_lines([[_cell(row.get(name)) for name in names] for row in rows])


def _csv_lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def flat(record: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A record's fields by their paths; objects are followed, lists are kept.

    >>> flat({"status": "released", "hat": {"center": [72.8, 21.2]}, "mean": None})
    {'status': 'released', 'hat.center': [72.8, 21.2], 'mean': None}
    """
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def columns(kind: Kind, before: str = "") -> list[tuple[str, str]]:
    """Name and type of each column of a record type: text, whole, number or flag, or a list of one of these.

    >>> from udp_stream.release.record import Counts
    >>> columns(Counts)[:2]
    [('plates', 'whole'), ('samples', 'whole')]
    """
    found: list[tuple[str, str]] = []
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        of = _without_null(hints[field.name])
        if isinstance(of, type) and issubclass(of, msgspec.Struct):
            found += columns(of, f"{before}{field.encode_name}.")
        else:
            found.append((f"{before}{field.encode_name}", _type_of(of)))
    return found


def _without_null(of: Any) -> Any:
    """`X | None` and annotated types as their X."""
    of = typing.get_args(of)[0] if typing.get_origin(of) is typing.Annotated else of
    if typing.get_origin(of) in (typing.Union, types.UnionType):
        (inner,) = [one for one in typing.get_args(of) if one is not type(None)]
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
    return value
