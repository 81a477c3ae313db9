"""The Faust transport with an event per fetched batch: the only file that overrides how Faust
reads.

Faust as it comes hands every record through some four tasks (50 microseconds each); a batch costs
the same as a record. The conductor, back-pressure, generation checks and rebalancing stay Faust's.
Only the loop that takes records from the consumer (`_drain_messages`) is replaced, with the order
of its steps kept: it is private to Faust, hence the pinned version and the tests on it.
`_read_offset` of a partition is the offset after the last record handed over.

A fetch that a rebalance overtakes is not handed over: the partition's position may be behind it. A
seek follows every dropped fetch; without it the fetch would never be read.

The Faust app has none of its state or acks. What is switched off here loses or delays pings when
trusted: acks (they commit past what is held), waiting for streams to empty (it blocks rebalances),
tables, leaders, topic declarations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from streams.kafka import NotAssigned
from streams.topics import Topic, faust_credentials, faust_options
from udp_stream.settings import Settings

BATCHES_MAX = 16
"""Fetched batches that wait in memory before Faust stops fetching."""


class BatchMessage(ConsumerMessage):
    """The records of a partition from a fetch, posing as the last of them."""

    __slots__ = ("records",)

    records: Sequence[Any]


class BatchSchema(faust.Schema[Any, Any]):
    """Schema that gives an agent the records of a batch, untouched."""

    def loads_key(self, app: Any, message: Any, **_options: Any) -> Any:
        """Return nothing: a batch has no key."""

    def loads_value(self, app: Any, message: Any, **_options: Any) -> Any:  # noqa: ARG002 (Faust's signature)
        """The consumer's records: `topic`, `partition`, `offset`, `timestamp`, `timestamp_type`,
        `value`, `headers`."""
        return message.records


class BatchConsumer(driver.Consumer):
    """Faust's consumer, a batch at a time."""

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                await self._drain_once()
        except self.consumer_stopped_errors:
            if not self.transport.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not self.transport.app.should_stop:
                raise

    _stops = 0

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust's own tells of slow acks, of which there are none, and fails while a
        seek is under way."""

    def stop_flow(self) -> None:
        """A rebalance begins: what was fetched by now is not to be handed over, not even in the
        same generation."""
        self.drop_fetched()
        super().stop_flow()

    def drop_fetched(self) -> None:
        """A seek follows."""
        self._stops += 1

    async def perform_seek(self) -> None:
        """Seek back to the commits, and to the beginning where the commit is 0 or there is none.

        The client's own `seek_to_committed` leaves those partitions where they are, so that records
        fetched and dropped while a rebalance went on would never be read: all of a log whose first
        slot was still open.
        """
        try:
            await super().perform_seek()
            fresh = [
                self._new_topicpartition(*tp)
                for tp in self.assignment()
                if not self._read_offset.get(tp)
            ]
            if fresh:
                await self._thread.seek_to_beginning(*fresh)
        except (AssertionError, NotAssigned):
            return  # another rebalance has taken them: it seeks when it ends

    async def _drain_once(self) -> None:
        # Before the fetch: a rebalance that comes while we wait makes stale what it brings.
        now = self._era()
        fetched, active = await self._wait_next_records(1.0)
        await self.sleep(0)
        if fetched is None or self.should_stop:
            return
        for tp, records in fetched.items():
            here = active is None or tp in active or tp in self._buffered_partitions
            if not (
                here
                and self.flow_active
                and self._era() == now
                and await self._hand_over(tp, records)
            ):
                await self.perform_seek()
                return

    def _era(self) -> tuple[int, int]:
        return self.app.consumer_generation_id, self._stops

    async def _hand_over(self, tp: TP, records: Sequence[Any]) -> bool:
        """Hand the records over; False if a rebalance came first."""
        read = self._read_offset.get(tp)
        now = self._era()
        new = records if read is None else [record for record in records if record.offset >= read]
        if not new:
            return True
        message = self._to_batch(tp, new)
        await self.wait_first(self.callback(message), self.suspend_flow.wait())
        if self._era() != now:
            return False
        self._read_offset[tp] = new[-1].offset + 1
        return True

    def _to_batch(self, tp: TP, records: Sequence[Any]) -> BatchMessage:
        last = records[-1]
        message = BatchMessage(
            last.topic,
            last.partition,
            last.offset,
            (last.timestamp or 0) / 1000.0,
            last.timestamp_type,
            [],
            None,
            b"",
            None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )
        message.records = records
        return message


class BatchTransport(driver.Transport):
    """Give it to an app before it starts: `app.transport = BatchTransport(app.conf.broker_consumer,
    app)`."""

    Consumer = cast(Any, BatchConsumer)


POLL_RECORDS_MAX = 5000


def build_app(
    settings: Settings, instance: str | None, client: str, folder: str, session_s: float
) -> faust.App:
    """An app without agents.

    `instance` names this worker for ever: started again under it, it has its partitions back at
    once. The group misses the client id after `session_s`. Nothing is kept in Faust's `folder`.
    """
    kafka = settings.kafka
    app = faust.App(
        kafka.group,
        broker=[f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")],
        broker_credentials=faust_credentials(kafka),
        store="memory://",
        datadir=folder,
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,
        stream_buffer_maxsize=BATCHES_MAX,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        broker_client_id=client,
        broker_session_timeout=session_s,
        broker_rebalance_timeout=max(session_s, 10.0),
        broker_heartbeat_interval=session_s / 4,
        broker_max_poll_records=POLL_RECORDS_MAX,
        # Faust never commits here, and would warn that its commits do not advance.
        broker_commit_livelock_soft_timeout=1e9,
        worker_redirect_stdouts=False,
        **faust_options(kafka),
    )
    app.transport = BatchTransport(app.conf.broker_consumer, app)
    return app


def batches(app: faust.App, topic: Topic) -> faust.TopicT:
    """The topic as a source of batches that Faust neither acks nor commits."""
    return app.topic(topic.name, schema=BatchSchema(), acks=False)
