"""The process of a command: its standard streams, and SIGTERM as a question.

Standard streams fail as they should: loudly for data, never for messages beside it. A program may be started with some
of them closed. Their numbers would then go to the next files that are opened, a ledger for one, and what is printed
would be written there or lost without a word. Here they are filled first: reading a closed standard input and writing
to a closed standard output are errors, and a closed standard error takes all.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from udp_stream.errors import needs
from udp_stream.logs import say

if TYPE_CHECKING:
    from udp_stream.release.facts import Observer

_WHEN_CLOSED = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
"""How the null device is opened in its place: the wrong way round where use must fail."""

STANDARD_OUTPUT = "standard output"
"""Its name in what goes wrong with it."""


def use_standard_streams() -> None:
    """Put such streams in the place of the interpreter's own; streams that a caller has replaced are left alone."""
    for name, flags in _WHEN_CLOSED.items():
        if getattr(sys, name) is None:
            os.open(os.devnull, flags)  # the lowest free number: the stream's
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (for as long as the process lives)
    if sys.stdout is sys.__stdout__:
        file = NamedFile(1, "w", closefd=False)
        file.name = STANDARD_OUTPUT
        sys.stdout = _text(file, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Unfailing(2, "w", closefd=False), sys.stderr)


def let_go_of_stdout() -> None:
    """What it did not take must not be tried again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Unfailing(io.FileIO):
    """What it cannot write is lost: a run does not stop because its output has no reader."""

    def write(self, data: Any, /) -> Any:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def _text(file: io.FileIO, like: TextIO | None) -> io.TextIOWrapper:
    if not isinstance(like, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(file), "utf-8", line_buffering=True)
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        like.encoding,
        like.errors,
        line_buffering=like.line_buffering or like.write_through,  # the latter if Python was told not to buffer
        write_through=like.write_through,
    )


class NamedFile(io.FileIO):
    """A file whose name stands in the OSError when it cannot be written."""

    def write(self, data: Any, /) -> Any:
        with named(str(self.name)):
            return super().write(data)


@contextmanager
def named(name: str | Path) -> Iterator[None]:
    """What fails inside is about this file: its name is put into an OSError that has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(name)
        raise


# What verbs that go on until they are stopped share: SIGTERM as a question, lines about their source, metrics.


@contextmanager
def sigterm() -> Iterator[Callable[[], bool]]:
    """While the block runs, SIGTERM ends nothing: what this gives says whether it has come.

    The handler takes no lock: it may run while the same thread holds one.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)


def say_of_source(sentence: str) -> None:
    """A line about a source, for the operator."""
    say(sentence, "source")


@contextmanager
def observed(address: tuple[str, int] | None, software: str, policy: str) -> Iterator[list[Observer]]:
    """Observers that show facts to Prometheus at this address while the block runs; none without an address.

    DependencyUnavailable if the extra is not installed, or the address cannot be listened on.
    """
    if address is None:
        yield []
        return
    with needs("Prometheus client", "metrics"):
        from udp_stream.metrics import Metrics
    metrics = Metrics(software, policy)
    with metrics.served(*address):
        yield [metrics.observe]
