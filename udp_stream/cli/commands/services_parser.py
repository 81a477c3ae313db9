"""The options of `services`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import Verbs, add_verb


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(
        verbs, "services", "start a real Kafka and Redis on this machine, for trials and tests", "services"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep data and ports there (default: temporary)")
    parser.epilog = """\
examples:
  udp-stream services
  udp-stream services --folder trial-data
"""
