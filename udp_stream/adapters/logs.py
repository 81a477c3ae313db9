"""Lines on standard error of a process: sentences on a terminal, JSON where another program reads what goes on.

What comes through `logging` is of libraries, whatever its logger is called. It is shown from warnings on, once in ten
minutes each, as `scrubber.py` makes it: without anything that could be of a ping. Warnings of Python go the same way,
and so do errors that end a thread. Our own lines do not come through `logging`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from udp_stream.adapters.scrubber import Scrubber, fault, python_warning, text_of
from udp_stream.adapters.text import counted

WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR

REPEAT_S: Final = 600.0
"""A message of a library is shown once in so long; then how often it came."""

NO_BROKER: Final = "a Kafka broker does not answer; the worker tries again", logging.WARNING
NO_COORDINATOR: Final = "the group has no coordinator now; the worker looks for one", logging.INFO
REBALANCE: Final = "the group's partitions are dealt out anew; the worker joins again", logging.INFO
NO_TOPIC: Final = "a topic is not there{}; `udp-stream topics create` makes it", logging.WARNING

TRANSLATED: Final = {
    "Unable connect to node": NO_BROKER,
    "Unable to request metadata": NO_BROKER,
    "Unable to update metadata": NO_BROKER,
    "Failed fetch messages": NO_BROKER,
    "Got error produce response": NO_BROKER,
    "Group Coordinator Request failed": NO_COORDINATOR,
    "FindCoordinator Request failed": NO_COORDINATOR,
    "Marking the coordinator dead": NO_COORDINATOR,
    "Heartbeat session expired": NO_COORDINATOR,
    "Error sending": NO_COORDINATOR,
    "Heartbeat failed": REBALANCE,
    "Heartbeat send request failed": REBALANCE,
    "OffsetCommit failed": REBALANCE,
    "Topic %s not found": NO_TOPIC,
    "Topic %s is not available": NO_TOPIC,
}
"""How messages of the Kafka client begin that come in the life of any deployment, and what they mean for it. `{}`
is for those of the message's arguments that may be shown."""

UNSAID: Final = ("Task %r ran for",)
"""How those begin that tell an operator nothing: a busy machine held the client up for a tenth of a second. The client
fills in its text itself."""

_log: list[_Log] = []
"""The log, if there is one: a process has one standard error."""

_quiet: list[bool] = []
"""Holds one value while only errors are said."""


def say_errors_only(only: bool) -> None:
    """Whether everything below an error is left unsaid from now on, for this process.

    >>> say_errors_only(True)
    >>> say("not worth a line"), is_quiet()
    (None, True)
    >>> say_errors_only(False)
    """
    _quiet[:] = [True] if only else []


def is_quiet() -> bool:
    """Whether only errors are said."""
    return bool(_quiet)


def begin_log(stream: TextIO | None = None, *, as_json: bool | None = None, shown: Iterable[str] = ()) -> None:
    """Say everything on this stream from now on (default: standard error); JSON unless it is a terminal.

    `shown` are texts of the configuration that libraries' messages may show: topics, groups, addresses.

    >>> begin_log(sys.stdout, as_json=False, shown=["bus.pings.v1"])
    >>> say("ready")
    udp-stream: ready
    >>> logging.getLogger("aiokafka").warning("Topic %s has %d, key %r", "bus.pings.v1", 8, b"GJ05ZZ0001")
    udp-stream: udp_stream.adapters.logs: Topic bus.pings.v1 has ..., key ...
    >>> end_log()
    """
    if as_json is None:
        as_json = not (stream or sys.stderr).isatty()
    end_log()
    log = _Log(stream, _as_json if as_json else _as_sentence, Scrubber(shown))
    _log.append(log)
    log.setLevel(ERROR if is_quiet() else WARNING)
    logging.root.addHandler(log)
    logging.root.setLevel(log.level)
    logging.raiseExceptions = False  # a reader of the log that has gone away stops nothing
    log.hook()


def end_log() -> None:
    """Say nothing through the log any more."""
    while _log:
        log = _log.pop()
        log.unhook()
        logging.root.removeHandler(log)


def say(text: str, event: str = "said", figures: Mapping[str, object] | None = None, level: int = logging.INFO) -> None:
    """One line of ours: through the log if there is one, else on standard error."""
    if is_quiet() and level < ERROR:
        return
    if _log:
        _log[0].write(_Line(text, event, level, figures or {}))
    else:
        print(f"udp-stream: {'warning: ' if level == WARNING else ''}{text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class _Line:
    """One of ours, or of a library: it has nothing of the record but what the scrubber made."""

    text: str
    event: str = "library"
    level: int = WARNING
    figures: Mapping[str, object] = field(default_factory=dict)


class _Log(logging.Handler):
    """Writes our lines, and what may be shown of what libraries say: each line the first time in ten minutes."""

    def __init__(self, stream: TextIO | None, form: Callable[[_Line], str], scrubber: Scrubber) -> None:
        super().__init__()
        self._stream, self._form, self._scrubber = stream, form, scrubber
        self._passed: dict[str, float] = {}
        self._more: dict[str, int] = {}
        self._unhook: list[Callable[[], None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """What a library says."""
        try:
            line = None if _is_unsaid(str(record.msg)) else self._line(record)
        except Exception:  # noqa: BLE001 (what a library logs may fail at being looked at; its own work must go on)
            line = _Line("a library: a message that cannot be read")
        if line is not None:
            self._write_once(line)

    def write(self, line: _Line) -> None:
        """A line, with what ends it, in one piece. Where nobody reads it is lost."""
        self.acquire()
        try:
            with suppress(OSError, ValueError):
                stream = self._stream or sys.stderr
                stream.write(self._form(line) + "\n")
                stream.flush()
        finally:
            self.release()

    def hook(self) -> None:
        """Take what Python would print, with its text, of warnings, of errors in threads, and of errors that nothing
        can take. Where a caller has replaced these hooks they are left alone."""
        if threading.excepthook is threading.__excepthook__:
            threading.excepthook = self._thread_failed
            self._unhook.append(lambda: setattr(threading, "excepthook", threading.__excepthook__))
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = self._unraisable
            self._unhook.append(lambda: setattr(sys, "unraisablehook", sys.__unraisablehook__))
        shows = warnings.showwarning
        if shows.__module__ == warnings.__name__:
            warnings.showwarning = self._warned
            self._unhook.append(lambda: setattr(warnings, "showwarning", shows))

    def unhook(self) -> None:
        """Give the hooks back."""
        while self._unhook:
            self._unhook.pop()()

    def _line(self, record: logging.LogRecord) -> _Line:
        """Our sentence for what is known, with its level; else what the scrubber makes of it."""
        text = text_of(record)
        for beginning, (sentence, level) in TRANSLATED.items():
            if (text[0] or "").startswith(beginning):
                about = ", ".join(self._scrubber.arguments(record))
                return _Line(sentence.format(f" ({about})" if about else ""), level=level)
        return _Line(self._scrubber.line(record, text), level=ERROR if record.levelno >= ERROR else WARNING)

    def _write_once(self, line: _Line) -> None:
        if is_quiet() and line.level < ERROR:
            return
        now = time.monotonic()
        if now - self._passed.get(line.text, -REPEAT_S) < REPEAT_S:
            self._more[line.text] = self._more.get(line.text, 0) + 1
            return
        self._passed[line.text] = now
        again = self._more.pop(line.text, 0)
        before = f" ({counted(again, 'time')} more before)" if again else ""
        self.write(_Line(line.text + before, line.event, line.level))

    def _thread_failed(self, about: Any) -> None:
        if about.exc_value is not None and about.exc_type is not SystemExit:
            self._write_once(_Line(f"a thread has ended: {fault(about.exc_value)}", level=ERROR))

    def _unraisable(self, about: Any) -> None:
        if about.exc_value is not None:
            self._write_once(_Line(f"an error that nothing could take: {fault(about.exc_value)}", level=WARNING))

    def _warned(
        self,
        message: Warning | str,  # noqa: ARG002 (it may quote a ping)
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG002
        line: str | None = None,  # noqa: ARG002
    ) -> None:
        self._write_once(_Line(python_warning(category, filename, lineno)))


def _is_unsaid(text: str) -> bool:
    return any(text.startswith(head) and tail in text for head, _, tail in (one.partition("%r") for one in UNSAID))


def _as_sentence(line: _Line) -> str:
    """As a person reads it."""
    warning = "warning: " if line.level == WARNING and line.event != "library" else ""
    return f"udp-stream: {warning}{line.text}"


def _as_json(line: _Line) -> str:
    """One object: time (UTC), level, event, message, and the figures of the event."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level = logging.getLevelName(line.level).lower()
    entry = {"time": when, "level": level, "event": line.event, "message": line.text}
    return json.dumps(entry | dict(line.figures), ensure_ascii=False)
