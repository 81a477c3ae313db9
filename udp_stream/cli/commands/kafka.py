"""`topics create`, `worker` and `feed`: the deployment on Kafka."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial

from streams.feed import Feed, Pace
from streams.topics import create_topics, topics_of
from udp_stream.base.errors import FOR_A_PERSON, ConfigError, UdpStreamError, UsageError, needs
from udp_stream.base.files import Heartbeat
from udp_stream.base.logs import ERROR, WARNING, begin_log, counted, log_message
from udp_stream.cli.preflight import LiveFeedCheck, RefusalWatch, max_age_s, require_fit_files
from udp_stream.cli.process import log_source_message, noted, observed
from udp_stream.cli.report import SOFTWARE
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.pings.json import json_messages
from udp_stream.release.events import Backlog, Observer, SourceStatus
from udp_stream.settings import Settings
from udp_stream.sources.fleet import live_messages
from udp_stream.sources.live import Handover, LiveSource
from udp_stream.sources.opening import live_source
from udp_stream.sources.recordings import open_sources, require_one_form, scheme_of


def create(_arguments: argparse.Namespace, settings: Settings) -> None:
    """Make what is missing; say what exists, and what of it differs."""
    for sentence in create_topics(settings.kafka):
        print(sentence)


def feed(arguments: argparse.Namespace, settings: Settings) -> None:
    """Send every file, in order, and return when the broker has it all; or a live source or a
    fleet, until stopped."""
    form = settings.form
    if arguments.ago and arguments.fleet is None:
        raise UsageError("--ago is for a fleet: expected --fleet BUSES beside it")
    pace = Pace(arguments.rate, arguments.speedup, form)
    heartbeat = Heartbeat(arguments.alive)
    with ExitStack() as stack:
        topic = topics_of(settings.kafka).pings.name
        stack.enter_context(noted(signal.SIGHUP))
        live = _live(arguments, settings)
        if live:
            begin_log()
            stack.callback(begin_log, as_json=False)
        frames = iter(()) if live else _frames(arguments, settings, stack)
        deals = settings.speed.from_ == "field" and not settings.window_rules.in_processing_time
        sender = stack.enter_context(
            Feed(settings.kafka, topic, arguments.batch, pace, form, deals)
        )
        if live:
            of = max_age_s(arguments.files[0], settings)
            clock = settings.arrival_clock(of)
            feed_check = LiveFeedCheck(
                arguments.files[0], settings, clock=clock.now_s, hear=clock.hear
            )
            send_live(live, sender, settings, heartbeat.beat, feed_check)
            log_source_message(_sent(sender, pace))
            return
        for messages in frames:
            sender.send(messages)
            heartbeat.beat()
    log_message(_sent(sender, pace))


def _sent(sender: Feed, pace: Pace) -> str:
    return f"{counted(sender.sent, 'message')} sent in {time.monotonic() - pace.began:.1f} s"


SETTLE_S = 0.5
"""Arrays that are not full wait as long: with the wait for a frame, a message is in Kafka within a
second."""


def send_live(
    source: LiveSource,
    sender: Feed,
    settings: Settings,
    beat: Callable[[], None],
    feed_check: LiveFeedCheck,
) -> None:
    """Send the fresh messages of a live source until it ends, or until SIGTERM; in the end all are
    acknowledged.

    Arrays are cut by number and time, and not where frames end: a pipe's frames end by bytes, so by
    digits of speeds.
    """
    sent_s = time.monotonic()
    is_settled = True
    with Handover(source) as handover, noted(signal.SIGTERM) as asked:
        while not handover.ended or not is_settled:
            if asked:
                handover.stop()
            frames = handover.take()
            for frame in frames or [[]]:  # without one the feed may stand still
                sender.send(
                    feed_check.fresh(json_messages(frame, source.format, settings.ping_rules))
                )
            is_settled = is_settled and not frames
            is_due = not frames or not sender.joins or time.monotonic() - sent_s >= SETTLE_S
            if is_due and not is_settled:
                sender.settle()
                handover.kept()
                sent_s = time.monotonic()
                is_settled = True
            beat()
    feed_check.end()


def _live(arguments: argparse.Namespace, settings: Settings) -> LiveSource | None:
    """The live source that is to be sent; None for files and fleets. Standard input at a pace is
    read like a file."""
    names = arguments.files
    has_pace = arguments.rate or arguments.speedup or arguments.fleet is not None
    if not any(map(scheme_of, names)) and (names != ["-"] or has_pace):
        return None
    if len(names) > 1 or has_pace:
        raise UsageError(
            "a live source goes on until it is stopped: expected it alone, without --rate or --speedup"
        )
    return live_source(names[0], settings, log_source_message)


def _frames(
    arguments: argparse.Namespace, settings: Settings, stack: ExitStack
) -> Iterator[list[bytes]]:
    """Frames of JSON messages. What cannot be read is refused before anything is sent."""
    if arguments.fleet is None:
        if not arguments.files:
            raise UsageError("expected files, or --fleet BUSES")
        unit = settings.speed.unit
        rules = settings.ping_rules
        opened = open_sources(
            arguments.files, unit, log_message=log_source_message, form=settings.form
        )
        sources = [stack.enter_context(closing(source)) for _, source in opened]
        require_one_form(settings.form, [source.format for source in sources])
        require_fit_files(
            arguments.files, settings, warn=lambda text: log_message(text, level=WARNING)
        )
        return (
            json_messages(some, source.format, rules)
            for source in sources
            for some in source.messages()
        )
    if arguments.files or arguments.rate or arguments.speedup or arguments.batch > 1:
        raise UsageError(
            "a fleet keeps its own pace: expected --fleet without files, --rate, --speedup or --batch"
        )
    if not settings.form.is_plain or settings.form.format.is_exchanged:
        raise ConfigError(
            "source: expected no keys for --fleet, whose pings are in the contract's form"
        )
    return live_messages(arguments.fleet, ago_s=arguments.ago)


def worker(arguments: argparse.Namespace, settings: Settings) -> None:
    """Work until stopped. ConfigError if no ledger is named, DependencyUnavailable without Faust or
    a free port."""
    settings.ledger.require_named()
    with needs("Faust", "kafka"):
        from streams.worker import Deployment, run_worker
    metrics = observed(arguments.metrics, SOFTWARE, settings)
    with (
        metrics as observers,
        noted(signal.SIGHUP),
    ):  # it ends a program that does not look out for it
        deployment = Deployment(
            settings,
            OsEntropy(),
            SOFTWARE,
            arguments.instance,
            arguments.accept_loss,
            arguments.alive,
            RefusalWatch(settings).check,
            observers,
            arguments.reset_clock,
            partial(_hold, arguments, observers),
        )
        run_worker(deployment, arguments.came)


HOLD_S = 0.5


def hold(arguments: argparse.Namespace, error: UdpStreamError) -> None:
    """With `--hold`, an error that needs a person holds the process until SIGTERM or SIGINT,
    whatever raised it."""
    came = arguments.came
    with (
        observed(arguments.metrics, SOFTWARE) as observers,
        noted(signal.SIGTERM, came),
        noted(signal.SIGINT, came),
    ):
        _hold(arguments, observers, error)


def _hold(
    arguments: argparse.Namespace, observers: Sequence[Observer], error: UdpStreamError
) -> None:
    """Alive, with nothing to do, and not ready, until a signal came that ends a process."""
    if not arguments.hold or error.exit_status not in FOR_A_PERSON:
        return
    log_message("Held until it is stopped: to start again does not help", "failed", level=ERROR)
    heartbeat = Heartbeat(arguments.alive)
    while not arguments.came:
        heartbeat.beat()
        for observe in observers:
            observe(Backlog(0, 0, 0, 0))
            observe(SourceStatus(0.0, 0, is_away=True))
        time.sleep(HOLD_S)
