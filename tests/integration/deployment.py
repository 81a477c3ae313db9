"""A deployment of a test's own on the shared broker: workers as processes, and the embedded runtime
beside them."""

import asyncio
import io
import json
import os
import re
import signal
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from kafka import KafkaConsumer, TopicPartition

from streams.feed import Feed, Pace
from streams.kafka import records_of
from streams.topics import client_options, create_topics, topics_of
from tests.forked import forked_to_log
from tests.runtime.harness import beside, frames_of, record_writer, smoothed_writer
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.release import record as release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

SEED = "7"
SECONDS_MAX = 40
WORK_S_MAX = 40.0
"""What workers that wait for each other may take of a processor until all is published: a fifth is
usual."""

CONFIG = """\
[hat]
slot = "15m"
resolution = 7
grace = "{grace}"
[release]
mean = "{mean}"
mean_epsilon = {epsilon}
cdf = "tree"
cdf_epsilon = {cdf}
min_plates = 4
suppression = "{suppression}"
[budget]
epsilon = {budget}
period = "{period}"
accounting = "{accounting}"
[ledger]
url = "{ledger}"
key_file = "{folder}/plates.key"
[kafka]
bootstrap = "{bootstrap}"
prefix = "{name}."
group = "{name}"
partitions = {partitions}
shards = {shards}
idle_timeout = "1s"
transactions = {transactions}
"""

DEFAULTS = {"mean": "auto", "grace": "2m", "shards": 1, "epsilon": "0.4", "cdf": "0.3", "budget": "6.0", "period": "1d",
            "suppression": "off", "partitions": 4, "transactions": "true",
            "accounting": "pure"}  # fmt: skip


@dataclass
class City:
    folder: Path
    messages: list
    config: Path
    told: list = field(default_factory=list)
    disorder_ms: int = 60_000

    @property
    def settings(self):
        return load(self.config, (), {})

    @property
    def topics(self):
        return topics_of(self.settings.kafka)

    def embedded(self):
        releases, found, _ = self.embedded_smoothed()
        return releases, found

    def embedded_smoothed(self):
        out, smoothed = io.BytesIO(), io.BytesIO()
        with self.embedded_ledger() as (ledger, keys):
            runtime = EmbeddedRuntime(
                self.settings, ledger, SeededEntropy(SEED), keys.hash_plate, "udp-stream test", record_writer(out),
                smooth=smoothed_writer(smoothed), answer=self.told.extend,
            )  # fmt: skip
            runtime.run(frames_of(self.messages))
            found = {
                release.Release.decode(line).release_id: line
                for line in out.getvalue().splitlines()
            }
            return found, charges(ledger), smoothed.getvalue().splitlines()

    def feed(self, messages=None, batch=1, rate=None):
        with Feed(self.settings.kafka, self.topics.pings.name, batch, Pace(rate)) as sender:
            sender.send(self.messages if messages is None else messages)

    def set_idle(self, timeout):
        """For workers started from now on. Ticks tell the time of today: behind one, a log of 2024
        is late."""
        text = re.sub('idle_timeout = ".*"', f'idle_timeout = "{timeout}"', self.config.read_text())
        self.config.write_text(text)

    def embedded_ledger(self):
        return ledger_and_keys(beside(self.settings.ledger, self.folder / "embedded.ledger"))

    def ledger(self):
        return ledger_and_keys(self.settings.ledger)

    def read(self, topic):
        return asyncio.run(records_of(self.settings.kafka, topic))

    def releases(self):
        found = {}
        for record in self.read(self.topics.release):
            headers = dict(record.headers)
            assert headers["ce_id"].decode() == release.Release.decode(record.value).release_id
            assert record.key.decode() == release.Release.decode(record.value).hat.cell
            assert found.setdefault(headers["ce_id"].decode(), record.value) == record.value
        return found

    def answers(self):
        found = {}
        for record in self.read(self.topics.queries):
            result = release.QueryResult.decode(record.value)
            assert record.key.decode() == result.query.name and result.release_id not in found
            assert dict(record.headers)["ce_id"].decode() == result.release_id
            found[result.release_id] = record.value
        return found

    def smoothed(self):
        found = self.read(self.topics.smoothed)
        ids = [dict(record.headers)["ce_id"] for record in found]
        assert len(ids) == len(set(ids))
        return [record.value for record in found]

    def wait_for(self, ids, *workers):
        self._wait_for_all(self.topics.release, set(ids), workers)

    def wait_for_answers(self, *workers):
        ids = {release.QueryResult.decode(one).release_id for one in self.told}
        self._wait_for_all(self.topics.queries, ids, workers)

    def wait_for_number(self, topic, number, *workers):
        with self._ids_of(topic) as (seen, more):
            _until(lambda: number > len(seen), more, workers)

    def _wait_for_all(self, topic, ids, workers):
        with self._ids_of(topic) as (seen, more):
            _until(lambda: ids - seen, more, workers)
        with self.ledger() as (ledger, _):
            _until(
                lambda: ids & {id_ for id_, _ in ledger.unpublished()},
                partial(time.sleep, 0.1),
                workers,
            )

    @contextmanager
    def _ids_of(self, topic):
        seen, options = set(), client_options(self.settings.kafka)
        with closing(
            KafkaConsumer(**options, isolation_level="read_committed", enable_auto_commit=False)
        ) as consumer:
            consumer.assign(
                [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            )
            consumer.seek_to_beginning()

            def more():
                for some in consumer.poll(timeout_ms=500).values():
                    seen.update(dict(record.headers)["ce_id"].decode() for record in some)

            yield seen, more


def _until(missing, wait, workers):
    """Until nothing is missing; the bound is the workers' work, not a clock."""
    while left := missing():
        assert all(worker.poll() is None for worker in workers)
        assert sum(map(processor_s, workers)) < WORK_S_MAX, f"missing: {left}"
        wait()


def processor_s(process):
    *_, words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")
    return sum(map(int, words.split()[11:13])) / os.sysconf("SC_CLK_TCK")


def charges(ledger):
    assert ledger.verify() == []
    return {
        one.release_id: sorted(zip(one.plates, one.charged.tolist(), strict=True))
        for one in ledger.entries()
    }


def found_city(folder, bootstrap, messages, queries="", **settings):
    """A city with its topics made. `settings` are of CONFIG; `queries` is what the configuration
    asks behind them."""
    config = folder / "city.toml"
    given = (
        {"name": f"t{uuid4().hex[:8]}", "ledger": f"sqlite:{folder}/stream.ledger"}
        | DEFAULTS
        | settings
    )
    config.write_text(CONFIG.format(folder=folder, bootstrap=bootstrap, **given) + queries)
    made = City(folder, messages, config)
    assert len(create_topics(made.settings.kafka)) == 8
    return made


SERVING = "worker of group"


def log_of(said):
    """The lines of a worker's log, as (level, message); a worker whose log no terminal reads writes
    JSON."""
    return [(entry["level"], entry["message"]) for entry in map(json.loads, said.splitlines())]


def _until_it_serves(process, said, before):
    deadline = time.monotonic() + 20
    while said.read_text().count(SERVING) == before and process.poll() is None:
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


@contextmanager
def worker(city, instance="one", stop="", seed=SEED, wrong_s=0, resets=""):
    """A worker process, ended by SIGTERM with status 0 unless killed. `stop`: where it stops
    itself."""
    said = city.folder / f"{instance}.err"
    served = said.read_text().count(SERVING) if said.exists() else 0
    given = [city.config, seed, instance, stop, city.disorder_ms, wrong_s, resets]
    process = forked_to_log("tests.integration.seeded_worker", given, said, city.folder)
    try:
        yield process
        if process.poll() is None:
            _until_it_serves(process, said, served)
            process.send_signal(signal.SIGTERM)
            status = process.wait(12)
            assert status == 0, f"status {status}; its log ends:\n{said.read_text()[-3000:]}"
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
