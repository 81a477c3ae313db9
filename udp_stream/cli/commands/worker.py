"""`worker`: one worker of the deployment on Kafka."""

from __future__ import annotations

import argparse

from udp_stream.cli.first_look import FeedWatch
from udp_stream.cli.report import SOFTWARE
from udp_stream.entropy import OsEntropy
from udp_stream.errors import needs
from udp_stream.settings import Settings


def worker(arguments: argparse.Namespace, settings: Settings) -> None:
    """Work until stopped.

    Raises ConfigError if no ledger is named; DependencyUnavailable if Faust is not installed.
    """
    settings.ledger.require_named()
    with needs("Faust", "kafka"):
        from streams.worker import Deployment, run_worker
    run_worker(
        Deployment(
            settings,
            OsEntropy(),
            SOFTWARE,
            arguments.allow_volatile_ledger,
            arguments.instance,
            arguments.accept_loss,
            arguments.alive,
            FeedWatch(settings).look,
        )
    )
