"""Live sources by name. First standard input: what a program writes is handed on, a line as soon as it is whole."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from udp_stream.pings.json import PLAIN, FeedForm
from udp_stream.pings.snapshots import GTFS_REALTIME, UNIT
from udp_stream.settings import Settings
from udp_stream.sources.amqp import QueueSource
from udp_stream.sources.files import prompt_messages, require_readable
from udp_stream.sources.http import HttpGet, PolledSource
from udp_stream.sources.live import LiveSource
from udp_stream.sources.mqtt import TopicSource, kept_seed
from udp_stream.sources.recordings import require_one_form, require_unit, scheme_of
from udp_stream.version import __version__

_BLOCK_BYTES = 2**18


class _Stopped(Exception):
    """Ends the blocks, so that the line which is half there is no message. It never leaves this file."""


class PipeSource:
    """The messages of standard input, in the forms of `files.sources`. It ends when its writer does.

    UsageError if standard input is closed.
    """

    def __init__(self, form: FeedForm = PLAIN) -> None:
        """Nothing is read yet; `form` is that of the feed (`[source]`)."""
        require_readable(["-"])
        self._form, self.format = form, form.format
        self._input = sys.stdin.fileno()
        self._wake, self._waker = os.pipe()

    def messages(self) -> Iterator[list[bytes]]:
        """The lines that are whole, as they come. UsageError if compressed data are damaged."""
        try:
            yield from prompt_messages("-", self._blocks(), self._form)
        except _Stopped:
            return

    def kept(self, frames: int) -> None:
        """A pipe is not acknowledged."""

    def stop(self, wait: bool = True) -> None:  # noqa: ARG002 (there is nothing to wait for)
        """Read no more: what was read is handed on."""
        if self._waker >= 0:
            os.write(self._waker, b"!")

    def close(self) -> None:
        """Let go of what woke the reader; standard input itself stays as it is."""
        for end in (self._wake, self._waker):
            if end >= 0:
                os.close(end)
        self._wake = self._waker = -1

    def _blocks(self) -> Iterator[bytes]:
        while self._wake not in select.select([self._input, self._wake], [], [])[0]:
            # Not by way of sys.stdin: what its buffer has already read, select does not see.
            if not (block := os.read(self._input, _BLOCK_BYTES)):
                return
            yield block
        raise _Stopped


# The others, by their schemes, as a deployment's settings have them.


def live_source(name: str, settings: Settings, say: Callable[[str], None], folder: Path | None = None) -> LiveSource:
    """The source of a name whose scheme is in `LIVE`, nothing of which is read yet; `say` is given sentences for
    people. `folder`: where its session with a broker is kept, once it reads; without one it is this host's with this
    Kafka."""
    live, form = settings.live, settings.form
    if name.lower().startswith("http"):
        get = HttpGet(name, live, f"udp-stream/{__version__}")
        return PolledSource(get, live, settings.speed.unit, form, say)
    if live.format == "gtfs-rt":
        require_one_form(form, [GTFS_REALTIME])
        require_unit(settings.speed.unit if form.mapping.speed else UNIT, f"what {scheme_of(name)}:// sends", say)
    if name.lower().startswith("mqtt"):
        ours = f"{socket.gethostname()} {settings.kafka.bootstrap} {settings.kafka.prefix}"
        return TopicSource(name, live, form, say, lambda: ours if folder is None else kept_seed(folder))
    return QueueSource(name, live, form, say)
