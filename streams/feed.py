"""Recorded pings into Kafka: keyed by plate, so that a plate stays on one partition, in order and without repeats.

A message is sent as it is. With `batch` over 1, messages of one plate's partition are joined into JSON arrays of that
many, as the exchange sends them; what is not a single ping is sent alone. The key is a hash of the plate: keys show up
in tools and logs.
"""

from __future__ import annotations

import time
from collections import deque
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import msgspec

from streams.topics import BOOTSTRAP_MS, partitions_of
from udp_stream.errors import DependencyUnavailable
from udp_stream.timestamps import parse_timestamps

BATCH_BYTES_MAX = 900_000


class _Who(msgspec.Struct):
    license_plate: str = ""
    observationDateTime: str = ""  # noqa: N815 (the exchange's name)


_who = msgspec.json.Decoder(_Who).decode


def key_of(message: bytes) -> bytes | None:
    """The partition key of a message that is one ping: the same for the same plate. None for anything else.

    >>> key_of(b'{"license_plate": "A"}') == key_of(b'{"license_plate": " A ", "speed": 1}'), key_of(b"[]")
    (True, None)
    """
    try:
        plate = _who(message).license_plate.strip()
    except (msgspec.DecodeError, RecursionError):
        return None
    return blake2b(plate.encode("utf-8", "surrogatepass"), digest_size=8).digest() if plate else None


AGREEING = 4
"""Pings in a row that must have reached a time before it has come: a clock decades ahead is not waited for."""


class Pace:
    """When the next message may go: so many a second, or so many times faster than the pings' own times."""

    def __init__(self, rate: float | None = None, speedup: float | None = None) -> None:
        """Without either, at once."""
        self.began = time.monotonic()
        self._rate = rate
        self._speedup = speedup
        self._first_ms: int | None = None
        self._latest_ms = 0
        self._heard_ms: deque[int] = deque(maxlen=AGREEING)

    def due_s(self, sent: int, message: bytes) -> float:
        """Seconds after the beginning at which this message is due; `sent` went before it."""
        if self._rate is not None:
            return sent / self._rate
        if self._speedup is None:
            return 0.0
        self._hear(message)
        first = self._latest_ms if self._first_ms is None else self._first_ms
        return (self._latest_ms - first) / 1000 / self._speedup

    def _hear(self, message: bytes) -> None:
        try:
            times, status = parse_timestamps([_who(message).observationDateTime])
        except (msgspec.DecodeError, RecursionError):
            return
        if status[0] == 0:
            self._heard_ms.append(int(times[0]))
            if len(self._heard_ms) == AGREEING:
                reached_ms = min(self._heard_ms)
                self._first_ms = reached_ms if self._first_ms is None else self._first_ms
                self._latest_ms = max(self._latest_ms, reached_ms)

    def wait(self, sent: int, message: bytes) -> None:
        """Sleep until it is due."""
        pause = self.began + self.due_s(sent, message) - time.monotonic()
        if pause > 0:
            time.sleep(pause)


class Feed:
    """An idempotent producer of pings; use it as a context manager, which returns when the broker has them all."""

    def __init__(self, bootstrap: str, topic: str, batch: int, pace: Pace) -> None:
        """DependencyUnavailable if no broker answers or it has no such topic."""
        try:
            from kafka import KafkaProducer
            from kafka.errors import KafkaError
        except ImportError as error:
            raise DependencyUnavailable("no Kafka client: pip install 'udp-stream[kafka]'") from error
        self._errors = KafkaError
        self._topic = topic
        self._batch = batch
        self._pace = pace
        self._held: dict[int, list[bytes]] = {}
        self._held_bytes: dict[int, int] = {}
        self._failed: list[BaseException] = []
        self.sent = 0
        self._partitions = partitions_of(bootstrap, topic)
        try:
            self._producer: Any = KafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                enable_idempotence=True,
                linger_ms=20,
                batch_size=2**18,
                bootstrap_timeout_ms=BOOTSTRAP_MS,
            )
        except KafkaError as error:
            raise DependencyUnavailable(f"Kafka at {bootstrap}: {error}") from error

    def __enter__(self) -> Self:
        """Connected already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is held, wait for all of it, and disconnect."""
        try:
            if kind is None:
                for partition in list(self._held):
                    self._send_held(partition)
                self._producer.flush()
                self._raise_failed()
        finally:
            self._producer.close()

    def send(self, messages: list[bytes]) -> None:
        """Send messages at their pace. DependencyUnavailable if the broker did not take an earlier one."""
        for message in messages:
            self._pace.wait(self.sent, message)
            self.sent += 1
            key = key_of(message)
            partition = crc32(message if key is None else key) % self._partitions
            if self._batch == 1 or key is None:
                self._produce(message, key, partition)
            else:
                self._hold(message, partition)
        self._raise_failed()

    def _hold(self, message: bytes, partition: int) -> None:
        if self._held_bytes.get(partition, 0) + len(message) > BATCH_BYTES_MAX and self._held.get(partition):
            self._send_held(partition)
        held = self._held.setdefault(partition, [])
        held.append(message)
        self._held_bytes[partition] = self._held_bytes.get(partition, 0) + len(message)
        if len(held) >= self._batch:
            self._send_held(partition)

    def _send_held(self, partition: int) -> None:
        held = self._held.pop(partition)
        del self._held_bytes[partition]
        self._produce(b"[" + b",".join(held) + b"]", None, partition)

    def _produce(self, value: bytes, key: bytes | None, partition: int) -> None:
        try:
            sending = self._producer.send(self._topic, value=value, key=key, partition=partition)
        except self._errors as error:
            self._failed.append(error)
            return
        sending.add_errback(self._failed.append)

    def _raise_failed(self) -> None:
        if self._failed:
            raise DependencyUnavailable(f"Kafka did not take a record: {type(self._failed[0]).__name__}")
