"""The options of `feed`."""

from __future__ import annotations

from udp_stream.cli.options import BUSES_MAX, Verbs, add_alive, add_bootstrap, add_verb, past, positive, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "feed", "send pings to Kafka: files, a live source or a synthetic fleet", "feed")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="SOURCE",
        help="files as for replay; - for stdin; or one http://, https://, amqp:// or amqps:// source, until stopped",
    )
    add_bootstrap(parser)
    parser.add_argument("--every", metavar="DURATION", help="between polls of an address (default: live.every)")
    parser.add_argument(
        "--fleet",
        type=whole(1, BUSES_MAX),
        metavar="BUSES",
        help="instead of files: a synthetic fleet, from now on, until stopped",
    )
    parser.add_argument(
        "--ago", type=past, metavar="DURATION", default="0s", help="how long ago the fleet started (default: 0s)"
    )
    add_alive(parser)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=positive, metavar="N", help="messages a second (default: as fast as it can)")
    pace.add_argument("--speedup", type=positive, metavar="N", help="N times as fast as the pings' own times")
    parser.add_argument(
        "--batch",
        type=whole(1, 10_000),
        default=1,
        metavar="N",
        help="pings in an array; only this number limits it (default: 1)",
    )
    parser.epilog = """\
examples:
  udp-stream feed pings.ndjson.gz --bootstrap localhost:9092 --speedup 60
  udp-stream feed https://example.org/vehicles.pb --every 10s --set speed.unit=mps
  udp-stream feed --fleet 300 --ago 30m
"""
