"""The options of `doctor`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_bootstrap, add_verb, ledger_place


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "doctor", "is everything reachable and safely configured", "doctor")
    parser.add_argument("files", nargs="*", metavar="FILE", help="recorded pings to judge speed.unit by, and not Kafka")
    parser.add_argument("--ledger", type=ledger_place, metavar="FILE", help="ledger file or URL (default: ledger.url)")
    add_bootstrap(parser)
    parser.epilog = """\
examples:
  udp-stream doctor --config city.toml
  udp-stream doctor pings.ndjson.gz --ledger city.ledger

Checks the configuration; the ledger, its key, and whether a Redis would forget; the topics' settings; and whether the
latest pings move as fast as they report, which tells kmh, mps and mph apart. Changes nothing. One line for each check;
the exit status is that of the first failure. What it says of speeds is a verdict on raw speeds, not a release.
"""
