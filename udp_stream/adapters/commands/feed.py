"""`feed`: recorded pings into the topic that workers read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from streams.feed import Feed, Pace
from streams.topics import topics_of
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.sources import read_messages


def feed(arguments: argparse.Namespace, settings: Settings) -> None:
    """Send every file, in order, and return when the broker has it all."""
    pace = Pace(arguments.rate, arguments.speedup)
    with Feed(settings.kafka.bootstrap, topics_of(settings.kafka).pings.name, arguments.batch, pace) as sender:
        for messages in _all(arguments.files, read_messages):
            sender.send(messages)
    print(f"{sender.sent:,} messages sent in {time.monotonic() - pace.began:.1f} s", file=sys.stderr)


def _all(files: list[str], read: Callable[[str], Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    for file in files:
        yield from read(file)
