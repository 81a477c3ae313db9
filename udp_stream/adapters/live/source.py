"""A live source: one that goes on until it is stopped, and what such sources share."""

from __future__ import annotations

from typing import Protocol

from udp_stream.adapters.schemes import Source


class LiveSource(Source, Protocol):
    """A source whose frames are acknowledged. `messages` runs in one thread, the other methods in another.

    A frame may be empty: it is acknowledged like the others.
    """

    def kept(self, frames: int) -> None:
        """The first `frames` frames that it gave are where no crash loses them: acknowledge them where that is done."""
        ...

    def stop(self, wait: bool = True) -> None:
        """Give no more frames, and end: once those given are kept, or soon, or without `wait` at once. Safe to
        repeat."""
        ...


class Failed(Exception):
    """A source could not be read. It never leaves this room.

    `sentence` goes on behind the source's name and has no content of it. `is_final`: to try again is no use until a
    person has changed something. `wait_s`: how long the server asks to be left alone.
    """

    def __init__(self, sentence: str, *, is_final: bool = False, wait_s: float | None = None) -> None:
        """`wait_s` of None: it did not say."""
        super().__init__(sentence)
        self.sentence, self.is_final, self.wait_s = sentence, is_final, wait_s
