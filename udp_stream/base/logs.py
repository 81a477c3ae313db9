"""The log of a process, on standard error: sentences on a terminal, JSON where another program
reads them.

Our own lines come through the logger `udp_stream`; they hold no plate, speed, position or cell.
Messages, arguments, tracebacks and exception texts of libraries may quote a ping, so none is
written: only logger, level, place and class of exception. Python's warnings and errors that end a
thread are treated alike.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from udp_stream.base.units import counted as counted

INFO = logging.INFO
WARNING = logging.WARNING
ERROR = logging.ERROR

REPEAT_S = 600.0
"""A line of a library is written once in this time; the next says how often it came."""

LOG_AGAIN_S = 900.0
"""Trouble that lasts is said again after this time."""

MAKE_ROOM = "make room, then run it again"

FRAMES = 8  # innermost places that say where an error arose

QUIET_S = 15.0
"""An answer ends an outage once clients have had nothing to complain of for so long: of several
brokers some answer."""

KAFKA = "aiokafka", "kafka"

CLIENTS = *KAFKA, "faust", "mode", "redis"
"""Libraries whose lines an outage replaces."""

NO_BROKER = "a Kafka broker does not answer; it is tried again", WARNING
NO_COORDINATOR = "the group has no coordinator now; the worker looks for one", INFO
REBALANCE = "the group's partitions are dealt out anew; the worker joins again", INFO
NO_TOPIC = "a topic is missing; `udp-stream topics create` makes it", WARNING

TRANSLATED = {
    (
        "Unable connect to node",
        "Unable to request metadata",
        "Unable to update metadata",
    ): NO_BROKER,
    (
        "Failed fetch messages",
        "Got error produce response",
        "Cannot send",
        "Could not send",
    ): NO_BROKER,
    ("No node available", "Metadata refresh", "Bootstrap", "Connection failed"): NO_BROKER,
    tuple(
        f"%s: {what}"
        for what in ("Request timed out", "Connection lost", "socket disconnected", "Abort")
    ): NO_BROKER,
    tuple(
        f"%s: {what}" for what in ("Error", "Got error produce", "Exception occurred waiting")
    ): NO_BROKER,
    ("Group Coordinator Request failed", "FindCoordinator Request failed"): NO_COORDINATOR,
    ("Marking the coordinator dead", "Heartbeat session expired", "Error sending"): NO_COORDINATOR,
    ("Heartbeat failed", "Heartbeat send request failed", "OffsetCommit failed"): REBALANCE,
    ("Topic %s not found", "Topic %s is not available"): NO_TOPIC,
}
"""Beginnings of the Kafka clients' messages that every deployment sees, with our sentence and its
level."""

IGNORED = (("kafka.net.selector", "Task "),)
"""Loggers and beginnings that tell an operator nothing: a busy machine delayed the client by a
tenth of a second."""

_OURS = logging.getLogger("udp_stream")

_handlers: list[_Handler] = []


def log_errors_only(only: bool) -> None:
    """Whether everything below an error is left unsaid from now on, for this process.

    >>> log_errors_only(True)
    >>> log_message("not worth a line"), is_quiet()
    (None, True)
    >>> log_errors_only(False)
    """
    _OURS.setLevel(ERROR if only else INFO)


def is_quiet() -> bool:
    """Whether only errors are said."""
    return _OURS.level == ERROR


def begin_log(stream: TextIO | None = None, *, as_json: bool | None = None) -> None:
    """Write everything to this stream from now on (default: standard error); JSON unless it is a
    terminal."""
    if as_json is None:
        as_json = not (stream or sys.stderr).isatty()
    end_log()
    _handlers.append(_Handler(stream, as_json=as_json))
    logging.root.addHandler(_handlers[0])
    logging.root.setLevel(ERROR if is_quiet() else WARNING)
    _OURS.setLevel(ERROR if is_quiet() else INFO)
    logging.raiseExceptions = False  # a reader of the log that has gone away stops nothing


def end_log() -> None:
    """Write nothing through the log any more."""
    while _handlers:
        handler = _handlers.pop()
        handler.close()
        logging.root.removeHandler(handler)


def log_message(
    text: str, event: str = "said", figures: Mapping[str, object] | None = None, level: int = INFO
) -> None:
    """Write a line of ours: through the log if it has begun, else on standard error."""
    if is_quiet() and level < ERROR:
        return
    if _handlers:
        _OURS.log(level, "%s", text, extra={"event": event, "figures": figures or {}})
    else:
        print(
            f"udp-stream: {'warning: ' if level == WARNING else ''}{text}",
            file=sys.stderr,
            flush=True,
        )


class WarningText(str):
    """A sentence at level warning, where only sentences are handed on."""

    __slots__ = ()


class Trouble:
    """Trouble that lasts for a while: when it is to be said, and how long it takes.

    >>> now_s = 0.0
    >>> trouble = Trouble(lambda: now_s)
    >>> trouble.is_due("answers 404"), trouble.is_due("answers 404"), trouble.is_due("answers 500")
    (True, False, True)
    >>> now_s = LOG_AGAIN_S
    >>> trouble.is_due("answers 404"), trouble.is_on, trouble.end(), trouble.is_on
    (True, True, 900.0, False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said = dict[str, float]()
        self._began_s: float | None = None

    def is_due(self, what: str, ago_s: float = 0.0) -> bool:
        """Whether to say this now: it has not been said for `LOG_AGAIN_S`. The first call begins
        the trouble, so long ago."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s - ago_s
        if now_s - self._said.get(what, -math.inf) < LOG_AGAIN_S:
            return False
        self._said[what] = now_s
        return True

    @property
    def is_on(self) -> bool:
        return self._began_s is not None

    @property
    def lasted_s(self) -> float:
        began_s = self._began_s  # another thread may end it
        return 0.0 if began_s is None else self._clock() - began_s

    def end(self) -> float:
        """It is over: the seconds that it took."""
        lasted_s = self.lasted_s
        self._began_s = None
        self._said.clear()
        return lasted_s


@dataclass
class Outage:
    """A service that is away for a while: a line when it goes, again while it lasts, and a last
    line when it is back. It is said once it has lasted `after_s`, and over with an answer `quiet_s`
    after the last complaint.

    >>> now_s = 0.0
    >>> begin_log(sys.stdout, as_json=False)
    >>> redis = Outage("Redis does not answer", "Redis answers again", after_s=2.0, clock=lambda: now_s)
    >>> redis.away()  # it may be back at once
    >>> now_s = 5.0
    >>> redis.away()
    udp-stream: warning: Redis does not answer
    >>> now_s = 600.0
    >>> redis.back()
    udp-stream: Redis answers again, after 600 s
    >>> end_log()
    """

    gone: str
    there: str
    after_s: float = 0.0
    quiet_s: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._trouble = Trouble(self.clock)
        self._complained_s = 0.0
        self._was_said = False

    @property
    def is_on(self) -> bool:
        return self._trouble.is_on

    @property
    def lasted_s(self) -> float:
        return self._trouble.lasted_s

    def away(self, gone: str = "", ago_s: float = 0.0) -> None:
        """It does not answer, and was asked so long ago; `gone` says so in other words."""
        self._complained_s = self.clock()
        self._trouble.is_due("", ago_s)  # begins it
        text = gone or self.gone
        if self.lasted_s >= self.after_s and self._trouble.is_due(text):
            again = f" for {self.lasted_s:.0f} s" if self._was_said else ""
            self._was_said = True
            log_message(f"{text}{again}", "outage", level=WARNING)

    def back(self) -> None:
        """It has answered."""
        if not self.is_on or self.clock() - self._complained_s < self.quiet_s:
            return
        lasted_s = self._trouble.end()
        was_said = self._was_said
        self._was_said = False
        if was_said:
            log_message(
                f"{self.there}, after {lasted_s:.0f} s", "outage", {"seconds": round(lasted_s, 1)}
            )


BROKER = Outage(NO_BROKER[0], "Kafka answers again", quiet_s=QUIET_S)
"""Outage of this process's broker. Lines of its clients begin the outage; who has an answer ends
it."""


class _LogMessage(NamedTuple):
    text: str
    level: int
    event: str = "library"
    figures: Mapping[str, object] = {}


class _Handler(logging.Handler):
    """Writes our lines, and `_library_line` of other records, each once in ten minutes."""

    def __init__(self, stream: TextIO | None, *, as_json: bool) -> None:
        super().__init__()
        self._stream = stream
        self._as_json = as_json
        self._hooks = ExitStack()
        self._written = dict[str, float]()
        self._repeats = dict[str, int]()
        self._hook(threading, "excepthook", threading.__excepthook__, self._thread_failed)
        self._hook(sys, "unraisablehook", sys.__unraisablehook__, self._unraisable)
        if warnings.showwarning.__module__ == warnings.__name__:
            self._hook(warnings, "showwarning", warnings.showwarning, self._warned)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _OURS.name:
            event, figures = (record.__dict__[name] for name in ("event", "figures"))
            self._write(_LogMessage(record.getMessage(), record.levelno, event, figures))
        elif not any(
            record.name == name and str(record.msg).startswith(text) for name, text in IGNORED
        ):
            line = _library_line(record)
            if line[:2] == NO_BROKER:
                BROKER.away()
            elif not (
                BROKER.is_on and record.name.partition(".")[0] in CLIENTS and line[:2] != NO_TOPIC
            ):
                self._write_once(line)

    def close(self) -> None:
        """Give Python's hooks back."""
        self._hooks.close()
        super().close()

    def _hook(self, owner: Any, name: str, default: object, ours: object) -> None:
        """Replace a hook of Python's, which would print an error's text, unless a caller has
        replaced it."""
        if getattr(owner, name) is default:
            setattr(owner, name, ours)
            self._hooks.callback(setattr, owner, name, default)

    def _write(self, line: _LogMessage) -> None:
        self.acquire()
        try:
            with suppress(OSError, ValueError):  # a line that nobody reads is lost
                stream = self._stream or sys.stderr
                stream.write((_json if self._as_json else _sentence)(line) + "\n")
                stream.flush()
        finally:
            self.release()

    def _write_once(self, line: _LogMessage) -> None:
        if is_quiet() and line.level < ERROR:
            return
        now = time.monotonic()
        if now - self._written.get(line.text, -REPEAT_S) < REPEAT_S:
            self._repeats[line.text] = self._repeats.get(line.text, 0) + 1
            return
        self._written[line.text] = now
        again = self._repeats.pop(line.text, 0)
        self._write(
            line._replace(text=f"{line.text} ({counted(again, 'time')} more before)")
            if again
            else line
        )

    def _thread_failed(self, about: Any) -> None:
        if about.exc_value is not None and about.exc_type is not SystemExit:
            self._write_once(_LogMessage(f"a thread has ended: {fault(about.exc_value)}", ERROR))

    def _unraisable(self, about: Any) -> None:
        if about.exc_value is not None:
            self._write_once(
                _LogMessage(f"an error that nothing could take: {fault(about.exc_value)}", WARNING)
            )

    def _warned(
        self, _message: object, category: type[Warning], filename: str, lineno: int, *_: object
    ) -> None:
        self._write_once(
            _LogMessage(f"Python: {category.__name__} at {_place(filename, lineno)}", WARNING)
        )


def _library_line(record: logging.LogRecord) -> _LogMessage:
    """Our sentence for a message that every deployment sees, else logger, level, place and
    exception classes."""
    message = record.msg if type(record.msg) is str and record.name.startswith(KAFKA) else ""
    for beginnings, (sentence, level) in TRANSLATED.items():
        if message.startswith(beginnings):
            return _LogMessage(sentence, level)
    level = ERROR if record.levelno >= ERROR else WARNING
    text = f"{record.name}: {logging.getLevelName(level).lower()} at {_place(record.pathname, record.lineno)}"
    return _LogMessage(", ".join([text, *dict.fromkeys(_exceptions(record))]), level)


def _exceptions(record: logging.LogRecord) -> Iterator[str]:
    """The record's exception with its places; of exceptions in its message or arguments the class
    alone."""
    if record.exc_info and record.exc_info[1] is not None:
        yield fault(record.exc_info[1])
    given = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    for value in (record.msg, *given):
        if isinstance(value, BaseException):
            yield type(value).__name__


def fault(error: BaseException) -> str:
    """An error by its class and where it arose, innermost first; never by its text, which may quote
    a ping."""
    return f"{type(error).__name__} at {places(error.__traceback__)}"


def places(trace: TracebackType | None) -> str:
    """The innermost places of a traceback, as `file:line < file:line`."""
    found = []
    while trace is not None:
        found.append(_place(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return " < ".join(reversed(found[-FRAMES:]))


def trouble_of(error: OSError) -> str:
    """The file, and what the system says of it: libraries raise such errors, too, with texts of
    their own.

    >>> trouble_of(PermissionError(13, "text of a library", "city.ledger")), trouble_of(OSError("text of a library"))
    ('city.ledger: Permission denied', 'a file: OSError')
    >>> trouble_of(OSError(28, "text of a library", "releases.ndjson"))
    'releases.ndjson: No space left on device: make room, then run it again'
    """
    known = error.errno is not None and error.errno in errno.errorcode
    why = os.strerror(error.errno or 0) if known else type(error).__name__
    room = f": {MAKE_ROOM}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename or 'a file'}: {why}{room}"


def _place(path: str, line: int) -> str:
    return f"{Path(path).name}:{line}"


def _sentence(line: _LogMessage) -> str:
    warning = "warning: " if line.level == WARNING and line.event != "library" else ""
    return f"udp-stream: {warning}{line.text}"


def _json(line: _LogMessage) -> str:
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level = logging.getLevelName(line.level).lower()
    entry = {"time": when, "level": level, "event": line.event, "message": line.text}
    return json.dumps(entry | dict(line.figures), ensure_ascii=False)
