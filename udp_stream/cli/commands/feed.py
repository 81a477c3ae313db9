"""`feed`: pings into the topic that workers read, recorded ones or those of a synthetic fleet."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from streams.feed import Feed, Pace
from streams.topics import topics_of
from udp_stream.adapters.files.heartbeat import Heartbeat
from udp_stream.adapters.files.sources import read_messages, require_readable
from udp_stream.adapters.settings import Settings
from udp_stream.errors import UsageError
from udp_stream.trial.fleet.live import live_messages


def feed(arguments: argparse.Namespace, settings: Settings) -> None:
    """Send every file, in order, and return when the broker has it all; or a fleet, until stopped."""
    source = _source(arguments)
    pace, heartbeat = Pace(arguments.rate, arguments.speedup), Heartbeat(arguments.alive)
    with Feed(settings.kafka.bootstrap, topics_of(settings.kafka).pings.name, arguments.batch, pace) as sender:
        for messages in source:
            sender.send(messages)
            heartbeat.beat()
    print(f"{sender.sent:,} messages sent in {time.monotonic() - pace.began:.1f} s", file=sys.stderr)


def _source(arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    if arguments.fleet is None:
        if not arguments.files:
            raise UsageError("expected files, or --fleet BUSES")
        require_readable(arguments.files)
        return (messages for file in arguments.files for messages in read_messages(file))
    if arguments.files or arguments.rate or arguments.speedup or arguments.batch > 1:
        raise UsageError("a fleet keeps its own pace: expected --fleet without files, --rate, --speedup or --batch")
    return live_messages(arguments.fleet, ago_s=arguments.ago)
