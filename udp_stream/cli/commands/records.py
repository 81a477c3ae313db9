"""`ledger releases`, `archive`, `withdraw`: records out of a ledger, periods out of it, marks on
it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, tzinfo
from math import inf
from pathlib import Path

from udp_stream.cli.commands.ledger import open_existing, open_to_read
from udp_stream.cli.report import SOFTWARE
from udp_stream.errors import UsageError
from udp_stream.ledger.port import Ledger
from udp_stream.ledger.rules import archived_s, end_of
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
from udp_stream.logs import WARNING, counted, log_message
from udp_stream.planning.policy import BudgetCalendar
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.forecaster import (
    Slot,
    encode_smoothed,
)
from udp_stream.release.pipeline import witness
from udp_stream.release.promise import promise_of
from udp_stream.release.record import UNPUBLISHED_KINDS, WITHDRAWN, kind_of, moment_of, slot_of
from udp_stream.release.withdrawal import recorded_in
from udp_stream.release.withdrawal import withdraw as withdraw_hats
from udp_stream.settings import Settings, is_file

CHUNK = 1000
"""Records that are looked up at a time."""


def releases(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print records slot by slot and by cell, as they were published. The ledger's mark knows them
    from then on."""
    with open_to_read(settings) as ledger:
        zone = slots_of(ledger, settings).zone
        span = read_time(arguments.since, zone, -inf), read_time(arguments.until, zone, inf)
        if arguments.smoothed:
            _print(_estimates(ledger, settings, span))
            return
        for payloads in _records(
            ledger, (answers_in if arguments.queries else ids_in)(ledger, span)
        ):
            ledger.mark(witness(payloads))
            _print(payloads.values())


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
            log_message(f"{text}: `ledger releases` prints them", "ledger", level=WARNING)
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
        span = read_time(arguments.since, zone, -inf), read_time(arguments.until, zone, inf)
        places = [*archives, ledger]
        found = arguments.ids or [
            id_ for place in places for id_ in ids_in(place, span) if kind_of(id_) == "hat"
        ]
        if cells:
            found = [id_ for id_ in found if id_.partition("-")[0] in cells]
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
            print(*ids, sep="\n")
            return
        at = datetime.now(zone).isoformat(timespec="seconds")
        new = withdraw_hats(ledger, ids, arguments.reason, at, SOFTWARE, archives)
    print(
        f"{counted(new, 'HAT')} withdrawn, {len(ids) - new:,} before. Their budget stays spent, their records stay."
    )
    print("A run or worker publishes the marks with its next slot; `ledger releases` prints them.")


def ids_in(ledger: Ledger, span: tuple[float, float]) -> list[str]:
    """The ids of HATs whose slots start in this span of Unix seconds, and of their withdrawals,
    slot by slot."""
    found = []
    for id_ in ledger.newest():
        with suppress(ValueError):  # an id that tells no slot
            if kind_of(id_) in ("hat", WITHDRAWN) and span[0] <= slot_of(id_)[0] < span[1]:
                found.append((*slot_of(id_), id_))
    return [id_ for *_, id_ in sorted(found)]


def answers_in(ledger: Ledger, span: tuple[float, float]) -> list[str]:
    """The ids of queries' answers whose moments lie in this span of Unix seconds, moment by moment."""
    moments = {id_: moment_of(id_) for id_ in ledger.newest() if kind_of(id_) == "query"}
    found = [id_ for id_, at_ms in moments.items() if span[0] <= at_ms / 1000 < span[1]]
    return sorted(found, key=lambda id_: (moments[id_], id_))


def _estimates(ledger: Ledger, settings: Settings, span: tuple[float, float]) -> Iterator[bytes]:
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
        (1000 * start, 1000 * end): None for start, end in map(slot_of, ids_in(ledger, span))
    }
    for slot in slots:
        yield from map(encode_smoothed, context.smoothed(slot, ledger))


def _print(lines: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(line + b"\n" for line in lines)


def read_time(text: str | None, zone: tzinfo, otherwise: float = inf) -> float:
    """Unix seconds of an ISO 8601 date or time, in this zone where it tells none. UsageError for
    other text."""
    if text is None:
        return otherwise
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"expected a date or time such as 2026-10-01 or 2026-10-01T06:00, got {text!r}"
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=zone)).timestamp()
