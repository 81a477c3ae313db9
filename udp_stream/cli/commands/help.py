"""`help`: what `--help` says of a verb. It reads no configuration, so that a broken one is no obstacle."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from udp_stream.cli.options import verbs_of
from udp_stream.errors import UsageError


def help(arguments: argparse.Namespace) -> None:
    """Print it. UsageError for a verb that there is not, with those that there are."""
    parser: argparse.ArgumentParser = arguments.program
    for word in arguments.words:
        verbs: Mapping[str, argparse.ArgumentParser] = verbs_of(parser)
        if word not in verbs:
            known = f"known are {', '.join(verbs)}" if verbs else f"{parser.prog} has no verbs below it"
            raise UsageError(f"expected a verb, got {word!r}; {known}")
        parser = verbs[word]
    print(parser.format_help(), end="")
