"""Lines on standard error of a process that goes on: sentences on a terminal, JSON where another program reads them.

What libraries say is shown from warnings on, once in ten minutes each, without anything that could be of a ping. Plates
and speeds may be texts, whole numbers and fractions. So of a message's arguments only what the configuration has is
shown, and of its text no word with a digit. A text without arguments may have been put together: of it the first words
are shown, as long as they stand in the source file of the library that says them, which no feed has written.

What that leaves: a plate of letters alone that a library puts into a text which also has arguments, or that is a word
of the library's source.
"""

from __future__ import annotations

import json
import linecache
import logging
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final, TextIO

WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR

OURS: Final = logging.getLogger("udp-stream")

REPEAT_S: Final = 600.0
"""A message of a library is shown once in so long; then how often it came."""

HIDDEN: Final = "..."

NO_BROKER: Final = "a Kafka broker does not answer; the worker tries again", logging.WARNING
NO_COORDINATOR: Final = "the group has no coordinator now; the worker looks for one", logging.INFO
REBALANCE: Final = "the group's partitions are dealt out anew; the worker joins again", logging.INFO

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
    "Topic %s not found": ("a topic is not there; `udp-stream topics create` makes it", logging.WARNING),
    "Topic %s is not available": ("a topic is not there; `udp-stream topics create` makes it", logging.WARNING),
}
"""How messages of the Kafka client begin that come in the life of any deployment, and what they mean for it."""

UNSAID: Final = ("Task %r ran for",)
"""How those begin that tell an operator nothing: a busy machine held the client up for a tenth of a second. The client
fills in its text itself."""

_CONVERSION: Final = re.compile(r"%(\(\w+\))?[-#0 +]*\d*(?:\.\d+)?[hlL]?[a-zA-Z]")
_WITH_DIGIT: Final = re.compile(r"\S*\d\S*")
_WORD: Final = re.compile(r"[^\W\d_]+")

_ours: list[logging.Handler] = []
"""The handler of the log, if there is one: a process has one standard error."""

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

    >>> begin_log(sys.stdout, as_json=False)
    >>> say("ready")
    udp-stream: ready
    >>> logging.getLogger("aiokafka").warning("Topic %s has %d, key %r", "bus.pings.v1", 8, b"GJ05ZZ0001")
    udp-stream: aiokafka: Topic ... has ..., key ...
    >>> end_log()
    """
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    as_json = not stream.isatty() if as_json is None else as_json
    handler.setFormatter(_JsonLines() if as_json else _Sentences())
    handler.addFilter(_Libraries(frozenset(shown)))
    end_log()
    _ours.append(handler)
    logging.root.addHandler(handler)
    logging.root.setLevel(ERROR if is_quiet() else WARNING)
    OURS.setLevel(ERROR if is_quiet() else logging.INFO)
    logging.raiseExceptions = False  # a reader of the log that has gone away stops nothing


def end_log() -> None:
    """Say nothing through the log any more."""
    while _ours:
        logging.root.removeHandler(_ours.pop())
    OURS.setLevel(logging.NOTSET)


def say(text: str, event: str = "said", figures: Mapping[str, object] | None = None, level: int = logging.INFO) -> None:
    """One line of ours: through the log if there is one, else on standard error."""
    if is_quiet() and level < ERROR:
        return
    if not _ours:
        print(f"udp-stream: {'warning: ' if level == WARNING else ''}{text}", file=sys.stderr, flush=True)
        return
    OURS.log(level, "%s", text, extra={"event": event, "figures": figures or {}})


class _Libraries(logging.Filter):
    """Passes our lines; of libraries' ones the first in ten minutes, and without what it must not show."""

    def __init__(self, shown: frozenset[str]) -> None:
        super().__init__()
        self._shown = shown
        self._passed: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == OURS.name:
            return True
        if _is_unsaid(str(record.msg)):
            return False
        sentence, level = self._translated(record)
        now = time.monotonic()
        if now - self._passed.get(sentence, -REPEAT_S) < REPEAT_S:
            self._more[sentence] = self._more.get(sentence, 0) + 1
            return False
        self._passed[sentence] = now
        again = self._more.pop(sentence, 0)
        record.msg = sentence + (f" ({again:,} times more before)" if again else "")
        record.args, record.exc_info, record.exc_text, record.stack_info = (), None, None, None
        record.levelno, record.levelname = level, logging.getLevelName(level)
        return True

    def _translated(self, record: logging.LogRecord) -> tuple[str, int]:
        """Our sentence for what is known, with its level; else the library's name and its text without secrets."""
        template = str(record.msg)
        for beginning, ours in TRANSLATED.items():
            if template.startswith(beginning):
                return ours
        return f"{record.name}: {self._text(record)}", record.levelno

    def _text(self, record: logging.LogRecord) -> str:
        """The message with its arguments hidden. A text that was put together before has no arguments: it is dropped
        but for its first words, up to the first one with a digit, a quote or a bracket, or that is not the library's.
        """
        template = _WITH_DIGIT.sub(HIDDEN, _CONVERSION.sub(r"%\1s", str(record.msg)))
        args = record.args
        try:
            if isinstance(args, Mapping):
                return template % {name: self._argument(value) for name, value in args.items()}
            if args:
                return template % tuple(self._argument(value) for value in args)
        except (TypeError, ValueError):
            pass
        return _plain_beginning(str(record.msg), _words_of(record.pathname))

    def _argument(self, value: object) -> object:
        if isinstance(value, BaseException):
            return _Hidden(type(value).__name__)
        return _Hidden(str(value) if str(value) in self._shown else HIDDEN)


class _Hidden(str):
    """Shown alike by %s and %r."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _is_unsaid(text: str) -> bool:
    return any(text.startswith(head) and tail in text for head, _, tail in (one.partition("%r") for one in UNSAID))


def _words_of(path: str) -> frozenset[str]:
    """The words of a source file; none if it cannot be read."""
    return frozenset(_WORD.findall("".join(linecache.getlines(path))))


def _plain_beginning(text: str, known: frozenset[str]) -> str:
    words: list[str] = []
    for word in text.split():
        plain = word.strip(".,:;!-")
        if not plain.isalpha() or plain not in known:
            return " ".join([*words, HIDDEN])
        words.append(word)
    return " ".join(words)


class _Sentences(logging.Formatter):
    """As a person reads them."""

    def format(self, record: logging.LogRecord) -> str:
        warning = "warning: " if record.levelno == logging.WARNING and record.name == OURS.name else ""
        return f"udp-stream: {warning}{record.getMessage()}"


class _JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, event, message, and the figures of the event."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        entry: dict[str, object] = {"time": when, "level": record.levelname.lower()}
        entry["event"] = getattr(record, "event", "library")
        entry["message"] = record.getMessage()
        return json.dumps(entry | dict(getattr(record, "figures", {})), ensure_ascii=False)
