"""The options of `doctor`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_bootstrap, add_json, add_verb, ledger_place


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb(verbs, "doctor", "check that everything is reachable and safely configured", "doctor")
    parser.add_argument("files", nargs="*", metavar="FILE", help="check speed.unit by these pings, instead of Kafka's")
    parser.add_argument("--ledger", type=ledger_place, metavar="FILE", help="ledger file or URL (default: ledger.url)")
    add_bootstrap(parser)
    add_json(parser)
    parser.epilog = """\
examples:
  udp-stream doctor --config city.toml
  udp-stream doctor pings.ndjson.gz --ledger city.ledger

Checks the configuration, the ledger and its key, the durability of a Redis, and the topics' settings. Checks whether
the latest pings move as fast as they report, which tells kmh, mps and mph apart, and whether the running workers have
the settings of this configuration. Changes nothing. Prints one line for each check: ok, FAIL, or unknown where it could
not be made. The exit status is that of the first failure; unknown is none. The verdict on speed.unit uses raw speeds:
it is no release.
"""
