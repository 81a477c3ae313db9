"""What arXiv 2401.15906 states of its mean algorithms under scaling, by simulation on data drawn as the paper says.

Speeds are Gaussian (mean 20.7, standard deviation 15: of the order of their ITMS data), clipped to [0, U]; counts are
skewed like theirs (median 46, largest 417). User scaling repeats every user ten times.
"""

import numpy as np
import pytest

from tests.forms import long_but
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import pure
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.road import estimate_hats
from udp_stream.testing import seeded_bits

U = 65 * 4096
RUNS = 400
RUNS_SCALED = 100
"""An average of so many errs by a tenth; FixedQuantile is told from the next best by a factor of four."""


def itms_like_counts(users=370):
    rng = np.random.default_rng(8)
    return np.clip(np.round(rng.lognormal(np.log(46), 0.9, users)), 1, 417).astype(np.int64)


def gaussian_samples(total):
    speeds = np.clip(np.random.default_rng(9).normal(20.7, 15.0, total), 0, 65)
    return np.round(speeds * 4096).astype(np.int64)


def mean_absolute_error(name, counts, epsilon, runs=RUNS):
    mean = MECHANISMS[name].plan(SamplesPerPlate(counts), pure(round(epsilon * 1e9)), Range(0, U), "best-fit")
    samples = gaussian_samples(int(counts.sum()))
    plan = HatPlan(Terms(), counts, {"mean": mean}, mean.charges)
    found = estimate_hats([plan] * runs, [samples] * runs, seeded_bits(f"{name}/{epsilon}"))
    return float(np.mean([abs(np.clip(one["mean"].value, 0, U) - samples.mean()) for one in found])) / 4096


@pytest.mark.parametrize("epsilon", long_but([0.5], [0.5, 1.0, 2.0]))
def test_clipping_beats_the_plain_mean(epsilon):
    """Their Figure 1: Array-Averaging, Levy and the quantiles all err less than Baseline on skewed counts."""
    counts = itms_like_counts()
    baseline = mean_absolute_error("baseline", counts, epsilon)
    for name in ("array-averaging", "fixed-quantile", "eps-quantile"):
        assert mean_absolute_error(name, counts, epsilon) < baseline


@pytest.mark.parametrize("epsilon", long_but([2.0], [0.5, 1.0, 2.0]))
def test_user_scaling_favours_fixed_quantile(epsilon):
    """Their Figure 2b: with ten times the users FixedQuantile errs least."""
    counts = np.repeat(itms_like_counts(), 10)
    names = ("baseline", "levy", "fixed-quantile", "eps-quantile")
    errors = {name: mean_absolute_error(name, counts, epsilon, RUNS_SCALED) for name in names}
    assert min(errors, key=errors.__getitem__) == "fixed-quantile", errors


def test_sample_scaling_favours_levy_over_what_does_not_scale():
    """Their Figure 2a: with ten times the samples per user Levy's error falls, Baseline's stays."""
    counts = itms_like_counts()
    levy = [mean_absolute_error("levy", counts * factor, 1.0) for factor in (1, 10)]
    baseline = [mean_absolute_error("baseline", counts * factor, 1.0) for factor in (1, 10)]
    assert levy[1] < 0.6 * levy[0]
    assert baseline[1] == pytest.approx(baseline[0], rel=0.25)
    assert levy[1] < baseline[1]
