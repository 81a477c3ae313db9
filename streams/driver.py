"""The asynchronous driver of the road from a closed slot to its releases, with the ledger in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from udp_stream.adapters.embedded import Payloads, answer_to
from udp_stream.flow import Effect, Publish
from udp_stream.ports import Ledger

Flow = Generator[Effect, Any, Payloads]


async def drive(
    flow: Flow, ledger: Ledger, publish: Callable[[Payloads], Awaitable[None]], thread: ThreadPoolExecutor
) -> Payloads:
    """Run the road to its end. Planning, drawing and the ledger go on in `thread`; publishing is awaited here, and is
    over before the road goes on."""
    loop = asyncio.get_running_loop()
    while True:
        reached = await loop.run_in_executor(thread, _to_publish, flow, ledger)
        if not isinstance(reached, Publish):
            return reached
        await publish(reached.releases)


def _to_publish(flow: Flow, ledger: Ledger) -> Publish | Payloads:
    """Answer effects until something is to be published, or the road has ended."""
    answer: Any = None
    while True:
        try:
            effect = flow.send(answer)
        except StopIteration as stop:
            published: Payloads = stop.value
            return published
        if isinstance(effect, Publish):
            return effect
        answer = answer_to(effect, ledger, _unreachable)


def _unreachable(_payloads: Payloads) -> None:
    raise AssertionError("publishing is awaited by `drive`")
