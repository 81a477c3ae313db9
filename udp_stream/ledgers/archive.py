"""`ledger archive`: periods that are over, out of a ledger and into a file of their own.

What is moved are whole budget periods: their admissions with terms, records, and balances. What
stays is a mark, the time up to which the ledger is closed (`Ledger.close_before`). The order is
the guarantee; each step can be repeated:

1. CLOSE. From here on nothing of that time is charged, drawn or recorded: what is to be moved
   stands still.
2. COPY. The file is made complete under another name, synced and linked into place.
3. CHECK. It adds up by itself, and each entry of the ledger that is to be moved is in it, byte for
   byte.
4. NAME. The ledger notes the file: `ledger withdraw` finds there what the ledger has no more.
5. DROP, period by period. After a crash the same command goes on: it finds its file, checks what is
   left, and drops it.

A withdrawal of an archived HAT is made in the ledger, and moved by the next archive.

The file is an SQLite database in a ledger's schema under another application id, so no run takes it
for a ledger.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, time, timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused, UsageError
from udp_stream.base.files import draft_of, link_first
from udp_stream.forecast.model import DAYS
from udp_stream.ledger.ids import NEVER_ENDS, WITHDRAWN, end_of, kind_of
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledger.rules import amounts_of, archived_s, iso_utc
from udp_stream.ledgers.sqlite import CHARGE, REMEMBER, SCHEMA, SqliteLedger, usable
from udp_stream.planning.policy import CLOCK_CHANGE_S, Period, ending_of, period_of

ARCHIVE_ID = 0x75647061  # "udpa"

ARCHIVE_NOTE = "archive:"
"""The prefix, before a path, of a ledger's note of an archive that was made there."""

_FIND = """
SELECT release_id, period, budget, terms, plates, charged, payload
FROM admissions LEFT JOIN releases USING (release_id) WHERE release_id = ?
"""


Moved = dict[str, list[str]]
"""The ids of all entries of each period that is moved."""


class ArchiveResult(NamedTuple):
    """The outcome of an archive: the time up to which the ledger is closed, the file, how many
    entries of how many periods it has (of whole plates, of those that were asked)."""

    before_s: int
    path: Path
    entries: int
    periods: int


def archive(ledger: Ledger, before_s: int, path: Path) -> ArchiveResult:
    """Move the periods that are over before this time (`whole_periods`), or go on where an earlier
    call ended.

    UsageError if none is, or another file has the path. PrivacyRefused if ledger or file
    contradicts itself.
    """
    if is_there := path.exists():
        _require_same_archive(path, ledger, before_s)
    elif not any(is_over(period, before_s) for period in periods_of(ledger)):
        raise UsageError(
            "no budget period that plates were charged in is over by then: there is nothing to archive"
        )
    if contradictions := ledger.verify():
        raise PrivacyRefused(
            f"the ledger contradicts itself, so nothing is moved: {contradictions[0]}"
        )
    # CLOSE.
    ledger.close_before(before_s)
    moved = moved_before(ledger, before_s)
    # COPY.
    if is_there:
        moved = _without_later_withdrawals(moved, path)
    else:
        _copy(ledger, before_s, moved, path)
    # CHECK.
    with open_archive(path) as copy:
        if contradictions := copy.verify():
            raise PrivacyRefused(
                f"the archive {path} contradicts itself, so nothing is dropped: {contradictions[0]}"
            )
        entries = copy.progress().admitted
        periods = len(periods_of(copy))
    _require_copied(ledger, moved, path)
    # NAME.
    ledger.note(f"{ARCHIVE_NOTE}{path.resolve()}", str(before_s))
    # DROP.
    for period, ids in moved.items():
        ledger.drop(period, ids)
    if isinstance(ledger, SqliteLedger):
        ledger.shrink()
    return ArchiveResult(before_s, path, entries, periods)


def latest_day(ledger: Ledger, now: datetime) -> datetime:
    """The latest midnight before which all may be moved, in the zone of `now`: forecasts follow
    from the last days, up to that of the newest slot, and these stay."""
    newest_s = max(
        (end_s for end_s in map(end_of, ledger.newest()) if end_s != NEVER_ENDS), default=0
    )
    newest = min(now, datetime.fromtimestamp(newest_s - 1, now.tzinfo))
    return datetime.combine(newest.date() - timedelta(days=DAYS), time(), now.tzinfo)


def periods_of(ledger: Ledger) -> list[str]:
    """The periods that plates were charged in; of whole plates, where that is secret, those that
    were asked."""
    asked = (entry.period for entry in ledger.entries() if ending_of(entry.period))
    return sorted({*ledger.periods(), *asked})


def whole_periods(before_s: int, periods: list[str]) -> int:
    """This time, or the start of the period that it lies in: a period is moved as a whole. Spans of
    a rolling budget, and what has no end, move nothing.

    >>> whole_periods(1_704_931_200, ["7d from 2024-01-08T00:00:00+00:00", "lifetime"])
    1704672000
    """
    while within := [
        one.start for one in map(period_of, periods) if not one.window and _is_within(one, before_s)
    ]:
        before_s = int(min(within))
    return before_s


def _is_within(period: Period, before_s: int) -> bool:
    return -inf < period.start < before_s < period.end - CLOCK_CHANGE_S


def is_over(period: str, before_s: int) -> bool:
    """Whether nothing from this time on can belong to the period, or share a window with it."""
    one = period_of(period)
    if one.window:  # later spans are as long, and may begin before
        return one.end + one.window + (one.end - one.start) <= before_s
    return (
        one.end - CLOCK_CHANGE_S <= before_s
    )  # which side of a change of the clock its zone is on, no name tells


def moved_before(ledger: Ledger, before_s: int) -> Moved:
    """Look through all entries. A period with an entry of a later time, or of no time, is not over."""
    moved: Moved = {}
    not_over = set()
    for entry in ledger.entries():
        if entry.period in not_over:
            continue
        if end_of(entry.release_id) <= before_s and is_over(entry.period, before_s):
            moved.setdefault(entry.period, []).append(entry.release_id)
        else:
            not_over.add(entry.period)
            moved.pop(entry.period, None)
    return moved


def is_archive(path: Path) -> bool:
    """Whether an archive of ours is there: by its first bytes."""
    with path.open("rb") as file:
        head = file.read(72)
    return head.startswith(b"SQLite format 3\0") and head[68:72] == ARCHIVE_ID.to_bytes(4, "big")


@contextmanager
def open_archive(path: Path) -> Iterator[SqliteLedger]:
    """An archive, to be read only: no call can change it."""
    with usable(path), closing(_connect(path)) as connection:
        yield SqliteLedger(path, connection, None)


@contextmanager
def open_archives(ledger: Ledger, paths: Iterable[Path]) -> Iterator[list[Ledger]]:
    """The ledger's archives, to be read: at these paths, and those that it names and that are
    there. UsageError for another file."""
    meta = ledger.meta()
    named = (
        Path(name.removeprefix(ARCHIVE_NOTE)) for name in meta if name.startswith(ARCHIVE_NOTE)
    )
    with ExitStack() as stack:
        found: list[Ledger] = []
        for path in dict.fromkeys(path.resolve() for path in [*paths, *filter(Path.exists, named)]):
            is_ours = path.is_file() and is_archive(path)
            if is_ours:
                found.append(stack.enter_context(open_archive(path)))
            if not is_ours or found[-1].meta()["ledger_id"] != meta["ledger_id"]:
                raise UsageError(
                    f"{path}: expected an archive of this ledger, got another file or none"
                )
        yield found


def require_all(ledger: Ledger, archives: Sequence[Ledger]) -> None:
    """UsageError if these archives lack entries that the ledger had."""
    elsewhere = ledger.progress().admitted - sum(1 for _ in ledger.newest())
    if elsewhere > sum(one.progress().admitted for one in archives):
        closed = iso_utc(archived_s(ledger.meta()) or 0)
        raise UsageError(
            f"the ledger is archived before {closed}, and not all of its archives are where it made them: name them "
            "with --archive FILE, or only what is later with --from"
        )


def _without_later_withdrawals(moved: Moved, path: Path) -> Moved:
    with open_archive(path) as copy:
        there = set(copy.newest())
    kept = {
        period: [id_ for id_ in ids if id_ in there or kind_of(id_) != WITHDRAWN]
        for period, ids in moved.items()
    }
    return {period: ids for period, ids in kept.items() if ids}


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _require_same_archive(path: Path, ledger: Ledger, before_s: int) -> None:
    ours = {"ledger_id": ledger.meta()["ledger_id"], "archived": str(before_s)}
    if not path.is_file() or not is_archive(path):
        raise UsageError(f"{path}: expected a new file, got another one: name one with --out")
    with open_archive(path) as found:
        theirs = found.meta()
    if any(theirs.get(name) != text for name, text in ours.items()):
        raise UsageError(
            f"{path}: expected a new file, or this ledger's archive of the same time, got that of another ledger or "
            "time: name one with --out"
        )


def _copy(ledger: Ledger, before_s: int, moved: Moved, path: Path) -> None:
    """The file is complete and on disk once it has its name."""
    try:
        with draft_of(path, "-journal") as draft:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with usable(path), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.executescript(SCHEMA)
                connection.execute(f"PRAGMA application_id = {ARCHIVE_ID}")
                connection.execute("BEGIN")
                meta = ledger.meta() | {"archived": str(before_s)}
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())
                _fill(connection, ledger, moved)
                connection.execute("COMMIT")
            with draft.open("rb+") as file:
                os.fsync(file.fileno())
            link_first(draft, path)
    except OSError as error:
        raise DependencyUnavailable(
            f"the archive {path} cannot be written: {error.strerror}"
        ) from error


def _fill(connection: sqlite3.Connection, ledger: Ledger, moved: Moved) -> None:
    sums: dict[tuple[str, bytes], tuple[int, int]] = {}
    query = "INSERT INTO releases (release_id, payload, published) VALUES (?, ?, ?)"
    for entry in ledger.entries():
        if entry.period not in moved:
            continue
        connection.execute(REMEMBER, _row(entry)[:-1])
        if entry.payload is not None:
            connection.execute(query, (entry.release_id, entry.payload, entry.published))
        for plate, amount in zip(entry.plates, entry.charged.tolist(), strict=True):
            if amount:
                spent, charges = sums.get((entry.period, plate), (0, 0))
                sums[entry.period, plate] = spent + amount, charges + 1
    connection.executemany(CHARGE, ((*key, *sums[key]) for key in sorted(sums)))


def _row(entry: Entry) -> tuple[Any, ...]:
    charged = amounts_of(entry.charged)
    of_entry = (
        entry.release_id,
        entry.period,
        entry.budget,
        entry.terms,
        b"".join(entry.plates),
        charged,
    )
    return *of_entry, entry.payload


def _require_copied(ledger: Ledger, moved: Moved, path: Path) -> None:
    ids = {release_id for some in moved.values() for release_id in some}
    with usable(path), closing(_connect(path)) as connection:
        for entry in ledger.entries():
            if entry.release_id not in ids:
                continue
            if connection.execute(_FIND, (entry.release_id,)).fetchone() != _row(entry):
                raise PrivacyRefused(
                    f"{entry.release_id}: expected the archive {path} to have the ledger's entry, got another one or "
                    "none. Nothing is dropped: name another file with --out"
                )
