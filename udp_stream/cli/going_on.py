"""What verbs that go on until they are stopped share: SIGTERM as a question, and lines about their source."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from udp_stream.logs import say


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
