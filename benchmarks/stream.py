"""`python -m benchmarks.stream`: the worker on a real broker, beside what it stands on, each on the
same one core.

aiokafka's fetch alone; fetch and decoding; a plain Faust agent; the worker with all it does. From
the first record to the last, by wall time and by the process's own time.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.__main__ import Ping, say
from benchmarks.words import words
from lab.services import Services, kafka_and_redis
from streams.feed import Feed, Pace
from streams.topics import create_topics, topics_of
from udp_stream.settings import Settings, load
from udp_stream.sources.fleet import IST, Fleet, Imperfections

BUSES = 1000
HOURS = 4
FAUST_EVENTS = 100_000
PEERS = {
    "fetch": "aiokafka, fetch alone",
    "decode": "fetch and decode",
    "plain": "plain Faust agent",
    "worker": "the worker, Array-Averaging",
    "default": "the worker, the default mean",
}
DEPLOYMENTS = {"bench": "array-averaging", "default": "auto"}
"""The first with what versions before the forecasts computed, so that they can be compared."""
SECONDS_MAX = 300

CONFIG = """\
[hat]
slot = "1h"
resolution = 7
[release]
mean = "{mean}"
[ledger]
url = "{redis}"
key_file = "{folder}/{name}.key"
[kafka]
bootstrap = "{bootstrap}"
prefix = "{name}."
group = "{name}"
partitions = 8
idle_timeout = "1h"
"""


def fleet() -> Fleet:
    """With every fault but clocks ahead of their time: to append times of today a log of 2024 has
    no future."""
    faults = replace(Imperfections(), far_future=0.0)
    return Fleet(
        buses=BUSES, start=datetime(2024, 1, 8, 8, tzinfo=IST), hours=HOURS, imperfections=faults
    )


# What is measured, each in a process of its own: prints {"records": n, "wall": s, "cpu": s}.


class Watch:
    """Wall and process time of the first record and of the last."""

    def __init__(self) -> None:
        self.read: list[tuple[float, float]] = []

    def note(self) -> None:
        self.read.append((time.monotonic(), time.process_time()))

    def told(self, records: int) -> dict[str, float]:
        (wall, cpu) = self.read[0]
        (wall_end, cpu_end) = self.read[-1]
        return {"records": records, "wall": wall_end - wall, "cpu": cpu_end - cpu}


def fetch(settings: Settings, expected: int, decode: bool) -> dict[str, float]:
    decoded = msgspec.json.Decoder(Ping).decode

    async def read() -> dict[str, float]:
        topic = topics_of(settings.kafka).pings
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.kafka.bootstrap, enable_auto_commit=False
        )
        await consumer.start()
        places = [TopicPartition(topic.name, partition) for partition in range(topic.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        count = 0
        watch = Watch()
        while count < expected:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=2000)).values():
                if not count:
                    watch.note()
                if decode:
                    for record in records:
                        with suppress(msgspec.MsgspecError):
                            decoded(record.value)
                count += len(records)
        watch.note()
        await consumer.stop()
        return watch.told(count)

    return asyncio.run(read())


def plain_agent(settings: Settings, folder: str) -> dict[str, float]:
    import faust

    app = faust.App(
        f"plain-{uuid4().hex[:8]}", broker=f"kafka://{settings.kafka.bootstrap}", store="memory://", datadir=folder,
        web_enabled=False, topic_allow_declare=False, topic_disable_leader=True,
        consumer_auto_offset_reset="earliest", worker_redirect_stdouts=False,
    )  # fmt: skip
    watch = Watch()
    done = asyncio.Event()

    @app.agent(
        app.topic(topics_of(settings.kafka).pings.name, value_type=bytes, value_serializer="raw")
    )
    async def nothing(stream: Any) -> None:
        count = 0
        async for _ in stream:
            if not count:
                watch.note()
            count += 1
            if count == FAUST_EVENTS:
                watch.note()
                done.set()

    async def run() -> dict[str, float]:
        serving = asyncio.ensure_future(app.start())
        await done.wait()
        await app.stop()
        serving.cancel()
        return watch.told(FAUST_EVENTS)

    return asyncio.run(run())


def worker(settings: Settings, expected: int) -> dict[str, float]:
    """The worker as it is; its source processor is only asked when it took its first batch, and
    when all were read."""
    import streams.worker
    from udp_stream.ledgers.keys import OsEntropy

    watch = Watch()

    class Timed(streams.worker.SourceProcessor):
        records = 0

        async def process(self, records: Any) -> None:
            if not self.records:
                watch.note()
            self.records += len(records)
            await super().process(records)
            if self.records >= expected and len(watch.read) == 1:
                watch.note()
                os.kill(os.getpid(), signal.SIGTERM)

    streams.worker.SourceProcessor = Timed  # type: ignore[misc]
    streams.worker.run_worker(streams.worker.Deployment(settings, OsEntropy(), "udp-stream bench"))
    return watch.told(expected)


def child(name: str, config: str, expected: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    settings = load(Path(config), (), {})
    with tempfile.TemporaryDirectory() as folder:
        match name:
            case "fetch" | "decode":
                print(json.dumps(fetch(settings, expected, name == "decode")))
            case "plain":
                print(json.dumps(plain_agent(settings, folder)))
            case _:
                print(json.dumps(worker(settings, expected)))


def rates_of(name: str, config: Path, expected: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.stream", name, str(config), str(expected)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=SECONDS_MAX, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["records"] / found["wall"]), float(found["records"] / found["cpu"])


def deployed(name: str, folder: Path, running: Services, database: int) -> tuple[Path, int]:
    """The configuration of a deployment whose topics hold the fleet's pings, and how many there
    are."""
    config = folder / f"{name}.toml"
    config.write_text(
        CONFIG.format(
            redis=running.redis.url.replace("/0", f"/{database}"),  # a ledger of its own
            folder=folder,
            bootstrap=running.kafka.bootstrap,
            name=name,
            mean=DEPLOYMENTS[name],
        )
    )
    settings = load(config, (), {})
    create_topics(settings.kafka)
    with Feed(settings.kafka, topics_of(settings.kafka).pings.name, 1, Pace()) as feed:
        for messages in fleet().messages():
            feed.send(messages)
    return config, feed.sent


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    print(
        f"Python {sys.version.split()[0]}, the worker and its peers on core {cores[-1]} of {cores}; wall time"
    )
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores[:-1]))  # inherited by broker and Redis
    with (
        tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as folder,
        kafka_and_redis() as running,
    ):
        given = {
            name: deployed(name, Path(folder), running, database)
            for database, name in enumerate(DEPLOYMENTS)
        }
        os.sched_setaffinity(0, set(cores))
        rates = {name: rates_of(name, *given.get(name, given["bench"])) for name in PEERS}
    for name, title in PEERS.items():
        wall, cpu = rates[name]
        beside = f"worker: {rates['worker'][0] / wall:.2f} x (wall), {rates['worker'][1] / cpu:.2f} x (process time)"
        say(title, f"{wall:,.0f}/s, {cpu:,.0f}/s of core", "" if name == "worker" else beside)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PEERS:
        child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        words(__doc__)
        main()
