"""A worker with one part changed: faults that the checks must find, and two changes that make it
easier to hit."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import faust
from faust.types import TP

from streams import wire as source_protocol
from streams import worker
from streams.consumer import BatchConsumer, BatchSchema
from streams.kafka import OutgoingRecord, Producer
from streams.processors import SourceProcessor
from streams.topics import LedgerIdentity, Topic
from streams.wire import cut_pings
from streams.worker import PartitionExecutors
from udp_stream.cli import main as cli
from udp_stream.ledger.port import Mark
from udp_stream.ledger.rules import see
from udp_stream.ledgers import redis as redis_ledger
from udp_stream.ledgers.redis import RedisLedger
from udp_stream.ledgers.redis_connection import load_scripts, scripts_of
from udp_stream.windows.slots import SourceCheckpoint, SourceReader

SLOW_S = 0.3


def small_parts(pause_s: float = 0.0) -> None:
    """No fault: parts have few rows and are written one by one, so that many a kill falls between
    them."""

    async def write(self: Producer, messages: Iterable[OutgoingRecord]) -> None:
        for one in messages:
            await asyncio.sleep(pause_s)
            await (await self.send([one]))

    source_protocol.cut_pings = partial(cut_pings, rows_max=20)  # type: ignore[assignment]
    Producer.write = write  # type: ignore[method-assign]


def slow_parts() -> None:
    """No fault: to send a closed slot takes longer than a rebalance does."""
    small_parts(SLOW_S)


def last_writer_wins() -> None:
    _rewrite(
        ("known > 0", "admits and known > 0"),
        ("if new > 0 then refused = stale() end", "if admits then refused = stale() end"),
    )


def charges_again() -> None:
    _rewrite(("known > 0", "not admits and known > 0"))


def commits_what_is_read() -> None:
    def checkpoint(self: SourceReader) -> SourceCheckpoint:
        return SourceCheckpoint(self.next_offset, self._clock.watermark_ms, self.next_offset)

    SourceReader.checkpoint = checkpoint  # type: ignore[method-assign]


def acks_of_faust() -> None:
    """Faust's own acks and commits, as it comes: one event a ping, acked when the agent is through
    with it."""

    def acked(app: faust.App, topic: Topic) -> faust.TopicT:
        return app.topic(topic.name, schema=BatchSchema(), acks=topic.name.endswith("bus.pings.v1"))

    async def commit_nothing(_: SourceProcessor) -> None:
        """Faust does."""

    hand_over = BatchConsumer._hand_over

    async def one_by_one(self: BatchConsumer, tp: TP, records: Sequence[Any]) -> bool:
        return all([await hand_over(self, tp, [record]) for record in records])

    worker.batches = acked  # type: ignore[attr-defined]
    BatchConsumer._hand_over = one_by_one  # type: ignore[method-assign]
    SourceProcessor.commit = commit_nothing  # type: ignore[method-assign]


def keeps_what_waits() -> None:
    """Batches that wait for their turn when a rebalance comes are processed after it; and parts are
    slow."""
    slow_parts()

    def revoke(_: PartitionExecutors) -> None:
        """All is well."""

    PartitionExecutors.revoke = revoke  # type: ignore[method-assign]


def looks_at_no_mark() -> None:
    """A ledger is as good as its id says: nothing notes how far it had come, and nothing compares."""

    def mark(self: RedisLedger, release_id: str) -> Mark:
        return see(self, release_id).mark(release_id)

    def compare(_self: RedisLedger, _mark: Mark | None = None) -> None:
        """All is well."""

    RedisLedger.mark = mark  # type: ignore[method-assign]
    RedisLedger.compare = compare  # type: ignore[method-assign]


def takes_any_ledger() -> None:
    """Whoever is configured for the group belongs to it."""

    def require(_self: LedgerIdentity, _theirs: str | None, _where: str) -> None:
        """All is well."""

    LedgerIdentity.require = require  # type: ignore[method-assign]


FAULTS = (
    small_parts, slow_parts, last_writer_wins, charges_again, commits_what_is_read, acks_of_faust,
    keeps_what_waits, looks_at_no_mark, takes_any_ledger,
)  # fmt: skip


def _rewrite(*changes: tuple[str, str]) -> None:
    scripts = load_scripts()
    texts = {each: script.text for each, script in scripts.items()}
    for sound, broken in changes:
        assert texts["commit"].count(sound) == 1, sound
        texts["commit"] = texts["commit"].replace(sound, broken)
    rewritten = scripts_of(texts)
    redis_ledger.load_scripts = lambda: rewritten  # type: ignore[assignment]


def main(fault: str, session_s: str, stuck_s: str, *arguments: str) -> int:
    worker.SESSION_S, worker.STUCK_S = float(session_s), float(stuck_s)
    {one.__name__: one for one in FAULTS}[fault]()
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
