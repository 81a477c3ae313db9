"""What asking the whole city brings (`forecast.city`), on recorded days and on days whose speeds were made strange.

`python -m benchmarks.city_queries FOLDER [--seeds N]`: the days of `benchmarks.accuracy`, H3 7, an hour, 10 per plate
and day, the prior trained on other years. Off, then on, pure, then in rho: what smoothed estimates err by over the
constant's error (all HATs), the share of HATs that their intervals hold, and how many slots are asked.

Strange days keep the counts of a recorded day. Of its speeds:

* `stand`: a share of the visits (a plate in a HAT and slot) has the speed 0;
* `stop`: a share of the pings has;
* `humps`: a share of the visits is about one speed, and all others are about another one; `buses`: of the plates.

A narrow clip around a forecast hides how far those are off that differ most. So releases drift to what most plates do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import Feeds, errors_of
from benchmarks.forecast_days import OURS, Day, Run, changed, run
from udp_stream.release import road
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

Floats = NDArray[np.float64]
Speeds = Callable[[np.random.Generator, SlotCounts, Floats], Floats]
"""The speeds of a slot's pings in km/h, from its counts and its true ones."""

RESOLUTION = 7
SCATTER_KMH = 3.0
"""Of pings around the speed of their hump."""

SETTINGS = {"pure": (), "in rho": ("budget.accounting=approximate",)}


def strange(day: Day, speeds: Speeds, max_kmh: float = 110.0, seed: int = 1) -> Day:
    """The day with other speeds, of at most `max_kmh`, and the truth that follows from them."""
    rng, slots, truth = np.random.default_rng(seed), [], []
    for counts, values in day.slots:
        made = np.clip(speeds(rng, counts, values.speed / QUANTA_PER_KMH), 0, max_kmh)
        speed = np.rint(made * QUANTA_PER_KMH).astype(values.speed.dtype)
        starts = values.starts[counts.hat_rows]
        truth.append(np.add.reduceat(speed, starts[:-1]) / np.diff(starts) / QUANTA_PER_KMH)
        slots.append((counts, SlotValues(speed, values.starts)))
    return replace(day, slots=tuple(slots), truth=np.concatenate(truth))


def stand(rng: np.random.Generator, counts: SlotCounts, true: Floats, share: float) -> Floats:
    """That share of the visits stands."""
    return np.where(np.repeat(rng.random(counts.count.size) < share, counts.count), 0.0, true)


def stop(rng: np.random.Generator, _counts: SlotCounts, true: Floats, share: float) -> Floats:
    """That share of the pings stands."""
    return np.where(rng.random(true.size) < share, 0.0, true)


def humps(
    rng: np.random.Generator, counts: SlotCounts, _true: Floats, share: float, fast: float, slow: float
) -> Floats:
    """That share of the visits is fast, all others are slow."""
    of_visit = np.where(rng.random(counts.count.size) < share, fast, slow)
    return np.repeat(of_visit, counts.count) + rng.normal(0, SCATTER_KMH, int(counts.count.sum()))


def buses(
    rng: np.random.Generator, counts: SlotCounts, _true: Floats, share: float, fast: float, slow: float
) -> Floats:
    """That share of the plates is fast in all slots, all others are slow."""
    is_fast = np.array([crc32(plate) for plate in counts.plates]) < 2**32 * share
    of_visit = np.where(is_fast, fast, slow)[counts.plate]
    return np.repeat(of_visit, counts.count) + rng.normal(0, SCATTER_KMH, int(counts.count.sum()))


STRANGE = {
    "half of the visits stand": partial(stand, share=0.5),
    "seven of ten visits stand": partial(stand, share=0.7),
    "eight of ten pings stand": partial(stop, share=0.8),
    "a third of the visits at 50, others at 3": partial(humps, share=0.35, fast=50, slow=3),
    "a fifth of the visits at 70, others at 5": partial(humps, share=0.2, fast=70, slow=5),
    "a tenth of the visits at 90, others at 8": partial(humps, share=0.1, fast=90, slow=8),
    "a fifth of the plates at 70, others at 5": partial(buses, share=0.2, fast=70, slow=5),
}
OF_ONE_DAY = (humps, buses)
"""Nothing is left of a day's own speeds: made of one of them."""

BASES = "austin-capmetro-2016-11-24", "austin-capmetro-2017-03-21", "surat-itms-2022-01-01"


def days_of(feeds: Feeds) -> Iterator[tuple[str, Day]]:
    """The recorded days, then the strange ones."""
    for name in feeds.names:
        yield name, feeds.day(name, RESOLUTION)
    for what, speeds in STRANGE.items():
        bases = [name for name in BASES if name in feeds.names]
        for name in bases[:1] if speeds.func in OF_ONE_DAY else bases:
            yield f"{name}: {what}", strange(feeds.day(name, RESOLUTION), speeds)


def measured(day: Day, feeds: Feeds, seeds: int, flags: Sequence[str]) -> str:
    """Errors, the share of HATs held, and slots asked."""
    asked = 0

    def counted(sums, plan, context, ledger, record=road.record_city):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += plan.city is not None
        record(sums, plan, context, ledger)

    runs: list[Run] = []
    with changed(road, record_city=counted):
        for seed in range(seeds):
            runs += run([day], seed, feeds.prior(day.year, RESOLUTION), (*OURS, *flags))
    held = np.mean([((one.low <= day.truth) & (day.truth <= one.high)).mean() for one in runs])
    return f"{errors_of(day, [one.value for one in runs])} {held:.2f} {asked / seeds:4.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    for name, day in days_of(feeds):
        said = []
        for flags in SETTINGS.values():
            said += [measured(day, feeds, asked.seeds, (*flags, f"forecast.city={city}")) for city in ("off", "on")]
        print(f"{name:<70}{'   '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
