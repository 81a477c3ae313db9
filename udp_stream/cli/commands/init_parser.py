"""The options of `init`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_verb


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "init", "write a configuration for the feed of a recording", "init")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSON or CSV of any form, GTFS-realtime (.pb); .gz; an hour is enough; several files of one form",
    )
    parser.add_argument("--out", metavar="TOML", default="-", help="a new file (default: stdout)")
    parser.epilog = """\
examples:
  udp-stream init monday.csv --out city.toml
  udp-stream init 1.pb 2.pb --out city.toml        polls that curl saved, a minute apart

Then: udp-stream replay monday.csv --config city.toml --trial --out first-try.ndjson
It finds the form of the messages, the zone, the unit of speed and a box around the city, and leaves U and epsilon at
public choices: they are yours to make. Nothing is charged or released.
"""
