"""The options of `ledger`."""

from __future__ import annotations

from udp_stream.cli.options import Parser, Verbs, add_json, add_ledger_options, add_verb, only_prints

EXAMPLES = (
    "udp-stream ledger show GJ05ZZ0001 --ledger city.ledger",
    "udp-stream ledger verify --ledger redis://ledger:6379/0",
    "udp-stream ledger export --ledger city.ledger > statement.json",
    "udp-stream ledger accept-older --ledger city.ledger        prints what is forgotten; changes nothing yet",
)


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = verbs.add_parser("ledger", help="inspect what plates were charged", description="Inspect a ledger.")
    inner = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Parser)
    show = add_verb(inner, "show", "what a plate was charged and has left, by period", "ledger")
    show.add_argument("plate", metavar="PLATE")
    verify = add_verb(inner, "verify", "recompute every balance from the entries", "ledger")
    add_json(show)
    add_json(verify)
    export = add_verb(inner, "export", "a privacy statement of the deployment, as JSON", "ledger")
    only_prints(show)
    only_prints(export)
    older = add_verb(inner, "accept-older", "continue with a ledger that was restored from an older copy", "ledger")
    older.add_argument("--saying", metavar="WORDS", help="the words about what is forgotten, as this verb prints them")
    for parsed, example in zip((show, verify, export, older), EXAMPLES, strict=True):
        add_ledger_options(parsed, "ledger file or URL (default: ledger.url)")
        parsed.epilog = f"examples:\n  {example}\n"
    parser.epilog = "examples:\n" + "".join(f"  {example}\n" for example in EXAMPLES[:3])
