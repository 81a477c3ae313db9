"""The options of `config`."""

from __future__ import annotations

from udp_stream.cli.options import Parser, Verbs, add_json, add_verb_without_settings, only_prints

EXAMPLES = (
    "udp-stream config show --config city.toml",
    "udp-stream config check --config city.toml",
)

SHOW = """
The output is a configuration file: keys that are not set are comments. A password in ledger.url is left out. Values
come from the file, from variables UDP_STREAM_SECTION__KEY over it, and from --set over both.
"""

CHECK = """
Status 0 if there is no fault, 3 if there are some. Files of secrets and certificates that keys name are tried as by
`worker`, with the rights of the user who runs this; nothing of their content is shown. `udp-stream doctor` checks
whether the ledger and Kafka are there.
"""


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = verbs.add_parser(
        "config", help="show or check the configuration", description="Look at the configuration."
    )
    inner = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Parser)
    show = add_verb_without_settings(inner, "show", "every key, its value, and where the value came from", "config")
    check = add_verb_without_settings(inner, "check", "every fault of the configuration, not only the first", "config")
    only_prints(show)
    for parsed, example, more in zip((show, check), EXAMPLES, (SHOW, CHECK), strict=True):
        add_json(parsed)
        parsed.epilog = f"examples:\n  {example}\n  {example} --json\n{more}"
    check.add_argument(
        "--no-files", action="store_true", help="leave out the files that keys name: for a machine that has none"
    )
    parser.epilog = "examples:\n" + "".join(f"  {example}\n" for example in EXAMPLES)
