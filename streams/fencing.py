"""The fence of a shard: of the workers that think it is theirs, the ledger serves the one that was assigned it last."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from udp_stream.ledger.port import Ledger


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
    from udp_stream.adapters.ledgers.redis.session import Fence

    return ledger.fenced(Fence(shard, ledger.take_epoch(shard)))
