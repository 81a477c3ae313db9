"""How far a configuration's releases are off when budgets bind: whole feeds through the embedded runtime.

`python -m benchmarks.day_errors [--set SECTION.KEY=VALUE ...] [--repeats N] FILE:U:ZONE ...`; without `--set` the
defaults. Seeds are 0, 1, 2, ... Errors are in km/h, weighed by pings; *all HATs*: the withheld ones, too, with the
baseline guess's error; *released*: those with a mean, and the baseline guess over the same ones; served: their share
of pings.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import at_least_two
from udp_stream.adapters.embedded import Embedded
from udp_stream.adapters.files.sources import read_messages
from udp_stream.adapters.settings import load
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.release.delivery import PublishedRelease
from udp_stream.release.record import Release, release_id
from udp_stream.testing import SeededEntropy
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.grid import cell_name


@dataclass(frozen=True, slots=True)
class Truth:
    """By release id: true mean and pings; and the mean of all pings, which is the baseline guess."""

    hats: dict[str, tuple[float, int]]
    constant: float
    pings: int

    def guess_errs(self, ids: set[str]) -> float:
        """The sum over pings of the baseline guess's error in these HATs."""
        return sum(abs(mean - self.constant) * pings for i, (mean, pings) in self.hats.items() if i in ids)


def truth_of(feed: Feed) -> Truth:
    hats, total, pings = {}, 0, 0
    for counts, values in feed.slots():
        for hat, cell in enumerate(counts.cells.tolist()):
            speed = values.of_rows(counts.rows(hat))
            name = release_id(cell_name(cell), counts.start_ms, counts.end_ms)
            hats[name] = float(speed.mean()) / QUANTA_PER_KMH, int(speed.size)
            total, pings = total + int(speed.sum()), pings + int(speed.size)
    return Truth(hats, total / pings / QUANTA_PER_KMH, pings)


def released(feed: Feed, seed: int) -> list[Release]:
    """One run on a ledger of its own: the records that have a mean."""
    releases: list[PublishedRelease] = []
    runtime = Embedded(
        load(None, feed.flags, {}),
        MemoryLedger(),
        SeededEntropy(seed),
        lambda plate: plate.encode().ljust(32),
        "benchmark",
        releases.extend,
    )
    runtime.run(read_messages(feed.path))
    return [release.record for release in releases if release.record.mean is not None]


def figures(truth: Truth, records: list[Release]) -> tuple[float, float, float, float, float, float]:
    """Errors of releases and the baseline guess over all HATs, and over released ones; served; share held."""
    ids = {record.release_id for record in records}
    means = [(record.mean, *truth.hats[record.release_id]) for record in records if record.mean is not None]
    errs = sum(abs(mean.value_kmh - true) * pings for mean, true, pings in means)
    held = [mean.interval95_kmh[0] <= true <= mean.interval95_kmh[1] for mean, true, _ in means]
    everywhere, here = truth.guess_errs(set(truth.hats)), truth.guess_errs(ids)
    pings = sum(pings for _, _, pings in means)
    return (
        (errs + everywhere - here) / truth.pings,
        everywhere / truth.pings,
        errs / pings,
        here / pings,
        pings / truth.pings,
        float(np.mean(held)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    parser.add_argument("--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--repeats", type=at_least_two, default=12)
    arguments = parser.parse_args()
    print(f"{'':<34}{'all HATs':>15}{'guess':>10}{'released':>15}{'guess':>10}{'served':>8}{'cover95':>9}")
    for argument in arguments.feeds:
        feed = feed_of(argument, "hat.slot=6h", "hat.resolution=6", *arguments.flags)
        truth = truth_of(feed)
        runs = np.array([figures(truth, released(feed, seed)) for seed in range(arguments.repeats)])
        (all_hats, beside, here, guess, served, held), deviation = runs.mean(axis=0), runs.std(axis=0, ddof=1)
        print(
            f"{feed.name:<34}{all_hats:>8.2f} ± {deviation[0]:<4.2f}{beside:>10.2f}{here:>8.2f} ± {deviation[2]:<4.2f}"
            f"{guess:>10.2f}{served:>8.2f}{held:>9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
