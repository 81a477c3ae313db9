"""How many releases the median plate's day is worth under epsilon 10, and under (10, 1e-06) in rho: every feed.

`python -m benchmarks.median_plate FOLDER [--seeds N] [--set SECTION.KEY=VALUE ...]`; FOLDER as for
`benchmarks.accuracy`; H3 7, one hour. What is set holds for the day alone.

*Equal noise*: HATs of at least 10 plates, from counts alone. A mean with Laplace noise at some epsilon, and one with
Gaussian noise of the same expected size; for each plate the releases that its budget buys at what its HATs charge it on
average; of them the median plate's. What it can be in is no more than its HATs of the day.

*The day*: means around forecasts as by default, each accounting with its own noise. Releases that the median plate
takes part in, HATs with a mean, and the error over the constant's, all HATs / HATs of at least 10 plates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import pi
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import Feeds
from benchmarks.forecast_days import OURS, Day, changed
from udp_stream.adapters.settings import load
from udp_stream.forecast.prior import Coefficients, prior_of
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.planning.hat_plan import plan_hat
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import terms_of
from udp_stream.release.context import ReleaseContext, with_forecaster
from udp_stream.release.road import release_slot
from udp_stream.testing import SeededEntropy
from udp_stream.units import NANO

ACCOUNTINGS = {"pure": "budget.accounting=pure", "rho": "budget.accounting=approximate"}
EPSILONS = 1.0, 0.5, 0.2, 0.1
MECHANISMS = "array-averaging", "baseline"
PLATES_MIN = 10


def cost_nano(policy: Policy, epsilon: float) -> int:
    """What noise of Laplace's expected size at epsilon costs: sigma sqrt(2/pi) = 1/epsilon, sigma = 1/sqrt(2 rho)."""
    return round((epsilon if policy.measure == "pure" else epsilon**2 / pi) * NANO)


def bought(day: Day, policy: Policy, epsilon: float) -> float:
    """Releases of the median plate, at this noise."""
    visits, charged = dict[bytes, int](), dict[bytes, int]()
    terms = terms_of(policy, cost_nano(policy, epsilon), 0, 0)
    for counts, _ in day.slots:
        for hat in np.flatnonzero(np.diff(counts.hat_rows) >= PLATES_MIN).tolist():
            rows = counts.rows(hat)
            charges = plan_hat(counts.count[rows], terms, policy).charges.tolist()
            for number, charge in zip(counts.plate[rows].tolist(), charges, strict=True):
                plate = counts.plates[number]
                visits[plate], charged[plate] = visits.get(plate, 0) + 1, charged.get(plate, 0) + charge
    return float(np.median([policy.budget_nano * times / charged[plate] for plate, times in visits.items()]))


def whole_day(day: Day, prior: Coefficients, flags: Sequence[str], seed: int) -> tuple[float, float, float, float]:
    """Releases of the median plate, HATs with a mean, errors."""
    settings, ledger = load(None, (*day.feed.flags, *OURS, *flags), {}), MemoryLedger()
    given = ReleaseContext(settings.policy, settings.calendar, SeededEntropy(seed), "benchmark")
    taken: dict[bytes, int] = {}
    value, measured = list[float](), 0
    with changed(prior_of, __defaults__=("plates", prior)):
        context = with_forecaster(given)
        for counts, values in day.slots:
            out = release_slot(counts, values, context, ledger, lambda _: None)
            paid = np.zeros(len(counts.plates), np.int64)
            for hat in out.hats:
                np.add.at(paid, counts.plate[hat.rows], hat.charged > 0)
                measured += bool(hat.charged.any())
            for plate, times in zip(counts.plates, paid.tolist(), strict=True):
                taken[plate] = taken.get(plate, 0) + times
            smoothed = context.smoothed((counts.start_ms, counts.end_ms), ledger)
            value += [one.value_kmh for one in smoothed[: counts.cells.size]]
    estimate = np.array(value)
    return (
        float(np.median(list(taken.values()))), measured, day.over_constant(estimate), day.over_constant(estimate, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE")
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    for name in feeds.names:
        day = feeds.day(name, 7)
        visits = _visits(day)
        print(f"{name}: the median plate is in {np.median(visits):.0f} HATs, in those of >= 10 plates as below")
        for mechanism in MECHANISMS:
            said = []
            for epsilon in EPSILONS:
                pure, rho = (
                    bought(day, load(None, (*day.feed.flags, f"release.mean={mechanism}", flag), {}).policy, epsilon)
                    for flag in ACCOUNTINGS.values()
                )
                said.append(f"at {epsilon:g} {pure:.0f} and {rho:.0f} ({rho / pure:.2f} times)")
            print(f"    {mechanism:<18}{', '.join(said)}", flush=True)
        prior = feeds.prior(day.year, 7)
        for label, flag in ACCOUNTINGS.items():
            runs = np.array([whole_day(day, prior, (flag, *asked.flags), seed) for seed in range(asked.seeds)])
            releases, measured, error, large = runs.mean(axis=0)
            where = f"median plate in {releases:.1f}, {measured:.0f} HATs"
            print(f"    the day, {label:<9} {where}, {error:.3f} / {large:.3f}", flush=True)


def _visits(day: Day) -> NDArray[np.int64]:
    """HATs of each plate."""
    times: dict[bytes, int] = {}
    for counts, _ in day.slots:
        found = np.bincount(counts.plate, minlength=len(counts.plates)).tolist()
        for plate, here in zip(counts.plates, found, strict=True):
            times[plate] = times.get(plate, 0) + here
    return np.array(list(times.values()))


if __name__ == "__main__":
    main()
