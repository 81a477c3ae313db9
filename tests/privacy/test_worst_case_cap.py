"""Caps of the least worst case: Array-Averaging's by brute force over all speeds of 0 or U and all
caps; those of capped sums and of the papers beside all others."""

import itertools

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import ArrayAveraging, OptimalCappedSum, wrap_around_count
from udp_stream.mechanisms.noise import Cost, concentrated, pure

AVERAGING, RANGE = ArrayAveraging(), Range(0, 60 * 4096)


def worst_bias(plan):
    """The most that the statistic without noise is off from the mean of all samples; speeds of 0 or
    U are worst."""
    off = []
    for speeds in itertools.product((0, RANGE.high), repeat=plan.counts.total):
        samples = np.array(speeds, dtype=np.int64)
        found = plan.value(AVERAGING.query(plan, samples, bytes).statistic)
        off.append(abs(found - samples.mean()))
    return max(off)


def least_of_all(counts, cost, grouping):
    caps = [
        cap
        for cap in range(1, counts.largest + 1)
        if grouping == "best-fit" or wrap_around_count(counts, cap)
    ]
    plans = [AVERAGING.plan(counts, cost, RANGE, grouping, cap) for cap in caps]
    return min(worst_bias(plan) + plan.noise_bound for plan in plans)


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize(
    "counts", [(5, 1), (4, 3, 1), (3, 3, 2), (6, 2, 1, 1), (2, 2, 2, 2), (7,), (5, 2, 2), (1, 1, 1)]
)
def test_no_other_cap_has_a_smaller_worst_case(counts, grouping):
    of = SamplesPerPlate(np.array(counts))
    for cost in (Cost("pure", 3 * 10**8), Cost("pure", 2 * 10**9), Cost("zcdp", 10**9)):
        cap = AVERAGING.worst_case_cap(of, cost, RANGE, grouping)
        plan = AVERAGING.plan(of, cost, RANGE, grouping, cap)
        assert worst_bias(plan) <= plan.bias_bound + 1
        assert plan.error_bound == pytest.approx(
            least_of_all(of, cost, grouping), abs=2
        )  # means are whole quanta


def test_a_mean_of_array_means_is_off_where_the_papers_worst_case_is_nothing():
    """Counts (5, 1), cap 5: U (1 - G / M) is 0, and the second array's one sample weighs a half: U
    / 3."""
    plan = AVERAGING.plan(
        SamplesPerPlate(np.array([5, 1])), Cost("pure", 10**9), RANGE, "best-fit", 5
    )
    assert (
        worst_bias(plan)
        == pytest.approx(RANGE.width / 3, abs=1)
        == pytest.approx(plan.bias_bound, abs=1)
    )


@pytest.mark.parametrize("kind", ["even", "skew"])
def test_the_search_equals_a_look_at_every_cap(kind):
    dice = np.random.default_rng(len(kind))
    better = 0
    for case in range(60):
        size = int(dice.integers(2, 40))
        drawn = dice.integers(1, 80, size) if kind == "even" else dice.geometric(0.03, size)
        counts, grouping = (
            SamplesPerPlate(drawn.astype(np.int64)),
            ("best-fit", "wrap-around")[case % 2],
        )
        cost = Cost(("pure", "zcdp")[case // 2 % 2], int(10 ** dice.uniform(7.5, 10)))
        caps = [
            one
            for one in range(1, counts.largest + 1)
            if case % 2 == 0 or wrap_around_count(counts, one)
        ]
        least = min(AVERAGING.plan(counts, cost, RANGE, grouping, one).error_bound for one in caps)
        found = AVERAGING.plan(
            counts, cost, RANGE, grouping, AVERAGING.worst_case_cap(counts, cost, RANGE, grouping)
        )
        assert found.error_bound == pytest.approx(least, rel=1e-12)
        better += (
            found.error_bound < AVERAGING.plan(counts, cost, RANGE, grouping).error_bound * 0.99
        )
    assert better > 20  # than the median's


@pytest.mark.parametrize("epsilon", [0.3, 0.5, 0.9, 1.0, 2.0, 3.7])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16)), (5,) * 8], ids=str
)
@pytest.mark.parametrize("fill", [0, 2048, 3072, 4096])
def test_the_optimal_cap_has_the_least_worst_case_error_among_all_caps(counts, fill, epsilon):
    """Closed form: the ceil(U / (max(c, U-c) eps))-th largest count; for c = U/2 the
    ceil(2/eps)-th."""
    speed, hat = 4096, SamplesPerPlate(np.array(counts))
    worst = max(fill, speed - fill)

    def error(cap):
        return worst * (1 - hat.kept(cap) / hat.total) + speed * cap / (hat.total * epsilon)

    plan = OptimalCappedSum().plan_with_fill(
        hat, pure(round(epsilon * NANO)), Range(0, speed), fill
    )
    least = min(error(cap) for cap in range(min(counts), max(counts) + 1))
    assert plan.error_bound == pytest.approx(error(plan.cap)) == pytest.approx(least)


@pytest.mark.parametrize("rho", [0.01, 0.05, 0.2, 0.6, 3.0])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16)), (5,) * 8], ids=str
)
@pytest.mark.parametrize("fill", [0, 2048, 3072, 4096])
def test_the_optimal_cap_has_the_least_worst_case_error_in_rho_too(counts, fill, rho):
    """Gaussian noise of sigma = 1 / sqrt(2 rho) has the expected size sigma sqrt(2 / pi) = 1 /
    sqrt(pi rho)."""
    speed, hat, cost = 4096, SamplesPerPlate(np.array(counts)), concentrated(round(rho * NANO))
    worst = max(fill, speed - fill)

    def error(cap):
        return worst * (1 - hat.kept(cap) / hat.total) + speed * cap / (
            hat.total * np.sqrt(np.pi * rho)
        )

    plan = OptimalCappedSum().plan_with_fill(hat, cost, Range(0, speed), fill)
    least = min(error(cap) for cap in range(min(counts), max(counts) + 1))
    assert plan.error_bound == pytest.approx(error(plan.cap)) == pytest.approx(least)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(
    "counts", [(1,), (4, 1), (9, 7, 7, 3, 2, 1, 1), tuple(range(1, 16))], ids=str
)
def test_the_papers_worst_case_cap_is_best_among_all_lengths(counts, epsilon):
    """E(m) = U (1 - G/M) + U m / (eps G) is least at one of the counts (arXiv 2405.06261)."""
    hat = SamplesPerPlate(np.array(counts))

    def error(cap):
        return 1 - hat.kept(cap) / hat.total + cap / (epsilon * hat.kept(cap))

    chosen = hat.worst_case_cap(1 / epsilon)
    assert error(chosen) == pytest.approx(
        min(error(cap) for cap in range(min(counts), max(counts) + 1))
    )


def test_the_papers_worst_case_cap_never_falls_as_epsilon_grows():
    hat = SamplesPerPlate(np.array([1, 2, 2, 5, 8, 9, 9, 30]))
    caps = [hat.worst_case_cap(1 / epsilon) for epsilon in np.geomspace(0.01, 100, 60)]
    assert caps == sorted(caps) and caps[0] < caps[-1]
