"""How a slot's releases reach their readers, and the shard's checkpoint moves past the slot: in this order, or at once.

**At least once**: the records are written, then the shard's checkpoint is committed. A crash in between writes the same
bytes again, under the same ids.

**Strictly once**: records and checkpoint are one Kafka transaction. Readers of committed records
(`isolation.level=read_committed`) see all of a slot or nothing, and never anything twice: the checkpoint moves with the
records or not at all.

It holds because of who may commit. Each shard has one transactional id. A worker that is assigned the shard first asks
for a new epoch of that id: the broker then aborts or completes what the former owner had begun, and refuses all that it
tries later (`Fenced`). Only *then* is the checkpoint read. So at any time one producer can commit, and it has seen the
last commit before its own. The group's generation would say less: it is known to be stale only once the group has been
formed anew, and the checkpoint could be read before that.

Between slots the checkpoint moves with plain commits of the group (`offsets.py`). None of them can undo a transaction:
a shard processor has one of either under way at a time, and commits are sent in the generation in which the shard was
ours or not at all; the broker refuses them once the group was formed anew, which is before any other worker is assigned
the shard.

The producer is aiokafka's. kafka-python's (3.0.12) fences as well, and takes the group's generation. But a request of
its transaction that meets a refused connection is dropped by its sender and never answered, so that
`commit_transaction` waits for ever once a broker has restarted within a transaction (four of eight runs). It also takes
two and a half times as long (0.25 s for 6,000 records, against 0.10).

The worker may die after a commit and before it informs the ledger of the releases: `settle` informs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownProducerId,
)
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from streams.connections import RIGHTS, client_options, refusal
from streams.offsets import Committed, Offsets
from streams.producer import REQUEST_BYTES_MAX, OutgoingRecord, Producer, write_batched
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import DependencyUnavailable, Fenced
from udp_stream.ledger.port import Ledger
from udp_stream.pings.times import parse_timestamps
from udp_stream.planning.periods import PositionPeriods
from udp_stream.release.query_record import moment_of
from udp_stream.release.record import decode, kind_of
from udp_stream.shuffle.barrier import NOT_YET
from udp_stream.shuffle.wire import shard_of, shard_of_period

BEGIN_S = 60.0
"""For a new epoch: the broker first ends the former owner's transaction."""

CLOSE_S = 5.0

BATCH_BYTES_MAX = 2**19
"""Half of what brokers usually take as one batch."""

TRANSACTION_MS = 60_000
"""After this time the broker aborts a transaction. A slot takes well below a second; until a transaction ends,
readers of what is committed wait behind it."""

# The broker says one of these to a producer that is not the latest of its id, or whose transaction it has given up.
_LOST = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownProducerId,
)


class Publisher(Protocol):
    """Publishes the slots of one shard while the shard is ours."""

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """Return when readers can read the records and the checkpoint is committed. `Fenced`: the shard is not ours."""
        ...

    async def close(self) -> None:
        """Disconnect; what was not published stays unpublished."""
        ...


PublisherOf = Callable[[TP], Awaitable[Publisher]]


class AtLeastOnce:
    """Records first, then the checkpoint."""

    def __init__(self, producer: Producer, offsets: Offsets) -> None:
        """Nothing of its own to close."""
        self._producer = producer
        self._offsets = offsets

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """If the shard is no longer ours, the checkpoint is not committed: its owner writes the same records again."""
        await self._producer.write(records)
        await self._offsets.commit(checkpoint)

    async def close(self) -> None:
        """Nothing."""


class StrictlyOnce:
    """Records and checkpoint in one transaction; `begin` makes one."""

    def __init__(self, producer: AIOKafkaProducer, group: str) -> None:
        """Take over a producer that has its epoch."""
        self._producer = producer
        self._group = group
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    @classmethod
    async def begin(cls, kafka: KafkaSection, shard: TP) -> StrictlyOnce:
        """Fence off the former owner of the shard. DependencyUnavailable if the broker begins no transactions."""
        producer = AIOKafkaProducer(
            **client_options(kafka),
            acks="all",
            transactional_id=f"{kafka.group}/{shard.topic}/{shard.partition}",
            transaction_timeout_ms=TRANSACTION_MS,
            max_batch_size=BATCH_BYTES_MAX,
            max_request_size=REQUEST_BYTES_MAX,
        )
        try:
            await asyncio.wait_for(producer.start(), BEGIN_S)
        except (KafkaError, TimeoutError) as error:
            await _stop(producer)
            raise no_transaction(kafka, error) from error
        return cls(producer, kafka.group)

    async def publish(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        """One transaction. It is committed only after every record was taken; after any error, never by us. `Fenced`
        also if it is closed meanwhile; then the next owner finds out whether it was committed."""
        self._under_way = asyncio.ensure_future(self._transact(records, checkpoint))
        try:
            await self._under_way
        except asyncio.CancelledError:
            if self._closed:
                raise Fenced("the shard was dropped while it published") from None
            raise
        except KafkaError as error:
            if isinstance(error, _LOST) or isinstance(error.__cause__, _LOST):
                raise Fenced(
                    "another worker has begun a later transaction of this shard, or the broker has ended ours"
                ) from error
            raise DependencyUnavailable(f"Kafka did not take a slot's releases: {error}") from error

    async def _transact(self, records: Iterable[OutgoingRecord], checkpoint: Mapping[TP, Committed]) -> None:
        offsets = {TopicPartition(*tp): OffsetAndMetadata(offset, note) for tp, (offset, note) in checkpoint.items()}
        await self._producer.begin_transaction()
        await write_batched(self._producer, records)
        await self._producer.send_offsets_to_transaction(offsets, self._group)
        await self._producer.commit_transaction()

    async def close(self) -> None:
        """Disconnect. A transaction under way is aborted by the next owner, or by the broker after its timeout."""
        self._closed = True
        if self._under_way is not None:
            self._under_way.cancel()  # a producer that is stopped would never end it
        await _stop(self._producer)


async def _stop(producer: AIOKafkaProducer) -> None:
    # What it leaves open is ended by the next owner, or by the broker: a failure here changes nothing.
    with suppress(KafkaError, TimeoutError):
        await asyncio.wait_for(producer.stop(), CLOSE_S)


def settle(
    ledger: Ledger,
    shard: int,
    shards: int,
    released_ms: int,
    answered_ms: int = NOT_YET,
    periods: PositionPeriods | None = None,
) -> None:
    """Inform the ledger of what was published: of the shard, by its checkpoint, slots that end by `released_ms` and
    moments up to `answered_ms`; `periods` are those of positions, where queries are asked."""
    waiting = [(id_, payload) for id_, payload in ledger.unpublished()]
    gone = _released([one for one in waiting if kind_of(one[0]) == "hat"], shard, shards, released_ms)
    if periods is not None:
        gone += [id_ for id_, _ in waiting if _is_answered(id_, shard, shards, answered_ms, periods)]
    if gone:
        ledger.published(gone)


def _released(waiting: list[tuple[str, bytes]], shard: int, shards: int, released_ms: int) -> list[str]:
    if not waiting:
        return []
    hats = [decode(payload).hat for _, payload in waiting]
    ends, _ = parse_timestamps([hat.slot_end for hat in hats])
    of = shard_of(np.array([int(hat.cell, 16) for hat in hats], dtype=np.uint64), shards)
    through = (ends <= released_ms) & (of == shard)
    return [id_ for (id_, _), is_gone in zip(waiting, through.tolist(), strict=True) if is_gone]


def _is_answered(id_: str, shard: int, shards: int, answered_ms: int, periods: PositionPeriods) -> bool:
    """Whether it is an answer, or a round of one, that this shard has published."""
    if kind_of(id_) not in ("query", "round") or (moment_ms := moment_of(id_)) > answered_ms:
        return False
    return shard_of_period(periods.start_of(moment_ms), shards) == shard


def no_transaction(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """What to raise where the broker begins none.

    >>> str(no_transaction(KafkaSection(), TimeoutError()))[:90]
    'Kafka at localhost:9092 cannot begin a transaction (TimeoutError): are there fewer brokers'
    """
    why = f" ({type(error).__name__}): are there fewer brokers than transaction.state.log.replication.factor?"
    if getattr(error, "errno", None) in RIGHTS:
        why = f": {refusal(error)}."
    return DependencyUnavailable(
        f"Kafka at {kafka.bootstrap} cannot begin a transaction{why} With kafka.transactions = false releases are "
        "published at least once"
    )
