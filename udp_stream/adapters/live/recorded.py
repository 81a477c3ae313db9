"""A source that ends, as a live one: a recording that a live run reads."""

from __future__ import annotations

from collections.abc import Iterator

from udp_stream.adapters.schemes import Source


class RecordedSource:
    """The frames of a source, until it ends or is stopped. Nothing is acknowledged to it.

    >>> from contextlib import closing
    >>> from tempfile import TemporaryDirectory
    >>> from pathlib import Path
    >>> from udp_stream.adapters.schemes import open_source
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "pings").write_bytes(b"[1,2]")
    ...     with closing(RecordedSource(open_source(f"{folder}/pings", "kmh"))) as source:
    ...         list(source.messages())
    [[b'1', b'2']]
    """

    def __init__(self, source: Source) -> None:
        """Nothing is read yet."""
        self._source, self._is_stopped = source, False
        self.unit, self.format = source.unit, source.format

    def messages(self) -> Iterator[list[bytes]]:
        """Its frames."""
        for frame in self._source.messages():
            if self._is_stopped:
                return
            yield frame

    def kept(self, frames: int) -> None:
        """A recording is not acknowledged."""

    def stop(self, wait: bool = True) -> None:  # noqa: ARG002 (there is nothing to wait for)
        """Give no more frames."""
        self._is_stopped = True

    def close(self) -> None:
        """Let go of its file."""
        self._source.close()
