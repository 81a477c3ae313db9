"""Means around forecasts in rho, clipped HAT by HAT and in all HATs of a plate together: errors over the constant.

    python -m benchmarks.ball FOLDER [SEEDS]

The days of `benchmarks.accuracy`, in the folder, at H3 6 and 7 and one hour, with the shipped coefficients.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.accuracy import DAYS
from benchmarks.forecast_days import OURS, day_of, run


def errors(path: str, resolution: int, clip: str, seeds: int) -> str:
    """All HATs, and those of at least ten plates; the mean of all seeds."""
    day = day_of(path, f"hat.resolution={resolution}", "hat.slot=1h")
    flags = (*OURS, "budget.accounting=approximate", f"release.clip={clip}")
    runs = [run([day], seed, None, flags)[0].value for seed in range(seeds)]
    of_all, of_large = (np.mean([day.over_constant(one, least) for one in runs]) for least in (1, 10))
    return f"{of_all:.3f} / {of_large:.3f}"


def main() -> None:
    """A row for each day and resolution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("seeds", metavar="SEEDS", type=int, nargs="?", default=5)
    arguments = parser.parse_args()
    print("| day | H3 | HAT by HAT | together |\n| --- | ---: | --- | --- |")
    for name, zone in DAYS.items():
        path = arguments.folder / f"{name}.ndjson.gz"
        for resolution in (6, 7) if path.exists() else ():
            found = [errors(f"{path}{zone}", resolution, clip, arguments.seeds) for clip in ("box", "ball")]
            print(f"| {name} | {resolution} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
