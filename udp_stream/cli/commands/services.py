"""`services`: a real Kafka and a real Redis for as long as it runs."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress

from udp_stream.settings import Settings
from udp_stream.trial.services import Services
from udp_stream.trial.services import services as both

LOOK_SECONDS = 0.5


def services(arguments: argparse.Namespace, _settings: Settings) -> None:
    """Start both, print where they answer, stop them on SIGTERM or SIGINT.

    Raises DependencyUnavailable if one cannot be started, or ends early.
    """
    with both(arguments.folder) as running:
        # Flushed: a program that reads them through a pipe would wait until the end for them.
        print(f"KAFKA_BOOTSTRAP={running.kafka.bootstrap}\nREDIS_URL={running.redis.url}", flush=True)
        with suppress(KeyboardInterrupt):  # Ctrl-C is how a person stops it
            _watch(running)


def _watch(running: Services) -> None:
    while True:
        running.fail_if_ended()
        time.sleep(LOOK_SECONDS)
