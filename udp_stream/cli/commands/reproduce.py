"""`reproduce`: the papers' figures, on recorded feeds and on data drawn as they say, with verdicts in words.

What it prints and writes is not private: true means, and errors against them. It is for feeds that one may look at.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.table import Table as Printed

from udp_stream.cli.experiment_files import make_folder, read_feed, require_plots, write_outcome
from udp_stream.cli.outputs import used_files
from udp_stream.cli.progress import ReadingProgress, StepProgress
from udp_stream.cli.report import console, printer
from udp_stream.errors import UsageError
from udp_stream.experiments.base import DataSet, Experiment, Outcome, Setup
from udp_stream.experiments.catalogue import EXPERIMENTS, NEED_POSITIONS, ON_POSITIONS
from udp_stream.ledger.port import Bits
from udp_stream.settings import Settings, load
from udp_stream.sources.files import require_readable
from udp_stream.testing import seeded_bits

HATS = ("hat.resolution=7", "hat.slot=1h")
"""The papers' HATs, unless `--set` or a feed's own keys say otherwise."""


SEED = 1
"""Of drawn data and noise: a second run gives the same bytes."""


def reproduce(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run what is asked for; figures, tables and verdicts to the folder, the verdicts to stdout."""
    require_plots()
    names = arguments.names or list(EXPERIMENTS)
    known = EXPERIMENTS | ON_POSITIONS
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"expected one of {', '.join(known)}, got {unknown[0]!r}")
    if not arguments.data and (asks := [name for name in names if name in NEED_POSITIONS]):
        raise UsageError(f"{asks[0]} is about recorded positions: name a feed with --data")
    feeds = [_path_and_keys(text) for text in arguments.data]
    require_readable(path for path, _ in feeds)
    make_folder(arguments.out)
    setup = Setup(
        data=_feeds(arguments, feeds),
        repetitions=arguments.repetitions,
        min_plates=settings.release.min_plates,
        seed=SEED,
        bits=lambda name: _bits(SEED, name),
    )
    used = used_files(arguments, settings, [path for path, _ in feeds])
    for name in names:
        outcome = run(known[name], setup)
        files = write_outcome(outcome, name, arguments.out, used)
        _tell(known[name], outcome)
        console().print(f"{len(files)} files: {', '.join(str(file) for file in files)}", highlight=False)
    if setup.data:
        console().print("These are true means of the feeds and errors against them: not private, for your eyes.")


def run(experiment: Experiment, setup: Setup) -> Outcome:
    """All of its work, with a progress bar on a terminal."""
    jobs = experiment.jobs(setup)
    with StepProgress(experiment.name, len(jobs)) as progress:
        rows = [row for job in progress.each(jobs) for row in job()]
    return experiment.conclude(setup, rows)


def _bits(seed: int, name: str) -> Bits:
    """Reproducible, and therefore not private: nothing here is a release."""
    return seeded_bits(f"reproduce/{seed}/{name}")


def _feeds(arguments: argparse.Namespace, asked: Sequence[tuple[str, Sequence[str]]]) -> tuple[DataSet, ...]:
    with ReadingProgress([path for path, _ in asked]) as progress:
        feeds = (
            read_feed(path, load(arguments.config, [*HATS, *arguments.set, *keys]), progress.of(path))
            for path, keys in asked
        )
        return named_apart(feeds)


def named_apart(feeds: Iterable[DataSet]) -> tuple[DataSet, ...]:
    """Feeds by names that tell them apart in figures and tables: files of one name in two folders, or one file with
    other keys. The second one gets a number behind it.

    >>> from udp_stream.mechanisms.statistic import Range
    >>> [feed.name for feed in named_apart([DataSet("day", True, Range(0, 1), ())] * 3)]
    ['day', 'day-2', 'day-3']
    """
    found: dict[str, DataSet] = {}
    for feed in feeds:
        name, number = feed.name, 1
        while name in found:
            number += 1
            name = f"{feed.name}-{number}"
        where = None if feed.positions is None else replace(feed.positions, name=name)
        found[name] = replace(feed, name=name, positions=where)
    return tuple(found.values())


def _path_and_keys(text: str) -> tuple[str, Sequence[str]]:
    """FILE[,section.key=value...]: what is different of one feed."""
    path, *keys = re.split(r",(?=[a-z_]+\.[a-z_]+=)", text)
    return path, keys


def _tell(experiment: Experiment, outcome: Outcome) -> None:
    agreeing = sum(verdict.agrees for verdict in outcome.verdicts)
    out = printer(width=120)
    out.print(f"{experiment.name}: {experiment.about}. {agreeing} of {len(outcome.verdicts)} statements agree.")
    table = Printed(box=None, show_header=False, pad_edge=False)
    for verdict in outcome.verdicts:
        table.add_row("agrees" if verdict.agrees else "differs", str(verdict)[8:])
    out.print(table, markup=False)
