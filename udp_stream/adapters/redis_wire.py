"""The two drivers of `redis_steps.py`: each carries out its steps over redis-py, and decides nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from udp_stream.adapters.redis_steps import NO_ANSWER, Command, Pause, Send, Steps

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0  # a slot of a large city takes a second

T = TypeVar("T")

# Trying again is decided in `exchange`. RESP2: the replies that scripts and clusters give have one form.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": ANSWER_TIMEOUT_S,
}


class Wire:
    """Connections to servers by their URL, for any number of threads."""

    def __init__(self) -> None:
        """Nothing is connected yet."""
        self._clients: dict[str, redis.Redis] = {}
        self._lock = threading.Lock()

    def drive(self, steps: Steps[T]) -> T:
        """Carry out a call; what it returns or raises."""
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = self._send(step)

    def _send(self, step: Send) -> Sequence[Any] | Exception:
        pipeline = self._client(step.url).pipeline(transaction=False)
        try:
            return _filled(pipeline, step.commands).execute(raise_on_error=False)  # type: ignore[no-any-return]
        except NO_ANSWER as error:
            return error

    def _client(self, url: str) -> redis.Redis:
        with self._lock:
            if url not in self._clients:
                self._clients[url] = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)
            return self._clients[url]

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()


class AsyncWire:
    """Connections to servers by their URL, for the tasks of one event loop."""

    def __init__(self) -> None:
        """Nothing is connected yet."""
        self._clients: dict[str, redis.asyncio.Redis] = {}

    async def drive(self, steps: Steps[T]) -> T:
        """Carry out a call; what it returns or raises."""
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await self._send(step)

    async def _send(self, step: Send) -> Sequence[Any] | Exception:
        if step.url not in self._clients:
            retry = AsyncRetry(NoBackoff(), 0)
            self._clients[step.url] = redis.asyncio.Redis.from_url(step.url, retry=retry, **_OPTIONS)
        pipeline = self._clients[step.url].pipeline(transaction=False)
        try:
            return await _filled(pipeline, step.commands).execute(raise_on_error=False)  # type: ignore[no-any-return]
        except NO_ANSWER as error:
            return error

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()


def _filled(pipeline: Any, commands: Sequence[Command]) -> Any:
    for command in commands:
        pipeline.execute_command(*command)
    return pipeline
