"""`releases`: what the deployment has released, and what it releases."""

from __future__ import annotations

import argparse
import sys

from streams.topics import read_answers, read_releases
from udp_stream.settings import Settings


def releases(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print the records of the output topic, one a line; with `--follow`, go on until stopped."""
    if arguments.queries:
        records = read_answers(settings.kafka, follow=arguments.follow)
    else:
        records = (release.payload for release in read_releases(settings.kafka, follow=arguments.follow))
    for record in records:
        sys.stdout.buffer.write(record + b"\n")
        if arguments.follow:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
