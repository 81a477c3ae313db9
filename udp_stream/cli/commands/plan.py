"""`plan`: what to expect of a configuration, from the counts of a file, or from HATs of typical sizes."""

from __future__ import annotations

import argparse

from udp_stream.adapters.settings import Settings
from udp_stream.cli.plan_of_queries import print_queries
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
    if arguments.file is None:
        if arguments.target_error is not None:
            raise UsageError("--target-error: expected a FILE of pings beside it")
        from udp_stream.cli.commands.plan_of_sizes import print_sizes

        print_sizes(arguments, settings)
        print_queries(settings)
        return
    for name, value in of_sizes:
        if value is not None:
            raise UsageError(f"{name} is for a plan without a file: leave it or the file out")
    from udp_stream.cli.plan_of_feed import print_resolutions

    print_resolutions(arguments.file, settings, SeededEntropy("plan"), arguments.target_error)
    print_queries(settings)
