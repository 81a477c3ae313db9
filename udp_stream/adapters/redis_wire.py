"""The driver of `redis_steps.py`: it carries out the steps over redis-py, and decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from udp_stream.adapters.redis_steps import NO_ANSWER, Pause, Send, Steps

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
        pipeline: Any = self._client(step.url).pipeline(transaction=False)
        for command in step.commands:
            pipeline.execute_command(*command)
        try:
            return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]
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
