"""`run`: the live embedded runtime. Any source in, private releases out, a ledger and a journal; no
services."""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from udp_stream.base.errors import ConfigError, UsageError
from udp_stream.base.files import ALIVE, Heartbeat
from udp_stream.base.logs import WARNING, begin_log, counted, log_message
from udp_stream.cli import outputs
from udp_stream.cli.outputs import PRIVATE, PUBLIC, Appender
from udp_stream.cli.preflight import (
    LiveFeedCheck,
    RefusalWatch,
    is_on_disk,
    max_age_s,
    require_fit_files,
    source_name,
    stop_or_warn,
)
from udp_stream.cli.process import log_source_message, noted, observed
from udp_stream.cli.report import SOFTWARE
from udp_stream.embedded.runtime import LiveRuntime, Outputs, RunLogger, disk_of, rejected_writer
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import begin_work, ledger_and_keys, ledger_place
from udp_stream.pings.decode import Reason
from udp_stream.pings.json import json_messages
from udp_stream.release.events import DiskStatus, Observer, SourceStatus, Summary, report_to
from udp_stream.settings import Settings, is_file
from udp_stream.sources.journal import JOURNAL_BYTES_MAX, NO_LIMIT, Journal
from udp_stream.sources.live import ConnectedSource, Handover, LiveSource
from udp_stream.sources.opening import live_source


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    """Release until the source ends or we are stopped. ConfigError if no ledger is named."""
    outputs.require_queries(arguments.queries, settings)
    files = {name: getattr(arguments, name) for name in ("out", "rejected", "smoothed", "queries")}
    for name, file in files.items():
        outputs.require_lines(f"--{name}", file)
    if not settings.ledger.url:
        raise ConfigError(
            "ledger.url: expected the ledger of this feed, got none: name it with --ledger FILE"
        )
    named = [(f"--{name}", file) for name, file in files.items()]
    outputs.require_distinct(named, outputs.used_files(arguments, settings, [arguments.source]))
    begin_log()
    with ExitStack() as stack:
        observers = stack.enter_context(observed(arguments.metrics, SOFTWARE, settings))
        folder = _folder(arguments, settings)
        source = live_source(arguments.source, settings, log_source_message, folder)
        in_processing_time = (
            settings.window_rules.in_processing_time
        )  # where no ping may decide whether others are read
        quiet = lambda _: None  # noqa: E731 - the watch says it
        require_fit_files([arguments.source], settings, quiet, charges=True)
        ledger, keys = stack.enter_context(ledger_and_keys(settings.ledger))
        others = begin_work(settings, ledger)
        log = RunLogger(settings.calendar.slots, settings.policy.grace_ms)
        of_ledger = f"the ledger {ledger.meta()['ledger_id']}"
        bytes_max = NO_LIMIT if in_processing_time else JOURNAL_BYTES_MAX
        journal = stack.enter_context(Journal(folder, of_ledger, bytes_max))
        hangups = stack.enter_context(noted(signal.SIGHUP))
        appended = {
            name: stack.enter_context(
                closing(Appender(file, PRIVATE if name == "rejected" else PUBLIC))
            )
            for name, file in files.items()
            if file
        }
        summary = Summary(policy=settings.policy.fingerprint(), others=others)
        watch = RefusalWatch(settings)
        observers = [log.observe, summary.observe, *observers]
        lag_max_s = max_age_s(arguments.source, settings)
        clock = settings.arrival_clock(lag_max_s)
        runtime = LiveRuntime(
            settings,
            ledger,
            OsEntropy(),
            keys.hash_plate,
            SOFTWARE,
            journal,
            _outputs(appended),
            observers,
            clock,
            watch.check,
        )
        log.doubt = runtime.doubt
        # These are left in reverse: what is due, and the summary as the last line.
        feed_check = LiveFeedCheck(arguments.source, settings, clock=clock.now_s, hear=clock.hear)
        stack.callback(_summarize, summary, feed_check)
        stack.callback(log.log_due, at_the_end=True)
        log_message(f"run of {source_name(arguments.source)}, with the journal {folder}", "begun")
        heartbeats = Heartbeat(arguments.alive), Heartbeat(folder / ALIVE)
        stack.callback((folder / ALIVE).unlink, missing_ok=True)
        runtime.start(arguments.reset_clock)
        contact = _Contact(
            source, feed_check, disk_of(settings.ledger, folder), report_to(observers)
        )
        reopen = partial(_reopen_if_asked, hangups, appended.values())
        beats = (heartbeat.beat for heartbeat in heartbeats)
        every: Sequence[Callable[[], None]] = [*beats, reopen, contact.report_due, log.log_due]
        ended = _go_on(source, runtime, settings, every, feed_check)
        watch.end()
        feed_check.end()
        if ended and is_on_disk(arguments.source) and summary.refused and not summary.pings:
            late = summary.refused[Reason.LATE]
            why = "; `udp-stream replay` reads recordings whose slots are over" if late else ""
            # Also where whole plates are hidden: a file has ended, and nothing else is read after
            # it.
            text = f"no ping was accepted: {summary.words()['refused']}{why}"
            raise UsageError(f"{arguments.source}: {text}")
        if ended and watch.accepted_nothing:
            stop_or_warn(UsageError("no ping was accepted"), settings, _log_warning)
        elif ended and not (summary.pings or summary.refused or ledger.progress().admitted):
            text = f"{source_name(arguments.source)}: the source ended, and no ping has ever come"
            stop_or_warn(UsageError(text), settings, _log_warning)


def _log_warning(text: str) -> None:
    log_message(text, level=WARNING)


@dataclass
class _Contact:
    """Tells once a second how the source is, and the disks of ledger and journal."""

    source: LiveSource
    feed_check: LiveFeedCheck
    disk: Callable[[], DiskStatus]
    report: Observer
    reported_s: float = -math.inf

    def report_due(self) -> None:
        if (now_s := time.monotonic()) - self.reported_s < 1.0:
            return
        self.reported_s = now_s
        status = SourceStatus(0.0, 0, is_away=False)  # of a pipe, or a recording
        if isinstance(self.source, ConnectedSource):
            contact = self.source.contact
            status = SourceStatus(
                contact.silent_s,
                contact.failed,
                contact.is_away,
                certificate_s=contact.certificate_s,
            )
        self.report(status._replace(stale=self.feed_check.stale))
        self.report(self.disk())


def _reopen_if_asked(hangups: list[int], files: Iterable[Appender]) -> None:
    if hangups:
        hangups.clear()
        for file in files:
            file.reopen()


def _summarize(summary: Summary, feed_check: LiveFeedCheck) -> None:
    summary.stale = feed_check.stale
    parts = counted(summary.slots, "slot"), *summary.words().values()
    log_message(f"ended: {', '.join(parts)}", "ended", summary.figures())


def _go_on(
    source: LiveSource,
    runtime: LiveRuntime,
    settings: Settings,
    after_each: Sequence[Callable[[], None]],
    feed_check: LiveFeedCheck,
) -> bool:
    """Frames into the journal and through it; whether the source ended before SIGTERM came.

    `after_each` is called after each reading, at least once a second or so.
    """
    rules = settings.ping_rules
    in_processing_time = settings.window_rules.in_processing_time
    with Handover(source) as handover, noted(signal.SIGTERM) as asked:
        while not handover.ended:
            if asked:
                handover.stop()
            frames = handover.take()
            messages = [
                message
                for frame in frames
                for message in json_messages(frame, source.format, rules)
            ]
            if messages := feed_check.fresh(messages):
                runtime.take(messages)
            # Not `if messages`: frames without any have to be acknowledged to a queue, too.
            if frames:
                handover.kept()
            if in_processing_time or not frames:
                runtime.tick()
            for call in after_each:
                call()
        if not asked:
            runtime.close_what_is_over()
    runtime.stop()
    return not asked


def _folder(arguments: argparse.Namespace, settings: Settings) -> Path:
    if arguments.journal is not None:
        folder: Path = arguments.journal
        return folder
    if not is_file(settings.ledger.place):
        raise ConfigError("--journal FOLDER: expected it beside a ledger that is no file")
    return Path(f"{ledger_place(settings.ledger.place)}.journal")


def _outputs(files: Mapping[str, Appender]) -> Outputs:
    """The outputs of a runtime, by their flags."""
    writes = {name: file.write_records for name, file in files.items()}
    ids = frozenset[str]().union(
        *(files[name].ids() for name in ("out", "queries") if name in files)
    )
    reject = rejected_writer(files["rejected"].write) if "rejected" in files else None
    estimated = files["smoothed"].hats() if "smoothed" in files else frozenset[tuple[str, str]]()
    return Outputs(
        writes["out"], writes.get("smoothed"), reject, ids, writes.get("queries"), estimated
    )
