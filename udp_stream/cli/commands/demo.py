"""`demo`: a synthetic Surat-like fleet, no services, no files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime

from udp_stream.cli.demo_picture import TrueMeans, busiest_slot, picture, true_means
from udp_stream.cli.outputs import records_out, require_distinct, require_form, used_files
from udp_stream.cli.report import SOFTWARE, console, print_summary
from udp_stream.entropy import OsEntropy
from udp_stream.errors import ConfigError, UsageError, needs
from udp_stream.ledgers.opening import begin_run, ledger_and_keys, trial_ledger
from udp_stream.release.facts import PublishedRelease, Summary
from udp_stream.release.record import Release
from udp_stream.runtime import Embedded, release_sink
from udp_stream.settings import Settings
from udp_stream.trial.fleet import IST, Fleet

MORNING = datetime(2024, 1, 8, 6, tzinfo=IST)


def demo(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run the fleet's day, in this process or through Kafka, and show what its busiest cells came out like."""
    if not arguments.headless and not arguments.kafka:
        raise UsageError("the live map is not in this version; run: udp-stream demo --headless")
    if arguments.kafka and arguments.ledger:
        raise UsageError("demo --kafka keeps its ledger in a Redis of its own: leave --ledger out")
    if settings.source.is_mapped:
        raise ConfigError("source: expected no keys for demo, whose pings are in the contract's form")
    if arguments.kafka and settings.release.counts != "all":
        raise ConfigError(
            'release.counts: expected "all" for demo --kafka, whose summary follows from the counts of records, got '
            f'"{settings.release.counts}"'
        )
    require_distinct([("--out", arguments.out)], used_files(arguments, settings))
    name = arguments.out or os.devnull
    require_form(name)
    fleet = Fleet(
        seed=1,  # of the fleet's movements, never of the noise
        buses=arguments.buses,
        start=MORNING,
        hours=arguments.slots * settings.policy.slot_seconds / 3600,
    )
    with records_out(name, Release) as write:
        releases, summary = _on_kafka(arguments, fleet) if arguments.kafka else _embedded(arguments, settings, fleet)
        release_sink(write)(releases)
    if arguments.out != "-":
        slot = busiest_slot([release.record for release in releases])
        truth = _true_means(fleet, slot, settings)
        print(picture(slot, truth, settings.speed.max_kmh))
    print_summary(summary, settings)


def _true_means(fleet: Fleet, slot: Sequence[Release], settings: Settings) -> TrueMeans:
    if not slot:
        return TrueMeans({}, {}, 0.0)
    return true_means(fleet, slot[0].hat.slot_start, settings.calendar.slots, settings.hat.resolution)


def _on_kafka(arguments: argparse.Namespace, fleet: Fleet) -> tuple[list[PublishedRelease], Summary]:
    with needs("Kafka client", "services"):
        from udp_stream.cli.commands.demo_kafka import run_on_kafka
    return run_on_kafka(arguments, fleet)


def _embedded(
    arguments: argparse.Namespace, settings: Settings, fleet: Fleet
) -> tuple[list[PublishedRelease], Summary]:
    releases: list[PublishedRelease] = []
    with ExitStack() as stack:
        trial = not arguments.ledger
        place = stack.enter_context(trial_ledger(settings)) if trial else settings.ledger
        ledger, keys = stack.enter_context(ledger_and_keys(place))
        others = begin_run(place, ledger, settings)
        runtime = Embedded(
            settings, ledger, OsEntropy(), keys.hash_plate, SOFTWARE, releases.extend, others=others, trial=trial,
            answer=lambda _: None,  # the summary counts them
        )  # fmt: skip
        return releases, runtime.run(_told(fleet.messages(), runtime, arguments))


def _told(frames: Iterator[list[bytes]], runtime: Embedded, arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    with console().status("") as status:
        for frame in frames:
            yield frame
            done = f"{runtime.summary.pings:,} pings, {runtime.summary.slots} of about {arguments.slots} slots released"
            status.update(f"a synthetic fleet of {arguments.buses} buses: {done}")
