"""What libraries log is shown without anything that could be of a ping: whatever a plate looks like.

The strongest form of it: what is shown is the same, whichever plate and speed are in the record. So a plate that is a
word of a library, or of its message, is not told from any other.
"""

import ast
import io
import json
import logging
import re
import string
import subprocess
import sys
import threading
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mode.utils.logging import CompositeLogger

from streams.stopping import ours
from udp_stream.adapters import logs, scrubber
from udp_stream.adapters.logs import begin_log, end_log, say
from udp_stream.cli import main as cli

LIBRARIES = "aiokafka", "asyncio", "concurrent", "faust", "kafka", "mode", "pika", "redis", "urllib3"

WORDS = "topic", "SURATBUS", "Error sending", "error", "ABCDEF", "logging", "Heartbeat failed: ", "bus.pings", "None"
"""Plates that look like what libraries say."""

PLATES = st.one_of(
    st.text(string.ascii_letters, min_size=2, max_size=9),
    st.text(string.digits, min_size=1, max_size=7),
    st.text(string.ascii_uppercase + string.digits + " -", min_size=2, max_size=12),
    st.text(min_size=1, max_size=9),
    st.sampled_from(["ÅÄÖ 12", "पलट", "川崎 100", "%s", "%(one)s", "{}", "100%", "a\nb", '"', *WORDS]),
)
SPEEDS = st.one_of(st.sampled_from([31.5, 47, 0, 1, -1]), st.floats(allow_nan=True), st.integers(-(10**7), 10**7))


@pytest.fixture(autouse=True)
def _no_log_is_left():
    yield
    end_log()


def lines_of(write, **options):
    stream = io.StringIO()
    begin_log(stream, **options)
    try:
        write()
    finally:
        end_log()
    return stream.getvalue().splitlines()


def shown(write, **options):
    """What both kinds of log show of it; but for the time."""
    entries = [json.loads(line) for line in lines_of(write, as_json=True, **options)]
    assert all(entry.pop("time") for entry in entries)
    return lines_of(write, as_json=False, **options), entries


def quoting(plate, speed):
    """An error whose text, notes and causes quote a ping."""
    try:
        try:
            raise KeyError(plate)
        except KeyError as cause:
            raise ValueError(f"speed {speed} of {plate!r}", plate, speed) from cause
    except ValueError as error:
        error.add_note(f"of {plate}")
        return error


def forms(plate, speed):
    """A ping as libraries may hold it."""
    ping = {"license_plate": plate, "speed": speed}
    return [
        plate, plate.encode("utf-8", "replace"), speed, str(speed), ping, json.dumps(ping, indent=1), [plate, speed],
        (plate,), {plate}, quoting(plate, speed), SimpleNamespace(plate=plate), type(plate.replace("\0", ""), (), {}),
        type("".join(filter(str.isalnum, plate)) or "x", (OSError,), {})(plate), Named(plate), repr(plate), -1,
    ]  # fmt: skip


class Named(str):
    """A text of another type, which says of itself that it equals everything."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        return True


FORMS = range(16)


def every_road(log, plate, speed, which=FORMS):
    """Each way in which a library may give a ping, in these forms, to `logging`."""
    error = quoting(plate, speed)
    for value in map(forms(plate, speed).__getitem__, which):
        log.error("no place for %s", value)
        log.error("no place for %r of %5d, %.2f%% at %x", value, speed, speed, speed)
        log.error("%s", value)
        log.error("%(one)s and %(other)r", {"one": value, "other": plate, plate: 1})
        log.error("too many", value)
        log.error("too few %s %s %s", value)
        log.error(f"found {value}")
        log.error(f"{value} was refused")
        log.error(f"found {value}: %s", value)
        log.error("cannot read " + str(value))
        log.error("cannot parse %s" % (value,))  # noqa: UP031 (as libraries do)
        log.error("cannot read {} of {{}}".format(value))  # noqa: UP032
        log.error(value)
        log.error(str(value))
        log.error(str(value), value)
        log.log(logging.ERROR, "of level %s", value)
        log.log(50 + len(plate), "of another level")
    log.error("with a traceback", exc_info=error)
    log.error("with a stack", stack_info=True)
    log.error("with fields", extra={"event": plate, "figures": {plate: speed}, "plate": plate})
    for method in ("error", "warning", "critical", "exception"):
        getattr(log, method)("as %s", plate)
    try:
        raise error
    except ValueError:
        log.exception("with %s", plate)
    CompositeLogger(log, formatter=lambda _level, text, *_args, **_named: f"[{plate}]: {text}").error("for %s", plate)
    log.getChild(plate).error("of a logger of its name")
    logging.getLogger(plate).error("of a logger of its name alone")
    logging.getLogger("udp-stream").error("as if it were of ours: %s", plate, extra={"event": plate})
    log.handle(logging.LogRecord(plate, logging.ERROR, plate, 1, plate, (), None, plate, plate))
    warnings.showwarning(UserWarning(plate), UserWarning, plate, 1)
    warnings.showwarning(plate, UserWarning, __file__, 1)


@given(PLATES, PLATES, SPEEDS, SPEEDS, st.sampled_from(FORMS))
@example("topic", "SURATBUS", 1, 31.5, 0)
@example("ABCDEF", "1234", 31.5, 1234, 9)
@example("Error sending", "QQ", 0, 1, 0)
def test_what_is_shown_is_the_same_whatever_the_plate_and_the_speed(one, other, speed, other_speed, form):
    log = logging.getLogger("logging")
    found, entries = shown(lambda: every_road(log, one, speed, [form]))
    assert (found, entries) == shown(lambda: every_road(log, other, other_speed, [form]))
    assert len(found) > 20 and len(found) == len(entries)


def test_what_is_shown_of_each_road():
    """Which says that the test above would not pass on an empty log."""
    assert len(forms("GJ05ZZ0001", 47.25)) == len(FORMS)
    found, entries = shown(lambda: every_road(logging.getLogger("logging"), "GJ05ZZ0001", 47.25))
    for line in (
        f"{__name__}: no place for ...",
        f"{__name__}: no place for ... of ..., ...% at ...",
        f"{__name__}: ... in every_road",
        f"{__name__}: no place for ValueError",
        f"{__name__}: no place for OSError",
        f"{__name__}: ... and ...",
        f"{__name__}: too few ... ... ...",
        f"{__name__}: found ...",
        f"{__name__}: ... was refused",
        f"{__name__}: found ...: ...",
        f"{__name__}: cannot read ...",
        f"{__name__}: cannot parse ...",
        f"{__name__}: cannot read ... of {{}}",
        f"{__name__}: ... in every_road: ValueError",
        f"{__name__}: with a traceback: ValueError",
        f"{__name__}: with a stack",
        f"{__name__}: with fields",
        f"{__name__}: with ...: ValueError",
        f"{__name__}: for ...",
        f"{__name__}: of a logger of its name alone",
        f"{__name__}: as if it were of ours: ...",
        "a warning of Python: UserWarning",
    ):
        assert f"udp-stream: {line}" in found
    assert {tuple(entry) for entry in entries} == {("level", "event", "message")}
    assert {entry["event"] for entry in entries} == {"library"}
    assert {entry["level"] for entry in entries} == {"error", "warning"}
    assert not re.search("GJ05|ZZ0001|47|GJ", "".join(found) + json.dumps(entries))


@cache
def library_calls():
    """The calls by which the installed libraries log, as their sources have them: (file, call)."""
    found = []
    for library in LIBRARIES:
        folders = (Path(folder) / library for folder in sys.path)  # imported it is not: Faust hides where it is from
        for path in sorted(next(one for one in folders if (one / "__init__.py").exists()).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if re.search(r"\blog", source, re.IGNORECASE):
                found += [(str(path), node) for node in ast.walk(ast.parse(source)) if _logs(node)]
    return found


def _logs(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in scrubber.METHODS
        and re.search(r"\blog|_log|LOG", ast.unparse(node.func.value)) is not None
        and len(node.args) > (node.func.attr == "log")
        and not any(isinstance(one, ast.Starred) for one in node.args)
    )


class WithValues(ast.NodeTransformer):
    """A library's call with values of ours wherever it has some of its own: in its text, and behind it."""

    def __init__(self):
        self.values = 0

    def value(self, node):
        self.values += 1
        return ast.copy_location(ast.Name(f"value_{self.values}", ast.Load()), node)

    def text(self, node):
        match node:
            case ast.Constant():
                return node
            case ast.JoinedStr(values=pieces):
                pieces = [
                    piece if isinstance(piece, ast.Constant)
                    else ast.copy_location(ast.FormattedValue(self.value(piece), -1), piece)
                    for piece in pieces
                ]  # fmt: skip
                return ast.copy_location(ast.JoinedStr(pieces), node)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return ast.copy_location(ast.BinOp(self.summand(left), ast.Add(), self.summand(right)), node)
            case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="format") as method, args=args):
                return ast.copy_location(ast.Call(method, [self.value(one) for one in args], []), node)
            case _:
                return self.value(node)

    def summand(self, node):
        text = self.text(node)
        return ast.Call(ast.Name("str", ast.Load()), [text], []) if isinstance(text, ast.Name) else text

    def of(self, call):
        """As a statement of the same lines, with the error level."""
        args = call.args[call.func.attr == "log" :]
        args = [self.text(args[0]), *map(self.value, args[1:])]
        func = ast.copy_location(
            ast.Attribute(ast.copy_location(ast.Name("the_log", ast.Load()), call.func), "error"), call.func
        )
        func.ctx = ast.Load()
        return ast.copy_location(ast.Expr(ast.copy_location(ast.Call(func, args, []), call)), call)


def with_values(path, call):
    """What does as this library's call does, and how many values it takes."""
    change = WithValues()
    module = ast.fix_missing_locations(ast.Module([change.of(call)], []))
    return compile(module, path, "exec"), change.values


def logged(code, name, values):
    return lambda: exec(code, {"the_log": logging.getLogger(name), "__name__": name} | values)


def as_values(count, plate, speed, first=0):
    """Its forms in turn, beginning with this one."""
    found = forms(plate, speed)
    return {f"value_{at + 1}": found[(first + at) % len(found)] for at in range(count)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_message_of_the_installed_libraries_is_shown_alike_for_all_plates(library):
    """From their own files and lines, so that the texts are found as they are in a deployment."""
    calls = [(path, call) for path, call in library_calls() if f"/{library}/" in path]
    assert len(calls) > 5
    with_words = 0
    for number, (path, call) in enumerate(calls):
        code, count = with_values(path, call)
        plates = ("ABCDEF", 31.5), (WORDS[number % len(WORDS)], number), ("12345", 0), ("%s \n", 1.5)
        found = [shown(logged(code, "logging", as_values(count, *one, number)), shown=["a.topic"]) for one in plates]
        assert found == found[:1] * len(found)
        with_words += not re.fullmatch(r"udp-stream: logging: \.\.\.( in \w+)?(: \w+)?", "".join(found[0][0]))
    assert with_words >= 2 / 3 * len(calls)  # an operator reads what happened: most texts stand in the source


@given(st.data(), PLATES, PLATES, SPEEDS, st.sampled_from(FORMS))
def test_messages_of_the_installed_libraries_are_shown_alike_for_any_plate(data, one, other, speed, form):
    path, call = data.draw(st.sampled_from(library_calls()))
    code, count = with_values(path, call)
    assert shown(logged(code, "logging", as_values(count, one, speed, form))) == shown(
        logged(code, "logging", as_values(count, other, -speed, form))
    )


def test_what_the_configuration_names_is_shown():
    """An operator sees which broker, which topic, and which kind of error."""

    def write():
        log = logging.getLogger("aiokafka")
        log.error('Unable connect to "%s:%s": %s', "kafka-2.example", 9092, OSError("secret"))
        log.error('Cannot reach "%s:%s": %s', "kafka-3.example", 9092, ConnectionRefusedError)
        log.warning("Topic %s not found in cluster metadata", "bus.parts.v1")
        log.warning("Topic %s not found in cluster metadata", "GJ05ZZ0001")
        log.warning("Heard of %s by group %s", "bus.parts.v1", "surat")

    brokers = "kafka-1.example:9092, kafka-2.example:9092"
    assert lines_of(write, as_json=False, shown=["bus.parts.v1", "surat", brokers]) == [
        f'udp-stream: {__name__}: Unable connect to "kafka-2.example:9092": OSError',
        f'udp-stream: {__name__}: Cannot reach "...:...": ConnectionRefusedError',
        "udp-stream: a topic is not there (bus.parts.v1); `udp-stream topics create` makes it",
        "udp-stream: a topic is not there; `udp-stream topics create` makes it",
        f"udp-stream: {__name__}: Heard of bus.parts.v1 by group surat",
    ]


def test_an_argument_that_fails_at_being_looked_at_stops_nothing():
    class Odd(str):
        __slots__ = ()

        def find(self, *_):
            raise KeyError(self)

        startswith = endswith = __str__ = __repr__ = find

    def write():
        logging.getLogger("logging").error(Odd("GJ05ZZ0001"))
        logging.getLogger("logging").error("no place for %s", Odd("GJ05ZZ0001"))

    assert lines_of(write, as_json=False) == [
        "udp-stream: a library: a message that cannot be read",
        f"udp-stream: {__name__}: no place for ...",
    ]


def test_a_message_from_a_file_that_is_not_there_is_not_shown():
    code = compile("log.error('ABCDEF %s', 'ABCDEF')\nlog.error(plate)", "/nowhere/ABCDEF.py", "exec")

    def write():
        exec(code, {"log": logging.getLogger("logging"), "plate": "ABCDEF"})

    assert lines_of(write, as_json=False) == ["udp-stream: a library: ..."]


def test_of_a_file_that_was_replaced_since_no_wrong_text_is_shown(tmp_path):
    path = tmp_path / "library.py"
    path.write_text("log.error('of the new version')\n", encoding="utf-8")
    code = compile("log.error('of the old version')", str(path), "exec")
    assert lines_of(lambda: exec(code, {"log": logging.getLogger("logging")}), as_json=False) == [
        "udp-stream: a library: ..."
    ]


def test_warnings_and_errors_in_threads_are_shown_without_their_texts(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)

    class Failing:
        def __del__(self):
            raise KeyError("GJ05ZZ0001")

    def write():
        def fail():
            raise ValueError("GJ05ZZ0001")

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        failing = Failing()
        del failing
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("GJ05ZZ0001", RuntimeWarning, stacklevel=1)

    lines = lines_of(write, as_json=False)
    assert [re.sub(r"Error at .*", "Error at ...", line) for line in lines] == [
        "udp-stream: a thread has ended: ValueError at ...",
        "udp-stream: an error that nothing could take: KeyError at ...",
        "udp-stream: a warning of Python: RuntimeWarning in write",
    ]
    assert threading.excepthook is threading.__excepthook__ and sys.unraisablehook is sys.__unraisablehook__
    assert warnings.showwarning.__module__ == "warnings"


@given(PLATES)
def test_an_error_of_ours_by_mistake_is_said_without_its_text(plate):
    """By the command line and by a worker."""
    assume(plate not in str(ours(quoting("", 0))))
    assert plate not in str(ours(quoting(plate, 0)))


MISTAKE = """
import sys
from udp_stream.cli import main
def fail(arguments, *rest):
    raise {error}
main._perform = fail
sys.exit(main.main(["config", "show"]))
"""


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("KeyError('GJ05ZZ0001')", 1, "a fault of this program: KeyError at <string>:6 < main.py:"),
        ("OSError('GJ05ZZ0001')", 4, "a file: OSError"),
        ("OSError(28, 'GJ05ZZ0001', 'out.ndjson')", 4, "out.ndjson: No space left on device"),
    ],
)
def test_a_verb_that_fails_by_mistake_says_so_without_the_error_s_text(error, status, said):
    program = [sys.executable, "-c", MISTAKE.format(error=error)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == status and done.stderr.startswith(f"udp-stream: {said}")
    assert "GJ05" not in done.stderr and "Traceback" not in done.stderr


def test_libraries_are_scrubbed_in_every_verb(monkeypatch, capsys):
    """Without a log of its own a verb would leave it to Python to print their warnings, arguments and all."""

    def perform(_arguments):
        logging.getLogger("logging").warning("no place for %s", "ABCDEF")
        say("done")

    monkeypatch.setattr(cli, "_perform", perform)
    assert cli.main(["config", "show"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"udp-stream: {__name__}: no place for ...", "udp-stream: done"]


def test_while_only_errors_are_said_libraries_warn_in_vain():
    def write():
        logging.getLogger("logging").warning("of a warning")
        logging.getLogger("logging").error("of an error")
        logging.getLogger("aiokafka").error("Heartbeat failed: local member_id was not recognized")
        warnings.showwarning("of Python", UserWarning, __file__, 1)

    logs.say_errors_only(True)
    try:
        assert lines_of(write, as_json=False) == [f"udp-stream: {__name__}: of an error"]
    finally:
        logs.say_errors_only(False)
