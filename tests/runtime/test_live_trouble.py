"""`run` of an address in trouble: a warning, again while it lasts, and a line with how long it took
once it is over."""

import errno
import json
import os
import resource
import signal
import sqlite3
import time
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.gtfs import snapshot, vehicle
from tests.http_server import GTFS, ok, serving, status
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.base.files import draft_of
from udp_stream.base.logs import LOG_AGAIN_S, MAKE_ROOM, WarningText
from udp_stream.cli.preflight import LiveFeedCheck
from udp_stream.ledgers.sqlite import usable
from udp_stream.settings import load
from udp_stream.settings.limits import DURATIONS
from udp_stream.sources.live import LONGEST_S, Retries, SourceFailure

FLAGS = ("--set", "live.every=0.05s", "--set", "live.timeout=2s", "--set", "speed.unit=mps")


@pytest.fixture(autouse=True)
def fast(registered):
    """Polls follow each other at once."""
    registered(DURATIONS, "live.every", ("0.01s", "1d"))


def pings(second, age_s=0):
    """An answer with one bus, whose ping is as old."""
    moment = datetime.fromtimestamp(int(time.time()) - age_s - second, UTC).isoformat()
    place = {"type": "Point", "coordinates": [72.5, 21.25]}
    ping = {"license_plate": "A1", "observationDateTime": moment, "location": place, "speed": 5}
    return ok(json.dumps([ping]).encode())


def last(request):
    """The answer after which the run is asked to end."""
    pings(0)(request)
    os.kill(os.getpid(), signal.SIGTERM)


def lines(script, folder, *flags, path="", begin=True):
    """What a run says that reads these answers, in order; then it is stopped."""
    steps = [pings(9)] * begin + list(script) + [pings(1), pings(1), last]
    with serving(*steps) as running:
        words = ("run", running.url + path, "--ledger", "l", "--out", "out", *FLAGS, *flags)
        done = run_verb(words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


def of_level(said, level, *events):
    return [one["message"] for one in said if one["level"] == level and one["event"] in events]


def feed_of(**what):
    return ok(snapshot(*[vehicle(**what)] * 3), GTFS)


FAULTS = {
    "401": (status(401), "answers 401: it asks for a token (live.token_file)", "works again"),
    "403": (status(403), "answers 403: it asks for a token (live.token_file)", "works again"),
    "404": (status(404), "answers 404: nothing is there", "works again"),
    "429": (status(429, Retry_After="0"), "answers 429: it was asked too often", "works again"),
    "500": (status(500), "answers 500", "works again"),
    "a page": (ok(b"<html><p>", "text/html"), "a page for people (HTML)", "works again"),
    "no vehicles": (ok(b"[]"), "nothing and no vehicle", "vehicles again"),
    "no answer": (
        lambda request: request.respond(204, b"", {}),
        "nothing and no vehicle",
        "vehicles again",
    ),
    "an error as JSON": (
        ok(b'[{"error": "key"}]'),
        "what is refused and no vehicle",
        "vehicles again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_a_warning_while_it_lasts_and_then_its_end(fault, tmp_path, limits):
    step, words, end = FAULTS[fault]
    limits("udp_stream.base.logs", LOG_AGAIN_S=0.1)
    limits("udp_stream.sources.live", LONGEST_S=0.0)  # each pause is that of the polls
    said = lines([step] * 8, tmp_path)
    warned = [one for one in of_level(said, "warning", "source") if words in one]
    assert 2 <= len(warned) < 8 and all("http://127.0.0.1" in one for one in warned), said
    over = [one for one in of_level(said, "info", "source") if end in one]
    assert (
        len(over) == 1
        and "after" in over[0]
        and over[0].split("without")[0].rstrip().endswith(" s")
    )
    assert not [one for one in of_level(said, "info", "source") if words in one]


@pytest.mark.parametrize(
    ("what", "words"), [("alert", "3 alerts"), ("trip_update", "3 trip updates")]
)
def test_a_feed_of_something_else_is_named(what, words, tmp_path):
    said = lines([feed_of(**{what: True})] * 3, tmp_path, begin=False)
    (warned,) = of_level(said, "warning", "source")
    assert words in warned and "no vehicle" in warned and "vehicle positions" in warned
    assert len([one for one in of_level(said, "info", "source") if "vehicles again" in one]) == 1


@pytest.mark.parametrize("age_s", [700, 10**6])
def test_pings_that_are_stale_are_a_warning_and_fresh_pings_are_its_end(age_s, tmp_path):
    said = lines([pings(at, age_s) for at in range(3)], tmp_path, begin=False)
    (warned,) = of_level(said, "warning", "stale")
    assert "live.max_age is 10m" in warned
    (over,) = of_level(said, "info", "fresh")
    assert "after" in over and not of_level(said, "warning", "fresh")


class Hands:
    """A clock, and what was said when."""

    def __init__(self):
        self.now_s, self.said = 1.7e9, []

    def clock(self):
        return self.now_s

    def log_message(self, sentence):
        self.said.append((self.now_s - 1.7e9, isinstance(sentence, WarningText), sentence))


def test_trouble_is_said_again_every_15_minutes_and_another_kind_at_once():
    here = Hands()
    retries = Retries("http://host/", 10.0, here.log_message, here.clock, lambda: 0.0)
    retries.worked()
    for minute in range(61):
        here.now_s = 1.7e9 + 60 * minute
        retries.failed(
            SourceFailure(
                "answers 404" if minute % 2 == 0 or minute == 7 else "answers 500", is_final=True
            )
        )
    here.now_s += 30
    retries.worked()
    times = {
        words: [at for at, is_warned, one in here.said if is_warned and words in one]
        for words in ("404", "500")
    }
    assert LOG_AGAIN_S == 900 and times == {
        "404": [0, 960, 1920, 2880],
        "500": [60, 960 + 60, 1980, 2940],
    }
    assert here.said[-1][1:] == (False, "http://host/ works again, after 61 failures in 60 min")


@pytest.mark.parametrize(
    ("asked_s", "pauses_s"), [(2.0, 10.0), (240.0, 240.0), (300.0, 300.0), (86_400.0, 300.0)]
)
def test_a_server_is_left_alone_as_long_as_it_asks_but_five_minutes_at_most(asked_s, pauses_s):
    here = Hands()
    retries = Retries("http://host/", 10.0, here.log_message, here.clock, lambda: 1.0)
    failure = SourceFailure("answers 429", wait_s=asked_s)
    pauses = [retries.failed(failure) for _ in range(6)]
    assert pauses[0] == pauses_s and pauses[-1] == max(pauses_s, LONGEST_S)


def test_a_feed_that_stands_still_is_said_every_15_minutes_and_so_is_its_end():
    here, found = Hands(), []
    clocks = {"clock": here.clock, "steady": here.clock}
    look = LiveFeedCheck(
        "http://host/", load(None, (), {}), lambda *words: found.append(words), **clocks
    )

    def ping(time_s):
        moment = datetime.fromtimestamp(time_s, UTC).isoformat()
        place = {"coordinates": [72.5, 21.25]}
        return json.dumps(
            {"license_plate": "A", "observationDateTime": moment, "speed": 5, "location": place}
        ).encode()

    assert look.fresh([ping(here.now_s)])
    for _ in range(240):  # the same answer again and again: no message
        here.now_s += 15
        assert look.fresh([]) == []
    here.now_s += 15
    assert look.fresh([ping(here.now_s)])
    assert [(event, level) for _, event, _, level in found] == [("stale", 30)] * 4 + [("fresh", 20)]
    assert found[0][2]["age_s"] == 615 and "50 min" in found[-1][0]


@contextmanager
def largest_file(size):
    """No file of this process can grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def recorded(folder, *words, size=None):
    (file := folder / "log.ndjson").write_bytes(
        b"\n".join([*fleet_log(buses=25, hours=0.6, clean=True), b"no ping"])
    )
    flags = (
        "--set",
        "hat.slot=15m",
        "--set",
        "release.min_plates=2",
        "--ledger",
        "l",
        "--journal",
        "j",
    )
    with nullcontext() if size is None else largest_file(size):
        done = run_verb(("run", file, *flags, *words), cwd=folder)
    return done.returncode, json.loads(done.stderr.splitlines()[-1])["message"]


@pytest.mark.parametrize("flag", ["--out", "--smoothed", "--rejected"])
def test_a_full_disk_under_an_output_names_it_and_what_to_do(flag, tmp_path):
    words = [flag, "/dev/full"] if flag == "--out" else ["--out", "o", flag, "/dev/full"]
    status, said = recorded(tmp_path, *words)
    assert status == 4 and said == f"/dev/full: {os.strerror(errno.ENOSPC)}: {MAKE_ROOM}"


def test_a_full_disk_under_the_checkpoint_names_it_and_what_to_do(tmp_path, monkeypatch):
    full = nullcontext(Path("/dev/full"))
    draft = lambda path: full if path.name == "checkpoint" else draft_of(path)  # noqa: E731
    monkeypatch.setattr("udp_stream.base.files.draft_of", draft)
    status, said = recorded(tmp_path, "--out", "o")
    assert status == 4 and said == f"j/checkpoint: {os.strerror(errno.ENOSPC)}: {MAKE_ROOM}"


@pytest.mark.parametrize(
    ("size", "name"), [(16_000, "/l "), (100_000, "j/00000000000000000000.journal: ")]
)
def test_no_room_for_the_ledger_or_the_journal_names_it_and_the_next_run_goes_on(
    size, name, tmp_path
):
    status, said = recorded(tmp_path, "--out", "o", size=size)
    assert status == 4 and name in said, said
    status, said = recorded(tmp_path, "--out", "o")
    assert status == 0 and (tmp_path / "o").read_bytes(), said


@pytest.mark.parametrize(
    ("text", "code", "is_full"), [("database or disk is full", "FULL", True), ("", "IOERR", False)]
)
def test_sqlite_s_full_disk_is_said_with_what_to_do(text, code, is_full, tmp_path):
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    with pytest.raises(DependencyUnavailable) as raised, usable(tmp_path / "l"):
        raise error
    assert str(tmp_path / "l") in str(raised.value) and (MAKE_ROOM in str(raised.value)) == is_full
