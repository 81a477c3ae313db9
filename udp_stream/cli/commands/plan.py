"""`plan`: what to expect of a configuration, from the counts of a file, or from HATs of typical sizes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from udp_stream.adapters.settings import Settings
from udp_stream.cli.plan_of_queries import facts_of_queries, print_queries
from udp_stream.errors import UsageError
from udp_stream.testing import SeededEntropy


def plan(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print a table; nothing is charged, and no speed is read.

    UsageError for options that belong to the other table.
    """
    of_sizes = [
        ("--plates", arguments.plates),
        ("--pings-per-plate", arguments.pings_per_plate),
        ("--hats-per-period", arguments.hats_per_period),
        ("--plot", arguments.plot),
        ("--explain", arguments.explain or None),
    ]
    if not arguments.files:
        if arguments.target_error is not None:
            raise UsageError("--target-error: expected a FILE of pings beside it")
        _of_sizes(arguments, settings)
    else:
        for name, value in of_sizes:
            if value is not None:
                raise UsageError(f"{name} is for a plan without a file: leave it or the file out")
        _of_feed(arguments, settings)
    if not arguments.json:
        print_queries(settings)


def _of_sizes(arguments: argparse.Namespace, settings: Settings) -> None:
    from udp_stream.cli.commands.plan_of_sizes import facts_of_sizes, print_sizes

    if not arguments.json:
        print_sizes(arguments, settings)
        return
    for name, value in (("--plot", arguments.plot), ("--explain", arguments.explain)):
        if value:
            raise UsageError(f"{name} is for people: leave it or --json out")
    facts = {"budget": settings.policy.promise, "rows": facts_of_sizes(arguments, settings)}
    print(json.dumps(facts | _of_both(settings), indent=2))


def _of_feed(arguments: argparse.Namespace, settings: Settings) -> None:
    from udp_stream.cli.plan_of_feed import facts_of_feed, plan_of_feed, print_feed

    found = plan_of_feed(arguments.files, settings, SeededEntropy("plan"))
    if arguments.json:
        facts = facts_of_feed(found, settings, arguments.target_error)
        print(json.dumps(facts | _of_both(settings), indent=2))
    else:
        print_feed(found, settings, arguments.target_error)


def _of_both(settings: Settings) -> dict[str, Any]:
    """What both tables say for programs."""
    return {"queries": facts_of_queries(settings)}
