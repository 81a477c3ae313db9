"""The log of a process: our sentences, and of libraries nothing that could be of a ping."""

import io
import json
import logging
import subprocess
import sys
import threading
import warnings

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mode.utils.logging import CompositeLogger

from streams.worker import as_own_error
from tests.forms import PURE_ENV
from udp_stream.base import logs
from udp_stream.base.logs import QUIET_S, Outage, begin_log, end_log, log_message
from udp_stream.embedded.runtime import LiveRuntime, Outputs, RunLogger
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy
from udp_stream.windows.clocks import SteadyClock

PLATES = st.one_of(
    st.text(min_size=1, max_size=9),
    st.sampled_from(["%s", "%(one)s", "{}", "100%", "a\nb", '"', "Topic %s not found"]),
)
SPEEDS = st.one_of(st.floats(allow_nan=True), st.integers(-(10**7), 10**7))


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


def shown(write):
    """What both kinds of log write of it, but for the time."""
    entries = [json.loads(line) for line in lines_of(write, as_json=True)]
    assert all(entry.pop("time") for entry in entries)
    return lines_of(write, as_json=False), entries


def quoting(plate, speed):
    """An error whose text, arguments, notes and cause quote a ping."""
    try:
        try:
            raise KeyError(plate)
        except KeyError as cause:
            raise ValueError(f"speed {speed} of {plate!r}", plate, speed) from cause
    except ValueError as error:
        error.add_note(f"of {plate}")
        return error


def write_in_every_way(plate, speed):
    """What a library may do with a ping: once each."""
    log, error = logging.getLogger("a.library"), quoting(plate, speed)
    log.warning("plate %s at %s", plate, speed)
    log.warning("plate %(plate)s", {"plate": plate, "error": error})
    log.error(f"no place for {plate}")
    log.warning(plate)
    log.error(error)
    log.error("it failed: %r", error)
    log.error("it failed", exc_info=error)
    log.error(
        "it failed",
        extra={"plate": plate, "event": plate, "figures": {plate: speed}},
        stack_info=True,
    )
    CompositeLogger(
        log, formatter=lambda _level, message, *_args, **_kwargs: f"{plate}: {message}"
    ).error("of Faust")


@given(PLATES, SPEEDS)
def test_a_library_s_lines_are_the_same_whatever_the_plate_and_the_speed(plate, speed):
    lines, entries = shown(lambda: write_in_every_way(plate, speed))
    assert (lines, entries) == shown(lambda: write_in_every_way("GJ05ZZ0001", 31.5))
    assert {entry["event"] for entry in entries} == {"library"} and len(lines) == 9


def test_a_library_s_line_has_logger_level_place_and_exception():
    def write():
        logging.getLogger("a.library").error(
            "no place for %s", "GJ05ZZ0001", exc_info=quoting("GJ05ZZ0001", 3)
        )

    (line,) = lines_of(write, as_json=False)
    head, _, at = line.partition(", ")
    assert head.startswith("udp-stream: a.library:")
    assert at.startswith("ValueError at test_logs.py:")


def test_an_outage_of_kafka_is_one_line_and_its_end_another(limits):
    now = [0.0]
    broker = Outage(
        "a Kafka broker does not answer",
        "Kafka answers again",
        quiet_s=QUIET_S,
        clock=lambda: now[0],
    )
    limits(logs, BROKER=broker)

    def write():
        for now[0] in range(60):
            logging.getLogger("kafka.cluster").error(
                "Metadata refresh: failed %s", quoting("GJ05ZZ0001", 3)
            )
            logging.getLogger("kafka.net.transport").error("%s: socket disconnected", "GJ05ZZ0001")
            logging.getLogger("aiokafka.client").error(
                "Unable connect to node with id %s: %s", 1, "GJ05ZZ0001"
            )
            logging.getLogger("aiokafka.consumer.group_coordinator").exception("of the group")
            logging.getLogger("faust.app").warning("of Faust")
            broker.back()  # one of three brokers answers
        logging.getLogger("a.library").warning("of no client")
        now[0] = 80.0
        broker.back()
        broker.back()
        logging.getLogger("faust.app").warning("of Faust, later")

    begun, other, ended, later = lines_of(write, as_json=False)
    assert (
        "a Kafka broker does not answer" in begun and "a.library" in other and "faust.app" in later
    )
    assert ended == "udp-stream: Kafka answers again, after 80 s"


def test_an_outage_that_lasts_is_said_again():
    now = [0.0]
    outage = Outage("gone", "there", clock=lambda: now[0])

    def write():
        for now[0] in range(0, 3600, 10):
            outage.away()
        now[0] = 3600.0
        outage.back()

    entries = [json.loads(line) for line in lines_of(write, as_json=True)]
    assert [entry["level"] for entry in entries] == ["warning"] * 4 + ["info"]
    assert {entry["event"] for entry in entries} == {"outage"} and entries[-1]["seconds"] == 3600.0


class Unreadable:
    def __str__(self):
        raise KeyError("GJ05ZZ0001")

    __repr__ = __str__


def test_a_message_that_fails_at_being_looked_at_stops_nothing():
    lines = lines_of(
        lambda: logging.getLogger("a.library").warning(Unreadable(), Unreadable()), as_json=False
    )
    assert len(lines) == 1 and "GJ05" not in lines[0]


class RefusingLedger:
    """A real ledger whose library quotes what it is given, and fails at the second slot."""

    def __init__(self, ledger):
        self._ledger = ledger
        self.quoted = []

    def __getattr__(self, name):
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def call(*args, **kwargs):
            self.quoted.append(name)
            logging.getLogger("redis").warning("%s of %r %r", name, args, kwargs)
            try:
                return found(*args, **kwargs)
            finally:
                if self.quoted.count("admit") > 1:
                    raise KeyError(args)

        return call


HOSTILE = [
    "ZQXPLATE1",
    "%(ZQXPLATE)s",
    "{ZQXPLATE!r}",
    "ZQXPLATE\n4",
    "udp-stream: ZQXPLATE",
    "ZQXPLATE पलट",
]


def test_a_real_run_with_hostile_plates_leaves_nothing_of_them_in_its_log(tmp_path):
    settings = load(
        None, ("release.min_plates=1", "hat.timezone=UTC", "hat.slot=1h", "hat.grace=1m"), PURE_ENV
    )
    begins, now = 1_704_700_800, [1_704_700_800.0]
    point = {"type": "Point", "coordinates": [72.8312, 21.1702]}
    log = RunLogger(settings.calendar.slots, settings.policy.grace_ms)
    said, out = io.StringIO(), []
    begin_log(said, as_json=False)
    opened = ledger_and_keys(LedgerSection(url=f"{tmp_path}/ledger"))
    with opened as (ledger, keys), Journal(tmp_path / "journal", "the ledger") as journal:
        refusing = RefusingLedger(ledger)
        runtime = LiveRuntime(
            settings, refusing, SeededEntropy(1), keys.hash_plate, "test", journal, Outputs(out.extend),
            [log.observe], SteadyClock(*[lambda: now[0]] * 2),
        )  # fmt: skip
        runtime.start()
        with pytest.raises(KeyError) as failed:
            for minute in range(0, 240, 5):
                now[0] = begins + 60 * minute
                at = f"2024-01-08T{8 + minute // 60:02}:{minute % 60:02}:00+00:00"
                pings = [{"license_plate": plate, "observationDateTime": at, "location": point, "speed": speed}
                         for plate in HOSTILE for speed in (31.0, "ZQXPLATE")]  # fmt: skip
                runtime.take(
                    [msgspec.json.encode(ping) for ping in pings] + [b'{"license_plate": "ZQXPLATE']
                )
                log.log_due()
        log_message(str(as_own_error(failed.value)))
    text = said.getvalue()
    assert refusing.quoted and out and "warning at test_logs.py" in text
    assert "KeyError at test_logs.py:" in text and "pings" in text
    assert "ZQX" not in text and "PLATE" not in text and "72.83" not in text


def fail():
    raise ValueError("GJ05ZZ0001")


class FailingAtItsEnd:
    def __del__(self):
        fail()


def test_warnings_and_errors_in_threads_are_written_without_their_texts(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)

    def write():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        failing = FailingAtItsEnd()
        del failing
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("GJ05ZZ0001", RuntimeWarning, stacklevel=1)

    lines = lines_of(write, as_json=False)
    assert (
        len(lines) == 3
        and all("test_logs.py:" in line for line in lines)
        and "GJ05" not in "".join(lines)
    )
    assert (
        threading.excepthook is threading.__excepthook__
        and sys.unraisablehook is sys.__unraisablehook__
    )


@given(PLATES, SPEEDS)
def test_an_error_of_ours_by_mistake_is_said_without_its_text(plate, speed):
    assert str(as_own_error(quoting(plate, speed))) == str(
        as_own_error(quoting("GJ05ZZ0001", 31.5))
    )


MISTAKE = """
import sys
from udp_stream import settings; from udp_stream.cli import main
def fail(*given, **options):
    raise {error}
settings.load = fail
sys.exit(main.main(["config"]))
"""


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("KeyError('GJ05ZZ0001')", 1, "<string>:5 < main.py"),
        ("OSError('GJ05ZZ0001')", 4, "a file: OSError"),
        ("OSError(28, 'GJ05ZZ0001', 'out.ndjson')", 4, "out.ndjson:"),
    ],
)
def test_a_verb_that_fails_by_mistake_says_so_without_the_error_s_text(error, status, said):
    program = [sys.executable, "-c", MISTAKE.format(error=error)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == status and said in done.stderr
    assert "GJ05" not in done.stderr and "Traceback" not in done.stderr
