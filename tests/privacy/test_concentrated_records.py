"""Whole records in rho: what thousands of them tell of one plate, by their values alone, beside
what it is charged.

The audited plate drives at 0 or at U in all of its pings. Records are projected on the line that
tells both days apart best, found from records of their own, and put into bins. Rho-zCDP bounds the
Renyi divergence of every order a by a rho, hence that of the bins; taken is a lower bound of it at
99.9 %. Nothing here reads a scale. A noise a fifth too small is found by the long audit, one two
fifths too small by the short one.
"""

from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.statistics import priced
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.release import pipeline as estimate
from udp_stream.release.pipeline import estimate_hats
from udp_stream.settings import load
from udp_stream.testing import seeded_bits

U = 65 * 4096
COUNTS = np.concatenate(([9, 6, 4], np.tile([9, 7, 5, 3], 24)))
"""Plates enough for nothing to lie at the ends of its range, where a record would tell less than it
is charged for."""

RHOS = 0.9, 0.1, 0.3
"""Of mean, variance and CDF: 1.3 for the plate with most samples."""

RUNS, TO_FIND_THE_LINE, BINS = 9000, 2000, 16
"""With as many the audit sees 0.94 to 0.96 where 1.3 is charged, and 1.42 to 1.55 by a fifth less
noise: five seeds."""

CONFIDENCE = 0.999
ORDERS = 1.1, 2.0


def plan_of(mechanism):
    flags = (
        "budget.accounting=zcdp",
        "budget.rho=4.0",
        f"release.mean={mechanism}",
        "release.bins=8",
    )
    policy = load(None, flags, {}).policy
    nanos = {name: round(rho * NANO) for name, rho in zip(priced(), RHOS, strict=True)}
    return plan_hat(COUNTS, terms_of(policy, nanos), policy)


def speeds(plate, speed):
    """Of the others most stand, and some drive at all speeds; so the variance moves with the plate
    nearly as it can."""
    found = np.zeros(int(COUNTS.sum()), np.int64)
    found[::5] = np.random.default_rng(1).integers(0, U + 1, found[::5].size)
    start = int(COUNTS[:plate].sum())
    found[start : start + COUNTS[plate]] = speed
    return found


def records(plan, samples, seed, runs):
    bits, rows = seeded_bits(seed), []
    for start in range(0, runs, 1000):
        many = min(1000, runs - start)
        found = estimate_hats([plan] * many, [samples] * many, bits)
        rows += [
            [np.clip(one["mean"].value, 0, U), one["variance"].value, *one["cdf"]] for one in found
        ]
    return np.array(rows)


def on_a_line(first, second):
    """The best line by the first records of either side, and in which bins of it the others are."""
    ours, theirs = first[:TO_FIND_THE_LINE], second[:TO_FIND_THE_LINE]
    unit = np.maximum(ours.std(axis=0), 1e-12)
    spread = np.cov(ours / unit, rowvar=False) + np.cov(theirs / unit, rowvar=False)
    line = np.linalg.pinv(spread, rcond=1e-6) @ ((ours.mean(axis=0) - theirs.mean(axis=0)) / unit)
    edges = np.quantile(np.concatenate((ours, theirs)) / unit @ line, np.arange(1, BINS) / BINS)
    return [
        np.bincount(np.searchsorted(edges, side[TO_FIND_THE_LINE:] / unit @ line), minlength=BINS)
        + 0.5
        for side in (first, second)
    ]


def rho_seen(first, second):
    """The largest rho that the records prove, over both directions and the orders; each has its
    part of the doubt."""
    pairs = on_a_line(first, second)
    sure = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / (2 * len(ORDERS)))
    worst = 0.0
    for (ours, theirs), order in product((pairs, pairs[::-1]), ORDERS):
        p, q, runs = ours / ours.sum(), theirs / theirs.sum(), ours.sum()
        ratio = p / q
        moment = float((q * ratio**order).sum())
        by_p, by_q = order / (order - 1) * ratio ** (order - 1) / moment, -(ratio**order) / moment
        variance = (
            sum(
                float((one * by**2).sum() - (one * by).sum() ** 2)
                for one, by in ((p, by_p), (q, by_q))
            )
            / runs
        )
        worst = max(worst, (np.log(moment) / (order - 1) - sure * np.sqrt(variance)) / order)
    return worst


def audit(plan, plate, runs):
    return rho_seen(
        *(records(plan, speeds(plate, speed), f"{plate}/{speed}", runs) for speed in (0, U))
    )


class Narrow:
    def __init__(self, honest, less):
        self.honest, self.tenths = honest, round(10 * less)

    def draw(self, bits, t, s):
        return self.honest.draw(bits, t * self.tenths // 10, s)


LINEAR = "array-averaging", "optimal"
FULL = [
    pytest.param(name, plate, 20_000, 0.8, marks=pytest.mark.soak)
    for name in LINEAR
    for plate in (0, 1)
]


@pytest.mark.parametrize(
    ("mechanism", "plate", "runs", "less"),
    [
        ("optimal", 0, 4000, 0.6),
        pytest.param("optimal", 0, RUNS, 0.8, marks=pytest.mark.long),
        *FULL,
    ],
)
def test_whole_records_tell_no_more_of_a_plate_than_it_is_charged(
    planted, mechanism, plate, runs, less
):
    """And with a fifth less noise the same audit, of as many records, finds more than that; of few,
    with two fifths."""
    plan = plan_of(mechanism)
    charged = plan.charges[plate] / NANO
    assert 0.5 * charged < audit(plan, plate, runs) <= charged
    honest = estimate._family
    planted(estimate, _family=lambda plans: Narrow(honest(plans), less))
    assert audit(plan, plate, runs) > charged
