"""`feed`: pings into the topic that workers read, recorded ones or those of a synthetic fleet."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from streams.feed import Feed, Pace
from streams.topics import topics_of
from udp_stream.adapters.files.heartbeat import Heartbeat
from udp_stream.adapters.schemes import Source, open_source
from udp_stream.adapters.settings import Settings
from udp_stream.errors import ConfigError, UsageError
from udp_stream.pings.decoder import json_messages
from udp_stream.trial.fleet.live import live_messages


def feed(arguments: argparse.Namespace, settings: Settings) -> None:
    """Send every file, in order, and return when the broker has it all; or a fleet, until stopped."""
    form = settings.source.form
    pace, heartbeat = Pace(arguments.rate, arguments.speedup, form), Heartbeat(arguments.alive)
    with ExitStack() as stack:
        frames = _frames(arguments, settings, stack)
        topic = topics_of(settings.kafka).pings.name
        sender = stack.enter_context(Feed(settings.kafka.bootstrap, topic, arguments.batch, pace, form))
        for messages in frames:
            sender.send(messages)
            heartbeat.beat()
    print(f"{sender.sent:,} messages sent in {time.monotonic() - pace.began:.1f} s", file=sys.stderr)


def _frames(arguments: argparse.Namespace, settings: Settings, stack: ExitStack) -> Iterator[list[bytes]]:
    """Frames of JSON messages; what cannot be read is refused before anything is sent. The stack closes the sources."""
    if arguments.fleet is None:
        if not arguments.files:
            raise UsageError("expected files, or --fleet BUSES")
        unit, rules = settings.speed.unit, settings.ping_rules
        sources = [
            stack.enter_context(closing(open_source(name, unit, form=settings.source.form))) for name in arguments.files
        ]
        _refuse_two_forms(sources, settings)
        return (json_messages(some, source.format, rules) for source in sources for some in source.messages())
    if arguments.files or arguments.rate or arguments.speedup or arguments.batch > 1:
        raise UsageError("a fleet keeps its own pace: expected --fleet without files, --rate, --speedup or --batch")
    if not settings.source.form.is_plain:
        raise ConfigError("source: expected no keys for --fleet, whose pings are in the contract's form")
    return live_messages(arguments.fleet, ago_s=arguments.ago)


def _refuse_two_forms(sources: Sequence[Source], settings: Settings) -> None:
    """A format that is no JSON goes into the topic in the contract's form, which workers with a mapping do not read."""
    if not settings.source.form.is_plain and not all(source.format.is_json for source in sources):
        raise ConfigError(
            "source: expected no keys for a source that is not JSON or CSV: its pings go to the topic in the "
            "contract's form, and workers read all messages by [source]"
        )
