"""The worker: a process of the deployment, from its configuration to its last commit.

It may be killed at any instant. SIGTERM and SIGINT end it in good order: what is under way is
finished or dropped within seconds, the checkpoints are committed, and it leaves the group. The
first error ends it with a sentence and a status: nothing more is committed, and the next worker
reads again what was under way. (Faust would ack a batch that its agent failed on, and continue
behind it.)
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import faust
import numpy as np
from faust.types import TP

from streams.consumer import batches, build_app
from streams.kafka import (
    KafkaError,
    Offsets,
    Producer,
    TransactionalPublisher,
    register,
    registered,
)
from streams.processors import Partitions, ProcessorContext, ShardProcessor, SourceProcessor
from streams.topics import (
    LedgerIdentity,
    Rules,
    Topic,
    Topics,
    client_id,
    differences,
    raised,
    require_rights,
    require_same_queries,
    topics_of,
)
from udp_stream.base.errors import ConfigError, DependencyUnavailable, UdpStreamError
from udp_stream.base.files import Heartbeat
from udp_stream.base.logs import BROKER, ERROR, WARNING, Trouble, begin_log, fault, log_message
from udp_stream.base.units import parse_duration
from udp_stream.embedded.runtime import RunLogger, disk_of, log_clock_ahead
from udp_stream.ledger.port import Entropy, Ledger
from udp_stream.ledger.rules import archived_s, caveats
from udp_stream.ledgers.keys import PlateKeys
from udp_stream.ledgers.opening import begin_work, has_mark, ledger_and_keys
from udp_stream.ledgers.patience import Patience
from udp_stream.planning.policy import Policy
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.events import Backlog, Observer, RunEvent, SourceStatus, report_to
from udp_stream.release.query_pipeline import QueryContext, QuerySet
from udp_stream.settings import Settings
from udp_stream.windows.clocks import SteadyClock
from udp_stream.windows.slots import FeedCheck, ReadResult

AWAY_S = 30.0
"""A broker that has not answered so long is away: a worker asks it every 15 s (`STUCK_S`)."""

SESSION_S = 10.0
"""The partitions of a worker that is silent so long go to others: longer than a full disk or a
pause of the machine takes, and short beside a slot. Brokers allow 6 s to 30 min."""

BINS_MAX = 32_768
"""Most bins of a CDF: its record has 0.9 MB, and brokers take 1 MiB (`kafka.REQUEST_BYTES_MAX`)."""

STUCK_S = 120.0
"""A worker that gets nothing done so long, with work to do or no answer from the broker, ends, to
be started again. The largest slot that was measured took two seconds; a moment of standing queries
took seven."""


class Deployment(NamedTuple):
    """Settings that a worker is started with."""

    settings: Settings
    entropy: Entropy
    software: str
    instance: str | None = None
    accept_loss: bool = False
    heartbeat: Path | None = None
    check: FeedCheck = lambda _messages, _read: None
    observers: Sequence[Observer] = ()
    resets_clock: bool = False
    hold: Callable[[UdpStreamError], None] = lambda _error: None
    """Hook that returns once a worker that has failed may end: for those that do not end in good
    order."""


def run_worker(deployment: Deployment, came: list[int] | None = None) -> None:
    """Work until SIGTERM, SIGINT (KeyboardInterrupt) or an error, which is raised as a
    UdpStreamError.

    `came` is given the numbers of the signals that come.
    """
    signals: list[int] = [] if came is None else came
    stop = StopReason(deployment.hold)
    begin_log()
    require_records_fit(deployment.settings.policy)
    # Records come and go by the thousand without ever being in a cycle: looking for cycles as often
    # as Python does by itself takes a tenth of the worker's time. While a slot closes it keeps
    # readers waiting: 30 ms for each hundred thousand objects. A slot of 3,000 HATs has fewer at a
    # time than are allowed here, so that none is interrupted.
    gc.freeze()
    gc.set_threshold(500_000, 50, 100)
    for text in differences(deployment.settings.kafka):
        log_message(f"topic {text}", "topic", level=WARNING)
    settings = deployment.settings
    require_rights(settings.kafka)
    require_same_queries(settings, deployment.instance)
    with (
        stop,
        TemporaryDirectory(prefix="udp-stream-worker-") as folder,
        ThreadPoolExecutor(1, thread_name_prefix="ledger") as thread,
        closing(Patience()) as patience,
        _ledger_in(thread, deployment, patience) as (ledger, keys),
    ):
        asyncio.run(_work(deployment, ledger, keys, patience, thread, folder, stop, signals))
    if stop.error is not None:
        raise as_own_error(stop.error)
    if signals[:1] == [signal.SIGINT]:
        raise KeyboardInterrupt


def require_records_fit(policy: Policy) -> None:
    """Raise ConfigError for CDFs whose records a broker would not take, after their plates were charged."""
    bins = policy.bins
    if bins == "auto":
        bins = 0 if policy.branching == "auto" else math.prod(policy.branching)
    most = bins if isinstance(bins, int) else len(bins) - 1
    if policy.cdf_nano != 0 and most > BINS_MAX:
        raise ConfigError(f"release.bins: expected at most {BINS_MAX} bins on Kafka, got {most}")


@contextmanager
def _ledger_in(
    thread: ThreadPoolExecutor, deployment: Deployment, patience: Patience
) -> Iterator[tuple[Ledger, PlateKeys]]:
    """The ledger, opened, used and closed in a single thread: SQLite asks for it, and it keeps the
    loop free. Our settings are noted in it.

    A machine that is new to the deployment has no mark of the ledger: the commits have it.
    """
    kafka = deployment.settings.kafka
    asked = deployment.settings.ledger
    named = None if has_mark(asked) else registered(kafka, topics_of(kafka).deployment)
    elsewhere = None if named is None else named.ledger_id

    @contextmanager
    def begun() -> Iterator[tuple[Ledger, PlateKeys]]:
        with ledger_and_keys(asked, named_elsewhere=elsewhere, patience=patience) as (ledger, keys):
            begin_work(deployment.settings, ledger)
            patience.is_open = True
            yield ledger, keys

    opening = begun()
    opened = thread.submit(opening.__enter__).result()
    try:
        yield opened
    finally:
        thread.submit(opening.__exit__, None, None, None).result()


async def _work(
    deployment: Deployment,
    ledger: Ledger,
    keys: PlateKeys,
    patience: Patience,
    thread: ThreadPoolExecutor,
    folder: str,
    stop: StopReason,
    signals: list[int],
) -> None:
    """Start, serve, drain; `stop` then has the error, `signals` the numbers of those that came."""
    settings = deployment.settings
    log = RunLogger(settings.calendar.slots, settings.policy.grace_ms)
    observers = [log.observe, *deployment.observers]
    asyncio.get_running_loop().set_exception_handler(_loop_error)
    install_signal_handlers(stop, signals)
    topics = topics_of(settings.kafka)
    idle_s = parse_duration(settings.kafka.idle_timeout)
    client = client_id(deployment.instance, Rules.of(settings))
    app = build_app(settings, deployment.instance, client, folder, SESSION_S)
    offsets = Offsets(app)
    meta = await asyncio.get_running_loop().run_in_executor(thread, ledger.meta)
    binding = LedgerIdentity.of(meta)
    context = ReleaseContext(
        settings.policy,
        settings.calendar,
        deployment.entropy,
        deployment.software,
        caveats=caveats(meta),
        derive_key=keys.hash_plate,
        judges_unit=settings.judges_unit,
        domain=settings.domain,
    )
    asked = settings.standing_queries
    of_queries = QueryContext(settings.position_periods, context)
    queries = QuerySet(asked, settings.zone, of_queries) if asked else None
    async with Producer(settings.kafka) as producer:
        await register(settings.kafka, topics.deployment, binding, producer)
        clock = settings.arrival_clock()
        back_to_ms = clock.now_ms if deployment.resets_clock else None
        common = ProcessorContext(
            topics,
            offsets,
            producer,
            binding,
            deployment.accept_loss,
            observers,
            queries,
            back_to_ms,
        )
        rules = settings.reading_rules(
            keys.hash_plate, None if queries is None else queries.moments, archived_s(meta)
        )
        once = (
            partial(TransactionalPublisher.begin, settings.kafka)
            if settings.kafka.transactions
            else None
        )

        def check(messages: Sequence[bytes], read: ReadResult) -> None:
            if read.newest_ms is not None:
                clock.hear(np.array([read.newest_ms]))
            deployment.check(messages, read)

        pings = SourceProcessor(common, rules, idle_s, check)
        parts = ShardProcessor(common, context, ledger, thread, once)
        log.doubt = parts.doubt
        executors = connect(app, topics, offsets, pings, parts, stop)
        log_message(
            f"worker of group {settings.kafka.group} at {settings.kafka.bootstrap}", "begun"
        )
        signs = _Signs(app, topics, offsets, pings, parts, patience)
        serving = [
            asyncio.ensure_future(_start(app, stop)),
            asyncio.ensure_future(
                keep_time(app, pings, parts, stop, idle_s, Heartbeat(deployment.heartbeat), clock)
            ),
            asyncio.ensure_future(stop.guard(signs.watchdog.run)),
            asyncio.ensure_future(
                _speak(log, (*signs.facts, disk_of(settings.ledger)), report_to(observers))
            ),
        ]
        await stop.wait()
        # Before all that follows, since any of it may hang.
        stop.end_soon()
        patience.close()
        if stop.error is None:
            await stop.last(pings.commit, parts.commit)  # so that the next worker repeats less
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await stop.last(app.stop, *(each.end for each in executors), parts.close)
    log.log_due(at_the_end=True)
    log_message("the worker has ended", "ended")


@dataclass(eq=False)
class _Signs:
    """Signs of life of a worker and its broker, for its watchdog."""

    app: faust.App
    topics: Topics
    offsets: Offsets
    pings: SourceProcessor
    parts: ShardProcessor
    patience: Patience

    def __post_init__(self) -> None:
        self.growth = Growth(self.topics.pings)
        self.watchdog = Watchdog(self._reads, self._all_read, STUCK_S, done=self._done)
        self.facts = self._waiting, self._broker

    def _done(self) -> int:
        return self.pings.done + self.parts.done + self.patience.tries

    def _reads(self) -> dict[TP, int]:
        return self.pings.next_offsets() | self.parts.next_offsets()

    async def _all_read(self, positions: Mapping[TP, int]) -> bool:
        self.growth.check(await self.offsets.partitions_now(self.topics.pings.name))
        BROKER.back()
        return await self.offsets.all_read(positions)

    def _waiting(self) -> Backlog:
        reads = self._reads()
        topics = (self.topics.pings, self.topics.parts)
        of = sum(self.offsets.known_partitions(topic.name) for topic in topics)
        slots, pings = self.pings.open_slots()
        return Backlog(
            slots,
            pings,
            self.offsets.unread(reads),
            len(reads),
            self.watchdog.still_s,
            self.growth.raised,
            self.patience.lasted_s,
            self.pings.clock_ms(),
            max(of, len(reads)),
        )

    def _broker(self) -> SourceStatus:
        is_ours = self.app.consumer_generation_id and not self.app.rebalancing
        silent_s = self.watchdog.silent_s
        return SourceStatus(silent_s, self.watchdog.failed, not is_ours or silent_s > AWAY_S)


async def _speak(log: RunLogger, facts: Sequence[Callable[[], RunEvent]], report: Observer) -> None:
    while True:
        await asyncio.sleep(1.0)
        log.log_due()
        for event in facts:
            report(event())


def _loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A producer that fails fails all of its futures; those that were awaited have raised already."""
    if not isinstance(context.get("exception"), KafkaError | DependencyUnavailable):
        loop.default_exception_handler(context)


async def _start(app: faust.App, stop: StopReason) -> None:
    try:
        await app.start()
    except Exception as error:  # noqa: BLE001 (it ends the process, with its sentence)
        stop.fail(error)


class PartitionExecutors:
    """At most a batch of each partition under way, in the order of its log; partitions beside each
    other.

    Most of a batch's time is waiting: for the ledger, for a transaction, for the broker. A slot's
    shards would else wait for each other. To the protocols, two partitions of a worker are like
    those of two workers.

    A batch that waits for its turn when a rebalance comes is dropped. The partition may be ours
    again by then, at its checkpoint, and the batch lies further on: processed first, it would make
    the reader skip all that is between.

    >>> from types import SimpleNamespace
    >>> async def process(records):
    ...     print(records[0].offset)
    >>> async def example():
    ...     executors = PartitionExecutors(process)
    ...     for offset in (7, 8):
    ...         await executors.add([SimpleNamespace(partition=0, offset=offset)])
    ...     await asyncio.sleep(0)
    ...     await executors.end()
    >>> asyncio.run(example())
    7
    8
    """

    def __init__(self, process: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._process = process
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self._rebalances = 0

    async def add(self, records: Sequence[Any]) -> None:
        """Process a batch once the batch before it of its partition is done; dropped if a rebalance
        comes first.

        It returns when this batch has begun.
        """
        partition = records[0].partition
        rebalances = self._rebalances
        before = self._under_way.get(partition)
        if before is not None:
            # Not awaited itself: if we were cancelled here, that would cancel the batch under way.
            await asyncio.wait([before])
        if rebalances == self._rebalances:
            self._under_way[partition] = asyncio.ensure_future(self._process(records))

    def revoke(self) -> None:
        self._rebalances += 1

    async def end(self) -> None:
        for batch in self._under_way.values():
            batch.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)


COMMIT_S = 5.0


def connect(
    app: faust.App,
    topics: Topics,
    offsets: Offsets,
    pings: SourceProcessor,
    parts: ShardProcessor,
    stop: StopReason,
) -> tuple[PartitionExecutors, PartitionExecutors]:
    """Make the agents, and connect to rebalances; what is under way, to be ended with the app."""

    def read_by(processor: Partitions[Any], topic: Topic, name: str) -> PartitionExecutors:
        own = PartitionExecutors(lambda records: stop.guard(lambda: processor.process(records)))

        async def read(stream: Any) -> None:
            async for records in stream:
                await own.add(records)

        app.agent(batches(app, topic), name=name)(read)
        return own

    executors = read_by(pings, topics.pings, "pings"), read_by(parts, topics.parts, "parts")

    async def revoked(*_: Any, **__: Any) -> None:
        for one in (*executors, pings, parts):
            one.revoke()

    async def assigned(*_: Any, **__: Any) -> None:
        await stop.guard(lambda: pings.assign(offsets.assigned(topics.pings.name)))
        await stop.guard(lambda: parts.assign(offsets.assigned(topics.parts.name)))

    # Nothing else refers to these functions: by weak references they would be gone at once.
    app.on_partitions_revoked.connect(revoked, weak=False)
    app.on_rebalance_complete.connect(assigned, weak=False)
    return executors


async def keep_time(
    app: faust.App,
    pings: SourceProcessor,
    parts: ShardProcessor,
    stop: StopReason,
    idle_s: float,
    heartbeat: Heartbeat,
    clock: SteadyClock,
) -> None:
    """Run until we stop: ticks for silent partitions, commits, a look at Faust's failures, and a
    sign of life."""
    pause_s = min(idle_s / 4, 1.0)
    committed_s = time.monotonic()
    is_said = False

    async def due_commit() -> None:
        await pings.commit()
        await parts.commit()

    async def show_life() -> None:
        heartbeat.beat()

    while not stop.asked:
        await asyncio.sleep(pause_s)
        if app.crashed:
            stop.fail(app.crash_reason or RuntimeError("Faust has ended"))
        if app.rebalancing:
            continue
        if app.consumer_generation_id:
            await stop.guard(show_life)
        now_ms = clock.now_ms()
        ahead_ms = pings.ahead_ms(now_ms)
        is_ahead = ahead_ms > 0
        if is_ahead and not is_said:
            log_clock_ahead(ahead_ms / 1000)
        is_said = is_ahead
        if clock.has_lasted(idle_s):
            await stop.guard(partial(pings.tick, now_ms))
        if time.monotonic() - committed_s >= COMMIT_S:
            await stop.guard(due_commit)
            committed_s = time.monotonic()


DRAIN_S = 10.0
"""Seconds for stopping in good order; after that the process ends as if it were killed, which loses
nothing."""


class StopReason:
    """Reason why the worker is to stop: the first error, or None for a signal. Its block has all
    that is to be closed.

    An error after a signal is said as a warning: nothing of it is committed, and the next worker
    does it again. A supervisor that sees a status of 1 would take a planned restart for a crash.
    """

    def __init__(self, hold: Callable[[UdpStreamError], None] = lambda _error: None) -> None:
        """`hold` returns once a process that has failed, and does not end in good order, may end."""
        self.error: BaseException | None = None
        self._asked = asyncio.Event()
        self._hold = hold
        self._timer: threading.Timer | None = None

    def ask(self) -> None:
        self._asked.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of an error. If we are stopping already, it changes nothing."""
        if not self.asked:
            self.error = error
            self._asked.set()
        elif self.error is None:
            log_message(f"while it stopped: {as_own_error(error)}", "ended", level=WARNING)

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    @property
    def status(self) -> int:
        return 0 if self.error is None else as_own_error(self.error).exit_status

    async def wait(self) -> None:
        await self._asked.wait()

    async def guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work unless we are stopping; what it raises stops us, and never reaches Faust."""
        if not self.asked:
            await self.last(work)

    async def last(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Do some work in order, also while stopping; an error does not stop the next."""
        for work in works:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 (it ends the process, with its sentence)
                self.fail(error)

    def end_soon(self) -> None:
        """End the process in `DRAIN_S`, unless our block has ended by then."""

        def end() -> None:
            if self.error is not None:
                error = as_own_error(self.error)
                log_message(str(error), "failed", level=ERROR)
                self._hold(error)
            # In this thread `sys.exit` would end the thread alone.
            os._exit(self.status)

        self._timer = threading.Timer(DRAIN_S, end)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Called once all is closed: what follows may take its time."""
        if self._timer is not None:
            self._timer.cancel()


def install_signal_handlers(stop: StopReason, came: list[int]) -> None:
    """Let SIGTERM and SIGINT ask us to stop, and add them to the list."""

    def handle(number: int) -> None:
        came.append(number)
        stop.ask()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle, number)


def as_own_error(error: BaseException) -> UdpStreamError:
    """An error of ours as it is; any other by its kind and place, never its text, which may quote a
    ping."""
    if isinstance(error, UdpStreamError):
        return error
    kind = DependencyUnavailable if isinstance(error, KafkaError) else UdpStreamError
    return kind(f"the worker stopped: {fault(error)}")


class Growth:
    """Warning that the topic of pings has more partitions than it may have: at once, and again
    while it lasts. The worker goes on: no plate moves before its feed starts again, and a worker
    that starts is refused.

    >>> growth = Growth(Topic("bus.pings.v1", 8, {}))
    >>> growth.check(8)
    >>> growth.raised
    0
    """

    def __init__(self, topic: Topic, clock: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._trouble = Trouble(clock)
        self.raised = 0

    def check(self, found: int) -> None:
        self.raised = max(0, found - self._topic.partitions)
        if self.raised and self._trouble.is_due(""):
            log_message(
                raised(self._topic.name, found, self._topic.partitions), "topic", level=ERROR
            )


@dataclass(eq=False)
class Watchdog:
    """Watchdog that ends a worker that is stuck: `patience_s` without progress while there is work
    to do, or no answer.

    A consumer that no longer fetches, a rebalance that never ends, a call without an answer, a
    broker that is gone: from the outside they look alike. The watchdog looks from a task that waits
    for nothing else.
    """

    positions: Callable[[], Mapping[TP, int]]
    """The next offset of each of our partitions."""
    idle: Callable[[Mapping[TP, int]], Awaitable[bool]]
    """Whether the broker says that all of them are read to their ends."""
    patience_s: float
    clock: Callable[[], float] = time.monotonic
    done: Callable[[], int] = lambda: 0
    """How many steps were done, as a batch may have many."""

    def __post_init__(self) -> None:
        """Begin the patience now."""
        self._seen: tuple[Mapping[TP, int], int] = {}, 0
        self._moved_s = self._answered_s = self.clock()
        self.failed = 0
        self._asked: asyncio.Task[bool] | None = None

    @property
    def still_s(self) -> float:
        return self.clock() - self._moved_s

    @property
    def silent_s(self) -> float:
        """Seconds since the broker answered last."""
        return self.clock() - self._answered_s

    async def run(self) -> None:
        """Check for ever; DependencyUnavailable once we are stuck, or if `idle` says that there is
        no going on."""
        while True:
            await self.check(self.patience_s / 8)

    async def check(self, seconds: float) -> None:
        if self._asked is None:  # a question that is never answered is asked once
            self._asked = asyncio.ensure_future(self._ask())
        await asyncio.gather(asyncio.wait({self._asked}, timeout=seconds), asyncio.sleep(seconds))
        idle = False
        if self._asked.done():
            idle = self._asked.result()
            self._asked = None
        seen = dict(self.positions()), self.done()
        if idle or seen != self._seen:
            self._seen, self._moved_s = seen, self.clock()
        elif self.clock() - self._moved_s > self.patience_s:
            raise DependencyUnavailable(
                f"no progress for {self.patience_s:g} s, with work to do or no answer from Kafka: restart the worker"
            )

    async def _ask(self) -> bool:
        try:
            idle = await self.idle(self.positions())
        except DependencyUnavailable:
            raise
        except Exception:  # noqa: BLE001 (any error: the broker did not say that there is no work)
            self.failed += 1
            return False
        self._answered_s = self.clock()
        return idle
