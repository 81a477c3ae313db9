"""`replay`: recorded pings in, private releases out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing

from udp_stream.cli import outputs
from udp_stream.cli.first_look import looked_at, require_readable_pings, require_unit_of_files
from udp_stream.cli.outputs import PRIVATE, open_output, records_out
from udp_stream.cli.report import SOFTWARE, ReadingProgress, print_json_summary, print_summary, troubles
from udp_stream.errors import UsageError
from udp_stream.forms import require_form
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import begin_run, ledger_and_keys, trial_ledger
from udp_stream.release.facts import Summary
from udp_stream.release.forecaster import Smoothed
from udp_stream.release.record import QueryResult, Release
from udp_stream.runtime import Embedded, rejected_writer, release_sink, smoothed_sink
from udp_stream.settings import Settings
from udp_stream.sources.recordings import open_sources


def replay(arguments: argparse.Namespace, settings: Settings) -> None:
    """Read the files as one log, release its HATs, tell on stderr what was done, also if it ends early."""
    if arguments.dry_run:
        _dry_run(arguments, settings)
        return
    if arguments.trial and arguments.ledger:
        raise UsageError("--trial keeps a ledger for this run only: leave --ledger or --trial out")
    outputs.require_queries(arguments.queries, settings)
    outputs.require_lines("--rejected", arguments.rejected)
    files = [(f"--{name}", getattr(arguments, name)) for name in ("out", "rejected", "smoothed", "queries")]
    outputs.require_distinct(files, outputs.used_files(arguments, settings, arguments.files))
    progress = ReadingProgress(arguments.files)
    with ExitStack() as stack:
        said, how = list[str](), (settings.speed.unit, progress.of)  # by sources, while the bar is shown
        opened = open_sources(arguments.files, *how, said.append, form=settings.form)
        sources = [(name, stack.enter_context(closing(source))) for name, source in opened]
        require_readable_pings(arguments.files, settings)
        require_unit_of_files(arguments.files, settings)
        for name in (arguments.out, arguments.smoothed):
            require_form(name or "-")
        place = stack.enter_context(trial_ledger(settings)) if arguments.trial else settings.ledger
        ledger, keys = stack.enter_context(ledger_and_keys(place))
        others = begin_run(place, ledger, settings)
        out = stack.enter_context(records_out(arguments.out, Release))
        rejected = stack.enter_context(open_output(arguments.rejected, PRIVATE)) if arguments.rejected else None
        smoothed = stack.enter_context(records_out(arguments.smoothed, Smoothed)) if arguments.smoothed else None
        answer = stack.enter_context(records_out(arguments.queries, QueryResult)) if arguments.queries else None
        reject, smooth = rejected_writer(rejected.write) if rejected else None, smoothed and smoothed_sink(smoothed)
        of_ledger = ledger, OsEntropy(), keys.hash_plate, SOFTWARE
        to = release_sink(out), reject, others, arguments.trial
        runtime = Embedded(settings, *of_ledger, *to, smooth=smooth, answer=answer)
        try:
            with progress:
                for name, source in sources:
                    # No frame spans two sources, so that a new file's plates are observed together.
                    for messages in looked_at(source, name, settings):
                        runtime.push(messages, source.format)
                runtime.finish()
        except BaseException:
            if runtime.summary.messages or arguments.json:
                _summarize(runtime.summary, settings, said, as_json=arguments.json)
            raise
        _summarize(runtime.summary, settings, said, as_json=arguments.json)
        if not runtime.summary.pings:
            raise UsageError("no ping was accepted")


def _summarize(summary: Summary, settings: Settings, said: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json_summary(summary, settings, [*said, *troubles(summary)])
    else:
        print_summary(summary, settings, said)


def _dry_run(arguments: argparse.Namespace, settings: Settings) -> None:
    from udp_stream.cli.plan_of_feed import dry_run

    if arguments.json:
        raise UsageError("--dry-run has no summary of a run: leave --json out")
    given = [name for name in ("trial", "smoothed", "rejected", "queries") if getattr(arguments, name)]
    if given := [*given, *(["out"] if arguments.out != "-" else [])]:
        raise UsageError(f"--dry-run writes nothing: leave --{given[0]} out")
    dry_run(arguments.files, settings, OsEntropy())
