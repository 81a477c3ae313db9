"""The ledger in Redis for callers that await: the same calls as `redis_ledger.py`, over the other driver."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from udp_stream.adapters.redis_calls import Calls, Fence, require_prefix
from udp_stream.adapters.redis_durability import known_ledger, opening, remember_ledger
from udp_stream.adapters.redis_ledger import DEFAULT_PREFIX
from udp_stream.adapters.redis_steps import load_scripts, route_to
from udp_stream.adapters.redis_wire import AsyncWire
from udp_stream.ports import Admission, Balance, Verdict


async def open_async_redis_ledger(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    id_file: str | os.PathLike[str] | None = None,
    allow_volatile: bool = False,
    replicas: int = 0,
) -> AsyncRedisLedger:
    """As `open_redis_ledger`, for the tasks of one event loop; use it with `async with`."""
    route, scripts = route_to(url, require_prefix(prefix), replicas), load_scripts()
    known = known_ledger(id_file)
    wire = AsyncWire()
    try:
        ledger_id = await wire.drive(opening(route, scripts, prefix, known, allow_volatile))
        if id_file is not None and known is None:
            remember_ledger(id_file, ledger_id)
    except BaseException:
        await wire.close()
        raise
    return AsyncRedisLedger(wire, Calls(route, scripts, prefix, ledger_id))


class AsyncRedisLedger:
    """The calls that workers make, as coroutines; each holds and raises what the one of `RedisLedger` does."""

    def __init__(self, wire: AsyncWire, calls: Calls) -> None:
        """Take over connections to what is known to be a ledger, and durable."""
        self._wire = wire
        self._calls = calls

    async def __aenter__(self) -> Self:
        """Open already; closes on leaving."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, whatever happened."""
        await self.close()

    async def close(self) -> None:
        """Close the connections, also those of ledgers made with `fenced`."""
        await self._wire.close()

    @property
    def ledger_id(self) -> str:
        """Names this ledger among all others: 32 hex digits."""
        return self._calls.ledger_id

    async def take_epoch(self, shard: str) -> int:
        """The next epoch of a shard; from now on holders of earlier ones are refused."""
        return await self._wire.drive(self._calls.take_epoch(shard))

    def fenced(self, fence: Fence) -> AsyncRedisLedger:
        """The same ledger over the same connections, whose `admit` and `record` are refused once the fence is stale."""
        return AsyncRedisLedger(self._wire, replace(self._calls, fence=fence))

    async def bind(self, fingerprint: str) -> None:
        """Tie the ledger to the key of its plates' hashes, for ever; PrivacyRefused if it is tied to another one."""
        await self._wire.drive(self._calls.bind(fingerprint))

    async def standing(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        return await self._wire.drive(self._calls.standing(release_ids))

    async def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """What each plate has spent in the period."""
        return await self._wire.drive(self._calls.balances(period, plates))

    async def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before."""
        return await self._wire.drive(self._calls.admit(period, budget, plates, admissions))

    async def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Keep the first payload of each id and return the ones that stand."""
        return await self._wire.drive(self._calls.record(releases))

    async def published(self, release_ids: Sequence[str]) -> None:
        """Remember that these payloads have reached their readers; ids without a payload are left alone."""
        await self._wire.drive(self._calls.published(release_ids))

    async def unpublished(self) -> AsyncIterator[tuple[str, bytes]]:
        """Recorded payloads that were never marked as published, oldest first."""
        last, before = 0, -1
        while last != before:
            before = last
            page, last = await self._wire.drive(self._calls.unpublished_page(last))
            for one in page:
                yield one
