"""The options of `replay`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_accept_overlap, add_json_summary, add_ledger_options, add_verb


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "replay", "release the recorded pings of files, in one process", "replay")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="ndjson, JSON, CSV, GTFS-realtime (.pb); .gz; - for stdin",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="-",
        help="one release record a line (default: stdout); or .csv, .geojson, .parquet, and .gz, by suffix",
    )
    add_ledger_options(parser, "ledger file or URL (default: ledger.url)")
    parser.add_argument(
        "--dry-run", action="store_true", help="read, count, warn and say what to expect; charge and write nothing"
    )
    parser.add_argument("--trial", action="store_true", help="use a ledger for this run only; its records say so")
    parser.add_argument(
        "--smoothed", metavar="FILE", help="smoothed estimates of every HAT and known cell, in the same forms"
    )
    parser.add_argument(
        "--queries", metavar="FILE", help="ask the configuration's [[query]]; their results, one a line, or .gz"
    )
    parser.add_argument("--rejected", metavar="FILE", help="refused pings, one message a line, with the reason")
    add_accept_overlap(parser)
    add_json_summary(parser)
    parser.epilog = """\
examples:
  udp-stream replay monday.ndjson.gz --trial --out first-try.ndjson
  udp-stream replay monday.ndjson.gz --ledger city.ledger --out releases.ndjson --smoothed estimates.ndjson
  zcat pings.ndjson.gz | udp-stream replay - --set hat.timezone=America/Chicago --set speed.max_kmh=115

The end of the last file closes every slot, so give all pings of a slot in one run. A second run on the same ledger
writes the same bytes and charges nothing. --trial is for first attempts: the next run draws every HAT again, so do not
publish its records beside others. The rejected file holds raw pings: guard it as you guard the feed.
"""
