"""How far released variances and CDFs are off, beside the baseline guess: one city-wide variance and CDF.

`python -m benchmarks.shape_errors [--repeats N] FILE:U:ZONE ...`, at H3 7, 1 h and H3 6, 6 h, epsilon 1 and 4 for each
statistic, over HATs of at least 10 plates, weighed by pings. Plans and estimates are made as for a release, all plates
admitted; noise from seeds 0, 1, 2, ... Columns: mean absolute error of the variance in (km/h)^2, the noise that plans
state, the baseline guess; root mean square error of CDF values, the noise that plans state (before values are made
monotone), the baseline guess; served: the share of all pings in these HATs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.constants import MIN_PLATES, guess_of
from benchmarks.feeds import Feed, feed_of
from udp_stream.planning.hat_plan import HatPlan, plan_hat
from udp_stream.planning.terms import terms_of
from udp_stream.release.estimate import HatEstimate, estimate_hats
from udp_stream.testing import seeded_bits
from udp_stream.units import QUANTA_PER_KMH

HATS = ("7", "1h"), ("6", "6h")
EPSILONS = (1.0, 4.0)


def errors_of(feed: Feed, epsilon: float, repeats: int) -> NDArray[np.float64]:
    """Error and stated noise of the variance, and of the CDF (root mean square)."""
    policy = feed.policy(
        "release.mean_epsilon=0", f"release.variance_epsilon={epsilon}", f"release.cdf_epsilon={epsilon}"
    )
    terms = terms_of(policy, 0, policy.variance_nano, policy.cdf_nano or 0)
    plans, speeds = [], []
    for counts, values in feed.slots():
        for hat in np.flatnonzero(np.diff(counts.hat_rows) >= MIN_PLATES).tolist():
            plans.append(plan_hat(counts.count[counts.rows(hat)], terms, policy))
            speeds.append(values.of_rows(counts.rows(hat)))
    drawn = [_errors(plans, speeds, estimate_hats(plans, speeds, seeded_bits(seed))) for seed in range(repeats)]
    return np.array(drawn).mean(axis=0) ** (1, 1, 0.5, 0.5)


def _errors(
    plans: Sequence[HatPlan], speeds: Sequence[NDArray[np.int64]], estimates: Sequence[HatEstimate]
) -> NDArray[np.float64]:
    """Of one draw: as above, those of the CDF squared."""
    rows = []
    for plan, speed, estimate in zip(plans, speeds, estimates, strict=True):
        variance, cdf = plan.variance, plan.cdf
        assert variance is not None and estimate.variance is not None and cdf is not None and estimate.cdf is not None
        below = np.cumsum(np.bincount(cdf.bins.bin_of(speed), minlength=cdf.bins.count)) / speed.size
        squared = float(((np.array(estimate.cdf)[1:] - below) ** 2).mean())
        off, noise = abs(estimate.variance - speed.var()), variance.noise_bound
        rows.append((off / QUANTA_PER_KMH**2, noise / QUANTA_PER_KMH**2, squared, cdf.rms_error**2))
    errors: NDArray[np.float64] = np.average(rows, axis=0, weights=[speed.size for speed in speeds])
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    print(
        f"{'':<34}{'H3, slot':>9}{'epsilon':>8}{'variance':>10}{'noise':>8}{'guess':>9}{'CDF rms':>9}{'noise':>7}"
        f"{'guess':>9}{'served':>8}"
    )
    for argument, (resolution, slot) in product(arguments.feeds, HATS):
        feed = feed_of(argument, f"hat.resolution={resolution}", f"hat.slot={slot}")
        guess = guess_of(feed)
        for epsilon in EPSILONS:
            off, noise, rms, stated = errors_of(feed, epsilon, arguments.repeats)
            print(
                f"{feed.name:<34}{f'{resolution}, {slot}':>9}{epsilon:>8g}{off:>10.1f}{noise:>8.1f}"
                f"{guess.variance_kmh2:>9.1f}{rms:>9.3f}{stated:>7.3f}{guess.cdf_rms:>9.3f}{guess.served:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
