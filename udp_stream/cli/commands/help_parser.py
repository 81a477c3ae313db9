"""The options of `help`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_verb_without_settings, only_prints


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb_without_settings(verbs, "help", "say what a verb does, with its options and examples", "help")
    parser.add_argument("words", nargs="*", metavar="VERB", help="such as: ledger show (default: all verbs)")
    only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream help
  udp-stream help replay
  udp-stream help ledger show
"""
