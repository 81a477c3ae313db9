"""The broker and the Redis of our tests are real, keep their data, and are gone when whoever
started them is."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from redis import Redis

from lab.services import kafka_and_redis

LOG_APPEND_TIME = 1  # a record's timestamp type
WAIT_SECONDS = 20

# The command line as it runs this verb, without its parser.
COMMAND = """
import argparse, signal
from pathlib import Path
from udp_stream.cli import main as cli
from lab.services import services
signal.signal(signal.SIGTERM, cli._drain)
try:
    services(argparse.Namespace(), None)
except cli.Termination:
    pass
"""


def create_topic(bootstrap: str, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        configs = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics(
            {topic: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}
        )


def produce(bootstrap: str, topic: str, *values: bytes, timestamp_ms: int | None = None) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for value in values:
            producer.send(topic, value, timestamp_ms=timestamp_ms).get(timeout=WAIT_SECONDS)


def consume(bootstrap: str, topic: str, number: int) -> list:
    with closing(
        KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=WAIT_SECONDS * 1000)
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return list(islice(consumer, number))


def test_records_come_back_with_the_time_at_which_the_broker_appended_them(
    kafka_bootstrap: str,
) -> None:
    topic = f"services-{uuid4()}"
    create_topic(kafka_bootstrap, topic)
    produce(kafka_bootstrap, topic, b"one", b"two", timestamp_ms=1)
    records = consume(kafka_bootstrap, topic, 2)
    assert [record.value for record in records] == [b"one", b"two"]
    assert all(
        record.timestamp_type == LOG_APPEND_TIME and record.timestamp > 1 for record in records
    )


@contextmanager
def client(url: str) -> Iterator[Redis]:
    with closing(Redis.from_url(url, decode_responses=True, socket_timeout=WAIT_SECONDS)) as opened:
        yield opened


@contextmanager
def command() -> Iterator[tuple[subprocess.Popen[str], dict[str, str], list[int]]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", COMMAND], **pipes, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = dict(process.stdout.readline().strip().split("=") for _ in range(2))
            yield process, printed, children(process.pid)
        finally:
            process.kill()


def children(parent: int) -> list[int]:
    stats = [stat.read_text() for stat in Path("/proc").glob("[0-9]*/stat")]
    found = [re.fullmatch(r"(\d+) \(.*\) \S (\d+) .*", stat, re.DOTALL) for stat in stats]
    return [int(one[1]) for one in found if one and int(one[2]) == parent]


def ends(process_id: int) -> bool:
    try:
        held = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([held], [], [], WAIT_SECONDS)[0])
    finally:
        os.close(held)


def test_the_command_tells_where_both_are_and_leaves_nobody_behind_on_sigterm() -> None:
    with command() as (process, printed, begun):
        assert list(printed) == ["KAFKA_BOOTSTRAP", "REDIS_URL"]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", printed["KAFKA_BOOTSTRAP"])
        assert re.fullmatch(r"redis://127\.0\.0\.1:\d+/0", printed["REDIS_URL"])
        create_topic(printed["KAFKA_BOOTSTRAP"], "reached")
        with client(printed["REDIS_URL"]) as asked:
            assert asked.ping()
        process.terminate()
        rest, said = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0 and rest == ""
        assert f"kafka.bootstrap={printed['KAFKA_BOOTSTRAP']}" in said
        assert f"ledger.url={printed['REDIS_URL']}" in said
        assert len(begun) == 4  # two services, a guard each
        assert all(ends(child) for child in begun)


@pytest.mark.long
def test_the_data_of_both_outlives_a_crash_by_packages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no java, no redis-server
    with kafka_and_redis() as both:
        for running in (both.kafka, both.redis):
            assert Path(running.program.command[0]).is_relative_to(sys.prefix)
        create_topic(both.kafka.bootstrap, "kept")
        produce(both.kafka.bootstrap, "kept", b"before")
        with client(both.redis.url) as asked:
            asked.set("kept", "value")
        for running in (both.kafka, both.redis):
            running.kill()
            running.restart()  # at the same address
        produce(both.kafka.bootstrap, "kept", b"after")
        assert [record.value for record in consume(both.kafka.bootstrap, "kept", 2)] == [
            b"before",
            b"after",
        ]
        with client(both.redis.url) as asked:
            assert asked.get("kept") == "value"
