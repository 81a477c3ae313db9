"""How far each mechanism's means are off, beside the baseline guess: every HAT of at least 10 plates of recorded feeds.

`python -m benchmarks.mean_errors FILE:U:ZONE ...`, at H3 7, 1 h and epsilon 1 per mean (`--epsilon`), as
`docs/measurements.md` has it. Plans, estimates and records are made as for a release, all plates admitted; noise from
seeds 0, 1, 2, ..., so that a second run prints the same. Columns, weighed by pings unless it says HATs:

* error: mean |released - sample mean| in km/h, and its standard deviation over the repeats;
* stated: the error that records expect; bound: the mean worst case, over all speeds, of bias and expected noise;
* guess: the error of the baseline guess, the feed's one mean, for the same HATs; served: their share of all pings;
* cover95: the share of HATs whose interval holds the sample mean; width: the mean width of intervals in km/h;
* charge: what a plate is charged, as a share of epsilon, mean over (plate, HAT).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import at_least_two
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.planning.hat_plan import HatPlan, plan_hat
from udp_stream.planning.terms import terms_of
from udp_stream.release.estimate import estimate_hats
from udp_stream.release.statistic_records import mean_record
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO, QUANTA_PER_KMH

WAYS = {
    "baseline": ("release.mean=baseline",),
    "array-averaging": ("release.mean=array-averaging",),
    "  wrap-around": ("release.mean=array-averaging", "release.grouping=wrap-around"),
    "levy": ("release.mean=levy",),
    "  levy, wrap-around": ("release.mean=levy", "release.grouping=wrap-around"),
    "fixed-quantile": ("release.mean=fixed-quantile",),
    "eps-quantile": ("release.mean=eps-quantile",),
    "optimal": ("release.mean=optimal",),
    "papers' E(m)": ("release.mean=array-averaging", "release.grouping=wrap-around"),
    "auto": ("release.mean=auto",),
}
"""The papers' worst-case rule has no setting, as Optimal improves on it."""

MIN_PLATES = 10


@dataclass(frozen=True, slots=True)
class Hats:
    """A feed's released HATs: counts, speeds in quanta, true means, pings; and the baseline guess beside them."""

    counts: Sequence[NDArray[np.int64]]
    speeds: Sequence[NDArray[np.int64]]
    truth_kmh: NDArray[np.float64]
    pings: NDArray[np.int64]
    served: float
    constant_errs: float


@dataclass(frozen=True, slots=True)
class Row:
    """What a mechanism did on a feed: see the file's docstring."""

    way: str
    error: float
    deviation: float
    stated: float
    bound: float
    cover95: float
    width: float
    charge: float
    chosen: Counter[str]


def hats_of(feed: Feed) -> Hats:
    """Every HAT of at least `MIN_PLATES` plates; the baseline guess is the mean of all of the feed's accepted pings."""
    counts, speeds, total, pings = [], [], 0, 0
    for slot, values in feed.slots():
        total, pings = total + int(values.speed.sum()), pings + values.speed.size
        for hat in np.flatnonzero(np.diff(slot.hat_rows) >= MIN_PLATES).tolist():
            rows = slot.rows(hat)
            counts.append(slot.count[rows])
            speeds.append(values.of_rows(rows))
    truth = np.array([speed.mean() for speed in speeds]) / QUANTA_PER_KMH
    sizes = np.array([speed.size for speed in speeds])
    constant = np.average(np.abs(truth - total / pings / QUANTA_PER_KMH), weights=sizes)
    return Hats(counts, speeds, truth, sizes, sizes.sum() / pings, float(constant))


def row_of(feed: Feed, hats: Hats, way: str, epsilon: float, repeats: int) -> Row:
    """Plan once, draw `repeats` times."""
    policy = feed.policy(f"release.mean_epsilon={epsilon}", *WAYS[way])
    terms = terms_of(policy, round(epsilon * NANO), 0, 0)
    plans = [plan_hat(counts, terms, policy) for counts in hats.counts]
    if way == "papers' E(m)":
        plans = [_with_worst_case_cap(plan) for plan in plans]
    drawn = np.array(
        [_draw(plans, hats, seed) for seed in range(repeats)]
    )  # repeats x HATs x (value, low, high, stated)
    errors = np.average(np.abs(drawn[:, :, 0] - hats.truth_kmh), axis=1, weights=hats.pings)
    covered = (drawn[:, :, 1] <= hats.truth_kmh) & (hats.truth_kmh <= drawn[:, :, 2])
    means = [plan.mean for plan in plans if plan.mean is not None]
    charges = np.concatenate([mean.charges for mean in means])
    return Row(
        way=way,
        error=float(errors.mean()),
        deviation=float(errors.std(ddof=1)),
        stated=float(np.average(drawn[:, :, 3].mean(axis=0), weights=hats.pings)),
        bound=float(np.average([mean.error_bound / QUANTA_PER_KMH for mean in means], weights=hats.pings)),
        cover95=float(covered.mean()),
        width=float((drawn[:, :, 2] - drawn[:, :, 1]).mean()),
        charge=float(charges.mean() / terms.mean_nano),
        chosen=Counter(mean.mechanism for mean in means),
    )


def worst_case_cap(counts: SamplesPerPlate, epsilon_nano: int) -> int:
    """The count m of least E(m) = 1 - sum G_l / M + m / (eps sum G_l), the papers' worst case (arXiv 2405.06261).

    >>> counts = SamplesPerPlate(np.array([9, 3, 2, 2]))
    >>> [worst_case_cap(counts, epsilon_nano) for epsilon_nano in (10**8, 10**9)]
    [2, 9]
    """
    return int(counts.descending[int(np.argmin(counts.errors_at_every_count(NANO / epsilon_nano)))])


def _with_worst_case_cap(plan: HatPlan) -> HatPlan:
    """The papers' rule: the mean of the first min(m_l, m) samples of each plate, m of least E(m); no array is full."""
    mean = plan.mean
    assert mean is not None
    cap = worst_case_cap(mean.counts, mean.cost.nano)
    given = np.minimum(mean.counts.by_plate, cap)
    kept = int(given.sum())
    capped = msgspec.structs.replace(
        mean,
        cap=cap,
        given=given,
        moves=mean.range.width * given,
        divisor=kept,
        sensitivity=mean.range.width * cap,
        bias_bound=mean.range.width * (1 - kept / mean.counts.total),
    )
    return replace(plan, statistics={"mean": capped})


def _draw(plans: Sequence[HatPlan], hats: Hats, seed: int) -> list[tuple[float, float, float, float]]:
    estimates = estimate_hats(plans, hats.speeds, seeded_bits(seed))
    records = [
        mean_record(plan.mean, noisy.value, noisy.scale, projected_to=noisy.projected_to)
        for plan, estimate in zip(plans, estimates, strict=True)
        if plan.mean is not None and (noisy := estimate.noisy_mean) is not None
    ]
    return [(record.value_kmh, *record.interval95_kmh, record.expected_abs_error_kmh) for record in records]


def line_of(row: Row, hats: Hats) -> str:
    """A row of the table; of `auto` also what it took."""
    chosen = ", ".join(f"{n} {name}" for name, n in row.chosen.most_common()) if row.way == "auto" else ""
    return (
        f"{row.way:<18}{row.error:>7.2f} ± {row.deviation:<4.2f}{row.stated:>8.2f}{row.bound:>7.1f}"
        f"{hats.constant_errs:>10.2f}{hats.served:>8.2f}{row.cover95:>9.3f}{row.width:>7.1f}{row.charge:>8.2f}"
        f"  {chosen}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=at_least_two, default=20)
    arguments = parser.parse_args()
    for argument in arguments.feeds:
        feed = feed_of(argument)
        hats = hats_of(feed)
        print(f"{feed.name}, epsilon {arguments.epsilon:g} per mean, {hats.pings.size} HATs")
        print(
            f"{'':<18}{'error':>14}{'stated':>8}{'bound':>7}{'guess':>10}{'served':>8}{'cover95':>9}{'width':>7}"
            f"{'charge':>8}"
        )
        for way in WAYS:
            print(line_of(row_of(feed, hats, way, arguments.epsilon, arguments.repeats), hats), flush=True)


if __name__ == "__main__":
    main()
