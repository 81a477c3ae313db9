"""Consoles, and progress bars on standard error: on a terminal only, and none with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import Progress, track

from udp_stream.base.logs import is_quiet


class Printer(Console):
    """A reader that has gone away is an error like any other; Rich would end the process on the
    spot."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console of messages, on standard error; silent with --quiet."""
    return Printer(stderr=True, highlight=False, quiet=is_quiet())


def printer(width: int) -> Console:
    """Results, on standard output: as wide as the terminal, or so wide."""
    return Printer(highlight=False, width=None if sys.stdout.isatty() else width)


Step = TypeVar("Step")


class ReadingProgress:
    """A bar of bytes over several files, read in turn; on a terminal only."""

    def __init__(self, files: Sequence[str]) -> None:
        self._sizes = {
            file: Path(file).stat().st_size if Path(file).is_file() else 0 for file in files
        }
        self._done = 0
        self._bar = Progress(console=console(), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task("reading", total=sum(self._sizes.values()) or None)

    def __enter__(self) -> Self:
        self._bar.reset(self._task)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def of(self, file: str) -> Callable[[int, int | None], None]:
        before = self._done
        self._done = self._done + self._sizes.get(file, 0)

        def told(read: int, total: int | None) -> None:  # noqa: ARG001 (the sizes are known from the start)
            self._bar.update(self._task, completed=before + read)

        return told


def busy(name: str) -> AbstractContextManager[object]:
    """A sign that a step of unknown length goes on; nothing may be printed meanwhile."""
    return console().status(name)


def stepwise(name: str, steps: Sequence[Step]) -> Iterable[Step]:
    """The same steps, with a bar; each is done when the next is asked for."""
    return track(steps, name, console=console(), transient=True, disable=not sys.stderr.isatty())
