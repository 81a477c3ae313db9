"""Live sources by name: the table of their schemes, and standard input, whose lines are handed on
as they come."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from udp_stream.base.errors import UsageError
from udp_stream.pings.json import PLAIN, FeedForm
from udp_stream.settings import Settings
from udp_stream.sources.brokers import QueueSource, TopicSource
from udp_stream.sources.files import prompt_messages, require_readable
from udp_stream.sources.http import PolledSource
from udp_stream.sources.live import LiveSource, RecordedSource
from udp_stream.sources.recordings import MessageSink, open_source, require_one_form, scheme_of

_BLOCK_BYTES = 2**18


class _StopRequest(Exception):
    """Ends the blocks, so that the line which is half there is no message. It never leaves this
    file."""


class PipeSource:
    """The messages of standard input, in the forms of `files.py`. It ends when its writer does.

    UsageError if standard input is closed.
    """

    def __init__(self, form: FeedForm = PLAIN) -> None:
        require_readable(["-"])
        self._form = form
        self.format = form.format
        self._input = sys.stdin.fileno()
        self._wake, self._waker = os.pipe()

    def messages(self) -> Iterator[list[bytes]]:
        try:
            for ping_format, messages in prompt_messages("-", self._blocks(), self._form):
                self.format = ping_format
                yield messages
        except _StopRequest:
            return

    def kept(self, frames: int) -> None:
        pass

    def stop(self, wait: bool = True) -> None:  # noqa: ARG002 (there is nothing to wait for)
        if self._waker >= 0:
            os.write(self._waker, b"!")

    def close(self) -> None:
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
        raise _StopRequest


LIVE: dict[str, Callable[[str, Settings, MessageSink, Path | None], LiveSource]] = {
    "amqp": QueueSource,
    "amqps": QueueSource,
    "http": PolledSource,
    "https": PolledSource,
    "mqtt": TopicSource,
    "mqtts": TopicSource,
}
"""Makers of live sources, by the scheme of the name. A maker is given the name, the settings, a
function for sentences to people, and the folder in which a source may keep the name of its session.
It connects to nothing."""


def live_source(
    name: str, settings: Settings, log_message: MessageSink, folder: Path | None = None
) -> LiveSource:
    """The source of a name: standard input for `-`, a file, or a live source. Nothing is read yet.

    UsageError for a scheme that is not in `LIVE`. Other errors are those of the source, and of
    `require_one_form`.
    """
    if name == "-":
        return PipeSource(settings.form)
    scheme = scheme_of(name)
    source: LiveSource
    if scheme is None:
        source = RecordedSource(
            open_source(name, settings.speed.unit, log_message=log_message, form=settings.form)
        )
    elif scheme in LIVE:
        source = LIVE[scheme](name, settings, log_message, folder)
    else:
        known = ", ".join(f"{each}://" for each in LIVE)
        raise UsageError(
            f"expected a file, - for standard input, or a name that begins with one of {known}; got {scheme}://"
        )
    require_one_form(settings.form, [source.format])
    return source
