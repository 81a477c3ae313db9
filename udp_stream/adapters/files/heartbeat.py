"""Heartbeat: a file that is touched while work goes on. Its age is the time since the last sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

BEAT_S = 2.0

SILENT_S = 30.0
"""A heartbeat that is older belongs to work that is stuck or gone."""

ALIVE = "alive"
"""The heartbeat file of a live run, in its journal's folder; a run that ends by itself takes it away."""


class Heartbeat:
    """Touches a file at most every two seconds. A supervisor that finds it old knows that we are stuck or gone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Heartbeat(Path(folder, "alive")).beat()
    ...     Path(folder, "alive").exists()
    True
    """

    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is touched yet; without a file, nothing ever is."""
        self._file = file
        self._clock = clock
        self._touched_s: float | None = None

    def beat(self) -> None:
        """Work goes on. OSError if the file cannot be touched."""
        if self._file is None or (self._touched_s is not None and self._clock() - self._touched_s < BEAT_S):
            return
        self._file.touch()
        self._touched_s = self._clock()
