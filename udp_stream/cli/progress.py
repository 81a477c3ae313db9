"""Progress bars on stderr, on a terminal only: bytes read of all, pings a second; steps done of all; time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from udp_stream.cli.report import console
from udp_stream.runtime import Embedded

Step = TypeVar("Step")


class _Bar:
    """A bar that is there while the block runs, and on a terminal only."""

    def __init__(self, name: str, total: int | None, *columns: ProgressColumn) -> None:
        """Nothing is shown before entering; `columns` stand before the time that is left."""
        text, bar = TextColumn("{task.description}"), BarColumn(bar_width=24)
        shown = text, bar, TaskProgressColumn(), *columns, TimeRemainingColumn()
        self._bar = Progress(*shown, console=console(), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(name, total=total, rate="")

    def __enter__(self) -> Self:
        """Show the bar; its time begins here, and not when it was made."""
        self._bar.reset(self._task)
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it away."""
        self._bar.stop()


class ReadingProgress(_Bar):
    """Follows several files, read one after another; their sizes on disk are the measure."""

    def __init__(self, files: Sequence[str]) -> None:
        """Nothing is shown before entering."""
        self._sizes = {file: _size(file) for file in files}
        self._done = 0
        total = sum(self._sizes.values()) or None
        super().__init__("reading", total, TextColumn("{task.fields[rate]}"))

    def of(self, file: str) -> Callable[[int, int | None], None]:
        """The hook for one file: told how many of its bytes have been read."""
        before, self._done = self._done, self._done + self._sizes.get(file, 0)

        def told(read: int, total: int | None) -> None:  # noqa: ARG001 (the sizes are known from the start)
            self._bar.update(self._task, completed=before + read)

        return told

    def counted(self, frames: Iterable[list[bytes]], runtime: Embedded) -> Iterator[list[bytes]]:
        """The same frames; shows the rate of pings as they go."""
        for frame in frames:
            yield frame
            elapsed = self._bar.tasks[0].elapsed or 0
            if elapsed > 0:
                self._bar.update(self._task, rate=f"{runtime.summary.pings / elapsed:,.0f} pings/s")


class StepProgress(_Bar):
    """Follows a list of steps."""

    def __init__(self, name: str, steps: int) -> None:
        """Nothing is shown before entering."""
        super().__init__(name, steps)

    def each(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The same steps; each is done when the next is asked for."""
        for step in steps:
            yield step
            self._bar.advance(self._task)


def _size(file: str) -> int:
    return Path(file).stat().st_size if file != "-" and Path(file).exists() else 0
