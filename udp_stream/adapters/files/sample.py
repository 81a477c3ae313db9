"""A sample of a file whose form is not known yet: its first megabytes as records, and what kind of file it is."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from udp_stream.adapters.files.beginnings import is_named_as_csv
from udp_stream.adapters.files.csv_rows import DELIMITERS, ROW_NO_HEADER, looks_like_row
from udp_stream.adapters.files.endings import as_far_as_whole
from udp_stream.adapters.files.sources import open_blocks
from udp_stream.errors import UsageError
from udp_stream.pings.found_fields import Record, record_of
from udp_stream.pings.json import ENVELOPES, UNREADABLE, Fault, Path, split_array, steps_of, trim, unwrap, whole_part
from udp_stream.pings.other_kinds import is_binary, is_utf8, no_pings, odd_text

SAMPLE_BYTES = 2**23
"""8 MiB of lines; some 20,000 pings of the exchange."""

DOCUMENT_BYTES = 2**28
"""One JSON document has to be read whole to be cut up."""

RECORDS_MAX = 5_000

_NEST_MAX = 4
_ROWS_LOOKED_AT = 50

_BROKEN_MAX = 0.05
"""Of the lines, those with a quote that does not end in them: fewer are faults of their rows."""

_WIDER = "rows of another number of cells than their header: are there separators at their ends?"

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class FileSample:
    """`delimiter`: of CSV, None for JSON. `envelope`: where messages have the array of records; empty for none.
    `damage`: a sentence if the file ends before its end, "" if not.

    >>> FileSample([{("id",): 1}], None, ("entity",)).envelope
    ('entity',)
    """

    records: Sequence[Record]
    delimiter: str | None
    envelope: Path
    damage: str = ""


def read_sample(path: str) -> FileSample:
    """The sample of a file. UsageError if it cannot be read, or is neither JSON nor CSV.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     size = file.write(b'{"entity": [{"id": "A1"}, {"id": "A2"}]}')
    ...     file.flush()
    ...     read_sample(file.name)
    FileSample(records=[{('id',): 'A1'}, {('id',): 'A2'}], delimiter=None, envelope=('entity',), damage='')
    """
    damages: list[str] = []
    with closing(open_blocks(path)) as whole:
        blocks = as_far_as_whole(whole, damages.append)
        text = _beginning(blocks)
        if not text.strip():
            raise UsageError(f"{path}: expected a sample of pings, and it is empty")
        if is_named_as_csv(path) or not text.lstrip().startswith((b"{", b"[", b'"{', b'"[', b'"\\')):
            sample = _of_csv(path, _whole_lines(text, is_cut=bool(damages)))
        else:
            sample = _of_json(path, text, blocks, damages)
    return replace(sample, damage=damages[0] if damages else "")


def _beginning(blocks: Iterator[bytes]) -> bytes:
    parts: list[bytes] = []
    while sum(map(len, parts)) < SAMPLE_BYTES and (block := next(blocks, b"")):
        parts.append(block)
    return b"".join(parts)


def _whole_lines(text: bytes, is_cut: bool = False) -> list[bytes]:
    """The lines of a text, without a last one that may be cut short by damage or by the sample's end."""
    lines = [line for line in text.split(b"\n") if line.strip()]
    is_cut = is_cut or len(text) >= SAMPLE_BYTES
    return lines[:-1] if is_cut and len(lines) > 1 and not text.endswith(b"\n") else lines


def _of_csv(path: str, lines: Sequence[bytes]) -> FileSample:
    """By the separator that cuts the most columns out of header and rows alike."""
    is_text = not is_binary(b"\n".join(lines[:_ROWS_LOOKED_AT]))
    if is_text and sum(line.count(b'"') % 2 for line in lines) > _BROKEN_MAX * len(lines):
        raise UsageError(f"{path}: a quoted cell holds a line break: write each row in one line")
    found = [(rows, one) for one in DELIMITERS if is_text and (rows := _rows(lines, one))]
    if not found:
        raise UsageError(f"{path}: expected pings in JSON, or in CSV with a header, and found {_instead(path, lines)}")
    rows, delimiter = max(found, key=lambda one: len(one[0][0]))
    if looks_like_row(rows[0]):
        raise UsageError(f"{path}: expected a CSV header: {ROW_NO_HEADER}")
    header = _header(rows[0])
    records = [_record(header, row) for row in rows[1 : RECORDS_MAX + 1]]
    return FileSample(records, delimiter, ())


def _instead(path: str, lines: Sequence[bytes]) -> str:
    """What it is that is no CSV."""
    first = lines[0]
    is_text = is_utf8(first) and not is_binary(first) and not first.lstrip().startswith((b"<", b"{", b"[", b'"{'))
    if is_text and (kind := odd_text(first, path)) is not None:
        return kind
    if is_text and any(one.encode() in first for one in DELIMITERS):
        return "a header with no row below it" if len(lines) == 1 else _WIDER
    return no_pings(b"\n".join(lines[:_ROWS_LOOKED_AT]), path) or _WIDER


def _rows(lines: Sequence[bytes], delimiter: str) -> list[list[str]]:
    """The rows in UTF-8 that are as wide as the header; none if it has one column or few rows fit it."""
    if not is_utf8(lines[0]):
        return []
    try:
        texts = [line.decode() for line in lines[: RECORDS_MAX + 1] if is_utf8(line)]
        rows = list(csv.reader(texts, delimiter=delimiter, strict=True))
    except csv.Error:
        return []
    if len(rows) < 2 or len(rows[0]) < 2:
        return []
    fitting = [row for row in rows if len(row) == len(rows[0])]
    return fitting if 2 * len(fitting[:_ROWS_LOOKED_AT]) >= len(rows[:_ROWS_LOOKED_AT]) else []


def _header(names: Sequence[str]) -> list[Path | None]:
    """The path of each column; None for one that has none, or the path of one before it: the first is read."""
    first = {path: at for at, path in reversed(list(enumerate(map(_steps, names))))}
    return [path if first[path] == at else None for at, path in enumerate(map(_steps, names))]


def _steps(name: str) -> Path | None:
    try:
        return steps_of(name.strip())
    except ValueError:
        return None


def _record(header: Sequence[Path | None], row: Sequence[str]) -> Record:
    """A row; a cell that is JSON's array is its elements."""
    record: dict[Path, str | int | float | bool | None] = {}
    for path, cell in zip(header, row, strict=True):
        if path is None or not cell:
            continue
        elements = record_of(cell.encode()) if cell.lstrip().startswith("[") else None
        if elements is None:
            record[path] = cell
        else:
            record |= {(*path, *inner): value for inner, value in elements.items()}
    return record


def _of_json(path: str, text: bytes, blocks: Iterator[bytes], damages: list[str]) -> FileSample:
    messages = _messages(path, text, blocks, damages)
    pieces: list[bytes] = []
    envelope: Path | None = None
    for message in messages:
        inner = _unwrapped(message)
        if inner.startswith(b"["):
            pieces += _elements(inner)
        elif inner.startswith(b"{"):
            envelope = _envelope_of(inner) if envelope is None else envelope
            array = _at(inner, envelope) if envelope else None
            pieces += [inner] if array is None else _elements(array)
        if len(pieces) >= RECORDS_MAX:
            break
    records = [record for piece in pieces[:RECORDS_MAX] if (record := record_of(piece)) is not None]
    if not records:
        kind = no_pings(messages[0], path)
        raise UsageError(f"{path}: expected pings in JSON, or in CSV with a header, and found {kind or 'no object'}")
    return FileSample(records, None, envelope or ())


def _messages(path: str, text: bytes, blocks: Iterator[bytes], damages: list[str]) -> list[bytes]:
    """The lines of a file whose first line is JSON by itself; else the one document that it is, as far as it is whole:
    what is missing is added to `damages`."""
    lines = _whole_lines(text, is_cut=bool(damages))
    if len(lines) > 1 and _is_json(lines[0]):
        return lines
    parts, size = [text], len(text)
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > DOCUMENT_BYTES:
            raise UsageError(
                f"{path}: one JSON document of over {DOCUMENT_BYTES} bytes: give a shorter one as a sample"
            )
    whole = b"".join(parts)
    if _is_json(whole):
        return [whole]
    if (part := whole_part(whole)) is None:
        return lines
    damages.append(f"{path}: its JSON ends too early; what came before was read")
    return [part]


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(trim(text), type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def _unwrapped(message: bytes) -> bytes:
    text = trim(message)
    if not text.startswith(b'"'):
        return text
    try:
        return trim(unwrap(text))
    except Fault:
        return b""


def _elements(array: bytes) -> list[bytes]:
    try:
        return [bytes(piece) for piece in split_array(array)]
    except UNREADABLE:
        return []


def _envelope_of(text: bytes) -> Path:
    """The path of the longest array of objects, or of arrays; empty if the object has none, or is a ping itself."""
    found = sorted(_arrays(text, ()), key=lambda one: (one[1] in [(name,) for name in ENVELOPES], one[0]))
    record = record_of(text) or {}
    own = [path for path in record if not any(isinstance(step, int) for step in path[:-1])]
    if not found or (len(own) >= _OWN_FIELDS_MIN and found[-1][0] < len(own)):
        return ()
    return found[-1][1]


_OWN_FIELDS_MIN = 5
"""An object with as many fields of its own, and a shorter array, is a ping that has an array."""


def _arrays(text: bytes, path: Path) -> Iterator[tuple[int, Path]]:
    """The arrays of objects or arrays in an object, with their lengths."""
    if len(path) >= _NEST_MAX:
        return
    try:
        fields = _decode_object(text)
    except UNREADABLE:
        return
    for key, raw in fields.items():
        value = bytes(raw)
        if value.startswith(b"{"):
            yield from _arrays(value, (*path, key))
        elif value.startswith(b"["):
            elements = _elements(value)
            if elements and elements[0].lstrip().startswith((b"{", b"[")):
                yield len(elements), (*path, key)


def _at(text: bytes, path: Path) -> bytes | None:
    for step in path:
        try:
            text = bytes(_decode_object(text)[str(step)])
        except (*UNREADABLE, KeyError):
            return None
    return text if text.startswith(b"[") else None
