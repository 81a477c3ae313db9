"""`records`, `ledger archive`, `ledger withdraw`: records of files, ledgers and topics, periods out
of a ledger, marks on its records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, tzinfo
from itertools import islice
from math import inf
from pathlib import Path

import msgspec
from msgspec.structs import replace

from udp_stream.base.errors import UsageError, needs
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.cli.commands.ledger import open_existing, open_to_read
from udp_stream.cli.commands.typical import lines_of, typical
from udp_stream.cli.outputs import read_time, records_out, require_distinct, used_files
from udp_stream.cli.report import SOFTWARE
from udp_stream.export_formats import LINES, require_format
from udp_stream.ledger.ids import HAT, QUERY, UNPUBLISHED_KINDS, WITHDRAWN, Id, end_of, kind_of
from udp_stream.ledger.port import Ledger
from udp_stream.ledger.rules import archived_s
from udp_stream.ledgers.archive import archive as run_archive
from udp_stream.ledgers.archive import (
    latest_day,
    open_archives,
    periods_of,
    require_all,
    whole_periods,
)
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import ledger_place, named, other_policies, slots_of
from udp_stream.ledgers.sqlite import MAGIC
from udp_stream.planning.policy import BudgetCalendar
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.forecaster import Slot
from udp_stream.release.pipeline import witness
from udp_stream.release.promise import promise_of
from udp_stream.release.record import QueryResult, Record, Release, Smoothed, Withdrawal, schema_of
from udp_stream.release.withdrawal import recorded_in
from udp_stream.release.withdrawal import withdraw as withdraw_hats
from udp_stream.settings import SQLITE, Settings, is_file

CHUNK = 1000
"""Records that are looked up at a time."""


def records(arguments: argparse.Namespace, settings: Settings) -> None:
    """Write records of files, of a ledger or of the topics, as they were published; or the typical
    week of files."""
    files = arguments.files
    batches = _of_files
    if files == ["topics"]:
        batches = _of_topics
    elif not files:
        batches = _of_ledger
    elif len(files) == 1 and _is_ledger(files[0]):
        batches = _of_ledger
        settings = replace(settings, ledger=replace(settings.ledger, url=files[0]))
    if arguments.follow and batches != _of_topics:
        raise UsageError("--follow: expected topics")
    if arguments.typical and batches != _of_files:
        raise UsageError("--typical: expected files of releases")
    if arguments.typical:
        typical(arguments, settings)
        return
    name = arguments.out
    if require_format(name)[0] != LINES and arguments.queries:
        raise UsageError(f"--out {name}: expected lines of JSON for --queries")
    require_distinct([("--out", name)], used_files(arguments, settings, files))
    found = batches(arguments, settings)
    first = next(found, ())  # before the output is emptied: there may be nothing to read from
    with records_out(name, Smoothed if arguments.smoothed else Release, settings.grid) as write:
        write(first)
        for batch in found:
            write(batch)


Batches = Iterator[Sequence[bytes]]


def _is_ledger(name: str) -> bool:
    if "://" in name or name.startswith(SQLITE):
        return True
    path = Path(name)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _of_ledger(arguments: argparse.Namespace, settings: Settings) -> Batches:
    """Records slot by slot and by cell. The ledger's mark knows them from then on."""
    with open_to_read(settings) as ledger:
        zone = slots_of(ledger, settings).zone
        span = _span(arguments, zone)
        if arguments.smoothed:
            yield from _estimates(ledger, settings, span)
            return
        ids = (answers_in if arguments.queries else ids_in)(ledger, span)
        for payloads in _records(ledger, ids):
            ledger.mark(witness(payloads))
            yield list(payloads.values())


def _of_topics(arguments: argparse.Namespace, settings: Settings) -> Batches:
    """Records as they are in the topic: in order within a cell or a query."""
    with needs("Kafka client", "kafka"):
        from streams.topics import read_answers, read_estimates, read_releases
    kafka = settings.kafka
    follow = arguments.follow
    if arguments.queries or arguments.smoothed:
        lines = (read_answers if arguments.queries else read_estimates)(kafka, follow=follow)
    else:
        lines = (release.payload for release in read_releases(kafka, follow=follow))
    return _batches(_within(lines, arguments, settings), 1 if follow else CHUNK)


def _of_files(arguments: argparse.Namespace, settings: Settings) -> Batches:
    """The lines of files that are records of the kind."""
    kinds: tuple[type[Record], ...] = (Release, Withdrawal)
    if arguments.queries:
        kinds = (QueryResult,)
    elif arguments.smoothed:
        kinds = (Smoothed,)
    schemas = [schema_of(kind) for kind in kinds]
    lines = (line for line in lines_of(arguments.files) if _head(line).schema in schemas)
    return _batches(_within(lines, arguments, settings), CHUNK)


def _batches(lines: Iterator[bytes], size: int) -> Batches:
    while batch := list(islice(lines, size)):
        yield batch


class _Head(msgspec.Struct):
    schema: str = ""
    hat: dict[str, msgspec.Raw] = {}
    query: dict[str, msgspec.Raw] = {}


def _head(line: bytes) -> _Head:
    try:
        return msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, RecursionError):
        return _Head()


def _within(
    lines: Iterator[bytes], arguments: argparse.Namespace, settings: Settings
) -> Iterator[bytes]:
    """Lines whose slot starts, or whose moment lies, in the span that is asked for."""
    if arguments.since is None and arguments.until is None:
        yield from lines
        return
    since, until = _span(arguments, settings.zone)
    for line in lines:
        head = _head(line)
        text = head.hat.get("slot_start") or head.query["moment"]
        at = datetime.fromisoformat(msgspec.json.decode(text, type=str)).timestamp()
        if since <= at < until:
            yield line


def _span(arguments: argparse.Namespace, zone: tzinfo) -> tuple[float, float]:
    return read_time(arguments.since, zone, -inf), read_time(arguments.until, zone, inf)


def _records(ledger: Ledger, ids: list[str]) -> Iterator[dict[str, bytes]]:
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        found = zip(some, ledger.recorded(some), strict=True)
        if payloads := {id_: payload for id_, payload in found if payload is not None}:
            yield payloads


def archive(arguments: argparse.Namespace, settings: Settings) -> None:
    """Move periods that are over before a midnight of the ledger's zone; run again, it goes on
    where it ended."""
    with open_existing(settings) as (ledger, _):
        zone = slots_of(ledger, settings).zone
        asked = _midnight(arguments.before, zone)
        latest = latest_day(ledger, datetime.now(zone))
        if asked > latest:
            raise UsageError(
                f"--before {asked:%Y-%m-%d}: expected {latest:%Y-%m-%d} or earlier. Later days stay in the ledger: "
                "forecasts follow from them"
            )
        before_s = whole_periods(int(asked.timestamp()), periods_of(ledger))
        if before_s < asked.timestamp():
            log_message(
                f"a budget period goes on at {asked:%Y-%m-%d}: what is before it is archived"
            )
        waiting = [
            id_
            for id_, _ in ledger.unpublished()
            if kind_of(id_) not in UNPUBLISHED_KINDS and end_of(id_) <= before_s
        ]
        if waiting:
            text = f"{counted(len(waiting), 'record')} of that time never reached a reader. The archive has them"
            log_message(f"{text}: `records` prints them", "ledger", level=WARNING)
        path = Path(arguments.out or _beside(settings, datetime.fromtimestamp(before_s, zone)))
        done = run_archive(ledger, before_s, path)
    held = f"{counted(done.entries, 'entry', 'entries')} of {counted(done.periods, 'period')}"
    until = datetime.fromtimestamp(before_s, zone).isoformat()
    print(f"{done.path}: {held}. Nothing before {until} is charged or drawn any more")


def _beside(settings: Settings, before: datetime) -> str:
    place = settings.ledger.place
    name = ledger_place(place) if is_file(place) else "udp-stream.ledger"
    return f"{name}.before-{before:%Y-%m-%d}"


def _midnight(text: str, zone: tzinfo) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(), zone)
    except ValueError as error:
        raise UsageError(f"--before: expected a date such as 2026-10-01, got {text!r}") from error


def withdraw(arguments: argparse.Namespace, settings: Settings) -> None:
    """Mark records as withdrawn, for ever; a run or worker publishes the marks with its next slot."""
    names = arguments.since, arguments.until, arguments.cell
    if bool(arguments.ids) == any(names):
        raise UsageError("expected the ids of records, or --from, --to or --cell")
    named = map(Path, arguments.archive)
    with open_existing(settings) as (ledger, _), open_archives(ledger, named) as archives:
        zone = slots_of(ledger, settings).zone
        cells = set(arguments.cell)
        span = _span(arguments, zone)
        places = [*archives, ledger]
        found = arguments.ids or [
            id_ for place in places for id_ in ids_in(place, span) if kind_of(id_) == HAT
        ]
        if cells:
            found = [id_ for id_ in found if Id.of(id_).key in cells]
        ids = list(recorded_in(places, list(dict.fromkeys(found))))
        closed = archived_s(ledger.meta())
        earliest = min((end_of(id_) - 1 for id_ in arguments.ids), default=span[0])
        if closed is not None and earliest < closed:
            require_all(ledger, archives)
        if missing := set(arguments.ids) - set(ids) or (set() if ids else {"a record there"}):
            raise UsageError(
                f"expected {min(missing)} in the ledger or its archives, got none: nothing is withdrawn"
            )
        if arguments.dry_run:
            print("\n".join(ids))
            return
        at = datetime.now(zone).isoformat(timespec="seconds")
        new = withdraw_hats(ledger, ids, arguments.reason, at, SOFTWARE, archives)
    print(
        f"{counted(new, 'HAT')} withdrawn, {len(ids) - new:,} before. Their budget stays spent, their records stay."
    )
    print("A run or worker publishes the marks with its next slot; `records` prints them.")


def ids_in(ledger: Ledger, span: tuple[float, float]) -> list[str]:
    """The ids of HATs whose slots start in this span of Unix seconds, and of their withdrawals,
    slot by slot."""
    found = []
    for id_ in ledger.newest():
        with suppress(ValueError):  # an id that tells no slot
            if kind_of(id_) in (HAT, WITHDRAWN) and span[0] <= Id.of(id_).start < span[1]:
                found.append((Id.of(id_).slot, id_))
    return [id_ for _, id_ in sorted(found)]


def answers_in(ledger: Ledger, span: tuple[float, float]) -> list[str]:
    """The ids of queries' answers whose moments lie in this span of Unix seconds, moment by moment."""
    moments = {id_: Id.of(id_).start for id_ in ledger.newest() if kind_of(id_) == QUERY}
    found = [id_ for id_, at_s in moments.items() if span[0] <= at_s < span[1]]
    return sorted(found, key=lambda id_: (moments[id_], id_))


def _estimates(ledger: Ledger, settings: Settings, span: tuple[float, float]) -> Batches:
    if others := other_policies(ledger, settings.policy):  # as where --config was forgotten
        different = named(list(others.values()))
        text = (
            f"estimates follow the configuration, and the ledger holds other settings ({different})"
        )
        log_message(text, "ledger", level=WARNING)
    calendar = BudgetCalendar(settings.policy, slots_of(ledger, settings), None)
    asked = ReleaseContext(settings.policy, calendar, OsEntropy(), SOFTWARE, domain=settings.domain)
    context = promise_of(settings.policy).with_forecaster(asked)
    slots: dict[Slot, None] = {
        (1000 * start, 1000 * end): None
        for start, end in (Id.of(id_).slot for id_ in ids_in(ledger, span))
    }
    for slot in slots:
        yield [Smoothed.encode(estimate) for estimate in context.smoothed(slot, ledger)]
