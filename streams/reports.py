"""Reports of workers: what each says of itself, on a topic that keeps the latest of each (`release/worker_report.py`).

A report has a producer of its own, which neither waits for replicas nor numbers what it writes: whatever becomes of a
report, nothing else that the worker writes waits for it. A report that cannot be written is dropped, and said once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.connections import client_options
from streams.offsets import Offsets
from streams.shard_processor import ShardProcessor
from streams.source_processor import SourceProcessor
from streams.topic_reader import read_topic
from streams.topics import Topics, topics_of
from streams.watchdog import Watchdog
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.adapters.logs import WARNING, say
from udp_stream.release.facts import Fact
from udp_stream.release.recent_work import RecentWork
from udp_stream.release.worker_health import Seen
from udp_stream.release.worker_report import About, PartitionReport, WorkerReport, decode_report, encode_report

LOOK_S = 1.0
"""Between two looks at whether a report is due: it is also due once the worker has other partitions."""

ANSWER_S = 2.0
"""The broker's, to where partitions end, and to a report."""

END_S = 2.0
"""For the last report of a worker that ends."""


class Reports:
    """The reports of one worker. It is an observer of what its processors do."""

    def __init__(
        self, kafka: KafkaSection, about: About, recent: RecentWork, clock: Callable[[], float] = time.time
    ) -> None:
        """Nothing is written, and nothing connected, before `run`."""
        self._kafka, self._about, self._recent, self._clock = kafka, about, recent, clock
        self._topics = topics_of(kafka)
        self._producer: AIOKafkaProducer | None = None
        self._asked: asyncio.Task[dict[TP, int]] | None = None
        self._is_failing = False

    def observe(self, fact: Fact) -> None:
        """Count a fact."""
        self._recent.observe(fact, self._clock())

    async def run(self, pings: SourceProcessor, parts: ShardProcessor, offsets: Offsets, watchdog: Watchdog) -> None:
        """Report until cancelled."""
        # So that the first report is due at once, even while no partition is ours.
        reported_s, held = -self._about.every_seconds, frozenset[TP]()
        while True:
            now = frozenset(pings.next_offsets() | parts.next_offsets())
            if now != held or time.monotonic() - reported_s >= self._about.every_seconds:
                reported_s, held = time.monotonic(), now
                await self._write(encode_report(await self._report(pings, parts, offsets, watchdog)))
            await asyncio.sleep(min(LOOK_S, self._about.every_seconds))

    async def end(self, status: int) -> None:
        """The last report: that we have ended with this status. After 0 the report is removed: no worker is missing."""
        last = WorkerReport(self._about, self._recent.work(self._clock(), ended=status)) if status else None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._write(None if last is None else encode_report(last)), END_S)
        if self._producer is not None:
            with suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._producer.stop(), END_S)

    async def _report(
        self, pings: SourceProcessor, parts: ShardProcessor, offsets: Offsets, watchdog: Watchdog
    ) -> WorkerReport:
        positions, ours = pings.next_offsets() | parts.next_offsets(), self._topics.pings.name
        ends = await self._ends(offsets, positions)
        held = [
            PartitionReport(tp.topic.removeprefix(self._kafka.prefix), tp.partition, at, unread(ends.get(tp), at))
            for tp, at in sorted(positions.items(), key=lambda found: (found[0].topic != ours, found[0]))
        ]
        slots = [slot for reader in pings.readers().values() for slot in reader.open_slots()]
        closing = {
            (shard, start): str(state)
            for shard, protocol in parts.protocols().items()
            for start, state in protocol.closing.items()
        }
        return WorkerReport(self._about, self._recent.work(self._clock(), slots, held, closing, watchdog.stuck_s))

    async def _ends(self, offsets: Offsets, positions: dict[TP, int]) -> dict[TP, int]:
        """Where our partitions end, as far as the broker says so in time. It is not asked again before it has said."""
        if self._asked is None:
            self._asked = asyncio.ensure_future(offsets.ends(positions))
        # After its time `wait` leaves the question open; `wait_for` would cancel it.
        await asyncio.wait({self._asked}, timeout=ANSWER_S)
        if not self._asked.done():
            return {}
        asked, self._asked = self._asked, None
        return {} if asked.cancelled() or asked.exception() is not None else asked.result()

    async def _write(self, payload: bytes | None) -> None:
        """The report, or None to remove it. It is not worth an error: the worker's own work would fail as well."""
        try:
            await self._send(payload)
        except (KafkaError, TimeoutError) as error:
            if not self._is_failing:
                why = type(error).__name__
                say(f"a report to {self._topics.workers.name} is lost ({why}): `udp-stream status` lacks it", "report",
                    level=WARNING)  # fmt: skip
            self._is_failing = True
        else:
            self._is_failing = False

    async def _send(self, payload: bytes | None) -> None:
        if self._producer is None:
            producer = AIOKafkaProducer(
                **client_options(self._kafka), acks=1, request_timeout_ms=round(ANSWER_S * 1000)
            )
            try:
                await producer.start()
            except KafkaError:
                await producer.stop()
                raise
            self._producer = producer
        key = self._about.instance.encode()
        sent = self._producer.send_and_wait(self._topics.workers.name, payload, key=key, partition=0)
        await asyncio.wait_for(sent, ANSWER_S)


def unread(end: int | None, next_offset: int) -> int | None:
    """How many messages there are from the next one on, in a partition that ends there.

    >>> unread(12, 9), unread(None, 9)
    (3, None)
    """
    return None if end is None else max(0, end - next_offset)


def read_reports(kafka: KafkaSection, now_s: float | None = None) -> list[Seen]:
    """The latest report of each worker that is running or still remembered, by name. Raises as `read_topic`."""
    topics: Topics = topics_of(kafka)
    latest: dict[bytes, Any] = {record.key: record for record in read_topic(kafka, topics.workers)}
    # The broker's clock gives a report its time: it cannot be later than now, whatever our clock says.
    newest_s = max((record.timestamp / 1000 for record in latest.values()), default=0.0)
    now_s = max(newest_s, time.time() if now_s is None else now_s)
    found = []
    for record in latest.values():
        report = None if record.value is None else decode_report(record.value)
        if report is not None and report.about.group == kafka.group:
            found.append(Seen(report, now_s - record.timestamp / 1000))
    return sorted((seen for seen in found if seen.is_remembered), key=lambda seen: seen.name)
