"""The options of `releases`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_bootstrap, add_verb, only_prints


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "releases", "print what the deployment on Kafka has released", "releases")
    add_bootstrap(parser)
    parser.add_argument("--follow", action="store_true", help="wait for further records, until stopped")
    parser.add_argument("--queries", action="store_true", help="the results of standing queries instead")
    only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream releases > releases.ndjson
  udp-stream releases --bootstrap kafka:9092 --follow
  udp-stream releases --queries > answers.ndjson
"""
