"""The options of `topics`."""

from __future__ import annotations

from udp_stream.cli.options import Parser, Verbs, add_bootstrap, add_verb


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = verbs.add_parser("topics", help="make the topics of the deployment", description="The topics on Kafka.")
    inner = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Parser)
    create = add_verb(inner, "create", "make the topics that are missing", "topics")
    add_bootstrap(create)
    create.epilog = parser.epilog = """\
examples:
  udp-stream topics create
  udp-stream topics create --bootstrap kafka:9092 --set kafka.partitions=16
"""
