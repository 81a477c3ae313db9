"""`feed` of live sources into a real Kafka: at once, nothing lost, nothing twice that counts, and
an orderly end."""

import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import http_server as server
from tests.chaos.proxy import Proxy
from tests.forked import Forked
from tests.gtfs import START_S, snapshot, vehicle
from tests.http_server import GTFS, ok, serving, status
from tests.integration.amqp_brokers import PASSWORD, USER
from tests.integration.test_amqp_source import Queue, ping, plates
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON

SECONDS_MAX = 30
OF_ANY_AGE = "live.max_age=36500d"
LINES = [ping(number) for number in range(9)]


class Feeding:
    def __init__(self, city, arguments, stdin):
        self.city, self.said = city, city.folder / f"{len(list(city.folder.iterdir()))}.err"
        with self.said.open("wb") as said:
            streams = [stdin, said.fileno(), said.fileno()]
            given = ["feed", *arguments, "--set", OF_ANY_AGE, "--config", city.config]
            self.process = Forked("tests.forked", given, streams, city.folder)

    def records(self):
        return self.city.read(self.city.topics.pings)

    def wait_for(self, done):
        deadline = time.monotonic() + SECONDS_MAX
        while not done():
            assert time.monotonic() < deadline and self.process.poll() is None, (
                self.said.read_text()
            )
            time.sleep(0.05)

    def end(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)
        return self.process.wait(SECONDS_MAX), self.said.read_text()


@contextmanager
def feeding(city, *arguments, stdin=None):
    with Path(os.devnull).open("rb") as nothing:
        running = Feeding(city, arguments, nothing.fileno() if stdin is None else stdin)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait(SECONDS_MAX)


def clean(said, *secrets):
    assert not [one for one in ("BUS", "47.25", PASSWORD, *secrets) if one in said], said
    assert "Traceback" not in said
    return said


def accepted(city, records):
    pings, refusals = PingDecoder(city.settings.ping_rules, JSON).decode(
        [record.value for record in records]
    )
    assert not refusals
    return sorted(
        {
            (pings.plates[plate], time_ms)
            for plate, time_ms in zip(pings.plate, pings.time_ms, strict=True)
        }
    )


@pytest.mark.parametrize("batch", [1, 100])
def test_what_a_program_prints_is_in_kafka_within_a_second(city, batch):
    here = city([])
    reads, writes = os.pipe()
    with feeding(here, "-", "--batch", batch, stdin=reads) as running:
        os.close(reads)
        written = []
        for line in LINES[:3]:
            os.write(writes, line + b"\n")
            written.append(time.time())
            running.wait_for(lambda: len(running.records()) == len(written))
        os.write(writes, LINES[3])
        os.close(writes)
        assert running.process.wait(SECONDS_MAX) == 0
    records = sorted(running.records(), key=lambda record: record.timestamp)
    late = [
        record.timestamp / 1000 - at for record, at in zip(records[1:3], written[1:], strict=True)
    ]
    assert max(late) < 1, late
    assert len(accepted(here, records)) == 4
    assert "4 messages sent" in clean(running.said.read_text())


def test_sigterm_sends_what_was_read_from_a_pipe_and_ends_with_0(city):
    here = city([])
    reads, writes = os.pipe()
    with feeding(here, "-", "--batch", "100", stdin=reads) as running:
        os.close(reads)
        os.write(writes, b"\n".join(LINES) + b"\n" + LINES[0][:20])
        running.wait_for(running.records)
        ended, said = running.end()
        os.close(writes)
    assert ended == 0 and len(accepted(here, running.records())) == len(LINES)
    clean(said)


def test_polls_of_a_faulty_server_are_in_kafka_once_each(city, tmp_path):
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("a-token")
    polls = [
        snapshot(*(vehicle(f"BUS{bus}", time_s=START_S + at) for bus in range(5)))
        for at in range(4)
    ]
    good = [ok(poll, GTFS) for poll in polls]
    script = [
        good[0],
        server.cut(polls[1], 40, GTFS),
        status(500),
        good[1],
        good[0],
        good[2],
        good[3],
    ]
    here = city([])
    with serving(*script) as running_server:
        url = f"{running_server.url}/v.pb?key=secret"
        settings = {
            "speed.unit": "mps",
            "live.timeout": "1s",
            "live.token_file": tmp_path / "token",
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with feeding(here, url, "--set", "live.every=1s", *flags) as running:
            running.wait_for(
                lambda: (
                    len(running_server.script) == 1 and len(running_server.requests) > len(script)
                )
            )
            ended, said = running.end()
    records = running.records()
    assert ended == 0 and len(records) == len(accepted(here, records)) == 20
    assert {headers.get("token") for _, _, headers in running_server.requests} == {"a-token"}
    assert "answers 500" in clean(said, "a-token", "secret") and "works again" in said


def test_a_queue_is_in_kafka_whole_although_connections_are_cut_and_the_feed_is_killed(
    city, amqp_broker, tmp_path
):
    queue, here, total = Queue(amqp_broker, "surat"), city([]), 600
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text(PASSWORD)
    with Proxy() as proxy:
        link = proxy.link(amqp_broker.port)
        settings = {"queue": queue.name, "username": USER, "password_file": tmp_path / "password"}
        flags = [
            word for key, value in settings.items() for word in ("--set", f"live.{key}={value}")
        ]
        for part in range(3):
            queue.publish(
                *(ping(number) for number in range(part * total // 3, (part + 1) * total // 3))
            )
            with feeding(here, f"amqp://127.0.0.1:{link.port}/", *flags) as running:
                running.wait_for(lambda most=(2 - part) * total // 3 + 150: queue.waiting() < most)
                link.cut()
                if part < 2:
                    running.end(signal.SIGKILL)
                    continue
                running.wait_for(lambda: queue.waiting() == 0)
                ended, _ = running.end()
    records = running.records()
    counted = accepted(here, records)
    assert ended == 0 and {plate for plate, _ in counted} == {
        f"BUS{number}" for number in range(total)
    }
    assert len(counted) == total <= len(records)
    queue.channel.queue_delete(queue.name)
    queue.connection.close()


@pytest.mark.soak
def test_nothing_is_acknowledged_that_kafka_does_not_take(
    city, amqp_broker, tmp_path, kafka_server
):
    from streams.topics import create_topics
    from udp_stream.settings import load

    queue, here = Queue(amqp_broker, "away"), city([])
    here.config.write_text(
        here.config.read_text().replace(here.settings.kafka.bootstrap, kafka_server.bootstrap)
    )
    create_topics(load(here.config, (), {}).kafka)
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text(PASSWORD)
    settings = {"queue": queue.name, "username": USER, "password_file": tmp_path / "password"}
    flags = [word for key, value in settings.items() for word in ("--set", f"live.{key}={value}")]
    with feeding(here, f"amqp://127.0.0.1:{amqp_broker.port}/", *flags) as running:
        queue.publish(*LINES[:4])
        running.wait_for(lambda: queue.waiting() == 0 and len(running.records()) == 4)
        kafka_server.kill()
        queue.publish(*LINES[4:])
        time.sleep(3)
        assert running.process.poll() is None and queue.waiting() == 5
        running.end(signal.SIGKILL)
    kafka_server.restart()
    with feeding(here, f"amqp://127.0.0.1:{amqp_broker.port}/", *flags) as running:
        running.wait_for(lambda: queue.waiting() == 0)
        assert running.end()[0] == 0
    assert {json.loads(one.value)["license_plate"] for one in running.records()} == set(
        plates(LINES)
    )
    queue.channel.queue_delete(queue.name)
    queue.connection.close()
