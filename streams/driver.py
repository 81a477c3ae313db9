"""The asynchronous driver of the road from a closed slot to its releases, with the ledger in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from udp_stream.adapters.embedded import answer_to
from udp_stream.ledger.port import Ledger
from udp_stream.release.road import Effect, Payloads, Publish

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ended(Generic[T]):
    result: T


async def drive(
    flow: Generator[Effect, Any, T],
    ledger: Ledger,
    publish: Callable[[Publish], Awaitable[None]],
    thread: ThreadPoolExecutor,
) -> T:
    """Run the road to its end. Planning, drawing and the ledger go on in `thread`; publishing is awaited here, and is
    over before the road goes on."""
    loop = asyncio.get_running_loop()
    while True:
        reached = await loop.run_in_executor(thread, lambda: _to_publish(flow, ledger))
        if isinstance(reached, _Ended):
            return reached.result
        await publish(reached)


def _to_publish(flow: Generator[Effect, Any, T], ledger: Ledger) -> Publish | _Ended[T]:
    """Answer effects until something is to be published, or the road has ended."""
    answer: Any = None
    while True:
        try:
            effect = flow.send(answer)
        except StopIteration as stop:
            return _Ended(stop.value)
        if isinstance(effect, Publish):
            return effect
        answer = answer_to(effect, ledger, _unreachable)


def _unreachable(_payloads: Payloads) -> None:
    raise AssertionError("publishing is awaited by `drive`")
