"""At which resolution and slot a city gets most: `python -m benchmarks.resolutions FOLDER [--seeds N]`.

FOLDER is that of `benchmarks.accuracy`; days of Austin, and a synthetic city of 300 buses; 10 per plate and day, pure,
priors of other years. For each resolution, slot and `release.min_plates`:

* own: error over the constant's, of all HATs;
* fine: the same estimates, read as guesses of each H3 8 cell's half hours. Such a one is guessed to be like the HAT in
  which the cell's centre lies, or like the constant where that has no pings;
* served: the share of pings in HATs with a mean.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import DAYS, Feeds
from benchmarks.forecast_days import OURS, Day, day_of, day_of_fleet, run
from udp_stream.trial.fleet.fleet import Fleet
from udp_stream.windows.grid import cell_center, cells_of

Floats = NDArray[np.float64]

ROWS = (
    (6, "6h", 3), (6, "1h", 3),
    (7, "6h", 3), (7, "1h", 3), (7, "1h", 10), (7, "30m", 3),
    (8, "1h", 3), (8, "1h", 10), (8, "30m", 3),
)  # fmt: skip
FINE = 8, "30m"
FED = "austin-capmetro-2015-06-07", "austin-capmetro-2017-03-21"
SYNTHETIC = "synthetic"
BUSES = 300


@cache
def _synthetic(resolution: int, slot: str) -> Day:
    flags = f"hat.resolution={resolution}", f"hat.slot={slot}"
    return day_of_fleet(SYNTHETIC, Fleet(buses=BUSES).columns(), *flags)


@cache
def _recorded(folder: Path, name: str, resolution: int, slot: str) -> Day:
    flags = f"hat.resolution={resolution}", f"hat.slot={slot}"
    return day_of(f"{folder / name}.ndjson.gz{DAYS[name]}", *flags)


def read_as_fine(day: Day, resolution: int, estimate: Floats, fine: Day) -> Floats:
    """For each HAT of `fine` what the day's estimates say of it."""
    said = {}
    values = iter(estimate.tolist())
    for counts, _ in day.slots:
        said[counts.start_ms, counts.end_ms] = dict(zip(counts.cells.tolist(), values, strict=False))
    guessed: list[float] = []
    for counts, _ in fine.slots:
        here = next(found for (start, end), found in said.items() if start <= counts.start_ms < end)
        lon, lat = np.array([cell_center(cell) for cell in counts.cells.tolist()]).T
        guessed += [here.get(cell, day.constant) for cell in cells_of(lat, lon, resolution).tolist()]
    return np.array(guessed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    print("H3, slot, min_plates: own; fine; served, of " + ", ".join((*FED, SYNTHETIC)))
    for resolution, slot, plates_min in ROWS:
        cells = []
        for name in (*FED, SYNTHETIC):
            day, fine = (
                _synthetic(*at) if name == SYNTHETIC else _recorded(asked.folder, name, *at)
                for at in ((resolution, slot), FINE)
            )
            prior = feeds.prior(day.year, resolution)
            flags = *OURS, f"release.min_plates={plates_min}"
            runs = [run([day], seed, prior, flags)[0] for seed in range(asked.seeds)]
            own = np.mean([day.over_constant(one.value) for one in runs])
            other = np.mean([fine.over_constant(read_as_fine(day, resolution, one.value, fine)) for one in runs])
            served = np.mean([day.pings[one.measured].sum() / day.pings.sum() for one in runs])
            cells.append(f"{own:.2f}; {other:.2f}; {served:.2f}")
        print(f"| {resolution}, {slot}, {plates_min} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
