"""The options of `reproduce`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import SEED_MAX, Verbs, add_verb, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "reproduce", "compute the papers' figures and tables, and say what agrees", "reproduce")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="mean-itms, sample-scaling, user-scaling, variance, chop-user, worst-case (default: all of these); "
        "savings-range, savings-kde, savings-knn, multi-query, threshold, which take long",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="FILE[,SECTION.KEY=VALUE...]",
        help="a recorded feed, with its own values of keys; repeat for more feeds",
    )
    parser.add_argument("--out", type=Path, default=Path("reproduced"), metavar="DIR", help="(default: reproduced)")
    parser.add_argument(
        "--seed", type=whole(0, SEED_MAX), default=1, metavar="N", help="seed of drawn data and noise (default: 1)"
    )
    parser.add_argument(
        "--repetitions",
        type=whole(1, 1_000_000),
        default=10_000,
        metavar="N",
        help="runs for each point (default: 10000)",
    )
    parser.epilog = """\
examples:
  udp-stream reproduce user-scaling --out figures
  udp-stream reproduce mean-itms --data surat.ndjson.gz --data austin.csv,speed.max_kmh=115,hat.timezone=US/Central
  udp-stream reproduce savings-range threshold --data austin.csv --repetitions 100

HATs are the papers' (H3 7, 1 h) unless --set or a feed's keys say otherwise. Needs the extra [plots].
Results for recorded feeds are not private: they contain true means, and errors against them.
"""
