"""The words of a benchmark that takes only names: `--help` prints its page, and a word too many is
refused."""

import argparse


def words(page: str | None, name: str = "", number: str | int = 0) -> list[str]:
    """What is named on the command line: so many of these, as argparse counts (`?`, `*`, `+`), or
    none."""
    parser = argparse.ArgumentParser(
        description=page, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if name:
        parser.add_argument("named", metavar=name, nargs=number)
    found = getattr(parser.parse_args(), "named", None)
    return [found] if isinstance(found, str) else list(found or [])
