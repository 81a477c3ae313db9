"""`python -m benchmarks.schedules [--repeats N] [--mean NAME] FILE:U:ZONE ...`: a day under each budget schedule.

H3 7, one hour, HATs of ten plates and more, automatic epsilon, 10 per plate and day. For each schedule: the median
epsilon of a HAT in the slot where it is least and where it is most, slots in which some plate could not pay, the share
of pings that are in released HATs, and the error over all HATs (a withheld one counts with the constant), over the
constant's.

`by pings` are weights: each slot's share of the day's pings, which is public.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.forecast_days import Day, day_of
from udp_stream.adapters.settings import load
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.release.context import ReleaseContext
from udp_stream.release.record import Release, decode
from udp_stream.release.road import release_slot
from udp_stream.testing import SeededEntropy

BASE = "hat.resolution=7", "hat.slot=1h", "release.min_plates=10"


def weights_of(day: Day) -> str:
    """Each slot's share of the day's pings, as a setting."""
    by_hour = np.bincount(day.hour, weights=day.pings, minlength=24)
    return str([round(float(share), 6) for share in by_hour / by_hour.sum()])


def records_of(day: Day, schedule: str, mean: str, seed: int) -> list[list[Release]]:
    """The day's records, slot by slot."""
    flags = (*day.feed.flags, f"release.mean={mean}", f"budget.schedule={schedule}")
    settings, ledger = load(None, flags, {}), MemoryLedger()
    context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy(seed), "benchmark")
    slots = (release_slot(*contents, context, ledger, lambda _: None) for contents in day.slots)
    return [[decode(payload) for payload in slot.payloads.values()] for slot in slots]


def figures(day: Day, slots: Sequence[Sequence[Release]]) -> tuple[float, float, float, float, float]:
    """Least and largest median epsilon of a slot, slots that refused a plate, share of pings served, error."""
    made = [[one for one in slot if one.mean is not None] for slot in slots]
    epsilons = [float(np.median([one.privacy.epsilon for one in slot])) for slot in made if slot]
    refused = sum(any(one.counts and one.counts.admitted_plates < one.counts.plates for one in slot) for slot in made)
    means = [one.mean for slot in slots for one in slot]
    estimate = np.array([day.constant if mean is None else mean.value_kmh for mean in means])
    served = day.pings[[mean is not None for mean in means]].sum() / day.pings.sum()
    return min(epsilons), max(epsilons), refused, float(served), day.over_constant(estimate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mean", default="baseline")
    asked = parser.parse_args()
    for argument in asked.feeds:
        day = day_of(argument, *BASE)
        schedules = {name: name for name in ("spread", "uniform", "ramp")} | {"by pings": weights_of(day)}
        for name, schedule in schedules.items():
            days = (records_of(day, schedule, asked.mean, seed) for seed in range(asked.repeats))
            runs = np.array([figures(day, slots) for slots in days])
            low, high, refused, served, error = runs.mean(axis=0)
            print(
                f"{day.feed.name:<32}{name:<10}epsilon {low:.3f} to {high:.3f}  refused in {refused:.1f} of "
                f"{len(day.slots)} slots  served {served:.2f}  error {error:.2f} of the constant's",
                flush=True,
            )


if __name__ == "__main__":
    main()
