"""The deployment on a real broker says exactly what the embedded runtime says, whoever is killed meanwhile."""

import asyncio
import io
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.feed import Feed, Pace
from streams.headers import ERROR
from streams.topics import create_topics, differences, topics_of
from tests.runtime.harness import fleet_log, frames_of
from udp_stream import release
from udp_stream.adapters.embedded import Embedded, record_writer
from udp_stream.adapters.fleet import IST, Fleet, Imperfections
from udp_stream.adapters.open_ledger import ledger_and_keys
from udp_stream.adapters.settings import load
from udp_stream.errors import ConfigError
from udp_stream.testing import SeededEntropy

SEED = "7"
SECONDS_MAX = 40

CONFIG = """\
[hat]
slot = "15m"
resolution = 7
grace = "{grace}"
[release]
mean = "auto"
mean_epsilon = {epsilon}
cdf_epsilon = {cdf}
min_plates = 4
suppression = "{suppression}"
[budget]
epsilon = {budget}
period = "{period}"
[ledger]
url = "{ledger}"
key_file = "{folder}/plates.key"
[kafka]
bootstrap = "{bootstrap}"
prefix = "{name}."
group = "{name}"
partitions = 4
shards = {shards}
idle_timeout = "1s"
session_timeout = "6s"
"""

DEFAULTS = {"grace": "2m", "shards": 1, "epsilon": "0.4", "cdf": "0.3", "budget": "6.0", "period": "1d",
            "suppression": "off"}  # fmt: skip
AUTO = {"shards": 3, "epsilon": '"auto"', "cdf": "0.05", "budget": "0.5", "period": "1h"}
"""Plates run out of it within the hour."""


@dataclass
class City:
    """A deployment of its own on the shared broker, and the embedded runtime beside it."""

    folder: Path
    messages: list
    config: Path

    @property
    def settings(self):
        return load(self.config, (), {})

    @property
    def topics(self):
        return topics_of(self.settings.kafka)

    def embedded(self):
        """Release id -> payload, and release id -> charges, of the embedded runtime over the same log."""
        out, url = io.BytesIO(), str(self.folder / "embedded.ledger")
        with ledger_and_keys(self.settings, url) as (ledger, keys):
            runtime = Embedded(
                self.settings, ledger, SeededEntropy(SEED), keys.key_of, "udp-stream test", record_writer(out)
            )
            runtime.run(frames_of(self.messages))
            return {release.decode(line).release_id: line for line in out.getvalue().splitlines()}, charges(ledger)

    def feed(self, messages=None, batch=1, rate=None):
        with Feed(self.settings.kafka.bootstrap, self.topics.pings.name, batch, Pace(rate)) as sender:
            sender.send(self.messages if messages is None else messages)

    def set_idle(self, timeout):
        """For workers started from now on. Ticks tell the time of today: behind one, a log of 2024 is late."""
        text = re.sub('idle_timeout = ".*"', f'idle_timeout = "{timeout}"', self.config.read_text())
        self.config.write_text(text)

    def ledger(self):
        return ledger_and_keys(self.settings)

    def read(self, topic):
        """Every record that the topic has now."""
        return asyncio.run(records_of(topic, self.settings.kafka.bootstrap))

    def releases(self):
        """Release id -> payload from the output topic: one payload for each id, however often it was written."""
        found = {}
        for record in self.read(self.topics.release):
            headers = dict(record.headers)
            assert headers["ce_id"].decode() == release.decode(record.value).release_id
            assert record.key.decode() == release.decode(record.value).hat.cell
            assert found.setdefault(headers["ce_id"].decode(), record.value) == record.value
        return found

    def wait_for(self, ids, *workers):
        deadline = time.monotonic() + SECONDS_MAX
        while not set(ids) <= set(self.releases()):
            assert time.monotonic() < deadline, f"{len(set(ids) - set(self.releases()))} of {len(ids)} are missing"
            assert all(worker.poll() is None for worker in workers)
            time.sleep(0.2)


async def records_of(topic, bootstrap):
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(topic.name, p) for p in range(topic.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends, records = await consumer.end_offsets(places), []
        while any([await consumer.position(place) < ends[place] for place in places]):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                records += some
        return records
    finally:
        await consumer.stop()


def charges(ledger):
    assert ledger.verify() == []
    return {
        entry.release_id: sorted(zip(entry.plates, entry.charged.tolist(), strict=True)) for entry in ledger.entries()
    }


@pytest.fixture
def city(tmp_path, kafka_bootstrap):
    def make(messages, ledger=None, **changes):
        values = DEFAULTS | changes
        config = tmp_path / "city.toml"
        text = CONFIG.format(
            folder=tmp_path, bootstrap=kafka_bootstrap, name=f"t{uuid4().hex[:8]}",
            ledger=ledger or f"sqlite:{tmp_path}/stream.ledger", **values,
        )  # fmt: skip
        config.write_text(text)
        made = City(tmp_path, messages, config)
        assert len(create_topics(made.settings.kafka)) == 5
        return made

    return make


SERVING = "udp-stream: worker of group"


def _until_it_serves(process, said, before):
    """A process that has only just been started cannot heed a signal yet."""
    deadline = time.monotonic() + 20
    while said.read_text().count(SERVING) == before and process.poll() is None:
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


@contextmanager
def worker(city, instance="one"):
    """A worker process; ended by SIGTERM within seconds, and with status 0, unless it was killed."""
    script = Path(__file__).with_name("seeded_worker.py")
    said = city.folder / f"{instance}.err"
    served = said.read_text().count(SERVING) if said.exists() else 0
    with said.open("ab") as err:
        process = subprocess.Popen([sys.executable, script, city.config, SEED, instance], stderr=err, cwd=city.folder)
    try:
        yield process
        if process.poll() is None:
            _until_it_serves(process, said, served)
            process.send_signal(signal.SIGTERM)
            assert process.wait(12) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def agree(city):
    """Run the block, given what the embedded runtime says; then the stream must have said the same."""
    expected, expected_charges = city.embedded()
    assert len(expected) > 50
    with ExitStack() as stack:
        yield stack, expected
    assert city.releases() == expected
    with city.ledger() as (ledger, _):
        assert charges(ledger) == expected_charges
        assert list(ledger.unpublished()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_one_log_through_both_runtimes_gives_the_same_bytes_and_charges(city, workers):
    """With an automatic epsilon over three shards, and plates that run out: one plan for all of them, in one order."""
    here = city(fleet_log(clean=True), **AUTO)
    here.feed()
    with agree(here) as (stack, expected):
        assert all(statuses(expected)[kind] > 20 for kind in ("released", "withheld_budget"))
        running = [stack.enter_context(worker(here, f"worker{i}")) for i in range(workers)]
        here.wait_for(expected, *running)


def statuses(payloads):
    """How many records there are of each kind."""
    return Counter(release.decode(payload).status for payload in payloads.values())


def test_workers_on_a_redis_ledger_suppress_over_three_shards(city, redis_server):
    """CHOP-USER needs the whole slot too. Each shard is fenced: who has lost it can charge and record nothing."""
    here = city(fleet_log(clean=True), shards=3, budget="3.0", ledger=redis_server.url, suppression="chop-user")
    here.feed()
    with agree(here) as (stack, expected):
        assert all(statuses(expected)[kind] > 20 for kind in ("released", "withheld_budget"))
        here.wait_for(expected, *(stack.enter_context(worker(here, f"worker{i}")) for i in range(2)))


def test_a_worker_that_cannot_work_ends_with_a_sentence_and_a_status(city):
    here = city([])
    command = [sys.executable, "-m", "udp_stream.adapters.cli", "worker", "--config", here.config, "--set"]
    for flag, status, sentence in (
        ("kafka.prefix=elsewhere.", 3, "topic elsewhere.bus.pings.v1 is missing"),
        ("kafka.bootstrap=127.0.0.1:1", 4, "Kafka at 127.0.0.1:1"),
    ):
        done = subprocess.run([*command, flag], capture_output=True, text=True, timeout=60, cwd=here.folder)
        assert done.returncode == status and sentence in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_an_error_in_the_middle_ends_the_worker(city):
    """Something that is no part in the topic of parts: no slot is released past it."""
    here = city([])
    with Feed(here.settings.kafka.bootstrap, here.topics.parts.name, 1, Pace()) as sender:
        sender.send([b"no part"])
    command = [sys.executable, "-m", "udp_stream.adapters.cli", "worker", "--config", here.config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=here.folder)
    assert done.returncode == 1, done.stderr
    assert "the worker stopped: " in done.stderr and "no part" not in done.stderr


def faulty_log():
    """Every fault but clocks decades ahead: against append times of today a log of 2024 has another future."""
    faults = replace(Imperfections(), far_future=0.0, repeated=0.0)
    fleet = Fleet(seed=2, buses=40, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=1, imperfections=faults)
    return [message for batch in fleet.messages() for message in batch]


def test_a_faulty_log_in_batches_over_two_shards_too(city):
    """Nothing is late with a day's grace; broken messages are refused alike, once each, as the original bytes."""
    here = city(faulty_log(), grace="1d", shards=2)
    here.feed(batch=50)
    with agree(here) as (stack, expected):
        here.wait_for(expected, stack.enter_context(worker(here)))
    refused = here.read(here.topics.rejected)
    assert refused
    ids = [dict(record.headers)[f"{ERROR}.id"] for record in refused]
    assert len(ids) == len(set(ids))
    assert any(record.value in here.messages for record in refused)


def test_killed_again_and_again_nothing_is_lost_and_nothing_is_said_twice(city):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, here = random.Random(seed), city(fleet_log(clean=True), **AUTO)
    half = len(here.messages) // 2
    with agree(here) as (_, expected):
        here.set_idle("1h")
        here.feed(here.messages[:half])
        for kill in range(5):
            with worker(here) as process:
                if kill == 2:
                    here.feed(here.messages[half:])
                time.sleep(dice.uniform(0.8, 4))
                process.kill()
                process.wait()
        here.set_idle("1s")
        with worker(here) as last:
            here.wait_for(expected, last)


def test_topics_are_made_once_and_told_about(city):
    here = city([])
    assert all("exists as wanted" in line for line in create_topics(here.settings.kafka))
    assert differences(here.settings.kafka) == []
    more = load(here.config, ("kafka.partitions=5",), {}).kafka
    assert f"{here.topics.pings.name}: 4 partitions, wanted 5" in differences(more)
    with pytest.raises(ConfigError, match="1 partitions, wanted 2"):
        differences(load(here.config, ("kafka.shards=2",), {}).kafka)
    with pytest.raises(ConfigError, match="topics create"):
        differences(load(here.config, ("kafka.prefix=elsewhere.",), {}).kafka)


def test_releases_are_printed_and_followed(city):
    here = city([])
    with Feed(here.settings.kafka.bootstrap, here.topics.release.name, 1, Pace()) as sender:
        sender.send([b"one", b"two", b"three"])
    command = [sys.executable, "-m", "udp_stream.adapters.cli", "releases", "--config", here.config]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == [b"one", b"three", b"two"]
    with subprocess.Popen([*command, "--follow"], stdout=subprocess.PIPE) as following:
        assert sorted(following.stdout.readline() for _ in range(3)) == [b"one\n", b"three\n", b"two\n"]
        here.feed([b"a ping, elsewhere"])
        with Feed(here.settings.kafka.bootstrap, here.topics.release.name, 1, Pace()) as sender:
            sender.send([b"four"])
        assert following.stdout.readline() == b"four\n"
        following.send_signal(signal.SIGTERM)
        assert following.wait(20) == 0
    missing = subprocess.run([*command, "--set", "kafka.prefix=elsewhere."], capture_output=True, timeout=60)
    assert missing.returncode == 4 and b"topics create" in missing.stderr and b"Traceback" not in missing.stderr
