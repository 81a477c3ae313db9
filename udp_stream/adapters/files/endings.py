"""How files end: of one that is damaged, what came before the damage is used, and the damage is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from udp_stream.errors import UsageError

Part = TypeVar("Part")
"""A block of bytes, or a frame of messages."""


def as_far_as_whole(parts: Iterator[Part], say: Callable[[str], None]) -> Iterator[Part]:
    """The parts up to a UsageError behind the first of them, which is said; one before any is raised.

    >>> from udp_stream.adapters.files.beginnings import text_of
    >>> def cut():
    ...     yield b"id;time"
    ...     raise UsageError("bus.csv.gz: its gzip data end too early; what came before was read")
    >>> list(as_far_as_whole(text_of("bus.csv.gz", cut()), print))
    bus.csv.gz: its gzip data end too early; what came before was read
    [b'id;time']
    """
    is_begun = False
    try:
        for part in parts:
            is_begun = True
            yield part
    except UsageError as error:
        if not is_begun:
            raise
        say(str(error))
