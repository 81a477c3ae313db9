"""The options of `feed`."""

from __future__ import annotations

from udp_stream.cli.options import BUSES_MAX, Verbs, add_alive, add_bootstrap, add_verb, past, positive, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "feed", "pings into Kafka, recorded ones or of a synthetic fleet", "feed")
    parser.add_argument("files", nargs="*", metavar="FILE", help="as for replay; - for stdin")
    add_bootstrap(parser)
    parser.add_argument(
        "--fleet",
        type=whole(1, BUSES_MAX),
        metavar="BUSES",
        help="no files: a synthetic fleet, as of now, until stopped",
    )
    parser.add_argument(
        "--ago", type=past, metavar="DURATION", default="0s", help="the fleet set out so long ago (default: now)"
    )
    add_alive(parser)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=positive, metavar="N", help="messages a second (default: as fast as it can)")
    pace.add_argument("--speedup", type=positive, metavar="N", help="times the pings' own pace")
    parser.add_argument(
        "--batch",
        type=whole(1, 10_000),
        default=1,
        metavar="N",
        help="pings in an array: cut by this number alone (default: 1)",
    )
    parser.epilog = """\
examples:
  udp-stream feed pings.ndjson.gz --bootstrap localhost:9092 --speedup 60
  udp-stream feed --fleet 300 --ago 30m
"""
