"""The options of `demo`."""

from __future__ import annotations

from udp_stream.cli.options import BUSES_MAX, SEED_MAX, Verbs, add_accept_overlap, add_ledger_options, add_verb, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "demo", "try it on a synthetic fleet like Surat's", "demo")
    parser.add_argument("--headless", action="store_true", help="run as fast as it can, print a summary and exit")
    parser.add_argument(
        "--kafka", action="store_true", help="use a real Kafka, a real Redis and two workers, started for this run"
    )
    parser.add_argument("--slots", type=whole(1, 10_000), default=3, metavar="N", help="how many slots (default: 3)")
    parser.add_argument(
        "--buses", type=whole(1, BUSES_MAX), default=400, metavar="N", help="size of the fleet (default: 400)"
    )
    parser.add_argument(
        "--seed",
        type=whole(0, SEED_MAX),
        default=1,
        metavar="N",
        help="seed of the fleet's movements, never of the noise (default: 1)",
    )
    parser.add_argument("--out", metavar="FILE", help="one release record a line; or another form by suffix, as replay")
    add_ledger_options(parser, "keep the ledger there (default: for this run only; records say trial)")
    add_accept_overlap(parser)
    parser.epilog = """\
examples:
  udp-stream demo --headless
  udp-stream demo --headless --slots 2 --set hat.slot=1h --set hat.resolution=7 --out releases.ndjson
  udp-stream demo --kafka --slots 1                needs the extra [services]
"""
