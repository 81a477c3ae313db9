"""Reports of work that goes on (`release/worker_report.py`): who reports, and the file of a live run's report.

A worker's reports go to Kafka (`streams/reports.py`).
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from udp_stream.adapters.files.atomic import draft_of
from udp_stream.adapters.ledgers.policy_keys import written
from udp_stream.adapters.settings import Settings
from udp_stream.release.facts import Fact
from udp_stream.release.recent_work import RecentWork
from udp_stream.release.standing import asked_digest
from udp_stream.release.worker_health import Rules, Seen
from udp_stream.release.worker_report import About, PartitionReport, Runtime, WorkerReport, decode_report, encode_report
from udp_stream.units import parse_duration
from udp_stream.windows.source import SourceReader

REPORT: Final = "report"
"""The file of a run's report, in its journal's folder."""

ASKED: Final = "queries, query (digest)"
"""What a report calls the digest of `[queries]` and `[[query]]`; a worker that asks nothing has none."""


def rules_of(settings: Settings) -> Rules:
    """What all workers of a deployment need alike: the policy, and what decides which pings count and when.

    >>> rules_of(Settings()).rules["kafka.disorder"], rules_of(Settings()).settings["hat.slot"]
    ('1m', '1h')
    """
    further = {
        "pings.ahead": settings.pings.ahead,
        "pings.per_slot_max": str(settings.pings.per_slot_max),
        "kafka.disorder": settings.kafka.disorder,
        "kafka.skew": settings.kafka.skew,
        "kafka.transactions": str(settings.kafka.transactions).lower(),
    }
    if asked := asked_digest(settings.standing_queries, settings.zone):  # as a digest: queries name places
        further[ASKED] = asked
    return Rules(settings.policy.fingerprint(), written(settings.policy), further)


def about_us(settings: Settings, runtime: Runtime, instance: str | None, software: str, ledger_id: str) -> About:
    """Who reports. Without a name for ever, a worker goes by its machine and process."""
    ours = rules_of(settings)
    return About(
        instance or f"{socket.gethostname()}-{os.getpid()}",
        instance is not None,
        runtime,
        software,
        settings.kafka.group if runtime == "worker" else "",
        ledger_id,
        ours.policy,
        ours.settings,
        ours.rules,
        dt.datetime.now(settings.zone).isoformat(timespec="seconds"),
        parse_duration(settings.kafka.status_every),
    )


def recent_work(settings: Settings) -> RecentWork:
    """An observer to be, without a clock."""
    stuck_after_s = parse_duration(settings.kafka.stuck_timeout) / 4
    disorder_ms = settings.window_rules.disorder_ms
    return RecentWork(settings.calendar.slots, settings.policy.grace_ms, stuck_after_s, disorder_ms)


class RunReports:
    """Keeps the report of a live run in its journal's folder. `report_due` is to be called about once a second."""

    def __init__(self, about: About, recent: RecentWork, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Nothing is written yet."""
        self._about, self._recent, self._file, self._clock = about, recent, folder / REPORT, clock
        self._reported_s: float | None = None

    def observe(self, fact: Fact) -> None:
        """Count a fact."""
        self._recent.observe(fact, self._clock())

    def report_due(self, reader: SourceReader) -> None:
        """Write the report if it is due. OSError if the folder cannot be written."""
        if self._reported_s is None or self._clock() - self._reported_s >= self._about.every_seconds:
            self.report(reader)

    def report(self, reader: SourceReader, ended: int | None = None) -> None:
        """Write the report; `ended` is the exit status of a run that ends."""
        self._reported_s = self._clock()
        journal = PartitionReport("journal", 0, reader.next_offset, 0)
        work = self._recent.work(self._reported_s, reader.open_slots(), [journal], ended=ended)
        with draft_of(self._file) as draft:
            # The mode before the content: at no moment may others read it.
            draft.touch(mode=0o600)
            draft.write_bytes(encode_report(WorkerReport(self._about, work)))
            draft.rename(self._file)


def run_seen(folder: Path, now_s: float) -> Seen | None:
    """The report of the run that has, or had, the journal in this folder; None if there is none."""
    try:
        report = decode_report((folder / REPORT).read_bytes())
    except FileNotFoundError:
        return None
    if report is None:
        return None
    age_s = now_s - dt.datetime.fromisoformat(report.work.reported_at).timestamp()
    return Seen(report, max(0.0, age_s))
