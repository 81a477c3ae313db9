"""`demo --kafka`: the whole deployment on this machine for a run: a broker, a Redis, and
workers."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from lab.process import Program, RunningService, launch
from lab.services import kafka_and_redis
from streams.feed import Feed, Pace
from streams.kafka import read_topic
from streams.processors import ERROR
from streams.topics import create_topics, read_releases, topics_of
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.base.logs import log_message
from udp_stream.cli.progress import console
from udp_stream.ledger.ids import Id
from udp_stream.ledgers.opening import ledger_place
from udp_stream.release.events import PublishedRelease, QueryRecorded, Summary, hat_recorded
from udp_stream.release.record import QueryResult, Smoothed
from udp_stream.settings import Settings, load
from udp_stream.sources.fleet import Fleet

WORKERS = 2
SERVING = b"worker of group"
PATIENCE_S = 300.0
SETTLED_S = 3.0
"""Seconds of silence after the fleet's last slot that count as the end."""


def run_on_kafka(
    arguments: argparse.Namespace, fleet: Fleet
) -> tuple[list[PublishedRelease], list[Smoothed], Summary]:
    """Start everything, send the fleet's pings, return what is published once the last slot is out,
    stop all."""
    with ExitStack() as stack:
        status = stack.enter_context(console().status("starting Kafka and Redis"))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="udp-stream-demo-")))
        running = stack.enter_context(kafka_and_redis())
        flags = [
            *arguments.set,
            f'kafka.bootstrap="{running.kafka.bootstrap}"',
            'kafka.idle_timeout="2s"',  # no ping follows that would close the last slot: a tick has to
            f'ledger.url="{running.redis.url}"',
            f'ledger.key_file="{folder}/plates.key"',
            "ledger.replicas=0",
            "kafka.replication=0",  # the only broker and the Redis ask for no login
            "kafka.client={}",
            "ledger.client={}",
        ]
        settings = load(arguments.config, flags)
        log_message(f"ledger {ledger_place(settings.ledger.url)}, new, for this run only")
        bootstrap = settings.kafka.bootstrap
        topics = topics_of(settings.kafka)
        create_topics(settings.kafka)
        with Feed(settings.kafka, topics.pings.name, 100, Pace()) as feed:
            for messages in fleet.messages():
                feed.send(messages)
                status.update(
                    f"Kafka at {bootstrap} has {feed.sent:,} pings of {fleet.buses} buses"
                )
        workers = [
            _worker(stack, folder / f"worker-{number}", arguments, flags)
            for number in range(WORKERS)
        ]

        def told(slots: int, hats: int) -> None:
            status.update(
                f"{WORKERS} workers on {feed.sent:,} pings: {hats} HATs of {slots} slots released"
            )

        grid = settings.calendar.slots
        end_ms = fleet.start.timestamp() * 1000 + fleet.hours * 3_600_000
        releases = _until_settled(
            settings, grid.iso(grid.start_of(round(end_ms) - 1)), workers, told
        )
        summary = _summary(feed.sent, releases, read_topic(settings.kafka, topics.rejected))
        for record in read_topic(settings.kafka, topics.queries):
            result = QueryResult.decode(record.value)
            moment = 1000 * Id.of(result.release_id).start
            summary.observe(QueryRecorded(result.query.name, moment, result.status, made=True))
        smoothed = read_topic(settings.kafka, topics.smoothed)
        estimates = [msgspec.json.decode(record.value, type=Smoothed) for record in smoothed]
        return releases, estimates, summary


def _worker(
    stack: ExitStack, folder: Path, arguments: argparse.Namespace, flags: list[str]
) -> RunningService:
    folder.mkdir()
    config = () if arguments.config is None else ("--config", str(arguments.config.absolute()))
    overrides = [part for flag in flags for part in ("--set", flag)]
    command = (sys.executable, "-m", "udp_stream", "worker", *config, *overrides)
    program = Program(
        "udp-stream worker", command, folder, lambda _pid: SERVING in program.log.read_bytes()
    )
    running = RunningService(program, launch(program))
    stack.callback(running.stop)
    return running


def _until_settled(
    settings: Settings, last: str, workers: list[RunningService], told: Callable[[int, int], None]
) -> list[PublishedRelease]:
    releases = dict[str, PublishedRelease]()
    slots = set[str]()
    changed_s = time.monotonic()
    deadline = changed_s + PATIENCE_S
    while not (last in slots and time.monotonic() - changed_s > SETTLED_S):
        if time.monotonic() > deadline:
            raise DependencyUnavailable(f"the workers have not finished within {PATIENCE_S:g} s")
        for worker in workers:
            worker.fail_if_ended()
        found = {release.record.release_id: release for release in read_releases(settings.kafka)}
        if len(found) > len(releases):
            releases = found
            changed_s = time.monotonic()
            slots = {release.record.hat.slot_start for release in releases.values()}
            told(len(slots), len(releases))
        time.sleep(0.5)
    return sorted(
        releases.values(),
        key=lambda release: (release.record.hat.slot_start, release.record.hat.cell),
    )


def _summary(sent: int, releases: list[PublishedRelease], rejected: list[Any]) -> Summary:
    refused = Counter(dict(record.headers)[f"{ERROR}.reason"].decode() for record in rejected)
    summary = Summary(messages=sent, pings=sent - refused.total(), refused=refused)
    for _, slot in groupby(releases, key=lambda release: release.record.hat.slot_start):
        summary.slots += 1
        for release in slot:
            summary.observe(hat_recorded(release.record, release.record.samples))
    summary.repeats = summary.pings - sum(release.record.samples for release in releases)
    return summary
