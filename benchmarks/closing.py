"""`python -m benchmarks.closing`: from a slot's close to its last release, and what the ledger does
by itself.

3,000 HATs with 50 plates each, one worker on one core, Redis with fsync always: from the broker's
answer to the pings that close the slot, to a subscriber's last release. A worker's first slot,
which fills caches, is told apart. Each HAT is drawn; the benchmark ends where one is withheld.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.__main__ import say
from benchmarks.words import words
from lab.services import kafka_and_redis
from streams.topics import create_topics, topics_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.redis import open_redis_ledger
from udp_stream.release.record import Release
from udp_stream.settings import Settings, load
from udp_stream.sources.fleet import IST
from udp_stream.windows.grid import Hexagons

HATS = 3000
PLATES = 50
FLEET = 6000
SLOTS = 61
START = datetime(2024, 1, 8, 0, tzinfo=IST)
SECONDS_MAX = 60.0

CONFIG = """\
[hat]
slot = "1h"
resolution = 7
[budget]
epsilon = 1000.0
[release]
mean = "{mean}"
mean_epsilon = 1.0
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


def places() -> list[tuple[float, float]]:
    lat, lon = (
        axis.ravel() for axis in np.meshgrid(np.arange(15, 18, 0.02), np.arange(70, 73, 0.02))
    )
    _, first = np.unique(Hexagons(7).cells_of(lat, lon), return_index=True)
    return [(round(float(lon[i]), 6), round(float(lat[i]), 6)) for i in first[:HATS]]


def ping(plate: str, moment: datetime, place: tuple[float, float], speed: float) -> bytes:
    return msgspec.json.encode(
        {
            "license_plate": plate,
            "observationDateTime": moment.isoformat(),
            "speed": speed,
            "location": {"type": "Point", "coordinates": place},
        }
    )


def slot_pings(slot: int, where: list[tuple[float, float]]) -> Iterator[bytes]:
    rng = np.random.default_rng(slot)
    speeds = rng.integers(5, 60, HATS * PLATES).tolist()
    for number in range(HATS * PLATES):
        moment = START + timedelta(hours=slot, seconds=number * 3500 // (HATS * PLATES))
        yield ping(f"P{number % FLEET:05d}", moment, where[number // PLATES], speeds[number])


async def closings(settings: Settings) -> list[float]:
    topics = topics_of(settings.kafka)
    bootstrap = settings.kafka.bootstrap
    where = places()
    seconds = []
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=2**18) as producer,
        AIOKafkaConsumer(
            topics.release.name, bootstrap_servers=bootstrap, isolation_level="read_committed"
        ) as reader,
    ):
        for slot in range(SLOTS):
            messages = batched(slot_pings(slot, where), 100)
            sent = [
                await producer.send(topics.pings.name, b"[" + b",".join(some) + b"]")
                for some in messages
            ]
            await asyncio.gather(*sent)
            await asyncio.sleep(4)  # the worker reads and holds them
            later = START + timedelta(hours=slot + 1, minutes=4)
            for partition in range(topics.pings.partitions):
                last = ping(f"closer {partition}", later, where[0], 20)
                await producer.send_and_wait(topics.pings.name, last, partition=partition)
            closed = time.monotonic()
            records = await asyncio.wait_for(_read(reader, HATS), SECONDS_MAX)
            seconds.append(time.monotonic() - closed)
            if withheld := [
                status
                for record in records
                if (status := Release.decode(record).status) != "released"
            ]:
                raise SystemExit(
                    f"expected each HAT to be released, but {len(withheld)} are {withheld[0]}"
                )
    return seconds


def batched(messages: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while some := list(islice(messages, size)):
        yield some


async def _read(reader: AIOKafkaConsumer, wanted: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < wanted:
        for some in (await reader.getmany(timeout_ms=1000)).values():
            found += [record.value for record in some]
    return found


def bench_ledger(url: str) -> None:
    plates = [b"%016d" % number for number in range(FLEET)]
    members = np.arange(HATS * PLATES).reshape(HATS, PLATES) % FLEET
    calls = iter(range(100))

    def admit() -> None:
        call = next(calls)
        charges = np.full(PLATES, 1000)
        ledger.admit(
            "period",
            10**12,
            plates,
            [Admission(f"{call}/{hat}", members[hat], charges, 2, b"{}") for hat in range(HATS)],
        )

    with open_redis_ledger(url, prefix="{bench}") as ledger:
        wall = []
        for _ in range(5):
            began = time.monotonic()
            admit()
            wall.append(time.monotonic() - began)
    say(
        "Redis ledger, fsync always",
        f"{HATS * PLATES / min(wall):,.0f} plate charges/s",
        "best of 5 slots, wall time",
    )


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as folder,
        kafka_and_redis() as running,
    ):
        config = Path(folder) / "udp-stream.toml"
        for database, (name, mean) in enumerate(
            (("papers", "array-averaging"), ("default", "auto")), start=1
        ):
            config.write_text(
                CONFIG.format(
                    redis=running.redis.url.replace(
                        "/0", f"/{database}"
                    ),  # a ledger of its own: nothing stands yet
                    folder=folder,
                    bootstrap=running.kafka.bootstrap,
                    name=name,
                    mean=mean,
                )
            )
            settings = load(config, (), {})
            create_topics(settings.kafka)
            command = [sys.executable, "-m", "udp_stream", "worker", "--config", str(config)]
            worker = subprocess.Popen(
                command, cwd=folder, preexec_fn=lambda: os.sched_setaffinity(0, {cores[-1]})
            )
            try:
                first, *seconds = asyncio.run(closings(settings))
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(15)
            p50, p99 = np.percentile(seconds, [50, 99])
            say(
                f"close to last release, {mean}",
                f"p50 {p50:.2f} s, p99 {p99:.2f} s; the first {first:.2f} s",
                f"{SLOTS} slots of {HATS} HATs, {PLATES} plates each",
            )
        bench_ledger(running.redis.url)


if __name__ == "__main__":
    words(__doc__)
    main()
