"""The effect of CHOP-USER on a feed: HATs per plate, composed losses and noise with and without it, from counts alone.

`python -m benchmarks.chop_user FEED:U:ZONE ...`, feeds as for `replay`; `fleet` is a synthetic one. H3 7, 1 h, HATs of
10 plates and more. Epsilon 1 for each mean with an ample budget, and "auto" with 10 a day, under which the default
mechanism takes Baseline. K: the most HATs that one plate is in, over slots of an hour; loss: what plates were charged
over the whole feed; noise: the expected absolute noise of a mean in km/h, weighed by pings; guess: the error of the
baseline guess, the mean of all of the feed's pings, in the same HATs; kept: of the pings in HATs that are large
enough; served: the share of all pings in HATs that are released.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from benchmarks.feeds import feed_of
from benchmarks.words import words
from udp_stream.adapters.entropy import OsEntropy
from udp_stream.adapters.settings import load
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import ReleaseContext
from udp_stream.trial.fleet.fleet import IST, Fleet, write_ndjson
from udp_stream.units import NANO, QUANTA_PER_KMH
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

KINDS = {
    "array-averaging, 1 each": ("release.mean_epsilon=1", "budget.epsilon=1e6", "release.mean=array-averaging"),
    "baseline, 1 each": ("release.mean_epsilon=1", "budget.epsilon=1e6", "release.mean=baseline"),
    "array-averaging, auto": ("release.mean_epsilon=auto", "release.mean=array-averaging"),
    "baseline, auto": ("release.mean_epsilon=auto", "release.mean=baseline"),
}


@dataclass
class Outcome:
    """Of one feed and one way: K of each slot, charges by plate, noise and pings by HAT; the guess's errors by HAT."""

    hats_max: list[int] = field(default_factory=list)
    loss: dict[bytes, float] = field(default_factory=dict)
    noise: list[tuple[float, int]] = field(default_factory=list)
    guess: list[float] = field(default_factory=list)
    kept: int = 0
    offered: list[int] = field(default_factory=list)

    def line(self, pings: int) -> str:
        """As a table shows it, for a feed of that many pings."""
        offered = sum(self.offered)
        losses, (noise, kept) = np.array(list(self.loss.values())), np.array(self.noise).T
        return (
            f"{max(self.hats_max):>7}{np.mean(self.hats_max):>8.1f}{losses.max():>9.2f}{np.median(losses):>9.2f}"
            f"{np.average(noise, weights=kept):>9.2f}{noise.max():>9.2f}"
            f"{np.average(self.guess, weights=self.offered):>9.2f}{self.kept / offered:>8.1%}{offered / pings:>8.2f}"
        )


def outcome(slots: Sequence[tuple[SlotCounts, SlotValues]], city_mean: float, flags: tuple[str, ...]) -> Outcome:
    """Plan and charge every slot on a ledger of its own; speeds are for the guess alone."""
    settings, ledger, found = load(None, flags, {}), MemoryLedger(), Outcome()
    context = ReleaseContext(settings.policy, settings.calendar, OsEntropy(), "benchmark")
    for counts, values in slots:
        plan = plan_slot(counts, context, ledger)
        charged = plan.charged > 0
        if charged.any():
            found.hats_max.append(int(np.bincount(counts.plate[charged]).max()))
        for plate, charge in zip(counts.plate[charged].tolist(), plan.charged[charged].tolist(), strict=True):
            name = counts.plates[plate]
            found.loss[name] = found.loss.get(name, 0.0) + charge / NANO
        for hat, priced in enumerate(plan.priced or ()):
            if priced is not None and priced.mean is not None:
                found.noise.append((priced.mean.noise_bound / QUANTA_PER_KMH, priced.mean.counts.total))
                found.kept += priced.mean.counts.total
                speeds = values.of_rows(counts.rows(hat))
                found.offered.append(speeds.size)
                found.guess.append(abs(float(speeds.mean()) - city_mean) / QUANTA_PER_KMH)
    return found


def feed_file(name: str, folder: str) -> str:
    """A feed's file; `fleet` is made: 300 buses for four hours of the morning."""
    if name != "fleet":
        return name
    path = Path(folder) / "fleet.ndjson.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        write_ndjson(Fleet(seed=1, buses=300, start=datetime(2024, 1, 8, 7, tzinfo=IST), hours=4), file)
    return str(path)


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    names = "K", "mean K", "loss max", "median", "noise", "worst", "guess", "kept", "served"
    print(" " * 54 + "".join(f"{name:>{w}}" for name, w in zip(names, (7, 8, 9, 9, 9, 9, 9, 8, 8), strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        for argument in arguments:
            name, rest = argument.split(":", 1)
            feed = feed_of(f"{feed_file(name, folder)}:{rest}")
            found = list(feed.slots())
            speeds = np.concatenate([values.speed for _, values in found])
            for kind, more in KINDS.items():
                for way in ("off", "chop-user"):
                    flags = *feed.flags, *more, f"release.suppression={way}"
                    line = outcome(found, float(speeds.mean()), flags).line(speeds.size)
                    print(f"{feed.name[-18:]:<19}{kind:<25}{way:<10}{line}", flush=True)


if __name__ == "__main__":
    main()
