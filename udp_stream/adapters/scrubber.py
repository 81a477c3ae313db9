"""What may be shown of a library's log message: what the library's source says, and nothing that the record holds.

A record's text, arguments, traceback and extra fields may quote a ping, and a plate can look like any word or number.
So no rule looks for plates in them. Instead:

1. The call that logs is looked up in its source file. Of its text that is shown which is written there, and nothing
   that is put into it.
2. An argument is shown if it is one of a closed set: a text of the configuration (topic, group, address of a broker),
   or the name of a class of exceptions, which must stand in its module under this name.
3. If the source has no text for the call, the name of the function around it is shown.
4. Of an exception beside the message the class is shown, and before all of it the name of the module that logs.

What this leaves: an argument that equals a text of the configuration is shown, and it could be a plate of that name.
"""

from __future__ import annotations

import ast
import errno
import linecache
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Final

HIDDEN: Final = "..."

METHODS: Final = frozenset(
    ["debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "dev", "crit"]
)
"""Of loggers, and of Faust's: the calls whose text is looked up."""

FRAMES: Final = 8
"""As many places, from the innermost, say where an error arose."""

Text = tuple[str | None, ...]
"""A text as a source file has it: None where a value is put in."""

NOT_FIXED: Final[Text] = (None,)

_CONVERSION: Final = re.compile(r"%(?:(%)|(?:\(([^)]*)\))?[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[hlL]?[a-zA-Z])")
_FIELD: Final = re.compile(r"\{\{|\}\}|\{[^{}]*\}")

_LOGGING: Final = logging.info.__code__.co_filename


class Scrubber:
    """Makes lines of libraries' records. `shown` are the texts of the configuration that they may show.

    >>> record = logging.LogRecord("logging", 30, "?", 1, "%s is at %d", ("GJ05ZZ0001", 47), None)
    >>> Scrubber(["bus.pings.v1"]).line(record, ("%s is at %d",))
    'a library: ... is at ...'
    """

    def __init__(self, shown: Iterable[str] = ()) -> None:
        """An address is a text of the form "host:port"; several may be one text, with commas between them."""
        self._shown = frozenset(one.strip() for text in shown for one in text.split(","))

    def line(self, record: logging.LogRecord, fixed: Text) -> str:
        """The module's name and its text, which is `text_of` the record. To be called within the call that logs."""
        text = self._text(record, fixed)
        error = record.msg if isinstance(record.msg, BaseException) else (record.exc_info or (None, None))[1]
        if error is not None and not text.endswith(class_name(type(error))):
            text += f": {class_name(type(error))}"
        return f"{_library(_caller())}: {text}"

    def arguments(self, record: logging.LogRecord) -> list[str]:
        """Those of the record's arguments that may be shown."""
        values = list(record.args.values()) if isinstance(record.args, Mapping) else list(record.args or ())
        return [text for text in self._texts(values) if text != HIDDEN]

    def _text(self, record: logging.LogRecord, fixed: Text) -> str:
        if not any(map(str.isalpha, _CONVERSION.sub("", "".join(filter(None, fixed))))):
            caller = _caller()
            return HIDDEN if caller is None else _place(caller.f_code.co_filename, caller.f_lineno)
        return " ".join("".join(self._filled(fixed, record.args)).split())

    def _filled(self, text: Text, args: object) -> Iterator[str]:
        """The text with what may be shown of the arguments. Without arguments `%` is a letter like others."""
        named = dict(zip(args, self._texts(list(args.values())), strict=True)) if isinstance(args, Mapping) else {}
        following = iter(self._texts(args) if isinstance(args, tuple) else ())

        def put(conversion: re.Match[str]) -> str:
            percent, name = conversion.groups()
            return percent or (named.get(name, HIDDEN) if name is not None else next(following, HIDDEN))

        for piece in text:
            yield HIDDEN if piece is None else _CONVERSION.sub(put, piece) if args else piece

    def _texts(self, values: Sequence[object]) -> list[str]:
        texts = [self._argument(value) for value in values]
        for at, (host, port) in enumerate(pairwise(values)):
            if type(host) is str and type(port) in (int, str) and f"{host}:{port}" in self._shown:
                texts[at : at + 2] = host, str(port)
        return texts

    def _argument(self, value: object) -> str:
        """Only of exact types, whose methods are no library's: what is compared is then what is shown."""
        if isinstance(value, BaseException):
            return class_name(type(value))
        if isinstance(value, type) and issubclass(value, BaseException):
            return class_name(value)
        return value if type(value) is str and value in self._shown else HIDDEN


def class_name(kind: type[BaseException]) -> str:
    """The name of a class of exceptions, or of the nearest one above it that its module has under its name.

    >>> class_name(KeyError), class_name(type("GJ05ZZ0001", (KeyError,), {}))
    ('KeyError', 'KeyError')
    """
    return next(one.__qualname__.rpartition(".")[2] for one in kind.__mro__ if _stands_in_its_module(one))


def _stands_in_its_module(kind: type) -> bool:
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def fault(error: BaseException) -> str:
    """An error by its class and where it arose, innermost first; never by its text, which may quote a ping.

    >>> fault(KeyError("GJ05ZZ0001"))
    'KeyError at '
    """
    return f"{class_name(type(error))} at {places(error.__traceback__)}"


def trouble_of(error: OSError) -> str:
    """The file, and what the system says of it: libraries raise such errors, too, with texts of their own.

    >>> trouble_of(PermissionError(13, "text of a library", "city.ledger")), trouble_of(OSError("text of a library"))
    ('city.ledger: Permission denied', 'a file: OSError')
    """
    known = error.errno is not None and error.errno in errno.errorcode
    why = os.strerror(error.errno or 0) if known else class_name(type(error))
    return f"{error.filename or 'a file'}: {why}"


def places(trace: TracebackType | None) -> str:
    """The innermost places of a traceback, as `file:line < file:line`."""
    found = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
        found.append(f"{name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(found[-FRAMES:]))


def python_warning(kind: type[Warning], path: str, line: int) -> str:
    """A warning of Python by its class and where it arose."""
    return f"a warning of Python: {class_name(kind)}{_place(path, line).removeprefix(HIDDEN)}"


def _library(caller: FrameType | None) -> str:
    """The name of the module that logs. Not that of its logger: a logger may be named after anything."""
    name = None if caller is None else caller.f_globals.get("__name__")
    return name if isinstance(name, str) and name in sys.modules else "a library"


def text_of(record: logging.LogRecord) -> Text:
    """The text that the source has for this record's message. To be called within the call that logs."""
    caller = _caller()
    if caller is None or not isinstance(record.msg, str):
        return NOT_FIXED
    texts = _source_of(caller.f_code.co_filename).texts_at(caller.f_lineno)
    return next((text for text in texts if _fits(text, record.msg)), NOT_FIXED)


def _caller() -> FrameType | None:
    """Who logs: the innermost function on the stack that is neither of `logging` nor of Faust's loggers around it."""
    around = getattr(sys.modules.get("mode.utils.logging"), "__file__", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _LOGGING:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename in (_LOGGING, around):
        frame = frame.f_back
    return frame


def _place(path: str, line: int) -> str:
    function = _source_of(path).function_at(line)
    return f"{HIDDEN} in {function}" if function else HIDDEN


def _fits(text: Text, message: str) -> bool:
    """Whether the message has all pieces in order, with nothing behind a last one. A prefix may stand before: Faust's
    loggers put one there. What does not fit is of another version of the file than runs.

    >>> _fits(("no ", None), "[^Worker]: no place"), _fits(("no ", None), "nothing"), _fits(("no",), "no place")
    (True, False, False)
    """
    at = 0
    for piece in filter(None, text):
        at = message.find(piece, at) + len(piece)
        if at < len(piece):
            return False
    last = text[-1]
    return any(text) and (last is None or message.endswith(last))


@dataclass(frozen=True, slots=True)
class _Source:
    """What a source file has: (first line, last line, text) of its calls that log, and (first line, last line, name) of
    its functions."""

    calls: tuple[tuple[int, int, Text], ...] = ()
    functions: tuple[tuple[int, int, str], ...] = ()

    def texts_at(self, line: int) -> list[Text]:
        """Of the outer calls first."""
        return [text for first, last, text in self.calls if first <= line <= last]

    def function_at(self, line: int) -> str | None:
        """The innermost one."""
        around = [(first, name) for first, last, name in self.functions if first <= line <= last]
        return max(around)[1] if around else None


@lru_cache(maxsize=256)
def _source_of(path: str) -> _Source:
    """Of a file that cannot be read, nothing."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return _Source()
    named = {
        target.id: _pieces(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls, functions = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            for argument in node.args[node.func.attr == "log" :][:1]:
                calls.append((node.lineno, node.end_lineno or node.lineno, _pieces(argument, named)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.lineno, node.end_lineno or node.lineno, node.name))
    return _Source(tuple(calls), tuple(functions))


def _pieces(node: ast.expr, named: Mapping[str, Text]) -> Text:
    """What of an expression is written in the source: texts, f-strings, sums, `%`, `format`, and constants by name.

    >>> _pieces(ast.parse("'no ' + f'place for {plate}' + ' here'", mode="eval").body, {})
    ('no ', 'place for ', None, ' here')
    >>> _pieces(ast.parse("'%s of {}'.format(plate)", mode="eval").body, {})
    ('%s of ', None, '')
    """
    match node:
        case ast.Constant(value=str(text)):
            return (text,)
        case ast.JoinedStr(values=values):
            return tuple(piece for value in values for piece in _pieces(value, named)) or NOT_FIXED
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _pieces(left, named) + _pieces(right, named)
        case ast.BinOp(op=ast.Mod(), left=left):
            return tuple(_without(_CONVERSION, _pieces(left, named)))
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            return tuple(_without(_FIELD, _pieces(template, named)))
        case ast.Name(id=name):
            return named.get(name, NOT_FIXED)
        case _:
            return NOT_FIXED


def _without(fields: re.Pattern[str], text: Text) -> Iterator[str | None]:
    for piece in text:
        at = 0
        for field in fields.finditer(piece or ""):
            doubled = field[0] in ("%%", "{{", "}}")
            yield (piece or "")[at : field.start() + doubled]
            at = field.end()
            if not doubled:
                yield None
        yield None if piece is None else piece[at:]
