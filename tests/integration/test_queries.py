"""Standing queries on a real broker: the embedded runtime's answers and charges, wherever a worker
dies."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import msgspec
import pytest

from tests.forms import soaked_rows
from tests.integration.deployment import SECONDS_MAX, agree, worker
from tests.integration.test_once import is_stopped, until
from tests.integration.test_status import until as reported
from tests.runtime.harness import fleet_log
from tests.runtime.test_standing import SURAT
from tests.verbs import run_verb
from udp_stream.ledger.ids import kind_of
from udp_stream.release.record import QueryResult

FULL = """
[[query]]
name = "full"
kind = "threshold"
every = "15m"
box = [72.79, 21.15, 72.85, 21.21]
share = 0.5
"""

QUERIES = SURAT.format(rho=100) + FULL
RAMP = QUERIES.replace("rho = 100", 'rho = 100\nschedule = "ramp"')


@contextmanager
def answer_alike(here):
    with agree(here) as given:
        assert len(here.told) > 10
        yield given
    assert here.answers() == {QueryResult.decode(one).release_id: one for one in here.told}


def with_pings_elsewhere(log):
    """Every fifth ping is followed by another one of the same plate and time, some kilometres to
    the west or east."""
    for number, message in enumerate(log):
        yield message
        if number % 5 == 0:
            ping = msgspec.json.decode(message)
            ping["location"]["coordinates"][0] += 0.03 * (-1) ** (number // 5)
            yield msgspec.json.encode(ping)


@pytest.mark.parametrize(
    ("queries", "partitions", "shards", "workers"),
    [
        pytest.param(QUERIES, 1, 1, 1, marks=pytest.mark.soak),
        pytest.param(QUERIES, 4, 4, 2, marks=pytest.mark.soak),
        (RAMP, 4, 4, 2),
    ],
    ids=["alone", "even", "ramp"],
)
def test_one_log_through_both_runtimes_gives_the_same_answers_and_charges(
    city, queries, partitions, shards, workers
):
    here = city(
        list(with_pings_elsewhere(fleet_log(clean=True, hours=1.0))),
        queries,
        partitions=partitions,
        shards=shards,
    )
    here.feed()
    with answer_alike(here) as (stack, expected):
        running = [stack.enter_context(worker(here, f"worker{i}")) for i in range(workers)]
        here.wait_for(expected, *running)
        here.wait_for_answers(*running)
    command = [sys.executable, "-m", "udp_stream", "releases", "--queries", "--config", here.config]
    printed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    assert sorted(printed.splitlines()) == sorted(here.told)
    command[command.index("--queries")] = "--smoothed"
    printed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    assert printed and sorted(printed.splitlines()) == sorted(here.smoothed())


LEDGER = "round charged@9", "round recorded@7", "answer recorded@2", "answers recorded@2"


@pytest.mark.long
@pytest.mark.parametrize(
    ("queries", "shards", "points"),
    [(QUERIES, 1, LEDGER), (RAMP, 2, LEDGER[:1]), *soaked_rows([(QUERIES, 2, LEDGER[1:2])])],
)
def test_killed_at_the_ledgers_calls_and_between_commit_and_ledger_it_answers_the_same(
    city, queries, shards, points
):
    here = city(fleet_log(clean=True), queries, shards=shards)
    here.feed()
    with answer_alike(here) as (stack, expected):
        for stop in (*points, "answers published@1"):
            with worker(here, stop=f"SIGKILL@{stop}") as process:
                assert process.wait(SECONDS_MAX) == -signal.SIGKILL, stop
            with here.ledger() as (ledger, _):
                assert ledger.verify() == [], stop
        with here.ledger() as (ledger, _):
            assert any(
                kind_of(id_) == "query" for id_, _ in ledger.unpublished()
            )  # the last one died before that
        last = stack.enter_context(worker(here))
        here.wait_for(expected, last)
        here.wait_for_answers(last)


@pytest.mark.long
def test_a_worker_that_was_replaced_while_it_answered_charges_and_publishes_nothing(
    city, redis_server
):
    here = city(fleet_log(clean=True), QUERIES, shards=2, ledger=redis_server.url)
    here.feed()
    with answer_alike(here) as (stack, expected):
        paused = stack.enter_context(worker(here, "paused", stop="SIGSTOP@answers recorded@2"))
        until(lambda: is_stopped(paused))
        with worker(here, "other") as other:
            here.wait_for_answers(other)
            here.wait_for(expected, other)
            paused.send_signal(signal.SIGCONT)
            time.sleep(1)
            assert paused.poll() is None and other.poll() is None, (
                here.folder / "paused.err"
            ).read_text()


@pytest.mark.long
def test_a_worker_with_other_queries_is_refused_before_it_joins_and_the_others_go_on(city):
    here = city(fleet_log(clean=True), QUERIES, shards=2)
    others = {
        "none": here.config.read_text().removesuffix(QUERIES),
        "often": here.config.read_text(),
    }
    others["often"] = others["often"].replace('every = "15m"', 'every = "5m"')
    here.feed()
    with answer_alike(here) as (stack, expected):
        running = stack.enter_context(worker(here, "one"))
        reported(here, lambda found: [one["name"] for one in found["workers"]] == ["one"])
        for name, text in others.items():
            (path := here.folder / f"{name}.toml").write_text(text)
            refused = run_verb(["worker", "--config", path, "--instance", "two"], cwd=here.folder)
            assert refused.returncode == 3 and b"worker one asks other" in refused.stderr
            said = run_verb(["doctor", "--config", path], cwd=here.folder)
            assert said.returncode == 3 and b"FAIL  workers" in said.stdout
        here.wait_for(expected, running)
        here.wait_for_answers(running)
