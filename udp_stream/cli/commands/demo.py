"""`demo`: a synthetic Surat-like fleet, no services, no files; and its picture.

The picture shows private estimates, or releases where a paper's mechanism takes means, beside the
truth and a guess: true means may be shown, as the fleet is synthetic. Nothing here is for a real
feed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from udp_stream.base.errors import ConfigError, PackageMissing, UsageError, needs
from udp_stream.base.logs import counted, log_message
from udp_stream.cli.outputs import Write, records_out, require_distinct, used_files
from udp_stream.cli.progress import console
from udp_stream.cli.report import SOFTWARE, print_summary
from udp_stream.dashboard.slots import Slots
from udp_stream.embedded.runtime import EmbeddedRuntime, Smooth, release_sink, smoothed_sink
from udp_stream.export_formats import require_format
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import begin_run, ledger_and_keys, trial_ledger
from udp_stream.release.events import PublishedRelease, ReleaseSink, Summary
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import Settings
from udp_stream.sources.fleet import IST, Fleet
from udp_stream.sources.timetable import network_of
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotGrid

if TYPE_CHECKING:
    from udp_stream.dashboard.server import Dashboard

CELLS_SHOWN = 12
BAR_STEPS = 52
MORNING = datetime(2024, 1, 8, 6, tzinfo=IST)
YEAR_HOURS = 365 * 24
SLOT_S = 20.0


class TrueMeans(NamedTuple):
    """The buses in a single slot: km/h and pings by cell. `guess_kmh`: the mean of all pings,
    the best guess."""

    kmh: Mapping[str, float]
    pings: Mapping[str, int]
    guess_kmh: float


def true_means(fleet: Fleet, slot_start: str, slots: SlotGrid, grid: Grid) -> TrueMeans:
    """The truth of the slot that starts at this time, as records write it."""
    cells = []
    speeds = []
    for chunk in fleet.chunks():
        if not chunk.time_ms.size:  # at night, perhaps amid the slot
            continue
        starts, _ = slots.place(chunk.time_ms)
        ours = np.array([slots.iso(int(start)) == slot_start for start in np.unique(starts)])
        here = np.isin(starts, np.unique(starts)[ours])
        if here.any():
            cells.append(grid.cells_of(chunk.lat[here], chunk.lon[here]))
            speeds.append(chunk.speed_kmh[here])
        elif cells:
            break
    cell = np.concatenate(cells)
    kmh = np.concatenate(speeds)
    found, at, pings = np.unique(cell, return_inverse=True, return_counts=True)
    sums = np.bincount(at, weights=kmh)
    names = [grid.id_of(int(cell)) for cell in found]
    means = dict(zip(names, (sums / pings).tolist(), strict=True))
    return TrueMeans(means, dict(zip(names, pings.tolist(), strict=True)), float(kmh.mean()))


class ShownCell(NamedTuple):
    """The value of a cell that is shown, and its 95 % interval, km/h."""

    kmh: float
    interval: tuple[float, float]


def shown_of(slot: Sequence[Release], estimates: Sequence[Smoothed]) -> dict[str, ShownCell]:
    """By cell: estimates of the slot's HATs, or what was released of them where there are none."""
    by_id = {
        estimate.release_id: ShownCell(estimate.value_kmh, estimate.interval95_kmh)
        for estimate in estimates
    }
    if by_id:
        return {
            record.hat.cell: by_id[record.release_id]
            for record in slot
            if record.release_id in by_id
        }
    means = ((record.hat.cell, record.mean) for record in slot if record.mean is not None)
    return {cell: ShownCell(mean.value_kmh, mean.interval95_kmh) for cell, mean in means}


def busiest_slot(records: Sequence[Release]) -> list[Release]:
    """The records of the slot with the most plates."""
    slots = dict[str, list[Release]]()
    for record in records:
        slots.setdefault(record.hat.slot_start, []).append(record)
    return (
        max(slots.values(), key=lambda slot: sum(record.plates for record in slot)) if slots else []
    )


def picture(
    slot: Sequence[Release], estimates: Sequence[Smoothed], truth: TrueMeans, max_kmh: float
) -> str:
    """The busiest cells of a slot, slowest first, and how far off estimates and guess are."""
    if not slot:
        return "nothing was released"
    shown = shown_of(slot, estimates)
    # Where records keep counts back, the fleet's own pings say which cells are busy.
    busiest = sorted(
        slot, key=lambda record: (-record.plates, -truth.pings.get(record.hat.cell, 0))
    )[:CELLS_SHOWN]
    busiest.sort(key=lambda record: shown[record.hat.cell].kmh if record.hat.cell in shown else -1)
    start = slot[0].hat.slot_start
    end = slot[0].hat.slot_end
    hours = f"{start} to {end[11:] if end[:10] == start[:10] else end}"
    head = f"{hours}: mean speed by cell, km/h"
    parts = [
        head,
        f"the busiest cells: ● private estimate in its 95 % interval ───, ○ true, ┊ guess; 0 to {max_kmh:g} km/h",
        *(_row(record, shown.get(record.hat.cell), truth, max_kmh) for record in busiest),
        *_errors(shown, truth),
        "The fleet is synthetic, so its true means can be shown. Those of a real feed are what is protected.",
    ]
    return "\n".join(parts)


def _row(record: Release, shown: ShownCell | None, truth: TrueMeans, max_kmh: float) -> str:
    plates = f"  {counted(record.plates, 'plate'):>10}" if record.counts else ""
    if shown is None:
        return f"{record.hat.cell}  {record.status.replace('_', ' ')}{plates}"
    true = truth.kmh.get(record.hat.cell)
    steps = BAR_STEPS / max_kmh
    low, high = (kmh * steps for kmh in shown.interval)
    bar = ["─" if low <= at <= high else " " for at in range(BAR_STEPS + 1)]
    for mark, kmh in (("┊", truth.guess_kmh), ("○", true), ("●", shown.kmh)):
        if kmh is not None:
            bar[min(BAR_STEPS, round(kmh * steps))] = mark
    figures = f"{shown.kmh:5.1f}, true {'?' if true is None else f'{true:.1f}'}"
    return f"{record.hat.cell} |{''.join(bar)}| {figures}{plates}"


def _errors(shown: Mapping[str, ShownCell], truth: TrueMeans) -> list[str]:
    known = [
        (shown_cell.kmh, truth.kmh[cell], truth.pings[cell])
        for cell, shown_cell in shown.items()
        if cell in truth.kmh
    ]
    if not known:
        return []
    private, true, pings = (np.array(column) for column in zip(*known, strict=True))
    ours, guess = (
        float(np.average(np.abs(kmh - true), weights=pings)) for kmh in (private, truth.guess_kmh)
    )
    return [
        f"{len(known)} cells: private values err by {ours:.1f} km/h; one guess for all, the true city-wide mean of "
        f"{truth.guess_kmh:.1f}, by {guess:.1f} km/h."
    ]


DemoRun = tuple[list[PublishedRelease], list[Smoothed], Summary]
"""The records of a run, and its counts."""


def demo(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run the fleet's day, here or through Kafka, and show its busiest cells; on a terminal, in a
    browser."""
    if arguments.services:
        from lab.services import services

        services(arguments, settings)
        return
    if arguments.kafka and arguments.ledger:
        raise UsageError("demo --kafka keeps its ledger in a Redis of its own: leave --ledger out")
    if settings.source.is_mapped:
        raise ConfigError(
            "source: expected no keys for demo, whose pings are in the contract's form"
        )
    if arguments.kafka and settings.release.counts != "all":
        raise ConfigError(
            'release.counts: expected "all" for demo --kafka, whose summary follows from the counts of records, got '
            f'"{settings.release.counts}"'
        )
    require_distinct([("--out", arguments.out)], used_files(arguments, settings))
    name = arguments.out or os.devnull
    require_format(name)
    dashboard = (
        None if arguments.headless or arguments.kafka or not _is_watched() else _dashboard(settings)
    )
    fleet = Fleet(
        seed=1,  # of the fleet's movements, never of the noise
        buses=arguments.buses,
        start=MORNING,
        hours=YEAR_HOURS if dashboard else arguments.slots * settings.policy.slot_seconds / 3600,
    )
    with records_out(name, Release, settings.grid) as write:
        if dashboard is not None:
            _on_page(arguments, settings, fleet, dashboard, write)
            return
        if arguments.kafka:
            with needs("Kafka client", "services"):
                from lab.demo_kafka import run_on_kafka
            releases, estimates, summary = run_on_kafka(arguments, fleet)
        else:
            releases, estimates, summary = _embedded(arguments, settings, fleet)
        release_sink(write)(releases)
    if arguments.out != "-":
        truth = TrueMeans({}, {}, 0.0)
        slot = busiest_slot([release.record for release in releases])
        if slot:
            start = slot[0].hat.slot_start
            truth = true_means(fleet, start, settings.calendar.slots, settings.grid)
        print(picture(slot, estimates, truth, settings.speed.max_kmh))
    print_summary(summary, settings)


def _is_watched() -> bool:
    """Whether a person sees what is printed: at a terminal, and not that of a build."""
    return all(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    ) and not os.environ.get("CI")


def _dashboard(settings: Settings) -> Dashboard | None:
    try:
        with needs("page", "dashboard"):
            from udp_stream.dashboard.places import Places
            from udp_stream.dashboard.server import Dashboard
    except PackageMissing as missing:
        log_message(f"{missing}; without it this run shows its end alone")
        return None
    places = Places(network_of(Fleet(seed=1)), settings.grid)
    slots = Slots(settings.dashboard.slots, is_synthetic=True, grid=settings.grid)
    return Dashboard(slots, places=places)


def _on_page(
    arguments: argparse.Namespace,
    settings: Settings,
    fleet: Fleet,
    dashboard: Dashboard,
    write: Write,
) -> None:
    from udp_stream.dashboard.server import serving

    def show(payloads: Sequence[bytes]) -> None:
        dashboard.slots.take(payloads)
        dashboard.announce(dashboard.slots.show())

    def publish(releases: Sequence[PublishedRelease]) -> None:
        release_sink(write)(releases)
        release_sink(show)(releases)

    with (
        serving(dashboard, "127.0.0.1:0") as address,
        _runtime(arguments, settings, publish, smoothed_sink(show)) as runtime,
    ):
        log_message(
            f"a synthetic fleet of {fleet.buses} buses, a slot every {SLOT_S:g} s: {address} (Ctrl-C ends it)"
        )
        if sys.platform == "darwin" or any(
            map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
        ):
            webbrowser.open(address)  # elsewhere it might be a browser in this very terminal
        released = 0
        for frame in fleet.messages():
            runtime.push(frame, settings.form.format)
            if runtime.summary.slots > released:
                released = runtime.summary.slots
                if released >= arguments.slots:
                    time.sleep(SLOT_S)
        runtime.finish()


def _embedded(arguments: argparse.Namespace, settings: Settings, fleet: Fleet) -> DemoRun:
    releases = list[PublishedRelease]()
    estimates = list[Smoothed]()
    with (
        _runtime(arguments, settings, releases.extend, estimates.extend) as runtime,
        console().status("") as status,
    ):
        for frame in fleet.messages():
            runtime.push(frame, settings.form.format)
            read = runtime.summary
            done = f"{read.pings:,} pings, {read.slots} of about {arguments.slots} slots released"
            status.update(f"a synthetic fleet of {arguments.buses} buses: {done}")
        runtime.finish()
        return releases, estimates, runtime.summary


@contextmanager
def _runtime(
    arguments: argparse.Namespace,
    settings: Settings,
    publish: ReleaseSink,
    smooth: Smooth,
) -> Iterator[EmbeddedRuntime]:
    with ExitStack() as stack:
        trial = not arguments.ledger
        place = stack.enter_context(trial_ledger(settings)) if trial else settings.ledger
        ledger, keys = stack.enter_context(ledger_and_keys(place))
        others = begin_run(place, ledger, settings)
        yield EmbeddedRuntime(
            settings, ledger, OsEntropy(), keys.hash_plate, SOFTWARE, publish, others=others, trial=trial,
            smooth=smooth, answer=lambda _: None,  # the summary counts them
        )  # fmt: skip
