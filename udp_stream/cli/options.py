"""What parsers of verbs share: a verb that is imported when it runs, options by the same name, values they accept."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from udp_stream.units import parse_duration

BUSES_MAX = 100_000
SEED_MAX = 2**63 - 1
AGO_MAX = "31d"


class Parser(argparse.ArgumentParser):
    """A parser that prints its examples line by line, as they are written."""

    def __init__(self, **options: object) -> None:
        """Takes what `ArgumentParser` takes, but for the formatter."""
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter)  # type: ignore[arg-type]


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
"""Where verbs are added."""


def add_verb(verbs: Verbs, name: str, summary: str, module: str) -> Parser:
    """A verb that the function of its name in `cli/commands/MODULE.py` does, with the options that every verb has."""
    parser = _verb(verbs, name, summary)
    parser.set_defaults(command=_lazily(module, name), reads_settings=True, is_text=False)
    return parser


def add_verb_without_settings(verbs: Verbs, name: str, summary: str, module: str) -> Parser:
    """The same, for a verb that works where the configuration is broken: its function takes the arguments alone."""
    parser = _verb(verbs, name, summary)
    parser.set_defaults(command=_lazily(module, name), reads_settings=False, is_text=False)
    return parser


def _verb(verbs: Verbs, name: str, summary: str) -> Parser:
    parser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.add_argument("--config", type=Path, metavar="TOML", help="configuration file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--quiet", action="store_true", help="print results and errors only")
    return parser


def _lazily(module: str, verb: str) -> Callable[..., None]:
    """Import a verb's code when it runs, so that `--help` and short verbs start fast."""

    def run(*given: object) -> None:
        from importlib import import_module

        getattr(import_module(f"udp_stream.cli.commands.{module}"), verb.replace("-", "_"))(*given)

    return run


def only_prints(parser: Parser) -> None:
    """Say of a verb that it does nothing but print, and gives no verdict: a reader that has enough ends it well."""
    parser.set_defaults(is_text=True)


def verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of the verbs below this one, by name; none for a verb that has none."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return below[0].choices if below else {}


def add_json(parser: argparse.ArgumentParser) -> None:
    """For verbs that print tables, for people."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_json_summary(parser: argparse.ArgumentParser) -> None:
    """For verbs whose data is on standard output already."""
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, the last line of stderr"
    )


def add_ledger_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Which ledger; `default` says what is taken where none is named."""
    parser.add_argument("--ledger", type=ledger_place, metavar="FILE", help=default)
    parser.add_argument(
        "--allow-volatile-ledger",
        action="store_true",
        help="for trials: accept a Redis that can lose writes; the privacy statement then does not hold",
    )


def add_accept_overlap(parser: argparse.ArgumentParser) -> None:
    """For verbs that charge."""
    parser.add_argument(
        "--accept-overlap",
        metavar="WORDS",
        help="charge in a budget period that overlaps one of another zone or length; WORDS say what a plate can then "
        'lose, as the refusal does: "epsilon 20 in all"',
    )


def add_alive(parser: Parser) -> None:
    """For verbs that go on until stopped."""
    parser.add_argument(
        "--alive", type=Path, metavar="FILE", help="touch this file while the process makes progress, for health checks"
    )


def add_bootstrap(parser: Parser) -> None:
    """For verbs that talk with Kafka."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="address of Kafka (default: kafka.bootstrap)")


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1e9, got {text!r}")
    return number


def whole(least: int, most: int) -> Callable[[str], int]:
    """What reads a whole number of that range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number, {least} to {most}, got {text!r}")
        return number

    return read


def ledger_place(text: str) -> str:
    """A ledger has a name: it is neither nothing nor a standard stream."""
    from udp_stream.adapters.settings import NO_LEDGERS

    if text in NO_LEDGERS:
        raise argparse.ArgumentTypeError(f"expected a file or URL, got {repr(text) if text else 'nothing'}")
    return text


def past(text: str) -> float:
    """Seconds ago."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds > parse_duration(AGO_MAX):
        raise argparse.ArgumentTypeError(f"expected 0s to {AGO_MAX}, got {text!r}")
    return seconds
