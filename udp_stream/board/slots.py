"""Records by slot and cell, packed once for all readers.

One thread takes records as they come (`Slots.take`) and shows them from time to time (`Slots.show`). What is shown is
never changed, only replaced as a whole, so readers need no lock. The newest slots are kept, as they were published:
sorted by cell, a line each, packed by gzip. Slots that still change are kept unpacked, too, up to `OPEN_BYTES`.

The version of a slot follows from its records alone: it is the same after a restart, in whatever order they came.
"""

from __future__ import annotations

import gzip
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import msgspec

from udp_stream.release.forecaster import Smoothed
from udp_stream.release.record import Hat, Privacy, Release
from udp_stream.windows.tables import cell_boundary, is_cell

CELLS_MAX: Final = 50_000
"""Cells that are shown: ten times those of a large city."""

LINE_BYTES_MAX: Final = 2**20
"""A record has some thousand bytes."""

OPEN_BYTES: Final = 4 * 2**20
"""Records that are kept unpacked, in all slots."""

AHEAD_S: Final = 86_400
"""A slot that ends later from now on has not been; kept, it would push out those that have."""

SLOT_MS_MAX: Final = 31 * 86_400_000

GZIP_LEVEL: Final = 6

Kind = Literal["releases", "estimates"]
KINDS: Final[dict[Kind, type[Release] | type[Smoothed]]] = {"releases": Release, "estimates": Smoothed}
"""What is shown, by the name of its endpoint."""

Refused = Literal["no release and no estimate of this version", "no cell or slot", "too many cells", "not over yet"]
"""Why a record is not shown."""

_SCHEMAS: Final[dict[str, tuple[Kind, msgspec.json.Decoder[Release] | msgspec.json.Decoder[Smoothed]]]] = {
    "udp-stream/release/1": ("releases", msgspec.json.Decoder(Release)),
    "udp-stream/smoothed/1": ("estimates", msgspec.json.Decoder(Smoothed)),
}


class _Schema(msgspec.Struct):
    schema: str


class _Status(msgspec.Struct):
    status: str


_SCHEMA_OF = msgspec.json.Decoder(_Schema).decode
_STATUS_OF = msgspec.json.Decoder(_Status).decode


class Packed(NamedTuple):
    """A text, packed by gzip, and the digest of what was packed.

    >>> packed(b"a record\\n").text
    b'a record\\n'
    """

    body: bytes
    digest: str
    lines: int

    @property
    def text(self) -> bytes:
        """Unpacked."""
        return gzip.decompress(self.body)


def packed(text: bytes) -> Packed:
    """A text, packed; the same bytes for the same text."""
    digest = blake2b(text, digest_size=8).hexdigest()
    return Packed(gzip.compress(text, GZIP_LEVEL, mtime=0), digest, text.count(b"\n"))


NOTHING: Final = packed(b"")


class Slot(NamedTuple):
    """A slot as it is shown; `change` orders the changes of all slots."""

    start_ms: int
    start: str
    end: str
    version: str
    change: int
    hats: Mapping[str, int]
    parts: Mapping[Kind, Packed]

    @property
    def listed(self) -> dict[str, object]:
        """As `/v1/slots` lists it."""
        return {
            "slot_start": self.start,
            "slot_end": self.end,
            "version": self.version,
            "hats": self.hats,
            "estimates": self.parts["estimates"].lines,
        }


class Shown(NamedTuple):
    """All that readers see at one moment; slots in the order of their starts. `privacy` is that of the newest release.

    >>> Slots(48).shown.slots
    ()
    """

    change: int
    slots: tuple[Slot, ...]
    listing: Packed
    outlines: Packed
    privacy: Privacy | None
    refused: int

    def slot_at(self, start_ms: int) -> Slot | None:
        """The slot that starts then, Unix milliseconds; None if it is not kept."""
        return next((slot for slot in self.slots if slot.start_ms == start_ms), None)


class _Part:
    """The releases, or the estimates, of one slot. `lines`, by cell, is None while they are only packed."""

    def __init__(self) -> None:
        self.lines: dict[str, bytes] | None = {}
        self.size = 0
        self._packed: Packed | None = NOTHING

    def put(self, cell: str, line: bytes) -> bool:
        """Take a record, in place of the cell's earlier one; whether it is another."""
        if self.lines is None:
            known = self.pack().text.splitlines()
            self.lines = {line_hat.cell: line for line in known for line_hat in (_HAT_OF(line).hat,)}
            self.size = sum(map(len, known))
        before = self.lines.get(cell, b"")
        if before == line:
            return False
        self.lines[cell] = line
        self.size += len(line) - len(before)
        self._packed = None
        return True

    def pack(self) -> Packed:
        if self._packed is None:
            self._packed = packed(b"".join(line + b"\n" for _, line in sorted((self.lines or {}).items())))
        return self._packed

    def close(self) -> None:
        """Keep them packed only."""
        self.pack()
        self.lines, self.size = None, 0

    def statuses(self) -> dict[str, int]:
        lines = self.pack().text.splitlines() if self.lines is None else self.lines.values()
        return dict(sorted(Counter(_STATUS_OF(line).status for line in lines).items()))


class _Hats(msgspec.Struct):
    hat: Hat


_HAT_OF = msgspec.json.Decoder(_Hats).decode


class _Filling:
    """A slot that takes records."""

    def __init__(self, start: str, end: str) -> None:
        self.start, self.end = start, end
        self.parts: dict[Kind, _Part] = {kind: _Part() for kind in KINDS}


class Slots:
    """The newest slots. One thread calls `take` and `show`; any may read `shown`.

    >>> from udp_stream.testing import released_slot
    >>> slots = Slots(48)
    >>> slots.take(released_slot().payloads.values())
    Counter()
    >>> slots.show(), [slot.hats for slot in slots.shown.slots]
    (True, [{'released': 1, 'withheld_few_plates': 1}])
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.time) -> None:
        """Keep so many slots."""
        self._most, self._clock = most, clock
        self._filling: dict[int, _Filling] = {}
        self._used: dict[tuple[int, Kind], _Part] = {}  # parts with lines, the latest used last
        self._changed: set[int] = set()
        self._outlines: dict[str, bytes] = {}
        self._privacy: tuple[int, Privacy] | None = None
        self._refused = 0
        self.shown = Shown(0, (), packed(b'{"slots":[]}\n'), packed(b"{}\n"), None, 0)

    def take(self, lines: Iterable[bytes]) -> Counter[Refused]:
        """Records, each its JSON; why some are refused, and how many. What is taken is shown by `show`."""
        refused: Counter[Refused] = Counter()
        for line in lines:
            if (why := self._take(line)) is not None:
                refused[why] += 1
        self._refused += refused.total()
        while sum(part.size for part in self._used.values()) > OPEN_BYTES and len(self._used) > 1:
            key = next(iter(self._used))
            self._used.pop(key).close()
        return refused

    def _take(self, line: bytes) -> Refused | None:
        record = _read(line)
        if record is None:
            return "no release and no estimate of this version"
        kind: Kind = "releases" if isinstance(record, Release) else "estimates"
        hat = record.hat
        try:
            start_ms, end_ms = milliseconds_of(hat.slot_start), milliseconds_of(hat.slot_end)
        except ValueError:
            return "no cell or slot"
        if not 0 < end_ms - start_ms <= SLOT_MS_MAX or not is_cell(int(hat.cell, 16)):
            return "no cell or slot"
        if end_ms / 1000 > self._clock() + AHEAD_S:
            return "not over yet"
        if hat.cell not in self._outlines:
            if len(self._outlines) >= CELLS_MAX:
                return "too many cells"
            self._outlines[hat.cell] = msgspec.json.encode(cell_boundary(int(hat.cell, 16)))
        self._put(start_ms, kind, hat, line)
        if isinstance(record, Release) and (self._privacy is None or self._privacy[0] <= start_ms):
            self._privacy = start_ms, record.privacy
        return None

    def _put(self, start_ms: int, kind: Kind, hat: Hat, line: bytes) -> None:
        if start_ms not in self._filling:
            if len(self._filling) >= self._most:
                if start_ms < (oldest := min(self._filling)):
                    return
                self._drop(oldest)
            self._filling[start_ms] = _Filling(hat.slot_start, hat.slot_end)
        part = self._filling[start_ms].parts[kind]
        if part.put(hat.cell, line):
            self._changed.add(start_ms)
        self._used.pop((start_ms, kind), None)
        self._used[start_ms, kind] = part

    def _drop(self, start_ms: int) -> None:
        del self._filling[start_ms]
        self._changed.discard(start_ms)
        for kind in KINDS:
            self._used.pop((start_ms, kind), None)

    def show(self) -> bool:
        """Show what was taken; whether a slot has changed."""
        change = self.shown.change
        known = {slot.start_ms: slot for slot in self.shown.slots}
        for start_ms in sorted(self._changed):
            change += 1
            known[start_ms] = _slot(start_ms, self._filling[start_ms], change)
        self._changed.clear()
        if change != self.shown.change:
            slots = tuple(known[start_ms] for start_ms in sorted(self._filling))
            listing = msgspec.json.encode({"slots": [slot.listed for slot in slots]}) + b"\n"
            privacy = self._privacy[1] if self._privacy else None
            self.shown = Shown(change, slots, packed(listing), self._outlined(), privacy, self._refused)
            return True
        self.shown = self.shown._replace(refused=self._refused)
        return False

    def _outlined(self) -> Packed:
        """The rings of all cells that were seen; a city's cells stay the same."""
        if self.shown.outlines.lines == 1 + len(self._outlines):  # a line each: there is no new one
            return self.shown.outlines
        rows = [b'"%s":%s' % (cell.encode(), rings) for cell, rings in sorted(self._outlines.items())]
        return packed(b"{" + b",\n".join(rows) + b"\n}\n")


def _slot(start_ms: int, filling: _Filling, change: int) -> Slot:
    parts = {kind: part.pack() for kind, part in filling.parts.items()}
    version = blake2b("".join(part.digest for part in parts.values()).encode(), digest_size=8).hexdigest()
    return Slot(start_ms, filling.start, filling.end, version, change, filling.parts["releases"].statuses(), parts)


def _read(line: bytes) -> Release | Smoothed | None:
    """The record; None for anything else. Published are lines, so one with a break in it was not."""
    if len(line) > LINE_BYTES_MAX or b"\n" in line:
        return None
    try:
        schema = _SCHEMA_OF(line).schema
        return _SCHEMAS[schema][1].decode(line) if schema in _SCHEMAS else None
    except (msgspec.DecodeError, RecursionError):
        return None


def milliseconds_of(moment: str) -> int:
    """Unix milliseconds of an ISO 8601 time with its offset; ValueError for anything else.

    >>> milliseconds_of("1970-01-01T05:30:01+05:30")
    1000
    """
    found = datetime.fromisoformat(moment)
    if found.tzinfo is None:
        raise ValueError("a time without offset")
    return round(found.timestamp() * 1000)


def of_cell(text: bytes, cell: str) -> Sequence[bytes]:
    """Of the lines of a part those of this cell, with their breaks."""
    mark = b'"%s"' % cell.encode()
    return [line for line in text.splitlines(keepends=True) if mark in line and _HAT_OF(line).hat.cell == cell]
