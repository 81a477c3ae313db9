"""The process of a command: standard streams, signals and metrics.

A program may be started with closed standard streams, whose numbers the next files, such as a
ledger, would get. So they are filled first: a closed input or output raises an error when it is
used, a closed error does not.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from udp_stream.base.errors import needs
from udp_stream.base.files import named
from udp_stream.base.logs import INFO, WARNING, WarningText, log_message

if TYPE_CHECKING:
    from udp_stream.release.events import Observer
    from udp_stream.settings import Settings

_WHEN_CLOSED = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
"""How the null device is opened in its place: the wrong way round where use must fail."""

STANDARD_OUTPUT = "standard output"


def use_standard_streams() -> None:
    """Replace the interpreter's own streams; those that a caller has replaced are left alone."""
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
        sys.stderr = _text(_LenientFile(2, "w", closefd=False), sys.stderr)


def let_go_of_stdout() -> None:
    """Drop the text that stdout has not taken: the interpreter would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _LenientFile(io.FileIO):  # a run does not stop because its log has no reader
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
        line_buffering=like.line_buffering
        or like.write_through,  # the latter if Python was told not to buffer
        write_through=like.write_through,
    )


class NamedFile(io.FileIO):
    """A file whose name stands in the OSError when it cannot be written."""

    def write(self, data: Any, /) -> Any:
        with named(str(self.name)):
            return super().write(data)


@contextmanager
def noted(number: int, known: list[int] | None = None) -> Iterator[list[int]]:
    """While the block runs, this signal is only added to the list. Its handler takes no lock: a
    thread may hold it."""
    came: list[int] = [] if known is None else known
    before = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(number, before)


def log_source_message(sentence: str) -> None:
    """A line about a source, for the operator."""
    log_message(sentence, "source", level=WARNING if isinstance(sentence, WarningText) else INFO)


@contextmanager
def observed(
    address: tuple[str, int] | None, software: str, settings: Settings | None = None
) -> Iterator[list[Observer]]:
    """Observers for Prometheus at this address, none without an address. DependencyUnavailable if
    it cannot be served."""
    if address is None:
        yield []
        return
    with needs("Prometheus client", "metrics"):
        from udp_stream.cli.metrics import Metrics
    from udp_stream.sources.certificates import first_end

    if settings is None:
        metrics = Metrics(software, policy="")
    else:
        metrics = Metrics(
            software,
            settings.policy.fingerprint(),
            settings.zone,
            certificate_s=first_end(settings),
        )
    with metrics.served(*address):
        yield [metrics.observe]
