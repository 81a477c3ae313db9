"""Live sources: what they have in common, and the thread that reads for the program that keeps
the messages."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from udp_stream.base.errors import DependencyUnavailable
from udp_stream.base.logs import Trouble, WarningText, counted
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.snapshots import RepeatFilter, gtfs_formats
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings
from udp_stream.sources.recordings import (
    SNAPSHOT_BYTES_MAX,
    TOO_COARSE,
    VEHICLES_MAX,
    MessageSink,
    Source,
    moved_share,
    require_gtfs,
)
from udp_stream.sources.rows import Frames


class LiveSource(Source, Protocol):
    """A source that goes on until it is stopped. `messages` runs in one thread, the other methods
    in another. A frame may be empty: it is acknowledged like the others."""

    def kept(self, frames: int) -> None:
        """No crash loses the first `frames` frames: their messages can be acknowledged."""

    def stop(self, wait: bool = True) -> None:
        """Give no more frames, and end once those given are kept, or soon; without `wait` at once.
        Safe to repeat."""


class SourceFailure(Exception):
    """A source could not be read; never raised out of `sources/`.

    `sentence` follows the source's name, and holds nothing of the server's. `is_final`: trying
    again is no use until a person has changed something. `wait_s`: how long the server asks to be
    left alone, if it does.
    """

    def __init__(
        self, sentence: str, *, is_final: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.is_final = is_final
        self.wait_s = wait_s


class Contact:
    """When a source answered last, and how many tries have failed. Two threads use it, and only one
    writes.

    >>> contact = Contact(clock=lambda: 7.0)
    >>> contact.is_away, contact.silent_s
    (True, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_s = clock()
        self.failed = 0
        self.is_away = True
        self.certificate_s: float | None = None  # when the certificate ends that it showed last

    @property
    def silent_s(self) -> float:
        return self._clock() - self._answered_s

    def worked(self) -> None:
        self._answered_s = self._clock()
        self.is_away = False

    def lost(self) -> None:
        self.failed = self.failed + 1
        self.is_away = True


@dataclass
class RecordedSource:
    """A recording, as a live run reads it: until it ends or the run is stopped. Nothing is
    acknowledged."""

    source: Source

    def __post_init__(self) -> None:
        self._is_stopped = False

    @property
    def format(self) -> PingFormat:
        return self.source.format

    def messages(self) -> Frames:
        for frame in self.source.messages():
            if self._is_stopped:
                return
            yield frame

    def kept(self, frames: int) -> None:
        pass

    def stop(self, wait: bool = True) -> None:  # noqa: ARG002 (there is nothing to wait for)
        self._is_stopped = True

    def close(self) -> None:
        self.source.close()


# Back-off with jitter; a failure is said once, and then counted.

LONGEST_S = 60.0
"""Between two tries, unless the server asks for more: a city loses a minute of pings at most."""

ASKED_MAX_S = 300.0
"""As long as a server may ask us to wait (`Retry-After`)."""


@dataclass
class Retries:
    """The failures of a source in a row, as warnings. `first_s`: the longest pause after a first
    failure. `fraction` draws from [0, 1), so that clients that failed together do not come back
    together.

    >>> said = []
    >>> retries = Retries("http://host/", 10.0, said.append, clock=lambda: 0.0, fraction=lambda: 1.0)
    >>> [retries.failed(SourceFailure("answers with 503")) for _ in range(4)]
    [10.0, 20.0, 40.0, 60.0]
    >>> retries.worked()
    >>> said
    ['http://host/ answers with 503; tried again in 10 s', 'http://host/ works again, after 4 failures in 0 s']
    """

    name: str
    first_s: float
    log_message: MessageSink
    clock: Callable[[], float]
    fraction: Callable[[], float]

    def __post_init__(self) -> None:
        self._trouble = Trouble(self.clock)
        self._has_worked = False
        self._count = 0

    def worked(self) -> None:
        if self._count:
            past = duration_in_words(self._trouble.end())
            self.log_message(
                f"{self.name} works again, after {counted(self._count, 'failure')} in {past}"
            )
        self._has_worked = True
        self._count = 0

    def failed(self, failure: SourceFailure) -> float:
        """Seconds until the next try. DependencyUnavailable for a final failure before anything has
        worked: whoever has typed a wrong address is told at once."""
        if failure.is_final and not self._has_worked:
            raise DependencyUnavailable(f"{self.name} {failure.sentence}")
        # Ten doublings at most: after some 1,000 failures the power would be too large for a float.
        most = min(self.first_s * 2.0 ** min(self._count, 10), max(LONGEST_S, self.first_s))
        pause = most * (0.5 + self.fraction() / 2)
        if failure.wait_s is not None:
            pause = max(pause, min(failure.wait_s, ASKED_MAX_S))
        self._count += 1
        if self._trouble.is_due(failure.sentence):
            past = f"{counted(self._count, 'failure')} in {duration_in_words(self._trouble.lasted_s)}; "
            again = f"{past * (self._count > 1)}tried again in {duration_in_words(pause)}"
            self.log_message(WarningText(f"{self.name} {failure.sentence}; {again}"))
        return pause


FIRST_PAUSE_S = 1.0
"""After a first failure, at most."""

DRAIN_S = 10.0
"""As long as the last messages are waited for to be kept, when the source is stopped."""

MOVED_MIN = 200
"""Pings before their repeats are looked at."""


class ConnectedSource(ABC):
    """A feed behind a connection, which is opened again when it fails. Messages are acknowledged
    once their pings are kept: in Kafka, or in a journal. What was not comes again: it is left out
    if it is among its plate's last pings, and else a repeat.

    A kind of source has three methods: `open`, `read` and `acknowledge`. These and `disconnect` run
    in the thread that reads `messages`. Each may raise one of `errors`, which `failure` puts into
    words.

    `name` is for people, and so is what `log_message` is given: sentences without anything of a
    message. ConfigError for GTFS-realtime without a unit, or beside a form of the feed's own.
    """

    errors: tuple[type[Exception], ...] = (SourceFailure, OSError, ValueError)

    def __init__(
        self,
        name: str,
        settings: Settings,
        log_message: MessageSink,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.name = name
        self.log_message = log_message
        form = settings.form
        read = form.format
        self._mapping = form.mapping
        self.format = form.format
        if settings.live.format == "gtfs-rt":
            require_gtfs(settings, name, log_message)
            read, self.format = gtfs_formats(form)
        self._retries = Retries(name, first_pause_s, log_message, time.monotonic, random.random)
        self._unrepeated = RepeatFilter(read, SNAPSHOT_BYTES_MAX, VEHICLES_MAX)
        self.contact = Contact()
        self.stopped = threading.Event()
        self._is_waiting = True
        self._is_moved = False
        self._kept_frames = self._frames = self._connections = 0
        self._given: deque[tuple[int, int, Any]] = (
            deque()
        )  # of each message: its frame, its connection, its id there

    @abstractmethod
    def open(self) -> None:
        """Connect, and ask for messages."""

    @abstractmethod
    def read(self) -> Sequence[tuple[Any, bytes]]:
        """The messages that have come, after a wait of a fraction of a second at most; each with
        the id by which it is acknowledged, or None."""

    @abstractmethod
    def acknowledge(self, ids: Sequence[Any]) -> None:
        """The messages with these ids, in the order in which they came, need not be sent again."""

    def disconnect(self) -> None:  # noqa: B027 - a source may have no connection to end
        """End the connection. What this raises is ignored."""

    def take(self, message: bytes) -> list[bytes]:
        new = self._unrepeated.take(message, time.monotonic())
        counts = self._unrepeated.counts
        if not self._is_moved and counts["read"] >= MOVED_MIN and (moved := moved_share(counts)):
            self._is_moved = True
            self.log_message(WarningText(f"{self.name}: {moved}: {TOO_COARSE}"))
        return new

    def failure(self, error: BaseException) -> SourceFailure:
        return failure_of(error)

    def messages(self) -> Frames:
        """A frame for the messages that have come, as single pings. DependencyUnavailable if the
        first connection is refused for a lasting reason, such as a wrong password."""
        while not self.stopped.is_set():
            try:
                self.open()
                self._connections += 1
                while not self.stopped.is_set():
                    frame = self._frame(self.read())
                    self._retries.worked()
                    self.contact.worked()
                    self._acknowledge()
                    if frame is not None:
                        yield frame
                self._drain()
            except self.errors as error:
                if not self.stopped.is_set():
                    self.contact.lost()
                    self.stopped.wait(self._retries.failed(self.failure(error)))
            finally:
                with suppress(Exception):
                    self.disconnect()

    def kept(self, frames: int) -> None:
        self._kept_frames = frames

    def stop(self, wait: bool = True) -> None:
        self._is_waiting = wait
        self.stopped.set()

    def close(self) -> None:  # noqa: B027 - nothing is left to do
        pass

    def _frame(self, arrived: Sequence[tuple[Any, bytes]]) -> list[bytes] | None:
        """The new pings of these messages; None without new pings and messages to acknowledge."""
        now_ms = round(time.time() * 1000)
        dated = (self._mapping.dated(message, now_ms) for _, message in arrived)
        frame = [ping for message in dated for ping in self.take(message)]
        ids = [number for number, _ in arrived if number is not None]
        if not frame and not ids:
            return None
        self._frames += 1
        self._given += [(self._frames, self._connections, number) for number in ids]
        return frame

    def _acknowledge(self) -> None:
        # Messages of an earlier connection come again under other ids.
        ids = []
        while self._given and self._given[0][0] <= self._kept_frames:
            _, connection, number = self._given.popleft()
            ids += [number] if connection == self._connections else []
        if ids:
            self.acknowledge(ids)

    def _drain(self) -> None:
        """Wait until all frames are kept. Messages that still come are dropped: they come again."""
        deadline_s = time.monotonic() + DRAIN_S
        self._acknowledge()
        while self._given and self._is_waiting and time.monotonic() < deadline_s:
            self.read()
            self._acknowledge()


def failure_of(error: BaseException, otherwise: str = "lost the connection") -> SourceFailure:
    """The meaning of an error of a connection, in words that hold nothing of the server's."""
    if isinstance(error, SourceFailure):
        return error
    causes = [error, error.__cause__, error.__context__, *error.args]
    causes += [getattr(cause, "exception", None) for cause in causes]  # as pika has it
    if untrusted := [cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)]:
        said = [words for cause in untrusted if (words := getattr(cause, "verify_message", ""))]
        return SourceFailure(
            f"has a certificate that is not trusted ({[*said, 'verification failed'][0]})",
            is_final=True,
        )
    for kind, sentence in _FAILURES.items():
        if any(isinstance(cause, kind) for cause in causes):
            return SourceFailure(sentence)
    return SourceFailure(f"{otherwise} ({type(error).__name__})")


_FAILURES: Mapping[type[Exception], str] = {
    socket.gaierror: "cannot be found: its name has no address",
    ConnectionRefusedError: "refuses connections",
    TimeoutError: "did not answer in time (live.timeout)",
    ssl.SSLError: "does not speak TLS as we do",
}


WAIT_S = 0.5
"""As long as `take` waits for a frame: half of the second within which messages are handed on."""

MESSAGES_MAX = 200_000
"""Wait to be taken; then the source waits. A queue's prefetch (65,535 at most) and a poll fit in
it."""

JOIN_S = 15.0
"""As long as a source may take to end: it is a daemon, so it does not keep the process."""


@dataclass
class Handover:
    """Reads a source in a thread while the block runs, so that frames are handed on as they come,
    however long a poll takes, and a signal is answered at once.

        with Handover(source) as handover:
            while not handover.ended:
                for frame in handover.take():
                    keep(frame)
                settle()           # now no crash loses them
                handover.kept()
    """

    source: LiveSource
    messages_max: int = MESSAGES_MAX

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._frames: deque[list[bytes]] = deque()
        self._waiting = 0
        self._taken = 0
        self._is_over = self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="live source", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(wait=kind is None)  # frames that were not kept are given up if the block failed
        # Joined before it is closed: closing takes away what the thread may be waiting on.
        self._thread.join(JOIN_S)
        self.source.close()

    @property
    def ended(self) -> bool:
        """Whether the source gives no more frames, and all have been taken, and its error if it has
        failed."""
        with self._changed:
            return self._is_over and not self._frames and self._error is None

    def take(self, wait_s: float = WAIT_S) -> list[list[bytes]]:
        """The frames that have come, after a wait for the first. Raises the source's error behind
        its last frame."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._frames) or self._is_over, wait_s)
            frames = list(self._frames)
            self._frames.clear()
            self._waiting = 0
            self._changed.notify_all()
            if not frames and self._error is not None:
                error = self._error
                self._error = None
                raise error
        self._taken += len(frames)
        return frames

    def kept(self) -> None:
        self.source.kept(self._taken)

    def stop(self, wait: bool = True) -> None:
        """Ask the source to end, without `wait` at once; what it has given can still be taken."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self.source.stop(wait)

    def _read(self) -> None:
        try:
            for frame in self.source.messages():
                with self._changed:
                    # Once stopped it does not wait: perhaps nobody takes frames any more, and the thread
                    # has to end.
                    self._changed.wait_for(
                        lambda: self._waiting < self.messages_max or self._is_stopped
                    )
                    self._frames.append(frame)
                    self._waiting += max(1, len(frame))  # empty frames take room, too
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 (raised again, where the frames are taken)
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
