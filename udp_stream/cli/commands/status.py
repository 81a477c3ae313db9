"""`status`: what a deployment is doing, from what its workers report, or a live run. Changes nothing."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from udp_stream.adapters.files.journal import journal_size
from udp_stream.adapters.ledgers.ledger_view import LedgerView, look_at
from udp_stream.adapters.ledgers.opening import ledger_place
from udp_stream.adapters.settings import Settings, is_file
from udp_stream.adapters.work_reports import REPORT, rules_of, run_seen
from udp_stream.cli.status_page import Status
from udp_stream.errors import (
    ConfigError,
    DependencyUnavailable,
    PrivacyRefused,
    UdpStreamError,
    UsageError,
    needs,
)
from udp_stream.release.worker_health import Group, Seen, Trouble, agreement, troubles

ERRORS: dict[int, type[UdpStreamError]] = {3: ConfigError, 4: DependencyUnavailable, 5: PrivacyRefused}


def status(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print the page. Raises what is wrong, by the highest status; DependencyUnavailable if no broker answers, and
    UsageError for a journal that is not there."""
    folder = _journal(arguments, settings)
    try:
        found = _of_kafka(settings) if folder is None else _of_run(folder, settings)
    except DependencyUnavailable as error:
        beside = _beside(settings)
        if arguments.bootstrap is not None or beside is None:
            raise
        raise DependencyUnavailable(f"{error}; and no live run has its journal in {beside}") from error
    if arguments.json:
        print(json.dumps(found.as_json(), ensure_ascii=False, indent=2), flush=True)
    else:
        print("\n".join(found.lines()), flush=True)
    if found.exit_status:
        words = "; ".join(trouble.text for trouble in found.troubles)
        raise ERRORS.get(found.exit_status, UdpStreamError)(words)


def _journal(arguments: argparse.Namespace, settings: Settings) -> Path | None:
    """The folder of a live run's journal; None for a deployment on Kafka."""
    if arguments.journal is not None:
        named: Path = arguments.journal
        if not named.is_dir():
            raise UsageError(f"--journal: expected the folder of a run's journal, got {named}")
        return named
    beside = _beside(settings)
    return beside if arguments.bootstrap is None and beside is not None and beside.is_dir() else None


def _beside(settings: Settings) -> Path | None:
    """Where a live run on this ledger has its journal, unless told otherwise; None for a ledger that is no file."""
    if not settings.ledger.url or not is_file(settings.ledger.url):
        return None
    return Path(f"{ledger_place(settings.ledger.url)}.journal")


def _of_kafka(settings: Settings) -> Status:
    with needs("Kafka client", "kafka"):
        from streams.group import group_of
        from streams.reports import read_reports
    kafka = settings.kafka
    group = group_of(kafka)
    return _status(settings, f"workers of group {kafka.group} at {kafka.bootstrap}", read_reports(kafka), group)


def _of_run(folder: Path, settings: Settings) -> Status:
    seen = run_seen(folder, time.time())
    size = journal_size(folder)
    journal = f"{size:,} of at most {settings.live.journal_max_bytes:,} bytes, in {folder}"
    missing = f"{folder} has no {REPORT}: no run of this version has begun there"
    found = _status(settings, f"run with the journal {folder}", [] if seen is None else [seen], journal=journal)
    return found if seen is not None else found.with_trouble(Trouble(4, missing))


def _status(
    settings: Settings, name: str, workers: list[Seen], group: Group | None = None, journal: str = ""
) -> Status:
    ledger, wrong = _ledger(settings), troubles(workers, group)
    if ledger is not None and ledger.status:
        wrong.append(Trouble(ledger.status, f"the ledger: {ledger.said}"))
    agreed, with_ours = agreement(workers), agreement(workers, rules_of(settings))
    return Status(name, workers, agreed, with_ours, wrong, ledger, settings.zone, group, journal)


def _ledger(settings: Settings) -> LedgerView | None:
    """None if the configuration names none."""
    return look_at(settings.ledger) if settings.ledger.url else None
