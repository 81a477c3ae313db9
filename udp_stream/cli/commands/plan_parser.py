"""The options of `plan`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import Verbs, add_json, add_verb, only_prints, positive, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "plan", "what to expect of a configuration; charges nothing", "plan")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="recorded pings: resolutions and slots side by side, from their counts; several are counted together",
    )
    parser.add_argument(
        "--target-error", type=positive, metavar="KMH", help="with a FILE: the largest acceptable mean error, km/h"
    )
    add_json(parser)
    sizes = parser.add_argument_group("without a FILE: HATs of typical sizes")
    sizes.add_argument("--plates", type=whole(1, 100_000), metavar="N", help="plates in a typical HAT")
    sizes.add_argument("--pings-per-plate", type=whole(1, 1_000_000), metavar="N", help="(default: 40)")
    sizes.add_argument(
        "--hats-per-period", type=whole(1, 1_000_000), metavar="N", help="HATs that a plate visits (default: 12)"
    )
    sizes.add_argument("--explain", action="store_true", help="the papers' worst case over the cap, too")
    sizes.add_argument("--plot", type=Path, metavar="FILE", help="draw that worst case: .png or .svg (extra: [plots])")
    only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream plan monday.ndjson.gz --config city.toml
  udp-stream plan polls/*.pb --config city.toml    several files, counted together
  udp-stream plan --plates 30 --pings-per-plate 40 --set release.mean_epsilon=1

With a FILE it reads where and when plates pinged, and no speed. It invents speeds on these counts, releases them, and
measures the error. What your city's error will be may differ: on the recorded feeds most rows were within 30 %.
With a mechanism of the papers (release.mean=baseline) and an automatic epsilon it shows each budget.schedule, too.
"""
