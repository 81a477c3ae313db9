"""`replay --dry-run`: what a replay of these files would read, and what it would be likely to err by.

It charges nothing, draws nothing and writes nothing.

It looks at speeds in three ways, for the operator's eyes alone: are they in the unit that is configured, how many are
above U, and which pings are refused. Its output is not private: do not publish it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from udp_stream.cli.first_look import (
    RefusedSample,
    joined,
    looked_at,
    print_warning,
    require_readable_pings,
    warnings_of,
)
from udp_stream.cli.plan_of_feed import Positions, from_future, numbered, row_of, verdict
from udp_stream.cli.progress import ReadingProgress
from udp_stream.cli.report import console, printer
from udp_stream.errors import UsageError
from udp_stream.ledger.port import Entropy
from udp_stream.logs import counted
from udp_stream.pings.decode import PingDecoder, Pings, Reason, originals
from udp_stream.pings.found import FITS_NONE, unit_evidence
from udp_stream.release.facts import Summary
from udp_stream.settings import Settings
from udp_stream.sources.files import as_far_as_whole
from udp_stream.sources.recordings import open_sources
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.slots import AgreementClock

ABOVE_WORTH_A_WORD = 0.01
"""The share of pings above U from which a dry run warns: clamping them lowers means."""


@dataclass(frozen=True, slots=True)
class _Read:
    """All accepted pings; speeds in quanta, not clamped to U."""

    positions: Positions
    speed: NDArray[np.int32]
    beginning: Pings
    refused: Counter[str]


def dry_run(names: Sequence[str], settings: Settings, entropy: Entropy) -> None:
    """Read all of it, warn, and tell what to expect. UsageError if no ping is accepted.

    `entropy` is for the noise of the rehearsal.
    """
    require_readable_pings(names, settings, warn=lambda _: None)  # of the zone it is said below
    sample = RefusedSample(None)
    read = _read(names, settings, sample)
    out = printer(width=160)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("pings", f"{read.speed.size:,} accepted of {counted(read.positions.plates, 'plate')}")
    if repeats := _repeats(read.positions):
        table.add_row("", f"{counted(repeats, 'repeat')} of a plate and time: not counted")
    for reason, count in (+read.refused).most_common():
        table.add_row("", f"{count:,} refused: {reason}")
    row = row_of(read.positions, settings, entropy)
    grid, times = settings.calendar.slots, read.positions.time_ms
    table.add_row("times", f"{grid.iso(int(times.min()))} to {grid.iso(int(times.max()))}")
    half = f"half of the pings lie in HATs of {counted(row.plates, 'plate')} or more"
    table.add_row("HATs", f"{row.hats:,} of H3 {row.resolution}, {row.slot}; {half}")
    expected = row.expected
    table.add_row(
        "expected error",
        f"{expected.error:.2f} km/h, {expected.served:.0%} of pings in HATs with a mean; the baseline guess errs by "
        f"{expected.constant:.2f}, a line on counts by {expected.counts:.2f}: {verdict(row)}",
    )
    out.print(table)
    for warning in _warnings(read, settings):
        out.print(f"warning: {warning}", markup=False, soft_wrap=True)
    summary = Summary(pings=read.speed.size, refused=read.refused)
    sample.print_advice(summary, settings)
    console().print(
        "Dry run: nothing was charged, drawn or written. It looked at speeds without noise, so keep it to yourself."
    )


def _read(names: Sequence[str], settings: Settings, sample: RefusedSample) -> _Read:
    numbers: dict[str, int] = {}
    columns: list[tuple[NDArray[np.generic], ...]] = []
    beginning: Pings | None = None
    refused: Counter[str] = Counter()
    progress, clock = ReadingProgress(names), AgreementClock(settings.window_rules)  # one log, one clock
    rules = replace(settings.ping_rules, max_kmh=settings.ping_rules.reject_above_kmh)
    with ExitStack() as stack:
        opened = open_sources(names, settings.speed.unit, progress.of, form=settings.source.form)
        sources = [(name, stack.enter_context(closing(source))) for name, source in opened]
        stack.enter_context(progress)
        for name, source in sources:
            decoder = PingDecoder(rules, source.format)
            for messages in joined(as_far_as_whole(looked_at(source, name, settings), print_warning)):
                pings, refusals = decoder.decode(messages)
                refused.update(str(refusal.reason) for refusal in refusals)
                for message, refusal in zip(originals(messages, refusals, source.format), refusals, strict=True):
                    sample(message, refusal)
                if not len(pings):
                    continue
                if beginning is None:
                    beginning = pings
                kept = ~from_future(clock, pings)
                refused[str(Reason.TIME_IN_FUTURE)] += int((~kept).sum())
                read = (pings.time_ms, pings.lat, pings.lon, pings.speed)
                columns.append((numbered(numbers, pings, kept), *(column[kept] for column in read)))
    if beginning is None:
        raise UsageError(
            "no ping was accepted. `udp-stream replay` without --dry-run says why: it charges nothing then"
        )
    plate, time_ms, lat, lon, speed = (np.concatenate(column) for column in zip(*columns, strict=True))
    return _Read(Positions(plate, len(numbers), time_ms, lat, lon), speed, beginning, refused)


def _repeats(positions: Positions) -> int:
    """How many pings have the plate and the time of another; a replay counts one of these."""
    order = np.lexsort((positions.time_ms, positions.plate))
    return int(((np.diff(positions.plate[order]) == 0) & (np.diff(positions.time_ms[order]) == 0)).sum())


def _warnings(read: _Read, settings: Settings) -> Iterator[str]:
    """What is likely to be set wrongly."""
    evidence = unit_evidence(read.beginning, settings.speed.unit)
    if evidence.fits_none:
        yield f"speed.unit is {settings.speed.unit!r}, and {FITS_NONE}"
    if (unit := evidence.unit) is not None and unit != settings.speed.unit:
        yield (
            f"speed.unit is {settings.speed.unit!r}, and pings move about as fast as they report in {unit!r}: set "
            f"speed.unit = {unit!r}"
        )
    above = float(np.mean(read.speed > settings.speed.max_kmh * QUANTA_PER_KMH))
    if above > ABOVE_WORTH_A_WORD:
        yield (
            f"{above:.1%} of the pings are above speed.max_kmh = {settings.speed.max_kmh:g} and would be clamped to "
            "it. Choose U from what buses may drive, not from this figure"
        )
    yield from warnings_of(read.beginning, settings)
