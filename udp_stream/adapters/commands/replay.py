"""`replay`: recorded pings in, private releases out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

from udp_stream.adapters.embedded import Embedded, record_writer, rejected_writer
from udp_stream.adapters.entropy import OsEntropy
from udp_stream.adapters.open_ledger import ledger_and_keys
from udp_stream.adapters.progress import ReadingProgress
from udp_stream.adapters.report import SOFTWARE, print_summary
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.sources import read_messages
from udp_stream.errors import UsageError


def replay(arguments: argparse.Namespace, settings: Settings) -> None:
    """Read the files as one log, release its HATs, tell on stderr what was done."""
    with ExitStack() as stack:
        ledger, keys = stack.enter_context(
            ledger_and_keys(settings, arguments.ledger, allow_volatile=arguments.allow_volatile_ledger)
        )
        out = _writable(stack, arguments.out)
        rejected = _writable(stack, arguments.rejected) if arguments.rejected else None
        runtime = Embedded(
            settings,
            ledger,
            OsEntropy(),
            keys.key_of,
            SOFTWARE,
            record_writer(out),
            None if rejected is None else rejected_writer(rejected),
        )
        with ReadingProgress(arguments.files) as progress:
            summary = runtime.run(progress.counted(_frames(arguments.files, progress), runtime))
        print_summary(summary, settings)


def _frames(files: list[str], progress: ReadingProgress) -> Iterator[list[bytes]]:
    """The frames of all files; none spans two files, so that a new file's plates are heard together."""
    for file in files:
        yield from read_messages(file, progress=progress.of(file))


def _writable(stack: ExitStack, name: str) -> BinaryIO:
    if name == "-":
        return sys.stdout.buffer
    try:
        return stack.enter_context(open(name, "wb"))  # noqa: PTH123 (ExitStack closes it)
    except OSError as error:
        raise UsageError(f"{name}: cannot be written ({error.strerror})") from error
