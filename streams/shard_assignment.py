"""A partition of the shuffle topic in the hands of this worker.

Of the workers that think a shard is theirs, the ledger serves the one that was assigned it last: the fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from streams.group import OTHER_QUERIES
from streams.headers import other_version
from streams.publishing import Publisher
from udp_stream.errors import ConfigError
from udp_stream.ledger.port import Ledger
from udp_stream.mechanisms.ball import PlateNorms
from udp_stream.release.charge import ReleaseContext, record_city, slot_sums
from udp_stream.release.road import factors_once, slot_norms
from udp_stream.shuffle.protocol import AskCity, Measure, Remember, ShardCheckpoint, ShardProtocol
from udp_stream.shuffle.wire import PositionsEnd, decode_message


@runtime_checkable
class Fencing(Protocol):
    """A ledger that lets only the latest owner of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; owners with an earlier one are refused from now on."""
        ...

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the owner of (shard, epoch)."""
        ...


def fenced_for(ledger: Ledger, shard: str) -> Ledger:
    """The ledger for the new owner of this shard; the same one where it knows no fences."""
    if not isinstance(ledger, Fencing):
        return ledger
    from udp_stream.ledgers.redis import Fence

    return ledger.fenced(Fence(shard, ledger.take_epoch(shard)))


@dataclass(slots=True)
class ShardAssignment:
    """Its protocol, its fenced ledger, how it publishes, and what it releases with."""

    partition: int
    protocol: ShardProtocol
    ledger: Ledger
    publisher: Publisher
    context: ReleaseContext
    begun: int = 0
    """The partition's end when it became ours: who writes behind that is running now."""
    committed: ShardCheckpoint | None = None

    def add(self, record: Any, asked: str) -> None:
        """Add a record of the partition. ConfigError if another version wrote it, or if its writer, who is running,
        asks other queries than `asked`."""
        try:
            message = decode_message(record.value)
        except msgspec.DecodeError as error:
            where = f"{record.topic}[{record.partition}], offset {record.offset},"
            raise other_version(f"the message at {where}") from error
        # An empty `asked` is no other configuration: it tells up to when moments are lost.
        if record.offset >= self.begun and isinstance(message, PositionsEnd) and message.asked not in ("", asked):
            raise ConfigError(f"the writer of {record.topic}[{record.partition}] at {record.offset} {OTHER_QUERIES}")
        self.protocol.add(record.offset, message)

    def checkpoint_if_moved(self) -> ShardCheckpoint | None:
        """The checkpoint to commit, if there is a new one and it is safe."""
        if not self.protocol.may_commit or (to := self.protocol.checkpoint()) == self.committed:
            return None
        return to

    def measure(self, step: Measure) -> tuple[PlateNorms, tuple[int, ...]]:
        """How far the slot's plates are from their forecasts, and its part of the sums over the whole city. Secret."""
        of_slot = step.counts, step.values, step.plan
        return slot_norms(*of_slot, self.context.policy), slot_sums(self.context.city, *of_slot)

    def ask_city(self, step: AskCity) -> None:
        """Record what the whole city is asked."""
        record_city(self.context.city, step.sums, step.plan, self.context.entropy, self.ledger)

    def remember(self, step: Remember) -> dict[bytes, int]:
        """Remember the plates' norms; the factors that hold."""
        slot = step.start, step.end_ms
        return factors_once(step.norms, step.expected, slot, self.context, self.ledger)
