"""Files whose names stand in what goes wrong with them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class NamedFile(io.FileIO):
    """A file whose name stands in the OSError when it cannot be written."""

    def write(self, data: Any, /) -> Any:
        """As any file does."""
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
