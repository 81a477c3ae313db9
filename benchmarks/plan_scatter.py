"""How plates of one HAT differ, by how many pings they have in it; and what counts tell of HATs' means.

`python -m benchmarks.plan_scatter FOLDER [--slot 1h]`: the feeds of `benchmarks.accuracy`. `release/rehearsal.py`
invents cities with about these figures; what counts tell of a plate comes on top of the line *invented*, and is in
those of feeds. Of each feed and resolution:

* mean: of all pings, and slope: of HATs' true means in the prior's relative speeds, weighed by pings, both in km/h;
* the root mean square by which a plate's mean differs from the mean of its HAT's other plates, in km/h at 17 km/h, by
  its number of pings. HATs of at least 4 plates; divided by sqrt(1 + 1 / others), as the others' mean differs too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import DAYS
from benchmarks.forecast_days import Day, day_of
from udp_stream.forecast.prior import prior_of
from udp_stream.mechanisms.speed_spread import at_speed
from udp_stream.release.rehearsal import FASTEST_FACTOR, PING_SD, PLATE_SD, SLOWEST
from udp_stream.units import QUANTA_PER_KMH

PINGS = (1, 1), (2, 2), (3, 4), (5, 8), (9, 16)
PLATES_MIN = 4

Floats = NDArray[np.float64]


def slope_of(day: Day) -> float:
    told = np.concatenate([prior_of(counts).by_hat for counts, _ in day.slots])
    root = np.sqrt(day.pings)
    (_, slope), *_ = np.linalg.lstsq(np.column_stack([root, root * told]), root * day.truth, rcond=None)
    return float(slope)


def scatter_of(day: Day) -> tuple[Floats, NDArray[np.int64]]:
    """Of each plate in each HAT: how far it is from the others, and its pings."""
    off, pings = [], []
    for counts, values in day.slots:
        starts = np.append(0, np.cumsum(counts.count))
        mean = np.add.reduceat(values.speed, starts[:-1]) / counts.count / QUANTA_PER_KMH
        for first, last in zip(counts.hat_rows[:-1].tolist(), counts.hat_rows[1:].tolist(), strict=True):
            others = last - first - 1
            if others + 1 >= PLATES_MIN:
                ours = mean[first:last]
                apart = (ours - (ours.sum() - ours) / others) / np.sqrt(1 + 1 / others)
                factor = np.minimum(at_speed(np.maximum([ours.mean()], SLOWEST)), FASTEST_FACTOR)
                off.append(apart / factor)
                pings.append(counts.count[first:last])
    return np.concatenate(off), np.concatenate(pings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slot", default="1h")
    arguments = parser.parse_args()
    invented = "  ".join(f"{np.sqrt(PLATE_SD**2 + PING_SD**2 * 2 / (low + high)):5.1f}" for low, high in PINGS)
    print(f"{'pings of a plate':<46}" + "  ".join(f"{low}-{high}".rjust(5) for low, high in PINGS))
    print(f"{'invented':<46}{invented}")
    for name, zone in DAYS.items():
        path = arguments.folder / f"{name}.ndjson.gz"
        for resolution in (6, 7, 8) if path.exists() else ():
            day = day_of(f"{path}{zone}", f"hat.resolution={resolution}", f"hat.slot={arguments.slot}")
            off, pings = scatter_of(day)
            chosen = [(pings >= low) & (pings <= high) for low, high in PINGS]
            found = "  ".join(f"{np.sqrt(np.mean(off[rows] ** 2)):5.1f}" if rows.any() else "    -" for rows in chosen)
            print(f"{name:<28}{resolution:>2} {day.constant:5.1f} {slope_of(day):6.1f}   {found}", flush=True)


if __name__ == "__main__":
    main()
