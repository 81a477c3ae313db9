"""The options of `run`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import (
    Verbs,
    add_accept_overlap,
    add_alive,
    add_json_summary,
    add_ledger_options,
    add_verb,
)


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "run", "release a live feed on one machine, without Kafka, until stopped", "run")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="an address (http://, https://), a queue (amqp://, amqps://), - for stdin, or a file as for replay",
    )
    parser.add_argument("--every", metavar="DURATION", help="between polls of an address (default: live.every)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="-",
        help="release records; .csv, .gz by suffix, else a line of JSON each (default: stdout)",
    )
    parser.add_argument("--smoothed", metavar="FILE", help="smoothed estimates, in the same forms")
    parser.add_argument("--queries", metavar="FILE", help="ask the configuration's [[query]]; a result a line")
    parser.add_argument("--rejected", metavar="FILE", help="refused pings, one message a line, with the reason")
    add_ledger_options(parser, "ledger file or URL (default: ledger.url)")
    parser.add_argument(
        "--journal", type=Path, metavar="FOLDER", help="what arrived, until it is released (default: LEDGER.journal)"
    )
    add_accept_overlap(parser)
    add_alive(parser)
    add_json_summary(parser)
    parser.epilog = """\
examples:
  udp-stream run https://example.org/vehicles.pb --ledger city.ledger --out releases.ndjson --set speed.unit=mps
  udp-stream run amqps://broker.example.org/vhost --config city.toml --out releases.ndjson
  my-program | udp-stream run - --ledger city.ledger

Records are added to the files. Stop it (SIGTERM, Ctrl-C) or kill it at any moment, and start it again with the same
ledger: what had arrived is in the journal, and what was released is released once. Open slots wait in the journal. Only
one run can use a journal at a time. The last line of the log says what this run read and released; --json adds one
object.
"""
