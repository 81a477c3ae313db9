"""Should `auto` compare mechanisms at equal charge under rho, as it does under epsilon? A day's error with either.

`python -m benchmarks.auto_in_rho FOLDER [--seeds N]`; FOLDER as for `benchmarks.accuracy`. H3 7, one hour, HATs of at
least 10 plates, epsilon 10 with delta 1e-06 a day, automatic epsilon, without forecasts. Errors are over all HATs, a
withheld one with the constant's, over the constant's error; ± is the standard error of the mean over seeds.

At equal charge: a plate that moves the mean by a share w_l of what noise is for pays rho w_l^2. So with a mean charge
of c the noise is what the plan has at rho, times the root of the mean of w_l^2. The least hypot(noise, spread) wins.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.accuracy import Feeds
from benchmarks.forecast_days import changed, run_without_forecasts
from udp_stream.mechanisms import statistics
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import accuracy
from udp_stream.mechanisms.means.array_averaging import ArrayAveraging
from udp_stream.mechanisms.means.automatic import averaging_caps
from udp_stream.mechanisms.means.base import Grouping, MeanPlan
from udp_stream.mechanisms.means.baseline import Baseline
from udp_stream.mechanisms.means.optimal import Optimal
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.statistic_terms import CompareAt
from udp_stream.planning import terms
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import Terms, terms_of

FLAGS = "release.min_plates=10", "budget.accounting=approximate"


def error_at_charge(plan: MeanPlan) -> float:
    """At a mean charge of the plan's cost."""
    shares = np.ones(1) if plan.moves is None else plan.moves / plan.sensitivity
    noise = plan.noise_bound * float((shares**plan.noise.power).mean()) ** (1 / plan.noise.power)
    return plan.noise.error(noise, accuracy.spread(plan))


def plan_at_charge(
    counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, compare_at: CompareAt
) -> MeanPlan:
    """In place of `plan_automatic`."""
    del compare_at
    asked = cost, range, grouping
    caps = averaging_caps(counts, cost, grouping, allowed=1e9)
    plans = [Baseline().plan(counts, *asked), Optimal().plan(counts, *asked)]
    plans += [ArrayAveraging().plan_with_cap(counts, *asked, cap) for cap in caps]
    return min(plans, key=error_at_charge)


def terms_at_charge(policy: Policy, mean_nano: int, variance_nano: int, cdf_nano: int) -> Terms:
    """In place of `terms_of`: the mechanism that was taken stays, whatever its epsilon becomes."""
    found = terms_of(policy, mean_nano, variance_nano, cdf_nano)
    some = (msgspec.structs.replace(one, compare_at="charge") for one in found.statistics)
    return msgspec.structs.replace(found, statistics=tuple(some))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    feeds = Feeds(asked.folder)
    for name in feeds.names:
        day, said = feeds.day(name, 7), []
        for way in ("at equal epsilon", "at equal charge", "baseline", "array-averaging", "optimal"):
            mean = "auto" if way.startswith("at") else way
            there = {"plan_automatic": plan_at_charge} if way == "at equal charge" else {}
            theirs = {"terms_of": terms_at_charge} if way == "at equal charge" else {}
            with changed(statistics, **there), changed(terms, **theirs):
                runs = (
                    run_without_forecasts(day, seed, (f"release.mean={mean}", *FLAGS)) for seed in range(asked.seeds)
                )
                errors = np.array([day.over_constant(estimate) for estimate in runs])
            off = errors.std(ddof=1) / np.sqrt(errors.size) if errors.size > 1 else 0.0
            said.append(f"{way} {errors.mean():.3f}±{off:.3f}")
        print(f"{name:<28}{'  '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
