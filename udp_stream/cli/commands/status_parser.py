"""The options of `status`."""

from __future__ import annotations

from pathlib import Path

from udp_stream.cli.options import Verbs, add_bootstrap, add_verb, ledger_place


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "status", "say what the deployment is doing: workers, lag, open slots, ledger", "status")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a page")
    parser.add_argument("--ledger", type=ledger_place, metavar="FILE", help="ledger file or URL (default: ledger.url)")
    parser.add_argument(
        "--journal", type=Path, metavar="FOLDER", help="of a live `run` (default: LEDGER.journal, if it is there)"
    )
    add_bootstrap(parser)
    parser.epilog = """\
examples:
  udp-stream status --config city.toml
  udp-stream status --config city.toml --json
  udp-stream status --ledger city.ledger

On Kafka (--bootstrap, or where the ledger has no journal) it reads what workers report; otherwise what a `run` reports.
A worker is silent once it has not reported for three times kafka.status_every (30 s). The page has exact counts, no
noise: it is for operators, not for readers of releases. It holds no plate, no speed and no position.

exit status: 0 all is well; 3 the workers' settings differ from each other; 4 the broker or the ledger does not answer,
a worker is silent, stuck or ended with an error, no worker runs, or a partition has none; 5 the ledger is refused, or a
worker ended with 5. If several apply, the highest status is returned.
"""
