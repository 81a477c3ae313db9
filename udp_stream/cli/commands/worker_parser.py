"""The options of `worker`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_accept_overlap, add_alive, add_bootstrap, add_ledger_options, add_verb


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "worker", "run a worker of the deployment on Kafka", "worker")
    add_bootstrap(parser)
    parser.add_argument(
        "--instance", metavar="NAME", help="permanent name of this worker; after a restart it continues at once"
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="continue even if the topics no longer hold all the data that is needed",
    )
    add_alive(parser)
    add_ledger_options(parser, "ledger file or URL (default: ledger.url)")
    add_accept_overlap(parser)
    parser.epilog = """\
examples:
  udp-stream worker --config city.toml --instance worker-1
  udp-stream worker --set ledger.url=redis://ledger:6379/0 --set kafka.bootstrap=kafka:9092

Start as many as you like, on any machines, with one ledger and one key file. You may kill any of them at any time.
"""
