"""Standing queries of the live runtime: the embedded runtime's answers, each written once, killed
at any moment."""

import os
import random
import signal
import time
from contextlib import closing, contextmanager

import pytest

from tests.failing import Died
from tests.runtime.harness import fleet_log, frames_of
from tests.runtime.test_live_run import CONFIG, FRAME, Clock, ids, lines, take_all
from tests.runtime.test_standing import asking, configured
from udp_stream.cli.outputs import Appender
from udp_stream.embedded.runtime import LiveRuntime, Outputs
from udp_stream.ledger.ids import kind_of
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import SqliteLedger
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.release.record import QueryResult
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy
from udp_stream.windows.clocks import SteadyClock

FLAGS = (*CONFIG, "release.mean=array-averaging")
"""Speeds are charged, too, whatever forecasts tell."""


@pytest.fixture(scope="module")
def frames():
    settings, messages = load(None, FLAGS, {}), fleet_log(buses=20, hours=0.8, clean=True)
    decoder, found = PingDecoder(settings.ping_rules, JSON), []
    for some in frames_of(messages, FRAME):
        pings, _ = decoder.decode(some)
        found.append((some, int(pings.time_ms.max()) / 1000))
    return found


@contextmanager
def live(folder, clock, answers=True):
    settings = load(configured(folder, 100), FLAGS, {})
    with (
        ledger_and_keys(LedgerSection(url=f"{folder}/ledger")) as (ledger, keys),
        Journal(folder / "journal", f"the ledger {ledger.meta()['ledger_id']}") as journal,
        closing(Appender(f"{folder}/out")) as out,
        closing(Appender(f"{folder}/answers")) as queries,
    ):
        ids, answer = out.ids() | queries.ids(), queries.write_records if answers else None
        outputs = Outputs(out.write_records, written=ids, queries=answer)
        yield LiveRuntime(settings, ledger, SeededEntropy("queries"), keys.hash_plate, "udp-stream test", journal,
                          outputs, clock=SteadyClock(clock, clock)), journal, ledger  # fmt: skip


def work(folder, frames, answers=True):
    clock = Clock()
    with live(folder, clock, answers) as (runtime, journal, ledger):
        take_all(runtime, journal, frames, clock)
        return ledger.verify(), list(ledger.unpublished()), ledger.periods()


def same_key(theirs, ours):
    (ours / "ledger.key").write_bytes((theirs / "ledger.key").read_bytes())
    (ours / "ledger.key").chmod(0o600)


def test_it_answers_as_a_replay_of_the_same_pings_does_and_asks_nothing_without_a_file(
    frames, tmp_path
):
    (tmp_path / "live").mkdir()
    verified, unpublished, periods = work(tmp_path / "live", frames)
    assert (verified, unpublished) == ([], []) and [
        period.partition(" ")[0] for period in periods
    ] == [
        "1d",
        "positions",
    ]
    found = lines(tmp_path / "live", "answers")
    same_key(tmp_path / "live", tmp_path)
    with asking(tmp_path, "ledger", rho=100, flags=FLAGS) as (runtime, told, _, _):
        runtime.run([messages for messages, _ in frames])
    assert len(told) == 5 and sorted(found) == sorted(told)
    (tmp_path / "unasked").mkdir()
    *_, periods = work(tmp_path / "unasked", frames, answers=False)
    assert lines(tmp_path / "unasked", "answers") == [] and len(periods) == 1


@pytest.mark.parametrize("name", ["mark", "published"])
def test_dying_before_or_behind_the_file_it_writes_the_answer_once(
    name, frames, tmp_path, monkeypatch
):
    call, first = getattr(SqliteLedger, name), []

    def dies(self, asked):
        if not first and kind_of(asked if name == "mark" else asked[0]) == "query":
            first.append(asked)
            raise Died
        return call(self, asked)

    monkeypatch.setattr(SqliteLedger, name, dies)
    with pytest.raises(Died):
        work(tmp_path, frames)
    assert len(lines(tmp_path, "answers")) == (name == "published")
    verified, unpublished, _ = work(tmp_path, frames)
    found = ids(lines(tmp_path, "answers"))
    assert (verified, unpublished) == ([], []) and len(found) == len(set(found)) == 5


def child(folder, frames, dies_after_s):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, dies_after_s)
        work(folder, frames)
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_killed_at_any_moment_each_answer_is_written_once_and_is_the_same(kills, frames, tmp_path):
    dice, died, rounds = random.Random(20261123), 0, 0
    (tmp_path / "0").mkdir()
    began = time.monotonic()
    os.waitpid(child(tmp_path / "0", frames, 60.0), 0)
    whole_s, expected = time.monotonic() - began, lines(tmp_path / "0", "answers")
    assert len(expected) == 5
    while died < kills:
        rounds += 1
        (folder := tmp_path / str(rounds)).mkdir()
        same_key(tmp_path / "0", folder)
        came_through = False
        while not came_through:
            _, status = os.waitpid(child(folder, frames, dice.uniform(0.1, whole_s / 2)), 0)
            came_through = status == 0
            died += not came_through
            assert came_through or os.WIFSIGNALED(status), status
        found = lines(folder, "answers")
        assert len(set(ids(found))) == len(found), "an answer was written twice"
        assert sorted(found) == sorted(expected)
        assert {QueryResult.decode(one).status for one in found} == {"answered"}
