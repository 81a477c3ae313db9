"""A second family of noise fits: from plan over query to estimate, without a change in any mechanism.

The family is a toy: evenly distributed integers, which keep nothing private. Its charges go by squares, as those of
concentrated differential privacy do, so that nothing that holds of epsilon alone can slip through.
"""

import math

import numpy as np
import pytest

from udp_stream.mechanisms.accuracy import plan_automatic
from udp_stream.mechanisms.cdf import cdf_for_admitted, plan_cdf
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import FAMILIES, Cost, charges_of, cost_within, lattice_of
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.trees import prefixes
from udp_stream.mechanisms.variance import plan_variance, variance_for_admitted
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.estimate import estimate_hats
from udp_stream.release.record import mean_record, variance_record
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

U = 65 * 4096
BY_PLATE = np.array([9, 7, 4, 4, 3, 2, 2, 1])
COST = Cost("toy", 4 * NANO)
ADMITTED = np.array([False, True, True, False, True, True, True, True])


class Even:
    """Noise evenly on -t/s .. t/s, which is 1 / sqrt(cost) per sensitivity; a plate loses cost (move / most)^2."""

    name = "toy"
    least_nano = 1000
    power = 2

    def unit_scale(self, cost):
        return 2**32, math.isqrt(cost.nano * 2**64 // NANO)

    def counts_unit_scale(self, cost):
        return self.unit_scale(cost)

    def counts_drawable(self, cost):
        return cost.nano and 10**6

    def charges(self, moves, most, cost):
        return -(-cost.nano * moves.astype(object) ** 2 // most**2).astype(np.int64)

    def within(self, moves, most, charges, cost):
        pairs = zip(moves.tolist(), charges.tolist(), strict=True)
        return cost.with_nano(min([cost.nano, *(charge * most**2 // move**2 for move, charge in pairs if move)]))

    def expected_abs(self, scale):
        return scale / 2

    def expected_square(self, scale):
        return scale**2 / 3

    def choice_epsilon_nano(self, cost):
        return cost.nano

    def error(self, size, spread):
        return size + spread

    def clamped_error(self, size, spread, width):
        return min(size + spread, width / 2)

    def log_likelihood(self, off, size, spread):
        return -np.abs(off) / (size + spread)

    def low_end(self, noisy, size, spread, width):
        return np.clip(noisy - 2 * size - 2 * spread, 0, width)

    def draw(self, bits, t, s=1):
        width = np.broadcast_to(np.asarray(t) // s, np.shape(t))
        return np.array([int.from_bytes(bits(8), "little") % (2 * w + 1) - w for w in width.tolist()])


@pytest.fixture(autouse=True)
def family(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", Even())


@pytest.fixture
def samples():
    return np.random.default_rng(1).integers(0, U + 1, int(BY_PLATE.sum()))


def hat_plan(**statistics):
    return HatPlan(Terms(), BY_PLATE, statistics, np.ones(BY_PLATE.size, np.int64))


def estimates(plan, samples, runs=200):
    return estimate_hats([plan] * runs, [samples] * runs, seeded_bits("toy"))


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("name", ["baseline", "array-averaging", "optimal"])
def test_a_mean_has_the_familys_noise_charges_and_interval(name, grouping, samples):
    counts = SamplesPerPlate(BY_PLATE)
    plan = MECHANISMS[name].plan(counts, COST, Range(0, U), grouping)
    assert plan.noise_bound == pytest.approx(plan.sensitivity / math.sqrt(4) / 2 / plan.divisor, rel=1e-6)
    assert plan.charges.tolist() == [-(-COST.nano * int(m) ** 2 // plan.sensitivity**2) for m in plan.moves]
    final = MECHANISMS[name].for_admitted(plan, ADMITTED)
    assert final.cost.measure == "toy" and (final.charges <= plan.charges[ADMITTED]).all()
    exact = MECHANISMS[name].query(plan, samples, None).statistic / plan.divisor
    found = estimates(hat_plan(mean=plan), samples)
    scale = lattice_of(plan.sensitivity, COST).scale / plan.divisor
    off = np.array([one.mean for one in found]) - exact
    assert {one.noisy_mean.scale for one in found} == {scale / 2}
    assert 0.9 * scale < np.abs(off).max() <= scale and abs(np.abs(off).mean() / scale - 0.5) < 0.06
    record = mean_record(plan, found[0].mean, found[0].noisy_mean.scale)
    low, high = record.interval95_kmh
    assert low <= record.value_kmh <= high and record.scale_kmh == round(scale / 2 / 4096, 4)


@pytest.mark.parametrize("name", ["levy", "fixed-quantile", "eps-quantile"])
def test_a_projected_mean_runs_through(name, samples):
    plan = MECHANISMS[name].plan(SamplesPerPlate(BY_PLATE), COST, Range(0, U), "best-fit")
    (one,) = estimates(hat_plan(mean=plan), samples, 1)
    assert mean_record(plan, one.mean, one.noisy_mean.scale, projected_to=one.noisy_mean.projected_to).mechanism == name


def test_the_automatic_choice_weighs_the_familys_noise():
    plan = plan_automatic(SamplesPerPlate(BY_PLATE), COST, Range(0, U), "best-fit", "epsilon")
    assert plan.cost == COST and plan.noise.name == "toy"


def test_a_variance_has_the_familys_noise_and_charges(samples):
    plan = plan_variance(SamplesPerPlate(BY_PLATE), COST, Range(0, U))
    final = variance_for_admitted(plan, ADMITTED)
    assert (final.charges <= plan.charges[ADMITTED]).all() and final.cost.measure == "toy"
    found = estimates(hat_plan(variance=plan), samples)
    scale = lattice_of(plan.sensitivity, COST).scale / plan.divisor
    assert {one.noisy_variance.scale for one in found} == {scale / 2}
    assert variance_record(plan, found[0].variance, found[0].noisy_variance.scale).scale_kmh2 > 0


def test_a_cdf_has_the_familys_noise_and_charges(samples):
    plan = plan_cdf(SamplesPerPlate(BY_PLATE), COST, 65.0, 8)
    assert plan.charges.tolist() == [-(-COST.nano * int(g) ** 2 // plan.cap**2) for g in plan.given]
    final = cdf_for_admitted(plan, ADMITTED)
    assert (final.charges <= plan.charges[ADMITTED]).all() and final.cost.measure == "toy"
    exact = plan.cap / np.sqrt(np.array(plan.budgets_nano) / NANO)  # one scale per level
    drawn = np.unique(plan.t / plan.s)
    assert all(np.any((scale <= drawn) & (drawn < scale * 1.001)) for scale in exact)
    for one in estimates(hat_plan(cdf=plan), samples, 20):
        assert one.cdf == sorted(one.cdf) and one.cdf[-1] == 1


@pytest.mark.parametrize("bins", [8, 64, "auto"])
def test_a_cdf_states_the_familys_error_and_its_cap_and_bins_go_by_it(bins):
    """By simulation: what noise of the plan's scales does to prefixes. Laplace noise of that cost does otherwise."""
    counts = SamplesPerPlate(BY_PLATE)
    plan = plan_cdf(counts, COST, 65.0, bins)
    scales, dice = plan.t / plan.s, np.random.default_rng(3)
    steps = np.round(2**20 * scales * dice.uniform(-1, 1, (4000, scales.size))).astype(np.int64)
    off = prefixes(plan.tree, steps, np.zeros(4000, np.int64)) / 2**20
    assert plan.rms_error == pytest.approx(math.sqrt((off**2).mean()) / plan.kept, rel=0.05)
    laplace = Cost("pure", COST.nano)
    assert plan.rms_error < 0.6 * plan_cdf(counts, laplace, 65.0, bins, plan.choice).rms_error
    assert plan.cap > plan_cdf(counts, Cost("pure", NANO // 4), 65.0, bins).cap
    assert bins != "auto" or plan.bins.count > plan_cdf(counts, laplace, 65.0, bins).bins.count


def test_all_three_are_drawn_together(samples):
    counts = SamplesPerPlate(BY_PLATE)
    mean, variance = (
        MECHANISMS["baseline"].plan(counts, COST, Range(0, U), "best-fit"),
        plan_variance(counts, COST, Range(0, U)),
    )
    (one,) = estimates(hat_plan(mean=mean, variance=variance, cdf=plan_cdf(counts, COST, 65.0, 8)), samples, 1)
    assert None not in (one.mean, one.variance, one.cdf)


def test_plans_of_two_families_are_not_drawn_together(samples):
    plans = [
        hat_plan(
            mean=MECHANISMS["baseline"].plan(SamplesPerPlate(BY_PLATE), Cost(measure, NANO), Range(0, U), "best-fit")
        )
        for measure in ("pure", "toy")
    ]
    with pytest.raises(ValueError, match="one family"):
        estimate_hats(plans, [samples] * 2, seeded_bits(1))


def test_a_plate_left_alone_pays_for_the_noise_that_its_charge_allows():
    moves = np.array([10, 40])
    charges = charges_of(moves, 40, COST)
    assert charges.tolist() == [COST.nano // 16, COST.nano]
    assert cost_within(moves[:1], 10, charges[:1], COST) == COST.with_nano(COST.nano // 16)
