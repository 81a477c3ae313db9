"""`replay`: recorded pings in, private releases out."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing

from udp_stream.base.errors import UsageError
from udp_stream.cli import outputs
from udp_stream.cli.outputs import PRIVATE, open_output, read_time, records_out
from udp_stream.cli.preflight import (
    checked_messages,
    require_fit_files,
    stop_or_warn,
)
from udp_stream.cli.process import noted
from udp_stream.cli.progress import ReadingProgress
from udp_stream.cli.report import SOFTWARE, print_json_summary, print_summary, troubles
from udp_stream.embedded.runtime import (
    EmbeddedRuntime,
    rejected_writer,
    release_sink,
    smoothed_sink,
)
from udp_stream.export_formats import require_format
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import begin_run, ledger_and_keys, trial_ledger
from udp_stream.release.events import Summary
from udp_stream.release.record import QueryResult, Release, Smoothed
from udp_stream.settings import Settings
from udp_stream.sources.recordings import open_sources
from udp_stream.windows.slots import Span


def replay(arguments: argparse.Namespace, settings: Settings) -> None:
    """Read the files as a single log, release its HATs, tell on stderr what was done, also if it
    ends early."""
    if arguments.dry_run:
        _dry_run(arguments, settings)
        return
    if arguments.trial and arguments.ledger:
        raise UsageError("--trial keeps a ledger for this run only: leave --ledger or --trial out")
    outputs.require_queries(arguments.queries, settings)
    outputs.require_lines("--rejected", arguments.rejected)
    files = [
        (f"--{name}", getattr(arguments, name))
        for name in ("out", "rejected", "smoothed", "queries")
    ]
    outputs.require_distinct(files, outputs.used_files(arguments, settings, arguments.files))
    slots = _slots_asked(arguments, settings)
    progress = ReadingProgress(arguments.files)
    with ExitStack() as stack:
        stack.enter_context(
            noted(signal.SIGHUP)
        )  # a terminal that closes, or logrotate, ends no replay
        said = list[str]()
        unit = settings.speed.unit
        opened = open_sources(arguments.files, unit, progress.of, said.append, form=settings.form)
        sources = [(name, stack.enter_context(closing(source))) for name, source in opened]
        before = require_fit_files(arguments.files, settings, charges=True)
        for name in (arguments.out, arguments.smoothed):
            require_format(name or "-")
        place = stack.enter_context(trial_ledger(settings)) if arguments.trial else settings.ledger
        ledger, keys = stack.enter_context(ledger_and_keys(place))
        others = begin_run(place, ledger, settings)
        out = stack.enter_context(records_out(arguments.out, Release, settings.grid))
        rejected = (
            stack.enter_context(open_output(arguments.rejected, PRIVATE))
            if arguments.rejected
            else None
        )
        smoothed = (
            stack.enter_context(records_out(arguments.smoothed, Smoothed, settings.grid))
            if arguments.smoothed
            else None
        )
        answer = (
            stack.enter_context(records_out(arguments.queries, QueryResult, settings.grid))
            if arguments.queries
            else None
        )
        reject = rejected_writer(rejected.write) if rejected else None
        smooth = smoothed and smoothed_sink(smoothed)
        runtime = EmbeddedRuntime(
            settings,
            ledger,
            OsEntropy(),
            keys.hash_plate,
            SOFTWARE,
            release_sink(out),
            reject,
            others,
            arguments.trial,
            smooth=smooth,
            answer=answer,
            slots=slots,
        )
        try:
            with progress:
                for name, source in sources:
                    # No frame spans two sources, so that a new file's plates are observed together.
                    for messages in checked_messages(source, name, settings):
                        runtime.push(messages, before.again(source.format))
                runtime.finish()
        except BaseException:
            if runtime.summary.messages or arguments.json:
                _summarize(runtime.summary, settings, said, as_json=arguments.json)
            raise
        _summarize(runtime.summary, settings, said, as_json=arguments.json)
        if not runtime.summary.pings:
            stop_or_warn(UsageError("no ping was accepted"), settings)


SLOTS_MAX = 10_000


def _slots_asked(arguments: argparse.Namespace, settings: Settings) -> list[Span]:
    """Where whole plates are hidden: the slots from `--from` to `--until`, which no ping may
    choose."""
    given = [arguments.since, arguments.until]
    if not settings.window_rules.in_processing_time:
        if any(given):
            raise UsageError(
                '--from and --until are for privacy.neighbours = "add-remove": the pings tell the slots'
            )
        return []
    if not all(given):
        raise UsageError(
            '--from TIME and --until TIME: expected both where privacy.neighbours is "add-remove"'
        )
    since, until = (math.ceil(1000 * read_time(text, settings.zone)) for text in given)
    slots = settings.calendar.slots.between(since, until, SLOTS_MAX + 1)
    if not 1 <= len(slots) <= SLOTS_MAX:
        found = "none" if not slots else "more"
        raise UsageError(
            f"--from and --until: expected 1 to {SLOTS_MAX:,} slots that start between them, got {found}"
        )
    return slots


def _summarize(summary: Summary, settings: Settings, said: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json_summary(summary, settings, [*said, *troubles(summary)])
    else:
        print_summary(summary, settings, said)


def _dry_run(arguments: argparse.Namespace, settings: Settings) -> None:
    from udp_stream.cli.plan_of_feed import dry_run

    if arguments.json:
        raise UsageError("--dry-run has no summary of a run: leave --json out")
    if arguments.since or arguments.until:
        raise UsageError("--dry-run reads whole files: leave --from and --until out")
    given = [
        name for name in ("trial", "smoothed", "rejected", "queries") if getattr(arguments, name)
    ]
    if given := [*given, *(["out"] if arguments.out != "-" else [])]:
        raise UsageError(f"--dry-run writes nothing: leave --{given[0]} out")
    dry_run(arguments.files, settings, OsEntropy())
