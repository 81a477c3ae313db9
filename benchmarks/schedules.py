"""`python -m benchmarks.schedules [--repeats N] [--mean NAME] [--pace] FILE:U:ZONE ...`: a day under each schedule.

H3 7, one hour, HATs of ten plates and more, automatic epsilon, 10 per plate and day. For each schedule: the median
epsilon of a HAT in the slot where it is least and where it is most, slots in which some plate could not pay, the share
of pings that are in released HATs, and the error over all HATs (a withheld one counts with the constant), over the
constant's.

`by pings` are weights: each slot's share of the day's pings, which is public.

`--pace`: what a schedule could do around forecasts. There a plate is held to a pace, which lets out most of its budget
at once; here it lets out an even part for every slot, or parts by pings, or all of it at once. HATs of two plates and
more; the error is that of the smoothed estimates of all HATs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.forecast_days import Day, changed, day_of, run
from udp_stream.adapters.settings import load
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.planning import around
from udp_stream.planning.hat_plan import SlotInPeriod
from udp_stream.planning.policy import Policy
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


def by_pings(day: Day) -> Callable[[SlotInPeriod, Policy], int]:
    """A pace that lets out of the budget what a slot has of the day's pings."""
    shares = np.cumsum(np.bincount(day.hour, weights=day.pings, minlength=24)) / day.pings.sum()

    def paced_nano(in_period: SlotInPeriod, policy: Policy) -> int:
        return int(policy.budget_nano * float(shares[in_period.slots_gone]))

    return paced_nano


def print_paces(argument: str, repeats: int) -> None:
    """A line for each pace."""
    day = day_of(argument, "hat.resolution=7", "hat.slot=1h")
    paces: dict[str, dict[str, object]] = {
        "as it is": {},
        "even parts": {"HEAD_START": 0},
        "by pings": {"_paced_nano": by_pings(day)},
        "all at once": {"HEAD_START": 100},
    }
    for name, changes in paces.items():
        with changed(around, **changes):
            runs = [run([day], seed)[0] for seed in range(repeats)]
        errors = [[day.over_constant(one.value, least) for least in (1, 10)] for one in runs]
        served = float(np.mean([day.pings[one.measured].sum() / day.pings.sum() for one in runs]))
        every, large = np.mean(errors, axis=0)
        print(f"{day.feed.name:<32}{name:<12}served {served:.2f}  error {every:.3f} / {large:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mean", default="baseline")
    parser.add_argument("--pace", action="store_true")
    asked = parser.parse_args()
    for argument in asked.feeds:
        if asked.pace:
            print_paces(argument, asked.repeats)
            continue
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
