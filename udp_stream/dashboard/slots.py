"""Records by slot and cell, packed once for all readers.

A single thread takes records (`Slots.take`) and shows them (`Slots.show`). What is shown is only
replaced as a whole, so readers need no lock. The newest slots are kept as they were published:
sorted by cell, a line each, packed by gzip. A slot's version follows from its records alone, in
whatever order they came.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from heapq import merge
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from udp_stream.dashboard.history import (
    DamagedHistory,
    History,
    TimeRange,
    log_no_history,
    set_aside,
)
from udp_stream.dashboard.snapshot import NOTHING, CompressedText, Kind, Slot, compressed
from udp_stream.release.record import Hat, Privacy, Release, Smoothed, Withdrawal
from udp_stream.windows.grid import HEXAGONS, Grid

CELLS_MAX = 50_000  # ten times those of a large city
LINE_BYTES_MAX = 2**20
OPEN_BYTES = 4 * 2**20  # of a line; of all lines that are not packed yet
AHEAD_S = 86_400  # a slot that ends later than this from now would push out real slots
SLOT_MS_MAX = 31 * 86_400_000

Record = Release | Smoothed | Withdrawal
KINDS: Final[dict[Kind, type[Release] | type[Smoothed] | type[Withdrawal]]] = {
    "releases": Release, "estimates": Smoothed, "withdrawals": Withdrawal,
}  # fmt: skip

T = TypeVar("T")
Refused = Literal[
    "no release and no estimate of this version",
    "no cell or slot",
    "too many cells",
    "not over yet",
]


class _Head(msgspec.Struct):
    hat: msgspec.Raw = msgspec.Raw(b"{}")
    status: str = ""


_HEAD_OF = msgspec.json.Decoder(_Head).decode
_HAT_OF = msgspec.json.Decoder(Hat).decode


def _cell_of(line: bytes) -> str:
    return _HAT_OF(_HEAD_OF(line).hat).cell


_RECORD_OF = msgspec.json.Decoder(Record).decode


class Spent(msgspec.Struct, frozen=True):
    """Most that the records of a day cost a plate, as a share of its budget."""

    day: str
    share: float


class PageState(NamedTuple):
    """All that readers see at a moment; slots in the order of their starts. `privacy` is that of
    the newest release.

    >>> Slots(48).shown.slots
    ()
    """

    change: int
    slots: tuple[Slot, ...]
    listing: CompressedText
    outlines: CompressedText
    privacy: Privacy | None

    def slot_at(self, start_ms: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.start_ms == start_ms), None)


class _Part:
    """The releases, or the estimates, of a slot: packed, and by cell what came since (`lines`)."""

    def __init__(self, known: CompressedText = NOTHING) -> None:
        self.packed = known
        self.lines = dict[str, bytes]()
        self.statuses = Counter[str]()

    def pack(self) -> None:
        if not self._is_known():
            self.statuses = Counter()
            self.packed = compressed(self._merged(), _cell_of)
        self.lines = {}

    def _is_known(self) -> bool:
        """Whether what came since is there already: a start reads all again."""
        came = {line + b"\n" for line in self.lines.values()}
        with self.packed.opened() as lines:
            return came <= came.intersection(lines)

    def _merged(self) -> Iterator[bytes]:
        with self.packed.opened() as lines:
            known = ((cell, line) for line in lines if (cell := _cell_of(line)) not in self.lines)
            new = ((cell, line + b"\n") for cell, line in sorted(self.lines.items()))
            for _, line in merge(known, new):
                self.statuses[_HEAD_OF(line).status] += 1
                yield line


@dataclass
class _SlotRecords:
    start_ms: int
    start: str
    end: str
    version: str = ""

    def __post_init__(self) -> None:
        self.parts: dict[Kind, _Part] = {kind: _Part() for kind in KINDS}

    @classmethod
    def of_slot(cls, slot: Slot) -> _SlotRecords:
        found = cls(slot.start_ms, slot.start, slot.end, slot.version)
        found.parts = {kind: _Part(slot.parts.get(kind, NOTHING)) for kind in KINDS}
        found.parts["releases"].statuses = Counter(slot.hats)
        return found

    def shown(self, change: int) -> Slot:
        for part in self.parts.values():
            part.pack()
        parts = {kind: part.packed for kind, part in self.parts.items()}
        version = blake2b(
            "".join(part.digest for part in parts.values()).encode(), digest_size=8
        ).hexdigest()
        hats = dict(sorted(self.parts["releases"].statuses.items()))
        return Slot(self.start_ms, self.start, self.end, version, change, hats, parts)


@dataclass
class Slots:
    """The newest slots, and a history of all. A single thread calls `take` and `show`; any may read
    `shown`, and `refused`: lines that were no records.

    >>> from udp_stream.testing import released_slot
    >>> slots = Slots(48)
    >>> slots.take(released_slot().payloads.values())
    Counter()
    >>> slots.show(), [slot.hats for slot in slots.shown.slots]
    (True, [{'released': 1, 'withheld_few_plates': 1}])
    """

    most: int
    clock: Callable[[], float] = time.time
    is_synthetic: bool = False
    history: History | None = None
    grid: Grid = HEXAGONS

    def __post_init__(self) -> None:
        self._filling = dict[int, _SlotRecords]()
        self._past = dict[int, _SlotRecords]()
        self._open: set[int] = set()
        self._open_bytes = 0
        self._outlines = dict[str, bytes]()
        self._privacy: tuple[int, Privacy] | None = None
        self._days: tuple[str, str] | None = None
        self._spent: tuple[int, Spent | None] = 0, None
        self._announced = 0
        self.refused = 0
        self.shown = PageState(0, (), self._listing(()), compressed([b"{}\n"]), None)
        self._outlines = {
            cell: self._outline(cell) for cell in (self._known(History.cells) or ())[:CELLS_MAX]
        }
        newest = self._known(lambda history: history.newest(self.most)) or ()
        self._filling = {start_ms: self._begun(start_ms, "", "") for start_ms in newest}
        self._open = set(self._filling)
        self._pack()

    def _outline(self, cell: str) -> bytes:
        return msgspec.json.encode(self.grid.drawn_of(self.grid.cell_of(cell)))

    def _known(self, read: Callable[[History], T]) -> T | None:
        """Result of `read` on the history; None without a history, or where it turns out
        damaged."""
        history = self.history
        try:
            return None if history is None else read(history)
        except DamagedHistory as error:
            self.lose(error)
            return None

    def lose(self, error: DamagedHistory) -> None:
        """Go on without a damaged history."""
        history = self.history
        self.history = None
        if history is not None:
            set_aside(history.name, str(error))

    def take(self, lines: Iterable[bytes]) -> Counter[Refused]:
        """Take records, each as its JSON; gives why some are refused, and how many. What is taken
        is shown by `show`."""
        refused: Counter[Refused] = Counter()
        for line in lines:
            why = self._take(line)
            if why is not None:
                refused[why] += 1
            if self._open_bytes > OPEN_BYTES:
                self._pack()
        self.refused += refused.total()
        return refused

    def show(self) -> bool:
        self._pack()
        before = self._announced
        self._announced = self.shown.change
        return before != self.shown.change

    def _take(self, line: bytes) -> Refused | None:
        record = read_record(line)
        if record is None:
            return "no release and no estimate of this version"
        hat = record.hat
        try:
            start_ms = milliseconds_of(hat.slot_start)
            end_ms = milliseconds_of(hat.slot_end)
            self.grid.cell_of(hat.cell)
        except ValueError:
            return "no cell or slot"
        if not 0 < end_ms - start_ms <= SLOT_MS_MAX:
            return "no cell or slot"
        if end_ms / 1000 > self.clock() + AHEAD_S:
            return "not over yet"
        if hat.cell not in self._outlines:
            if len(self._outlines) >= CELLS_MAX:
                return "too many cells"
            self._outlines[hat.cell] = self._outline(hat.cell)
        if isinstance(record, Release) and (self._privacy is None or self._privacy[0] <= start_ms):
            self._privacy = start_ms, record.privacy
        filling = self._slot_of(start_ms, hat)
        if filling is None:
            return None
        part = filling.parts[next(kind for kind, of in KINDS.items() if isinstance(record, of))]
        part.lines[hat.cell] = line
        self._open_bytes += len(line)
        if start_ms in self._filling:
            self._open.add(start_ms)
        return None

    def _slot_of(self, start_ms: int, hat: Hat) -> _SlotRecords | None:
        """Where a record belongs; None if its slot is older than those that are kept, and there is
        no history."""
        if start_ms in self._filling:
            return self._filling[start_ms]
        if len(self._filling) >= self.most:
            oldest = min(self._filling)
            if start_ms < oldest:
                if self.history is not None and start_ms not in self._past:
                    self._past[start_ms] = self._begun(start_ms, hat.slot_start, hat.slot_end)
                return self._past.get(start_ms)
            if self.history is not None and oldest in self._open:
                self._pack()
            del self._filling[oldest]
            self._open.discard(oldest)
        self._filling[start_ms] = self._begun(start_ms, hat.slot_start, hat.slot_end)
        return self._filling[start_ms]

    def _begun(self, start_ms: int, start: str, end: str) -> _SlotRecords:
        """A slot, with the records that the history has of it."""
        known = self._known(lambda history: history.written(start_ms))
        return _SlotRecords(start_ms, start, end) if known is None else _SlotRecords.of_slot(known)

    def slots_in(self, span: TimeRange, kind: Kind) -> list[tuple[int, int]]:
        """Start and records of each slot in a span."""
        found = dict(self._known(lambda history: history.lines(kind, span)) or ())
        shown = {slot.start_ms: slot.parts[kind].lines for slot in self.shown.slots
                 if span.has(slot.start_ms, slot.start[:10])}  # fmt: skip
        return sorted((found | shown).items())

    def slot_at(self, start_ms: int) -> Slot | None:
        return self.shown.slot_at(start_ms) or self._known(lambda history: history.slot(start_ms))

    def days(self) -> tuple[str, str]:
        """The first and the last local day of the slots that are there."""
        if self._days is None:
            slots = self.shown.slots
            self._days = self._known(History.days) or (slots[0].start[:10], slots[-1].start[:10])
        return self._days

    def spent(self) -> Spent | None:
        """Budget that the newest day has spent; all of the budget where the day's first slots are
        not kept. None without a slot."""
        shown = self.shown
        if self._spent[0] != shown.change and shown.slots:
            day = shown.slots[-1].start[:10]
            is_cut = (
                self.history is None
                and len(shown.slots) == self.most
                and shown.slots[0].start[:10] == day
            )
            starts = [start for start, _ in self.slots_in(TimeRange(day), "releases")]
            share = sum(map(_share_of, self.parts_of("releases", starts)))
            self._spent = shown.change, Spent(day, 1.0 if is_cut else min(1.0, share))
        return self._spent[1]

    def parts_of(self, kind: Kind, starts: Sequence[int]) -> Iterator[CompressedText]:
        """The records of a kind of these slots, in the order of their starts. DamagedHistory may
        leave."""
        shown = {slot.start_ms: slot.parts[kind] for slot in self.shown.slots}
        history = self.history
        past = iter(
            ()
            if history is None
            else history.parts(kind, [start_ms for start_ms in starts if start_ms not in shown])
        )
        for start_ms in starts:
            if start_ms in shown:
                yield shown[start_ms]
            elif (found := next(past, None)) is not None:
                yield found[1]

    def lines_of_newest(self, most: int) -> Iterator[bytes]:
        """All records of the newest slots, so many, slot by slot; withdrawals come first."""
        for start_ms, _ in self.slots_in(TimeRange(), "estimates")[-most:]:
            slot = self.slot_at(start_ms)
            if slot is not None:
                for kind in ("withdrawals", "releases", "estimates"):
                    yield from slot.parts[kind].opened()

    def listed_in(self, span: TimeRange, most: int) -> CompressedText:
        """The lines of `/v1/slots` of a span, at most so many."""
        found = dict(self._known(lambda history: history.listed(span, most)) or ())
        shown = {slot.start_ms: msgspec.json.encode(slot.listed()) for slot in self.shown.slots
                 if span.has(slot.start_ms, slot.start[:10])}  # fmt: skip
        rows = [msgspec.Raw(line) for _, line in sorted((found | shown).items())[:most]]
        return compressed([msgspec.json.encode({"slots": rows}), b"\n"])

    def _keep(self, slots: Sequence[Slot]) -> None:
        """Write slots to the history. Where that fails there is none from now on."""
        history = self.history
        if history is None or not slots:
            return
        try:
            history.write(slots, self._outlines)
        except DamagedHistory as error:
            self.lose(error)
        except sqlite3.Error as error:
            log_no_history(history.name, str(error))
            self.history = None

    def _pack(self) -> None:
        """Show what was taken, and keep it packed only. The same records again change nothing."""
        change = self.shown.change
        known = {slot.start_ms: slot for slot in self.shown.slots}
        new = list[Slot]()
        if self._open or self._past:
            self._days = None
        for start_ms in sorted(self._open):
            slot = self._filling[start_ms].shown(change + 1)
            if start_ms not in known or known[start_ms].version != slot.version:
                known[start_ms] = slot
                change = change + 1
                new.append(slot)
        past = [(filling.version, filling.shown(0)) for filling in self._past.values()]
        self._keep([*(slot for version, slot in past if slot.version != version), *new])
        self._open = set()
        self._open_bytes = 0
        self._past = {}
        if change != self.shown.change:
            # A withdrawal may be of a slot that is kept no more.
            of_slots = (known[start_ms] for start_ms in sorted(self._filling))
            slots = tuple(slot for slot in of_slots if slot.hats or slot.parts["estimates"].lines)
            privacy = self._privacy[1] if self._privacy else None
            self.shown = PageState(change, slots, self._listing(slots), self._outlined(), privacy)

    def _listing(self, slots: Iterable[Slot]) -> CompressedText:
        more: dict[str, object] = {"synthetic": True} if self.is_synthetic else {}
        days = self._known(History.days)
        if days is not None:
            more["days"] = days
        return compressed(
            [msgspec.json.encode({"slots": [slot.listed() for slot in slots]} | more), b"\n"]
        )

    def _outlined(self) -> CompressedText:
        if self.shown.outlines.lines == 1 + len(self._outlines):  # a line each: nothing is new
            return self.shown.outlines
        rows = [
            b'"%s":%s' % (cell.encode(), rings) for cell, rings in sorted(self._outlines.items())
        ]
        return compressed([b"{" + b",\n".join(rows) + b"\n}\n"])


def read_record(line: bytes) -> Record | None:
    """The record; None for anything else. Published are lines, so a record with a break in it was
    not."""
    if len(line) > LINE_BYTES_MAX or b"\n" in line:
        return None
    try:
        found: Record = _RECORD_OF(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found


class _Charged(msgspec.Struct):
    privacy: Privacy


_CHARGED_OF = msgspec.json.Decoder(_Charged).decode


def _share_of(part: CompressedText) -> float:
    """Most that a slot's releases cost a plate, as a share of its budget."""
    together = 0.0
    alone = 0.0
    for line in part.opened():
        privacy = _CHARGED_OF(line).privacy
        cost = privacy.epsilon
        budget = privacy.period_epsilon
        if privacy.rho is not None and privacy.period_rho is not None:
            cost = privacy.rho
            budget = privacy.period_rho
        if privacy.holds_for == "record":
            alone += cost / budget
        else:
            together = max(together, cost / budget)
    return together + alone


def milliseconds_of(moment: str) -> int:
    """Unix milliseconds of an ISO 8601 time with its offset; ValueError for anything else."""
    found = datetime.fromisoformat(moment)
    if found.tzinfo is None:
        raise ValueError("a time without offset")
    return round(found.timestamp() * 1000)


def of_cell(text: CompressedText, cell: str) -> list[bytes]:
    """Lines of a part that are of this cell, with their breaks."""
    lines = text.block_of(cell).splitlines(keepends=True)
    name = cell.encode()
    return [line for line in lines if name in line and _cell_of(line) == cell]
