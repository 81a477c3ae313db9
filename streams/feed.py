"""Recorded pings into Kafka: a plate stays on the same partition for ever, in order and without
repeats.

A message is sent as it is. With `batch` over 1, pings of a partition are joined into JSON arrays of
that many, as the exchange sends them; what is not a single ping is sent alone. Records have no key:
keys show up in tools and logs, and anyone with a list of plates can undo an unkeyed hash of a
plate.

**No speed decides where a ping goes, or with which others.** The clock of a topic observes an array
as a whole, so how arrays are cut decides which pings are late. So arrays are cut by number alone,
and what is not a single ping is dealt out to the partitions in turn. Where speeds are by movement,
or whole plates hidden, all of it goes to the first: pings of a plate have to come by the same
partition, and no plate decides by which. Whether an array is too large is decided with
`SPEED_BYTES` for each speed, however it is written. Kafka's own limits count every byte
(docs/privacy-model.md).
"""

from __future__ import annotations

import time
from collections import deque
from hashlib import blake2b
from typing import Any, Self
from zlib import crc32

import msgspec

from streams.topics import BOOTSTRAP_MS, client_options, partitions_of, unreachable
from udp_stream.base.errors import DependencyUnavailable, UsageError, needs
from udp_stream.base.logs import BROKER
from udp_stream.pings.decode import plate_name
from udp_stream.pings.json import PLAIN, FeedForm, SinglePing, single_ping, times_of
from udp_stream.pings.texts import trim
from udp_stream.settings.sections import KafkaSection

SPEED_BYTES = 32
"""Bytes that are counted for each speed in an array. A double needs at most 24 characters."""

ARRAY_BYTES_MAX = 1_000_000
"""Most bytes of an array's pings, with `SPEED_BYTES` for each speed: below Kafka's usual limit of 1
MiB for a record."""


class _Ping(msgspec.Struct):
    """A ping in the contract's form, which may lack its time and its speed."""

    license_plate: str = ""
    observationDateTime: str = ""  # noqa: N815 (the exchange's name)
    speed: msgspec.Raw = msgspec.Raw(b"")


_ping = msgspec.json.Decoder(_Ping).decode


def partition_of(plate: str, partitions: int) -> int:
    """The partition of a plate: for ever the same for a number of partitions, so the hash has no
    key."""
    # JSON can write half of a surrogate pair, which strict UTF-8 refuses. By the name that pings
    # are counted under: all ways to write a plate go to the same partition.
    digest = blake2b(plate_name(plate).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return crc32(digest) % partitions


def _single_ping(message: bytes, form: FeedForm) -> SinglePing | None:
    if not form.is_plain:
        return single_ping(message, form.mapping)
    try:
        ping = _ping(message)
    except (msgspec.DecodeError, RecursionError):
        return single_ping(message, form.mapping)
    single = SinglePing(ping.license_plate, ping.observationDateTime, len(bytes(ping.speed)))
    return single if single.plate.strip() else None


AGREEING = 4
"""Pings in a row that must have reached a time before it has come: a clock decades ahead is not
waited for."""


class Pace:
    """When the next message may go: at a rate a second, or at a multiple of the pings' own pace."""

    def __init__(
        self, rate: float | None = None, speedup: float | None = None, form: FeedForm = PLAIN
    ) -> None:
        self._rate = rate
        self._speedup = speedup
        self._form = form
        self.began = time.monotonic()
        self._first_ms: int | None = None
        self._latest_ms = 0
        self._heard_ms: deque[int] = deque(maxlen=AGREEING)

    def due_s(self, sent: int, message: bytes) -> float:
        if self._rate is not None:
            return sent / self._rate
        if self._speedup is None:
            return 0.0
        self._hear(message)
        first = self._latest_ms if self._first_ms is None else self._first_ms
        return (self._latest_ms - first) / 1000 / self._speedup

    def _hear(self, message: bytes) -> None:
        ping = _single_ping(message, self._form)
        if ping is None:
            return
        times, status = times_of([ping.time], self._form.mapping)
        if status[0] == 0:
            self._heard_ms.append(int(times[0]))
            if len(self._heard_ms) == AGREEING:
                reached_ms = min(self._heard_ms)
                self._first_ms = reached_ms if self._first_ms is None else self._first_ms
                self._latest_ms = max(self._latest_ms, reached_ms)

    def wait(self, sent: int, message: bytes) -> None:
        pause = self.began + self.due_s(sent, message) - time.monotonic()
        if pause > 0:
            time.sleep(pause)


class Feed:
    """An idempotent producer of pings; use it as a context manager, which returns when the broker
    has them all."""

    def __init__(
        self,
        kafka: KafkaSection,
        topic: str,
        batch: int,
        pace: Pace,
        form: FeedForm = PLAIN,
        deals: bool = True,
    ) -> None:
        """Raise DependencyUnavailable if no broker answers or it has no such topic.

        `deals`: whether messages of several pings go to all partitions in turn, or else to the
        first.
        """
        with needs("Kafka client", "kafka"):
            from kafka import KafkaProducer
            from kafka.errors import KafkaError
        self._errors = KafkaError
        self._topic = topic
        self._batch = batch
        self._pace = pace
        self._form = form
        self._deals = deals
        self._held: dict[int, list[bytes]] = {}
        self._held_bytes: dict[int, int] = {}
        self._dealt = self.sent = 0
        self._failed: list[BaseException] = []
        self._partitions = partitions_of(kafka, topic)
        try:
            self._producer: Any = KafkaProducer(
                **client_options(kafka),
                acks="all",
                enable_idempotence=True,
                linger_ms=20,
                batch_size=2**18,
                bootstrap_timeout_ms=BOOTSTRAP_MS,
            )
        except KafkaError as error:
            raise unreachable(kafka, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self._producer.close()

    @property
    def joins(self) -> bool:
        return self._batch > 1

    def settle(self) -> None:
        """Send what is held, arrays that are not full among it, and return when the broker has it
        all. DependencyUnavailable if it did not take a record."""
        for partition in list(self._held):
            self._send_held(partition)
        self._producer.flush()
        self._raise_failed()
        BROKER.back()

    def send(self, messages: list[bytes]) -> None:
        """Send messages at their pace. DependencyUnavailable if the broker did not take an earlier
        message; UsageError if as many pings as an array is to have are too large for a record."""
        for message in messages:
            self._pace.wait(self.sent, message)
            self.sent += 1
            ping = _single_ping(message, self._form)
            if ping is None:
                self._produce(message, self._dealt % self._partitions)
                self._dealt += self._deals
                continue
            partition = partition_of(ping.plate, self._partitions)
            if self._batch == 1:
                self._produce(message, partition)
            else:
                # What stands before its JSON would make the whole array none.
                self._hold(trim(message), len(message) - ping.speed_bytes + SPEED_BYTES, partition)
        self._raise_failed()

    def _hold(self, message: bytes, size: int, partition: int) -> None:
        """Put a ping of this size, without its comma, into the partition's array."""
        held = self._held.setdefault(partition, [])
        size += self._held_bytes.get(partition, 0) + 1
        if held and size > ARRAY_BYTES_MAX:
            raise UsageError(
                f"expected --batch of at most {len(held)} for these pings, got {self._batch}: an array has at most "
                f"{ARRAY_BYTES_MAX:,} bytes, with {SPEED_BYTES} for each speed. Arrays already sent stay in the topic"
            )
        held.append(message)
        self._held_bytes[partition] = size
        if len(held) >= self._batch:
            self._send_held(partition)

    def _send_held(self, partition: int) -> None:
        held = self._held.pop(partition)
        del self._held_bytes[partition]
        self._produce(b"[" + b",".join(held) + b"]", partition)

    def _produce(self, value: bytes, partition: int) -> None:
        try:
            sending = self._producer.send(self._topic, value=value, partition=partition)
        except self._errors as error:
            self._failed.append(error)
            return
        sending.add_callback(lambda _: BROKER.back())
        sending.add_errback(self._failed.append)

    def _raise_failed(self) -> None:
        if not self._failed:
            return
        name = type(self._failed[0]).__name__
        advice = (
            ": expected messages, or arrays of --batch, within the broker's limit"
            if "TooLarge" in name
            else ""
        )
        raise DependencyUnavailable(f"Kafka did not take a record: {name}{advice}")
