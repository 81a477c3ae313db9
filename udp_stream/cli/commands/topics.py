"""`topics create`: the topics of the deployment."""

from __future__ import annotations

import argparse

from streams.topics import create_topics
from udp_stream.settings import Settings


def create(_arguments: argparse.Namespace, settings: Settings) -> None:
    """Make what is missing; say what exists, and what of it differs."""
    for sentence in create_topics(settings.kafka):
        print(sentence)
