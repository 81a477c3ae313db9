"""The Faust transport with one event per fetched batch: the one file that overrides how Faust reads.

Faust as it comes hands every record through some four tasks (50 microseconds each); a batch costs the same as one. The
conductor, back-pressure, generation checks and rebalancing stay Faust's: what is replaced is the loop that takes
records from the consumer (`_drain_messages`), with the order of its steps kept. It is private to Faust, hence the
pinned version and the tests on it.

`_read_offset` of a partition is the offset after the last record handed over.

A fetch that a rebalance overtakes is not handed over. It may be of the partition as newly assigned, whose position is
then behind it. So a seek follows every dropped fetch; without it the fetch would never be read.

The Faust app is a shell for agents, rebalancing and the consumer's thread, with none of its state or acks. What is
switched off here loses or delays pings when trusted: acks (they commit past what is held), waiting for streams
to empty (it blocks rebalances), tables, leaders and topic declarations. Offsets are ours (`kafka.py`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, cast

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from streams.binding import Binding
from streams.kafka import Committed, Headers, NotAssigned, Offsets, OutgoingRecord, Producer, shortened
from streams.topics import Topic, Topics, faust_credentials, faust_options
from udp_stream.errors import DependencyUnavailable, Fenced
from udp_stream.release.facts import Observer, report_to
from udp_stream.release.query_road import QuerySet
from udp_stream.settings import Settings
from udp_stream.shuffle.wire import encode_message

BATCHES_MAX = 16
"""Fetched batches that wait in memory before Faust stops fetching."""


class BatchMessage(ConsumerMessage):
    """The records of one partition from one fetch, posing as the last of them."""

    __slots__ = ("records",)

    records: Sequence[Any]


class BatchSchema(faust.Schema[Any, Any]):
    """Gives an agent the records of a batch, untouched."""

    def loads_key(self, app: Any, message: Any, **_options: Any) -> Any:
        """Nothing: a batch has no key."""

    def loads_value(self, app: Any, message: Any, **_options: Any) -> Any:  # noqa: ARG002 (Faust's signature)
        """The consumer's records: `topic`, `partition`, `offset`, `timestamp`, `timestamp_type`, `value`, `headers`."""
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
        """Nothing: it tells of slow acks, of which there are none, and fails while a seek is under way."""

    def stop_flow(self) -> None:
        """A rebalance begins: what was fetched by now is not to be handed over, not even in the same generation."""
        self.drop_fetched()
        super().stop_flow()

    def drop_fetched(self) -> None:
        """What is being fetched, or handed over, is not to be taken any more: a seek follows."""
        self._stops += 1

    async def perform_seek(self) -> None:
        """Back to the commits, and to the beginning where the commit is 0 or there is none.

        The client's own `seek_to_committed` leaves those partitions where they are, so that records fetched and dropped
        while a rebalance went on would never be read: all of a log whose first slot was still open.
        """
        try:
            await super().perform_seek()
            fresh = [self._new_topicpartition(*tp) for tp in self.assignment() if not self._read_offset.get(tp)]
            if fresh:
                await self._thread.seek_to_beginning(*fresh)
        except (AssertionError, NotAssigned):
            return  # another rebalance has taken them: it seeks when it ends

    async def _drain_once(self) -> None:
        """One fetch: hand over each partition's records, unless a rebalance has begun meanwhile."""
        # Before the fetch: a rebalance that comes while we wait makes stale what it brings.
        now = self._era()
        fetched, active = await self._wait_next_records(1.0)
        await self.sleep(0)
        if fetched is None or self.should_stop:
            return
        for tp, records in fetched.items():
            here = active is None or tp in active or tp in self._buffered_partitions
            if not (here and self.flow_active and self._era() == now and await self._hand_over(tp, records)):
                await self.perform_seek()
                return

    def _era(self) -> tuple[int, int]:
        return self.app.consumer_generation_id, self._stops

    async def _hand_over(self, tp: TP, records: Sequence[Any]) -> bool:
        """False if a rebalance came first."""
        read, now = self._read_offset.get(tp), self._era()
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
    """Give it to an app before it starts: `app.transport = BatchTransport(app.conf.broker_consumer, app)`."""

    Consumer = cast(Any, BatchConsumer)


POLL_RECORDS_MAX = 5000


def build_app(settings: Settings, instance: str | None, client: str, folder: str, session_s: float) -> faust.App:
    """An app without agents. `instance` names this worker for ever: started again under it, it has its partitions back
    at once. `client` is its client id; the group misses it after `session_s`. `folder` is where Faust makes
    its folders; nothing is kept there."""
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


class Common(NamedTuple):
    """What both processors of a worker work with. `queries` are those that are asked, if any are."""

    topics: Topics
    offsets: Offsets
    producer: Producer
    binding: Binding
    accept_loss: bool = False
    observers: Sequence[Observer] = ()
    queries: QuerySet | None = None


@dataclass(slots=True)
class Assignment:
    """A partition in the hands of this worker: its protocol, the last checkpoint that was committed, and what has to be
    acknowledged before the next one is."""

    partition: int
    protocol: Any
    committed: Any = field(default=None, init=False)
    unacknowledged: deque[asyncio.Future[None]] = field(default_factory=deque, init=False)

    @property
    def next_offset(self) -> int:
        """The next offset to read."""
        raise NotImplementedError

    def checkpoint_if_moved(self) -> Any:
        """The checkpoint to commit, if there is a new one and it is safe."""
        if not self.protocol.may_commit or (to := self.protocol.checkpoint()) == self.committed:
            return None
        return to


A = TypeVar("A", bound=Assignment)


class Place(NamedTuple):
    """A partition that becomes ours: its last commit, the first offset that is left, and that of its next record."""

    tp: TP
    committed: Committed
    first: int
    end: int


class Partitions(ABC, Generic[A]):
    """The partitions of one topic that are assigned to this worker, each with a protocol that says what is due.

    | what happens | what is done |
    | --- | --- |
    | `assign` | fence off former owners, read checkpoints, resume; dropped if a rebalance comes meanwhile |
    | `process` | read a batch, carry out what is due, commit |
    | `commit` | commit the checkpoints that have moved, one commit after the other |
    | `revoke` | drop all state at once |

    Records may be gone from a log. A consumer whose next record is gone goes on with the first one that is left, and
    says nothing: so a partition is looked at when it becomes ours, and whenever what comes next is not the record that
    was to come. And a log may end before what was read of it: its broker has lost the end of it, or it was made anew
    and the group's commits were kept. New records then have offsets that a reader would take for read: so a
    partition's end is looked at when it becomes ours. Where the log has grown further meanwhile, nobody can tell. With
    `accept_loss` reading goes on from the first record that is left.
    """

    lost: str
    """What it means that records of this topic are gone, in words."""

    def __init__(self, topic: str, common: Common) -> None:
        """No partitions yet."""
        self._topic, self._topics, self._offsets, self._producer, self._binding = topic, *common[:4]
        self._accept_loss, self._queries = common.accept_loss, common.queries
        self._asked = "" if self._queries is None else self._queries.digest
        self._periods = None if self._queries is None else self._queries.periods
        self._report = report_to(*common.observers)
        self._assignments: dict[int, A] = {}
        self._revocations, self._committing, self._goes_back = 0, asyncio.Lock(), False
        self._headers: Headers = [self._binding.header]  # of messages between workers
        self.done = 0  # steps, for the watchdog: one batch may hold many slots, and nothing is read meanwhile

    def next_offsets(self) -> dict[TP, int]:
        """The next offset to read, for each of our partitions."""
        return {TP(self._topic, of): assigned.next_offset for of, assigned in self._assignments.items()}

    def revoke(self) -> None:
        """The partitions are no longer ours: drop their state at once."""
        self._revocations += 1
        for assigned in self._assignments.values():
            self._drop(assigned)
        self._assignments = {}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours, unless they are revoked meanwhile: fence off their former owners, and only then
        read the checkpoints."""
        self.revoke()
        revocations, self._goes_back = self._revocations, False
        assignments: dict[int, A] = {}
        async with self._fenced(tps) as resume:
            committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
            ends = await self._offsets.ends(tps)
            for tp in tps:
                assignments[tp.partition] = await resume(Place(tp, committed[tp], first[tp], ends[tp]))
            if revocations == self._revocations:
                self._assignments = assignments
        if self._goes_back and revocations == self._revocations:
            await self.commit()  # the consumer goes by commits
            await self._offsets.seek()

    async def process(self, records: Sequence[Any]) -> None:
        """Process a batch of one partition: read it, carry out what is due, commit."""
        of = records[0].partition
        if (assigned := self._assignments.get(of)) is None:
            return
        await self._require_before(records, assigned.next_offset)
        self._read(assigned, records)
        commit_is_due = False
        try:
            while self._assignments.get(of) is assigned and (step := assigned.protocol.next()) is not None:
                commit_is_due = await self._carry_out(assigned, step) or commit_is_due
                self.done += 1
        except Fenced:  # its owner does the same, though the group has not said so yet
            if self._is_ours(assigned):
                self._drop(self._assignments.pop(assigned.partition))
                await self._offsets.rejoin()
            return
        if commit_is_due:
            await self.commit()

    async def commit(self) -> None:
        """Commit the checkpoints that have moved, if everything before them is on the broker.

        It runs to its end even if its caller is cancelled: until it has arrived, nothing else may move a checkpoint.
        """
        await asyncio.shield(self._commit())

    async def _commit(self) -> None:
        async with self._committing:
            found = [(assigned, assigned.checkpoint_if_moved()) for assigned in self._assignments.values()]
            moved = [(assigned, to) for assigned, to in found if to is not None]
            # A list of its own: more may be sent while we wait.
            for sending in [sending for assigned, _ in moved for sending in assigned.unacknowledged]:
                await sending
            if moved and await self._offsets.commit(self._commits(moved)):
                for assigned, to in moved:
                    assigned.committed = to

    def _commits(self, moved: Sequence[tuple[A, Any]]) -> dict[TP, Committed]:
        return {
            TP(self._topic, assigned.partition): Committed(to.offset, self._metadata(assigned, to))
            for assigned, to in moved
        }

    def _is_ours(self, assigned: A) -> bool:
        return self._assignments.get(assigned.partition) is assigned

    async def _send(self, messages: Sequence[tuple[int, Any]]) -> None:
        """Send each message to the partition of a shard."""
        name, headers = self._topics.parts.name, self._headers
        await self._producer.write(
            OutgoingRecord(name, encode_message(message), headers=headers, partition=partition)
            for partition, message in messages
        )

    # What is needed has to be there, unless `accept_loss`.

    def _require(self, tp: TP, first: int, offset: int) -> None:
        """DependencyUnavailable if the partition begins, at `first`, behind this offset."""
        if first > offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {offset} on: "
                f"{self.lost}. `udp-stream worker --accept-loss` continues without them"
            )

    async def _require_before(self, records: Sequence[Any], next_offset: int) -> None:
        """The same, for the records from `next_offset` up to these, which have come instead."""
        # The broker is asked only where there is a gap. There may be one without a loss: offsets need not be dense.
        if records[0].offset > next_offset and not self._accept_loss:
            tp = TP(records[0].topic, records[0].partition)
            self._require(tp, (await self._offsets.first({tp}))[tp], next_offset)

    def _restart_offset(self, place: Place, read_to: int) -> int | None:
        """Where to read the partition again if it ends before what was read of it: at its first record, as the consumer
        does. None if it has all from the commit on. DependencyUnavailable unless `accept_loss`."""
        self._require(place.tp, place.first, place.committed.offset)
        if place.end >= read_to:
            return None
        if not self._accept_loss:
            raise shortened(place.tp, place.end, read_to)
        self._goes_back = True
        return place.first

    # What sources and shards do each in their way.

    @abstractmethod
    def _fenced(self, tps: set[TP]) -> AbstractAsyncContextManager[Callable[[Place], Awaitable[A]]]:
        """Fence off former owners; what it yields resumes a partition from its checkpoint."""

    @abstractmethod
    def _read(self, assigned: A, records: Sequence[Any]) -> None:
        """Give a batch to the protocol."""

    @abstractmethod
    async def _carry_out(self, assigned: A, step: Any) -> bool:
        """Do what a step of the protocol says, and tell it; whether a commit is due."""

    @abstractmethod
    def _metadata(self, assigned: A, to: Any) -> str:
        """What is committed beside the offset of this checkpoint."""

    def _drop(self, assigned: A) -> None:
        """A partition is no longer ours. Work that is waiting sees that its assignment is gone."""
