"""Individual accounting by brute force: no plate loses more than it was charged, whoever else was
halted.

Every dataset with speeds in {0, 1, U}, every choice of one plate's speeds, all small vectors of
counts, every set of plates that the ledger may have admitted. Losses are exact fractions: lattice
steps over the scale that is drawn.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from tests.forms import PURE_ENV, long_but
from tests.privacy.test_mean_distributions import epsilon_seen
from udp_stream.mechanisms.base import (
    Range,
    SamplesPerPlate,
    wrap_around_given,
    wrap_around_positions,
)
from udp_stream.mechanisms.cdf import node_counts, plan_cdf
from udp_stream.mechanisms.means import MECHANISMS, ArrayAveraging, Baseline, OptimalCappedSum
from udp_stream.mechanisms.noise import charges_of, lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.variance import plan_variance, variance_query
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.release.pipeline import estimate_hats
from udp_stream.settings import load
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

COARSE = 2**28 + 3
"""A speed limit for which noise lives on a coarser lattice than the statistic, so that rounding
costs."""

COUNTS = [
    c for users in (1, 2, 3) for c in itertools.product((1, 2, 3), repeat=users) if sum(c) <= 6
]
SMALL = [c for c in COUNTS if sum(c) <= 4]
LARGEST_LAST = long_but(SMALL, COUNTS)
"""The largest have most of the datasets."""

GROUPINGS = ("best-fit", "wrap-around")


def datasets(total, speeds):
    return np.array(list(itertools.product(speeds, repeat=total)))


def ranges_by_plate(counts, results, speeds=3):
    table = results.reshape((speeds,) * sum(counts))
    ends = np.cumsum(counts)
    plates = [tuple(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]
    return [int((table.max(axis=axes) - table.min(axis=axes)).max()) for axes in plates]


def linear_plans(counts, epsilon_nano, speed):
    hat = SamplesPerPlate(np.array(counts))
    yield Baseline().plan(hat, pure(epsilon_nano), Range(0, speed), "best-fit")
    for fill in (0, 2, speed):
        yield OptimalCappedSum().plan_with_fill(hat, pure(epsilon_nano), Range(0, speed), fill)
    for grouping in GROUPINGS:
        for cap in range(1, hat.largest + 1):
            yield ArrayAveraging().plan(hat, pure(epsilon_nano), Range(0, speed), grouping, cap)


def subsets(plates):
    for picked in itertools.product((False, True), repeat=plates):
        if any(picked):
            yield np.array(picked)


def statistics(plan, data):
    return np.array(
        [MECHANISMS[plan.mechanism].query(plan, row, seeded_bits(0)).statistic for row in data]
    )


@pytest.mark.parametrize("counts", LARGEST_LAST, ids=str)
def test_each_plate_moves_the_statistic_by_at_most_what_its_plan_says_and_some_data_reach_it(
    counts,
):
    for plan in linear_plans(counts, NANO, 5):
        widest = ranges_by_plate(counts, statistics(plan, datasets(sum(counts), (0, 1, 5))))
        assert all(
            seen <= claimed
            for seen, claimed in zip(widest, plan.plate_sensitivities.tolist(), strict=True)
        ), plan
        slack = (
            1 if plan.arrays is not None else 0
        )  # a floor: whether ceil(U n / w) is reached depends on the others
        assert all(
            seen >= claimed - slack
            for seen, claimed in zip(widest, plan.plate_sensitivities.tolist(), strict=True)
        ), plan
        assert plan.plate_sensitivities.max() <= plan.sensitivity


def losses(plan, counts, speeds):
    """Each plate's exact loss: how many lattice steps it moves the rounded statistic by, over the
    scale drawn."""
    data = datasets(sum(counts), speeds)
    query = MECHANISMS[plan.mechanism].query(plan, data[0], seeded_bits(0))
    lattice = lattice_of(query.sensitivity, plan.noise_cost)
    rounded = np.array(
        [lattice.project(statistic) for statistic in statistics(plan, data).tolist()]
    )
    return [Fraction(steps, lattice.t) for steps in ranges_by_plate(counts, rounded)], lattice


@pytest.mark.parametrize("speed", long_but([COARSE], [5, COARSE]))
@pytest.mark.parametrize("counts", LARGEST_LAST, ids=str)
def test_whoever_is_halted_no_admitted_plate_loses_more_than_it_was_charged(counts, speed):
    for epsilon_nano in (NANO, 370_000_001):
        for priced in linear_plans(counts, epsilon_nano, speed):
            assert priced.charges.max() <= epsilon_nano
            for admitted in subsets(len(counts)):
                final = MECHANISMS[priced.mechanism].subset(priced, admitted)
                left = tuple(np.array(counts)[admitted].tolist())
                lost, lattice = losses(final, left, (0, 1, speed))
                assert lattice.shift > 0 or speed < COARSE or not final.plate_sensitivities.any()
                paid = priced.charges[admitted].tolist()
                for loss, charge, claimed in zip(lost, paid, final.charges.tolist(), strict=True):
                    assert loss <= Fraction(claimed, NANO) <= Fraction(charge, NANO), (
                        priced,
                        admitted,
                    )
                assert final.cost.nano <= max(max(paid), 1) or not final.plate_sensitivities.any()


@pytest.mark.parametrize("counts", LARGEST_LAST, ids=str)
def test_a_plan_for_the_admitted_is_within_its_bias_bound(counts):
    data = datasets(sum(counts), (0, 1, 5))
    for priced in linear_plans(counts, NANO, 5):
        for admitted in subsets(len(counts)):
            final = MECHANISMS[priced.mechanism].subset(priced, admitted)
            of_admitted = np.unique(
                data[:, np.repeat(admitted, counts)], axis=0
            )  # the others' speeds are gone
            bias = np.abs(
                statistics(final, of_admitted) / final.divisor - of_admitted.mean(axis=1)
            ).max()
            floors = (
                0
                if final.arrays is None
                else len(set(final.arrays.of_plate.tolist())) / final.divisor
            )
            assert bias <= final.bias_bound + floors + 1e-9, (final, admitted)


def test_a_plate_with_one_sample_of_a_full_array_pays_for_one_sample():
    plan = ArrayAveraging().plan(
        SamplesPerPlate(np.array([8, 7, 1])), pure(NANO), Range(0, 65 * 4096), "best-fit", 8
    )
    assert plan.charges.tolist() == [NANO, NANO * 7 // 8, NANO // 8]


def test_rounding_to_a_coarse_lattice_is_charged():
    """Shift 3: a plate that moves the statistic by 9 of 2^28 may still move it by two steps of
    2^25."""
    lattice = lattice_of(2**28, pure(NANO))
    (charge, most) = charges_of(np.array([9, 2**28]), 2**28, pure(NANO)).tolist()
    assert lattice.shift == 3 and most == NANO
    assert charge == -(-2 * NANO // ((2**28 >> 3) + 1)) > 9 * NANO // 2**28


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_wrap_around_uses_the_first_samples_of_each_plate(counts):
    hat = SamplesPerPlate(np.array(counts))
    plate_of_sample = np.repeat(np.arange(len(counts)), counts)
    for cap in range(1, hat.largest + 1):
        poured = wrap_around_positions(hat, cap)
        given = wrap_around_given(hat, cap)
        assert (
            np.bincount(plate_of_sample[poured], minlength=len(counts)).tolist() == given.tolist()
        )
        assert (hat.place_of_sample[poured] < given[plate_of_sample[poured]]).all()


@pytest.mark.parametrize("name", ["levy", "fixed-quantile", "eps-quantile"])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_plates_are_charged_in_full_where_speeds_choose_the_interval(name, grouping):
    hat = SamplesPerPlate(np.array([40, 39, 1, 40]))
    plan = MECHANISMS[name].plan(hat, pure(NANO), Range(0, 65 * 4096), grouping)
    assert plan.charges.tolist() == [NANO] * 4
    final = MECHANISMS[name].subset(plan, np.array([False, True, True, True]))
    assert final.charges.tolist() == [NANO] * 3 and final.cost.nano == NANO


@pytest.mark.parametrize("counts", long_but(SMALL, [c for c in COUNTS if sum(c) <= 5]), ids=str)
@pytest.mark.parametrize("bins", [2, 5])
def test_no_plate_loses_more_to_a_cdf_than_it_was_charged(counts, bins):
    speeds = (0, 20 * 4096, 65 * 4096)
    priced = plan_cdf(SamplesPerPlate(np.array(counts)), pure(700_000_000), 65.0, bins)
    for admitted in subsets(len(counts)):
        final = STATISTICS["cdf"].subset(priced, admitted)
        left = np.array(counts)[admitted].tolist()
        nodes = np.array([node_counts(final, row) for row in datasets(sum(left), speeds)])
        table = nodes.reshape(*(len(speeds),) * sum(left), -1)
        ends = np.cumsum(left)
        for plate, (end, paid) in enumerate(
            zip(ends.tolist(), priced.charges[admitted].tolist(), strict=True)
        ):
            axes = list(range(end - left[plate], end))
            of_plate = np.moveaxis(table, axes, range(len(axes))).reshape(
                len(speeds) ** len(axes), -1, nodes.shape[1]
            )
            change = np.abs(of_plate[:, None] - of_plate[None]).reshape(-1, nodes.shape[1])
            worst = max(
                sum(
                    Fraction(int(c * s), int(t))
                    for c, s, t in zip(row, final.s, final.t, strict=True)
                )
                for row in np.unique(change, axis=0)
            )
            assert worst <= Fraction(paid, NANO)
            assert final.charges[plate] <= paid


@pytest.mark.parametrize("speed", [5, 20_011])
@pytest.mark.parametrize("counts", LARGEST_LAST, ids=str)
def test_no_plate_loses_more_to_a_variance_than_it_was_charged(counts, speed):
    for cap in range(1, max(counts) + 1):
        priced = plan_variance(
            SamplesPerPlate(np.array(counts)), pure(700_000_000), Range(0, speed), cap
        )
        for admitted in subsets(len(counts)):
            final = STATISTICS["variance"].subset(priced, admitted)
            left = tuple(np.array(counts)[admitted].tolist())
            lattice = lattice_of(final.sensitivity, final.cost)
            data = datasets(sum(left), (0, 1, speed))
            rounded = np.array(
                [lattice.project(variance_query(final, row).statistic) for row in data]
            )
            paid = priced.charges[admitted].tolist()
            for moved, charge, claimed in zip(
                ranges_by_plate(left, rounded), paid, final.charges.tolist(), strict=True
            ):
                assert (
                    Fraction(moved, lattice.t) <= Fraction(claimed, NANO) <= Fraction(charge, NANO)
                )


def test_the_noise_of_a_variance_grows_where_a_small_plate_has_paid_for_less():
    priced = plan_variance(
        SamplesPerPlate(np.array([6, 6, 6, 1])), pure(NANO), Range(0, 65 * 4096), 6
    )
    final = STATISTICS["variance"].subset(priced, np.array([True, False, False, True]))
    assert final.cost.nano < NANO
    assert (final.charges <= priced.charges[[0, 3]]).all()


def policy_of(*flags):
    return load(None, flags, PURE_ENV).policy


def test_a_plan_that_would_cost_a_plate_more_than_it_paid_is_refused(planted):
    """The check behind every mechanism's promise: packing the admitted plates anew is caught."""
    policy = policy_of("release.mean=array-averaging")
    plan = plan_hat(np.array([8, 8, 7, 1]), terms_of(policy, {"mean": NANO}), policy)
    admitted = np.array([True, True, False, True])
    assert plan.subset(admitted).charges.tolist() == [NANO, NANO, NANO // 8]

    def packed_anew(self, plan, admitted):
        return self.plan(
            SamplesPerPlate(plan.counts.by_plate[admitted]), plan.cost, plan.range, "best-fit"
        )

    planted(ArrayAveraging, subset=packed_anew)
    with pytest.raises(Exception, match="lose more"):
        plan.subset(admitted)


@pytest.mark.parametrize("name", long_but(["optimal"], ["baseline", "array-averaging", "optimal"]))
def test_an_audit_of_a_plate_with_a_small_share_sees_its_charge_and_no_more(name):
    """At epsilon 6 the plate pays a fifth or so; charging 30 % less than that would be caught by
    the same audit."""
    users = np.array([10, 10, 8, 2, 6, 4, 3, 2])
    mean = MECHANISMS[name].plan(
        SamplesPerPlate(users), pure(6 * NANO), Range(0, 65 * 4096), "best-fit"
    )
    small = 3
    charge = int(mean.charges[small]) / NANO
    assert 1 <= charge <= 2.5
    first = int(users[:small].sum())
    runs = []
    for side, speed in (("slow", 0), ("fast", 65 * 4096)):
        samples = np.random.default_rng(5).integers(0, 65 * 4096 + 1, int(users.sum()))
        samples[first : first + int(users[small])] = speed
        runs.append(noisy_statistics(mean, samples, f"{name}/{side}", 12_000))
    assert 0.7 * charge < epsilon_seen(*runs) <= charge


def noisy_statistics(mean, samples, seed, runs):
    policy = policy_of()
    plan = plan_hat(mean.counts.by_plate, terms_of(policy, {"mean": mean.cost.nano}), policy)
    plan = type(plan)(plan.terms, plan.by_plate, {"mean": mean}, mean.charges)
    found = estimate_hats([plan] * runs, [samples] * runs, seeded_bits(seed))
    return np.array([one["mean"].value for one in found])
