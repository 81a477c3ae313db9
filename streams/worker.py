"""The worker: one process of the deployment, from its configuration to its last commit.

It may be killed at any instant. SIGTERM and SIGINT end it in good order: what is under way is finished or dropped
within seconds, the checkpoints are committed, and it leaves the group. An error ends it with a sentence and a status.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import faust
from aiokafka.errors import KafkaError

from streams.agents import connect, keep_time
from streams.binding import Binding, claim, claimed
from streams.consumer import build_app
from streams.group import Rules, client_id, require_asked_alike, require_rights
from streams.offsets import Offsets
from streams.producer import Producer
from streams.publishing import StrictlyOnce
from streams.shard_processor import ShardProcessor
from streams.source_processor import SourceProcessor
from streams.stopping import Stop, Watchdog, heed_signals, ours
from streams.topics import Topics, differences, topics_of
from udp_stream.adapters.files.heartbeat import Heartbeat
from udp_stream.adapters.logs import WARNING, begin_log, say
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.spoken_log import SpokenLog
from udp_stream.adapters.text import counted
from udp_stream.errors import DependencyUnavailable
from udp_stream.ledger.past import caveats
from udp_stream.ledger.port import Entropy, Ledger
from udp_stream.ledgers.keys import PlateKeys
from udp_stream.ledgers.opening import begin_work, has_mark, ledger_and_keys
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.facts import BatchRead, Fact, Observer, QueriesPublished, SlotPublished
from udp_stream.release.query_road import QuerySet, query_set
from udp_stream.units import parse_duration
from udp_stream.windows.source import Look, ReadingRules


@dataclass(slots=True)
class ClosingLine:
    """What a worker did, for the line on stderr when it ends. A HAT counts once readers have it.

    >>> line = ClosingLine()
    >>> line.observe(BatchRead(3, 1200, {}))
    >>> line.observe(SlotPublished(0, {"released": 2, "withheld_budget": 1}))
    >>> print(line)
    1,200 pings read, 2 HATs released, 1 withheld
    >>> line.observe(QueriesPublished(900_000, answers=3))
    >>> print(line)
    1,200 pings read, 2 HATs released, 1 withheld, 3 queries answered
    """

    pings: int = 0
    released: int = 0
    withheld: int = 0
    answers: int = 0

    def observe(self, fact: Fact) -> None:
        """Count a fact; most are none of its business."""
        if isinstance(fact, BatchRead):
            self.pings += fact.pings
        elif isinstance(fact, SlotPublished):
            released = fact.hats.get("released", 0)
            self.released += released
            self.withheld += sum(fact.hats.values()) - released
        elif isinstance(fact, QueriesPublished):
            self.answers += fact.answers

    def __str__(self) -> str:
        """The line."""
        answers = f", {counted(self.answers, 'query', 'queries')} answered" if self.answers else ""
        read, released = counted(self.pings, "ping"), counted(self.released, "HAT")
        return f"{read} read, {released} released, {self.withheld:,} withheld{answers}"


SESSION_S = 10.0
"""The partitions of a worker that is silent so long go to others: longer than a full disk or a pause of the machine
takes, and short beside a slot. Brokers allow 6 s to 30 min."""

STUCK_S = 120.0
"""A worker that gets nothing done so long, with work to do or no answer from the broker, ends, to be started again.
The largest slot that was measured took two seconds; a moment of standing queries took seven."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a worker is started with."""

    settings: Settings
    entropy: Entropy
    software: str
    allow_volatile: bool = False
    instance: str | None = None
    accept_loss: bool = False
    heartbeat: Path | None = None
    look: Look = lambda _messages, _read: None


def run_worker(deployment: Deployment) -> None:
    """Work until SIGTERM, SIGINT (KeyboardInterrupt) or an error, which is raised as one of ours."""
    begin_log()
    # Records come and go by the thousand without ever being in a cycle: looking for cycles as often as Python does by
    # itself takes a tenth of the worker's time. While a slot closes it keeps readers waiting: 30 ms for each hundred
    # thousand objects. A slot of 3,000 HATs has fewer at a time than are allowed here, so that none is interrupted.
    gc.freeze()
    gc.set_threshold(500_000, 50, 100)
    for text in differences(deployment.settings.kafka):
        say(f"topic {text}", "topic", level=WARNING)
    settings = deployment.settings
    require_rights(settings.kafka)
    require_asked_alike(settings, deployment.instance)
    with (
        TemporaryDirectory(prefix="udp-stream-worker-") as folder,
        ThreadPoolExecutor(1, thread_name_prefix="ledger") as thread,
        _ledger_in(thread, deployment) as (ledger, keys),
    ):
        thread.submit(begin_work, settings, ledger).result()
        stopped_by, error = asyncio.run(_work(deployment, ledger, keys, thread, folder))
    if error is not None:
        raise ours(error)
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt


@contextmanager
def _ledger_in(thread: ThreadPoolExecutor, deployment: Deployment) -> Iterator[tuple[Ledger, PlateKeys]]:
    """The ledger, opened, used and closed in one thread: SQLite asks for it, and it keeps the loop free.

    A machine that is new to the deployment has no mark of the ledger: the commits have it.
    """
    kafka, asked = deployment.settings.kafka, deployment.settings.ledger
    named = None if has_mark(asked) else claimed(kafka, topics_of(kafka).deployment)
    opening = ledger_and_keys(
        asked, allow_volatile=deployment.allow_volatile, named_elsewhere=None if named is None else named.ledger_id
    )
    opened = thread.submit(opening.__enter__).result()
    try:
        yield opened
    finally:
        thread.submit(opening.__exit__, None, None, None).result()


async def _work(
    deployment: Deployment, ledger: Ledger, keys: PlateKeys, thread: ThreadPoolExecutor, folder: str
) -> tuple[int, BaseException | None]:
    """Start, serve, drain; what stopped us: a signal's number or 0, and an error or None."""
    settings, stop, closing = deployment.settings, Stop(), ClosingLine()
    log = SpokenLog(settings.calendar.slots, settings.policy.grace_ms)
    asyncio.get_running_loop().set_exception_handler(_loop_error)
    signals = heed_signals(stop)
    topics, idle_s = topics_of(settings.kafka), parse_duration(settings.kafka.idle_timeout)
    client = client_id(deployment.instance, Rules.of(settings))
    app = build_app(settings, deployment.instance, client, folder, SESSION_S)
    offsets = Offsets(app)
    meta = await asyncio.get_running_loop().run_in_executor(thread, ledger.meta)
    binding = Binding.of(meta)
    given = settings.policy, settings.calendar, deployment.entropy, deployment.software
    context = ReleaseContext(*given, caveats=caveats(meta), keyed=keys.key_of)
    observers = [closing.observe, log.observe]
    queries = query_set(settings.standing_queries, settings.zone, settings.position_periods, context)
    async with Producer(settings.kafka) as producer:
        await claim(settings.kafka, topics.deployment, binding, producer)
        given_up = deployment.accept_loss
        common = _Common(topics, offsets, producer, binding, given_up, observers, queries, deployment.look)
        pings = _source_processor(common, settings, keys, idle_s)
        parts = _shard_processor(common, settings, context, ledger, thread)
        lanes = connect(app, topics, offsets, pings, parts, stop)
        say(f"worker of group {settings.kafka.group} at {settings.kafka.bootstrap}", "begun")
        watchdog = Watchdog(
            lambda: pings.next_offsets() | parts.next_offsets(),
            offsets.all_read,
            STUCK_S,
            done=lambda: parts.done,
        )
        serving = [
            asyncio.ensure_future(_start(app, stop)),
            asyncio.ensure_future(keep_time(app, pings, parts, stop, idle_s, Heartbeat(deployment.heartbeat))),
            asyncio.ensure_future(stop.guard(watchdog.run)),
            asyncio.ensure_future(_speak(log)),
        ]
        await stop.wait()
        # Before all that follows, since any of it may hang.
        stop.end_soon()
        if stop.error is None:
            await stop.last(pings.commit, parts.commit)  # so that the next worker repeats less
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await stop.last(app.stop, *(each.end for each in lanes), parts.close)
    log.say_due(at_the_end=True)
    say(str(closing), "ended")
    return (signals[0] if signals else 0), stop.error


class _Common(NamedTuple):
    """What sources and shards of this worker share."""

    topics: Topics
    offsets: Offsets
    producer: Producer
    binding: Binding
    accept_loss: bool
    observers: Sequence[Observer]
    queries: QuerySet | None
    look: Look


def _source_processor(common: _Common, settings: Settings, keys: PlateKeys, idle_s: float) -> SourceProcessor:
    rules = ReadingRules(
        settings.decoder,
        settings.window_rules,
        settings.calendar.slots,
        settings.policy.resolution,
        keys.key_of,
        None if common.queries is None else common.queries.moments,
    )
    return SourceProcessor(
        rules,
        common.topics,
        common.offsets,
        common.producer,
        common.binding,
        idle_s,
        common.accept_loss,
        observers=common.observers,
        queries=common.queries,
        look=common.look,
    )


def _shard_processor(
    common: _Common, settings: Settings, context: ReleaseContext, ledger: Ledger, thread: ThreadPoolExecutor
) -> ShardProcessor:
    once = partial(StrictlyOnce.begin, settings.kafka)
    return ShardProcessor(
        context,
        common.topics,
        common.offsets,
        common.producer,
        ledger,
        common.binding,
        thread,
        common.accept_loss,
        once if settings.kafka.transactions else None,
        common.observers,
        common.queries,
    )


async def _speak(log: SpokenLog) -> None:
    """Say what is due, once a second, until cancelled."""
    while True:
        await asyncio.sleep(1.0)
        log.say_due()


def _loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A producer that fails fails all of its futures; those that were awaited have raised already."""
    if not isinstance(context.get("exception"), KafkaError | DependencyUnavailable):
        loop.default_exception_handler(context)


async def _start(app: faust.App, stop: Stop) -> None:
    try:
        await app.start()
    except Exception as error:  # noqa: BLE001 (it ends the process, with its sentence)
        stop.fail(error)
