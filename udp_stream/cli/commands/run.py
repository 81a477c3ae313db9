"""`run`: the live embedded runtime. Any source in, private releases out, a ledger and a journal; no services."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from udp_stream.cli import outputs
from udp_stream.cli.first_look import FeedWatch, LiveLook, require_readable_pings, source_name
from udp_stream.cli.outputs import PRIVATE, appended, appended_records
from udp_stream.cli.process import observed, say_of_source, sigterm
from udp_stream.cli.report import SOFTWARE
from udp_stream.errors import ConfigError, UsageError
from udp_stream.files import ALIVE, Heartbeat
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import begin_work, ledger_and_keys, ledger_place
from udp_stream.logs import begin_log, counted, say
from udp_stream.pings.json import json_messages
from udp_stream.release.facts import Summary
from udp_stream.runtime import LiveRuntime, Outputs, SpokenLog, rejected_writer
from udp_stream.settings import Settings, is_file
from udp_stream.sources.journal import Journal
from udp_stream.sources.live import Handover, LiveSource
from udp_stream.sources.opening import live_source


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    """Release until the source ends or we are stopped. ConfigError if no ledger is named."""
    outputs.require_queries(arguments.queries, settings)
    files = [(f"--{name}", getattr(arguments, name)) for name in ("out", "rejected", "smoothed", "queries")]
    for flag, name in files:
        outputs.require_lines(flag, name)
    if not settings.ledger.url:
        raise ConfigError("ledger.url: expected the ledger of this feed, got none: name it with --ledger FILE")
    outputs.require_distinct(files, outputs.used_files(arguments, settings, [arguments.source]))
    begin_log()
    with ExitStack() as stack:
        observers = stack.enter_context(observed(arguments.metrics, SOFTWARE, settings.policy.fingerprint()))
        folder = _folder(arguments, settings)
        source = live_source(arguments.source, settings, say_of_source, folder)
        require_readable_pings([arguments.source], settings, warn=lambda _: None)  # the watch says it
        ledger, keys = stack.enter_context(ledger_and_keys(settings.ledger))
        others = begin_work(settings, ledger)
        log = SpokenLog(settings.calendar.slots, settings.policy.grace_ms)
        journal = stack.enter_context(Journal(folder, f"the ledger {ledger.meta()['ledger_id']}"))
        writes = stack.enter_context(_outputs(arguments))
        summary, watch = Summary(policy=settings.policy.fingerprint(), others=others), FeedWatch(settings)
        observers = [log.observe, summary.observe, *observers]
        runtime = LiveRuntime(
            settings, ledger, OsEntropy(), keys.hash_plate, SOFTWARE, journal, writes, observers, look=watch.look
        )
        # These are left in reverse: what is due, and the summary as the last line.
        look = LiveLook(arguments.source, settings)
        stack.callback(_summarize, summary, look)
        stack.callback(log.say_due, at_the_end=True)
        say(f"run of {source_name(arguments.source)}, with the journal {folder}", "begun")
        heartbeats = Heartbeat(arguments.alive), Heartbeat(folder / ALIVE)
        stack.callback((folder / ALIVE).unlink, missing_ok=True)
        runtime.start()
        ended = _go_on(source, runtime, settings, log, heartbeats, look)
        watch.end()
        look.end()
        if ended and watch.accepted_nothing:
            raise UsageError("no ping was accepted")
        if ended and not (summary.pings or summary.refused or ledger.progress().admitted):
            raise UsageError(f"{source_name(arguments.source)}: the source ended, and no ping has ever come")


def _summarize(summary: Summary, look: LiveLook) -> None:
    read = f"{counted(summary.pings, 'ping')}, {summary.refused.total():,} refused"
    read += f", {look.stale:,} too old to be read" if look.stale else ""
    hats = f"{counted(summary.hats.total(), 'HAT')}, {summary.hats['released']:,} released"
    waiting = f", {counted(summary.held, 'ping')} in open slots" if summary.held else ""
    text = f"ended: {read}; {counted(summary.slots, 'slot')}, {hats}{waiting}"
    say(text, "ended", {"pings": summary.pings, "refused": dict(summary.refused), "hats": dict(summary.hats)})


def _go_on(
    source: LiveSource,
    runtime: LiveRuntime,
    settings: Settings,
    log: SpokenLog,
    heartbeats: Sequence[Heartbeat],
    look: LiveLook,
) -> bool:
    """Frames into the journal and through it; whether the source ended before SIGTERM came."""
    rules = settings.ping_rules
    with Handover(source) as handover, sigterm() as asked:
        while not handover.ended:
            if asked():
                handover.stop()
            frames = handover.take()
            messages = [message for frame in frames for message in json_messages(frame, source.format, rules)]
            if messages := look.fresh(messages):
                runtime.take(messages)
            # Not `if messages`: frames without any have to be acknowledged to a queue, too.
            if frames:
                handover.kept()
            else:
                runtime.tick()
            for heartbeat in heartbeats:
                heartbeat.beat()
            log.say_due()
        if not asked():
            runtime.close_what_is_over()
    runtime.stop()
    return not asked()


def _folder(arguments: argparse.Namespace, settings: Settings) -> Path:
    if arguments.journal is not None:
        folder: Path = arguments.journal
        return folder
    if not is_file(settings.ledger.place):
        raise ConfigError("--journal FOLDER: expected it beside a ledger that is no file")
    return Path(f"{ledger_place(settings.ledger.place)}.journal")


@contextmanager
def _outputs(arguments: argparse.Namespace) -> Iterator[Outputs]:
    with ExitStack() as stack:
        out = stack.enter_context(appended_records(arguments.out))
        smoothed, queries = (
            stack.enter_context(appended_records(name)) if name else None
            for name in (arguments.smoothed, arguments.queries)
        )
        rejected = stack.enter_context(appended(arguments.rejected, PRIVATE)) if arguments.rejected else None
        ids, reject = (
            out.ids | (queries.ids if queries else frozenset()),
            rejected_writer(rejected) if rejected else None,
        )
        yield Outputs(out.write, smoothed and smoothed.write, reject, ids, queries and queries.write)
