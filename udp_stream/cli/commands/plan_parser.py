"""The options of `plan`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import Verbs, add_verb, whole


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "plan", "what to expect of a configuration; needs no data", "plan")
    parser.add_argument("--plates", type=whole(1, 100_000), metavar="N", help="plates in a typical HAT")
    parser.add_argument("--pings-per-plate", type=whole(1, 1_000_000), default=40, metavar="N", help="(default: 40)")
    parser.add_argument(
        "--hats-per-period",
        type=whole(1, 1_000_000),
        default=12,
        metavar="N",
        help="HATs that a plate visits (default: 12)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the worst case over the cap: .png or .svg")
    parser.epilog = """\
examples:
  udp-stream plan --set budget.epsilon=5
  udp-stream plan --plates 30 --pings-per-plate 40 --set release.mean_epsilon=1
  udp-stream plan --plates 30 --plot worst.svg     needs pip install '.[plots]'
"""
