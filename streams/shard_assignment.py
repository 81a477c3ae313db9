"""A partition of the shuffle topic in the hands of this worker."""

from __future__ import annotations

from dataclasses import dataclass

from streams.publishing import Publisher
from udp_stream.ledger.port import Ledger
from udp_stream.release.context import ReleaseContext
from udp_stream.shuffle.shard_protocol import ShardCheckpoint, ShardProtocol


@dataclass(slots=True)
class ShardAssignment:
    """Its protocol, its fenced ledger, how it publishes, and what it releases with."""

    partition: int
    protocol: ShardProtocol
    ledger: Ledger
    publisher: Publisher
    context: ReleaseContext
    committed: ShardCheckpoint | None = None

    def checkpoint_if_moved(self) -> ShardCheckpoint | None:
        """The checkpoint to commit, if there is a new one and it is safe."""
        if not self.protocol.may_commit or (to := self.protocol.checkpoint()) == self.committed:
            return None
        return to
