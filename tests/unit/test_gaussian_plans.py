"""Every statistic takes zero-concentrated costs: from plan over query to estimate and record, as
under epsilon."""

import math

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.cdf import plan_cdf, prefixes
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.mechanisms.statistics import STATISTICS, plan_automatic, priced
from udp_stream.mechanisms.variance import plan_variance
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.pipeline import estimate_hats
from udp_stream.testing import seeded_bits

U = 65 * 4096
BY_PLATE = np.array([9, 7, 4, 4, 3, 2, 2, 1])
COST = concentrated(2 * NANO)
COUNTS, SPEEDS = SamplesPerPlate(BY_PLATE), Range(0, U)


@pytest.fixture
def samples():
    return np.random.default_rng(1).integers(0, U + 1, int(BY_PLATE.sum()))


def estimates(samples, runs=400, **statistics):
    plan = HatPlan(Terms(), BY_PLATE, statistics, np.ones(BY_PLATE.size, np.int64))
    return estimate_hats([plan] * runs, [samples] * runs, seeded_bits("gauss"))


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("name", ["levy", "fixed-quantile", "eps-quantile"])
def test_a_projected_mean_chooses_its_interval_within_rho(name, grouping):
    counts, cost = SamplesPerPlate(np.full(400, 4)), concentrated(4 * NANO)
    plan = MECHANISMS[name].plan(counts, cost, SPEEDS, grouping)
    assert plan.noise_cost == concentrated(2 * NANO) and set(plan.charges.tolist()) == {4 * NANO}
    speeds = np.random.default_rng(2).integers(U // 3, U // 2, 1600)
    hat = HatPlan(Terms(), counts.by_plate, {"mean": plan}, np.ones(400, np.int64))
    (one,) = estimate_hats([hat], [speeds], seeded_bits(name))
    a, b = one["mean"].projected_to
    assert U // 4 < (a + b) / 2 < 7 * U // 12 and (name != "fixed-quantile" or b - a < U // 3)
    record = STATISTICS["mean"].record(plan, one["mean"])
    assert record.mechanism == name and record.value_kmh == pytest.approx(
        float(speeds.mean()) / 4096, rel=0.05
    )
    assert record.interval95_kmh[0] <= record.value_kmh <= record.interval95_kmh[1]


@pytest.mark.parametrize("compare_at", ["epsilon", "charge"])
def test_the_automatic_choice_is_made(compare_at):
    plan = plan_automatic(COUNTS, COST, SPEEDS, "best-fit", compare_at)
    assert plan.cost == COST and plan.noise.name == "discrete-gaussian"


@pytest.mark.parametrize("bins", [8, 64, "auto"])
def test_a_cdf_has_gaussian_noise_and_states_its_error(bins, samples):
    plan = plan_cdf(COUNTS, COST, 65.0, bins)
    assert sum(plan.budgets_nano) == COST.nano
    exact = plan.cap / np.sqrt(np.array(plan.budgets_nano) / NANO)  # one scale per level
    drawn = np.unique(plan.t / plan.s)
    assert all(np.any((scale <= drawn) & (drawn < scale * 1.001)) for scale in exact)
    steps = np.round(
        2**20 * np.random.default_rng(3).normal(0, plan.t / plan.s, (4000, plan.t.size))
    ).astype(np.int64)
    off = prefixes(plan.tree, steps, np.zeros(4000, np.int64)) / 2**20
    assert plan.rms_error == pytest.approx(math.sqrt((off**2).mean()) / plan.kept, rel=0.05)
    for one in estimates(samples, 20, cdf=plan):
        assert one["cdf"] == sorted(one["cdf"]) and one["cdf"][-1] == 1
        assert STATISTICS["cdf"].record(plan, one["cdf"]).values[-1] == 1


def test_all_of_one_family_are_drawn_together_and_two_are_not(samples):
    mean, variance = (
        MECHANISMS["baseline"].plan(COUNTS, COST, SPEEDS, "best-fit"),
        plan_variance(COUNTS, COST, SPEEDS),
    )
    (one,) = estimates(
        samples, 1, mean=mean, variance=variance, cdf=plan_cdf(COUNTS, COST, 65.0, 8)
    )
    assert list(one) == priced()
    with pytest.raises(ValueError, match="one family"):
        estimates(samples, 1, mean=mean, variance=plan_variance(COUNTS, pure(NANO), SPEEDS))
