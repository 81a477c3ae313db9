"""`status` and `doctor` on real workers: alive, of another mind, paused, killed, stuck, ended, stopped."""

import asyncio
import json
import signal
import time
from contextlib import contextmanager

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from streams.binding import Binding
from streams.producer import OutgoingRecord, Producer
from streams.reports import read_reports
from streams.topics import admin
from tests.forked import forked_to_log, run_forked
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log
from udp_stream.release.worker_health import State

EVERY_S = 1.0
PATIENCE_S = 40


def verb(city, *arguments):
    done = run_forked([*arguments, "--config", city.config], cwd=city.folder)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def says(city, arguments, code, *sentences):
    """What this verb prints, once it ends so and its output, errors as well, has these sentences.

    Asked again, because a worker may be late by three of these short intervals on a busy machine: silent, then alive.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ended, said, err = verb(city, *arguments.split())
        if ended == code and all(sentence in said + err for sentence in sentences):
            return said
        assert time.monotonic() < deadline, (ended, said, err)


def until(city, holds):
    """The reports, by worker, once this holds of them."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = {one.name: one for one in read_reports(city.settings.kafka)}
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def states(seen):
    return {name: one.state for name, one in seen.items()}


@contextmanager
def other_worker(city, *flags):
    """Another worker, of other settings, by the command line."""
    arguments = ["worker", "--config", city.config, "--instance", "two", *flags]
    process = forked_to_log("tests.forked", arguments, city.folder / "two.err", city.folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def reads_all(one):
    return len(one.report.work.partitions) == 5 and all(part.unread == 0 for part in one.report.work.partitions)


def test_status_follows_workers_through_their_lives(city, redis_server):
    """One works; another comes with half the budget, and is killed; the first is paused, and at last stopped."""
    messages = fleet_log()[:4000]
    here = city(messages, ledger=redis_server.url, grace="1d", status_every=f"{EVERY_S}s")
    here.set_idle("1h")  # no tick of today: the log's slots stay open
    here.feed()
    with worker(here, "one") as one:
        seen = until(here, lambda seen: "one" in seen and reads_all(seen["one"]))["one"].report
        assert seen.work.open_pings > 2000 and seen.work.refused["not_json"] > 0
        assert sum(slot.pings for slot in seen.work.open_slots) == seen.work.open_pings
        assert all(0 < slot.hats < 400 for slot in seen.work.open_slots)
        found = json.loads(says(here, "status --json", 0))
        assert found["status"] == 0 and found["group"]["members"] == 1 and found["troubles"] == []
        behind = sum(part["behind"] for part in found["group"]["partitions"])
        assert behind > 2000  # of open slots, though all is read
        assert found["ledger"]["kind"] == "redis" and found["ledger"]["holdings"]["caveats"] == []
        says(here, "doctor", 0, "ok    workers: 1 worker with the settings of this configuration")

        with other_worker(here, "--set", "budget.epsilon=3") as two:
            until(here, lambda seen: states(seen) == {"one": State.ALIVE, "two": State.ALIVE})
            differ = "budget.epsilon is 6 (one) and 3 (two)"
            says(here, "status", 3, f"settings: the workers' differ: {differ}", f"settings differ: {differ}")
            differ = "FAIL  workers: their settings differ: budget.epsilon is 6 (one, this configuration) and 3 (two)"
            says(here, "doctor", 3, differ)
            two.kill()
            seen = until(here, lambda seen: states(seen) == {"one": State.ALIVE, "two": State.SILENT})
            assert 3 * EVERY_S < seen["two"].age_s < PATIENCE_S
        until(here, lambda seen: reads_all(seen["one"]))
        says(here, "status", 4, "worker two: silent for", "two has been silent for")
        one_agrees = "unknown workers: 1 worker with the settings of this configuration"
        says(here, "doctor", 0, one_agrees, "cannot tell of others: two silent for")

        one.send_signal(signal.SIGSTOP)
        until(here, lambda seen: states(seen)["one"] == State.SILENT)
        one.send_signal(signal.SIGCONT)
        until(here, lambda seen: states(seen)["one"] == State.ALIVE)
    assert "one" not in until(here, lambda seen: "one" not in seen)  # stopped politely: nobody misses it
    says(here, "doctor", 0, "unknown workers: none reports (two silent for")
    _nothing_secret(here)


def _nothing_secret(here):
    """In any report that was ever written: no plate, and nothing that only a ping has."""
    reports = [record.value for record in here.read(here.topics.workers)]
    plates = {json.loads(message)["license_plate"].encode() for message in fleet_log(clean=True)}
    written = b"".join(report for report in reports if report is not None)
    assert len(plates) > 30 and not [plate for plate in plates if plate in written]
    assert b'"coordinates"' not in written and b"observationDateTime" not in written


@pytest.mark.long
def test_a_worker_that_waits_for_its_ledger_is_stuck(city, redis_server):
    """It goes on reporting: the ledger is called in a thread of its own."""
    log = fleet_log(clean=True)[:6000]
    here = city(log, ledger=redis_server.url, status_every=f"{EVERY_S}s", stuck_timeout="6s")
    with worker(here, "one") as one:
        until(here, lambda seen: "one" in seen and reads_all(seen["one"]))
        redis_server.pause()
        try:
            here.feed()
            seen = until(here, lambda seen: states(seen)["one"] == State.STUCK)["one"]
            assert seen.report.work.stuck_seconds >= 1.5
        finally:
            one.kill()
            one.wait()
            redis_server.resume()


async def _write(kafka, record):
    async with Producer(kafka) as producer:
        await producer.write([record])


def test_a_worker_that_ends_with_an_error_says_with_which_status(city):

    here = city([], status_every=f"{EVERY_S}s")
    with here.ledger() as (ledger, _):
        headers = [Binding.of(ledger.meta()).header]
    with other_worker(here) as two:
        until(here, lambda seen: "two" in seen and reads_all(seen["two"]))
        asyncio.run(_write(here.settings.kafka, OutgoingRecord(here.topics.parts.name, b"no part", headers=headers)))
        assert two.wait(PATIENCE_S) == 3
        assert states(until(here, lambda seen: states(seen)["two"] == State.ENDED)) == {"two": State.ENDED}
    code, said, err = verb(here, "status")
    assert code == 4 and "worker two: ended with status 3" in said and "two ended with status 3: its log says" in err


def test_a_report_that_cannot_be_written_stops_nothing(city):
    """Its topic takes none any more: the worker says so once, and works on."""
    here = city(fleet_log(clean=True)[:2000], status_every=f"{EVERY_S}s")
    with worker(here, "one") as one:
        until(here, lambda seen: "one" in seen)
        with admin(here.settings.kafka) as client:
            limit = {"max.message.bytes": "99"}
            client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, here.topics.workers.name, configs=limit)])
        deadline = time.monotonic() + PATIENCE_S
        while "is lost (MessageSizeTooLargeError)" not in (here.folder / "one.err").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        here.feed()
        here.wait_for(here.embedded()[0], one)
    assert (here.folder / "one.err").read_text().count("is lost (") == 1


def test_a_worker_says_once_what_is_likely_set_wrongly(city):
    """Whole seconds for a time, in most messages; and a zone of another continent."""
    good = fleet_log(clean=True)[:300]
    wrong = [json.dumps(json.loads(message) | {"observationDateTime": 1_704_688_205}).encode() for message in good * 2]
    here = city([*wrong, *good])
    here.feed()
    said = here.folder / "two.err"
    with other_worker(here, "--set", "hat.timezone=America/Chicago") as two:
        deadline = time.monotonic() + PATIENCE_S
        while not said.exists() or said.read_text().count('"level": "warning"') < 2:
            assert two.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        until(here, lambda seen: seen and reads_all(seen["two"]))
    entries = {entry["event"]: entry for entry in map(json.loads, said.read_text().splitlines())}
    assert '[source] time_format = "epoch_s"' in entries["refused"]["message"]
    assert "Asia/Kolkata" in entries["zone"]["message"]
    assert said.read_text().count('"event": "refused"') == said.read_text().count('"event": "zone"') == 1
    assert not [message for message in good if json.loads(message)["license_plate"] in said.read_text()]
