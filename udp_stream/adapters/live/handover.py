"""From a live source to the one who keeps its messages: frames are read in a thread, kept, and acknowledged.

    with Handover(source) as handover:
        while not handover.ended:
            for frame in handover.take():
                keep(frame)
            settle()           # now no crash loses them
            handover.kept()

So frames are handed on as they come, however long a poll takes, and a signal is answered at once.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from udp_stream.adapters.live.source import LiveSource

WAIT_S = 0.5
"""As long as `take` waits for a frame: half of the second within which messages are handed on."""

MESSAGES_MAX = 200_000
"""Wait to be taken; then the source waits. A queue's prefetch (65,535 at most) and a poll fit in it."""

JOIN_S = 15.0
"""As long as a source may take to end: it is a daemon, so it does not keep the process."""


class Handover:
    """Reads a source in a thread while the block runs."""

    def __init__(self, source: LiveSource, messages_max: int = MESSAGES_MAX) -> None:
        """Reading begins with the block."""
        self._source = source
        self._messages_max = messages_max
        self._changed = threading.Condition()
        self._frames: deque[list[bytes]] = deque()
        self._waiting = 0
        self._taken = 0
        self._is_over = self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="live source", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the source and wait until it has ended; what was not kept is given up if the block failed."""
        self.stop(wait=kind is None)
        # Joined before it is closed: closing takes away what the thread may be waiting on.
        self._thread.join(JOIN_S)
        self._source.close()

    @property
    def ended(self) -> bool:
        """Whether the source gives no more frames, and all have been taken, and its error if it has failed."""
        with self._changed:
            return self._is_over and not self._frames and self._error is None

    def take(self, wait_s: float = WAIT_S) -> list[list[bytes]]:
        """The frames that have come, after waiting for one if there is none; none if none came.

        Raises what the source has raised, once all frames before it were taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._frames) or self._is_over, wait_s)
            frames = list(self._frames)
            self._frames.clear()
            self._waiting = 0
            self._changed.notify_all()
            if not frames and self._error is not None:
                error, self._error = self._error, None
                raise error
        self._taken += len(frames)
        return frames

    def kept(self) -> None:
        """All frames that were taken are where no crash loses them."""
        self._source.kept(self._taken)

    def stop(self, wait: bool = True) -> None:
        """Ask the source to end, without `wait` at once; what it has given can still be taken."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._source.stop(wait)

    def _read(self) -> None:
        try:
            for frame in self._source.messages():
                self._put(frame)
        except BaseException as error:  # noqa: BLE001 (raised again, where the frames are taken)
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _put(self, frame: list[bytes]) -> None:
        with self._changed:
            # Once stopped it does not wait: perhaps nobody takes frames any more, and the thread has to end.
            self._changed.wait_for(lambda: self._waiting < self._messages_max or self._is_stopped)
            self._frames.append(frame)
            self._waiting += max(1, len(frame))  # empty frames take room, too
            self._changed.notify_all()
